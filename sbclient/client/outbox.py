"""Lets the concurrent sends of one sender share transfers, so that any number of callers may use it at once.

The laws, ours:

1. What is sent with one key leaves in the order of the calls, one transfer at a time. Different keys do not wait for
   each other, so that one dead fragment holds up its own keys only.
2. Single messages that wait at the same time share the next transfer. Lists and batches are never merged or split.
3. Each caller hears only of its own message: a rejected shared transfer is sent again one by one before any verdict.
   A transfer in doubt is in doubt for all that were in it.
4. A caller that gives up or runs out of time ends nobody else's transfer. If its message has not left, it never does.
"""

from __future__ import annotations

import asyncio
import copy
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from sbclient.clock import Clock
from sbclient.errors import (
    InvalidOperationError,
    MessageSizeExceededError,
    OperationTimeoutError,
    ServiceBusConnectionError,
    ServiceBusError,
)
from sbclient.message import ServiceBusMessage
from sbclient.rules.size import encoded_size
from sbclient.tasks import OwnedTasks

MAX_SHARED_MESSAGES = 1000
MAX_SHARED_BYTES = 240 * 1024
"""A shared transfer stays below the 256 KiB of a standard namespace, with what its messages may grow by."""

_SECTION_BYTES = 8
"""What the data section around each message takes, at most."""

_VERDICT_GRACE_S = 0.5
"""A transfer ends at its deadline with a precise error; its callers wait a moment longer to be told."""

Deliver = Callable[[Sequence[ServiceBusMessage], float], Awaitable[str]]


@dataclass(slots=True)
class _Item:
    messages: Sequence[ServiceBusMessage]
    deadline: float
    shared_bytes: int | None
    verdict: asyncio.Future[str]
    has_left: bool = False


@dataclass(slots=True)
class _Lane:
    waiting: deque[_Item] = field(default_factory=deque)


class Outbox:
    """The messages of one sender that are on their way.

    Args:
        deliver: sends one transfer, given its messages and its deadline in monotonic seconds; returns its way.
        path: the entity, for errors.
        clock: the only source of time.
        growth_bytes: what each message may grow by on its way to a backlog queue.
    """

    def __init__(self, deliver: Deliver, path: str, clock: Clock, *, growth_bytes: int = 0) -> None:
        self._deliver = deliver
        self._growth_bytes = growth_bytes
        self._path = path
        self._clock = clock
        self._tasks = OwnedTasks()
        self._lanes: dict[str | None, _Lane] = {}
        self._is_sharing = True

    async def send(
        self, messages: Sequence[ServiceBusMessage], *, key: str | None, deadline: float, may_share: bool
    ) -> str:
        """Return the way that these messages went when they were accepted, or raise what became of them.

        Args:
            key: what leaves in order; None shares one lane.
            deadline: monotonic seconds.
            may_share: whether they may travel with others; for single messages only.
        """
        shared_bytes = encoded_size(messages[0]) + self._growth_bytes + _SECTION_BYTES if may_share else None
        item = _Item(messages, deadline, shared_bytes, asyncio.get_running_loop().create_future())
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = _Lane()
            lane.waiting.append(item)
            self._tasks.start(self._empty(key, lane), name=f"send to {self._path}")
        else:
            lane.waiting.append(item)
        try:
            async with self._clock.timeout(deadline - self._clock.monotonic() + _VERDICT_GRACE_S):
                return await item.verdict
        except TimeoutError:
            raise self._too_late(item) from None
        finally:
            del item  # the error in it leads back here, by its traceback

    def _too_late(self, item: _Item) -> OperationTimeoutError:
        late = OperationTimeoutError(
            f"sending to {self._path!r} took too long: whether the message arrived is in doubt"
            if item.has_left
            else f"a message for {self._path!r} waited behind others until its time was over: it was not sent"
        )
        late.is_in_doubt = item.has_left
        return late

    async def _empty(self, key: str | None, lane: _Lane) -> None:
        """Send what waits in a lane, transfer by transfer; the lane ends when nothing is left."""
        group: list[_Item] = []
        try:
            while group := self._next_group(lane):
                await self._send_group(group)
        finally:
            self._lanes.pop(key, None)
            for item in (*group, *lane.waiting):
                self._tell_closed(item)

    def _tell_closed(self, item: _Item) -> None:
        if not item.verdict.done():
            doubt = "whether the message arrived is in doubt" if item.has_left else "the message was not sent"
            closed = ServiceBusConnectionError(f"the sender of {self._path!r} was closed: {doubt}")
            closed.is_in_doubt = item.has_left
            item.verdict.set_exception(closed)

    def _next_group(self, lane: _Lane) -> list[_Item]:
        """What leaves next; who has given up, or has no time left, stays behind and is told so by its own timeout."""
        group: list[_Item] = []
        size = 0
        now = self._clock.monotonic()
        while lane.waiting and len(group) < MAX_SHARED_MESSAGES:
            item = lane.waiting[0]
            if item.verdict.done() or item.deadline <= now:
                lane.waiting.popleft()
                continue
            if item.shared_bytes is not None:
                size += item.shared_bytes
            if group and not (self._is_sharing and self._may_join(group[0], item) and size <= MAX_SHARED_BYTES):
                break
            lane.waiting.popleft()
            item.has_left = True
            group.append(item)
        return group

    @staticmethod
    def _may_join(first: _Item, item: _Item) -> bool:
        return first.shared_bytes is not None and item.shared_bytes is not None

    async def _send_group(self, group: list[_Item], *, is_in_doubt: bool = False) -> None:
        """Send what leaves together, and tell its callers.

        Args:
            is_in_doubt: whether an earlier transfer with these messages was; no refusal now settles that.
        """
        messages = group[0].messages if len(group) == 1 else [item.messages[0] for item in group]
        try:
            way = await self._deliver(messages, max(item.deadline for item in group))
        except (InvalidOperationError, MessageSizeExceededError) as error:
            error.is_in_doubt = error.is_in_doubt or is_in_doubt
            if len(group) == 1:
                _tell(group, error)
                group.clear()  # as below
                return
            # Something in the transfer is not allowed, or sharing it is not: each is judged by itself.
            for item in group:
                if not item.verdict.done():
                    await self._send_group([item], is_in_doubt=error.is_in_doubt)
            if all(_is_accepted(item.verdict) for item in group):
                self._is_sharing = False  # each by itself is welcome, so it was the sharing that was refused
        except Exception as error:  # whatever it is, it belongs to these callers, and others still wait in the lane
            if isinstance(error, ServiceBusError):
                error.is_in_doubt = error.is_in_doubt or is_in_doubt
            _tell(group, error)
            group.clear()  # the error that was told leads back here, by its traceback
        else:
            for item in group:
                if not item.verdict.done():
                    item.verdict.set_result(way)

    async def close(self) -> None:
        """End what is on its way; callers that still wait are told whether their message had left."""
        await self._tasks.close()
        for lane in self._lanes.values():  # of tasks that were cancelled before they began
            for item in lane.waiting:
                self._tell_closed(item)
        self._lanes.clear()


def _is_accepted(verdict: asyncio.Future[str]) -> bool:
    return verdict.done() and not verdict.cancelled() and verdict.exception() is None


def _tell(group: list[_Item], error: Exception) -> None:
    """Give each caller an error of its own: one exception raised in many tasks mixes up their tracebacks."""
    for item in group:
        if not item.verdict.done():
            own = error if len(group) == 1 else copy.copy(error)
            own.__cause__ = error.__cause__
            item.verdict.set_exception(own)
