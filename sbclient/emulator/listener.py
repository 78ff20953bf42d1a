"""The ports of one namespace. The first byte tells AMQP, HTTP and TLS apart; HTTP can upgrade to a WebSocket."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from sbclient import clock
from sbclient.emulator.context import NamespaceContext
from sbclient.emulator.net.http_messages import Handler
from sbclient.emulator.net.socket_stream import SocketStream
from sbclient.emulator.net.stream import ByteStream
from sbclient.emulator.net.time_slice import start_unauthenticated
from sbclient.emulator.net.tls_stream import HANDSHAKE_RECORD, TlsStream
from sbclient.tasks import OwnedTasks
from sbclient.telemetry.log import get_logger

if TYPE_CHECKING:
    import ssl

    import h11


log = get_logger(__name__)

AMQP: Final = b"A"
BACKLOG: Final = 1_024
ACCEPTED_AT_ONCE: Final = 32
RETRY_S: Final = 1.0
"""The time until the next attempt to accept a connection when the process has no more descriptors."""

CALM_S: Final = 10.0
"""The time without such an error after which the listener has recovered."""


class Listener:
    """Serves the clients of one namespace.

    Args:
        context: the namespace.
        handler: answers HTTP requests.
        tls: returns the certificate when a client uses TLS; None = TLS is not supported.
    """

    def __init__(
        self, context: NamespaceContext, handler: Handler, tls: Callable[[], Awaitable[ssl.SSLContext]] | None
    ) -> None:
        self._context = context
        self._handler = handler
        self._tls = tls
        self._tasks = OwnedTasks()
        self._streams: set[SocketStream] = set()
        self._sockets: list[socket.socket] = []
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._full_at: float | None = None
        self._forget: Callable[[], None] = lambda: None
        self._timers: list[asyncio.TimerHandle] = []

    async def start(self, host: str, port: int) -> int:
        """Listen on a port, also besides others; returns the port.

        Args:
            port: 0 = any free one.

        Raises:
            OSError: the port cannot be used.
        """
        loop = asyncio.get_running_loop()
        first = len(self._sockets)
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, address in dict.fromkeys((each[0], each[4]) for each in found):
            listening = socket.create_server(address, family=family, backlog=BACKLOG)
            listening.setblocking(False)
            self._sockets.append(listening)
            self._tasks.start(self._accept_all(listening), name=f"accept on {address}")
        if not first:
            self._forget = self._context.wire_faults.listen(self._apply_faults)
        return int(self._sockets[first].getsockname()[1])

    async def close(self) -> None:
        """Stop listening and end every connection. Safe to call twice."""
        self._forget()
        for timer in self._timers:
            timer.cancel()
        await self._tasks.close()
        for listening in self._sockets:
            listening.close()
        for stream in list(self._streams):
            stream.cut()
        await clock.step()  # lets the last sockets close

    async def _accept_all(self, listening: socket.socket) -> None:
        """Accept a few connections at a time, so that many new ones do not delay those that are open."""
        loop = asyncio.get_running_loop()
        while True:
            await self._has_room.wait()
            accepted = []
            try:
                accepted.append((await loop.sock_accept(listening))[0])
                while len(accepted) < ACCEPTED_AT_ONCE and self._has_room_for(len(accepted) + 1):
                    accepted.append(listening.accept()[0])
            except (BlockingIOError, ConnectionError):
                pass  # there are no more, or the client is gone already
            except OSError as error:
                self._report_full(errno.errorcode.get(error.errno or 0, "OSError"))
                if not accepted:
                    await clock.sleep(RETRY_S)
            await asyncio.gather(*map(self._connect, accepted))
            if self._full_at is not None and clock.monotonic() - self._full_at >= CALM_S:
                self._full_at = None
                log.info("listener.recovered", "{namespace} accepts connections again", namespace=self._context.name)

    async def _connect(self, accepted: socket.socket) -> None:
        accepted.setblocking(False)
        with suppress(OSError):
            await asyncio.get_running_loop().connect_accepted_socket(self._new_stream, accepted)

    def _has_room_for(self, count: int) -> bool:
        limit = self._context.settings.max_connections
        return limit is None or len(self._streams) + count <= limit

    def _report_full(self, reason: str) -> None:
        """Log once that no connection can be accepted."""
        if self._full_at is None:
            log.warning(
                "listener.full",
                "{namespace} accepts no more connections for now: it has {count} ({reason})",
                namespace=self._context.name,
                count=len(self._streams),
                reason=reason,
            )
        self._full_at = clock.monotonic()

    def _new_stream(self) -> SocketStream:
        context = self._context
        if context.data is None:
            return SocketStream(context.wire_faults, self._accepted, self._ended)
        return SocketStream(context.wire_faults, self._accepted, self._ended, context.data.hold_back)

    def _ended(self, stream: SocketStream) -> None:
        self._streams.discard(stream)
        if self._has_room_for(1):
            self._has_room.set()

    def _accepted(self, stream: SocketStream) -> None:
        if self._tasks.is_closed:
            stream.cut()
            return
        self._streams.add(stream)
        if not self._has_room_for(1):  # sockets of several addresses may accept one too many
            self._has_room.clear()
            self._report_full("max_connections")
        self._tasks.start(self._serve(stream), name=f"serve {stream.peer}")

    def _apply_faults(self) -> None:
        for timer in self._timers:
            timer.cancel()
        faults = self._context.wire_faults
        now = clock.now()  # before the streams read it: a fault that one of them still applies has a timer
        ends = {fault.until_at - now for fault in faults.active(now) if fault.until_at - now < 1e9}
        self._timers = [clock.call_later(delay_s, self._apply_faults) for delay_s in ends]
        for stream in list(self._streams):
            stream.apply_faults()

    async def _serve(self, stream: SocketStream) -> None:
        protocol, began_at = "none", clock.now()
        try:
            opened = await self._opened(stream)
            if opened is None:
                return
            carrier, first = opened
            protocol = "amqp" if first[:1] == AMQP else "http"
            if not isinstance(carrier, SocketStream):
                protocol += "s"
            self._context.publish("connection.opened", protocol=protocol, client=stream.peer)
            if first[:1] == AMQP:
                await self._serve_amqp(carrier, first)
            else:
                await self._serve_http(carrier, first)
        finally:
            if protocol != "none":
                lasted_s = round(clock.now() - began_at, 3)
                self._context.publish("connection.closed", protocol=protocol, client=stream.peer, lasted_s=lasted_s)
            await stream.close()

    async def _opened(self, stream: SocketStream) -> tuple[ByteStream, bytes] | None:
        """The stream of the protocol of the client, and its first bytes; None if there is no protocol in time."""
        try:
            async with clock.timeout(self._context.settings.handshake_timeout_s):
                first = await stream.read()
                if not first:
                    return None
                await start_unauthenticated(self._context.unauthenticated)
                if self._tls is None or first[0] != HANDSHAKE_RECORD:
                    return stream, first
                secure = TlsStream(stream, await self._tls(), first, self._context.unauthenticated)
                if not await secure.handshake():
                    return None
                first = await secure.read()
                return (secure, first) if first and first[0] != HANDSHAKE_RECORD else None
        except TimeoutError:
            return None
        except OSError as error:
            log.error("tls.no_certificate", "cannot make a certificate, TLS is off: {error}", error=str(error))
            return None

    async def _serve_amqp(self, stream: ByteStream, first: bytes) -> None:
        from sbclient.emulator.amqp.connection import serve_amqp

        await serve_amqp(stream, self._context, first)

    async def _serve_http(self, stream: ByteStream, first: bytes) -> None:
        from sbclient.emulator.net.http import serve_http  # imported late, because AMQP clients do not need it

        await serve_http(stream, self._context, first, self._handler, self._serve_websocket)

    async def _serve_websocket(self, stream: ByteStream, request: h11.Request, after: bytes) -> None:
        from sbclient.emulator.net.websocket_stream import accept_websocket

        websocket = await accept_websocket(stream, request, after, self._context.unauthenticated)
        if websocket is None:
            return
        try:
            first = b""
            with suppress(TimeoutError):
                async with clock.timeout(self._context.settings.handshake_timeout_s):
                    first = await websocket.read()
            if first[:1] == AMQP:
                await self._serve_amqp(websocket, first)
        finally:
            await websocket.close()
