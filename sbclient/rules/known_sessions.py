"""What one client knows of an entity's sessions: which of them may have something in the backlog.

One for each entity path, shared by all senders of the client: what one of them has diverted holds for the others. That
nothing waits there is known to the sender alone that has asked, and to no later one: meanwhile another client may have
diverted something of it, as the last task of a job has before the next.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

SESSIONS_KEPT: Final = 100_000
ASK_AGAIN_S: Final = 30.0
"""How long a secondary that gave no answer is not asked about other sessions: each question costs a send 10 s."""


class KnownSessions:
    """At most `SESSIONS_KEPT`; of what was forgotten anything may be true.

    Attributes:
        forgotten: how many were forgotten so far.
    """

    def __init__(self) -> None:
        self._diverted: OrderedDict[str, None] = OrderedDict()
        self._ask_again_at = float("-inf")
        self.forgotten = 0

    @property
    def size(self) -> int:
        """How many are remembered."""
        return len(self._diverted)

    def is_diverted(self, session_id: str) -> bool:
        """Whether this client remembers that it has diverted something of it."""
        return session_id in self._diverted

    def may_wait(self, session_id: str) -> bool:
        """Whether this client may have diverted something of it."""
        return self.forgotten > 0 or session_id in self._diverted

    def may_ask(self, now: float) -> bool:
        """Whether the secondary is asked about sessions of which nothing is known."""
        return now >= self._ask_again_at

    def not_answered(self, now: float) -> None:
        """The secondary could not be asked."""
        self._ask_again_at = now + ASK_AGAIN_S

    def cleared(self, session_id: str) -> None:
        """Nothing of it waits in the backlog."""
        self._diverted.pop(session_id, None)

    def diverted(self, session_id: str) -> None:
        """Something of it waits, or may wait, in the backlog."""
        self._diverted[session_id] = None
        self._diverted.move_to_end(session_id)
        if len(self._diverted) > SESSIONS_KEPT:
            self._diverted.popitem(last=False)
            self.forgotten += 1


class ClearedSessions:
    """The sessions of which one sender was told that nothing waits in the backlog; at most `SESSIONS_KEPT`.

    Args:
        known: what the client knows; what it has diverted since counts for more.
    """

    def __init__(self, known: KnownSessions) -> None:
        self._known = known
        self._cleared: OrderedDict[str, tuple[int, int]] = OrderedDict()

    def has(self, session_id: str, generation: int) -> bool:
        """Whether it was told so in this generation of the entity's failovers, and it holds."""
        if self._known.is_diverted(session_id):
            return False
        if self._cleared.get(session_id) != (generation, self._known.forgotten):
            return False
        self._cleared.move_to_end(session_id)
        return True

    def add(self, session_id: str, generation: int) -> None:
        """It was told so, in that generation."""
        self._known.cleared(session_id)
        self._cleared[session_id] = generation, self._known.forgotten
        self._cleared.move_to_end(session_id)
        if len(self._cleared) > SESSIONS_KEPT:
            self._cleared.popitem(last=False)
