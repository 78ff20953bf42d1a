"""A WebSocket as a byte stream, for AMQP clients that can only reach port 443.

Source: AMQP WebSocket binding; the sub-protocol is `AMQPWSB10` for Service Bus clients and `amqp` by the standard. The
boundaries of WebSocket messages have no meaning.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Final

import h11
from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Event,
    Ping,
    RejectConnection,
    Request,
    TextMessage,
)
from wsproto.frame_protocol import CloseReason
from wsproto.utilities import LocalProtocolError, RemoteProtocolError

from sbclient.amqp import servicebus
from sbclient.emulator.net.stream import ByteStream
from sbclient.emulator.net.time_slice import TimeSlice

SUB_PROTOCOLS: Final = (servicebus.WEBSOCKET_PROTOCOL, "amqp")
MAX_MESSAGE_BYTES: Final = 1 << 20
"""aiohttp, on which the asynchronous Python SDK runs, accepts WebSocket messages of up to 4 MiB."""


class WebSocketStream:
    """A `ByteStream` over another one that carries WebSocket frames.

    Args:
        stream: carries the frames; closed with this one.
        engine: has accepted the upgrade.
        turns: limits the clients without a token.
    """

    def __init__(self, stream: ByteStream, engine: WSConnection, turns: asyncio.Semaphore) -> None:
        self._stream = stream
        self._engine = engine
        self._time_slice = TimeSlice(turns)
        self._events = engine.events()
        self._received = bytearray()
        self._output = bytearray()
        self._is_over = False

    @property
    def peer(self) -> str:
        return self._stream.peer

    def take(self, data: bytes) -> None:
        """Take frames, or parts of them; empty = the end of the stream."""
        if not data:
            self._is_over = True
            return
        self._engine.receive_data(data)
        self._events = self._engine.events()

    async def read(self) -> bytes:
        await self._take_events()
        while not self._received and not self._is_over:
            self.take(await self._stream.read())
            await self._time_slice.start_next()
            await self._take_events()
            await self._stream.drain()  # a client that sends pings must read the pongs
        data = bytes(self._received)
        self._received.clear()
        return data

    def write(self, data: bytes) -> None:
        if not self._is_over:
            for start in range(0, len(data), MAX_MESSAGE_BYTES):
                self._send(BytesMessage(data=data[start : start + MAX_MESSAGE_BYTES]))
                self._flush()

    async def drain(self) -> None:
        await self._stream.drain()

    def trust(self) -> None:
        self._time_slice.turns = None
        self._stream.trust()

    async def close(self) -> None:
        self._end(CloseConnection(code=CloseReason.NORMAL_CLOSURE))
        self._flush()
        await self._stream.close()

    async def _take_events(self) -> None:
        """Process the events that have arrived, in time slices."""
        try:
            for event in self._events:
                self._take(event)
                self._time_slice.count()
                if self._time_slice.is_over:
                    self._flush()
                    await self._stream.drain()
                    await self._time_slice.start_next()
        except RemoteProtocolError as error:
            self._end(error.event_hint or CloseConnection(code=CloseReason.PROTOCOL_ERROR))
        self._flush()

    def _take(self, event: Event) -> None:
        match event:
            case BytesMessage():
                self._received += event.data
            case Ping():
                self._send(event.response())
            case CloseConnection():
                self._end(event.response())
            case TextMessage():
                self._end(CloseConnection(code=CloseReason.UNSUPPORTED_DATA))

    def _end(self, event: Event) -> None:
        if not self._is_over:
            self._send(event)
            self._is_over = True

    def _send(self, event: Event) -> None:
        with suppress(LocalProtocolError):  # the close was sent before
            self._output += self._engine.send(event)

    def _flush(self) -> None:
        """Write the answers of a time slice at once: each write takes longer than a ping."""
        if self._output:
            self._stream.write(bytes(self._output))
            self._output.clear()


async def accept_websocket(
    stream: ByteStream, request: Any, after: bytes, turns: asyncio.Semaphore
) -> WebSocketStream | None:
    """Answer an upgrade request; None if it was refused.

    Args:
        request: the `h11.Request`.
        after: the bytes that followed it.
        turns: as for `WebSocketStream`.
    """
    assert isinstance(request, h11.Request)
    engine = WSConnection(ConnectionType.SERVER)
    headers = [(bytes(name), bytes(value)) for name, value in request.headers]
    try:
        engine.initiate_upgrade_connection(headers, request.target.decode("ascii", "replace"))
        upgrade = next(iter(engine.events()), None)
    except UnicodeDecodeError:  # wsproto decodes some headers as ASCII
        upgrade = None
    except RemoteProtocolError as error:
        upgrade = None
        if isinstance(error.event_hint, RejectConnection):
            stream.write(engine.send(error.event_hint))
            return None
    if not isinstance(upgrade, Request):
        stream.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        return None
    chosen = next((name for name in SUB_PROTOCOLS if name in upgrade.subprotocols), None)
    if upgrade.subprotocols and chosen is None:
        stream.write(engine.send(RejectConnection(status_code=400)))
        return None
    stream.write(engine.send(AcceptConnection(subprotocol=chosen)))
    websocket = WebSocketStream(stream, engine, turns)
    if after:
        websocket.take(after)
    return websocket
