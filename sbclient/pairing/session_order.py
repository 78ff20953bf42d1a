"""Keeps the order inside each session across a failover and back (`ordering="session"`).

Laws (our choice): The diverted messages of a session wait in one session-enabled backlog queue, in a session of their
own. Before a client first sends a message of a session to the primary, and again after every failover, it accepts that
backlog session. If a syphon holds it or it has messages, the client goes on diverting the session. If the secondary
does not answer, sends of sessions that this client has diverted raise; all others go to the primary.
"""

from __future__ import annotations

from typing import Final

from sbclient.errors import ServiceBusError, SessionCannotBeLockedError
from sbclient.pairing.state import PairedEntity, PairState
from sbclient.rules.known_sessions import ClearedSessions

ASK_S: Final = 10.0
"""The longest time that a send waits for the state of its session."""


class SessionOrder:
    """Decides where the next message of a session goes, for one sender. Assumes one producer per session."""

    def __init__(self, pair: PairState, entity: PairedEntity) -> None:
        self._pair = pair
        self._entity = entity
        self._known = entity.sessions
        self._cleared = ClearedSessions(entity.sessions)

    async def must_divert(self, session_id: str, *, deadline: float) -> bool:
        """Return whether the next message of a session must go to the backlog.

        Raises:
            ServiceBusError: the secondary does not answer, and this client has diverted the session.
        """
        generation = self._entity.failover.generation
        if self._entity.is_failed_over:
            self._known.diverted(session_id)
            return True
        if self._cleared.has(session_id, generation):
            return False
        may_wait_there = self._known.may_wait(session_id)
        now = self._pair.clock.monotonic()
        is_unavailable = self._pair.backlog.error is not None
        if not may_wait_there and (is_unavailable or not self._known.may_ask(now)):
            return False
        try:
            # Most of the timeout is kept for the message: a silent secondary is not an outage of the primary.
            is_clear = await self._is_clear(session_id, min(ASK_S, max((deadline - now) / 4, 0.001)))
        except ServiceBusError as error:
            self._known.not_answered(self._pair.clock.monotonic())
            if may_wait_there:
                error.is_in_doubt = False  # the message was not sent
                raise
            return False
        if not is_clear:
            self._known.diverted(session_id)
            return True
        self._cleared.add(session_id, generation)
        return False

    async def _is_clear(self, session_id: str, timeout_s: float) -> bool:
        queue, native = self._entity.backlog_session(session_id)
        link = self._pair.secondary.open_receiver(queue, session=native)
        end_at = self._pair.clock.monotonic() + timeout_s
        try:
            await link.open(timeout_s=timeout_s)
            left_s = max(end_at - self._pair.clock.monotonic(), 0.001)
            return not await link.peek(max_message_count=1, sequence_number=0, timeout_s=left_s)
        except SessionCannotBeLockedError:
            return False
        finally:
            await link.close()
