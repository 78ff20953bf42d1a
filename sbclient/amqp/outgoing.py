"""A link on which this side sends: credit, deliveries, and confirmations of outcomes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from sbclient.amqp import serial
from sbclient.amqp.delivery import OutgoingDelivery
from sbclient.amqp.link import Link
from sbclient.amqp.performatives import ROLE_SENDER, Coordinator, Flow, Source, Target
from sbclient.amqp.states import DeliveryState
from sbclient.errors import InvalidOperationError

if TYPE_CHECKING:
    from sbclient.amqp.session import Session

MAX_TAG_BYTES = 32
"""The maximum length of a delivery tag. Source: AMQP 1.0 part 2 section 2.8.7."""


class OutgoingLink(Link):
    """The sending end of a link.

    Attributes:
        delivery_count: deliveries so far, modulo 2**32.
    """

    __slots__ = ("_credit", "_early_flow", "_is_drain_due", "delivery_count")

    def __init__(self, session: Session, name: str, handle: int) -> None:
        super().__init__(session, name, handle, is_sender=True)
        self.delivery_count = 0
        self._credit = 0
        self._is_drain_due = False
        self._early_flow: Flow | None = None

    @property
    def credit(self) -> int:
        """The number of messages that may be sent now, limited by the receiver and by `max_unsettled`."""
        return max(0, min(self._credit, self.session.unsettled_room)) if self.is_open else 0

    def accept(
        self,
        *,
        source: Source | None = None,
        target: Target | Coordinator | None = None,
        max_message_size: int | None = None,
        properties: Mapping[str, Any] | None = None,
    ) -> None:
        """Answer the peer's attach; source and target are echoed unless given.

        `CreditGranted` follows if the peer has sent a flow already. An answer that does not fit into the peer's
        frames ends the session; `LinkDetached` follows.

        Raises:
            EndpointClosedError: the peer has detached already, or was answered before.
        """
        self._answer(source, target, max_message_size, properties)
        if self._early_flow is not None and self.is_open:
            self.on_flow(self._early_flow)
        self._early_flow = None

    def send(
        self,
        payload: bytes,
        *,
        tag: bytes,
        message_format: int = 0,
        settled: bool = False,
        state: DeliveryState | None = None,
        needs_credit: bool = True,
    ) -> OutgoingDelivery:
        """Send one message, in as many frames as it needs.

        Args:
            payload: the encoded message.
            tag: identifies the delivery, at most 32 bytes; Service Bus: the lock token as `UUID.bytes_le`.
            message_format: 0, or `BATCH_FORMAT`.
            settled: whether to send without waiting for an outcome.
            state: a `TransactionalState`, or None.
            needs_credit: False on `$cbs` and `$management`, whose clients never renew their credit.

        Raises:
            EndpointClosedError: the link is over.
            InvalidOperationError: there is no credit, or the tag is too long.
        """
        self.check_not_over()
        if len(tag) > MAX_TAG_BYTES:
            raise InvalidOperationError(f"the delivery tag has {len(tag)} bytes, {MAX_TAG_BYTES} are allowed")
        if needs_credit and self.credit < 1:
            raise InvalidOperationError(f"link {self.name!r} has no credit: wait for CreditGranted")
        delivery = OutgoingDelivery(self, 0, tag, settled=settled, state=None)
        self.session.write_transfer(delivery, self.handle, message_format, payload, state)
        self.delivery_count = (self.delivery_count + 1) & serial.MASK
        self._credit -= 1
        return delivery

    def drained(self) -> None:
        """Return the credit that was granted with `drain`, because there are no more messages.

        The peer learns it after the transfers that are held until its window opens.
        """
        if self.is_open and self.session.held_bytes:
            self._is_drain_due = True
        elif self.is_open:
            self.delivery_count = serial.after(self.delivery_count, max(0, self._credit))
            self._credit = 0
            self._write_flow(drain=True)

    def on_over(self) -> None:
        """Drop what was not sent, because the link is over."""
        self.session.drop_held(self)

    def on_window(self) -> None:
        """Answer a drain after the held transfers; called by the session."""
        if self._is_drain_due:
            self._is_drain_due = False
            self.drained()

    def settle(self, delivery: OutgoingDelivery, state: DeliveryState | None, *, settled: bool) -> None:
        """Confirm the outcome of a delivery; see `OutgoingDelivery.settle`."""
        if not self.is_over and not delivery.is_settled:
            self.session.write_disposition(ROLE_SENDER, delivery, state, settled=settled)

    def on_flow(self, flow: Flow) -> None:
        """Process a flow of the receiver; called by the session. The last one before our attach is kept until then."""
        if not self.is_open:
            had_echo = self._early_flow is not None and self._early_flow.echo
            self._early_flow = flow._replace(echo=flow.echo or had_echo)
            return
        if flow.link_credit is not None:
            self._is_drain_due = False
            seen = 0 if flow.delivery_count is None else flow.delivery_count
            self._credit = flow.link_credit - max(0, serial.distance(seen, self.delivery_count))
            self.session.emit(CreditGranted(self, self.credit, flow.drain))
        if flow.echo:
            self._write_flow(drain=flow.drain)

    def _write_flow(self, *, drain: bool) -> None:
        credit = max(0, self._credit)
        self.session.write_flow(self.handle, self.delivery_count, credit, drain=drain)


class CreditGranted(NamedTuple):
    """The receiver has granted credit. With `drain`, send the messages there are, then call `link.drained`.

    Attributes:
        credit: the value of `link.credit` at the time of the event; 0 = stop sending.
    """

    link: OutgoingLink
    credit: int
    drain: bool
