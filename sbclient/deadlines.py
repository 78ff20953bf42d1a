"""The deadlines of everything that waits for the service, on one timer.

A timer per message would cost as much as its encoding. The timer is set for the earliest deadline that was added since
it last fired; then all that wait are checked. Most calls end long before, so this happens rarely.
"""

from __future__ import annotations

import asyncio
import math
from typing import Protocol

from sbclient import clock


class Waiting(Protocol):
    """A call that waits until a deadline in monotonic seconds."""

    deadline: float

    def expire(self) -> None:
        """End the wait: the deadline has passed."""


class Deadlines:
    """Expires waiters."""

    def __init__(self) -> None:
        self._waiters: dict[Waiting, None] = {}
        self._due_at = math.inf
        self._timer: asyncio.TimerHandle | None = None

    def add(self, waiter: Waiting) -> None:
        """Watch a waiter until `remove`."""
        self._waiters[waiter] = None
        if waiter.deadline < self._due_at:
            self._set(waiter.deadline)

    def remove(self, waiter: Waiting) -> None:
        """Watch it no longer."""
        self._waiters.pop(waiter, None)

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._due_at = math.inf

    def _set(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due_at = at
        self._timer = clock.call_later(max(0.0, at - clock.monotonic()), self._sweep)

    def _sweep(self) -> None:
        self._timer = None
        self._due_at = math.inf
        now = clock.monotonic()
        expired = [waiter for waiter in self._waiters if waiter.deadline <= now]
        for waiter in expired:
            del self._waiters[waiter]
            waiter.expire()
        if self._waiters:
            earliest = min(waiter.deadline for waiter in self._waiters)
            if earliest < self._due_at:
                self._set(earliest)
