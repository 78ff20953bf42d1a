"""The retry policy of the client: how often to retry, how long to wait between attempts, and for how long in all.

1. Only transient errors are retried, `retry_total` times, with exponential back-off and jitter.
2. A busy server gets 10 s each time, which uses up no retry; if it stays busy, that is the error (source: Microsoft's
   page about throttling).
3. All attempts happen before the deadline. No attempt gets less than 20 s while time remains: the service may need 15 s
   to place a message on another fragment.
4. A pause can be interrupted, so that a send goes to the backlog as soon as its entity fails over.

tenacity drives the attempts. Its own strategies read the real clock and the global random generator; those here
use the clock and the generator of the client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Final, TypeVar

from tenacity import AsyncRetrying, RetryCallState, Retrying, retry_if_result
from tenacity.retry import retry_base
from tenacity.stop import stop_base
from tenacity.wait import wait_base

from sbclient.clock import Clock
from sbclient.errors import OperationTimeoutError, ServiceBusError, ServiceBusServerBusyError
from sbclient.options import SERVER_BUSY_PAUSE, RetryOptions
from sbclient.rules.backoff import backoff_s

T = TypeVar("T")

MIN_ATTEMPT_S: Final = 20.0


class NotTriedError(OperationTimeoutError):
    """The timeout passed before the first attempt. The service was not asked, so this says nothing about it."""

    is_outage = False
    is_in_doubt = False


class BackOffInterrupted(Exception):
    """The pause between two attempts was interrupted; the cause is the error of the last attempt."""


class RetryPolicy:
    """Retries operations on a given clock and random generator.

    Args:
        options: the number of retries, the pauses and the timeout.
        clock: the only source of time.
        random: for the jitter.
    """

    def __init__(self, options: RetryOptions, clock: Clock, random: Random) -> None:
        self.options = options
        self._clock = clock
        # The benchmark `retry` compares it with AsyncRetrying. One object serves all operations: its decisions do not
        # await, and the state of an operation is in the loop over it.
        self._retrying = Retrying(
            retry=RetryTransient(),
            wait=WaitBackOff(options, random),
            stop=StopAtLimits(clock),
            sleep=_no_sleep,
            retry_error_callback=_no_error,
        )

    def deadline(self, timeout_s: float | None) -> float:
        """Return when an operation must end, in monotonic seconds; None = the timeout of the options."""
        return self._clock.monotonic() + (self.options.timeout if timeout_s is None else timeout_s)

    async def run(
        self,
        attempt: Callable[[float], Awaitable[T]],
        *,
        deadline: float,
        interrupt: asyncio.Event | None = None,
        retry_total: int | None = None,
        failed: ServiceBusError | None = None,
    ) -> T:
        """Call `attempt(timeout_s)` until it succeeds, fails with a permanent error, or the deadline passes.

        Args:
            deadline: monotonic seconds.
            interrupt: ends a pause with `BackOffInterrupted` when it is set.
            retry_total: the number of retries instead of that of the options.
            failed: the error of the first attempt, if the caller has made it.

        Raises:
            ServiceBusError: the last error; a lasting busy answer rather than the timeout that follows from it.
        """
        total = self.options.retry_total if retry_total is None else retry_total
        remaining_s = deadline - self._clock.monotonic()
        longest_s = longest_attempt_s(remaining_s, total)
        operation: Operation | None = None
        try:
            if failed is None and remaining_s > 0:
                try:
                    return await attempt(min(remaining_s, longest_s))  # most operations succeed here, without tenacity
                except ServiceBusError as error:
                    failed = error
            operation = Operation(total, self._clock, deadline, longest_s)
            operation.fail(failed or NotTriedError("the timeout passed before the operation began: allow more time"))
            for trial in self._retrying:
                state = trial.retry_state
                if state.attempt_number > 1:  # the first attempt has failed already
                    await self._pause(state.upcoming_sleep, operation, interrupt)
                    try:
                        return await operation.attempt(attempt)
                    except ServiceBusError:
                        pass
                # tenacity gets no exception: its reference cycle with the traceback would outlive the operation.
                state.set_result(operation)
            raise operation.last
        finally:
            failed = None
            if operation is not None:
                operation.forget()

    def first_attempt_s(self, deadline: float, retry_total: int | None = None) -> float:
        """Return the timeout of the first attempt of an operation; not positive if no time is left."""
        total = self.options.retry_total if retry_total is None else retry_total
        remaining_s = deadline - self._clock.monotonic()
        return min(remaining_s, longest_attempt_s(remaining_s, total))

    async def _pause(self, seconds: float, operation: Operation, interrupt: asyncio.Event | None) -> None:
        if interrupt is None:
            await self._clock.sleep(seconds)
            return
        try:
            async with self._clock.timeout(seconds):
                await interrupt.wait()
        except TimeoutError:
            return
        raise BackOffInterrupted from operation.last


def longest_attempt_s(remaining_s: float, retry_total: int) -> float:
    """Return the longest time of one attempt of an operation that has so much time left when it begins."""
    return max(MIN_ATTEMPT_S, remaining_s / (retry_total + 1))


class BackOff:
    """Repeats an operation that handles its own errors until it succeeds, with pauses that double.

    Args:
        sleep: waits that many seconds; it may return earlier.
        first_s, longest_s: the first pause and the upper limit.
        random: reduces each pause by up to a half; None = no jitter.
    """

    def __init__(
        self,
        sleep: Callable[[float], Awaitable[None]],
        first_s: float,
        longest_s: float,
        random: Random | None = None,
    ) -> None:
        def wait(state: RetryCallState) -> float:
            pause_s = backoff_s(state.attempt_number, first_s=first_s, longest_s=longest_s)
            return pause_s if random is None else pause_s * random.uniform(0.5, 1.0)

        self._retrying = AsyncRetrying(sleep=sleep, wait=wait, retry=retry_if_result(lambda is_done: not is_done))

    async def run(self, attempt: Callable[[int], Awaitable[bool]]) -> None:
        """Call `attempt(failures)`, with the number of failures so far, until it returns True."""
        if await attempt(0):
            return
        failures = 0

        async def again() -> bool:
            nonlocal failures
            failures += 1
            return failures > 1 and await attempt(failures - 1)

        await self._retrying(again)


class Operation:
    """The attempts of one operation.

    Attributes:
        retry_total: allowed failures after the first one.
        deadline: monotonic seconds.
        failures: attempts that failed with another error than a busy answer.
        busy: the last busy answer, if no other error came after it.
    """

    def __init__(self, retry_total: int, clock: Clock, deadline: float, longest_attempt_s: float) -> None:
        self.retry_total = retry_total
        self.deadline = deadline
        self.failures = 0
        self.busy: ServiceBusServerBusyError | None = None
        self._clock = clock
        self._max_attempt_s = longest_attempt_s
        self._last: ServiceBusError | None = None
        self._is_in_doubt = False

    def fail(self, error: ServiceBusError) -> None:
        """Record the error of the first attempt."""
        self._record(error, self._max_attempt_s)
        self._is_in_doubt = error.is_in_doubt

    async def attempt(self, attempt: Callable[[float], Awaitable[T]]) -> T:
        """Make one attempt and record its error."""
        remaining_s = self.deadline - self._clock.monotonic()
        if remaining_s <= 0:
            self._last = self._last or NotTriedError("the timeout passed before the operation began: allow more time")
            raise self._last
        try:
            return await attempt(min(remaining_s, self._max_attempt_s))
        except ServiceBusError as error:
            self._record(error, remaining_s)
            # A later rejection does not settle what an earlier attempt left in doubt.
            self._is_in_doubt = self.last.is_in_doubt = self._is_in_doubt or error.is_in_doubt
            if self._last is not error:
                raise self.last from error
            raise

    @property
    def last(self) -> ServiceBusError:
        """The error that the operation raises if no further attempt is made."""
        assert self._last is not None
        return self._last

    def forget(self) -> None:
        """Drop the errors: their tracebacks refer to this object."""
        self._last = self.busy = None

    def _record(self, error: ServiceBusError, remaining_s: float) -> None:
        if isinstance(error, ServiceBusServerBusyError):
            self.busy = self._last = error
            return
        self.failures += 1
        if isinstance(error, OperationTimeoutError) and self.busy is not None and remaining_s < self._max_attempt_s:
            return  # the attempt was too short for an answer, so the busy answer remains the result
        self._last, self.busy = error, None


class RetryTransient(retry_base):
    """Retries transient errors."""

    def __call__(self, state: RetryCallState) -> bool:
        return _operation(state).last.is_transient


class WaitBackOff(wait_base):
    """Waits 10 s after a busy answer, else with exponential back-off and jitter."""

    def __init__(self, options: RetryOptions, random: Random) -> None:
        self._options = options
        self._random = random

    def __call__(self, state: RetryCallState) -> float:
        operation, options = _operation(state), self._options
        if operation.busy is not None:
            return SERVER_BUSY_PAUSE.total_seconds()
        longest_s = backoff_s(
            operation.failures, first_s=options.retry_backoff_factor, longest_s=options.retry_backoff_max
        )
        return longest_s * self._random.uniform(0.5, 1.0)


class StopAtLimits(stop_base):
    """Stops when no retry is left or the pause would reach the deadline."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def __call__(self, state: RetryCallState) -> bool:
        operation = _operation(state)
        is_out_of_retries = operation.busy is None and operation.failures > operation.retry_total
        return is_out_of_retries or self._clock.monotonic() + state.upcoming_sleep >= operation.deadline


def _operation(state: RetryCallState) -> Operation:
    assert state.outcome is not None
    operation: Operation = state.outcome.result()
    return operation


def _no_sleep(_: float) -> None:
    """Do nothing: the policy itself waits, since only it can await."""


def _no_error(_: RetryCallState) -> None:
    """Raise nothing: the policy raises the last error after the loop."""
