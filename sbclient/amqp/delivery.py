"""A delivery: one message on a link, from its transfer until both sides have settled it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from sbclient.amqp.states import DeliveryState


class _Delivery:
    """The base of incoming and outgoing deliveries.

    Attributes:
        link: the link of the delivery.
        delivery_id: its number in the session, reused after 2**32 deliveries.
        tag: the name that the sender gave it, at most 32 bytes.
        state: the last state that the peer sent, or None.
        is_settled: whether this side has settled it.
        owner: for any object of the owner; None at first.
    """

    __slots__ = ("delivery_id", "is_settled", "link", "owner", "state", "tag")

    def __init__(self, link: Any, delivery_id: int, tag: bytes, *, settled: bool, state: DeliveryState | None) -> None:
        self.link = link
        self.delivery_id = delivery_id
        self.tag = tag
        self.state = state
        self.is_settled = settled
        self.owner: Any = None

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
        self.owner = None
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
