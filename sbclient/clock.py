"""The only door to time: everything in this package that waits, or asks what time it is, does it here.

Two readings, as in the operating system: `now()` is the wall clock, for facts that others also see (enqueued times,
locks, lives), `monotonic()` is for spans (intervals, back-off, timeouts) and never jumps.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Any


class Clock:
    """The real clock of the machine and of the running event loop."""

    def now(self) -> float:
        """Seconds since 1970-01-01 UTC."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds since some fixed moment; the time of the running event loop."""
        return asyncio.get_running_loop().time()

    def reader(self) -> Callable[[], float]:
        """Something that reads `monotonic()` of the running loop in any thread, and also when the loop has stopped."""
        return asyncio.get_running_loop().time

    async def sleep(self, span_s: float) -> None:
        """Wait that many seconds."""
        await asyncio.sleep(span_s)

    def timeout(self, span_s: float | None) -> asyncio.Timeout:
        """A context whose body is cancelled, and raises `TimeoutError`, after that many seconds; None never."""
        return asyncio.timeout(span_s)

    async def wait(self, tasks: Iterable[asyncio.Task[Any]], span_s: float) -> set[asyncio.Task[Any]]:
        """Wait for tasks, at most that many seconds; returns those that have not ended by then."""
        waited_for = set(tasks)
        if not waited_for:
            return set()
        _, late = await asyncio.wait(waited_for, timeout=span_s)
        return late

    def call_later(self, span_s: float, action: Callable[[], None]) -> asyncio.TimerHandle:
        """Let the running loop call `action` after that many seconds; the handle cancels it."""
        return asyncio.get_running_loop().call_later(span_s, action)


class VirtualClock(Clock):
    """The time of a virtual event loop (`sbclient.testing`): the wall clock follows the loop and nothing else.

    Args:
        epoch: what `now()` says when the loop's time is 0, in seconds since 1970-01-01 UTC.
    """

    def __init__(self, epoch: float = 1_700_000_000.0) -> None:
        self._epoch = epoch

    def now(self) -> float:
        return self._epoch + asyncio.get_running_loop().time()
