"""The syphon over session queues: the messages of each session are forwarded in order."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from sbclient import clock
from sbclient.broker.faults import Operation
from sbclient.client.client import ServiceBusClient
from sbclient.errors import (
    InvalidOperationError,
    MessageSizeExceededError,
    MessagingEntityNotFoundError,
    ServiceBusConnectionError,
    ServiceBusError,
)
from sbclient.message import ServiceBusMessage
from sbclient.options import SyphonLimits
from sbclient.pairing import state
from sbclient.syphon import destination, destination_table, session_source
from sbclient.syphon.syphon import Syphon
from sbclient.testing import Fault, FaultKind, MemoryPair
from sbclient.transport.memory.receiver import MemoryReceiver
from sbclient.transport.memory.transport import MemoryTransport
from tests.client.scene import (
    QUEUE,
    SESSION_BACKLOG,
    cancel,
    dead_letters,
    make_queue,
    options,
    taken,
    texts,
    with_pings,
)

ORDERED = options(ordering="session", backlog_queue_count=1)
HOME = SESSION_BACKLOG[0]
GOOD = "good"


async def divert(client: ServiceBusClient, *texts: str, queue: str = QUEUE, **attributes: Any) -> None:
    """Each text's first letter is its session."""
    client.pair.force_failover(queue)
    async with client.get_queue_sender(queue) as sender:
        for text in texts:
            await sender.send_messages(ServiceBusMessage(text, session_id=text[0], **attributes))


async def left(pair: MemoryPair) -> list[str]:
    return texts(await taken(pair, HOME, secondary=True))


async def sessions_of(client: ServiceBusClient) -> list[str]:
    return [*await client._core.primary.list_sessions(HOME, state_updated_after=None, timeout_s=10.0)]


def numbered(session: str, count: int) -> list[str]:
    return [f"{session}{number}" for number in range(count)]


async def test_sessions_are_drained_in_order(pair: MemoryPair) -> None:
    async with pair.client(ORDERED) as client:
        await divert(client, *(text for number in range(30) for text in (f"a{number}", f"b{number}")))
        report = await client.run_syphon(until="empty")
    assert (report.drained, report.dead_lettered) == (60, {})
    received = texts(await taken(pair))
    assert [text for text in received if text[0] == "a"] == numbered("a", 30)
    assert [text for text in received if text[0] == "b"] == numbered("b", 30)


async def test_a_session_is_released_at_once_when_it_is_empty(pair: MemoryPair) -> None:
    async with pair.client(ORDERED) as client:
        await divert(client, *(f"{session}0" for session in "abcdefghijklmnopqrst"))
        run = Syphon(client.pair)
        task = asyncio.ensure_future(run.run())
        await clock.sleep(0.1)
        assert run.report().drained == 20
        await cancel(task)


@pytest.mark.parametrize(
    ("error", "reason"),
    [(MessageSizeExceededError, "MessageSizeExceeded"), (InvalidOperationError, "DestinationRefused")],
)
async def test_permanently_rejected_message_is_dead_lettered_and_the_session_continues(
    pair: MemoryPair, error: type[ServiceBusError], reason: str
) -> None:
    async with pair.client(ORDERED) as client:
        await divert(client, "a1", "a2")
        pair.primary.inject(Fault(FaultKind.ERROR, error=error, operations=[Operation.SEND], count=1))
        report = await client.run_syphon(until="empty")
    assert (report.drained, report.dead_lettered) == (1, {reason: 1})
    assert texts(await taken(pair)) == ["a2"]
    assert [message.dead_letter_reason for message in await dead_letters(pair, [HOME])] == [reason]


async def test_session_message_for_another_destination_is_dead_lettered(pair: MemoryPair) -> None:
    chosen = options(ordering="session", backlog_queue_count=1, syphon_destinations=["other"])
    async with pair.client(chosen) as client:
        await divert(client, "a1")
        report = await client.run_syphon(until="empty")
    assert (report.drained, report.dead_lettered) == (0, {"DestinationNotAllowed": 1})
    assert await taken(pair) == []


async def test_foreign_messages_and_pings_are_dealt_with(pair: MemoryPair, monkeypatch: pytest.MonkeyPatch) -> None:
    async with pair.client(ORDERED) as client:
        async with pair.unpaired_client(secondary=True) as stranger, stranger.get_queue_sender(HOME) as sender:
            await sender.send_messages(ServiceBusMessage("lost", session_id="x"))
            await sender.send_messages(ServiceBusMessage("ping", session_id="x"))
        monkeypatch.setattr(MemoryReceiver, "receive", with_pings(MemoryReceiver.receive))
        report = await client.run_syphon(until="empty")
        monkeypatch.undo()
    assert (report.drained, report.dead_lettered) == (0, {"DestinationMissing": 1})
    assert await left(pair) == []


@pytest.mark.deviation("pairing.unavailable-destinations")
async def test_a_refusing_destination_releases_its_sessions_and_holds_up_no_other(pair: MemoryPair) -> None:
    await make_queue(pair, GOOD)
    async with pair.client(ORDERED) as client:
        for number in range(20):
            await divert(client, *(f"{session}{number}" for session in "abcdefgh"))
        await divert(client, *numbered("z", 20), queue=GOOD)
        fault = pair.primary.inject(Fault(FaultKind.DOWN, entity_path=QUEUE))
        run = asyncio.ensure_future(client.run_syphon())
        await clock.sleep(30.0)
        assert texts(await taken(pair, GOOD)) == numbered("z", 20)
        pair.primary.heal(fault)
        await clock.sleep(90.0)
        received = texts(await taken(pair))
        await cancel(run)
    for session in "abcdefgh":
        assert [text for text in received if text[0] == session] == numbered(session, 20)


@pytest.mark.parametrize("is_refused", [False, True])
async def test_until_empty_ends_where_sessions_cannot_be_listed(
    pair: MemoryPair, monkeypatch: pytest.MonkeyPatch, is_refused: bool
) -> None:
    async def unsupported(self: MemoryTransport, path: str, **_: Any) -> Any:
        raise InvalidOperationError("sessions cannot be listed")

    monkeypatch.setattr(MemoryTransport, "list_sessions", unsupported)
    async with pair.client(ORDERED) as client:
        await divert(client, "a0", "b0")
        if is_refused:
            pair.primary.inject(Fault(FaultKind.DOWN, entity_path=QUEUE))
        async with clock.timeout(3600.0):
            report = await client.run_syphon(until="empty")
    monkeypatch.undo()
    assert report.drained == (0 if is_refused else 2)
    assert await left(pair) == (["a0", "b0"] if is_refused else [])


async def test_a_long_outage_is_waited_out_without_haste(pair: MemoryPair) -> None:
    async with pair.client(ORDERED) as client:
        await divert(client, *(f"{session}0" for session in "abcdefghij"))
        pair.primary.inject(Fault(FaultKind.DOWN))
        run = asyncio.ensure_future(client.run_syphon())
        await clock.sleep(600.0)
        before = pair.secondary.namespace.operation_count
        await clock.sleep(600.0)
        assert pair.secondary.namespace.operation_count - before < 600 * 4 * 4
        await cancel(run)


@pytest.mark.parametrize(
    "fault",
    [
        Fault(FaultKind.BUSY, operations=[Operation.SEND], count=4),
        Fault(FaultKind.SLOW, operations=[Operation.SEND], latency_s=7.0),
    ],
    ids=lambda fault: fault.kind.value,
)
async def test_a_session_with_a_short_lock_is_kept_too_and_nothing_of_it_sent_twice(
    pair: MemoryPair, fault: Fault
) -> None:
    """The user created the queue with a lock that is shorter than the pause for a busy server, or than a slow send.

    A second syphon waits for the session all the time, and does not know what the first one sends.
    """
    async with pair.client(ORDERED) as client, pair.client(ORDERED) as other:
        async with pair.unpaired_client(secondary=True) as owner:
            home = await owner.administration.get_queue(HOME)
            await owner.administration.update_queue(replace(home, lock_duration=timedelta(seconds=5)))
        await divert(client, *numbered("a", 5))
        pair.primary.inject(replace(fault))
        reports = await asyncio.gather(*(each.run_syphon(until="empty") for each in (client, other)))
    assert sum(report.drained for report in reports) == 5
    assert texts(await taken(pair)) == numbered("a", 5)


async def test_a_session_is_not_sent_by_a_second_worker_while_the_first_one_still_sends(pair: MemoryPair) -> None:
    """The first worker cannot renew the session lock during a slow send, and loses it."""
    async with pair.client(ORDERED) as client, pair.unpaired_client(secondary=True) as other:
        home = await other.administration.get_queue(HOME)
        await other.administration.update_queue(replace(home, lock_duration=timedelta(seconds=5)))
        await divert(client, *numbered("a", 3))
        pair.primary.inject(Fault(FaultKind.SLOW, operations=[Operation.SEND], latency_s=18.0))
        running = asyncio.ensure_future(client.run_syphon(until="empty"))
        await clock.sleep(1.0)
        pair.secondary.inject(Fault(FaultKind.ERROR, operations=[Operation.RENEW], count=1))
        assert (await running).drained == 3
    assert texts(await taken(pair)) == numbered("a", 3)


@pytest.mark.parametrize("stopped_at_s", [0.5, 1.5, 2.5, 3.5])
async def test_a_session_is_not_sent_by_another_syphon_while_a_stopped_one_still_sends(
    pair: MemoryPair, stopped_at_s: float
) -> None:
    async with pair.client(ORDERED) as first, pair.client(ORDERED) as second:
        await divert(first, *numbered("a", 4))
        pair.primary.inject(Fault(FaultKind.SLOW, operations=[Operation.SEND], latency_s=1.0))
        stopped = asyncio.ensure_future(first.run_syphon())
        other = asyncio.ensure_future(second.run_syphon(until="empty"))
        await clock.sleep(stopped_at_s)
        await cancel(stopped)
        await other
        assert (await second.run_syphon(until="empty")).drained >= 0
    assert texts(await taken(pair)) == numbered("a", 4)


async def test_senders_to_destinations_are_bounded(pair: MemoryPair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(destination_table, "DESTINATIONS_KEPT", 3)
    async with pair.client(ORDERED) as client:
        for number in range(12):
            await make_queue(pair, f"queue{number}")
            await divert(client, "a0", "b0", queue=f"queue{number}")
        assert (await client.run_syphon(until="empty")).drained == 24


async def test_the_memory_of_lost_completions_is_bounded(pair: MemoryPair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "ACCEPTED_KEPT", 1)
    async with pair.client(ORDERED) as client:
        await divert(client, *(f"{session}0" for session in "abcdefgh"))
        pair.secondary.inject(Fault(FaultKind.ERROR, operations=[Operation.SETTLE], count=8))
        await client.run_syphon(until="empty")
    assert set(texts(await taken(pair))) == {f"{session}0" for session in "abcdefgh"}


async def test_two_syphons_do_not_overtake_each_other(pair: MemoryPair) -> None:
    async with pair.client(ORDERED) as one, pair.client(ORDERED) as other:
        for number in range(20):
            await divert(one, *(f"{session}{number}" for session in "abcd"))
        pair.primary.inject(Fault(FaultKind.SLOW, latency_s=0.3, probability=0.5))
        await asyncio.gather(one.run_syphon(until="empty"), other.run_syphon(until="empty"))
    received = texts(await taken(pair))
    for session in "abcd":
        assert [text for text in received if text[0] == session] == numbered(session, 20)


@pytest.mark.parametrize("error", [MessagingEntityNotFoundError, ServiceBusConnectionError])
async def test_health_is_reported_in_events(pair: MemoryPair, error: type[ServiceBusError]) -> None:
    async with pair.client(ORDERED) as client:
        await divert(client, "a0")
        pair.primary.inject(Fault(FaultKind.ERROR, error=error, operations=[Operation.SEND], count=2))
        await client.run_syphon(until="empty")
        named = [event.name for event in client.pair.events() if event.name.startswith("syphon")]
    assert named == ["syphon.destination_unavailable", "syphon.destination_recovered"]


async def test_a_rate_is_kept_and_the_lock_of_a_session_outlives_the_wait(pair: MemoryPair) -> None:
    async with pair.client(ORDERED) as client:
        await divert(client, *numbered("a", 5), *numbered("b", 5))
        # Ten messages, one each 40 s: a lock lasts 60 s.
        run = Syphon(client.pair, until="empty", limits=SyphonLimits(max_messages_per_second=1 / 40))
        report = await run.run()
    assert report.drained == 10
    assert clock.monotonic() >= 9 * 40.0
    received = texts(await taken(pair))
    assert [text for text in received if text[0] == "a"] == numbered("a", 5)
    assert [text for text in received if text[0] == "b"] == numbered("b", 5)


async def test_fewer_receives_wait_at_once_than_there_are_workers(pair: MemoryPair) -> None:
    async with pair.client(ORDERED) as client:
        waiting_at_once: list[int] = []
        original, waiting = MemoryReceiver.open, 0

        async def counted(self: MemoryReceiver, **kwargs: Any) -> None:
            nonlocal waiting
            waiting += 1
            waiting_at_once.append(waiting)
            try:
                await original(self, **kwargs)
            finally:
                waiting -= 1

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(MemoryReceiver, "open", counted)
            run = asyncio.ensure_future(Syphon(client.pair, limits=SyphonLimits(max_queues_polled=2)).run())
            await clock.sleep(100.0)
            await cancel(run)
    assert max(waiting_at_once) == 2


async def test_status_includes_sessions(pair: MemoryPair) -> None:
    async with pair.client(ORDERED) as client:
        await divert(client, *numbered("a", 3))
        fault = pair.primary.inject(Fault(FaultKind.DOWN))
        run = Syphon(client.pair)
        task = asyncio.ensure_future(run.run())
        await clock.sleep(20.0)
        status = run.status()
        assert [queue.queue for queue in status.queues if queue.answered_at is not None][-1] == HOME
        assert status.refusing[QUEUE].kind is ServiceBusConnectionError
        assert {queue.in_flight for queue in status.queues} == {0}
        pair.primary.heal(fault)
        await clock.sleep(60.0)
        assert run.status().refusing == {}
        await cancel(task)


async def test_more_sessions_than_are_remembered_are_drained_when_their_destination_accepts_again(
    pair: MemoryPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(destination, "PARKED_KNOWN", 3)
    async with pair.client(ORDERED) as client:
        await divert(client, *(f"{session}0" for session in "abcdefghij"))
        fault = pair.primary.inject(Fault(FaultKind.DOWN))
        syphon = Syphon(client.pair)
        run = asyncio.ensure_future(syphon.run())
        await clock.sleep(300.0)
        [ordered] = [one for one in syphon._sources if one.is_ordered]
        assert [len(parked) for parked in syphon._destinations.parked_in(ordered)] == [3]
        before = pair.secondary.namespace.operation_count
        await clock.sleep(300.0)
        assert pair.secondary.namespace.operation_count - before < 300 * 4 * 4
        pair.primary.heal(fault)
        await clock.sleep(90.0)
        await cancel(run)
    assert sorted(texts(await taken(pair))) == [f"{session}0" for session in "abcdefghij"]


async def test_sessions_of_a_destination_that_recovers_are_drained_concurrently(pair: MemoryPair) -> None:
    async with pair.client(ORDERED) as client:
        await divert(client, *(f"{session}0" for session in "abcdefgh"))
        pair.primary.inject(Fault(FaultKind.DOWN))
        run = asyncio.ensure_future(client.run_syphon())
        await clock.sleep(100.0)
        pair.primary.heal()
        pair.primary.inject(Fault(FaultKind.SLOW, operations=[Operation.SEND], latency_s=10.0))
        while not [one for one in client.pair.events() if one.name == "syphon.destination_recovered"]:
            await clock.sleep(0.1)
        await clock.sleep(25.0)
        assert len(await taken(pair)) == 8
        await cancel(run)


async def test_a_session_is_found_among_many_whose_destination_refuses(
    pair: MemoryPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(destination, "PARKED_KNOWN", 1)
    monkeypatch.setattr(session_source, "VISITED_PER_LIST", 2)
    await make_queue(pair, GOOD)
    async with pair.client(ORDERED) as client:
        await divert(client, *(f"{session}0" for session in "abcdefghij"))
        pair.primary.inject(Fault(FaultKind.DOWN, entity_path=QUEUE))
        run = asyncio.ensure_future(client.run_syphon())
        await clock.sleep(100.0)
        await divert(client, *(f"{session}0" for session in "klmno"), queue=GOOD)
        await clock.sleep(900.0)
        assert sorted(texts(await taken(pair, GOOD))) == [f"{session}0" for session in "klmno"]
        await cancel(run)


async def test_resting_sessions_that_another_syphon_has_drained_are_forgotten(pair: MemoryPair) -> None:
    async with pair.client(ORDERED) as client, pair.unpaired_client(secondary=True) as other:
        await divert(client, *(f"{session}0" for session in "abcdefgh"))
        pair.primary.inject(Fault(FaultKind.DOWN))
        run = Syphon(client.pair)
        task = asyncio.ensure_future(run.run())
        await clock.sleep(100.0)
        destinations, (source,) = run._destinations, [one for one in run._sources if one.is_ordered]
        assert [set(parked) for parked in destinations.parked_in(source)] == [set(await sessions_of(other))]
        for session_id in await sessions_of(other):
            async with other.get_queue_receiver(HOME, session_id=session_id) as receiver:
                for message in await receiver.receive_messages(10):
                    await receiver.complete_message(message)
        await clock.sleep(130.0)
        assert destinations.parked_in(source) == []
        await cancel(task)


async def test_the_memory_of_destinations_that_refuse_is_bounded(
    pair: MemoryPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(destination_table, "DESTINATIONS_KEPT", 3)
    async with pair.client(ORDERED) as client:
        for number in range(8):
            await make_queue(pair, f"queue{number}")
            await divert(client, f"{number}", queue=f"queue{number}")
        pair.primary.inject(Fault(FaultKind.DOWN))
        run = Syphon(client.pair)
        task = asyncio.ensure_future(run.run())
        await clock.sleep(300.0)
        assert 1 <= len(run.status().refusing) <= 3
        await cancel(task)
        pair.primary.heal()
        assert (await client.run_syphon(until="empty")).drained == 8
