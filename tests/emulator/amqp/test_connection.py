"""Connections: which are accepted, which are closed, and that no client affects another."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest

from sbclient import clock
from sbclient.amqp import ACCEPTED, DeliveryReceived, PlainCredentials, Source, Target, encode_message
from sbclient.broker.faults import Fault, FaultKind, Operation
from sbclient.emulator.amqp import connection, peer
from sbclient.emulator.amqp.connection import serve_amqp
from sbclient.emulator.context import NamespaceContext
from sbclient.entities import EntityKind
from sbclient.hosting.host import BrokerHost
from sbclient.message import ServiceBusMessage
from tests.emulator.amqp.client import Client, Pipe, connected, create, wire
from tests.payloads import payload_of

AMQP_HEADER = b"AMQP\x00\x01\x00\x00"
SASL_HEADER = b"AMQP\x03\x01\x00\x00"


@pytest.fixture
async def queue(host: BrokerHost) -> str:
    create(host, EntityKind.QUEUE, "q")
    return "q"


async def begun(context: NamespaceContext, *, first: bytes = b"") -> tuple[Pipe, asyncio.Task[None]]:
    """A connection without a client behind it."""
    near, far = wire()
    return near, asyncio.get_running_loop().create_task(serve_amqp(far, context, first))


async def said(pipe: Pipe) -> bytes:
    """Everything that the server says until it hangs up."""
    pieces = []
    while piece := await pipe.read():
        pieces.append(piece)
    return b"".join(pieces)


async def test_the_bytes_that_were_read_before_count(context: NamespaceContext) -> None:
    pipe, server = await begun(context, first=SASL_HEADER[:3])
    pipe.write(SASL_HEADER[3:])
    answer = await pipe.read()
    assert answer.startswith(SASL_HEADER)
    assert b"ANONYMOUS" in answer
    await pipe.close()
    await server


async def test_plain_accepts_a_key_of_the_namespace(context: NamespaceContext, queue: str) -> None:
    credentials = PlainCredentials("RootManageSharedAccessKey", "SAS_KEY_VALUE")
    async with connected(context, credentials=credentials) as client:
        assert await client.send(await client.sender(queue), ServiceBusMessage("x")) == ACCEPTED


async def test_plain_rejects_an_unknown_key(context: NamespaceContext, queue: str) -> None:
    async with connected(context, credentials=PlainCredentials("RootManageSharedAccessKey", "guess")) as client:
        assert (await asyncio.wait_for(client.closed, 10)).error is not None


async def test_a_proper_close_is_answered(context: NamespaceContext, queue: str) -> None:
    async with connected(context, queue) as client:
        await client.receiver(queue, credit=1)
        await client.close()
        closed = await client.closed
        assert closed.error is None


async def test_a_silent_client_is_dropped(context: NamespaceContext, queue: str) -> None:
    async with connected(context, queue) as client:
        closed = await asyncio.wait_for(client.closed, 1_000)
        assert closed.error is not None
        assert closed.error.condition == "amqp:connection:forced"
        assert closed.error.description == (
            "The connection was inactive for more than the allowed 240000 milliseconds and is closed by container "
            "'contoso'."
        )
        assert 239 <= clock.monotonic() <= 250


@pytest.mark.promise("emulator.token-timeout")
@pytest.mark.deviation("emulator.connections")
async def test_a_client_without_a_token_is_dropped_after_twenty_seconds(context: NamespaceContext, queue: str) -> None:
    async with connected(context) as client:
        assert await client.put_token(queue, "bad") == 401
        closed = await asyncio.wait_for(client.closed, 100)
        assert closed.error is not None
        assert closed.error.condition == "amqp:unauthorized-access"
        assert 20 <= clock.monotonic() <= 26


async def test_a_client_whose_token_has_ended_is_not_dropped_for_that(context: NamespaceContext, queue: str) -> None:
    async with connected(context) as client:
        await client.put_token(queue, lives_s=30)
        await asyncio.sleep(100)
        assert await client.put_token(queue) == 202
        assert (await client.sender(queue)).is_open


async def test_a_client_that_never_opens_is_dropped(context: NamespaceContext) -> None:
    pipe, server = await begun(context)
    pipe.write(SASL_HEADER)
    await asyncio.wait_for(said(pipe), 60)
    await server


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"AMQP\x09\x09\x09\x09",
        SASL_HEADER + b"\xff" * 100,
        AMQP_HEADER + b"\x00\x00\x00\x08\x02\x00\x00\x00" * 3 + b"\x00\x00\x00\x01",
        AMQP_HEADER + b"\xff\xff\xff\xff\x02\x00\x00\x00",
    ],
)
async def test_garbage_ends_the_connection_and_no_other(context: NamespaceContext, queue: str, garbage: bytes) -> None:
    async with connected(context, queue) as client:
        pipe, server = await begun(context)
        pipe.write(garbage)
        await asyncio.wait_for(said(pipe), 120)
        await server
        assert await client.send(await client.sender(queue), ServiceBusMessage("x")) == ACCEPTED


@pytest.mark.parametrize("seed", range(60))
async def test_a_conversation_that_is_bent_somewhere_ends_at_worst_itself(
    context: NamespaceContext, queue: str, seed: int
) -> None:
    random = Random(seed)
    async with connected(context, queue) as client:
        sent = await recorded(context, queue)
        bent = bytearray(sent)
        for _ in range(random.randint(1, 5)):
            bent[random.randrange(8, len(bent))] = random.randrange(256)
        pipe, server = await begun(context)
        pipe.write(bytes(bent))
        await asyncio.sleep(1)
        await pipe.close()
        await asyncio.wait_for(server, 60)
        assert await client.send(await client.sender(queue), ServiceBusMessage("x")) == ACCEPTED


async def recorded(context: NamespaceContext, queue: str) -> bytes:
    """What a client says that sends, receives, settles and asks."""
    sent: list[bytes] = []
    async with connected(context) as client:
        write = client.pipe.write

        def recording(data: bytes) -> None:
            sent.append(data)
            write(data)

        client.pipe.write = recording  # type: ignore[method-assign]  # a tap on the wire
        await client.put_token(queue)
        await client.send(await client.sender(queue), ServiceBusMessage("x", application_properties={"a": 1}))
        link = await client.receiver(queue, credit=1)
        await client.settle((await client.event(DeliveryReceived, link)).delivery, ACCEPTED)
        await client.ask(queue, "peek-message", {})
    return b"".join(sent)


async def test_a_thousand_links_are_served_and_forgotten(context: NamespaceContext, queue: str) -> None:
    async with connected(context, queue) as client:
        links = []
        for number in range(1_000):
            if number % 250 == 0:
                client.begin()  # a session has up to 256 links
            links.append(await client.sender(queue))
        assert await client.send(links[-1], ServiceBusMessage("x")) == ACCEPTED
        for link in links:
            link.detach()
        client.flush()
        await asyncio.sleep(1)
        assert await client.send(await client.sender(queue), ServiceBusMessage("x")) == ACCEPTED


@pytest.mark.promise("emulator.with-token")
async def test_links_are_bounded_over_all_sessions(
    context: NamespaceContext, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "MAX_LINKS", 5)
    async with connected(context, queue) as client, connected(context, queue) as other:
        assert (await client.sender(queue)).is_open
        second = client.engine.begin()
        links = [second.attach_sender(f"more-{number}", target=Target(address=queue)) for number in range(4)]
        client.flush()
        await asyncio.sleep(1)
        assert not any(link.is_open for link in links)
        assert not second.is_open
        assert await client.send(await client.sender(queue), ServiceBusMessage("x")) == ACCEPTED
        assert await other.send(await other.sender(queue), ServiceBusMessage("x")) == ACCEPTED


async def test_a_client_with_many_running_operations_is_not_read(
    context: NamespaceContext, host: BrokerHost, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer, "MAX_WORK_COUNT", 10)
    async with connected(context, queue) as client:
        link = await client.sender(queue)
        host.inject(Fault(FaultKind.SLOW, queue, operations=(Operation.SEND,), latency_s=20.0))
        payload = payload_of(ServiceBusMessage("x" * 60_000))
        for number in range(40):
            link.send(payload, tag=number.to_bytes(4, "big"), needs_credit=False)
            client.flush()
        await asyncio.sleep(5)
        assert len(host.namespace.queue(queue)) <= 11
        await asyncio.sleep(100)
        assert len(host.namespace.queue(queue)) == 40
        assert not link.unsettled  # each got its answer, though late


async def test_links_that_wait_do_not_keep_a_client_from_being_read(
    context: NamespaceContext, host: BrokerHost, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer, "MAX_WORK_COUNT", 10)
    create(host, EntityKind.QUEUE, "sessions", requires_session=True)
    async with connected(context, queue, "sessions") as client:
        for number in range(10):
            await client.receiver(queue, credit=1)
            next_session = Source(address="sessions", filter={"com.microsoft:session-filter": None})
            client.session.attach_receiver(f"pending-{number}", source=next_session)
        client.flush()
        await asyncio.sleep(1)
        assert await client.send(await client.sender(queue), ServiceBusMessage("x")) == ACCEPTED


async def test_an_error_of_our_own_ends_that_connection_with_an_internal_error(
    context: NamespaceContext, host: BrokerHost, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connected(context, queue) as client, connected(context, queue) as other:
        link = await client.sender(queue)
        alive = await other.sender(queue)

        def broken(*_: Any, **__: Any) -> None:
            raise RuntimeError("a bug")

        with monkeypatch.context() as patch:
            patch.setattr(host.namespace, "send", broken)
            link.send(payload_of(ServiceBusMessage("x")), tag=b"1")
            client.flush()
            closed = await asyncio.wait_for(client.closed, 60)
        assert closed.error is not None
        assert closed.error.condition == "amqp:internal-error"
        assert "bug" not in (closed.error.description or "")
        assert await other.send(alive, ServiceBusMessage("x")) == ACCEPTED


async def test_many_connections_run_concurrently(context: NamespaceContext, queue: str) -> None:
    async def one(number: int) -> None:
        async with connected(context, queue) as client:
            assert await client.send(await client.sender(queue), ServiceBusMessage(str(number))) == ACCEPTED

    async with asyncio.TaskGroup() as group:
        for number in range(50):
            group.create_task(one(number))
    assert len(context.host.namespace.queue(queue)) == 50


@pytest.mark.parametrize("address", [5, "x" * 3_000, None])
async def test_invalid_address_is_rejected(context: NamespaceContext, queue: str, address: Any) -> None:
    async with connected(context, queue) as client:
        assert await client.refusal(await client.sender(address)) == "amqp:invalid-field"
        assert await client.refusal(await client.receiver(address)) == "amqp:invalid-field"


async def test_a_link_that_detaches_before_it_is_answered_is_forgotten(context: NamespaceContext, queue: str) -> None:
    async with connected(context, queue) as client:
        await quickly_gone(client, queue)
        assert await client.send(await client.sender(queue), ServiceBusMessage("x")) == ACCEPTED


async def quickly_gone(client: Client, path: str) -> None:
    session = client.session
    session.attach_sender("gone-1", target=Target(address=path)).detach()
    session.attach_receiver("gone-2", source=Source(address=path)).detach()
    client.flush()
    await asyncio.sleep(1)


async def test_message_sent_right_before_the_close_is_stored(context: NamespaceContext, queue: str) -> None:
    async with connected(context, queue) as client:
        link = await client.sender(queue)
        for number in range(20):
            link.send(payload_of(ServiceBusMessage(str(number))), tag=number.to_bytes(4, "big"), settled=True)
        await client.close()
    assert len(context.host.namespace.queue(queue)) == 20


async def test_an_error_of_our_own_in_answering_an_event_ends_that_connection(
    context: NamespaceContext, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connected(context, queue) as client:
        link = await client.sender(queue)

        def broken(*_: Any) -> None:
            raise RuntimeError("a bug")

        monkeypatch.setattr("sbclient.emulator.amqp.sender_link.SenderLink.on_delivery", broken)
        link.send(payload_of(ServiceBusMessage("x")), tag=b"1")
        client.flush()
        closed = await asyncio.wait_for(client.closed, 60)
        assert closed.error is not None
        assert closed.error.condition == "amqp:internal-error"


async def closing(client: Client, host: BrokerHost, queue: str) -> None:
    """The server closes the connection, and the client does not hear it."""
    link = await client.sender(queue)
    client.engine.receive_bytes = lambda *_, **__: None  # type: ignore[method-assign]  # deaf from now on
    host.inject(Fault(FaultKind.DOWN, operations=(Operation.SEND,), count=1))
    link.send(payload_of(ServiceBusMessage("x")), tag=b"1")
    client.flush()
    await asyncio.sleep(1)


async def test_no_message_is_locked_for_a_client_that_does_not_answer_a_close(
    context: NamespaceContext, host: BrokerHost, queue: str
) -> None:
    async with connected(context, queue) as client:
        await client.receiver(queue, credit=1)
        await closing(client, host, queue)
        await host.perform(
            Operation.RENEW,
            queue,
            lambda call: host.namespace.send(call, queue, [encode_message(ServiceBusMessage("x"))]),
            timeout_s=1,
        )
        await asyncio.sleep(1)
        (message,) = await host.receive(queue, max_message_count=1, max_wait_time_s=1)
        assert message.delivery_count == 0


async def test_a_session_granted_while_the_client_closes_is_released(
    context: NamespaceContext, host: BrokerHost, queue: str
) -> None:
    create(host, EntityKind.QUEUE, "s", requires_session=True)
    async with connected(context, "") as client:
        source = Source(address="s", filter={"com.microsoft:session-filter": None})
        client.session.attach_receiver("waits", source=source)
        await closing(client, host, queue)
        message = ServiceBusMessage("x", session_id="a")
        await host.perform(
            Operation.RENEW, "s", lambda call: host.namespace.send(call, "s", [encode_message(message)]), timeout_s=1
        )
        await asyncio.sleep(1)
        assert (await host.accept_session("s", "a", timeout_s=1)).session_id == "a"
