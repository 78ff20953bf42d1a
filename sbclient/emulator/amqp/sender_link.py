"""A link on which a client sends: the broker stores or rejects each transfer, in the order of arrival.

Laws:

1. The outcome is `accepted`, or `rejected` with an error of three fields; nothing else. The SDK waits for ever after a
   `released` or `modified`, and loses the condition of a detach.
2. Credit is granted generously and not enforced, because the sender of the SDK grants itself some. The connection
   limits how much a client has in flight.
3. A batch is stored as a whole or not at all, with one outcome.
"""

from __future__ import annotations

from typing import Final

from sbclient.amqp import (
    ACCEPTED,
    BATCH_FORMAT,
    IncomingDelivery,
    IncomingLink,
    Rejected,
    TransactionalState,
    WireError,
    WireMessage,
    split_batch,
)
from sbclient.amqp.errors import INVALID_FIELD
from sbclient.amqp.types import Int
from sbclient.broker.faults import Call, Operation
from sbclient.delivery import SenderLimits
from sbclient.emulator.amqp.peer import OPERATION_TIMEOUT_S, LinkHandler, Peer
from sbclient.entities import AccessRights
from sbclient.errors import InvalidOperationError, ServiceBusError, ServiceBusServerBusyError

CREDIT: Final = 1_000
"""Messages that a client may send before the broker answers."""

ENVELOPE_BYTES: Final = 2**16
"""How much longer a transfer may be than its messages: other clients encode less tightly than sizes are counted."""

VIA_PARTITION_KEY: Final = "x-opt-via-partition-key"
MAX_BATCH_SIZE: Final = "com.microsoft:max-message-batch-size"


class SenderLink(LinkHandler):
    """The broker's end of a link on which a client sends to one entity.

    Args:
        peer: the connection.
        link: as requested.
        path: of the entity.
        timeout_s: how long the broker may take to store a transfer.
        destination: the entity that the messages are for, if this one only forwards them.
    """

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

    def open(self) -> None:
        """Accept the link, or refuse it with an error."""
        self._peer.start(self._open(), name="amqp open sender")

    async def _open(self) -> None:
        peer, link = self._peer, self._link
        try:
            peer.check_detach_fault(self._path)
            self.check_rights()
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
        self._link.accept(
            credit=CREDIT,
            max_message_size=largest,
            properties={MAX_BATCH_SIZE: Int(limits.max_batch_size_bytes)},
        )
        self._link.max_message_size = max(largest, limits.max_batch_size_bytes) + ENVELOPE_BYTES

    def on_delivery(self, delivery: IncomingDelivery) -> None:
        """Store the messages of a transfer."""
        self._peer.start(self._store(delivery), name="amqp send", size_bytes=len(delivery.payload))

    async def _store(self, delivery: IncomingDelivery) -> None:
        peer, state = self._peer, delivery.state
        transaction_id = state.txn_id if isinstance(state, TransactionalState) else None
        try:
            await self._send(messages_in(delivery), transaction_id)
        except ServiceBusError as error:
            delivery.settle(Rejected(peer.report(error)))
        else:
            if not peer.context.wire_faults.drops_acknowledgement(self._path, peer.now()):
                delivery.settle(ACCEPTED if transaction_id is None else TransactionalState(transaction_id, ACCEPTED))
        peer.flush()

    async def _send(self, messages: list[WireMessage], transaction_id: bytes | None) -> None:
        peer, namespace = self._peer, self._peer.host.namespace
        transaction = None if transaction_id is None else peer.transaction(transaction_id)
        if peer.context.wire_faults.is_busy(self._path, peer.now()):
            raise ServiceBusServerBusyError(f"{self._path} is too busy: wait 10 seconds and try again")
        destination, via_key = self._destination, None
        if destination is not None:
            via_key = _via_key(messages[0])

        def send(call: Call) -> None:
            if destination is None:
                namespace.send(call, self._path, messages, transaction=transaction)
            else:
                namespace.send(
                    call, destination, messages, transaction=transaction, via=self._path, via_partition_key=via_key
                )

        await peer.perform(Operation.SEND, self._path, send, timeout_s=self._timeout_s)


def _via_key(first: WireMessage) -> str | None:
    """The via-partition-key of the first message of a transfer.

    Raises:
        WireError: the key is not a string.
    """
    key = first.sections.message_annotations.get(VIA_PARTITION_KEY)
    if key is not None and not isinstance(key, str):
        raise WireError(INVALID_FIELD, f"{VIA_PARTITION_KEY} is a {type(key).__name__}, a string is expected")
    return key


def messages_in(delivery: IncomingDelivery) -> list[WireMessage]:
    """The messages of one transfer.

    Raises:
        WireError: the bytes are neither a message nor a batch of messages.
        InvalidOperationError: the id of a message is too long, or its format is unknown.
    """
    if delivery.message_format == BATCH_FORMAT:
        return [WireMessage.of(payload) for payload in split_batch(delivery.payload)]
    if delivery.message_format != 0:
        raise InvalidOperationError(
            f"a message has the format 0x{delivery.message_format:08x}: 0 and 0x{BATCH_FORMAT:08x} are allowed"
        )
    return [WireMessage.of(delivery.payload)]
