"""A plain backlog queue as a source of messages: receives, settles, parks and finds them, and renews their locks."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from sbclient.delivery import Settlement, SettleMode
from sbclient.errors import MessageAlreadySettled, MessageLockLostError, MessageNotFoundError, ServiceBusError
from sbclient.message import ServiceBusMessageState, ServiceBusReceivedMessage
from sbclient.pairing.state import PairState
from sbclient.rules.entity_path import is_entity_path
from sbclient.rules.envelope import PATH, MalformedEnvelopeError, Unsealed, unseal
from sbclient.rules.ping import is_ping
from sbclient.rules.size import encoded_size
from sbclient.rules.window import Window
from sbclient.syphon.forwarder import SETTLE_S, Forwarder
from sbclient.syphon.queue_counts import QueueCounts
from sbclient.telemetry import metrics
from sbclient.telemetry.log import get_logger
from sbclient.transport.base import ReceiverLink

log = get_logger(__name__)

EMPTY_AFTER_S: Final = 2.0
"""A queue that has messages returns one sooner than this."""

MIN_RENEWAL_PAUSE_S: Final = 1.0
PEEK_MESSAGES: Final = 100
STRAYS_KEPT: Final = 1000
RELEASE_S: Final = 5.0
"""How long `close` waits until every message in flight is released; after that their locks expire."""


@dataclass(slots=True, eq=False)
class InFlight:
    """A backlog message that is locked by this syphon and not yet settled.

    Attributes:
        size: encoded bytes.
        lock_s: duration of the lock.
        is_lost: the lock has expired, so another receiver may have the message; it must not be sent any more.
    """

    message: ServiceBusReceivedMessage
    source: BacklogSource
    unsealed: Unsealed
    size: int
    lock_s: float
    is_lost: bool = False


class ScanObserver(Protocol):
    """Receives what a scan finds."""

    def remember_parked(self, source: BacklogSource, path: str, number: int) -> bool:
        """Remember a deferred message by its sequence number; return False if there is no room for it."""

    def can_forward(self, message: ServiceBusReceivedMessage) -> bool:
        """Return whether a waiting message can be sent or dead-lettered now: its destination does not refuse it."""


@dataclass(frozen=True, slots=True)
class Scan:
    """Result of a scan.

    Attributes:
        active: number of messages that wait or are locked by another receiver.
        forwardable: number of those that can be sent or dead-lettered now.
        forgotten: number of deferred messages that could not be remembered.
    """

    active: int
    forwardable: int
    forgotten: int


class BacklogSource:
    """One plain backlog queue.

    Attributes:
        queue: its name.
        in_flight: messages in flight, by sequence number.
        changed: set when a message in flight is settled or lost, or a destination has answered.
        scan_needed: set when there may be parked messages that no destination remembers.

    Args:
        window: limits of the messages in flight.
    """

    def __init__(self, pair: PairState, queue: str, forwarder: Forwarder, window: Window) -> None:
        self._pair = pair
        self._clock = pair.clock
        self._forwarder = forwarder
        self._link: ReceiverLink = pair.secondary.open_receiver(queue)
        self._window = window
        self._strays: list[int] = []
        self._has_messages = asyncio.Event()
        self._counts = self._next_counts = QueueCounts()
        self._polled_at: float | None = None
        self._read_time = pair.clock.reader()
        self._ahead_s = pair.clock.now() - pair.clock.monotonic()
        self._where = pair.at_backlog(queue)
        self.queue = queue
        self.in_flight: dict[int, InFlight] = {}
        self.changed = asyncio.Event()
        self.scan_needed = asyncio.Event()

    @property
    def room(self) -> int:
        """How many more messages may be in flight."""
        return self._window.room

    async def reopen(self) -> None:
        """Replace the link after an error."""
        await self._link.close()
        self._link = self._pair.secondary.open_receiver(self.queue)

    def destination_answered(self, *, has_recovered: bool) -> None:
        """A destination has accepted or refused messages.

        Args:
            has_recovered: it refused messages before and now accepts them.
        """
        self.changed.set()
        if has_recovered:
            self.scan_needed.set()

    # -- receiving -----------------------------------------------------------------------------------------------

    async def receive(self, *, max_message_count: int, max_wait_time_s: float) -> list[ServiceBusReceivedMessage]:
        """Receive waiting messages; `take` them next."""
        self._polled_at = self._clock.monotonic()
        try:
            messages = await self._link.receive(max_message_count=max_message_count, max_wait_time_s=max_wait_time_s)
        finally:
            self._polled_at = None
        self._counts.remove_received(messages)
        return messages

    async def receive_parked(self, numbers: Sequence[int]) -> list[ServiceBusReceivedMessage]:
        """Receive deferred messages by sequence number, without those that are gone or locked; `take` them next.

        If the lock of a message has expired before the answers arrived, another syphon may have the message: a scan
        finds it again.
        """
        asked_at = self._clock.now()
        answered = await self._find_parked(numbers)
        found = [one for one in answered if not asked_at < _locked_until(one) <= self._clock.now()]
        if len(found) < len(answered):
            self.scan_needed.set()
        return found

    async def _find_parked(self, numbers: Sequence[int]) -> list[ServiceBusReceivedMessage]:
        try:
            found = await self._link.receive_deferred(numbers, timeout_s=SETTLE_S)
            self._counts.remove_parked(len(found))
            if self._next_counts is not self._counts:
                self._next_counts.remove_parked(len(found))  # the current scan has counted them
            return found
        except MessageNotFoundError:
            if len(numbers) == 1:
                self.scan_needed.set()
                return []
        found = []
        for number in numbers:
            found += await self._find_parked([number])
        return found

    async def take(self, messages: Sequence[ServiceBusReceivedMessage]) -> list[InFlight]:
        """Return the received messages that are to be sent, unsealed and with their locks renewed from now on.

        The other messages are settled: pings, copies that the primary has already, messages that cannot be unsealed.
        """
        sorted_messages = [(message, self._sort(message)) for message in messages]  # before the first await
        for message, result in sorted_messages:
            if isinstance(result, tuple):
                await self._dead_letter(message, *result, path=self.queue)
            elif result is None:
                await self._settle(message, SettleMode.COMPLETE)
        return [result for _, result in sorted_messages if isinstance(result, InFlight)]

    def _sort(self, message: ServiceBusReceivedMessage) -> InFlight | tuple[str, str] | None:
        """Return the message in flight, a dead-letter reason and description, or None if it need not be sent."""
        if self.was_accepted(message) or is_ping(message):
            return None
        try:
            options = self._pair.options
            unsealed = unseal(
                message,
                now=self._clock.now(),
                time_to_live_mode=options.backlog_time_to_live,
                allowed=options.syphon_destinations,
            )
        except MalformedEnvelopeError as error:
            return error.reason, error.description
        return self._add(message, unsealed)

    def _add(self, message: ServiceBusReceivedMessage, unsealed: Unsealed) -> InFlight:
        earlier = self.in_flight.get(message.sequence_number)
        if earlier is not None:  # its lock has expired unnoticed, and the message was delivered again
            earlier.is_lost = True
            self._remove(earlier)
        added = InFlight(message, self, unsealed, encoded_size(message), lock_s=self._lock_left_s(message))
        self.in_flight[message.sequence_number] = added
        self._window.add(added.size)
        self._has_messages.set()
        return added

    def _remove(self, settled: InFlight) -> None:
        number = settled.message.sequence_number
        if self.in_flight.get(number) is settled:
            del self.in_flight[number]
            self._window.remove(settled.size)
            self.changed.set()
        if not self.in_flight:
            self._has_messages.clear()

    # -- settling ------------------------------------------------------------------------------------------------

    def was_accepted(self, message: ServiceBusReceivedMessage) -> bool:
        """Return whether the primary has this very copy already, since only its completion failed."""
        return self._pair.accepted.has(self.queue, message)

    def accept(self, sent: InFlight) -> None:
        """Note at once that the primary has a message, so that it is not sent again, whatever happens to `complete`."""
        self._pair.accepted.add(self.queue, sent.message)

    async def complete(self, settled: InFlight) -> None:
        """Remove a message that the primary has."""
        await self._settle(settled.message, SettleMode.COMPLETE)
        self._remove(settled)

    async def dead_letter(self, settled: InFlight, reason: str, description: str) -> None:
        """Move a message to the dead letters of its backlog queue."""
        await self._dead_letter(settled.message, reason, description, path=settled.unsealed.destination)
        self._remove(settled)

    async def park(self, settled: InFlight) -> bool:
        """Defer a message, so that later ones can be received; return whether it succeeded."""
        is_settled = await self._settle(settled.message, SettleMode.DEFER)
        self._remove(settled)
        return is_settled

    async def release(self, settled: InFlight) -> None:
        """Abandon a message, or complete it if the primary has it."""
        if self.was_accepted(settled.message):
            await self.complete(settled)
        else:
            await self._settle(settled.message, SettleMode.ABANDON)
            self._remove(settled)

    async def _settle(self, message: ServiceBusReceivedMessage, mode: SettleMode) -> bool:
        """Settle a message; return False if that failed: it is delivered again or, if it was parked, needs a scan."""
        try:
            await self._link.settle(message, Settlement(mode), timeout_s=SETTLE_S)
        except ServiceBusError as error:
            self._not_settled(message, mode, error)
            return False
        if mode is SettleMode.COMPLETE:
            self._pair.accepted.discard(self.queue, message)
        elif mode is SettleMode.DEFER:
            self._counts.add_parked(message)
            metrics.add(metrics.PARKED, 1, self._where)
        return True

    async def _dead_letter(
        self, message: ServiceBusReceivedMessage, reason: str, description: str, *, path: str
    ) -> None:
        try:
            await self._forwarder.dead_letter(self._link, message, reason, description, queue=self.queue, path=path)
        except ServiceBusError as error:
            self._not_settled(message, SettleMode.DEAD_LETTER, error)

    def _not_settled(self, message: ServiceBusReceivedMessage, mode: SettleMode, error: ServiceBusError) -> None:
        log.warning(
            "syphon.not_settled",
            "cannot {mode} message {sequence_number} of {queue!r} ({error}); the queue delivers it again",
            queue=self.queue,
            sequence_number=message.sequence_number,
            mode=str(mode),
            error=error,
        )
        self.scan_needed.set()

    # -- scanning ------------------------------------------------------------------------------------------------

    async def scan(self, observer: ScanObserver) -> Scan:
        """Peek at every message of the queue and report the parked ones to the observer."""
        active = forwardable = forgotten = 0
        counts = self._next_counts = QueueCounts()
        next_number = 1
        while page := await self._link.peek(
            max_message_count=PEEK_MESSAGES, sequence_number=next_number, timeout_s=SETTLE_S
        ):
            for message in page:
                if message.sequence_number in self.in_flight:
                    continue
                counts.add(message)
                if message.state is ServiceBusMessageState.ACTIVE:
                    active += 1
                    forwardable += observer.can_forward(message)
                elif message.state is ServiceBusMessageState.DEFERRED:
                    forgotten += not self._remember(message, observer)
            next_number = page[-1].sequence_number + 1
        self._counts = counts
        return Scan(active, forwardable, forgotten)

    def _remember(self, message: ServiceBusReceivedMessage, observer: ScanObserver) -> bool:
        path = message.application_properties.get(PATH)
        if isinstance(path, str) and is_entity_path(path):
            return observer.remember_parked(self, path, message.sequence_number)
        if len(self._strays) >= STRAYS_KEPT:
            return False
        self._strays.append(message.sequence_number)
        return True

    async def take_strays(self) -> list[InFlight]:
        """Take the parked messages that name no entity, which a scan found; as a rule all are dead-lettered."""
        strays, self._strays = self._strays, []
        taken: list[InFlight] = []
        for number in strays:
            taken += await self.take(await self.receive_parked([number]))
        return taken

    def measured(self) -> Iterator[tuple[metrics.Instrument, float, metrics.Attributes]]:
        """Yield the depth and the age of the queue; see `metrics.Watched`."""
        now, polled_at, counts = self._read_time(), self._polled_at, self._counts
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

    # -- locks ---------------------------------------------------------------------------------------------------

    async def keep_locks(self) -> None:
        """Renew each lock after half of its duration; runs until cancelled."""
        while True:
            await self._has_messages.wait()
            due_s = min((self._due_in_s(one) for one in self.in_flight.values()), default=0.0)
            await self._clock.sleep(max(due_s, MIN_RENEWAL_PAUSE_S))
            await self._renew_due()

    async def _renew_due(self) -> None:
        """Renew the locks that are due. A separate coroutine, so that the pause after it keeps no message alive."""
        due = [one for one in self.in_flight.values() if self._due_in_s(one) <= 0]
        await asyncio.gather(*map(self._renew, due))  # one after the other, a slow queue would lose the last lock

    async def _renew(self, renewed: InFlight) -> None:
        try:
            renewed.message.locked_until_utc = await self._link.renew_lock(renewed.message, timeout_s=SETTLE_S)
        except MessageAlreadySettled:
            pass  # it was settled while the renewal waited for the link
        except ServiceBusError as error:
            if self.in_flight.get(renewed.message.sequence_number) is not renewed:
                return  # it was settled
            if isinstance(error, MessageLockLostError) or self._lock_left_s(renewed.message) <= 0:
                self._lose(renewed, error)

    def is_locked(self, one: InFlight) -> bool:
        """Return whether a message may still be sent; if its lock expires while a renewal hangs, it is lost.

        A clock that is ahead by more than the lock proves nothing.
        """
        if not one.is_lost and one.lock_s > 0 and self._lock_left_s(one.message) <= 0:
            self._lose(one, MessageLockLostError("its renewal was not answered in time"))
        return not one.is_lost

    def _lose(self, lost: InFlight, error: ServiceBusError) -> None:
        log.info(
            "syphon.lock_lost",
            "a lock in {queue!r} expired before its message was forwarded: {error}",
            queue=self.queue,
            error=error,
        )
        lost.is_lost = True
        self._remove(lost)

    def _due_in_s(self, one: InFlight) -> float:
        return self._lock_left_s(one.message) - one.lock_s / 2

    def _lock_left_s(self, message: ServiceBusReceivedMessage) -> float:
        return _locked_until(message) - self._clock.now() if message.locked_until_utc is not None else 0.0

    async def close(self) -> None:
        """Release every message in flight and close the link."""
        try:
            async with self._clock.timeout(RELEASE_S):
                await asyncio.gather(*map(self.release, self.in_flight.values()))
        except TimeoutError:
            log.warning(
                "syphon.not_given_back",
                "cannot release all messages of {queue!r}; their locks expire",
                queue=self.queue,
            )
        await self._link.close()


def _locked_until(message: ServiceBusReceivedMessage) -> float:
    """Return the end of the lock, in seconds since 1970-01-01 UTC; infinite without one."""
    until = message.locked_until_utc
    return until.timestamp() if until is not None else math.inf
