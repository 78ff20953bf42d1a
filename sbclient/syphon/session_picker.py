"""Picks the next session of a backlog queue to accept, so that sessions whose destination refuses delay no other.

While no session rests, the service picks: the next available session, in one long poll. With resting sessions it would
offer those again and again. Then the sessions are listed, after pauses of 1 s that double up to 60 s while nothing
changes, and accepted by name: the sessions that do not rest, and one session of each refusing destination when it is
due.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from random import Random
from typing import Final

from sbclient.clock import Clock
from sbclient.delivery import NEXT_AVAILABLE_SESSION, SessionChoice
from sbclient.errors import InvalidOperationError, ServiceBusError
from sbclient.rules.refusal import FIRST_PAUSE_S, LONGEST_PAUSE_S
from sbclient.syphon.session_backoff import SessionBackoff

VISITED_PER_LIST: Final = 100
"""Limit of sessions, not known to rest, that are visited before the sessions are listed again."""
TRIES_UNTIL_EMPTY: Final = 3
"""Attempts at a destination that refuses, before a run `until="empty"` leaves its sessions where they are."""


class SessionPicker:
    """Picks sessions for all workers of one queue.

    Args:
        backoff: the resting sessions, updated by the caller.
        list_sessions: returns every session with messages, also those that other receivers hold.
        is_until_empty: whether the run ends, so that waits are short.
    """

    def __init__(
        self,
        clock: Clock,
        random: Random,
        backoff: SessionBackoff,
        list_sessions: Callable[[], Awaitable[Sequence[str]]],
        *,
        is_until_empty: bool,
    ) -> None:
        self._clock = clock
        self._random = random
        self._backoff = backoff
        self._list_sessions = list_sessions
        self._is_until_empty = is_until_empty
        self._lock = asyncio.Lock()
        self._others: deque[str] = deque()
        self._visited: set[str] = set()
        self._list_at = float("-inf")
        self._pause_s = FIRST_PAUSE_S
        self._has_changed = False
        self._wake = asyncio.Event()

    async def next(self) -> SessionChoice:
        """Return the session to accept next; None ends a run until empty, since every session left is refused.

        If the sessions cannot be listed, the service picks from time to time, so that no session is delayed for ever.
        """
        async with self._lock:
            self._backoff.forget_idle()
            while self._backoff.count:
                session_id = self._backoff.due() or (self._others.popleft() if self._others else None)
                if session_id is not None:
                    if session_id not in self._visited:
                        return session_id
                elif self._list_at > self._clock.monotonic():
                    await self._wait()
                else:
                    try:
                        if await self._list():
                            return None
                    except InvalidOperationError:  # the transport cannot list sessions
                        is_over = self._is_until_empty and self._backoff.least_failures >= TRIES_UNTIL_EMPTY
                        return None if is_over else NEXT_AVAILABLE_SESSION
                    except ServiceBusError:
                        return NEXT_AVAILABLE_SESSION
        return NEXT_AVAILABLE_SESSION

    async def _wait(self) -> None:
        """Wait until the sessions are to be listed again, or a resting session is due."""
        wait_s = min(self._list_at, self._backoff.due_at) - self._clock.monotonic()
        self._wake.clear()
        with suppress(TimeoutError):
            async with self._clock.timeout(wait_s):
                await self._wake.wait()

    async def _list(self) -> bool:
        """Look for sessions that do not rest; return whether a run until empty is at its end."""
        longest_s = FIRST_PAUSE_S if self._is_until_empty else LONGEST_PAUSE_S
        had_changed, self._has_changed = self._has_changed, False
        self._pause_s = FIRST_PAUSE_S if had_changed else min(2 * self._pause_s, longest_s)
        self._list_at = self._clock.monotonic() + self._pause_s
        others = self._backoff.forget_missing(await self._list_sessions(), self._random, VISITED_PER_LIST)
        self._others.extend(others)
        if had_changed and len(others) == VISITED_PER_LIST:
            self._list_at = float("-inf")  # there are more, and visits are useful now
        return self._is_until_empty and not others and self._backoff.least_failures >= TRIES_UNTIL_EMPTY

    @contextmanager
    def visiting(self, session_id: str) -> Iterator[None]:
        """A context in which a worker holds a session, so that no other worker is sent there."""
        self._visited.add(session_id)
        try:
            yield
        finally:
            self._visited.discard(session_id)

    def changed(self) -> None:
        """A message was forwarded, or a session rests that did not before: a new list may differ soon."""
        self._has_changed = True

    def recovered(self) -> None:
        """A destination accepts messages again, so its sessions do not rest any more."""
        self._has_changed = True
        self._list_at = float("-inf")
        self._wake.set()
