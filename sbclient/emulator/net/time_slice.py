"""How long one connection may keep the event loop to itself before all others have their turn.

Laws:

1. A turn ends after some events, or after some time, whichever comes first; whoever reads a connection passes on then.
2. What an event sets going runs in tasks, after the turn. A connection whose turns cause much such work has shorter
   ones, down to a single event; its own work counts and nobody else's, so that a busy neighbour makes nobody slow.
"""

from __future__ import annotations

from typing import Final

from sbclient.clock import Clock

LONGEST_S: Final = 0.001
MOST_EVENTS: Final = 32
"""Of one turn: at some ten microseconds for an event and its work, both are about a millisecond."""


class TimeSlice:
    """The turns of one connection.

    Args:
        clock: tells how long a turn has lasted; on a virtual one only events count.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._allowed = MOST_EVENTS
        self._work_s = 0.0
        self._begin()

    def _begin(self) -> None:
        self._left = self._allowed
        self._ends_at = self._clock.monotonic() + LONGEST_S

    @property
    def is_over(self) -> bool:
        """Whether it is the others' turn."""
        return self._left <= 0 or self._clock.monotonic() >= self._ends_at

    def count(self) -> None:
        """One more event was answered."""
        self._left -= 1

    def end(self) -> None:
        """End this turn: what was answered last is heavy."""
        self._left = 0

    def add_work(self, span_s: float) -> None:
        """A task of this connection has kept the event loop for so long."""
        self._work_s += span_s

    async def start_next(self) -> None:
        """Let everybody else go on; then the next turn begins."""
        await self._clock.sleep(0)
        is_heavy, self._work_s = self._work_s > 2 * LONGEST_S, 0.0
        self._allowed = max(1, self._allowed // 2) if is_heavy else min(MOST_EVENTS, self._allowed * 2)
        self._begin()
