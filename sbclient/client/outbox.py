"""The send queue of one sender: combines concurrent calls into transfers, so that any number of callers may use it.

Laws (our choice):

1. Messages with the same key are sent in the order of the calls, one transfer at a time. Different keys do not wait for
   each other, so a fragment that does not answer delays only its own keys. An entity that is known not to be
   partitioned takes transfers of several keys: its keys are divided into a few groups, and those of a group count as
   one key here.
2. Single messages that wait at the same time share the next transfer. Those that come in the same step of the event
   loop as one that was answered at once, as in memory, wait for its end. Lists and batches are never merged or split.
   Without a key, a list and every hundred single messages leave at once, while earlier transfers are unanswered.
3. Each caller gets the result of its own message: after a rejected shared transfer every message is sent alone.
   A transfer in doubt is in doubt for all its messages.
4. A caller that is cancelled or times out does not end the transfer of others. A message that was not sent by then is
   never sent.
5. The route ends each transfer by its deadline. A call has a deadline of its own while it waits, and in a shared
   transfer that may last longer.
"""

from __future__ import annotations

import asyncio
import copy
from collections import deque
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, Final, Protocol

from sbclient import clock
from sbclient.amqp import EncodedBatch, EncodedMessage
from sbclient.amqp.batch import SECTION_BYTES
from sbclient.errors import (
    InvalidOperationError,
    MessageSizeExceededError,
    OperationTimeoutError,
    ServiceBusConnectionError,
    ServiceBusError,
    keep_doubt,
)
from sbclient.rules.partition_key import fragment_of
from sbclient.tasks import Deadlines

MAX_SHARED_MESSAGES: Final = 1000
MAX_SHARED_BYTES: Final = 240 * 1024
"""Keeps a shared transfer below 256 KiB, the limit of the Standard tier."""

KEY_GROUPS: Final = 8
"""Of an entity that is not partitioned. Fewer groups fill transfers, more of them are in flight at once."""

PIPELINED_MESSAGES: Final = 100
"""So many single messages without a key do not wait for the answer to an earlier transfer."""


class Route(Protocol):
    """Sends the transfers of one sender."""

    def send(self, batch: EncodedBatch, deadline: float) -> asyncio.Future[str]:
        """Send one transfer before a deadline, in monotonic seconds; the result is the route that it took."""


class Sending(asyncio.Future[str]):
    """One transfer on its way; the result is the route that it took. Cancelling it ends its attempts.

    Who awaits it lets others run, also if it is done.

    Attributes:
        attempt: the current attempt, or the task that makes further ones.
        is_in_doubt: whether an attempt before the current one may have arrived.
        is_passed: of one that was answered at once, whether the others have run.
    """

    __slots__ = ("is_passed",)  # else each would need a dictionary

    attempt: asyncio.Future[Any] | None = None
    is_in_doubt = False
    is_passed: bool

    def __await__(self) -> Generator[Any, None, str]:
        if not self.done():
            return (yield from super().__await__())
        try:
            if clock.is_step_due():
                yield
        finally:
            self.is_passed = True
        return self.result()

    def cancel(self, msg: Any | None = None) -> bool:
        if self.attempt is not None:
            self.attempt.cancel(msg)
        return super().cancel(msg)


class _Call:
    """A call that waits for its result.

    Attributes:
        deadline: in monotonic seconds.
        may_share: whether its transfer may be shared with other callers.
        was_sent: whether the messages have left, or may have left before.
        rejected: the shared transfer that was rejected, if the message is sent alone because of that.
    """

    __slots__ = ("_path", "deadline", "may_share", "messages", "rejected", "result", "was_sent")

    def __init__(self, messages: Sequence[EncodedMessage], deadline: float, path: str, *, may_share: bool) -> None:
        self.messages = messages
        self.deadline = deadline
        self.may_share = may_share
        self.result: asyncio.Future[str] = asyncio.Future()
        self.was_sent = False
        self.rejected: _Rejected | None = None
        self._path = path

    def expire(self) -> None:
        """The deadline has passed."""
        self._fail(
            OperationTimeoutError(
                f"sending to {self._path!r} timed out: whether the message arrived is in doubt"
                if self.was_sent
                else f"a message for {self._path!r} waited behind others until its timeout: it was not sent",
                is_in_doubt=self.was_sent,
            )
        )

    def close(self) -> None:
        """The sender was closed."""
        doubt = "whether the message arrived is in doubt" if self.was_sent else "the message was not sent"
        text = f"the sender of {self._path!r} was closed: {doubt}"
        self._fail(ServiceBusConnectionError(text, is_in_doubt=self.was_sent))

    def _fail(self, error: ServiceBusError) -> None:
        if not self.result.done():
            self.result.set_exception(error)


@dataclass(slots=True, eq=False)
class _Rejected:
    """A shared transfer that was rejected; its messages are sent alone.

    Attributes:
        not_accepted: the number of its messages that have not been accepted alone.
        is_in_doubt: whether the messages may have arrived nevertheless.
    """

    not_accepted: int
    is_in_doubt: bool


class _Lane:
    """The calls of one key, or of one group of keys.

    Attributes:
        waiting: those that have not left, in order.
        in_flight: those of each unanswered transfer.
    """

    __slots__ = ("in_flight", "key", "waiting")

    def __init__(self, key: str | None) -> None:
        self.key = key
        self.waiting: deque[_Call] = deque()
        self.in_flight: dict[asyncio.Future[str], list[_Call]] = {}


class Outbox:
    """The messages of one sender that are in flight.

    Args:
        route: sends the transfers.
        path: the path of the entity, for errors.
        growth_bytes: the bytes that sealing for a backlog queue may add to each message.
        mixes_keys: whether messages with different keys may share a transfer, because the entity is not partitioned.
    """

    def __init__(self, route: Route, path: str, *, growth_bytes: int = 0, mixes_keys: bool = False) -> None:
        self._route = route
        self._mixes_keys = mixes_keys
        self._growth_bytes = growth_bytes + SECTION_BYTES
        self._path = path
        self._deadlines = Deadlines()
        self._keyless = _Lane(None)
        self._lanes: dict[str, _Lane] = {}
        self._is_sharing = True
        self._prompt: Sending | None = None  # was answered at once: until its step has passed, others wait and share

    def send(self, messages: Sequence[EncodedMessage], deadline: float, may_share: bool) -> asyncio.Future[str]:
        """Send messages behind earlier ones with the key of the first; the result is the route that they took.

        The error of the future says that the messages were rejected, or that the deadline passed.

        Args:
            deadline: in monotonic seconds.
            may_share: whether the transfer may be shared with other callers; for single messages only.
        """
        key = messages[0].key
        if self._mixes_keys and key is not None:
            key = str(fragment_of(key, KEY_GROUPS))
        lane = self._keyless if key is None else self._lanes.get(key)
        sending = None
        is_next = lane is None or not (lane.in_flight or lane.waiting)
        if is_next and (self._prompt is None or self._prompt.is_passed or not may_share):
            sending = self._begin(messages, deadline)
            if sending.done() and isinstance(sending, Sending) and sending.exception() is None:
                self._prompt, sending.is_passed = sending, False
                return sending
        if lane is None:
            lane = self._lanes[str(key)] = _Lane(key)
        call = _Call(messages, deadline, self._path, may_share=may_share)
        if sending is not None:
            self._track(lane, [call], sending)
            return call.result
        lane.waiting.append(call)
        self._deadlines.add(call)
        if lane.in_flight or not may_share:
            self._advance(lane)
        elif len(lane.waiting) == 1:
            asyncio.get_running_loop().call_soon(self._advance, lane)
        return call.result

    def _advance(self, lane: _Lane) -> None:
        """Send what may leave now."""
        waiting = lane.waiting
        while waiting:
            if lane.in_flight:
                is_full = len(waiting) >= PIPELINED_MESSAGES or not (waiting[-1].may_share and self._is_sharing)
                if lane.key is not None or not is_full:
                    return
            if group := self._next_group(waiting):
                self._leave(lane, group)
        if not lane.in_flight and lane.key is not None:
            self._lanes.pop(lane.key, None)

    def _next_group(self, waiting: deque[_Call]) -> list[_Call]:
        """Take the calls of the next transfer. Drop those that were cancelled or have no time left."""
        group: list[_Call] = []
        size = 0
        now = clock.monotonic()
        while waiting and len(group) < MAX_SHARED_MESSAGES:
            call = waiting[0]
            if not call.result.done() and call.deadline > now:
                size += call.messages[0].size_bytes + self._growth_bytes
                may_join = self._is_sharing and call.may_share and size <= MAX_SHARED_BYTES
                if group and not (may_join and group[0].may_share):
                    break
                group.append(call)
            waiting.popleft()
        deadline = _deadline_of(group)
        for call in group:
            if call.deadline == deadline:
                self._deadlines.remove(call)
        return group

    def _leave(self, lane: _Lane, group: list[_Call]) -> None:
        """Send one transfer."""
        if len(group) == 1:
            messages, deadline = group[0].messages, group[0].deadline
        else:
            messages, deadline = [call.messages[0] for call in group], _deadline_of(group)
        self._track(lane, group, self._begin(messages, deadline))

    def _begin(self, messages: Sequence[EncodedMessage], deadline: float) -> asyncio.Future[str]:
        try:
            return self._route.send(EncodedBatch(messages), deadline)
        except Exception as error:  # it belongs to the callers of this transfer, and others wait in the lane
            failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
            failed.set_exception(error.with_traceback(None))  # it would refer to this frame
            return failed

    def _track(self, lane: _Lane, group: list[_Call], sending: asyncio.Future[str]) -> None:
        """Give the calls of a transfer its result when it ends."""
        for call in group:
            call.was_sent = True
        lane.in_flight[sending] = group
        sending.add_done_callback(partial(self._answered, lane))

    def _answered(self, lane: _Lane, sending: asyncio.Future[str]) -> None:
        """Set the results of a transfer, and send what waited for it."""
        group = lane.in_flight.pop(sending)
        if len(group) > 1:
            for call in group:
                self._deadlines.remove(call)
        if sending.cancelled():
            for call in group:
                call.close()
        elif (error := sending.exception()) is None:
            route = sending.result()
            for call in group:
                if not call.result.done():
                    call.result.set_result(route)
                    if call.rejected is not None:
                        self._note_accepted(call.rejected)
        elif len(group) > 1 and isinstance(error, InvalidOperationError | MessageSizeExceededError):
            self._send_alone(lane, group, error)  # one message may be invalid, or the sharing
        else:
            if isinstance(error, ServiceBusError) and group[0].rejected is not None:
                keep_doubt(error, group[0].rejected.is_in_doubt)
            _fail(group, error)
        if lane.waiting:
            self._advance(lane)
        elif not lane.in_flight and lane.key is not None:
            self._lanes.pop(lane.key, None)

    def _send_alone(self, lane: _Lane, group: list[_Call], error: ServiceBusError) -> None:
        """Let the messages of a rejected transfer leave again, each alone and before those that came later."""
        rejected = _Rejected(len(group), is_in_doubt=error.is_in_doubt)
        for call in reversed(group):
            if not call.result.done():
                call.may_share, call.rejected, call.was_sent = False, rejected, error.is_in_doubt
                lane.waiting.appendleft(call)
                self._deadlines.add(call)

    def _note_accepted(self, rejected: _Rejected) -> None:
        """Count one message of a rejected transfer. If all are accepted alone, the sharing was at fault."""
        rejected.not_accepted -= 1
        if not rejected.not_accepted:
            self._is_sharing = False

    def close(self) -> None:
        """Fail all callers with an error that says whether their message was sent."""
        for lane in (self._keyless, *self._lanes.values()):
            for call in (*chain.from_iterable(lane.in_flight.values()), *lane.waiting):
                call.close()
            lane.waiting.clear()
        self._deadlines.close()


def _deadline_of(group: Iterable[_Call]) -> float:
    return max([call.deadline for call in group], default=0.0)


def _fail(group: Sequence[_Call], error: BaseException) -> None:
    """Give each caller its own copy of an error: raising one object in many tasks mixes up its tracebacks."""
    for call in group:
        if not call.result.done():
            own = error if len(group) == 1 else copy.copy(error)
            own.__cause__ = error.__cause__
            call.result.set_exception(own)
