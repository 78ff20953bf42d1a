"""The messages of one receiver on their way to its callers: credit, prefetch, drain.

Laws:
1. Credit is what a call asks for, or the prefetch count. A call that ends with fewer messages takes its credit back by
   a drain, and waits at most 200 ms for the answer.
2. A message that arrives between two calls goes to the next one. It is released when less than half of its lock is
   left, or at the end; never otherwise. A cancelled call discards nothing.
3. A service that sends more than it has credit for loses the link.
"""

from __future__ import annotations

import asyncio
import math
import sys
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from sbclient import clock
from sbclient.amqp import (
    RELEASED,
    AmqpError,
    Attach,
    DispositionReceived,
    DispositionsReceived,
    IncomingDelivery,
    IncomingLink,
)
from sbclient.amqp.errors import TRANSFER_LIMIT
from sbclient.errors import ServiceBusError
from sbclient.message import ServiceBusReceivedMessage
from sbclient.tasks import Deadlines
from sbclient.transport.amqp.connection import AmqpConnection
from sbclient.transport.amqp.links import LinkEnd
from sbclient.transport.amqp.received import AmqpReceivedMessage, read_delivery
from sbclient.transport.amqp.settlements import LostSettlement, Settlements
from sbclient.transport.amqp.waiter import Waiter, own_error

DRAIN_S: Final = 0.2

LEAST_WAIT_S: Final = 1e-6
"""Times in messages are whole microseconds: a shorter wait may end before half of a lock has passed."""


class _Arrival(Waiter):
    """A receive call that waits for a message."""

    __slots__ = ()

    def expire(self) -> None:
        self.finish(None)


class IncomingEnd(LinkEnd[IncomingLink]):
    """The client's end of a link on which it receives.

    Attributes:
        inbox: takes what comes.
        connection: the connection.
        settlements: of the messages that came.

    Args:
        accept: checks the service's answer to the attach, and raises a `ServiceBusError` if it is not acceptable.
        deadlines: expires settlements.
        on_lost: takes settlements whose link is lost.
    """

    def __init__(
        self,
        inbox: Inbox,
        wire: AmqpConnection,
        doing: str,
        *,
        owns_session: bool,
        accept: Callable[[IncomingEnd, Attach], None],
        deadlines: Deadlines,
        on_lost: Callable[[LostSettlement], None],
    ) -> None:
        super().__init__(wire, doing, owns_session=owns_session)
        self._accept = accept
        self._deadlines = deadlines
        self._on_lost = on_lost
        self.inbox = inbox
        self.connection = wire
        self.settlements: Settlements

    def start(self, link: IncomingLink) -> None:
        super().start(link)
        self.settlements = Settlements(link, self.wire, self._deadlines, self._on_lost, self.connection.suspect)

    def on_attached(self, attach: Attach) -> None:
        if attach.source is not None and not self.is_released:
            try:
                self._accept(self, attach)
            except ServiceBusError as error:
                self.refuse(error)
                return
        super().on_attached(attach)

    def on_delivery(self, delivery: IncomingDelivery) -> None:
        if self.link.credit < 0:
            self.link.detach(AmqpError(TRANSFER_LIMIT, "more messages came than credit was granted for"))
            self.on_detached(AmqpError(TRANSFER_LIMIT, "the service sent more messages than it had credit for"))
            return
        self.inbox.arrived(self, delivery)

    def on_disposition(self, event: DispositionReceived) -> None:
        delivery = event.delivery
        assert isinstance(delivery, IncomingDelivery)
        self.settlements.confirmed([delivery], event.state, settled=event.settled)

    def on_dispositions(self, event: DispositionsReceived) -> None:
        self.settlements.confirmed(event.deliveries, event.state, settled=event.settled)

    def on_drained(self) -> None:
        self.inbox.drained(self)

    def on_detached(self, error: AmqpError | None) -> None:
        super().on_detached(error)
        cause = self.error_of_end(error)
        self.settlements.lost(cause)
        self.inbox.lost(self, cause)


class Inbox:
    """The messages that have arrived and the callers that wait for them, over successive links.

    Args:
        is_locking: whether messages are locked until they are settled.
        has_session: whether the session is locked and not the message.
        prefetch_count: how many messages are fetched ahead.
        deadlines: expires callers.
    """

    def __init__(self, *, is_locking: bool, has_session: bool, prefetch_count: int, deadlines: Deadlines) -> None:
        self._is_locking = is_locking
        self._has_session = has_session
        self._prefetch_count = prefetch_count if is_locking else 0
        self._fetch_left = sys.maxsize
        self._deadlines = deadlines
        self._end: IncomingEnd | None = None
        self._queue: deque[IncomingDelivery] = deque()
        self._wanted = 0
        self._arrival: _Arrival | None = None
        self._drain: _Arrival | None = None
        self._release_timer: asyncio.TimerHandle | None = None

    def take_over(self, earlier: Inbox) -> None:
        """Hold the messages of the inbox of an event loop that has ended, which the service has deleted."""
        self._queue.extend(earlier._queue)

    @property
    def end(self) -> IncomingEnd | None:
        """The attached link, None if there is none."""
        end = self._end
        return end if end is not None and end.is_open else None

    @property
    def is_drained(self) -> bool:
        """Whether the last call drained the link: no message is here or on its way, and none is fetched ahead."""
        end = self.end
        return end is not None and not (self._queue or end.link.credit or self._prefetch_count)

    def open(self, end: IncomingEnd) -> None:
        """Take what comes over a link that was attached."""
        self._end = end
        self._drain = None
        if self._ahead:
            end.link.grant(self._ahead)
            end.connection.flush()

    def fetch_ahead(self, count: int, total: int) -> None:
        """Fetch up to `count` messages ahead, `total` at most in all. Credit that was granted before stays."""
        if self._is_locking:
            self._prefetch_count, self._fetch_left = count, total
            self._keep_prefetching()

    @property
    def _ahead(self) -> int:
        """How many messages may wait for a call now."""
        return min(self._prefetch_count, self._fetch_left)

    async def close(self, end: IncomingEnd, error: ServiceBusError) -> None:
        """Stop the service and give back what no caller got; a caller that waits gets `error`."""
        if self._arrival is not None:
            self._arrival.fail(own_error(error, is_in_doubt=False))
        if not self._is_locking:
            return
        if end.link.credit > 0:
            self._start_drain(end)
            await self._drained_or_late()
        if end.is_open:
            mine = [delivery for delivery in self._queue if delivery.link is end.link]
            end.link.settle_many(mine, RELEASED, settled=True)
        self._clear()

    # -- what callers do -----------------------------------------------------------------------------------------

    async def wait(self, end: IncomingEnd, count: int, deadline: float) -> None:
        """Wait until `count` messages, or all that are available now, have arrived; at most until the deadline."""
        if self._queue:  # they came while the link was attached
            return
        link = end.link
        arrival = _Arrival(deadline, "receive")
        self._arrival, self._wanted = arrival, count
        self._deadlines.add(arrival)
        try:
            if self._prefetch_count and self._ahead:
                self._keep_prefetching()  # what was fetched may have been released since
            elif link.credit < count or self._drain is not None:
                # A drain that is not answered yet may never be; if it is after all, `drained` grants once more.
                # Credit is never reduced, because messages may be on their way for it.
                self._drain = None
                link.grant(max(count, link.credit))
                end.connection.flush()
            await arrival.future
            if len(self._queue) < count and not (self._prefetch_count and self._ahead) and end.is_open:
                self._start_drain(end)
                await self._drained_or_late()
        except asyncio.CancelledError:
            self._schedule_release()
            if not self._ahead and end.is_open:
                self._start_drain(end)
            raise
        finally:
            self._deadlines.remove(arrival)
            self._arrival, self._wanted = None, 0

    def _start_drain(self, end: IncomingEnd) -> None:
        if self._drain is None and end.link.credit > 0:
            self._drain = _Arrival(clock.monotonic() + DRAIN_S, "drain")
            end.link.grant(end.link.credit, drain=True)
            end.connection.flush()

    async def _drained_or_late(self) -> None:
        drain = self._drain
        if drain is None or drain.future.done():
            return
        self._deadlines.add(drain)
        try:
            await asyncio.shield(drain.future)
        finally:
            self._deadlines.remove(drain)

    def take(self, count: int) -> list[ServiceBusReceivedMessage]:
        """Return messages that have arrived, at most so many. Those whose lock ends soon are released."""
        queue = self._queue
        if not queue:
            return []
        taken = [queue.popleft()]
        while queue and len(taken) < count:
            taken.append(queue.popleft())
        if self._prefetch_count:
            self._fetch_left = max(0, self._fetch_left - len(taken))
            self._keep_prefetching()
        messages: list[ServiceBusReceivedMessage] = []
        stale: list[IncomingDelivery] = []
        instant = None if self._release_timer is None else _instant()  # without a timer they have not waited
        for delivery in taken:
            message = read_delivery(delivery, is_locked=self._is_locking, has_session=self._has_session)
            if message is not None:
                if instant is not None and _left_s(message, instant) < 0:
                    stale.append(delivery)
                else:
                    messages.append(message)
        if stale:
            self._release(stale)
        if queue:
            self._schedule_release()
        return messages

    def _keep_prefetching(self) -> None:
        """Grant credit for what can be fetched ahead, at once: the caller may be about to decode many messages."""
        end = self.end
        room = self._ahead - len(self._queue)
        if room > 0 and end is not None and end.link.credit <= room // 2:
            end.link.grant(room)
            end.connection.write()

    # -- messages that no call receives in time --------------------------------------------------------------------

    def _release(self, deliveries: Iterable[IncomingDelivery]) -> None:
        """Give deliveries back as if they had never been made."""
        end = self.end
        if end is not None and self._is_locking:
            mine = [delivery for delivery in deliveries if delivery.link is end.link]
            end.link.settle_many(mine, RELEASED, settled=True)
            end.connection.flush()

    def _oldest_left_s(self) -> float:
        return _left_s(read_delivery(self._queue[0], is_locked=True, has_session=False), _instant())

    def _release_stale(self) -> None:
        """Half of the lock of the oldest message has passed: release it, with what came at the same time."""
        self._release_timer = None
        stale: list[IncomingDelivery] = []
        while self._queue and self._oldest_left_s() <= 0:
            stale.append(self._queue.popleft())
        self._release(stale)
        self._schedule_release()

    def _schedule_release(self) -> None:
        """Schedule the release of the oldest message in case no call receives it. One timer serves all messages."""
        if self._release_timer is None and self._queue and self._is_locking and not self._has_session:
            left_s = self._oldest_left_s()
            if left_s < math.inf:
                delay_s = max(left_s / 2, LEAST_WAIT_S)
                self._release_timer = clock.call_later(delay_s, self._release_stale)

    def _clear(self) -> None:
        """Forget the messages, whose locks are lost or released."""
        self._queue.clear()
        if self._release_timer is not None:
            self._release_timer.cancel()
            self._release_timer = None

    # -- called by the link --------------------------------------------------------------------------------------

    def arrived(self, end: IncomingEnd, delivery: IncomingDelivery) -> None:
        """A message has come. The context of its delivery is the time at which it arrived."""
        delivery.context = end.connection.heard_at
        self._queue.append(delivery)
        if self._arrival is not None:
            self._arrival.finish()
        else:
            self._schedule_release()

    def drained(self, end: IncomingEnd) -> None:
        """The service has no more messages. A call that arrived during the drain needs its credit again."""
        drain, self._drain = self._drain, None
        if drain is not None:
            drain.finish()
        arrival = self._arrival
        if arrival is not None and not arrival.future.done() and end.is_open:
            end.link.grant(self._wanted)
            end.connection.flush()

    def lost(self, end: IncomingEnd, error: ServiceBusError) -> None:
        """The link is over. Messages that no caller received stay locked until their locks end."""
        if end is not self._end:
            return
        self._end = None
        if self._is_locking:
            self._clear()
        drain, self._drain = self._drain, None
        if drain is not None:
            drain.finish()
        if self._arrival is not None:
            self._arrival.fail(own_error(error, is_in_doubt=False))


def _instant() -> float:
    """Return the sum of wall clock and monotonic time, see `_left_s`."""
    return clock.now() + clock.monotonic()


def _left_s(message: AmqpReceivedMessage | None, instant: float) -> float:
    """How many seconds longer the lock of a message lasts than the message has waited; infinite if unknown."""
    if message is None or message.delivery is None or message.locked_until_utc is None:
        return math.inf
    arrived_at: float = message.delivery.context
    return message.locked_until_utc.timestamp() + arrived_at - instant
