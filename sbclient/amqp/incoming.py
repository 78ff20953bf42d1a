"""A link on which this side receives: it assembles messages from frames, grants credit and sends outcomes.

Granted credit is not enforced, because the SDK's sender grants itself some. Sizes limit the memory of a link instead. A
message that is too large, or exceeds the memory for incomplete messages, is rejected; the link stays attached, because
the SDK loses the condition of a detach.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from sbclient.amqp import serial
from sbclient.amqp.delivery import IncomingDelivery
from sbclient.amqp.errors import (
    INVALID_FIELD,
    MESSAGE_SIZE_EXCEEDED,
    NOT_ALLOWED,
    NOT_IMPLEMENTED,
    RESOURCE_LIMIT,
    AmqpError,
    WireError,
)
from sbclient.amqp.link import Link
from sbclient.amqp.outgoing import MAX_TAG_BYTES
from sbclient.amqp.performatives import ROLE_RECEIVER, Attach, Coordinator, Flow, Source, Target, Transfer
from sbclient.amqp.states import DeliveryState, Rejected

if TYPE_CHECKING:
    from sbclient.amqp.session import Session


class _Partial:
    """A message of which some frames are missing."""

    __slots__ = ("first", "payload", "refusal", "reserved", "settled", "size")

    def __init__(self, first: Transfer) -> None:
        self.first = first
        self.payload = bytearray()
        self.size = 0
        self.reserved = 0
        self.settled = False
        self.refusal: AmqpError | None = None


class IncomingLink(Link):
    """The receiving end of a link.

    Attributes:
        credit: the remaining credit; negative if the peer sent more messages than allowed.
        delivery_count: deliveries so far, modulo 2**32.
        max_message_size: in bytes; larger messages are rejected.
    """

    __slots__ = ("_drain_limit", "_partial", "_window", "credit", "delivery_count", "max_message_size")

    def __init__(self, session: Session, name: str, handle: int) -> None:
        super().__init__(session, name, handle, is_sender=False)
        self.credit = 0
        self.delivery_count = 0
        self.max_message_size = session.options.max_message_size
        self._window = 0
        self._partial: _Partial | None = None
        self._drain_limit: int | None = None

    def accept(
        self,
        *,
        credit: int = 0,
        source: Source | None = None,
        target: Target | Coordinator | None = None,
        max_message_size: int | None = None,
        properties: Mapping[str, Any] | None = None,
    ) -> None:
        """Answer the peer's attach; source and target are echoed unless given.

        An answer that does not fit into the peer's frames ends the session; `LinkDetached` follows.

        Args:
            credit: granted now, and again whenever half of it is used; 0 if the owner calls `grant`.
            source, target: sent to the peer, None to echo the peer's own.
            max_message_size: in bytes, None for the connection's default; sent to the peer.
            properties: of the link, sent to the peer.

        Raises:
            EndpointClosedError: the peer has detached already, or was answered before.
        """
        if max_message_size is not None:
            self.max_message_size = max_message_size
        self._answer(source, target, self.max_message_size, properties)
        if self.is_open:
            self.keep_credit(credit)

    def keep_credit(self, credit: int) -> None:
        """Grant credit now, and again whenever half of it is used."""
        self._window = credit
        if credit:
            self.grant(credit)

    def grant(self, credit: int, *, drain: bool = False) -> None:
        """Allow the peer to send that many messages from now on.

        Args:
            credit: replaces the credit that was granted before.
            drain: request that the peer uses the credit at once or returns it; `LinkDrained` follows.

        Raises:
            EndpointClosedError: the link is over.
        """
        if self.is_over:
            self.check_not_over()
        self.credit = credit
        if drain and self._drain_limit is None:
            self._drain_limit = serial.after(self.delivery_count, credit)
        self.session.write_flow(self.handle, self.delivery_count, credit, drain=drain)

    def settle(self, delivery: IncomingDelivery, state: DeliveryState | None, *, settled: bool) -> None:
        """Send the outcome of a delivery; see `IncomingDelivery.settle`."""
        if not self.is_over and not delivery.is_settled:
            self.session.write_disposition(ROLE_RECEIVER, delivery, state, settled=settled)

    def on_attach(self, attach: Attach) -> None:
        """Process the peer's attach; called by the session."""
        self.delivery_count = attach.initial_delivery_count or 0
        super().on_attach(attach)

    def on_over(self) -> None:
        """Release the resources of the link, because it is over."""
        self._drop_partial()

    def on_flow(self, flow: Flow) -> None:
        """Process a flow of the sender; called by the session."""
        if flow.drain and flow.delivery_count is not None:
            used = serial.distance(self.delivery_count, flow.delivery_count)
            limit, self._drain_limit = self._drain_limit, None
            is_returned = limit is not None and serial.distance(flow.delivery_count, limit) > 0
            self.delivery_count = flow.delivery_count
            # A peer uses the credit up by advancing its count. A later grant may have crossed this answer: the peer
            # continues with what is left of it. Some peers return the credit without advancing their count.
            self.credit = flow.link_credit or 0 if is_returned else max(0, self.credit - used)
            if self.credit == 0:
                self.session.emit(LinkDrained(self))
        if flow.echo and self.is_open:
            credit = max(0, self.credit)
            self.session.write_flow(self.handle, self.delivery_count, credit)

    def on_transfer(self, transfer: Transfer, payload: bytes) -> None:
        """Process a frame of a message; called by the session.

        Raises:
            WireError: the frame does not match the previous frames.
        """
        partial = self._partial
        if partial is None:
            first = transfer
            tag = transfer.delivery_tag
            if tag is None or transfer.delivery_id is None or len(tag) > MAX_TAG_BYTES or transfer.resume:
                raise _first_refused(transfer)
            if not transfer.more and not transfer.aborted and len(payload) <= self.max_message_size:
                self._emit(first, payload, settled=bool(transfer.settled))
                return
            partial = _Partial(first)
        elif transfer.delivery_id is not None and transfer.delivery_id != partial.first.delivery_id:
            raise WireError(
                NOT_ALLOWED,
                f"delivery {transfer.delivery_id} starts before delivery {partial.first.delivery_id} is complete",
            )
        if transfer.aborted:
            self._drop_partial()
            self._count_delivery()
            return
        partial.settled = partial.settled or bool(transfer.settled)
        partial.size += len(payload)
        self._check_size(partial, len(payload))
        if transfer.more:
            if partial.refusal is None:
                partial.payload += payload
            self._partial = partial
            return
        self._deliver(partial, payload)

    def _check_size(self, partial: _Partial, added: int) -> None:
        if partial.refusal is not None:
            return
        if partial.size > self.max_message_size:
            partial.refusal = AmqpError(
                MESSAGE_SIZE_EXCEEDED, f"the message has more than {self.max_message_size} bytes, which is the maximum"
            )
        elif not self.session.reserve(added):
            partial.refusal = AmqpError(
                RESOURCE_LIMIT, "incomplete messages exceed the memory limit of this connection: complete some first"
            )
        else:
            partial.reserved += added
            return
        self._release(partial)

    def _release(self, partial: _Partial) -> None:
        self.session.reserve(-partial.reserved)
        partial.reserved = 0
        partial.payload = bytearray()

    def _deliver(self, partial: _Partial, payload: bytes) -> None:
        if partial.reserved:
            self.session.reserve(-partial.reserved)
        self._partial = None
        whole = b"".join((partial.payload, payload)) if partial.payload else payload
        self._emit(partial.first, whole, settled=partial.settled, refusal=partial.refusal)

    def _emit(self, first: Transfer, payload: bytes, *, settled: bool, refusal: AmqpError | None = None) -> None:
        delivery = IncomingDelivery(
            self,
            first.delivery_id or 0,
            first.delivery_tag or b"",
            settled=settled,
            state=first.state,
            message_format=first.message_format or 0,
            payload=payload,
        )
        self._count_delivery()
        if refusal is None and not settled and not self.session.remember(delivery):
            refusal = AmqpError(RESOURCE_LIMIT, "too many deliveries are unsettled: wait for their outcomes")
        if refusal is None:
            self.session.emit(tuple.__new__(DeliveryReceived, (self, delivery)))
        elif not settled:
            self.session.write_disposition(ROLE_RECEIVER, delivery, Rejected(refusal), settled=True)

    def _drop_partial(self) -> None:
        if self._partial is not None:
            self._release(self._partial)
            self._partial = None

    def _count_delivery(self) -> None:
        self.delivery_count = (self.delivery_count + 1) & serial.MASK
        self.credit -= 1
        if self._window and self.credit <= self._window // 2 and self.is_open:
            self.grant(self._window)


def _first_refused(transfer: Transfer) -> WireError:
    """The error for the first transfer of a delivery that breaks a rule."""
    tag = transfer.delivery_tag
    if transfer.delivery_id is None or tag is None:
        return WireError(INVALID_FIELD, "the first transfer of a delivery has no delivery-id or no delivery-tag")
    if len(tag) > MAX_TAG_BYTES:
        return WireError(INVALID_FIELD, f"a delivery-tag has {len(tag)} bytes, {MAX_TAG_BYTES} are allowed")
    return WireError(NOT_IMPLEMENTED, "resuming a delivery is not supported: send the message again")


class DeliveryReceived(NamedTuple):
    """A complete message was received. Unless `delivery.is_settled`, answer it with `delivery.settle`."""

    link: IncomingLink
    delivery: IncomingDelivery


class LinkDrained(NamedTuple):
    """The sender has no more messages and has returned the remaining credit."""

    link: IncomingLink
