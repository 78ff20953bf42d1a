"""The sessions of one queue or subscription that a stream with `mode` receive holds.

The driver locks sessions, receives their messages in order, and renews the locks while the micro-batch runs. It then
completes the messages and releases the sessions. Nothing is deferred: if the driver ends, the locks expire, and the
messages of each session are delivered again, in order. After a restart the sessions of the replayed micro-batch are
locked by their ids. Their messages are received only to be completed, so that restarts do not raise delivery counts.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from heapq import heapify, heapreplace
from itertools import groupby, repeat
from typing import Final, TypeVar

from sbclient.client.client import ServiceBusClient
from sbclient.client.lock_renewer import AutoLockRenewer
from sbclient.client.receiver import ServiceBusReceiver, settle_together
from sbclient.delivery import NEXT_AVAILABLE_SESSION, Settlement, SettleMode
from sbclient.errors import (
    MessageLockLostError,
    OperationTimeoutError,
    ServiceBusError,
    SessionCannotBeLockedError,
    SessionLockLostError,
)
from sbclient.message import ServiceBusReceivedMessage
from sbclient.rules.entity_path import split_subscription
from sbclient.rules.sequence_number import partition_of
from sbclient_spark.log import log_event
from sbclient_spark.read.browsing import TRIES, active_before, browse, open_receiver
from sbclient_spark.read.limits import Budget

T = TypeVar("T")
U = TypeVar("U")

AT_ONCE: Final = 32
"""Sessions that are locked or released at the same time."""

PAGE: Final = 250
"""Messages that one session gives before the others get their part of a micro-batch."""

WAIT_S: Final = 1.0
"""How long the driver waits for a first session, and for the first messages of a session."""

MORE_S: Final = 0.3
"""How long it waits for a further session."""

RENEWAL_S: Final = 10 * 365 * 86_400.0
"""Locks are renewed until they are released."""

COMPLETE: Final = Settlement(SettleMode.COMPLETE)
LOSSES: Final = (SessionCannotBeLockedError, SessionLockLostError, MessageLockLostError)
"""Errors of one session, which must not stop the others."""


def matches(session_id: str | None, wanted: Sequence[str] | None) -> bool:
    """Whether a session is one of those that the option `sessions` names; None or empty = all."""
    return not wanted or (session_id is not None and any(fnmatchcase(session_id, pattern) for pattern in wanted))


def shared_out(sessions: Mapping[str, Sequence[int]], count: int) -> list[list[int]]:
    """Share the messages of sessions out over at most `count` tasks of similar size; each session is in one task."""
    tasks: list[list[int]] = [[] for _ in range(max(min(count, len(sessions)), 1))]
    loads = [(0, task) for task in range(len(tasks))]
    heapify(loads)
    for session in sorted(sessions, key=lambda session: (-len(sessions[session]), session)):
        load, task = loads[0]
        tasks[task] += sessions[session]
        heapreplace(loads, (load + len(sessions[session]), task))
    return [sorted(task) for task in tasks if task]


@dataclass(eq=False, slots=True)
class HeldSession:
    """A locked session, with those of its messages by number that are locked too."""

    session_id: str
    receiver: ServiceBusReceiver
    messages: dict[int, ServiceBusReceivedMessage] = field(default_factory=dict)

    async def receive(self, most: int) -> list[ServiceBusReceivedMessage]:
        """Receive the next messages; none if the lock is lost."""
        try:
            found = await self.receiver.receive_messages(most, max_wait_time=WAIT_S)
        except LOSSES as error:
            _log_skipped(self.receiver.entity_path, self.session_id, error)
            return []
        self.messages |= {message.sequence_number: message for message in found}
        return found

    async def fetch(self, numbers: Collection[int]) -> None:
        """Receive the messages with these numbers, if they are there. What comes before them is kept as well."""
        missing = set(numbers) - self.messages.keys()
        last = max(numbers)
        while missing and (found := await self.receive(len(missing))) and found[-1].sequence_number <= last:
            missing -= self.messages.keys()

    async def settle(self, numbers: Collection[int], settlement: Settlement = COMPLETE) -> set[int]:
        """Settle messages; return the numbers of those that are settled."""
        chosen = [self.messages.pop(number) for number in sorted(self.messages.keys() & set(numbers))]
        try:
            if chosen:
                await settle_together(self.receiver, chosen, settlement)
            left = [message for message in chosen if not message.is_settled]
            await asyncio.gather(*(self.receiver._settle(message, settlement, None) for message in left))
        except LOSSES as error:
            _log_skipped(self.receiver.entity_path, self.session_id, error)
        return {message.sequence_number for message in chosen if message.is_settled}


@dataclass(slots=True)
class _Round:
    """One search for messages.

    Attributes:
        processed: messages that are only to be completed.
        target: by fragment, the number of the first message that is too late; None = all are in time.
        choices: ids of sessions; None = any session that is available.
        found: the session of each message by its number.
        longer: sessions that may have more messages.
    """

    budget: Budget
    processed: frozenset[int]
    target: Mapping[int, int] | None
    choices: Iterator[str | None] = field(default_factory=lambda: repeat(None))
    found: dict[int, str] = field(default_factory=dict)
    longer: list[str] = field(default_factory=list)
    is_full: bool = False

    def is_wanted(self, message: ServiceBusReceivedMessage) -> bool:
        number = message.sequence_number
        return self.target is None or number < self.target.get(partition_of(number), 0)


class StreamSessions:
    """Holds sessions of one queue or subscription.

    Args:
        wanted: ids or patterns; None or empty = all sessions.
        most: sessions that are held at the same time.
    """

    def __init__(self, client: ServiceBusClient, path: str, wanted: Sequence[str] | None, most: int) -> None:
        self._client = client
        self._path = path
        self._wanted = wanted
        self._most = most
        self._renewer = AutoLockRenewer(RENEWAL_S)
        self._held: dict[str, HeldSession] = {}
        self._locking = 0  # sessions whose lock was requested
        self._sessions: dict[int, str] = {}
        self._last_choice = ""
        self._targets: list[str] | None = None  # with the trigger AvailableNow: sessions that may have more

    def by_session(self, numbers: Iterable[int]) -> dict[str, list[int]]:
        """Return messages of the current micro-batch by session."""
        return _grouped((self._sessions[number], number) for number in numbers if number in self._sessions)

    async def set_target(self) -> None:
        """From now on, receive only from the sessions that are there now."""
        self._targets = await self._listed()

    async def receive(
        self, budget: Budget, processed: Collection[int], target: Mapping[int, int] | None
    ) -> Collection[int]:
        """Release all sessions, lock some and receive their messages; return their numbers.

        Args:
            processed: messages of earlier micro-batches that could not be completed; they are completed if they come.
            target: as for `_Round`.

        Raises:
            ServiceBusError: there are no messages because of this error.
        """
        await _each(list(self._held), self._release)
        current = _Round(budget, frozenset(processed), target)
        try:
            for _ in range(TRIES):
                await self._receive(current)
                if self._targets is None or current.is_full or len(self._held) >= self._most:
                    break
                # A call may return fewer messages than there are, and a lock may be lost: do not leave the rest.
                self._targets = await self._not_received(current)
                if not self._targets:
                    break
        except ServiceBusError:
            if not current.found:
                raise
        self._sessions = current.found
        return current.found

    async def _receive(self, current: _Round) -> None:
        """Lock sessions and receive their messages until the micro-batch is full or no session is left."""
        ids = await self._choices()
        current.choices = repeat(None) if ids is None else iter(ids)
        try:
            if await self._accept(current, WAIT_S):
                await asyncio.gather(*(self._accept_all(current) for _ in range(AT_ONCE)))
            while current.longer and not current.is_full:
                sessions, current.longer = current.longer, []
                await asyncio.gather(*(self._fill(current, self._held[session]) for session in sessions))
        finally:
            if ids is not None:
                left = [choice for choice in current.choices if choice is not None]
                self._last_choice = ids[-len(left) - 1] if len(left) < len(ids) else self._last_choice
                if self._targets is not None:
                    self._targets = [*left, *self._targets, *current.longer]
                    current.longer = []

    async def hold(self, numbers: Collection[int]) -> None:
        """Lock the sessions of a micro-batch that is replayed."""
        found = await self._peeked(numbers)
        self._sessions = {number: session for session, its in found.items() for number in its}
        await _each(found, lambda session: self._lock(session, MORE_S))

    async def complete(self, numbers: Collection[int]) -> tuple[int, ...]:
        """Complete messages; return the numbers that must be completed later. `receive` releases the sessions."""
        left = set(numbers)
        left.difference_update(*await _each(self._held.values(), lambda held: held.settle(left)))
        if left:  # after a restart, or of sessions whose lock was lost
            found = await self._peeked(left)

            async def complete(session: str) -> set[int]:
                missing = set(found[session])
                for _ in range(2):  # with the lock that is held, if any, and with a new one
                    held = self._held.get(session) or await self._lock(session, MORE_S)
                    if held is None:
                        break
                    await held.fetch(missing)
                    missing -= await held.settle(missing)
                    if not missing:
                        break
                    await self._release(session)
                return missing

            left = set().union(*await _each(found, complete))
        return tuple(sorted(left))

    # -- what an application asks for while a micro-batch runs

    def holds(self, session: str) -> bool:
        """Whether a session is held."""
        return session in self._held

    def _holder(self, session: str) -> HeldSession:
        if session not in self._held:
            raise SessionLockLostError(f"no stream holds the session {session!r} of {self._path!r}")
        return self._held[session]

    async def get_state(self, session: str) -> bytes | None:
        """Return the state of a session that is held."""
        return await self._holder(session).receiver.session.get_state()

    async def set_state(self, session: str, state: bytes | None) -> None:
        """Store the state of a session that is held."""
        await self._holder(session).receiver.session.set_state(state)

    async def dead_letter(self, session: str, reason: str, description: str) -> int:
        """Dead-letter the messages of a session that are in the micro-batch; return their number."""
        held, numbers = self._holder(session), self.by_session(self._sessions).get(session, [])
        await held.fetch(numbers)
        return len(await held.settle(numbers, Settlement(SettleMode.DEAD_LETTER, reason, description)))

    # -- sessions

    async def _listed(self) -> list[str]:
        names = split_subscription(self._path)
        found = (
            self._client.list_queue_sessions(self._path)
            if names is None
            else self._client.list_subscription_sessions(*names)
        )
        return sorted([session async for session in found if matches(session, self._wanted)])

    async def _not_received(self, current: _Round) -> list[str]:
        """Return the sessions with messages before the target that are not in the micro-batch."""
        known = current.found.keys() | current.processed
        receiver = open_receiver(self._client, self._path)
        try:
            found = {one.session_id or "" async for one in active_before(receiver, current.target or {}, known)}
        finally:
            await receiver.close()
        return sorted(session for session in found if matches(session, self._wanted))

    async def _choices(self) -> list[str] | None:
        """Return the ids of the sessions to try, starting behind those of the last round; None = any session."""
        if self._targets is not None:
            ids, self._targets = self._targets, []
            return ids
        if not self._wanted:
            return None
        ids = await self._listed()
        start = bisect_right(ids, self._last_choice)
        return ids[start:] + ids[:start]

    async def _accept_all(self, current: _Round) -> None:
        while not current.is_full and len(self._held) + self._locking < self._most:
            if not await self._accept(current, MORE_S):
                break

    async def _accept(self, current: _Round, wait_s: float) -> bool:
        """Lock the next session and receive from it; return whether there may be a further one."""
        for choice in current.choices:
            held = None if choice is None else self._held.get(choice)
            held = held or await self._lock(choice, wait_s)
            if held is not None:
                await self._fill(current, held)
            elif choice is not None and self._targets is not None:
                self._targets.append(choice)
            return held is not None or choice is not None
        return False

    async def _fill(self, current: _Round, held: HeldSession) -> None:
        """Receive a page of a session."""
        reserved = await current.budget.reserve(PAGE)
        page: list[ServiceBusReceivedMessage] = []
        wanted: list[ServiceBusReceivedMessage] = []
        if reserved.messages:
            try:
                page = await held.receive(reserved.messages)
                again = {message.sequence_number for message in page} & current.processed
                await held.settle(again)
                wanted = [one for one in page if one.sequence_number not in again and current.is_wanted(one)]
            finally:
                await current.budget.settle(reserved, wanted)
            current.found |= {message.sequence_number: held.session_id for message in wanted}
        else:
            current.is_full = True
        may_have_more = len(page) == reserved.messages and all(map(current.is_wanted, page[-1:]))
        if may_have_more:
            current.longer.append(held.session_id)
        if current.found.keys().isdisjoint(held.messages) and not (may_have_more and reserved.messages):
            await self._release(held.session_id)

    async def _lock(self, session: str | None, wait_s: float) -> HeldSession | None:
        """Lock a session, or with None any that is available; None = it cannot be locked."""
        receiver = open_receiver(
            self._client,
            self._path,
            session_id=NEXT_AVAILABLE_SESSION if session is None else session,
            max_wait_time=wait_s,
            auto_lock_renewer=self._renewer,
        )
        self._locking += 1
        try:
            await receiver.__aenter__()
        except (OperationTimeoutError, *LOSSES) as error:
            await receiver.close()
            if session is not None:
                _log_skipped(self._path, session, error)
            return None
        except ServiceBusError:
            await receiver.close()
            raise
        finally:
            self._locking -= 1
        held = self._held[receiver.session.session_id] = HeldSession(receiver.session.session_id, receiver)
        return held

    async def _release(self, session: str) -> None:
        held = self._held.pop(session, None)
        if held is not None:
            await held.receiver.close()

    async def _peeked(self, numbers: Collection[int]) -> dict[str, list[int]]:
        """Return those of the numbers that are still in the queue, by session."""
        found: list[tuple[str, int]] = []
        receiver = open_receiver(self._client, self._path)
        try:
            for _, of_fragment in groupby(sorted(numbers), key=partition_of):
                chosen = list(of_fragment)
                async for page in browse(receiver, chosen[0], chosen[-1], numbers=chosen):
                    found += [(one.session_id or "", one.sequence_number) for one in page]
        finally:
            await receiver.close()
        return _grouped(found)


def _grouped(pairs: Iterable[tuple[str, int]]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for session, number in pairs:
        found[session].append(number)
    return dict(found)


async def _each(items: Iterable[T], work: Callable[[T], Awaitable[U]]) -> list[U]:
    """Do some work for each item, for a few at the same time, and return the results."""
    free = asyncio.Semaphore(AT_ONCE)

    async def one(item: T) -> U:
        async with free:
            return await work(item)

    return await asyncio.gather(*map(one, items))


def _log_skipped(path: str, session: str, error: ServiceBusError) -> None:
    facts = {"queue": path, "session": session, "error": type(error).__name__, "reason": str(error)}
    message = "session {session!r} of {queue!r} is left out for now: {error}: {reason}"
    log_event("stream.session_skipped", message, facts, level=logging.WARNING)
