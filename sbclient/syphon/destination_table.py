"""The destinations of one syphon: found by path, limited in number, forgotten when no message has waited for a while.

Forgetting drops a link, a task and the result of the last attempt; a later message finds them out again. If there is no
place for another destination, one that refuses gives up its place until its next attempt is due. Its refusal is kept,
so that its back-off and its grace do not start again, and a scan finds its parked messages again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from typing import Final

from sbclient import clock
from sbclient.message import ServiceBusReceivedMessage
from sbclient.pairing.state import PairState
from sbclient.rate_limit import RateLimits
from sbclient.rules.entity_path import canonical
from sbclient.rules.envelope import path_of
from sbclient.rules.refusal import OngoingError, Refusal
from sbclient.syphon.destination import FORGET_AFTER_S, Destination
from sbclient.syphon.source import TRIES_UNTIL_EMPTY, InFlight, Source
from sbclient.syphon.status import Progress
from sbclient.tasks import OwnedTasks

DESTINATIONS_KEPT: Final = 1000
"""Beyond this number idle destinations are forgotten, then refusing ones replaced, since each has a sender link and a
task. If there is neither, messages for other destinations are parked."""


@dataclass(slots=True)
class _Left:
    """A refusing destination that has given up its place.

    Attributes:
        path: of the entity.
        refusal: its state.
        needed_at: monotonic time at which a message was last known to wait for it.
    """

    path: str
    refusal: Refusal
    needed_at: float


class Destinations:
    """The destinations of one syphon, each with its own task.

    Args:
        rates: limits of the send rates.
        progress: counts the messages that they have accepted.
        sources: are notified of the answers of every destination.
        on_failure: receives unexpected exceptions.

    Attributes:
        untried_replaced: how many destinations gave up their place before they had refused often enough to end a run
            until empty.
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
        self._left: dict[str, _Left] = {}  # the one that has waited longest for a message first
        self._closing: dict[Destination, None] = {}  # the forgotten ones whose links may be open
        self._due = (float("-inf"), float("-inf"))
        self._full_at = {True: float("-inf"), False: float("-inf")}
        self.untried_replaced = 0
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
        if path is None:
            return True
        if (destination := self._known.get(canonical(path))) is not None:
            return destination.can_forward()
        left = self._left.get(canonical(path))
        return left is None or left.refusal.retry_at <= clock.monotonic()

    def failures_of(self, path: str) -> int:
        """Return the number of consecutive failures of a destination."""
        known, left = self._known.get(canonical(path)), self._left.get(canonical(path))
        return known.tries if known is not None else left.refusal.failures if left is not None else 0

    def parked_in(self, source: Source) -> list[dict[int | str, None]]:
        """Return what is known to be parked in a queue, for each destination; the caller removes what is gone."""
        return [parked for one in self._known.values() if (parked := one.parked_in(source))]

    def _get(self, path: str) -> Destination | None:
        """Return the destination of a path; None if it is not known and there is no place for another one."""
        key = canonical(path)
        destination = self._known.get(key)
        if destination is None:
            now = clock.monotonic()
            left = self._left.pop(key, None)
            is_due = left is None or left.refusal.retry_at <= self._due_until(now)
            if not is_due or not self._has_place(now, is_refusing=left is not None):
                if left is not None:
                    left.needed_at = now
                    self._left[key] = left
                return None
            refusal = None if left is None else left.refusal
            destination = Destination(
                self._pair, path, self._rates, self._progress, self._sources, self._workers, refusal
            )
            destination.worker = self._workers.start(self._run(destination), name=f"syphon to {path}")
            self._known[key] = destination
        return destination

    def _due_until(self, now: float) -> float:
        """Return until when the next attempt of a destination without a place must have been due to get one.

        Those that have waited longest come first: in the order of a queue, the first ones would be due again before the
        last ones had a turn.
        """
        if self._due[0] != now:
            longest = nsmallest(DESTINATIONS_KEPT, (one.refusal.retry_at for one in self._left.values()))
            self._due = now, min(now, longest[-1]) if longest else now
        return self._due[1]

    def _has_place(self, now: float, *, is_refusing: bool) -> bool:
        """Return whether there is room for another destination; forget or replace one if necessary.

        Args:
            is_refusing: it replaces only a destination that has been tried since it was due.
        """
        if len(self._known) < DESTINATIONS_KEPT:
            return True
        if self._full_at[is_refusing] == now:  # a scan asks for many messages at once
            return False
        gone = next((one for one in self._known.values() if one.is_idle), None)
        if gone is None:
            waiting = [(refusal.retry_at, one) for one in self._known.values() if (refusal := one.replaceable)]
            retry_at, gone = max(waiting, key=lambda each: each[0], default=(now, None))
            if gone is None or gone.refusal is None or (is_refusing and retry_at <= now):
                self._full_at[is_refusing] = now
                return False
            self.untried_replaced += gone.tries < TRIES_UNTIL_EMPTY
        if gone.outage is not None:
            self._left[canonical(gone.path)] = _Left(gone.path, gone.outage, now)
            while (first := next(iter(self._left.values()))).needed_at <= now - FORGET_AFTER_S:
                del self._left[canonical(first.path)]
        self._forget(gone)
        self._workers.end(gone.worker)
        self._workers.start(self._close(gone), name=f"forget {gone.path}")
        return True

    async def _run(self, destination: Destination) -> None:
        """Run a destination until it is not needed any more."""
        await destination.work()
        if not destination.is_ending:
            self._forget(destination)  # no message can have arrived since `work` returned
            await self._close(destination)

    def _forget(self, destination: Destination) -> None:
        self._forgotten_accepted_at = max(self._forgotten_accepted_at, destination.accepted_at)
        del self._known[canonical(destination.path)]
        self._closing[destination] = None

    async def _close(self, destination: Destination) -> None:
        await destination.close()
        del self._closing[destination]

    # -- status --------------------------------------------------------------------------------------------------

    def refusing(self) -> dict[str, OngoingError]:
        """Return the errors of the destinations that refuse messages, by path; callable in any thread."""
        needed_since_at = clock.monotonic() - FORGET_AFTER_S
        left = {one.path: one.refusal.error for one in list(self._left.values()) if one.needed_at > needed_since_at}
        known = list(self._known.values())
        return left | {one.path: error for one in known if (error := one.error) is not None}

    def redirected(self) -> dict[str, float]:
        """Return since when the secondary accepts messages instead of the primary, by path; callable in any thread."""
        since = {one.path: one.redirected_at for one in list(self._known.values())}
        return {path: since_at for path, since_at in since.items() if since_at is not None}

    @property
    def is_stalled(self) -> bool:
        """Whether every destination that was tried refuses, and no forgotten one has accepted a message since."""
        since_at = max((error.since_at for error in self.refusing().values()), default=None)
        if since_at is None or any(one.has_succeeded for one in self._known.values()):
            return False
        return max([self._forgotten_accepted_at, *(one.accepted_at for one in self._known.values())]) < since_at

    @property
    def are_queues_stalled(self) -> bool:
        """Whether receiving from plain queues would only park messages, for what is known."""
        return self.is_stalled and any(one.is_refusing_queues for one in self._known.values())

    @property
    def are_refused_for_good(self) -> bool:
        """Whether a run until empty has tried every destination often enough, and every one refuses."""
        failures = [one.tries for one in self._known.values() if one.failures]
        failures += [one.refusal.failures for one in self._left.values()]
        return self.is_stalled and min(failures) >= TRIES_UNTIL_EMPTY

    def failures_of_waiting(self, source: Source) -> list[int]:
        """Return the failures of each destination that is known to have parked messages in that queue."""
        return [one.tries_for(source) for one in self._known.values() if one.parked_in(source)]

    # -- the end -------------------------------------------------------------------------------------------------

    def end(self) -> list[asyncio.Task[None]]:
        """Start nothing new; return the tasks that are worth waiting for: running transfers and completions."""
        return [task for one in self._known.values() for task in one.end()]

    async def stop(self) -> None:
        """Cancel every task; the result of a running transfer is unknown."""
        await self._workers.close()

    async def close(self) -> None:
        """Close every link, after `stop`."""
        await asyncio.gather(*(destination.close() for destination in (*self._known.values(), *self._closing)))
