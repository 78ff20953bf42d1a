"""A backlog queue as a source of messages: what queues with and without sessions have in common."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal

from sbclient import clock
from sbclient.delivery import Settlement, SettleMode
from sbclient.errors import MessageLockLostError, MessagingEntityNotFoundError, ServiceBusError
from sbclient.message import ServiceBusReceivedMessage
from sbclient.pairing.state import PairState
from sbclient.retry import repeat
from sbclient.rules.backoff import growing
from sbclient.rules.envelope import MalformedEnvelopeError, Unsealed, unseal
from sbclient.rules.partition_key import ordering_key
from sbclient.rules.ping import is_ping
from sbclient.rules.refusal import FIRST_PAUSE_S, LONGEST_PAUSE_S
from sbclient.rules.syphon_reason import SyphonReason
from sbclient.syphon.budget import SyphonBudget
from sbclient.syphon.status import PollRecord, Progress, QueueStatus
from sbclient.telemetry import metrics, tracing
from sbclient.telemetry.log import get_logger
from sbclient.transport.base import ReceiverLink

log = get_logger(__name__)

SETTLE_S: Final = 20.0
RELEASE_S: Final = 5.0
"""How long `close` waits until every message in flight is released; after that their locks expire."""
MAX_DESCRIPTION: Final = 4096
"""Characters of a dead-letter description. Source: the service."""
TRIES_UNTIL_EMPTY: Final = 3
"""Attempts at a destination that refuses, before a run `until="empty"` leaves its messages where they are."""

_COMPLETE: Final = Settlement(SettleMode.COMPLETE)


@dataclass(slots=True, eq=False)
class InFlight:
    """A backlog message that is locked by this syphon and not yet settled.

    Attributes:
        link: received the message and settles it.
        size: encoded bytes.
        key: the key within which it must stay in order.
        lock_s: duration of the lock; not positive if the clock of this machine is ahead by more than that.
        is_lost: the lock has expired, so another receiver may have the message; it must not be sent any more.
        is_parked: it was put aside; see `park`.
        ended: set when it is accepted, settled, parked or lost, if the source waits for that.
        error: why it ended without a settlement.
    """

    message: ServiceBusReceivedMessage
    source: Source
    link: ReceiverLink
    unsealed: Unsealed
    size: int
    key: str | None
    lock_s: float = 0.0
    is_lost: bool = False
    is_parked: bool = False
    ended: asyncio.Event | None = None
    error: ServiceBusError | None = None

    @property
    def session_id(self) -> str | None:
        """The session of the backlog queue that the message is in."""
        return self.link.session_id

    def accept(self) -> None:
        """Note at once that the primary has the message, so that it is not sent again, whatever `complete` does.

        A source that waits for the end of the message completes it; else the caller does.
        """
        self.source.pair.accepted.add(self.source.queue, self.message)
        if self.ended is not None:
            self.ended.set()

    @property
    def is_accepted(self) -> bool:
        """Whether the primary has this very copy already, since only its completion failed."""
        return self.source.pair.accepted.has(self.source.queue, self.message)

    async def complete(self) -> None:
        """Remove the message from its queue: the primary has it."""
        self.source.end(self, await self.source.settle(self.link, self.message, SettleMode.COMPLETE))

    async def dead_letter(self, reason: SyphonReason, description: str) -> None:
        """Move the message to the dead letters of its queue."""
        path = self.unsealed.destination
        self.source.end(self, await self.source.dead_letter(self.link, self.message, reason, description, path=path))

    async def park(self) -> int | str | None:
        """Put the message aside until its destination accepts messages; return what fetches it again, if anything."""
        return await self.source.park(self)

    def is_locked(self, now: float) -> bool:
        """Return whether the message may still be sent; if its lock expires while a renewal hangs, it is lost.

        A clock that is ahead by more than the lock proves nothing.
        """
        if not self.is_lost and self.lock_s > 0 and self.source.lock_left_s(self, now) <= 0:
            self.source.lose(self, MessageLockLostError("its renewal was not answered in time"))
        return not self.is_lost


async def complete(group: Sequence[InFlight]) -> None:
    """Complete messages that the primary has, those of one link together if the transport can do that."""
    if len(group) == 1:
        await group[0].complete()
        return
    by_link: dict[ReceiverLink, dict[int, InFlight]] = {}
    for one in group:
        by_link.setdefault(one.link, {})[one.message.sequence_number] = one
    await asyncio.gather(*(_complete(link, several) for link, several in by_link.items()))


async def _complete(link: ReceiverLink, several: dict[int, InFlight]) -> None:
    if len(several) > 1:
        with suppress(ServiceBusError):  # the next line settles the others and reports errors
            messages = [one.message for one in several.values()]
            for message in await link.settle_together(messages, _COMPLETE, timeout_s=SETTLE_S):
                one = several.pop(message.sequence_number)
                one.source.completed(message)
                one.source.end(one, None)
    await asyncio.gather(*(one.complete() for one in several.values()))


class Source(ABC):
    """One backlog queue.

    A subclass receives messages, gives them to their destinations and finds them again when they are parked.

    Attributes:
        queue: its name.
        in_flight: messages in flight, by sequence number.
        has_messages: set while messages are in flight.
        changed: set when a message in flight is settled or lost, or a destination has answered.
        scan_needed: set when there may be parked messages that no destination remembers.
        is_ordered: whether the messages of a session go one after another. Then sessions are parked, not messages.

    Args:
        progress: counts the dead-lettered messages.
        until: `"empty"` ends it when no message is left that can be forwarded; None runs until it is cancelled.
    """

    is_ordered: ClassVar[bool]

    def __init__(
        self,
        pair: PairState,
        queue: str,
        progress: Progress,
        budget: SyphonBudget,
        *,
        until: Literal["empty"] | None,
    ) -> None:
        self.pair = pair
        self.queue = queue
        self.in_flight: dict[int, InFlight] = {}
        self.has_messages = asyncio.Event()
        self.changed = asyncio.Event()
        self.scan_needed = asyncio.Event()
        self._progress = progress
        self._budget = budget
        self._is_until_empty = until == "empty"
        self._window = budget.window()
        self._polls = PollRecord(queue)
        self._where = pair.at_backlog(queue)

    @property
    def room(self) -> int:
        """How many more messages may be in flight."""
        return self._window.room

    def status(self) -> QueueStatus:
        """Return the status of the queue."""
        return self._polls.status(in_flight=len(self.in_flight))

    def measured(self) -> Iterator[tuple[metrics.Instrument, float, metrics.Attributes]]:
        """Yield measurements of the queue; see `metrics.Watched`."""
        return iter(())

    # -- what differs --------------------------------------------------------------------------------------------

    @abstractmethod
    async def run(self) -> None:
        """Drain the queue until the end."""

    @property
    def parked_count(self) -> int:
        """Number of parked messages that are known; sessions are not counted."""
        return 0

    def background(self) -> list[Coroutine[Any, Any, None]]:
        """Return what has to run besides, until it is cancelled."""
        return []

    @abstractmethod
    async def receive_parked(self, numbers: Sequence[Any]) -> list[InFlight]:
        """Receive messages that `InFlight.park` has put aside, without those that are gone or locked.

        Raises:
            ServiceBusError: the queue does not answer.
        """

    @abstractmethod
    async def park(self, one: InFlight) -> int | str | None:
        """See `InFlight.park`."""

    @abstractmethod
    def destination_answered(self, *, has_recovered: bool) -> None:
        """A destination has accepted or refused messages.

        Args:
            has_recovered: it refused messages before and now accepts them.
        """

    @abstractmethod
    def lock_left_s(self, one: InFlight, now: float) -> float:
        """Return how long the lock of a message still lasts; 0 if that is not known."""

    @abstractmethod
    async def _abandon(self, one: InFlight) -> None:
        """Make a message available again."""

    @abstractmethod
    async def _close_links(self) -> None:
        """Close every link."""

    @abstractmethod
    def _unavailable(self, error: ServiceBusError, failures: int) -> None:
        """Report that the queue returned an error."""

    async def _repeat(self, poll: Callable[[int], Awaitable[bool]]) -> None:
        """Call `poll(failures)` until it returns False; wait after an error."""
        is_over = False

        async def attempt(failures: int) -> bool:
            nonlocal is_over
            try:
                is_over = not await poll(failures)
                self._budget.unreachable.discard(self.queue)
            except ServiceBusError as error:
                if not self._is_until_empty or not isinstance(error, MessagingEntityNotFoundError):
                    self._polls.failed(error)
                    self._unavailable(error, failures + 1)
                    return False
                is_over = True  # a queue that does not exist is empty
            return True

        while not is_over:
            await repeat(attempt, growing(FIRST_PAUSE_S, LONGEST_PAUSE_S), clock.sleep)

    # -- messages in flight --------------------------------------------------------------------------------------

    async def take(self, link: ReceiverLink, messages: Sequence[ServiceBusReceivedMessage]) -> list[InFlight]:
        """Return the received messages that are to be sent, unsealed, in order.

        The other messages are settled: pings, copies that the primary has already, messages that cannot be unsealed.
        """
        options, now = self.pair.options, clock.now()
        taken: list[InFlight] = []
        settling: list[tuple[ServiceBusReceivedMessage, SyphonReason | None, str]] = []
        for message in messages:  # before the first await
            self._forget_earlier(message)
            if self.pair.accepted.has(self.queue, message) or is_ping(message):
                settling.append((message, None, ""))
                continue
            try:
                unsealed = unseal(
                    message,
                    now=now,
                    time_to_live_mode=options.backlog_time_to_live,
                    allowed=options.syphon_destinations,
                )
            except MalformedEnvelopeError as malformed:
                settling.append((message, malformed.reason, malformed.description))
            else:
                taken.append(self._add(link, message, unsealed, now))
        for message, reason, description in settling:
            if reason is None:
                error = await self.settle(link, message, SettleMode.COMPLETE)
                if not is_ping(message):  # accepted, and another drain of this client may hold an earlier delivery
                    self.pair.accepted.add(self.queue, message)
            else:
                error = await self.dead_letter(link, message, reason, description, path=self.queue)
            if error is not None and self.is_ordered:  # a message of a session never passes an earlier one
                for one in taken:
                    self.end(one, None)
                try:
                    raise error
                finally:
                    del error  # it refers to this frame
        return taken

    def _forget_earlier(self, message: ServiceBusReceivedMessage) -> None:
        """The message was delivered again, so its earlier lock has expired unnoticed."""
        earlier = self.in_flight.get(message.sequence_number)
        if earlier is not None:
            earlier.is_lost = True
            self.end(earlier, None)

    def _add(self, link: ReceiverLink, message: ServiceBusReceivedMessage, unsealed: Unsealed, now: float) -> InFlight:
        added = InFlight(message, self, link, unsealed, message.size_bytes, ordering_key(unsealed.message))
        added.lock_s = self.lock_left_s(added, now)
        self.in_flight[message.sequence_number] = added
        self._window.add(added.size)
        self.has_messages.set()
        return added

    def end(self, one: InFlight, error: ServiceBusError | None) -> None:
        """Remove a message from those in flight: it is settled, parked or lost.

        Args:
            error: why it is not settled.
        """
        if self.in_flight.get(one.message.sequence_number) is one:
            del self.in_flight[one.message.sequence_number]
            self._window.remove(one.size)
            self.changed.set()
            if not self.in_flight:
                self.has_messages.clear()
        if one.ended is not None:
            one.error = error
            one.ended.set()

    def lose(self, lost: InFlight, error: ServiceBusError) -> None:
        """The lock of a message has expired."""
        log.info(
            "syphon.lock_lost",
            "a lock in {queue!r} expired before its message was forwarded: {error}",
            queue=self.queue,
            error=error,
        )
        lost.is_lost = True
        self.end(lost, error)

    # -- settling ------------------------------------------------------------------------------------------------

    async def settle(
        self, link: ReceiverLink, message: ServiceBusReceivedMessage, mode: SettleMode
    ) -> ServiceBusError | None:
        """Settle a message; return the error if that failed."""
        try:
            await link.settle(message, Settlement(mode), timeout_s=SETTLE_S)
        except ServiceBusError as error:
            return self._failed_to(mode, message, error)
        if mode is SettleMode.COMPLETE:
            self.completed(message)
        return None

    def completed(self, message: ServiceBusReceivedMessage) -> None:
        """A message is not in the queue any more."""
        self.pair.accepted.discard(self.queue, message)

    async def dead_letter(
        self,
        link: ReceiverLink,
        message: ServiceBusReceivedMessage,
        reason: SyphonReason,
        description: str,
        *,
        path: str,
    ) -> ServiceBusError | None:
        """Move a message to the dead letters of its queue; return the error if that failed.

        Args:
            path: of the entity that the event names.
        """
        settlement = Settlement(SettleMode.DEAD_LETTER, reason.value, description[:MAX_DESCRIPTION])
        where = {**self._where, metrics.REASON: reason.value}
        settling = link.settle(message, settlement, timeout_s=SETTLE_S)
        try:
            await tracing.carrying(tracing.DEAD_LETTER, [message], where, settling)
        except ServiceBusError as error:
            return self._failed_to(SettleMode.DEAD_LETTER, message, error)
        self._progress.dead_lettered[reason.value] += 1
        metrics.add(metrics.DEAD_LETTERED, 1, where)
        with tracing.within(message):
            self.pair.record(
                "syphon.dead_lettered",
                "dead-lettered a message of backlog queue {queue!r}: {reason}",
                path,
                reason=reason.value,
                queue=self.queue,
            )
        return None

    def _failed_to(
        self, mode: SettleMode, message: ServiceBusReceivedMessage, error: ServiceBusError
    ) -> ServiceBusError:
        log.warning(
            "syphon.not_settled",
            "cannot {mode} message {sequence_number} of {queue!r} ({error}); the queue delivers it again",
            queue=self.queue,
            sequence_number=message.sequence_number,
            mode=str(mode),
            error=error,
        )
        self.scan_needed.set()
        return error.with_traceback(None)  # it would refer to the frame of the caller

    # -- the end -------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Release every message in flight and close the links."""
        try:
            async with clock.timeout(RELEASE_S):
                await asyncio.gather(*map(self._release, list(self.in_flight.values())))
        except TimeoutError:
            log.warning(
                "syphon.not_given_back",
                "cannot release all messages of {queue!r}; their locks expire",
                queue=self.queue,
            )
        await self._close_links()

    async def _release(self, one: InFlight) -> None:
        """Make a message available again, or complete it if the primary has it."""
        if one.is_accepted:
            await one.complete()
        else:
            await self._abandon(one)
