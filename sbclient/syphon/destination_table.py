"""The entities of the primary that one syphon brings messages home to: found by path, bounded in number, and forgotten
when nothing has waited for them for a while (`destination.FORGET_AFTER_S`).

What is forgotten is a link, a task, and how it went; whoever comes next finds that out anew. Nothing is forgotten of an
entity for which a message is known to wait, so neither the pauses between two tries nor `missing_entity_grace` begin
anew while there is something to try.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Final

from sbclient.pairing.state import PairState
from sbclient.rate_limit import Paces
from sbclient.rules.entity_path import canonical
from sbclient.syphon.destination import Destination, Take
from sbclient.syphon.queue_source import BacklogSource
from sbclient.syphon.status import Trouble
from sbclient.tasks import OwnedTasks

DESTINATIONS_KEPT: Final = 1000
"""Beyond so many, those for which nothing waits are forgotten: each has a sender link and a task. If something waits
for every one, messages for others are parked until there is a place."""


class Destinations:
    """The destinations of one syphon, each with a task of its own.

    Args:
        paces: how fast they may be sent to.
        counts: gains `drained` and `dead_lettered.<reason>`.
        take: takes fetched messages in hand, but for those that it deals with otherwise.
        notify: called whenever one has answered, and told whether it accepts messages again after having refused.
        on_failure: is told what should never happen.
    """

    def __init__(
        self,
        pair: PairState,
        paces: Paces,
        counts: Counter[str],
        *,
        take: Take,
        notify: Callable[[bool], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._pair = pair
        self._paces = paces
        self._counts = counts
        self._take = take
        self._notify = notify
        self._known: dict[str, Destination] = {}
        self._accepted: tuple[str, float] | None = None
        self._workers = OwnedTasks(on_failure=on_failure)

    def __len__(self) -> int:
        return len(self._known)

    def find(self, path: str) -> Destination | None:
        """The destination of that path, if it is known."""
        return self._known.get(canonical(path))

    def get(self, path: str) -> Destination | None:
        """The destination of that path; None if it is not known and there is no place for another one."""
        destination = self.find(path)
        if destination is None:
            if not self._has_place():
                return None
            destination = Destination(self._pair, path, self._paces, self._counts, self._notify)
            destination.worker = self._workers.start(self._tend(destination), name=f"syphon to {path}")
            self._known[canonical(path)] = destination
        return destination

    def _has_place(self) -> bool:
        """Whether there is room for another destination, if need be by forgetting one."""
        if len(self._known) < DESTINATIONS_KEPT:
            return True
        for destination in self._known.values():
            if destination.is_idle:
                self._forget(destination)
                self._workers.end(destination.worker)
                self._workers.start(destination.close(), name=f"forget {destination.path}")
                return True
        return False

    async def _tend(self, destination: Destination) -> None:
        """Let a destination work for as long as it is needed."""
        await destination.work(self._take)
        if not destination.is_ending:
            self._forget(destination)  # nothing can have come in between
            await destination.close()

    def _forget(self, destination: Destination) -> None:
        self._accepted = self.accepted
        del self._known[canonical(destination.path)]

    # -- how they stand ------------------------------------------------------------------------------------------

    @property
    def is_stalled(self) -> bool:
        """Whether every one that was tried refuses, and none that is forgotten accepted anything since."""
        known = list(self._known.values())
        troubles = [one.trouble.since_at for one in known if one.trouble is not None]
        if not troubles or any(one.has_succeeded for one in known):
            return False
        return self._accepted is None or self._accepted[1] < max(troubles)

    @property
    def unhappy(self) -> list[Destination]:
        """Those that refuse."""
        return [one for one in list(self._known.values()) if one.is_unhappy]

    @property
    def parked_count(self) -> int:
        """Messages known to be put aside for them."""
        return sum(one.parked_count for one in self._known.values())

    @property
    def accepted(self) -> tuple[str, float] | None:
        """The one that was the last to accept a message, and when."""
        accepted = [(one.path, one.accepted_at) for one in list(self._known.values()) if one.accepted_at is not None]
        accepted += [self._accepted] if self._accepted is not None else []
        return max(accepted, key=lambda pair: pair[1], default=None)

    def refusing(self) -> dict[str, Trouble]:
        """What those that refuse say, by path."""
        return {one.path: one.trouble for one in self.unhappy if one.trouble is not None}

    def failures_of_waited_for(self, source: BacklogSource, *, with_overlooked: bool) -> list[int]:
        """How often each destination failed for which something is put aside in that queue.

        Args:
            with_overlooked: there is more in it than is known, for any of those that have something put aside.
        """
        return [
            one.failures
            for one in self._known.values()
            if one.has_parked_in(source) or (with_overlooked and one.parked_count)
        ]

    # -- the end -------------------------------------------------------------------------------------------------

    def end(self) -> list[asyncio.Task[None]]:
        """Begin nothing new; returns the tasks that are worth waiting for, since something is on its way."""
        return [one.worker for one in self._known.values() if one.end()]

    async def stop(self) -> None:
        """End every task; what is on its way is in doubt."""
        await self._workers.close()

    async def close(self) -> None:
        """Detach, once `stop` has ended the tasks."""
        await asyncio.gather(*(destination.close() for destination in self._known.values()))
