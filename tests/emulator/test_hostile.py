"""Clients that mean no good, by every protocol of a port, beside a good one: nothing for it, and nothing that grows.

`python -m tests.hostile` measures what floods.
"""

from __future__ import annotations

import asyncio
import gc
import socket
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from sbclient.amqp import (
    ACCEPTED,
    Connection,
    ConnectionOptions,
    DeliveryReceived,
    DispositionReceived,
    LinkAttached,
    LinkDetached,
    PlainCredentials,
    Source,
    Target,
)
from sbclient.emulator import Emulator
from sbclient.emulator.context import ServerSettings
from sbclient.emulator.sas import ROOT_KEY, ROOT_KEY_NAME
from sbclient.entities import EntityKind
from sbclient.message import ServiceBusMessage
from tests.emulator.amqp.client import create
from tests.limit import HANG_S
from tests.payloads import payload_of

AMQP_HEADER: Final = b"AMQP\x00\x01\x00\x00"
SASL_HEADER: Final = b"AMQP\x03\x01\x00\x00"

pytestmark = pytest.mark.real_time

MIB: Final = 2**20
SHORT: Final = ServerSettings(handshake_timeout_s=1.0, request_timeout_s=1.0, http_idle_timeout_s=1.0)

UPGRADE: Final = (
    b"GET /$servicebus/websocket HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Protocol: AMQPWSB10\r\n\r\n"
)
HELLO: Final = bytes.fromhex("16030100c8010000c40303") + b"\x11" * 32 + b"\x20" + b"\x22" * 32 + b"\x00\x02\x13\x01"
"""The beginning of what a TLS client says first."""


@asynccontextmanager
async def served(certificates: Path, settings: ServerSettings | None = None) -> AsyncIterator[Emulator]:
    async with Emulator("contoso", seed=1, certificate_directory=certificates, settings=settings) as emulator:
        create(emulator.context().host, EntityKind.QUEUE, "orders")
        assert emulator.certificate_path.exists()
        yield emulator


class GoodClient:
    """Sends a message and receives it again, over and over, on one connection.

    Attributes:
        rounds: how often it has.
    """

    def __init__(self, port: int) -> None:
        self.rounds = 0
        self._port = port
        self._events: deque[Any] = deque()
        self._has_gone_on = asyncio.Event()
        options = ConnectionOptions(container_id="good", hostname="h")
        credentials = PlainCredentials(ROOT_KEY_NAME, ROOT_KEY)
        self._engine = Connection.client(options, now=0.0, mechanism="PLAIN", credentials=credentials)

    async def run(self) -> None:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            session = self._engine.begin()
            sender = session.attach_sender("s", target=Target(address="orders"))
            await self._told(LinkAttached)
            receiver = session.attach_receiver("r", source=Source(address="orders"))
            await self._told(LinkAttached)
            payload = payload_of(ServiceBusMessage(b"good"))
            while True:
                sender.send(payload, tag=self.rounds.to_bytes(4, "big"), needs_credit=False)
                assert (await self._told(DispositionReceived)).state == ACCEPTED
                receiver.grant(1)
                (await self._told(DeliveryReceived)).delivery.settle(ACCEPTED, settled=False)
                assert (await self._told(DispositionReceived)).state == ACCEPTED
                self.rounds += 1
                self._has_gone_on.set()
                await asyncio.sleep(0.005)
        finally:
            self._writer.close()

    async def more(self, count: int = 5) -> None:
        """Wait until it has done so many more."""
        wanted = self.rounds + count
        async with asyncio.timeout(HANG_S):
            while self.rounds < wanted:
                self._has_gone_on.clear()
                await self._has_gone_on.wait()

    async def _told(self, kind: type) -> Any:
        """The next event of a kind."""
        self._flush()
        while True:
            while self._events:
                event = self._events.popleft()
                if isinstance(event, kind):
                    return event
            async with asyncio.timeout(HANG_S):
                chunk = await self._reader.read(65_536)
            assert chunk, "the good client was hung up on"
            self._engine.receive_bytes(chunk, now=0.0)
            while (event := self._engine.next_event()) is not None:
                self._events.append(event)
            self._flush()

    def _flush(self) -> None:
        if output := self._engine.bytes_to_send(now=0.0):
            self._writer.write(output)


@asynccontextmanager
async def good_client(emulator: Emulator) -> AsyncIterator[GoodClient]:
    """One that goes on sending and receiving while the body runs, and after it."""
    client = GoodClient(emulator.ports["contoso"])
    running = asyncio.ensure_future(client.run())
    try:
        await client.more()
        yield client
        await client.more()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def resident_bytes() -> int:
    """What this process, which holds the emulator and the hostile clients' sockets, has in memory."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@contextmanager
def connections(port: int, count: int, said: Callable[[int], bytes]) -> Iterator[list[socket.socket]]:
    """So many connections on which something was said, and then nothing."""
    opened: list[socket.socket] = []
    try:
        for number in range(count):
            connection = socket.create_connection(("127.0.0.1", port), timeout=HANG_S)
            opened.append(connection)
            with suppress(OSError):
                connection.sendall(said(number))
        yield opened
    finally:
        for connection in opened:
            connection.close()


HALF_OPEN: Final = (
    b"",
    b"A",
    SASL_HEADER,
    AMQP_HEADER,
    HELLO,
    b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ",
    b"PUT / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999\r\n\r\n",
    UPGRADE,
)


async def test_a_thousand_half_open_connections_use_little_memory(certificates: Path) -> None:
    async with served(certificates) as emulator, good_client(emulator) as good:
        before, port = resident_bytes(), emulator.ports["contoso"]

        async def connect() -> None:
            said = [HALF_OPEN[number % len(HALF_OPEN)] for number in range(1_000)]
            opened = await asyncio.to_thread(stack.enter_context, connections(port, 1_000, said.__getitem__))
            assert len(opened) == 1_000

        with ExitStack() as stack:
            await connect()
            await good.more(20)
            assert resident_bytes() - before < 64 * MIB


async def _ends(connection: socket.socket, within_s: float = HANG_S) -> bool:
    """Whether the emulator hangs up."""
    loop = asyncio.get_running_loop()
    connection.setblocking(False)
    try:
        async with asyncio.timeout(within_s):
            while await loop.sock_recv(connection, 65_536):
                pass
    except TimeoutError:
        return False
    except OSError:
        return True
    return True


@pytest.mark.promise("emulator.token-timeout")
async def test_silent_clients_time_out(certificates: Path) -> None:
    async with served(certificates, SHORT) as emulator, good_client(emulator):
        said = [each for each in HALF_OPEN for _ in range(20)]
        with connections(emulator.ports["contoso"], len(said), said.__getitem__) as opened:
            ended = await asyncio.gather(*map(_ends, opened))
        assert [each for each, is_over in zip(said, ended, strict=True) if not is_over] == []


async def test_slow_requests_time_out(certificates: Path) -> None:
    async with served(certificates, SHORT) as emulator, good_client(emulator):
        with connections(emulator.ports["contoso"], 100, lambda _: b"GET / HTTP/1.1\r\n") as opened:

            async def trickle(connection: socket.socket) -> None:
                with suppress(OSError):
                    while True:
                        connection.send(b"a")
                        await asyncio.sleep(0.1)

            trickling = [asyncio.ensure_future(trickle(connection)) for connection in opened]
            ended = await asyncio.gather(*map(_ends, opened))
            for task in trickling:
                task.cancel()
            await asyncio.gather(*trickling, return_exceptions=True)
        assert all(ended)


def _endless(head: bytes, more: bytes) -> Callable[[socket.socket], int]:
    """Sends for ever, until the emulator hangs up or takes no more; returns the number of bytes."""

    def send(connection: socket.socket) -> int:
        sent = 0
        connection.settimeout(2.0)
        with suppress(OSError):
            connection.sendall(head)
            for _ in range(1_000):  # 64 MB
                connection.sendall(more)
                sent += len(more)
        return sent

    return send


def _frame(first: int, payload: bytes, *, claims: int | None = None) -> bytes:
    """A masked WebSocket frame, by its first byte; it may claim to be longer."""
    size = len(payload) if claims is None else claims
    head = bytes((first, 0x80 | size)) if size < 126 else bytes((first, 0xFF)) + size.to_bytes(8, "big")
    return head + bytes(4) + payload


ENDLESS: Final = {
    "a header without an end": (b"GET / HTTP/1.1\r\nX: ", b"a" * 65_536),
    "headers without an end": (b"GET / HTTP/1.1\r\n", b"X-Header: value\r\n" * 4_096),
    "a target without an end": (b"GET /", b"a" * 65_536),
    "a body without an end": (
        b"PUT /q HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"10000\r\n" + b"a" * 65_536 + b"\r\n",
    ),
    "a body that is promised": (
        b"PUT /q HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n",
        b"a" * 65_536,
    ),
    "fragments of a message without an end": (UPGRADE + _frame(0x02, AMQP_HEADER), _frame(0x00, b"\0\0\0\x08") * 4_096),
    "empty fragments": (UPGRADE + _frame(0x02, b"AMQP"), _frame(0x00, b"") * 8_192),
    "a fragment without an end": (UPGRADE + _frame(0x82, SASL_HEADER, claims=2**62), b"\0" * 65_536),
    "texts": (UPGRADE, _frame(0x81, b"text") * 4_096),
    "pings": (UPGRADE, _frame(0x89, b"p" * 125) * 512),
    "a frame of AMQP without an end": (AMQP_HEADER + b"\x7f\xff\xff\xff\x02\0\0\0", b"\0" * 65_536),
    "a SASL response without an end": (SASL_HEADER + b"\x7f\xff\xff\xff\x02\x01\0\0", b"\0" * 65_536),
    "a record of TLS without an end": (b"\x16\x03\x01\xff\xff", b"\x01" * 65_536),
    "alerts of TLS": (HELLO, b"\x15\x03\x03\0\x02\x01\0" * 8_192),
    "nothing at all": (b"", b"\0" * 65_536),
}


@pytest.mark.promise("emulator.no-token")
async def test_endless_requests_use_little_memory(
    certificates: Path, record_property: Callable[[str, object], None]
) -> None:
    sent: list[int] = []
    async with served(certificates, SHORT) as emulator, good_client(emulator) as good:
        for name, parts in ENDLESS.items():
            before = resident_bytes()
            with connections(emulator.ports["contoso"], 4, lambda _: b"") as opened:
                send = _endless(*parts)
                sending = [asyncio.ensure_future(asyncio.to_thread(send, connection)) for connection in opened]
                await good.more(10)
                sent += await asyncio.gather(*sending)
                assert resident_bytes() - before < 48 * MIB, name
    record_property("attacks", len(sent))
    record_property("bytes", sum(sent))


@pytest.mark.promise("emulator.bytes")
async def test_garbage_over_every_protocol_does_not_affect_other_clients(
    certificates: Path, caplog: pytest.LogCaptureFixture
) -> None:
    random, heads = Random("garbage"), [*HALF_OPEN, UPGRADE + _frame(0x82, SASL_HEADER), UPGRADE + _frame(0x02, b"A")]
    said = [random.choice(heads) + random.randbytes(random.randrange(400)) for _ in range(400)]
    async with served(certificates) as emulator, good_client(emulator):
        await asyncio.to_thread(_say_all, emulator.ports["contoso"], said)
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []


def _say_all(port: int, said: list[bytes]) -> None:
    with connections(port, len(said), said.__getitem__):
        pass


async def test_links_to_many_addresses_use_little_memory(certificates: Path) -> None:
    """A client without a token can request links with different long names."""
    async with served(certificates) as emulator, good_client(emulator):
        before = resident_bytes()
        reader, writer = await asyncio.open_connection("127.0.0.1", emulator.ports["contoso"])
        engine = Connection.client(ConnectionOptions(container_id="c", hostname="h"), now=0.0)
        session, refused, asked = engine.begin(), 0, 0
        while refused < 3_000:
            while asked < min(3_000, refused + 8):
                path = f"{asked:06}" + "x" * 1_900
                session.attach_sender(f"l{asked}", target=Target(address=path))
                asked += 1
            writer.write(engine.bytes_to_send(now=0.0))
            engine.receive_bytes(await asyncio.wait_for(reader.read(65_536), HANG_S), now=0.0)
            while (event := engine.next_event()) is not None:
                refused += isinstance(event, LinkDetached)
        writer.close()
        assert resident_bytes() - before < 6 * MIB
