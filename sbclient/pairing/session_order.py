"""Keeps the order inside each session across a failover and back (`ordering="session"`).

Laws (our choice): The diverted messages of a session wait in one session-enabled backlog queue, in a session of their
own. Before a client first sends a message of a session to the primary, and again after every failover, it accepts that
backlog session. If a syphon holds it or it has messages, the client goes on diverting the session. If the secondary
does not answer, sends of sessions that this client has diverted raise; all others go to the primary.

A sender of many sessions lists the backlog sessions once in each failover generation, and accepts only those that are
listed. A session that is not listed has no message in the backlog: a syphon completes a message after the primary has
accepted it, and until then the session is listed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Final

from sbclient import clock
from sbclient.errors import ServiceBusError, SessionCannotBeLockedError, without_doubt
from sbclient.pairing.state import PairedEntity, PairState
from sbclient.rules.known_sessions import ASK_AGAIN_S, ClearedSessions, ListedSessions

ASK_S: Final = 10.0
"""The longest time that a send waits for the state of its session."""

ACCEPTED_SINGLY: Final = 1
"""A sender that asks about more sessions than this in one failover generation lists all sessions of the backlog."""


class SessionOrder:
    """Decides where the next message of a session goes, for one sender. Assumes one producer per session."""

    def __init__(self, pair: PairState, entity: PairedEntity) -> None:
        self._pair = pair
        self._entity = entity
        self._known = entity.sessions
        self._cleared = ClearedSessions(entity.sessions)
        self._listed: ListedSessions | None = None
        self._listing = asyncio.Lock()
        self._list_again_at = float("-inf")
        self._asked = (0, 0)

    def leave_loop(self) -> None:
        """Make anew what belonged to an event loop that has ended."""
        self._listing = asyncio.Lock()

    async def to_divert(self, session_ids: Collection[str], *, deadline: float) -> set[str]:
        """Return the sessions whose next messages must go to the backlog; raises as `must_divert`."""
        listed = self._listed
        is_clear = listed is not None and listed.is_current(self._entity.failover.generation) and listed.is_empty()
        if is_clear and not self._entity.is_failed_over:
            for one in session_ids if self._known.size else ():
                self._known.cleared(one)
            return set()
        self._count(len(session_ids) - 1)
        return {one for one in session_ids if await self.must_divert(one, deadline=deadline)}

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
        now = clock.monotonic()
        is_unavailable = self._pair.backlog.error is not None
        if not may_wait_there and (is_unavailable or not self._known.may_ask(now)):
            return False
        if await self._is_unlisted(session_id, generation, deadline):
            self._known.cleared(session_id)
            return False
        try:
            # Most of the timeout is kept for the message: a silent secondary is not an outage of the primary.
            is_clear = await self._is_clear(session_id, min(ASK_S, max((deadline - now) / 4, 0.001)))
        except ServiceBusError as error:
            self._known.not_answered(clock.monotonic())
            if may_wait_there:
                without_doubt(error)
                raise
            return False
        if not is_clear:
            self._known.diverted(session_id)
            return True
        self._cleared.add(session_id, generation)
        return False

    async def _is_unlisted(self, session_id: str, generation: int, deadline: float) -> bool:
        """Return whether the list of backlog sessions shows that the session is clear; False without a list."""
        # A list of a partitioned queue lacks the sessions of unavailable fragments.
        if self._count(1) <= ACCEPTED_SINGLY or self._pair.backlog.split_by_key:
            return False
        async with self._listing:
            if self._listed is None or not self._listed.is_current(generation):
                self._listed = await self._list(generation, deadline)
        if self._listed is None:
            return False
        return self._listed.is_clear(session_id, self._entity.backlog_session(session_id)[1])

    def _count(self, more: int) -> int:
        """Count sessions that are asked about; return their number in this failover generation."""
        generation = self._entity.failover.generation
        self._asked = generation, more + (self._asked[1] if self._asked[0] == generation else 0)
        return self._asked[1]

    async def _list(self, generation: int, deadline: float) -> ListedSessions | None:
        """List the sessions of all backlog queues; None if that is not possible now."""
        now = clock.monotonic()
        if now < self._list_again_at:
            return None
        listed = ListedSessions(self._known, generation)
        timeout_s = min(ASK_S, max((deadline - now) / 4, 0.001))
        lists = [
            self._pair.secondary.list_sessions(queue, state_updated_after=None, timeout_s=timeout_s)
            for queue in self._pair.session_names
        ]
        try:
            listed.set(one for found in await asyncio.gather(*lists) for one in found)
        except ServiceBusError:  # each session is asked about singly, which raises if it must
            self._list_again_at = clock.monotonic() + ASK_AGAIN_S
            return None
        return listed

    async def _is_clear(self, session_id: str, timeout_s: float) -> bool:
        queue, native = self._entity.backlog_session(session_id)
        link = self._pair.secondary.open_receiver(queue, session=native)
        end_at = clock.monotonic() + timeout_s
        try:
            await link.open(timeout_s=timeout_s)
            left_s = max(end_at - clock.monotonic(), 0.001)
            return not await link.peek(max_message_count=1, sequence_number=0, timeout_s=left_s)
        except SessionCannotBeLockedError:
            return False
        finally:
            await link.close()
