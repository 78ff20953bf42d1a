"""What is known of a backlog queue between two looks at it, for whoever measures."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sbclient.message import ServiceBusMessageState, ServiceBusReceivedMessage


class Sighting:
    """What is known of the messages of a queue that are not in hand: as of the last look, and of what was taken since.

    Attributes:
        waiting, parked: how many.
    """

    def __init__(self) -> None:
        self.waiting = 0
        self.parked = 0
        self._oldest_waiting: datetime | None = None
        self._oldest_parked: datetime | None = None

    @property
    def oldest_waiting(self) -> datetime | None:
        """When the oldest waiting one came."""
        return self._oldest_waiting if self.waiting else None

    @property
    def oldest_parked(self) -> datetime | None:
        """When the oldest parked one came."""
        return self._oldest_parked if self.parked else None

    def sees(self, message: ServiceBusReceivedMessage) -> None:
        """A look came across a message."""
        at = message.enqueued_time_utc
        if message.state is ServiceBusMessageState.DEFERRED:
            self.put_aside(message)
        else:
            self.waiting += 1
            self._oldest_waiting = min(self._oldest_waiting or at, at)

    def put_aside(self, message: ServiceBusReceivedMessage) -> None:
        """A message is parked."""
        at = message.enqueued_time_utc
        self._oldest_parked = min(self._oldest_parked or at, at) if self.parked else at
        self.parked += 1

    def fetched(self, number: int) -> None:
        """So many of the parked ones were taken in hand."""
        self.parked = max(self.parked - number, 0)

    def taken(self, messages: Sequence[ServiceBusReceivedMessage]) -> None:
        """A receive call brought these; if none, then none waits. What is left came after them."""
        self.waiting = max(self.waiting - len(messages), 0) if messages else 0
        if messages and self._oldest_waiting is not None:
            self._oldest_waiting = max(self._oldest_waiting, messages[-1].enqueued_time_utc)
