"""The proxy forwards bytes and applies the faults that it is given."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.processes.bodies import body_of
from tests.processes.proxy import Proxy, Trouble, Way

pytestmark = pytest.mark.real_time

PATIENCE_S = 20.0


class Town:
    """What lies behind the proxy: it keeps what arrives, and answers each piece with its length."""

    def __init__(self) -> None:
        self.heard = bytearray()
        self.endings: list[str] = []
        self.arrived = asyncio.Event()
        self._server: asyncio.Server | None = None
        self.port = 0

    async def __aenter__(self) -> Town:
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while piece := await reader.read(1000):
                self.heard += piece
                self.arrived.set()
                writer.write(f"{len(self.heard)};".encode())
            self.endings.append("end")
        except ConnectionResetError:
            self.endings.append("reset")
        finally:
            writer.close()
            self.arrived.set()

    async def has_heard(self, count: int) -> bytes:
        async with asyncio.timeout(PATIENCE_S):
            while len(self.heard) < count:
                self.arrived.clear()
                await self.arrived.wait()
        return bytes(self.heard)

    async def ending(self) -> str:
        async with asyncio.timeout(PATIENCE_S):
            while not self.endings:
                self.arrived.clear()
                await self.arrived.wait()
        return self.endings[0]


@pytest.fixture
async def town() -> AsyncIterator[Town]:
    async with Town() as town:
        yield town


@pytest.fixture
def witnessed() -> list[str]:
    return []


@pytest.fixture
async def proxy(town: Town, witnessed: list[str]) -> AsyncIterator[Proxy]:
    proxy = Proxy(town.port, witnessed.append)
    await proxy.start()
    yield proxy
    await proxy.close()


class Traveller:
    """A connection by way of the proxy."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    def say(self, text: bytes) -> None:
        self.writer.write(text)

    async def hears(self) -> bytes:
        """The next piece; empty at the end."""
        async with asyncio.timeout(PATIENCE_S):
            return await self._reader.read(1000)

    async def hears_nothing(self) -> bool:
        try:
            async with asyncio.timeout(0.2):
                return not await self._reader.read(1000)
        except TimeoutError:
            return True


@pytest.fixture
async def traveller(proxy: Proxy) -> AsyncIterator[Traveller]:
    traveller = Traveller(*await asyncio.open_connection("127.0.0.1", proxy.port))
    yield traveller
    traveller.writer.close()


async def test_it_passes_on_both_ways_and_the_end_too(traveller: Traveller, town: Town) -> None:
    traveller.say(b"hello")
    assert await traveller.hears() == b"5;"
    traveller.writer.write_eof()
    assert await town.ending() == "end"
    assert await traveller.hears() == b""
    assert town.heard == b"hello"


async def test_a_cut_resets_both_ends(traveller: Traveller, proxy: Proxy, town: Town) -> None:
    traveller.say(b"hello")
    await traveller.hears()
    assert proxy.cut() == 1
    assert await town.ending() == "reset"
    with pytest.raises(ConnectionResetError):
        await traveller.hears()
    assert (proxy.cut(), proxy.cut_count) == (0, 1)


async def test_a_cut_in_a_frame_lets_a_few_bytes_pass(traveller: Traveller, proxy: Proxy, town: Town) -> None:
    traveller.say(b"hello")
    await traveller.hears()
    proxy.cut_after(3)
    traveller.say(b"a whole frame")
    assert await town.ending() == "reset"
    assert bytes(town.heard) in (b"hello", b"helloa w")  # a reset may take with it what was not read yet
    assert proxy.cut_count == 1


async def test_what_a_cut_has_not_met_is_spared(traveller: Traveller, proxy: Proxy) -> None:
    traveller.say(b"hello")
    await traveller.hears()
    proxy.cut_after(3)
    proxy.spare()
    traveller.say(b"a whole frame")
    assert await traveller.hears() == b"18;"
    assert proxy.cut_count == 0


async def test_a_proxy_that_refuses_resets_who_comes(proxy: Proxy) -> None:
    trouble = Trouble(refuses=True)
    proxy.begin(trouble)
    late = Traveller(*await asyncio.open_connection("127.0.0.1", proxy.port))
    with pytest.raises(ConnectionResetError):
        await late.hears()
    late.writer.close()
    proxy.end(trouble)
    later = Traveller(*await asyncio.open_connection("127.0.0.1", proxy.port))
    later.say(b"x")
    assert await later.hears() == b"1;"
    later.writer.close()


async def test_a_black_hole_holds_everything_until_it_ends(traveller: Traveller, proxy: Proxy, town: Town) -> None:
    trouble = Trouble(holds=True)
    proxy.begin(trouble)
    traveller.say(b"hello")
    assert await traveller.hears_nothing()
    assert town.heard == b""
    proxy.end(trouble)
    assert await traveller.hears() == b"5;"


async def test_answers_that_are_held_and_cut_are_lost_and_the_work_is_done(
    traveller: Traveller, proxy: Proxy, town: Town
) -> None:
    proxy.begin(Trouble(ways=(Way.BACK,), holds=True))
    traveller.say(b"hello")
    assert await town.has_heard(5) == b"hello"
    assert await traveller.hears_nothing()
    proxy.cut()
    with pytest.raises(ConnectionResetError):
        await traveller.hears()


async def test_requests_that_are_held_and_cut_never_arrive(traveller: Traveller, proxy: Proxy, town: Town) -> None:
    traveller.say(b"one")
    await traveller.hears()
    proxy.begin(Trouble(ways=(Way.OUT,), holds=True))
    traveller.say(b"two")
    assert await traveller.hears_nothing()
    proxy.cut()
    assert await town.ending() == "reset"
    assert town.heard == b"one"


@pytest.mark.parametrize(
    "trouble", [Trouble(slice_bytes=3), Trouble(bytes_per_s=50_000), Trouble(delay_s=0.05, slice_bytes=700)]
)
async def test_slow_and_sliced_proxies_lose_nothing(
    traveller: Traveller, proxy: Proxy, town: Town, trouble: Trouble
) -> None:
    proxy.begin(trouble)
    text = bytes(range(256)) * 20
    traveller.say(text)
    assert await town.has_heard(len(text)) == text


async def test_a_mark_is_witnessed_once_however_it_is_sliced(
    traveller: Traveller, proxy: Proxy, town: Town, witnessed: list[str]
) -> None:
    uids = [f"sender-1.0-{number}" for number in range(50)]
    proxy.begin(Trouble(slice_bytes=7))
    traveller.say(b"".join(body_of(uid, 40) for uid in uids))
    await town.has_heard(sum(len(body_of(uid, 40)) for uid in uids))
    assert witnessed == uids


async def test_what_is_held_is_not_witnessed(traveller: Traveller, proxy: Proxy, witnessed: list[str]) -> None:
    trouble = Trouble(ways=(Way.OUT,), holds=True)
    proxy.begin(trouble)
    traveller.say(body_of("sender-1.0-1", 10))
    assert await traveller.hears_nothing()
    assert witnessed == []
    proxy.end(trouble)
    await traveller.hears()
    assert witnessed == ["sender-1.0-1"]


async def test_a_namespace_that_does_not_listen_ends_the_connection(proxy: Proxy, town: Town) -> None:
    nowhere = Proxy(1, lambda uid: None)
    await nowhere.start()
    lost = Traveller(*await asyncio.open_connection("127.0.0.1", nowhere.port))
    with pytest.raises(ConnectionResetError):
        await lost.hears()
    lost.writer.close()
    await nowhere.close()
