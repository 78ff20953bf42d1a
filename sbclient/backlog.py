"""Looks into the backlog queues of a pair, and puts right what was dead-lettered there."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from sbclient.errors import InvalidOperationError, MessagingEntityNotFoundError
from sbclient.message import (
    DEAD_LETTER_DESCRIPTION,
    DEAD_LETTER_REASON,
    ServiceBusMessageState,
    ServiceBusReceivedMessage,
)
from sbclient.pair import Pair
from sbclient.rules.entity_path import dead_letter_path
from sbclient.rules.envelope import PATH
from sbclient.transport.base import (
    ReceiverLink,
    ServiceBusReceiveMode,
    Settlement,
    SettleMode,
)

UNKNOWN_DESTINATION: Final = "(unknown)"
_PAGE: Final = 100
_TIMEOUT_S: Final = 60.0
_NOTHING_MORE_S: Final = 1.0


@dataclass(slots=True)
class BacklogQueueView:
    """What one backlog queue holds.

    Attributes:
        queue: its name.
        is_present: whether it exists.
        waiting: messages that a syphon can take, or holds.
        parked: messages put aside because their destination refuses them.
        dead_letters: messages that cannot be brought home, by reason.
        destinations: waiting and parked messages, by the entity they belong to.
        oldest_utc: when the oldest waiting or parked message came; None if there is none.
        is_complete: False if there was more than was looked at, so that every number is a lower bound.
    """

    queue: str
    is_present: bool = True
    waiting: int = 0
    parked: int = 0
    dead_letters: Counter[str] = field(default_factory=Counter)
    destinations: Counter[str] = field(default_factory=Counter)
    oldest_utc: datetime | None = None
    is_complete: bool = True

    @property
    def depth(self) -> int:
        """Messages that are still to be brought home."""
        return self.waiting + self.parked


class Backlog:
    """The backlog of a pair, for people. Needs the Listen right on the secondary, and Send to resubmit."""

    def __init__(self, pair: Pair) -> None:
        self._pair = pair

    @property
    def queues(self) -> Sequence[str]:
        """Every backlog queue of the pair, those for sessions last."""
        return [*self._pair.backlog_queues, *self._pair.session_backlog_queues]

    async def survey(self, *, limit: int = 100_000) -> list[BacklogQueueView]:
        """Look through every queue without taking anything.

        Args:
            limit: messages looked at in each queue and in its dead letters.
        """
        async with asyncio.TaskGroup() as group:
            views = [group.create_task(self._view(queue, limit)) for queue in self.queues]
        return [view.result() for view in views]

    async def _view(self, queue: str, limit: int) -> BacklogQueueView:
        view = BacklogQueueView(queue)
        try:
            async for message in self._browse(queue, limit, view):
                if message.state is ServiceBusMessageState.DEFERRED:
                    view.parked += 1
                else:
                    view.waiting += 1
                path = message.application_properties.get(PATH)
                view.destinations[path if isinstance(path, str) else UNKNOWN_DESTINATION] += 1
                view.oldest_utc = min(view.oldest_utc or message.enqueued_time_utc, message.enqueued_time_utc)
            async for message in self._browse(dead_letter_path(queue), limit, view):
                view.dead_letters[message.dead_letter_reason or "(none)"] += 1
        except MessagingEntityNotFoundError:
            view.is_present = False
        return view

    async def _browse(self, path: str, limit: int, view: BacklogQueueView) -> AsyncIterator[ServiceBusReceivedMessage]:
        link = self._pair.secondary.open_receiver(path)
        try:
            seen, number = 0, 1
            while page := await link.peek(max_message_count=_PAGE, sequence_number=number, timeout_s=_TIMEOUT_S):
                for message in page:
                    yield message
                seen += len(page)
                number = page[-1].sequence_number + 1
                if seen >= limit:
                    view.is_complete = False
                    return
        finally:
            await link.close()

    async def resubmit(self, *, reason: str | None = None, queue: str | None = None) -> int:
        """Put dead-lettered messages back into their backlog queue, to be brought home once more.

        Each is sent before it is completed, so a failure costs a second copy at most. Those of the session queues are
        left alone: they would come back in another order.

        Args:
            reason: only those with this reason; None = all.
            queue: only those of this backlog queue; None = every one.

        Returns:
            How many were put back.
        """
        return await self._in_each(self._chosen(queue), lambda name: self._resubmit(name, reason))

    async def _resubmit(self, queue: str, reason: str | None) -> int:
        moved = 0
        sender = self._pair.secondary.open_sender(queue)
        try:
            async for link, message in self._dead_letters(queue, reason):
                properties = dict(message.application_properties)
                for own in (DEAD_LETTER_REASON, DEAD_LETTER_DESCRIPTION):
                    properties.pop(own, None)
                await sender.send([message.copy(application_properties=properties)], timeout_s=_TIMEOUT_S)
                await link.settle(message, Settlement(SettleMode.COMPLETE), timeout_s=_TIMEOUT_S)
                moved += 1
        finally:
            await sender.close()
        return moved

    async def purge(self, *, reason: str | None = None, queue: str | None = None) -> int:
        """Delete dead-lettered messages for good; waiting and parked ones are never touched.

        Args:
            reason, queue: as for `resubmit`.

        Returns:
            How many were deleted.
        """
        return await self._in_each(self._chosen(queue, with_sessions=True), lambda name: self._purge(name, reason))

    async def _purge(self, queue: str, reason: str | None) -> int:
        deleted = 0
        async for link, message in self._dead_letters(queue, reason):
            await link.settle(message, Settlement(SettleMode.COMPLETE), timeout_s=_TIMEOUT_S)
            deleted += 1
        return deleted

    @staticmethod
    async def _in_each(queues: Sequence[str], work: Callable[[str], Coroutine[Any, Any, int]]) -> int:
        """Work in all queues side by side; returns the sum of what was done."""
        async with asyncio.TaskGroup() as group:
            done = [group.create_task(work(queue)) for queue in queues]
        return sum(task.result() for task in done)

    def _chosen(self, queue: str | None, *, with_sessions: bool = False) -> Sequence[str]:
        every = self.queues if with_sessions else self._pair.backlog_queues
        if queue is None:
            return every
        found = [name for name in every if name.casefold() == queue.casefold()]
        if not found:
            raise InvalidOperationError(f"{queue!r} is none of the backlog queues {', '.join(every)}")
        return found

    async def _dead_letters(
        self, queue: str, reason: str | None
    ) -> AsyncIterator[tuple[ReceiverLink, ServiceBusReceivedMessage]]:
        """Lock each dead letter with that reason; the others are given back at the end, so that each is seen once."""
        link = self._pair.secondary.open_receiver(dead_letter_path(queue), receive_mode=ServiceBusReceiveMode.PEEK_LOCK)
        passed_over: list[ServiceBusReceivedMessage] = []
        try:
            while batch := await link.receive(max_message_count=_PAGE, max_wait_time_s=_NOTHING_MORE_S):
                for message in batch:
                    if reason is None or message.dead_letter_reason == reason:
                        yield link, message
                    else:
                        passed_over.append(message)
        except MessagingEntityNotFoundError:
            return
        finally:
            for message in passed_over:
                await link.settle(message, Settlement(SettleMode.ABANDON), timeout_s=_TIMEOUT_S)
            await link.close()
