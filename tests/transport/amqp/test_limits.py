"""The client obeys the limits that the emulator states, over sockets."""

from __future__ import annotations

import asyncio

import pytest

from sbclient import ServiceBusClient, ServiceBusError, ServiceBusMessage
from sbclient.amqp.frames import AMQP_HEADER, encode_frame
from sbclient.amqp.performatives import Open
from sbclient.emulator import Emulator
from sbclient.emulator.context import ServerSettings
from sbclient.errors import InvalidOperationError

pytestmark = pytest.mark.real_time


async def used(emulator: Emulator, count: int) -> int:
    """Send and receive on so many links each; return the number of AMQP connections."""
    async with ServiceBusClient.from_connection_string(emulator.connection_string) as client:
        await client.administration.create_queue("orders")
        senders = [client.get_queue_sender("orders") for _ in range(count)]
        receivers = [client.get_queue_receiver("orders") for _ in range(count)]
        await asyncio.gather(*(sender.send_messages(ServiceBusMessage("x")) for sender in senders))
        received = await asyncio.gather(*(receiver.receive_messages(1, max_wait_time=10) for receiver in receivers))
        await asyncio.gather(
            *(
                receiver.complete_message(message)
                for receiver, messages in zip(receivers, received, strict=True)
                for message in messages
            )
        )
        assert sum(map(len, received)) == count
        connections = emulator.context().amqp_connection_count
        await receivers[-1].peek_messages(1)  # over the connection of that receiver
        assert emulator.context().amqp_connection_count == connections
        return connections


@pytest.mark.parametrize(
    ("settings", "count", "connections"),
    [(ServerSettings(), 140, 1), (ServerSettings(channel_max=19, handle_max=2), 20, 5)],
)
async def test_links_share_a_connection_up_to_its_limit_of_channels(
    settings: ServerSettings, count: int, connections: int
) -> None:
    async with Emulator("contoso", settings=settings) as emulator:
        assert await used(emulator, count) == connections


async def test_links_that_share_an_amqp_session_end_at_its_limit() -> None:
    async with (
        Emulator("contoso", settings=ServerSettings(handle_max=3)) as emulator,
        ServiceBusClient.from_connection_string(
            emulator.connection_string, enable_cross_entity_transactions=True
        ) as client,
    ):
        emulator.create_queue("orders")
        senders = [client.get_queue_sender("orders") for _ in range(4)]  # beside the coordinator
        for sender in senders[:3]:
            await sender.send_messages(ServiceBusMessage("x"))
        with pytest.raises(InvalidOperationError, match="has 4 links"):
            await senders[3].send_messages(ServiceBusMessage("x"))
        await senders[0].close()
        await senders[1].send_messages(ServiceBusMessage("x"))  # the answer to the detach comes before
        await senders[3].send_messages(ServiceBusMessage("x"))
        assert emulator.context().amqp_connection_count == 1


async def test_connections_above_the_quota_are_refused() -> None:
    settings = ServerSettings(channel_max=3, max_amqp_connections=1)
    async with (
        Emulator("contoso", settings=settings) as emulator,
        ServiceBusClient.from_connection_string(emulator.connection_string, retry_total=0) as client,
    ):
        await client.administration.create_queue("orders")
        async with client.get_queue_sender("orders") as sender, client.get_queue_sender("orders") as other:
            await sender.send_messages(ServiceBusMessage("x"))
            with pytest.raises(ServiceBusError, match="quota"):
                await other.send_messages(ServiceBusMessage("y"), timeout=5)
            await sender.send_messages(ServiceBusMessage("z"))


@pytest.mark.deviation("emulator.connections")
async def test_clients_without_a_token_do_not_use_up_the_quota() -> None:
    async with Emulator("contoso", settings=ServerSettings(max_amqp_connections=1)) as emulator:
        idle = [await asyncio.open_connection("127.0.0.1", emulator.ports["contoso"]) for _ in range(3)]
        try:
            for reader, writer in idle:
                writer.write(AMQP_HEADER + encode_frame(0, Open("idle", "contoso"), 512))
                await reader.readexactly(len(AMQP_HEADER) + 1)
            async with ServiceBusClient.from_connection_string(emulator.connection_string, retry_total=0) as client:
                await client.administration.create_queue("orders")
                async with client.get_queue_sender("orders") as sender:
                    await sender.send_messages(ServiceBusMessage("x"))
                assert emulator.context().amqp_connection_count == 1
        finally:
            for _, writer in idle:
                writer.close()
