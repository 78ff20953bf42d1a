"""The messages of one partition by their numbers, and those that wait for their time.

Laws (source: documented):

1. Sequence numbers rise by one with each stored message. On a partitioned entity the top 16 bits name the fragment.
2. A scheduled message has a number for as long as it waits; when its time comes it is stored with a new one.
3. A life begins when the message is stored, and no message outlives the entity's longest life.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final

from sortedcontainers import SortedDict

from sbclient.broker.deadlines import Deadlines
from sbclient.broker.deduplication import DuplicateWindow, Identity
from sbclient.broker.entry import Entry
from sbclient.broker.policy import Policy, Usage
from sbclient.errors import MessageNotFoundError, ServiceBusQuotaExceededError
from sbclient.message import ServiceBusMessageState

COUNTER_BITS: Final = 48
_COUNTER_MASK: Final = (1 << COUNTER_BITS) - 1

_ACTIVE, _SCHEDULED = ServiceBusMessageState.ACTIVE, ServiceBusMessageState.SCHEDULED


class Storage(ABC):
    """What one partition keeps, whether or not anybody receives from it.

    Args:
        index: of the fragment; 0 on plain entities.
        path: of the entity, for errors.
        policy: shared by the fragments of the entity.
        usage: the bytes held here, shared with what lies behind.

    Attributes:
        seen: the ids of the messages that arrived lately.
        scheduled_count: messages that wait for their time.
        arrived_count: messages that ever came here; a scheduled one counts once.
        size_bytes: of all messages here.
    """

    def __init__(self, index: int, path: str, policy: Policy, usage: Usage) -> None:
        self.index = index
        self.path = path
        self.policy = policy
        self.usage = usage
        self.seen = DuplicateWindow()
        self.scheduled_count = 0
        self.arrived_count = 0
        self.size_bytes = 0
        self._counter = 0
        self._entries: SortedDict = SortedDict()
        self._schedule: Deadlines[int] = Deadlines()

    def __len__(self) -> int:
        """Messages in every state."""
        return len(self._entries)

    def __contains__(self, number: int) -> bool:
        return number in self._entries

    def has_room(self, size_bytes: int) -> bool:
        return self.usage.size_bytes + size_bytes <= self.policy.max_size_bytes

    def check_room(self, size_bytes: int) -> None:
        """
        Raises:
            ServiceBusQuotaExceededError: so many bytes more do not fit.
        """
        if not self.has_room(size_bytes):
            raise self.fullness(size_bytes)

    def fullness(self, size_bytes: int) -> ServiceBusQuotaExceededError:
        """What is said to who brings so many bytes too many."""
        return ServiceBusQuotaExceededError(
            f"{self.path} holds {self.usage.size_bytes} bytes in fragment {self.index} and {size_bytes} more "
            f"exceed its maximum of {self.policy.max_size_bytes}: receive messages, or make the entity larger"
        )

    def append(self, entry: Entry, now: float) -> None:
        """Store a message at the end."""
        self.advance(now)
        self.arrived_count += 1
        self._store(entry, now)

    def is_duplicate(self, identity: Identity | None, now: float) -> bool:
        """Whether a copy of the message arrived within the window; if not, this one is remembered."""
        if identity is None or not self.policy.requires_duplicate_detection:
            return False
        if self.seen.is_known(identity, now, self.policy.duplicate_window_s):
            return True
        self.seen.remember(identity, now)
        return False

    def next_number(self) -> int:
        """A number that nobody else will have."""
        self._counter = (self._counter + 1) & _COUNTER_MASK
        return self.index << COUNTER_BITS | self._counter

    def schedule(self, entry: Entry, number: int, at: float, now: float) -> None:
        """Keep a message, under a number from `next_number`, until its time comes; then it counts as enqueued anew."""
        entry.state = _SCHEDULED
        entry.enqueued_at = now
        self.scheduled_count += 1
        self.arrived_count += 1
        self._insert(entry, number)
        self._schedule.set(number, at)

    def check_scheduled(self, number: int, now: float) -> None:
        """
        Raises:
            MessageNotFoundError: no message waits under that number.
        """
        self.advance(now)
        entry = self._entries.get(number)
        if entry is None or entry.state is not _SCHEDULED:
            raise MessageNotFoundError(
                f"{self.path} has no scheduled message {number}: it was cancelled, or enqueued under a new number"
            )

    def cancel(self, number: int) -> None:
        """Drop a scheduled message."""
        self._schedule.drop(number)
        self._remove(self._entries[number])

    def _activate(self, number: int, at: float) -> None:
        entry = self._entries[number]
        self._remove(entry)
        entry.state = _ACTIVE
        self._store(entry, at)

    @abstractmethod
    def advance(self, now: float) -> None:
        """Let everything happen whose time has come."""

    @abstractmethod
    def _store(self, entry: Entry, at: float) -> None:
        """Keep a message whose time has come."""

    def _activate_due(self, now: float) -> None:
        while (due := self._schedule.pop_due(now)) is not None:
            self._activate(*due)

    def _begin_life(self, entry: Entry) -> None:
        life, ceiling_s = entry.content.time_to_live, self.policy.default_life_s
        life_s = ceiling_s if life is None else min(life.total_seconds(), ceiling_s)
        entry.expires_at = min(entry.expires_at, entry.enqueued_at + life_s)

    def _insert(self, entry: Entry, number: int) -> None:
        entry.number = number
        self._entries[number] = entry
        self.size_bytes += entry.size_bytes
        self.usage.size_bytes += entry.size_bytes

    def _remove(self, entry: Entry) -> None:
        del self._entries[entry.number]
        self.size_bytes -= entry.size_bytes
        self.usage.size_bytes -= entry.size_bytes
        if entry.state is _SCHEDULED:
            self.scheduled_count -= 1
