"""Times by key, with quick access to the earliest: lock ends, expiries, schedules."""

from __future__ import annotations

import heapq
import math
from typing import Generic, TypeVar

K = TypeVar("K", int, str)

_SLACK = 64


class DeadlineHeap(Generic[K]):
    """One time for each key. Setting, dropping and taking the earliest cost O(log n).

    A time that was moved or dropped stays in the heap until it reaches the top. If more than half of the heap is stale,
    it is rebuilt.

    Attributes:
        earliest: the earliest time, infinity if there is none; read-only.
    """

    __slots__ = ("_at", "_heap", "earliest")

    def __init__(self) -> None:
        self._at: dict[K, float] = {}
        self._heap: list[tuple[float, K]] = []
        self.earliest = math.inf

    def __len__(self) -> int:
        return len(self._at)

    def set(self, key: K, at: float) -> None:
        """Set or move the time of a key."""
        was_at = self._at.get(key)
        self._at[key] = at
        heapq.heappush(self._heap, (at, key))
        if at < self.earliest:
            self.earliest = at
        elif was_at == self.earliest:
            self._update_earliest()
        if len(self._heap) > _SLACK + 2 * len(self._at):
            self._rebuild()

    def drop(self, key: K) -> None:
        """Remove a key; unknown keys are ignored."""
        was_at = self._at.pop(key, None)
        if was_at is not None:
            if was_at == self.earliest:
                self._update_earliest()
            if len(self._heap) > _SLACK + 2 * len(self._at):
                self._rebuild()

    def pop_due(self, now: float) -> tuple[K, float] | None:
        """Remove and return the key with the earliest time, if it is due."""
        if self.earliest > now or not self._heap:
            return None
        at, key = heapq.heappop(self._heap)
        del self._at[key]
        self._update_earliest()
        return key, at

    def _update_earliest(self) -> None:
        """Find the earliest time, and drop stale ones before it."""
        heap, at = self._heap, self._at
        while heap and at.get(heap[0][1]) != heap[0][0]:
            heapq.heappop(heap)
        self.earliest = heap[0][0] if heap else math.inf

    def _rebuild(self) -> None:
        self._heap = [(at, key) for key, at in self._at.items()]
        heapq.heapify(self._heap)
