"""The syphon: brings the messages of the backlog queues home to the entities they were sent to.

The laws (documented: peek-lock, complete only after the primary accepted, any number of syphons side by side; the rest
is ours):

1. A message is completed only after the primary has it, so a crash at any moment costs a duplicate at most, never a
   loss.
2. A destination that refuses holds up nobody else: its messages are deferred in their queue and tried again later.
3. What can never be brought home is dead-lettered in its backlog queue, with a reason that never changes.
4. What is in hand is bounded, in number and in bytes, and its locks are renewed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from sbclient.backlog_source import BacklogSource, Held
from sbclient.destination import Destination
from sbclient.errors import ServiceBusError
from sbclient.log import get_logger
from sbclient.message import ServiceBusReceivedMessage
from sbclient.pair import Pair
from sbclient.rules.entity_path import canonical, is_entity_path
from sbclient.rules.envelope import PATH, MalformedEnvelopeError, unseal
from sbclient.rules.ping import is_ping
from sbclient.session_source import SessionSource
from sbclient.tasks import OwnedTasks
from sbclient.transport.base import Settlement, SettleMode

log = get_logger(__name__)

DESTINATIONS_KEPT: Final = 1000
"""Beyond so many, those for which nothing waits are forgotten: each has a sender link and a task."""

STRAYS_KEPT: Final = 1000
EMPTY_WAIT_S: Final = 0.5
"""How long a syphon that is to stop at an empty backlog waits before it looks whether it is empty."""

TRIES_UNTIL_EMPTY: Final = 3
"""How often a refusing destination is tried again before a run `until="empty"` leaves its messages where they are."""

LOOK_AGAIN_S: Final = 60.0
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0
SHUT_DOWN_S: Final = 5.0
TRICKLE_MESSAGES: Final = 10
"""What is taken from a queue at a time while every destination refuses, to find one that does not."""


@dataclass(frozen=True, slots=True)
class SyphonReport:
    """What a syphon did.

    Attributes:
        drained: messages that the primary accepted.
        dead_lettered: messages that were dead-lettered in their backlog queue, by reason.
        parked: messages known to be left, deferred in their backlog queue, because their destination refuses them.
    """

    drained: int = 0
    dead_lettered: dict[str, int] = field(default_factory=dict)
    parked: int = 0


class Syphon:
    """One run of a syphon over all backlog queues of a pair.

    Args:
        pair: opened.
        until: `"empty"` ends it when nothing is left that can be moved; None runs until it is cancelled.
    """

    def __init__(self, pair: Pair, *, until: Literal["empty"] | None = None) -> None:
        self._pair = pair
        self._clock = pair.clock
        self._until = until
        self._sources = [BacklogSource(pair.secondary, queue, pair.clock) for queue in pair.backlog_queues]
        self._sessions = [SessionSource(pair, queue, until=until) for queue in pair.session_backlog_queues]
        self._destinations: dict[str, Destination] = {}
        self._strays: dict[BacklogSource, list[int]] = {source: [] for source in self._sources}
        self._counts: Counter[str] = Counter()
        self._failure: BaseException | None = None
        self._tasks = OwnedTasks(on_failure=self._fail)
        self._workers = OwnedTasks(on_failure=self._fail)

    async def run(self) -> SyphonReport:
        """Drain until the end; a cancellation lets what is on its way arrive and gives back what is in hand.

        What one message, one entity or one namespace answers never ends it: that is tried again, or dead-lettered.
        """
        log.info("syphon.started", queues=len(self._sources) + len(self._sessions), until=self._until or "cancelled")
        try:
            drains = [self._start(self._drain(source), f"syphon {source.queue}") for source in self._sources]
            drains += [self._start(source.run(self._counts), f"syphon {source.queue}") for source in self._sessions]
            for source in self._sources:
                self._start(source.keep_locks(), f"locks {source.queue}")
                if self._until is None:
                    self._start(self._look_around(source), f"scan {source.queue}")
            while drains and self._failure is None:
                _, pending = await asyncio.wait(drains, return_when=asyncio.FIRST_COMPLETED)
                drains = list(pending)
        finally:
            await self._shut_down()
        if self._failure is not None:
            raise self._failure
        report = self.report()
        log.info("syphon.ended", drained=report.drained, dead_lettered=report.dead_lettered, parked=report.parked)
        return report

    def report(self) -> SyphonReport:
        """What was done so far."""
        prefix = "dead_lettered."
        return SyphonReport(
            drained=self._counts["drained"],
            dead_lettered={
                name.removeprefix(prefix): count
                for name, count in sorted(self._counts.items())
                if name.startswith(prefix) and count
            },
            parked=sum(destination.parked_count for destination in self._destinations.values()),
        )

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        return self._tasks.start(work, name=name)

    def _fail(self, error: BaseException) -> None:
        self._failure = self._failure or error

    async def _shut_down(self) -> None:
        """Stop taking; let what is on its way arrive, for a few seconds; give the rest back."""
        await self._tasks.close()
        on_their_way = [one.worker for one in self._destinations.values() if one.end()]
        late = await self._clock.wait(on_their_way, SHUT_DOWN_S)
        if late:
            log.warning("syphon.gave_up_waiting", transfers=len(late), seconds=SHUT_DOWN_S)
        await self._workers.close()
        for source in self._sources:
            await source.close()
        for destination in self._destinations.values():
            await destination.close()

    # -- one backlog queue ---------------------------------------------------------------------------------------

    async def _drain(self, source: BacklogSource) -> None:
        """Take messages from one queue and hand them to their destinations, until the end."""
        is_until_empty = self._until == "empty"
        wait_s = EMPTY_WAIT_S if is_until_empty else self._pair.options.syphon_long_poll.total_seconds()
        failures = 0
        while True:
            room = await self._room(source)
            if not room:
                return
            try:
                messages = await source.receive(max_message_count=room, max_wait_time_s=wait_s)
                failures = 0
                for message in messages:
                    await self._take_on(source, message)
                if is_until_empty and not messages and await self._is_finished(source):
                    return
            except ServiceBusError as error:
                failures += 1
                if failures == 1:
                    self._pair.record("syphon.queue_unreachable", source.queue, error=type(error).__name__)
                await self._clock.sleep(min(FIRST_PAUSE_S * 2 ** min(failures - 1, 16), LONGEST_PAUSE_S))
                await source.reopen()

    async def _room(self, source: BacklogSource) -> int:
        """How many messages to take next, waiting until there is room for one.

        While every destination refuses, as when the whole primary is down, only a few are taken each time one is due
        to be tried again; a run until empty then ends, and 0 says so.
        """
        while not source.room:
            source.changed.clear()
            await source.changed.wait()
        if not self._is_stalled:
            return source.room
        unhappy = [one for one in self._destinations.values() if one.is_unhappy]
        if self._until == "empty" and min(one.failures for one in unhappy) >= TRIES_UNTIL_EMPTY:
            return 0
        await self._changed_within(source, min(one.retry_at for one in unhappy) - self._clock.monotonic())
        return min(source.room, TRICKLE_MESSAGES) or await self._room(source)

    @property
    def _is_stalled(self) -> bool:
        tried = [one for one in self._destinations.values() if one.is_unhappy or one.has_succeeded]
        return bool(tried) and all(one.is_unhappy for one in tried)

    async def _changed_within(self, source: BacklogSource, span_s: float) -> None:
        """Wait for news, at most that many seconds and at least a moment."""
        source.changed.clear()
        try:
            async with self._clock.timeout(max(span_s, 0.1)):
                await source.changed.wait()
        except TimeoutError:
            return

    async def _take_on(self, source: BacklogSource, message: ServiceBusReceivedMessage) -> None:
        held = await self._take(source, message)
        if held is not None:
            await self._destination(held.unsealed.destination).offer(held)

    async def _take(self, source: BacklogSource, message: ServiceBusReceivedMessage) -> Held | None:
        """Take a received message in hand, or deal with it here if it is not one to be moved."""
        if source.was_accepted(message) or is_ping(message):
            await source.settle(message, Settlement(SettleMode.COMPLETE))
            return None
        try:
            unsealed = unseal(message, now=self._clock.now(), life=self._pair.options.backlog_time_to_live)
        except MalformedEnvelopeError as error:
            self._counts[f"dead_lettered.{error.reason}"] += 1
            self._pair.record("syphon.dead_lettered", source.queue, reason=error.reason, queue=source.queue)
            await source.settle(message, Settlement(SettleMode.DEAD_LETTER, error.reason, error.description))
            return None
        return source.hold(message, unsealed)

    def _destination(self, path: str) -> Destination:
        key = canonical(path)
        destination = self._destinations.get(key)
        if destination is None:
            self._forget_one()
            destination = Destination(self._pair, path, self._counts, self._tell_sources)
            destination.worker = self._workers.start(destination.work(self._take), name=f"syphon to {path}")
            self._destinations[key] = destination
        return destination

    def _tell_sources(self) -> None:
        """A destination began to accept or to refuse: whoever waits for room looks again."""
        for source in self._sources:
            source.changed.set()

    def _forget_one(self) -> None:
        if len(self._destinations) < DESTINATIONS_KEPT:
            return
        for key, destination in self._destinations.items():
            if destination.is_idle:
                del self._destinations[key]
                destination.worker.cancel()
                self._workers.start(destination.close(), name=f"forget {destination.path}")
                return

    # -- what was put aside --------------------------------------------------------------------------------------

    async def _look_around(self, source: BacklogSource) -> None:
        """Look for parked messages now, and again from time to time: another syphon may have left some behind."""
        while True:
            pause_s = LOOK_AGAIN_S
            try:
                scan = await source.scan(self)
                await self._fetch_strays(source)
                if not scan.overlooked:
                    pause_s = max(self._pair.options.syphon_long_poll.total_seconds(), LOOK_AGAIN_S)
            except ServiceBusError as error:
                log.info("syphon.not_scanned", queue=source.queue, error=type(error).__name__)
            await self._clock.sleep(pause_s)

    def found_parked(self, source: BacklogSource, message: ServiceBusReceivedMessage) -> bool:
        """Take note of a parked message that a scan came across; see `ParkedMessages`."""
        path = message.application_properties.get(PATH)
        if isinstance(path, str) and is_entity_path(path):
            return self._destination(path).found_parked(source, message)
        strays = self._strays[source]
        if len(strays) >= STRAYS_KEPT:
            return False
        strays.append(message.sequence_number)
        return True

    async def _fetch_strays(self, source: BacklogSource) -> None:
        """Deferred messages without a legal destination: nobody's, so they are dealt with here."""
        strays, self._strays[source] = self._strays[source], []
        for number in strays:
            for message in await source.fetch([number]):
                await self._take_on(source, message)

    async def _is_finished(self, source: BacklogSource) -> bool:
        """Whether nothing is left in a queue but what its destinations keep refusing; waits a moment if it is."""
        if not source.held:
            scan = await source.scan(self)
            await self._fetch_strays(source)
            waiting = [one for one in self._destinations.values() if one.has_parked_in(source)]
            is_stuck = all(one.failures >= TRIES_UNTIL_EMPTY for one in waiting)
            if not scan.active and not source.held and is_stuck and not (scan.overlooked and not waiting):
                return True
        await self._changed_within(source, FIRST_PAUSE_S)
        return False
