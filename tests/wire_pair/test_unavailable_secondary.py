"""A paired client over real sockets whose secondary cannot be reached when it opens.

`COUNT` messages are sent to the primary and received from it. The environment sets a larger number for a long run.
"""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import warnings
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from sbclient import PairedNamespaceOptions, ServiceBusClient, ServiceBusMessage
from sbclient.clock import Clock
from sbclient.emulator import Emulator
from sbclient.emulator.faults import WireFault, WireFaultKind
from sbclient.pairing.backlog_queues import LONGEST_PAUSE_S, OPENING_S

pytestmark = pytest.mark.timeout(180)

QUEUE = "orders"
COUNT = int(os.environ.get("UNAVAILABLE_SECONDARY_MESSAGES", "60"))
OPTIONS = PairedNamespaceOptions(failover_interval=timedelta(0), backlog_queue_count=2)


@pytest.fixture
async def primary() -> AsyncIterator[Emulator]:
    async with Emulator("contoso") as emulator:
        yield emulator


def unused_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def paired(primary: Emulator, secondary: str, transport: str) -> ServiceBusClient:
    return ServiceBusClient.from_connection_string(
        primary.connection_string,
        secondary=secondary,
        options=OPTIONS,
        transport=transport,
        connection_verify=str(primary.certificate_path),
    )


async def send_and_receive(client: ServiceBusClient, count: int) -> None:
    """Send messages to the primary and receive each of them."""
    async with client.get_queue_sender(QUEUE) as sender, client.get_queue_receiver(QUEUE) as receiver:
        await asyncio.gather(*(sender.send_messages(ServiceBusMessage(str(number))) for number in range(count)))
        numbers: list[int] = []
        while len(numbers) < count:
            for message in await receiver.receive_messages(count, max_wait_time=20):
                numbers.append(int(str(message)))
                await receiver.complete_message(message)
        assert sorted(numbers) == list(range(count))


@pytest.mark.parametrize("transport", ["amqp", "sdk"])
@pytest.mark.parametrize("host", ["127.0.0.1", "no-such-host.invalid"])
async def test_a_secondary_without_server_or_dns_name_does_not_stop_the_primary(
    primary: Emulator, transport: str, host: str
) -> None:
    where = f"Endpoint=sb://{host}:{unused_port()};SharedAccessKeyName=k;SharedAccessKey=a2V5;"
    secondary = f"{where}UseDevelopmentEmulator=true"
    clock = Clock()
    began_at = clock.monotonic()
    async with paired(primary, secondary, transport) as client:
        assert clock.monotonic() - began_at < OPENING_S + 1.0
        await client.administration.create_queue(QUEUE)
        await send_and_receive(client, COUNT)
        assert client.pair.status().provisioning_error


@pytest.mark.parametrize("transport", ["amqp", "sdk"])
async def test_a_secondary_that_starts_to_answer_is_provisioned(primary: Emulator, transport: str) -> None:
    clock = Clock()
    async with Emulator("contoso-backup") as backup:
        backup.inject(fault := WireFault(WireFaultKind.BLACK_HOLE))
        async with paired(primary, backup.connection_string, transport) as client:
            await client.administration.create_queue(QUEUE)
            await send_and_receive(client, COUNT)
            assert not client.pair.status().is_provisioned
            backup.heal(fault)
            deadline = clock.monotonic() + LONGEST_PAUSE_S
            while not client.pair.status().is_provisioned:
                assert clock.monotonic() < deadline
                await clock.sleep(0.1)
            primary.inject(WireFault(WireFaultKind.RESET))
            async with client.get_queue_sender(QUEUE) as sender:
                await sender.send_messages(ServiceBusMessage("diverted"))
            assert client.pair.status().entities[QUEUE].diverted == 1
            primary.heal()


async def test_an_opening_that_fails_leaves_no_connection(primary: Emulator) -> None:
    async with Emulator("contoso-backup") as backup:
        wrong = backup.connection_string.partition("SharedAccessKey=")[0] + "SharedAccessKey=d3Jvbmc="
        wrong += ";UseDevelopmentEmulator=true"
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with pytest.raises(Exception, match="Manage"):
                await paired(primary, wrong, "amqp").__aenter__()
            gc.collect()
            await Clock().sleep(0.1)
    assert [str(each.message) for each in caught if issubclass(each.category, ResourceWarning)] == []
