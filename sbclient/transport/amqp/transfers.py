"""The transfers of one outgoing link: those that wait, and those that the service has not answered.

Laws:
1. A transfer leaves when the link is attached, has credit, and no earlier frame of it waits for the session window.
   A transfer that fails before that was not sent.
2. Of the transfers with one key, one at a time is unsettled, in the order of the calls. Transfers without a key
   are pipelined.
3. When the link is lost, transfers that left are in doubt, and those that wait fail as not sent. The next transfer
   attaches a new link.
4. There is no task per message: the reader of the connection finishes the futures.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

from sbclient.amqp import (
    Accepted,
    AmqpError,
    Attach,
    DispositionReceived,
    Modified,
    OutgoingDelivery,
    OutgoingLink,
    Rejected,
    Released,
    TransactionalState,
)
from sbclient.amqp.states import DeliveryState
from sbclient.deadlines import Deadlines
from sbclient.errors import InvalidOperationError, ServiceBusConnectionError, ServiceBusError, ServiceBusInternalError
from sbclient.rules.conditions import error_of
from sbclient.tasks import OwnedTasks
from sbclient.transport.amqp.doubt import own_error
from sbclient.transport.amqp.links import LinkEnd, Wire, inner_outcome
from sbclient.transport.amqp.waiter import Waiter


class Transfer(Waiter):
    """One transfer; its future is finished by the service's answer.

    Attributes:
        payload: the encoded message or batch; cleared once it is sent.
        message_format: 0, or the format of a batch.
        key: the session id or partition key, None if order does not matter.
        state: the transactional state, None outside transactions.
        has_left: whether the transfer was handed to the link.
        wire: the only connection that may carry it; None for any.
    """

    __slots__ = ("has_left", "key", "message_format", "payload", "state", "wire")

    def __init__(
        self,
        payload: bytes,
        *,
        deadline: float,
        doing: str,
        message_format: int = 0,
        key: str | None = None,
        state: TransactionalState | None = None,
        wire: Wire | None = None,
    ) -> None:
        super().__init__(deadline, doing)
        self.payload = payload
        self.message_format = message_format
        self.key = key
        self.state = state
        self.has_left = False
        self.wire = wire

    @property
    def is_in_doubt(self) -> bool:
        return self.has_left

    def answer(self, state: DeliveryState | None) -> None:
        """Finish the future by the outcome that the service stated."""
        if self.future.done():
            return
        outcome = inner_outcome(state)
        if isinstance(outcome, Accepted):
            self.future.set_result(None)
        else:
            self.future.set_exception(refusal_of(self.doing, outcome))


def refusal_of(doing: str, outcome: Any) -> ServiceBusError:
    """The error for an outcome other than accepted."""
    if isinstance(outcome, Rejected) and outcome.error is not None:
        return error_of(doing, outcome.error.condition, outcome.error.description)
    if isinstance(outcome, Released | Modified):
        return ServiceBusInternalError(f"{doing}: the service gave the message back, send it again")
    return ServiceBusInternalError(f"{doing}: the service rejected the message without a reason")


AttachLink: TypeAlias = "Callable[[], Coroutine[Any, Any, OutgoingEnd]]"


class Transfers:
    """The transfers of one sender, request link or coordinator, over all links that it attaches one after another.

    Args:
        attach: attaches a link and returns it.
        what: the object, for errors: `'orders'`.
        tasks: owns the attach task.
        deadlines: expires transfers.
    """

    def __init__(self, attach: AttachLink, what: str, *, tasks: OwnedTasks, deadlines: Deadlines) -> None:
        self._attach = attach
        self._what = what
        self._tasks = tasks
        self._deadlines = deadlines
        self._waiting: deque[Transfer] = deque()
        self._openers: dict[Waiter, None] = {}
        self._lanes: dict[str, deque[Transfer]] = {}
        self._opening: asyncio.Task[OutgoingEnd] | None = None
        self._end: OutgoingEnd | None = None
        self._count = 0
        self._is_closed = False

    @property
    def end(self) -> OutgoingEnd | None:
        """The attached link, None if there is none."""
        end = self._end
        return end if end is not None and end.is_open else None

    # -- what callers do -----------------------------------------------------------------------------------------

    async def open(self, deadline: float) -> OutgoingEnd:
        """Return the attached link, attaching one if needed.

        Raises:
            ServiceBusError: the link cannot be attached; nothing is in doubt.
        """
        self._check_open()
        end = self.end
        if end is not None:
            return end
        opener = Waiter(deadline, f"attach to {self._what}")
        self._openers[opener] = None
        self._deadlines.add(opener)
        self._start_opening()
        try:
            opened: OutgoingEnd = await opener.future
            return opened
        finally:
            self._deadlines.remove(opener)
            self._openers.pop(opener, None)
            self._stop_opening_if_unwanted()

    async def send(self, transfer: Transfer) -> Any:
        """Return when the service has accepted the transfer; the id of the transaction for a `Declare`.

        Raises:
            ServiceBusError: it was refused, or not answered; `is_in_doubt` says whether it may have been accepted.
        """
        self._check_open()
        self._add(transfer)
        try:
            return await transfer.future
        finally:
            self._ended(transfer)

    def start(self, transfer: Transfer, answered: Callable[[ServiceBusError | None], None]) -> None:
        """Send as `send` does, and pass the error, or None, to `answered`."""

        def finish(future: asyncio.Future[Any]) -> None:
            self._ended(transfer)
            answered(future.exception())  # type: ignore[arg-type]  # `Waiter` sets no other errors

        self._add(transfer)
        transfer.future.add_done_callback(finish)

    def close(self, error: ServiceBusError) -> None:
        """Detach; what still waits or is unanswered fails with `error`."""
        self._is_closed = True
        end, self._end = self._end, None
        if self._opening is not None:
            self._tasks.end(self._opening)
        if end is not None:
            self._fail_unsettled(end, error)
            end.release()
        self._fail_waiting(error)

    # -- called by the link --------------------------------------------------------------------------------------

    def pump(self, end: OutgoingEnd) -> None:
        """Send what the link has credit for."""
        if end is self._end:
            self._pump()

    def answered(self, transfer: Transfer, state: DeliveryState | None) -> None:
        """The service has answered."""
        transfer.answer(state)

    def lost(self, end: OutgoingEnd, error: ServiceBusError) -> None:
        """The link was lost or detached."""
        self._fail_unsettled(end, error)
        if end is self._end:
            self._end = None
            self._fail_waiting(error)

    # -- inside --------------------------------------------------------------------------------------------------

    def _add(self, transfer: Transfer) -> None:
        self._deadlines.add(transfer)
        key = transfer.key
        if key is None:
            self._waiting.append(transfer)
        elif (lane := self._lanes.get(key)) is None:
            self._lanes[key] = deque((transfer,))
            self._waiting.append(transfer)
        else:
            lane.append(transfer)
        self._pump()

    def _ended(self, transfer: Transfer) -> None:
        self._deadlines.remove(transfer)
        if transfer.key is not None:
            self._leave_lane(transfer, transfer.key)
        if not transfer.has_left:
            self._withdraw(transfer)

    def _pump(self) -> None:
        waiting = self._waiting
        if not waiting:
            return
        end = self._end
        if end is None or not end.is_open:
            self._start_opening()
            return
        link = end.link
        session = link.session
        has_sent = False
        while waiting and not session.held_bytes and link.credit > 0:
            transfer = waiting.popleft()
            if transfer.future.done():
                continue
            if transfer.wire is not None and transfer.wire is not end.wire:
                transfer.fail(
                    InvalidOperationError(
                        f"{transfer.doing}: the connection on which the transaction began is lost: begin another one"
                    )
                )
                continue
            self._count += 1
            transfer.has_left = True
            has_sent = True
            try:
                delivery = link.send(
                    transfer.payload,
                    tag=self._count.to_bytes(8, "big"),
                    message_format=transfer.message_format,
                    state=transfer.state,
                    needs_credit=False,  # the loop condition has checked it
                )
            except ServiceBusError as error:  # the link, or the peer's frame size, does not allow it
                transfer.has_left = False
                transfer.fail(error)
                continue
            delivery.owner = transfer
            transfer.payload = b""
        if has_sent:
            end.wire.flush()

    def _leave_lane(self, transfer: Transfer, key: str) -> None:
        """Let the next transfer with the key go. The first of a lane is the one that may be unsettled."""
        lane = self._lanes.get(key)
        if lane is None:
            return
        if lane[0] is not transfer:
            if transfer in lane:
                lane.remove(transfer)
            return
        lane.popleft()
        while lane and lane[0].future.done():
            lane.popleft()
        if lane:
            self._waiting.append(lane[0])
            self._pump()
        else:
            del self._lanes[key]

    def _withdraw(self, transfer: Transfer) -> None:
        if transfer in self._waiting:
            self._waiting.remove(transfer)
        self._stop_opening_if_unwanted()

    def _start_opening(self) -> None:
        if self._tasks.is_closed:
            self._fail_waiting(InvalidOperationError(f"attach to {self._what}: the client was closed, open a new one"))
        elif self._opening is None:
            self._opening = self._tasks.start(self._attach(), name=f"attach to {self._what}")
            self._opening.add_done_callback(self._opened)

    def _stop_opening_if_unwanted(self) -> None:
        opening = self._opening
        if opening is not None and not self._waiting and not self._openers:
            self._tasks.end(opening)

    def _opened(self, task: asyncio.Task[OutgoingEnd]) -> None:
        self._opening = None
        if task.cancelled():
            if self._waiting or self._openers:  # callers arrived while the task was being cancelled
                if self._is_closed or self._tasks.is_closed:
                    self._fail_waiting(ServiceBusConnectionError(f"the link to {self._what} was closed"))
                else:
                    self._start_opening()
            return
        error = task.exception()
        if error is not None:
            if not isinstance(error, ServiceBusError):
                internal = ServiceBusConnectionError(f"attach to {self._what}: {type(error).__name__}")
                internal.__cause__ = error
                error = internal
            self._fail_waiting(error)
            return
        end = task.result()
        if self._is_closed:
            end.release()
            return
        if not end.is_open:
            self._fail_waiting(ServiceBusConnectionError(f"attach to {self._what}: the link was lost at once"))
            return
        self._end = end
        for opener in list(self._openers):
            opener.finish(end)
        self._pump()

    def _fail_unsettled(self, end: OutgoingEnd, error: ServiceBusError) -> None:
        for delivery in list(end.link.unsettled.values()):
            if isinstance(delivery.owner, Transfer):
                delivery.owner.fail(own_error(error, is_in_doubt=True))

    def _fail_waiting(self, error: ServiceBusError) -> None:
        waiting = [*self._openers, *self._waiting]
        waiting += [transfer for lane in self._lanes.values() for transfer in lane if not transfer.has_left]
        self._waiting.clear()
        for waiter in waiting:
            waiter.fail(own_error(error, is_in_doubt=False))

    def _check_open(self) -> None:
        if self._is_closed:
            raise InvalidOperationError(f"the link to {self._what} was closed: open a new one")


class OutgoingEnd(LinkEnd[OutgoingLink]):
    """The client's end of a link on which it sends.

    Args:
        transfers: are sent over it.
    """

    def __init__(self, wire: Wire, doing: str, transfers: Transfers, *, owns_session: bool = True) -> None:
        super().__init__(wire, doing, owns_session=owns_session)
        self._transfers = transfers

    @property
    def remote(self) -> Attach:
        """The service's attach."""
        remote = self.link.remote
        assert remote is not None  # the link is attached before it is used
        return remote

    def on_credit(self) -> None:
        self._transfers.pump(self)

    def on_window(self) -> None:
        self._transfers.pump(self)

    def on_disposition(self, event: DispositionReceived) -> None:
        delivery = event.delivery
        assert isinstance(delivery, OutgoingDelivery)
        transfer = delivery.owner
        if transfer is None:
            return
        if event.state is None and not event.settled:
            return
        if not event.settled:
            delivery.settle(event.state)
        delivery.owner = None
        self._transfers.answered(transfer, event.state)

    def on_detached(self, error: AmqpError | None) -> None:
        super().on_detached(error)
        self._transfers.lost(self, self.error_of_end(error))
