"""A stored message: its immutable content and its state in the broker."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Final
from uuid import UUID, SafeUUID

from sbclient.amqp import EncodedMessage
from sbclient.arguments.kinds import MAX_REASON
from sbclient.message import (
    DEAD_LETTER_DESCRIPTION,
    DEAD_LETTER_REASON,
    PropertyValue,
    ServiceBusMessageState,
    ServiceBusReceivedMessage,
)

MAX_DEAD_LETTER_TEXT: Final = MAX_REASON
"""The maximum length of a dead-letter reason or description; more is cut. Source: the client's constants."""

_ACTIVE: Final = ServiceBusMessageState.ACTIVE
_NO_PROPERTIES: Final[Mapping[str, PropertyValue]] = MappingProxyType({})
_CLOCK_GRAIN_S = 1e-5
_new: Final = object.__new__
_set_int: Final = vars(UUID)["int"].__set__
_set_safety: Final = vars(UUID)["is_safe"].__set__
_UNKNOWN_SAFETY: Final = SafeUUID.unknown
_YEAR_10000: Final = 253_402_300_800.0
"""No datetime holds it, and the last one that does is the same number as a float."""


class Entry:
    """One message in one fragment. `token` is 0 while it is not locked.

    Attributes:
        content: the message as it was sent, with an id; never changed.
        size_bytes: of the encoded content.
        number: the sequence number, with the fragment in the top 16 bits on partitioned entities.
        original_number: the sequence number where it was first stored, if it was moved.
        enqueued_at, expires_at, locked_until: seconds; infinity = never.
        delivery_count: failed deliveries so far.
        hops: how often it was forwarded.
        destination: the path to forward the message to, if it was sent via another entity.
        was_scheduled: whether it waited for its scheduled time.
        properties: application properties that receivers have set when they settled it.
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
        "properties",
        "size_bytes",
        "state",
        "token",
        "was_scheduled",
    )

    def __init__(self, content: EncodedMessage, size_bytes: int) -> None:
        self.content = content
        self.size_bytes = size_bytes
        self.number = 0
        self.original_number: int | None = None
        self.enqueued_at = 0.0
        self.expires_at = math.inf
        self.locked_until = math.inf
        self.token = 0
        self.delivery_count = 0
        self.state = _ACTIVE
        self.hops = 0
        self.dead_letter_reason: str | None = None
        self.dead_letter_description: str | None = None
        self.dead_letter_source: str | None = None
        self.destination: str | None = None
        self.was_scheduled = False
        self.properties: Mapping[str, PropertyValue] = _NO_PROPERTIES

    @property
    def first_number(self) -> int:
        """The sequence number where it was first stored: the enqueued sequence number of the service."""
        return self.number if self.original_number is None else self.original_number

    @property
    def is_ready(self) -> bool:
        """Whether it can be received."""
        return not self.token and self.state is _ACTIVE

    @property
    def shown_state(self) -> ServiceBusMessageState:
        """The state that receivers see; the service shows `scheduled` also after the scheduled time."""
        return ServiceBusMessageState.SCHEDULED if self.was_scheduled and self.state is _ACTIVE else self.state

    @property
    def added_properties(self) -> dict[str, PropertyValue]:
        """The application properties that were added since the message was sent."""
        if self.properties is _NO_PROPERTIES and self.dead_letter_reason is None:
            description = self.dead_letter_description
            return {} if description is None else {DEAD_LETTER_DESCRIPTION: description}
        added = dict(self.properties)
        if self.dead_letter_reason is not None:
            added[DEAD_LETTER_REASON] = self.dead_letter_reason
        if self.dead_letter_description is not None:
            added[DEAD_LETTER_DESCRIPTION] = self.dead_letter_description
        return added

    def moved(self) -> Entry:
        """Copy the message for another fragment, which assigns a new sequence number."""
        twin = Entry(self.content, self.size_bytes)
        twin.original_number = self.first_number
        twin.enqueued_at = self.enqueued_at
        twin.delivery_count = self.delivery_count
        twin.hops = self.hops
        twin.dead_letter_reason = self.dead_letter_reason
        twin.dead_letter_description = self.dead_letter_description
        twin.dead_letter_source = self.dead_letter_source
        twin.destination = self.destination
        twin.properties = self.properties
        return twin

    def peeked(self) -> ServiceBusReceivedMessage:
        """The message as peek returns it, without a lock."""
        received = self.received()
        received.lock_token = received.locked_until_utc = None
        return received

    def received(self) -> ServiceBusReceivedMessage:
        """The message as a receiver gets it."""
        is_changed = (
            self.properties is not _NO_PROPERTIES
            or self.dead_letter_reason is not None
            or self.dead_letter_description is not None
        )
        content = self.content.with_added(self.added_properties) if is_changed else self.content
        received = ServiceBusReceivedMessage.of(  # names of arguments would take as long as half of the call
            content,
            self.number,
            utc_datetime(self.enqueued_at),
            self.number if self.original_number is None else self.original_number,
            utc_datetime(self.expires_at) if self.expires_at < _YEAR_10000 else None,
            utc_datetime(self.locked_until) if self.locked_until < math.inf else None,
            uuid_of(self.token) if self.token else None,
            self.delivery_count,
            self.state if not self.was_scheduled else self.shown_state,
            self.dead_letter_source,
        )
        if self.expires_at < _YEAR_10000:
            _limit_ttl(received, self.expires_at - self.enqueued_at)
        return received


def uuid_of(number: int) -> UUID:
    """Return `UUID(int=number)`, whose checks take a microsecond, for a number of this broker."""
    made = _new(UUID)
    _set_int(made, number)
    _set_safety(made, _UNKNOWN_SAFETY)
    return made


def _limit_ttl(received: ServiceBusReceivedMessage, ttl_s: float) -> None:
    """Show the time to live as limited by the entity or topic."""
    sent = received.time_to_live
    if sent is None or sent.total_seconds() > ttl_s + _CLOCK_GRAIN_S:
        received.time_to_live = timedelta(seconds=round(ttl_s, 3))


def utc_datetime(at: float) -> datetime:
    """Convert seconds since 1970 to a datetime in UTC."""
    return datetime.fromtimestamp(at, UTC)


WORK_AT_ONCE: Final = 10_000
"""The steps of `broker.sql` that one call takes for a selector, and those of the last message: about 2 ms."""
_REJECTED_MORE: Final = 1_000
_SKIPPED_IN_A_STEP: Final = 2


class Selector:
    """Which messages one receiver takes. A call does a limited amount of work, and the next one goes on.

    What a selector reads of a message does not change, so that a message is looked at once.

    Args:
        matches: whether the receiver takes a message, and the steps that it took to find that out.

    Attributes:
        is_unfinished: whether the call ended before it had looked at all messages.
    """

    __slots__ = ("_left", "_rejected", "is_unfinished", "matches")

    def __init__(self, matches: Callable[[Entry], tuple[bool, int]]) -> None:
        self.matches = matches
        self.is_unfinished = False
        self._left = WORK_AT_ONCE
        self._rejected: set[int] = set()

    def start_call(self, message_count: int) -> None:
        """Start a call on an entity with that many messages."""
        self._left, self.is_unfinished = WORK_AT_ONCE, False
        if len(self._rejected) > 2 * message_count + _REJECTED_MORE:  # most are of messages that have gone
            self._rejected.clear()

    def first(self, numbers: Iterable[int], entries: Mapping[int, Entry]) -> Entry | None:
        """Return the first message that matches; None if there is none, or if the call must end before it is found."""
        rejected = self._rejected
        for number in numbers:
            if number in rejected or (entry := entries.get(number)) is None:
                continue
            if self._left <= 0:
                self.is_unfinished = True
                return None
            is_match, steps = self.matches(entry)
            self._left -= steps
            if is_match:
                self._left -= len(rejected) // _SKIPPED_IN_A_STEP  # the search for the next one skips them again
                return entry
            rejected.add(number)
        return None
