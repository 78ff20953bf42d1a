"""The routes of a paired sender: what goes to the primary, what to the backlog, and what remains in doubt."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from sbclient import clock
from sbclient.broker.faults import Operation
from sbclient.client.client import ServiceBusClient
from sbclient.errors import (
    BacklogUnavailableError,
    InvalidOperationError,
    OperationTimeoutError,
    ScheduleUnavailableError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
)
from sbclient.message import ServiceBusMessage
from sbclient.testing import Fault, FaultKind, MemoryPair
from tests.client.scene import AT_ONCE, QUEUE, SESSION_BACKLOG, diverted, encoded, options, taken, texts, waiting

ORDERED = options(ordering="session", failover_interval=0)
REFUSED = Fault(FaultKind.ERROR, error=ServiceBusQuotaExceededError, operations=[Operation.SEND])


def of(session: str | None, number: int) -> ServiceBusMessage:
    text = f"{session}{number}"
    return ServiceBusMessage(text, message_id=text, session_id=session)


async def test_sessions_of_one_transfer_take_their_own_routes(pair: MemoryPair) -> None:
    async with pair.client(ORDERED) as client, client.get_queue_sender(QUEUE) as sender:
        with pytest.raises(InvalidOperationError, match="one list for each session"):
            await sender.send_messages([of("a", 0), of("b", 0)])
        client.pair.force_failover(QUEUE)
        await sender.send_messages(of("b", 1))
        client.pair.mark_healthy(QUEUE)
        both = encoded([of("a", 2), of("b", 2)])
        await sender.send_encoded(both, sessions=["a", "b"])
        await sender.send_encoded(encoded([of("b", 3)]), sessions=["b"])
        pair.secondary.inject(REFUSED)
        for is_down in (False, True):  # the messages of "a" were accepted, or those of neither
            if is_down:
                pair.primary.inject(Fault(FaultKind.ERROR, operations=[Operation.SEND]))
            with pytest.raises(ServiceBusError) as caught:
                await sender.send_encoded(encoded([of("a", 4), of("b", 4)]), sessions=["a", "b"])
            assert caught.value.is_in_doubt == (not is_down)
        pair.secondary.heal()
        (of_b,) = await waiting(pair, SESSION_BACKLOG)
        client.pair.mark_healthy(QUEUE)
        pair.secondary.inject(replace(REFUSED, entity_path=of_b))
        with pytest.raises(ServiceBusError) as caught:  # the backlog has accepted the messages of "a"
            await sender.send_encoded(encoded([of("a", 5), of("b", 5)]), sessions=["a", "b"])
        assert caught.value.is_in_doubt
        pair.primary.heal()
        pair.secondary.heal()
    assert texts(await taken(pair)) == ["a2", "a4"]
    found = await waiting(pair, SESSION_BACKLOG)
    assert sorted(texts(messages) for messages in found.values()) == [["a5"], ["b1", "b2", "b3"]]


async def test_a_link_that_was_open_is_attached_again_once_by_each_send(pair: MemoryPair) -> None:
    async with pair.client(AT_ONCE) as client, client.get_queue_sender(QUEUE) as sender:
        for number in range(3):
            await sender.send_messages(of(None, number))
            pair.primary.inject(Fault(FaultKind.DOWN, count=1))
        pair.primary.inject(Fault(FaultKind.DOWN, count=1))
        await sender.send_messages(of(None, 3))
        assert client.pair.status().entities[QUEUE].diverted == 1
    assert texts(await taken(pair)) == ["None0", "None1", "None2"]
    assert texts(await diverted(pair)) == ["None3"]


async def test_a_link_is_not_attached_again_while_the_entity_is_failed_over(pair: MemoryPair) -> None:
    async with pair.client(AT_ONCE) as client, client.get_queue_sender(QUEUE) as sender:
        await sender.send_messages(of(None, 0))
        pair.primary.inject(Fault(FaultKind.SLOW, count=1, latency_s=3))
        pair.primary.inject(Fault(FaultKind.DOWN, count=1))
        sending = asyncio.create_task(sender.send_messages(of(None, 1)))
        await clock.sleep(1)
        client.pair.force_failover(QUEUE)
        await sending
    assert texts(await taken(pair)) == ["None0"]
    assert texts(await diverted(pair)) == ["None1"]


@pytest.mark.parametrize("is_scheduled", [False, True])
async def test_a_success_counts_in_the_failover_generation_in_which_its_attempt_began(
    pair: MemoryPair, *, is_scheduled: bool
) -> None:
    due = datetime.fromtimestamp(clock.now(), UTC) + timedelta(hours=1)
    client = pair.client(options(failover_interval=60), retry_total=1)
    async with client, client.get_queue_sender(QUEUE) as sender, client.get_queue_sender(QUEUE) as other:
        await sender.send_messages(of(None, 0))
        await other.send_messages(of(None, 1))
        pair.primary.inject(Fault(FaultKind.HANG, count=1))
        call = sender.schedule_messages(of(None, 2), due) if is_scheduled else sender.send_messages(of(None, 2))
        calling = asyncio.create_task(call)
        await clock.sleep(1)
        client.pair.mark_unhealthy(QUEUE)
        client.pair.mark_healthy(QUEUE)
        pair.primary.inject(Fault(FaultKind.DOWN, operations=[Operation.SEND]))
        with pytest.raises(ServiceBusConnectionError):
            await other.send_messages(of(None, 3), timeout=5)
        assert client.pair.status().entities[QUEUE].state == "suspect"
        pair.primary.heal()
        await calling
        assert client.pair.status().entities[QUEUE].state == "healthy"


async def test_what_a_failed_over_entity_offers(pair: MemoryPair, client: ServiceBusClient) -> None:
    due = datetime.fromtimestamp(clock.now(), UTC) + timedelta(hours=1)
    async with client.get_queue_sender(QUEUE) as sender:
        healthy = (await sender.create_message_batch()).max_size_in_bytes
        client.pair.force_failover(QUEUE)
        with pytest.raises(ScheduleUnavailableError):
            await sender.schedule_messages(of(None, 1), due)
        pair.primary.inject(Fault(FaultKind.HANG))
        assert (await sender.create_message_batch()).max_size_in_bytes == healthy
        for timeout in (1e-9, 5):
            began_at = clock.monotonic()
            pair.secondary.inject(Fault(FaultKind.HANG))
            with pytest.raises((BacklogUnavailableError, OperationTimeoutError)):
                await sender.send_messages(of(None, 2), timeout=timeout)
            assert clock.monotonic() - began_at <= timeout
    pair.secondary.heal()
    assert await diverted(pair) == []


@pytest.mark.parametrize("was_reached", [False, True])
async def test_a_diversion_says_if_the_primary_has_never_answered(pair: MemoryPair, *, was_reached: bool) -> None:
    async with pair.client(AT_ONCE) as client, client.get_queue_sender(QUEUE) as sender:
        if was_reached:
            await sender.send_messages(of(None, 0))
        pair.primary.inject(Fault(FaultKind.DOWN))
        await sender.send_messages(of(None, 1))
        names = [event.name for event in client.pair.events()]
        assert ("failover.never_reached" in names) != was_reached


async def test_limits_in_an_outage_are_those_of_the_backlog_or_an_error(pair: MemoryPair) -> None:
    pair.primary.inject(Fault(FaultKind.DOWN))
    async with pair.client() as client, client.get_queue_sender(QUEUE) as sender:
        assert (await sender.create_message_batch()).max_size_in_bytes > 200_000
        assert client.pair.status().entities[QUEUE].state == "suspect"
    async with pair.client(retry_total=9) as client, client.get_queue_sender(QUEUE) as sender:
        creating = asyncio.create_task(sender.create_message_batch())
        await clock.sleep(2)
        client.pair.force_failover(QUEUE)
        began_at = clock.monotonic()
        assert (await creating).max_size_in_bytes > 200_000
        assert clock.monotonic() == began_at, "a failover ends the pauses between its attempts"
    async with pair.unpaired_client() as client, client.get_queue_sender(QUEUE) as sender:
        with pytest.raises(ServiceBusConnectionError):
            await sender.create_message_batch()
