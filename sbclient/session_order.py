"""Keeps the order inside each session across a failover and back (`ordering="session"`).

The laws, ours: a session's diverted messages wait in one session-enabled backlog queue, under a session of their own.
Before a client first sends a session's message to the primary, and again after every failover, it accepts that backlog
session: if a syphon holds it, or something waits in it, the session goes on being diverted, behind what is already
there. If the secondary cannot be asked, sessions that this client has diverted raise, all others go to the primary.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from sbclient.errors import ServiceBusError, SessionCannotBeLockedError
from sbclient.pair import Pair, PairedEntity
from sbclient.rules.backlog import native_session_id_of, session_backlog_queue_of

SESSIONS_KEPT: Final = 100_000
ASK_S: Final = 10.0
ASK_AGAIN_S: Final = 30.0
"""How long a secondary that gave no answer is not asked about other sessions: each question costs a send 10 s."""


class SessionOrder:
    """Where the next message of a session goes, for one sender. Assumes one producer for each session."""

    def __init__(self, pair: Pair, entity: PairedEntity) -> None:
        self._pair = pair
        self._entity = entity
        self._diverted: OrderedDict[str, None] = OrderedDict()
        self._has_forgotten = False
        self._cleared: OrderedDict[str, int] = OrderedDict()
        self._ask_again_at = 0.0

    async def must_divert(self, session_id: str, *, deadline: float) -> bool:
        """Whether the session's next message has to queue up in the backlog.

        Raises:
            ServiceBusError: the secondary cannot be asked about a session that this client has diverted.
        """
        generation = self._entity.failover.generation
        if self._entity.is_failed_over:
            self.diverted(session_id)
            return True
        if self._cleared.get(session_id) == generation:
            self._cleared.move_to_end(session_id)
            return False
        may_wait_there = self._has_forgotten or session_id in self._diverted
        now = self._pair.clock.monotonic()
        if now < self._ask_again_at and not may_wait_there:
            return False
        try:
            # Most of the caller's time is for the message: an answer that never comes is no outage of the primary.
            is_clear = await self._is_clear(session_id, min(ASK_S, max((deadline - now) / 4, 0.001)))
        except ServiceBusError:
            self._ask_again_at = self._pair.clock.monotonic() + ASK_AGAIN_S
            if may_wait_there:
                raise
            return False
        if not is_clear:
            self.diverted(session_id)
            return True
        self._diverted.pop(session_id, None)
        self._cleared[session_id] = generation
        if len(self._cleared) > SESSIONS_KEPT:
            self._cleared.popitem(last=False)
        return False

    def diverted(self, session_id: str) -> None:
        """Remember that something of this session waits, or may wait, in the backlog."""
        self._cleared.pop(session_id, None)
        self._diverted[session_id] = None
        self._diverted.move_to_end(session_id)
        if len(self._diverted) > SESSIONS_KEPT:
            self._diverted.popitem(last=False)
            self._has_forgotten = True

    async def _is_clear(self, session_id: str, timeout_s: float) -> bool:
        path = self._entity.path
        native = native_session_id_of(path, session_id)
        queue = session_backlog_queue_of(self._pair.session_backlog_queues, native)
        link = self._pair.secondary.open_receiver(queue, session=native)
        try:
            await link.open(timeout_s=timeout_s)
            return not await link.peek(max_message_count=1, sequence_number=0, timeout_s=timeout_s)
        except SessionCannotBeLockedError:
            return False
        finally:
            await link.close()
