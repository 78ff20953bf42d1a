"""The deadlines of everything that waits for the service, on one timer.

A timer per message would cost as much as its encoding. The timer is set for the earliest deadline that was added since
it last fired; then all that wait are looked at. Most calls end long before, so this happens seldom.
"""

from __future__ import annotations

import asyncio
import math
from typing import Any

from sbclient.clock import Clock
from sbclient.errors import OperationTimeoutError


class Waiter:
    """A call that waits for the service.

    Attributes:
        deadline: monotonic seconds.
        future: its result.
        doing: the operation and its object, for errors.
    """

    __slots__ = ("deadline", "doing", "future")

    def __init__(self, deadline: float, doing: str) -> None:
        self.deadline = deadline
        self.doing = doing
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    @property
    def is_in_doubt(self) -> bool:
        """Whether the service may have acted if no answer comes."""
        return False

    def finish(self, result: Any = None) -> None:
        """Give the caller its result, unless it has gone."""
        if not self.future.done():
            self.future.set_result(result)

    def fail(self, error: BaseException) -> None:
        """Give the caller an error, unless it has gone."""
        if not self.future.done():
            self.future.set_exception(error)

    def expire(self) -> None:
        """The deadline has passed."""
        if not self.future.done():
            late = OperationTimeoutError(
                f"{self.doing}: the service did not answer in time, whether it acted is in doubt"
                if self.is_in_doubt
                else f"{self.doing}: the service did not become ready in time, nothing was sent"
            )
            late.is_in_doubt = self.is_in_doubt
            self.future.set_exception(late)


class Deadlines:
    """Expires waiters.

    Args:
        clock: the only source of time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiters: dict[Waiter, None] = {}
        self._due_at = math.inf
        self._timer: asyncio.TimerHandle | None = None

    def add(self, waiter: Waiter) -> None:
        """Watch a waiter until `remove`."""
        self._waiters[waiter] = None
        if waiter.deadline < self._due_at:
            self._set(waiter.deadline)

    def remove(self, waiter: Waiter) -> None:
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
        self._timer = self._clock.call_later(max(0.0, at - self._clock.monotonic()), self._sweep)

    def _sweep(self) -> None:
        self._timer = None
        self._due_at = math.inf
        now = self._clock.monotonic()
        expired = [waiter for waiter in self._waiters if waiter.deadline <= now]
        for waiter in expired:
            del self._waiters[waiter]
            waiter.expire()
        if self._waiters:
            earliest = min(waiter.deadline for waiter in self._waiters)
            if earliest < self._due_at:
                self._set(earliest)
