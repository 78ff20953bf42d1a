"""A syphon moves what is parked in a backlog queue with partitions; one whose partition fails: tests/syphon.

`COUNT` messages are parked. The environment sets a larger number for a long run.
"""

from __future__ import annotations

import asyncio
import os

import pytest

from sbclient import PairedNamespaceOptions, ServiceBusClient, ServiceBusMessage
from sbclient.testing.ledger import Ledger
from tests.broker.driver import KEYS
from tests.stage.namespaces import Namespace

QUEUE, BACKLOG = "orders", "contoso/x-servicebus-transfer/0"
COUNT = int(os.environ.get("PARKED_MESSAGES", "320"))
PAGE = 500


@pytest.mark.parametrize("transport", ["amqp", "sdk"])
async def test_everything_that_is_parked_in_sixteen_partitions_is_moved(
    primary: Namespace, secondary: Namespace, transport: str
) -> None:
    ledger = Ledger()
    options = PairedNamespaceOptions(backlog_queue_count=1, primary_name="contoso")
    async with (
        ServiceBusClient.from_connection_string(secondary.connection_string) as backup,
        ServiceBusClient.from_connection_string(primary.connection_string) as reader,
    ):
        await backup.administration.create_queue(BACKLOG, enable_partitioning=True)
        await reader.administration.create_queue(QUEUE)
        async with ServiceBusClient.from_connection_string(
            primary.connection_string, secondary=secondary.connection_string, options=options, transport=transport
        ) as client:
            client.pair.force_failover(QUEUE)
            async with client.get_queue_sender(QUEUE) as sender:
                for index, key in enumerate(KEYS):
                    for first in range(index, COUNT, 16 * 100):
                        names = [str(number) for number in range(first, min(first + 16 * 100, COUNT), 16)]
                        ledger.send(*names)
                        await sender.send_messages([ServiceBusMessage(name, partition_key=key) for name in names])
                        ledger.accepted.update(names)
            async with backup.get_queue_receiver(BACKLOG) as receiver:
                parked = 0
                while parked < COUNT:
                    found = await receiver.receive_messages(PAGE, max_wait_time=10)
                    assert found, f"{parked} of {COUNT} came"
                    await asyncio.gather(*map(receiver.defer_message, found))
                    parked += len(found)
            report = await client.run_syphon(until="empty")
        assert report.drained == COUNT
        async with reader.get_queue_receiver(QUEUE, receive_mode="receiveanddelete") as receiver:
            while found := await receiver.receive_messages(PAGE, max_wait_time=1):
                for message in found:
                    ledger.deliver(str(message))
        assert (len(ledger.lost), ledger.duplicates, ledger.delivered.total()) == (0, 0, COUNT)
