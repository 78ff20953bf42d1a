"""Runs an async test in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial, wraps
from typing import Any, Final, ParamSpec, TypeVar, overload

from sbclient.testing.virtual_loop import OUTAGE_LIMIT_S, VirtualLoop

HORIZON_S: Final = 30 * 86_400.0
"""A test that waits for more than a month of virtual time will never end."""

BUSY_HORIZON_S: Final = 5 * 86_400.0
"""The same for a test with periodic work, which takes real time."""

P = ParamSpec("P")
T = TypeVar("T")


@overload
def in_virtual_time(test: Callable[P, Coroutine[Any, Any, T]], /) -> Callable[P, T]: ...
@overload
def in_virtual_time(
    *, patch_datetime: bool = False, outage_limit_s: float | None = OUTAGE_LIMIT_S
) -> Callable[[Callable[P, Coroutine[Any, Any, T]]], Callable[P, T]]: ...
def in_virtual_time(
    test: Any = None, /, *, patch_datetime: bool = False, outage_limit_s: float | None = OUTAGE_LIMIT_S
) -> Any:
    """Decorate an async test so that it runs on a virtual loop, with or without arguments.

    It needs no plugin for async tests. Fixtures are passed as usual; async fixtures of plugins run on another loop.

    Args:
        patch_datetime: whether `datetime.now()` and `time.time()` are virtual too. Requires time-machine.
        outage_limit_s: as for `run_virtual`.

    Raises:
        DeadlockError: from the test, if it waits for something that can never happen, or for more than 30 days;
            for 5 days if it has advanced the time more than 5,000 times; for an hour during an outage that nothing
            ends.
    """
    if test is None:
        return partial(in_virtual_time, patch_datetime=patch_datetime, outage_limit_s=outage_limit_s)

    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> Any:
        with new_runner(patch_datetime=patch_datetime, outage_limit_s=outage_limit_s) as runner:
            return run_test(runner, test(*args, **kwargs))

    return run


def new_runner(*, patch_datetime: bool, outage_limit_s: float | None) -> asyncio.Runner:
    """Return a runner of a virtual loop for one test and its fixtures."""
    loop = VirtualLoop(
        horizon_s=HORIZON_S,
        busy_horizon_s=BUSY_HORIZON_S,
        outage_limit_s=outage_limit_s,
        patch_datetime=patch_datetime,
    )
    return asyncio.Runner(loop_factory=lambda: loop)


def run_test(runner: asyncio.Runner, work: Coroutine[Any, Any, T]) -> T:
    """Run a test or a part of it; its error says what real time could have to do with it."""
    loop = runner.get_loop()
    assert isinstance(loop, VirtualLoop)
    with loop.explained():
        return runner.run(work)
