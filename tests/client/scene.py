"""Shared parts of the tests of the client: options, queues, and the messages in them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from itertools import accumulate
from typing import Any

from sbclient import clock
from sbclient.amqp import EncodedBatch
from sbclient.client.client import ServiceBusClient
from sbclient.delivery import NEXT_AVAILABLE_SESSION, ServiceBusReceiveMode, ServiceBusSubQueue
from sbclient.message import ServiceBusMessage, ServiceBusReceivedMessage
from sbclient.options import PairedNamespaceOptions
from sbclient.testing import MemoryPair
from tests.payloads import encode_section, payload_of

QUEUE = "orders"
BACKLOG = [f"contoso/x-servicebus-transfer/{index}" for index in range(10)]
SESSION_BACKLOG = [f"contoso/x-servicebus-transfer-sessions/{index}" for index in range(10)]


def options(**chosen: Any) -> PairedNamespaceOptions:
    """Return pairing options; durations may be numbers of seconds."""
    durations = {name: timedelta(seconds=value) for name, value in chosen.items() if is_duration(name, value)}
    return PairedNamespaceOptions(**{**chosen, **durations})


def is_duration(name: str, value: object) -> bool:
    return isinstance(value, int | float) and name.endswith(("interval", "grace", "poll", "after"))


AT_ONCE = options(failover_interval=0)
"""The first outage error fails over, and diverts that very send."""


async def make_queue(pair: MemoryPair, name: str = QUEUE, *, secondary: bool = False, **kwargs: Any) -> None:
    async with pair.unpaired_client(secondary=secondary) as client:
        await client.administration.create_queue(name, **kwargs)


async def taken(
    pair: MemoryPair,
    name: str = QUEUE,
    *,
    secondary: bool = False,
    dead: bool = False,
    wait_s: float = 0.5,
) -> list[ServiceBusReceivedMessage]:
    """Everything that can be received from a queue, which is empty then; sessions one after the other."""
    async with pair.unpaired_client(secondary=secondary) as client:
        description = await client.administration.get_queue(name)
        received: list[ServiceBusReceivedMessage] = []
        while True:
            found = await _some(client, name, dead=dead, by_session=bool(description.requires_session), wait_s=wait_s)
            if not found:
                return received
            received += found


async def _some(
    client: ServiceBusClient, name: str, *, dead: bool, by_session: bool, wait_s: float
) -> list[ServiceBusReceivedMessage]:
    if by_session and not dead and not [one async for one in client.list_queue_sessions(name)]:
        return []
    async with client.get_queue_receiver(
        name,
        sub_queue=ServiceBusSubQueue.DEAD_LETTER if dead else None,
        session_id=NEXT_AVAILABLE_SESSION if by_session and not dead else None,
        receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE,
        max_wait_time=wait_s,
    ) as receiver:
        return await receiver.receive_messages(max_message_count=1000)


def texts(messages: Sequence[ServiceBusReceivedMessage]) -> list[str]:
    return [str(message) for message in messages]


async def waiting(
    pair: MemoryPair, names: Sequence[str] = BACKLOG, *, secondary: bool = True
) -> dict[str, list[ServiceBusReceivedMessage]]:
    """What lies in queues, by name; those with nothing, or that do not exist, are left out. Nothing is taken."""
    found: dict[str, list[ServiceBusReceivedMessage]] = {}
    async with pair.unpaired_client(secondary=secondary) as client:
        existing = {queue.name async for queue in client.administration.list_queues()}
        for name in filter(existing.__contains__, names):
            async with client.get_queue_receiver(name) as receiver:
                number = 1
                while page := await receiver.peek_messages(250, sequence_number=number):
                    found.setdefault(name, []).extend(page)
                    number = page[-1].sequence_number + 1
    return found


async def diverted(pair: MemoryPair) -> list[ServiceBusReceivedMessage]:
    """What lies in all plain backlog queues."""
    return [message for messages in (await waiting(pair)).values() for message in messages]


async def dead_letters(pair: MemoryPair, names: Sequence[str] = BACKLOG) -> list[ServiceBusReceivedMessage]:
    """Remove and return the dead letters of the backlog queues."""
    return [message for name in names for message in await taken(pair, name, secondary=True, dead=True)]


def encoded(messages: Sequence[ServiceBusMessage]) -> EncodedBatch:
    """Messages as `send_encoded` takes them."""
    sections = [encode_section(payload_of(message)) for message in messages]
    first = messages[0]
    return EncodedBatch.of_sections(
        b"".join(sections),
        list(accumulate(map(len, sections))),
        message_id=first.message_id,
        session_id=first.session_id,
        partition_key=first.partition_key,
    )


def with_pings(receive: Callable[..., Awaitable[Sequence[ServiceBusReceivedMessage]]]) -> Callable[..., Any]:
    """Wrap the `receive` of a link, so that the messages with the text `ping` are pings."""

    async def wrapped(*args: Any, **kwargs: Any) -> Sequence[ServiceBusReceivedMessage]:
        messages = await receive(*args, **kwargs)
        for message in messages:
            if str(message) == "ping":
                message.content_type = "application/vnd.ms-servicebus-ping"
        return messages

    return wrapped


async def until(condition: Callable[[], bool], *, at_most_s: float) -> None:
    """Wait until a condition is true, and fail if it takes too long."""
    end_at = clock.monotonic() + at_most_s
    while not condition():
        assert clock.monotonic() < end_at, f"it did not happen within {at_most_s} s"
        await clock.sleep(0.25)


async def cancel(task: asyncio.Future[Any]) -> None:
    """Cancel a task and wait for its end."""
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
