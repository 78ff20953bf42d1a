"""One backlog queue, as the syphon sees it: what is in hand from it, and what was put aside in it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from sbclient.clock import Clock
from sbclient.delivery import Settlement, SettleMode
from sbclient.errors import MessageAlreadySettled, MessageLockLostError, MessageNotFoundError, ServiceBusError
from sbclient.message import ServiceBusMessageState, ServiceBusReceivedMessage
from sbclient.rules.accepted import AcceptedCopies
from sbclient.rules.envelope import Unsealed
from sbclient.rules.size import encoded_size
from sbclient.rules.window import Window
from sbclient.syphon.queue_counts import Sighting
from sbclient.telemetry import metrics, tracing
from sbclient.telemetry.log import get_logger
from sbclient.transport.base import ReceiverLink, Transport

log = get_logger(__name__)

IN_VAIN_S: Final = 2.0
"""A queue that has messages gives one sooner than that."""

SETTLE_S: Final = 20.0
LEAST_RENEWAL_PAUSE_S: Final = 1.0
PEEK_MESSAGES: Final = 100
GIVE_BACK_S: Final = 5.0
"""How long closing waits until everything in hand is given back; then its locks run out by themselves."""


@dataclass(slots=True, eq=False)
class Held:
    """A backlog message in hand: locked in its queue, on its way home.

    Attributes:
        size: encoded bytes.
        lock_s: seconds that the lock lasts.
        is_lost: the lock has ended, so that somebody else may have the message; it must not be sent any more.
    """

    message: ServiceBusReceivedMessage
    source: BacklogSource
    unsealed: Unsealed
    size: int
    lock_s: float
    is_lost: bool = False


class Scout(Protocol):
    """Whoever wants to know what a scan comes across."""

    def found_parked(self, source: BacklogSource, message: ServiceBusReceivedMessage) -> bool:
        """Take note of a deferred message; False = there is no room, it must be found again later."""

    def is_hopeful(self, message: ServiceBusReceivedMessage) -> bool:
        """Whether something can be done with a waiting message now: its destination does not refuse, or it has none."""


@dataclass(frozen=True, slots=True)
class Scan:
    """What a look through a queue found.

    Attributes:
        active: messages that wait, or are in somebody else's hands.
        hopeful: those of them with which something can be done now.
        overlooked: deferred messages of which nobody could take note.
    """

    active: int
    hopeful: int
    overlooked: int


class BacklogSource:
    """One plain backlog queue.

    Attributes:
        queue: its name.
        held: what is in hand, by sequence number.
        changed: set whenever something in hand is settled or lost.
        look_again: set when a parked message may be here that nobody knows of, until somebody looks.

    Args:
        accepted: what the primary has, though it is still in a backlog queue.
        window: how much of this queue may be in hand.
    """

    def __init__(
        self, secondary: Transport, queue: str, clock: Clock, accepted: AcceptedCopies, window: Window
    ) -> None:
        self._secondary = secondary
        self._clock = clock
        self._link: ReceiverLink = secondary.open_receiver(queue)
        self._accepted = accepted
        self._window = window
        self._has_hold = asyncio.Event()
        self._seen = self._next_seen = Sighting()
        self._asked_at: float | None = None
        self._read_time = clock.reader()
        self._ahead_s = clock.now() - clock.monotonic()
        self._where = {metrics.DESTINATION: queue, **metrics.server(secondary.namespace)}
        self.queue = queue
        self.held: dict[int, Held] = {}
        self.changed = asyncio.Event()
        self.look_again = asyncio.Event()

    @property
    def room(self) -> int:
        """How many more messages may be taken in hand."""
        return self._window.room

    async def receive(self, *, max_message_count: int, max_wait_time_s: float) -> list[ServiceBusReceivedMessage]:
        """Take messages; the caller holds, settles or abandons each."""
        self._asked_at = self._clock.monotonic()
        try:
            messages = await self._link.receive(max_message_count=max_message_count, max_wait_time_s=max_wait_time_s)
        finally:
            self._asked_at = None
        self._seen.taken(messages)
        return messages

    async def reopen(self) -> None:
        """Begin anew with a fresh link, after an error."""
        await self._link.close()
        self._link = self._secondary.open_receiver(self.queue)

    def hold(self, message: ServiceBusReceivedMessage, unsealed: Unsealed) -> Held:
        """Keep a message in hand: its lock is renewed until it is settled."""
        earlier = self.held.get(message.sequence_number)
        if earlier is not None:  # its lock ended unnoticed, and the message has come again
            earlier.is_lost = True
            self._let_go(earlier)
        held = Held(message, self, unsealed, encoded_size(message), lock_s=self._left_s(message))
        self.held[message.sequence_number] = held
        self._window.add(held.size)
        self._has_hold.set()
        return held

    def _let_go(self, held: Held) -> None:
        number = held.message.sequence_number
        if self.held.get(number) is held:
            del self.held[number]
            self._window.remove(held.size)
            self.changed.set()
        if not self.held:
            self._has_hold.clear()

    # -- how a message ends --------------------------------------------------------------------------------------

    def was_accepted(self, message: ServiceBusReceivedMessage) -> bool:
        """Whether the primary has this very copy already, and only its completion failed."""
        return self._accepted.has(self.queue, message)

    async def complete(self, held: Held) -> None:
        """The primary has the message: remove it. If that fails, or is broken off, it is not sent again."""
        self._accepted.add(self.queue, held.message)
        await self.settle(held.message, Settlement(SettleMode.COMPLETE))
        self._let_go(held)

    async def dead_letter(self, held: Held, reason: str, description: str) -> bool:
        """Move it to the backlog queue's dead letters."""
        is_settled = await self.settle(held.message, Settlement(SettleMode.DEAD_LETTER, reason, description[:4096]))
        self._let_go(held)
        return is_settled

    async def park(self, held: Held) -> bool:
        """Defer it in its queue: out of the others' way, to be fetched by its number."""
        is_settled = await self.settle(held.message, Settlement(SettleMode.DEFER))
        self._let_go(held)
        return is_settled

    async def abandon(self, held: Held) -> None:
        """Give it back as it was."""
        await self.settle(held.message, Settlement(SettleMode.ABANDON))
        self._let_go(held)

    async def _part_with(self, held: Held) -> None:
        await (self.complete(held) if self.was_accepted(held.message) else self.abandon(held))

    async def settle(self, message: ServiceBusReceivedMessage, settlement: Settlement) -> bool:
        """Settle a message; False if that failed: it comes again by itself or, if it was parked, must be looked for."""
        is_dead = settlement.mode is SettleMode.DEAD_LETTER
        why: metrics.Attributes = {**self._where, metrics.REASON: settlement.reason or ""} if is_dead else {}
        try:
            settling = self._link.settle(message, settlement, timeout_s=SETTLE_S)
            if is_dead:
                await tracing.carrying(tracing.DEAD_LETTER, [message], why, self._clock, settling)
            else:
                await settling
        except ServiceBusError as error:
            log.warning(
                "syphon.not_settled",
                "cannot {mode} message {sequence_number} of {queue!r} ({error}); the queue delivers it again",
                queue=self.queue,
                sequence_number=message.sequence_number,
                mode=str(settlement.mode),
                error=error,
            )
            self.look_again.set()
            return False
        if settlement.mode is SettleMode.COMPLETE:
            self._accepted.discard(self.queue, message)
        elif settlement.mode is SettleMode.DEFER:
            self._seen.put_aside(message)
            metrics.add(metrics.PARKED, 1, self._where)
        elif is_dead:
            metrics.add(metrics.DEAD_LETTERED, 1, why)
        return True

    async def fetch(self, numbers: Sequence[int]) -> list[ServiceBusReceivedMessage]:
        """Take parked messages by number; those that are gone, or in other hands, are left out."""
        try:
            found = await self._link.receive_deferred(numbers, timeout_s=SETTLE_S)
            self._seen.fetched(len(found))
            if self._next_seen is not self._seen:
                self._next_seen.fetched(len(found))  # the look that is under way has counted them, too
            return found
        except MessageNotFoundError:
            if len(numbers) == 1:
                self.look_again.set()
                return []
        found = []
        for number in numbers:
            found += await self.fetch([number])
        return found

    async def scan(self, scout: Scout) -> Scan:
        """Look through the whole queue, page by page, and tell of parked messages."""
        active = hopeful = overlooked = 0
        seen = self._next_seen = Sighting()
        next_number = 1
        while page := await self._link.peek(
            max_message_count=PEEK_MESSAGES, sequence_number=next_number, timeout_s=SETTLE_S
        ):
            for message in page:
                if message.sequence_number in self.held:
                    continue
                seen.sees(message)
                if message.state is ServiceBusMessageState.ACTIVE:
                    active += 1
                    hopeful += scout.is_hopeful(message)
                elif message.state is ServiceBusMessageState.DEFERRED and not scout.found_parked(self, message):
                    overlooked += 1
            next_number = page[-1].sequence_number + 1
        self._seen = seen
        return Scan(active, hopeful, overlooked)

    def measured(self) -> Iterator[tuple[metrics.Instrument, float, metrics.Attributes]]:
        """What is known of the queue; see `metrics.Watched`."""
        now, asked_at, seen = self._read_time(), self._asked_at, self._seen
        held = [one.message.enqueued_time_utc for one in list(self.held.values())]
        # While it waits in vain nothing is left: what an earlier look saw was taken, by this syphon or by another one.
        is_empty = asked_at is not None and now - asked_at > IN_VAIN_S
        depths = {"waiting": len(held) + (0 if is_empty else seen.waiting), "parked": seen.parked}
        for state, depth in depths.items():
            yield metrics.BACKLOG_DEPTH, depth, {**self._where, metrics.STATE: state}
        moments = [*held, None if is_empty else seen.oldest_waiting, seen.oldest_parked]
        oldest = min((at for at in moments if at is not None), default=None)
        age_s = now + self._ahead_s - oldest.timestamp() if oldest is not None else 0.0
        yield metrics.BACKLOG_AGE, max(age_s, 0.0), self._where

    # -- locks ---------------------------------------------------------------------------------------------------

    async def keep_locks(self) -> None:
        """Renew each lock when half of it has passed; runs until cancelled."""
        while True:
            await self._has_hold.wait()
            due_s = min((self._left_s(held.message) - held.lock_s / 2 for held in self.held.values()), default=0.0)
            await self._clock.sleep(max(due_s, LEAST_RENEWAL_PAUSE_S))
            await self._renew_due()

    async def _renew_due(self) -> None:
        """Renew what is due. A coroutine of its own, so that waiting for the next one holds no message."""
        due = [held for held in self.held.values() if self._left_s(held.message) <= held.lock_s / 2]
        await asyncio.gather(*map(self._renew, due))  # side by side, or a slow queue costs the last one its lock

    async def _renew(self, held: Held) -> None:
        try:
            held.message.locked_until_utc = await self._link.renew_lock(held.message, timeout_s=SETTLE_S)
        except MessageAlreadySettled:
            pass  # it was brought home while this waited for its turn
        except ServiceBusError as error:
            if self.held.get(held.message.sequence_number) is not held:
                return  # so it was, or given back
            if isinstance(error, MessageLockLostError) or self._left_s(held.message) <= 0:
                log.info(
                    "syphon.lock_lost",
                    "a lock in {queue!r} ended before its message was moved: {error}",
                    queue=self.queue,
                    error=error,
                )
                held.is_lost = True
                self._let_go(held)

    def _left_s(self, message: ServiceBusReceivedMessage) -> float:
        until = message.locked_until_utc
        return until.timestamp() - self._clock.now() if until is not None else 0.0

    async def close(self) -> None:
        """Give back everything in hand, but for what the primary has, and detach."""
        try:
            async with self._clock.timeout(GIVE_BACK_S):
                await asyncio.gather(*map(self._part_with, self.held.values()))
        except TimeoutError:
            log.warning(
                "syphon.not_given_back",
                "cannot release all messages of {queue!r}; their locks expire",
                queue=self.queue,
            )
        await self._link.close()
