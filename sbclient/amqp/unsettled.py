"""The unsettled deliveries of a session in one direction."""

from __future__ import annotations

from sbclient.amqp import serial
from sbclient.amqp.delivery import IncomingDelivery, OutgoingDelivery
from sbclient.amqp.errors import INVALID_FIELD, WireError
from sbclient.amqp.link import Link
from sbclient.amqp.performatives import Disposition


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
