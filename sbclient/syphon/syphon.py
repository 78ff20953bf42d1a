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
import logging
from collections import Counter
from collections.abc import Collection, Coroutine, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

from sbclient.delivery import Settlement, SettleMode
from sbclient.errors import MessagingEntityNotFoundError, ServiceBusError
from sbclient.message import ServiceBusReceivedMessage
from sbclient.options import SyphonLimits
from sbclient.pairing.pair import Pair
from sbclient.rules.backoff import backoff_s
from sbclient.rules.entity_path import is_entity_path
from sbclient.rules.envelope import PATH, MalformedEnvelopeError, unseal
from sbclient.rules.ping import is_ping
from sbclient.syphon.budget import SyphonShare
from sbclient.syphon.destination import FORGET_AFTER_S
from sbclient.syphon.destination_table import Destinations
from sbclient.syphon.queue_source import BacklogSource, Held
from sbclient.syphon.session_source import WORKERS, SessionSource
from sbclient.syphon.status import DEAD_LETTERED, DONE, PollRecord, SyphonStatus, Trouble
from sbclient.tasks import OwnedTasks
from sbclient.telemetry import metrics, tracing
from sbclient.telemetry.log import get_logger

log = get_logger(__name__)

STRAYS_KEPT: Final = 1000
TRIES_UNTIL_EMPTY: Final = 3
"""How often a refusing destination is tried again before a run `until="empty"` leaves its messages where they are."""

LOOK_AGAIN_S: Final = 60.0
LOOK_IN_VAIN_S: Final = FORGET_AFTER_S / 2
"""How often at least a queue is looked through that holds more than can be taken note of: before its destination is
forgotten, so that `missing_entity_grace` does not begin anew for them."""
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0
SHUT_DOWN_S: Final = 5.0

_COMPLETE: Final = Settlement(SettleMode.COMPLETE)


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
        queues: only these backlog queues, by name; None = every one of the pair.
        limits: how fast it goes, and how much it has in hand; None = the defaults.
        shut_down_s: how long, at the end, what is on its way may take to arrive.
    """

    def __init__(
        self,
        pair: Pair,
        *,
        until: Literal["empty"] | None = None,
        queues: Collection[str] | None = None,
        limits: SyphonLimits | None = None,
        shut_down_s: float = SHUT_DOWN_S,
    ) -> None:
        self._pair = state = pair.state
        self._clock = state.clock
        self._until = until
        self._shut_down_s = shut_down_s
        chosen = {*state.backlog_queues, *state.session_backlog_queues} if queues is None else set(queues)
        plain = [name for name in state.backlog_queues if name in chosen]
        with_sessions = [name for name in state.session_backlog_queues if name in chosen]
        self._share = share = SyphonShare(
            state.clock,
            limits or SyphonLimits(),
            queues=len(plain) + len(with_sessions),
            askers=len(plain) + WORKERS * len(with_sessions),
            long_poll_s=None if until == "empty" else state.options.syphon_long_poll.total_seconds(),
        )
        self._sources = [
            BacklogSource(state.secondary, name, state.clock, state.accepted, share.window()) for name in plain
        ]
        self._sessions = [
            SessionSource(state, name, share, until=until, shut_down_s=shut_down_s) for name in with_sessions
        ]
        self._polls = {source: PollRecord(source.queue, state.clock) for source in self._sources}
        self._strays: dict[BacklogSource, list[int]] = {source: [] for source in self._sources}
        self._counts: Counter[str] = Counter()
        self._failure: BaseException | None = None
        self._drains: list[asyncio.Task[None]] = []
        self._tasks = OwnedTasks(on_failure=self._fail)
        self._destinations = Destinations(
            state,
            share.paces,
            self._counts,
            take=self._take,
            notify=self._tell_sources,
            on_failure=self._fail,
        )

    async def run(self) -> SyphonReport:
        """Drain until the end; a cancellation lets what is on its way arrive and gives back what is in hand.

        What one message, one entity or one namespace answers never ends it: that is tried again, or dead-lettered.
        """
        log.info(
            "syphon.started",
            "the syphon started ({queues} queues, until {until})",
            queues=len(self._sources) + len(self._sessions),
            until=self._until or "cancelled",
        )
        try:
            self._drains = [self._start(self._drain(source), f"syphon {source.queue}") for source in self._sources]
            self._drains += [
                self._start(source.run(self._counts), f"syphon {source.queue}") for source in self._sessions
            ]
            for source in self._sources:
                self._start(source.keep_locks(), f"locks {source.queue}")
                if self._until is None:
                    self._start(self._look_around(source), f"scan {source.queue}")
            metrics.watch(self)
            if self._drains:
                await asyncio.wait(self._drains)
        finally:
            metrics.unwatch(self)
            await self._shut_down()
        if self._failure is not None:
            raise self._failure
        report = self.report()
        log.info("syphon.ended", "the syphon ended; " + DONE, **asdict(report))
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
            parked=self._destinations.parked_count,
        )

    def status(self) -> SyphonStatus:
        """How it stands now."""
        refusing = self._refusing()
        found = [self._destinations.accepted, *(sessions.accepted for sessions in self._sessions)]
        accepted = max(filter(None, found), key=lambda pair: pair[1], default=None)
        is_stalled_in_sessions = bool(refusing) and (accepted is None or accepted[0] in refusing)
        return SyphonStatus(
            queues=(
                *(self._polls[source].status(in_hand=len(source.held)) for source in self._sources),
                *(sessions.status() for sessions in self._sessions),
            ),
            refusing=refusing,
            is_stalled=self._destinations.is_stalled or is_stalled_in_sessions,
            accepted=accepted,
            longest_pause_s=self._share.longest_pause_s,
        )

    def _refusing(self) -> dict[str, Trouble]:
        """What the entities that refuse say, by path; may be asked in any thread."""
        refusing = self._destinations.refusing()
        for sessions in self._sessions:
            refusing |= sessions.refusing()
        return refusing

    def measured(self) -> Iterator[tuple[metrics.Instrument, float, metrics.Attributes]]:
        """What it knows of its queues and of the entities they are for; see `metrics.Watched`."""
        yield metrics.UNHAPPY, len(self._refusing()), metrics.server(self._pair.primary.namespace)
        for source in self._sources:
            yield from source.measured()

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        return self._tasks.start(work, name=name)

    def _fail(self, error: BaseException) -> None:
        """Something that should never happen: end everything, so that whoever runs the syphon hears of it."""
        self._failure = self._failure or error
        for drain in self._drains:
            drain.cancel()

    async def _shut_down(self) -> None:
        """Stop taking; let what is on its way arrive, for a few seconds; give the rest back."""
        await self._tasks.close()
        late = await self._clock.wait(self._destinations.end(), self._shut_down_s)
        if late:
            log.warning(
                "syphon.gave_up_waiting",
                "{transfers} transfers did not end within {seconds:g} s",
                transfers=len(late),
                seconds=self._shut_down_s,
            )
        await self._destinations.stop()
        # Side by side: whoever runs a service waits for its end, and each may take seconds if nothing answers.
        await asyncio.gather(*(source.close() for source in self._sources))
        await self._destinations.close()

    # -- one backlog queue ---------------------------------------------------------------------------------------

    async def _drain(self, source: BacklogSource) -> None:
        """Take messages from one queue and hand them to their destinations, until the end."""
        is_until_empty = self._until == "empty"
        failures = 0
        while True:
            try:
                room = await self._room(source)
                if not room:
                    return
                is_dry = not await self._pass_on(source, room, self._share.wait_after(failures))
                failures = 0
                if is_until_empty and is_dry and await self._is_finished(source):
                    return
            except ServiceBusError as error:
                if is_until_empty and isinstance(error, MessagingEntityNotFoundError):
                    return  # there is no such queue, so there is nothing in it
                failures += 1
                self._polls[source].failed(error)
                if failures == 1:
                    self._pair.record(
                        "syphon.queue_unreachable",
                        "backlog queue {path!r} is unavailable: {error}",
                        source.queue,
                        level=logging.WARNING,
                        error=error,
                    )
                await self._clock.sleep(backoff_s(failures, first_s=FIRST_PAUSE_S, longest_s=LONGEST_PAUSE_S))
                await source.reopen()

    async def _pass_on(self, source: BacklogSource, room: int, wait_s: float) -> int:
        """Take messages and see each on its way; returns how many. What waits for the next ones then holds none."""
        async with self._share.turns:
            with self._polls[source].asking():
                messages = await source.receive(max_message_count=room, max_wait_time_s=wait_s)
        await self._take_on(source, messages)
        return len(messages)

    async def _room(self, source: BacklogSource) -> int:
        """How many messages to take next, waiting until there is room for one.

        While every destination that was tried refuses, as when the whole primary is down, messages stay where they are
        unless there is one for another destination. If there is none a run until empty ends, and 0 says so.
        """
        pause_s = FIRST_PAUSE_S
        while True:
            if not source.room:
                source.changed.clear()
                await source.changed.wait()
            elif not self._destinations.is_stalled or (await source.scan(self)).hopeful:
                return source.room
            elif self._is_refused_for_good:
                return 0
            else:
                await self._until_not_stalled(source, pause_s)
                pause_s = min(2 * pause_s, FIRST_PAUSE_S if self._until == "empty" else LONGEST_PAUSE_S)

    @property
    def _is_refused_for_good(self) -> bool:
        """Whether a run until empty has tried often enough, since everything that it tried refuses."""
        if self._until != "empty" or not self._destinations.is_stalled:
            return False
        return min(one.failures for one in self._destinations.unhappy) >= TRIES_UNTIL_EMPTY

    async def _until_not_stalled(self, source: BacklogSource, span_s: float) -> None:
        """Wait until a destination accepts something, at most so many seconds: a look through a queue is not for
        nothing, and with many destinations that refuse there is an answer every moment."""
        until_at = self._clock.monotonic() + span_s
        while self._destinations.is_stalled and (left_s := until_at - self._clock.monotonic()) > 0:
            await self._changed_within(source, left_s)

    async def _changed_within(self, source: BacklogSource, span_s: float) -> None:
        """Wait for news, at most that many seconds and at least a moment."""
        source.changed.clear()
        with suppress(TimeoutError):
            async with self._clock.timeout(max(span_s, 0.1)):
                await source.changed.wait()

    async def _take_on(self, source: BacklogSource, messages: Sequence[ServiceBusReceivedMessage]) -> None:
        """Take received messages in hand and see each on its way."""
        for held in await self._take(source, messages):
            destination = self._destinations.get(held.unsealed.destination)
            if destination is not None:
                await destination.offer(held)
            else:
                await source.park(held)

    async def _take(self, source: BacklogSource, messages: Sequence[ServiceBusReceivedMessage]) -> list[Held]:
        """Take received messages in hand, all of them before anything is awaited; end those not to be moved."""
        verdicts = [(message, self._sorted(source, message)) for message in messages]
        for message, verdict in verdicts:
            if isinstance(verdict, Settlement):
                await self._end(source, message, verdict)
        return [verdict for _, verdict in verdicts if isinstance(verdict, Held)]

    def _sorted(self, source: BacklogSource, message: ServiceBusReceivedMessage) -> Held | Settlement:
        """A message in hand, to be moved; or how one ends that is not to be moved."""
        if source.was_accepted(message) or is_ping(message):
            return _COMPLETE
        try:
            unsealed = unseal(message, now=self._clock.now(), life=self._pair.options.backlog_time_to_live)
        except MalformedEnvelopeError as error:
            return Settlement(SettleMode.DEAD_LETTER, error.reason, error.description)
        return source.hold(message, unsealed)

    async def _end(self, source: BacklogSource, message: ServiceBusReceivedMessage, settlement: Settlement) -> None:
        if await source.settle(message, settlement) and settlement.mode is SettleMode.DEAD_LETTER:
            self._counts[f"dead_lettered.{settlement.reason}"] += 1
            with tracing.within(message):
                self._pair.record(
                    "syphon.dead_lettered", DEAD_LETTERED, source.queue, reason=settlement.reason, queue=source.queue
                )

    def _tell_sources(self, is_recovered: bool) -> None:
        """A destination has answered: whoever waits for room looks again, and after a refusal for what it left."""
        for source in self._sources:
            source.changed.set()
            if is_recovered:
                source.look_again.set()

    # -- what was put aside --------------------------------------------------------------------------------------

    async def _look_around(self, source: BacklogSource) -> None:
        """Look for parked messages now, when a destination recovers, and from time to time: another syphon may have
        left some behind. Once a minute at most: what was in somebody's hands has come back by then. More rarely while
        there are more than can be taken note of, and nothing is done that would make room."""
        longest_s = self._pair.options.syphon_long_poll.total_seconds()
        pause_s, done = LOOK_AGAIN_S, -1
        while True:
            source.look_again.clear()
            wait_s = longest_s
            try:
                scan = await source.scan(self)
                await self._fetch_strays(source)
                if scan.overlooked:
                    is_in_vain = done == self._counts.total()
                    pause_s = min(2 * pause_s, LOOK_IN_VAIN_S, longest_s) if is_in_vain else LOOK_AGAIN_S
                    wait_s = pause_s - LOOK_AGAIN_S
                done = self._counts.total()
            except ServiceBusError as error:
                log.info(
                    "syphon.not_scanned",
                    "cannot scan {queue!r} for parked messages: {error}",
                    queue=source.queue,
                    error=error,
                )
                wait_s = 0.0
            await self._clock.sleep(LOOK_AGAIN_S)
            with suppress(TimeoutError):
                async with self._clock.timeout(wait_s):
                    await source.look_again.wait()

    def found_parked(self, source: BacklogSource, message: ServiceBusReceivedMessage) -> bool:
        """Take note of a parked message that a scan came across; see `Scout`."""
        path = message.application_properties.get(PATH)
        if isinstance(path, str) and is_entity_path(path):
            destination = self._destinations.get(path)
            return destination is not None and destination.found_parked(source, message)
        strays = self._strays[source]
        if len(strays) >= STRAYS_KEPT:
            return False
        strays.append(message.sequence_number)
        return True

    def is_hopeful(self, message: ServiceBusReceivedMessage) -> bool:
        """Whether something can be done with a waiting message: its destination does not refuse, or does not exist, or
        it has none; see `Scout`."""
        path = message.application_properties.get(PATH)
        if not isinstance(path, str):
            return True
        destination = self._destinations.find(path)
        return destination is None or destination.found_waiting()

    async def _fetch_strays(self, source: BacklogSource) -> None:
        """Deferred messages without a legal destination: nobody's, so they are dealt with here."""
        strays, self._strays[source] = self._strays[source], []
        for number in strays:
            await self._take_on(source, await source.fetch([number]))

    async def _is_finished(self, source: BacklogSource) -> bool:
        """Whether nothing is left in a queue but what its destinations keep refusing; waits a moment if it is."""
        if not source.held:
            scan = await source.scan(self)
            await self._fetch_strays(source)
            waiting = self._destinations.failures_of_waited_for(source, with_overlooked=bool(scan.overlooked))
            is_stuck = all(failures >= TRIES_UNTIL_EMPTY for failures in waiting)
            if not scan.active and not source.held and is_stuck and (waiting or not scan.overlooked):
                return True
        await self._changed_within(source, FIRST_PAUSE_S)
        return False
