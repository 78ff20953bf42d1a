"""What a client measures on its way through an outage and back, in virtual time."""

from __future__ import annotations

import asyncio
import sys
import threading
from datetime import UTC, datetime, timedelta

import pytest
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader

from sbclient import clock
from sbclient.backlog import Backlog
from sbclient.client.client import ServiceBusClient
from sbclient.errors import BacklogUnavailableError, InvalidOperationError, ServiceBusConnectionError
from sbclient.message import ServiceBusMessage
from sbclient.syphon.syphon import Syphon
from sbclient.telemetry import metrics
from sbclient.testing import Fault, FaultKind, MemoryPair
from tests.client.scene import AT_ONCE, BACKLOG, QUEUE, SESSION_BACKLOG, make_queue, options
from tests.measured import values

ONE = options(backlog_queue_count=1)


def longest_s(reader: InMemoryMetricReader, instrument: metrics.Instrument) -> float:
    data = reader.get_metrics_data()
    assert data is not None
    found = [
        point.max
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
        if metric.name == instrument.name and isinstance(point, HistogramDataPoint)
    ]
    return max(found)


async def test_sends_are_counted_by_route_and_outcome(pair: MemoryPair, metric_reader: InMemoryMetricReader) -> None:
    async with pair.client(AT_ONCE) as client, client.get_queue_sender(QUEUE) as sender:
        await sender.send_messages([ServiceBusMessage("a"), ServiceBusMessage("b")])
        async with client.transaction() as transaction:
            await sender.send_messages(ServiceBusMessage("c", partition_key="1"), transaction=transaction)
        pair.primary.inject(Fault(FaultKind.DOWN))
        await sender.send_messages([ServiceBusMessage("d"), ServiceBusMessage("e")])
        pair.secondary.inject(Fault(FaultKind.DOWN))
        with pytest.raises(BacklogUnavailableError):
            await sender.send_messages(ServiceBusMessage("f"))
    found = values(metric_reader, metrics.SENT, metrics.ROUTE, metrics.OUTCOME, metrics.ERROR)
    assert found == {
        ("primary", "accepted", None): 3,
        ("backlog", "accepted", None): 2,
        ("backlog", "in_doubt", "BacklogUnavailableError"): 1,
    }
    assert values(metric_reader, metrics.DIVERTED, metrics.DESTINATION) == {QUEUE: 2}
    assert values(metric_reader, metrics.SENT, metrics.SYSTEM, metrics.SERVER).keys() == {
        ("servicebus", "memory://contoso")
    }


async def test_scheduled_messages_are_counted_as_scheduled(
    client: ServiceBusClient, metric_reader: InMemoryMetricReader
) -> None:
    later = datetime.fromtimestamp(clock.now(), UTC) + timedelta(hours=1)
    async with client.get_queue_sender(QUEUE) as sender:
        await sender.schedule_messages([ServiceBusMessage("a"), ServiceBusMessage("b")], later)
    assert values(metric_reader, metrics.SENT, metrics.OPERATION) == {"schedule": 2}


async def test_duration_of_a_send_includes_retries(pair: MemoryPair, metric_reader: InMemoryMetricReader) -> None:
    async with pair.client() as client, client.get_queue_sender(QUEUE) as sender:
        pair.primary.inject(Fault(FaultKind.SLOW, latency_s=7.0))
        await sender.send_messages(ServiceBusMessage("a"))
    assert values(metric_reader, metrics.OPERATION_DURATION, metrics.ROUTE, metrics.OUTCOME) == {
        ("primary", "accepted"): 1
    }
    assert longest_s(metric_reader, metrics.OPERATION_DURATION) == 14.0  # one answer to the attach, one to the message


async def test_a_shared_transfer_that_is_judged_one_by_one_counts_each_message_once(
    pair: MemoryPair, client: ServiceBusClient, metric_reader: InMemoryMetricReader
) -> None:
    await make_queue(pair, "sessions", requires_session=True)
    async with client.get_queue_sender("sessions") as sender:
        answers = await asyncio.gather(
            *(sender.send_messages(ServiceBusMessage(str(number))) for number in range(5)),
            return_exceptions=True,
        )
    assert all(isinstance(answer, InvalidOperationError) for answer in answers)
    assert values(metric_reader, metrics.SENT, metrics.OUTCOME) == {"refused": 5}


async def test_the_state_of_an_entity_and_the_time_in_it(pair: MemoryPair, metric_reader: InMemoryMetricReader) -> None:
    async with pair.client(options(failover_interval=60)) as client, client.get_queue_sender(QUEUE) as sender:
        seen = []

        async def look() -> None:
            states = values(metric_reader, metrics.FAILOVER_STATE, metrics.STATE)
            (age,) = values(metric_reader, metrics.FAILOVER_AGE, metrics.STATE).items()
            seen.append(([state for state, value in states.items() if value], age))

        await sender.send_messages(ServiceBusMessage("a"))
        await clock.sleep(5.0)
        await look()
        pair.primary.inject(Fault(FaultKind.DOWN))
        with pytest.raises(ServiceBusConnectionError):
            await sender.send_messages(ServiceBusMessage("b"), timeout=1.0)
        await clock.sleep(30.0)
        await look()
        await clock.sleep(60.0)
        await look()
        pair.primary.heal()
        await clock.sleep(66.0)
        await look()
        assert [(states, state) for states, (state, _) in seen] == [
            (["healthy"], "healthy"),
            (["suspect"], "suspect"),
            (["failed_over"], "failed_over"),
            (["healthy"], "healthy"),
        ]
        assert [round(age) for _, (_, age) in seen[:3]] == [5, 30, 30]
    assert values(metric_reader, metrics.FAILOVER_STATE) == {}
    assert values(metric_reader, metrics.TRANSITIONS, metrics.STATE, metrics.REASON) == {
        ("suspect", "outage"): 1,
        ("failed_over", "deadline_passed"): 1,
        ("healthy", "pings_accepted"): 1,
    }


async def test_two_clients_of_one_process_are_counted_together(
    pair: MemoryPair, metric_reader: InMemoryMetricReader
) -> None:
    async with pair.client() as first, pair.client() as second:
        first.pair.force_failover(QUEUE)
        second.pair.state.entity(QUEUE)
        found = values(metric_reader, metrics.FAILOVER_STATE, metrics.STATE)
    assert found == {"healthy": 1, "suspect": 0, "failed_over": 1}


async def test_pings_are_measured_by_their_answer(pair: MemoryPair, metric_reader: InMemoryMetricReader) -> None:
    async with pair.client(AT_ONCE) as client:
        client.pair.mark_unhealthy(QUEUE)
        pair.primary.inject(Fault(FaultKind.DOWN))
        await clock.sleep(1.0)
        pair.primary.heal()
        await clock.sleep(66.0)
    assert values(metric_reader, metrics.PING_DURATION, metrics.OUTCOME, metrics.ERROR) == {
        ("refused", "ServiceBusConnectionError"): 1,
        ("accepted", None): 1,
    }


async def test_a_backlog_queue_in_quarantine(pair: MemoryPair, metric_reader: InMemoryMetricReader) -> None:
    async with pair.client(options(backlog_queue_count=2)) as client, client.get_queue_sender(QUEUE) as sender:
        client.pair.force_failover(QUEUE)
        for queue in BACKLOG[:2]:
            pair.secondary.inject(Fault(FaultKind.DOWN, entity_path=queue))
        with pytest.raises(BacklogUnavailableError):
            await sender.send_messages(ServiceBusMessage("a"))
        now = values(metric_reader, metrics.QUARANTINED, metrics.DESTINATION)
        await clock.sleep(31.0)
        later = values(metric_reader, metrics.QUARANTINED, metrics.DESTINATION)
    assert (now, later) == (dict.fromkeys(BACKLOG[:2], 1), dict.fromkeys(BACKLOG[:2], 0))
    assert values(metric_reader, metrics.QUARANTINES, metrics.DESTINATION, metrics.SERVER) == {
        (queue, "memory://contoso-backup"): 1 for queue in BACKLOG[:2]
    }


# -- the syphon --------------------------------------------------------------------------------------------------------


async def test_syphon_operations_are_counted(pair: MemoryPair, metric_reader: InMemoryMetricReader) -> None:
    await make_queue(pair, "full")
    async with pair.client(ONE) as client:
        for queue in (QUEUE, "full"):
            client.pair.force_failover(queue)
            async with client.get_queue_sender(queue) as sender:
                await sender.send_messages([ServiceBusMessage("a"), ServiceBusMessage("b")])
        async with pair.unpaired_client(secondary=True) as other, other.get_queue_sender(BACKLOG[0]) as sender:
            await sender.send_messages(ServiceBusMessage("unknown destination", message_id="a secret"))
        pair.primary.inject(Fault(FaultKind.DOWN, entity_path="full"))
        await client.run_syphon(until="empty")
    assert values(metric_reader, metrics.DRAINED, metrics.DESTINATION, metrics.SERVER) == {
        (QUEUE, "memory://contoso"): 2
    }
    assert values(metric_reader, metrics.DEAD_LETTERED, metrics.DESTINATION, metrics.REASON) == {
        (BACKLOG[0], "DestinationMissing"): 1
    }
    parked = values(metric_reader, metrics.PARKED, metrics.DESTINATION)
    assert parked.keys() == {BACKLOG[0]}
    assert parked[BACKLOG[0]] >= 2


async def test_the_depth_and_the_age_of_the_backlog_while_a_syphon_runs(
    pair: MemoryPair, metric_reader: InMemoryMetricReader
) -> None:
    def known() -> tuple[dict[str, float], float, float]:
        depth = values(metric_reader, metrics.BACKLOG_DEPTH, metrics.STATE)
        (age,) = values(metric_reader, metrics.BACKLOG_AGE).values()
        (unavailable,) = values(metric_reader, metrics.UNAVAILABLE_DESTINATIONS).values()
        return depth, round(age), unavailable

    async with pair.client(ONE) as client:
        client.pair.force_failover(QUEUE)
        async with client.get_queue_sender(QUEUE) as sender:
            for number in range(3):
                await sender.send_messages(ServiceBusMessage(str(number)))
            pair.primary.inject(Fault(FaultKind.DOWN))
            await clock.sleep(100.0)
            syphon = asyncio.ensure_future(Syphon(client.pair).run())
            await clock.sleep(20.0)
            in_the_outage = known()
            pair.primary.heal()
            await clock.sleep(120.0)
            afterwards = known()
            syphon.cancel()
            await asyncio.wait([syphon])
    assert in_the_outage == ({"waiting": 0, "parked": 3}, 120, 1)
    assert afterwards == ({"waiting": 0, "parked": 0}, 0, 0)
    assert values(metric_reader, metrics.BACKLOG_DEPTH) == {}


async def test_messages_left_in_the_queue_are_counted_by_a_survey(
    pair: MemoryPair, metric_reader: InMemoryMetricReader
) -> None:
    async with pair.client(ONE) as client:
        client.pair.force_failover(QUEUE)
        async with client.get_queue_sender(QUEUE) as sender:
            await sender.send_messages([ServiceBusMessage(str(number)) for number in range(900)])
        pair.primary.inject(Fault(FaultKind.DOWN))
        syphon = asyncio.ensure_future(Syphon(client.pair).run())
        await clock.sleep(100.0)
        depth = values(metric_reader, metrics.BACKLOG_DEPTH, metrics.STATE)
        age = values(metric_reader, metrics.BACKLOG_AGE)
        syphon.cancel()
        await asyncio.wait([syphon])
    assert depth["waiting"] > 0
    assert depth["parked"] > 0
    assert depth["waiting"] + depth["parked"] == 900
    assert [round(each) for each in age.values()] == [100]


async def test_messages_taken_by_another_syphon_are_not_counted_as_waiting(
    pair: MemoryPair, metric_reader: InMemoryMetricReader
) -> None:
    async with pair.client(ONE) as client, pair.unpaired_client(secondary=True) as other:
        client.pair.force_failover(QUEUE)
        async with client.get_queue_sender(QUEUE) as sender, other.get_queue_receiver(BACKLOG[0]) as receiver:
            await sender.send_messages([ServiceBusMessage("a"), ServiceBusMessage("b")])
            first, second = await receiver.receive_messages(2)
            syphon = asyncio.ensure_future(Syphon(client.pair).run())
            await clock.sleep(1.5)  # the first scan begins after a second
            at_first = values(metric_reader, metrics.BACKLOG_DEPTH, metrics.STATE)
            await receiver.complete_message(first)
            await receiver.complete_message(second)
            await clock.sleep(10.0)
            depth = values(metric_reader, metrics.BACKLOG_DEPTH, metrics.STATE)
            age = values(metric_reader, metrics.BACKLOG_AGE)
            syphon.cancel()
            await asyncio.wait([syphon])
    assert (at_first, depth) == ({"waiting": 2, "parked": 0}, {"waiting": 0, "parked": 0})
    assert list(age.values()) == [0]


async def test_a_watched_backlog_is_measured_without_a_syphon(
    pair: MemoryPair, metric_reader: InMemoryMetricReader
) -> None:
    async with pair.client(ONE) as client:
        client.pair.force_failover(QUEUE)
        async with client.get_queue_sender(QUEUE) as sender:
            await sender.send_messages([ServiceBusMessage("a"), ServiceBusMessage("b"), ServiceBusMessage("c")])
        async with pair.unpaired_client(secondary=True) as other, other.get_queue_receiver(BACKLOG[0]) as receiver:
            first, second = await receiver.receive_messages(2)
            await receiver.defer_message(first)
            await receiver.dead_letter_message(second, "why")
        watching = asyncio.ensure_future(Backlog(client.pair).watch(every=timedelta(seconds=30)))
        await clock.sleep(10.0)
        found = values(metric_reader, metrics.BACKLOG_DEPTH, metrics.DESTINATION, metrics.STATE)
        age = values(metric_reader, metrics.BACKLOG_AGE, metrics.DESTINATION)
        pair.secondary.inject(Fault(FaultKind.DOWN))
        await clock.sleep(60.0)
        later = values(metric_reader, metrics.BACKLOG_AGE, metrics.DESTINATION)
        pair.secondary.heal()
        assert not watching.done()
        watching.cancel()
        await asyncio.wait([watching])
    assert found == {(BACKLOG[0], state): 1 for state in ("waiting", "parked", "dead_lettered")}
    assert (round(age[BACKLOG[0]]), round(later[BACKLOG[0]])) == (10, 70)
    assert values(metric_reader, metrics.BACKLOG_DEPTH) == {}


async def test_a_session_queue_is_counted_too(pair: MemoryPair, metric_reader: InMemoryMetricReader) -> None:
    await make_queue(pair, "sessions", requires_session=True)
    async with pair.client(options(ordering="session", backlog_queue_count=1)) as client:
        client.pair.force_failover("sessions")
        async with client.get_queue_sender("sessions") as sender:
            await sender.send_messages(ServiceBusMessage("a", session_id="1"))
        async with pair.unpaired_client(secondary=True) as other, other.get_queue_sender(SESSION_BACKLOG[0]) as sender:
            await sender.send_messages(ServiceBusMessage("unknown destination", session_id="2"))
        await client.run_syphon(until="empty")
    assert values(metric_reader, metrics.DRAINED, metrics.DESTINATION) == {"sessions": 1}
    assert values(metric_reader, metrics.DEAD_LETTERED, metrics.DESTINATION, metrics.REASON) == {
        (SESSION_BACKLOG[0], "DestinationMissing"): 1
    }


# -- receiving ---------------------------------------------------------------------------------------------------------


async def test_received_messages_are_counted_without_pings_and_peeks(
    pair: MemoryPair, client: ServiceBusClient, metric_reader: InMemoryMetricReader
) -> None:
    async with client.get_queue_sender(QUEUE) as sender, client.get_queue_receiver(QUEUE) as receiver:
        await sender.send_messages([ServiceBusMessage("a"), ServiceBusMessage("b")])
        await receiver.peek_messages(2)
        first, second = await receiver.receive_messages(2)
        await receiver.defer_message(first)
        await receiver.complete_message(second)
        await receiver.receive_deferred_messages(first.sequence_number)
    assert values(metric_reader, metrics.CONSUMED, metrics.DESTINATION) == {QUEUE: 3}


def test_no_attribute_can_name_a_message() -> None:
    named = {name for instrument in metrics.INSTRUMENTS for name in instrument.attributes}
    assert not [name for name in named if any(word in name for word in ("message_id", "session", "key", "body"))]
    assert "application/vnd.ms-servicebus-ping" not in named


async def test_any_thread_may_read_metrics_concurrently(pair: MemoryPair) -> None:
    is_over = threading.Event()
    failures: list[BaseException] = []
    reads = 0

    def read() -> None:
        nonlocal reads
        while not is_over.is_set():
            try:
                for instrument in metrics.INSTRUMENTS:
                    dict(metrics.states(instrument))
            except BaseException as error:
                failures.append(error)
                return
            reads += 1

    reader = threading.Thread(target=read)
    usual_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # as often in the middle of something as can be
    reader.start()
    try:
        async with pair.client(options(backlog_queue_count=3)) as client:
            for number in range(200):
                queue = f"queue-{number}"
                if number % 2:
                    await client.administration.create_queue(queue)
                client.pair.force_failover(queue)
                async with client.get_queue_sender(queue) as sender:
                    await sender.send_messages(ServiceBusMessage("a"))
            await client.run_syphon(until="empty")
    finally:
        is_over.set()
        reader.join()
        sys.setswitchinterval(usual_s)
    assert failures == []
    assert reads > 3
