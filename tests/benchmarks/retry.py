"""The cost of the retry policy, and of the same strategies under tenacity's AsyncRetrying.

    python -m tests.benchmarks.retry [operations] [rounds]

Time is virtual, the cost is real: microseconds for each operation, the fastest round of each. The policy uses the
engine that is faster for an operation that fails once. An operation that succeeds at once uses neither.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from random import Random
from time import perf_counter

from tenacity import AsyncRetrying

from sbclient.clock import Clock
from sbclient.errors import ServiceBusConnectionError
from sbclient.options import RetryOptions
from sbclient.retry import Operation, RetryPolicy, RetryTransient, StopAtLimits, WaitBackOff
from sbclient.testing import VirtualClock, run_virtual

Run = Callable[[Callable[[float], Awaitable[None]]], Awaitable[None]]
OPTIONS = RetryOptions()


def failing(times: int) -> Callable[[float], Awaitable[None]]:
    """Return an attempt that fails so many times and then succeeds."""
    left = times

    async def attempt(_: float) -> None:
        nonlocal left
        if left:
            left -= 1
            raise ServiceBusConnectionError("gone")

    return attempt


def with_policy(clock: Clock) -> Run:
    policy = RetryPolicy(OPTIONS, clock, Random(1))
    return lambda attempt: policy.run(attempt, deadline=policy.deadline(None))


def with_async_retrying(clock: Clock) -> Run:
    """Run operations as the policy does, but with AsyncRetrying for the attempts after the first."""
    wait, stop, retry = WaitBackOff(OPTIONS, Random(1)), StopAtLimits(clock), RetryTransient()

    async def run(attempt: Callable[[float], Awaitable[None]]) -> None:
        operation = Operation(OPTIONS.retry_total, clock, clock.monotonic() + OPTIONS.timeout, OPTIONS.timeout)
        try:
            await operation.attempt(attempt)
        except ServiceBusConnectionError:
            pass
        else:
            return
        async for trial in AsyncRetrying(retry=retry, wait=wait, stop=stop, sleep=clock.sleep):
            if trial.retry_state.attempt_number > 1:
                try:
                    await operation.attempt(attempt)
                except ServiceBusConnectionError:
                    pass
                else:
                    return
            trial.retry_state.set_result(operation)

    return run


async def measured(engine: Callable[[Clock], Run], failures: int, operations: int) -> float:
    """Return the microseconds of one operation."""
    run = engine(VirtualClock())
    began_at = perf_counter()
    for _ in range(operations):
        await run(failing(failures))
    return (perf_counter() - began_at) / operations * 1e6


def main() -> None:
    operations = int(sys.argv[1]) if len(sys.argv) > 1 else 5_000
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    print(f"{'failures':>8}  {'policy':>9}  {'AsyncRetrying':>13}  ratio")
    for failures in (0, 1, 3):
        best = [float("inf"), float("inf")]
        for _ in range(rounds):
            for number, engine in enumerate((with_policy, with_async_retrying)):
                best[number] = min(best[number], run_virtual(measured(engine, failures, operations)))
        print(f"{failures:>8}  {best[0]:>6.1f} us  {best[1]:>10.1f} us  {best[1] / best[0]:>5.2f}")


if __name__ == "__main__":
    main()
