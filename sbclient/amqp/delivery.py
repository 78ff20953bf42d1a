"""One message on its way over a link, until both sides agree what became of it."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from sbclient.amqp.states import DeliveryState


class SettlingLink(Protocol):
    """The part of a link that its deliveries need."""

    def settle(self, delivery: Any, state: DeliveryState | None, *, settled: bool) -> None:
        """Tell the peer the state of a delivery, and forget it if `settled`."""


class _Delivery:
    """What both directions have in common.

    Attributes:
        link: the link it belongs to.
        delivery_id: its number in the session, reused after 2**32 deliveries.
        tag: the sender's own name for it, at most 32 bytes.
        state: the last state that the peer told, None if none.
        is_settled: whether this side has forgotten it or never had to remember it.
        owner: a place for the owner's own object; None at first.
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
        """Tell the peer what became of the delivery.

        Args:
            state: the outcome, or a `TransactionalState` with one. A receiver's unsettled outcome is confirmed by the
                sender with the same outcome; a `Rejected` confirmation carries no error.
            settled: False to tell the outcome and wait for the peer to settle.

        A delivery that is settled already, or whose link has ended, is left alone: nobody listens any more.
        """
        self.link.settle(self, state, settled=settled)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(delivery_id={self.delivery_id}, tag={self.tag.hex()}, settled={self.is_settled})"


class OutgoingDelivery(_Delivery):
    """A message this side has sent."""

    __slots__ = ()


class IncomingDelivery(_Delivery):
    """A message the peer has sent, complete.

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
        super().__init__(link, delivery_id, tag, settled=settled, state=state)
        self.message_format = message_format
        self.payload = payload


class DispositionReceived(NamedTuple):
    """The peer has told the state of a delivery.

    Attributes:
        delivery: an outgoing one: what the receiver made of it; an incoming one: the sender's confirmation.
        state: the outcome, None where the peer only settles.
        settled: whether the peer has forgotten it. If not, confirm with `delivery.settle`.
    """

    delivery: OutgoingDelivery | IncomingDelivery
    state: DeliveryState | None
    settled: bool
