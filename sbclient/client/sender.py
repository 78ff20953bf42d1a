"""Sends to one entity: to the primary, or, when it is failed over, to the backlog."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Final, Self, TypeAlias

from sbclient.client.batch import ServiceBusMessageBatch
from sbclient.client.core import ClientCore
from sbclient.client.outbox import Outbox
from sbclient.client.outgoing import ALIAS_BYTES, is_message, outgoing
from sbclient.client.transaction import Transaction
from sbclient.client.transaction_keys import TransactionKeys
from sbclient.delivery import SenderLimits
from sbclient.entities import EntityAddress, EntityKind
from sbclient.errors import (
    InvalidOperationError,
    MessageSizeExceededError,
    OperationTimeoutError,
    ScheduleUnavailableError,
    ServiceBusConnectionError,
    ServiceBusError,
    TransactionNotSupportedError,
)
from sbclient.message import ServiceBusMessage, sequence_numbers_of
from sbclient.pairing.diversion import Diversion, reserve_s
from sbclient.pairing.session_order import SessionOrder
from sbclient.pairing.state import PairedEntity
from sbclient.retry import BackOffInterrupted
from sbclient.rules.failover import PingKeys
from sbclient.rules.size import batch_size, encoded_size
from sbclient.telemetry.operations import BACKLOG, PRIMARY, Telemetry
from sbclient.telemetry.tracing import TRACE_BYTES, is_on, within
from sbclient.transport.base import TransactionLink

LEAST_LIMIT_BYTES: Final = 256 * 1024
"""What every tier accepts: the limit of an entity that could not be asked yet, when a diversion keeps it in mind."""

Sendable: TypeAlias = ServiceBusMessage | ServiceBusMessageBatch | Iterable[ServiceBusMessage] | Any
"""A message, a batch, or an iterable of messages; messages of azure-servicebus are taken too."""


class ServiceBusSender:
    """Sends to a queue or topic; any number of callers may use one at once.

    Made by `get_queue_sender` and `get_topic_sender` of a client. With pairing, a send is accepted by the primary or,
    when the entity is failed over, by one backlog queue of the secondary; either way the caller sees the same.
    """

    def __init__(self, core: ClientCore, path: str, kind: EntityKind, *, partitioned: bool | None = None) -> None:
        self._core = core
        self._path = path
        self._keys = TransactionKeys(core.primary.administration, EntityAddress(kind, (path,)), partitioned=partitioned)
        self._link = core.primary.open_sender(path)
        self._limits: SenderLimits | None = None
        self._entity: PairedEntity | None = None
        self._diversion: Diversion | None = None
        self._order: SessionOrder | None = None
        if core.pair is not None:
            self._entity = core.pair.entity(path)
            self._diversion = Diversion(core.pair, self._entity)
            if core.pair.options.ordering == "session":
                self._order = SessionOrder(core.pair, self._entity)
        self._telemetry = Telemetry(core.clock, core.primary.namespace, path, self._route)
        self._outbox = Outbox(self._deliver, path, core.clock, growth_bytes=self._growth_bytes())
        self._is_closed = False

    @property
    def entity_name(self) -> str:
        """The path of the queue or topic."""
        return self._path

    async def __aenter__(self) -> Self:
        await self._begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the sender. What is still on its way is given up: its callers are told. Safe to call twice."""
        self._is_closed = True
        await self._outbox.close()
        await self._link.close()
        if self._diversion is not None:
            await self._diversion.close()

    async def send_messages(
        self, message: Sendable, *, timeout: float | None = None, transaction: Transaction | None = None
    ) -> None:
        """Send a message, a list of messages, or a batch; a list and a batch are accepted whole or not at all.

        A message without a `message_id` is given one, which stays with it. When this returns, the messages are stored.

        Args:
            timeout: seconds for everything, retries and a diversion included; None = the client's, 60 by default.
            transaction: send as part of it; a transaction is never diverted.

        Raises:
            InvalidOperationError: keys differ, or the entity's rules forbid it; nothing was sent.
            MessageSizeExceededError: too large for the primary or, with pairing, for the backlog; nothing was sent.
            BacklogUnavailableError: failed over, and no backlog queue took it.
            OperationTimeoutError, ServiceBusConnectionError: whether it arrived is in doubt, as after every error whose
                `is_in_doubt` is set; send the same message object again, its id stays the same.
            ServiceBusError: any other answer of the service.
        """
        deadline = await self._begin(timeout)
        messages = self._outgoing(message)
        if not messages:
            return
        self._check_one_order(messages)
        first = messages[0]
        if transaction is not None:
            await self._telemetry.sending("send", messages, self._send_in(transaction, messages, deadline))
            return
        sending = self._outbox.send(
            messages,
            key=first.session_id if first.session_id is not None else first.partition_key,
            deadline=deadline,
            may_share=is_message(message),
        )
        await self._telemetry.sending("send", messages, sending)

    async def schedule_messages(
        self,
        messages: Sendable,
        schedule_time_utc: datetime,
        *,
        timeout: float | None = None,
        transaction: Transaction | None = None,
    ) -> list[int]:
        """Send messages that become visible at a moment, and return their sequence numbers, in order.

        Args:
            schedule_time_utc: naive = UTC.
            timeout: seconds, as for `send_messages`.
            transaction: schedule as part of it.

        Raises:
            ScheduleUnavailableError: the entity is failed over, so no number can be given. `send_messages` with
                `scheduled_enqueue_time_utc` set is diverted as usual.
            ServiceBusError: as `send_messages`.
        """
        deadline = await self._begin(timeout)
        scheduled = [copy.copy(scheduled_enqueue_time_utc=schedule_time_utc) for copy in self._outgoing(messages)]
        if not scheduled:
            return []
        if transaction is not None:
            scheduling = self._schedule_in(transaction, scheduled, deadline)
        else:
            scheduling = self._schedule(scheduled, deadline)
        return await self._telemetry.sending("schedule", scheduled, scheduling)

    async def cancel_scheduled_messages(
        self, sequence_numbers: int | Sequence[int], *, timeout: float | None = None
    ) -> None:
        """Remove messages that are still scheduled, all of them or none.

        Raises:
            MessageNotFoundError: one of the numbers is not, or no longer, scheduled.
            ScheduleUnavailableError: the entity is failed over.
            TypeError: something else than numbers was given.
            ServiceBusError: any other answer of the service.
        """
        deadline = await self._begin(timeout)
        numbers = sequence_numbers_of(sequence_numbers)
        if not numbers:
            return
        self._check_schedulable()

        async def attempt(timeout_s: float) -> None:
            await self._link.cancel_scheduled(numbers, timeout_s=timeout_s)

        await self._core.retry.run(attempt, deadline=deadline)

    async def create_message_batch(self, max_size_in_bytes: int | None = None) -> ServiceBusMessageBatch:
        """An empty batch as large as the entity, and with pairing the backlog, accepts.

        With pairing an outage keeps nobody from filling one: it is then as large as the backlog accepts, and sending it
        decides which way it goes.

        Args:
            max_size_in_bytes: a smaller limit; None = the largest.

        Raises:
            InvalidOperationError: the limit asked for is not positive, or larger than what is accepted (also a
                ValueError).
            ServiceBusError: the entity cannot be asked; with pairing, for another reason than an outage.
        """
        deadline = await self._begin()
        if max_size_in_bytes is not None and max_size_in_bytes < 1:
            raise InvalidOperationError(f"max_size_in_bytes is {max_size_in_bytes}: it must be at least 1")
        pair = self._core.pair
        limits = await self._limits_of_batches(deadline)
        largest = (limits if pair is None else pair.common_limits(limits)).max_batch_size_bytes
        if max_size_in_bytes is not None and max_size_in_bytes > largest:
            raise InvalidOperationError(
                f"a batch of {max_size_in_bytes} bytes is larger than the {largest} bytes that {self._path!r} accepts"
            )
        return ServiceBusMessageBatch(
            max_size_in_bytes or largest,
            growth_bytes=self._growth_bytes() + (TRACE_BYTES if is_on() else 0),
            new_id=self._core.new_id,
        )

    # -- what goes out -------------------------------------------------------------------------------------------

    async def _begin(self, timeout: float | None = None) -> float:
        """Open the client if nobody has; returns the deadline of what follows, in monotonic seconds."""
        if timeout is not None and not 0 < timeout < math.inf:
            raise InvalidOperationError(
                f"timeout is {timeout} s: it must be more than 0 and finite, or None for the client's"
            )
        deadline = self._core.retry.deadline(timeout)
        if self._core.is_open:
            self._core.check()
        else:
            await self._open_client(deadline)
        if self._is_closed:
            raise InvalidOperationError(f"the sender of {self._path!r} is closed: get a new one from the client")
        return deadline

    async def _open_client(self, deadline: float) -> None:
        try:
            async with self._core.clock.timeout(deadline - self._core.clock.monotonic()):
                await self._core.open()
        except TimeoutError:
            raise self._not_sent("the namespaces were not paired in time") from None

    def _not_sent(self, why: str) -> OperationTimeoutError:
        late = OperationTimeoutError(f"{why}, and nothing was sent to {self._path!r}: send it again later")
        late.is_in_doubt = False
        return late

    def _outgoing(self, message: Sendable) -> list[ServiceBusMessage]:
        """Private copies of what is to be sent, checked, each with a message id."""
        return outgoing(message.messages if isinstance(message, ServiceBusMessageBatch) else message, self._core.new_id)

    def _check_one_order(self, messages: Sequence[ServiceBusMessage]) -> None:
        """With `ordering="session"` each session has its own way, and a list is accepted whole or not at all."""
        diversion = self._diversion
        if self._order is None or diversion is None or len(messages) == 1:
            return
        ways = {message.session_id if diversion.is_ordered(message) else None: None for message in messages}
        if len(ways) > 1:
            first, second = list(ways)[:2]
            raise InvalidOperationError(
                f"a list for {self._path!r} holds messages of session {first!r} and of {second!r}, scheduled ones "
                'counting as none: with ordering="session" send one list for each session'
            )

    def _growth_bytes(self) -> int:
        pair = self._core.pair
        return len(self._path) + ALIAS_BYTES if pair is not None and pair.options.reserve_backlog_headroom else 0

    async def _accepted_sizes(self, timeout_s: float) -> SenderLimits:
        """What the entity accepts; it can only change while the link is down."""
        if self._limits is None or not self._link.is_open:
            self._limits = await self._link.limits(timeout_s=timeout_s)
        return self._limits

    async def _limits_of_batches(self, deadline: float) -> SenderLimits:
        entity, pair = self._entity, self._core.pair
        if entity is None or pair is None:
            return await self._core.retry.run(self._accepted_sizes, deadline=deadline)
        if not entity.is_failed_over:
            try:
                return await self._core.retry.run(self._accepted_sizes, deadline=deadline, interrupt=entity.failed_over)
            except BackOffInterrupted:
                pass
            except ServiceBusError as error:
                if not entity.failed(error, PingKeys()):
                    raise
        return pair.backlog_limits or self._limits or SenderLimits(LEAST_LIMIT_BYTES, LEAST_LIMIT_BYTES)

    async def _check_sizes(self, messages: Sequence[ServiceBusMessage], timeout_s: float) -> None:
        limits = await self._accepted_sizes(timeout_s)
        pair = self._core.pair
        limits = limits if pair is None else pair.common_limits(limits)
        limit = limits.max_message_size_bytes
        sizes = [encoded_size(message) for message in messages]
        if max(sizes) > limit:
            raise self._too_large("a message", max(sizes), limit)
        if len(messages) > 1:
            size = batch_size(messages, sizes) + len(messages) * self._growth_bytes()
            limit = limits.max_batch_size_bytes
            if size > limit:
                raise self._too_large(f"{len(messages)} messages", size, limit)

    def _made_smaller(self, messages: Sequence[ServiceBusMessage], error: MessageSizeExceededError) -> bool:
        """Take away the trace contexts of messages that are too large: nothing is refused for those."""
        return not error.is_in_doubt and self._telemetry.unsign(messages)

    def _too_large(self, what: str, size: int, limit: int) -> MessageSizeExceededError:
        spare = " (with room for a diversion to the backlog)" if self._growth_bytes() else ""
        return MessageSizeExceededError(
            f"{what} for {self._path!r} takes {size} bytes, {limit} are allowed{spare}: "
            "send less at once, or put the content elsewhere and send its address"
        )

    # -- which way it goes ---------------------------------------------------------------------------------------

    def _route(self) -> str:
        """The way that messages go now."""
        return BACKLOG if self._entity is not None and self._entity.failover.is_failed_over else PRIMARY

    async def _deliver(self, messages: Sequence[ServiceBusMessage], deadline: float) -> str:
        """One transfer: to the primary, and to the backlog if the entity is or becomes failed over; returns which."""
        entity, diversion = self._entity, self._diversion
        if entity is None or diversion is None:
            await self._send_to_primary(messages, deadline)
            return PRIMARY
        if self._order is not None and await self._must_queue_up(self._order, diversion, messages, deadline):
            return await self._divert(diversion, messages, deadline)
        is_in_doubt = False
        if not entity.is_failed_over:
            generation = entity.failover.generation
            primary_deadline = deadline - reserve_s(deadline - self._core.clock.monotonic())
            try:
                await self._send_to_primary(messages, primary_deadline, entity)
            except BackOffInterrupted as pause:
                is_in_doubt = isinstance(pause.__cause__, ServiceBusError) and pause.__cause__.is_in_doubt
            except ServiceBusError as error:
                if not self._is_to_be_diverted(error, messages[0], entity):
                    raise
                is_in_doubt = error.is_in_doubt
            else:
                entity.succeeded(generation)
                return PRIMARY
        if self._order is not None:
            for message in filter(diversion.is_ordered, messages):
                self._order.diverted(message.session_id or "")
        try:
            return await self._divert(diversion, messages, deadline)
        except ServiceBusError as error:
            error.is_in_doubt = error.is_in_doubt or is_in_doubt
            raise

    async def _divert(self, diversion: Diversion, messages: Sequence[ServiceBusMessage], deadline: float) -> str:
        largest = self._limits.max_message_size_bytes if self._limits is not None else LEAST_LIMIT_BYTES
        if self._telemetry.has_signed and any(encoded_size(message) > largest for message in messages):
            self._telemetry.unsign(messages)  # the backlog may take what the primary then will not
        try:
            await diversion.send(messages, deadline=deadline)
        except MessageSizeExceededError as error:
            if not self._made_smaller(messages, error):
                raise
            await diversion.send(messages, deadline=deadline)
        return BACKLOG

    def _is_to_be_diverted(self, error: ServiceBusError, message: ServiceBusMessage, entity: PairedEntity) -> bool:
        """Judge the error that survived the retries; whether this very send goes to the backlog because of it."""
        pair = self._core.pair
        with within(message):
            is_outage = entity.failed(error, PingKeys(message.session_id, message.partition_key))
        return is_outage and (entity.is_failed_over or (pair is not None and pair.options.divert_while_suspect))

    async def _must_queue_up(
        self, order: SessionOrder, diversion: Diversion, messages: Sequence[ServiceBusMessage], deadline: float
    ) -> bool:
        sessions = dict.fromkeys(message.session_id for message in messages if diversion.is_ordered(message))
        waiting = [await order.must_divert(session or "", deadline=deadline) for session in sessions]
        if any(waiting):
            for session in sessions:
                order.diverted(session or "")
        return any(waiting)

    async def _send_to_primary(
        self, messages: Sequence[ServiceBusMessage], deadline: float, entity: PairedEntity | None = None
    ) -> None:
        async def attempt(timeout_s: float) -> None:
            await self._send_fitting(messages, timeout_s)

        async def reopened(timeout_s: float) -> None:
            was_open = self._link.is_open
            began_at = self._core.clock.monotonic()
            try:
                await attempt(timeout_s)
            except ServiceBusConnectionError as stale:
                left_s = timeout_s - (self._core.clock.monotonic() - began_at)
                if not was_open or left_s <= 0:
                    raise
                try:
                    await attempt(left_s)
                except ServiceBusError as error:
                    error.is_in_doubt = error.is_in_doubt or stale.is_in_doubt
                    raise

        pair = self._core.pair
        interrupt = entity.failed_over if entity is not None else None
        if pair is None or entity is None or pair.options.failover_interval:
            await self._core.retry.run(attempt, deadline=deadline, interrupt=interrupt)
        else:
            # The first outage error diverts; only a link that had gone stale is opened once more, at once.
            await self._core.retry.run(reopened, deadline=deadline, interrupt=interrupt, retry_total=0)

    async def _send_fitting(
        self, messages: Sequence[ServiceBusMessage], timeout_s: float, transaction: TransactionLink | None = None
    ) -> None:
        over_at = self._core.clock.monotonic() + timeout_s
        while True:
            try:
                await self._check_sizes(messages, self._left_s(over_at))
                return await self._link.send(messages, timeout_s=self._left_s(over_at), transaction=transaction)
            except MessageSizeExceededError as error:
                if not self._made_smaller(messages, error):
                    raise

    async def _schedule_fitting(
        self, messages: Sequence[ServiceBusMessage], timeout_s: float, transaction: TransactionLink | None = None
    ) -> list[int]:
        over_at = self._core.clock.monotonic() + timeout_s
        while True:
            try:
                await self._check_sizes(messages, self._left_s(over_at))
                return await self._link.schedule(messages, timeout_s=self._left_s(over_at), transaction=transaction)
            except MessageSizeExceededError as error:
                if not self._made_smaller(messages, error):
                    raise

    def _left_s(self, over_at: float) -> float:
        """What is left of a try: its limits and its messages share one span."""
        left_s = over_at - self._core.clock.monotonic()
        if left_s <= 0:
            raise self._not_sent("the time was over when the link was open")
        return left_s

    async def _schedule(self, messages: Sequence[ServiceBusMessage], deadline: float) -> list[int]:
        self._check_schedulable()

        async def attempt(timeout_s: float) -> list[int]:
            return await self._schedule_fitting(messages, timeout_s)

        with self._watching(messages):
            return await self._core.retry.run(attempt, deadline=deadline)

    def _check_schedulable(self) -> None:
        if self._entity is not None and self._entity.is_failed_over:
            raise ScheduleUnavailableError(
                f"{self._path!r} is failed over to the backlog, where a message has no number to cancel it by: "
                "try again after the recovery, or use send_messages with scheduled_enqueue_time_utc"
            )

    # -- transactions --------------------------------------------------------------------------------------------

    async def _send_in(self, transaction: Transaction, messages: Sequence[ServiceBusMessage], deadline: float) -> None:
        self._check_transactable()
        key = await self._keys.of(transaction, messages)
        await self._check_no_backlog(messages, deadline)
        link = await transaction.link()
        left_s = self._left_s(deadline)
        with self._watching(messages):
            await self._send_fitting(messages, left_s, link)
        transaction.pin(self._path, key)

    async def _schedule_in(
        self, transaction: Transaction, messages: Sequence[ServiceBusMessage], deadline: float
    ) -> list[int]:
        self._check_transactable()
        key = await self._keys.of(transaction, messages)
        link = await transaction.link()
        left_s = self._left_s(deadline)
        with self._watching(messages):
            numbers = await self._schedule_fitting(messages, left_s, link)
        transaction.pin(self._path, key)
        return numbers

    def _check_transactable(self) -> None:
        if self._entity is not None and self._entity.is_failed_over:
            raise TransactionNotSupportedError(
                f"{self._path!r} is failed over to the backlog, and a transaction is never diverted: roll back, "
                "and try again after the recovery or send without a transaction"
            )

    async def _check_no_backlog(self, messages: Sequence[ServiceBusMessage], deadline: float) -> None:
        """With `ordering="session"` no transaction overtakes what its sessions still have in the backlog."""
        if self._order is None or self._diversion is None:
            return
        if await self._must_queue_up(self._order, self._diversion, messages, deadline):
            raise TransactionNotSupportedError(
                f"earlier messages of a session for {self._path!r} still wait in the backlog, and a transaction is "
                "never diverted: roll back, and try again when a syphon has brought them home, or send without one"
            )

    def _watching(self, messages: Sequence[ServiceBusMessage]) -> _Watch:
        return _Watch(self._entity, messages[0])


class _Watch:
    """Counts an error that leaves the body against the entity, as evidence of an outage."""

    def __init__(self, entity: PairedEntity | None, message: ServiceBusMessage) -> None:
        self._entity = entity
        self._keys = PingKeys(message.session_id, message.partition_key)
        self._generation = entity.failover.generation if entity is not None else 0

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._entity is None:
            return
        if error is None:
            self._entity.succeeded(self._generation)
        elif isinstance(error, ServiceBusError):
            self._entity.failed(error, self._keys)
