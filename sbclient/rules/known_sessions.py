"""Tracks which sessions of an entity may have messages in the backlog, as far as one client knows.

`KnownSessions` is shared by all senders of the client for an entity: a diversion by one sender holds for all of them.
`ClearedSessions` and `ListedSessions` belong to one sender. A later sender must query the secondary again, because
another client may have diverted messages of the session in between, as the last task of a job may have before the next
one starts.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

SESSIONS_KEPT: Final = 100_000
ASK_AGAIN_S: Final = 30.0
"""How long the secondary is not queried after a query without an answer: each such query delays a send by 10 s."""


class KnownSessions:
    """The sessions that this client has diverted, at most `SESSIONS_KEPT`. Nothing is known about evicted ones.

    Attributes:
        forgotten: the number of sessions evicted so far.
        diversions: the number of calls of `diverted` so far.
    """

    def __init__(self) -> None:
        self._diverted: OrderedDict[str, int] = OrderedDict()  # with the number of the latest diversion of each
        self._ask_again_at = float("-inf")
        self.forgotten = 0
        self.diversions = 0

    @property
    def size(self) -> int:
        """The number of sessions remembered."""
        return len(self._diverted)

    def is_diverted(self, session_id: str) -> bool:
        """Return whether this client remembers diverting messages of the session."""
        return session_id in self._diverted

    def is_diverted_since(self, session_id: str, diversions: int) -> bool:
        """Return whether the latest diversion of the session came after so many `diversions` of all sessions."""
        return self._diverted.get(session_id, 0) > diversions

    def may_wait(self, session_id: str) -> bool:
        """Return whether this client may have diverted messages of the session."""
        return self.forgotten > 0 or session_id in self._diverted

    def may_ask(self, now: float) -> bool:
        """Return whether the secondary may be queried about unknown sessions."""
        return now >= self._ask_again_at

    def not_answered(self, now: float) -> None:
        """Record that the secondary did not answer a query."""
        self._ask_again_at = now + ASK_AGAIN_S

    def cleared(self, session_id: str) -> None:
        """Record that no message of the session is in the backlog."""
        self._diverted.pop(session_id, None)

    def diverted(self, session_id: str) -> None:
        """Record that messages of the session are, or may be, in the backlog."""
        self.diversions += 1
        self._diverted[session_id] = self.diversions
        self._diverted.move_to_end(session_id)
        if len(self._diverted) > SESSIONS_KEPT:
            self._diverted.popitem(last=False)
            self.forgotten += 1


class ClearedSessions:
    """The sessions without messages in the backlog, as queried by one sender; at most `SESSIONS_KEPT`.

    Args:
        known: the sessions of the client; a later diversion overrides the result of the query.
    """

    def __init__(self, known: KnownSessions) -> None:
        self._known = known
        self._cleared: OrderedDict[str, tuple[int, int]] = OrderedDict()

    def has(self, session_id: str, generation: int) -> bool:
        """Return whether the session was added in this failover generation and is still clear."""
        if self._known.is_diverted(session_id):
            return False
        if self._cleared.get(session_id) != (generation, self._known.forgotten):
            return False
        self._cleared.move_to_end(session_id)
        return True

    def add(self, session_id: str, generation: int) -> None:
        """Record that the session is clear, as queried in that failover generation."""
        self._known.cleared(session_id)
        self._cleared[session_id] = generation, self._known.forgotten
        self._cleared.move_to_end(session_id)
        if len(self._cleared) > SESSIONS_KEPT:
            self._cleared.popitem(last=False)


class ListedSessions:
    """The sessions of all backlog queues, as listed by one sender: a session that is not among them is clear.

    Args:
        known: the sessions of the client; a later diversion overrides the list.
        generation: the failover generation when the query began.
    """

    def __init__(self, known: KnownSessions, generation: int) -> None:
        self._known = known
        self._began = generation, known.forgotten
        self._diversions = known.diversions
        self._native: frozenset[str] = frozenset()

    def set(self, native_session_ids: Iterable[str]) -> None:
        """Store the answer: the ids of the sessions in the backlog queues."""
        self._native = frozenset(native_session_ids)

    def is_current(self, generation: int) -> bool:
        """Return whether the list can be used in this failover generation."""
        return self._began == (generation, self._known.forgotten)

    def is_empty(self) -> bool:
        """Return whether no session was listed, and none was diverted since."""
        return not self._native and self._diversions == self._known.diversions

    def is_clear(self, session_id: str, native_session_id: str) -> bool:
        """Return whether the session was not listed, and not diverted since.

        Args:
            native_session_id: its id in the backlog queues.
        """
        return native_session_id not in self._native and not self._known.is_diverted_since(session_id, self._diversions)
