"""A plain backlog queue: polls it, gives its messages to their destinations, scans it for parked ones, renews locks."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, Final, Literal

from sbclient import clock
from sbclient.delivery import SettleMode
from sbclient.errors import (
    MessageAlreadySettled,
    MessageLockLostError,
    MessageNotFoundError,
    ServiceBusError,
    ServiceBusServerBusyError,
)
from sbclient.message import ServiceBusMessageState, ServiceBusReceivedMessage
from sbclient.pairing.state import PairState
from sbclient.retry import repeat
from sbclient.rules.backoff import growing
from sbclient.rules.entity_path import is_entity_path
from sbclient.rules.envelope import path_of
from sbclient.rules.refusal import FIRST_PAUSE_S, LONGEST_PAUSE_S
from sbclient.rules.sequence_number import by_partition, partition_of
from sbclient.syphon.budget import SyphonBudget
from sbclient.syphon.destination import FORGET_AFTER_S
from sbclient.syphon.destination_table import Destinations
from sbclient.syphon.source import SETTLE_S, TRIES_UNTIL_EMPTY, InFlight, Source
from sbclient.syphon.status import Progress
from sbclient.telemetry import metrics
from sbclient.telemetry.log import get_logger
from sbclient.transport.base import ReceiverLink

log = get_logger(__name__)

EMPTY_AFTER_S: Final = 2.0
"""A queue that has messages returns one sooner than this."""
MIN_RENEWAL_PAUSE_S: Final = 1.0
PEEK_MESSAGES: Final = 100
NAMELESS_KEPT: Final = 1000
SCAN_PAUSE_S: Final = 60.0
"""Shortest pause between two scans: messages that another receiver had locked are available again by then."""
MAX_SCAN_PAUSE_S: Final = FORGET_AFTER_S / 2
"""Longest pause between two scans of a queue with parked messages that are not remembered. It is shorter than the time
after which their destination is forgotten, so that its grace does not start again."""


@dataclass(frozen=True, slots=True)
class Scan:
    """Result of a scan.

    Attributes:
        active: number of messages that wait or are locked by another receiver.
        forwardable: number of those that can be sent or dead-lettered now.
        forgotten: number of deferred messages that could not be remembered.
        untried: number of those whose destination has not refused often enough to end a run until empty.
    """

    active: int
    forwardable: int
    forgotten: int
    untried: int


class QueueSource(Source):
    """One plain backlog queue."""

    is_ordered: ClassVar[bool] = False

    def __init__(
        self,
        pair: PairState,
        queue: str,
        destinations: Destinations,
        progress: Progress,
        budget: SyphonBudget,
        *,
        until: Literal["empty"] | None,
    ) -> None:
        super().__init__(pair, queue, progress, budget, until=until)
        self._destinations = destinations
        self._link: ReceiverLink = pair.secondary.open_receiver(queue)
        self._full_polls = 0
        self._is_refused = False
        self._nameless: list[int] = []
        self._counts = QueueCounts()
        self._scanned: QueueCounts | None = None
        self._scans = asyncio.Lock()  # two at a time would share the place at which the link peeks
        self._read_time = clock.reader()
        self._ahead_s = clock.now() - clock.monotonic()

    def destination_answered(self, *, has_recovered: bool) -> None:
        self.changed.set()
        if has_recovered:
            self.scan_needed.set()

    def background(self) -> list[Coroutine[Any, Any, None]]:
        return [self.keep_locks()] if self._is_until_empty else [self.keep_locks(), self._scan_regularly()]

    # -- receiving -----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Receive messages and give them to their destinations, until the end."""
        await self._repeat(self._poll)

    async def _poll(self, failures: int) -> bool:
        if failures:
            await self._reopen()
        room = await self._room()
        if room is None:
            return False
        count = await self._forward(room, self._budget.poll_after(failures))
        return not (self._is_until_empty and not count and await self._is_finished())

    async def _reopen(self) -> None:
        """Replace the link after an error."""
        await self._link.close()
        self._link = self.pair.secondary.open_receiver(self.queue)
        for one in self.in_flight.values():
            one.link = self._link

    async def _forward(self, room: int, poll_s: float) -> int:
        """Forward the messages of one poll and return their number.

        A separate coroutine, so that the next poll keeps no message alive.
        """
        async with self._budget.poll_slots:
            messages = await self.receive(max_message_count=room, max_wait_time_s=poll_s)
        await self._destinations.offer(messages)
        return len(messages)

    async def receive(self, *, max_message_count: int, max_wait_time_s: float) -> list[InFlight]:
        """Receive waiting messages; those that are not to be sent are settled."""
        with self._polls.polling():
            messages = await self._link.receive(max_message_count=max_message_count, max_wait_time_s=max_wait_time_s)
        self._full_polls += len(messages) == max_message_count
        self._counts.remove_received(messages)
        if (scanned := self._scanned) is not None:
            passed = [message for message in messages if scanned.has_passed(message)]
            if passed or not messages:
                scanned.remove_received(passed)
        return await self.take(self._link, messages)

    async def receive_parked(self, numbers: Sequence[int]) -> list[InFlight]:
        """Receive deferred messages by number, without those that are gone or locked; in the order of each key.

        If the lock of a message has expired before the answers arrived, another syphon may have the message: a scan
        finds it again, as it finds those of a partition that does not answer while others do.
        """
        asked_at = clock.now()
        outcomes = await asyncio.gather(*map(self._find_parked, by_partition(numbers)), return_exceptions=True)
        answered = [one for outcome in outcomes if isinstance(outcome, list) for one in outcome]
        errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        for error in errors:
            if isinstance(error, ServiceBusError):
                self._note_refused(error)
            if not answered or not isinstance(error, ServiceBusError):
                raise error
            self.scan_needed.set()
        self._is_refused = bool(errors)
        now = clock.now()
        found = [
            one
            for one in answered
            if one.locked_until_utc is None or not asked_at < one.locked_until_utc.timestamp() <= now
        ]
        if len(found) < len(answered):
            self.scan_needed.set()
        return await self.take(self._link, found)

    def _note_refused(self, error: ServiceBusError) -> None:
        if not self._is_refused:
            self.pair.record(
                "syphon.parked_not_received",
                "cannot receive parked messages of backlog queue {path!r}: {error}",
                self.queue,
                level=logging.WARNING,
                error=error,
            )
        self._is_refused = True

    async def _find_parked(self, numbers: Sequence[int]) -> list[ServiceBusReceivedMessage]:
        try:
            found = await self._link.receive_deferred(numbers, timeout_s=SETTLE_S)
            for one in found:
                for counts in self._counts_with(one):
                    counts.remove_parked()
            return found
        except MessageNotFoundError:
            if len(numbers) == 1:
                self.scan_needed.set()
                return []
        found = []
        for number in numbers:
            found += await self._find_parked([number])
        return found

    # -- when to receive -----------------------------------------------------------------------------------------

    async def _room(self) -> int | None:
        """Wait until there is room for a message; return how many to receive, None at the end of a run until empty.

        While every destination that was tried refuses, for example since the primary is down, messages stay in their
        queue unless there is one for another destination.
        """
        room: int | None = None

        async def is_decided(_: int) -> bool:
            nonlocal room
            while True:
                while not self.room:
                    self.changed.clear()
                    await self.changed.wait()
                if self._destinations.are_queues_stalled and not (scan := await self.scan()).forwardable:
                    is_tried = not scan.untried and self._destinations.are_refused_for_good
                    return self._is_until_empty and is_tried
                if room := self.room:  # during the scan, parked messages may have taken it
                    return True

        longest_s = FIRST_PAUSE_S if self._is_until_empty else LONGEST_PAUSE_S
        await repeat(is_decided, growing(FIRST_PAUSE_S, longest_s), self._while_stalled)
        return room

    async def _while_stalled(self, longest_s: float) -> None:
        """Wait until a destination accepts messages.

        The answers of destinations that refuse do not end the wait: many of them answer often, and each scan is costly.
        """
        until_at = clock.monotonic() + longest_s
        while self._destinations.are_queues_stalled and (left_s := until_at - clock.monotonic()) > 0:
            await self._changed_within(left_s)

    async def _changed_within(self, longest_s: float) -> None:
        self.changed.clear()
        await clock.wait_for(self.changed, max(longest_s, 0.1))

    async def _is_finished(self) -> bool:
        """Return whether only messages are left that their destinations keep refusing; wait a little if not."""
        if not self.in_flight:
            self.scan_needed.clear()
            replaced = self._destinations.untried_replaced
            scan = await self.scan()
            await self._offer_nameless()
            waiting = self._destinations.failures_of_waiting(self)
            is_stuck = not scan.untried and all(failures >= TRIES_UNTIL_EMPTY for failures in waiting)
            # Else parked messages that it found are not known any more.
            is_current = not self.scan_needed.is_set() and replaced == self._destinations.untried_replaced
            if not scan.active and not self.in_flight and is_stuck and is_current:
                return True
        await self._changed_within(FIRST_PAUSE_S)
        return False

    @property
    def parked_count(self) -> int:
        """Number of parked messages: those of the last scan, and what has happened since."""
        return self._counts.parked

    # -- scanning ------------------------------------------------------------------------------------------------

    async def scan(self) -> Scan:
        """Peek at every message of the queue; the destinations remember the parked ones."""
        active = forwardable = forgotten = untried = 0
        async with self._scans:
            next_number = 1
            counts = self._scanned = QueueCounts()
            try:
                while page := await self._link.peek(
                    max_message_count=PEEK_MESSAGES, sequence_number=next_number, timeout_s=SETTLE_S
                ):
                    counts.passes(page[-1])
                    for message in page:
                        if message.sequence_number in self.in_flight:
                            continue
                        counts.add(message)
                        if message.state is ServiceBusMessageState.ACTIVE:
                            active += 1
                            forwardable += self._destinations.can_forward(message)
                        elif message.state is ServiceBusMessageState.DEFERRED and not self._remember(message):
                            forgotten += 1
                            path = path_of(message)
                            untried += path is None or self._destinations.failures_of(path) < TRIES_UNTIL_EMPTY
                    next_number = page[-1].sequence_number + 1
            finally:
                self._scanned = None
            self._counts = counts
        return Scan(active, forwardable, forgotten, untried)

    def _counts_with(self, message: ServiceBusReceivedMessage) -> list[QueueCounts]:
        """The counts that a message changes: the current ones, and those of a scan that has passed it."""
        scanned = self._scanned
        return [self._counts, scanned] if scanned is not None and scanned.has_passed(message) else [self._counts]

    def _remember(self, message: ServiceBusReceivedMessage) -> bool:
        path = path_of(message)
        if path is not None and is_entity_path(path):
            return self._destinations.remember_parked(self, path, message.sequence_number)
        if len(self._nameless) >= NAMELESS_KEPT:
            return False
        self._nameless.append(message.sequence_number)
        return True

    async def _offer_nameless(self) -> None:
        """Take the parked messages that name no entity, which a scan found; as a rule all are dead-lettered."""
        numbers, self._nameless = self._nameless, []
        for number in numbers:
            await self._destinations.offer(await self.receive_parked([number]))

    def measured(self) -> Iterator[tuple[metrics.Instrument, float, metrics.Attributes]]:
        """Yield the depth and the age of the queue; see `metrics.Watched`."""
        now, polled_at, counts = self._read_time(), self._polls.polled_at, self._counts
        in_flight = [one.message.enqueued_time_utc for one in list(self.in_flight.values())]
        # A poll that waits this long proves that no message is left: those of the last scan were received since.
        is_empty = polled_at is not None and now - polled_at > EMPTY_AFTER_S
        depths = {"waiting": len(in_flight) + (0 if is_empty else counts.waiting), "parked": counts.parked}
        for state, depth in depths.items():
            yield metrics.BACKLOG_DEPTH, depth, {**self._where, metrics.STATE: state}
        times = [*in_flight, None if is_empty else counts.oldest_waiting, counts.oldest_parked]
        oldest = min((at for at in times if at is not None), default=None)
        age_s = now + self._ahead_s - oldest.timestamp() if oldest is not None else 0.0
        yield metrics.BACKLOG_AGE, max(age_s, 0.0), self._where

    async def _while_polls_are_full(self) -> None:
        """Wait for a second in which no poll fills the room, at most a minute.

        A scan costs as much as receiving, and until then the drain is about to receive nearly all that it would find.
        """
        until_at = clock.monotonic() + SCAN_PAUSE_S
        known = -1
        while known != self._full_polls and clock.monotonic() < until_at:
            known = self._full_polls
            await clock.sleep(FIRST_PAUSE_S)

    async def _scan_regularly(self) -> None:
        """Scan for parked messages at the start, when a destination recovers, and regularly; runs until cancelled.

        Another syphon may have left parked messages. The pauses grow while there are more than can be remembered and
        no message leaves the backlog.
        """
        await self._while_polls_are_full()
        longest_s = self.pair.options.syphon_long_poll.total_seconds()
        pause_s = growing(SCAN_PAUSE_S, min(MAX_SCAN_PAUSE_S, longest_s))
        scans_without_progress, ended = 0, -1
        while True:
            self.scan_needed.clear()
            wait_s = longest_s
            try:
                scan = await self.scan()
                await self._offer_nameless()
                if scan.forgotten:
                    scans_without_progress = 0 if ended != self._progress.ended else scans_without_progress + 1
                    wait_s = pause_s(1 + scans_without_progress) - SCAN_PAUSE_S
                ended = self._progress.ended
            except ServiceBusError as error:
                log.info(
                    "syphon.not_scanned",
                    "cannot scan {queue!r} for parked messages: {error}",
                    queue=self.queue,
                    error=error,
                )
                wait_s = 0.0
            await clock.sleep(SCAN_PAUSE_S)
            await clock.wait_for(self.scan_needed, wait_s)

    # -- locks ---------------------------------------------------------------------------------------------------

    async def keep_locks(self) -> None:
        """Renew each lock after half of its duration; runs until cancelled."""
        while True:
            await self.has_messages.wait()
            now = clock.now()
            due_s = min([self._due_in_s(one, now) for one in self.in_flight.values()], default=0.0)
            await clock.sleep(max(due_s, MIN_RENEWAL_PAUSE_S))
            await self._renew_due()

    async def _renew_due(self) -> None:
        """Renew the locks that are due. A separate coroutine, so that the pause after it keeps no message alive."""
        now = clock.now()
        due = [one for one in self.in_flight.values() if self._due_in_s(one, now) <= 0]
        await asyncio.gather(*map(self._renew, due))  # one after the other, a slow queue would lose the last lock

    async def _renew(self, renewed: InFlight) -> None:
        try:
            renewed.message.locked_until_utc = await self._link.renew_lock(renewed.message, timeout_s=SETTLE_S)
        except MessageAlreadySettled:
            pass  # it was settled while the renewal waited for the link
        except ServiceBusError as error:
            if self.in_flight.get(renewed.message.sequence_number) is not renewed:
                return  # it was settled
            if isinstance(error, MessageLockLostError) or self.lock_left_s(renewed, clock.now()) <= 0:
                self.lose(renewed, error)

    def _due_in_s(self, one: InFlight, now: float) -> float:
        return self.lock_left_s(one, now) - one.lock_s / 2

    def lock_left_s(self, one: InFlight, now: float) -> float:
        until = one.message.locked_until_utc
        return until.timestamp() - now if until is not None else 0.0

    # -- settling ------------------------------------------------------------------------------------------------

    async def park(self, one: InFlight) -> int | None:
        """Defer a message, so that later ones can be received; return its number, or None if that failed."""
        error = await self.settle(one.link, one.message, SettleMode.DEFER)
        self.end(one, error)
        if error is not None:
            return None
        for counts in self._counts_with(one.message):
            counts.add_parked(one.message)
        metrics.add(metrics.PARKED, 1, self._where)
        return one.message.sequence_number

    async def _abandon(self, one: InFlight) -> None:
        self.end(one, await self.settle(one.link, one.message, SettleMode.ABANDON))

    def _unavailable(self, error: ServiceBusError, failures: int) -> None:
        unreachable = self._budget.unreachable
        is_known = bool(unreachable)  # one event for an outage of the namespace
        if error.is_outage and error.is_transient and not isinstance(error, ServiceBusServerBusyError):
            unreachable.add(self.queue)
        else:
            is_known = False
        if failures == 1 and not is_known:
            self.pair.record(
                "syphon.queue_unreachable",
                "backlog queue {path!r} is unavailable: {error}",
                self.queue,
                level=logging.WARNING,
                error=error,
            )

    async def _close_links(self) -> None:
        await self._link.close()


class QueueCounts:
    """Counts of the messages of a queue that are not in flight: those of the last scan, updated since.

    Attributes:
        waiting: messages that can be received.
        parked: deferred messages.
    """

    def __init__(self) -> None:
        self.waiting = 0
        self.parked = 0
        self._oldest_waiting: datetime | None = None
        self._oldest_parked: datetime | None = None
        self._passed_to: dict[int, float] = {}

    @property
    def oldest_waiting(self) -> datetime | None:
        """Enqueued time of the oldest waiting message."""
        return self._oldest_waiting if self.waiting else None

    @property
    def oldest_parked(self) -> datetime | None:
        """Enqueued time of the oldest parked message."""
        return self._oldest_parked if self.parked else None

    def passes(self, message: ServiceBusReceivedMessage) -> None:
        """The scan looks at all messages up to this one, and at no more of the partitions that it has left."""
        number = message.sequence_number
        self._passed_to = {**dict.fromkeys(self._passed_to, math.inf), partition_of(number): number}

    def has_passed(self, message: ServiceBusReceivedMessage) -> bool:
        """Return whether the scan looks at a message no more."""
        return message.sequence_number <= self._passed_to.get(partition_of(message.sequence_number), 0)

    def add(self, message: ServiceBusReceivedMessage) -> None:
        """Count a message that a scan found."""
        if message.state is ServiceBusMessageState.DEFERRED:
            self.add_parked(message)
        else:
            at = message.enqueued_time_utc
            self.waiting += 1
            self._oldest_waiting = min(self._oldest_waiting or at, at)

    def add_parked(self, message: ServiceBusReceivedMessage) -> None:
        """Count a message that was deferred."""
        at = message.enqueued_time_utc
        self._oldest_parked = min(self._oldest_parked or at, at) if self.parked else at
        self.parked += 1

    def remove_parked(self) -> None:
        """Remove a deferred message that was received."""
        self.parked = max(self.parked - 1, 0)

    def remove_received(self, messages: Sequence[ServiceBusReceivedMessage]) -> None:
        """Remove the messages of one receive; if it returned none, none waits. The remaining ones are younger."""
        self.waiting = max(self.waiting - len(messages), 0) if messages else 0
        if messages and self._oldest_waiting is not None:
            self._oldest_waiting = max(self._oldest_waiting, messages[-1].enqueued_time_utc)
