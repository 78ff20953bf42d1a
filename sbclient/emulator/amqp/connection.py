"""AMQP for one client: what it sends goes to the engine, what the engine tells goes to the links, answers go out.

Laws:

1. Events are answered in the order of the wire, each before the next is read.
2. Whatever a client does ends at worst its own connection: with an AMQP error where it can still be told.
3. When the connection ends, everything that was done for it ends: waiting receivers, sessions, transactions.
4. However much a client sends, all others have their turn in between: see `server.turn`.
"""

from __future__ import annotations

import math
from typing import Any, Final

from sbclient.amqp import (
    AmqpError,
    AttachRequested,
    Connection,
    ConnectionOptions,
    CredentialsOffered,
    CreditGranted,
    DeliveryReceived,
    DispositionReceived,
    DispositionWalked,
    IncomingLink,
    LinkDetached,
    OutgoingLink,
)
from sbclient.amqp.errors import UNAUTHORIZED
from sbclient.emulator.amqp.attach import server_of
from sbclient.emulator.amqp.peer import Peer
from sbclient.emulator.context import NamespaceContext
from sbclient.emulator.net.stream import ByteStream
from sbclient.emulator.sas import EVERYTHING
from sbclient.errors import (
    ServiceBusAuthenticationError,
    ServiceBusError,
)

MAX_LINKS: Final = 10_000
MAX_MESSAGE_BYTES: Final = 2**20
"""Of requests and of links that say nothing else."""

TOKEN_WAIT_S: Final = 20.0
"""How long a client may be there without any token. Source: claims-based security, documented."""

PIECE_BYTES: Final = 2**11
"""What the engine is given at once: frames that tell nothing, of eight bytes, are events to nobody."""

LONGEST_NAP_S: Final = 5.0
"""How often the timers are looked at, at least; they may have moved."""


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
            while self._answer_events():
                await peer.turn.pass_on()
            peer.end_links()
            await peer.finished()
            peer.write_out()
            await peer.tasks.close()
            await self._stream.close()

    async def _read(self, first: bytes) -> None:
        peer, engine = self._peer, self._engine
        chunk = first or await self._stream.read()
        while chunk:
            for start in range(0, len(chunk), PIECE_BYTES):
                engine.receive_bytes(chunk[start : start + PIECE_BYTES], now=self._clock.monotonic())
                while self._answer_events():
                    await peer.room()
                    await peer.turn.pass_on()
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
            nap_s = min(nap_s, peer.grants.next_expiry_at - clock.now(), LONGEST_NAP_S)
            await clock.sleep(max(0.0, nap_s))
            engine.pass_time(now=clock.monotonic())
            if clock.monotonic() >= token_due_at and not peer.grants.has_begun:
                told = f"no token was accepted in {TOKEN_WAIT_S:.0f} s: put one first"
                peer.close(AmqpError(UNAUTHORIZED, told))
            self._answer_events()
            peer.write_out()

    # ------------------------------------------------------------------ events

    def _answer_events(self) -> bool:
        """Answer what has come; True if it is the others' turn, and something may be left."""
        turn = self._peer.turn
        if self._peer.grants.drop_expired(self._clock.now()):
            self._peer.tokens_changed()  # before what comes now is taken for allowed
        while not (is_over := turn.is_over) and (event := self._engine.next_event()) is not None:
            turn.count()
            try:
                self._answer(event)
            except Exception as error:  # our own fault, and then only this client's
                self._peer.fail(error)
        self._peer.flush()
        return is_over

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
        elif kind is DispositionWalked:
            self._peer.turn.end()  # the next frame may name as many again
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

    # ------------------------------------------------------------------ links

    def _attach(self, link: OutgoingLink | IncomingLink) -> None:
        try:
            server = server_of(self._peer, link)
            self._peer.servers[link] = server
            server.open()
        except ServiceBusError as error:
            self._peer.refuse(link, error)

    def _strike_links(self) -> None:
        """A fault of the wire was thrown or healed: links that it ends are ended."""
        now = self._peer.now()
        for link, server in list(self._peer.servers.items()):
            path = server.entity_path
            fault = None if path is None else self._context.wire_faults.detaching(path, now)
            if fault is not None:
                self._peer.end(link, AmqpError(fault.condition, fault.description))
