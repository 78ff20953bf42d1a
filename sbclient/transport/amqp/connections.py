"""The connections of one namespace: one, and another when the service's limits of the first are reached.

Laws:
1. A lost connection is replaced when it is next needed.
2. A link has an AMQP session of its own. With cross-entity transactions all links of entities share one AMQP session.
   Its first link is the coordinator, and the service associates the other links with it.

Source: Service Bus quotas; the behaviour of Microsoft's clients for transactions over several entities.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sbclient.amqp import Session, servicebus
from sbclient.errors import InvalidOperationError, ServiceBusConnectionError
from sbclient.tasks import Deadlines, Move, OwnedTasks
from sbclient.transport.amqp.connection import AmqpConnection
from sbclient.transport.amqp.credentials import TokenSource
from sbclient.transport.amqp.requests import Requests
from sbclient.transport.amqp.single_flight import SingleFlight
from sbclient.transport.amqp.tokens import Tokens
from sbclient.transport.amqp.transactions import Control
from sbclient.transport.credential_file import Rejections


class SharedConnection:
    """One connection, and everything of it that its links share.

    Args:
        source: gives out tokens.
        host: of the audiences.
        rejections: of the credential.
        is_cross_entity: whether transactions may include several entities.
        tasks: owns the tasks that outlive a call.
        deadlines: expires calls.

    Attributes:
        connection: the connection.
        tokens: its tokens.
        control: its transaction coordinator.
        via: the entity of the first link of the shared AMQP session, by which transactions span entities; None before,
            or if they do not.
    """

    def __init__(
        self,
        connection: AmqpConnection,
        source: TokenSource,
        host: str,
        *,
        rejections: Rejections,
        is_cross_entity: bool,
        tasks: OwnedTasks,
        deadlines: Deadlines,
    ) -> None:
        self.connection = connection
        self._tasks = tasks
        self._deadlines = deadlines
        self._nodes: dict[str, Requests] = {}
        self._session: Session | None = None
        self.via: str | None = None
        self.tokens = Tokens(connection, source, host, rejections=rejections, tasks=tasks, deadlines=deadlines)
        begin = self.session if is_cross_entity else connection.begin
        self.control = Control(connection, begin, owns_session=not is_cross_entity, tasks=tasks, deadlines=deadlines)

    def session(self) -> Session:
        """The AMQP session of links that must share one."""
        if self._session is None or not self._session.is_open:
            self._session, self.via = self.connection.begin(), None
        return self._session

    @property
    def has_room(self) -> bool:
        """Whether a further link may attach. A channel stays free for the management node of each link's entity."""
        channels, used = self.connection.channel_count, len(self.connection.engine.sessions)
        if 2 * (used + 2) <= channels:
            return True
        links = used - 1 - sum(node.is_attached for node in self._nodes.values())
        return links <= 0 or 2 * (links + 2) <= channels

    def requests_of(self, path: str) -> Requests:
        """The management node of an entity."""
        node = self._nodes.get(path)
        if node is None:

            async def connect() -> AmqpConnection:
                await self.tokens.ensure(path)
                return self.connection

            node = self._nodes[path] = Requests(
                connect,
                f"{path}/{servicebus.MANAGEMENT}",
                tasks=self._tasks,
                deadlines=self._deadlines,
                on_unused=lambda: self._nodes.pop(path, None),
            )
        return node

    async def close(self) -> None:
        """Close the connection."""
        closed = ServiceBusConnectionError("the client was closed")
        self.tokens.close(closed)
        self.control.close(closed)
        for node in self._nodes.values():
            node.close(closed)
        await self.connection.close()


class Connections:
    """All connections of a namespace.

    Attributes:
        is_closed: whether `close` was called.

    Args:
        new: makes a connection, not opened yet.
        host: for errors.
        tasks: owns the tasks that outlive a call.
    """

    def __init__(self, new: Callable[[], SharedConnection], host: str, *, tasks: OwnedTasks) -> None:
        self._new = new
        self._host = host
        self._shared: list[SharedConnection] = []
        self._opening = SingleFlight(self._open, tasks=tasks, name=f"connect to {host}")
        self.is_closed = False

    @property
    def ready(self) -> SharedConnection | None:
        """An open connection, None if there is none."""
        return next((shared for shared in self._shared if shared.connection.is_open), None)

    def ready_for(self, path: str) -> SharedConnection | None:
        """A connection that takes a further link to an entity at once; None if there is none, or it lacks a token."""
        for shared in self._shared:
            if shared.connection.is_open and shared.has_room and shared.tokens.has(path):
                return shared
        return None

    async def usable(self) -> SharedConnection:
        """A connection that takes a further link.

        Raises:
            ServiceBusError: the namespace cannot be reached; nothing is in doubt.
        """
        if self.is_closed:
            raise InvalidOperationError(f"the connection to {self._host} was closed: open a new client")
        for shared in self._shared:
            if shared.connection.is_over:
                shared.tokens.stop()  # else its timer would keep the connection for most of an hour
        self._shared = [shared for shared in self._shared if not shared.connection.is_over]
        for shared in self._shared:
            if shared.has_room:
                return shared
        return await self._opening.get()

    def shared_of(self, wire: object) -> SharedConnection:
        """The shared connection to which a connection belongs.

        Raises:
            InvalidOperationError: the connection is lost.
        """
        for shared in self._shared:
            if shared.connection is wire:
                return shared
        raise InvalidOperationError(f"the connection to {self._host} is lost: begin anew")

    async def renew_tokens(self) -> None:
        """Replace every token now, because the credential may have changed."""
        await asyncio.gather(*(shared.tokens.renew() for shared in self._shared if shared.connection.is_open))

    def abandon(self, move: Move) -> None:
        """Drop every connection, because they belong to another event loop."""
        for shared in self._shared:
            shared.connection.abandon(move)

    async def close(self) -> None:
        """Close every connection."""
        self.is_closed = True
        for shared in self._shared:
            await shared.close()

    async def _open(self) -> SharedConnection:
        shared = self._new()
        await shared.connection.open()
        self._shared.append(shared)
        return shared
