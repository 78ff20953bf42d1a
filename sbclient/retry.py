"""The one retry policy: how often, how long between, and for how long in all.

Laws:
1. Only transient errors are tried again, `retry_total` times, with exponential back-off and jitter.
2. A busy server is given 10 s each time and uses up no try; if it stays busy, that is the error (documented).
3. Everything happens before the deadline. No try is cut below 20 s while time remains: the service may need 15 s to
   place a message on another fragment.
4. Back-off can be interrupted, so that a send diverts the moment its entity fails over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Final, TypeVar

from tenacity import RetryCallState, Retrying, retry_always

from sbclient.clock import Clock
from sbclient.errors import OperationTimeoutError, ServiceBusError, ServiceBusServerBusyError
from sbclient.options import SERVER_BUSY_PAUSE, RetryOptions

T = TypeVar("T")

LEAST_TRY_S: Final = 20.0


class NotTriedError(OperationTimeoutError):
    """The time was over before the service was asked: nothing was done, and nothing is learnt about the service."""

    is_outage = False
    is_in_doubt = False


class BackOffInterrupted(Exception):
    """The pause between two tries was ended from outside; the cause is the error of the last try."""


class RetryPolicy:
    """Retries on an injected clock and random generator, by tenacity.

    Args:
        options: how often and how long.
        clock: the only source of time.
        random: for the jitter.
    """

    def __init__(self, options: RetryOptions, clock: Clock, random: Random) -> None:
        self.options = options
        self._clock = clock
        self._random = random

    def deadline(self, timeout_s: float | None) -> float:
        """The moment an operation with that timeout must have ended, on the monotonic clock; None = the default."""
        return self._clock.monotonic() + (self.options.timeout if timeout_s is None else timeout_s)

    async def run(
        self,
        attempt: Callable[[float], Awaitable[T]],
        *,
        deadline: float,
        interrupt: asyncio.Event | None = None,
        retry_total: int | None = None,
    ) -> T:
        """Call `attempt(timeout_s)` until it succeeds, fails for good, or the deadline comes.

        Args:
            deadline: monotonic seconds.
            interrupt: ends a pause with `BackOffInterrupted` when it is set.
            retry_total: tries after the first one, instead of what the options say.

        Raises:
            ServiceBusError: the last error; a lasting busy answer rather than the timeout it leads to.
        """
        total = self.options.retry_total if retry_total is None else retry_total
        run = _Run(self.options, total, self._clock, self._random, deadline, interrupt)
        try:
            try:
                return await run.once(attempt)
            except ServiceBusError as error:
                if not error.is_transient:
                    raise
            return await self._again(run, attempt)
        finally:
            run.forget()

    async def _again(self, run: _Run, attempt: Callable[[float], Awaitable[T]]) -> T:
        """Try once more, and more, after a first try that failed."""
        # Its rules wait for nothing, and tenacity's plain loop costs a third of its async one: it only says how long to
        # pause, and that is done before the next try. It is not told the errors: what it keeps of them it is itself
        # kept by, through their tracebacks, and only the garbage collector would end that.
        pauses: list[float] = []
        for trial in Retrying(
            retry=retry_always, wait=run.pause, stop=run.is_over, sleep=pauses.append, retry_error_callback=_end
        ):
            if pauses:  # before the first one it has failed already: most calls need none of this
                await run.sleep(pauses.pop())
                try:
                    return await run.once(attempt)
                except ServiceBusError as error:
                    if not error.is_transient:
                        raise
            trial.retry_state.set_result(None)
        raise run.last


def _end(_: RetryCallState) -> None:
    """The loop ends where no try is left."""


class _Run:
    """One operation's tries."""

    def __init__(
        self,
        options: RetryOptions,
        retry_total: int,
        clock: Clock,
        random: Random,
        deadline: float,
        interrupt: asyncio.Event | None,
    ) -> None:
        self._options = options
        self._retry_total = retry_total
        self._clock = clock
        self._random = random
        self._deadline = deadline
        self._interrupt = interrupt
        self._least_try_s = max(LEAST_TRY_S, (deadline - clock.monotonic()) / (retry_total + 1))
        self._tries = 0
        self._busy: ServiceBusServerBusyError | None = None
        self._last: ServiceBusError | None = None
        self._is_in_doubt = False

    async def once(self, attempt: Callable[[float], Awaitable[T]]) -> T:
        remaining_s = self._deadline - self._clock.monotonic()
        if remaining_s <= 0:
            self._last = self._last or NotTriedError("the time allowed for the operation is over before it began")
            raise self._last
        try:
            return await attempt(min(remaining_s, self._least_try_s))
        except ServiceBusError as error:
            self._note(error, remaining_s)
            # What one try left open, a later refusal does not settle.
            self._is_in_doubt = self.last.is_in_doubt = self._is_in_doubt or error.is_in_doubt
            if self._last is not error:
                raise self.last from error
            raise

    @property
    def last(self) -> ServiceBusError:
        """What the whole operation would end with now."""
        assert self._last is not None
        return self._last

    def forget(self) -> None:
        """Let go of the errors: their tracebacks lead to whoever holds this."""
        self._last = self._busy = None

    def _note(self, error: ServiceBusError, remaining_s: float) -> None:
        """Take note of what a try met."""
        if isinstance(error, ServiceBusServerBusyError):
            self._busy = self._last = error
            return
        self._tries += 1
        if isinstance(error, OperationTimeoutError) and self._busy is not None and remaining_s < self._least_try_s:
            return  # the service's last answer, not the little time that was left
        self._last, self._busy = error, None

    def pause(self, state: RetryCallState) -> float:
        """How long to wait before the next try."""
        if self._busy is not None:
            return SERVER_BUSY_PAUSE.total_seconds()
        exponent = min(self._tries - 1, 32)
        longest = min(self._options.retry_backoff_max, self._options.retry_backoff_factor * 2**exponent)
        return float(longest * self._random.uniform(0.5, 1.0))

    def is_over(self, state: RetryCallState) -> bool:
        out_of_tries = self._busy is None and self._tries > self._retry_total
        return out_of_tries or self._clock.monotonic() + state.upcoming_sleep >= self._deadline

    async def sleep(self, span_s: float) -> None:
        if self._interrupt is None:
            await self._clock.sleep(span_s)
            return
        try:
            async with self._clock.timeout(span_s):
                await self._interrupt.wait()
        except TimeoutError:
            return
        raise BackOffInterrupted from self._last
