"""Provisioning: missing backlog queues are created, unusable ones are left out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any, Final

import pytest

from sbclient import clock
from sbclient.broker.faults import Operation
from sbclient.entities import UNLIMITED, EntityKind, EntityProperties, settings_of
from sbclient.errors import (
    BacklogUnavailableError,
    InvalidOperationError,
    MessagingEntityAlreadyExistsError,
    MessagingEntityNotFoundError,
    ServiceBusAuthorizationError,
    ServiceBusQuotaExceededError,
)
from sbclient.message import ServiceBusMessage
from sbclient.pairing.provisioning import keeping_entity
from sbclient.testing import Fault, FaultKind, MemoryPair, memory_pair
from tests.client.scene import AT_ONCE, BACKLOG, QUEUE, SESSION_BACKLOG, diverted, make_queue, options, texts


async def queues(pair: MemoryPair) -> list[str]:
    async with pair.unpaired_client(secondary=True) as client:
        return [queue.name async for queue in client.administration.list_queues()]


async def test_ten_queues_named_after_the_primary_are_created(pair: MemoryPair) -> None:
    async with pair.client() as client:
        assert client.pair.status().backlog_queues == tuple(BACKLOG)
    assert await queues(pair) == BACKLOG


async def test_queues_are_created_with_the_documented_description(pair: MemoryPair) -> None:
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


async def test_existing_queues_are_not_changed(pair: MemoryPair) -> None:
    await make_queue(pair, BACKLOG[0], secondary=True, lock_duration=timedelta(seconds=30), enable_partitioning=True)
    await make_queue(pair, "contoso/x-servicebus-transfer/12", secondary=True)
    async with pair.client() as client:
        assert client.pair.status().backlog_queues == tuple(BACKLOG)
    async with pair.unpaired_client(secondary=True) as client:
        assert (await client.administration.get_queue(BACKLOG[0])).lock_duration == timedelta(seconds=30)
    assert "contoso/x-servicebus-transfer/12" in await queues(pair)


async def test_queue_names_follow_the_options(pair: MemoryPair) -> None:
    async with pair.client(options(primary_name="other", backlog_queue_count=2)):
        pass
    assert await queues(pair) == ["other/x-servicebus-transfer/0", "other/x-servicebus-transfer/1"]


async def test_a_second_client_creates_no_queues(pair: MemoryPair) -> None:
    async with pair.client():
        pass
    queues = []
    pair.secondary.inject(Fault(FaultKind.DOWN, operations=[Operation.MANAGE], entity_path=BACKLOG[0]))
    async with pair.client() as client:
        queues.append(client.pair.status().backlog_queues)
    assert queues == [tuple(BACKLOG)]


async def test_clients_can_open_concurrently(pair: MemoryPair) -> None:
    clients = [pair.client() for _ in range(10)]
    await asyncio.gather(*(client.__aenter__() for client in clients))
    assert all(len(client.pair.status().backlog_queues) == 10 for client in clients)
    await asyncio.gather(*(client.close() for client in clients))
    assert await queues(pair) == BACKLOG


async def test_a_queue_created_by_another_client_is_used(pair: MemoryPair) -> None:
    async with pair.client():
        pass
    stale = pair.client()
    transport = stale.pair.state.secondary
    listed = transport.administration.list

    async def nothing(*args: Any, **kwargs: Any) -> AsyncIterator[EntityProperties]:
        async for queue in listed(*args, **kwargs):
            if queue.name not in BACKLOG:
                yield queue

    transport.administration.list = nothing  # type: ignore[method-assign]  # as seen before the others came
    async with stale:
        assert len(stale.pair.status().backlog_queues) == 10


async def test_queues_that_cannot_be_created_are_left_out(pair: MemoryPair) -> None:
    for queue in BACKLOG[2:]:
        pair.secondary.inject(Fault(FaultKind.ERROR, entity_path=queue, error=ServiceBusQuotaExceededError))
    async with pair.client() as client, client.get_queue_sender(QUEUE) as sender:
        assert client.pair.status().backlog_queues == tuple(BACKLOG[:2])
        client.pair.force_failover(QUEUE)
        await sender.send_messages(ServiceBusMessage("a"))
        pair.secondary.heal()
        assert (await client.run_syphon(until="empty")).drained == 1


async def test_open_raises_every_cause_and_can_be_retried(pair: MemoryPair) -> None:
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


HARMFUL: Final = {"requires_session": True, "requires_duplicate_detection": True, "forward_to": "elsewhere"}
HARMLESS: Final = """
    authorization_rules auto_delete_on_idle availability_status dead_lettering_on_message_expiration
    default_message_time_to_live duplicate_detection_history_time_window enable_batched_operations enable_express
    enable_partitioning forward_dead_lettered_messages_to lock_duration max_delivery_count max_message_size_in_kilobytes
    max_size_in_megabytes status user_metadata
"""


def test_every_setting_of_a_queue_is_known_to_harm_a_backlog_queue_or_not() -> None:
    known = HARMFUL.keys() | HARMLESS.split()
    assert known == set(settings_of(EntityKind.QUEUE)), "name it in HARMFUL, with usable_queue, or in HARMLESS"


@pytest.mark.parametrize("name", HARMFUL)
@pytest.mark.parametrize("mode", ["create", "verify"])
async def test_existing_queues_that_would_lose_messages_are_left_out(pair: MemoryPair, name: str, mode: str) -> None:
    await make_queue(pair, "elsewhere", secondary=True)
    async with pair.client():
        pass
    async with pair.unpaired_client(secondary=True) as client:
        await client.administration.delete_queue(BACKLOG[4])
    await make_queue(pair, BACKLOG[4], secondary=True, **{name: HARMFUL[name]})
    async with pair.client(options(provision=mode)) as client:
        assert client.pair.status().backlog_queues == tuple(BACKLOG[:4] + BACKLOG[5:])


async def test_a_topic_with_the_name_of_a_queue_is_left_out(pair: MemoryPair) -> None:
    async with pair.unpaired_client(secondary=True) as client:
        await client.administration.create_topic(BACKLOG[0])
    async with pair.client(options(backlog_queue_count=2)) as client:
        assert client.pair.status().backlog_queues == (BACKLOG[1],)


async def test_verify_raises_if_a_queue_is_missing(pair: MemoryPair) -> None:
    client = pair.client(options(provision="verify"))
    with pytest.raises(BacklogUnavailableError, match="x-servicebus-transfer/9"):
        await client.__aenter__()
    await client.close()
    assert await queues(pair) == []


async def test_verify_succeeds_if_all_queues_exist(pair: MemoryPair) -> None:
    async with pair.client(options(primary_name=BACKLOG[0].partition("/")[0].upper())):
        pass  # names of entities do not distinguish case
    async with pair.client(options(provision="verify")) as client:
        assert len(client.pair.status().backlog_queues) == 10


async def test_provision_none_needs_no_manage_right(pair: MemoryPair) -> None:
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


async def test_provision_none_fails_at_the_first_diversion_to_a_missing_queue(pair: MemoryPair) -> None:
    async with pair.client(options(provision="none")) as client, client.get_queue_sender(QUEUE) as sender:
        client.pair.force_failover(QUEUE)
        with pytest.raises(BacklogUnavailableError) as caught:
            await sender.send_messages(ServiceBusMessage("a"))
        assert sorted(caught.value.causes) == BACKLOG
        assert (await client.run_syphon(until="empty")).drained == 0


async def test_every_session_queue_must_be_usable(pair: MemoryPair) -> None:
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


async def test_open_succeeds_without_the_limits_of_the_backlog(pair: MemoryPair) -> None:
    pair.secondary.inject(Fault(FaultKind.ERROR, operations=[Operation.OPEN], error=ServiceBusAuthorizationError))
    async with pair.client() as client, client.get_queue_sender(QUEUE) as sender:
        assert (await sender.create_message_batch()).max_size_in_bytes == 255 * 1024


async def test_open_can_be_called_again_after_cancellation(pair: MemoryPair) -> None:
    for steps in range(12):
        client = pair.client(AT_ONCE)
        opening = asyncio.ensure_future(client.__aenter__())
        for _ in range(steps):
            await asyncio.sleep(0)
        opening.cancel()
        await asyncio.wait([opening])
        async with client:
            assert len(client.pair.status().backlog_queues) == 10


@pytest.mark.parametrize(
    ("kind", "outcome"),
    [
        ("queue", QUEUE),
        ("topic with a subscription", QUEUE),
        ("topic whose subscription is deleted", InvalidOperationError),
        ("topic", InvalidOperationError),
        (None, MessagingEntityNotFoundError),
    ],
)
async def test_an_entity_keeps_messages_if_it_is_a_queue_or_has_a_subscription(
    pair: MemoryPair, kind: str | None, outcome: str | type[Exception]
) -> None:
    async with pair.unpaired_client(secondary=True) as client, pair.client() as paired:
        admin = client.administration
        if kind == "queue":
            await admin.create_queue(QUEUE)
        elif kind is not None:
            await admin.create_topic(QUEUE)
            if "subscription" in kind:
                await admin.create_subscription(QUEUE, "billing")
            if "deleted" in kind:
                await admin.delete_subscription(QUEUE, "billing")
        secondary = paired.pair.state.secondary.administration
        if isinstance(outcome, type):
            with pytest.raises(outcome):
                await keeping_entity(secondary, QUEUE)
        else:
            found = await keeping_entity(secondary, QUEUE)
            assert found is not None
            assert found.name == outcome
        pair.secondary.inject(Fault(FaultKind.ERROR, error=ServiceBusAuthorizationError))
        assert await keeping_entity(secondary, QUEUE) is None


async def test_pairs_are_cheap_enough_for_one_in_each_test() -> None:
    for seed in range(20):
        async with memory_pair(seed=seed).client() as client:
            assert len(client.pair.status().backlog_queues) == 10
    assert clock.monotonic() == 0.0
