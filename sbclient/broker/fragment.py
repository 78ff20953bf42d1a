"""One partition of an entity: its messages in order, their locks, and their timed changes.

Rules (source: documented, unless said otherwise):

1. A message that is abandoned, or whose lock ends, returns to its old place with one more failed delivery. After
   `max_delivery_count` failed deliveries it is dead-lettered. A released message returns without a failed delivery.
   A lock ends at its time; of many that end together, each request returns some messages (our choice), those whose
   locks ended first before the others, and before new messages.
2. Expiry takes effect at the next request. A locked message does not expire until it returns, a deferred one not until
   it is requested.
3. A dead-letter queue has no dead-letter queue: its messages do not expire, are not dead-lettered, and have no
   sessions. It counts no deliveries: what a message had when it came stays (seen).

Every operation costs O(1) or O(log n) in the number of messages, sessions and remembered ids.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from random import Random
from typing import Final, TypeAlias

from sbclient.amqp import EncodedMessage
from sbclient.broker.deadlines import Deadlines
from sbclient.broker.entry import MAX_DEAD_LETTER_TEXT, Entry, Selector
from sbclient.broker.locks import Locks
from sbclient.broker.policy import Policy, Usage
from sbclient.broker.session import Session, SessionLock, Sessions
from sbclient.broker.storage import Copies, Storage, not_found
from sbclient.delivery import NEXT_AVAILABLE_SESSION, ServiceBusSessionFilter, Settlement, SettleMode
from sbclient.errors import (
    MessageLockLostError,
    MessageSizeExceededError,
    SessionCannotBeLockedError,
    SessionLockLostError,
)
from sbclient.message import ServiceBusMessageState

OnReady: TypeAlias = Callable[[str | ServiceBusSessionFilter | None], None]
"""Called when a message becomes ready. The argument says who may receive it: the id of a held session,
`NEXT_AVAILABLE_SESSION` for a message of a free session, or None on an entity without sessions."""

_COMPLETE: Final = SettleMode.COMPLETE
_DEFERRED: Final = ServiceBusMessageState.DEFERRED

TTL_EXPIRED: Final = "TTLExpiredException"
MAX_DELIVERIES_EXCEEDED: Final = "MaxDeliveryCountExceeded"

ENDED_LOCKS_AT_ONCE: Final = 100
"""So many messages whose locks have ended return in one request: it takes less than a millisecond."""


class Fragment(Storage):
    """One partition of one queue, subscription, topic or dead-letter queue.

    Args:
        index: 0 on plain entities.
        path: of the entity, for errors.
        policy: shared by the fragments of the entity.
        usage: the bytes in this fragment, shared with its sub-queues.
        random: for lock tokens.
        on_ready: called when a message becomes ready.
        dead_letters: the fragment of the dead-letter queue; None = this is one.

    Attributes:
        has_sessions: whether its messages belong to sessions; this cannot change.
        deferred_count: deferred messages, locked or not.
    """

    def __init__(
        self,
        index: int,
        path: str,
        policy: Policy,
        usage: Usage,
        random: Random,
        on_ready: OnReady,
        dead_letters: Fragment | None,
    ) -> None:
        super().__init__(index, path, policy, usage)
        self.dead_letters = dead_letters
        self.has_sessions = policy.requires_session and dead_letters is not None
        self._on_ready = on_ready
        self.deferred_count = 0
        self._fresh: deque[int] = deque()
        self._returned: list[int] = []
        self._sessions = Sessions(self._entries, self._earliest)
        self._locks = Locks(index, random, self._earliest)
        self._locks_ended_at = -math.inf
        self._expiries: Deadlines[int] = Deadlines(self._earliest)

    # ------------------------------------------------------------------ contents

    def detach(self) -> None:
        """Give back its bytes, which a topic counts for its subscriptions, when its entity is removed."""
        own_bytes = self.size_bytes + self._sessions.state_bytes
        self.usage.size_bytes -= own_bytes
        self.usage = Usage()
        self.usage.size_bytes = own_bytes

    @property
    def session_count(self) -> int:
        return len(self._sessions)

    @property
    def locked_count(self) -> int:
        """Locked messages."""
        return len(self._locks)

    def sessions(self, now: float) -> list[tuple[str, Session]]:
        """All sessions with their ids, including those with only a lock or a state; read-only."""
        self.advance(now)
        return self._sessions.all()

    def session_ids(self, now: float, *, state_set_after: float | None, most: int | None = None) -> list[str]:
        """As `Sessions.ids`."""
        self.advance(now)
        return self._sessions.ids(state_set_after=state_set_after, most=most)

    def browse(self, now: float, from_number: int, session_id: str | None = None) -> Iterator[Entry]:
        """The messages from a sequence number on, in order, without taking them."""
        self.advance(now)
        if session_id is not None:
            return self._sessions.browse(session_id, from_number)
        return self._numbers.ascending(from_number)

    def browse_back(self, now: float, from_number: int | None = None) -> Iterator[Entry]:
        """The messages from a sequence number down, the newest first; None = from the newest one."""
        self.advance(now)
        return self._numbers.descending(from_number)

    # ------------------------------------------------------------------ recovery

    def state_of(self, session_id: str) -> tuple[bytes | None, float]:
        """The state of a session, and when it was set; None at minus infinity if there is no such session."""
        session = self._sessions.get(session_id)
        return (None, -math.inf) if session is None else (session.state, session.state_set_at)

    def put_back(self, entry: Entry) -> None:
        """Store a message from an earlier process under its number; its lock has ended."""
        self._insert(entry, entry.number)
        if entry.state is ServiceBusMessageState.SCHEDULED:
            at = entry.content.scheduled_enqueue_time_utc
            assert at is not None  # scheduled messages have one
            self._schedule.set(entry.number, at.timestamp())
        elif entry.state is ServiceBusMessageState.ACTIVE:
            self._make_ready(entry, True)

    def put_back_state(self, session_id: str, state: bytes, set_at: float) -> None:
        """Store the state of a session from an earlier process, after its messages."""
        self._sessions.set_state(session_id, state, set_at)
        self.usage.size_bytes += len(state)

    # ------------------------------------------------------------------ time

    def next_change_at(self) -> float:
        """The time of the next timed change; infinity if there is none."""
        self._earliest.at = at = min(
            self._locks.ends.next_at(),
            self._sessions.lock_ends.next_at(),
            self._schedule.next_at(),
            self._expiries.next_at(),
        )
        return at

    def advance(self, now: float) -> None:
        if now < self._earliest.at or now < self.next_change_at():
            return
        self.mark()
        self._activate_due(now)
        while (ended := self._sessions.lock_ends.pop_due(now)) is not None:
            self._end_session(ended[0], ended[1], is_failed=True)
        if now != self._locks_ended_at:  # one request calls this more than once
            self._locks_ended_at = now
            self._end_locks(now)
        while (due := self._expiries.pop_due(now)) is not None:
            entry = self._entries[due[0]]
            if entry.locked_until <= now:
                self._end_lock(entry)
            if entry.is_ready and due[0] in self._entries:
                self._expire_ready(entry)
        self.next_change_at()

    def _end_locks(self, now: float) -> None:
        """End locks that are due, in their order, at most `ENDED_LOCKS_AT_ONCE`."""
        for _ in range(ENDED_LOCKS_AT_ONCE):
            if (due := self._locks.ends.pop_due(now)) is None:
                return
            self._end_lock(self._entries[due[0]])

    def _end_lock(self, entry: Entry) -> None:
        self._return(entry, entry.locked_until, is_failed=not self._locks.is_cached(entry.token))

    def _held(self, token: int, now: float) -> Entry | None:
        """The message of a token, None if its lock has ended."""
        entry = self._locks.entries.get(token)
        return None if entry is None or entry.locked_until <= now else entry

    # ------------------------------------------------------------------ messages arrive

    def decide(self, entry: Entry, at: float) -> Copies:
        if self.dead_letters is not None:
            entry.enqueued_at = at
            self._set_expiry(entry)
        if self.has_sessions:
            session_of(entry.content)
        if self.log is not None:
            self.log.mark()
        return ()

    def _store(self, entry: Entry, copies: Copies) -> None:
        self._insert(entry, self.next_number())
        self._make_ready(entry, True)

    def _insert(self, entry: Entry, number: int) -> None:
        Storage._insert(self, entry, number)  # `super()` takes three times as long
        if entry.state is _DEFERRED:  # of an earlier process
            self.deferred_count += 1
        if self.has_sessions:
            self._sessions.add(session_of(entry.content), number)
        if entry.expires_at < math.inf:
            self._expiries.set(number, entry.expires_at)

    def _remove(self, entry: Entry, number: int | None = None) -> None:
        number = entry.number if number is None else number
        Storage._remove(self, entry, number)
        if entry.state is _DEFERRED:
            self.deferred_count -= 1
        if self.has_sessions:
            self._sessions.remove(session_of(entry.content))
        if entry.expires_at < math.inf:
            self._expiries.drop(number)

    def _make_ready(self, entry: Entry, is_fresh: bool) -> None:
        if self.has_sessions:
            session_id = session_of(entry.content)
            is_held = self._sessions.make_ready(session_id, entry.number)
            self._on_ready(session_id if is_held else NEXT_AVAILABLE_SESSION)
            return
        if is_fresh:
            self._fresh.append(entry.number)
        else:
            heappush(self._returned, entry.number)
        self._on_ready(None)

    # ------------------------------------------------------------------ messages are taken

    def take(
        self, now: float, lock: SessionLock | None = None, delete: bool = False, selector: Selector | None = None
    ) -> Entry | None:
        """Take the next ready message that a selector matches, and lock it or delete it; None if there is none."""
        if delete:
            self.mark()
        entry = self._pop_ready(now, lock) if selector is None else self._pop_selected(now, selector)
        if entry is not None:
            self.hand_out(entry, now, delete)
        return entry

    def take_for_cache(self, now: float) -> Entry | None:
        """As `take`, for the cache of a front end: the message is not delivered yet."""
        entry = self.take(now)
        if entry is not None:
            self._locks.cache(entry.token)
        return entry

    def take_from_cache(self, token: int, now: float, *, delete: bool) -> Entry | None:
        """Deliver a cached message; None if its lock has ended or it has expired."""
        self.advance(now)
        if delete:
            self.mark()
        entry = self._held(token, now)
        if entry is None or not self._locks.uncache(token):
            return None
        if entry.expires_at <= now:
            self._return(entry, now, is_failed=False)
            return None
        if delete:
            self.remove(entry)
        return entry

    def check_deferred(self, numbers: Sequence[int], now: float, lock: SessionLock | None) -> list[Entry]:
        """Return deferred messages that are not locked, in the order of the numbers.

        Raises:
            MessageNotFoundError: there is none with one of the numbers in this session, or it has expired.
        """
        self.advance(now)
        found: list[Entry] = []
        missing: list[int] = []
        for number in numbers:
            entry: Entry | None = self._entries.get(number)
            if entry is not None and entry.locked_until <= now:
                self._end_lock(entry)
                entry = self._entries.get(number)
            if entry is not None and entry.state is _DEFERRED and not entry.token:
                if entry.expires_at <= now:
                    self._expire(entry)
                elif lock is None or session_of(entry.content) == lock.session_id:
                    found.append(entry)
                    continue
            missing.append(number)
        if missing:
            raise not_found(
                missing,
                f"{self.path} has no such deferred message: it does not exist, was not deferred, has expired or is "
                "locked by another receiver",
            )
        return found

    def hand_out(self, entry: Entry, now: float, delete: bool) -> None:
        """Lock or delete a message that is ready, or that `check_deferred` has returned."""
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

    def _pop_selected(self, now: float, selector: Selector) -> Entry | None:
        self.advance(now)
        for numbers in (sorted(self._returned), self._fresh):
            entry = selector.first(numbers, self._entries)
            if entry is None:
                continue
            if numbers is self._fresh:
                self._fresh.remove(entry.number)
            else:
                self._returned.remove(entry.number)
                heapify(self._returned)
            return entry
        return None

    def head(self, now: float) -> Entry | None:
        """The next ready message of an entity without sessions; it stays in place."""
        self.advance(now)
        while True:
            if not self._returned and self._earliest.at <= now:
                self._end_locks(now)
            if not self._returned and not self._fresh:
                return None
            number = self._returned[0] if self._returned else self._fresh[0]
            entry: Entry | None = self._entries.get(number)
            if entry is not None:
                return entry
            self._pop_number()

    def _pop_number(self) -> None:
        if self._returned:
            heappop(self._returned)
        else:
            self._fresh.popleft()

    def _lock(self, entry: Entry, now: float) -> None:
        if self.has_sessions:
            self._locks.hold(entry, math.inf)
            self._sessions.hold(session_of(entry.content), entry.token)
        else:
            self._locks.hold(entry, now + self.policy.lock_duration_s)

    # ------------------------------------------------------------------ messages are settled

    def check_lock(self, token: int, now: float, lock: SessionLock | None = None) -> Entry:
        """Return the message with a lock token.

        Args:
            lock: of the session from which the message was received, if any.

        Raises:
            MessageLockLostError, SessionLockLostError: the lock has ended, or the message is settled.
        """
        self.advance(now)
        if lock is not None:
            self.check_session(lock)
        entry = self._held(token, now)
        if entry is None:
            raise MessageLockLostError(
                "The lock supplied is invalid. Either the lock expired, or the message has already been removed from "
                f"the queue. An unsettled message of {self.path} is delivered again"
            )
        return entry

    def renew(self, entry: Entry, now: float) -> float:
        """Renew the lock of a message, and return its new end."""
        return self._locks.move(entry, now + self.policy.lock_duration_s)

    def settle(self, token: int, settlement: Settlement, now: float) -> None:
        """Settle a message whose lock was checked."""
        entry = self._locks.entries[token]
        if self.log is not None:
            self.log.mark()
        if settlement.mode is _COMPLETE:
            self._take_out(entry)
            return
        if settlement.mode is SettleMode.DEAD_LETTER:
            self.behind().mark()
        if settlement.properties:
            entry.properties = {**entry.properties, **settlement.properties}
        if self.log is not None:
            self.log.change(entry.number)
        if settlement.mode is SettleMode.ABANDON:
            self._return(entry, now, is_failed=True)
        elif settlement.mode is SettleMode.DEFER:
            self._unlock(entry)
            entry.delivery_count += self.dead_letters is not None
            if entry.state is not _DEFERRED:
                entry.state = _DEFERRED
                self.deferred_count += 1
        else:
            self.dead_letter(entry, settlement.reason, settlement.error_description)

    def release(self, token: int, now: float) -> None:
        """Return a message without counting a delivery; a token whose lock has ended is ignored."""
        self.advance(now)
        entry = self._held(token, now)
        if entry is not None:
            self._return(entry, now, is_failed=False)

    def dead_letter(self, entry: Entry, reason: str | None, description: str | None) -> None:
        """Move a message that is not ready to the dead-letter queue."""
        into = self.behind()
        self.mark()
        into.mark()
        self._take_out(entry)
        twin = entry.moved()
        twin.dead_letter_reason = reason[:MAX_DEAD_LETTER_TEXT] if reason is not None else None
        twin.dead_letter_description = description[:MAX_DEAD_LETTER_TEXT] if description is not None else None
        twin.dead_letter_source = twin.dead_letter_source or self.path
        into.append(twin, twin.enqueued_at)

    def behind(self) -> Fragment:
        """The fragment of the dead-letter queue; callers respect rule 3."""
        assert self.dead_letters is not None
        return self.dead_letters

    def remove(self, entry: Entry) -> None:
        """Delete a message, whether it is ready, locked or deferred."""
        if self.has_sessions and entry.is_ready:
            self._sessions.expired(session_of(entry.content))
        self._take_out(entry)

    def _take_out(self, entry: Entry) -> None:
        if entry.token:
            self._unlock(entry)
        self._remove(entry)

    def _unlock(self, entry: Entry) -> None:
        if self.has_sessions:
            self._sessions.let_go(session_of(entry.content), entry.token)
        self._locks.let_go(entry)

    def _return(self, entry: Entry, at: float, *, is_failed: bool) -> None:
        is_counted = is_failed and self.dead_letters is not None
        if is_counted and self.log is not None:
            self.log.change(entry.number)
        self._unlock(entry)
        entry.delivery_count += is_counted
        if is_counted and entry.delivery_count >= self.policy.max_delivery_count:
            self.dead_letter(
                entry,
                MAX_DELIVERIES_EXCEEDED,
                f"Message could not be consumed after {entry.delivery_count} delivery attempts.",
            )
        elif entry.state is _DEFERRED:
            return
        elif entry.expires_at <= at:
            self._expire(entry)
        else:
            self._make_ready(entry, False)

    def _expire_ready(self, entry: Entry) -> None:
        if self.has_sessions:
            self._sessions.expired(session_of(entry.content))
        self._expire(entry)
        while self._fresh and self._fresh[0] not in self._entries:
            self._fresh.popleft()

    def _expire(self, entry: Entry) -> None:
        if self.policy.dead_letters_expired:
            self.dead_letter(entry, TTL_EXPIRED, "The message expired and was dead lettered.")
        else:
            self._remove(entry)

    # ------------------------------------------------------------------ sessions

    def accept_session(self, session_id: str, now: float) -> SessionLock:
        """Lock a session.

        Raises:
            SessionCannotBeLockedError: another receiver holds it.
        """
        self.advance(now)
        token, until = self._locks.new_token(), now + self.policy.lock_duration_s
        if not self._sessions.lock(session_id, token, until):
            raise SessionCannotBeLockedError(
                f"The requested session '{session_id}' cannot be accepted. It may be locked by another receiver. Wait "
                f"until it is released, or accept the next available session of {self.path}"
            )
        return SessionLock(session_id, self.index, token, until)

    def next_session(self, now: float) -> str | None:
        """The id of a free session with messages, None if there is none."""
        self.advance(now)
        return self._sessions.next_available()

    def check_session(self, lock: SessionLock) -> Session:
        """Return the session of a lock.

        Raises:
            SessionLockLostError: the lock has ended.
        """
        session = self._sessions.get(lock.session_id)
        if session is None or session.token != lock.token:
            raise SessionLockLostError(
                "The session lock has expired on the MessageSession. Accept a new MessageSession. "
                f"It was the lock on session {lock.session_id!r} of {self.path}"
            )
        return session

    def renew_session(self, lock: SessionLock, now: float) -> float:
        """Renew a session lock, and return its new end."""
        self.advance(now)
        self.check_session(lock)
        lock.locked_until = now + self.policy.lock_duration_s
        self._sessions.renew(lock.session_id, lock.locked_until)
        return lock.locked_until

    def release_session(self, lock: SessionLock, now: float) -> None:
        """Release a session; its messages return without a failed delivery. Ended locks are ignored."""
        self.advance(now)
        session = self._sessions.get(lock.session_id)
        if session is not None and session.token == lock.token:
            self._end_session(lock.session_id, now, is_failed=False)

    def session_state(self, lock: SessionLock, now: float) -> bytes | None:
        self.advance(now)
        return self.check_session(lock).state

    def check_session_state(self, lock: SessionLock, state: bytes | None, now: float) -> int:
        """Check that the state of a session can be set; return the bytes by which it grows.

        Raises:
            MessageSizeExceededError: the state exceeds the maximum message size.
            ServiceBusQuotaExceededError: the state grows, and the fragment is full.
        """
        self.advance(now)
        session = self.check_session(lock)
        size, largest = len(state or b""), self.policy.max_message_size_bytes
        if size > largest:
            raise MessageSizeExceededError(
                f"the state of session {lock.session_id!r} of {self.path} has {size} bytes, {largest} are allowed: "
                "store it elsewhere and keep a reference"
            )
        growth = size - len(session.state or b"")
        if growth > 0:  # a smaller state fits even if the fragment is full
            self.check_room(growth)
        return growth

    def set_session_state(self, lock: SessionLock, state: bytes | None, now: float) -> None:
        """Set or delete the state of a session; raises what `check_session_state` does."""
        growth = self.check_session_state(lock, state, now)  # before the usage is read: it may remove expired messages
        self.mark()
        self.usage.size_bytes += growth
        self._sessions.set_state(lock.session_id, state, now)
        if self.log is not None:
            self.log.set_state(lock.session_id)

    def _end_session(self, session_id: str, at: float, *, is_failed: bool) -> None:
        for token in self._sessions.unlock(session_id):
            self._return(self._locks.entries[token], at, is_failed=is_failed)
        self._on_ready(session_id)
        if self._sessions.next_available() is not None:
            self._on_ready(NEXT_AVAILABLE_SESSION)


def session_of(content: EncodedMessage) -> str:
    """The session id of a message in an entity that requires sessions."""
    session_id = content.session_id
    assert session_id is not None  # messages without one are rejected
    return session_id
