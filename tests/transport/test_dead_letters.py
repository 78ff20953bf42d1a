"""Dead letters that are sent to their entity again: each arrives once, whatever its id and whatever fails between."""

from __future__ import annotations

from random import Random

import pytest

from sbclient.broker.faults import Fault, FaultKind, Operation
from sbclient.delivery import Settlement, SettleMode
from sbclient.entities import EntityAddress, EntityKind, QueueProperties
from sbclient.errors import ServiceBusError
from sbclient.hosting.host import BrokerHost
from sbclient.message import ServiceBusMessage
from sbclient.transport.dead_letters import DeadLetters, everything, pages
from sbclient.transport.memory.transport import MemoryTransport
from tests.payloads import batch_of

LENGTHS = [None, 1, 64, *range(120, 129)]
DEAD_LETTER = Settlement(SettleMode.DEAD_LETTER, "reason")
T = 10.0


@pytest.mark.parametrize("detects_duplicates", [True, False])
@pytest.mark.parametrize("is_partitioned", [True, False])
@pytest.mark.parametrize("letter", ["i", "é", "😀"])
async def test_each_is_sent_once_and_its_copy_may_be_dead_lettered_and_sent_too(
    letter: str, *, is_partitioned: bool, detects_duplicates: bool
) -> None:
    host = BrokerHost("namespace", random=Random(1))
    transport = MemoryTransport(host)
    settings = QueueProperties("q", requires_duplicate_detection=detects_duplicates, enable_partitioning=is_partitioned)
    await transport.administration.create(EntityAddress(EntityKind.QUEUE, ("q",)), settings)
    sent = {f"{length}": None if length is None else f"{length}{letter * 128}"[:length] for length in LENGTHS}
    for body, message_id in sent.items():
        message = ServiceBusMessage(body, message_id=message_id, partition_key=None if message_id else "k")
        await transport.open_sender("q").send(batch_of([message]), timeout_s=T)
    receiver, dead = transport.open_receiver("q"), DeadLetters(transport, "q")
    ids = set(sent.values())
    for _ in range(3):
        while received := await receiver.receive(max_message_count=100, max_wait_time_s=0.1):
            for message in received:
                await receiver.settle(message, DEAD_LETTER, timeout_s=T)
        if detects_duplicates:  # else the first would be stored twice
            host.inject(Fault(FaultKind.DOWN, operations=[Operation.SETTLE]))
            with pytest.raises(ServiceBusError):  # its copy was sent, and it was not deleted
                await dead.resubmit(everything, detects_duplicates=True)
            host.heal()
        assert await dead.resubmit(everything, detects_duplicates=detects_duplicates) == len(LENGTHS)
        copies = [message async for page in pages(transport, "q") for message in page]
        assert sorted(map(str, copies)) == sorted(sent)
        copied = {message.message_id for message in copies}
        assert all(len(str(each)) <= 128 for each in copied)
        if detects_duplicates:
            assert len(copied) == len(LENGTHS)
            assert copied.isdisjoint(ids)
        ids |= copied
