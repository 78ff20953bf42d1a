"""A stored message: its unchanging content and where it stands."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

from sbclient.message import (
    DEAD_LETTER_DESCRIPTION,
    DEAD_LETTER_REASON,
    ServiceBusMessage,
    ServiceBusMessageState,
    ServiceBusReceivedMessage,
)

MAX_DEAD_LETTER_TEXT: Final = 4096
"""Characters of a dead-letter reason or description; more are cut. Source: the client's constants."""

_CLOCK_GRAIN_S = 1e-5
_LAST_MOMENT = datetime.max.replace(tzinfo=UTC).timestamp()


class Entry:
    """One message in one fragment. `token` is 0 while nobody holds it.

    Attributes:
        content: as it was sent, never changed.
        size_bytes: of the encoded content.
        number: the sequence number, with the fragment in the top 16 bits on partitioned entities.
        original_number: what it had where it was first stored, if it was moved since.
        enqueued_at, expires_at, locked_until: seconds; infinity = never.
        delivery_count: failed deliveries so far.
        hops: how often it was forwarded.
        destination: the path it waits to be transferred to, on messages sent by way of another entity.
    """

    __slots__ = (
        "content",
        "dead_letter_description",
        "dead_letter_reason",
        "dead_letter_source",
        "delivery_count",
        "destination",
        "enqueued_at",
        "expires_at",
        "hops",
        "locked_until",
        "number",
        "original_number",
        "size_bytes",
        "state",
        "token",
    )

    def __init__(self, content: ServiceBusMessage, size_bytes: int) -> None:
        self.content = content
        self.size_bytes = size_bytes
        self.number = 0
        self.original_number: int | None = None
        self.enqueued_at = 0.0
        self.expires_at = math.inf
        self.locked_until = math.inf
        self.token = 0
        self.delivery_count = 0
        self.state = ServiceBusMessageState.ACTIVE
        self.hops = 0
        self.dead_letter_reason: str | None = None
        self.dead_letter_description: str | None = None
        self.dead_letter_source: str | None = None
        self.destination: str | None = None

    @property
    def is_ready(self) -> bool:
        """Whether a receiver may take it."""
        return not self.token and self.state is ServiceBusMessageState.ACTIVE

    def moved(self) -> Entry:
        """The same message for another store, which gives it a new number."""
        twin = Entry(self.content, self.size_bytes)
        twin.original_number = self.number if self.original_number is None else self.original_number
        twin.enqueued_at = self.enqueued_at
        twin.delivery_count = self.delivery_count
        twin.hops = self.hops
        twin.dead_letter_reason = self.dead_letter_reason
        twin.dead_letter_description = self.dead_letter_description
        twin.dead_letter_source = self.dead_letter_source
        twin.destination = self.destination
        return twin

    def peeked(self) -> ServiceBusReceivedMessage:
        """What a browser is given: as a receiver, but without a lock."""
        received = self.received()
        received.lock_token = received.locked_until_utc = None
        return received

    def received(self) -> ServiceBusReceivedMessage:
        """What a receiver is given."""
        received = ServiceBusReceivedMessage.of(
            self.content,
            sequence_number=self.number,
            enqueued_sequence_number=self.original_number,
            enqueued_time_utc=moment(self.enqueued_at),
            expires_at_utc=None if self.expires_at > _LAST_MOMENT else moment(self.expires_at),
            locked_until_utc=moment(self.locked_until) if self.locked_until < math.inf else None,
            lock_token=UUID(int=self.token) if self.token else None,
            delivery_count=self.delivery_count,
            state=self.state,
            dead_letter_source=self.dead_letter_source,
        )
        if self.expires_at <= _LAST_MOMENT:
            _cut_life(received, self.expires_at - self.enqueued_at)
        if self.dead_letter_reason is not None:
            received.application_properties[DEAD_LETTER_REASON] = self.dead_letter_reason
        if self.dead_letter_description is not None:
            received.application_properties[DEAD_LETTER_DESCRIPTION] = self.dead_letter_description
        return received


def _cut_life(received: ServiceBusReceivedMessage, life_s: float) -> None:
    """A life that the entity or the topic has cut shows as what is left of it."""
    asked = received.time_to_live
    if asked is None or asked.total_seconds() > life_s + _CLOCK_GRAIN_S:
        received.time_to_live = timedelta(seconds=round(life_s, 3))


def moment(at: float) -> datetime:
    """A float of seconds since 1970 as the moment that messages carry."""
    return datetime.fromtimestamp(at, UTC)
