"""One entity of the primary that backlog messages are brought home to: its line, and what to do while it refuses."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final

from sbclient.errors import (
    InvalidOperationError,
    MessageSizeExceededError,
    ServiceBusError,
    ServiceBusServerBusyError,
)
from sbclient.message import ServiceBusMessage, ServiceBusReceivedMessage
from sbclient.options import SERVER_BUSY_PAUSE
from sbclient.pairing.state import PairState
from sbclient.rate_limit import Paces
from sbclient.rules.absence import Absence
from sbclient.rules.backoff import backoff_s
from sbclient.rules.envelope import MalformedEnvelopeError, unseal
from sbclient.syphon.queue_source import BacklogSource, Held
from sbclient.syphon.status import DEAD_LETTERED, RECOVERED, UNAVAILABLE, Trouble
from sbclient.telemetry import metrics, tracing

TOO_LARGE: Final = "MessageSizeExceeded"
"""Dead-letter reason: larger than the destination accepts."""
REFUSED: Final = "DestinationRefused"
"""Dead-letter reason: the destination's rules forbid the message, as a missing session id does."""
MISSING: Final = "DestinationNotFound"
"""Dead-letter reason: the destination is known to have been missing for the whole `missing_entity_grace`."""

TRY_S: Final = 30.0
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0

LINE_MESSAGES: Final = 200
"""How many messages wait in line, in hand, for one destination that is slow; what comes on top is parked."""
SLOW_S: Final = 1.0
"""How long a destination may take to answer, or say that it is busy, before it counts as slow."""
PARKED_KNOWN: Final = 1000
"""How many parked messages of one destination are known by number; others are found by a later scan."""
GROUP_BYTES: Final = 200 * 1024
KEYS_SIDE_BY_SIDE: Final = 4
"""How many transfers are on their way at once, each of another key. Over azure-servicebus each takes a connection."""
FORGET_AFTER_S: Final = 600.0
"""How long a destination is kept for which nothing waits: as long as the service lets a link be idle."""

Take = Callable[[BacklogSource, Sequence[ServiceBusReceivedMessage]], Awaitable[list[Held]]]


class Destination:
    """One entity path. Its worker is the only one that sends there, so one that hangs holds up nobody else.

    Attributes:
        path: of the queue or topic.
        failures: consecutive failed tries; 0 = it accepts messages.
        has_succeeded: whether it accepted the last thing that was sent.
        accepted_at: when it last accepted a message, in monotonic seconds; None = not yet.
        retry_at: when it is tried again, in monotonic seconds.
        trouble: what it answers instead of accepting; None = nothing is wrong.
        is_ending: nothing new is begun.
        worker: the task that runs `work`; set by whoever starts it.

    Args:
        paces: how fast it may be sent to.
        counts: gains `drained` and `dead_lettered.<reason>`.
        notify: called whenever it has answered, and told whether it accepts messages again after having refused.
    """

    worker: asyncio.Task[None]

    def __init__(
        self, pair: PairState, path: str, paces: Paces, counts: Counter[str], notify: Callable[[bool], None]
    ) -> None:
        self._pair = pair
        self._clock = pair.clock
        self._link = pair.primary.open_sender(path)
        self._line: deque[Held] = deque()
        self._parked: dict[BacklogSource, dict[int, None]] = {}
        self._arrived = asyncio.Event()
        self._absence = Absence()
        self._is_given_up = False
        self._may_group = True
        self._sending: list[list[Held]] = []
        self._waits_since_at: float | None = None
        self._paces = paces
        self._counts = counts
        self._notify = notify
        self.is_ending = False
        self._parking = 0
        self._needed_at = pair.clock.monotonic()
        self._where = {metrics.DESTINATION: path, **metrics.server(pair.primary.namespace)}
        self.path = path
        self.failures = 0
        self.has_succeeded = False
        self.accepted_at: float | None = None
        self.retry_at = 0.0
        self.trouble: Trouble | None = None

    @property
    def is_unhappy(self) -> bool:
        """Whether the last try failed, so that its messages are put aside."""
        return self.failures > 0

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits for it, in hand, put aside, or being put aside."""
        return not (self._line or self._sending or self._parking or any(self._parked.values()))

    def has_parked_in(self, source: BacklogSource) -> bool:
        """Whether something is known to be put aside for it in that queue."""
        return bool(self._parked.get(source))

    @property
    def parked_count(self) -> int:
        return sum(map(len, self._parked.values()))

    async def offer(self, held: Held) -> None:
        """Take a message into the line, or park it where there is no place for it."""
        if self.is_unhappy or (len(self._line) >= LINE_MESSAGES and self._is_slow):
            await self._park(held)
        else:
            self._line.append(held)
            self._arrived.set()

    @property
    def _is_slow(self) -> bool:
        """Whether it has kept its line waiting for so long that what is behind for others must get past."""
        return self._waits_since_at is not None and self._clock.monotonic() - self._waits_since_at >= SLOW_S

    def found_parked(self, source: BacklogSource, message: ServiceBusReceivedMessage) -> bool:
        """Take note of a message parked in that source; False if too many are known already."""
        known = self._parked.setdefault(source, {})
        if message.sequence_number not in known:
            if len(known) >= PARKED_KNOWN:
                return False
            known[message.sequence_number] = None
            self._arrived.set()
        return True

    def found_waiting(self) -> bool:
        """A message for it was seen that waits in its queue; returns whether something can be done with it now."""
        self._needed_at = self._clock.monotonic()
        return not self.is_unhappy or self._is_given_up

    async def _park(self, held: Held) -> None:
        known = self._parked.setdefault(held.source, {})
        self._parking += 1
        try:
            if await held.source.park(held) and len(known) < PARKED_KNOWN:
                known[held.message.sequence_number] = None
                self._arrived.set()
        finally:
            self._parking -= 1

    # -- the worker ----------------------------------------------------------------------------------------------

    async def work(self, take: Take) -> None:
        """Send what is in line, then what is parked; runs until cancelled, told to end, or not needed any more.

        Args:
            take: takes fetched messages in hand, but for those that it deals with otherwise.
        """
        while not self.is_ending:
            if self.is_unhappy:
                await self._clock.sleep(max(self.retry_at - self._clock.monotonic(), 0.0))
            if not self._line:
                is_careful = self.is_unhappy and not self._is_given_up
                await self._fetch_parked(take, limit=1 if is_careful else self._paces.group_messages)
            self._drop_lost()
            if not self.is_idle:
                self._needed_at = self._clock.monotonic()
            if self._line:
                await self._send_next()
            elif self._is_needless:
                return
            elif self.is_unhappy:
                await self._answers()
            elif not any(self._parked.values()):
                await self._until_needed()

    @property
    def _is_needless(self) -> bool:
        """Whether nothing has waited for it for so long that it is forgotten, whether it refuses or not."""
        return self.is_idle and self._clock.monotonic() - self._needed_at >= FORGET_AFTER_S

    async def _until_needed(self) -> None:
        """Wait for a message, at most until it is forgotten."""
        self._waits_since_at = None
        self._arrived.clear()
        with suppress(TimeoutError):
            async with self._clock.timeout(FORGET_AFTER_S):
                await self._arrived.wait()

    async def _send_next(self) -> None:
        """Send what is first in line. A coroutine of its own, so that a worker that waits holds no message."""
        groups = self._next_groups()
        await self._wait_for_turn(sum(map(len, groups)))
        self._sending = self._off_the_line(groups)
        try:
            await self._send(self._sending)
        finally:
            self._sending = []

    async def _answers(self) -> None:
        """See whether the entity can be reached again, without a message."""
        try:
            await self._link.open(timeout_s=TRY_S)
        except ServiceBusError as error:
            await self._failed([], error)
        else:
            self._succeeded()

    async def _fetch_parked(self, take: Take, *, limit: int) -> None:
        for source, known in list(self._parked.items()):
            numbers = list(known)[: min(limit, source.room)]
            if not numbers:
                continue
            try:
                messages = await source.fetch(numbers)
            except ServiceBusError:
                continue
            # Known until they are dealt with: while one of them ends the queue is not empty.
            self._line += await take(source, messages)
            for number in numbers:
                known.pop(number, None)
            return
        if any(self._parked.values()):
            # There is something to fetch, but no room for it, or its queue does not answer.
            await self._clock.sleep(FIRST_PAUSE_S)

    def _drop_lost(self) -> None:
        while self._line and self._line[0].is_lost:
            self._line.popleft()

    def _next_groups(self) -> list[list[Held]]:
        """Messages that go out side by side: of each key some, in order, and not too many bytes. They stay in line."""
        keys = 1 if self.is_unhappy else KEYS_SIDE_BY_SIDE
        limit = 1 if self.is_unhappy or not self._may_group else self._paces.group_messages
        groups: dict[str | None, list[Held]] = {}
        full: set[str | None] = set()
        left = self._paces.group_messages
        for held in self._line:
            if not left or len(full) == keys:
                break
            key = _key(held)
            if held.is_lost or key in full or (key not in groups and len(groups) == keys):
                continue
            group = groups.setdefault(key, [])
            if len(group) == limit or (group and sum(one.size for one in group) + held.size > GROUP_BYTES):
                full.add(key)  # what comes behind with this key must not overtake it
                continue
            group.append(held)
            left -= 1
        return list(groups.values())

    async def _wait_for_turn(self, count: int) -> None:
        """Wait until so many messages may leave. They stay in line, to be given back if the end comes first."""
        began_at, since_at = self._clock.monotonic(), self._waits_since_at
        self._waits_since_at = None  # a rate that was asked for does not make it slow
        await self._paces.take(self.path, count)
        now = self._clock.monotonic()
        self._waits_since_at = now if since_at is None else since_at + (now - began_at)

    def _off_the_line(self, groups: list[list[Held]]) -> list[list[Held]]:
        """Take groups out of the line, but for messages whose locks were lost meanwhile."""
        taken = {id(held) for group in groups for held in group}
        self._line = deque(held for held in self._line if id(held) not in taken)
        return [group for group in ([held for held in group if not held.is_lost] for group in groups) if group]

    async def _send(self, groups: list[list[Held]]) -> None:
        """Send groups side by side, and then judge the answers together: one that failed counts, however many others
        succeeded, or a single fragment that is down would be tried without a pause."""
        errors = await asyncio.gather(*map(self._transfer, groups))
        answers = list(zip(groups, errors, strict=True))
        if any(group and error is None for group, error in answers):
            self._succeeded()
        for group, error in answers:
            if isinstance(error, InvalidOperationError | MessageSizeExceededError):
                await self._judge(group, error)
        busy = [held for group, error in answers if isinstance(error, ServiceBusServerBusyError) for held in group]
        self._line.extendleft(reversed(busy))
        failed = [(group, error) for group, error in answers if error is not None and _is_failure(error)]
        if failed:
            await self._failed([held for group, _ in failed for held in group], failed[0][1])
        elif busy:
            await self._clock.sleep(SERVER_BUSY_PAUSE.total_seconds())

    async def _transfer(self, group: list[Held]) -> ServiceBusError | None:
        """Send a group and complete what was accepted; returns the error, None if all is well.

        What need not be sent, or cannot be, is dealt with and taken out of the group.
        """
        messages: list[ServiceBusMessage] = []
        for held in list(group):
            message = None if await self._was_accepted(held) else await self._fresh(held)
            if message is None:
                group.remove(held)
            else:
                messages.append(message)
        if not messages:
            return None
        try:
            sending = self._link.send(messages, timeout_s=TRY_S)
            await tracing.carrying(tracing.DRAIN, messages, self._where, self._clock, sending)
        except ServiceBusError as error:
            return error
        self.accepted_at = self._clock.monotonic()
        self._counts["drained"] += len(group)
        metrics.add(metrics.DRAINED, len(group), self._where)
        await asyncio.gather(*(held.source.complete(held) for held in group))
        return None

    async def _judge(self, group: list[Held], error: ServiceBusError) -> None:
        """The entity's rules forbid a message, or the group as such."""
        self._answered()
        if len(group) > 1:
            await self._send_one_by_one(group)
        else:
            reason = TOO_LARGE if isinstance(error, MessageSizeExceededError) else REFUSED
            await self._dead_letter(group[0], reason, str(error))

    async def _send_one_by_one(self, group: list[Held]) -> None:
        """Something in the group is refused, or grouping itself is: each message is judged alone."""
        before = self._refused()
        for position, held in enumerate(group):
            if self.is_unhappy:
                for waiting in group[position:]:
                    await self._park(waiting)
                return
            if not held.is_lost:
                await self._send([[held]])
        self._may_group = self._refused() > before

    def _refused(self) -> int:
        return self._counts[f"dead_lettered.{REFUSED}"] + self._counts[f"dead_lettered.{TOO_LARGE}"]

    async def _was_accepted(self, held: Held) -> bool:
        """Whether the primary took another delivery of this copy while this one was in line; then it is completed."""
        if not held.source.was_accepted(held.message):
            return False
        await held.source.complete(held)
        return True

    async def _fresh(self, held: Held) -> ServiceBusMessage | None:
        """The message as it is to be sent now: what is left of its life goes on shrinking while it waits."""
        message = held.unsealed.message
        if message.time_to_live is None:
            return message
        try:
            return unseal(held.message, now=self._clock.now(), life=self._pair.options.backlog_time_to_live).message
        except MalformedEnvelopeError as error:
            await self._dead_letter(held, error.reason, error.description)
            return None

    async def _dead_letter(self, held: Held, reason: str, description: str) -> None:
        if await held.source.dead_letter(held, reason, description):
            self._counts[f"dead_lettered.{reason}"] += 1
            with tracing.within(held.message):
                self._pair.record(
                    "syphon.dead_lettered", DEAD_LETTERED, self.path, reason=reason, queue=held.source.queue
                )

    # -- happy and unhappy ---------------------------------------------------------------------------------------

    def _answered(self) -> None:
        """The entity gave an answer: it can be reached, whatever it said of the message."""
        failures, self.failures = self.failures, 0
        self.trouble = None
        self._waits_since_at = None
        self._absence.end()
        self._is_given_up = False
        if failures:
            self._pair.record("syphon.destination_recovered", RECOVERED, self.path, failures=failures)
        self._notify(failures > 0)

    def _succeeded(self) -> None:
        self._answered()
        self.has_succeeded = True

    async def _failed(self, group: list[Held], error: ServiceBusError) -> None:
        """Put aside everything in line, and try again after a while that doubles each time."""
        if not self.failures:
            self._pair.record(
                "syphon.destination_unavailable", UNAVAILABLE, self.path, level=logging.WARNING, error=error
            )
        self.failures += 1
        self.has_succeeded = False
        self.trouble = Trouble.of(error, self._clock.monotonic(), self.trouble)
        self._waits_since_at = None
        self._absence.note(error, self._clock.monotonic())
        self._is_given_up = self._absence.has_lasted(self._pair.options.missing_entity_grace.total_seconds())
        pause_s = backoff_s(self.failures, first_s=FIRST_PAUSE_S, longest_s=LONGEST_PAUSE_S)
        if self._is_given_up and group:
            pause_s = 0.0  # there may be many more to dead-letter, and each costs one look at the entity
        self.retry_at = self._clock.monotonic() + pause_s * self._pair.random.uniform(0.9, 1.1)
        refused = [held for held in (*group, *self._line) if not held.is_lost]
        self._line.clear()
        if self._is_given_up:
            await asyncio.gather(*(self._dead_letter(held, MISSING, str(error)) for held in refused))
        else:
            await asyncio.gather(*(self._park(held) for held in refused))
        self._notify(False)

    def end(self) -> bool:
        """Begin nothing new; returns whether something is on its way, so that the worker is worth waiting for."""
        self.is_ending = True
        return bool(self._sending)

    async def close(self) -> None:
        await self._link.close()


def _key(held: Held) -> str | None:
    message = held.unsealed.message
    return message.session_id if message.session_id is not None else message.partition_key


def _is_failure(error: ServiceBusError) -> bool:
    """Whether the entity could not be reached, or answers for reasons of its own."""
    return not isinstance(error, InvalidOperationError | MessageSizeExceededError | ServiceBusServerBusyError)
