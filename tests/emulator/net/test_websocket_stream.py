"""WebSockets over a wire in memory."""

from __future__ import annotations

import asyncio

from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection

from sbclient.emulator.net.websocket_stream import WebSocketStream
from tests.emulator.amqp.client import wire

PING = b"\x89\x80\0\0\0\0"
HELLO = b"\x82\x85\0\0\0\0hello"


async def test_client_that_pings_and_never_reads_is_not_read_from() -> None:
    client, server = wire()
    stream = WebSocketStream(server, open_engine(), asyncio.Semaphore())
    server.is_read.clear()
    reading = asyncio.ensure_future(stream.read())
    for _ in range(1_000):
        client.write(PING)
    client.write(HELLO)
    for _ in range(2_000):
        await asyncio.sleep(0)
    assert client.incoming.qsize() == 1
    server.is_read.set()
    assert await reading == b"hello"
    assert client.incoming.qsize() == 1_000


async def test_no_message_is_larger_than_clients_accept() -> None:
    client, server = wire()
    WebSocketStream(server, open_engine(), asyncio.Semaphore()).write(bytes(5 << 19))
    sent = [await client.read() for _ in range(3)]
    assert [int.from_bytes(each[2:10], "big") for each in sent] == [1 << 20, 1 << 20, 1 << 19]


def open_engine() -> WSConnection:
    """The server's side of a WebSocket that stands."""
    engine = WSConnection(ConnectionType.SERVER)
    headers = {
        b"host": b"localhost",
        b"connection": b"Upgrade",
        b"upgrade": b"websocket",
        b"sec-websocket-version": b"13",
        b"sec-websocket-key": b"AAAAAAAAAAAAAAAAAAAAAA==",
    }
    engine.initiate_upgrade_connection(list(headers.items()), "/$servicebus/websocket")
    assert len(list(engine.events())) == 1
    engine.send(AcceptConnection())
    return engine
