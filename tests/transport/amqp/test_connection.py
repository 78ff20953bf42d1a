from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sbclient import NEXT_AVAILABLE_SESSION, ServiceBusMessage, clock
from sbclient.amqp import AmqpError, ConnectionOptions
from sbclient.amqp.frames import EMPTY_FRAME
from sbclient.errors import (
    InvalidOperationError,
    OperationTimeoutError,
    ServiceBusAuthorizationError,
    ServiceBusConnectionError,
)
from sbclient.transport.amqp.transport import AmqpTransport
from tests.payloads import batch_of
from tests.transport.amqp.service import Service, hold

X = [ServiceBusMessage("x")]


async def test_silent_peer_is_probed_and_dropped_after_a_timeout(service: Service, transport: AmqpTransport) -> None:
    sender = transport.open_sender("orders")
    await sender.send(batch_of(X), timeout_s=10)
    service.end.is_deaf = True
    with pytest.raises(OperationTimeoutError):
        await sender.send(batch_of(X), timeout_s=10)
    await clock.sleep(6)
    assert not sender.is_open
    await sender.send(batch_of(X), timeout_s=10)
    assert len(service.ends) == 2


async def test_unexpected_error_of_the_socket_ends_the_connection_at_once(
    service: Service, transport: AmqpTransport
) -> None:
    sender = transport.open_sender("orders")
    await sender.send(batch_of(X), timeout_s=10)

    def write(data: bytes) -> None:
        raise RuntimeError("the handler is closed")

    service.end.write = write  # type: ignore[method-assign]  # a socket with a defect
    logged: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: logged.append(context))
    began_at = clock.monotonic()
    with pytest.raises(ServiceBusConnectionError, match="RuntimeError: the handler is closed"):
        await sender.send(batch_of(X), timeout_s=10)
    assert clock.monotonic() - began_at < 1
    assert isinstance(logged[0]["exception"], RuntimeError)
    await sender.send(batch_of(X), timeout_s=10)
    assert len(service.ends) == 2


async def test_peer_that_answers_the_probe_is_kept(service: Service, transport: AmqpTransport) -> None:
    sender = transport.open_sender("orders")
    await sender.send(batch_of(X), timeout_s=10)
    service.on_transfer = hold
    with pytest.raises(OperationTimeoutError):
        await sender.send(batch_of(X), timeout_s=10)
    await clock.sleep(6)
    assert sender.is_open
    assert len(service.ends) == 1


async def test_peer_that_has_answered_probes_is_probed_again(service: Service, transport: AmqpTransport) -> None:
    sender = transport.open_sender("orders")
    await sender.send(batch_of(X), timeout_s=10)
    answering, service.on_transfer = service.on_transfer, hold
    for _ in range(2):
        with pytest.raises(OperationTimeoutError):
            await sender.send(batch_of(X), timeout_s=10)
        await clock.sleep(6)
        assert sender.is_open
    service.end.is_deaf = True
    with pytest.raises(OperationTimeoutError):
        await sender.send(batch_of(X), timeout_s=10)
    await clock.sleep(6)
    assert not sender.is_open
    service.on_transfer = answering
    await sender.send(batch_of(X), timeout_s=10)
    assert len(service.ends) == 2


async def test_idle_frames_keep_the_connection(service: Service, transport: AmqpTransport) -> None:
    service.options = ConnectionOptions(container_id="service", idle_timeout_s=30.0)
    sender = transport.open_sender("orders")
    await sender.send(batch_of(X), timeout_s=10)
    before = len(service.end.written)
    for _ in range(8):
        await clock.sleep(10)
        service.end.engine.pass_time(now=clock.monotonic())
        service.end.flush()
    assert bytes(service.end.written[before:]).count(EMPTY_FRAME) >= 5
    await sender.send(batch_of(X), timeout_s=10)
    assert len(service.ends) == 1


async def test_peer_that_falls_silent_is_dropped_without_a_call(service: Service, transport: AmqpTransport) -> None:
    sender = transport.open_sender("orders")
    await sender.send(batch_of(X), timeout_s=10)
    service.end.is_deaf = True
    await clock.sleep(121)
    assert not sender.is_open


async def test_handshake_without_answer_ends(service: Service, transport: AmqpTransport) -> None:
    connect = service.connect

    async def deaf(sink: object) -> object:
        end = await connect(sink)  # type: ignore[arg-type]  # it is a sink
        end.is_deaf = True
        return end

    service.connect = deaf  # type: ignore[assignment,method-assign]  # a service that does not react
    silent = service.transport()
    began_at = clock.monotonic()
    with pytest.raises(ServiceBusConnectionError) as caught:
        await silent.open_sender("orders").send(batch_of(X), timeout_s=60)
    assert not caught.value.is_in_doubt
    assert clock.monotonic() - began_at == pytest.approx(30, abs=1)
    await silent.close()


async def test_close_by_the_service_leaves_sends_in_doubt(service: Service, transport: AmqpTransport) -> None:
    service.on_transfer = lambda _: service.end.engine.close(
        AmqpError("amqp:connection:forced", "going down"), now=clock.monotonic()
    )
    with pytest.raises(ServiceBusConnectionError) as caught:
        await transport.open_sender("orders").send(batch_of(X), timeout_s=10)
    assert caught.value.is_in_doubt


async def test_close_instead_of_open_decides_the_error(service: Service, transport: AmqpTransport) -> None:
    connect = service.connect

    async def closing(sink: object) -> object:
        end = await connect(sink)  # type: ignore[arg-type]  # it is a sink
        work = end.work

        def work_and_close() -> None:
            work()
            if end.engine.remote is not None and not end.engine.is_over:
                end.engine.close(AmqpError("amqp:unauthorized-access", "no"), now=0.0)
                end.flush()

        end.work = work_and_close  # type: ignore[method-assign]  # a service that closes at once
        return end

    service.connect = closing  # type: ignore[assignment,method-assign]  # a service that closes at once
    unwelcome = service.transport()
    with pytest.raises((ServiceBusAuthorizationError, ServiceBusConnectionError)) as caught:
        await unwelcome.open_sender("orders").send(batch_of(X), timeout_s=60)
    assert not caught.value.is_in_doubt
    await unwelcome.close()


@pytest.mark.deviation("client.connections")
async def test_further_connection_is_opened_at_the_limit_of_channels(
    service: Service, transport: AmqpTransport
) -> None:
    service.options = ConnectionOptions(container_id="service", channel_max=3)
    service.replies["com.microsoft:cancel-scheduled-message"] = lambda body: (200, None, None)
    senders = [transport.open_sender(f"q{number}") for number in range(7)]
    for sender in senders:
        await sender.send(batch_of(X), timeout_s=10)
    assert all(sender.is_open for sender in senders)
    assert len(service.ends) == 7
    for sender in senders:  # each connection has a channel left for a management node
        await sender.cancel_scheduled([1], timeout_s=10)
    assert len(service.ends) == 7


async def test_links_that_attach_at_once_obey_the_limit_of_channels(service: Service, transport: AmqpTransport) -> None:
    service.options = ConnectionOptions(container_id="service", channel_max=19)
    receivers = [transport.open_receiver("orders") for _ in range(40)]
    await asyncio.gather(*(receiver.open(timeout_s=10) for receiver in receivers))
    assert [len(end.links["orders"]) for end in service.ends] == [9, 9, 9, 9, 4]


async def test_pending_accepts_need_no_task_each(service: Service, transport: AmqpTransport) -> None:
    service.unanswered.update(f"visits-{number}" for number in range(4))
    service.options = ConnectionOptions(container_id="service", channel_max=4_999)
    for number in range(4):  # connections and tokens
        with pytest.raises(OperationTimeoutError):
            await transport.open_receiver(f"visits-{number}", session="first").open(timeout_s=1)
    receivers = [
        transport.open_receiver(f"visits-{number % 4}", session=NEXT_AVAILABLE_SESSION) for number in range(200)
    ]
    before = asyncio.all_tasks()
    accepts = [asyncio.ensure_future(receiver.open(timeout_s=60)) for receiver in receivers]
    await clock.sleep(0.1)
    assert len(service.end.attached) >= len(receivers)
    assert asyncio.all_tasks() - before == set(accepts), "a pending accept has a task besides that of its caller"
    for accept in accepts:
        accept.cancel()
    await asyncio.gather(*accepts, return_exceptions=True)


@pytest.mark.deviation("client.connections")
async def test_many_links_share_one_connection(service: Service, transport: AmqpTransport) -> None:
    service.options = ConnectionOptions(container_id="service", channel_max=1_000)
    senders = [transport.open_sender(f"q{number}") for number in range(150)]
    receivers = [transport.open_receiver(f"q{number}") for number in range(150)]
    await asyncio.gather(*(sender.open(timeout_s=10) for sender in senders))
    await asyncio.gather(*(receiver.open(timeout_s=10) for receiver in receivers))
    assert len(service.ends) == 1


async def test_closed_links_free_their_channels(service: Service, transport: AmqpTransport) -> None:
    service.options = ConnectionOptions(container_id="service", channel_max=7)
    for number in range(20):
        sender = transport.open_sender(f"q{number}")
        await sender.send(batch_of(X), timeout_s=10)
        await sender.close()
        receiver = transport.open_receiver(f"q{number}")
        await receiver.open(timeout_s=10)
        await receiver.close()
    assert len(service.ends) == 1


async def test_close_ends_everything(service: Service, transport: AmqpTransport) -> None:
    sender = transport.open_sender("orders")
    receiver = transport.open_receiver("orders")
    await sender.send(batch_of(X), timeout_s=10)
    waiting = asyncio.create_task(receiver.receive(max_message_count=1, max_wait_time_s=60))
    await clock.sleep(1)
    await transport.close()
    await transport.close()
    with pytest.raises((ServiceBusConnectionError, InvalidOperationError)):
        await waiting
    assert service.end.engine.is_over
    assert service.end.is_closed
    with pytest.raises(InvalidOperationError):
        await transport.open_sender("orders").send(batch_of(X), timeout_s=10)


async def test_close_of_a_silent_peer_ends_soon(service: Service, transport: AmqpTransport) -> None:
    await transport.open_sender("orders").send(batch_of(X), timeout_s=10)
    await transport.open_receiver("orders").open(timeout_s=10)
    service.end.is_deaf = True
    began_at = clock.monotonic()
    await transport.close()
    assert clock.monotonic() - began_at < 6
    assert service.end.is_closed
