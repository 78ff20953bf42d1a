"""What the tokens of one connection allow, until when, and for which entities.

Laws (source: claims-based security of Service Bus, documented):

1. A token counts for its audience and what lies below it, as far as the token itself goes: `sb://host/a` for `a` and
   `a/b`, never for `ab`.
2. A newer token for the same audience replaces the older one, also if it allows less: links that need more end.
3. Tokens end with the connection, and each at its own time: links that no other token covers end with it.
"""

from __future__ import annotations

import math
from typing import Final

from sbclient.emulator.sas import Grant
from sbclient.entities import AccessRights
from sbclient.errors import ServiceBusQuotaExceededError
from sbclient.rules.entity_path import canonical

MAX_GRANTS: Final = 5_000
"""Audiences of one connection, so that nobody can make the table grow for ever."""


class Grants:
    """The tokens of one connection, by audience.

    Attributes:
        has_begun: whether there ever was one.
        next_expiry_at: when the next one ends; infinity if none does.
    """

    def __init__(self) -> None:
        self.has_begun = False
        self.next_expiry_at = math.inf
        self._grants: dict[str, Grant] = {}

    def __bool__(self) -> bool:
        """Whether any token counts."""
        return bool(self._grants)

    def add(self, path: str, grant: Grant) -> bool:
        """Let a grant, which covers a path, count for it and below; the empty path is the whole namespace.

        Returns: whether it may allow less than one that it replaces.

        Raises:
            ServiceBusQuotaExceededError: there are too many.
        """
        key = canonical(path)
        if key not in self._grants and len(self._grants) >= MAX_GRANTS:
            raise ServiceBusQuotaExceededError(
                f"this connection has tokens for {len(self._grants)} audiences, {MAX_GRANTS} are allowed: "
                "ask for one token of the namespace"
            )
        replaced = self._grants.get(key)
        self._grants[key] = grant
        self.has_begun = True
        self._look_at_the_ends()
        return replaced is not None and (
            not grant.rights >= replaced.rights or (grant.path, grant.entity) != (replaced.path, replaced.entity)
        )

    def rights(self, path: str, now: float) -> frozenset[AccessRights]:
        """What may be done with an entity now; empty if no token covers it."""
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
        """Forget tokens that have ended; returns whether there were any."""
        if now < self.next_expiry_at:
            return False
        for key in [key for key, grant in self._grants.items() if grant.expires_at <= now]:
            del self._grants[key]
        self._look_at_the_ends()
        return True

    def _look_at_the_ends(self) -> None:
        self.next_expiry_at = min((grant.expires_at for grant in self._grants.values()), default=math.inf)
