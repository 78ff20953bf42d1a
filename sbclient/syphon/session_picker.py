"""Which session of a backlog queue to accept next, so that those whose destination refuses hold up no other.

While none rests, the service chooses: the next available one, waited for in one long poll. Once some rest it would
offer those over and over. Then the sessions are listed, after pauses of 1 s that double up to 60 s while nothing is
new, and accepted by name: those that do not rest, and for each destination that refuses one when it is due.
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
from sbclient.errors import ServiceBusError
from sbclient.syphon.session_backoff import FIRST_PAUSE_S, LONGEST_PAUSE_S, RestingSessions

LOOKED_AT: Final = 100
"""How many sessions that are not known to rest are looked at, at most, before the sessions are listed again."""
TRIES_UNTIL_EMPTY: Final = 3
"""How often a refusing destination is tried before a run until empty leaves its sessions where they are."""


class SessionChooser:
    """Chooses for all workers of one queue.

    Args:
        resting: what rests, kept by the caller.
        listed: asks for every session with messages, also those that somebody holds.
        is_until_empty: whether there is an end, so that nobody waits long for a session to come.
    """

    def __init__(
        self,
        clock: Clock,
        random: Random,
        resting: RestingSessions,
        listed: Callable[[], Awaitable[Sequence[str]]],
        *,
        is_until_empty: bool,
    ) -> None:
        self._clock = clock
        self._random = random
        self._resting = resting
        self._listed = listed
        self._is_until_empty = is_until_empty
        self._turn = asyncio.Lock()
        self._others: deque[str] = deque()
        self._visited: set[str] = set()
        self._list_at = float("-inf")
        self._pause_s = FIRST_PAUSE_S
        self._has_news = False
        self._look_again = asyncio.Event()

    async def next(self) -> SessionChoice:
        """The session to accept next; None ends a run until empty: those that are left are refused again and again.

        Where the sessions cannot be listed the service chooses now and then, so that no other is held up for ever.
        """
        async with self._turn:
            self._resting.forget_needless()
            while self._resting.count:
                session_id = self._resting.due() or (self._others.popleft() if self._others else None)
                if session_id is not None:
                    if session_id not in self._visited:
                        return session_id
                elif self._list_at > self._clock.monotonic():
                    await self._until_there_may_be_one()
                else:
                    try:
                        if await self._list():
                            return None
                    except ServiceBusError:
                        return NEXT_AVAILABLE_SESSION
        return NEXT_AVAILABLE_SESSION

    async def _until_there_may_be_one(self) -> None:
        """Wait until the sessions are to be listed again, or one that rests may go."""
        span_s = min(self._list_at, self._resting.due_at) - self._clock.monotonic()
        self._look_again.clear()
        with suppress(TimeoutError):
            async with self._clock.timeout(span_s):
                await self._look_again.wait()

    async def _list(self) -> bool:
        """Look for sessions that do not rest; returns whether a run until empty is at its end."""
        longest_s = FIRST_PAUSE_S if self._is_until_empty else LONGEST_PAUSE_S
        had_news, self._has_news = self._has_news, False
        self._pause_s = FIRST_PAUSE_S if had_news else min(max(2 * self._pause_s, FIRST_PAUSE_S), longest_s)
        self._list_at = self._clock.monotonic() + self._pause_s
        others = self._resting.compare(await self._listed(), self._random, LOOKED_AT)
        self._others.extend(others)
        if had_news and len(others) == LOOKED_AT:
            self._list_at = float("-inf")  # there are more, and to look at them is not in vain
        return self._is_until_empty and not others and self._resting.least_failures >= TRIES_UNTIL_EMPTY

    @contextmanager
    def visiting(self, session_id: str) -> Iterator[None]:
        """While a session is held, nobody else here is sent there."""
        self._visited.add(session_id)
        try:
            yield
        finally:
            self._visited.discard(session_id)

    def learnt(self) -> None:
        """A message came home, or a session was found that rests: there may be more to learn soon."""
        self._has_news = True

    def recovered(self) -> None:
        """A destination accepts messages again: its sessions do not rest any more."""
        self._has_news = True
        self._list_at = float("-inf")
        self._look_again.set()
