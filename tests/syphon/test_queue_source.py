"""One backlog queue alone: its counts for the metrics while it is scanned, and messages that come or go twice."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from random import Random

from sbclient import clock
from sbclient.broker.faults import Operation
from sbclient.client.client import ServiceBusClient
from sbclient.message import ServiceBusMessage, ServiceBusReceivedMessage
from sbclient.options import SyphonLimits
from sbclient.syphon.budget import SyphonBudget
from sbclient.syphon.destination_table import Destinations
from sbclient.syphon.queue_source import QueueSource
from sbclient.syphon.source import Source
from sbclient.syphon.status import Progress
from sbclient.telemetry import metrics
from sbclient.testing import Fault, FaultKind, MemoryPair
from tests.client.scene import BACKLOG, QUEUE, options, texts

PAGE_S = 5.0


class Recorder(Destinations):
    """Remembers every parked message that a scan finds, and sends none."""

    def __init__(self, client: ServiceBusClient, budget: SyphonBudget) -> None:
        super().__init__(client.pair.state, budget.rates, Progress(), [], on_failure=lambda _: None)
        self.parked: list[int] = []

    def remember_parked(self, source: Source, path: str, number: int) -> bool:
        self.parked.append(number)
        return True

    def can_forward(self, message: ServiceBusReceivedMessage) -> bool:
        return True


def source_alone(client: ServiceBusClient, max_messages: int = 1000) -> tuple[QueueSource, Recorder]:
    state, limits = client.pair.state, SyphonLimits(max_messages_in_flight=max_messages, max_bytes_in_flight=10**9)
    budget = SyphonBudget(limits, queues=1, pollers=1, long_poll_s=None)
    recorder = Recorder(client, budget)
    return QueueSource(state, BACKLOG[0], recorder, Progress(), budget, until="empty"), recorder


def depths(source: QueueSource) -> dict[object, float]:
    return {
        attributes[metrics.STATE]: value
        for instrument, value, attributes in source.measured()
        if instrument is metrics.BACKLOG_DEPTH
    }


async def test_what_comes_and_goes_during_a_scan_is_counted_once(pair: MemoryPair) -> None:
    """Before and behind the page that is asked for: messages are parked, received again and completed."""
    async with pair.client(options(backlog_queue_count=1)) as client:
        client.pair.force_failover(QUEUE)
        async with client.get_queue_sender(QUEUE) as sender:
            await sender.send_messages([ServiceBusMessage(str(number)) for number in range(250)])
        source, _ = source_alone(client)
        random, parked = Random(1), set[int]()
        await source.receive(max_message_count=250, max_wait_time_s=1.0)

        async def change(numbers: Collection[int]) -> None:
            for number in numbers:
                if random.random() < 0.3:
                    continue
                if number not in parked:
                    await source.in_flight[number].park()
                    parked.add(number)
                elif random.random() < 0.5:
                    (again,) = await source.receive_parked([number])
                    parked.remove(number)
                    if random.random() < 0.3:
                        await again.complete()

        slow = Fault(FaultKind.SLOW, operations=(Operation.PEEK,), latency_s=PAGE_S)
        for _ in range(3):
            pair.secondary.inject(slow)
            scan = asyncio.ensure_future(source.scan())
            await clock.sleep(PAGE_S + 1.0)
            scanned, later = [
                [*filter(known.__contains__, parked | source.in_flight.keys())]
                for known in (range(source._scanned_to), range(source._scanned_to + 120, 251))
            ]
            await change([*scanned, *later])
            assert depths(source)["waiting"] == len(source.in_flight)
            await scan
            assert depths(source) == {"waiting": len(source.in_flight), "parked": len(parked)}
            pair.secondary.heal(slow)
        await source.close()


async def test_a_message_that_comes_again_after_its_lock_has_ended_takes_one_place(pair: MemoryPair) -> None:
    async with pair.client(options(backlog_queue_count=1)) as client:
        client.pair.force_failover(QUEUE)
        async with client.get_queue_sender(QUEUE) as sender:
            await sender.send_messages([ServiceBusMessage(text) for text in "abc"])
        source, _ = source_alone(client, max_messages=5)
        for _ in range(4):
            in_flight = await source.receive(max_message_count=5, max_wait_time_s=1.0)
            assert texts([one.message for one in in_flight]) == ["a", "b", "c"]
            assert source.room == 2
            await clock.sleep(61.0)  # nothing renews the locks
        for one in in_flight:
            await one.complete()
        assert source.room == 5
        await source.close()


async def test_an_earlier_delivery_of_a_copy_that_was_accepted_is_not_sent(pair: MemoryPair) -> None:
    async with pair.client(options(backlog_queue_count=1)) as client:
        client.pair.force_failover(QUEUE)
        async with client.get_queue_sender(QUEUE) as sender:
            await sender.send_messages(ServiceBusMessage("a"))
        source, _ = source_alone(client)
        deliveries = []
        for _ in range(2):
            deliveries += await source.receive(max_message_count=1, max_wait_time_s=1.0)
            await clock.sleep(61.0)
        sent, waiting = deliveries
        sent.accept()  # its send was answered only now, when the copy had been delivered again
        assert await source.receive(max_message_count=1, max_wait_time_s=1.0) == []  # it completes the third delivery
        assert waiting.is_lost
        await source.close()


async def test_a_copy_that_another_drain_of_the_client_has_completed_as_accepted_is_not_sent(pair: MemoryPair) -> None:
    async with pair.client(options(backlog_queue_count=1)) as client:
        client.pair.force_failover(QUEUE)
        async with client.get_queue_sender(QUEUE) as sender:
            await sender.send_messages(ServiceBusMessage("a"))
        (source, _), (other, _) = source_alone(client), source_alone(client)
        (sent,) = await source.receive(max_message_count=1, max_wait_time_s=1.0)
        await clock.sleep(61.0)
        (waiting,) = await other.receive(max_message_count=1, max_wait_time_s=1.0)
        await clock.sleep(61.0)
        sent.accept()
        assert await source.receive(max_message_count=1, max_wait_time_s=1.0) == []
        assert waiting.is_accepted
        for each in (source, other):
            await each.close()


async def test_parked_messages_are_received_though_some_of_them_are_gone_or_locked(pair: MemoryPair) -> None:
    async with pair.client(options(backlog_queue_count=1)) as client:
        client.pair.force_failover(QUEUE)
        async with client.get_queue_sender(QUEUE) as sender:
            await sender.send_messages([ServiceBusMessage(text) for text in "abcde"])
        (source, _), (other, _) = source_alone(client), source_alone(client)
        in_flight = await source.receive(max_message_count=5, max_wait_time_s=1.0)
        numbers = [one.message.sequence_number for one in in_flight]
        for one in in_flight:
            assert await one.park() is not None
        (gone,) = await other.receive_parked(numbers[1:2])
        await gone.complete()
        await other.receive_parked(numbers[3:4])
        assert texts([one.message for one in await source.receive_parked(numbers)]) == ["a", "c", "e"]
        await clock.sleep(61.0)
        assert texts([one.message for one in await source.receive_parked(numbers)]) == ["a", "c", "d", "e"]
        for link in (source, other):
            await link.close()
