"""The rights of one connection by its tokens: for which entities, and until when.

Laws (source: claims-based security of Service Bus, documented):

1. A token is valid for its audience and everything below, within the scope of the token itself: `sb://host/a` covers
   `a` and `a/b`, but not `ab`.
2. A newer token for the same audience replaces the older one, also if it grants less. Links that need more rights end.
3. A token ends at its expiry or with the connection. Links that no other token covers end with it.
"""

from __future__ import annotations

import math
from typing import Final

from sbclient.emulator.sas import Grant
from sbclient.entities import AccessRights
from sbclient.errors import ServiceBusQuotaExceededError
from sbclient.rules.entity_path import canonical

MAX_GRANTS: Final = 5_000
"""The most audiences of one connection."""


class Grants:
    """The tokens of one connection, by audience.

    Attributes:
        has_begun: whether there has been a token.
        next_expiry_at: the time of the next expiry; infinity if there is none.
    """

    def __init__(self) -> None:
        self.has_begun = False
        self.next_expiry_at = math.inf
        self._grants: dict[str, Grant] = {}

    def __bool__(self) -> bool:
        """Whether any token is valid."""
        return bool(self._grants)

    def add(self, path: str, grant: Grant) -> bool:
        """Add a grant for a path and everything below; the empty path is the whole namespace.

        Returns: whether the grant may allow less than the one that it replaces.

        Raises:
            ServiceBusQuotaExceededError: there are too many audiences.
        """
        key = canonical(path)
        if key not in self._grants and len(self._grants) >= MAX_GRANTS:
            raise ServiceBusQuotaExceededError(
                f"this connection has tokens for {len(self._grants)} audiences, {MAX_GRANTS} are allowed: "
                "use one token for the whole namespace"
            )
        replaced = self._grants.get(key)
        self._grants[key] = grant
        self.has_begun = True
        self._update_next_expiry()
        return replaced is not None and (
            not grant.rights >= replaced.rights or (grant.path, grant.entity) != (replaced.path, replaced.entity)
        )

    def rights(self, path: str, now: float) -> frozenset[AccessRights]:
        """The rights on an entity; empty if no token covers it."""
        allowed: frozenset[AccessRights] = frozenset()
        key = canonical(path)
        while True:
            grant = self._grants.get(key)
            if grant is not None and now < grant.expires_at and grant.covers(path):
                allowed |= grant.rights
            if not key:
                return allowed
            key = key.rpartition("/")[0]

    def drop_expired(self, now: float) -> bool:
        """Remove expired tokens; returns whether there were any."""
        if now < self.next_expiry_at:
            return False
        for key in [key for key, grant in self._grants.items() if grant.expires_at <= now]:
            del self._grants[key]
        self._update_next_expiry()
        return True

    def _update_next_expiry(self) -> None:
        self.next_expiry_at = min((grant.expires_at for grant in self._grants.values()), default=math.inf)
