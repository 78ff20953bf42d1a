"""Runs an async test in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Final, ParamSpec, TypeVar

from sbclient.testing.virtual_loop import run_virtual

HORIZON_S: Final = 30 * 86_400.0
"""A test that waits for more than a month of virtual time will never end."""

BUSY_HORIZON_S: Final = 5 * 86_400.0
"""The same for a test with periodic work, which takes real time."""

P = ParamSpec("P")
T = TypeVar("T")


def in_virtual_time(test: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Decorate an async test so that it runs on a virtual loop.

    It needs no plugin for async tests. Fixtures are passed as usual, but async fixtures would run on another loop.

    Raises:
        DeadlockError: from the test, if it waits for something that can never happen, or for more than 30 days;
            for 5 days if it has advanced the time more than 5,000 times.
    """

    @wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        return run_virtual(test(*args, **kwargs), horizon_s=HORIZON_S, busy_horizon_s=BUSY_HORIZON_S)

    return run
