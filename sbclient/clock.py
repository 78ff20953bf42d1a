"""The source of time for this package: all code that waits or reads the time calls these functions.

They ask the running event loop, so that they hold no state: its time is real on asyncio's loops and virtual on a
virtual loop (`sbclient.testing`). `now()` is the wall clock, for times shared with other processes: enqueue times,
locks, expiry. `monotonic()` is for durations: intervals, back-off, timeouts. It never jumps.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Generator, Iterable
from contextlib import suppress
from contextvars import ContextVar
from types import coroutine
from typing import Any, Final

SKEW_S: Final = ContextVar("SKEW_S", default=0.0)
"""Seconds by which the wall clock of a context is ahead of the true time, for tests of machines with a wrong clock."""

LONGEST_RUN_S: Final = 0.001
"""After so much time a coroutine lets timers and sockets be served, if it never waits."""


def now() -> float:
    """Return the seconds since 1970-01-01 UTC, as the wall clock of this context shows them."""
    return true_now() + SKEW_S.get()


class VirtualTime:
    """An event loop whose time is virtual."""

    def wall_time(self) -> float:
        """Seconds since 1970-01-01 UTC."""
        raise NotImplementedError


def true_now() -> float:
    """Return the seconds since 1970-01-01 UTC without skew, for a broker in memory that clients of any context call."""
    loop = asyncio._get_running_loop()
    return loop.wall_time() if isinstance(loop, VirtualTime) else time.time()


def monotonic() -> float:
    """Return the time of the running event loop, in seconds since an arbitrary point.

    Without one it is the time of asyncio's loops, for objects that are made before their loop runs.
    """
    loop = asyncio._get_running_loop()
    return time.monotonic() if loop is None else loop.time()


def reader() -> Callable[[], float]:
    """Return a function that reads `monotonic()` of the running loop in any thread, even after the loop stopped."""
    return asyncio.get_running_loop().time


def sleep(delay_s: float) -> Coroutine[Any, Any, None]:
    """Wait that many seconds."""
    return asyncio.sleep(delay_s)


@coroutine
def step() -> Generator[None, None, None]:
    """Let all that is ready in the event loop run before the caller goes on."""
    yield


class _Steps(threading.local):
    """When the last step was that `is_step_due` asked for, in this thread."""

    last_at = 0.0


_steps: Final = _Steps()


def is_step_due() -> bool:
    """Whether a coroutine that need not wait must `step` nevertheless, so that it does not block the others.

    It must if anything is ready to run, and for timers and sockets once in a millisecond: a step takes a sixth of the
    time of a message. On a virtual loop it always must, so that a run depends on no real time.
    """
    loop = asyncio._get_running_loop()
    if getattr(loop, "_ready", True) or isinstance(loop, VirtualTime):  # other loops than asyncio's hide what is ready
        return True
    now = time.monotonic()
    if now - _steps.last_at < LONGEST_RUN_S:
        return False
    _steps.last_at = now
    return True


def timeout(delay_s: float | None) -> asyncio.Timeout:
    """Return a context manager that cancels its body and raises `TimeoutError` after that many seconds.

    None is no timeout.
    """
    return asyncio.timeout(delay_s)


async def wait_for(event: asyncio.Event, timeout_s: float | None) -> bool:
    """Wait until an event is set, at most that many seconds. Returns whether it is set."""
    with suppress(TimeoutError):
        async with timeout(timeout_s):
            await event.wait()
    return event.is_set()


async def wait(tasks: Iterable[asyncio.Task[Any]], timeout_s: float) -> set[asyncio.Task[Any]]:
    """Wait for tasks, at most that many seconds. Returns the tasks that are not done."""
    waited_for = set(tasks)
    if not waited_for:
        return set()
    _, late = await asyncio.wait(waited_for, timeout=timeout_s)
    return late


def call_later(delay_s: float, action: Callable[[], None]) -> asyncio.TimerHandle:
    """Call `action` in the running loop after that many seconds. The handle cancels the call."""
    return asyncio.get_running_loop().call_later(delay_s, action)
