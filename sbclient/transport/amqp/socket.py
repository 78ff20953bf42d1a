"""Sockets to a namespace: TCP, TLS, WebSockets, and tunnels through an HTTP proxy.

Names are resolved at every connect, since the alias of a paired namespace moves. Source: AMQP 1.0 over TLS on port
5671; AMQP WebSocket binding, with the sub-protocol `AMQPWSB10` of Service Bus clients.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from base64 import b64encode
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from socket import SHUT_RDWR, gaierror
from typing import Any, Final, cast

import h11
from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Ping,
    RejectConnection,
    Request,
    TextMessage,
)
from wsproto.utilities import LocalProtocolError, RemoteProtocolError

from sbclient.amqp import servicebus
from sbclient.certificate import is_this_machine
from sbclient.errors import InvalidOperationError, ServiceBusConnectionError, without_doubt
from sbclient.rules.http_proxy import http_proxy_of
from sbclient.tasks import Move
from sbclient.transport.amqp.connection import Sink, Stream

AMQPS_PORT: Final = 5671
AMQP_PORT: Final = 5672
HTTPS_PORT: Final = 443
HTTP_PORT: Final = 80

MAX_EMPTY_FRAMES: Final = 1_000
"""WebSocket frames without content in one piece of what is received: each takes some ten microseconds."""

_EMULATOR_ADVICE: Final = "; if it is an emulator, add UseDevelopmentEmulator=true to the connection string"


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where and how a namespace is reached.

    Attributes:
        host: a DNS name or address.
        port: of the namespace.
        hostname: the name for TLS and for the HTTP host header; that of the namespace, even if `host` is another.
        tls: the context, None for plain TCP.
        is_websocket: whether AMQP is carried in a WebSocket.
        proxy: host and port of an HTTP proxy, None for a direct connection.
        proxy_headers: for the proxy, credentials included.
    """

    host: str
    port: int
    hostname: str
    tls: ssl.SSLContext | None = None
    is_websocket: bool = False
    proxy: tuple[str, int] | None = None
    proxy_headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def is_unusual(self) -> bool:
        """Whether the host or the port is none of the service."""
        return is_this_machine(self.hostname) or self.port not in (AMQPS_PORT, HTTPS_PORT)


def tls_context(*, ssl_context: Any = None, verify: str | bool = True) -> ssl.SSLContext:
    """The context for TLS connections.

    Args:
        ssl_context: used as it is.
        verify: False to accept every certificate, or the path of a file of authorities.

    Raises:
        InvalidOperationError: the file cannot be used.
    """
    if ssl_context is not None:
        if not isinstance(ssl_context, ssl.SSLContext):
            raise InvalidOperationError(f"ssl_context is a {type(ssl_context).__name__}: give an ssl.SSLContext")
        return ssl_context
    try:
        context = ssl.create_default_context(cafile=verify if isinstance(verify, str) else None)
    except (OSError, ssl.SSLError) as error:
        raise InvalidOperationError(f"connection_verify is {verify!r}, which cannot be used: {error}") from error
    if verify is False:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def proxy_of(settings: Mapping[str, Any]) -> tuple[tuple[str, int], tuple[tuple[str, str], ...]]:
    """Address and headers for the option `http_proxy`.

    Raises:
        InvalidOperationError: the address is not complete.
    """
    proxy = http_proxy_of(settings)
    if not proxy.username:
        return (proxy.host, proxy.port), ()
    proof = b64encode(f"{proxy.username}:{proxy.password}".encode()).decode()
    return (proxy.host, proxy.port), (("Proxy-Authorization", f"Basic {proof}"),)


class ProxyError(Exception):
    """The HTTP proxy, and not the namespace, is the reason why no connection came about."""


class ConnectStep(StrEnum):
    """The steps of connecting to a namespace, in order."""

    PROXY = "proxy"
    NAME = "name"
    TCP = "TCP"
    TLS = "TLS"
    AMQP = "AMQP"


def failed_step(error: BaseException) -> ConnectStep:
    """Return the step at which connecting failed, from the causes of the error of `open_stream`."""
    cause: BaseException | None = error
    while cause is not None:
        for kinds, step in _STEPS:
            if isinstance(cause, kinds):
                return step
        cause = cause.__cause__
    return ConnectStep.AMQP


_STEPS: Final[tuple[tuple[type[BaseException], ConnectStep], ...]] = (
    (ProxyError, ConnectStep.PROXY),
    (gaierror, ConnectStep.NAME),
    (ssl.SSLError, ConnectStep.TLS),
    (OSError, ConnectStep.TCP),
)


async def open_stream(endpoint: Endpoint, sink: Sink) -> Stream:
    """Connect.

    Raises:
        ServiceBusConnectionError: no connection came about; nothing is in doubt. Its cause is a `ProxyError`, an
            `ssl.SSLError`, a `socket.gaierror` or another `OSError`, by the step that failed.
    """
    try:
        return await _open(endpoint, sink)
    except ServiceBusConnectionError as error:
        without_doubt(error)
        raise
    except (ProxyError, OSError, ssl.SSLError, RemoteProtocolError, LocalProtocolError, h11.ProtocolError) as error:
        is_proxy = isinstance(error, ProxyError)
        advice = _EMULATOR_ADVICE if endpoint.tls is not None and endpoint.is_unusual and not is_proxy else ""
        raise ServiceBusConnectionError(
            f"{endpoint} cannot be reached: {_reason(error)}{advice}", is_in_doubt=False
        ) from error


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno and error.errno > 0 and not isinstance(error, ssl.SSLError):
        return os.strerror(error.errno)
    return str(error) or type(error).__name__


async def _open(endpoint: Endpoint, sink: Sink) -> Stream:
    loop = asyncio.get_running_loop()
    socket = _Socket(sink)
    if endpoint.proxy is None:
        name = endpoint.hostname if endpoint.tls is not None else None
        await loop.create_connection(
            lambda: socket, endpoint.host, endpoint.port, ssl=endpoint.tls, server_hostname=name
        )
    else:
        await _open_tunnel(loop, endpoint, socket)
    if not endpoint.is_websocket:
        return socket
    websocket = _WebSocket(socket, sink)
    socket.sink = websocket
    try:
        await websocket.open(endpoint)
    except BaseException:
        socket.abort()
        raise
    return websocket


class _Socket(asyncio.Protocol):
    """A TCP or TLS socket.

    An error in what the sink does with bytes is a defect. It ends the connection, so that no call waits for its
    timeout, and is raised to the event loop, which logs it.
    """

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self._transport: asyncio.Transport | None = None
        self._is_closed = False

    # -- the stream ----------------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Send bytes, or keep them until the network takes them."""
        if self._transport is not None and not self._is_closed and not self._transport.is_closing():
            self._transport.write(data)  # a closing transport of uvloop may raise

    def close(self) -> None:
        """Send what was written and close."""
        self._is_closed = True
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        self._is_closed = True
        if self._transport is not None:
            self._transport.abort()

    def abandon(self, move: Move) -> None:
        """Close without a call into the event loop, which is not the running one."""
        self._is_closed = True
        transport, self._transport = self._transport, None
        if transport is not None and move is not Move.FORKED:
            with suppress(Exception):  # the other end sees at once that locks are free; uvloop cannot, and closes it
                transport.get_extra_info("socket").shutdown(SHUT_RDWR)

    # -- the protocol --------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is not derived from asyncio's

    def data_received(self, data: bytes) -> None:
        if self._is_closed:
            return
        try:
            self.sink.on_bytes(data)
        except Exception as error:
            self.abort()
            self.sink.on_lost(error)
            raise

    def pause_writing(self) -> None:
        self.sink.on_full(is_full=True)

    def resume_writing(self) -> None:
        self.sink.on_full(is_full=False)

    def eof_received(self) -> bool | None:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        if not self._is_closed:
            self._is_closed = True
            self.sink.on_lost(error)


async def _open_tunnel(loop: asyncio.AbstractEventLoop, endpoint: Endpoint, socket: _Socket) -> None:
    """Connect through an HTTP proxy, and speak TLS inside of the tunnel."""
    assert endpoint.proxy is not None
    tunnel = _Tunnel(endpoint)
    host, port = endpoint.proxy
    try:
        transport, _ = await loop.create_connection(lambda: tunnel, host, port)
    except OSError as error:
        raise ProxyError(f"the HTTP proxy {host}:{port} cannot be reached ({_reason(error)})") from error
    try:
        await tunnel.answered
        if endpoint.tls is None:
            transport.set_protocol(socket)
            socket.connection_made(transport)
        else:
            secured = await loop.start_tls(transport, socket, endpoint.tls, server_hostname=endpoint.hostname)
            assert secured is not None  # only a closing transport has none
            socket.connection_made(secured)
    except BaseException:
        transport.abort()
        raise


class _Tunnel(asyncio.Protocol):
    """The request for a tunnel, and its answer."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._engine = h11.Connection(h11.CLIENT)
        self.answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        headers = [("Host", str(self._endpoint)), *self._endpoint.proxy_headers]
        request = h11.Request(method="CONNECT", target=str(self._endpoint), headers=headers)
        cast(asyncio.Transport, transport).write(self._engine.send(request) or b"")

    def data_received(self, data: bytes) -> None:
        if self.answered.done():
            return
        try:
            self._engine.receive_data(data)
            event = self._engine.next_event()
        except h11.RemoteProtocolError as error:
            self._refuse(f"does not answer in HTTP ({error})")
            return
        if isinstance(event, h11.Response):
            if 200 <= event.status_code < 300:
                self.answered.set_result(None)
            else:
                self._refuse(f"refuses the tunnel with status {event.status_code}")

    def connection_lost(self, error: Exception | None) -> None:
        self._refuse("closed the connection")

    def _refuse(self, reason: str) -> None:
        if not self.answered.done():
            assert self._endpoint.proxy is not None
            host, port = self._endpoint.proxy
            self.answered.set_exception(ProxyError(f"the HTTP proxy {host}:{port} {reason}"))


class _WebSocket:
    """AMQP in a WebSocket: where one message ends and the next begins means nothing."""

    def __init__(self, socket: _Socket, sink: Sink) -> None:
        self._socket = socket
        self._sink = sink
        self._engine = WSConnection(ConnectionType.CLIENT)
        self._opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def open(self, endpoint: Endpoint) -> None:
        """Ask for the WebSocket and wait for the answer."""
        is_usual = endpoint.port == (HTTP_PORT if endpoint.tls is None else HTTPS_PORT)
        host = endpoint.hostname if is_usual else f"{endpoint.hostname}:{endpoint.port}"
        self._send(Request(host=host, target=servicebus.WEBSOCKET_PATH, subprotocols=[servicebus.WEBSOCKET_PROTOCOL]))
        await self._opened

    # -- the stream ----------------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Send bytes in one message."""
        self._send(BytesMessage(data=data))

    def close(self) -> None:
        """Close the WebSocket and the socket."""
        self._send(CloseConnection(code=1000))
        self._socket.close()

    def abort(self) -> None:
        """Close at once."""
        self._socket.abort()

    def abandon(self, move: Move) -> None:
        """Close without a call into the event loop."""
        self._socket.abandon(move)

    def _send(self, event: Any) -> None:
        with suppress(LocalProtocolError):  # it is closing, and nothing more can be said
            self._socket.write(self._engine.send(event))

    # -- the sink ------------------------------------------------------------------------------------------------

    def on_bytes(self, data: bytes) -> None:
        """Frames, or parts of them, have come."""
        try:
            self._engine.receive_data(data)
            empty_count = 0
            for event in self._engine.events():
                empty_count += not (isinstance(event, BytesMessage) and event.data)
                if empty_count > MAX_EMPTY_FRAMES:
                    raise RemoteProtocolError(f"more than {MAX_EMPTY_FRAMES} WebSocket frames came without content")
                self._take(event)
        except RemoteProtocolError as error:
            self.on_lost(error)
            self._socket.abort()

    def _take(self, event: Any) -> None:
        if isinstance(event, BytesMessage):
            self._sink.on_bytes(bytes(event.data))
        elif isinstance(event, AcceptConnection):
            if not self._opened.done():
                self._opened.set_result(None)
        elif isinstance(event, RejectConnection):
            self._refuse(f"the WebSocket is refused with status {event.status_code}")
        elif isinstance(event, Ping):
            self._send(event.response())
        elif isinstance(event, CloseConnection):
            self._send(event.response())
            self.on_lost(None)
        elif isinstance(event, TextMessage):
            self.on_lost(RemoteProtocolError("a text message came where AMQP is binary"))

    def on_full(self, *, is_full: bool) -> None:
        """The network does not take more for now, or does again."""
        self._sink.on_full(is_full=is_full)

    def on_lost(self, error: Exception | None) -> None:
        """The socket is closed."""
        if not self._opened.done():
            self._refuse("the connection was closed during the WebSocket handshake")
        else:
            self._sink.on_lost(error)

    def _refuse(self, reason: str) -> None:
        if not self._opened.done():
            self._opened.set_exception(ServiceBusConnectionError(reason))
