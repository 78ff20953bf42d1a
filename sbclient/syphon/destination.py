"""One entity of the primary that backlog messages are sent to: its line of messages, and what happens if it refuses.

During a long outage its messages go to the entity of the same path in the secondary; see `Refusal.redirect_at`. The
primary is probed meanwhile. When it can be reached, one message is sent to it; its acceptance ends the redirect.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from typing import Any, Final

from sbclient import clock
from sbclient.amqp import EncodedBatch, EncodedMessage
from sbclient.errors import (
    InvalidOperationError,
    MessageSizeExceededError,
    OperationTimeoutError,
    ServiceBusError,
    ServiceBusServerBusyError,
)
from sbclient.options import SERVER_BUSY_PAUSE
from sbclient.pairing.provisioning import keeping_entity
from sbclient.pairing.state import PairState
from sbclient.rate_limit import RateLimits
from sbclient.rules.envelope import MalformedEnvelopeError
from sbclient.rules.failover import is_outage
from sbclient.rules.refusal import FIRST_PAUSE_S, OngoingError, Refusal
from sbclient.rules.syphon_reason import SyphonReason
from sbclient.syphon.source import TRIES_UNTIL_EMPTY, InFlight, Source, complete
from sbclient.syphon.status import (
    IN_DOUBT,
    NOT_REDIRECTED,
    RECOVERED,
    REDIRECT_ENDED,
    REDIRECTED,
    UNAVAILABLE,
    Progress,
)
from sbclient.tasks import OwnedTasks
from sbclient.telemetry import metrics, tracing
from sbclient.transport.base import SenderLink

SEND_S: Final = 30.0

LINE_MESSAGES: Final = 200
"""Longest line of a slow destination; further messages are parked."""
SLOW_S: Final = 1.0
"""A destination that has not answered for this long, also with a busy error, counts as slow."""
PARKED_KNOWN: Final = 1000
"""Parked messages of one destination and queue that are remembered by number; a later scan finds the others."""
GROUP_BYTES: Final = 200 * 1024
CONCURRENT_KEYS: Final = 4
"""Concurrent transfers, each of another key, besides one for each session that a source drains in order. Over
azure-servicebus each takes a connection."""
FORGET_AFTER_S: Final = 600.0
"""How long a destination without messages is kept: the service's idle timeout of a link."""


class Destination:
    """One entity path. Only its own worker sends to it, so a destination that hangs delays no other.

    Attributes:
        path: of the queue or topic.
        outage: the consecutive failures of the primary; None = it accepts messages.
        has_succeeded: whether it accepted the last messages that were sent.
        accepted_at: when it last accepted a message, in monotonic seconds; -inf = never.
        is_ending: nothing new is started.
        worker: the task that runs `work`; set by the caller that starts it.

    Args:
        rates: limits of the send rates.
        progress: counts the messages that it has accepted.
        sources: are notified of its answers.
        tasks: of the completions of messages that it has accepted.
        outage: its state, if it was known before.
    """

    worker: asyncio.Task[None]

    def __init__(
        self,
        pair: PairState,
        path: str,
        rates: RateLimits,
        progress: Progress,
        sources: Sequence[Source],
        tasks: OwnedTasks,
        outage: Refusal | None = None,
    ) -> None:
        self._pair = pair
        self._links = pair.primary.open_sender(path), pair.secondary.open_sender(path)
        self._rates = rates
        self._progress = progress
        self._is_elsewhere = False
        self._is_reachable = False  # the primary opened a link during a redirect, so that a message is to be tried
        self._probing: asyncio.Task[None] | None = None
        self._sources = sources
        self._tasks = tasks
        self._completing: dict[asyncio.Task[None], None] = {}
        self._line: deque[InFlight] = deque()
        self._parked: dict[Source, dict[int | str, None]] = {}
        self._parking = 0
        self._trying: int | str | None = None
        self._is_asking = False
        self._arrived = asyncio.Event()
        self._may_group = True
        self._rejections = 0
        self._sending: dict[str | None, bool] = {}
        self._transfers: dict[asyncio.Task[None], None] = {}
        self._busy_until_at = float("-inf")
        self._generation = 0
        self._waits_since_at: float | None = None
        self._needed_at = clock.monotonic()
        self.path = path
        self.outage = outage
        self.has_succeeded = False
        self.accepted_at = float("-inf")
        self.is_ending = False

    @property
    def refusal(self) -> Refusal | None:
        """The consecutive failures where its messages go now: in the primary or in the secondary; None = none."""
        return self.outage.elsewhere if self._is_elsewhere and self.outage is not None else self.outage

    @refusal.setter
    def refusal(self, refusal: Refusal | None) -> None:
        if self._is_elsewhere and self.outage is not None:
            self.outage.elsewhere = refusal
        else:
            self.outage = refusal

    @property
    def error(self) -> OngoingError | None:
        """Why its messages wait; None = they are accepted."""
        outage, refusal = self.outage, self.refusal
        if outage is None or refusal is None or self._is_reachable:
            return None
        if refusal is outage:
            return outage.error
        return replace(outage.error, text=f"{outage.error.text}; in the secondary {refusal.error.text}")

    @property
    def redirected_at(self) -> float | None:
        """Since when the secondary accepts its messages instead; None = it does not now."""
        outage = self.outage if self._is_elsewhere else None
        return outage.redirected_at if outage is not None and outage.elsewhere is None else None

    @property
    def _link(self) -> SenderLink:
        return self._links[self._is_elsewhere]

    @property
    def failures(self) -> int:
        """Number of consecutive failures."""
        return self.refusal.failures if self.refusal is not None else 0

    @property
    def tries(self) -> int:
        """Number of failures that count for the end of a run until empty, which waits for the time of a redirect."""
        outage = None if self._is_elsewhere else self.outage
        is_to_come = outage is not None and outage.redirect_at(self._pair.options.redirect_after) < float("inf")
        return min(self.failures, TRIES_UNTIL_EMPTY - 1) if is_to_come else self.failures

    def tries_for(self, source: Source) -> int:
        """Return the number of those failures where messages of that queue may go."""
        if self._pair.options.redirect_sessions or not source.is_ordered:
            return self.tries
        return self.outage.failures if self.outage is not None else 0

    def _takes(self, source: Source) -> bool:
        """Whether messages of a queue may be sent where messages go now: ordered sessions wait for the primary."""
        return not (self._is_elsewhere and source.is_ordered) or self._pair.options.redirect_sessions

    @property
    def is_idle(self) -> bool:
        """Whether it has no message: in line, in a transfer, being completed, parked or being parked."""
        return not (self._line or self._sending or self._completing or self._parking or any(self._parked.values()))

    @property
    def replaceable(self) -> Refusal | None:
        """Its outage, if it only waits for its next attempt, with parked messages that a scan finds again."""
        is_busy = self._is_asking or self._line or self._sending or self._completing or self._parking
        is_ordered = any(known for source, known in self._parked.items() if source.is_ordered)
        return None if is_busy or is_ordered or self.refusal is None else self.outage

    def parked_in(self, source: Source) -> dict[int | str, None]:
        """Return what is known to be parked in that queue: sequence numbers, or sessions of an ordered queue."""
        return self._parked.get(source) or {}

    @property
    def is_refusing_queues(self) -> bool:
        """Whether it refuses and messages of a plain queue were parked, not only sessions."""
        return self.refusal is not None and not all(source.is_ordered for source in self._parked)

    async def offer(self, message: InFlight) -> None:
        """Add a message to the line, or park it if there is no place for it."""
        if self._has_place_for(message):
            self._line.append(message)
            self._arrived.set()
        else:
            await self._park(message)

    def _has_place_for(self, message: InFlight) -> bool:
        is_ordered = message.source.is_ordered
        if not self._takes(message.source):
            return False
        if self.refusal is None or self._is_reachable:
            return len(self._line) < LINE_MESSAGES or not self._is_slow or is_ordered
        if is_ordered and self._is_given_up and self.refusal.retry_at <= clock.monotonic():
            return True  # the next message of a session whose messages are being dead-lettered
        return is_ordered and message.session_id == self._trying

    @property
    def _is_slow(self) -> bool:
        """Whether its line has waited for so long that messages for others behind it have to pass."""
        return self._waits_since_at is not None and clock.monotonic() - self._waits_since_at >= SLOW_S

    def remember_parked(self, source: Source, number: int | str) -> bool:
        """Remember a parked message by its sequence number, or a session; return False if too many are remembered."""
        known = self._parked.setdefault(source, {})
        if number not in known:
            if len(known) >= PARKED_KNOWN:
                return False
            known[number] = None
            self._arrived.set()
        return True

    def can_forward(self) -> bool:
        """A scan has found a waiting message for it; return whether the message can be sent or dead-lettered now."""
        self._needed_at = clock.monotonic()
        return self.refusal is None or self._is_given_up or self._is_reachable

    @property
    def _is_given_up(self) -> bool:
        """Whether the entity is missing for so long that its messages are dead-lettered."""
        grace_s = self._pair.options.missing_entity_grace.total_seconds()
        return self.outage is not None and self.outage.is_missing_for(grace_s)

    async def _park(self, message: InFlight) -> None:
        self._parking += 1
        try:
            number = await message.park()
            if number is not None:
                self.remember_parked(message.source, number)
        finally:
            self._parking -= 1

    # -- the worker ----------------------------------------------------------------------------------------------

    async def work(self) -> None:
        """Send the messages in line, then the parked ones; runs until cancelled, ended, or not needed any more."""
        while not self.is_ending:
            if self._has_to_switch:
                await self._switch()
                continue
            retry_at = self.refusal.retry_at if self.refusal is not None else float("-inf")
            if self.outage is not None and not self._is_elsewhere:
                retry_at = min(retry_at, self.outage.redirect_at(self._pair.options.redirect_after))
            if (pause_s := max(retry_at, self._busy_until_at) - clock.monotonic()) > 0:
                await clock.sleep(pause_s)
                continue
            if not self._line and not self._sending:
                await self._fetch_parked()
            while self._line and self._line[0].is_lost:
                self._line.popleft()
            if not self.is_idle:
                self._needed_at = clock.monotonic()
            if await self._send_next():
                continue
            if self._line or self._sending:
                self._arrived.clear()
                await self._arrived.wait()
            elif self._has_to_switch:
                continue
            elif self.is_idle and not self._is_elsewhere and clock.monotonic() - self._needed_at >= FORGET_AFTER_S:
                if self._is_reachable:
                    self._answered(self._generation)
                return
            elif self.refusal is not None and not self._is_reachable:
                await self._probe()
            elif not any(known for source, known in self._parked.items() if self._takes(source)):
                await self._until_needed()

    @property
    def _has_to_switch(self) -> bool:
        """Whether messages go to the primary and have to go to the secondary, or the other way round."""
        outage = self.outage
        is_redirected = (
            outage is not None
            and not self._is_reachable
            and outage.redirect_at(self._pair.options.redirect_after) <= clock.monotonic()
        )
        return is_redirected != self._is_elsewhere

    async def _switch(self) -> None:
        """Let messages go to the other namespace, when no transfer runs."""
        if self._sending:
            self._arrived.clear()
            await self._arrived.wait()
            return
        self._is_elsewhere = not self._is_elsewhere
        self.has_succeeded = False
        self._waits_since_at = None
        if not self._is_elsewhere or self.outage is None:
            return
        self._probing = self._tasks.start(self._probe_primary(self.outage), name=f"probe {self.path}")
        waiting = [message for message in self._line if not self._takes(message.source)]
        self._line = deque([message for message in self._line if self._takes(message.source)])
        await asyncio.gather(*map(self._park, waiting))
        for source, known in self._parked.items():
            if source.is_ordered and self._takes(source):
                known.clear()  # the source finds its sessions by itself
        for source in self._sources:
            source.destination_answered(has_recovered=self.refusal is None)

    async def _probe_primary(self, outage: Refusal) -> None:
        """Open links to the primary until one is opened, or another error shows that the outage is over."""
        while outage.outage_at is not None and not self._is_reachable:
            await clock.sleep(max(outage.retry_at - clock.monotonic(), 0.0))
            asked_at = clock.monotonic()
            link = self._pair.primary.open_sender(self.path)
            try:
                await link.open(timeout_s=SEND_S)
                self._is_reachable = True
            except ServiceBusServerBusyError:
                outage.interrupt()
                outage.retry_at = clock.monotonic() + SERVER_BUSY_PAUSE.total_seconds()
            except ServiceBusError as error:
                self._add(outage, error, asked_at)
            finally:
                await link.close()
        self._arrived.set()

    def _add(self, refusal: Refusal, error: ServiceBusError, asked_at: float) -> None:
        counts = is_outage(error, has_sent_before=False, override=self._pair.options.is_outage)
        jitter = self._pair.random.uniform(0.9, 1.1)
        refusal.add(error, clock.monotonic(), asked_at=asked_at, jitter=jitter, is_outage=counts)

    async def _until_needed(self) -> None:
        """Wait for a message, at most until the destination is forgotten."""
        self._waits_since_at = None
        self._arrived.clear()
        await clock.wait_for(self._arrived, FORGET_AFTER_S)

    async def _send_next(self) -> bool:
        """Start to send the first messages in line whose keys are not being sent; return False if there are none.

        A separate coroutine, so that a waiting worker keeps no message alive.
        """
        if not (groups := self._next_groups()):
            return False
        await self._wait_for_rate(sum(map(len, groups.values())))
        # The end waits only for transfers that run already. The primary could accept a later one after its message was
        # made available again.
        if not self.is_ending and (groups := self._remove_from_line(groups)):
            self._sending |= {key: group[0].source.is_ordered for key, group in groups.items()}
            transfer = self._tasks.start(self._send_groups(groups), name=f"send to {self.path}")
            self._transfers[transfer] = None
            transfer.add_done_callback(self._transfers.pop)
        return True

    async def _send_groups(self, groups: dict[str | None, list[InFlight]]) -> None:
        try:
            await self._send(list(groups.values()))
        finally:
            for key in groups:
                del self._sending[key]
            self._arrived.set()

    async def _probe(self) -> None:
        """Open the link to see whether the entity can be reached again, without a message."""
        asked_at, generation = clock.monotonic(), self._generation
        self._is_asking = True
        try:
            await self._link.open(timeout_s=SEND_S)
        except ServiceBusServerBusyError:
            self._pause()
        except ServiceBusError as error:
            await self._failed([], error, asked_at, generation)
        else:
            self._answered(generation, has_succeeded=True)
        finally:
            self._is_asking = False

    async def _fetch_parked(self) -> None:
        """Move parked messages into the line: one if the entity refuses, else a group."""
        limit = 1 if self.refusal is not None and not self._is_given_up else self._rates.group_messages
        for source, known in list(self._parked.items()):
            if not self._takes(source):
                continue
            numbers = list(known)[: 1 if source.is_ordered else min(limit, source.room)]
            if not numbers:
                continue
            self._trying, self._is_asking = numbers[0], True
            try:
                messages = await source.receive_parked(numbers)
            except ServiceBusError:
                if not source.is_ordered:  # their partition may be down: try others first
                    for number in numbers:
                        known.pop(number, None)
                        known[number] = None
                continue
            finally:
                self._trying, self._is_asking = None, False
            # The numbers stay known until the messages are taken: until then the queue is not empty.
            self._line += messages
            for number in numbers:
                known.pop(number, None)
            if source.is_ordered and self._line:
                known[numbers[0]] = None  # the session rests until the entity accepts messages, behind the others
            return
        if any(known for source, known in self._parked.items() if self._takes(source)):
            await clock.sleep(FIRST_PAUSE_S)  # there is no room, or the queue does not answer

    def _next_groups(self) -> dict[str | None, list[InFlight]]:
        """Return groups to send now, by key: some messages of each, in order. They stay in line."""
        is_trial, group_messages = self.refusal is not None, self._rates.group_messages
        if is_trial and self._sending:
            return {}
        keys_left = 1 if is_trial else CONCURRENT_KEYS - sum(not is_ordered for is_ordered in self._sending.values())
        limit = 1 if is_trial or not self._may_group else group_messages
        groups: dict[str | None, list[InFlight]] = {}
        sizes: dict[str | None, int] = {}
        full = set(self._sending)
        left = 1 if is_trial else group_messages
        for message in self._line:
            if not left:
                break
            key = message.key
            if message.is_lost or key in full:
                continue
            if key not in groups:
                if not message.source.is_ordered:
                    if not keys_left:
                        continue
                    keys_left -= 1
                groups[key], sizes[key] = [], 0
            if len(groups[key]) == limit or (groups[key] and sizes[key] + message.size > GROUP_BYTES):
                full.add(key)  # later messages of this key must not overtake this one
                continue
            groups[key].append(message)
            sizes[key] += message.size
            left -= 1
        return groups

    async def _wait_for_rate(self, count: int) -> None:
        """Wait until the rate limit allows the messages. They stay in line, so that an end releases them."""
        began_at, since_at = clock.monotonic(), self._waits_since_at
        self._waits_since_at = None  # a rate limit does not make the destination slow
        await self._rates.take(self.path, count)
        now = clock.monotonic()
        self._waits_since_at = now if since_at is None else since_at + (now - began_at)

    def _remove_from_line(self, groups: dict[str | None, list[InFlight]]) -> dict[str | None, list[InFlight]]:
        """Remove groups from the line; return them without messages whose locks are lost or that are parked by now."""
        in_line = set(self._line)
        removed = {message for group in groups.values() for message in group if message in in_line}
        self._line = deque([message for message in self._line if message not in removed])
        kept = {
            key: [message for message in group if message in removed and not message.is_lost]
            for key, group in groups.items()
        }
        return {key: group for key, group in kept.items() if group}

    async def _send(self, groups: list[list[InFlight]]) -> None:
        """Send groups concurrently, then handle the results together.

        One failure counts, however many groups succeed: otherwise a single fragment that is down would be tried without
        a pause. The messages of the transfers before are completed meanwhile.
        """
        asked_at, generation, completing = clock.monotonic(), self._generation, list(self._completing)
        if len(groups) == 1:
            errors = [await self._transfer(groups[0])]
        else:
            errors = await asyncio.gather(*map(self._transfer, groups))
        await asyncio.gather(*completing)  # messages that are sent and not completed must not add up
        answers = list(zip(groups, errors, strict=True))
        if any(group and error is None for group, error in answers):
            self._answered(generation, has_succeeded=True)
        busy: list[InFlight] = []
        failed: list[InFlight] = []
        failure: ServiceBusError | None = None
        for group, error in answers:
            if isinstance(error, ServiceBusServerBusyError):
                busy += group
            elif error is not None and (reason := _rejection_reason(error)) is not None and self._may_reject(group):
                self._answered(generation)
                await self._reject(group, reason, str(error))
            elif error is not None:
                failed += group
                failure = failure or error
        if busy:
            self._line.extendleft(reversed(busy))
            self._pause()
        if failure is not None:
            await self._failed(failed, failure, asked_at, generation)

    def _pause(self) -> None:
        """Wait as long as a busy service asks for. A busy entity may be the next to accept: this is no failure."""
        self._busy_until_at = clock.monotonic() + SERVER_BUSY_PAUSE.total_seconds()
        if self.refusal is not None:
            self.refusal.interrupt()

    def _may_reject(self, group: Sequence[InFlight]) -> bool:
        """Whether messages may be sent one by one or dead-lettered. Only the primary decides about one of them."""
        return not self._is_elsewhere or len(group) > 1

    async def _transfer(self, group: list[InFlight]) -> ServiceBusError | None:
        """Send a group and begin to complete it; return the error, or None. Messages that are not sent leave it."""
        if self._is_elsewhere and self.redirected_at is None and (error := await self._error_elsewhere()) is not None:
            return error
        contents = await self._contents(group)
        group[:] = contents
        if not group:
            return None
        messages = list(contents.values())
        namespace = (self._pair.secondary if self._is_elsewhere else self._pair.primary).namespace
        where = {metrics.DESTINATION: self.path, **metrics.server(namespace)}
        try:
            batch = EncodedBatch(messages)
            with self._pair.accepted.sending((message.source.queue, message.message) for message in group):
                await tracing.carrying(tracing.DRAIN, messages, where, self._link.send(batch, timeout_s=SEND_S))
        except ServiceBusError as error:
            if error.is_in_doubt:
                for message in group:
                    number = message.message.sequence_number
                    self._progress.doubt(message.source.queue, number, is_redirected=self._is_elsewhere)
            return error.with_traceback(None)  # it would refer to this frame, and this to the messages
        self.accepted_at = clock.monotonic()
        for message in group:
            message.accept()
        self._progress.add(self.path, self.accepted_at, len(group), is_redirected=self._is_elsewhere)
        self._note_accepted(group)
        metrics.add(metrics.DRAINED, len(group), where)
        if to_complete := [message for message in group if not message.source.is_ordered]:
            completing = self._tasks.start(complete(to_complete), name=f"complete {self.path}")
            self._completing[completing] = None
            completing.add_done_callback(self._completing.pop)
        return None

    async def _error_elsewhere(self) -> ServiceBusError | None:
        """Return why the secondary would not keep messages; asked before the first one and after each failure."""
        try:
            async with clock.timeout(SEND_S):
                await keeping_entity(self._pair.secondary.administration, self.path)
        except TimeoutError:
            return OperationTimeoutError(f"the secondary did not describe {self.path!r} within {SEND_S:g} s")
        except ServiceBusError as error:
            return error.with_traceback(None)
        return None

    def _note_accepted(self, group: Sequence[InFlight]) -> None:
        """Say where messages go, and which of them the other namespace may have, too."""
        outage = self.outage
        if self._is_elsewhere and outage is not None:
            if outage.redirected_at is None:
                outage.redirected_at = self.accepted_at
                self._pair.record(
                    "syphon.redirected", REDIRECTED, self.path, level=logging.WARNING, error=outage.error.kind.__name__
                )
            outage.redirected += len(group)
        was = {one: self._progress.doubts.pop((one.source.queue, one.message.sequence_number), ()) for one in group}
        if twice := [one.message.message_id for one, sides in was.items() if (not self._is_elsewhere) in sides]:
            side = "secondary" if self._is_elsewhere else "primary"
            facts = {"side": side, "count": len(twice), "message_ids": twice}
            self._pair.record("syphon.redirected_in_doubt", IN_DOUBT, self.path, level=logging.WARNING, **facts)

    async def _contents(self, group: Sequence[InFlight]) -> dict[InFlight, EncodedMessage]:
        """Return what to send; settle what has expired, and what the primary has by now.

        Locks are checked after the last wait: another syphon may have received what is not locked any more. If another
        syphon of this client is still sending a message whose lock it has lost, the message waits for the answer.
        """
        accepted = self._pair.accepted
        while True:
            now = clock.now()
            contents: dict[InFlight, EncodedMessage] = {}
            undecided: set[InFlight] = set()
            settling: list[Awaitable[Any]] = []
            for message in group:
                if message.is_accepted:
                    settling.append(message.complete())
                elif (ended := accepted.end_of_send(message.source.queue, message.message)) is not None:
                    settling.append(ended.wait())
                    undecided.add(message)
                elif message.is_locked(now):
                    try:
                        contents[message] = message.unsealed.message_at(now)
                    except MalformedEnvelopeError as error:
                        settling.append(message.dead_letter(error.reason, error.description))
            if not settling:
                return contents
            await asyncio.gather(*settling)
            group = [message for message in group if message in contents or message in undecided]

    async def _reject(self, group: list[InFlight], reason: SyphonReason, description: str) -> None:
        """Dead-letter a message that the entity's rules forbid, or send the messages of a group one by one."""
        if len(group) > 1:
            await self._send_one_by_one(group)
        else:
            await group[0].dead_letter(reason, description)
            self._rejections += 1

    async def _send_one_by_one(self, group: list[InFlight]) -> None:
        """Send each message alone: a message of the group is forbidden, or the group as such is."""
        before = self._rejections
        for position, message in enumerate(group):
            if self.refusal is not None:
                for waiting in group[position:]:
                    await self._park(waiting)
                return
            if self._busy_until_at > clock.monotonic():
                await clock.sleep(self._busy_until_at - clock.monotonic())
            await self._wait_for_rate(1)
            if not message.is_lost:
                await self._send([[message]])
        self._may_group = self._rejections > before

    # -- answers -------------------------------------------------------------------------------------------------

    def _answered(self, generation: int, *, has_succeeded: bool = False) -> None:
        """The entity can be reached: it accepted a message or rejected it by its rules.

        Args:
            generation: at the time of the request. An answer to a request before the last failure proves nothing.
        """
        if generation != self._generation:
            return
        outage, is_elsewhere = self.outage, self._is_elsewhere
        failures, self.refusal = self.failures, None
        self._waits_since_at = None
        is_news = failures > 0 or (has_succeeded and not self.has_succeeded)
        self.has_succeeded = self.has_succeeded or has_succeeded
        if not is_elsewhere:
            self._is_reachable = False
            if outage is not None and outage.redirected:
                self._pair.record("syphon.redirect_ended", REDIRECT_ENDED, self.path, redirected=outage.redirected)
        if failures:
            if not is_elsewhere:
                self._pair.record("syphon.destination_recovered", RECOVERED, self.path, failures=failures)
            for source, known in self._parked.items():
                if source.is_ordered:
                    known.clear()  # the source finds its sessions by itself
        if is_news:
            for source in self._sources:
                source.destination_answered(has_recovered=failures > 0)

    async def _failed(self, group: list[InFlight], error: ServiceBusError, asked_at: float, generation: int) -> None:
        """Park the group and the line, or dead-letter them if the entity is missing for too long.

        Args:
            asked_at: monotonic time of the request that failed.
            generation: at that time. Requests that were sent before the last failure count as one with it.
        """
        refusal = self.refusal or Refusal()
        if self._is_elsewhere and self.outage is not None:
            if not self.outage.is_elsewhere_named:
                self.outage.is_elsewhere_named = True
                self._pair.record(
                    "syphon.not_redirected", NOT_REDIRECTED, self.path, level=logging.WARNING, error=error
                )
        elif self.refusal is None:
            self._pair.record(
                "syphon.destination_unavailable", UNAVAILABLE, self.path, level=logging.WARNING, error=error
            )
        if self.refusal is None or generation == self._generation:
            self._generation += 1
            self._add(refusal, error, asked_at)
        self.refusal = refusal
        self._is_reachable = self._is_reachable and self._is_elsewhere
        self.has_succeeded = False
        self._waits_since_at = None
        refused = [message for message in (*group, *self._line) if not message.is_lost]
        self._line.clear()
        if self._is_given_up:
            if group:
                refusal.retry_at = clock.monotonic()  # there may be many more to dead-letter
            settling = [message.dead_letter(SyphonReason.NOT_FOUND, str(error)) for message in refused]
        else:
            settling = [self._park(message) for message in refused]
        await asyncio.gather(*settling)
        for source in self._sources:
            source.destination_answered(has_recovered=False)

    def end(self) -> list[asyncio.Task[None]]:
        """Start nothing new; return the tasks that are worth waiting for: running transfers and completions."""
        self.is_ending = True
        return [*self._transfers, *self._completing]

    async def close(self) -> None:
        if self._probing is not None:
            self._tasks.end(self._probing)
        await asyncio.gather(*(link.close() for link in self._links))


def _rejection_reason(error: ServiceBusError) -> SyphonReason | None:
    """Return the dead-letter reason if the entity's rules forbid the message; None for every other error."""
    if isinstance(error, MessageSizeExceededError):
        return SyphonReason.TOO_LARGE
    return SyphonReason.REFUSED if isinstance(error, InvalidOperationError) else None
