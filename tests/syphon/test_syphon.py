"""The syphon over plain backlog queues: every message is forwarded once despite failures."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import pytest_asyncio

from sbclient import clock
from sbclient.amqp import EncodedBatch, EncodedMessage
from sbclient.amqp.encode import encode_value, sized_map
from sbclient.amqp.types import Described, Int, Long, Symbol
from sbclient.backlog import Backlog
from sbclient.broker.faults import Operation
from sbclient.client.client import ServiceBusClient
from sbclient.errors import (
    InvalidOperationError,
    MessageAlreadySettled,
    MessageLockLostError,
    MessageSizeExceededError,
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    ServiceBusAuthorizationError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
)
from sbclient.message import ServiceBusMessage, ServiceBusMessageState, ServiceBusReceivedMessage
from sbclient.options import SyphonLimits
from sbclient.pairing import state
from sbclient.syphon import destination, destination_table, queue_source
from sbclient.syphon.syphon import Syphon, SyphonReport
from sbclient.testing import Fault, FaultKind, MemoryPair
from sbclient.transport.memory.receiver import MemoryReceiver
from tests.broker.driver import KEYS
from tests.client.scene import (
    BACKLOG,
    QUEUE,
    cancel,
    dead_letters,
    diverted,
    make_queue,
    options,
    taken,
    texts,
    waiting,
)

ONE = options(backlog_queue_count=1)
GOOD = "good"
FEW_DESTINATIONS = 40


async def divert(client: ServiceBusClient, *numbers: int, queue: str = QUEUE, **attributes: object) -> None:
    client.pair.force_failover(queue)
    async with client.get_queue_sender(queue) as sender:
        for number in numbers:
            message = ServiceBusMessage(f"{queue} {number}").copy(**attributes)
            await sender.send_messages(message.copy(message_id=f"{queue} {number}"))


async def foreign(pair: MemoryPair, message: ServiceBusMessage, queue: str = BACKLOG[0]) -> None:
    """Send a message that was not diverted to a backlog queue."""
    async with pair.unpaired_client(secondary=True) as client, client.get_queue_sender(queue) as sender:
        await sender.send_messages(message)


def expected(*numbers: int, queue: str = QUEUE) -> list[str]:
    return [f"{queue} {number}" for number in numbers]


# -- draining ----------------------------------------------------------------------------------------------------------


async def test_an_empty_backlog_ends_at_once(pair: MemoryPair, client: ServiceBusClient) -> None:
    assert (await client.run_syphon(until="empty")).drained == 0
    assert clock.monotonic() < 2.0


async def test_messages_of_one_queue_are_drained_in_order(pair: MemoryPair) -> None:
    async with pair.client(ONE) as client:
        await divert(client, *range(250))
        await client.run_syphon(until="empty")
    assert texts(await taken(pair)) == expected(*range(250))


async def test_a_moved_message_costs_a_receive_a_send_and_a_completion_at_most(
    pair: MemoryPair, client: ServiceBusClient
) -> None:
    await divert(client, *range(10))
    primary, secondary = pair.primary.namespace.operation_count, pair.secondary.namespace.operation_count
    await client.run_syphon(until="empty")
    assert pair.primary.namespace.operation_count - primary <= 10
    assert (
        pair.secondary.namespace.operation_count - secondary <= 10 + 10 + 10 * 6
    )  # the rest looks whether it is empty


@pytest.mark.deviation("pairing.time-to-live")
@pytest.mark.parametrize("life", ["remaining", "restart"])
async def test_time_to_live_continues_in_the_backlog_or_restarts(pair: MemoryPair, life: str) -> None:
    async with pair.client(options(backlog_time_to_live=life)) as client:
        await divert(client, 1, time_to_live=timedelta(seconds=100))
        await clock.sleep(60.25)
        await client.run_syphon(until="empty")
        (message,) = await waiting_in(pair, QUEUE)
    assert message.time_to_live == timedelta(seconds=100 if life == "restart" else 39)


async def waiting_in(pair: MemoryPair, queue: str) -> list[ServiceBusMessage]:
    return list((await waiting(pair, [queue], secondary=False)).get(queue, []))


async def test_a_life_that_ends_in_the_backlog_is_dead_lettered_there(
    pair: MemoryPair, client: ServiceBusClient
) -> None:
    await divert(client, 1, time_to_live=timedelta(seconds=10))
    await clock.sleep(9.5)
    report = await client.run_syphon(until="empty")
    assert report.dead_lettered == {"TTLExpiredException": 1}
    (dead,) = await dead_letters(pair)
    assert dead.dead_letter_reason == "TTLExpiredException"
    assert await taken(pair) == []


@pytest.mark.parametrize("is_alone", [True, False])
async def test_a_life_that_ends_while_its_destination_is_busy_is_dead_lettered(
    pair: MemoryPair, is_alone: bool
) -> None:
    """The messages of its group that live on are sent."""
    async with pair.client(options(backlog_queue_count=1)) as client:
        await divert(client, 1, time_to_live=timedelta(seconds=15), session_id="s")
        if not is_alone:
            await divert(client, 2, 3, session_id="s")
        pair.primary.inject(Fault(FaultKind.BUSY, operations=[Operation.SEND], count=2))
        report = await client.run_syphon(until="empty")
    assert (report.drained, report.dead_lettered) == (0 if is_alone else 2, {"TTLExpiredException": 1})
    assert texts(await taken(pair)) == ([] if is_alone else [f"{QUEUE} 2", f"{QUEUE} 3"])


@pytest.mark.deviation("pairing.time-to-live")
async def test_time_to_live_shrinks_while_the_destination_rejects(pair: MemoryPair, client: ServiceBusClient) -> None:
    await divert(client, 1, time_to_live=timedelta(seconds=300))
    fault = pair.primary.inject(Fault(FaultKind.DOWN))
    run = asyncio.ensure_future(client.run_syphon())
    await clock.sleep(100.0)
    pair.primary.heal(fault)
    await clock.sleep(100.0)
    (message,) = await waiting_in(pair, QUEUE)
    assert message.time_to_live is not None
    assert 100 <= message.time_to_live.total_seconds() <= 200
    await cancel(run)


@pytest.mark.deviation("pairing.schedules")
async def test_a_schedule_is_kept_through_the_backlog(pair: MemoryPair, client: ServiceBusClient) -> None:
    due = datetime.fromtimestamp(clock.now(), UTC) + timedelta(seconds=100)
    await divert(client, 1, scheduled_enqueue_time_utc=due, time_to_live=timedelta(seconds=50))
    await client.run_syphon(until="empty")
    assert await taken(pair) == []
    await clock.sleep(100.0)
    assert texts(await taken(pair)) == expected(1)


async def test_a_schedule_that_passed_in_the_backlog_is_due_at_once(pair: MemoryPair, client: ServiceBusClient) -> None:
    due = datetime.fromtimestamp(clock.now(), UTC) + timedelta(seconds=100)
    await divert(client, 1, scheduled_enqueue_time_utc=due)
    await clock.sleep(200.0)
    await client.run_syphon(until="empty")
    assert texts(await taken(pair)) == expected(1)


# -- messages that can never be forwarded -----------------------------------------------------------------------------


@pytest.mark.promise("client.unexpected-messages", "client.destinations")
@pytest.mark.parametrize(
    ("properties", "reason"),
    [
        ({}, "DestinationMissing"),
        ({"x-ms-path": 5}, "DestinationMissing"),
        ({"x-ms-path": ""}, "DestinationIllegal"),
        ({"x-ms-path": BACKLOG[1]}, "DestinationIllegal"),
        ({"x-ms-path": QUEUE, "x-ms-sessionid": 7}, "PropertyMalformed"),
        ({"x-ms-path": QUEUE, "x-ms-timetolive": "soon"}, "PropertyMalformed"),
        ({"x-ms-path": QUEUE, "x-ms-scheduledenqueuetimeutc": "soon"}, "PropertyMalformed"),
    ],
    ids=str,
)
async def test_forged_and_malformed_messages_are_dead_lettered_with_a_stable_reason(
    pair: MemoryPair, client: ServiceBusClient, properties: dict[str, str | int], reason: str
) -> None:
    await foreign(pair, ServiceBusMessage("odd", application_properties=properties))
    await divert(client, 1)
    report = await client.run_syphon(until="empty")
    assert (report.drained, report.dead_lettered) == (1, {reason: 1})
    (dead,) = await dead_letters(pair)
    assert (str(dead), dead.dead_letter_reason) == ("odd", reason)
    assert dead.dead_letter_error_description
    assert ("syphon.dead_lettered", {"reason": reason, "queue": BACKLOG[0]}) in [
        (event.name, event.facts) for event in client.pair.events()
    ]


@pytest.mark.promise("client.unexpected-messages")
async def test_time_to_live_in_both_forms_or_of_another_type_is_dead_lettered_and_kept(
    pair: MemoryPair, client: ServiceBusClient
) -> None:
    span = Described(Symbol("com.microsoft:timespan"), Long(600_000_000))
    other = [Described(Symbol("com.microsoft:timespan"), Int(6)), Described(Symbol("x:y"), Long(6))]
    odd: list[list[Any]] = [[span, "PT1M"], *([value] for value in other)]
    async with pair.unpaired_client(secondary=True) as stranger, stranger.get_queue_sender(BACKLOG[0]) as sender:
        for values in [*odd, [span], ["PT1M"]]:
            entries = [("x-ms-path", QUEUE), *(("x-ms-timetolive", value) for value in values)]
            content = b"".join(encode_value(part) for entry in entries for part in entry)
            raw = b"\x00\x53\x74" + sized_map(content, 2 * len(entries)) + b"\x00\x53\x75\xa0\x01x"
            await sender.send_encoded(EncodedBatch([EncodedMessage(raw)]))
    report = await client.run_syphon(until="empty")
    assert (report.drained, report.dead_lettered) == (2, {"PropertyMalformed": 3})
    forwarded = await taken(pair)
    assert [message.time_to_live for message in forwarded] == [timedelta(minutes=1)] * 2
    view, *_ = await Backlog(client.pair).survey()
    assert view.dead_letters == {"PropertyMalformed": 3}
    assert await Backlog(client.pair).resubmit() == 3
    assert (await client.run_syphon(until="empty")).dead_lettered == {"PropertyMalformed": 3}
    dead = await dead_letters(pair)
    assert [str(message) for message in dead] == ["x"] * 3


async def test_destination_outside_the_allowed_ones_gets_nothing(pair: MemoryPair) -> None:
    await make_queue(pair, "payroll")
    async with pair.client(options(backlog_queue_count=1, syphon_destinations=[f"{QUEUE[:3]}*"])) as client:
        await foreign(pair, ServiceBusMessage("odd", application_properties={"x-ms-path": "payroll"}))
        await divert(client, 1)
        report = await client.run_syphon(until="empty")
    assert (report.drained, report.dead_lettered) == (1, {"DestinationNotAllowed": 1})
    assert texts(await taken(pair)) == expected(1)
    assert await taken(pair, "payroll") == []
    assert texts(await dead_letters(pair, BACKLOG[:1])) == ["odd"]


@pytest.mark.parametrize(
    ("error", "reason"),
    [(MessageSizeExceededError, "MessageSizeExceeded"), (InvalidOperationError, "DestinationRefused")],
)
async def test_permanently_rejected_message_is_dead_lettered_after_a_single_send(
    pair: MemoryPair, client: ServiceBusClient, error: type[ServiceBusError], reason: str
) -> None:
    await make_queue(pair, "visits", requires_session=True)
    async with pair.client(ONE) as one:
        await divert(one, 1, queue="visits", session_id="s", partition_key="s")
        await divert(one, 2, queue="visits", partition_key="s")
        await divert(one, 3, queue="visits", session_id="s", partition_key="s")
        report = await one.run_syphon(until="empty")
        assert (report.drained, report.dead_lettered) == (2, {"DestinationRefused": 1})
        assert texts(await taken(pair, "visits")) == expected(1, 3, queue="visits")
        await dead_letters(pair, BACKLOG[:1])
        await divert(one, 4)
        pair.primary.inject(Fault(FaultKind.ERROR, error=error, operations=[Operation.SEND], count=1))
        assert (await one.run_syphon(until="empty")).dead_lettered == {reason: 1}
    (dead,) = await dead_letters(pair, BACKLOG[:1])
    assert dead.dead_letter_reason == reason


async def test_where_batches_are_refused_each_message_travels_alone(pair: MemoryPair) -> None:
    await make_queue(pair, "odd", enable_partitioning=True, requires_duplicate_detection=True)
    async with pair.client(ONE) as client:
        await divert(client, *range(30), queue="odd")
        report = await client.run_syphon(until="empty")
    assert (report.drained, report.dead_lettered) == (30, {})
    assert sorted(texts(await taken(pair, "odd"))) == sorted(expected(*range(30), queue="odd"))


async def test_messages_of_a_refused_batch_count_again_when_they_are_sent_alone(pair: MemoryPair) -> None:
    async with pair.client(ONE) as client:
        await divert(client, *range(6))
        namespace, sends = pair.primary.namespace, list[tuple[float, int]]()
        send = namespace.send

        def observed(call: Any, path: str, messages: Sequence[EncodedMessage], *further: Any) -> Any:
            sends.append((clock.monotonic(), len(messages)))
            if len(messages) > 1:
                raise InvalidOperationError("one message at a time")
            return send(call, path, messages, *further)

        namespace.send = observed  # type: ignore[assignment, method-assign]  # records every send
        limits = SyphonLimits(max_messages_per_second_per_destination=4.0)
        report = await client.run_syphon("empty", limits=limits)
    assert report.drained == 6
    assert sum(count for _, count in sends) == 8
    began_at = sends[0][0]
    for position, (at, _) in enumerate(sends):
        sent = sum(count for _, count in sends[: position + 1])
        assert sent <= 2 + 4.0 * (at - began_at) + 1, sends


async def test_failure_during_single_sends_keeps_the_rest(pair: MemoryPair) -> None:
    async with pair.client(ONE) as client:
        await divert(client, *range(10))
        # The first transfer is refused, one message passes alone, and then the entity is gone for a while.
        pair.primary.inject(Fault(FaultKind.ERROR, error=InvalidOperationError, operations=[Operation.SEND], count=1))
        namespace, calls = pair.primary.namespace, iter(range(100))
        send = namespace.send

        def failing(*args: Any, **kwargs: Any) -> None:
            if next(calls) == 1:
                pair.primary.inject(Fault(FaultKind.DOWN, entity_path=QUEUE, until_at=clock.now() + 1.5))
            send(*args, **kwargs)

        namespace.send = failing  # type: ignore[method-assign]  # fails in the second send
        report = await client.run_syphon(until="empty")
    assert (report.drained, report.dead_lettered) == (10, {})
    assert sorted(texts(await taken(pair))) == expected(*range(10))


async def test_messages_of_one_key_leave_together_and_keys_side_by_side(pair: MemoryPair) -> None:
    async with pair.client(ONE) as client:
        for number in range(60):
            await divert(client, number, partition_key="abcdef"[number % 6])
        pair.primary.inject(Fault(FaultKind.SLOW, operations=[Operation.SEND], latency_s=1.0))
        report = await client.run_syphon(until="empty")
    assert report.drained == 60
    assert clock.monotonic() < 5.0  # two rounds, of four keys and of two; one by one it would be a minute
    received = await taken(pair)
    for key in "abcdef":
        mine = [str(message) for message in received if message.partition_key == key]
        assert mine == expected(*range("abcdef".index(key), 60, 6))


async def test_messages_are_sent_while_those_before_are_completed(pair: MemoryPair) -> None:
    async with pair.client(ONE) as client:
        await divert(client, *range(300))
        began_at = clock.monotonic()
        pair.primary.inject(Fault(FaultKind.SLOW, operations=[Operation.SEND], latency_s=1.0))
        pair.secondary.inject(Fault(FaultKind.SLOW, operations=[Operation.SETTLE], latency_s=1.0))
        report = await client.run_syphon("empty")
    assert report.drained == 300
    # Four sends, the last completion and an empty receive. In turn it would be 8 s.
    assert clock.monotonic() - began_at < 6.5
    assert texts(await taken(pair)) == expected(*range(300))


async def test_at_most_two_groups_are_sent_and_not_completed(pair: MemoryPair) -> None:
    async with pair.client(ONE) as client:
        await divert(client, *range(400))
        pair.secondary.inject(Fault(FaultKind.HANG, operations=[Operation.SETTLE]))
        syphon = asyncio.create_task(client.run_syphon(limits=SyphonLimits(max_messages_in_flight=400)))
        await clock.sleep(5.0)
        assert 100 < len((await waiting(pair, [QUEUE], secondary=False))[QUEUE]) <= 200
        pair.secondary.heal()
        await cancel(syphon)


async def test_unavailable_fragment_pauses_its_entity(pair: MemoryPair) -> None:
    await make_queue(pair, "wide", enable_partitioning=True)
    async with pair.client(ONE) as client:
        for number in range(60):
            await divert(client, number, queue="wide", partition_key=f"key {number % 12}")
        pair.primary.inject(Fault(FaultKind.DOWN, entity_path="wide", fragments=range(8)))
        before = pair.primary.namespace.operation_count
        run = asyncio.ensure_future(client.run_syphon())
        await clock.sleep(0.5)
        assert pair.primary.namespace.operation_count - before <= 5
        pair.primary.heal()
        await clock.sleep(60.0)
        await cancel(run)
    received = texts(await taken(pair, "wide"))
    assert sorted(received) == sorted(expected(*range(60), queue="wide"))


async def test_pings_in_the_backlog_are_completed_and_skipped(pair: MemoryPair, client: ServiceBusClient) -> None:
    async with pair.unpaired_client(secondary=True) as stranger, stranger.get_queue_sender(BACKLOG[0]) as sender:
        disguised = ServiceBusMessage("", application_properties={"x-ms-path": QUEUE})
        await sender.send_messages(disguised)
    receive = MemoryReceiver.receive

    async def as_ping(self, **kwargs):  # type: ignore[no-untyped-def]
        messages = await receive(self, **kwargs)
        for message in messages:
            message.content_type = "application/vnd.ms-servicebus-ping"
        return messages

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryReceiver, "receive", as_ping)
        assert (await client.run_syphon(until="empty")).drained == 0
    assert await diverted(pair) == []
    assert await dead_letters(pair) == []


# -- destinations that refuse ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        ServiceBusConnectionError,
        MessagingEntityDisabledError,
        ServiceBusQuotaExceededError,
        ServiceBusAuthorizationError,
        MessagingEntityNotFoundError,
    ],
)
async def test_temporarily_rejected_message_is_retried(
    pair: MemoryPair, client: ServiceBusClient, error: type[ServiceBusError]
) -> None:
    await divert(client, *range(20))
    fault = pair.primary.inject(Fault(FaultKind.ERROR, error=error))
    run = asyncio.ensure_future(client.run_syphon())
    await clock.sleep(1800.0)
    assert await dead_letters(pair) == []
    assert [event.facts for event in client.pair.events() if event.name == "syphon.destination_unavailable"] == [
        {"error": error.__name__}
    ]
    pair.primary.heal(fault)
    await clock.sleep(80.0)
    assert sorted(texts(await taken(pair))) == sorted(expected(*range(20)))
    assert "syphon.destination_recovered" in [event.name for event in client.pair.events()]
    await cancel(run)


@pytest.mark.deviation("pairing.unavailable-destinations")
@pytest.mark.parametrize("kind", [FaultKind.DOWN, FaultKind.HANG])
async def test_an_unavailable_destination_delays_no_other(pair: MemoryPair, kind: FaultKind) -> None:
    await make_queue(pair, GOOD)
    async with pair.client(ONE) as client:
        await divert(client, 0, queue=GOOD)
        await divert(client, *range(1000))
        await divert(client, *range(1, 50), queue=GOOD)
        fault = pair.primary.inject(Fault(kind, entity_path=QUEUE))
        run = asyncio.ensure_future(client.run_syphon())
        await clock.sleep(60.0)
        assert sorted(texts(await taken(pair, GOOD))) == sorted(expected(*range(50), queue=GOOD))
        pair.primary.heal(fault)
        await clock.sleep(200.0)
        assert sorted(texts(await taken(pair))) == sorted(expected(*range(1000)))
        await cancel(run)


@pytest.mark.parametrize("until_empty", [False, True])
async def test_an_available_destination_behind_an_unavailable_one_is_found(pair: MemoryPair, until_empty: bool) -> None:
    await make_queue(pair, GOOD)
    async with pair.client(ONE) as client:
        await divert(client, *range(500))
        await divert(client, *range(50), queue=GOOD)
        pair.primary.inject(Fault(FaultKind.DOWN, entity_path=QUEUE))
        run = asyncio.ensure_future(client.run_syphon(until="empty" if until_empty else None))
        await clock.sleep(120.0)
        assert sorted(texts(await taken(pair, GOOD))) == sorted(expected(*range(50), queue=GOOD))
        assert run.done() is until_empty
        if not until_empty:
            await cancel(run)
        pair.primary.heal()
        await client.run_syphon(until="empty")
    assert sorted(texts(await taken(pair))) == sorted(expected(*range(500)))


async def test_parked_messages_that_take_the_room_during_a_scan_do_not_end_the_drain(pair: MemoryPair) -> None:
    await make_queue(pair, GOOD)
    async with pair.client(ONE) as client:
        await divert(client, *range(3))
        await divert(client, 0, queue=GOOD)
        pair.secondary.inject(Fault(FaultKind.SLOW, operations=[Operation.PEEK], latency_s=5.0))
        down = pair.primary.inject(Fault(FaultKind.DOWN, entity_path=QUEUE))
        run = asyncio.ensure_future(client.run_syphon(limits=SyphonLimits(max_messages_in_flight=1)))
        await clock.sleep(0.5)  # the first message is parked, and the scan has begun
        pair.primary.heal(down)
        pair.primary.inject(Fault(FaultKind.HANG, entity_path=QUEUE))
        await clock.sleep(20.0)  # the parked message is being sent when the scan finds one for the other queue
        pair.primary.heal()
        await clock.sleep(600.0)
        assert texts(await taken(pair, GOOD)) == expected(0, queue=GOOD)
        assert sorted(texts(await taken(pair))) == expected(*range(3))
        await cancel(run)


async def test_transfers_that_fail_one_after_another_count_as_one_failure(pair: MemoryPair) -> None:
    async with pair.client() as client:
        client.pair.force_failover(QUEUE)
        run = asyncio.ensure_future(client.run_syphon())
        pair.primary.inject(Fault(FaultKind.HANG, operations=[Operation.SEND]))
        async with client.get_queue_sender(QUEUE) as sender:
            for key in "abcd":
                await sender.send_messages(ServiceBusMessage(key, partition_key=key))
                await clock.sleep(1.0)
        await clock.sleep(28.5)
        pair.primary.heal()
        await clock.sleep(10.0)
        (recovered,) = [event for event in client.pair.events() if event.name == "syphon.destination_recovered"]
        assert recovered.facts["failures"] == 1
        assert sorted(texts(await taken(pair))) == list("abcd")
        await cancel(run)


async def test_while_the_whole_primary_is_down_the_backlog_is_left_where_it_is(pair: MemoryPair) -> None:
    async with pair.client(ONE) as client:
        await divert(client, *range(900))
        fault = pair.primary.inject(Fault(FaultKind.HANG))
        run = asyncio.ensure_future(client.run_syphon())
        await clock.sleep(3600.0)
        states = Counter(message.state for message in await diverted_one(pair))
        assert states[ServiceBusMessageState.ACTIVE] >= 550
        calls = pair.secondary.namespace.operation_count
        await clock.sleep(3600.0)
        assert pair.secondary.namespace.operation_count - calls < 3600
        pair.primary.heal(fault)
        await clock.sleep(120.0)
        assert sorted(texts(await taken(pair))) == sorted(expected(*range(900)))
        await cancel(run)


async def diverted_one(pair: MemoryPair) -> list[ServiceBusReceivedMessage]:
    return list((await waiting(pair, BACKLOG[:1]))[BACKLOG[0]])


@pytest.mark.deviation("pairing.unavailable-destinations")
async def test_survey_finds_messages_deferred_by_another_syphon(pair: MemoryPair, client: ServiceBusClient) -> None:
    await divert(client, *range(30))
    fault = pair.primary.inject(Fault(FaultKind.DOWN, entity_path=QUEUE))
    await client.run_syphon(until="empty")
    assert any(message.state is ServiceBusMessageState.DEFERRED for message in await diverted(pair))
    pair.primary.heal(fault)
    async with pair.client(options(enable_syphon=True)):
        await clock.sleep(5.0)
    assert sorted(texts(await taken(pair))) == sorted(expected(*range(30)))


async def test_unremembered_deferred_messages_are_found_after_the_recovery(
    pair: MemoryPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(destination, "PARKED_KNOWN", 10)
    await make_queue(pair, GOOD)
    async with pair.client(ONE) as client:
        await divert(client, 0, queue=GOOD)
        await divert(client, *range(35))
        fault = pair.primary.inject(Fault(FaultKind.DOWN, entity_path=QUEUE))
        run = asyncio.ensure_future(client.run_syphon())
        await clock.sleep(100.0)
        states = Counter(message.state for message in await diverted_one(pair))
        assert states == {ServiceBusMessageState.DEFERRED: 35}
        pair.primary.heal(fault)
        await clock.sleep(300.0)
        assert sorted(texts(await taken(pair))) == sorted(expected(*range(35)))
        await cancel(run)


async def test_foreign_deferred_messages_are_dealt_with_too(pair: MemoryPair, client: ServiceBusClient) -> None:
    await foreign(pair, ServiceBusMessage("lost"))
    await foreign(pair, ServiceBusMessage("found", application_properties={"x-ms-path": QUEUE}))
    async with pair.unpaired_client(secondary=True) as other, other.get_queue_receiver(BACKLOG[0]) as receiver:
        for message in await receiver.receive_messages(2):
            await receiver.defer_message(message)
    report = await client.run_syphon(until="empty")
    assert (report.drained, report.dead_lettered) == (1, {"DestinationMissing": 1})


async def test_many_foreign_deferred_messages_are_found_in_steps(
    pair: MemoryPair, client: ServiceBusClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_source, "NAMELESS_KEPT", 3)
    for number in range(10):
        await foreign(pair, ServiceBusMessage(str(number)))
    async with pair.unpaired_client(secondary=True) as other, other.get_queue_receiver(BACKLOG[0]) as receiver:
        for message in await receiver.receive_messages(10):
            await receiver.defer_message(message)
    assert (await client.run_syphon(until="empty")).dead_lettered == {"DestinationMissing": 10}


async def test_entity_recreated_within_the_grace_gets_its_messages(pair: MemoryPair, client: ServiceBusClient) -> None:
    await make_queue(pair, "gone")
    await divert(client, *range(5), queue="gone")
    await client.administration.delete_queue("gone")
    run = asyncio.ensure_future(client.run_syphon())
    await clock.sleep(3600.0)
    await make_queue(pair, "gone")
    await clock.sleep(80.0)
    assert len(await taken(pair, "gone")) == 5
    await cancel(run)


async def test_a_small_message_does_not_overtake_a_large_one_of_its_key(
    pair: MemoryPair, client: ServiceBusClient
) -> None:
    sizes = [30_000, 190_000, 10_000, 190_000, 190_000, 20_000]
    client.pair.force_failover(QUEUE)
    async with client.get_queue_sender(QUEUE) as sender:
        for size in sizes:
            await sender.send_messages(ServiceBusMessage(b"x" * size, session_id="s"))
    await client.run_syphon(until="empty")
    assert [len(bytes(message)) for message in await taken(pair)] == sizes


async def test_a_busy_destination_is_retried_after_10_s_and_stays_available(
    pair: MemoryPair, client: ServiceBusClient
) -> None:
    await divert(client, *range(5))
    pair.primary.inject(Fault(FaultKind.BUSY, operations=[Operation.SEND], count=2))
    assert (await client.run_syphon(until="empty")).drained == 5
    assert 20.0 <= clock.monotonic() < 30.0
    assert "syphon.destination_unavailable" not in [event.name for event in client.pair.events()]


# -- duplicates, locks, and several syphons ----------------------------------------------------------------------------


async def test_a_lost_completion_completes_and_is_not_sent_again(pair: MemoryPair, client: ServiceBusClient) -> None:
    await divert(client, *range(5))
    pair.secondary.inject(Fault(FaultKind.ERROR, operations=[Operation.SETTLE], count=5))
    report = await client.run_syphon(until="empty")
    assert report.drained == 5
    assert clock.monotonic() >= 60.0  # the locks had to end first
    assert sorted(texts(await taken(pair))) == expected(*range(5))
    assert await diverted(pair) == []


async def test_equal_message_ids_are_not_taken_for_duplicates(pair: MemoryPair, client: ServiceBusClient) -> None:
    client.pair.force_failover(QUEUE)
    async with client.get_queue_sender(QUEUE) as sender:
        for text in "abc":
            await sender.send_messages(ServiceBusMessage(text, message_id="same"))
    await client.run_syphon(until="empty")
    assert sorted(texts(await taken(pair))) == ["a", "b", "c"]


async def test_the_memory_of_lost_completions_is_bounded(pair: MemoryPair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "ACCEPTED_KEPT", 3)
    async with pair.client(ONE) as client:
        await divert(client, *range(10))
        pair.secondary.inject(Fault(FaultKind.ERROR, operations=[Operation.SETTLE], count=10))
        report = await client.run_syphon(until="empty")
    assert report.drained == 17
    assert len(set(texts(await taken(pair)))) == 10


async def test_a_lost_acknowledgement_of_the_primary_is_a_duplicate_with_the_same_id(
    pair: MemoryPair, client: ServiceBusClient
) -> None:
    await divert(client, 1)
    pair.primary.inject(Fault(FaultKind.LOSE_ACKNOWLEDGEMENT, operations=[Operation.SEND], count=1))
    await client.run_syphon(until="empty")
    received = await taken(pair)
    assert texts(received) == expected(1, 1)
    assert received[0].message_id == received[1].message_id


async def test_locks_are_renewed_despite_slow_renewals(pair: MemoryPair) -> None:
    async with pair.client(ONE) as client:
        await divert(client, *range(100))
        pair.primary.inject(Fault(FaultKind.BUSY, operations=[Operation.SEND], count=20))
        pair.secondary.inject(Fault(FaultKind.SLOW, latency_s=1.0, operations=[Operation.RENEW]))
        report = await client.run_syphon(until="empty")
    assert clock.monotonic() >= 200.0
    assert report.drained == 100
    assert texts(await taken(pair)) == expected(*range(100))


async def test_queued_message_with_a_lost_lock_is_not_sent_but_redelivered(pair: MemoryPair) -> None:
    async with pair.client(ONE) as client:
        await divert(client, *range(10))
        pair.primary.inject(Fault(FaultKind.BUSY, operations=[Operation.SEND], count=12))
        pair.secondary.inject(Fault(FaultKind.ERROR, operations=[Operation.RENEW]))
        report = await client.run_syphon(until="empty")
    assert report.drained == 10
    assert sorted(texts(await taken(pair))) == expected(*range(10))


async def test_a_parked_message_whose_lock_expires_before_the_answer_arrives_is_found_again(
    pair: MemoryPair, caplog: pytest.LogCaptureFixture
) -> None:
    async with pair.client(ONE) as client:
        await divert(client, 1)
        async with pair.unpaired_client(secondary=True) as backlog:
            queue = await backlog.administration.get_queue(BACKLOG[0])
            queue.lock_duration = timedelta(seconds=5)
            await backlog.administration.update_queue(queue)
            async with backlog.get_queue_receiver(BACKLOG[0]) as receiver:
                await receiver.defer_message((await receiver.receive_messages(1))[0])
        slow = Fault(FaultKind.SLOW, operations=[Operation.RECEIVE_DEFERRED], latency_s=6.0, count=1)
        pair.secondary.inject(slow)
        report = await client.run_syphon(until="empty")
    assert report.drained == 1
    assert texts(await taken(pair)) == expected(1)
    assert clock.monotonic() >= 6.0
    assert "syphon.not_settled" not in [vars(record)["event_name"] for record in caplog.records]


async def test_parked_messages_of_every_partition_are_drained_although_one_partition_fails(pair: MemoryPair) -> None:
    await make_queue(pair, BACKLOG[0], secondary=True, enable_partitioning=True)
    deferring = [Operation.RECEIVE_DEFERRED]
    async with pair.client(ONE) as client, pair.unpaired_client(secondary=True) as backlog:
        for number in range(320):
            await divert(client, number, partition_key=KEYS[number % 16])
        async with backlog.get_queue_receiver(BACKLOG[0]) as receiver:
            while found := await receiver.receive_messages(100, max_wait_time=1):
                await asyncio.gather(*map(receiver.defer_message, found))
        fault = Fault(FaultKind.ERROR, entity_path=BACKLOG[0], fragments=[5], operations=deferring)
        pair.secondary.inject(fault)
        draining = asyncio.create_task(client.run_syphon())
        await clock.sleep(30)
        assert len(await diverted(pair)) == 20
        pair.secondary.heal(fault)
        pair.secondary.inject(Fault(FaultKind.ERROR, entity_path=BACKLOG[0], operations=deferring, count=3))
        await clock.sleep(600)
        await cancel(draining)
        refused = [event.path for event in client.pair.events() if event.name == "syphon.parked_not_received"]
        assert set(refused) == {BACKLOG[0]}
    moved = [int(text.split()[1]) for text in texts(await taken(pair))]
    assert sorted(moved) == [*range(320)]
    for key in range(16):  # in the order of each key
        assert [number for number in moved if number % 16 == key] == [*range(key, 320, 16)]


async def test_a_lock_that_is_lost_while_its_message_waits_for_the_rate_limit_is_left_to_another_syphon(
    pair: MemoryPair,
) -> None:
    async with pair.client(ONE) as one, pair.client(ONE) as other:
        await divert(one, *range(3))
        slow = asyncio.ensure_future(one.run_syphon(limits=SyphonLimits(max_messages_per_second=0.01)))
        await clock.sleep(20.0)  # the first message is sent, the second one waits for 100 s
        pair.secondary.inject(Fault(FaultKind.ERROR, operations=[Operation.RENEW], until_at=clock.now() + 60.0))
        await clock.sleep(30.0)
        quick = asyncio.ensure_future(other.run_syphon())  # receives the second message when its lock ends after 60 s
        await clock.sleep(200.0)
        for run in (slow, quick):
            await cancel(run)
    assert sorted(texts(await taken(pair))) == expected(*range(3))


async def test_a_message_whose_lock_expires_while_its_renewal_hangs_is_left_to_another_syphon(pair: MemoryPair) -> None:
    async with pair.client(ONE) as one, pair.client(ONE) as other:
        await divert(one, *range(3))
        began_at = clock.now()
        pair.primary.inject(Fault(FaultKind.BUSY, operations=[Operation.SEND], until_at=began_at + 65.0))
        # The renewals after 30 and 51 s end after 50 and 71 s; the locks expire after 60 s.
        pair.secondary.inject(Fault(FaultKind.HANG, operations=[Operation.RENEW], until_at=began_at + 300.0))
        first = asyncio.ensure_future(one.run_syphon())
        await clock.sleep(1.0)
        second = asyncio.ensure_future(other.run_syphon())
        await clock.sleep(200.0)
        for run in (first, second):
            await cancel(run)
    assert sorted(texts(await taken(pair))) == expected(*range(3))


@pytest.mark.parametrize("ahead_s", [-90.0, 20.0, 90.0])
async def test_messages_are_moved_whatever_the_clock_shows(
    pair: MemoryPair, monkeypatch: pytest.MonkeyPatch, ahead_s: float
) -> None:
    async with pair.client(ONE) as client:
        await divert(client, *range(3))
        pair.primary.inject(Fault(FaultKind.BUSY, operations=[Operation.SEND], until_at=clock.now() + 100.0))
        lock_left_s = queue_source.QueueSource.lock_left_s
        monkeypatch.setattr(
            queue_source.QueueSource,
            "lock_left_s",
            lambda self, message, now: lock_left_s(self, message, now) - ahead_s,
        )
        report = await client.run_syphon(until="empty")
    assert report.drained == 3
    assert clock.monotonic() < 130.0
    assert texts(await taken(pair)) == expected(*range(3))


@pytest.mark.parametrize("error", [MessageAlreadySettled("settled"), MessageLockLostError("not locked")])
async def test_renewal_after_the_completion_is_harmless(
    pair: MemoryPair, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    await make_queue(pair, GOOD)
    async with pair.client(ONE) as client:
        await divert(client, 1, queue=GOOD)
        await divert(client, 1)
        pair.primary.inject(Fault(FaultKind.BUSY, entity_path=GOOD, operations=[Operation.SEND], count=4))
        pair.primary.inject(Fault(FaultKind.BUSY, entity_path=QUEUE, operations=[Operation.SEND], count=9))
        renew_lock = MemoryReceiver.renew_lock

        async def renew_late(self, message, **kwargs):  # type: ignore[no-untyped-def]
            if not str(message).startswith(GOOD):
                return await renew_lock(self, message, **kwargs)
            await clock.sleep(15.0)
            raise error

        with caplog.at_level(logging.INFO, "sbclient"), pytest.MonkeyPatch.context() as patch:
            patch.setattr(MemoryReceiver, "renew_lock", renew_late)
            report = await client.run_syphon(until="empty")
    assert report.drained == 2
    assert "syphon.lock_lost" not in [vars(record)["event_name"] for record in caplog.records]
    assert texts(await taken(pair, GOOD)) == expected(1, queue=GOOD)
    assert texts(await taken(pair)) == expected(1)


async def test_two_syphons_side_by_side_move_everything_once(pair: MemoryPair) -> None:
    async with pair.client() as one, pair.client() as other:
        for number in range(200):
            await divert(one, number)
        reports = await asyncio.gather(one.run_syphon(until="empty"), other.run_syphon(until="empty"))
    assert sum(report.drained for report in reports) == 200
    assert sorted(texts(await taken(pair))) == sorted(expected(*range(200)))


@pytest.mark.parametrize("latency_s", [2.0, 7.0, 13.0, 19.0, 25.0, 29.0])
@pytest.mark.parametrize("requires_session", [False, True])
async def test_drains_of_one_client_do_not_send_a_message_side_by_side(
    pair: MemoryPair, latency_s: float, requires_session: bool
) -> None:
    """The locks end while the primary takes long to answer, so that another drain receives the messages too."""
    kind, name = (options(ordering="session"), "session-") if requires_session else (ONE, "")
    backlog = f"contoso/x-servicebus-transfer/{name}0"
    await make_queue(pair, backlog, secondary=True, lock_duration="PT5S", requires_session=requires_session)
    if requires_session:
        await make_queue(pair, "sessions", requires_session=True)
    async with pair.client(kind) as client:
        client.pair.force_failover("sessions" if requires_session else QUEUE)
        async with client.get_queue_sender("sessions" if requires_session else QUEUE) as sender:
            for number in range(30):
                await sender.send_messages(
                    ServiceBusMessage(f"{number}", session_id=f"s{number % 7}" if requires_session else None)
                )
        until_at = clock.now() + 200.0
        pair.secondary.inject(Fault(FaultKind.HANG, operations=[Operation.RENEW], until_at=until_at))
        pair.primary.inject(Fault(FaultKind.SLOW, operations=[Operation.SEND], latency_s=latency_s, until_at=until_at))
        limits = SyphonLimits(max_messages_in_flight=10)  # of 30 messages, so that one of four drains has room
        reports = await asyncio.gather(*(client.run_syphon(until="empty", limits=limits) for _ in range(4)))
    found = texts(await taken(pair, "sessions" if requires_session else QUEUE))
    assert sorted(found, key=int) == [f"{number}" for number in range(30)]
    assert sum(report.drained for report in reports) == 30


async def test_two_syphons_share_deferred_messages(pair: MemoryPair) -> None:
    async with pair.client() as one, pair.client() as other:
        await divert(one, *range(50))
        fault = pair.primary.inject(Fault(FaultKind.DOWN))
        runs = [asyncio.ensure_future(client.run_syphon()) for client in (one, other)]
        await clock.sleep(200.0)
        pair.primary.heal(fault)
        await clock.sleep(1000.0)
        for run in runs:
            await cancel(run)
    assert sorted(texts(await taken(pair))) == sorted(expected(*range(50)))


async def test_cancelled_syphon_releases_messages_in_flight_at_once(pair: MemoryPair) -> None:
    async with pair.client(ONE) as client:
        await divert(client, *range(50))
        pair.primary.inject(Fault(FaultKind.BUSY, operations=[Operation.SEND]))
        run = asyncio.ensure_future(client.run_syphon())
        await clock.sleep(3.0)
        await cancel(run)
        assert clock.monotonic() <= 9.0
        pair.primary.heal()
        report = await client.run_syphon(until="empty")
        assert report.drained == 50
    assert clock.monotonic() < 20.0


async def test_syphon_ends_in_bounded_time_without_responses(pair: MemoryPair) -> None:
    async with pair.client() as client:
        for number in range(100):
            await divert(client, number)
        pair.primary.inject(Fault(FaultKind.HANG))
        run = asyncio.ensure_future(client.run_syphon())
        await clock.sleep(2.0)
        pair.secondary.inject(Fault(FaultKind.HANG))
        began_at = clock.monotonic()
        await cancel(run)
        assert clock.monotonic() - began_at <= 20.0
        pair.primary.heal()
        pair.secondary.heal()
        await clock.sleep(70.0)
        await client.run_syphon(until="empty")
    assert set(texts(await taken(pair))) == set(expected(*range(100)))


async def test_an_entity_is_not_missing_while_it_is_busy(pair: MemoryPair) -> None:
    chosen = options(backlog_queue_count=1, missing_entity_grace=60)
    async with pair.client(chosen) as client, client.get_queue_sender(QUEUE) as sender:
        client.pair.force_failover(QUEUE)
        await sender.send_messages(ServiceBusMessage("waits"))
        running = asyncio.create_task(client.run_syphon())
        for kind, seconds in ((FaultKind.ERROR, 25.0), (FaultKind.BUSY, 120.0)) * 2:
            pair.primary.heal()
            pair.primary.inject(Fault(kind, QUEUE, error=MessagingEntityNotFoundError))
            await clock.sleep(seconds)
        pair.primary.heal()
        await clock.sleep(120.0)
        await cancel(running)
    assert texts(await taken(pair)) == ["waits"]
    assert await dead_letters(pair, BACKLOG[:1]) == []


async def test_a_late_answer_to_an_earlier_request_does_not_end_a_refusal(pair: MemoryPair) -> None:
    async with pair.client(ONE) as client:
        run = asyncio.ensure_future(client.run_syphon())
        pair.primary.inject(Fault(FaultKind.SLOW, operations=[Operation.SEND], count=1, latency_s=10.0))
        await divert(client, 0, session_id="a")
        await clock.sleep(1.0)
        fault = pair.primary.inject(Fault(FaultKind.ERROR, operations=[Operation.SEND]))
        await divert(client, 1, session_id="b")
        await clock.sleep(20.0)
        pair.primary.heal(fault)
        await clock.sleep(70.0)
        names = [event.name for event in client.pair.events() if event.name.startswith("syphon.destination")]
        assert names == ["syphon.destination_unavailable", "syphon.destination_recovered"]
        await cancel(run)
    assert texts(await taken(pair)) == expected(0, 1)


# -- the secondary in trouble ------------------------------------------------------------------------------------------


async def test_a_backlog_queue_that_cannot_be_reached_is_tried_again(pair: MemoryPair) -> None:
    async with pair.client(ONE) as client:
        await divert(client, *range(5))
        fault = pair.secondary.inject(Fault(FaultKind.DOWN))
        run = asyncio.ensure_future(client.run_syphon())
        await clock.sleep(300.0)
        unreachable = [event for event in client.pair.events() if event.name == "syphon.queue_unreachable"]
        assert len(unreachable) == 1
        pair.secondary.heal(fault)
        await clock.sleep(70.0)
        assert texts(await taken(pair)) == expected(*range(5))
        await cancel(run)


async def test_an_outage_of_all_backlog_queues_is_one_event(pair: MemoryPair) -> None:
    async with pair.client() as client:
        await divert(client)
        run = asyncio.ensure_future(client.run_syphon())
        for count in (1, 2):
            fault = pair.secondary.inject(Fault(FaultKind.DOWN))
            await clock.sleep(300.0)
            names = [event.name for event in client.pair.events()]
            assert names.count("syphon.queue_unreachable") == count
            pair.secondary.heal(fault)
            await clock.sleep(2000.0)
        await cancel(run)


async def test_messages_in_flight_are_completed_though_a_poll_has_failed_meanwhile(pair: MemoryPair) -> None:
    async with pair.client(ONE) as client:
        await divert(client, *range(3))
        pair.primary.inject(Fault(FaultKind.SLOW, operations=[Operation.SEND], latency_s=20.0))
        run = asyncio.ensure_future(client.run_syphon())
        await clock.sleep(1.0)
        pair.secondary.inject(Fault(FaultKind.DOWN, operations=[Operation.RECEIVE], count=1))
        await clock.sleep(25.0)
        assert [event.name for event in client.pair.events()].count("syphon.queue_unreachable") == 1
        assert await diverted(pair) == []
        await cancel(run)


async def test_a_second_outage_of_a_backlog_queue_begins_like_the_first(pair: MemoryPair) -> None:
    async with pair.client(ONE) as client:
        await divert(client)
        run = asyncio.ensure_future(client.run_syphon())
        for number in range(3):
            fault = pair.secondary.inject(Fault(FaultKind.DOWN))
            await clock.sleep(300.0)
            pair.secondary.heal(fault)
            await clock.sleep(70.0)
            fault = pair.secondary.inject(Fault(FaultKind.DOWN))
            await clock.sleep(0.5)
            pair.secondary.heal(fault)
            await divert(client, number)
            await clock.sleep(3.0)
            assert texts(await taken(pair)) == expected(number), "the first pause is short"
        unreachable = [event for event in client.pair.events() if event.name == "syphon.queue_unreachable"]
        assert len(unreachable) == 6
        await cancel(run)


async def test_a_scheduled_message_of_a_stranger_does_not_keep_a_run_until_empty(
    pair: MemoryPair, client: ServiceBusClient
) -> None:
    due = datetime.fromtimestamp(clock.now(), UTC) + timedelta(days=300)
    await foreign(pair, ServiceBusMessage("later", scheduled_enqueue_time_utc=due))
    await client.run_syphon(until="empty")
    assert clock.monotonic() < 10.0


async def test_a_partitioned_backlog_queue_is_drained_and_scanned_too(pair: MemoryPair) -> None:
    await make_queue(pair, BACKLOG[0], secondary=True, enable_partitioning=True)
    await make_queue(pair, GOOD)
    async with pair.client(ONE) as client:
        await divert(client, *range(300))
        await divert(client, *range(10), queue=GOOD)
        fault = pair.primary.inject(Fault(FaultKind.DOWN, entity_path=QUEUE))
        assert (await client.run_syphon(until="empty")).drained == 10
        pair.primary.heal(fault)
        assert (await client.run_syphon(until="empty")).drained == 300
    assert sorted(texts(await taken(pair))) == sorted(expected(*range(300)))


# -- bounds ------------------------------------------------------------------------------------------------------------


async def test_messages_in_flight_are_bounded_in_number_and_bytes(pair: MemoryPair) -> None:
    async with pair.client(ONE) as client:
        client.pair.force_failover(QUEUE)
        async with client.get_queue_sender(QUEUE) as sender:
            for _ in range(60):
                await sender.send_messages(ServiceBusMessage(b"x" * 100_000))
        pair.primary.inject(Fault(FaultKind.SLOW, latency_s=2.0, operations=[Operation.SEND]))
        run = Syphon(client.pair, limits=SyphonLimits(max_bytes_in_flight=1_000_000))
        task = asyncio.ensure_future(run.run())
        (source,) = run._sources
        most = 0
        for _ in range(400):
            await clock.sleep(0.25)
            most = max(most, source._window.size_bytes)
        assert 300_000 < most <= 1_500_000
        await cancel(task)
    assert len(await taken(pair)) == 60


async def test_destinations_for_which_nothing_waits_are_forgotten(
    pair: MemoryPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(destination_table, "DESTINATIONS_KEPT", 5)
    names = [f"queue{number}" for number in range(20)]
    for name in names:
        await make_queue(pair, name)
    async with pair.client(ONE) as client:
        for name in names:
            await divert(client, 1, 2, queue=name)
        run = Syphon(client.pair)
        task = asyncio.ensure_future(run.run())
        await clock.sleep(200.0)
        assert len(run._destinations) <= 5
        await clock.sleep(1000.0)
        await cancel(task)
    for name in names:  # one that was parked in between may come behind the other
        assert sorted(texts(await taken(pair, name))) == expected(1, 2, queue=name)


@pytest.mark.parametrize("until_empty", [False, True])
async def test_more_missing_destinations_than_are_kept_are_parked_and_never_lost(
    pair: MemoryPair, monkeypatch: pytest.MonkeyPatch, until_empty: bool
) -> None:
    monkeypatch.setattr(destination_table, "DESTINATIONS_KEPT", 3)
    async with pair.client(options(backlog_queue_count=2)) as client:
        for number in range(30):
            for queue in BACKLOG[:2]:
                path = {"x-ms-path": f"missing{number}"}
                await foreign(pair, ServiceBusMessage(f"{number}", application_properties=path), queue)
        run = Syphon(client.pair, until="empty" if until_empty else None)
        task = asyncio.ensure_future(run.run())
        await clock.sleep(600.0)
        assert len(run._destinations) <= 3
        assert task.done() is until_empty
        if not until_empty:
            await cancel(task)
        for number in range(30):
            await make_queue(pair, f"missing{number}")
        await client.run_syphon(until="empty")
    for number in range(30):
        assert texts(await taken(pair, f"missing{number}")) == [str(number)] * 2


@pytest_asyncio.fixture
async def destinations(pair: MemoryPair) -> list[str]:
    """Two messages in the backlog for each of many queues, of which every second one exists."""
    names = [f"queue{number}" for number in range(int(os.environ.get("SYPHON_DESTINATIONS", FEW_DESTINATIONS)))]
    async with pair.client(options(backlog_queue_count=2)):
        pass
    for name in names:
        for queue in BACKLOG[:2]:
            await foreign(pair, ServiceBusMessage(name, application_properties={"x-ms-path": name}), queue)
    for name in names[1::2]:
        await make_queue(pair, name)
    return names


@pytest.mark.promise("client.many-destinations")
@pytest.mark.parametrize("until_empty", [False, True])
async def test_refusing_destinations_do_not_keep_places_from_healthy_ones(
    pair: MemoryPair,
    destinations: list[str],
    monkeypatch: pytest.MonkeyPatch,
    until_empty: bool,
    record_property: Callable[[str, object], None],
) -> None:
    """Two cycles: half of the destinations is missing, then all exist."""
    names, count = destinations, len(destinations)
    if count == FEW_DESTINATIONS:
        monkeypatch.setattr(destination_table, "DESTINATIONS_KEPT", 3)
    record_property("attacks", count // 2)
    record_property("bytes", 2 * count * 200)  # a delivery with its annotations
    async with pair.client(options(backlog_queue_count=2)) as client:
        run = Syphon(client.pair, until="empty" if until_empty else None)
        task = asyncio.ensure_future(run.run())
        await clock.sleep(900.0)
        for name in names[1::2]:
            assert texts(await taken(pair, name)) == [name] * 2
        report = run.report()
        assert (report.drained, report.parked, task.done()) == (count, count, until_empty)
        assert until_empty or set(run.status().refusing) == set(names[::2])
        for name in names[::2]:
            await make_queue(pair, name)
        if until_empty:
            assert await client.run_syphon(until="empty") == SyphonReport(count, {}, 0)
        else:
            await clock.sleep(3600.0)
            assert run.report() == SyphonReport(2 * count, {}, 0)
            assert run.status().refusing == {}
            await cancel(task)
        for name in names[::2]:
            assert texts(await taken(pair, name)) == [name] * 2


async def test_something_that_should_never_happen_ends_the_syphon_loudly(
    pair: MemoryPair, client: ServiceBusClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(self: object) -> None:
        await clock.sleep(1.0)
        raise ZeroDivisionError

    monkeypatch.setattr(queue_source.QueueSource, "keep_locks", broken)
    with pytest.raises(ZeroDivisionError):
        await client.run_syphon()
    assert clock.monotonic() == 1.0


# -- limits, and how it stands ---------------------------------------------------------------------------------------


async def test_no_more_messages_are_sent_in_a_second_than_allowed(pair: MemoryPair) -> None:
    async with pair.client(options(backlog_queue_count=3)) as client:
        for number in range(200):
            await divert(client, number)
        began_at = clock.monotonic()
        run = Syphon(client.pair, until="empty", limits=SyphonLimits(max_messages_per_second=10.0))
        task = asyncio.ensure_future(run.run())
        for second in range(1, 19):
            await clock.sleep(began_at + second - clock.monotonic())
            assert run.report().drained <= second * 10 + 5
            assert run.report().drained >= second * 10 - 10
        report = await task
    assert (report.drained, report.parked) == (200, 0)
    assert sorted(texts(await taken(pair))) == sorted(expected(*range(200)))


async def test_under_a_rate_little_is_in_flight_and_nothing_is_parked(pair: MemoryPair) -> None:
    async with pair.client(ONE) as client:
        await divert(client, *range(500))
        run = Syphon(client.pair, limits=SyphonLimits(max_messages_per_second=1.0))
        task = asyncio.ensure_future(run.run())
        await clock.sleep(100.25)
        (queue,) = run.status().queues
        assert 1 <= queue.in_flight <= 30
        states = Counter(message.state for message in await diverted_one(pair))
        assert states == {ServiceBusMessageState.ACTIVE: 500 - run.report().drained}
        assert 98 <= run.report().drained <= 102
        await cancel(task)
        assert clock.monotonic() < 101.0


async def test_a_rate_to_each_destination_is_kept_and_nothing_is_parked(pair: MemoryPair) -> None:
    await make_queue(pair, GOOD)
    async with pair.client(options(backlog_queue_count=4)) as client:
        for number in range(300):
            await divert(client, number)
            await divert(client, number, queue=GOOD)
        limits = SyphonLimits(max_messages_per_second_per_destination=5.0)
        run = Syphon(client.pair, limits=limits)
        task = asyncio.ensure_future(run.run())
        await clock.sleep(30.25)
        for queue in (QUEUE, GOOD):
            assert 145 <= len(await waiting_in(pair, queue)) <= 155
        assert {message.state for message in await diverted(pair)} == {ServiceBusMessageState.ACTIVE}
        await cancel(task)


async def test_syphon_polls_a_limited_number_of_queues_in_rotation(
    pair: MemoryPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pair.client(options(backlog_queue_count=6)) as client:
        asked: Counter[str] = Counter()
        most = 0
        receive = queue_source.QueueSource.receive

        async def counted(self: queue_source.QueueSource, **kwargs: Any) -> Any:
            nonlocal most
            asked[self.queue] += 1
            most = max(most, asked.total())
            try:
                return await receive(self, **kwargs)
            finally:
                asked[self.queue] -= 1

        monkeypatch.setattr(queue_source.QueueSource, "receive", counted)
        run = Syphon(client.pair, limits=SyphonLimits(max_queues_polled=2))
        task = asyncio.ensure_future(run.run())
        await clock.sleep(200.0)
        assert most == 2
        assert {queue.polled_at is not None for queue in run.status().queues} == {True, False}
        for queue in BACKLOG[:6]:
            await foreign(pair, ServiceBusMessage(queue, application_properties={"x-ms-path": QUEUE}), queue)
        await clock.sleep(60.0)
        assert sorted(texts(await taken(pair))) == sorted(BACKLOG[:6])
        await cancel(task)


async def test_status_reports_last_poll_and_error_of_each_queue(pair: MemoryPair) -> None:
    async with pair.client(ONE) as client:
        await divert(client, 1)
        run = Syphon(client.pair)
        task = asyncio.ensure_future(run.run())
        await clock.sleep(1.0)
        status = run.status()
        assert (status.refusing, status.is_stalled, status.accepted) == ({}, False, (QUEUE, 0.0))
        (queue,) = status.queues
        assert (queue.queue, queue.in_flight, queue.error) == (BACKLOG[0], 0, None)
        assert queue.answered_at is not None
        assert queue.polled_at is not None
        assert queue.answered_at <= queue.polled_at <= clock.monotonic()
        fault = pair.primary.inject(Fault(FaultKind.ERROR, error=MessagingEntityDisabledError))
        await divert(client, 2)
        await clock.sleep(10.0)
        status = run.status()
        assert (list(status.refusing), status.is_stalled, status.accepted) == ([QUEUE], True, (QUEUE, 0.0))
        assert status.refusing[QUEUE].kind is MessagingEntityDisabledError
        assert status.refusing[QUEUE].text.startswith("MessagingEntityDisabledError: ")
        assert 1.0 <= status.refusing[QUEUE].since_at <= 2.0
        pair.primary.heal(fault)
        await clock.sleep(60.0)
        assert run.status().refusing == {}
        await cancel(task)


async def test_status_reports_an_unreachable_queue(pair: MemoryPair) -> None:
    async with pair.client(ONE) as client:
        fault = pair.secondary.inject(Fault(FaultKind.DOWN))
        run = Syphon(client.pair)
        task = asyncio.ensure_future(run.run())
        await clock.sleep(100.0)
        (queue,) = run.status().queues
        assert (queue.answered_at, queue.polled_at) == (None, None)
        assert queue.error is not None
        assert (queue.error.since_at, queue.error.kind) == (0.0, ServiceBusConnectionError)
        pair.secondary.heal(fault)
        await clock.sleep(1000.0)
        (queue,) = run.status().queues
        assert queue.error is None
        await cancel(task)


async def test_a_queue_that_was_made_again_loses_no_message_to_the_memory(pair: MemoryPair) -> None:
    async with pair.client(ONE) as client:
        await divert(client, 1)
        pair.secondary.inject(Fault(FaultKind.ERROR, operations=[Operation.SETTLE]))
        task = asyncio.ensure_future(client.run_syphon())
        await clock.sleep(1.0)
        await cancel(task)
        pair.secondary.heal()
        async with pair.unpaired_client(secondary=True) as other:
            await other.administration.delete_queue(BACKLOG[0])
        await make_queue(pair, BACKLOG[0], secondary=True)
        await divert(client, 2)
        assert (await client.run_syphon(until="empty")).drained == 1
    assert texts(await taken(pair)) == expected(1, 2)


async def test_next_run_of_a_client_remembers_accepted_messages(pair: MemoryPair) -> None:
    async with pair.client(ONE) as client:
        await divert(client, 1)
        pair.secondary.inject(Fault(FaultKind.ERROR, operations=[Operation.SETTLE]))
        task = asyncio.ensure_future(client.run_syphon())
        await clock.sleep(1.0)
        await cancel(task)
        pair.secondary.heal()
        assert (await client.run_syphon(until="empty")).drained == 0
        assert len(client.pair.state.accepted) == 1  # another drain of this client might hold an earlier delivery of it
    assert texts(await taken(pair)) == expected(1)


async def test_a_syphon_that_ends_starts_no_send_that_its_rate_has_held_back(pair: MemoryPair) -> None:
    limits = SyphonLimits(max_messages_per_second=1)
    async with pair.client() as client, client.get_queue_sender(QUEUE) as sender:
        client.pair.force_failover(QUEUE)
        await sender.send_messages([ServiceBusMessage(f"m{number}") for number in range(3)])
        pair.secondary.inject(Fault(FaultKind.SLOW, operations=[Operation.SETTLE], latency_s=5))
        run = asyncio.create_task(client.run_syphon(limits=limits))
        await clock.sleep(0.5)
        run.cancel()  # waits for the completion of m0, while the rate allows m1
        await asyncio.wait([run])
        assert texts(await taken(pair)) == ["m0"]
        assert sum(map(len, (await waiting(pair)).values())) == 2
        pair.secondary.heal()
        await clock.sleep(300)
        assert (await client.run_syphon(until="empty")).drained == 2
        assert sorted(texts(await taken(pair))) == ["m1", "m2"]


async def test_a_syphon_that_ends_while_it_completes_does_not_let_the_next_one_send_again(pair: MemoryPair) -> None:
    async with pair.client() as client, client.get_queue_sender(QUEUE) as sender:
        client.pair.force_failover(QUEUE)
        await sender.send_messages([ServiceBusMessage(f"m{number}") for number in range(3)])
        pair.secondary.inject(Fault(FaultKind.HANG, operations=[Operation.SETTLE]))
        first = asyncio.create_task(client.run_syphon())
        await clock.sleep(5)
        first.cancel()
        await asyncio.wait([first])
        pair.secondary.heal()
        await clock.sleep(300)
        await client.run_syphon(until="empty")
    assert sorted(texts(await taken(pair))) == ["m0", "m1", "m2"]
    assert await waiting(pair) == {}


@pytest.mark.parametrize(("count", "earliest_s", "latest_s"), [(10, 1.0, 2.0), (500, 5.0, 11.0), (4000, 60.0, 61.0)])
async def test_queue_is_scanned_when_its_polls_no_longer_fill_or_after_a_minute(
    pair: MemoryPair, monkeypatch: pytest.MonkeyPatch, count: int, earliest_s: float, latest_s: float
) -> None:
    peeked_at: list[float] = []
    peek = MemoryReceiver.peek

    async def timed(link: MemoryReceiver, **arguments: Any) -> list[ServiceBusReceivedMessage]:
        peeked_at.append(clock.monotonic())
        return await peek(link, **arguments)

    async with pair.client(ONE) as client:
        client.pair.force_failover(QUEUE)
        async with client.get_queue_sender(QUEUE) as sender:
            for _ in range(count // 10):
                await sender.send_messages([ServiceBusMessage("x") for _ in range(10)])
        client.pair.mark_healthy(QUEUE)
        monkeypatch.setattr(MemoryReceiver, "peek", timed)
        began_at = clock.monotonic()
        run = asyncio.ensure_future(client.run_syphon(limits=SyphonLimits(max_messages_per_second=50)))
        await clock.sleep(100.0)
        await cancel(run)
    assert earliest_s <= peeked_at[0] - began_at <= latest_s
