"""Combines the concurrent sends of one sender into transfers, so that any number of callers may use it at once.

Laws (our choice):

1. Messages with the same key are sent in the order of the calls, one transfer at a time. Different keys do not wait for
   each other, so a fragment that does not answer delays only its own keys.
2. Single messages that wait at the same time share the next transfer. Lists and batches are never merged or split.
3. Each caller gets the result of its own message: after a rejected shared transfer every message is sent alone.
   A transfer in doubt is in doubt for all its messages.
4. A caller that is cancelled or times out does not end the transfer of others. A message that was not sent by then is
   never sent.
"""

from __future__ import annotations

import asyncio
import copy
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from sbclient.client.outgoing import Outgoing
from sbclient.clock import Clock
from sbclient.errors import (
    InvalidOperationError,
    MessageSizeExceededError,
    OperationTimeoutError,
    ServiceBusConnectionError,
    ServiceBusError,
)
from sbclient.rules.size import SECTION_BYTES
from sbclient.tasks import OwnedTasks

MAX_SHARED_MESSAGES: Final = 1000
MAX_SHARED_BYTES: Final = 240 * 1024
"""Keeps a shared transfer below 256 KiB, the limit of the Standard tier."""

_RESULT_GRACE_S: Final = 0.5
"""A transfer ends at its deadline with a precise error; callers wait this much longer for it."""

Deliver = Callable[[Sequence[Outgoing], float], Awaitable[str]]


@dataclass(slots=True)
class _Item:
    transfer: Sequence[Outgoing]
    deadline: float
    shared_bytes: int | None
    result: asyncio.Future[str]
    was_sent: bool = False


_Lane = deque[_Item]
"""The items of one key that wait, in order."""


class Outbox:
    """The messages of one sender that are in flight.

    Args:
        deliver: sends one transfer before a deadline, in monotonic seconds; returns its route.
        path: the path of the entity, for errors.
        clock: the source of time.
        growth_bytes: the bytes that sealing for a backlog queue may add to each message.
    """

    def __init__(self, deliver: Deliver, path: str, clock: Clock, *, growth_bytes: int = 0) -> None:
        self._deliver = deliver
        self._growth_bytes = growth_bytes
        self._path = path
        self._clock = clock
        self._tasks = OwnedTasks()
        self._lanes: dict[str | None, _Lane] = {}
        self._is_sharing = True

    async def send(self, transfer: Sequence[Outgoing], *, deadline: float, may_share: bool) -> str:
        """Send messages behind earlier ones with the key of the first; return the route that they took.

        Args:
            deadline: in monotonic seconds.
            may_share: whether the transfer may be shared with other callers; for single messages only.

        Raises:
            ServiceBusError: the messages were rejected, or the deadline passed.
        """
        shared_bytes = transfer[0].size_bytes + self._growth_bytes + SECTION_BYTES if may_share else None
        item = _Item(transfer, deadline, shared_bytes, asyncio.get_running_loop().create_future())
        key = transfer[0].key
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = _Lane([item])
            self._tasks.start(self._empty(key, lane), name=f"send to {self._path}")
        else:
            lane.append(item)
        try:
            async with self._clock.timeout(deadline - self._clock.monotonic() + _RESULT_GRACE_S):
                return await item.result
        except TimeoutError:
            raise self._too_late(item) from None
        finally:
            del item  # the traceback of its error refers to this frame

    def _too_late(self, item: _Item) -> OperationTimeoutError:
        late = OperationTimeoutError(
            f"sending to {self._path!r} timed out: whether the message arrived is in doubt"
            if item.was_sent
            else f"a message for {self._path!r} waited behind others until its timeout: it was not sent"
        )
        late.is_in_doubt = item.was_sent
        return late

    async def _empty(self, key: str | None, lane: _Lane) -> None:
        """Send the items of a lane, transfer by transfer; the lane ends when it is empty."""
        group: list[_Item] = []
        try:
            while group := self._next_group(lane):
                await self._send_group(group)
        finally:
            self._lanes.pop(key, None)
            self._fail_closed([*group, *lane])

    def _fail_closed(self, items: Sequence[_Item]) -> None:
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
        now = self._clock.monotonic()
        while lane and len(group) < MAX_SHARED_MESSAGES:
            item = lane[0]
            if not item.result.done() and item.deadline > now:
                size += item.shared_bytes or 0
                may_join = self._is_sharing and item.shared_bytes is not None and size <= MAX_SHARED_BYTES
                if group and not (may_join and group[0].shared_bytes is not None):
                    break
                item.was_sent = True
                group.append(item)
            lane.popleft()
        return group

    async def _send_group(self, group: list[_Item], *, is_in_doubt: bool = False) -> None:
        """Send one transfer and set the results of its items.

        Args:
            is_in_doubt: whether an earlier transfer with these messages was in doubt; then a rejection is too.
        """
        transfer = group[0].transfer if len(group) == 1 else [item.transfer[0] for item in group]
        try:
            route = await self._deliver(transfer, max(item.deadline for item in group))
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
            for item in group:
                if not item.result.done():
                    item.result.set_result(route)

    async def close(self) -> None:
        """Cancel the transfers in flight. Waiting callers get an error that says whether their message was sent."""
        await self._tasks.close()
        for lane in self._lanes.values():  # of tasks that were cancelled before they started
            self._fail_closed(list(lane))
        self._lanes.clear()


def _is_accepted(item: _Item) -> bool:
    return item.result.done() and not item.result.cancelled() and item.result.exception() is None


def _fail(group: list[_Item], error: Exception) -> None:
    """Give each caller its own copy of an error: raising one object in many tasks mixes up its tracebacks."""
    for item in group:
        if not item.result.done():
            own = error if len(group) == 1 else copy.copy(error)
            own.__cause__ = error.__cause__
            item.result.set_exception(own)
