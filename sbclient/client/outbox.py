"""Combines the concurrent sends of one sender into transfers, so that any number of callers may use it at once.

Laws (our choice):

1. Messages with the same key are sent in the order of the calls, one transfer at a time. Different keys do not wait for
   each other, so a fragment that does not answer delays only its own keys.
2. Single messages that wait at the same time share the next transfer. Lists and batches are never merged or split.
   Without a key, a list and every hundred single messages leave at once, while earlier transfers are unanswered.
3. Each caller gets the result of its own message: after a rejected shared transfer every message is sent alone.
   A transfer in doubt is in doubt for all its messages.
4. A caller that is cancelled or times out does not end the transfer of others. A message that was not sent by then is
   never sent.
5. A transfer for which the link is ready needs no task. A task repeats it after an error, and sends all others.
"""

from __future__ import annotations

import asyncio
import copy
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol, TypeAlias

from sbclient import clock
from sbclient.amqp import EncodedBatch, EncodedMessage
from sbclient.amqp.batch import SECTION_BYTES
from sbclient.deadlines import Deadlines
from sbclient.errors import (
    InvalidOperationError,
    MessageSizeExceededError,
    OperationTimeoutError,
    ServiceBusConnectionError,
    ServiceBusError,
)
from sbclient.tasks import OwnedTasks

MAX_SHARED_MESSAGES: Final = 1000
MAX_SHARED_BYTES: Final = 240 * 1024
"""Keeps a shared transfer below 256 KiB, the limit of the Standard tier."""

PIPELINED_MESSAGES: Final = 100
"""So many single messages without a key do not wait for the answer to an earlier transfer."""

_RESULT_GRACE_S: Final = 0.5
"""A transfer ends at its deadline with a precise error; callers wait this much longer for it."""


Done: TypeAlias = Callable[["str | ServiceBusError"], None]


class Route(Protocol):
    """Sends the transfers of one sender."""

    async def send(self, batch: EncodedBatch, deadline: float, failed: ServiceBusError | None = None) -> str:
        """Send one transfer before a deadline, in monotonic seconds; return the route that it took.

        Args:
            failed: the error of the first attempt, which `start` made.
        """

    def start(self, batch: EncodedBatch, deadline: float, done: Done) -> bool:
        """Make the first attempt without waiting for anything but the answer, if that is possible now.

        Args:
            done: called with the route or the error, in a later step of the event loop.
        """


class _Item:
    """A call that waits for its result."""

    __slots__ = ("_path", "deadline", "messages", "result", "send_before", "shared_bytes", "was_sent")

    def __init__(
        self, messages: Sequence[EncodedMessage], send_before: float, shared_bytes: int | None, path: str
    ) -> None:
        self.messages = messages
        self.send_before = send_before
        self.deadline = send_before + _RESULT_GRACE_S
        self.shared_bytes = shared_bytes
        self.result: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.was_sent = False
        self._path = path

    def expire(self) -> None:
        if self.result.done():
            return
        late = OperationTimeoutError(
            f"sending to {self._path!r} timed out: whether the message arrived is in doubt"
            if self.was_sent
            else f"a message for {self._path!r} waited behind others until its timeout: it was not sent"
        )
        late.is_in_doubt = self.was_sent
        self.result.set_exception(late)


class _Lane:
    """The items of one key.

    Attributes:
        waiting: those that have not left, in order.
        in_flight: transfers that `Route.start` began.
        has_task: whether a task sends what waits.
    """

    __slots__ = ("has_task", "in_flight", "key", "waiting")

    def __init__(self, key: str | None) -> None:
        self.key = key
        self.waiting: deque[_Item] = deque()
        self.in_flight: list[list[_Item]] = []
        self.has_task = False

    @property
    def is_idle(self) -> bool:
        return not (self.waiting or self.in_flight or self.has_task)


class Outbox:
    """The messages of one sender that are in flight.

    Args:
        route: sends the transfers.
        path: the path of the entity, for errors.
        growth_bytes: the bytes that sealing for a backlog queue may add to each message.
    """

    def __init__(self, route: Route, path: str, *, growth_bytes: int = 0) -> None:
        self._route = route
        self._growth_bytes = growth_bytes
        self._path = path
        self._tasks = OwnedTasks()
        self._deadlines = Deadlines()
        self._lanes: dict[str | None, _Lane] = {}
        self._is_sharing = True

    async def send(self, messages: Sequence[EncodedMessage], *, deadline: float, may_share: bool) -> str:
        """Send messages behind earlier ones with the key of the first; return the route that they took.

        Args:
            deadline: in monotonic seconds.
            may_share: whether the transfer may be shared with other callers; for single messages only.

        Raises:
            ServiceBusError: the messages were rejected, or the deadline passed.
        """
        shared_bytes = messages[0].size_bytes + self._growth_bytes + SECTION_BYTES if may_share else None
        item = _Item(messages, deadline, shared_bytes, self._path)
        key = messages[0].key
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = _Lane(key)
        lane.waiting.append(item)
        self._deadlines.add(item)
        try:
            self._advance(lane)
            return await item.result
        finally:
            self._deadlines.remove(item)
            del item  # the traceback of its error refers to this frame

    def _advance(self, lane: _Lane) -> None:
        """Send what may leave now; the lane ends when it is empty."""
        while self._may_leave(lane):
            group = self._next_group(lane)
            if not group:
                break
            lane.in_flight.append(group)
            if not self._start(lane, group):
                lane.in_flight.remove(group)
                lane.waiting.extendleft(reversed(group))
                lane.has_task = True
                self._tasks.start(self._send_waiting(lane), name=f"send to {self._path}")
        if lane.is_idle:
            self._lanes.pop(lane.key, None)

    def _may_leave(self, lane: _Lane) -> bool:
        waiting = lane.waiting
        if not waiting or lane.has_task or self._tasks.is_closed:
            return False
        if not lane.in_flight:
            return True
        is_full = len(waiting) >= PIPELINED_MESSAGES or waiting[-1].shared_bytes is None or not self._is_sharing
        return is_full and lane.key is None

    def _start(self, lane: _Lane, group: list[_Item]) -> bool:
        try:
            has_left = self._route.start(
                _batch_of(group), _deadline_of(group), lambda result: self._answered(lane, group, result)
            )
        except Exception:  # `Route.send` raises it again, for these callers alone
            has_left = False
        for item in group:
            item.was_sent = has_left
        return has_left

    def _answered(self, lane: _Lane, group: list[_Item], result: str | ServiceBusError) -> None:
        """Set the results of a transfer that `Route.start` began, or repeat it in a task."""
        if isinstance(result, str):
            _accept(group, result)
        elif not self._tasks.is_closed:
            self._tasks.start(self._repeat(lane, group, result), name=f"send to {self._path} again")
            return
        lane.in_flight.remove(group)
        self._fail_closed(group)
        self._advance(lane)

    async def _repeat(self, lane: _Lane, group: list[_Item], failed: ServiceBusError) -> None:
        try:
            await self._send_group(list(group), failed)
        finally:
            lane.in_flight.remove(group)
            self._fail_closed(group)
            self._advance(lane)

    async def _send_waiting(self, lane: _Lane) -> None:
        """Send the items of a lane, transfer by transfer."""
        group: list[_Item] = []
        try:
            while group := self._next_group(lane):
                for item in group:
                    item.was_sent = True
                await self._send_group(group)
        finally:
            lane.has_task = False
            self._fail_closed([*group, *lane.waiting])
            lane.waiting.clear()
            self._advance(lane)

    def _fail_closed(self, items: Iterable[_Item]) -> None:
        for item in items:
            if not item.result.done():
                doubt = "whether the message arrived is in doubt" if item.was_sent else "the message was not sent"
                closed = ServiceBusConnectionError(f"the sender of {self._path!r} was closed: {doubt}")
                closed.is_in_doubt = item.was_sent
                item.result.set_exception(closed)

    def _next_group(self, lane: _Lane) -> list[_Item]:
        """Take the items of the next transfer. Drop items whose caller was cancelled or has no time left."""
        group: list[_Item] = []
        size = 0
        now = clock.monotonic()
        waiting = lane.waiting
        while waiting and len(group) < MAX_SHARED_MESSAGES:
            item = waiting[0]
            if not item.result.done() and item.send_before > now:
                size += item.shared_bytes or 0
                may_join = self._is_sharing and item.shared_bytes is not None and size <= MAX_SHARED_BYTES
                if group and not (may_join and group[0].shared_bytes is not None):
                    break
                group.append(item)
            waiting.popleft()
        return group

    async def _send_group(
        self, group: list[_Item], failed: ServiceBusError | None = None, *, is_in_doubt: bool = False
    ) -> None:
        """Send one transfer and set the results of its items.

        Args:
            failed: the error of the first attempt, if that was made.
            is_in_doubt: whether an earlier transfer with these messages was in doubt; then a rejection is too.
        """
        try:
            route = await self._route.send(_batch_of(group), _deadline_of(group), failed)
        except Exception as error:  # an unexpected one too: it belongs to these callers, and others wait in the lane
            if isinstance(error, ServiceBusError):
                error.is_in_doubt = error.is_in_doubt or is_in_doubt
            if len(group) > 1 and isinstance(error, InvalidOperationError | MessageSizeExceededError):
                # One message may be invalid, or the sharing: send each message alone.
                for item in group:
                    if not item.result.done():
                        await self._send_group([item], is_in_doubt=error.is_in_doubt)
                if all(map(_is_accepted, group)):
                    self._is_sharing = False
                return
            _fail(group, error)
            group.clear()  # the traceback of the error refers to this frame
        else:
            _accept(group, route)
        finally:
            failed = None

    async def close(self) -> None:
        """Cancel the transfers in flight. Waiting callers get an error that says whether their message was sent."""
        await self._tasks.close()
        lanes, self._lanes = list(self._lanes.values()), {}
        for lane in lanes:  # without a task, or with one that was cancelled before it started
            self._fail_closed([item for group in lane.in_flight for item in group])
            self._fail_closed(lane.waiting)
            lane.waiting.clear()
        self._deadlines.close()


def _batch_of(group: Sequence[_Item]) -> EncodedBatch:
    return EncodedBatch(group[0].messages if len(group) == 1 else [item.messages[0] for item in group])


def _deadline_of(group: Sequence[_Item]) -> float:
    return max([item.send_before for item in group])


def _accept(group: Sequence[_Item], route: str) -> None:
    for item in group:
        if not item.result.done():
            item.result.set_result(route)


def _is_accepted(item: _Item) -> bool:
    return item.result.done() and not item.result.cancelled() and item.result.exception() is None


def _fail(group: list[_Item], error: Exception) -> None:
    """Give each caller its own copy of an error: raising one object in many tasks mixes up its tracebacks."""
    for item in group:
        if not item.result.done():
            own = error if len(group) == 1 else copy.copy(error)
            own.__cause__ = error.__cause__
            item.result.set_exception(own)
