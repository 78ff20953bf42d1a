"""The proxy forwards bytes and applies the faults that it is given."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.limit import HANG_S
from tests.processes.bodies import body_of
from tests.stage.proxy import Proxy, Trouble, Way

pytestmark = pytest.mark.real_time


class Server:
    """A server behind the proxy: it stores what arrives, and answers each read with the total length."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.endings: list[str] = []
        self.arrived = asyncio.Event()
        self._server: asyncio.Server | None = None
        self.port = 0

    async def __aenter__(self) -> Server:
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while piece := await reader.read(1000):
                self.received += piece
                self.arrived.set()
                writer.write(f"{len(self.received)};".encode())
            self.endings.append("end")
        except ConnectionResetError:
            self.endings.append("reset")
        finally:
            writer.close()
            self.arrived.set()

    async def has_received(self, count: int) -> bytes:
        async with asyncio.timeout(HANG_S):
            while len(self.received) < count:
                self.arrived.clear()
                await self.arrived.wait()
        return bytes(self.received)

    async def ending(self) -> str:
        async with asyncio.timeout(HANG_S):
            while not self.endings:
                self.arrived.clear()
                await self.arrived.wait()
        return self.endings[0]


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with Server() as server:
        yield server


@pytest.fixture
def reported() -> list[str]:
    return []


@pytest.fixture
async def proxy(server: Server, reported: list[str]) -> AsyncIterator[Proxy]:
    proxy = Proxy(server.port, reported.append)
    await proxy.start()
    yield proxy
    await proxy.close()


class Client:
    """A connection through the proxy."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    def send(self, text: bytes) -> None:
        self.writer.write(text)

    async def receive(self) -> bytes:
        """Return the next piece; empty at the end."""
        async with asyncio.timeout(HANG_S):
            return await self._reader.read(1000)

    async def receives_nothing(self) -> bool:
        try:
            async with asyncio.timeout(0.2):
                return not await self._reader.read(1000)
        except TimeoutError:
            return True


@pytest.fixture
async def client(proxy: Proxy) -> AsyncIterator[Client]:
    client = Client(*await asyncio.open_connection("127.0.0.1", proxy.port))
    yield client
    client.writer.close()


async def test_data_and_end_of_stream_pass_in_both_directions(client: Client, server: Server) -> None:
    client.send(b"hello")
    assert await client.receive() == b"5;"
    client.writer.write_eof()
    assert await server.ending() == "end"
    assert await client.receive() == b""
    assert server.received == b"hello"


async def test_cut_resets_both_ends(client: Client, proxy: Proxy, server: Server) -> None:
    client.send(b"hello")
    await client.receive()
    assert proxy.cut() == 1
    assert await server.ending() == "reset"
    with pytest.raises(ConnectionResetError):
        await client.receive()
    assert (proxy.cut(), proxy.cut_count) == (0, 1)


async def test_cut_after_bytes_lets_those_bytes_pass(client: Client, proxy: Proxy, server: Server) -> None:
    client.send(b"hello")
    await client.receive()
    proxy.cut_after(3)
    client.send(b"a whole frame")
    assert await server.ending() == "reset"
    assert bytes(server.received) in (b"hello", b"helloa w")  # a reset may drop unread data
    assert proxy.cut_count == 1


async def test_spare_cancels_a_pending_cut(client: Client, proxy: Proxy) -> None:
    client.send(b"hello")
    await client.receive()
    proxy.cut_after(3)
    proxy.spare()
    client.send(b"a whole frame")
    assert await client.receive() == b"18;"
    assert proxy.cut_count == 0


async def test_refusing_proxy_resets_new_connections(proxy: Proxy) -> None:
    trouble = Trouble(refuses=True)
    proxy.begin(trouble)
    late = Client(*await asyncio.open_connection("127.0.0.1", proxy.port))
    with pytest.raises(ConnectionResetError):
        await late.receive()
    late.writer.close()
    proxy.end(trouble)
    later = Client(*await asyncio.open_connection("127.0.0.1", proxy.port))
    later.send(b"x")
    assert await later.receive() == b"1;"
    later.writer.close()


async def test_black_hole_holds_data_until_it_ends(client: Client, proxy: Proxy, server: Server) -> None:
    trouble = Trouble(holds=True)
    proxy.begin(trouble)
    client.send(b"hello")
    assert await client.receives_nothing()
    assert server.received == b""
    proxy.end(trouble)
    assert await client.receive() == b"5;"


async def test_held_responses_are_lost_when_the_connection_is_cut(client: Client, proxy: Proxy, server: Server) -> None:
    proxy.begin(Trouble(ways=(Way.BACK,), holds=True))
    client.send(b"hello")
    assert await server.has_received(5) == b"hello"
    assert await client.receives_nothing()
    proxy.cut()
    with pytest.raises(ConnectionResetError):
        await client.receive()


async def test_held_requests_do_not_arrive_when_the_connection_is_cut(
    client: Client, proxy: Proxy, server: Server
) -> None:
    client.send(b"one")
    await client.receive()
    proxy.begin(Trouble(ways=(Way.OUT,), holds=True))
    client.send(b"two")
    assert await client.receives_nothing()
    proxy.cut()
    assert await server.ending() == "reset"
    assert server.received == b"one"


@pytest.mark.parametrize(
    "trouble", [Trouble(slice_bytes=3), Trouble(bytes_per_s=50_000), Trouble(delay_s=0.05, slice_bytes=700)]
)
async def test_slow_and_slicing_proxies_lose_no_data(
    client: Client, proxy: Proxy, server: Server, trouble: Trouble
) -> None:
    proxy.begin(trouble)
    text = bytes(range(256)) * 20
    client.send(text)
    assert await server.has_received(len(text)) == text


async def test_sliced_mark_is_reported_once(client: Client, proxy: Proxy, server: Server, reported: list[str]) -> None:
    uids = [f"sender-1.0-{number}" for number in range(50)]
    proxy.begin(Trouble(slice_bytes=7))
    client.send(b"".join(body_of(uid, 40) for uid in uids))
    await server.has_received(sum(len(body_of(uid, 40)) for uid in uids))
    assert reported == uids


async def test_held_mark_is_not_reported(client: Client, proxy: Proxy, reported: list[str]) -> None:
    trouble = Trouble(ways=(Way.OUT,), holds=True)
    proxy.begin(trouble)
    client.send(body_of("sender-1.0-1", 10))
    assert await client.receives_nothing()
    assert reported == []
    proxy.end(trouble)
    await client.receive()
    assert reported == ["sender-1.0-1"]


async def test_connection_ends_when_the_namespace_does_not_listen(proxy: Proxy, server: Server) -> None:
    nowhere = Proxy(1, lambda uid: None)
    await nowhere.start()
    lost = Client(*await asyncio.open_connection("127.0.0.1", nowhere.port))
    with pytest.raises(ConnectionResetError):
        await lost.receive()
    lost.writer.close()
    await nowhere.close()
