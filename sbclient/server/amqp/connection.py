"""AMQP for one client: what it sends goes to the engine, what the engine tells goes to the links, answers go out.

Laws:

1. Events are answered in the order of the wire, each before the next is read.
2. Whatever a client does ends at worst its own connection: with an AMQP error where it can still be told.
3. When the connection ends, everything that was done for it ends: waiting receivers, sessions, transactions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from sbclient.amqp import (
    AmqpError,
    AttachRequested,
    Connection,
    ConnectionOptions,
    Coordinator,
    CredentialsOffered,
    CreditGranted,
    DeliveryReceived,
    DispositionReceived,
    IncomingLink,
    Link,
    LinkDetached,
    OutgoingLink,
    Source,
    Target,
    WireError,
)
from sbclient.amqp.errors import INVALID_FIELD, UNAUTHORIZED
from sbclient.amqp.performatives import SETTLE_SETTLED
from sbclient.amqp.types import Described
from sbclient.errors import (
    MessagingEntityNotFoundError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusError,
)
from sbclient.server.amqp.address import CBS, MANAGEMENT, Node, node_of
from sbclient.server.amqp.cbs import TokenNode
from sbclient.server.amqp.coordinator import Coordinator as CoordinatorServer
from sbclient.server.amqp.management import ManagementNode
from sbclient.server.amqp.peer import OPERATION_TIMEOUT_S, LinkServer, Peer
from sbclient.server.amqp.receiver_link import SESSION_FILTER, ClientReceiver
from sbclient.server.amqp.request_response import ReplyLink, RequestLink
from sbclient.server.amqp.sender_link import ClientSender
from sbclient.server.context import NamespaceContext
from sbclient.server.sas import EVERYTHING
from sbclient.server.stream import ByteStream
from sbclient.transport.base import NEXT_AVAILABLE_SESSION, ServiceBusReceiveMode, SessionChoice

MAX_LINKS: Final = 10_000
MAX_MESSAGE_BYTES: Final = 2**20
"""Of requests and of links that say nothing else."""

SESSION_WAIT_S: Final = 65.0
"""How long a free session is looked for where the client does not say. Source: the service."""

TOKEN_WAIT_S: Final = 20.0
"""How long a client may be there without any token. Source: claims-based security, documented."""

LONGEST_WAIT_S: Final = 86_400.0
LONGEST_NAP_S: Final = 5.0
"""How often the timers are looked at, at least; they may have moved."""

TIMEOUT: Final = "com.microsoft:timeout"
TRANSFER_DESTINATION: Final = "com.microsoft:transfer-destination-address"


async def serve_amqp(stream: ByteStream, context: NamespaceContext, first: bytes) -> None:
    """Serve one client until it, or the broker, ends the connection.

    Args:
        stream: the bytes of the connection; closed when this returns.
        context: the namespace.
        first: what was read from the stream before it was known to be AMQP.
    """
    await ClientConnection(stream, context).serve(first)


class ClientConnection:
    """One client.

    Args: as `serve_amqp`.
    """

    def __init__(self, stream: ByteStream, context: NamespaceContext) -> None:
        settings = context.settings
        options = ConnectionOptions(
            container_id=context.name,
            max_frame_size=settings.max_frame_size_bytes,
            max_links=MAX_LINKS,
            handle_max=MAX_LINKS - 1,
            max_message_size=MAX_MESSAGE_BYTES,
            idle_timeout_s=settings.amqp_idle_timeout_s,
            handshake_timeout_s=settings.handshake_timeout_s,
        )
        self._stream = stream
        self._context = context
        self._clock = context.clock
        self._engine = Connection.server(options, now=self._clock.monotonic())
        self._peer = Peer(stream, context, self._engine)
        if context.authorizer.is_open:
            self._peer.grants.add("", EVERYTHING)

    async def serve(self, first: bytes) -> None:
        """Serve until the end."""
        peer = self._peer
        forget = self._context.wire_faults.listen(self._strike_links)
        peer.tasks.start(self._keep_time(), name="amqp time")
        try:
            await self._read(first)
        finally:
            forget()
            self._engine.receive_eof()
            self._answer_events()
            self._end_links()
            await peer.finished()
            peer.write_out()
            await peer.tasks.close()
            await self._stream.close()

    async def _read(self, first: bytes) -> None:
        peer, engine = self._peer, self._engine
        chunk = first or await self._stream.read()
        while chunk:
            engine.receive_bytes(chunk, now=self._clock.monotonic())
            self._answer_events()
            if engine.is_over:
                return
            await peer.room()
            chunk = await self._stream.read()

    async def _keep_time(self) -> None:
        """Beat the heart, drop who is silent or shows no token, and end what tokens no longer allow."""
        engine, peer, clock = self._engine, self._peer, self._clock
        token_due_at = clock.monotonic() + TOKEN_WAIT_S
        while not engine.is_over:
            deadline = engine.next_deadline()
            nap_s = math.inf if deadline is None else deadline - clock.monotonic()
            nap_s = min(nap_s, peer.grants.next_expiry_at() - clock.now(), LONGEST_NAP_S)
            await clock.sleep(max(0.0, nap_s))
            engine.pass_time(now=clock.monotonic())
            if clock.monotonic() >= token_due_at and not peer.grants.has_begun:
                told = f"no token was accepted in {TOKEN_WAIT_S:.0f} s: put one first"
                engine.close(AmqpError(UNAUTHORIZED, told), now=clock.monotonic())
            if peer.grants.drop_expired(clock.now()):
                for server in list(peer.servers.values()):
                    server.on_tokens_changed()
            self._answer_events()
            peer.write_out()

    # ------------------------------------------------------------------ events

    def _answer_events(self) -> None:
        while (event := self._engine.next_event()) is not None:
            try:
                self._answer(event)
            except Exception as error:  # our own fault, and then only this client's
                self._peer.fail(error)
        self._peer.flush()

    def _answer(self, event: Any) -> None:
        servers = self._peer.servers
        kind = type(event)
        if kind is DeliveryReceived:
            server = servers.get(event.link)
            if server is not None:
                server.on_delivery(event.delivery)
        elif kind is DispositionReceived:
            server = servers.get(event.delivery.link)
            if server is not None:
                server.on_disposition(event)
        elif kind is CreditGranted:
            server = servers.get(event.link)
            if server is not None:
                server.on_credit(drain=event.drain)
        elif kind is AttachRequested:
            self._attach(event.link)
        elif kind is LinkDetached:
            server = servers.pop(event.link, None)
            if server is not None:
                server.on_over()
        elif kind is CredentialsOffered:
            self._admit(event)

    def _admit(self, event: CredentialsOffered) -> None:
        """Let a client in by PLAIN: it names a key of the namespace and knows it."""
        name, key = event.credentials
        try:
            self._peer.grants.add("", self._context.authorizer.authenticate_key(name, key))
        except ServiceBusAuthenticationError:
            self._engine.admit(is_admitted=False)
        else:
            self._engine.admit(is_admitted=True)

    def _end_links(self) -> None:
        servers = list(self._peer.servers.values())
        self._peer.servers.clear()
        for server in servers:
            server.on_over()

    # ------------------------------------------------------------------ links

    def _attach(self, link: OutgoingLink | IncomingLink) -> None:
        attach = link.remote
        assert attach is not None  # it is what was asked for
        terminus = attach.source if isinstance(link, OutgoingLink) else attach.target
        try:
            if isinstance(terminus, Coordinator) and isinstance(link, IncomingLink):
                self._serve(link, CoordinatorServer(self._peer, link))
                return
            if not isinstance(terminus, Source | Target):
                raise WireError(INVALID_FIELD, "an attach names no source or target that belongs to the broker")
            node = node_of(terminus.address)
            if isinstance(link, IncomingLink):
                self._attach_incoming(link, node, str(terminus.address))
            else:
                self._attach_outgoing(link, node, terminus, str(terminus.address))
        except ServiceBusError as error:
            self._peer.refuse(link, error)

    def _attach_incoming(self, link: IncomingLink, node: Node, address: str) -> None:
        peer = self._peer
        if node.kind == CBS:
            self._serve(link, RequestLink(peer, link, CBS, TokenNode(peer)))
        elif node.kind == MANAGEMENT:
            self._check_management(node)
            key = f"{node.path}/{MANAGEMENT}"
            self._serve(link, RequestLink(peer, link, key, ManagementNode(peer, node.path)))
        else:
            self._serve(link, ClientSender(peer, link, node.path, **_sending(link)))

    def _attach_outgoing(self, link: OutgoingLink, node: Node, source: Source | Target, address: str) -> None:
        peer = self._peer
        if node.kind == CBS:
            self._serve(link, ReplyLink(peer, link, CBS))
        elif node.kind == MANAGEMENT:
            self._check_management(node)
            self._serve(link, ReplyLink(peer, link, f"{node.path}/{MANAGEMENT}"))
        else:
            is_deleting = link.remote is not None and link.remote.snd_settle_mode == SETTLE_SETTLED
            mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE if is_deleting else ServiceBusReceiveMode.PEEK_LOCK
            timeout_s = _timeout_s(link, SESSION_WAIT_S)
            session = _session_of(source)
            self._serve(link, ClientReceiver(peer, link, node.path, session=session, mode=mode, timeout_s=timeout_s))

    def _serve(self, link: Link, server: LinkServer) -> None:
        self._peer.servers[link] = server
        server.open()

    def _check_management(self, node: Node) -> None:
        """
        Raises:
            MessagingEntityNotFoundError: there is no such entity.
            ServiceBusAuthorizationError: no token speaks of it.
        """
        if not node.path:
            raise MessagingEntityNotFoundError("the namespace has no management node of its own: name an entity's")
        self._peer.host.namespace.directory.find(node.path)
        if not self._peer.rights(f"{node.path}/{MANAGEMENT}"):
            raise ServiceBusAuthorizationError(
                f"no token of this connection speaks of {node.path}: put one before attaching to its management node"
            )

    def _strike_links(self) -> None:
        """A fault of the wire was thrown or healed: links that it ends are ended."""
        now = self._peer.now()
        for link, server in list(self._peer.servers.items()):
            path = server.entity_path
            fault = None if path is None else self._context.wire_faults.detaching(path, now)
            if fault is not None:
                self._peer.end(link, AmqpError(fault.condition, fault.description))


def _sending(link: IncomingLink) -> Mapping[str, Any]:
    properties = (link.remote.properties if link.remote is not None else None) or {}
    destination = properties.get(TRANSFER_DESTINATION)
    timeout_s = _timeout_s(link, OPERATION_TIMEOUT_S)
    return {"timeout_s": timeout_s, "destination": None if destination is None else node_of(destination).path}


def _timeout_s(link: Link, usual_s: float) -> float:
    """How long the client lets the broker try, as it says when it attaches."""
    properties = (link.remote.properties if link.remote is not None else None) or {}
    timeout_ms = properties.get(TIMEOUT)
    if not isinstance(timeout_ms, int) or isinstance(timeout_ms, bool):
        return usual_s
    return min(max(timeout_ms / 1000, 0.0), LONGEST_WAIT_S)


def _session_of(source: Source | Target) -> SessionChoice:
    """The session that a client wants to receive from: one by name, any that is free, or None for no session.

    Raises:
        WireError: the filter holds something else.
    """
    filters = source.filter if isinstance(source, Source) else None
    if not filters or SESSION_FILTER not in filters:
        return None
    wanted = filters[SESSION_FILTER]
    if isinstance(wanted, Described):
        wanted = wanted.value
    if wanted is None:
        return NEXT_AVAILABLE_SESSION
    if not isinstance(wanted, str):
        raise WireError(INVALID_FIELD, f"the session filter is a {type(wanted).__name__}: give a string, or null")
    return wanted
