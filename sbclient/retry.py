"""Retries: tenacity repeats operations on our clock and the random generator of the client.

1. Only transient errors are retried, `retry_total` times, with exponential back-off and jitter.
2. A busy server gets 10 s each time, which uses up no retry (source: Microsoft's page about throttling).
3. All attempts end before the deadline, and get 20 s while time remains: to place a message may take the service 15 s.
4. The first attempt does without tenacity, which costs 25 us and gets no exception: it would outlive the operation.
"""

from __future__ import annotations

from asyncio import Event
from collections.abc import Awaitable, Callable
from functools import partial
from operator import not_
from random import Random
from typing import Any, Final, TypeAlias, TypeVar

from tenacity import AsyncRetrying, retry_if_result

from sbclient import clock
from sbclient.errors import OperationTimeoutError, ServiceBusError, ServiceBusServerBusyError, keep_doubt
from sbclient.options import SERVER_BUSY_PAUSE, RetryOptions
from sbclient.rules.backoff import growing

T = TypeVar("T")
Attempt: TypeAlias = Callable[..., Awaitable[T]]
MIN_ATTEMPT_S: Final = 20.0
BUSY_PAUSE_S: Final = SERVER_BUSY_PAUSE.total_seconds()


class NotTriedError(OperationTimeoutError):
    """The timeout passed before the first attempt. The service was not asked, so this says nothing about it."""

    is_outage = is_in_doubt = False


class BackOffInterrupted(Exception):
    """The pause between two attempts was interrupted; the cause is the error of the last attempt."""


async def repeat(
    attempt: Callable[[int], Awaitable[bool]],
    pause_s: Callable[[int], float],
    sleep: Callable[[float], Awaitable[None]],
) -> None:
    """Call `attempt(failures)` until it returns True, with `sleep(pause_s(failures))` after each failure."""
    if await attempt(0):
        return
    await sleep(pause_s(1))
    again = retry_if_result(not_)
    async for each in AsyncRetrying(sleep=sleep, wait=lambda state: pause_s(state.attempt_number + 1), retry=again):
        each.retry_state.set_result(await attempt(each.retry_state.attempt_number))


class RetryPolicy:
    """Retries the operations of a client, with jitter from its random generator."""

    def __init__(self, options: RetryOptions, random: Random) -> None:
        self.options = options
        self._pause_s = growing(options.retry_backoff_factor, options.retry_backoff_max, random)

    def attempt_s(self, left_s: float) -> float:
        """Return the timeout of each attempt of an operation for which `left_s` seconds are left."""
        share_s = left_s / (1 + self.options.retry_total)
        if share_s < MIN_ATTEMPT_S:  # without calls of `min` and `max`, which every operation would pay for
            share_s = MIN_ATTEMPT_S
        return share_s if share_s < left_s else left_s

    async def run(
        self,
        attempt: Attempt[T],
        *args: Any,
        deadline: float,
        first: Awaitable[T] | None = None,
        interrupt: Event | None = None,
    ) -> T:
        """Call `attempt(*args, timeout_s=...)` until it succeeds, fails for good, or the deadline (monotonic) passes.

        `first` is an attempt that has begun. `interrupt` ends a pause with `BackOffInterrupted` when it is set.
        """
        if first is None:
            if (left_s := deadline - clock.monotonic()) <= 0:
                raise NotTriedError("the timeout passed before the operation began: allow more time")
            first = attempt(*args, timeout_s=self.attempt_s(left_s))
        try:
            return await first
        except ServiceBusError as error:
            del first  # tracebacks refer to this frame, so in the end it must not refer to their errors
            last = [error]
        return await self._again(partial(attempt, *args), last, deadline, interrupt or Event())

    async def _again(self, attempt: Attempt[T], last: list[ServiceBusError], deadline: float, interrupt: Event) -> T:
        """Continue `run` after the first attempt. Variables that functions share cost time, so `run` has none."""
        is_busy = isinstance(last[0], ServiceBusServerBusyError)
        result, failures = list[T](), int(not is_busy)
        longest_s = max(MIN_ATTEMPT_S, self.attempt_s(deadline - clock.monotonic()))

        async def once(number: int) -> bool:
            nonlocal is_busy, failures
            if number and (left_s := deadline - clock.monotonic()) > 0:  # the first attempt has failed already
                try:
                    result.append(await attempt(timeout_s=min(left_s, longest_s)))
                except ServiceBusError as error:
                    keep_doubt(last[0], keep_doubt(error, last[0].is_in_doubt).is_in_doubt)
                    is_refused = isinstance(error, ServiceBusServerBusyError)
                    failures += not is_refused
                    if not (is_busy and left_s < longest_s and isinstance(error, OperationTimeoutError)):
                        last[0], is_busy = error, is_refused  # else it was too short for an answer, so it is busy still
            return bool(result)

        async def pause(seconds: float) -> None:
            is_last = not last[0].is_transient or (failures > self.options.retry_total and not is_busy)
            if is_last or clock.monotonic() + seconds >= deadline:
                raise last[0]
            if await clock.wait_for(interrupt, seconds):
                raise BackOffInterrupted from last[0]

        try:
            await repeat(once, lambda _: BUSY_PAUSE_S if is_busy else self._pause_s(failures), pause)
            return result[0]
        finally:
            last.clear()
