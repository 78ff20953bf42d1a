"""Decides where the transfers of one sender go: to the primary, or to the backlog while the entity is failed over."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from functools import partial

from sbclient import clock
from sbclient.amqp import EncodedBatch, EncodedMessage
from sbclient.client.core import ClientCore
from sbclient.client.encoding import ALIAS_BYTES, trace_room
from sbclient.client.outbox import Done
from sbclient.client.primary_link import PrimaryLink
from sbclient.delivery import SenderLimits
from sbclient.errors import (
    BacklogUnavailableError,
    InvalidOperationError,
    ScheduleUnavailableError,
    ServiceBusConnectionError,
    ServiceBusError,
)
from sbclient.pairing.diversion import Diversion, reserve_s
from sbclient.pairing.session_order import SessionOrder
from sbclient.pairing.state import PairState
from sbclient.retry import BackOffInterrupted
from sbclient.rules.failover import PingKeys
from sbclient.telemetry.operations import BACKLOG, PRIMARY
from sbclient.telemetry.tracing import within


class DirectRoute:
    """The route of a sender without pairing: every transfer goes to the primary, and is retried.

    Attributes:
        link: the link to the primary.
    """

    def __init__(
        self,
        core: ClientCore,
        path: str,
        narrow: Callable[[SenderLimits], SenderLimits] = lambda limits: limits,
        growth_bytes: int = 0,
    ) -> None:
        self._retry = core.retry
        self.link = PrimaryLink(core.primary.open_sender(path), path, narrow, growth_bytes)

    @property
    def is_failed_over(self) -> bool:
        """Whether sends go to the backlog now."""
        return False

    async def send(self, batch: EncodedBatch, deadline: float, failed: ServiceBusError | None = None) -> str:
        """Send one transfer before the deadline, in monotonic seconds; return the route it took.

        Args:
            failed: the error of the first attempt, which `start` made.
        """
        try:
            await self._retry.run(partial(self.link.send, batch), deadline=deadline, failed=failed)
        finally:
            failed = None  # its traceback refers to this frame
        return PRIMARY

    def start(self, batch: EncodedBatch, deadline: float, done: Done) -> bool:
        """Make the first attempt to send a transfer if it can leave without waiting; see `outbox.Route.start`."""
        timeout_s = self._retry.first_attempt_s(deadline)
        return self.link.start(batch, timeout_s, lambda error: done(error or PRIMARY))

    async def schedule(self, batch: EncodedBatch, deadline: float) -> list[int]:
        """Schedule one transfer at the primary; return its sequence numbers."""
        self.check_schedulable()
        with self.observed(batch):
            return await self._retry.run(partial(self.link.schedule, batch), deadline=deadline)

    async def limits(self, deadline: float) -> SenderLimits:
        """Return the limits for batches."""
        return await self._retry.run(self.link.limits, deadline=deadline)

    def trace_room(self, messages: list[EncodedMessage]) -> int:
        """Return the bytes that a trace context may add to each message."""
        return trace_room(EncodedBatch(messages), self.link.known_limits, 0)

    def check_sessions(self, messages: list[EncodedMessage]) -> None:
        """Raise InvalidOperationError if the messages of a list cannot take one route."""

    def check_schedulable(self) -> None:
        """Raise ScheduleUnavailableError if the entity is failed over."""

    def observed(self, batch: EncodedBatch) -> AbstractContextManager[None]:
        """Return a context whose success or error is evidence about the primary."""
        return nullcontext()

    async def must_wait(self, batch: EncodedBatch, deadline: float) -> bool:
        """Return whether the backlog holds earlier messages of the transfer's session."""
        return False

    async def close(self) -> None:
        await self.link.close()


class PairedRoute(DirectRoute):
    """The route of a sender with pairing: to the primary, or to the backlog if the entity is or becomes failed over."""

    def __init__(self, core: ClientCore, pair: PairState, path: str) -> None:
        self._growth_bytes = len(path) + ALIAS_BYTES
        reserved_bytes = self._growth_bytes if pair.options.reserve_backlog_headroom else 0
        super().__init__(core, path, pair.common_limits, reserved_bytes)
        self._pair = pair
        self._path = path
        self._entity = pair.entity(path)
        self._order = SessionOrder(pair, self._entity)
        self._diversion = Diversion(pair, self._entity)
        self._is_ordered = pair.options.ordering == "session"
        self._narrowed_by = pair.backlog.limits

    @property
    def is_failed_over(self) -> bool:
        return self._entity.is_failed_over

    def start(self, batch: EncodedBatch, deadline: float, done: Done) -> bool:
        if self._is_ordered:
            return False
        if self._entity.is_failed_over:
            return self._diversion.start(
                batch.messages,
                deadline=deadline,
                done=lambda error: done(error or BACKLOG),
            )
        self._apply_backlog_limits()
        generation = self._entity.failover.generation

        def answered(error: ServiceBusError | None) -> None:
            if error is None:
                self._entity.succeeded(generation)
            done(error or PRIMARY)

        retry_total = None if self._pair.options.failover_interval else 0
        timeout_s = self._retry.first_attempt_s(self._primary_deadline(deadline), retry_total)
        return self.link.start(batch, timeout_s, answered)

    def _primary_deadline(self, deadline: float) -> float:
        return deadline - reserve_s(deadline - clock.monotonic())

    async def send(self, batch: EncodedBatch, deadline: float, failed: ServiceBusError | None = None) -> str:
        sessions = self._sessions(batch) if self._is_ordered else ()
        waiting = await self._order.to_divert(sessions, deadline=deadline) if sessions else set()
        if not waiting or len(sessions) == 1:
            sending = self._send(batch, deadline, failed, must_wait=bool(waiting))
            failed = None  # the traceback of the error refers to this frame
            return await sending
        parts: tuple[list[EncodedMessage], list[EncodedMessage]] = ([], [])
        for message in batch:
            parts[self._entity.ordered_session(message) in waiting].append(message)
        route = BACKLOG
        is_partly_accepted = False
        try:
            for part, must_wait in zip(parts, (False, True), strict=True):
                if part:
                    route = await self._send(EncodedBatch(part), deadline, must_wait=must_wait)
                    is_partly_accepted = True
        except ServiceBusError as error:
            error.is_in_doubt = error.is_in_doubt or is_partly_accepted
            raise
        return route

    async def _send(
        self,
        batch: EncodedBatch,
        deadline: float,
        failed: ServiceBusError | None = None,
        *,
        must_wait: bool = False,
    ) -> str:
        is_in_doubt = False
        not_diverted = None
        if isinstance(failed, BacklogUnavailableError):
            not_diverted, failed = failed, None
        elif failed is not None or (not must_wait and not self._entity.is_failed_over):
            generation = self._entity.failover.generation
            try:
                await self._send_to_primary(batch, self._primary_deadline(deadline), failed)
            except BackOffInterrupted as pause:
                is_in_doubt = isinstance(pause.__cause__, ServiceBusError) and pause.__cause__.is_in_doubt
            except ServiceBusError as error:
                if not self._is_diverted_after(error, batch.first):
                    raise
                is_in_doubt = error.is_in_doubt
            else:
                self._entity.succeeded(generation)
                return PRIMARY
            finally:
                failed = None  # its traceback refers to this frame
        try:
            sending = self._diversion.send(batch.messages, deadline=deadline, failed=not_diverted)
            not_diverted = None  # the traceback of its cause refers to this frame
            await sending
        except ServiceBusError as error:
            error.is_in_doubt = error.is_in_doubt or is_in_doubt
            raise
        return BACKLOG

    async def _send_to_primary(self, batch: EncodedBatch, deadline: float, failed: ServiceBusError | None) -> None:
        self._apply_backlog_limits()
        interrupt = self._entity.failed_over
        stale = None

        async def attempt_with_reopen(timeout_s: float) -> None:
            nonlocal stale
            first_error, stale = stale, None
            try:
                await self._send_with_reopen(batch, first_error, timeout_s)
            finally:
                first_error = None

        attempt: Callable[[float], Awaitable[None]] = partial(self.link.send, batch)
        retry_total = None
        if not self._pair.options.failover_interval:
            # The first outage error diverts, so the only retry is on a link that was open before.
            attempt, retry_total = attempt_with_reopen, 0
            if isinstance(failed, ServiceBusConnectionError) and deadline > clock.monotonic():
                stale, failed = failed, None
        try:
            await self._retry.run(
                attempt, deadline=deadline, interrupt=interrupt, retry_total=retry_total, failed=failed
            )
        finally:
            failed = stale = None  # their tracebacks refer to this frame

    def _apply_backlog_limits(self) -> None:
        """Narrow the limits of the link again if the backlog queues were provisioned after it was opened."""
        if self._narrowed_by is not self._pair.backlog.limits:
            self._narrowed_by = self._pair.backlog.limits
            self.link.narrow_again()

    async def _send_with_reopen(
        self, batch: EncodedBatch, failed: ServiceBusConnectionError | None, timeout_s: float
    ) -> None:
        """Send; if a link that was open before has failed, reopen it and send once more.

        Args:
            failed: the error of the first attempt, if that was made.
        """
        was_open = failed is not None or self.link.is_open
        end_at = clock.monotonic() + timeout_s
        try:
            if failed is not None:
                raise failed
            await self.link.send(batch, timeout_s)
        except ServiceBusConnectionError as stale:
            left_s = end_at - clock.monotonic()
            if not was_open or left_s <= 0:
                raise
            try:
                await self.link.send(batch, left_s)
            except ServiceBusError as error:
                error.is_in_doubt = error.is_in_doubt or stale.is_in_doubt
                raise
        finally:
            failed = None

    def _is_diverted_after(self, error: ServiceBusError, first: EncodedMessage) -> bool:
        """Record the final error of a send; return whether the same send goes to the backlog."""
        if self.link.was_open:
            self._pair.is_primary_reached = True
        with within(first):
            is_outage = self._entity.failed(error, _ping_keys(first))
        return is_outage and (self._entity.is_failed_over or self._pair.options.divert_while_suspect)

    async def limits(self, deadline: float) -> SenderLimits:
        """Return the limits for batches. An outage does not prevent it: the limits of the backlog apply then."""
        self._apply_backlog_limits()
        if not self._entity.is_failed_over:
            try:
                limits = await self._retry.run(self.link.limits, deadline=deadline, interrupt=self._entity.failed_over)
                self._pair.is_primary_reached = True
                return limits
            except BackOffInterrupted:
                pass
            except ServiceBusError as error:
                if not self._entity.failed(error, PingKeys()):
                    raise
        return self._pair.common_limits(self._pair.backlog.limits or self.link.known_limits)

    def trace_room(self, messages: list[EncodedMessage]) -> int:
        return trace_room(
            EncodedBatch(messages), self._pair.limits_with_headroom(self.link.known_limits), self._growth_bytes
        )

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

    def observed(self, batch: EncodedBatch) -> AbstractContextManager[None]:
        return self._entity.observed(_ping_keys(batch.first))

    async def must_wait(self, batch: EncodedBatch, deadline: float) -> bool:
        sessions = self._sessions(batch) if self._is_ordered else ()
        return bool(sessions) and bool(await self._order.to_divert(sessions, deadline=deadline))

    def _sessions(self, batch: EncodedBatch) -> Collection[str]:
        """Return the sessions that messages of a transfer must stay in order with."""
        if batch.sessions is not None:
            return batch.sessions
        found = (self._entity.ordered_session(message) for message in batch)
        return dict.fromkeys(one for one in found if one is not None)


def _ping_keys(first: EncodedMessage) -> PingKeys:
    return PingKeys(first.session_id, first.partition_key)
