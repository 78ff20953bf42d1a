"""Limits how long one connection may occupy the event loop before all others run.

Laws:

1. A time slice ends after some events or some time, whichever comes first. The connection then lets the others run.
2. A client without a token waits for its turn before each time slice: few of them are served in one step of the event
   loop, so that thousands of them do not delay the others.
3. The tasks that an event starts run after the time slice. A connection whose events cause much work gets shorter time
   slices, down to a single event. Only its own work counts, so that a busy connection does not slow the others.
"""

from __future__ import annotations

import asyncio
from typing import Final

from sbclient import clock

MAX_DURATION_S: Final = 0.001
MAX_EVENTS: Final = 32
"""Of one time slice: an event and its work take some ten microseconds, so both limits are about a millisecond."""


SHARE: Final = 4
"""How much shorter the time slices of clients without a token are, because several are served in one step."""


class TimeSlice:
    """The time slices of one connection, one after the other.

    Args:
        turns: limits the clients without a token; None = this one has a token.
    """

    def __init__(self, turns: asyncio.Semaphore | None = None) -> None:
        self.turns = turns
        self._allowed = MAX_EVENTS
        self._work_s = 0.0
        self._begin()

    def _begin(self) -> None:
        share = 1 if self.turns is None else SHARE
        self._left = max(1, self._allowed // share)
        self._ends_at = clock.monotonic() + MAX_DURATION_S / share

    @property
    def is_over(self) -> bool:
        """Whether other connections should run now."""
        return self._left <= 0 or clock.monotonic() >= self._ends_at

    def count(self, events: int = 1) -> None:
        """Count events."""
        self._left -= events

    def end(self) -> None:
        """End this time slice, after an event that causes much work."""
        self._left = 0

    def add_work(self, duration_s: float) -> None:
        """Count the time that a task of this connection has occupied the event loop."""
        self._work_s += duration_s

    async def start_next(self) -> None:
        """Let all other tasks run, and wait for a turn, then start the next time slice."""
        if self.turns is None:
            await clock.step()
        else:
            await start_unauthenticated(self.turns)
        self.restart()

    def restart(self) -> None:
        """Start the next time slice after a wait during which all other tasks ran."""
        is_heavy, self._work_s = self._work_s > 2 * MAX_DURATION_S, 0.0
        self._allowed = max(1, self._allowed // 2) if is_heavy else min(MAX_EVENTS, self._allowed * 2)
        self._begin()


async def start_unauthenticated(unauthenticated: asyncio.Semaphore) -> None:
    """Wait for a step of the event loop in which few other clients without a token are served."""
    async with unauthenticated:
        await clock.step()
