"""One backlog queue by itself: what is known of it for the metrics, whatever happens while it is looked through."""

from __future__ import annotations

import asyncio

from sbclient.broker.faults import Operation
from sbclient.clock import VirtualClock
from sbclient.delivery import Settlement, SettleMode
from sbclient.message import ServiceBusMessage, ServiceBusReceivedMessage
from sbclient.rules.accepted import AcceptedCopies
from sbclient.rules.window import Window
from sbclient.syphon.queue_source import BacklogSource
from sbclient.telemetry import metrics
from sbclient.testing import Fault, FaultKind, MemoryPair
from sbclient.transport.memory.transport import MemoryTransport
from tests.client.scene import QUEUE

PAGE_S = 5.0


class Patient:
    """Takes note of everything that a look comes across."""

    def __init__(self) -> None:
        self.parked: list[int] = []

    def found_parked(self, source: BacklogSource, message: ServiceBusReceivedMessage) -> bool:
        self.parked.append(message.sequence_number)
        return True

    def is_hopeful(self, message: ServiceBusReceivedMessage) -> bool:
        return True


def depths(source: BacklogSource) -> dict[object, float]:
    return {
        attributes[metrics.STATE]: value
        for instrument, value, attributes in source.measured()
        if instrument is metrics.BACKLOG_DEPTH
    }


async def test_what_is_fetched_during_a_look_is_not_counted_as_parked_after_it(
    pair: MemoryPair, clock: VirtualClock
) -> None:
    async with pair.unpaired_client() as client, client.get_queue_sender(QUEUE) as sender:
        await sender.send_messages([ServiceBusMessage(str(number)) for number in range(150)])
    source = BacklogSource(MemoryTransport(pair.primary), QUEUE, clock, AcceptedCopies(), Window(1000, 1e9))
    for message in await source.receive(max_message_count=150, max_wait_time_s=1.0):
        assert await source.settle(message, Settlement(SettleMode.DEFER))
    assert depths(source) == {"waiting": 0, "parked": 150}
    pair.primary.inject(Fault(FaultKind.SLOW, operations=(Operation.PEEK,), latency_s=PAGE_S))
    patient = Patient()
    look = asyncio.ensure_future(source.scan(patient))
    await clock.sleep(PAGE_S + 1.0)
    assert len(patient.parked) == 100
    await source.fetch(patient.parked[:100])
    assert depths(source) == {"waiting": 0, "parked": 50}
    await look
    assert depths(source) == {"waiting": 0, "parked": 50}
    await source.close()
