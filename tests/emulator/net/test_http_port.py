"""A port for HTTP alone, on real sockets."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator

import pytest

from sbclient.clock import Clock
from sbclient.emulator.context import ServerSettings
from sbclient.emulator.net import http_port
from sbclient.emulator.net.http_messages import Request, Response
from sbclient.emulator.net.http_port import HttpPort

pytestmark = pytest.mark.real_time

GET = b"GET /healthz HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"


async def answer(request: Request) -> Response:
    return Response(200, f"{request.method} {'/'.join(request.segments)} {request.client.split(':')[0]}".encode())


@pytest.fixture
async def port() -> AsyncIterator[HttpPort]:
    port = HttpPort(answer, Clock(), ServerSettings(http_idle_timeout_s=0.1))
    yield port
    await port.close()


async def said(number: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", number)
    writer.write(request)
    heard = await reader.read()
    writer.close()
    await writer.wait_closed()
    return heard


async def test_requests_are_answered(port: HttpPort) -> None:
    number = await port.start("127.0.0.1", 0)
    heard = await said(number, GET)
    assert heard.startswith(b"HTTP/1.1 200")
    assert heard.endswith(b"GET healthz 127.0.0.1")


async def test_nothing_but_http_is_spoken(port: HttpPort) -> None:
    number = await port.start("127.0.0.1", 0)
    assert (await said(number, b"AMQP\x00\x01\x00\x00\r\n\r\n")).startswith(b"HTTP/1.1 400")
    websocket = GET.replace(b"Connection: close", b"Connection: upgrade\r\nUpgrade: websocket")
    assert (await said(number, websocket.replace(b"/healthz", b"/$servicebus/websocket"))).startswith(b"HTTP/1.1 200")


async def test_a_silent_connection_ends(port: HttpPort) -> None:
    assert await said(await port.start("127.0.0.1", 0), b"") == b""


async def test_a_port_in_use_cannot_be_had(port: HttpPort) -> None:
    number = await port.start("127.0.0.1", 0)
    other = HttpPort(answer, Clock())
    with pytest.raises(OSError) as caught:
        await other.start("127.0.0.1", number)
    assert caught.value.errno == errno.EADDRINUSE
    await other.close()


async def test_too_many_connections_are_cut(port: HttpPort, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_port, "CONNECTIONS", 2)
    number = await port.start("127.0.0.1", 0)
    first = [await asyncio.open_connection("127.0.0.1", number) for _ in range(2)]
    with pytest.raises(ConnectionResetError):
        await said(number, GET)
    for reader, writer in first:
        writer.write(GET)
        assert (await reader.read()).startswith(b"HTTP/1.1 200")
        writer.close()
        await writer.wait_closed()


async def test_closing_ends_every_connection() -> None:
    port = HttpPort(answer, Clock())
    number = await port.start("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", number)
    await asyncio.sleep(0.01)
    await port.close()
    await port.close()
    assert await reader.read() == b""
    writer.close()
    await writer.wait_closed()
    with pytest.raises(ConnectionError):
        await asyncio.open_connection("127.0.0.1", number)
