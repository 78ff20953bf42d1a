"""What one client knows of an entity's sessions: which may have something in the backlog, and which have not.

One for each entity path, shared by all senders of the client: what one of them has diverted holds for the others.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

SESSIONS_KEPT: Final = 100_000
ASK_AGAIN_S: Final = 30.0
"""How long a secondary that gave no answer is not asked about other sessions: each question costs a send 10 s."""


class KnownSessions:
    """At most `SESSIONS_KEPT` of either kind; of what was forgotten anything may be true."""

    def __init__(self) -> None:
        self._diverted: OrderedDict[str, None] = OrderedDict()
        self._has_forgotten = False
        self._cleared: OrderedDict[str, int] = OrderedDict()
        self._ask_again_at = float("-inf")

    @property
    def size(self) -> int:
        """How many are remembered."""
        return len(self._diverted) + len(self._cleared)

    def is_clear(self, session_id: str, generation: int) -> bool:
        """Whether it was found in this generation of the entity's failovers that nothing of it waits in the backlog."""
        if self._cleared.get(session_id) != generation:
            return False
        self._cleared.move_to_end(session_id)
        return True

    def may_wait(self, session_id: str) -> bool:
        """Whether this client may have diverted something of it."""
        return self._has_forgotten or session_id in self._diverted

    def may_ask(self, now: float) -> bool:
        """Whether the secondary is asked about sessions of which nothing is known."""
        return now >= self._ask_again_at

    def not_answered(self, now: float) -> None:
        """The secondary could not be asked."""
        self._ask_again_at = now + ASK_AGAIN_S

    def cleared(self, session_id: str, generation: int) -> None:
        """Nothing of it waits in the backlog, asked in this generation."""
        self._diverted.pop(session_id, None)
        self._cleared[session_id] = generation
        if len(self._cleared) > SESSIONS_KEPT:
            self._cleared.popitem(last=False)

    def diverted(self, session_id: str) -> None:
        """Something of it waits, or may wait, in the backlog."""
        self._cleared.pop(session_id, None)
        self._diverted[session_id] = None
        self._diverted.move_to_end(session_id)
        if len(self._diverted) > SESSIONS_KEPT:
            self._diverted.popitem(last=False)
            self._has_forgotten = True
