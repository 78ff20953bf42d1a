"""Rows of the administration client: its calls and its lists, beside those of azure-servicebus."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from azure.servicebus.aio.management import ServiceBusAdministrationClient as AzureClient

from sbclient.administration import ServiceBusAdministrationClient
from sbclient.certificate import local_trust
from sbclient.transport.sdk import http
from tests.benchmarks.row import Result, Settings, Side, by_client_time, in_pairs
from tests.stage.counting import EmulatorProcess

ENTITIES: Final = 2_000


@asynccontextmanager
async def _clients(server: EmulatorProcess) -> AsyncIterator[tuple[Any, Any]]:
    """Our client and that of azure-servicebus, which has a connection that it keeps, too."""
    options = http.pipeline_options(local_trust("localhost"), True)
    async with (
        ServiceBusAdministrationClient.from_connection_string(server.primary) as ours,
        AzureClient.from_connection_string(server.primary, transport=options["transport"]) as theirs,
    ):
        yield ours, theirs


async def calls(settings: Settings) -> Result:
    """Compare describing, counting and creating queues, one call after another."""
    count = settings.count(500)
    with EmulatorProcess() as server:
        server.create_queue("orders")
        async with _clients(server) as clients:

            def side(name: str, client: Any) -> Side:
                async def run() -> None:
                    for number in range(count):
                        queue = await client.get_queue("orders")
                        await client.get_queue_runtime_properties("orders")
                        await client.update_queue(queue, max_delivery_count=5 + number % 2)

                return Side(name, 3 * count, run)

            ours, theirs = (side(*each) for each in zip(("sbclient", "azure-servicebus"), clients, strict=True))
            return await in_pairs(server, ours, [theirs], settings, by_client_time)


async def lists(settings: Settings) -> Result:
    """Compare lists of queues and of their counts."""
    count = settings.count(ENTITIES)
    with EmulatorProcess() as server:
        for number in range(count):
            server.create_queue(f"queue-{number:05}")
        async with _clients(server) as clients:

            def side(name: str, client: Any) -> Side:
                async def run() -> None:
                    assert len([each async for each in client.list_queues()]) == count
                    assert len([each async for each in client.list_queues_runtime_properties()]) == count

                return Side(name, 2 * count, run)

            ours, theirs = (side(*each) for each in zip(("sbclient", "azure-servicebus"), clients, strict=True))
            return await in_pairs(server, ours, [theirs], settings, by_client_time)
