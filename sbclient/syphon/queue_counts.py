"""Message counts of a backlog queue, as of the last scan."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sbclient.message import ServiceBusMessageState, ServiceBusReceivedMessage


class QueueCounts:
    """Counts of the messages of a queue that are not in flight: those of the last scan, updated since.

    Attributes:
        waiting: messages that can be received.
        parked: deferred messages.
    """

    def __init__(self) -> None:
        self.waiting = 0
        self.parked = 0
        self._oldest_waiting: datetime | None = None
        self._oldest_parked: datetime | None = None

    @property
    def oldest_waiting(self) -> datetime | None:
        """Enqueued time of the oldest waiting message."""
        return self._oldest_waiting if self.waiting else None

    @property
    def oldest_parked(self) -> datetime | None:
        """Enqueued time of the oldest parked message."""
        return self._oldest_parked if self.parked else None

    def add(self, message: ServiceBusReceivedMessage) -> None:
        """Count a message that a scan found."""
        if message.state is ServiceBusMessageState.DEFERRED:
            self.add_parked(message)
        else:
            at = message.enqueued_time_utc
            self.waiting += 1
            self._oldest_waiting = min(self._oldest_waiting or at, at)

    def add_parked(self, message: ServiceBusReceivedMessage) -> None:
        """Count a message that was deferred."""
        at = message.enqueued_time_utc
        self._oldest_parked = min(self._oldest_parked or at, at) if self.parked else at
        self.parked += 1

    def remove_parked(self, count: int) -> None:
        """Remove deferred messages that were received."""
        self.parked = max(self.parked - count, 0)

    def remove_received(self, messages: Sequence[ServiceBusReceivedMessage]) -> None:
        """Remove the messages of one receive; if it returned none, none waits. The remaining ones are younger."""
        self.waiting = max(self.waiting - len(messages), 0) if messages else 0
        if messages and self._oldest_waiting is not None:
            self._oldest_waiting = max(self._oldest_waiting, messages[-1].enqueued_time_utc)
