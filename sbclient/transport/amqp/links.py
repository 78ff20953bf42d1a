"""The client side of one AMQP link, from attach until it is detached."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from sbclient.amqp import (
    AmqpError,
    Attach,
    DispositionReceived,
    DispositionsReceived,
    IncomingDelivery,
    IncomingLink,
    OutgoingLink,
    Session,
)
from sbclient.errors import ServiceBusConnectionError, ServiceBusError, without_doubt
from sbclient.rules.conditions import error_of, plain_text
from sbclient.transport.amqp.waiter import own_error

if TYPE_CHECKING:
    from sbclient.transport.amqp.connection import AmqpConnection

L = TypeVar("L", OutgoingLink, IncomingLink)


class LinkEnd(Generic[L]):
    """One link. The connection calls the `on_` methods; subclasses override them.

    Args:
        wire: the connection.
        doing: the operation and its object, for errors: `attach to 'orders'`.
        owns_session: whether the AMQP session has no other link; it is then ended together with the link.

    Attributes:
        link: the link of the engine; set by `start`.
        is_open: whether the link is attached, so that messages can be transferred.
    """

    link: L

    def __init__(self, wire: AmqpConnection, doing: str, *, owns_session: bool = True) -> None:
        self.wire = wire
        self.doing = doing
        self.owns_session = owns_session
        self._attached: asyncio.Future[Attach] = asyncio.get_running_loop().create_future()
        self._has_started = False
        self._is_released = False
        self.is_open = False

    @property
    def session(self) -> Session:
        """The AMQP session of the link."""
        return self.link.session

    def start(self, link: L) -> None:
        """Use a link for which the engine has written an attach; `attached` waits for the response."""
        self.link = link
        self._has_started = True
        link.owner = self
        self.wire.flush()

    async def attached(self) -> Attach:
        """Wait for the response of the service and return it. If that fails, release the link.

        Raises:
            ServiceBusError: the service rejected the link, or the connection was lost; nothing is in doubt.
        """
        try:
            return await self._attached
        except BaseException:
            self.release()
            raise

    @property
    def is_released(self) -> bool:
        """Whether the link was detached or abandoned."""
        return self._is_released

    async def answered(self) -> None:
        """Wait for the response of the service. Several tasks may wait; cancelling one does not affect the others.

        Raises:
            ServiceBusError: the service rejected the link, or the connection was lost; nothing is in doubt.
        """
        try:
            await asyncio.shield(self._attached)
        except ServiceBusError as error:
            raise own_error(error, is_in_doubt=False) from error.__cause__

    def refuse(self, error: ServiceBusError) -> None:
        """Release the link, and raise `error` in the tasks that wait for its attach."""
        self.release()
        if not self._attached.done():
            self._attached.set_exception(error)
            self._attached.exception()  # no task may be waiting any more; this prevents a warning

    def release(self) -> None:
        """Detach the link, and end its session if it has no other link. Does nothing if it is released already."""
        if self._is_released:
            return
        self._is_released = True
        self.is_open = False
        if not self._has_started:
            return
        self.link.detach()
        if self.owns_session:
            self.session.end()
        self.wire.flush()

    def abandon(self) -> None:
        """Take no part any more: the connection belongs to another event loop."""
        self._is_released = True
        self.is_open = False

    # -- what the connection calls -------------------------------------------------------------------------------

    def on_attached(self, attach: Attach) -> None:
        """The service has responded to the attach. Without a terminus it rejects the link, and a detach follows."""
        terminus = attach.target if self.link.is_sender else attach.source
        if terminus is not None and not self._attached.done():
            self.is_open = not self._is_released
            self._attached.set_result(attach)

    def on_detached(self, error: AmqpError | None) -> None:
        """The service has detached the link, or its session or connection was lost."""
        if self.owns_session and not self._is_released:
            self.session.end()
        self._is_released = True
        self.is_open = False
        if not self._attached.done():
            cause = without_doubt(self.error_of_end(error))
            self._attached.set_exception(cause)
            self._attached.exception()  # as in `refuse`

    def on_credit(self) -> None:
        """The service grants credit."""

    def on_window(self) -> None:
        """The session window has opened."""

    def on_drained(self) -> None:
        """The service has no more messages for the credit that was granted."""

    def on_delivery(self, delivery: IncomingDelivery) -> None:
        """A message has arrived."""

    def on_disposition(self, event: DispositionReceived) -> None:
        """The service has stated the outcome of a delivery."""

    def on_dispositions(self, event: DispositionsReceived) -> None:
        """The service has stated the same outcome of several deliveries."""
        for each in event.each():
            self.on_disposition(each)

    def error_of_end(self, error: AmqpError | None) -> ServiceBusError:
        """Return the error for a detach. Without a connection it is a connection error, whatever the condition."""
        if self.wire.is_over:
            said = "the connection is lost" if error is None else plain_text(error.description or error.condition)
            return ServiceBusConnectionError(f"{self.doing}: {said}")
        if error is None:
            return ServiceBusConnectionError(f"{self.doing}: the service detached the link without a reason")
        return error_of(self.doing, error.condition, error.description)


def inner_outcome(state: Any) -> Any:
    """Return the outcome of a delivery state, also if it is inside a transactional state."""
    return getattr(state, "outcome", state)
