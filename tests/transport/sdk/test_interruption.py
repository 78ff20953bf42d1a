"""A receive call is interrupted while a frame is half here, over a slow link and with the real SDK."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from azure.servicebus._pyamqp.aio._client_async import ReceiveClientAsync

from sbclient import ServiceBusClient, ServiceBusMessage, ServiceBusReceivedMessage
from sbclient.emulator import Emulator
from tests.processes.namespaces import connection_string
from tests.processes.proxy import Proxy, Trouble, Way

pytestmark = pytest.mark.real_time

LARGE = "0123456789" * 6_000
SMALL = 10


@pytest.fixture
async def emulator() -> AsyncIterator[Emulator]:
    async with Emulator("contoso") as emulator:
        yield emulator


@pytest.fixture
async def proxy(emulator: Emulator) -> AsyncIterator[Proxy]:
    proxy = Proxy(emulator.ports["contoso"], lambda uid: None)
    await proxy.start()
    yield proxy
    await proxy.close()


@pytest.fixture
def outcomes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the SDK has said of deliveries."""
    said: list[str] = []
    settle = ReceiveClientAsync.settle_messages_async

    async def noted(client: Any, number: int, tag: bytes, outcome: Any, **more: Any) -> None:
        said.append(outcome)
        await settle(client, number, tag, outcome, **more)

    monkeypatch.setattr(ReceiveClientAsync, "settle_messages_async", noted)
    return said


async def test_settling_interrupts_a_wait_and_what_arrives_meanwhile_is_kept(
    emulator: Emulator, proxy: Proxy, outcomes: list[str]
) -> None:
    async with (
        ServiceBusClient.from_connection_string(emulator.connection_string) as direct,
        ServiceBusClient.from_connection_string(connection_string(proxy.port)) as slow,
    ):
        await direct.administration.create_queue("orders")
        sender = direct.get_queue_sender("orders")
        await sender.send_messages([ServiceBusMessage(str(number)) for number in range(SMALL)])
        receiver = slow.get_queue_receiver("orders")
        held: list[ServiceBusReceivedMessage] = []
        while len(held) < SMALL:
            held += await receiver.receive_messages(SMALL - len(held), max_wait_time=5.0)
        waiting = asyncio.ensure_future(receiver.receive_messages(1, max_wait_time=30.0))
        await asyncio.sleep(0.1)
        proxy.begin(Trouble(ways=(Way.BACK,), bytes_per_s=60_000.0))
        await sender.send_messages(ServiceBusMessage(LARGE))
        for message in held:
            await asyncio.sleep(0.03)
            await receiver.complete_message(message)
        (large,) = await waiting
        assert str(large) == LARGE
        await receiver.complete_message(large)
        counts = await direct.administration.get_queue_runtime_properties("orders")
    assert counts.total_message_count == 0
    assert outcomes == ["accepted"] * (SMALL + 1)


async def test_what_arrives_while_somebody_else_has_a_turn_is_handed_over_at_once(
    emulator: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fewer messages than were asked for lie ready when the call that waits for them goes on."""
    ask = ReceiveClientAsync.mgmt_request_async
    async with (
        ServiceBusClient.from_connection_string(emulator.connection_string) as direct,
        ServiceBusClient.from_connection_string(emulator.connection_string) as client,
    ):
        await direct.administration.create_queue("orders")
        sender = direct.get_queue_sender("orders")

        async def asked_late(handler: Any, *arguments: Any, **more: Any) -> Any:
            await sender.send_messages([ServiceBusMessage(str(number)) for number in range(SMALL)])
            while handler._received_messages.qsize() < SMALL:
                await handler._connection.listen(wait=0.1)
            return await ask(handler, *arguments, **more)

        receiver = client.get_queue_receiver("orders")
        waiting = asyncio.ensure_future(receiver.receive_messages(SMALL + 1, max_wait_time=50.0))
        await asyncio.sleep(0.3)
        monkeypatch.setattr(ReceiveClientAsync, "mgmt_request_async", asked_late)
        await receiver.peek_messages(1)
        async with asyncio.timeout(20.0):
            messages = await waiting
    assert sorted(map(int, map(str, messages))) == [*range(SMALL)]
