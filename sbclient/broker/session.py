"""The sessions of one fragment: their messages, locks and states.

Rules (source: message sessions, documented):

1. One receiver at a time holds a session, including messages that arrive later.
2. A session can be accepted by id even if it has no messages. The next available session is the free session that has
   had messages for the longest time.
3. If the lock ends, its messages count as failed deliveries; if the receiver releases the session, they do not.
4. The state remains after the messages and counts toward the size of the entity.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from heapq import heappop, heappush

from sortedcontainers import SortedSet

from sbclient.broker.deadlines import Deadlines, Earliest
from sbclient.broker.entry import Entry
from sbclient.broker.ordered_numbers import OrderedNumbers


class SessionLock:
    """The lock of a receiver on a session; it has ended if the session has another token.

    Attributes:
        session_id: the session.
        fragment_index: the fragment of the session.
        token: identifies the lock.
        locked_until: seconds; changed by each renewal.
    """

    __slots__ = ("fragment_index", "locked_until", "session_id", "token")

    def __init__(self, session_id: str, fragment_index: int, token: int, locked_until: float) -> None:
        self.session_id = session_id
        self.fragment_index = fragment_index
        self.token = token
        self.locked_until = locked_until


class Session:
    """One session. `numbers` are those of its messages; `ready` is a heap, which may contain deleted messages."""

    __slots__ = (
        "held",
        "locked_until",
        "numbers",
        "ready",
        "ready_count",
        "state",
        "state_set_at",
        "token",
    )

    def __init__(self, entries: Mapping[int, Entry]) -> None:
        self.numbers = OrderedNumbers(entries)
        self.ready: list[int] = []
        self.ready_count = 0
        self.token = 0
        self.locked_until = math.inf
        self.held: dict[int, None] = {}
        self.state: bytes | None = None
        self.state_set_at = -math.inf

    @property
    def message_count(self) -> int:
        """Messages in every state."""
        return len(self.numbers)

    @property
    def is_empty(self) -> bool:
        """Whether it has no message and no state."""
        return not self.numbers and self.state is None


class Sessions:
    """All sessions of one fragment.

    Args:
        entries: the fragment's messages by number.
        earliest: of all deadlines of the fragment.
    """

    def __init__(self, entries: Mapping[int, Entry], earliest: Earliest) -> None:
        self._entries = entries
        self._sessions: dict[str, Session] = {}
        self._available: OrderedDict[str, None] = OrderedDict()
        self._listed: SortedSet[str] = SortedSet()  # those with messages or state
        self.lock_ends: Deadlines[str] = Deadlines(earliest)

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def state_bytes(self) -> int:
        """The bytes of all states."""
        return sum(len(session.state or b"") for session in self._sessions.values())

    def get(self, session_id: str) -> Session | None:
        return self._sessions.get(session_id)

    def all(self) -> list[tuple[str, Session]]:
        return list(self._sessions.items())

    def add(self, session_id: str, number: int) -> None:
        """Add a message."""
        session = self._made(session_id)
        session.numbers.add(number)
        if len(session.numbers) == 1:
            self._listed.add(session_id)

    def remove(self, session_id: str) -> None:
        """Note that a message was removed from the entries."""
        session = self._sessions[session_id]
        session.numbers.removed()
        self._forget_if_empty(session_id, session)

    def make_ready(self, session_id: str, number: int) -> bool:
        """Add a ready message; True if a receiver holds the session."""
        session = self._sessions[session_id]
        heappush(session.ready, number)
        session.ready_count += 1
        if session.token:
            return True
        self._available[session_id] = None
        return False

    def take(self, session: Session) -> Entry | None:
        """Take the first ready message of a session."""
        while session.ready:
            entry = self._entries.get(heappop(session.ready))
            if entry is not None:
                session.ready_count -= 1
                return entry
        return None

    def hold(self, session_id: str, token: int) -> None:
        """Note the lock of a message of a session."""
        self._sessions[session_id].held[token] = None

    def let_go(self, session_id: str, token: int) -> None:
        """Note that a message of a session is not locked any more."""
        self._sessions[session_id].held.pop(token, None)

    def expired(self, session_id: str) -> None:
        """Note that a ready message was deleted."""
        session = self._sessions[session_id]
        session.ready_count -= 1
        if not session.ready_count:
            self._available.pop(session_id, None)

    def lock(self, session_id: str, token: int, until: float) -> bool:
        """Lock a session; False if it is locked."""
        session = self._made(session_id)
        if session.token:
            return False
        session.token, session.locked_until = token, until
        self.lock_ends.set(session_id, until)
        self._available.pop(session_id, None)
        return True

    def renew(self, session_id: str, until: float) -> None:
        self._sessions[session_id].locked_until = until
        self.lock_ends.set(session_id, until)

    def unlock(self, session_id: str) -> list[int]:
        """Unlock a session, and return the tokens of its locked messages in the order of their delivery."""
        session = self._sessions[session_id]
        held, session.held = list(session.held), {}
        session.token, session.locked_until = 0, math.inf
        self.lock_ends.drop(session_id)
        if session.ready_count:
            self._available[session_id] = None
        self._forget_if_empty(session_id, session)
        return held

    def set_state(self, session_id: str, state: bytes | None, set_at: float) -> None:
        """Set or, with None, delete the state of a session."""
        session = self._made(session_id)
        session.state, session.state_set_at = state, set_at
        if state is not None:
            self._listed.add(session_id)
        self._forget_if_empty(session_id, session)

    def next_available(self) -> str | None:
        """The free session that has had messages for the longest time."""
        return next(iter(self._available), None)

    def browse(self, session_id: str, from_number: int) -> Iterator[Entry]:
        """The messages of a session from a sequence number on, in order."""
        session = self._sessions.get(session_id)
        return iter(()) if session is None else session.numbers.ascending(from_number)

    def ids(self, *, state_set_after: float | None, most: int | None = None) -> list[str]:
        """Return ids in order: of sessions with messages or state, or of those whose state was set after a time.

        Args:
            most: return at most so many of the first ones.
        """
        if state_set_after is None:
            listed: list[str] = self._listed[:most]
            return listed
        found = (name for name, session in self._sessions.items() if session.state_set_at > state_set_after)
        return sorted(found)[:most]

    def _made(self, session_id: str) -> Session:
        session = self._sessions.get(session_id)
        if session is None:
            session = self._sessions[session_id] = Session(self._entries)
        return session

    def _forget_if_empty(self, session_id: str, session: Session) -> None:
        if session.is_empty:
            self._listed.discard(session_id)
            if not session.token:
                del self._sessions[session_id]
