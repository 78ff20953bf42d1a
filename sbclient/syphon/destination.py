"""One entity of the primary that backlog messages are sent to: its line of messages, and what happens if it refuses."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from sbclient.errors import ServiceBusError, ServiceBusServerBusyError
from sbclient.message import ServiceBusMessage
from sbclient.options import SERVER_BUSY_PAUSE
from sbclient.pairing.state import PairState
from sbclient.rate_limit import RateLimits
from sbclient.rules.envelope import MalformedEnvelopeError
from sbclient.rules.partition_key import ordering_key
from sbclient.rules.refusal import FIRST_PAUSE_S, Refusal
from sbclient.syphon.forwarder import MISSING, Forwarder, rejection_reason
from sbclient.syphon.queue_source import BacklogSource, InFlight
from sbclient.syphon.status import RECOVERED, UNAVAILABLE
from sbclient.tasks import OwnedTasks

SEND_S: Final = 30.0

LINE_MESSAGES: Final = 200
"""Longest line of a slow destination; further messages are parked."""
SLOW_S: Final = 1.0
"""A destination that has not answered for this long, also with a busy error, counts as slow."""
PARKED_KNOWN: Final = 1000
"""Parked messages of one destination and queue that are remembered by number; a later scan finds the others."""
GROUP_BYTES: Final = 200 * 1024
CONCURRENT_KEYS: Final = 4
"""Concurrent transfers, each of another key. Over azure-servicebus each takes a connection."""
FORGET_AFTER_S: Final = 600.0
"""How long a destination without messages is kept: the service's idle timeout of a link."""


class Destination:
    """One entity path. Only its own worker sends to it, so a destination that hangs delays no other.

    Attributes:
        path: of the queue or topic.
        refusal: its consecutive failures; None = it accepts messages.
        has_succeeded: whether it accepted the last messages that were sent.
        accepted_at: when it last accepted a message, in monotonic seconds; -inf = never.
        is_ending: nothing new is started.
        worker: the task that runs `work`; set by the caller that starts it.

    Args:
        rates: limits of the send rates.
        sources: are notified of its answers.
        tasks: of the completions of messages that it has accepted.
    """

    worker: asyncio.Task[None]

    def __init__(
        self,
        pair: PairState,
        path: str,
        rates: RateLimits,
        forwarder: Forwarder,
        sources: Sequence[BacklogSource],
        tasks: OwnedTasks,
    ) -> None:
        self._pair = pair
        self._clock = pair.clock
        self._link = pair.primary.open_sender(path)
        self._rates = rates
        self._forwarder = forwarder
        self._sources = sources
        self._tasks = tasks
        self._completing: dict[asyncio.Task[None], None] = {}
        self._line: deque[InFlight] = deque()
        self._parked: dict[BacklogSource, dict[int, None]] = {}
        self._parking = 0
        self._arrived = asyncio.Event()
        self._may_group = True
        self._rejections = 0
        self._sending: list[list[InFlight]] = []
        self._waits_since_at: float | None = None
        self._needed_at = pair.clock.monotonic()
        self.path = path
        self.refusal: Refusal | None = None
        self.has_succeeded = False
        self.accepted_at = float("-inf")
        self.is_ending = False

    @property
    def failures(self) -> int:
        """Number of consecutive failures."""
        return self.refusal.failures if self.refusal is not None else 0

    @property
    def is_idle(self) -> bool:
        """Whether it has no message: in line, in a transfer, being completed, parked or being parked."""
        return not (self._line or self._sending or self._completing or self._parking or any(self._parked.values()))

    @property
    def parked_count(self) -> int:
        """Number of known parked messages."""
        return sum(map(len, self._parked.values()))

    def has_parked_in(self, source: BacklogSource) -> bool:
        """Return whether a parked message in that queue is known."""
        return bool(self._parked.get(source))

    async def offer(self, message: InFlight) -> None:
        """Add a message to the line, or park it if there is no place for it."""
        if self.refusal is not None or (len(self._line) >= LINE_MESSAGES and self._is_slow):
            await self._park(message)
        else:
            self._line.append(message)
            self._arrived.set()

    @property
    def _is_slow(self) -> bool:
        """Whether its line has waited for so long that messages for others behind it have to pass."""
        return self._waits_since_at is not None and self._clock.monotonic() - self._waits_since_at >= SLOW_S

    def remember_parked(self, source: BacklogSource, number: int) -> bool:
        """Remember a parked message by its sequence number; return False if too many are remembered."""
        known = self._parked.setdefault(source, {})
        if number not in known:
            if len(known) >= PARKED_KNOWN:
                return False
            known[number] = None
            self._arrived.set()
        return True

    def can_forward(self) -> bool:
        """A scan has found a waiting message for it; return whether the message can be sent or dead-lettered now."""
        self._needed_at = self._clock.monotonic()
        return self.refusal is None or self._is_given_up

    @property
    def _is_given_up(self) -> bool:
        """Whether the entity is missing for so long that its messages are dead-lettered."""
        grace_s = self._pair.options.missing_entity_grace.total_seconds()
        return self.refusal is not None and self.refusal.is_missing_for(grace_s)

    async def _park(self, message: InFlight) -> None:
        self._parking += 1
        try:
            if await message.source.park(message):
                self.remember_parked(message.source, message.message.sequence_number)
        finally:
            self._parking -= 1

    # -- the worker ----------------------------------------------------------------------------------------------

    async def work(self) -> None:
        """Send the messages in line, then the parked ones; runs until cancelled, ended, or not needed any more."""
        while not self.is_ending:
            if self.refusal is not None:
                await self._clock.sleep(max(self.refusal.retry_at - self._clock.monotonic(), 0.0))
            if not self._line:
                await self._fetch_parked()
            while self._line and self._line[0].is_lost:
                self._line.popleft()
            if not self.is_idle:
                self._needed_at = self._clock.monotonic()
            if self._line:
                await self._send_next()
            elif self.is_idle and self._clock.monotonic() - self._needed_at >= FORGET_AFTER_S:
                return
            elif self.refusal is not None:
                await self._probe()
            elif not any(self._parked.values()):
                await self._until_needed()

    async def _until_needed(self) -> None:
        """Wait for a message, at most until the destination is forgotten."""
        self._waits_since_at = None
        self._arrived.clear()
        with suppress(TimeoutError):
            async with self._clock.timeout(FORGET_AFTER_S):
                await self._arrived.wait()

    async def _send_next(self) -> None:
        """Send the first messages in line. A separate coroutine, so that a waiting worker keeps no message alive."""
        groups = self._next_groups()
        await self._wait_for_rate(sum(map(len, groups)))
        self._sending = self._remove_from_line(groups)
        try:
            await self._send(self._sending)
        finally:
            self._sending = []

    async def _probe(self) -> None:
        """Open the link to see whether the entity can be reached again, without a message."""
        asked_at = self._clock.monotonic()
        try:
            await self._link.open(timeout_s=SEND_S)
        except ServiceBusError as error:
            await self._failed([], error, asked_at)
        else:
            self._answered()
            self.has_succeeded = True

    async def _fetch_parked(self) -> None:
        """Move parked messages into the line: one if the entity refuses, else a group."""
        limit = 1 if self.refusal is not None and not self._is_given_up else self._rates.group_messages
        for source, known in list(self._parked.items()):
            numbers = list(known)[: min(limit, source.room)]
            if not numbers:
                continue
            try:
                messages = await source.receive_parked(numbers)
            except ServiceBusError:
                continue
            # The numbers stay known until the messages are taken: until then the queue is not empty.
            self._line += await source.take(messages)
            for number in numbers:
                known.pop(number, None)
            return
        if any(self._parked.values()):
            await self._clock.sleep(FIRST_PAUSE_S)  # there is no room, or the queue does not answer

    def _next_groups(self) -> list[list[InFlight]]:
        """Return the groups to send concurrently: for each key some messages, in order. They stay in line."""
        keys = 1 if self.refusal is not None else CONCURRENT_KEYS
        limit = 1 if self.refusal is not None or not self._may_group else self._rates.group_messages
        groups: dict[str | None, list[InFlight]] = {}
        full: set[str | None] = set()
        left = self._rates.group_messages
        for message in self._line:
            if not left or len(full) == keys:
                break
            key = ordering_key(message.unsealed.message)
            if message.is_lost or key in full or (key not in groups and len(groups) == keys):
                continue
            group = groups.setdefault(key, [])
            if len(group) == limit or (group and sum(one.size for one in group) + message.size > GROUP_BYTES):
                full.add(key)  # later messages of this key must not overtake this one
                continue
            group.append(message)
            left -= 1
        return list(groups.values())

    async def _wait_for_rate(self, count: int) -> None:
        """Wait until the rate limit allows the messages. They stay in line, so that an end releases them."""
        began_at, since_at = self._clock.monotonic(), self._waits_since_at
        self._waits_since_at = None  # a rate limit does not make the destination slow
        await self._rates.take(self.path, count)
        now = self._clock.monotonic()
        self._waits_since_at = now if since_at is None else since_at + (now - began_at)

    def _remove_from_line(self, groups: list[list[InFlight]]) -> list[list[InFlight]]:
        """Remove groups from the line and return them without messages whose locks are lost."""
        removed = {id(message) for group in groups for message in group}
        self._line = deque(message for message in self._line if id(message) not in removed)
        kept = [[message for message in group if not message.is_lost] for group in groups]
        return [group for group in kept if group]

    async def _send(self, groups: list[list[InFlight]]) -> None:
        """Send groups concurrently, then handle the results together.

        One failure counts, however many groups succeed: otherwise a single fragment that is down would be tried without
        a pause. The messages of the transfers before are completed meanwhile.
        """
        asked_at, completing = self._clock.monotonic(), list(self._completing)
        errors = await asyncio.gather(*map(self._transfer, groups))
        await asyncio.gather(*completing)  # messages that are sent and not completed must not add up
        answers = list(zip(groups, errors, strict=True))
        if any(group and error is None for group, error in answers):
            self._answered()
            self.has_succeeded = True
        busy: list[InFlight] = []
        failed: list[InFlight] = []
        failure: ServiceBusError | None = None
        for group, error in answers:
            if isinstance(error, ServiceBusServerBusyError):
                busy += group
            elif error is not None and (reason := rejection_reason(error)) is not None:
                await self._reject(group, reason, str(error))
            elif error is not None:
                failed += group
                failure = failure or error
        self._line.extendleft(reversed(busy))
        if busy and self.refusal is not None:
            self.refusal.interrupt()
        if failure is not None:
            await self._failed(failed, failure, asked_at)
        elif busy:
            await self._clock.sleep(SERVER_BUSY_PAUSE.total_seconds())

    async def _transfer(self, group: list[InFlight]) -> ServiceBusError | None:
        """Send a group and begin to complete it; return the error, or None. Messages that are not sent leave it."""
        unsealed = {message: await self._content(message) for message in group}
        # Checked after the last wait: another syphon may have received what is not locked any more.
        sent = {one: content for one, content in unsealed.items() if content is not None and one.source.is_locked(one)}
        group[:], contents = sent, list(sent.values())
        if not contents:
            return None
        try:
            await self._forwarder.send(self._link, self.path, contents, SEND_S)
        except ServiceBusError as error:
            return error
        self.accepted_at = self._clock.monotonic()
        for message in group:
            message.source.accept(message)
        completing = self._tasks.start(self._complete(list(group)), name=f"complete {self.path}")
        self._completing[completing] = None
        completing.add_done_callback(self._completing.pop)
        return None

    async def _complete(self, group: list[InFlight]) -> None:
        await asyncio.gather(*(message.source.complete(message) for message in group))

    async def _content(self, message: InFlight) -> ServiceBusMessage | None:
        """Return the message to send; None if it is settled, since it has expired or the primary has it by now."""
        if message.source.was_accepted(message.message):
            await message.source.complete(message)
            return None
        try:
            return message.unsealed.message_at(self._clock.now())
        except MalformedEnvelopeError as error:
            await message.source.dead_letter(message, error.reason, error.description)
            return None

    async def _reject(self, group: list[InFlight], reason: str, description: str) -> None:
        """Dead-letter a message that the entity's rules forbid, or send the messages of a group one by one."""
        self._answered()
        if len(group) > 1:
            await self._send_one_by_one(group)
        else:
            await group[0].source.dead_letter(group[0], reason, description)
            self._rejections += 1

    async def _send_one_by_one(self, group: list[InFlight]) -> None:
        """Send each message alone: a message of the group is forbidden, or the group as such is."""
        before = self._rejections
        for position, message in enumerate(group):
            if self.refusal is not None:
                for waiting in group[position:]:
                    await self._park(waiting)
                return
            await self._wait_for_rate(1)
            if not message.is_lost:
                await self._send([[message]])
        self._may_group = self._rejections > before

    # -- answers -------------------------------------------------------------------------------------------------

    def _answered(self) -> None:
        """The entity can be reached: it accepted a message or rejected it by its rules."""
        failures, self.refusal = self.failures, None
        self._waits_since_at = None
        if failures:
            self._pair.record("syphon.destination_recovered", RECOVERED, self.path, failures=failures)
        for source in self._sources:
            source.destination_answered(has_recovered=failures > 0)

    async def _failed(self, group: list[InFlight], error: ServiceBusError, asked_at: float) -> None:
        """Park the group and the line, or dead-letter them if the entity is missing for too long.

        Args:
            asked_at: monotonic time of the request that failed.
        """
        if self.refusal is None:
            self._pair.record(
                "syphon.destination_unavailable", UNAVAILABLE, self.path, level=logging.WARNING, error=error
            )
        refusal = self.refusal or Refusal()
        jitter = self._pair.random.uniform(0.9, 1.1)
        refusal.add(error, self._clock.monotonic(), asked_at=asked_at, jitter=jitter)
        self.refusal = refusal
        self.has_succeeded = False
        self._waits_since_at = None
        refused = [message for message in (*group, *self._line) if not message.is_lost]
        self._line.clear()
        if self._is_given_up:
            if group:
                refusal.retry_at = self._clock.monotonic()  # there may be many more to dead-letter
            settling = [message.source.dead_letter(message, MISSING, str(error)) for message in refused]
        else:
            settling = [self._park(message) for message in refused]
        await asyncio.gather(*settling)
        for source in self._sources:
            source.destination_answered(has_recovered=False)

    def end(self) -> list[asyncio.Task[None]]:
        """Start nothing new; return the tasks that are worth waiting for: running transfers and completions."""
        self.is_ending = True
        return [self.worker, *self._completing] if self._sending else list(self._completing)

    async def close(self) -> None:
        await self._link.close()
