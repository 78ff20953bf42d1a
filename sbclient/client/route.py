"""Decides where the transfers of one sender go: to the primary, or to the backlog while the entity is failed over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

from sbclient import clock
from sbclient.amqp import EncodedBatch, EncodedMessage
from sbclient.client.core import ClientCore
from sbclient.client.encoding import ALIAS_BYTES, trace_room
from sbclient.client.outbox import Sending
from sbclient.delivery import LEAST_LIMITS, SenderLimits
from sbclient.errors import (
    InvalidOperationError,
    MessageSizeExceededError,
    ScheduleUnavailableError,
    ServiceBusConnectionError,
    ServiceBusError,
    keep_doubt,
)
from sbclient.pairing.diversion import Attempt, Diversion, reserve_s
from sbclient.pairing.session_order import SessionOrder
from sbclient.pairing.state import Attempts, PairState
from sbclient.retry import BackOffInterrupted, NotTriedError, RetryPolicy
from sbclient.rules.failover import PingKeys
from sbclient.tasks import OwnedTasks, when_done
from sbclient.telemetry.operations import BACKLOG, PRIMARY
from sbclient.telemetry.tracing import within

T = TypeVar("T")


class DirectRoute:
    """The route of a sender without pairing: every transfer goes to the primary, and is retried.

    The first attempt needs no task. After a failure a task makes the others; it owns the error.

    Attributes:
        link: the link to the primary.
        reserved_bytes: the space to reserve in each message for a diversion to the backlog.

    Args:
        narrow: lowers the limits of the primary, so that a diverted message fits the backlog too; None = nothing does.
    """

    def __init__(
        self,
        core: ClientCore,
        path: str,
        narrow: Callable[[SenderLimits], SenderLimits] | None = None,
        reserved_bytes: int = 0,
    ) -> None:
        self._retry = core.retry
        self._path = path
        self._narrow = narrow
        self.reserved_bytes = reserved_bytes
        self._tasks = OwnedTasks(on_failure=_is_raised_to_callers)
        self.link = core.primary.open_sender(path, self._check)

    def leave_loop(self) -> None:
        """Make anew what belonged to an event loop that has ended."""
        self._tasks.abandon()
        self._tasks = OwnedTasks(on_failure=_is_raised_to_callers)

    @property
    def is_failed_over(self) -> bool:
        """Whether sends go to the backlog now."""
        return False

    def send(self, batch: EncodedBatch, deadline: float) -> asyncio.Future[str]:
        """Send one transfer before the deadline, in monotonic seconds; the result is the route it took."""
        sending = Sending()
        left_s = deadline - clock.monotonic()
        if left_s <= 0:
            sending.set_exception(not_sent(self._path, "the timeout has passed"))
            return sending
        first = self.link.send(batch, timeout_s=self._retry.attempt_s(left_s))
        if first.done():
            self._answered(sending, batch, deadline, first)
        else:
            sending.attempt = first
            first.add_done_callback(partial(self._answered, sending, batch, deadline))
        return sending

    def _answered(self, sending: Sending, batch: EncodedBatch, deadline: float, first: asyncio.Future[None]) -> None:
        error = self._closed() if first.cancelled() else first.exception()
        if sending.done():
            return
        if error is None:
            sending.set_result(PRIMARY)
        else:
            self._go_on(sending, self._repeat(first, batch, deadline), error)

    def _repeat(self, first: asyncio.Future[None], batch: EncodedBatch, deadline: float) -> Coroutine[Any, Any, None]:
        return self._retry.run(self.link.send, batch, first=first, deadline=deadline)

    def _go_on(
        self, sending: Sending, work: Coroutine[Any, Any, str | None], error: BaseException | None = None
    ) -> None:
        """Let a task send; its result is the route, or None for the primary.

        Args:
            error: of the first attempt, for callers that wait while the route is closed.
        """
        if self._tasks.is_closed:
            work.close()
            self._fail(sending, error or self._closed())
            return
        sending.attempt = task = self._tasks.start(work, name=f"send to {self._path}")
        task.add_done_callback(partial(self._ended, sending))

    def _ended(self, sending: Sending, task: asyncio.Task[str | None]) -> None:
        if sending.done():
            return
        error = self._closed() if task.cancelled() else task.exception()
        if error is None:
            sending.set_result(task.result() or PRIMARY)
        else:
            self._fail(sending, error)

    def _fail(self, sending: Sending, error: BaseException) -> None:
        if isinstance(error, ServiceBusError):
            keep_doubt(error, sending.is_in_doubt)
        sending.set_exception(error)

    def _closed(self) -> ServiceBusConnectionError:
        return ServiceBusConnectionError(f"the sender of {self._path!r} was closed: whether it was sent is in doubt")

    async def schedule(self, batch: EncodedBatch, deadline: float) -> list[int]:
        """Schedule one transfer at the primary; return its sequence numbers."""
        self.check_schedulable()
        with self.observed(batch, self.link.schedule) as attempt:
            return await self._retry.run(attempt, batch, deadline=deadline)

    async def limits(self, deadline: float) -> SenderLimits:
        """Return the limits for batches."""
        return await self._retry.run(self.link.limits, deadline=deadline)

    def trace_room(self, messages: list[EncodedMessage]) -> int:
        """Return the bytes that a trace context may add to each message."""
        return trace_room(EncodedBatch(messages), self.link.known_limits or LEAST_LIMITS, 0)

    def check_sessions(self, messages: list[EncodedMessage]) -> None:
        """Raise InvalidOperationError if the messages of a list cannot take one route."""

    def check_schedulable(self) -> None:
        """Raise ScheduleUnavailableError if the entity is failed over."""

    def observed(self, batch: EncodedBatch, operation: Callable[..., T]) -> AbstractContextManager[Callable[..., T]]:
        """Return a context with the operation to call; its success or error is evidence about the primary."""
        return nullcontext(operation)

    async def must_wait(self, batch: EncodedBatch, deadline: float) -> bool:
        """Return whether the backlog holds earlier messages of the transfer's session."""
        return False

    async def close(self) -> None:
        await self._tasks.close()
        await self.link.close()

    def _check(self, batch: EncodedBatch, limits: SenderLimits) -> None:
        """Check the sizes of a transfer.

        Raises:
            MessageSizeExceededError: a message or the transfer is too large.
        """
        if self._narrow is not None:
            limits = self._narrow(limits)
        largest = batch.largest_bytes
        if largest > limits.max_message_size_bytes:
            raise self._too_large("a message", largest, limits.max_message_size_bytes)
        if batch.size_bytes > largest:  # it has several messages
            size_bytes = batch.size_bytes + len(batch) * self.reserved_bytes
            if size_bytes > limits.max_batch_size_bytes:
                raise self._too_large(f"{len(batch)} messages", size_bytes, limits.max_batch_size_bytes)

    def _too_large(self, what: str, size_bytes: int, limit_bytes: int) -> MessageSizeExceededError:
        reserve = " with the space reserved for a diversion to the backlog" if self.reserved_bytes else ""
        return MessageSizeExceededError(
            f"{what} for {self._path!r} takes {size_bytes} bytes, {limit_bytes} are allowed{reserve}: "
            "send less at once, or store the content elsewhere and send its address"
        )


class PairedRoute(DirectRoute):
    """The route of a sender with pairing: to the primary, or to the backlog if the entity is or becomes failed over."""

    def __init__(self, core: ClientCore, pair: PairState, path: str) -> None:
        self._growth_bytes = len(path) + ALIAS_BYTES
        reserved_bytes = self._growth_bytes if pair.options.reserve_backlog_headroom else 0
        self._pair = pair
        self._entity = pair.entity(path)
        super().__init__(core, path, pair.common_limits, reserved_bytes)
        self._order = SessionOrder(pair, self._entity)
        self._diversion = Diversion(pair, self._entity)
        self._is_ordered = pair.options.ordering == "session"
        options = core.retry.options
        if not pair.options.failover_interval:  # the first error diverts
            options = replace(options, retry_total=0)
        self._sends = RetryPolicy(options, core.random)

    def leave_loop(self) -> None:
        super().leave_loop()
        self._order.leave_loop()

    @property
    def is_failed_over(self) -> bool:
        return self._entity.is_failed_over

    def send(self, batch: EncodedBatch, deadline: float) -> asyncio.Future[str]:
        if self._is_ordered and (sessions := self._sessions(batch)):
            sending = Sending()
            self._go_on(sending, self._send_in_order(batch, sessions, deadline))
            return sending
        return self._to_backlog(batch, deadline) if self._entity.is_failed_over else self._to_primary(batch, deadline)

    async def _send_in_order(self, batch: EncodedBatch, sessions: Collection[str], deadline: float) -> str:
        waiting = await self._order.to_divert(sessions, deadline=deadline)
        if not waiting or len(sessions) == 1:
            return await self._send_part(batch, deadline, must_wait=bool(waiting))
        parts: tuple[list[EncodedMessage], list[EncodedMessage]] = ([], [])
        for message in batch:
            parts[self._entity.ordered_session(message) in waiting].append(message)
        route = BACKLOG
        is_partly_accepted = False
        try:
            for part, must_wait in zip(parts, (False, True), strict=True):
                if part:
                    route = await self._send_part(EncodedBatch(part), deadline, must_wait=must_wait)
                    is_partly_accepted = True
        except ServiceBusError as error:
            keep_doubt(error, is_partly_accepted)
            raise
        return route

    async def _send_part(self, batch: EncodedBatch, deadline: float, *, must_wait: bool) -> str:
        if must_wait or self._entity.is_failed_over:
            return await self._divert(batch, deadline)
        return await self._to_primary(batch, deadline)

    # -- the primary -----------------------------------------------------------------------------------------------

    def _to_primary(self, batch: EncodedBatch, deadline: float) -> Sending:
        sending = Sending()
        now = clock.monotonic()
        left_s = deadline - now
        left_s -= reserve_s(left_s)
        if left_s <= 0:
            sending.set_exception(not_sent(self._path, "the timeout has passed"))
            return sending
        timeout_s = self._sends.attempt_s(left_s)
        may_reopen = not self._pair.options.failover_interval and self.link.is_open
        sending.attempt = first = self.link.send(batch, timeout_s=timeout_s)
        generation = self._entity.failover.generation
        times = _Times(deadline, now + left_s, now + timeout_s if may_reopen else now, generation)
        when_done(first, partial(self._answered_by_primary, sending, batch, times))
        return sending

    def _answered_by_primary(
        self, sending: Sending, batch: EncodedBatch, times: _Times, first: asyncio.Future[None]
    ) -> None:
        error = self._closed() if first.cancelled() else first.exception()
        if sending.done():
            return
        if error is None:
            self._entity.succeeded(times.generation)
            sending.set_result(PRIMARY)
            return
        is_over = self._tasks.is_closed or self._entity.is_failed_over
        if isinstance(error, ServiceBusConnectionError) and not is_over:
            left_s = times.reopen_until - clock.monotonic()
            if left_s > 0:  # the link may have been lost long ago
                sending.is_in_doubt = error.is_in_doubt
                sending.attempt = again = self.link.send(batch, timeout_s=left_s)
                times = times._replace(reopen_until=float("-inf"), generation=self._entity.failover.generation)
                again.add_done_callback(partial(self._answered_by_primary, sending, batch, times))
                return
        self._go_on(sending, self._conclude(first, batch, times), error)

    async def _conclude(self, first: asyncio.Future[None], batch: EncodedBatch, times: _Times) -> str:
        """Make further attempts at the primary, and divert after the last one if that may help."""
        deadline, interrupt = times.primary_deadline, self._entity.failed_over
        attempts = Attempts(self._entity.failover, self.link.send)
        attempts.generation = times.generation  # of the first
        sending = self._sends.run(attempts, batch, first=first, deadline=deadline, interrupt=interrupt)
        del first  # the traceback of its error refers to this frame
        is_in_doubt = False
        try:
            await sending
        except BackOffInterrupted as pause:
            is_in_doubt = isinstance(pause.__cause__, ServiceBusError) and pause.__cause__.is_in_doubt
        except ServiceBusError as error:
            if not self._is_diverted_after(error, batch.first):
                raise
            is_in_doubt = error.is_in_doubt
        else:
            self._entity.succeeded(attempts.generation)
            return PRIMARY
        try:
            return await self._divert(batch, times.deadline)
        except ServiceBusError as error:
            keep_doubt(error, is_in_doubt)
            raise

    def _is_diverted_after(self, error: ServiceBusError, first: EncodedMessage) -> bool:
        """Record the final error of a send; return whether the same send goes to the backlog."""
        if self.link.known_limits is not None:
            self._pair.is_primary_reached = True
        with within(first):
            is_outage = self._entity.failed(error, _ping_keys(first))
        return is_outage and (self._entity.is_failed_over or self._pair.options.divert_while_suspect)

    # -- the backlog -----------------------------------------------------------------------------------------------

    def _to_backlog(self, batch: EncodedBatch, deadline: float) -> Sending:
        sending = Sending()
        attempt = self._diversion.begin(batch.messages, deadline=deadline)
        if attempt is None:
            self._go_on(sending, self._divert(batch, deadline))
        elif (answer := attempt.answer) is not None:
            sending.attempt = answer
            when_done(answer, partial(self._answered_by_backlog, sending, batch, deadline, attempt))
        return sending

    def _answered_by_backlog(
        self, sending: Sending, batch: EncodedBatch, deadline: float, attempt: Attempt, answer: asyncio.Future[None]
    ) -> None:
        error = self._closed() if answer.cancelled() else answer.exception()
        if sending.done():
            return
        if error is None:
            self._diversion.accepted(batch)
            sending.set_result(BACKLOG)
        else:
            self._go_on(sending, self._divert(batch, deadline, attempt), error)

    async def _divert(self, batch: EncodedBatch, deadline: float, first: Attempt | None = None) -> str:
        await self._diversion.send(batch.messages, deadline=deadline, first=first)
        return BACKLOG

    # -- limits and sessions ---------------------------------------------------------------------------------------

    async def limits(self, deadline: float) -> SenderLimits:
        """Return the limits for batches. An outage does not prevent it: the limits of the backlog apply then."""
        if not self._entity.is_failed_over:
            try:
                limits = await self._retry.run(self.link.limits, deadline=deadline, interrupt=self._entity.failed_over)
                self._pair.is_primary_reached = True
                return self._pair.common_limits(limits)
            except BackOffInterrupted:
                pass
            except ServiceBusError as error:
                if not self._entity.failed(error, PingKeys()):
                    raise
        return self._pair.common_limits(self._pair.backlog.limits or self.link.known_limits or LEAST_LIMITS)

    def trace_room(self, messages: list[EncodedMessage]) -> int:
        limits = self._pair.limits_with_headroom(self.link.known_limits or LEAST_LIMITS)
        return trace_room(EncodedBatch(messages), limits, self._growth_bytes)

    def check_sessions(self, messages: list[EncodedMessage]) -> None:
        if not self._is_ordered:
            return
        sessions = list(dict.fromkeys(self._entity.ordered_session(message) for message in messages))
        if len(sessions) > 1:
            raise InvalidOperationError(
                f"a list for {self._path!r} holds messages of session {sessions[0]!r} and of {sessions[1]!r}, where "
                'scheduled messages count as None: with ordering="session" send one list for each session'
            )

    def check_schedulable(self) -> None:
        if self._entity.is_failed_over:
            raise ScheduleUnavailableError(
                f"{self._path!r} is failed over to the backlog, where a message has no sequence number: "
                "try again after the recovery, or use send_messages with scheduled_enqueue_time_utc"
            )

    def observed(self, batch: EncodedBatch, operation: Callable[..., T]) -> AbstractContextManager[Callable[..., T]]:
        return self._entity.observed(_ping_keys(batch.first), operation)

    async def must_wait(self, batch: EncodedBatch, deadline: float) -> bool:
        sessions = self._sessions(batch) if self._is_ordered else ()
        return bool(sessions) and bool(await self._order.to_divert(sessions, deadline=deadline))

    def _sessions(self, batch: EncodedBatch) -> Collection[str]:
        """Return the sessions that messages of a transfer must stay in order with."""
        if batch.sessions is not None:
            return batch.sessions
        found = (self._entity.ordered_session(message) for message in batch)
        return dict.fromkeys(one for one in found if one is not None)


class _Times(NamedTuple):
    """The deadlines of a transfer to the primary, in monotonic seconds, and its failover generation.

    Attributes:
        deadline: of the send.
        primary_deadline: leaves time for a diversion.
        reopen_until: until then a link that was open before is attached again once.
    """

    deadline: float
    primary_deadline: float
    reopen_until: float
    generation: int


def not_sent(path: str, reason: str) -> NotTriedError:
    """Return the error of a send that was not tried."""
    return NotTriedError(f"{reason}, and nothing was sent to {path!r}: send it again later")


def _is_raised_to_callers(error: BaseException) -> None:
    """A failed task fails the callers that wait for its transfer."""


def _ping_keys(first: EncodedMessage) -> PingKeys:
    return PingKeys(first.session_id, first.partition_key)
