"""The destinations of one syphon: found by path, limited in number, forgotten when no message has waited for a while.

Forgetting drops a link, a task and the result of the last attempt; a later message finds them out again. A destination
for which a message is known to wait is never forgotten, so that its back-off and `missing_entity_grace` do not start
again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from sbclient.message import ServiceBusReceivedMessage
from sbclient.pairing.state import PairState
from sbclient.rate_limit import RateLimits
from sbclient.rules.entity_path import canonical
from sbclient.rules.envelope import path_of
from sbclient.rules.refusal import OngoingError
from sbclient.syphon.destination import Destination
from sbclient.syphon.source import TRIES_UNTIL_EMPTY, InFlight, Source
from sbclient.syphon.status import Progress
from sbclient.tasks import OwnedTasks

DESTINATIONS_KEPT: Final = 1000
"""Beyond this number idle destinations are forgotten: each has a sender link and a task. If none is idle, messages for
other destinations are parked."""


class Destinations:
    """The destinations of one syphon, each with its own task.

    Args:
        rates: limits of the send rates.
        progress: counts the messages that they have accepted.
        sources: are notified of the answers of every destination.
        on_failure: receives unexpected exceptions.
    """

    def __init__(
        self,
        pair: PairState,
        rates: RateLimits,
        progress: Progress,
        sources: Sequence[Source],
        *,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._pair = pair
        self._rates = rates
        self._progress = progress
        self._sources = sources
        self._known: dict[str, Destination] = {}
        self._forgotten_accepted_at = float("-inf")
        self._workers = OwnedTasks(on_failure=on_failure)

    def __len__(self) -> int:
        return len(self._known)

    async def offer(self, messages: Sequence[InFlight]) -> None:
        """Give messages to their destinations; park a message if there is no place for its destination."""
        for message in messages:
            destination = self._get(message.unsealed.destination)
            if destination is not None:
                await destination.offer(message)
            else:
                await message.park()

    def remember_parked(self, source: Source, path: str, number: int) -> bool:
        """Remember a parked message that a scan has found; return False if there is no room for it."""
        destination = self._get(path)
        return destination is not None and destination.remember_parked(source, number)

    def can_forward(self, message: ServiceBusReceivedMessage) -> bool:
        """Return whether a waiting message can be sent or dead-lettered now: its destination does not refuse it."""
        path = path_of(message)
        destination = None if path is None else self._known.get(canonical(path))
        return destination is None or destination.can_forward()

    def parked_in(self, source: Source) -> list[dict[int | str, None]]:
        """Return what is known to be parked in a queue, for each destination; the caller removes what is gone."""
        return [parked for one in self._known.values() if (parked := one.parked_in(source))]

    def _get(self, path: str) -> Destination | None:
        """Return the destination of a path; None if it is not known and there is no place for another one."""
        destination = self._known.get(canonical(path))
        if destination is None:
            if not self._has_place():
                return None
            destination = Destination(self._pair, path, self._rates, self._progress, self._sources, self._workers)
            destination.worker = self._workers.start(self._run(destination), name=f"syphon to {path}")
            self._known[canonical(path)] = destination
        return destination

    def _has_place(self) -> bool:
        """Return whether there is room for another destination; forget an idle one if necessary."""
        if len(self._known) < DESTINATIONS_KEPT:
            return True
        for destination in self._known.values():
            if destination.is_idle:
                self._forget(destination)
                self._workers.end(destination.worker)
                self._workers.start(destination.close(), name=f"forget {destination.path}")
                return True
        return False

    async def _run(self, destination: Destination) -> None:
        """Run a destination until it is not needed any more."""
        await destination.work()
        if not destination.is_ending:
            self._forget(destination)  # no message can have arrived since `work` returned
            await destination.close()

    def _forget(self, destination: Destination) -> None:
        self._forgotten_accepted_at = max(self._forgotten_accepted_at, destination.accepted_at)
        del self._known[canonical(destination.path)]

    # -- status --------------------------------------------------------------------------------------------------

    def refusing(self) -> dict[str, OngoingError]:
        """Return the errors of the destinations that refuse messages, by path; callable in any thread."""
        return {one.path: refusal.error for one in list(self._known.values()) if (refusal := one.refusal) is not None}

    @property
    def is_stalled(self) -> bool:
        """Whether every destination that was tried refuses, and no forgotten one has accepted a message since."""
        since_at = max((error.since_at for error in self.refusing().values()), default=None)
        if since_at is None or any(one.has_succeeded for one in self._known.values()):
            return False
        return max(self._forgotten_accepted_at, *(one.accepted_at for one in self._known.values())) < since_at

    @property
    def are_queues_stalled(self) -> bool:
        """Whether receiving from plain queues would only park messages, for what is known."""
        return self.is_stalled and any(one.is_refusing_queues for one in self._known.values())

    @property
    def are_refused_for_good(self) -> bool:
        """Whether a run until empty has tried every destination often enough, and every one refuses."""
        return (
            self.is_stalled and min(one.failures for one in self._known.values() if one.failures) >= TRIES_UNTIL_EMPTY
        )

    @property
    def parked_count(self) -> int:
        """Number of messages that are known to be parked."""
        return sum(one.parked_count for one in self._known.values())

    def failures_of_waiting(self, source: Source, *, with_forgotten: bool) -> list[int]:
        """Return the failures of each destination that has parked messages in that queue.

        Args:
            with_forgotten: the queue has more parked messages than are remembered, so that they may belong to any
                destination that has parked messages.
        """
        return [
            one.failures
            for one in self._known.values()
            if one.parked_in(source) or (with_forgotten and one.parked_count)
        ]

    # -- the end -------------------------------------------------------------------------------------------------

    def end(self) -> list[asyncio.Task[None]]:
        """Start nothing new; return the tasks that are worth waiting for: running transfers and completions."""
        return [task for one in self._known.values() for task in one.end()]

    async def stop(self) -> None:
        """Cancel every task; the result of a running transfer is unknown."""
        await self._workers.close()

    async def close(self) -> None:
        """Close every link, after `stop`."""
        await asyncio.gather(*(destination.close() for destination in self._known.values()))
