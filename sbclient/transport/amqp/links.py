"""The client's end of one AMQP link, from the attach to the end of its session."""

from __future__ import annotations

import asyncio
from typing import Any, Generic, Protocol, TypeVar

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
from sbclient.errors import ServiceBusConnectionError, ServiceBusError
from sbclient.rules.conditions import error_of, plain_text
from sbclient.transport.amqp.doubt import own_error

L = TypeVar("L", OutgoingLink, IncomingLink)


class Wire(Protocol):
    """The part of a connection that its links need."""

    def flush(self) -> None:
        """Send what the engine has written, at the end of this step of the event loop."""

    @property
    def is_over(self) -> bool:
        """Whether the connection is lost or closed."""


class LinkEnd(Generic[L]):
    """One link. The connection calls the `on_` methods; subclasses extend those that they need.

    Args:
        wire: the connection.
        doing: the operation and its object, for errors: `attach to 'orders'`.
        owns_session: whether the link has its AMQP session to itself, which then ends with it.

    Attributes:
        link: the link of the engine; set by `start`.
        is_open: whether messages may pass.
    """

    link: L

    def __init__(self, wire: Wire, doing: str, *, owns_session: bool = True) -> None:
        self.wire = wire
        self.doing = doing
        self.owns_session = owns_session
        self._attached: asyncio.Future[Attach] = asyncio.get_running_loop().create_future()
        self._is_released = False
        self.is_open = False

    @property
    def session(self) -> Session:
        """The AMQP session of the link."""
        session = self.link.session
        assert isinstance(session, Session)
        return session

    def start(self, link: L) -> None:
        """Take a link for which the engine has written an attach; `attached` waits for the answer."""
        self.link = link
        link.owner = self
        self.wire.flush()

    async def attached(self) -> Attach:
        """The service's answer.

        Raises:
            ServiceBusError: the service refused the link, or the connection was lost; nothing is in doubt.
        """
        try:
            return await self._attached
        except BaseException:
            self.release()
            raise

    @property
    def is_released(self) -> bool:
        """Whether the link has ended, or was given up."""
        return self._is_released

    async def answered(self) -> None:
        """Wait, as one of several, for the service's answer. Cancelling one of them does not affect the others.

        Raises:
            ServiceBusError: the service refused the link, or the connection was lost; nothing is in doubt.
        """
        try:
            await asyncio.shield(self._attached)
        except ServiceBusError as error:
            raise own_error(error, is_in_doubt=False) from error.__cause__

    def refuse(self, error: ServiceBusError) -> None:
        """Give the link up; those that wait for its attach get `error`."""
        self.release()
        if not self._attached.done():
            self._attached.set_exception(error)
            self._attached.exception()  # the ones who attach may have gone

    def release(self) -> None:
        """End the link, with its session if that is its own. Does nothing if it is over already."""
        if self._is_released:
            return
        self._is_released = True
        self.is_open = False
        link = getattr(self, "link", None)
        if link is None:
            return
        link.detach()
        if self.owns_session:
            self.session.end()
        self.wire.flush()

    # -- what the connection calls -------------------------------------------------------------------------------

    def on_attached(self, attach: Attach) -> None:
        """The service has answered the attach. An answer without the terminus is a refusal; a detach follows it."""
        terminus = attach.target if self.link.is_sender else attach.source
        if terminus is not None and not self._attached.done():
            self.is_open = not self._is_released
            self._attached.set_result(attach)

    def on_detached(self, error: AmqpError | None) -> None:
        """The link is over: detached by the service, or lost with its session or connection."""
        if self.owns_session and not self._is_released:
            self.session.end()
        self._is_released = True
        self.is_open = False
        if not self._attached.done():
            cause = self.error_of_end(error)
            cause.is_in_doubt = False
            self._attached.set_exception(cause)
            self._attached.exception()  # the one who attaches may have gone

    def on_credit(self) -> None:
        """The service grants credit."""

    def on_window(self) -> None:
        """The session window has opened."""

    def on_drained(self) -> None:
        """The service has no more messages for the credit that was granted."""

    def on_delivery(self, delivery: IncomingDelivery) -> None:
        """A message has come."""

    def on_disposition(self, event: DispositionReceived) -> None:
        """The service has stated the outcome of a delivery."""

    def on_dispositions(self, event: DispositionsReceived) -> None:
        """The service has stated the same outcome of several deliveries."""
        for each in event.each():
            self.on_disposition(each)

    def error_of_end(self, error: AmqpError | None) -> ServiceBusError:
        """The error for the end of this link; every condition of a lost connection is a connection error."""
        if self.wire.is_over:
            said = "the connection is lost" if error is None else plain_text(error.description or error.condition)
            return ServiceBusConnectionError(f"{self.doing}: {said}")
        if error is None:
            return ServiceBusConnectionError(f"{self.doing}: the service detached the link without a reason")
        return error_of(self.doing, error.condition, error.description)


def inner_outcome(state: Any) -> Any:
    """The outcome in a delivery state, that of a transactional state included."""
    return getattr(state, "outcome", state)
