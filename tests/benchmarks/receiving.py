"""Rows that receive: plain queues, sessions, the broker in this process, and connections."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

from azure.servicebus import NEXT_AVAILABLE_SESSION as SDK_NEXT_AVAILABLE_SESSION
from azure.servicebus.aio import ServiceBusClient as SdkClient

from sbclient import NEXT_AVAILABLE_SESSION, ServiceBusClient, ServiceBusMessage
from sbclient.testing import drop_memory_host
from tests.benchmarks.row import BODY, Result, Settings, Side, by_client_time, in_pairs, sample
from tests.benchmarks.sending import QUEUE, in_lists, our_message
from tests.stage.counting import EmulatorProcess

RECEIVED: Final = 100
"""Messages of one call to receive."""

WAIT_S: Final = 10.0
SESSION_MESSAGES: Final = 4
OUR_SESSIONS: Final = 200
"""Sessions that our client accepts at the same time."""

SDK_SESSIONS: Final = 8


async def _filled(client: ServiceBusClient, count: int) -> None:
    async with client.get_queue_sender(QUEUE) as sender:
        await in_lists(sender, our_message, count, RECEIVED)


async def _completing(receiver: Any, count: int, *, concurrently: bool) -> None:
    """Receive lists of messages and complete each message."""
    while count:
        messages = await receiver.receive_messages(max_message_count=RECEIVED, max_wait_time=WAIT_S)
        assert messages, f"{count} messages did not arrive"
        if concurrently:
            await asyncio.gather(*map(receiver.complete_message, messages))
        else:
            for message in messages:
                await receiver.complete_message(message)
        count -= len(messages)


async def receive_complete(settings: Settings) -> Result:
    """Compare receiving 100 messages and completing them concurrently with the fastest way of the SDK.

    With prefetch the client and the emulator work at the same time.
    """
    our_count, sdk_count = settings.count(10_000, RECEIVED), settings.count(2_000, RECEIVED)
    with EmulatorProcess() as server:
        server.create_queue(QUEUE)
        async with (
            ServiceBusClient.from_connection_string(server.primary, secondary=server.secondary) as client,
            SdkClient.from_connection_string(server.primary) as sdk_client,
        ):
            stack, opened = AsyncExitStack(), list[Any]()

            def side(name: str, count: int, client_of_it: Any, *, prefetch_count: int, concurrently: bool) -> Side:
                async def prepare() -> None:
                    server.empty()
                    await _filled(client, count)
                    receiver = client_of_it.get_queue_receiver(QUEUE, prefetch_count=prefetch_count)
                    opened[:] = [await stack.enter_async_context(receiver)]

                async def run() -> None:
                    await _completing(opened[0], count, concurrently=concurrently)

                return Side(name, count, run, prepare, stack.aclose)

            return await in_pairs(
                server,
                [
                    side("sbclient", our_count, client, prefetch_count=0, concurrently=True),
                    side("sbclient, prefetch 200", our_count, client, prefetch_count=200, concurrently=True),
                ],
                [
                    side("azure-servicebus", sdk_count, sdk_client, prefetch_count=0, concurrently=False),
                    side("azure-servicebus, concurrently", sdk_count, sdk_client, prefetch_count=0, concurrently=True),
                    side(
                        "azure-servicebus, prefetch 200", sdk_count, sdk_client, prefetch_count=200, concurrently=False
                    ),
                ],
                settings,
            )


async def sessions(settings: Settings) -> Result:
    """Compare accepting and draining sessions with the SDK, which accepts 8 at a time."""
    our_count, sdk_count = settings.count(500), settings.count(32, SDK_SESSIONS)
    with EmulatorProcess() as server:
        server.create_queue(QUEUE, requires_session=True)
        async with (
            ServiceBusClient.from_connection_string(server.primary) as client,
            SdkClient.from_connection_string(server.primary) as sdk_client,
        ):

            async def fill(count: int) -> None:
                server.empty()
                async with client.get_queue_sender(QUEUE) as sender:
                    messages = [[ServiceBusMessage(BODY, session_id=f"s{number}") for _ in range(SESSION_MESSAGES)]
                                for number in range(count)]  # fmt: skip
                    await asyncio.gather(*map(sender.send_messages, messages))

            async def drain(client: Any, next_session: Any, count: int, workers: int) -> None:
                left = iter(range(count))

                async def worker() -> None:
                    for _ in left:
                        receiver = client.get_queue_receiver(QUEUE, session_id=next_session, max_wait_time=WAIT_S)
                        async with receiver:
                            received = 0
                            while received < SESSION_MESSAGES:
                                messages = await receiver.receive_messages(
                                    max_message_count=SESSION_MESSAGES, max_wait_time=WAIT_S
                                )
                                assert messages, "a session has lost messages"
                                for message in messages:
                                    await receiver.complete_message(message)
                                received += len(messages)

                await asyncio.gather(*(worker() for _ in range(min(workers, count))))

            return await in_pairs(
                server,
                Side(
                    f"sbclient, {OUR_SESSIONS} at a time",
                    our_count * SESSION_MESSAGES,
                    lambda: drain(client, NEXT_AVAILABLE_SESSION, our_count, OUR_SESSIONS),
                    lambda: fill(our_count),
                ),
                [
                    Side(
                        f"azure-servicebus, {SDK_SESSIONS} at a time",
                        sdk_count * SESSION_MESSAGES,
                        lambda: drain(sdk_client, SDK_NEXT_AVAILABLE_SESSION, sdk_count, SDK_SESSIONS),
                        lambda: fill(sdk_count),
                    )
                ],
                settings,
            )


async def memory(settings: Settings) -> Result:
    """Compare send, receive and complete at the broker in this process with `asyncio.Queue`, by processor time."""
    our_count, other_count = settings.count(5_000), settings.count(200_000)
    async with ServiceBusClient.from_connection_string("memory://benchmark") as client:
        await client.administration.create_queue(QUEUE)
        async with client.get_queue_sender(QUEUE) as sender, client.get_queue_receiver(QUEUE) as receiver:

            async def ours() -> None:
                for _ in range(our_count):
                    await sender.send_messages(ServiceBusMessage(BODY))
                    for message in await receiver.receive_messages():
                        await receiver.complete_message(message)

            async def other() -> None:
                queue: asyncio.Queue[bytes] = asyncio.Queue()
                for _ in range(other_count):
                    await queue.put(BODY)
                    await queue.get()

            result = await in_pairs(
                None,
                Side("memory://", our_count, ours),
                [Side("asyncio.Queue", other_count, other)],
                settings,
                by_client_time,
            )
    drop_memory_host("benchmark")
    return result


async def connections(settings: Settings) -> Result:
    """Count the TCP connections of many senders and receivers."""
    count = settings.count(500)
    with EmulatorProcess() as server:
        server.create_queue(QUEUE)
        async with ServiceBusClient.from_connection_string(server.primary) as client:
            connected = 0

            async def use() -> None:
                nonlocal connected
                senders = [client.get_queue_sender(QUEUE) for _ in range(count)]
                receivers = [client.get_queue_receiver(QUEUE) for _ in range(count)]
                await asyncio.gather(*(sender.send_messages(our_message()) for sender in senders))
                await asyncio.gather(*(receiver.receive_messages(1, max_wait_time=WAIT_S) for receiver in receivers))
                connected = established(server.port)

            side = Side("sbclient", count, use)
            found = await sample(server, side)
    return Result([float(connected)], {side.name: [found]}, [f"{count} senders and {count} receivers"])


def established(port: int) -> int:
    """Return the number of established TCP connections of this machine to a local port."""
    remote = f":{port:04X}"
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    return sum(row[2].endswith(remote) and row[3] == "01" for row in rows)
