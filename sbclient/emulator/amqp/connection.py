"""One AMQP connection: read bytes into the engine, pass its events to the link handlers, and write its output.

Laws:

1. Events are handled in the order of the wire, each before the next.
2. An error of a client ends at most its own connection, with an AMQP error if one can still be sent.
3. When the connection ends, all its work ends: waiting receivers, sessions, transactions.
4. An event that is queued between two reads, such as credit that came before the answer to its attach, is handled
   with the next output, not with the client's next bytes.
5. A client that sends much does not block the others: see `net.time_slice`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

from sbclient import clock
from sbclient.amqp import (
    AmqpError,
    AttachRequested,
    Connection,
    ConnectionOpened,
    ConnectionOptions,
    CredentialsOffered,
    CreditGranted,
    DeliveryReceived,
    DispositionReceived,
    DispositionsReceived,
    DispositionWalked,
    IncomingLink,
    Limits,
    LinkDetached,
    OutgoingLink,
    servicebus,
)
from sbclient.amqp.errors import NOT_IMPLEMENTED, UNAUTHORIZED
from sbclient.amqp.link import Link
from sbclient.emulator.amqp.attach import handler_of
from sbclient.emulator.amqp.conditions import amqp_error_of
from sbclient.emulator.amqp.jms import CAPABILITIES
from sbclient.emulator.amqp.peer import DETACH_FORCED, Peer
from sbclient.emulator.amqp.receiver_link import ReceiverLink
from sbclient.emulator.context import NamespaceContext
from sbclient.emulator.net.stream import ByteStream
from sbclient.emulator.net.time_slice import start_unauthenticated
from sbclient.emulator.sas import EVERYTHING
from sbclient.entities import MessagingSku
from sbclient.errors import (
    ServiceBusAuthenticationError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
)
from sbclient.rules.entity_path import canonical, split_sub_queue

JMS_ON_STANDARD: Final = "Full JMS 2.0 parity over AMQP is a feature supported only by a Premium Messaging namespace."

MAX_LINKS: Final = 10_000
MAX_RETAINED_BYTES: Final = 2**25

BEFORE_TOKEN: Final = Limits(
    max_frame_bytes=16_384, max_sessions=8, max_links=16, max_retained_bytes=65_536, max_partial_bytes=131_072
)
"""The limits until a token is accepted: enough for the links to `$cbs`, and for a token in one frame."""

MAX_MESSAGE_BYTES: Final = 2**20
"""The limit of requests, and of links without another one."""

TOKEN_WAIT_S: Final = 20.0
"""The time for the first token of a client. Source: claims-based security, documented."""

PIECE_BYTES: Final = 2**11
"""Bytes that the engine gets at once, or as many as a frame that has begun lacks. Empty frames, of eight bytes, yield
no event that would end a time slice."""

AFTER_UPDATE_S: Final = 0.5
"""The time from the update of an entity until its receivers are detached. Source: live tests of azservicebus for Go
receive a message immediately after an update; the duration is our choice."""

MAX_WAIT_S: Final = 5.0
"""The longest time between two checks of the deadlines, because they may change."""


async def serve_amqp(stream: ByteStream, context: NamespaceContext, first: bytes) -> None:
    """Serve one client until either side ends the connection.

    Args:
        stream: the bytes of the connection; closed when this returns.
        context: the namespace.
        first: the bytes that were read to detect the protocol.
    """
    connection = _Connection(stream, context)
    try:
        await connection.serve(first)
    finally:
        connection.leave()


class _Connection:
    def __init__(self, stream: ByteStream, context: NamespaceContext) -> None:
        settings = context.settings
        options = ConnectionOptions(
            container_id=context.name,
            max_frame_size=settings.max_frame_size_bytes,
            max_links=MAX_LINKS,
            channel_max=settings.channel_max,
            max_retained_bytes=MAX_RETAINED_BYTES,
            handle_max=settings.handle_max,
            max_message_size=MAX_MESSAGE_BYTES,
            idle_timeout_s=settings.amqp_idle_timeout_s,
            handshake_timeout_s=settings.handshake_timeout_s,
            capabilities=CAPABILITIES if context.host.namespace.profile.sku is MessagingSku.PREMIUM else (),
        )
        self._stream = stream
        self._context = context
        self._engine = Connection.server(options, now=clock.monotonic())
        self._engine.limits = BEFORE_TOKEN
        self._peer = Peer(stream, context, self._engine, self._take_queued)
        self._has_more = False
        self._uses: dict[Link, tuple[tuple[int, int, int], float]] = {}
        """The state of each link to an entity, and since when it is unchanged."""
        if context.authorizer.is_open:
            self._peer.admit("", EVERYTHING)

    def leave(self) -> None:
        """Return the quota of the connection, after its last event."""
        self._peer.leave()

    async def serve(self, first: bytes) -> None:
        peer = self._peer
        forget = self._context.wire_faults.listen(self._apply_detach_faults)
        listeners = self._context.host.update_listeners
        listeners[self._detach_receivers] = None
        peer.tasks.start(self._watch_deadlines(), name="amqp time")
        try:
            await self._read(first)
        finally:
            forget()
            del listeners[self._detach_receivers]
            if not peer.grants.has_begun:
                await start_unauthenticated(self._context.unauthenticated)
            self._engine.receive_eof()
            while self._handle_events():
                await peer.time_slice.start_next()
            peer.end_links()
            await peer.finished()
            peer.write_out()
            await peer.tasks.close()
            await self._stream.close()

    async def _read(self, first: bytes) -> None:
        peer, engine = self._peer, self._engine
        chunk = first or await self._stream.read()
        while chunk:
            start = 0
            while start < len(chunk):
                stop = start + max(PIECE_BYTES, engine.missing_bytes)
                await self._take(chunk[start:stop])
                start = stop
                while self._has_more:
                    await peer.room()
                    await peer.time_slice.start_next()
                    await self._take(b"")
                if engine.is_over:
                    return
            await peer.room()
            chunk = await self._stream.read()
            peer.time_slice.restart()

    async def _take(self, piece: bytes) -> None:
        """Take received bytes and handle events.

        Clients without a token are served a few at a time, so that thousands of them do not delay the others.
        """
        if self._peer.grants.has_begun:
            self._take_now(piece)
            return
        async with self._context.unauthenticated:
            self._peer.time_slice.restart()  # it may have ended during the wait
            self._take_now(piece)
            await clock.step()

    def _take_now(self, piece: bytes) -> None:
        self._engine.receive_bytes(piece, now=clock.monotonic())
        self._has_more = self._handle_events()

    def _take_queued(self) -> None:
        """Handle what was queued between two reads; while a read has more, it handles that too."""
        if self._engine.has_events and not self._has_more and not self._peer.is_handling:
            self._peer.time_slice.restart()
            if self._handle_events() and self._engine.has_events:
                self._peer.flush()

    async def _watch_deadlines(self) -> None:
        """Send heartbeats, drop a client that is silent or puts no token, detach links of expired tokens."""
        engine, peer = self._engine, self._peer
        token_due_at = clock.monotonic() + TOKEN_WAIT_S
        while not engine.is_over:
            deadline = engine.next_deadline()
            wait_s = math.inf if deadline is None else deadline - clock.monotonic()
            wait_s = min(wait_s, peer.grants.next_expiry_at - clock.now(), MAX_WAIT_S)
            idle_s = self._context.settings.idle_link_timeout_s
            if idle_s is not None:
                self._detach_idle_links(idle_s)
                wait_s = min(wait_s, idle_s / 2)
            await clock.wait_for(peer.has_new_deadline, max(0.0, wait_s))
            peer.has_new_deadline.clear()
            engine.pass_time(now=clock.monotonic())
            if clock.monotonic() >= token_due_at and not peer.grants.has_begun:
                text = f"no token was accepted within {TOKEN_WAIT_S:.0f} s: put one after connecting"
                peer.close(AmqpError(UNAUTHORIZED, text))
            self._handle_events()
            peer.write_out()

    def _detach_idle_links(self, idle_s: float) -> None:
        """End the links to entities that were not used for so long. Source: the service, after 10 minutes."""
        now, before = clock.monotonic(), self._uses
        self._uses = {}
        for link, handler in list(self._peer.handlers.items()):
            if handler.entity_path is None or not isinstance(link, IncomingLink | OutgoingLink):
                continue
            use = (link.delivery_count, link.credit, len(link.unsettled))
            known, since = before.get(link, (None, now))
            self._uses[link] = use, since if known == use else now
            if known == use and now - since >= idle_s:
                span = str(timedelta(seconds=idle_s)).zfill(8)
                end = "publisher" if isinstance(link, IncomingLink) else "consumer"
                text = (
                    f"The link '{link.name}' is force detached. Code: {end}({link.name}). Details: "
                    f"AmqpMessage{end.capitalize()}.IdleTimerExpired: Idle timeout: {span}."
                )
                self._peer.end(link, AmqpError(DETACH_FORCED, text))

    # ------------------------------------------------------------------ events

    def _handle_events(self) -> bool:
        """Handle events until the time slice is over; returns whether it is, and events may be left.

        The caller writes the output.
        """
        peer = self._peer
        time_slice = peer.time_slice
        if peer.grants.drop_expired(clock.now()):
            peer.tokens_changed()  # before the next events are checked
        peer.is_handling = True
        while not (is_over := time_slice.is_over) and (event := self._engine.next_event()) is not None:
            time_slice.count()
            try:
                self._handle(event)
            except Exception as error:  # an error of the broker ends only this connection
                peer.fail(error)
        peer.is_handling = False
        return is_over

    def _handle(self, event: Any) -> None:
        handlers = self._peer.handlers
        kind = type(event)
        if kind is DeliveryReceived:
            handler = handlers.get(event.link)
            if handler is not None:
                handler.on_delivery(event.delivery)
        elif kind is DispositionReceived:
            handler = handlers.get(event.delivery.link)
            if handler is not None:
                handler.on_disposition(event)
        elif kind is DispositionsReceived:
            self._peer.time_slice.count(len(event.deliveries) - 1)
            handler = handlers.get(event.link)
            if handler is not None:
                handler.on_dispositions(event)
        elif kind is CreditGranted:
            handler = handlers.get(event.link)
            if handler is not None:
                handler.on_credit(drain=event.drain)
        elif kind is AttachRequested:
            self._attach(event.link)
        elif kind is LinkDetached:
            handler = handlers.pop(event.link, None)
            if handler is not None:
                if event.closed:
                    handler.on_closed()
                handler.on_over()
        elif kind is DispositionWalked:
            self._peer.time_slice.end()  # the next frame may name as many deliveries
        elif kind is CredentialsOffered:
            self._admit(event)
        elif kind is ConnectionOpened:
            self._peer.has_new_deadline.set()  # the client has announced its idle timeout
            if not self._peer.is_premium and (event.open.properties or {}).get(servicebus.IS_JMS_CLIENT) is True:
                self._peer.close(AmqpError(NOT_IMPLEMENTED, JMS_ON_STANDARD))
            if self._peer.grants.has_begun:
                try:
                    self._context.check_connections(0)
                except ServiceBusQuotaExceededError as error:
                    self._peer.close(amqp_error_of(error))

    def _admit(self, event: CredentialsOffered) -> None:
        """Authenticate a client by SASL PLAIN, with the name and value of a key of the namespace."""
        name, key = event.credentials
        try:
            self._peer.admit("", self._context.authorizer.authenticate_key(name, key))
        except ServiceBusAuthenticationError:
            self._engine.admit(is_admitted=False)
        else:
            self._engine.admit(is_admitted=True)

    # ------------------------------------------------------------------ links

    def _attach(self, link: OutgoingLink | IncomingLink) -> None:
        try:
            handler = handler_of(self._peer, link)
            self._peer.handlers[link] = handler
            handler.open()
        except ServiceBusError as error:
            self._peer.refuse(link, error)

    def _detach_receivers(self, path: str) -> None:
        """End the links that receive from an entity that was updated, perhaps disabled. Source: the service, seen."""
        updated = canonical(path)
        links = [
            link
            for link, handler in self._peer.handlers.items()
            if isinstance(handler, ReceiverLink) and _owner(handler.entity_path or "") == updated
        ]
        if links:
            self._peer.tasks.start(self._detach_later(links), name="amqp update")

    async def _detach_later(self, links: Sequence[Link]) -> None:
        await clock.sleep(AFTER_UPDATE_S)
        for link in links:
            if link in self._peer.handlers:
                text = (
                    f"The link '{link.name}' is force detached. Code: consumer({link.name}). Details: "
                    "InnerMessageReceiver was closed."
                )
                self._peer.end(link, AmqpError(DETACH_FORCED, text))

    def _apply_detach_faults(self) -> None:
        """End the links that an injected fault detaches."""
        now = clock.now()
        for link, handler in list(self._peer.handlers.items()):
            path = handler.entity_path
            fault = None if path is None else self._context.wire_faults.detaching(path, now)
            if fault is not None:
                self._peer.end(link, AmqpError(fault.condition, fault.description))


def _owner(path: str) -> str:
    """The queue or subscription of a path, without its sub-queue."""
    return canonical(split_sub_queue(path)[0])
