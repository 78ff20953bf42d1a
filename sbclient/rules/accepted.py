"""Copies in the backlog that the primary has, but whose completion failed: they are completed and not sent again.

A copy is known by its queue, its sequence number and the moment it came there. Never by its message id, which may
legally repeat; and not by the number alone, which begins anew when somebody deletes the queue and makes it again.
"""

from __future__ import annotations

from collections import OrderedDict
from datetime import datetime
from typing import Final, TypeAlias

from sbclient.message import ServiceBusReceivedMessage

ACCEPTED_KEPT: Final = 10_000
"""How many are remembered; of the oldest a second copy may be sent."""

_Copy: TypeAlias = tuple[str, int, datetime | None]


class AcceptedCopies:
    """What the primary accepted and the backlog still holds, as far as is known; shared by every syphon of a client."""

    def __init__(self) -> None:
        self._copies: OrderedDict[_Copy, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._copies)

    def add(self, queue: str, message: ServiceBusReceivedMessage) -> None:
        """The primary has this copy."""
        self._copies[_copy_of(queue, message)] = None
        while len(self._copies) > ACCEPTED_KEPT:
            self._copies.popitem(last=False)

    def discard(self, queue: str, message: ServiceBusReceivedMessage) -> None:
        """The copy is gone from its queue."""
        self._copies.pop(_copy_of(queue, message), None)

    def has(self, queue: str, message: ServiceBusReceivedMessage) -> bool:
        """Whether the primary has this very copy."""
        return _copy_of(queue, message) in self._copies


def _copy_of(queue: str, message: ServiceBusReceivedMessage) -> _Copy:
    return queue, message.sequence_number, message.enqueued_time_utc
