"""Faults of the wire on real sockets: what a client sees of each."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from random import Random

import pytest

from sbclient.emulator.faults import WireFault, WireFaultKind, WireFaults
from sbclient.emulator.net.socket_stream import MAX_HELD_BYTES, MAX_RECEIVED_BYTES, SocketStream
from sbclient.emulator.net.stream import READ_BYTES

pytestmark = [pytest.mark.real_time, pytest.mark.every_loop]

SHORT_S = 0.15
RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class Served:
    """A port whose connections are handed to the test."""

    def __init__(self) -> None:
        self.faults = WireFaults(Random(1))
        self.streams: asyncio.Queue[SocketStream] = asyncio.Queue()
        self.standing: set[SocketStream] = set()
        self.port = 0
        self._server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []
        self.faults.listen(self._apply_faults)

    def _apply_faults(self) -> None:
        for stream in list(self.standing):
            stream.apply_faults()

    def _accepted(self, stream: SocketStream) -> None:
        self.standing.add(stream)
        self.streams.put_nowait(stream)

    async def start(self) -> None:
        def make() -> SocketStream:
            return SocketStream(self.faults, self._accepted, self.standing.discard)

        self._server = await asyncio.get_running_loop().create_server(make, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def connect(self) -> tuple[SocketStream, asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self._writers.append(writer)
        return await self.streams.get(), reader, writer

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for stream in list(self.standing):
            stream.cut()
        for writer in self._writers:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    served = Served()
    await served.start()
    yield served
    await served.close()


async def soon(work: asyncio.Future[bytes] | object) -> bytes | None:
    """What comes within a short time; None if nothing does."""
    try:
        return await asyncio.wait_for(work, SHORT_S)  # type: ignore[arg-type]  # a coroutine or a future
    except TimeoutError:
        return None


async def test_bytes_go_both_ways(served: Served) -> None:
    stream, reader, writer = await served.connect()
    writer.write(b"hello")
    assert await stream.read() == b"hello"
    stream.write(b"wor")
    stream.write(b"ld")
    assert await reader.readexactly(5) == b"world"
    assert stream.peer.startswith("127.0.0.1:")
    writer.close()
    assert await stream.read() == b""
    assert await stream.read() == b""


async def test_client_that_sends_no_more_is_still_answered(served: Served) -> None:
    stream, reader, writer = await served.connect()
    writer.write(b"last")
    writer.write_eof()
    assert await stream.read() == b"last"
    assert await stream.read() == b""
    stream.write(b"answer")
    await stream.close()
    assert await reader.read() == b"answer"


async def test_close_sends_what_was_written_and_may_be_repeated(served: Served) -> None:
    stream, reader, _ = await served.connect()
    stream.write(b"x" * 3_000_000)
    closing = asyncio.ensure_future(stream.close())
    assert len(await reader.read(-1)) == 3_000_000
    await closing
    await stream.close()
    stream.write(b"dropped")
    assert served.standing == set()


async def test_other_tasks_run_between_two_reads(served: Served) -> None:
    stream, _, writer = await served.connect()
    writer.write(b"x" * (3 * READ_BYTES))
    await writer.drain()
    await stream.read()
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.ensure_future(other())
    await asyncio.sleep(0.05)
    for _ in range(2):
        before = turns
        assert len(await stream.read()) == READ_BYTES
        assert turns > before
    beside.cancel()


async def test_writes_to_a_connection_that_the_peer_has_reset_are_dropped_in_silence(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    stream, _, writer = await served.connect()
    writer.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
    writer.transport.abort()
    await asyncio.sleep(0)
    time.sleep(SHORT_S)  # noqa: ASYNC251  # the reset is there, and the loop has not seen it
    for _ in range(10):
        stream.write(b"x")
    await stream.close()
    assert caplog.records == []


async def test_received_data_of_a_lost_connection_is_dropped(served: Served) -> None:
    stream, _, writer = await served.connect()
    stream.trust()
    writer.write(b"x" * (3 * READ_BYTES))
    await writer.drain()
    await stream.read()
    writer.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
    writer.transport.abort()
    await asyncio.wait_for(stream._is_gone.wait(), 5)
    assert await stream.read() == b""


async def test_peer_that_reads_nothing_does_not_hold_up_the_close(served: Served) -> None:
    stream, *_ = await served.connect()
    stream.write(b"x" * 30_000_000)
    await asyncio.wait_for(stream.close(), 5)
    stream.write(b"dropped")


async def test_write_waits_for_a_slow_reader(served: Served) -> None:
    stream, reader, _ = await served.connect()
    stream.write(b"x" * 30_000_000)
    draining = asyncio.ensure_future(stream.drain())
    assert await soon(asyncio.shield(draining)) is None
    assert not draining.done()
    await reader.readexactly(30_000_000)
    await draining


@pytest.mark.promise("emulator.no-token")
@pytest.mark.parametrize(("has_token", "limit"), [(False, 0), (True, MAX_RECEIVED_BYTES)])
async def test_the_receive_buffer_is_bounded(served: Served, has_token: bool, limit: int) -> None:
    stream, _, writer = await served.connect()
    if has_token:
        stream.trust()
    for _ in range(60):
        writer.write(b"x" * 1_000_000)
    await asyncio.sleep(SHORT_S)
    assert limit < len(stream._received) <= limit + READ_BYTES
    total = 0
    while total < 60_000_000:
        data = await asyncio.wait_for(stream.read(), 2)
        assert len(data) <= READ_BYTES
        total += len(data)


class TestRefuse:
    async def test_new_connection_is_reset_and_old_ones_stay(self, served: Served) -> None:
        stream, reader, _ = await served.connect()
        fault = served.faults.inject(WireFault(WireFaultKind.REFUSE))
        with pytest.raises(ConnectionError):
            await self._used(served.port)
        stream.write(b"still here")
        assert await reader.readexactly(10) == b"still here"
        served.faults.heal(fault)
        another, *_ = await served.connect()
        assert another in served.standing

    async def _used(self, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(b"hello")
            assert await reader.read() != b"", "an orderly end is no reset"
        finally:
            writer.close()


class TestReset:
    async def test_open_connection_is_reset(self, served: Served) -> None:
        stream, reader, _ = await served.connect()
        served.faults.inject(WireFault(WireFaultKind.RESET))
        with pytest.raises(ConnectionResetError):
            await reader.read()
        assert await stream.read() == b""

    async def test_count_cuts_so_many(self, served: Served) -> None:
        for _ in range(3):
            await served.connect()
        served.faults.inject(WireFault(WireFaultKind.RESET, count=2))
        await asyncio.sleep(0.01)
        assert len(served.standing) == 1


class TestBlackHole:
    async def test_holds_data_in_both_directions_until_it_is_healed(self, served: Served) -> None:
        stream, reader, writer = await served.connect()
        served.faults.inject(WireFault(WireFaultKind.BLACK_HOLE))
        writer.write(b"question")
        reading = asyncio.ensure_future(stream.read())
        stream.write(b"ans")
        stream.write(b"wer")
        assert await soon(reader.read(1)) is None
        assert not reading.done()
        served.faults.heal()
        assert await reading == b"question"
        assert await reader.readexactly(6) == b"answer"

    async def test_new_connections_are_affected_too(self, served: Served) -> None:
        served.faults.inject(WireFault(WireFaultKind.BLACK_HOLE))
        stream, _, writer = await served.connect()
        writer.write(b"x")
        assert await soon(stream.read()) is None

    @pytest.mark.parametrize("written", [b"", b"bye"])
    async def test_client_learns_that_its_connection_was_closed_when_it_is_healed(
        self, served: Served, written: bytes
    ) -> None:
        stream, reader, _ = await served.connect()
        served.faults.inject(WireFault(WireFaultKind.BLACK_HOLE))
        stream.write(written)
        await stream.close()
        assert await soon(reader.read()) is None
        served.faults.heal()
        assert await asyncio.wait_for(reader.read(), 1) == written


class TestLatency:
    async def test_delays_sent_data_in_order(self, served: Served) -> None:
        stream, reader, _ = await served.connect()
        loop = asyncio.get_running_loop()
        fault = served.faults.inject(WireFault(WireFaultKind.LATENCY, latency_s=0.2))
        began_at = loop.time()
        stream.write(b"slow")
        served.faults.heal(fault)
        stream.write(b"quick")
        assert await reader.readexactly(9) == b"slowquick"
        assert loop.time() - began_at > 0.19
        stream.write(b"now")
        assert await reader.readexactly(3) == b"now"

    async def test_close_waits_for_delayed_data(self, served: Served) -> None:
        stream, reader, _ = await served.connect()
        served.faults.inject(WireFault(WireFaultKind.LATENCY, latency_s=0.1))
        stream.write(b"last")
        await stream.close()
        assert await reader.read() == b"last"

    async def test_bounds_the_delayed_data_each_time(self, served: Served) -> None:
        stream, reader, _ = await served.connect()
        served.faults.inject(WireFault(WireFaultKind.LATENCY, latency_s=0.05))
        for _ in range(3):
            for size in (MAX_HELD_BYTES // 2, 10):
                stream.write(b"x" * size)
                await stream.drain()  # less is held than the bound
                assert await reader.readexactly(size) == b"x" * size
            stream.write(b"x" * MAX_HELD_BYTES)
            stream.resume_writing()  # the network takes more, but the delay does not
            draining = asyncio.ensure_future(stream.drain())
            await asyncio.sleep(0)
            assert not draining.done()
            await reader.readexactly(MAX_HELD_BYTES)
            await draining


async def test_loopback_sends_without_delay(served: Served) -> None:
    stream, _, writer = await served.connect()
    taken: socket.socket = stream._transport.get_extra_info("socket")
    assert taken.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    writer.close()
