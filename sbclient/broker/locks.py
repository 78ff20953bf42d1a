"""The message locks of one fragment.

A lock token identifies one delivery. Its low 16 bits are the index of the fragment, which needs no table.
"""

from __future__ import annotations

import math
from random import Random
from typing import Final

from sbclient.broker.deadlines import Deadlines, Earliest
from sbclient.broker.entry import Entry

TOKEN_FRAGMENT_BITS: Final = 16
TOKEN_FRAGMENT_MASK: Final = (1 << TOKEN_FRAGMENT_BITS) - 1


class Locks:
    """The locked messages of a fragment, by token.

    Args:
        random: for the tokens.
        earliest: of all deadlines of the fragment.

    Attributes:
        entries: the messages; read-only.
        ends: the end of each lock by sequence number; messages that a session lock covers are not included.
    """

    def __init__(self, fragment_index: int, random: Random, earliest: Earliest) -> None:
        self.ends: Deadlines[int] = Deadlines(earliest)
        self._fragment_index = fragment_index
        self._random = random
        self.entries: dict[int, Entry] = {}
        self._cached: dict[int, None] = {}

    def __len__(self) -> int:
        return len(self.entries)

    def new_token(self) -> int:
        """Return a new token; the chance that it is 0 is one in 2 to the power of 112."""
        return self._random.getrandbits(128 - TOKEN_FRAGMENT_BITS) << TOKEN_FRAGMENT_BITS | self._fragment_index

    def hold(self, entry: Entry, until: float) -> None:
        """Lock a message; with infinity the lock ends with that of its session."""
        entry.token = token = self.new_token()
        self.entries[token] = entry
        entry.locked_until = until
        if until < math.inf:
            self.ends.set(entry.number, until)

    def move(self, entry: Entry, until: float) -> float:
        """Set and return the end of a lock that has one of its own."""
        entry.locked_until = until
        self.ends.set(entry.number, until)
        return until

    def let_go(self, entry: Entry) -> None:
        """Unlock a message."""
        del self.entries[entry.token]
        if self._cached:
            self._cached.pop(entry.token, None)
        self.ends.drop(entry.number)
        entry.token, entry.locked_until = 0, math.inf

    def cache(self, token: int) -> None:
        """Mark a message as cached by a front end."""
        self._cached[token] = None

    def is_cached(self, token: int) -> bool:
        return token in self._cached

    def uncache(self, token: int) -> bool:
        """Mark a cached message as delivered; False if its lock has ended."""
        return self._cached.pop(token, self) is None
