"""A busy connection of any protocol does not block the others."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from itertools import chain, count
from pathlib import Path
from random import Random
from typing import TypeAlias

import pytest
from wsproto.events import Event

from sbclient import clock
from sbclient.amqp import DeliveryReceived, Properties, encode_message
from sbclient.amqp.frames import EMPTY_FRAME, encode_frame
from sbclient.amqp.performatives import Flow
from sbclient.amqp.states import Received
from sbclient.amqp.transfers import write_disposition, write_transfers
from sbclient.broker.entry import Entry
from sbclient.broker.faults import Call, Operation
from sbclient.certificate import Certificate
from sbclient.emulator.amqp.connection import PIECE_BYTES
from sbclient.emulator.amqp.receiver_link import MAX_TAKEN
from sbclient.emulator.context import NamespaceContext
from sbclient.emulator.faults import WireFaults
from sbclient.emulator.net.http import serve_http
from sbclient.emulator.net.http_messages import Request, Response
from sbclient.emulator.net.time_slice import MAX_DURATION_S, MAX_EVENTS, SHARE, TimeSlice
from sbclient.emulator.net.tls_stream import TlsStream
from sbclient.emulator.net.websocket_stream import WebSocketStream
from sbclient.emulator.sas import Authorizer
from sbclient.entities import EntityKind
from sbclient.hosting.host import BrokerHost
from sbclient.message import ServiceBusMessage
from tests.emulator.amqp.client import SETTLED, Client, connected, create, wire
from tests.emulator.net.test_websocket_stream import HELLO, PING, open_engine
from tests.hostile.key_updates import request_new_keys
from tests.payloads import encode_sections, payload_of


@pytest.fixture
def ticking_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let everything take time: ten microseconds from one reading of the clock to the next."""
    readings, monotonic = count(), clock.monotonic
    monkeypatch.setattr(clock, "monotonic", lambda: monotonic() + next(readings) * 1e-5)


@asynccontextmanager
async def bystander() -> AsyncIterator[list[int]]:
    """Run a task that counts how often the loop runs it."""
    turns = [0]

    async def stand_by() -> None:
        while True:
            turns[0] += 1
            await asyncio.sleep(0)

    beside = asyncio.ensure_future(stand_by())
    try:
        yield turns
    finally:
        beside.cancel()


class TestTurn:
    async def test_is_over_after_its_events(self) -> None:
        turn = TimeSlice()
        for _ in range(MAX_EVENTS):
            assert not turn.is_over
            turn.count()
        assert turn.is_over
        await turn.start_next()
        assert not turn.is_over

    @pytest.mark.promise("emulator.slices")
    async def test_is_over_after_its_time(self) -> None:
        turn = TimeSlice()
        await asyncio.sleep(MAX_DURATION_S * 0.9)
        assert not turn.is_over
        await asyncio.sleep(MAX_DURATION_S * 0.2)
        assert turn.is_over

    async def test_is_over_after_heavy_work(self) -> None:
        turn = TimeSlice()
        turn.end()
        assert turn.is_over

    async def test_has_fewer_events_the_more_work_they_cause_and_more_again_later(self) -> None:
        turn = TimeSlice()

        async def events() -> int:
            await turn.start_next()
            count = 0
            while not turn.is_over:
                turn.count()
                count += 1
            return count

        heavy = []
        for _ in range(7):
            turn.add_work(1.0)
            heavy.append(await events())
        assert heavy == [16, 8, 4, 2, 1, 1, 1]
        assert [await events() for _ in range(6)] == [2, 4, 8, 16, 32, 32]


@pytest.fixture
async def ticking(ticking_clock: None) -> NamespaceContext:
    host = BrokerHost("contoso", random=Random(1))
    create(host, EntityKind.QUEUE, "q")
    return NamespaceContext(host=host, authorizer=Authorizer(), wire_faults=WireFaults(Random(2)))


def transfers(client: Client, handle: int, payload: bytes, count: int) -> bytes:
    """So many settled messages as one piece."""
    frames = (
        write_transfers(
            client.session.channel,
            handle,
            number,
            number.to_bytes(4, "big"),
            0,
            payload,
            settled=True,
            state=None,
            max_frame_size=65_536,
        )
        for number in range(count)
    )
    return b"".join(chain.from_iterable(frames))


class TestAmqp:
    async def test_between_messages(self, context: NamespaceContext, host: BrokerHost) -> None:
        create(host, EntityKind.QUEUE, "q")
        async with connected(context, "q") as client:
            link = await client.sender("q")
            async with bystander() as turns:
                client.pipe.write(transfers(client, link.handle, payload_of(ServiceBusMessage(b"")), 3_200))
                while len(host.namespace.queue("q")) < 3_200:
                    before = len(host.namespace.queue("q"))
                    await asyncio.sleep(0)
                    assert len(host.namespace.queue("q")) - before <= MAX_EVENTS
            assert turns[0] >= 100

    async def test_between_requests(self, context: NamespaceContext, host: BrokerHost) -> None:
        create(host, EntityKind.QUEUE, "q")
        async with connected(context, "q") as client:
            link, replies = await client.node("q/$management")
            arguments = {"operation": "com.microsoft:peek-message"}
            peek = encode_sections(
                properties=Properties(message_id="1"), application_properties=arguments, value={"message-count": 1}
            )
            async with bystander() as turns:
                client.pipe.write(transfers(client, link.handle, peek, 200))
                for _ in range(200):
                    await client.event(DeliveryReceived, replies)
            assert turns[0] >= 200

    @pytest.mark.promise("emulator.slices")
    @pytest.mark.parametrize("frame", [EMPTY_FRAME, encode_frame(0, Flow(0, 5000, 0, 5000, echo=True), 512)])
    async def test_between_frames_without_content(self, ticking: NamespaceContext, frame: bytes) -> None:
        async with connected(ticking, "q") as client:
            async with bystander() as turns:
                client.pipe.write(frame * (200 * PIECE_BYTES // len(frame)))
                assert await client.put_token("q") == 202
            assert turns[0] >= 5  # of 200 pieces with some looks at the clock each

    async def test_between_repeated_dispositions_of_many_messages(
        self, context: NamespaceContext, host: BrokerHost
    ) -> None:
        create(host, EntityKind.QUEUE, "q")
        for _ in range(200):
            host.namespace.send(Call(Operation.SEND, clock.now()), "q", [encode_message(ServiceBusMessage(b""))])
        async with connected(context, "q") as client:
            link = await client.receiver("q", credit=200)
            for _ in range(200):
                await client.event(DeliveryReceived, link)
            frame = write_disposition(client.session.channel, True, 0, 2**31 - 2, settled=False, state=Received(0, 0))
            async with bystander() as turns:
                client.pipe.write(frame * 100)
                assert await client.put_token("q") == 202
            assert turns[0] >= 100

    async def test_between_deliveries_to_many_receivers(self, context: NamespaceContext, host: BrokerHost) -> None:
        create(host, EntityKind.QUEUE, "q")
        for _ in range(9_000):
            call = Call(Operation.SEND, clock.now())
            host.namespace.send(call, "q", [encode_message(ServiceBusMessage(b""))])
        async with connected(context, "q") as client:
            links = [await client.receiver("q", settle_mode=SETTLED) for _ in range(90)]
            for link in links:
                link.grant(1_000)
            client.flush()
            most = 0
            while left := len(host.namespace.queue("q")):
                await asyncio.sleep(0)
                most = max(most, left - len(host.namespace.queue("q")))
        assert 0 < most <= 2 * MAX_TAKEN

    async def test_messages_that_came_together_keep_their_order(
        self, context: NamespaceContext, host: BrokerHost
    ) -> None:
        create(host, EntityKind.QUEUE, "q")
        async with connected(context, "q") as client:
            link = await client.sender("q")
            payloads = [payload_of(ServiceBusMessage(str(number))) for number in range(300)]
            frames = [
                write_transfers(
                    client.session.channel,
                    link.handle,
                    number,
                    b"t",
                    0,
                    payload,
                    settled=True,
                    state=None,
                    max_frame_size=65_536,
                )
                for number, payload in enumerate(payloads)
            ]
            client.pipe.write(b"".join(chain.from_iterable(frames)))
            received: list[Entry] = []
            while len(received) < 300:
                received += await host.receive("q", max_message_count=300, max_wait_time_s=5)
        assert [bytes(entry.content).decode() for entry in received] == [str(number) for number in range(300)]


class TestHttp:
    async def served(self, context: NamespaceContext, sent: bytes) -> list[Request]:
        """What is asked by bytes that come at once."""
        client, server = wire()
        asked = []

        async def handle(request: Request) -> Response:
            asked.append(request)
            return Response(200)

        async def upgrade(*_: object) -> None:
            raise AssertionError("unexpected request for a WebSocket")

        await client.close()
        await serve_http(server, context, sent, handle, upgrade)
        return asked

    async def test_between_the_chunks_of_a_body(self, context: NamespaceContext) -> None:
        head = b"PUT /q HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        async with bystander() as turns:
            (request,) = await self.served(context, head + b"1\r\nx\r\n" * 3_200 + b"0\r\n\r\n")
        assert request.body == b"x" * 3_200
        assert turns[0] >= 100

    async def test_between_requests(self, context: NamespaceContext) -> None:
        async with bystander() as turns:
            asked = await self.served(context, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 100)
        assert len(asked) == 100
        assert turns[0] >= 100


async def test_between_the_frames_of_a_websocket() -> None:
    client, server = wire()
    stream = WebSocketStream(server, open_engine(), asyncio.Semaphore())
    client.write(PING * 3_200 + HELLO)
    async with bystander() as turns:
        assert await stream.read() == b"hello"
    assert turns[0] >= 100


async def most_in_a_step(count: Callable[[], int]) -> int:
    """The most that is counted in one step of the event loop."""
    most = 0
    for _ in range(300):
        before = count()
        await clock.sleep(0)
        most = max(most, count() - before)
    return most


class TestWithoutToken:
    @pytest.mark.promise("emulator.turns")
    async def test_few_websockets_are_served_in_a_step(self) -> None:
        turns, taken = asyncio.Semaphore(8), [0]

        class Counted(WebSocketStream):
            def _take(self, event: Event) -> None:
                taken[0] += 1
                super()._take(event)

        readings = []
        for _ in range(100):
            client, server = wire()
            client.write(PING * 3_200)
            readings.append(asyncio.ensure_future(Counted(server, open_engine(), turns).read()))
        assert 0 < await most_in_a_step(lambda: taken[0]) <= 8 * MAX_EVENTS // SHARE
        for reading in readings:
            reading.cancel()
        await asyncio.gather(*readings, return_exceptions=True)

    @pytest.mark.promise("emulator.turns")
    async def test_few_pipelined_requests_are_served_in_a_step(self, context: NamespaceContext) -> None:
        asked = [0]

        async def handle(request: Request) -> Response:
            asked[0] += 1
            return Response(401)

        async def upgrade(*_: object) -> None:
            raise AssertionError("unexpected request for a WebSocket")

        sent = b"GET /q HTTP/1.1\r\nHost: localhost\r\n\r\n" * 100
        servings = [asyncio.ensure_future(serve_http(wire()[1], context, sent, handle, upgrade)) for _ in range(100)]
        await clock.sleep(0)  # the first request has had its turn when the protocol was detected
        assert 0 < await most_in_a_step(lambda: asked[0]) <= 8
        for serving in servings:
            serving.cancel()
        await asyncio.gather(*servings, return_exceptions=True)

    async def test_token_ends_the_wait_for_turns(self) -> None:
        turns = asyncio.Semaphore(1)
        await turns.acquire()
        client, server = wire()
        stream = WebSocketStream(server, open_engine(), turns)
        client.write(HELLO)
        reading = asyncio.ensure_future(stream.read())
        assert await most_in_a_step(lambda: int(reading.done())) == 0
        turns.release()
        assert await reading == b"hello"
        await turns.acquire()
        stream.trust()
        client.write(PING * 3_200 + HELLO)
        assert await stream.read() == b"hello"


Send: TypeAlias = Callable[[Callable[[ssl.SSLObject], object]], None]


@asynccontextmanager
async def agreed_tls(certificates: Path) -> AsyncIterator[tuple[TlsStream, Send]]:
    """A stream after its handshake, and a function that writes all that its client sends in a call."""
    certificate = Certificate(certificates)
    certificate.make()
    client, server = wire()
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    trusting = ssl.create_default_context(cafile=certificate.path)
    engine = trusting.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with suppress(ssl.SSLWantReadError):
        engine.do_handshake()
    stream = TlsStream(server, await certificate.server_context(), outgoing.read(), asyncio.Semaphore())
    agreed = asyncio.ensure_future(stream.handshake())
    incoming.write(await client.read())
    engine.do_handshake()

    def send(write: Callable[[ssl.SSLObject], object]) -> None:
        write(engine)
        client.write(outgoing.read())

    send(lambda _: None)
    assert await agreed
    yield stream, send


@pytest.mark.real_time
@pytest.mark.promise("emulator.turns")
async def test_between_the_records_of_tls(certificates: Path) -> None:
    async with agreed_tls(certificates) as (stream, send), bystander() as turns:
        send(lambda engine: [engine.write(b"x") for _ in range(200)])
        assert b"".join([await stream.read() for _ in range(200)]) == b"x" * 200
    assert turns[0] >= 200


@pytest.mark.real_time
@pytest.mark.promise("emulator.turns")
@pytest.mark.parametrize("has_token", [False, True])
async def test_between_requests_for_new_keys(certificates: Path, has_token: bool) -> None:
    async with agreed_tls(certificates) as (stream, send), bystander() as turns:
        if has_token:
            stream.trust()
        send(lambda engine: [request_new_keys(engine) for _ in range(600)])
        send(lambda engine: engine.write(b"x"))
        assert await stream.read() == b"x"
    assert turns[0] >= 600 // 32
