"""Times by key, with quick access to the earliest: lock ends, expiries, schedules."""

from __future__ import annotations

import math
from collections import deque
from heapq import heappop, heappush
from typing import Generic, TypeVar

K = TypeVar("K", int, str)

_SLACK = 64


class Earliest:
    """The earliest of some deadlines.

    Attributes:
        at: no deadline is before this time; infinity if there is none. Setting a deadline lowers it; readers raise it.
    """

    __slots__ = ("at",)

    def __init__(self) -> None:
        self.at = math.inf


class Deadlines(Generic[K]):
    """One time for each key. Setting, dropping and taking the earliest cost O(1) for times that are set in their order,
    as those of locks and expiries mostly are, and O(log n) for the others.

    A time that was moved or dropped stays until it is the first. If more than half of the times are stale, all stale
    ones are deleted.

    Attributes:
        earliest: of these deadlines and the others that share it.
    """

    __slots__ = ("_at", "_heap", "_rising", "_stale_count", "earliest")

    def __init__(self, earliest: Earliest | None = None) -> None:
        self._at: dict[K, float] = {}
        self._rising: deque[tuple[float, K]] = deque()
        self._heap: list[tuple[float, K]] = []  # what was set after a later time
        self._stale_count = 0
        self.earliest = Earliest() if earliest is None else earliest

    def __len__(self) -> int:
        return len(self._at)

    def set(self, key: K, at: float) -> None:
        """Set or move the time of a key."""
        was_at = self._at.get(key)
        self._at[key] = at
        rising, item = self._rising, (at, key)
        if not rising or rising[-1] <= item:
            rising.append(item)
        else:
            heappush(self._heap, item)
        if at < self.earliest.at:
            self.earliest.at = at
        if was_at is not None:
            self.next_at()  # mostly it was the first, and then it goes at once
            self._note_stale()

    def drop(self, key: K) -> None:
        """Remove a key; unknown keys are ignored."""
        if self._at.pop(key, None) is not None:
            self._note_stale()

    def pop_due(self, now: float) -> tuple[K, float] | None:
        """Remove and return the key with the earliest time, if it is due."""
        if self.next_at() > now:
            return None
        rising, heap = self._rising, self._heap
        at, key = heappop(heap) if heap and (not rising or heap[0] < rising[0]) else rising.popleft()
        del self._at[key]
        return key, at

    def _note_stale(self) -> None:
        """Note that a time was moved or dropped."""
        self._stale_count += 1
        if not self._at:
            self._rising.clear()
            self._heap.clear()
            self._stale_count = 0
        elif self._stale_count > _SLACK + len(self._at):
            self._rising = deque(sorted((at, key) for key, at in self._at.items()))
            self._heap = []
            self._stale_count = 0

    def next_at(self) -> float:
        """Return the earliest time, infinity if there is none, and delete stale ones before it."""
        rising, heap, at = self._rising, self._heap, self._at
        while rising and at.get(rising[0][1]) != rising[0][0]:
            rising.popleft()
            self._stale_count -= 1
        while heap and at.get(heap[0][1]) != heap[0][0]:
            heappop(heap)
            self._stale_count -= 1
        return min(rising[0][0] if rising else math.inf, heap[0][0] if heap else math.inf)
