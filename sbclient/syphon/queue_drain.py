"""Drains one plain backlog queue: polls it, gives its messages to their destinations, and scans it for parked ones."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Final, Literal

from sbclient.errors import MessagingEntityNotFoundError, ServiceBusError
from sbclient.pairing.state import PairState
from sbclient.rules.backoff import backoff_s
from sbclient.rules.refusal import FIRST_PAUSE_S, LONGEST_PAUSE_S
from sbclient.syphon.budget import SyphonBudget
from sbclient.syphon.destination import FORGET_AFTER_S
from sbclient.syphon.destination_table import Destinations
from sbclient.syphon.forwarder import Forwarder
from sbclient.syphon.queue_source import BacklogSource
from sbclient.syphon.status import PollRecord, QueueStatus
from sbclient.telemetry.log import get_logger

log = get_logger(__name__)

TRIES_UNTIL_EMPTY: Final = 3
"""Attempts at a destination that refuses, before a run `until="empty"` leaves its messages where they are."""

SCAN_PAUSE_S: Final = 60.0
"""Shortest pause between two scans: messages that another receiver had locked are available again by then."""
MAX_SCAN_PAUSE_S: Final = FORGET_AFTER_S / 2
"""Longest pause between two scans of a queue with parked messages that are not remembered. It is shorter than the time
after which their destination is forgotten, so that `missing_entity_grace` does not start again."""


class QueueDrain:
    """Drains one plain backlog queue.

    Attributes:
        queue: its name.

    Args:
        until: `"empty"` ends the drain when no message is left that can be forwarded; None runs until it is cancelled.
    """

    def __init__(
        self,
        pair: PairState,
        source: BacklogSource,
        destinations: Destinations,
        forwarder: Forwarder,
        budget: SyphonBudget,
        *,
        until: Literal["empty"] | None,
    ) -> None:
        self._pair = pair
        self._clock = pair.clock
        self._source = source
        self._destinations = destinations
        self._forwarder = forwarder
        self._budget = budget
        self._is_until_empty = until == "empty"
        self._polls = PollRecord(source.queue, pair.clock)
        self._full_polls = 0
        self.queue = source.queue

    def status(self) -> QueueStatus:
        """Return the status of the queue."""
        return self._polls.status(in_flight=len(self._source.in_flight))

    async def run(self) -> None:
        """Receive messages and give them to their destinations, until the end."""
        failures = 0
        while True:
            try:
                room = await self._room()
                if room is None:
                    return
                is_dry = not await self._forward(room, self._budget.poll_after(failures))
                failures = 0
                if self._is_until_empty and is_dry and await self._is_finished():
                    return
            except ServiceBusError as error:
                if self._is_until_empty and isinstance(error, MessagingEntityNotFoundError):
                    return  # a queue that does not exist is empty
                failures += 1
                self._polls.failed(error)
                if failures == 1:
                    self._pair.record(
                        "syphon.queue_unreachable",
                        "backlog queue {path!r} is unavailable: {error}",
                        self.queue,
                        level=logging.WARNING,
                        error=error,
                    )
                await self._clock.sleep(backoff_s(failures, first_s=FIRST_PAUSE_S, longest_s=LONGEST_PAUSE_S))
                await self._source.reopen()

    async def _forward(self, room: int, poll_s: float) -> int:
        """Forward the messages of one poll and return their number.

        A separate coroutine, so that the next poll keeps no message alive.
        """
        async with self._budget.poll_slots:
            with self._polls.polling():
                messages = await self._source.receive(max_message_count=room, max_wait_time_s=poll_s)
        self._full_polls += len(messages) == room
        await self._destinations.offer(await self._source.take(messages))
        return len(messages)

    async def _room(self) -> int | None:
        """Wait until there is room for a message; return how many to receive, None at the end of a run until empty.

        While every destination that was tried refuses, for example since the primary is down, messages stay in their
        queue unless there is one for another destination.
        """
        tries = 0
        while True:
            if not self._source.room:
                self._source.changed.clear()
                await self._source.changed.wait()
            elif not self._destinations.is_stalled or (await self._source.scan(self._destinations)).forwardable:
                if room := self._source.room:  # during the scan, parked messages may have taken it
                    return room
            elif self._is_refused_for_good:
                return None
            else:
                tries += 1
                longest_s = FIRST_PAUSE_S if self._is_until_empty else LONGEST_PAUSE_S
                await self._while_stalled(backoff_s(tries, first_s=FIRST_PAUSE_S, longest_s=longest_s))

    @property
    def _is_refused_for_good(self) -> bool:
        """Whether a run until empty has tried every destination often enough, and every one refuses."""
        if not self._is_until_empty or not self._destinations.is_stalled:
            return False
        return min(one.failures for one in self._destinations.unavailable) >= TRIES_UNTIL_EMPTY

    async def _while_stalled(self, longest_s: float) -> None:
        """Wait until a destination accepts messages.

        The answers of destinations that refuse do not end the wait: many of them answer often, and each scan is costly.
        """
        until_at = self._clock.monotonic() + longest_s
        while self._destinations.is_stalled and (left_s := until_at - self._clock.monotonic()) > 0:
            await self._changed_within(left_s)

    async def _changed_within(self, longest_s: float) -> None:
        self._source.changed.clear()
        with suppress(TimeoutError):
            async with self._clock.timeout(max(longest_s, 0.1)):
                await self._source.changed.wait()

    async def _is_finished(self) -> bool:
        """Return whether only messages are left that their destinations keep refusing; wait a little if not."""
        source = self._source
        if not source.in_flight:
            scan = await source.scan(self._destinations)
            await self._destinations.offer(await source.take_strays())
            waiting = self._destinations.failures_of_waiting(source, with_forgotten=bool(scan.forgotten))
            is_stuck = all(failures >= TRIES_UNTIL_EMPTY for failures in waiting)
            if not scan.active and not source.in_flight and is_stuck and (waiting or not scan.forgotten):
                return True
        await self._changed_within(FIRST_PAUSE_S)
        return False

    async def _while_polls_are_full(self) -> None:
        """Wait for a second in which no poll fills the room, at most a minute.

        A scan costs as much as receiving, and until then the drain is about to receive nearly all that it would find.
        """
        until_at = self._clock.monotonic() + SCAN_PAUSE_S
        known = -1
        while known != self._full_polls and self._clock.monotonic() < until_at:
            known = self._full_polls
            await self._clock.sleep(FIRST_PAUSE_S)

    async def scan_regularly(self) -> None:
        """Scan for parked messages at the start, when a destination recovers, and regularly; runs until cancelled.

        Another syphon may have left parked messages. The pauses grow while there are more than can be remembered and
        no message leaves the backlog.
        """
        await self._while_polls_are_full()
        longest_s = self._pair.options.syphon_long_poll.total_seconds()
        pause_s, ended = SCAN_PAUSE_S, -1
        while True:
            self._source.scan_needed.clear()
            wait_s = longest_s
            try:
                scan = await self._source.scan(self._destinations)
                await self._destinations.offer(await self._source.take_strays())
                if scan.forgotten:
                    has_progress = ended != self._forwarder.ended
                    pause_s = SCAN_PAUSE_S if has_progress else min(2 * pause_s, MAX_SCAN_PAUSE_S, longest_s)
                    wait_s = pause_s - SCAN_PAUSE_S
                ended = self._forwarder.ended
            except ServiceBusError as error:
                log.info(
                    "syphon.not_scanned",
                    "cannot scan {queue!r} for parked messages: {error}",
                    queue=self.queue,
                    error=error,
                )
                wait_s = 0.0
            await self._clock.sleep(SCAN_PAUSE_S)
            with suppress(TimeoutError):
                async with self._clock.timeout(wait_s):
                    await self._source.scan_needed.wait()
