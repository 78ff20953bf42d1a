"""A clock that works on virtual and real event loops, and a decorator that runs a test in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Final, ParamSpec, TypeVar

from sbclient.clock import Clock, VirtualClock
from sbclient.testing.virtual_loop import VirtualLoop, run_virtual

HORIZON_S: Final = 30 * 86_400.0
"""A test that waits for more than a month of virtual time will never end."""

P = ParamSpec("P")
T = TypeVar("T")


class AmbientClock(Clock):
    """Virtual time on a virtual loop, real time on any other.

    Virtual time starts at the current real time, so that it fits `datetime.now()` in the tested program.
    """

    def __init__(self) -> None:
        self._virtual = VirtualClock(epoch=super().now())

    def now(self) -> float:
        try:
            is_virtual = isinstance(asyncio.get_running_loop(), VirtualLoop)
        except RuntimeError:
            is_virtual = False
        return self._virtual.now() if is_virtual else super().now()


def in_virtual_time(test: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Decorate an async test so that it runs on a virtual loop.

    It needs no plugin for async tests. Fixtures are passed as usual, but async fixtures would run on another loop.

    Raises:
        DeadlockError: from the test, if it waits for something that can never happen, or for more than 30 days.
    """

    @wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        return run_virtual(test(*args, **kwargs), horizon_s=HORIZON_S)

    return run
