"""Sends messages to one queue or topic: to the primary, or to the backlog while the entity is failed over."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable
from contextlib import nullcontext
from functools import partial
from typing import Any, Self, TypeAlias, TypeVar, Union, cast

from sbclient import clock
from sbclient.amqp import EncodedBatch, EncodedMessage
from sbclient.arguments.checked import checked
from sbclient.arguments.kinds import Seconds, SequenceNumbers, Size, Utc
from sbclient.client.batch import ServiceBusMessageBatch
from sbclient.client.core import Calls, ClientCore, each_part
from sbclient.client.encoding import Message, check_message_count, encoded_message, encoded_messages, is_message
from sbclient.client.outbox import Outbox
from sbclient.client.route import DirectRoute, PairedRoute, not_sent
from sbclient.client.transaction import Transaction, TransactionKeys
from sbclient.entities import EntityAddress, EntityKind
from sbclient.errors import (
    InvalidOperationError,
    TransactionNotSupportedError,
)
from sbclient.rules.sequence_number import by_partition
from sbclient.telemetry.operations import BACKLOG, PRIMARY, Telemetry
from sbclient.telemetry.tracing import TRACE_BYTES, is_on
from sbclient.transport.base import SenderLink

T = TypeVar("T")

Sendable: TypeAlias = Union["Message", ServiceBusMessageBatch, Iterable["Message"]]
"""A message, a batch, or an iterable of messages."""


@checked
class ServiceBusSender:
    """Sends to a queue or topic; any number of callers may use it at once.

    Created by `get_queue_sender` and `get_topic_sender` of a client. With pairing, a message is accepted by the primary
    or, while the entity is failed over, by one backlog queue of the secondary; the caller sees no difference.
    """

    def __init__(self, core: ClientCore, path: str, kind: EntityKind, *, partitioned: bool | None = None) -> None:
        self._core = core
        self._path = path
        self._keys = TransactionKeys(core.primary.administration, EntityAddress(kind, (path,)), partitioned=partitioned)
        self._route = DirectRoute(core, path) if core.pair is None else PairedRoute(core, core.pair, path)
        self._link = self._route.link
        self._secondary_link: SenderLink | None = None
        self._mixes_keys = partitioned is False
        self._outbox = self._new_outbox()
        self._telemetry = Telemetry(
            core.primary.namespace,
            path,
            route=lambda: BACKLOG if self._route.is_failed_over else PRIMARY,
            trace_room=self._route.trace_room,
        )
        self._calls = Calls(f"the sender of {path!r}")

    def _new_outbox(self) -> Outbox:
        reserved_bytes = self._route.reserved_bytes
        return Outbox(self._route, self._path, growth_bytes=reserved_bytes, mixes_keys=self._mixes_keys)

    def leave_loop(self) -> None:
        """Make anew what belonged to an event loop that has ended; for the client."""
        self._keys.leave_loop()
        self._calls.leave_loop()
        self._route.leave_loop()
        self._outbox = self._new_outbox()

    @property
    def entity_name(self) -> str:
        """The path of the queue or topic."""
        return self._path

    async def __aenter__(self) -> Self:
        await self._begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the sender. Sends in flight end with an error. Safe to call twice."""
        self._core.enter_loop()
        self._calls.end()
        self._outbox.close()
        await self._route.close()
        if self._secondary_link is not None:
            await self._secondary_link.close()

    async def send_messages(
        self, message: Sendable, *, timeout: Seconds | None = None, transaction: Transaction | None = None
    ) -> None:
        """Send a message, a list of messages, or a batch; a list and a batch are accepted completely or not at all.

        A message without a `message_id` gets one, which it keeps, unless it is a mapping. When this returns, the
        messages are stored.

        Args:
            message: a `ServiceBusMessage`, a mapping of its arguments, a message of azure-servicebus, an iterable of
                these, or a batch.
            timeout: seconds for the whole operation, with retries and diversion; None = the client's, 60 by default.
            transaction: send as part of it. A transaction is never diverted.

        Raises:
            InvalidOperationError: keys differ, or the entity does not allow the messages; nothing was sent.
            MessageSizeExceededError: too large for the primary or, with pairing, for the backlog; nothing was sent.
            BacklogUnavailableError: the entity is failed over, and no backlog queue accepted the messages.
            OperationTimeoutError, ServiceBusConnectionError: whether the messages arrived is in doubt, as after every
                error with `is_in_doubt` set. Send the same message objects again; they keep their ids.
            ServiceBusError: any other answer of the service.
        """
        is_single = is_message(message)
        if is_single:
            messages = [encoded_message(message, self._core.new_id)]
        elif isinstance(message, ServiceBusMessageBatch):
            messages = message.encoded()
            check_message_count(len(messages))
        else:
            messages = encoded_messages(message, self._core.new_ids().__next__)
        deadline = self._deadline(timeout)
        if not self._is_ready():
            await self._open(deadline)
        if not messages:
            return
        if len(messages) > 1:
            self._route.check_sessions(messages)
        if transaction is not None:
            send: Any = partial(self._transact, transaction, messages, deadline, lambda link: link.send)
            await self._telemetry.sending("send", messages, send)
        else:
            await self._telemetry.sending("send", messages, self._outbox.send, messages, deadline, is_single)

    async def send_encoded(
        self, batch: EncodedBatch, *, sessions: Collection[str] = (), timeout: Seconds | None = None
    ) -> None:
        """Send messages that are encoded already, as one transfer. For programs that encode whole columns.

        Unlike those of `send_messages`, concurrent calls are not ordered by key. The messages are not checked: each has
        a message id, equal keys and no content type of pings. With pairing and `ordering="session"` the messages of
        some sessions may be diverted and the others not.

        Args:
            sessions: the sessions of the messages, without those that are scheduled; used with `ordering="session"`.
            timeout: as for `send_messages`.

        Raises:
            ServiceBusError: as `send_messages`. If a part of the messages was accepted, `is_in_doubt` is set.
        """
        check_message_count(len(batch))
        deadline = await self._begin(timeout)
        batch.sessions = sessions
        if not is_on():
            await self._telemetry.sending("send", len(batch), self._route.send, batch, deadline)
            return
        messages = list(batch.messages)

        def send() -> asyncio.Future[str]:
            signed = EncodedBatch(messages)
            signed.sessions = sessions
            return self._route.send(signed, deadline)

        await self._telemetry.sending("send", messages, send)

    async def schedule_messages(
        self,
        messages: Sendable,
        schedule_time_utc: Utc,
        *,
        timeout: Seconds | None = None,
        transaction: Transaction | None = None,
    ) -> list[int]:
        """Send messages that become visible at a given time; return their sequence numbers, in order.

        Args:
            schedule_time_utc: naive = UTC.
            timeout: seconds, as for `send_messages`.
            transaction: schedule as part of it.

        Raises:
            ScheduleUnavailableError: the entity is failed over, so there are no sequence numbers. `send_messages` with
                `scheduled_enqueue_time_utc` set is diverted as usual.
            ServiceBusError: as `send_messages`.
        """
        given = messages.messages if isinstance(messages, ServiceBusMessageBatch) else messages
        encoded = encoded_messages(given, self._core.new_ids().__next__, schedule_time_utc)
        deadline = await self._begin(timeout)
        if not encoded:
            return []
        if transaction is not None:
            schedule: Any = partial(self._transact, transaction, encoded, deadline, lambda link: link.schedule)
        else:
            schedule = lambda: self._calls.run(  # noqa: E731
                self._route.schedule(EncodedBatch(encoded), deadline), changes=True
            )
        numbers: list[int] = await self._telemetry.sending("schedule", encoded, schedule)
        return numbers

    async def cancel_scheduled_messages(
        self, sequence_numbers: SequenceNumbers, *, timeout: Seconds | None = None
    ) -> None:
        """Remove messages that are still scheduled, of each partition all of them or none.

        The service answers for one partition at a time, so each partition gets a request of its own. The messages that
        one call of `schedule_messages` returns are in one partition.

        Raises:
            MessageNotFoundError: one of the messages is not scheduled, or no longer.
            ScheduleUnavailableError: the entity is failed over.
            TypeError: the sequence numbers are not integers.
            ServiceBusError: any other answer. If a part of the messages was removed, `is_in_doubt` is set.
        """
        deadline = await self._begin(timeout)
        numbers = cast("list[int]", sequence_numbers)
        if numbers:
            self._route.check_schedulable()
            cancel = partial(self._core.retry.run, self._link.cancel_scheduled, deadline=deadline)
            await each_part(lambda part: self._calls.run(cancel(part), changes=True), by_partition(numbers))

    async def create_message_batch(self, max_size_in_bytes: Size | None = None) -> ServiceBusMessageBatch:
        """Create an empty batch, as large as the entity and, with pairing, the backlog accept.

        With pairing an outage does not prevent it: the batch is then as large as the backlog accepts.

        Args:
            max_size_in_bytes: a smaller limit; None = the largest.

        Raises:
            InvalidOperationError: the limit is not positive, or larger than the entity accepts (also a ValueError).
            ServiceBusError: the primary rejects the sender's link; with pairing, for another reason than an outage.
        """
        deadline = await self._begin()
        largest = (await self._calls.run(self._route.limits(deadline))).max_batch_size_bytes
        if max_size_in_bytes is not None and max_size_in_bytes > largest:
            raise InvalidOperationError(
                f"a batch of {max_size_in_bytes} bytes is larger than the {largest} bytes that {self._path!r} accepts"
            )
        growth_bytes = self._route.reserved_bytes + (TRACE_BYTES if is_on() else 0)
        return ServiceBusMessageBatch(max_size_in_bytes or largest, growth_bytes=growth_bytes, new_id=self._core.new_id)

    async def _begin(self, timeout: float | None = None) -> float:
        """Open the client if it is not open; return the deadline of the operation in monotonic seconds."""
        deadline = self._deadline(timeout)
        if not self._is_ready():
            await self._open(deadline)
        return deadline

    def _deadline(self, timeout: float | None) -> float:
        return clock.monotonic() + (self._core.retry.options.timeout if timeout is None else timeout)

    def _is_ready(self) -> bool:
        return self._core.home.ready is asyncio._get_running_loop() and not self._calls.are_over

    async def _open(self, deadline: float) -> None:
        """Open the client if it is not open.

        Raises:
            InvalidOperationError: this sender is closed.
        """
        if self._core.home.ready is not asyncio._get_running_loop():
            timeout_s = deadline - clock.monotonic()
            try:
                async with clock.timeout(timeout_s):
                    await self._core.open(timeout_s=timeout_s)
            except TimeoutError:
                raise not_sent(self._path, "the client was not opened in time") from None
        if self._calls.are_over:
            raise InvalidOperationError(f"the sender of {self._path!r} is closed: get a new one from the client")

    async def _transact(
        self,
        transaction: Transaction,
        messages: list[EncodedMessage],
        deadline: float,
        operation_of: Callable[[SenderLink], Callable[..., Awaitable[T]]],
    ) -> T:
        """Send or schedule in a transaction: once, in its namespace, with one key on a partitioned entity."""
        batch = EncodedBatch(messages)
        is_elsewhere = transaction.namespace == "secondary"
        if not is_elsewhere:
            await self._check_transactable(batch, deadline)
        elif self._secondary_link is None:
            self._secondary_link = transaction.transport.open_sender(self._path)
        operation = operation_of(self._secondary_link if is_elsewhere and self._secondary_link else self._link)
        link = await transaction.link()
        key = None
        if link.via_to(self._path) is None:
            key = await self._keys.key_of(transaction, messages)
        timeout_s = deadline - clock.monotonic()
        if timeout_s <= 0:
            raise not_sent(self._path, "the timeout passed while the link was opened")
        observed = nullcontext(operation) if is_elsewhere else self._route.observed(batch, operation)
        with transaction.counting(len(messages)), observed as attempt:
            answer = await self._calls.run(attempt(batch, timeout_s=timeout_s, transaction=link), changes=True)
        transaction.pin(self._path, key)
        return answer

    async def _check_transactable(self, batch: EncodedBatch, deadline: float) -> None:
        if self._route.is_failed_over:
            state = "is failed over to the backlog"
        elif await self._route.must_wait(batch, deadline):
            state = "has earlier messages of a session in the backlog"
        else:
            return
        raise TransactionNotSupportedError(
            f"{self._path!r} {state}, and a transaction is never diverted: roll back, and try again after the recovery "
            "or send without a transaction"
        )
