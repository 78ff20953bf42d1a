"""A delivery: one message on a link, from its transfer until both sides have settled it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from sbclient.amqp import serial
from sbclient.amqp.errors import INVALID_FIELD, WireError
from sbclient.amqp.performatives import Disposition
from sbclient.amqp.states import DeliveryState

if TYPE_CHECKING:
    from sbclient.amqp.link import Link


class _Delivery:
    """The base of incoming and outgoing deliveries.

    Attributes:
        link: the link of the delivery.
        delivery_id: its number in the session, reused after 2**32 deliveries.
        tag: the name that the sender gave it, at most 32 bytes.
        state: the last state that the peer sent, or None.
        is_settled: whether this side has settled it.
        context: for any object of the user of the engine; None at first.
    """

    __slots__ = ("context", "delivery_id", "is_settled", "link", "state", "tag")

    def __init__(self, link: Any, delivery_id: int, tag: bytes, *, settled: bool, state: DeliveryState | None) -> None:
        self.link = link
        self.delivery_id = delivery_id
        self.tag = tag
        self.state = state
        self.is_settled = settled
        self.context: Any = None

    def settle(self, state: DeliveryState | None = None, *, settled: bool = True) -> None:
        """Send the outcome of the delivery to the peer.

        Args:
            state: the outcome, or a `TransactionalState` with one. A sender confirms the unsettled outcome of a
                receiver with the same outcome; a `Rejected` in a confirmation has no error.
            settled: False to send the outcome and wait until the peer settles.

        Does nothing if the delivery is settled already, or its link has ended.
        """
        self.link.settle(self, state, settled=settled)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(delivery_id={self.delivery_id}, tag={self.tag.hex()}, settled={self.is_settled})"


class OutgoingDelivery(_Delivery):
    """A message this side has sent."""

    __slots__ = ()


class IncomingDelivery(_Delivery):
    """A complete message that the peer has sent.

    Attributes:
        message_format: 0, or `BATCH_FORMAT` for several messages in one.
        payload: the encoded message.
    """

    __slots__ = ("message_format", "payload")

    def __init__(
        self,
        link: Any,
        delivery_id: int,
        tag: bytes,
        *,
        settled: bool,
        state: DeliveryState | None,
        message_format: int,
        payload: bytes,
    ) -> None:
        self.link = link  # without a call of the base, since this runs for each message
        self.delivery_id = delivery_id
        self.tag = tag
        self.state = state
        self.is_settled = settled
        self.context = None
        self.message_format = message_format
        self.payload = payload


class DispositionReceived(NamedTuple):
    """The peer has sent the state of a delivery.

    Attributes:
        delivery: if outgoing, the state is the receiver's outcome; if incoming, it is the sender's confirmation.
        state: the outcome, None if the peer only settles.
        settled: whether the peer has settled. If not, confirm with `delivery.settle`.
    """

    delivery: OutgoingDelivery | IncomingDelivery
    state: DeliveryState | None
    settled: bool


class DispositionsReceived(NamedTuple):
    """The peer has sent the same state for several deliveries of one link.

    Attributes:
        link: of the deliveries.
        deliveries: at least two, at most `MANY_DELIVERIES`, in the order of their ids.
        state, settled: see `DispositionReceived`. Confirm with `link.settle_many`.
    """

    link: Any
    deliveries: Sequence[Any]
    state: DeliveryState | None
    settled: bool

    def each(self) -> list[DispositionReceived]:
        """An event for each delivery."""
        return [DispositionReceived(delivery, self.state, self.settled) for delivery in self.deliveries]


class Unsettled(dict[int, OutgoingDelivery | IncomingDelivery]):
    """Deliveries by id, here and on their links. `clear` keeps them on their links, for the owners.

    A repeated id replaces the earlier delivery: the SDK's sender reuses ids for different messages.
    """

    __slots__ = ()

    def add(self, delivery: OutgoingDelivery | IncomingDelivery) -> None:
        """Add a delivery."""
        delivery_id = delivery.delivery_id
        self[delivery_id] = delivery.link.unsettled[delivery_id] = delivery

    def forget(self, delivery: OutgoingDelivery | IncomingDelivery) -> None:
        """Remove a delivery here and on its link."""
        delivery_id = delivery.delivery_id
        if self.get(delivery_id) is delivery:
            del self[delivery_id]
        if delivery.link.unsettled.get(delivery_id) is delivery:
            del delivery.link.unsettled[delivery_id]

    def forget_link(self, link: Link) -> None:
        """Remove the deliveries of a link here; the link keeps them for its owner."""
        for delivery_id, delivery in link.unsettled.items():
            if self.get(delivery_id) is delivery:
                del self[delivery_id]

    def apply(self, disposition: Disposition) -> tuple[list[OutgoingDelivery | IncomingDelivery], int]:
        """Apply a disposition and remove the deliveries that it settles.

        Returns:
            The deliveries that it changes, in its order, and the number of deliveries that were looked at.

        Raises:
            WireError: its range is reversed.
        """
        _, first, last, settled, state, _ = disposition
        steps = 0 if last is None else serial.distance(first, last)
        if steps < 0:
            raise WireError(INVALID_FIELD, f"a disposition names the reversed range {first} to {last}")
        if state is None and not settled:
            return [], 0
        walked_count = min(steps + 1, len(self))
        if not steps:
            named = [self.get(first)]
        elif steps < len(self):
            named = [self.get(serial.after(first, step)) for step in range(steps + 1)]
        else:  # the peer chooses the range, so iterate over the deliveries instead
            named = [self[known] for known in self if 0 <= serial.distance(first, known) <= steps]
        changed = []
        for delivery in named:
            if delivery is None or (not settled and delivery.state == state):
                continue
            delivery.state = state
            if settled:
                delivery.is_settled = True
                self.forget(delivery)
            changed.append(delivery)
        return changed, walked_count
