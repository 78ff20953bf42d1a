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
    """

    __slots__ = ("_at", "_heap")

    def __init__(self) -> None:
        self._at: dict[K, float] = {}
        self._heap: list[tuple[float, K]] = []

    def __len__(self) -> int:
        return len(self._at)

    def set(self, key: K, at: float) -> None:
        """Give a key its moment, or move it."""
        self._at[key] = at
        heapq.heappush(self._heap, (at, key))
        self._rebuild_if_stale()

    def drop(self, key: K) -> None:
        """Forget a key; unknown ones are ignored."""
        if self._at.pop(key, None) is not None:
            self._rebuild_if_stale()

    def next_at(self) -> float:
        """The earliest moment, infinity if there is none."""
        heap, at = self._heap, self._at
        while heap and at.get(heap[0][1]) != heap[0][0]:
            heapq.heappop(heap)
        return heap[0][0] if heap else math.inf

    def pop_due(self, now: float) -> tuple[K, float] | None:
        """Take out the key whose moment is earliest, if that moment has come."""
        at = self.next_at()
        if at > now or not self._heap:
            return None
        key = heapq.heappop(self._heap)[1]
        del self._at[key]
        return key, at

    def _rebuild_if_stale(self) -> None:
        if len(self._heap) > _SLACK + 2 * len(self._at):
            self._heap = [(at, key) for key, at in self._at.items()]
            heapq.heapify(self._heap)
