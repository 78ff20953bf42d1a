"""Retries: tenacity repeats operations on our clock and the random generator of the client.

1. Only transient errors are retried, `retry_total` times, with exponential back-off and jitter.
2. A busy server gets 10 s each time, which uses up no retry; if it stays busy, that is the error (source: Microsoft's
   page about throttling).
3. All attempts happen before the deadline. No attempt gets less than 20 s while time remains: the service may need 15 s
   to place a message on another fragment.
4. The first attempt does without tenacity, which gets no exception: it would outlive the operation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any, Final, TypeVar

from tenacity import AsyncRetrying, retry_if_result

from sbclient import clock
from sbclient.errors import OperationTimeoutError, ServiceBusError, ServiceBusServerBusyError
from sbclient.options import SERVER_BUSY_PAUSE, RetryOptions
from sbclient.rules.backoff import growing

T = TypeVar("T")
MIN_ATTEMPT_S: Final = 20.0


class NotTriedError(OperationTimeoutError):
    """The timeout passed before the first attempt. The service was not asked, so this says nothing about it."""

    is_outage = is_in_doubt = False


class BackOffInterrupted(Exception):
    """The pause between two attempts was interrupted; the cause is the error of the last attempt."""


async def repeat(
    attempt: Callable[[int], Awaitable[bool]],
    pause_s: Callable[[int], float],
    sleep: Callable[[float], Awaitable[None]],
    stop: Callable[[float], bool] = lambda _: False,
) -> None:
    """Call `attempt(failures)` until it returns True. `stop(seconds)` ends it before a pause of `pause_s(failures)`."""

    async def next_attempt() -> bool:
        failures: int = retrying.statistics["attempt_number"] - 1
        return failures > 0 and await attempt(failures)  # the first one has failed already

    if not await attempt(0) and not stop(0.0):  # tenacity costs 25 us even without a retry
        retrying = AsyncRetrying(
            sleep=sleep,
            wait=lambda state: pause_s(state.attempt_number),
            stop=lambda state: stop(state.upcoming_sleep),
            retry=retry_if_result(lambda is_done: not is_done),
            retry_error_callback=lambda _: None,
        )
        await retrying(next_attempt)


class RetryPolicy:
    """Retries the operations of a client, with jitter from its random generator."""

    def __init__(self, options: RetryOptions, random: Random) -> None:
        self.options = options
        self._pause_s = growing(options.retry_backoff_factor, options.retry_backoff_max, random)

    def attempt_s(self, left_s: float, retries: int | None = None) -> float:
        """Return the timeout of each attempt of an operation for which `left_s` seconds are left."""
        total = self.options.retry_total if retries is None else retries
        return min(left_s, max(MIN_ATTEMPT_S, left_s / (1 + total)))

    async def run(
        self,
        attempt: Callable[..., Awaitable[T]],
        *args: Any,
        deadline: float | None = None,
        first: Awaitable[T] | None = None,
        interrupt: asyncio.Event | None = None,
        retries: int | None = None,
    ) -> T:
        """Call `attempt(*args, timeout_s=...)` until it succeeds, fails with a permanent error, or the deadline passes.

        Args:
            deadline: in monotonic seconds; None = when the timeout of the options has passed.
            first: a first attempt that has begun.
            interrupt: ends a pause with `BackOffInterrupted` when it is set.
            retries: instead of `retry_total`.
        """
        total = self.options.retry_total if retries is None else retries
        if deadline is None:
            deadline = clock.monotonic() + self.options.timeout
        if first is None:
            left_s = deadline - clock.monotonic()
            if left_s <= 0:
                raise NotTriedError("the timeout passed before the operation began: allow more time")
            first = attempt(*args, timeout_s=self.attempt_s(left_s, total))
        try:
            return await first
        except ServiceBusError as error:
            del first  # tracebacks refer to this frame, so in the end it must not refer to their errors
            last = [error]
        return await self._run_again(partial(attempt, *args), deadline, total, interrupt or asyncio.Event(), last)

    async def _run_again(
        self,
        attempt: Callable[..., Awaitable[T]],
        deadline: float,
        total: int,
        interrupted: asyncio.Event,
        last: list[ServiceBusError],
    ) -> T:
        """Continue `run` after the first attempt. Variables that functions share cost time, so `run` has none."""
        left, longest_s = total, max(MIN_ATTEMPT_S, self.attempt_s(deadline - clock.monotonic(), total))
        result, is_busy, is_in_doubt = list[T](), False, False

        async def once(failures: int) -> bool:
            nonlocal left, is_busy, is_in_doubt
            left_s, error = deadline - clock.monotonic(), None if failures else last[0]
            try:
                if failures and left_s > 0:
                    result.append(await attempt(timeout_s=min(left_s, longest_s)))
            except ServiceBusError as caught:
                error = caught
            if isinstance(error, ServiceBusServerBusyError):
                last[0], is_busy = error, True
            elif error is not None:
                left -= 1
                if not (is_busy and left_s < longest_s and isinstance(error, OperationTimeoutError)):
                    last[0], is_busy = error, False  # else the attempt was too short for an answer, so it is busy still
            # A later rejection does not settle what an earlier attempt left in doubt.
            is_in_doubt = last[0].is_in_doubt = is_in_doubt or (error is not None and error.is_in_doubt)
            error = None
            return bool(result)

        def pause_s(_: int) -> float:
            return SERVER_BUSY_PAUSE.total_seconds() if is_busy else self._pause_s(total - left)

        def stop(seconds: float) -> bool:
            is_out_of_retries = left < 0 and not is_busy
            return is_out_of_retries or not last[0].is_transient or clock.monotonic() + seconds >= deadline

        async def sleep(seconds: float) -> None:
            with suppress(TimeoutError):
                async with clock.timeout(seconds):
                    await interrupted.wait()
                raise BackOffInterrupted from last[0]

        try:
            await repeat(once, pause_s, sleep, stop)
            if not result:
                raise last[0]
            return result[0]
        finally:
            last.clear()
