"""Backlog messages that the primary has accepted but that could not be completed at once. They are not sent again.

A copy is identified by its queue, sequence number and enqueue time. The message id is not used, since ids may repeat.
The sequence number alone is not enough, since it restarts when the queue is deleted and created again.
"""

from __future__ import annotations

from collections import OrderedDict
from operator import attrgetter
from typing import Any, Final

from sbclient.message import ServiceBusReceivedMessage

ACCEPTED_KEPT: Final = 10_000
"""The most copies that are remembered. A copy that was evicted may be sent a second time."""

_copy_of = attrgetter("sequence_number", "enqueued_time_utc")


class AcceptedCopies:
    """Shared by every syphon of a client.

    A copy that was delivered again is kept after its completion: another drain may still hold an earlier delivery.
    """

    def __init__(self) -> None:
        self._copies: OrderedDict[tuple[str, Any], None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._copies)

    def add(self, queue: str, message: ServiceBusReceivedMessage) -> None:
        """Record that the primary has accepted this copy."""
        self._copies[queue, _copy_of(message)] = None
        while len(self._copies) > ACCEPTED_KEPT:
            self._copies.popitem(last=False)

    def discard(self, queue: str, message: ServiceBusReceivedMessage) -> None:
        """Forget a copy that is no longer in its queue."""
        self._copies.pop((queue, _copy_of(message)), None)

    def has(self, queue: str, message: ServiceBusReceivedMessage) -> bool:
        """Return whether the primary has accepted this copy."""
        return (queue, _copy_of(message)) in self._copies
