"""A link on which a client sends: the broker stores or rejects each transfer, in the order of arrival.

Laws:

1. The outcome is `accepted`, or `rejected` with an error of three fields; nothing else. The SDK waits for ever after a
   `released` or `modified`, and loses the condition of a detach.
2. Credit is granted generously and not enforced, because the sender of the SDK grants itself some. The connection
   limits how much a client has in flight.
3. A batch is stored as a whole or not at all, with one outcome.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sbclient import clock
from sbclient.amqp import (
    ACCEPTED,
    BATCH_FORMAT,
    EncodedMessage,
    IncomingDelivery,
    IncomingLink,
    Rejected,
    Target,
    TransactionalState,
    WireError,
    servicebus,
    split_batch,
)
from sbclient.amqp.errors import INVALID_FIELD
from sbclient.amqp.states import DeliveryState
from sbclient.broker.faults import Call, Operation, busy
from sbclient.delivery import SenderLimits
from sbclient.emulator.amqp.peer import OPERATION_TIMEOUT_S, LinkHandler, Peer
from sbclient.entities import AccessRights
from sbclient.errors import InvalidOperationError, ServiceBusError
from sbclient.hosting.host import Performed

CREDIT: Final = 1_000
"""Messages that a client may send before the broker answers."""

NOT_NULL: Final = (
    servicebus.SCHEDULED_ENQUEUE_TIME,
    servicebus.MESSAGE_STATE,
    servicebus.ENQUEUE_SEQUENCE_NUMBER,
)
"""Annotations whose null the service rejects (seen)."""

ENVELOPE_BYTES: Final = 2**16
"""How much longer a transfer may be than its messages: other clients encode less tightly than sizes are counted."""


class SenderLink(LinkHandler):
    """The broker's end of a link on which a client sends to one entity.

    Args:
        peer: the connection.
        link: as requested.
        path: of the entity.
        timeout_s: how long the broker may take to store a transfer.
        destination: the entity that the messages are for, if this one only forwards them.

    Attributes:
        target: of the answer; None = the one that the client asked for.
        changed: changes each message before it is stored.
    """

    changed: Callable[[EncodedMessage], EncodedMessage] | None = None

    def __init__(
        self,
        peer: Peer,
        link: IncomingLink,
        path: str,
        *,
        timeout_s: float = OPERATION_TIMEOUT_S,
        destination: str | None = None,
    ) -> None:
        self.entity_path = path
        self._peer = peer
        self._link = link
        self._path = path
        self._timeout_s = timeout_s
        self._destination = destination
        self.target: Target | None = None

    def open(self) -> None:
        """Accept the link, or refuse it with an error."""
        self._peer.start(self._open(), name="amqp open sender")

    async def _open(self) -> None:
        peer, link = self._peer, self._link
        try:
            peer.check_detach_fault(self._path)
            self.check_rights()
            peer.check_via(link, self._path, receives=False)
            limits = await peer.perform(Operation.OPEN, self._path, self._opened, timeout_s=self._timeout_s)
        except ServiceBusError as error:
            peer.refuse(link, error)
        else:
            if not link.is_over:
                self._accept(limits)
            peer.flush()

    def check_rights(self) -> None:
        """Sending needs Send on the entity, and on the destination if there is one."""
        for path in (self._path, self._destination):
            if path is not None:
                self._peer.check_right(path, AccessRights.SEND)

    def _opened(self, call: Call) -> SenderLimits:
        namespace = self._peer.host.namespace
        if self._destination is not None:
            namespace.open_sender(call, self._destination)
        return namespace.open_sender(call, self._path)

    def _accept(self, limits: SenderLimits) -> None:
        largest = limits.max_message_size_bytes
        remote = self._link.remote
        assert remote is not None  # it has requested the link
        stated = min(largest, remote.max_message_size or largest)  # 0 means no limit
        self._link.accept(credit=CREDIT, target=self.target, max_message_size=stated)
        self._link.max_message_size = max(largest, limits.max_batch_size_bytes) + ENVELOPE_BYTES

    def on_delivery(self, delivery: IncomingDelivery) -> None:
        """Store the messages of a transfer."""
        if isinstance(delivery.state, TransactionalState):
            work = self._store_in_transaction(delivery)
            self._peer.start(work, name="amqp send", size_bytes=len(delivery.payload))
        else:
            self._store(delivery)

    async def _store_in_transaction(self, delivery: IncomingDelivery) -> None:
        """Store a transfer in order with the requests to the coordinator, which are tasks too."""
        self._store(delivery)

    def _store(self, delivery: IncomingDelivery) -> None:
        peer = self._peer
        try:
            performed = peer.perform_now(Operation.SEND, self._path, self._work_of(delivery))
            if not performed.answer_after_s:
                performed.result()
        except ServiceBusError as error:
            self._reject(delivery, error)
        else:
            if performed.answer_after_s:
                waiting = self._answer_later(delivery, performed)
                peer.start(waiting, name="amqp send", size_bytes=len(delivery.payload))
            else:
                self._accept_delivery(delivery)

    async def _answer_later(self, delivery: IncomingDelivery, performed: Performed[None]) -> None:
        try:
            await self._peer.host.answered(performed, timeout_s=self._timeout_s)
        except ServiceBusError as error:
            self._reject(delivery, error)
        else:
            self._accept_delivery(delivery)

    def _accept_delivery(self, delivery: IncomingDelivery) -> None:
        peer, state = self._peer, delivery.state
        if not peer.context.wire_faults.drops_acknowledgement(self._path, clock.now()):
            outcome: DeliveryState = ACCEPTED
            if isinstance(state, TransactionalState):
                outcome = TransactionalState(state.txn_id, ACCEPTED)
            delivery.settle(outcome)
        peer.flush()

    def _reject(self, delivery: IncomingDelivery, error: ServiceBusError) -> None:
        delivery.settle(Rejected(self._peer.report(error)))
        self._peer.flush()

    def _work_of(self, delivery: IncomingDelivery) -> Callable[[Call], None]:
        """Return the request that stores a transfer.

        Raises:
            ServiceBusError: the transfer is malformed, its transaction unknown, or the entity too busy.
        """
        peer, namespace, state = self._peer, self._peer.host.namespace, delivery.state
        messages = messages_in(delivery)
        if self.changed is not None:
            messages = [self.changed(message) for message in messages]
        transaction = peer.transaction(state.txn_id) if isinstance(state, TransactionalState) else None
        if transaction is not None and (via := transaction.via_to(self._path)) is not None:
            peer.check_right(via, AccessRights.SEND)
        if peer.context.wire_faults.is_busy(self._path, clock.now()):
            raise busy(self._path)
        destination, via_key = self._destination, _via_key(messages[0])
        if destination is None:
            return lambda call: namespace.send(
                call, self._path, messages, transaction=transaction, via_partition_key=via_key
            )
        return lambda call: namespace.send(
            call, destination, messages, transaction=transaction, via=self._path, via_partition_key=via_key
        )


def _via_key(first: EncodedMessage) -> str | None:
    """The via-partition-key of the first message of a transfer.

    Raises:
        WireError: the key is not a string.
    """
    key = first.message_annotations.get(servicebus.VIA_PARTITION_KEY)
    if isinstance(key, bytes):
        key = key.decode(errors="replace")
    if key is not None and not isinstance(key, str):
        raise WireError(
            INVALID_FIELD, f"{servicebus.VIA_PARTITION_KEY} is a {type(key).__name__}, a string is expected"
        )
    return key


def messages_in(delivery: IncomingDelivery) -> list[EncodedMessage]:
    """The messages of one transfer.

    Raises:
        WireError: the bytes are neither a message nor a batch of messages.
        InvalidOperationError: the id of a message is too long, or its format is unknown.
    """
    if delivery.message_format == BATCH_FORMAT:
        return [_message(payload) for payload in split_batch(delivery.payload)]
    if delivery.message_format != 0:
        raise InvalidOperationError(
            f"a message has the format 0x{delivery.message_format:08x}: 0 and 0x{BATCH_FORMAT:08x} are allowed"
        )
    return [_message(delivery.payload)]


def _message(payload: bytes) -> EncodedMessage:
    message = EncodedMessage.of(payload)
    annotations = message.annotations
    for name in NOT_NULL if annotations else ():
        if annotations.get(name, ...) is None:
            raise WireError(INVALID_FIELD, f"annotation {name} is null: give it a value, or leave it out")
    return message
