"""The syphon delivers to the secondary's own entities while the primary is away, and returns to the primary."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sbclient import ServiceBusClient, ServiceBusMessage, clock
from sbclient.errors import (
    MessagingEntityDisabledError,
    ServiceBusAuthorizationError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
)
from sbclient.message import ServiceBusMessageState
from sbclient.options import PairedNamespaceOptions
from sbclient.syphon import destination_table
from sbclient.syphon.status import SyphonStatus
from sbclient.syphon.syphon import Syphon
from sbclient.testing import Fault, FaultKind, MemoryPair, Operation
from sbclient.testing.ledger import Ledger
from tests.client.scene import QUEUE, cancel, make_queue, options, taken, texts, waiting

MINUTES = 60.0
FULL = ServiceBusQuotaExceededError


@asynccontextmanager
async def syphoning(client: ServiceBusClient) -> AsyncIterator[Syphon]:
    async with client:
        syphon = Syphon(client.pair)
        running = asyncio.ensure_future(syphon.run())
        yield syphon
        await cancel(running)


async def divert(client: ServiceBusClient, *numbers: int, queue: str = QUEUE, **attributes: Any) -> None:
    client.pair.force_failover(queue)
    async with client.get_queue_sender(queue) as sender:
        for number in numbers:
            await sender.send_messages(ServiceBusMessage(f"{number}", message_id=f"{number}", **attributes))


def after(seconds: float, **chosen: Any) -> PairedNamespaceOptions:
    return options(redirect_after=seconds, backlog_queue_count=1, **chosen)


def names(client: ServiceBusClient) -> list[str]:
    """The events of the redirect, in order."""
    return [event.name for event in client.pair.events() if "redirect" in event.name]


async def test_messages_go_to_the_secondary_while_the_primary_is_away_and_then_to_the_primary(pair: MemoryPair) -> None:
    await make_queue(pair, secondary=True)
    pair.primary.inject(Fault(FaultKind.DOWN))
    async with syphoning(pair.client(after(10 * MINUTES))) as syphon:
        events_of = syphon._pair.events
        client = pair.client(after(10 * MINUTES))
        async with client:
            await divert(client, 1, 2, 3)
            await clock.sleep(9 * MINUTES)
            assert await taken(pair, secondary=True) == []
            await clock.sleep(2 * MINUTES)
            assert sorted(texts(await taken(pair, secondary=True))) == ["1", "2", "3"]
            status: SyphonStatus = syphon.status()
            assert (list(status.redirected), status.refusing, status.is_stalled) == ([QUEUE], {}, False)
            assert 10 * MINUTES <= status.redirected[QUEUE] <= 11 * MINUTES
            await divert(client, 4)
            await clock.sleep(2.0)
            assert texts(await taken(pair, secondary=True)) == ["4"]  # nothing waits again
            pair.primary.heal()
            await divert(client, 5)
            await clock.sleep(90.0)
            await divert(client, 6)
            await clock.sleep(5.0)
            both = (texts(await taken(pair, secondary=True)), texts(await taken(pair)))
            assert both == (["5"], ["6"])
            assert syphon.status().redirected == {}
            report = syphon.report()
            assert (report.drained, report.redirected, report.parked, report.dead_lettered) == (6, 5, 0, {})
    events = [event.name for event in events_of if event.name.startswith("syphon.")]
    assert events == [
        "syphon.destination_unavailable",
        "syphon.redirected",
        "syphon.redirected_in_doubt",  # a namespace that goes away may have the message
        "syphon.redirect_ended",
        "syphon.destination_recovered",
    ]


async def test_a_run_until_empty_redirects_from_the_first_refusal_if_no_time_is_given(pair: MemoryPair) -> None:
    await make_queue(pair, secondary=True)
    async with pair.client(after(0)) as client:
        await divert(client, *range(50))
        pair.primary.inject(Fault(FaultKind.DOWN))
        began_at = clock.monotonic()
        report = await client.run_syphon(until="empty")
        assert (report.drained, report.redirected, report.parked) == (50, 50, 0)
        assert clock.monotonic() - began_at < 10.0
    assert texts(await taken(pair, secondary=True)) == [str(number) for number in range(50)]


async def test_a_run_until_empty_waits_for_the_time_of_the_redirect(pair: MemoryPair) -> None:
    await make_queue(pair, secondary=True)
    async with pair.client(after(5 * MINUTES)) as client:
        await divert(client, *range(50))
        pair.primary.inject(Fault(FaultKind.DOWN))
        report = await client.run_syphon(until="empty")
        assert (report.drained, report.redirected, report.parked) == (50, 50, 0)
        assert 5 * MINUTES <= clock.monotonic() <= 7 * MINUTES


async def test_without_the_option_messages_wait_for_the_primary(pair: MemoryPair) -> None:
    await make_queue(pair, secondary=True)
    async with pair.client(options(backlog_queue_count=1)) as client:
        await divert(client, 1)
        pair.primary.inject(Fault(FaultKind.DOWN))
        report = await client.run_syphon(until="empty")
    assert (report.drained, report.redirected, report.parked) == (0, 0, 1)
    assert await taken(pair, secondary=True) == []


async def test_a_redirected_message_is_restored_as_in_the_primary(pair: MemoryPair) -> None:
    await make_queue(pair, secondary=True, requires_session=True)
    schedule = datetime.fromtimestamp(int(clock.now()) + 500, tz=UTC)
    async with pair.client(after(0)) as client:
        await divert(client, 1, session_id="s", time_to_live=timedelta(seconds=400))
        await divert(client, 2, session_id="s", scheduled_enqueue_time_utc=schedule, correlation_id="c")
        pair.primary.inject(Fault(FaultKind.DOWN))
        await clock.sleep(100.0)
        await client.run_syphon(until="empty")
    async with (
        pair.unpaired_client(secondary=True) as client,
        client.get_queue_receiver(QUEUE, session_id="s") as receiver,
    ):
        (first,) = await receiver.receive_messages()
        await receiver.complete_message(first)
    assert (first.message_id, first.session_id, first.partition_key) == ("1", "s", None)
    assert first.time_to_live is not None
    assert 290 < first.time_to_live.total_seconds() <= 300
    assert not first.application_properties
    await clock.sleep(400.0)
    (second,) = await taken(pair, secondary=True)
    assert (second.scheduled_enqueue_time_utc, second.correlation_id) == (schedule, "c")


@pytest.mark.parametrize(
    ("description", "error"),
    [
        (None, None),  # missing
        ("topic", None),  # without a subscription it would drop what it gets
        ({"requires_session": True}, None),
        ({}, MessagingEntityDisabledError),
        ({}, FULL),
        ({}, ServiceBusAuthorizationError),
    ],
)
async def test_an_entity_of_the_secondary_that_cannot_have_the_messages_is_named_once_and_nothing_is_lost(
    pair: MemoryPair, description: dict[str, Any] | str | None, error: type[ServiceBusError] | None
) -> None:
    if isinstance(description, str):
        async with pair.unpaired_client(secondary=True) as secondary:
            await secondary.administration.create_topic(QUEUE)
    elif description is not None:
        await make_queue(pair, secondary=True, **description)
    if error is not None:
        pair.secondary.inject(Fault(FaultKind.ERROR, QUEUE, operations=[Operation.SEND], error=error))
    pair.primary.inject(Fault(FaultKind.DOWN))
    client = pair.client(after(MINUTES, missing_entity_grace=0))
    async with syphoning(client) as syphon:
        await divert(client, 1, 2, 3)
        await clock.sleep(60 * MINUTES)
        assert names(client) == ["syphon.not_redirected"]
        text = syphon.status().refusing[QUEUE].text
        assert "; in the secondary " in text
        assert ("topic without a subscription" in text) is (description == "topic")
        pair.primary.heal()
        await clock.sleep(3 * MINUTES)
        assert sorted(texts(await taken(pair))) == ["1", "2", "3"]
        assert (syphon.report().dead_lettered, syphon.report().redirected) == ({}, 0)


async def test_an_entity_that_is_created_in_the_secondary_is_found_within_minutes(pair: MemoryPair) -> None:
    pair.primary.inject(Fault(FaultKind.DOWN))
    client = pair.client(after(0))
    async with syphoning(client):
        await divert(client, 1)
        await clock.sleep(30 * MINUTES)
        await make_queue(pair, secondary=True)
        await clock.sleep(2 * MINUTES)
        assert texts(await taken(pair, secondary=True)) == ["1"]


async def test_a_message_that_only_the_secondary_rejects_waits_and_the_others_go(pair: MemoryPair) -> None:
    """The limit of its entity there is lower."""
    await make_queue(pair, secondary=True, requires_session=True)
    pair.primary.inject(Fault(FaultKind.DOWN))
    client = pair.client(after(0))
    async with syphoning(client) as syphon:
        await divert(client, 1, 2, session_id="s")
        await divert(client, 3)
        await divert(client, 4, 5, session_id="t")
        await clock.sleep(5 * MINUTES)
        assert sorted(texts(await taken(pair, secondary=True))) == ["1", "2", "4", "5"]
        pair.primary.heal()
        await clock.sleep(3 * MINUTES)
        assert (texts(await taken(pair)), syphon.report().dead_lettered) == (["3"], {})


@pytest.mark.parametrize("are_redirected", [False, True])
async def test_ordered_sessions_wait_for_the_primary_unless_they_are_redirected(
    pair: MemoryPair, are_redirected: bool
) -> None:
    async with pair.unpaired_client() as client:
        await client.administration.delete_queue(QUEUE)
    await make_queue(pair, requires_session=True)
    await make_queue(pair, secondary=True, requires_session=True)
    pair.primary.inject(Fault(FaultKind.DOWN))
    client = pair.client(after(MINUTES, ordering="session", redirect_sessions=are_redirected))
    async with syphoning(client):
        await divert(client, *range(6), session_id="s")
        await clock.sleep(10 * MINUTES)
        expected = [str(number) for number in range(6)]
        assert texts(await taken(pair, secondary=True)) == (expected if are_redirected else [])
        pair.primary.heal()
        await clock.sleep(5 * MINUTES)
        assert texts(await taken(pair)) == ([] if are_redirected else expected)


async def test_a_run_until_empty_ends_although_ordered_sessions_wait_for_the_primary(pair: MemoryPair) -> None:
    await make_queue(pair, "plain", secondary=True)
    await make_queue(pair, secondary=True)
    async with pair.client(after(0, ordering="session")) as client:
        await divert(client, 1, 2, session_id="s")
        await divert(client, 3)
        pair.primary.inject(Fault(FaultKind.DOWN))
        report = await client.run_syphon(until="empty")
    assert (report.drained, report.redirected) == (1, 1)


async def test_a_missing_or_forbidden_entity_of_the_primary_is_no_outage(pair: MemoryPair) -> None:
    await make_queue(pair, "gone", secondary=True)
    async with pair.client(after(0)) as client:
        await divert(client, 1, queue="gone")
        report = await client.run_syphon(until="empty")
    assert (report.drained, report.parked) == (0, 1)
    assert await taken(pair, "gone", secondary=True) == []


@pytest.mark.parametrize("is_in_doubt_in_both", [False, True])
async def test_a_send_in_doubt_before_the_redirect_is_named(pair: MemoryPair, is_in_doubt_in_both: bool) -> None:
    await make_queue(pair, secondary=True)
    if is_in_doubt_in_both:
        pair.secondary.inject(Fault(FaultKind.LOSE_ACKNOWLEDGEMENT, QUEUE, operations=[Operation.SEND], count=1))
    client = pair.client(after(0))
    async with syphoning(client):
        pair.primary.inject(Fault(FaultKind.LOSE_ACKNOWLEDGEMENT, QUEUE, operations=[Operation.SEND], count=1))
        pair.primary.inject(Fault(FaultKind.DOWN, QUEUE, operations=[Operation.OPEN]))
        await divert(client, 1)
        await clock.sleep(3 * MINUTES)
        (event,) = [each for each in client.pair.events() if each.name == "syphon.redirected_in_doubt"]
        assert (event.path, event.facts["side"], event.facts["message_ids"]) == (QUEUE, "secondary", ["1"])
    assert texts(await taken(pair, secondary=True)) == ["1"] * (1 + is_in_doubt_in_both)
    pair.primary.heal()
    assert texts(await taken(pair)) == ["1"]


async def test_a_primary_that_opens_links_and_refuses_messages_gets_one_of_them_at_a_time(pair: MemoryPair) -> None:
    await make_queue(pair, secondary=True)
    pair.primary.inject(Fault(FaultKind.ERROR, QUEUE, operations=[Operation.SEND], error=FULL))
    client = pair.client(after(0))
    async with syphoning(client) as syphon:
        for minute in range(20):
            await divert(client, *range(10 * minute, 10 * minute + 10))
            await clock.sleep(MINUTES)
        assert names(client) == ["syphon.redirected"]
        assert syphon.report().redirected == 200
    assert len(await taken(pair, secondary=True)) == 200


async def test_each_outage_of_a_primary_that_never_accepts_is_named(pair: MemoryPair) -> None:
    """Another error ends an outage; the next one begins anew, and the count goes on until the primary accepts."""
    await make_queue(pair, secondary=True)
    client = pair.client(after(0))
    async with syphoning(client) as syphon:
        for number in range(2):
            pair.primary.heal()
            pair.primary.inject(Fault(FaultKind.DOWN))
            await divert(client, number)
            await clock.sleep(5 * MINUTES)
            assert len(syphon.status().redirected) == 1
            pair.primary.heal()
            pair.primary.inject(Fault(FaultKind.ERROR, QUEUE, error=ServiceBusAuthorizationError))
            await clock.sleep(5 * MINUTES)
            assert syphon.status().redirected == {}
        pair.primary.heal()
        await divert(client, 2)
        await clock.sleep(5 * MINUTES)
        assert names(client).count("syphon.redirected") == 2
        (ended,) = [each for each in client.pair.events() if each.name == "syphon.redirect_ended"]
        assert ended.facts["redirected"] == 2


async def test_the_state_survives_while_more_destinations_wait_than_have_a_place(
    pair: MemoryPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(destination_table, "DESTINATIONS_KEPT", 4)
    queues = [f"q{number}" for number in range(12)]
    for name in queues:
        await make_queue(pair, name)
        await make_queue(pair, name, secondary=True)
    pair.primary.inject(Fault(FaultKind.DOWN))
    client = pair.client(after(5 * MINUTES))
    async with syphoning(client):
        for name in queues:
            await divert(client, 1, queue=name)
        await clock.sleep(30 * MINUTES)
    pair.primary.heal()
    assert list(await waiting(pair, queues, secondary=False)) == []
    left = await waiting(pair, queues)
    assert {name: texts(messages) for name, messages in left.items()} == {name: ["1"] for name in queues}


async def test_both_namespaces_away_lose_nothing(pair: MemoryPair) -> None:
    await make_queue(pair, secondary=True)
    client = pair.client(after(0))
    async with syphoning(client):
        await divert(client, *range(20))
        pair.primary.inject(Fault(FaultKind.DOWN))
        pair.secondary.inject(Fault(FaultKind.DOWN))
        await clock.sleep(30 * MINUTES)
        pair.secondary.heal()
        await clock.sleep(5 * MINUTES)
        pair.primary.heal()
        await clock.sleep(5 * MINUTES)
        found = texts(await taken(pair, secondary=True)) + texts(await taken(pair))
        states = {each.state for messages in (await waiting(pair)).values() for each in messages}
    assert (sorted(map(int, found)), states) == (list(range(20)), set[ServiceBusMessageState]())


async def test_each_message_is_received_within_12_minutes_although_the_primary_is_away_for_six_hours(
    pair: MemoryPair,
) -> None:
    await make_queue(pair, secondary=True)
    ledger, sent_at, latest_s = Ledger(), dict[str, float](), 0.0
    chosen = options(failover_interval=0, redirect_after=10 * MINUTES, enable_syphon=True, backlog_queue_count=2)
    count, pause_s, hour = 10_000, 2.5, 60 * MINUTES
    lost = Fault(FaultKind.LOSE_ACKNOWLEDGEMENT, QUEUE, operations=[Operation.SEND], count=3)

    async def produce(client: ServiceBusClient) -> None:
        async with client.get_queue_sender(QUEUE) as sender:
            for number in range(count):
                message = ServiceBusMessage(f"{number}", message_id=f"{number}")
                ledger.send(message.message_id)
                sent_at[f"{number}"] = clock.monotonic()
                await sender.send_messages(message)
                ledger.accepted.add(message.message_id)
                await clock.sleep(pause_s)

    async def consume(client: ServiceBusClient) -> None:
        nonlocal latest_s
        async with client.get_queue_receiver(QUEUE, receive_from="both") as receiver:
            while True:
                for message in await receiver.receive_messages(20, max_wait_time=60):
                    await receiver.complete_message(message)
                    ledger.deliver(message.message_id)
                    latest_s = max(latest_s, clock.monotonic() - sent_at[str(message.message_id)])
                    where[message.namespace == "secondary"].append(clock.monotonic())

    where: dict[bool, list[float]] = {False: [], True: []}
    async with pair.client(chosen) as client:
        consumers = [asyncio.ensure_future(consume(client)) for _ in range(2)]
        producing = asyncio.ensure_future(produce(client))
        began_at = clock.monotonic()
        await clock.sleep(20 * MINUTES)
        pair.primary.inject(lost)
        await clock.sleep(30.0)
        pair.primary.inject(Fault(FaultKind.DOWN))
        await clock.sleep(6 * hour)
        pair.primary.heal()
        healed_at = clock.monotonic()
        await producing
        await clock.sleep(15 * MINUTES)
        for consumer in consumers:
            await cancel(consumer)
    assert (ledger.lost, ledger.unexpected, len(ledger.accepted)) == (set(), set(), count)
    assert ledger.duplicates <= lost.applied <= 3
    assert latest_s <= 12 * MINUTES
    assert len(where[True]) > 8_000
    assert max(where[True]) <= healed_at + 3 * MINUTES  # then back on the primary
    assert sum(at > healed_at for at in where[False]) > (count * pause_s - (healed_at - began_at)) / pause_s * 0.8


async def test_each_redirect_is_told_with_the_number_of_its_messages(pair: MemoryPair) -> None:
    await make_queue(pair, secondary=True)
    async with syphoning(pair.client(after(5 * MINUTES))) as syphon, pair.client(after(5 * MINUTES)) as client:
        for turn, count in enumerate((1, 3, 0, 1), start=1):
            pair.primary.inject(Fault(FaultKind.DOWN))
            await divert(client, *range(count))
            await clock.sleep(12 * MINUTES)
            assert len(await taken(pair, secondary=True)) == count
            pair.primary.heal()
            await clock.sleep(5 * MINUTES)
            await divert(client, turn)
            await clock.sleep(5 * MINUTES)
            assert texts(await taken(pair, secondary=True) + await taken(pair)) == [str(turn)]
        events = [event for event in syphon._pair.events if event.name == "syphon.redirect_ended"]
        assert [event.facts["redirected"] for event in events] == [1, 3, 1]
