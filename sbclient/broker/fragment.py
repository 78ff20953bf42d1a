"""One partition of an entity: its messages in order, who holds them, when they come and go.

Laws (source: documented, unless said otherwise):

1. Sequence numbers rise by one with each stored message. On a partitioned entity the top 16 bits name the fragment.
2. A scheduled message has a number for as long as it waits; when its time comes it is stored with a new one.
3. What is abandoned, or whose lock ended, comes back in its old place, with one more failed delivery. After
   `max_delivery_count` of them it is dead-lettered. What is released comes back without one.
4. Expiry is noticed when somebody looks. A message that somebody holds does not expire until it comes back; a deferred
   one not until somebody asks for it.
5. Behind a dead-letter queue there is no other: nothing expires, is dead-lettered, or is received by session.

Every operation costs O(1) or O(log n) in the number of messages, sessions and remembered ids.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from random import Random
from typing import Final, TypeAlias

from sortedcontainers import SortedDict

from sbclient.broker.deadlines import Deadlines
from sbclient.broker.deduplication import DuplicateWindow, Identity
from sbclient.broker.entry import MAX_DEAD_LETTER_TEXT, Entry
from sbclient.broker.policy import Policy, Usage
from sbclient.broker.session import Session, SessionLock, Sessions
from sbclient.errors import (
    MessageLockLostError,
    MessageNotFoundError,
    MessageSizeExceededError,
    ServiceBusQuotaExceededError,
    SessionCannotBeLockedError,
    SessionLockLostError,
)
from sbclient.message import ServiceBusMessage, ServiceBusMessageState
from sbclient.transport.base import NEXT_AVAILABLE_SESSION, ServiceBusSessionFilter, Settlement, SettleMode

Ring: TypeAlias = Callable[[str | ServiceBusSessionFilter | None], None]
"""Told of each message that can be received: the held session it belongs to, "next available" for a free session, or
None where there are no sessions."""

COUNTER_BITS: Final = 48
_COUNTER_MASK: Final = (1 << COUNTER_BITS) - 1
TOKEN_FRAGMENT_BITS: Final = 16
"""The low bits of a lock token name the fragment, so that it is found without a table."""

_ACTIVE, _DEFERRED, _SCHEDULED = (
    ServiceBusMessageState.ACTIVE,
    ServiceBusMessageState.DEFERRED,
    ServiceBusMessageState.SCHEDULED,
)

TTL_EXPIRED: Final = "TTLExpiredException"
MAX_DELIVERIES_EXCEEDED: Final = "MaxDeliveryCountExceeded"


class Fragment:
    """One partition of one queue, subscription, topic or dead-letter queue.

    Args:
        index: 0 on plain entities.
        path: of the entity, for errors.
        policy: shared by the fragments of the entity.
        usage: the bytes held here, shared with what lies behind.
        random: for lock tokens.
        ring: told of messages that can be received.
        dead_letters: the fragment of the dead-letter queue; None = this is one.
    """

    def __init__(
        self,
        index: int,
        path: str,
        policy: Policy,
        usage: Usage,
        random: Random,
        ring: Ring,
        dead_letters: Fragment | None,
    ) -> None:
        self.index = index
        self.path = path
        self.policy = policy
        self.usage = usage
        self.dead_letters = dead_letters
        self.seen = DuplicateWindow()
        self.scheduled_count = 0
        self.size_bytes = 0
        self._random = random
        self._ring = ring
        self._counter = 0
        self._entries: SortedDict = SortedDict()
        self._fresh: deque[int] = deque()
        self._returned: list[int] = []
        self._sessions = Sessions(self._entries)
        self._locks: dict[int, Entry] = {}
        self._cached: dict[int, None] = {}
        self._lock_ends: Deadlines[int] = Deadlines()
        self._lives: Deadlines[int] = Deadlines()
        self._schedule: Deadlines[int] = Deadlines()

    # ------------------------------------------------------------------ what there is

    def __len__(self) -> int:
        """Messages in every state."""
        return len(self._entries)

    @property
    def has_sessions(self) -> bool:
        return self.policy.requires_session and self.dead_letters is not None

    @property
    def session_count(self) -> int:
        return len(self._sessions)

    def session_ids(self, now: float, *, state_set_after: float | None) -> list[str]:
        """Sessions with messages or, if a moment is given, those whose state was set after it; by id."""
        self.advance(now)
        return self._sessions.ids(state_set_after=state_set_after)

    def browse(self, now: float, from_number: int, session_id: str | None = None) -> Iterator[Entry]:
        """The messages from a number on, in order, without taking them."""
        self.advance(now)
        if session_id is not None:
            return self._sessions.browse(session_id, from_number)
        return (self._entries[number] for number in self._entries.irange(minimum=from_number))

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

    # ------------------------------------------------------------------ time

    def next_change_at(self) -> float:
        """When something happens here by time alone; infinity if nothing will."""
        return min(
            self._lock_ends.next_at(),
            self._sessions.lock_ends.next_at(),
            self._schedule.next_at(),
            self._lives.next_at(),
        )

    def advance(self, now: float) -> None:
        """Let everything happen whose time has come."""
        if now < self.next_change_at():
            return
        while (due := self._schedule.pop_due(now)) is not None:
            self._activate(*due)
        while (ended := self._sessions.lock_ends.pop_due(now)) is not None:
            self._end_session(ended[0], ended[1], is_failed=True)
        while (due := self._lock_ends.pop_due(now)) is not None:
            self._come_back(self._locks[due[0]], due[1], is_failed=due[0] not in self._cached)
        while (due := self._lives.pop_due(now)) is not None:
            entry = self._entries[due[0]]
            if entry.is_ready:
                self._expire_ready(entry)

    # ------------------------------------------------------------------ messages come

    def append(self, entry: Entry, now: float) -> None:
        """Store a message at the end."""
        self.advance(now)
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

    def schedule(self, entry: Entry, number: int, at: float) -> None:
        """Keep a message, under a number from `next_number`, until its time comes."""
        entry.state = _SCHEDULED
        self.scheduled_count += 1
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

    def _store(self, entry: Entry, at: float) -> None:
        if self.dead_letters is not None:
            entry.enqueued_at = at
            self._begin_life(entry)
        self._insert(entry, self.next_number())
        self._make_ready(entry, is_fresh=True)

    def _begin_life(self, entry: Entry) -> None:
        life, ceiling_s = entry.content.time_to_live, self.policy.default_life_s
        life_s = ceiling_s if life is None else min(life.total_seconds(), ceiling_s)
        entry.expires_at = min(entry.expires_at, entry.enqueued_at + life_s)

    def _insert(self, entry: Entry, number: int) -> None:
        entry.number = number
        self._entries[number] = entry
        self.size_bytes += entry.size_bytes
        self.usage.size_bytes += entry.size_bytes
        if self.has_sessions:
            self._sessions.add(session_of(entry.content), number)
        if entry.expires_at < math.inf:
            self._lives.set(number, entry.expires_at)

    def _remove(self, entry: Entry) -> None:
        del self._entries[entry.number]
        self.size_bytes -= entry.size_bytes
        self.usage.size_bytes -= entry.size_bytes
        if entry.state is _SCHEDULED:
            self.scheduled_count -= 1
        if self.has_sessions:
            self._sessions.remove(session_of(entry.content))
        self._lives.drop(entry.number)

    def _make_ready(self, entry: Entry, *, is_fresh: bool) -> None:
        if self.has_sessions:
            session_id = session_of(entry.content)
            is_held = self._sessions.make_ready(session_id, entry.number)
            self._ring(session_id if is_held else NEXT_AVAILABLE_SESSION)
            return
        if is_fresh:
            self._fresh.append(entry.number)
        else:
            heappush(self._returned, entry.number)
        self._ring(None)

    # ------------------------------------------------------------------ messages are taken

    def take(self, now: float, lock: SessionLock | None = None, *, delete: bool = False) -> Entry | None:
        """The next message that can be received, locked or, if asked, gone from here; None if there is none."""
        entry = self._pop_ready(now, lock)
        if entry is not None:
            self._give(entry, now, delete=delete)
        return entry

    def take_for_cache(self, now: float) -> Entry | None:
        """As `take`, for a front end that keeps the message until somebody asks: no delivery has begun."""
        entry = self.take(now)
        if entry is not None:
            self._cached[entry.token] = None
        return entry

    def take_from_cache(self, token: int, now: float, *, delete: bool) -> Entry | None:
        """A message that a front end has kept is delivered; None if its lock has ended meanwhile."""
        self.advance(now)
        if token not in self._cached:
            return None
        del self._cached[token]
        entry = self._locks[token]
        if delete:
            self.remove(entry)
        return entry

    def check_deferred(self, number: int, now: float, lock: SessionLock | None) -> Entry:
        """
        Returns: a deferred message that nobody holds.

        Raises:
            MessageNotFoundError: there is none with that number, in this session; or it has just expired.
        """
        self.advance(now)
        entry: Entry | None = self._entries.get(number)
        if entry is not None and entry.state is _DEFERRED and not entry.token:
            if entry.expires_at <= now:
                self._expire(entry)
            elif lock is None or session_of(entry.content) == lock.session_id:
                return entry
        raise MessageNotFoundError(
            f"{self.path} has no deferred message {number} to give: it does not exist, was not deferred, has expired "
            "or is held by somebody"
        )

    def take_deferred(self, entry: Entry, now: float, *, delete: bool) -> None:
        """Lock a message from `check_deferred`, or let it go."""
        self._give(entry, now, delete=delete)

    def _give(self, entry: Entry, now: float, *, delete: bool) -> None:
        if delete:
            self._remove(entry)
        else:
            self._lock(entry, now)

    def _pop_ready(self, now: float, lock: SessionLock | None) -> Entry | None:
        if lock is not None:
            self.advance(now)
            return self._sessions.take(self.check_session(lock))
        entry = self.head(now)
        if entry is not None:
            self._pop_number()
        return entry

    def head(self, now: float) -> Entry | None:
        """The next message that can be received without a session, left where it is."""
        self.advance(now)
        while self._returned or self._fresh:
            number = self._returned[0] if self._returned else self._fresh[0]
            entry: Entry | None = self._entries.get(number)
            if entry is not None:
                return entry
            self._pop_number()
        return None

    def _pop_number(self) -> None:
        if self._returned:
            heappop(self._returned)
        else:
            self._fresh.popleft()

    def _lock(self, entry: Entry, now: float) -> None:
        entry.token = token = self._new_token()
        self._locks[token] = entry
        session = self._sessions.get(session_of(entry.content)) if self.has_sessions else None
        if session is not None:
            session.held[token] = None
        else:
            entry.locked_until = now + self.policy.lock_duration_s
            self._lock_ends.set(token, entry.locked_until)

    def _new_token(self) -> int:
        return self._random.getrandbits(128 - TOKEN_FRAGMENT_BITS) << TOKEN_FRAGMENT_BITS | self.index

    # ------------------------------------------------------------------ messages are settled

    def check_lock(self, token: int, now: float, lock: SessionLock | None = None) -> Entry:
        """
        Args:
            lock: of the session through which the message was received, if it was.

        Returns: the message that is held under a token.

        Raises:
            MessageLockLostError, SessionLockLostError: nobody holds a message under it any more.
        """
        self.advance(now)
        if lock is not None:
            self.check_session(lock)
        entry = self._locks.get(token)
        if entry is None:
            raise MessageLockLostError(
                f"the lock on a message of {self.path} is gone: it ended before it was renewed, or the message was "
                "settled; the message is delivered again if it was not"
            )
        return entry

    def renew(self, entry: Entry, now: float) -> float:
        """Hold a message for another lock duration; returns when that ends."""
        entry.locked_until = now + self.policy.lock_duration_s
        self._lock_ends.set(entry.token, entry.locked_until)
        return entry.locked_until

    def settle(self, token: int, settlement: Settlement, now: float) -> None:
        """End a message whose lock has been checked."""
        entry = self._locks[token]
        if settlement.mode is SettleMode.COMPLETE:
            self.remove(entry)
        elif settlement.mode is SettleMode.ABANDON:
            self._come_back(entry, now, is_failed=True)
        elif settlement.mode is SettleMode.DEFER:
            self._unlock(entry)
            entry.delivery_count += 1
            entry.state = _DEFERRED
        else:
            self.dead_letter(entry, settlement.reason, settlement.error_description)

    def release(self, token: int, now: float) -> None:
        """Put back a message that no application has seen: no delivery is counted. One that is back is ignored."""
        self.advance(now)
        entry = self._locks.get(token)
        if entry is not None:
            self._come_back(entry, now, is_failed=False)

    def dead_letter(
        self, entry: Entry, reason: str | None, description: str | None, into: Fragment | None = None
    ) -> None:
        """Move a message that is held, or in no queue of ready ones, to the dead-letter queue, or to another one."""
        self.remove(entry)
        twin = entry.moved()
        twin.dead_letter_reason = reason[:MAX_DEAD_LETTER_TEXT] if reason is not None else None
        twin.dead_letter_description = description[:MAX_DEAD_LETTER_TEXT] if description is not None else None
        twin.dead_letter_source = twin.dead_letter_source or self.path
        (self.behind() if into is None else into).append(twin, twin.enqueued_at)

    def behind(self) -> Fragment:
        """The fragment of the dead-letter queue; law 5 is kept by the callers."""
        assert self.dead_letters is not None
        return self.dead_letters

    def remove(self, entry: Entry) -> None:
        """Take a message out for good, held or not."""
        if entry.token:
            self._unlock(entry)
        self._remove(entry)

    def _unlock(self, entry: Entry) -> None:
        token, entry.token, entry.locked_until = entry.token, 0, math.inf
        del self._locks[token]
        self._cached.pop(token, None)
        self._lock_ends.drop(token)
        if self.has_sessions:
            self._sessions.let_go(session_of(entry.content), token)

    def _come_back(self, entry: Entry, at: float, *, is_failed: bool) -> None:
        if entry.token in self._locks:
            self._unlock(entry)
        entry.delivery_count += is_failed
        is_final = self.dead_letters is None
        if is_failed and not is_final and entry.delivery_count >= self.policy.max_delivery_count:
            self.dead_letter(
                entry,
                MAX_DELIVERIES_EXCEEDED,
                f"{entry.delivery_count} deliveries failed, {self.policy.max_delivery_count} are allowed",
            )
        elif entry.state is _DEFERRED:
            return
        elif entry.expires_at <= at:
            self._expire(entry)
        else:
            self._make_ready(entry, is_fresh=False)

    def _expire_ready(self, entry: Entry) -> None:
        if self.has_sessions:
            self._sessions.expired(session_of(entry.content))
        self._expire(entry)
        while self._fresh and self._fresh[0] not in self._entries:
            self._fresh.popleft()

    def _expire(self, entry: Entry) -> None:
        if self.policy.dead_letters_expired:
            self.dead_letter(entry, TTL_EXPIRED, "The message expired before anybody completed it.")
        else:
            self._remove(entry)

    # ------------------------------------------------------------------ sessions

    def accept_session(self, session_id: str, now: float) -> SessionLock:
        """
        Raises:
            SessionCannotBeLockedError: somebody holds it.
        """
        self.advance(now)
        token, until = self._new_token(), now + self.policy.lock_duration_s
        if not self._sessions.lock(session_id, token, until):
            raise SessionCannotBeLockedError(
                f"session {session_id!r} of {self.path} is held by another receiver: wait until it is released, or "
                "accept the next available session"
            )
        return SessionLock(session_id, self.index, token, until)

    def next_session(self, now: float) -> str | None:
        """A free session with messages, None if there is none."""
        self.advance(now)
        return self._sessions.next_available()

    def check_session(self, lock: SessionLock) -> Session:
        """
        Raises:
            SessionLockLostError: the lock has ended.
        """
        session = self._sessions.get(lock.session_id)
        if session is None or session.token != lock.token:
            raise SessionLockLostError(
                f"the lock on session {lock.session_id!r} of {self.path} has ended: accept the session again"
            )
        return session

    def renew_session(self, lock: SessionLock, now: float) -> float:
        """Hold a session for another lock duration; returns when that ends."""
        self.advance(now)
        self.check_session(lock)
        lock.locked_until = now + self.policy.lock_duration_s
        self._sessions.renew(lock.session_id, lock.locked_until)
        return lock.locked_until

    def release_session(self, lock: SessionLock, now: float) -> None:
        """Let a session go; what was taken under it comes back with no delivery counted. Ended locks are ignored."""
        self.advance(now)
        session = self._sessions.get(lock.session_id)
        if session is not None and session.token == lock.token:
            self._end_session(lock.session_id, now, is_failed=False)

    def session_state(self, lock: SessionLock, now: float) -> bytes | None:
        self.advance(now)
        return self.check_session(lock).state

    def set_session_state(self, lock: SessionLock, state: bytes | None, now: float) -> None:
        """
        Raises:
            MessageSizeExceededError: it is larger than a message may be.
            ServiceBusQuotaExceededError: it does not fit.
        """
        self.advance(now)
        session = self.check_session(lock)
        size, largest = len(state or b""), self.policy.max_message_size_bytes
        if size > largest:
            raise MessageSizeExceededError(
                f"the state of session {lock.session_id!r} of {self.path} has {size} bytes, {largest} are allowed: "
                "keep it elsewhere and store a reference"
            )
        growth = size - len(session.state or b"")
        self.check_room(growth)
        self.usage.size_bytes += growth
        session.state, session.state_set_at = state, now

    def _end_session(self, session_id: str, at: float, *, is_failed: bool) -> None:
        for token in self._sessions.unlock(session_id):
            entry = self._locks.pop(token)
            entry.token = 0
            self._come_back(entry, at, is_failed=is_failed)
        self._ring(session_id)
        if self._sessions.next_available() is not None:
            self._ring(NEXT_AVAILABLE_SESSION)


def session_of(content: ServiceBusMessage) -> str:
    """The session of a message in a session entity, which has one."""
    session_id = content.session_id
    assert session_id is not None  # the door refuses messages without one
    return session_id
