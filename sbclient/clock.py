"""The source of time for this package: all code that waits or reads the time uses a `Clock`.

`now()` is the wall clock, for times shared with other processes: enqueue times, locks, expiry. `monotonic()` is for
durations: intervals, back-off, timeouts. It never jumps.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable
from typing import Any


class Clock:
    """The clock of the running event loop: real on asyncio's loops, virtual on a virtual loop (`sbclient.testing`).

    A virtual loop begins at the real time, so that it fits `datetime.now()` in a tested program.
    """

    def now(self) -> float:
        """Return the seconds since 1970-01-01 UTC."""
        loop = asyncio._get_running_loop()
        return time.time() if loop is None or not hasattr(loop, "wall_time") else loop.wall_time()

    def monotonic(self) -> float:
        """Return the time of the running event loop, in seconds since an arbitrary point."""
        return asyncio.get_running_loop().time()

    def reader(self) -> Callable[[], float]:
        """Return a function that reads `monotonic()` of the running loop in any thread, even after the loop stopped."""
        return asyncio.get_running_loop().time

    def sleep(self, delay_s: float) -> Coroutine[Any, Any, None]:
        """Wait that many seconds."""
        return asyncio.sleep(delay_s)

    def timeout(self, delay_s: float | None) -> asyncio.Timeout:
        """Return a context manager that cancels its body and raises `TimeoutError` after that many seconds.

        None is no timeout.
        """
        return asyncio.timeout(delay_s)

    async def wait(self, tasks: Iterable[asyncio.Task[Any]], timeout_s: float) -> set[asyncio.Task[Any]]:
        """Wait for tasks, at most that many seconds. Returns the tasks that are not done."""
        waited_for = set(tasks)
        if not waited_for:
            return set()
        _, late = await asyncio.wait(waited_for, timeout=timeout_s)
        return late

    def call_later(self, delay_s: float, action: Callable[[], None]) -> asyncio.TimerHandle:
        """Call `action` in the running loop after that many seconds. The handle cancels the call."""
        return asyncio.get_running_loop().call_later(delay_s, action)


class VirtualClock(Clock):
    """As `Clock` on a virtual loop, with a fixed wall time at the beginning, for repeatable runs.

    Args:
        epoch: the value of `now()` when the loop's time is 0, in seconds since 1970-01-01 UTC.
    """

    def __init__(self, epoch: float = 1_700_000_000.0) -> None:
        self._epoch = epoch

    def now(self) -> float:
        return self._epoch + asyncio.get_running_loop().time()
