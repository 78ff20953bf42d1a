"""Rows that drain the backlog: the syphon, with and without sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final, Literal

from azure.servicebus import ServiceBusMessage as SdkMessage
from azure.servicebus.aio import ServiceBusClient as SdkClient

from sbclient import PairedNamespaceOptions, ServiceBusClient, ServiceBusMessage
from sbclient.testing import Fault, FaultKind
from tests.benchmarks.row import BODY, Result, Settings, Side, in_pairs
from tests.benchmarks.sending import CALLERS, QUEUE
from tests.stage.counting import PRIMARY, SECONDARY, EmulatorProcess

RECEIVED: Final = 100
SESSION_MESSAGES: Final = 4
LOOK_S: Final = 0.05
"""Pause between two looks at the counts of the broker."""

POLL_S: Final = 0.5


class Pair:
    """A pair of which the primary refuses one queue while the backlog is filled.

    Args:
        ordering: of the paired client.

    Attributes:
        deliveries: deliveries of the backlog per drained message, for each run of the syphon over `"amqp"`.
    """

    def __init__(self, server: EmulatorProcess, ordering: Literal["none", "session"] = "none") -> None:
        self.server = server
        self.options = PairedNamespaceOptions(failover_interval=timedelta(0), ordering=ordering)
        self.deliveries: list[float] = []

    def client(self, transport: str = "amqp") -> ServiceBusClient:
        """Open a new client."""
        return ServiceBusClient.from_connection_string(
            self.server.primary, secondary=self.server.secondary, options=self.options, transport=transport
        )

    async def fill(self, count: int, session_of: Callable[[int], str] | None = None) -> None:
        """Divert messages to the backlog queues; return with the primary healthy."""
        self.server.empty()
        self.server.inject(Fault(FaultKind.DOWN, QUEUE))
        left = iter(range(count))
        async with self.client() as client, client.get_queue_sender(QUEUE) as sender:

            async def caller() -> None:
                for number in left:
                    session_id = None if session_of is None else session_of(number)
                    await sender.send_messages(ServiceBusMessage(BODY, session_id=session_id))

            await asyncio.gather(*(caller() for _ in range(CALLERS)))
        self.server.heal()
        assert self.server.counts() == {PRIMARY: 0, SECONDARY: count}

    def syphon_side(
        self, name: str, count: int, fill: Callable[[], Awaitable[None]], *, transport: str = "amqp"
    ) -> Side:
        """Return a side that drains so many messages with a syphon of an open client."""
        stack, opened = AsyncExitStack(), list[ServiceBusClient]()

        async def prepare() -> None:
            await fill()
            opened[:] = [await stack.enter_async_context(self.client(transport))]

        async def run() -> None:
            await self.drained(opened[0].run_syphon(), count)

        async def finish() -> None:
            if transport == "amqp":
                self.deliveries.append(self.server.deliveries()[SECONDARY] / count)
            await stack.aclose()

        return Side(name, count, run, prepare, finish)

    async def drained(self, work: Awaitable[Any], count: int) -> None:
        """Run until all messages have reached the primary and none is left in the backlog."""
        running = asyncio.ensure_future(work)
        try:
            while not running.done():
                counts = await asyncio.to_thread(self.server.counts)
                if counts[PRIMARY] >= count and not counts[SECONDARY]:
                    return
                await asyncio.sleep(LOOK_S)
            running.result()
            counts = self.server.counts()
            assert counts == {PRIMARY: count, SECONDARY: 0}, f"not drained: {counts}"
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def syphon(settings: Settings) -> Result:
    """Compare the syphon with the loop that a user would write with the SDK."""
    our_count, sdk_count = settings.count(20_000, RECEIVED), settings.count(5_000, RECEIVED)
    with EmulatorProcess() as server:
        server.create_queue(QUEUE)
        pair = Pair(server)
        stack, loops = AsyncExitStack(), list[tuple[Any, Any]]()

        async def prepare() -> None:
            """Fill the backlog; open a receiver of each backlog queue, and a sender for each receiver."""
            await pair.fill(sdk_count)
            primary = await stack.enter_async_context(SdkClient.from_connection_string(server.primary))
            secondary = await stack.enter_async_context(SdkClient.from_connection_string(server.secondary))
            queues = server.backlog_queues()
            enter = stack.enter_async_context
            receivers = await asyncio.gather(*(enter(secondary.get_queue_receiver(name)) for name in queues))
            senders = await asyncio.gather(*(enter(primary.get_queue_sender(QUEUE)) for _ in queues))
            loops[:] = zip(receivers, senders, strict=True)

        async def sdk() -> None:
            await pair.drained(asyncio.gather(*(_sdk_loop(*each) for each in loops)), sdk_count)

        async def finish() -> None:
            await asyncio.gather(*(receiver.close() for receiver, _ in loops))  # each takes two seconds
            await stack.aclose()

        result = await in_pairs(
            server,
            pair.syphon_side("the syphon", our_count, lambda: pair.fill(our_count)),
            [Side("a loop with azure-servicebus", sdk_count, sdk, prepare, finish)],
            settings,
        )
    return _with_deliveries(result, pair.deliveries)


async def _sdk_loop(receiver: Any, sender: Any) -> None:
    """Receive 100 messages, send them as one list, complete each."""
    while True:
        messages = await receiver.receive_messages(max_message_count=RECEIVED, max_wait_time=POLL_S)
        if messages:
            await sender.send_messages([_unsealed(message) for message in messages])
        for message in messages:
            await receiver.complete_message(message)


def _unsealed(message: Any) -> SdkMessage:
    """Return a backlog message as it was sent to its queue."""
    properties = {name: value for name, value in message.application_properties.items() if name != b"x-ms-path"}
    return SdkMessage(b"".join(message.body), message_id=message.message_id, application_properties=properties)


async def syphon_sessions(settings: Settings) -> Result:
    """Compare the syphon of ordered sessions on both transports."""
    our_count, sdk_count = (SESSION_MESSAGES * settings.count(sessions) for sessions in (1_000, 120))
    with EmulatorProcess() as server:
        server.create_queue(QUEUE, requires_session=True)
        pair = Pair(server, ordering="session")

        def fill(count: int) -> Callable[[], Awaitable[None]]:
            return lambda: pair.fill(count, lambda number: f"s{number % (count // SESSION_MESSAGES)}")

        result = await in_pairs(
            server,
            pair.syphon_side('transport="amqp"', our_count, fill(our_count)),
            [pair.syphon_side('transport="sdk"', sdk_count, fill(sdk_count), transport="sdk")],
            settings,
        )
    return _with_deliveries(result, pair.deliveries)


def _with_deliveries(result: Result, deliveries: list[float]) -> Result:
    """Add the deliveries of the backlog for each drained message: more than one is work done twice."""
    most = max(deliveries)
    text = f"deliveries of the backlog per drained message: {most:.2f}"
    return replace(result, notes=[*result.notes, text], misses=[text] if round(most, 2) > 1 else [])
