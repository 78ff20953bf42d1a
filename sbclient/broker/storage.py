"""The messages of one partition by sequence number, including scheduled messages.

Rules (source: documented):

1. Sequence numbers rise by one with each stored message. On a partitioned entity the top 16 bits are the fragment.
2. A scheduled message has a sequence number while it waits. At its time it is stored with a new one.
3. The time to live starts when the message is stored. The entity's time to live is the upper limit.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final, TypeAlias

from sbclient.broker.changes import FragmentLog
from sbclient.broker.deadlines import Deadlines, Earliest
from sbclient.broker.deduplication import DuplicateWindow, Identity
from sbclient.broker.entry import Entry
from sbclient.broker.ordered_numbers import OrderedNumbers
from sbclient.broker.policy import Policy, Usage
from sbclient.errors import MessageNotFoundError, ServiceBusQuotaExceededError
from sbclient.message import ServiceBusMessageState
from sbclient.rules.sequence_number import COUNTER_BITS

_COUNTER_MASK: Final = (1 << COUNTER_BITS) - 1

Copies: TypeAlias = "Sequence[tuple[Storage, Entry]]"
"""The copies of a message that are stored instead of it, with their fragments; empty if it is stored itself."""

_ACTIVE, _SCHEDULED = ServiceBusMessageState.ACTIVE, ServiceBusMessageState.SCHEDULED


def not_found(numbers: Sequence[int], reason: str) -> MessageNotFoundError:
    """Return the error for messages that do not exist, in the words of the service (seen), with the reason."""
    return MessageNotFoundError(
        f"Messages not found. Missing sequence numbers: {', '.join(map(str, numbers))}. {reason}"
    )


class Storage(ABC):
    """The storage of one partition.

    Args:
        index: of the fragment; 0 on plain entities.
        path: of the entity, for errors.
        policy: shared by the fragments of the entity.
        usage: the bytes in this fragment, shared with its sub-queues.

    Attributes:
        seen: the ids in the duplicate detection window.
        scheduled_count: scheduled messages.
        arrived_count: messages that were ever stored; a scheduled message counts once.
        size_bytes: of all messages.
        log: notes changes; None = they are not recorded.
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
        self.counter = 0
        self.log: FragmentLog | None = None
        self._entries: dict[int, Entry] = {}
        self._numbers = OrderedNumbers(self._entries)
        self._earliest = Earliest()
        self._schedule: Deadlines[int] = Deadlines(self._earliest)

    def __len__(self) -> int:
        """Messages in every state."""
        return len(self._entries)

    def __contains__(self, number: int) -> bool:
        return number in self._entries

    def get(self, number: int) -> Entry | None:
        """The message with a number, without applying timed changes; None if there is none."""
        return self._entries.get(number)

    def has_room(self, size_bytes: int) -> bool:
        return self.usage.size_bytes + size_bytes <= self.policy.max_size_bytes

    def accepts(self, size_bytes: int, *, is_ping: bool) -> bool:
        """Whether there is room for a transfer.

        A ping needs as much room as the transfers that were refused: else it would fit into a gap that is too small for
        messages, and a full entity would seem to accept them.
        """
        if not is_ping:
            return self.has_room(size_bytes)
        is_accepted = self.has_room(max(size_bytes, self.usage.refused_bytes))
        if is_accepted:
            self.usage.refused_bytes = 0
        return is_accepted

    def check_room(self, size_bytes: int, is_ping: bool = False) -> None:
        """Check that there is room; see `accepts`.

        Raises:
            ServiceBusQuotaExceededError: there is not.
        """
        has_room = self.accepts(size_bytes, is_ping=True) if is_ping else self.has_room(size_bytes)
        if not has_room:
            raise self.refusal(size_bytes)

    def refusal(self, size_bytes: int) -> ServiceBusQuotaExceededError:
        """Return the error for bytes that do not fit, and note their number."""
        self.usage.refused_bytes = max(self.usage.refused_bytes, size_bytes)
        return ServiceBusQuotaExceededError(
            "The maximum entity size has been reached or exceeded. "
            f"{self.path} holds {self.usage.size_bytes} bytes in fragment {self.index} and {size_bytes} more "
            f"exceed its maximum of {self.policy.max_size_bytes}: receive messages, or make the entity larger"
        )

    def append(self, entry: Entry, now: float) -> None:
        """Store a message at the end, or nothing if that fails."""
        self.advance(now)
        self.put(entry, self.decide(entry, now))

    def put(self, entry: Entry, copies: Copies) -> None:
        """Store a message at the end, as `decide` says; cannot fail."""
        self.arrived_count += 1
        self._store(entry, copies)

    def is_known(self, identity: Identity, now: float) -> bool:
        """Whether a copy of the message arrived within the window."""
        return self.seen.is_known(identity, now, self.policy.duplicate_window_s)

    def mark(self) -> None:
        """Note that the fragment is about to change."""
        if self.log is not None:
            self.log.mark()

    def is_duplicate(self, identity: Identity, now: float) -> bool:
        """Whether a copy of the message arrived within the window; if not, add this one."""
        if self.is_known(identity, now):
            return True
        if self.log is not None:
            self.log.remember(identity, now)
        self.seen.remember(identity, now)
        return False

    def next_number(self) -> int:
        """Return a new sequence number."""
        if self.log is not None:
            self.log.mark()
        self.counter = (self.counter + 1) & _COUNTER_MASK
        return self.index << COUNTER_BITS | self.counter

    def schedule(self, entry: Entry, number: int, at: float, now: float) -> None:
        """Store a scheduled message under a number from `next_number`; at its time it is enqueued again."""
        entry.content = entry.content.undecoded()  # it waits for long
        entry.state = _SCHEDULED
        entry.enqueued_at = now
        self.arrived_count += 1
        self._insert(entry, number)
        self._schedule.set(number, at)

    def check_scheduled(self, numbers: Sequence[int], now: float) -> None:
        """Check that scheduled messages exist.

        Raises:
            MessageNotFoundError: one does not.
        """
        self.advance(now)
        missing = []
        for number in numbers:
            entry = self._entries.get(number)
            if entry is None or entry.state is not _SCHEDULED:
                missing.append(number)
        if missing:
            raise not_found(
                missing, f"{self.path} has no such scheduled message: it was cancelled, or enqueued under a new number"
            )

    def cancel(self, number: int) -> None:
        """Delete a scheduled message."""
        self.mark()
        self._schedule.drop(number)
        self._remove(self._entries[number])

    def _activate(self, number: int, at: float) -> None:
        entry = self._entries[number]
        before = entry.enqueued_at, entry.expires_at
        try:
            entry.was_scheduled = True
            copies = self.decide(entry, at)
        except BaseException:
            entry.was_scheduled, entry.number = False, number
            entry.enqueued_at, entry.expires_at = before
            self._schedule.set(number, at)
            raise
        self._remove(entry, number)
        entry.state = _ACTIVE
        self._store(entry, copies)

    @abstractmethod
    def advance(self, now: float) -> None:
        """Apply all timed changes that are due."""

    @abstractmethod
    def decide(self, entry: Entry, at: float) -> Copies:
        """Set what a message has from its arrival on; return the copies that are stored instead of it.

        What can fail does so here, before anything is stored.
        """

    @abstractmethod
    def _store(self, entry: Entry, copies: Copies) -> None:
        """Enqueue a message as `decide` says."""

    def _activate_due(self, now: float) -> None:
        while (due := self._schedule.pop_due(now)) is not None:
            self._activate(*due)

    def _set_expiry(self, entry: Entry) -> None:
        time_to_live, max_s = entry.content.time_to_live, self.policy.default_ttl_s
        ttl_s = max_s if time_to_live is None else min(time_to_live.total_seconds(), max_s)
        if ttl_s < math.inf:
            entry.expires_at = min(entry.expires_at, entry.enqueued_at + ttl_s)

    def _insert(self, entry: Entry, number: int) -> None:
        if self.log is not None:
            self.log.change(number)
        entry.number = number
        self._entries[number] = entry
        self._numbers.add(number)
        self.size_bytes += entry.size_bytes
        self.usage.size_bytes += entry.size_bytes
        if entry.state is _SCHEDULED:
            self.scheduled_count += 1

    def _remove(self, entry: Entry, number: int | None = None) -> None:
        """Delete a message; `number` is its own unless `decide` has set another one."""
        number = entry.number if number is None else number
        if self.log is not None:
            self.log.change(number)
        del self._entries[number]
        self._numbers.removed()
        self.size_bytes -= entry.size_bytes
        self.usage.size_bytes -= entry.size_bytes
        if entry.state is _SCHEDULED:
            self.scheduled_count -= 1
