"""Moments by key, of which the earliest can be asked for: lock ends, lives, schedules."""

from __future__ import annotations

import heapq
import math
from typing import Generic, TypeVar

K = TypeVar("K", int, str)

_SLACK = 64


class Deadlines(Generic[K]):
    """One moment for each key. Setting, dropping and taking the earliest cost O(log n).

    A moment that was moved or dropped stays in the heap until it comes to the top; when these dead ones outnumber the
    living the heap is built again, so that it never holds more than twice what is needed.

    Attributes:
        earliest: the earliest moment, infinity if there is none; to be read only.
    """

    __slots__ = ("_at", "_heap", "earliest")

    def __init__(self) -> None:
        self._at: dict[K, float] = {}
        self._heap: list[tuple[float, K]] = []
        self.earliest = math.inf

    def __len__(self) -> int:
        return len(self._at)

    def set(self, key: K, at: float) -> None:
        """Give a key its moment, or move it."""
        was_at = self._at.get(key)
        self._at[key] = at
        heapq.heappush(self._heap, (at, key))
        if at < self.earliest:
            self.earliest = at
        elif was_at == self.earliest:
            self._look()
        self._rebuild_if_stale()

    def drop(self, key: K) -> None:
        """Forget a key; unknown ones are ignored."""
        was_at = self._at.pop(key, None)
        if was_at is not None:
            if was_at == self.earliest:
                self._look()
            self._rebuild_if_stale()

    def pop_due(self, now: float) -> tuple[K, float] | None:
        """Take out the key whose moment is earliest, if that moment has come."""
        if self.earliest > now or not self._heap:
            return None
        at, key = heapq.heappop(self._heap)
        del self._at[key]
        self._look()
        return key, at

    def _look(self) -> None:
        """Find the earliest moment, and throw away the dead ones before it."""
        heap, at = self._heap, self._at
        while heap and at.get(heap[0][1]) != heap[0][0]:
            heapq.heappop(heap)
        self.earliest = heap[0][0] if heap else math.inf

    def _rebuild_if_stale(self) -> None:
        if len(self._heap) > _SLACK + 2 * len(self._at):
            self._heap = [(at, key) for key, at in self._at.items()]
            heapq.heapify(self._heap)
