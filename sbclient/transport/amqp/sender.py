"""Sends to one entity over AMQP.

The limits come from the answer to the attach. Source: Service Bus protocol guide; `x-opt` annotations and the batch
format are written by `sbclient.amqp`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from sbclient import clock
from sbclient.amqp import EncodedBatch, EncodedMessage, Source, Target, servicebus
from sbclient.amqp.performatives import SETTLE_UNSETTLED
from sbclient.amqp.types import longs
from sbclient.delivery import LEAST_LIMITS, SenderLimits
from sbclient.errors import ServiceBusCommunicationError, ServiceBusError
from sbclient.tasks import Move
from sbclient.transport.amqp.requests import items_of
from sbclient.transport.amqp.transactions import AmqpTransaction, transaction_of
from sbclient.transport.amqp.transfers import OutgoingEnd, Transfer, Transfers
from sbclient.transport.base import Check, SenderLink, TransactionLink, link_closed

if TYPE_CHECKING:
    from sbclient.transport.amqp.transport import AmqpTransport

MAX_BATCH_BYTES: Final = 1_048_576
"""The largest batch where only a larger message size is stated. Source: Service Bus Premium."""


class AmqpSender(SenderLink):
    """Sends to one entity. Any number of callers may send at once.

    Attributes:
        path: of the entity.
    """

    def __init__(self, owner: AmqpTransport, path: str, check: Check | None) -> None:
        self.path = path
        self._owner = owner
        self._check = check
        self._sending = f"send to {path!r}"
        self._is_closed = False
        self._limits: SenderLimits | None = None
        self._transfers = self._new_transfers()

    def _new_transfers(self) -> Transfers:
        owner = self._owner
        return Transfers(self._attach, repr(self.path), tasks=owner.tasks, deadlines=owner.deadlines, check=self._check)

    def leave_loop(self, _: Move) -> None:
        """Make anew what belonged to an event loop that has ended; the next transfer attaches a link."""
        self._transfers = self._new_transfers()

    def __repr__(self) -> str:
        return f"AmqpSender({self.path!r}, is_open={self.is_open})"

    @property
    def is_open(self) -> bool:
        return self._transfers.end is not None

    async def open(self, *, timeout_s: float) -> None:
        await self._transfers.open(clock.monotonic() + timeout_s)

    async def limits(self, *, timeout_s: float) -> SenderLimits:
        self._check_open()
        end = await self._transfers.open(clock.monotonic() + timeout_s)
        return end.limits

    @property
    def known_limits(self) -> SenderLimits | None:
        return self._limits

    def send(
        self, batch: EncodedBatch, *, timeout_s: float, transaction: TransactionLink | None = None
    ) -> asyncio.Future[None]:
        began_at = clock.monotonic()
        if transaction is None:
            late = partial(self._suspect, began_at)
            return self._transfers.send(
                Transfer(batch.payload, batch=batch, deadline=began_at + timeout_s, doing=self._sending, on_late=late)
            )
        sending = self._send_in(transaction_of(transaction), batch, began_at + timeout_s)
        return self._owner.tasks.start(sending, name=self._sending)

    async def _send_in(self, transaction: AmqpTransaction, batch: EncodedBatch, deadline: float) -> None:
        end = await self._transfers.open(deadline)
        state = await transaction.state_on(end.wire, deadline)
        batch = batch.via(transaction.partition_key)
        transfer = Transfer(
            batch.payload, batch=batch, deadline=deadline, doing=self._sending, state=state, wire=end.wire
        )
        await self._transfers.send(transfer)

    async def schedule(
        self, batch: EncodedBatch, *, timeout_s: float, transaction: TransactionLink | None = None
    ) -> list[int]:
        self._check_open()
        doing = f"schedule for {self.path!r}"
        deadline = clock.monotonic() + timeout_s
        entries = [_entry(message) for message in batch]
        end = await self._transfers.open(deadline)  # a node knows no entity that cannot be sent to
        if self._check is not None:
            self._check(batch, end.limits)
        state = None
        if transaction is not None:
            state = await transaction_of(transaction).state_on(end.wire, deadline)
        wire = None if state is None else end.wire
        node = await self._owner.requests_of(self.path, deadline=deadline, connection=end.wire)
        reply = await node.ask(
            servicebus.SCHEDULE_MESSAGE,
            {servicebus.MESSAGES: entries},
            doing=doing,
            timeout_s=max(deadline - clock.monotonic(), 0.001),
            link_name=end.link.name,
            state=state,
            wire=wire,
        )
        numbers = [int(each) for each in items_of(reply.body, servicebus.SEQUENCE_NUMBERS) if isinstance(each, int)]
        if len(numbers) != len(batch):
            raise ServiceBusCommunicationError(
                f"{doing}: {len(numbers)} sequence numbers came for {len(batch)} messages"
            )
        return numbers

    async def cancel_scheduled(self, sequence_numbers: Sequence[int], *, timeout_s: float) -> None:
        self._check_open()
        deadline = clock.monotonic() + timeout_s
        end = self._transfers.end
        node = await self._owner.requests_of(self.path, deadline=deadline, connection=None if end is None else end.wire)
        await node.ask(
            servicebus.CANCEL_SCHEDULED_MESSAGE,
            {servicebus.SEQUENCE_NUMBERS: longs(sequence_numbers)},
            doing=f"cancel scheduled messages of {self.path!r}",
            timeout_s=max(deadline - clock.monotonic(), 0.001),
            link_name=None if end is None else end.link.name,
        )

    async def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._transfers.close(ServiceBusError(f"the link to {self.path!r} was closed"))
            self._owner.forget(self)

    def _check_open(self) -> None:
        if self._is_closed:
            raise link_closed(repr(self.path))

    def _suspect(self, since: float) -> None:
        """Probe the connection after a transfer that was not answered in time."""
        end = self._transfers.end
        if end is not None:
            end.wire.suspect(since)

    async def _attach(self) -> OutgoingEnd:
        connection = await self._owner.connection_for(self.path)
        session, owns_session = self._owner.session_of(connection)
        end = OutgoingEnd(connection, f"attach to {self.path!r}", self._transfers, owns_session=owns_session)
        name = connection.new_link_name()
        end.start(
            session.attach_sender(
                name,
                source=Source(address=name),
                target=Target(address=self.path),
                snd_settle_mode=SETTLE_UNSETTLED,
            )
        )
        attach = await end.attached()
        stated = (attach.properties or {}).get(servicebus.LINK_MAX_BATCH_SIZE)
        largest = attach.max_message_size or LEAST_LIMITS.max_message_size_bytes
        batch = int(stated) if isinstance(stated, int) and stated > 0 else min(largest, MAX_BATCH_BYTES)
        end.limits = self._limits = SenderLimits(largest, min(batch, largest))
        return end


def _entry(message: EncodedMessage) -> dict[str, Any]:
    """A message in the body of a request to schedule messages."""
    entry: dict[str, Any] = {servicebus.MESSAGE_ID: message.message_id}
    if message.session_id is not None:
        entry[servicebus.SESSION_ID] = message.session_id
    if message.partition_key is not None:
        entry[servicebus.KEY_OF_PARTITION] = message.partition_key
    entry[servicebus.MESSAGE] = message.payload
    return entry
