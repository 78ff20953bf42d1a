"""The unsettled deliveries of a session in one direction."""

from __future__ import annotations

from collections.abc import Iterator

from sbclient.amqp import serial
from sbclient.amqp.delivery import IncomingDelivery, OutgoingDelivery
from sbclient.amqp.errors import INVALID_FIELD, WireError
from sbclient.amqp.link import Link
from sbclient.amqp.performatives import Disposition


class Unsettled:
    """Deliveries by id, here and on their links.

    A repeated id replaces the earlier delivery: the SDK's sender reuses ids for different messages.
    """

    def __init__(self) -> None:
        self._deliveries: dict[int, OutgoingDelivery | IncomingDelivery] = {}

    def __len__(self) -> int:
        return len(self._deliveries)

    def add(self, delivery: OutgoingDelivery | IncomingDelivery) -> None:
        """Add a delivery."""
        delivery_id = delivery.delivery_id
        self._deliveries[delivery_id] = delivery.link.unsettled[delivery_id] = delivery

    def forget(self, delivery: OutgoingDelivery | IncomingDelivery) -> None:
        """Remove a delivery here and on its link."""
        delivery_id = delivery.delivery_id
        if self._deliveries.get(delivery_id) is delivery:
            del self._deliveries[delivery_id]
        if delivery.link.unsettled.get(delivery_id) is delivery:
            del delivery.link.unsettled[delivery_id]

    def forget_link(self, link: Link) -> None:
        """Remove the deliveries of a link here; the link keeps them for its owner."""
        for delivery_id, delivery in link.unsettled.items():
            if self._deliveries.get(delivery_id) is delivery:
                del self._deliveries[delivery_id]

    def clear(self) -> None:
        """Remove all deliveries here; their links keep them for their owners."""
        self._deliveries.clear()

    def reach(self, disposition: Disposition) -> int:
        """The maximum number of deliveries to look at for a disposition."""
        if _changes_nothing(disposition):
            return 0
        last = disposition.last
        steps = 0 if last is None else serial.distance(disposition.first, last)
        return min(steps + 1, len(self._deliveries))

    def touched(self, disposition: Disposition) -> Iterator[OutgoingDelivery | IncomingDelivery]:
        """Apply a disposition, and yield the deliveries that it changes; settled ones are removed.

        Raises:
            WireError: its range is reversed.
        """
        first, last = disposition.first, disposition.last
        steps = 0 if last is None else serial.distance(first, last)
        if steps < 0:
            raise WireError(INVALID_FIELD, f"a disposition names the reversed range {first} to {last}")
        if _changes_nothing(disposition):
            return
        deliveries = self._deliveries
        if steps < len(deliveries):
            named = [deliveries.get(serial.after(first, step)) for step in range(steps + 1)]
        else:  # the peer chooses the range, so iterate over the deliveries instead
            named = [deliveries[known] for known in deliveries if 0 <= serial.distance(first, known) <= steps]
        state, settled = disposition.state, disposition.settled
        for delivery in named:
            if delivery is None or (not settled and delivery.state == state):
                continue
            delivery.state = state
            if settled:
                delivery.is_settled = True
                self.forget(delivery)
            yield delivery


def _changes_nothing(disposition: Disposition) -> bool:
    """Whether a disposition has neither a state nor settles."""
    return disposition.state is None and not disposition.settled
