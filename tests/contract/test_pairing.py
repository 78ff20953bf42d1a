from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sbclient import (
    BacklogUnavailableError,
    OperationTimeoutError,
    ScheduleUnavailableError,
    ServiceBusClient,
    ServiceBusMessage,
    clock,
)
from sbclient.amqp import EncodedBatch
from sbclient.amqp.encoded import encoded_content
from sbclient.broker.faults import Fault, FaultKind, Operation
from tests.contract.kinds import NamespaceKind
from tests.contract.test_sending import properties_for
from tests.original_client import BACKLOG, comparable, healthy

pytestmark = pytest.mark.needs("pair")

FEW: dict[str, Any] = {"backlog_queue_count": 2, "ping_primary_interval": timedelta(seconds=1)}
AT_ONCE: dict[str, Any] = {**FEW, "failover_interval": timedelta(0)}


async def recovered(kind: NamespaceKind, client: ServiceBusClient, path: str) -> None:
    deadline = clock.monotonic() + 30.0
    while client.pair.status().entities[path].state.name != "HEALTHY":
        assert clock.monotonic() < deadline, "the entity did not recover"
        await clock.sleep(0.1)


async def test_a_healthy_primary_gets_all_messages(kind: NamespaceKind) -> None:
    queue = await kind.queue()
    client = kind.paired_client(**FEW)
    async with client.get_queue_sender(queue) as sender:
        await sender.send_messages([ServiceBusMessage("a"), ServiceBusMessage("b")])
    assert [str(message) for message in await kind.received(queue, 2, client)] == ["a", "b"]


async def test_a_diverted_message_is_forwarded_unchanged(kind: NamespaceKind) -> None:
    queue = await kind.queue(requires_session=True)
    client = kind.paired_client(**FEW)
    schedule = datetime.fromtimestamp(int(clock.now()) + 3, tz=UTC)
    sent = ServiceBusMessage(
        b"\x00\xff body",
        application_properties={**properties_for(kind), "x-ms-path": "the application's own"},
        message_id="m-1",
        session_id="s-1",
        content_type="text/plain",
        correlation_id="c-1",
        subject="greeting",
        to="you",
        reply_to="me",
        reply_to_session_id="s-9",
        time_to_live=timedelta(hours=5),
        scheduled_enqueue_time_utc=schedule,
    )
    async with client.get_queue_sender(queue) as sender:
        client.pair.force_failover(queue)
        await sender.send_messages(sent)
        with pytest.raises(ScheduleUnavailableError):
            await sender.schedule_messages(ServiceBusMessage("x", session_id="s-1"), schedule)
    assert client.pair.status().entities[queue].diverted == 1
    client.pair.mark_healthy(queue)
    report = await client.run_syphon(until="empty")
    assert (report.drained, report.dead_lettered, report.parked) == (1, {}, 0)
    async with client.get_queue_receiver(queue, session_id="s-1") as receiver:
        (message,) = await receiver.receive_messages(1, max_wait_time=kind.patience_s)
        await receiver.complete_message(message)
    names = (
        "message_id session_id content_type correlation_id subject to reply_to reply_to_session_id "
        "scheduled_enqueue_time_utc application_properties body_type"
    )
    for name in names.split():
        assert getattr(message, name) == getattr(sent, name), name
    assert bytes(message) == bytes(sent)
    assert {name: type(value) for name, value in message.application_properties.items()} == {
        name: type(value) for name, value in sent.application_properties.items()
    }
    assert message.time_to_live is not None
    assert timedelta(hours=4, minutes=59) < message.time_to_live <= timedelta(hours=5)


async def test_the_backlog_of_the_original_client_is_drained(kind: NamespaceKind) -> None:
    unreadable = set() if "all property types" in kind.capabilities else {"ch", "t"}
    whole = {"transport": "amqp"} if kind.name == "sdk" else {}  # for what azure-servicebus cannot send or show
    for path in {each.path: 0 for each in map(healthy, BACKLOG)}:
        await kind.queue_named(path)
    async with kind.paired_client(**FEW) as client:
        queue, *_ = client.pair.status().backlog_queues
        async with kind.secondary_client(**whole) as secondary, secondary.get_queue_sender(queue) as sender:
            for each in BACKLOG:
                await sender.send_encoded(EncodedBatch([each.message.without_properties(unreadable)]))
        report = await client.run_syphon(until="empty")
    assert (report.drained, report.dead_lettered, report.parked) == (len(BACKLOG), {}, 0)
    for path in {each.path: 0 for each in map(healthy, BACKLOG)}:
        async with kind.client(**whole) as client, client.get_queue_receiver(path) as receiver:
            found = {message.message_id: message for message in await receiver.peek_messages(20)}
        for each in (each for each in BACKLOG if healthy(each).path == path):
            message = found.pop(each.message.message_id)
            aliases = each.message.application_properties
            assert message.session_id == aliases.get("x-ms-sessionid")
            assert message.scheduled_enqueue_time_utc == aliases.get("x-ms-scheduledenqueuetimeutc")
            # The original sends a session id as partition key, too.
            assert message.partition_key == aliases.get("x-ms-sessionid", each.message.partition_key)
            ttl = message.time_to_live
            if "x-ms-timetolive" in aliases:
                assert ttl is not None
                assert timedelta(hours=2, minutes=29) < ttl <= timedelta(hours=2.5)
            else:
                assert ttl is None
            sections = comparable(encoded_content(message).payload)
            sent = comparable(healthy(each).message.without_properties(unreadable).payload)
            for name in ("properties", "application-properties", "data"):
                assert sections[name] == sent[name], (path, each.number)
        assert found == {}


async def test_many_diverted_messages_are_all_forwarded(kind: NamespaceKind) -> None:
    queue = await kind.queue()
    client = kind.paired_client(**FEW)
    count = 60
    async with client.get_queue_sender(queue) as sender:
        client.pair.force_failover(queue)
        await asyncio.gather(
            *(sender.send_messages(ServiceBusMessage(str(n), partition_key=str(n % 3))) for n in range(count - 20))
        )
        await sender.send_messages([ServiceBusMessage(str(n)) for n in range(count - 20, count)])
    client.pair.mark_healthy(queue)
    assert (await client.run_syphon(until="empty")).drained == count
    messages = await kind.received(queue, count, client)
    assert sorted(int(str(message)) for message in messages) == list(range(count))
    assert all(name.startswith("x-ms-") is False for message in messages for name in message.application_properties)


async def test_a_message_for_a_missing_entity_waits_until_it_exists(kind: NamespaceKind) -> None:
    gone, here = kind.new_name("queue"), await kind.queue()
    client = kind.paired_client(**FEW)
    async with client.get_queue_sender(gone) as nowhere, client.get_queue_sender(here) as sender:
        for path in (gone, here):
            client.pair.force_failover(path)
        await nowhere.send_messages([ServiceBusMessage("waits")])
        await sender.send_messages([ServiceBusMessage("goes")])
    report = await client.run_syphon(until="empty")
    assert (report.drained, report.dead_lettered, report.parked) == (1, {}, 1)
    await kind.administration.create_queue(gone)
    assert (await client.run_syphon(until="empty")).drained == 1
    assert [str(message) for message in await kind.received(gone, 1, client)] == ["waits"]
    await kind.administration.delete_queue(gone)
    await kind.received(here, 1, client)


@pytest.mark.needs("faults")
async def test_a_syphon_delivers_to_the_secondary_while_the_primary_refuses(kind: NamespaceKind) -> None:
    queue = await kind.queue()
    secondary = kind.secondary_client()
    await secondary.administration.create_queue(queue)
    client = kind.paired_client(**FEW, redirect_after=timedelta(0))
    async with client.get_queue_sender(queue) as sender:
        client.pair.force_failover(queue)
        await sender.send_messages([ServiceBusMessage("a"), ServiceBusMessage("b")])
        kind.inject(Fault(FaultKind.DOWN, queue))
        report = await client.run_syphon(until="empty")
        assert (report.drained, report.redirected, report.parked) == (2, 2, 0)
        kind.heal()
        await sender.send_messages(ServiceBusMessage("c"))
        report = await client.run_syphon(until="empty")
        assert (report.drained, report.redirected) == (1, 0)
    assert sorted(str(message) for message in await kind.received(queue, 2, secondary)) == ["a", "b"]
    assert [str(message) for message in await kind.received(queue, 1, client)] == ["c"]
    await secondary.administration.delete_queue(queue)


@pytest.mark.needs("faults")
@pytest.mark.parametrize("session_id", [None, "s"])
async def test_a_receiver_from_both_settles_where_it_received(kind: NamespaceKind, session_id: str | None) -> None:
    queue = await kind.queue(requires_session=session_id is not None)
    secondary = kind.secondary_client()
    await secondary.administration.create_queue(queue, requires_session=session_id is not None)
    async with secondary.get_queue_sender(queue) as sender:
        await sender.send_messages(ServiceBusMessage("there", session_id=session_id))
    client = kind.paired_client(**FEW, receive_from="both")
    for expected in ("secondary", "primary"):
        async with client.get_queue_receiver(queue, session_id=session_id, max_wait_time=kind.patience_s) as receiver:
            (message,) = await receiver.receive_messages()
            assert (str(message), message.namespace) == ("there" if expected == "secondary" else "here", expected)
            if session_id is None:
                await receiver.renew_message_lock(message)
            await receiver.defer_message(message)
            number = message.sequence_number
            (message,) = await receiver.receive_deferred_messages([number], namespace=message.namespace)
            await receiver.complete_message(message)
            assert await receiver.peek_messages(5, namespace=message.namespace) == []
        async with client.get_queue_sender(queue) as sender:
            await sender.send_messages(ServiceBusMessage("here", session_id=session_id))
    if session_id is None:
        kind.inject(Fault(FaultKind.DOWN, queue))
        async with secondary.get_queue_sender(queue) as sender, client.get_queue_receiver(queue) as receiver:
            await sender.send_messages(ServiceBusMessage("during"))
            (message,) = await receiver.receive_messages()
            await receiver.complete_message(message)
        assert str(message) == "during"
    await secondary.administration.delete_queue(queue)


@pytest.mark.needs("faults")
async def test_an_outage_diverts_sends_and_a_ping_ends_the_failover(kind: NamespaceKind) -> None:
    queue = await kind.queue()
    client = kind.paired_client(**AT_ONCE)
    async with client.get_queue_sender(queue) as sender:
        await sender.send_messages(ServiceBusMessage("before"))
        kind.inject(Fault(FaultKind.DOWN, queue))
        await sender.send_messages(ServiceBusMessage("during"))
        assert client.pair.status().entities[queue].state.name == "FAILED_OVER"
        kind.heal()
        await recovered(kind, client, queue)
        await sender.send_messages(ServiceBusMessage("after"))
    assert [str(message) for message in await kind.received(queue, 2, client)] == ["before", "after"]
    await client.run_syphon(until="empty")
    assert [str(message) for message in await kind.received(queue, 1, client)] == ["during"]


@pytest.mark.needs("faults")
async def test_a_send_in_doubt_is_repeated_with_the_same_id(kind: NamespaceKind) -> None:
    queue = await kind.queue(requires_duplicate_detection=True)
    client = kind.client()
    second = ServiceBusMessage("second")
    async with client.get_queue_sender(queue) as sender:
        await sender.send_messages(ServiceBusMessage("first"))
        kind.inject(Fault(FaultKind.LOSE_ACKNOWLEDGEMENT, queue, operations=[Operation.SEND], count=1))
        with pytest.raises(OperationTimeoutError):
            await sender.send_messages(second, timeout=1.5)
        await sender.send_messages(second)
    messages = await kind.received(queue, 2, client)
    assert [str(message) for message in messages] == ["first", "second"]


@pytest.mark.needs("faults")
async def test_a_failed_backlog_queue_is_skipped(kind: NamespaceKind) -> None:
    queue = await kind.queue()
    client = kind.paired_client(**FEW)
    async with client.get_queue_sender(queue) as sender:
        client.pair.force_failover(queue)
        await sender.send_messages(ServiceBusMessage("0"))
        dead, *_ = client.pair.status().backlog_queues
        kind.inject(Fault(FaultKind.DOWN, dead, operations=[Operation.OPEN, Operation.SEND]), is_secondary=True)
        for number in range(1, 4):
            await sender.send_messages(ServiceBusMessage(str(number)))
    kind.heal()
    client.pair.mark_healthy(queue)
    assert (await client.run_syphon(until="empty")).drained == 4
    assert len(await kind.received(queue, 4, client)) == 4


async def test_the_order_of_a_session_is_kept_through_the_backlog(kind: NamespaceKind) -> None:
    queue = await kind.queue(requires_session=True)
    client = kind.paired_client(**FEW, ordering="session")
    async with client.get_queue_sender(queue) as sender:
        for number in range(10):
            if number == 3:
                client.pair.force_failover(queue)
            if number == 7:
                client.pair.mark_healthy(queue)
            await sender.send_messages(ServiceBusMessage(str(number), session_id="s"))
    await client.run_syphon(until="empty")
    seen: list[int] = []
    async with client.get_queue_receiver(queue, session_id="s") as receiver:
        while len(seen) < 10:
            messages = await receiver.receive_messages(10, max_wait_time=kind.patience_s)
            assert messages
            for message in messages:
                await receiver.complete_message(message)
            seen += [int(str(message)) for message in messages]
    assert seen == list(range(10))


@pytest.mark.needs("faults")
async def test_queues_are_provisioned_when_the_secondary_is_available_again(kind: NamespaceKind) -> None:
    queue = await kind.queue()
    kind.inject(Fault(FaultKind.DOWN), is_secondary=True)
    client = kind.paired_client(**AT_ONCE)
    async with client, client.get_queue_sender(queue) as sender:
        await sender.send_messages(ServiceBusMessage("before"))
        assert not client.pair.status().is_provisioned
        assert [str(message) for message in await kind.received(queue, 1, client)] == ["before"]
        kind.inject(Fault(FaultKind.DOWN, queue))
        with pytest.raises(BacklogUnavailableError, match="not provisioned"):
            await sender.send_messages(ServiceBusMessage("during"), timeout=3.0)
        kind.heal()
        client.pair.mark_unhealthy(queue)
        await sender.send_messages(ServiceBusMessage("after"))
        assert client.pair.status().is_provisioned


@pytest.mark.needs("faults")
async def test_a_secondary_that_does_not_answer_does_not_stop_the_primary(kind: NamespaceKind) -> None:
    queue = await kind.queue()
    kind.inject(Fault(FaultKind.HANG), is_secondary=True)
    client = kind.paired_client(**AT_ONCE)
    async with client, client.get_queue_sender(queue) as sender:
        await sender.send_messages(ServiceBusMessage("a"))
        assert [str(message) for message in await kind.received(queue, 1, client)] == ["a"]
        assert not client.pair.status().is_provisioned


async def test_a_list_with_several_keys_fits_a_partitioned_backlog_queue(kind: NamespaceKind) -> None:
    queue = await kind.queue()
    backlog = f"{queue}/x-servicebus-transfer/0"
    await kind.secondary_client().administration.create_queue(backlog, enable_partitioning=True)
    client = kind.paired_client(backlog_queue_count=1, primary_name=queue)
    async with client.get_queue_sender(queue) as sender:
        client.pair.force_failover(queue)
        await sender.send_messages([ServiceBusMessage(str(n), partition_key=f"key-{n % 3}") for n in range(6)])
    client.pair.mark_healthy(queue)
    assert (await client.run_syphon(until="empty")).drained == 6
    assert len(await kind.received(queue, 6, client)) == 6
    await kind.secondary_client().administration.delete_queue(backlog)
