"""One namespace over our own AMQP engine.

Any number of senders, receivers and sessions share one connection. Entities are managed through another transport,
since their management is HTTP and not AMQP.
"""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from random import Random
from typing import Any, Final
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from sbclient import clock
from sbclient.amqp import ConnectionOptions, Session, servicebus
from sbclient.amqp.types import Int
from sbclient.delivery import ServiceBusReceiveMode, SessionChoice
from sbclient.errors import (
    InvalidOperationError,
    OperationTimeoutError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
)
from sbclient.options import check_known, options_of
from sbclient.rules.connection_string import ConnectionString
from sbclient.rules.entity_path import canonical, entity_of
from sbclient.tasks import Deadlines, LoopHome, OwnedTasks
from sbclient.transport.amqp.connection import AmqpConnection, OpenStream, Sink, Stream
from sbclient.transport.amqp.connections import Connections, SharedConnection
from sbclient.transport.amqp.credentials import TokenSource, token_source
from sbclient.transport.amqp.receiver import AmqpReceiver
from sbclient.transport.amqp.requests import Requests, items_of
from sbclient.transport.amqp.sender import AmqpSender
from sbclient.transport.amqp.socket import (
    AMQP_PORT,
    AMQPS_PORT,
    HTTP_PORT,
    HTTPS_PORT,
    Endpoint,
    open_stream,
    proxy_of,
    tls_context,
)
from sbclient.transport.amqp.transactions import AmqpTransaction, Control
from sbclient.transport.base import Administration, Check, ReceiverLink, Transport, TransportType
from sbclient.transport.credential_file import Rejections, described
from sbclient.version import VERSION

SESSIONS_PER_PAGE: Final = 100
SESSIONS_REPEATED: Final = 20
"""Sessions that two pages share, because those behind a session that has ended move forward between two requests."""


def open_amqp_transport(
    connection: ConnectionString | None,
    *,
    fully_qualified_namespace: str | None = None,
    credential: Any = None,
    random: Random,
    management: Callable[[], Transport],
    enable_cross_entity_transactions: bool = False,
    **options: Any,
) -> AmqpTransport:
    """A transport for a connection string, or for a namespace and a credential; nothing is connected yet.

    Args:
        connection: parsed; None where the other two are given.
        fully_qualified_namespace: `contoso.servicebus.windows.net`.
        credential: an asynchronous credential of azure-identity, an `AzureNamedKeyCredential` or an
            `AzureSasCredential`.
        random: names the container.
        management: opens the transport that manages the entities; called when it is first needed.
        enable_cross_entity_transactions: whether transactions may span entities.
        options: see `TRANSPORT_OPTIONS`.

    Raises:
        InvalidOperationError: neither a connection string nor a namespace with a credential was given, or an option
            is unknown or cannot be used.
    """
    check_known(options, options_of("amqp"))
    if connection is None and (fully_qualified_namespace is None or credential is None):
        raise InvalidOperationError("a namespace and a credential, or a connection string, are needed: give one")
    namespace = connection.namespace if connection is not None else fully_qualified_namespace or ""
    host = connection.host if connection is not None else namespace.partition(":")[0]
    endpoint = endpoint_of(connection, namespace, options)

    async def connect(sink: Sink) -> Stream:
        return await open_stream(endpoint, sink)

    return AmqpTransport(
        namespace,
        host,
        connect,
        token_source(connection, credential),
        random=random,
        management=management,
        credential=described(connection, credential),
        user_agent=options.get("user_agent"),
        client_identifier=options.get("client_identifier"),
        is_cross_entity=enable_cross_entity_transactions,
    )


def endpoint_of(connection: ConnectionString | None, namespace: str, options: Mapping[str, Any]) -> Endpoint:
    """Where and how to connect.

    Raises:
        InvalidOperationError: an option cannot be used.
    """
    if connection is not None:
        hostname, port, is_plain = connection.host, connection.port, connection.use_development_emulator
    else:
        hostname, _, digits = namespace.partition(":")
        port, is_plain = int(digits) if digits.isdigit() else None, False
    address = options.get("custom_endpoint_address")
    kind = options.get("transport_type") or (TransportType.AmqpOverWebsocket if address else TransportType.Amqp)
    if getattr(kind, "name", None) not in TransportType.__members__:
        raise InvalidOperationError(f"transport_type is {kind!r}: give a TransportType")
    proxy, headers = proxy_of(options["http_proxy"]) if options.get("http_proxy") else (None, ())
    is_websocket = kind.name == TransportType.AmqpOverWebsocket.name or proxy is not None
    tls = None
    if not is_plain:
        verify = options.get("connection_verify")
        tls = tls_context(ssl_context=options.get("ssl_context"), verify=True if verify is None else verify)
    usual = (HTTP_PORT if is_plain else HTTPS_PORT) if is_websocket else AMQP_PORT if is_plain else AMQPS_PORT
    host = hostname
    if address:
        try:
            parts = urlsplit(address if "://" in address else f"sb://{address}")
            host, port = parts.hostname or hostname, parts.port
        except (TypeError, ValueError) as error:
            raise InvalidOperationError(f"custom_endpoint_address is {address!r:.100}: give sb://host:port") from error
    return Endpoint(
        host=host,
        port=port or usual,
        hostname=hostname,
        tls=tls,
        is_websocket=is_websocket,
        proxy=proxy,
        proxy_headers=headers,
    )


class AmqpTransport(Transport):
    """One namespace.

    Attributes:
        tasks: owns the tasks that outlive a call.
        deadlines: expires calls.
    """

    tasks: OwnedTasks
    deadlines: Deadlines

    def __init__(
        self,
        namespace: str,
        host: str,
        connect: OpenStream,
        source: TokenSource,
        *,
        random: Random,
        management: Callable[[], Transport],
        credential: str = "its credential",
        user_agent: str | None = None,
        client_identifier: str | None = None,
        is_cross_entity: bool = False,
    ) -> None:
        self._namespace = namespace
        self._host = host
        self._connect = connect
        self._random = random
        self._open_management = management
        self._management: Transport | None = None
        self._identifier = client_identifier
        self._is_cross_entity = is_cross_entity
        self._properties = _own_properties()
        if user_agent:
            self._properties["user-agent"] = user_agent
        self._links: WeakKeyDictionary[AmqpSender | AmqpReceiver, None] = (
            WeakKeyDictionary()
        )  # the engine has attached ones
        self._home = LoopHome()
        self._source = source
        self._rejections = Rejections(namespace, credential)
        self._begin()

    def _begin(self) -> None:
        """Make what belongs to one event loop."""
        tasks = self.tasks = OwnedTasks(on_failure=_is_reported_elsewhere)
        deadlines = self.deadlines = Deadlines()

        def new() -> SharedConnection:
            return SharedConnection(
                self._new_connection(),
                self._source,
                self._host,
                rejections=self._rejections,
                is_cross_entity=self._is_cross_entity,
                tasks=tasks,
                deadlines=deadlines,
            )

        self._connections = Connections(new, self._host, tasks=tasks)

    def __repr__(self) -> str:
        return f"AmqpTransport({self._namespace!r})"

    @property
    def namespace(self) -> str:
        return self._namespace

    def enter_loop(self) -> None:
        move = self._home.enter(f"the connection to {self._namespace}")
        if move is None:
            return
        connections = self._connections
        connections.abandon(move)
        self.tasks.abandon()
        self._begin()
        self._connections.is_closed = self.tasks.is_closed = connections.is_closed
        for link in list(self._links):
            link.leave_loop(move)

    @property
    def administration(self) -> Administration:
        if self._management is None:
            self._management = self._open_management()
        return self._management.administration

    def open_sender(self, entity_path: str, check: Check | None = None) -> AmqpSender:
        sender = AmqpSender(self, entity_path, check)
        self._links[sender] = None
        return sender

    def open_receiver(
        self,
        entity_path: str,
        *,
        session: SessionChoice = None,
        receive_mode: ServiceBusReceiveMode = ServiceBusReceiveMode.PEEK_LOCK,
        prefetch_count: int = 0,
    ) -> AmqpReceiver:
        receiver = AmqpReceiver(self, entity_path, session, receive_mode, prefetch_count)
        self._links[receiver] = None
        return receiver

    async def begin_transaction(self, *, timeout_s: float, partition_key: str | None = None) -> AmqpTransaction:
        return AmqpTransaction(self, partition_key)

    async def list_sessions(
        self, entity_path: str, *, state_updated_after: datetime | None, timeout_s: float
    ) -> Sequence[str]:
        deadline = clock.monotonic() + timeout_s
        sessions: dict[str, None] = {}
        skip = 0
        while True:
            node = await self.requests_of(entity_path, deadline=deadline)
            reply = await node.ask(
                servicebus.GET_MESSAGE_SESSIONS,
                {
                    servicebus.LAST_UPDATED_TIME: state_updated_after or servicebus.ALL_SESSIONS,
                    servicebus.SKIP: Int(skip),
                    servicebus.TOP: Int(SESSIONS_PER_PAGE),
                },
                doing=f"list the sessions of {entity_path!r}",
                timeout_s=max(deadline - clock.monotonic(), 0.001),
                is_reading=True,
            )
            page = [each for each in items_of(reply.body, servicebus.SESSION_IDS) if isinstance(each, str)]
            if skip and sessions.keys().isdisjoint(page):  # so many have ended that others may have been left out
                skip = 0
                continue
            sessions |= dict.fromkeys(page)
            if len(page) < SESSIONS_PER_PAGE:
                return list(sessions)
            skip += SESSIONS_PER_PAGE - SESSIONS_REPEATED

    async def renew_credential(self) -> None:
        await self._connections.renew_tokens()

    async def close(self) -> None:
        """Close every link and the connection. A second call finishes what a first one, that was cancelled, did not."""
        self.enter_loop()
        await asyncio.gather(*(link.close() for link in list(self._links)))
        await self._connections.close()
        await self.tasks.close()
        self.deadlines.close()
        if self._management is not None:
            await self._management.close()

    # -- what the links need -------------------------------------------------------------------------------------

    async def connection_for(self, path: str, receiver: ReceiverLink | None = None) -> AmqpConnection:
        """An open connection with a token for an entity, ready for a link to it."""
        while True:
            shared = await self._connections.usable()
            await shared.tokens.ensure(path)
            if self._is_cross_entity:
                await self._keep_order(shared, path, receiver)
                return shared.connection
            if shared.has_room:  # others may have attached while this one waited for its token
                return shared.connection

    def ready_connection(self, path: str) -> AmqpConnection | None:
        """A connection on which a link to an entity may attach at once; None if `connection_for` must prepare it."""
        shared = None if self._is_cross_entity else self._connections.ready_for(path)
        return None if shared is None else shared.connection

    async def _keep_order(self, shared: SharedConnection, path: str, receiver: ReceiverLink | None) -> None:
        """Attach the coordinator first, then a link of the entity by which transactions span others.

        After a loss this is the first receiver that can be attached again, so that its entity stays the same.

        Raises:
            InvalidOperationError: the first entity of the client is another one, and the new link receives.
        """
        await shared.control.open(clock.monotonic() + _ATTACH_S)
        if shared.via is None and receiver is None:
            lost = (link for link in list(self._links) if isinstance(link, AmqpReceiver) and link.can_reattach)
            if (first := next(lost, None)) is not None:
                await first.open(timeout_s=_ATTACH_S)
        entity = top_level(path)
        if shared.via is None:
            shared.via = entity
        elif receiver is not None and shared.via != entity:
            raise InvalidOperationError(
                f"{shared.via!r} is the first entity of this client with cross-entity transactions, so it cannot "
                f"receive from {path!r}: open another client"
            )
        if receiver is None:
            # A token for a subscription does not cover its topic. Without one, sends outside of transactions work.
            with suppress(ServiceBusAuthenticationError, ServiceBusAuthorizationError):
                await shared.tokens.ensure(shared.via)

    def via_to(self, path: str) -> str | None:
        """The entity through which messages to a path pass in a transaction; None if they go there directly."""
        shared = self._connections.ready
        via = None if shared is None else shared.via
        return None if via == top_level(path) else via

    def session_of(self, connection: AmqpConnection) -> tuple[Session, bool]:
        """An AMQP session for a link of an entity, and whether it is the link's own.

        Raises:
            InvalidOperationError: links must share an AMQP session, and it has as many as the service allows.
        """
        if self._is_cross_entity:
            session = self._connections.shared_of(connection).session()
            if not session.has_room:
                raise InvalidOperationError(
                    f"this client with cross-entity transactions has {len(session.links)} links, which is what "
                    f"{self._namespace} allows in one AMQP session: close senders or receivers, or open another client"
                )
            return session, False
        return connection.begin(), True

    async def requests_of(self, path: str, *, deadline: float, connection: AmqpConnection | None = None) -> Requests:
        """The management node of an entity, over one connection if that matters.

        Raises:
            ServiceBusError: there is no connection; nothing is in doubt.
        """
        if connection is not None:
            return self._connections.shared_of(connection).requests_of(path)
        shared = self._connections.ready
        if shared is None:
            timeout_s = deadline - clock.monotonic()
            try:
                async with clock.timeout(timeout_s):
                    shared = await self._connections.usable()
            except TimeoutError:
                raise OperationTimeoutError(
                    f"connect to {self._namespace}: not possible within {timeout_s:g} s", is_in_doubt=False
                ) from None
        return shared.requests_of(path)

    def control_of(self, wire: AmqpConnection) -> Control:
        """The coordinator of a connection."""
        return self._connections.shared_of(wire).control

    def forget(self, link: AmqpSender | AmqpReceiver) -> None:
        """The link was closed."""
        self._links.pop(link, None)

    def _new_connection(self) -> AmqpConnection:
        name = self._identifier or f"sbclient-{self._random.getrandbits(64):016x}"
        options = ConnectionOptions(
            container_id=name,
            hostname=self._host,
            channel_max=4_999,
            handle_max=4_999,
            max_links=20_000,
            incoming_window=2_000,
            max_message_size=2**27,
            max_partial_bytes=2**28,
            max_held_bytes=2**28,
            max_output_bytes=2**18,
            idle_timeout_s=60.0,
            properties=self._properties,
        )
        return AmqpConnection(self._connect, options, self._namespace)


_ATTACH_S: Final = 60.0


def top_level(path: str) -> str:
    """The queue or topic that a path belongs to."""
    return canonical(entity_of(path))


def _own_properties() -> dict[str, str]:
    """The properties by which clients of the service introduce themselves."""
    framework = f"Python/{platform.python_version()}"
    return {
        "product": "sbclient",
        "version": VERSION,
        "framework": framework,
        "platform": platform.platform(),
        "user-agent": f"sbclient/{VERSION} {framework}",
    }


def _is_reported_elsewhere(error: BaseException) -> None:
    """A failed task fails the calls that wait for it."""
