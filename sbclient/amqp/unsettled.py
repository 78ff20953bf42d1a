"""The deliveries of a session that are not settled, in one direction."""

from __future__ import annotations

from collections.abc import Iterator

from sbclient.amqp import serial
from sbclient.amqp.delivery import IncomingDelivery, OutgoingDelivery
from sbclient.amqp.errors import INVALID_FIELD, WireError
from sbclient.amqp.link import Link
from sbclient.amqp.performatives import Disposition


class Unsettled:
    """Deliveries by id, here and on their links.

    An id that comes again replaces what had it: the SDK's sender repeats ids, for messages that differ.
    """

    def __init__(self) -> None:
        self._deliveries: dict[int, OutgoingDelivery | IncomingDelivery] = {}

    def __len__(self) -> int:
        return len(self._deliveries)

    def add(self, delivery: OutgoingDelivery | IncomingDelivery) -> None:
        """Remember a delivery."""
        delivery_id = delivery.delivery_id
        self._deliveries[delivery_id] = delivery.link.unsettled[delivery_id] = delivery

    def forget(self, delivery: OutgoingDelivery | IncomingDelivery) -> None:
        """Both sides have settled it, or no longer care."""
        delivery_id = delivery.delivery_id
        if self._deliveries.get(delivery_id) is delivery:
            del self._deliveries[delivery_id]
        if delivery.link.unsettled.get(delivery_id) is delivery:
            del delivery.link.unsettled[delivery_id]

    def forget_link(self, link: Link) -> None:
        """Forget a link's deliveries here; the link keeps them for its owner."""
        for delivery_id, delivery in link.unsettled.items():
            if self._deliveries.get(delivery_id) is delivery:
                del self._deliveries[delivery_id]

    def clear(self) -> None:
        """Forget all here; their links keep them for their owners."""
        self._deliveries.clear()

    def reach(self, disposition: Disposition) -> int:
        """How many deliveries have to be looked at for a disposition, at most."""
        if _says_nothing(disposition):
            return 0
        last = disposition.last
        span = 0 if last is None else serial.distance(disposition.first, last)
        return min(span + 1, len(self._deliveries))

    def touched(self, disposition: Disposition) -> Iterator[OutgoingDelivery | IncomingDelivery]:
        """The deliveries that a disposition tells something new of, with that noted in them; settled ones forgotten.

        Raises:
            WireError: its range runs backwards.
        """
        first, last = disposition.first, disposition.last
        span = 0 if last is None else serial.distance(first, last)
        if span < 0:
            raise WireError(INVALID_FIELD, f"a disposition ends at {last}, before it begins at {first}")
        if _says_nothing(disposition):
            return
        deliveries = self._deliveries
        if span < len(deliveries):
            named = [deliveries.get(serial.after(first, step)) for step in range(span + 1)]
        else:  # the range is the peer's to choose, so walk what there is instead
            named = [deliveries[known] for known in deliveries if 0 <= serial.distance(first, known) <= span]
        state, settled = disposition.state, disposition.settled
        for delivery in named:
            if delivery is None or (not settled and delivery.state == state):
                continue
            delivery.state = state
            if settled:
                delivery.is_settled = True
                self.forget(delivery)
            yield delivery


def _says_nothing(disposition: Disposition) -> bool:
    """Whether it has no news of any delivery, however many it names."""
    return disposition.state is None and not disposition.settled
