"""The transfers of one outgoing link: those that wait, and those that the service has not answered.

Laws:
1. A transfer leaves when the link is attached, has credit, and no earlier frame of it waits for the session window.
   A transfer that fails before that was not sent. Transfers leave in the order of the calls.
2. When the link is lost, transfers that left are in doubt, and those that wait fail as not sent. The next transfer
   attaches a new link.
3. There is no task per message: the reader of the connection finishes the futures.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from sbclient.amqp import (
    Accepted,
    AmqpError,
    Attach,
    DispositionReceived,
    EncodedBatch,
    Modified,
    OutgoingDelivery,
    OutgoingLink,
    Rejected,
    Released,
    TransactionalState,
)
from sbclient.amqp.states import DeliveryState
from sbclient.delivery import LEAST_LIMITS
from sbclient.errors import InvalidOperationError, ServiceBusConnectionError, ServiceBusError, ServiceBusInternalError
from sbclient.rules.conditions import error_of
from sbclient.tasks import Deadlines, OwnedTasks
from sbclient.transport.amqp.links import LinkEnd, inner_outcome
from sbclient.transport.amqp.waiter import Waiter, own_error
from sbclient.transport.base import Check, link_closed

if TYPE_CHECKING:
    from sbclient.transport.amqp.connection import AmqpConnection


class Transfer(Waiter):
    """One transfer; its future is finished by the service's answer.

    Attributes:
        payload: the encoded message or batch; cleared once it is sent.
        batch: the same, if it is messages.
        state: the transactional state, None outside transactions.
        has_left: whether the transfer was handed to the link.
        wire: the only connection that may carry it; None for any.
        on_late: called if it is not answered in time.
    """

    __slots__ = ("batch", "has_left", "on_late", "payload", "state", "wire")

    def __init__(
        self,
        payload: bytes,
        *,
        batch: EncodedBatch | None = None,
        deadline: float,
        doing: str,
        state: TransactionalState | None = None,
        wire: AmqpConnection | None = None,
        on_late: Callable[[], None] | None = None,
    ) -> None:
        self.deadline = deadline  # as in the base class, whose call would cost as much
        self.doing = doing
        self.future = asyncio.get_running_loop().create_future()
        self.on_late = on_late
        self.payload = payload
        self.batch = batch
        self.state = state
        self.has_left = False
        self.wire = wire

    @property
    def is_in_doubt(self) -> bool:
        return self.has_left

    def expire(self) -> None:
        super().expire()
        if self.on_late is not None:
            self.on_late()

    def answer(self, state: DeliveryState | None) -> None:
        """Finish the future by the outcome that the service stated."""
        if self.future.done():
            return
        outcome = state if type(state) is Accepted else inner_outcome(state)
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
        check: see `Transport.open_sender`.
    """

    def __init__(
        self, attach: AttachLink, what: str, *, tasks: OwnedTasks, deadlines: Deadlines, check: Check | None = None
    ) -> None:
        self._attach = attach
        self._what = what
        self._tasks = tasks
        self._deadlines = deadlines
        self._check = check
        self._waiting: deque[Transfer] = deque()
        self._openers: dict[Waiter, None] = {}
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
        if self._is_closed:
            raise link_closed(self._what)
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

    def send(self, transfer: Transfer) -> asyncio.Future[Any]:
        """Send a transfer as soon as the link allows; return its future, which is the id of a `Declare`.

        The error of the future says by `is_in_doubt` whether the transfer may have been accepted.
        """
        future = transfer.future
        if self._is_closed:
            transfer.fail(link_closed(self._what))
            return future
        future.add_done_callback(partial(self._ended, transfer))
        self._deadlines.add(transfer)
        if self._check is None or self._end is None or self._is_allowed(transfer, self._end):
            self._waiting.append(transfer)
            self._pump()
        return future

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

    def lost(self, end: OutgoingEnd, error: ServiceBusError) -> None:
        """The link was lost or detached."""
        self._fail_unsettled(end, error)
        if end is self._end:
            self._end = None
            self._fail_waiting(error)

    # -- inside --------------------------------------------------------------------------------------------------

    def _is_allowed(self, transfer: Transfer, end: OutgoingEnd) -> bool:
        """Check a transfer, which ends if it fails."""
        if self._check is not None and transfer.batch is not None:
            try:
                self._check(transfer.batch, end.limits)
            except ServiceBusError as error:
                transfer.fail(error.with_traceback(None))  # it would refer to this frame
                return False
        return True

    def _ended(self, transfer: Transfer, _: asyncio.Future[Any]) -> None:
        self._deadlines.remove(transfer)
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
                    message_format=0 if transfer.batch is None else transfer.batch.message_format,
                    state=transfer.state,
                    needs_credit=False,  # the loop condition has checked it
                )
            except ServiceBusError as error:  # the link, or the peer's frame size, does not allow it
                transfer.has_left = False
                transfer.fail(error)
                continue
            delivery.context = transfer
            transfer.payload, transfer.batch = b"", None
        if has_sent:
            end.wire.flush()

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
        self._waiting = deque(transfer for transfer in self._waiting if self._is_allowed(transfer, end))
        self._pump()

    def _fail_unsettled(self, end: OutgoingEnd, error: ServiceBusError) -> None:
        for delivery in list(end.link.unsettled.values()):
            if isinstance(delivery.context, Transfer):
                delivery.context.fail(own_error(error, is_in_doubt=True))

    def _fail_waiting(self, error: ServiceBusError) -> None:
        waiting = [*self._openers, *self._waiting]
        self._waiting.clear()
        for waiter in waiting:
            waiter.fail(own_error(error, is_in_doubt=False))


class OutgoingEnd(LinkEnd[OutgoingLink]):
    """The client's end of a link on which it sends.

    Args:
        transfers: are sent over it.

    Attributes:
        limits: of the sizes of messages and batches.
    """

    def __init__(self, wire: AmqpConnection, doing: str, transfers: Transfers, *, owns_session: bool = True) -> None:
        super().__init__(wire, doing, owns_session=owns_session)
        self._transfers = transfers
        self.limits = LEAST_LIMITS

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
        transfer = delivery.context
        if transfer is None:
            return
        if event.state is None and not event.settled:
            return
        if not event.settled:
            delivery.settle(event.state)
        delivery.context = None
        transfer.answer(event.state)

    def on_detached(self, error: AmqpError | None) -> None:
        super().on_detached(error)
        self._transfers.lost(self, self.error_of_end(error))
