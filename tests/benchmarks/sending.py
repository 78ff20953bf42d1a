"""Rows that send: one after another, concurrently, in lists, and while failed over."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from statistics import median
from time import perf_counter
from typing import Any, Final

from azure.servicebus import ServiceBusMessage as SdkMessage
from azure.servicebus.aio import ServiceBusClient as SdkClient

from sbclient import PairedNamespaceOptions, ServiceBusClient, ServiceBusMessage
from sbclient.testing import Fault, FaultKind
from tests.benchmarks.row import BODY, Result, Settings, Side, by_latency, in_pairs
from tests.stage.counting import EmulatorProcess

CALLERS: Final = 256
OUR_LIST: Final = 500
SDK_LIST: Final = 100
FAILED_OVER: Final = "failed-over"
QUEUE: Final = "orders"
OPTIONS: Final = PairedNamespaceOptions(failover_interval=timedelta(0))


async def one_after_another(sender: Any, message: Callable[[], Any], count: int) -> None:
    """Send and await one message after another."""
    for _ in range(count):
        await sender.send_messages(message())


async def concurrently(sender: Any, count: int, callers: int = CALLERS) -> None:
    """Send with many callers of one sender."""
    left = iter(range(count))

    async def caller() -> None:
        for _ in left:
            await sender.send_messages(ServiceBusMessage(BODY))

    await asyncio.gather(*(caller() for _ in range(callers)))


async def in_lists(sender: Any, message: Callable[[], Any], count: int, size: int) -> None:
    """Send one list after another."""
    for _ in range(count // size):
        await sender.send_messages([message() for _ in range(size)])


def our_message() -> ServiceBusMessage:
    return ServiceBusMessage(BODY)


def sdk_message() -> SdkMessage:
    return SdkMessage(BODY)


async def _against_the_sdk(
    settings: Settings,
    counts: tuple[int, int],
    ours: Callable[[Any, int], Awaitable[None]],
    sdk: Callable[[Any, int], Awaitable[None]],
) -> Result:
    """Compare a sender of a paired client with a sender of the SDK. The counts are multiples of the lists."""
    our_count, sdk_count = settings.count(counts[0], OUR_LIST), settings.count(counts[1], SDK_LIST)
    with EmulatorProcess() as server:
        server.create_queue(QUEUE)

        async def empty() -> None:
            server.empty()

        async with (
            ServiceBusClient.from_connection_string(server.primary, secondary=server.secondary) as client,
            client.get_queue_sender(QUEUE) as sender,
            SdkClient.from_connection_string(server.primary) as sdk_client,
            sdk_client.get_queue_sender(QUEUE) as sdk_sender,
        ):
            return await in_pairs(
                server,
                Side("sbclient", our_count, lambda: ours(sender, our_count), empty),
                [Side("azure-servicebus", sdk_count, lambda: sdk(sdk_sender, sdk_count), empty)],
                settings,
            )


async def send_one_by_one(settings: Settings) -> Result:
    return await _against_the_sdk(
        settings,
        (3_000, 1_500),
        lambda sender, count: one_after_another(sender, our_message, count),
        lambda sender, count: one_after_another(sender, sdk_message, count),
    )


async def send_concurrent(settings: Settings) -> Result:
    return await _against_the_sdk(
        settings,
        (20_000, 1_500),
        concurrently,
        lambda sender, count: one_after_another(sender, sdk_message, count),
    )


async def send_lists(settings: Settings) -> Result:
    return await _against_the_sdk(
        settings,
        (30_000, 5_000),
        lambda sender, count: in_lists(sender, our_message, count, OUR_LIST),
        lambda sender, count: in_lists(sender, sdk_message, count, SDK_LIST),
    )


async def divert(settings: Settings) -> Result:
    """Compare concurrent sends to a failed-over queue with those to a healthy one, by one client."""
    count = settings.count(20_000)
    with EmulatorProcess() as server:
        server.create_queue(QUEUE)
        server.create_queue(FAILED_OVER)
        server.inject(Fault(FaultKind.DOWN, FAILED_OVER))

        async def empty() -> None:
            server.empty()

        async with (
            ServiceBusClient.from_connection_string(
                server.primary, secondary=server.secondary, options=OPTIONS
            ) as client,
            client.get_queue_sender(QUEUE) as healthy,
            client.get_queue_sender(FAILED_OVER) as failed_over,
        ):
            return await in_pairs(
                server,
                Side("failed over", count, lambda: concurrently(failed_over, count), empty),
                [Side("healthy", count, lambda: concurrently(healthy, count), empty)],
                settings,
            )


async def failover_latency(settings: Settings) -> Result:
    """Compare the first diverted send to a queue with a healthy send: the median over many queues, links attached."""
    count = 10 if settings.quick else 100
    with EmulatorProcess() as server:
        names = [server.create_queue(f"queue-{number}") for number in range(count)]
        warm = server.create_queue("warm")
        stack, senders = AsyncExitStack(), list[Any]()

        async def open_senders() -> None:
            """Open a new client, in which no queue is failed over; attach its links, and one link to the backlog."""
            server.heal()
            server.empty()
            server.inject(Fault(FaultKind.DOWN, warm))
            client = await stack.enter_async_context(
                ServiceBusClient.from_connection_string(server.primary, secondary=server.secondary, options=OPTIONS)
            )
            senders[:] = [client.get_queue_sender(name) for name in names]
            for sender in senders:
                await sender.send_messages(our_message())
            await client.get_queue_sender(warm).send_messages(our_message())

        async def open_failing_senders() -> None:
            await open_senders()
            for name in names:
                server.inject(Fault(FaultKind.DOWN, name))

        async def median_latency_s() -> float:
            latencies = []
            for sender in senders:
                began_at = perf_counter()
                await sender.send_messages(our_message())
                latencies.append(perf_counter() - began_at)
            return median(latencies)

        return await in_pairs(
            server,
            Side("first diverted", count, median_latency_s, open_failing_senders, stack.aclose),
            [Side("healthy", count, median_latency_s, open_senders, stack.aclose)],
            settings,
            by_latency,
        )
