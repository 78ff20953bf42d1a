"""Requests of other web pages are rejected on every path of a port, and those of programs are not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sbclient.emulator import Emulator

pytestmark = [pytest.mark.real_time, pytest.mark.slow]

WEBSOCKET = "/$servicebus/websocket"
UPGRADE = {
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Protocol": "AMQPWSB10",
}
PATHS = ("/", "/$page/main.js", "/$control/state", "/health", "/orders", "/$Resources/queues", WEBSOCKET)
ACCEPTED: tuple[dict[str, str], ...] = (
    {},
    {"Host": "127.0.0.1"},
    {"Host": "[::1]:80"},
    {"Host": "emulator.example"},
    {"Origin": "http://localhost", "Sec-Fetch-Site": "same-origin"},
)
REJECTED: tuple[dict[str, str], ...] = (
    {"Host": "evil.example"},
    {"Host": "192.0.2.1"},
    {"Host": "emulator"},
    {"Origin": "http://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://localhost:8080"},
    {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
    {"Sec-Fetch-Site": "same-site"},
)


@pytest.fixture
async def emulator(tmp_path: Path) -> AsyncIterator[Emulator]:
    async with Emulator(
        "contoso", http_port=0, certificate_directory=tmp_path, certificate_names=["emulator.example"]
    ) as served:
        yield served


async def status(port: int, path: str, headers: dict[str, str]) -> int:
    """The status of a request on a connection of its own."""
    upgrade = UPGRADE if path == WEBSOCKET else {"Connection": "close"}
    lines = [f"{name}: {value}" for name, value in ({"Host": "localhost"} | upgrade | headers).items()]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write("\r\n".join([f"GET {path} HTTP/1.1", *lines, "", ""]).encode())
    first = await asyncio.wait_for(reader.readline(), 10)
    writer.close()
    await writer.wait_closed()
    return int(first.split()[1])


@pytest.mark.promise("emulator.web-pages")
@pytest.mark.parametrize("path", PATHS)
async def test_other_web_pages_are_rejected(emulator: Emulator, path: str) -> None:
    assert emulator.http_port is not None
    for port in (emulator.ports["contoso"], emulator.http_port):
        assert [await status(port, path, headers) for headers in REJECTED] == [403] * len(REJECTED)
        assert 403 not in [await status(port, path, headers) for headers in ACCEPTED]


@pytest.mark.promise("emulator.http")
async def test_body_of_two_lengths_is_rejected(emulator: Emulator) -> None:
    headers = {"Content-Length": "5", "Transfer-Encoding": "chunked"}

    assert await status(emulator.ports["contoso"], "/orders", headers) == 400
