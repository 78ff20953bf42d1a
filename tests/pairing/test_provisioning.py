"""Backlog queues: made if absent, taken as they are, left out if they cannot be used."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from sbclient.broker.faults import Operation
from sbclient.clock import VirtualClock
from sbclient.entities import UNLIMITED
from sbclient.errors import (
    BacklogUnavailableError,
    MessagingEntityAlreadyExistsError,
    ServiceBusAuthorizationError,
    ServiceBusConnectionError,
    ServiceBusQuotaExceededError,
)
from sbclient.message import ServiceBusMessage
from sbclient.testing import Fault, FaultKind, MemoryPair, memory_pair
from tests.client.scene import AT_ONCE, BACKLOG, QUEUE, SESSION_BACKLOG, diverted, make_queue, options, texts


async def queues(pair: MemoryPair) -> list[str]:
    async with pair.unpaired_client(secondary=True) as client:
        return [queue.name async for queue in client.administration.list_queues()]


async def test_n001_n004_ten_queues_named_after_the_primary_are_made(pair: MemoryPair) -> None:
    async with pair.client() as client:
        assert client.pair.status().backlog_queues == tuple(BACKLOG)
    assert await queues(pair) == BACKLOG


async def test_n003_with_the_documented_description(pair: MemoryPair) -> None:
    async with pair.client():
        pass
    async with pair.unpaired_client(secondary=True) as client:
        queue = await client.administration.get_queue(BACKLOG[3])
    assert queue.max_size_in_megabytes == 5120
    assert queue.max_delivery_count == 2_147_483_647
    assert queue.default_message_time_to_live == UNLIMITED
    assert queue.auto_delete_on_idle == UNLIMITED
    assert queue.lock_duration == timedelta(minutes=1)
    assert queue.dead_lettering_on_message_expiration
    assert queue.enable_batched_operations
    assert not queue.enable_partitioning
    assert not queue.requires_session
    assert not queue.requires_duplicate_detection


async def test_n002_existing_queues_are_taken_as_they_are_and_extra_ones_left_alone(pair: MemoryPair) -> None:
    await make_queue(pair, BACKLOG[0], secondary=True, lock_duration=timedelta(seconds=30), enable_partitioning=True)
    await make_queue(pair, "contoso/x-servicebus-transfer/12", secondary=True)
    async with pair.client() as client:
        assert client.pair.status().backlog_queues == tuple(BACKLOG)
    async with pair.unpaired_client(secondary=True) as client:
        assert (await client.administration.get_queue(BACKLOG[0])).lock_duration == timedelta(seconds=30)
    assert "contoso/x-servicebus-transfer/12" in await queues(pair)


async def test_f19_names_follow_the_option_and_the_count(pair: MemoryPair) -> None:
    async with pair.client(options(primary_name="other", backlog_queue_count=2)):
        pass
    assert await queues(pair) == ["other/x-servicebus-transfer/0", "other/x-servicebus-transfer/1"]


async def test_the_second_client_makes_nothing_and_asks_little(pair: MemoryPair) -> None:
    async with pair.client():
        pass
    asked = []
    pair.secondary.inject(Fault(FaultKind.DOWN, operations=[Operation.MANAGE], entity_path=BACKLOG[0]))
    async with pair.client() as client:
        asked.append(client.pair.status().backlog_queues)
    assert asked == [tuple(BACKLOG)]


async def test_clients_that_open_at_the_same_time_do_not_disturb_each_other(pair: MemoryPair) -> None:
    clients = [pair.client() for _ in range(10)]
    await asyncio.gather(*(client.__aenter__() for client in clients))
    assert all(len(client.pair.status().backlog_queues) == 10 for client in clients)
    await asyncio.gather(*(client.close() for client in clients))
    assert await queues(pair) == BACKLOG


async def test_a_race_for_a_queue_that_is_lost_is_fine(pair: MemoryPair) -> None:
    async with pair.client():
        pass
    stale = pair.client()
    transport = stale.pair.state.secondary
    listed = transport.administration.list

    async def nothing(*args: object, **kwargs: object) -> list[object]:
        await listed(*args, **kwargs)  # type: ignore[arg-type]  # handed on
        return []

    transport.administration.list = nothing  # type: ignore[method-assign,assignment]  # as seen before the others came
    async with stale:
        assert len(stale.pair.status().backlog_queues) == 10


async def test_queues_that_cannot_be_made_are_left_out(pair: MemoryPair) -> None:
    for queue in BACKLOG[2:]:
        pair.secondary.inject(Fault(FaultKind.ERROR, entity_path=queue, error=ServiceBusQuotaExceededError))
    async with pair.client() as client, client.get_queue_sender(QUEUE) as sender:
        assert client.pair.status().backlog_queues == tuple(BACKLOG[:2])
        client.pair.force_failover(QUEUE)
        await sender.send_messages(ServiceBusMessage("a"))
        pair.secondary.heal()
        assert (await client.run_syphon(until="empty")).drained == 1


async def test_none_usable_fails_with_every_cause_and_can_be_tried_again(pair: MemoryPair, clock: VirtualClock) -> None:
    for queue in BACKLOG:
        pair.secondary.inject(Fault(FaultKind.ERROR, entity_path=queue, error=ServiceBusAuthorizationError))
    client = pair.client()
    with pytest.raises(BacklogUnavailableError) as caught:
        await client.__aenter__()
    assert list(caught.value.causes) == BACKLOG
    assert client.pair.status().backlog_queues == ()
    with pytest.raises(BacklogUnavailableError):
        await client.get_queue_sender(QUEUE).send_messages(ServiceBusMessage("a"))
    pair.secondary.heal()
    async with client:
        await client.get_queue_sender(QUEUE).send_messages(ServiceBusMessage("a"))
        assert len(client.pair.status().backlog_queues) == 10


async def test_a_secondary_that_is_down_fails_the_pairing(pair: MemoryPair) -> None:
    pair.secondary.inject(Fault(FaultKind.DOWN))
    client = pair.client()
    with pytest.raises(BacklogUnavailableError) as caught:
        await client.__aenter__()
    assert isinstance(caught.value.__cause__, ServiceBusConnectionError)
    await client.close()


@pytest.mark.parametrize(
    "odd",
    [
        {"requires_session": True},
        {"requires_duplicate_detection": True},
        {"forward_to": "elsewhere"},
    ],
    ids=str,
)
@pytest.mark.parametrize("mode", ["create", "verify"])
async def test_existing_queues_that_would_lose_messages_are_left_out(
    pair: MemoryPair, odd: dict[str, object], mode: str
) -> None:
    await make_queue(pair, "elsewhere", secondary=True)
    async with pair.client():
        pass
    async with pair.unpaired_client(secondary=True) as client:
        await client.administration.delete_queue(BACKLOG[4])
    await make_queue(pair, BACKLOG[4], secondary=True, **odd)
    async with pair.client(options(provision=mode)) as client:
        assert client.pair.status().backlog_queues == tuple(BACKLOG[:4] + BACKLOG[5:])


async def test_a_topic_in_the_place_of_a_queue_is_left_out(pair: MemoryPair) -> None:
    async with pair.unpaired_client(secondary=True) as client:
        await client.administration.create_topic(BACKLOG[0])
    async with pair.client(options(backlog_queue_count=2)) as client:
        assert client.pair.status().backlog_queues == (BACKLOG[1],)


async def test_f16_verify_raises_if_one_is_missing_and_makes_nothing(pair: MemoryPair) -> None:
    client = pair.client(options(provision="verify"))
    with pytest.raises(BacklogUnavailableError, match="x-servicebus-transfer/9"):
        await client.__aenter__()
    await client.close()
    assert await queues(pair) == []


async def test_f16_verify_is_content_if_all_are_there(pair: MemoryPair) -> None:
    async with pair.client():
        pass
    async with pair.client(options(provision="verify")) as client:
        assert len(client.pair.status().backlog_queues) == 10


async def test_f16_none_asks_nothing_and_needs_no_right_to_manage(pair: MemoryPair) -> None:
    async with pair.client():
        pass
    pair.secondary.inject(Fault(FaultKind.ERROR, operations=[Operation.MANAGE], error=ServiceBusAuthorizationError))
    with pytest.raises(BacklogUnavailableError, match="provision"):
        await pair.client().__aenter__()
    async with (
        pair.client(options(provision="none", failover_interval=0)) as client,
        client.get_queue_sender(QUEUE) as sender,
    ):
        client.pair.force_failover(QUEUE)
        await sender.send_messages(ServiceBusMessage("a"))
    pair.secondary.heal()
    assert texts(await diverted(pair)) == ["a"]


async def test_f16_with_none_missing_queues_show_at_the_first_diversion(pair: MemoryPair) -> None:
    async with pair.client(options(provision="none")) as client, client.get_queue_sender(QUEUE) as sender:
        client.pair.force_failover(QUEUE)
        with pytest.raises(BacklogUnavailableError) as caught:
            await sender.send_messages(ServiceBusMessage("a"))
        assert sorted(caught.value.causes) == BACKLOG
        assert (await client.run_syphon(until="empty")).drained == 0


async def test_f10_session_queues_are_made_too_and_all_of_them_are_needed(pair: MemoryPair) -> None:
    chosen = options(ordering="session")
    pair.secondary.inject(
        Fault(FaultKind.ERROR, entity_path=SESSION_BACKLOG[7], error=MessagingEntityAlreadyExistsError, count=2)
    )
    client = pair.client(chosen)
    with pytest.raises(BacklogUnavailableError, match="sessions/7"):
        await client.__aenter__()
    pair.secondary.heal()
    async with client:
        assert client.pair.status().backlog_queues == (*BACKLOG, *SESSION_BACKLOG)
    async with pair.unpaired_client(secondary=True) as other:
        assert (await other.administration.get_queue(SESSION_BACKLOG[0])).requires_session


async def test_pairing_goes_on_when_the_size_of_a_backlog_queue_cannot_be_learnt(pair: MemoryPair) -> None:
    pair.secondary.inject(Fault(FaultKind.ERROR, operations=[Operation.OPEN], error=ServiceBusAuthorizationError))
    async with pair.client() as client, client.get_queue_sender(QUEUE) as sender:
        assert (await sender.create_message_batch()).max_size_in_bytes == 255 * 1024


async def test_opening_that_is_cancelled_can_be_begun_anew(pair: MemoryPair) -> None:
    for steps in range(12):
        client = pair.client(AT_ONCE)
        opening = asyncio.ensure_future(client.__aenter__())
        for _ in range(steps):
            await asyncio.sleep(0)
        opening.cancel()
        await asyncio.wait([opening])
        async with client:
            assert len(client.pair.status().backlog_queues) == 10


async def test_pairs_are_cheap_enough_for_one_in_each_test(clock: VirtualClock) -> None:
    for seed in range(20):
        async with memory_pair(clock=clock, seed=seed).client() as client:
            assert len(client.pair.status().backlog_queues) == 10
    assert clock.monotonic() == 0.0
