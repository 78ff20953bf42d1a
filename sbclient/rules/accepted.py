"""Backlog messages that the primary has accepted but that could not be completed. They are not sent again.

A copy is identified by its queue, sequence number and enqueue time. The message id is not used, since ids may repeat.
The sequence number alone is not enough, since it restarts when the queue is deleted and created again.
"""

from __future__ import annotations

from collections import OrderedDict
from datetime import datetime
from typing import Final, TypeAlias

from sbclient.message import ServiceBusReceivedMessage

ACCEPTED_KEPT: Final = 10_000
"""The most copies that are remembered. A copy that was evicted may be sent a second time."""

_Copy: TypeAlias = tuple[str, int, datetime | None]


class AcceptedCopies:
    """The copies known to be both in the primary and in the backlog. Shared by every syphon of a client."""

    def __init__(self) -> None:
        self._copies: OrderedDict[_Copy, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._copies)

    def add(self, queue: str, message: ServiceBusReceivedMessage) -> None:
        """Record that the primary has accepted this copy."""
        self._copies[_copy_of(queue, message)] = None
        while len(self._copies) > ACCEPTED_KEPT:
            self._copies.popitem(last=False)

    def discard(self, queue: str, message: ServiceBusReceivedMessage) -> None:
        """Forget a copy that is no longer in its queue."""
        self._copies.pop(_copy_of(queue, message), None)

    def has(self, queue: str, message: ServiceBusReceivedMessage) -> bool:
        """Return whether the primary has accepted this copy."""
        return _copy_of(queue, message) in self._copies


def _copy_of(queue: str, message: ServiceBusReceivedMessage) -> _Copy:
    return queue, message.sequence_number, message.enqueued_time_utc
