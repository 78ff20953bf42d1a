"""Keeps the order inside each session across a failover and back (`ordering="session"`).

The laws, ours: a session's diverted messages wait in one session-enabled backlog queue, under a session of their own.
Before a client first sends a session's message to the primary, and again after every failover, it accepts that backlog
session: if a syphon holds it, or something waits in it, the session goes on being diverted, behind what is already
there. If the secondary cannot be asked, sessions that this client has diverted raise, all others go to the primary.
"""

from __future__ import annotations

from typing import Final

from sbclient.errors import ServiceBusError, SessionCannotBeLockedError
from sbclient.pairing.state import PairedEntity, PairState
from sbclient.rules.backlog import native_session_id_of, session_backlog_queue_of
from sbclient.rules.known_sessions import ClearedSessions

ASK_S: Final = 10.0
"""The longest that a send waits to hear about its session."""


class SessionOrder:
    """Where the next message of a session goes, for one sender. Assumes one producer for each session at a time."""

    def __init__(self, pair: PairState, entity: PairedEntity) -> None:
        self._pair = pair
        self._entity = entity
        self._known = entity.sessions
        self._cleared = ClearedSessions(entity.sessions)

    async def must_divert(self, session_id: str, *, deadline: float) -> bool:
        """Whether the session's next message has to queue up in the backlog.

        Raises:
            ServiceBusError: the secondary cannot be asked about a session that this client has diverted.
        """
        generation = self._entity.failover.generation
        if self._entity.is_failed_over:
            self._known.diverted(session_id)
            return True
        if self._cleared.has(session_id, generation):
            return False
        may_wait_there = self._known.may_wait(session_id)
        now = self._pair.clock.monotonic()
        if not may_wait_there and not self._known.may_ask(now):
            return False
        try:
            # Most of the caller's time is for the message: an answer that never comes is no outage of the primary.
            is_clear = await self._is_clear(session_id, min(ASK_S, max((deadline - now) / 4, 0.001)))
        except ServiceBusError as error:
            self._known.not_answered(self._pair.clock.monotonic())
            if may_wait_there:
                error.is_in_doubt = False  # it was a question, and the message has not left
                raise
            return False
        if not is_clear:
            self._known.diverted(session_id)
            return True
        self._cleared.add(session_id, generation)
        return False

    def diverted(self, session_id: str) -> None:
        """Remember that something of this session waits, or may wait, in the backlog."""
        self._known.diverted(session_id)

    async def _is_clear(self, session_id: str, timeout_s: float) -> bool:
        path = self._entity.path
        native = native_session_id_of(path, session_id)
        queue = session_backlog_queue_of(self._pair.session_backlog_queues, native)
        link = self._pair.secondary.open_receiver(queue, session=native)
        over_at = self._pair.clock.monotonic() + timeout_s
        try:
            await link.open(timeout_s=timeout_s)
            left_s = max(over_at - self._pair.clock.monotonic(), 0.001)
            return not await link.peek(max_message_count=1, sequence_number=0, timeout_s=left_s)
        except SessionCannotBeLockedError:
            return False
        finally:
            await link.close()
