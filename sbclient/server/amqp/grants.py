"""What the tokens of one connection allow, until when, and for which entities.

Laws (source: claims-based security of Service Bus, documented):

1. A token counts for its audience and everything below it: `sb://host/a` for `a` and `a/b`, never for `ab`.
2. A newer token for the same audience replaces the older one.
3. Tokens end with the connection, and each at its own time: links that no other token covers end with it.
"""

from __future__ import annotations

import math
from typing import Final

from sbclient.entities import AccessRights
from sbclient.errors import ServiceBusQuotaExceededError
from sbclient.rules.entity_path import canonical
from sbclient.server.sas import Grant

MAX_GRANTS: Final = 5_000
"""Audiences of one connection, so that nobody can make the table grow for ever."""


class Grants:
    """The tokens of one connection, by audience.

    Attributes:
        has_begun: whether there ever was one.
    """

    def __init__(self) -> None:
        self.has_begun = False
        self._grants: dict[str, Grant] = {}

    def add(self, path: str, grant: Grant) -> None:
        """Let a grant, which covers a path, count for it and below; the empty path is the whole namespace.

        Raises:
            ServiceBusQuotaExceededError: there are too many.
        """
        key = canonical(path)
        if key not in self._grants and len(self._grants) >= MAX_GRANTS:
            raise ServiceBusQuotaExceededError(
                f"this connection has tokens for {len(self._grants)} audiences, {MAX_GRANTS} are allowed: "
                "ask for one token of the namespace"
            )
        self._grants[key] = grant
        self.has_begun = True

    def rights(self, path: str, now: float) -> frozenset[AccessRights]:
        """What may be done with an entity now; empty if no token covers it."""
        allowed: frozenset[AccessRights] = frozenset()
        key = canonical(path)
        while True:
            grant = self._grants.get(key)
            if grant is not None and now < grant.expires_at:
                allowed |= grant.rights
            if not key:
                return allowed
            key = key.rpartition("/")[0]

    def next_expiry_at(self) -> float:
        """When the next token ends; infinity if none does."""
        return min((grant.expires_at for grant in self._grants.values()), default=math.inf)

    def drop_expired(self, now: float) -> bool:
        """Forget tokens that have ended; returns whether there were any."""
        ended = [key for key, grant in self._grants.items() if grant.expires_at <= now]
        for key in ended:
            del self._grants[key]
        return bool(ended)
