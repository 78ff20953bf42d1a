"""Dead letters that are sent to their entity again: each arrives once, whatever its id and whatever fails between."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from random import Random

import pytest

from sbclient import clock
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
ABANDON = Settlement(SettleMode.ABANDON)
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


@pytest.mark.parametrize("behind", [0, 3, 150])
async def test_those_that_another_receiver_has_locked_are_sent_when_their_locks_end(behind: int) -> None:
    """The locks of those that are not wanted end meanwhile, too; one that comes meanwhile stays."""
    transport = MemoryTransport(BrokerHost("namespace", random=Random(1)))
    lock = timedelta(seconds=30)
    await transport.administration.create(
        EntityAddress(EntityKind.QUEUE, ("q",)), QueueProperties("q", lock_duration=lock)
    )
    receiver = transport.open_receiver("q")

    async def dead_letter(*bodies: str) -> None:
        await transport.open_sender("q").send(batch_of([ServiceBusMessage(body) for body in bodies]), timeout_s=T)
        for message in await receiver.receive(max_message_count=1_000, max_wait_time_s=0.1):
            await receiver.settle(message, DEAD_LETTER if str(message) in bodies else ABANDON, timeout_s=T)

    async def dead_letter_later() -> None:
        await clock.sleep(5.0)
        await dead_letter("wanted, too late")

    await dead_letter("wanted", *(f"other {number}" for number in range(behind)), "wanted")
    other = transport.open_receiver("q/$DeadLetterQueue")
    assert len(await other.receive(max_message_count=1, max_wait_time_s=0.1)) == 1
    later = asyncio.create_task(dead_letter_later())
    assert await DeadLetters(transport, "q").resubmit(lambda message: str(message).startswith("wanted")) == 2
    await later
    sent = await receiver.receive(max_message_count=10, max_wait_time_s=0.1)
    assert list(map(str, sent)) == ["wanted"] * 2
    left = await other.receive(max_message_count=1_000, max_wait_time_s=0.1)
    assert len(left) == behind + 1  # free at once, with the one that came meanwhile
