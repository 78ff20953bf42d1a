"""Who holds which message of one fragment, and until when.

A token names one delivery. Its low 16 bits are the fragment's index, so that no table is needed to find the fragment.
"""

from __future__ import annotations

import math
from random import Random
from typing import Final

from sbclient.broker.deadlines import Deadlines
from sbclient.broker.entry import Entry

TOKEN_FRAGMENT_BITS: Final = 16


class Locks:
    """The messages of a fragment that are held, by token.

    Attributes:
        ends: when each lock ends; those of messages that are held with their session are not in it.
    """

    def __init__(self, fragment_index: int, random: Random) -> None:
        self.ends: Deadlines[int] = Deadlines()
        self._fragment_index = fragment_index
        self._random = random
        self._entries: dict[int, Entry] = {}
        self._cached: dict[int, None] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def new_token(self) -> int:
        """A token that nobody else will have; never 0 but by a chance of one in 2 to the power of 112."""
        return self._random.getrandbits(128 - TOKEN_FRAGMENT_BITS) << TOKEN_FRAGMENT_BITS | self._fragment_index

    def get(self, token: int) -> Entry | None:
        return self._entries.get(token)

    def held(self, token: int) -> Entry:
        """The message of a token that is known to be good."""
        return self._entries[token]

    def hold(self, entry: Entry, until: float) -> None:
        """Give a message a token; infinity as the end leaves it to the session's."""
        entry.token = self.new_token()
        self._entries[entry.token] = entry
        self.move(entry, until)

    def move(self, entry: Entry, until: float) -> float:
        """Let a lock end at another moment, which is returned."""
        entry.locked_until = until
        if until < math.inf:
            self.ends.set(entry.token, until)
        return until

    def let_go(self, entry: Entry) -> None:
        """Take the token from a message."""
        del self._entries[entry.token]
        self._cached.pop(entry.token, None)
        self.ends.drop(entry.token)
        entry.token, entry.locked_until = 0, math.inf

    def cache(self, token: int) -> None:
        """Note that a front end holds the message for nobody yet."""
        self._cached[token] = None

    def is_cached(self, token: int) -> bool:
        return token in self._cached

    def uncache(self, token: int) -> bool:
        """Note that somebody was given the message now; False if its lock has ended before."""
        return self._cached.pop(token, self) is None
