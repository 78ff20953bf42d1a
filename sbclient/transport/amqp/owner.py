"""What the links and transactions of a transport need of it."""

from __future__ import annotations

from typing import Any, Protocol

from sbclient.amqp import Session
from sbclient.deadlines import Deadlines
from sbclient.tasks import OwnedTasks
from sbclient.transport.amqp.connection import AmqpConnection
from sbclient.transport.amqp.links import Wire
from sbclient.transport.amqp.requests import Requests
from sbclient.transport.base import ReceiverLink


class Owner(Protocol):
    """The part of a transport that its senders, receivers and transactions need."""

    tasks: OwnedTasks
    deadlines: Deadlines

    async def connection_for(self, path: str, receiver: ReceiverLink | None = None) -> AmqpConnection:
        """An open connection with a token for an entity."""

    def ready_connection(self, path: str) -> AmqpConnection | None:
        """A connection on which a link to an entity may attach at once."""

    async def requests_of(self, path: str, *, deadline: float, connection: Wire | None = None) -> Requests:
        """The management node of an entity, over one connection if that matters."""

    def session_of(self, connection: AmqpConnection) -> tuple[Session, bool]:
        """An AMQP session for a link, and whether it is the link's own."""

    def forget(self, link: Any) -> None:
        """The link was closed."""
