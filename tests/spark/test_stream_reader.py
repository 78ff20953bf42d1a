"""The readers of streams, driven without Spark as Spark drives them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import pytest

from sbclient import ServiceBusClient, ServiceBusMessage, clock
from sbclient.client.receiver import ServiceBusReceiver
from sbclient.errors import (
    InvalidOperationError,
    MessagingEntityNotFoundError,
    ServiceBusConnectionError,
    ServiceBusError,
)
from sbclient.message import ServiceBusReceivedMessage
from sbclient.testing import Fault, FaultKind, Operation
from sbclient.transport.memory.transport import drop_memory_host, memory_host
from sbclient_spark.clients import WorkerClients, open_client, worker_clients
from sbclient_spark.read import receive_stream
from sbclient_spark.read.browsing import EntityFacts, entity_facts
from sbclient_spark.read.columns import READ_SCHEMA
from sbclient_spark.read.limits import Budget
from sbclient_spark.read.options import read_options
from sbclient_spark.read.receive_stream import ReceiveStreamReader
from sbclient_spark.read.sessions import StreamSessions
from sbclient_spark.read.stream import PeekStreamReader, ServiceBusStreamReader
from tests.broker.driver import KEYS
from tests.stage.pair import SECONDARY, EmulatedPair

streaming = pytest.importorskip("pyspark.sql.streaming.datasource", reason="PySpark 4.2 gives a stream its start")

HERE = "memory://stream"


@pytest.fixture
def set_forward(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets the clock forward."""
    true_now, monotonic = clock.true_now, clock.monotonic

    def set_clock(late_s: float) -> None:
        monkeypatch.setattr(clock, "true_now", lambda: true_now() + late_s)
        monkeypatch.setattr(clock, "monotonic", lambda: monotonic() + late_s)

    return set_clock


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> Iterator[WorkerClients]:
    """The clients of this process, and a namespace with its own clock, which answers at once."""
    monkeypatch.setattr("sbclient_spark.read.receive_stream.WAIT_S", 0.05)
    found = worker_clients()
    memory_host("stream")
    yield found
    found.run(found.close())
    drop_memory_host("stream")


class Stream:
    """A query over one reader: it plans, reads and stores its offsets like Spark."""

    def __init__(self, clients: WorkerClients, **options: Any) -> None:
        own = {name: str(value) for name, value in options.items()}
        queue = {} if "queues" in own else {"queue": "orders"}
        self._texts = {"connectionString": HERE} | queue | own
        self._options = read_options(self._texts, is_streaming=True)
        self.clients = clients
        self.offset: dict[str, Any] | None = None
        self.planned: dict[str, Any] | None = None
        self.reader = self._new_reader()

    def _new_reader(self) -> ServiceBusStreamReader:
        kind = PeekStreamReader if self._options.mode == "peek" else ReceiveStreamReader
        return kind(self._options, READ_SCHEMA)

    def restart(self, **changed: Any) -> None:
        """Start again from the checkpoint, with changed options."""
        self.reader.stop()
        if changed:
            self._texts |= {name: str(value) for name, value in changed.items()}
            self._options = read_options(self._texts, is_streaming=True)
        self.reader = self._new_reader()

    def plan(self) -> bool:
        """Write the next offset to the log; return whether there is a new micro-batch."""
        start = self.offset or self.reader.initialOffset()
        limit = self.reader.getDefaultReadLimit()
        end = self.reader.latestOffset(start, limit)
        self.planned = end
        return end != start

    def rows(self) -> list[dict[str, Any]]:
        """Run the planned micro-batch."""
        assert self.planned is not None
        tasks = self.reader.partitions(self.offset or self.reader.initialOffset(), self.planned)
        return [row for task in tasks for batch in self.reader.read(task) for row in batch.to_pylist()]

    def commit(self) -> None:
        self.offset = self.planned

    def batch(self) -> list[str]:
        """Run one micro-batch and return its bodies."""
        if not self.plan():
            return []
        found = self.rows()
        self.commit()
        return [row["body"].decode() for row in found]

    def all(self) -> list[str]:
        found: list[str] = []
        while bodies := self.batch():
            found += bodies
        return found


def run(clients: WorkerClients, work: Any) -> Any:
    async def with_client() -> Any:
        options = read_options({"connectionString": HERE, "queue": "any"}).connection
        async with open_client(options, paired=False) as client:
            return await work(client)

    return clients.run(with_client())


def create(clients: WorkerClients, queue: str = "orders", **properties: Any) -> None:
    async def work(client: ServiceBusClient) -> None:
        await client.administration.create_queue(queue, **properties)

    run(clients, work)


def delete(clients: WorkerClients, queue: str = "orders") -> None:
    async def work(client: ServiceBusClient) -> None:
        await client.administration.delete_queue(queue)

    run(clients, work)


def send(clients: WorkerClients, numbers: range, queue: str = "orders", **properties: Any) -> None:
    async def work(client: ServiceBusClient) -> None:
        async with client.get_queue_sender(queue) as sender:
            await sender.send_messages([ServiceBusMessage(str(number), **properties) for number in numbers])

    run(clients, work)


def take(clients: WorkerClients, count: int, queue: str = "orders") -> None:
    """Complete messages, as a consumer does."""

    async def work(client: ServiceBusClient) -> None:
        receiver = client.get_queue_receiver(queue)
        while_left = count
        while while_left:
            for message in await receiver.receive_messages(while_left, max_wait_time=1):
                await receiver.complete_message(message)
                while_left -= 1

    run(clients, work)


def texts(numbers: range) -> list[str]:
    return [str(number) for number in numbers]


# -- peek --------------------------------------------------------------------------------------------------------


def test_each_message_is_read_once_and_stays(clients: WorkerClients) -> None:
    create(clients)
    send(clients, range(600))
    stream = Stream(clients)
    assert stream.batch() == texts(range(600))
    assert stream.batch() == []
    send(clients, range(600, 610))
    stream.restart()
    assert stream.batch() == texts(range(600, 610))
    assert Stream(clients).batch() == texts(range(610))


def test_a_replay_reads_the_same_messages_and_later_ones_come_next(clients: WorkerClients) -> None:
    create(clients)
    send(clients, range(50))
    stream = Stream(clients)
    assert stream.plan()
    first = [row["sequence_number"] for row in stream.rows()]
    send(clients, range(50, 60))
    stream.restart()
    assert [row["sequence_number"] for row in stream.rows()] == first
    stream.commit()
    assert stream.batch() == texts(range(50, 60))


def test_a_micro_batch_has_a_largest_size(clients: WorkerClients) -> None:
    create(clients)
    send(clients, range(25))
    stream = Stream(clients, maxMessagesPerTrigger=10)
    assert [len(stream.batch()) for _ in range(4)] == [10, 10, 5, 0]


def test_a_limit_is_shared_by_the_fragments(clients: WorkerClients) -> None:
    create(clients, enable_partitioning=True)
    for key in range(20):
        send(clients, range(key * 10, key * 10 + 10), partition_key=f"k{key}")
    stream = Stream(clients, maxMessagesPerTrigger=40)
    sizes, found = [], []
    while bodies := stream.batch():
        sizes.append(len(bodies))
        found += bodies
    assert max(sizes) == 40
    assert sorted(map(int, found)) == list(range(200))


def test_every_fragment_is_read_once_over_many_batches(clients: WorkerClients) -> None:
    create(clients, enable_partitioning=True)
    stream = Stream(clients)
    found: list[str] = []
    for batch in range(12):
        send(clients, range(batch * 7, batch * 7 + 7), partition_key=f"k{batch}")
        found += stream.batch()
        stream.restart()
    assert sorted(map(int, found)) == list(range(84))


def test_fragments_that_are_read_to_their_end_hide_no_others_over_the_network(pair: EmulatedPair) -> None:
    queue = pair.create_queue("parts", enable_partitioning=True)

    async def fill() -> None:
        async with pair.client() as client, client.get_queue_sender(queue) as sender:
            for number in range(37):
                many = [ServiceBusMessage(str(number * 20 + each), partition_key=str(number)) for each in range(20)]
                await sender.send_messages(many)

    pair.run(fill())
    given = pair.reading(queue=queue, maxMessagesPerTrigger=100)
    reader = PeekStreamReader(read_options(given, is_streaming=True), READ_SCHEMA)
    found: list[int] = []
    offset = reader.initialOffset()
    while (end := reader.latestOffset(offset, reader.getDefaultReadLimit())) != offset:
        tasks = reader.partitions(offset, end)
        found += [int(row["body"]) for task in tasks for batch in reader.read(task) for row in batch.to_pylist()]
        offset = end
    reader.stop()
    assert sorted(found) == list(range(740))


def test_message_1_of_the_first_fragment_is_found(clients: WorkerClients) -> None:
    create(clients, enable_partitioning=True)
    for number in range(16):  # without keys, each fragment gets one
        send(clients, range(number, number + 1))
    assert sorted(map(int, Stream(clients).batch())) == list(range(16))


def test_available_now_ends_at_what_was_there(clients: WorkerClients) -> None:
    create(clients)
    send(clients, range(20))
    stream = Stream(clients, maxMessagesPerTrigger=15)
    stream.reader.prepareForTriggerAvailableNow()
    assert len(stream.batch()) == 15
    send(clients, range(20, 30))
    assert stream.all() == texts(range(15, 20))


def test_stream_starts_at_the_given_sequence_number(clients: WorkerClients) -> None:
    create(clients)
    send(clients, range(10))
    latest = Stream(clients, startingSequenceNumber="latest")
    assert latest.batch() == []
    assert Stream(clients, startingSequenceNumber=8).batch() == texts(range(7, 10))
    send(clients, range(10, 12))
    assert latest.batch() == texts(range(10, 12))


def test_the_first_batch_is_replayed_from_its_start_although_spark_asks_for_it_again(clients: WorkerClients) -> None:
    create(clients)
    send(clients, range(5))
    stream = Stream(clients, startingSequenceNumber="latest")
    assert not stream.plan()
    send(clients, range(5, 8))
    assert stream.plan()
    stream.restart()
    assert [row["body"] for row in stream.rows()] == [b"5", b"6", b"7"]


def test_tasks_share_a_batch(clients: WorkerClients) -> None:
    create(clients)
    send(clients, range(100))
    stream = Stream(clients, minPartitions=4)
    assert stream.plan()
    assert stream.planned is not None
    assert len(stream.reader.partitions(stream.reader.initialOffset(), stream.planned)) == 4
    assert [row["body"].decode() for row in stream.rows()] == texts(range(100))


def test_a_scheduled_message_is_read_once_and_when_it_is_due(
    clients: WorkerClients, set_forward: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    create(clients)
    stream = Stream(clients, failOnDataLoss=False)
    send(clients, range(1), scheduled_enqueue_time_utc=datetime.fromtimestamp(clock.now(), UTC) + timedelta(hours=1))
    send(clients, range(1, 3))
    assert stream.batch() == ["1", "2"]
    set_forward(3601)
    assert stream.all() == ["0"]
    assert stream.all() == []


def test_what_left_the_queue_is_an_error_with_its_count(clients: WorkerClients) -> None:
    create(clients)
    send(clients, range(10))
    stream = Stream(clients)
    assert len(stream.batch()) == 10
    send(clients, range(10, 20))
    take(clients, 13)
    assert stream.plan()
    with pytest.raises(InvalidOperationError, match="up to 3 messages"):
        stream.rows()
    tolerant = Stream(clients, failOnDataLoss=False)
    tolerant.offset, tolerant.planned = stream.offset, stream.planned
    assert [row["body"].decode() for row in tolerant.rows()] == texts(range(13, 20))


def test_what_left_the_queue_before_the_stream_began_is_no_loss(clients: WorkerClients) -> None:
    create(clients)
    send(clients, range(10))
    take(clients, 4)
    assert Stream(clients).batch() == texts(range(4, 10))


@pytest.mark.parametrize("mode", ["peek", "receive"])
def test_a_stream_reports_its_backlog_and_the_age_of_the_oldest_message(
    clients: WorkerClients, set_forward: Callable[[float], None], mode: str
) -> None:
    create(clients)
    send(clients, range(5))
    set_forward(100)
    send(clients, range(5, 12))
    stream = Stream(clients, mode=mode, maxMessagesPerTrigger=5)
    assert stream.reader.reportLatestOffset() is None
    assert len(stream.batch()) == 5
    set_forward(130)
    report = stream.reader.reportLatestOffset()
    assert report is not None
    assert report["queues"]["orders"]["backlog"] == 7
    assert 30 <= report["queues"]["orders"]["oldestAgeSeconds"] < 100
    assert report["maxMessagesPerTrigger"] == 5
    assert sum(len(stream.batch()) for _ in range(3)) == 7
    assert stream.reader.reportLatestOffset() == report, "it is measured every ten seconds"
    set_forward(150)
    (after,) = (stream.reader.reportLatestOffset() or {})["queues"].values()
    assert after == {"backlog": 0, "oldestAgeSeconds": None}


# -- faults ------------------------------------------------------------------------------------------------------


def test_a_queue_that_was_created_again_is_an_error_or_read_from_its_start(
    clients: WorkerClients, set_forward: Callable[[float], None]
) -> None:
    create(clients)
    send(clients, range(10))
    stream, tolerant = Stream(clients), Stream(clients, failOnDataLoss=False)
    assert len(stream.batch()) == len(tolerant.batch()) == 10
    delete(clients)
    set_forward(5)
    create(clients, enable_partitioning=True)  # with another number of fragments, too
    send(clients, range(10, 13))
    for each in (stream, tolerant):
        each.restart()
    with pytest.raises(InvalidOperationError, match="created again"):
        stream.batch()
    assert sorted(tolerant.batch()) == texts(range(10, 13))
    assert tolerant.batch() == []


def test_a_queue_that_was_created_again_is_noticed_without_its_description(
    clients: WorkerClients, set_forward: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As without the Manage right: the times of messages tell it."""

    async def no_facts(*_: Any, **__: Any) -> EntityFacts:
        return EntityFacts(is_partitioned=False, requires_session=False)

    monkeypatch.setattr("sbclient_spark.read.stream.entity_facts", no_facts)
    create(clients)
    send(clients, range(10))
    stream, tolerant = Stream(clients), Stream(clients, failOnDataLoss=False)
    for late_s, more in enumerate((range(10), range(10, 13), range(0))):  # nothing, more and no message is not new
        if more.start:
            send(clients, more)
        if not more:
            take(clients, 13)
        set_forward(late_s)
        for each in (stream, tolerant):
            each.restart()
            assert each.batch() == texts(more)
    delete(clients)
    set_forward(5)
    create(clients)
    send(clients, range(20, 23))
    for each in (stream, tolerant):
        each.restart()
    with pytest.raises(InvalidOperationError, match="created again"):
        stream.batch()
    assert tolerant.batch() == texts(range(20, 23))
    assert tolerant.batch() == []
    monkeypatch.setattr("sbclient_spark.read.stream.entity_facts", entity_facts)  # the right is granted
    send(clients, range(23, 25))
    tolerant.restart()
    assert tolerant.batch() == texts(range(23, 25))
    assert tolerant.batch() == []


@pytest.mark.parametrize(
    ("mode", "offset", "expected"),
    [
        ("peek", {"created": None, "until": "2026-01-01T00:00:00+00:00", "next": {"0": 3}}, range(2, 5)),
        ("receive", {"created": None, "numbers": "1-2", "open": ""}, range(2, 5)),
    ],
)
def test_a_checkpoint_of_an_earlier_version_is_continued(
    clients: WorkerClients, mode: str, offset: dict[str, Any], expected: range
) -> None:
    create(clients)
    stream = Stream(clients, mode=mode)
    namespace = stream.reader.initialOffset()["namespace"]
    send(clients, range(5))
    if mode == "receive":
        first = Stream(clients, mode=mode, maxMessagesPerTrigger=2)
        assert first.batch() == ["0", "1"]
        assert first.offset is not None
        assert first.offset["queues"]["orders"] | {"created": None} == offset
    stream.offset = {"mode": mode, "namespace": namespace, "batch": 1, "queues": {"orders": offset}}
    assert stream.all() == texts(expected)
    assert len(states(clients)) == (5 if mode == "peek" else 0)


def test_a_checkpoint_of_another_queue_is_refused(clients: WorkerClients) -> None:
    create(clients)
    create(clients, "invoices")
    send(clients, range(2))
    stream = Stream(clients)
    assert stream.batch()
    for options in ({"queue": "invoices"}, {"queue": "orders", "mode": "receive"}):
        other = Stream(clients, **options)
        other.offset = stream.offset
        with pytest.raises(InvalidOperationError, match="checkpoint"):
            other.plan()
    other = Stream(clients)
    assert stream.offset is not None
    for offset in ({"logOffset": 3}, {**stream.offset, "queues": {"orders": {"numbers": "1-99999999999"}}}):
        other.offset = offset
        with pytest.raises(InvalidOperationError, match="another source"):
            other.plan()


def test_a_missing_queue_is_named(clients: WorkerClients) -> None:
    with pytest.raises(MessagingEntityNotFoundError, match="absent"):
        Stream(clients, queue="absent").plan()


def test_session_ids_in_a_queue_without_sessions_are_columns(clients: WorkerClients) -> None:
    create(clients)
    send(clients, range(3), session_id="s")
    stream = Stream(clients)
    assert stream.plan()
    assert [row["session_id"] for row in stream.rows()] == ["s"] * 3


def test_a_stream_waits_while_both_namespaces_are_unavailable(pair: EmulatedPair) -> None:
    queue = pair.create_queue("orders")
    given = pair.reading(queue=queue, sendTimeout="1 s", **{"sbclient.retry_total": 0})
    reader = PeekStreamReader(read_options(given, is_streaming=True), READ_SCHEMA)
    start = reader.initialOffset()
    pair.cut()
    pair.cut(SECONDARY)
    assert reader.latestOffset(start) == start
    with pytest.raises(ServiceBusError):  # with availableNow, waiting would end the query as if all were read
        reader.prepareForTriggerAvailableNow()
    pair.heal()

    async def fill() -> None:
        async with pair.client() as client:
            await client.get_queue_sender(queue).send_messages(ServiceBusMessage("1"))

    pair.run(fill())
    assert reader.latestOffset(start) != start
    reader.stop()


# -- receive -----------------------------------------------------------------------------------------------------


def counted(clients: WorkerClients) -> int:
    properties = run(clients, lambda client: client.administration.get_queue_runtime_properties("orders"))
    found: int = properties.total_message_count
    return found


def states(clients: WorkerClients, queue: str = "orders") -> list[str]:
    async def work(client: ServiceBusClient) -> list[str]:
        receiver = client.get_queue_receiver(queue)
        return [one.state.name for one in await receiver.peek_messages(1000)]

    found: list[str] = run(clients, work)
    return found


def test_a_processed_batch_is_completed_and_the_last_one_too(clients: WorkerClients) -> None:
    create(clients)
    send(clients, range(30))
    stream = Stream(clients, mode="receive", maxMessagesPerTrigger=20)
    assert stream.batch() == texts(range(20))
    assert states(clients) == ["DEFERRED"] * 20 + ["ACTIVE"] * 10
    assert stream.batch() == texts(range(20, 30))
    assert stream.batch() == []
    assert states(clients) == []


def test_a_restart_reads_the_planned_batch_again_and_completes_it_later(clients: WorkerClients) -> None:
    create(clients)
    send(clients, range(30))
    stream = Stream(clients, mode="receive", maxMessagesPerTrigger=20)
    assert stream.plan()
    for _ in range(2):  # the query ends in the micro-batch, twice
        stream.restart()
        assert [row["body"].decode() for row in stream.rows()] == texts(range(20))
    stream.commit()
    stream.restart()
    assert stream.all() == texts(range(20, 30))
    assert states(clients) == []


def test_a_batch_may_last_longer_than_a_lock(clients: WorkerClients, set_forward: Callable[[float], None]) -> None:
    create(clients, lock_duration=timedelta(seconds=5), max_delivery_count=1)
    send(clients, range(10))
    stream = Stream(clients, mode="receive")
    assert stream.plan()
    set_forward(3600)
    assert [row["body"].decode() for row in stream.rows()] == texts(range(10))
    stream.commit()
    assert stream.all() == []
    assert states(clients) == []


def test_messages_that_are_locked_when_their_batch_ends_are_completed_later(
    clients: WorkerClients, set_forward: Callable[[float], None]
) -> None:
    create(clients, lock_duration=timedelta(seconds=5))
    send(clients, range(6))
    stream = Stream(clients, mode="receive", maxMessagesPerTrigger=3)
    assert len(stream.batch()) == 3

    async def lock(client: ServiceBusClient) -> None:  # as a driver that ended between lock and completion
        await client.get_queue_receiver("orders").receive_deferred_messages([2, 3])

    run(clients, lock)
    assert len(stream.batch()) == 3
    assert len(states(clients)) == 5
    set_forward(6)
    stream.restart()
    assert stream.batch() == []
    assert states(clients) == []


def test_messages_of_every_partition_are_completed_although_one_partition_fails(clients: WorkerClients) -> None:
    create(clients, enable_partitioning=True)
    for key in KEYS:
        send(clients, range(4), partition_key=key)
    stream = Stream(clients, mode="receive")
    assert len(stream.batch()) == 64
    fault = Fault(FaultKind.ERROR, entity_path="orders", fragments=[5], operations=[Operation.RECEIVE_DEFERRED])
    faults = memory_host("stream").namespace.faults
    faults.inject(fault)
    send(clients, range(1), partition_key=KEYS[0])
    assert len(stream.batch()) == 1
    assert counted(clients) == 4 + 1
    faults.heal(fault)
    stream.restart()
    assert stream.batch() == []
    assert counted(clients) == 0


@pytest.mark.parametrize("has_sessions", [False, True])
def test_a_queue_that_fails_while_it_is_read_leaves_the_others_its_part(
    clients: WorkerClients, monkeypatch: pytest.MonkeyPatch, has_sessions: bool
) -> None:
    receive, calls = ServiceBusReceiver.receive_messages, count()

    async def receive_messages(self: ServiceBusReceiver, most: int, **options: Any) -> list[ServiceBusReceivedMessage]:
        if next(calls) == 0:
            raise ServiceBusConnectionError("planted")
        return await receive(self, min(most, 2), **options)

    async def work(client: ServiceBusClient) -> None:
        nonlocal calls
        for before in range(4):
            calls, budget, found = count(-before), Budget(8, None), list[int]()
            with suppress(ServiceBusConnectionError):
                if has_sessions:
                    found = [*await StreamSessions(client, "orders", None, 10).receive(budget, (), None)]
                else:
                    found = await receive_stream._receive_and_defer(client, "orders", budget, None)
            rest = await asyncio.wait_for(budget.reserve(250), 5.0)
            assert rest.messages == 8 - len(found)

    create(clients, requires_session=has_sessions)
    send(clients, range(20), session_id="s" if has_sessions else None)
    monkeypatch.setattr(ServiceBusReceiver, "receive_messages", receive_messages)
    run(clients, work)


@pytest.mark.parametrize("operation", [Operation.SETTLE, Operation.RECEIVE, Operation.RECEIVE_DEFERRED])
@pytest.mark.parametrize("kind", [FaultKind.ERROR, FaultKind.LOSE_ACKNOWLEDGEMENT])
def test_requests_that_fail_lose_no_message_and_leave_none(
    clients: WorkerClients, set_forward: Callable[[float], None], kind: FaultKind, operation: Operation
) -> None:
    """Whether the planner defers or completes messages then, and whichever requests fail."""
    faults = memory_host("stream").namespace.faults
    late_s = 0
    for batch in range(3):
        queue = f"orders{batch}"
        create(clients, queue, lock_duration=timedelta(seconds=5))
        send(clients, range(9), queue)
        options = {"mode": "receive", "maxMessagesPerTrigger": 4, "sbclient.retry_total": 0, "sendTimeout": "1 s"}
        stream = Stream(clients, queue=queue, **options)
        found: set[str] = set()
        for step in range(6):
            if step == batch:
                faults.inject(fault := Fault(kind, entity_path=queue, operations=[operation], count=2))
            try:
                found.update(stream.batch())
            except ServiceBusError:  # the query ends, and starts again
                stream.restart()
            late_s += 6  # the locks of its requests are over
            set_forward(late_s)
        faults.heal(fault)
        stream.restart()
        while bodies := stream.batch():
            found.update(bodies)
        assert sorted(found) == texts(range(9))
        assert states(clients, queue) == []


def test_completing_what_is_gone_costs_two_requests_for_each_partition(clients: WorkerClients) -> None:
    create(clients, enable_partitioning=True)
    for key in KEYS:
        send(clients, range(20), partition_key=key)
    stream = Stream(clients, mode="receive")
    assert len(stream.batch()) == 320
    reader: Any = stream.reader
    numbers = reader._planned.queues["orders"].numbers
    run(clients, lambda client: receive_stream._complete(client, "orders", numbers))
    host = memory_host("stream")
    before = host.namespace.operation_count
    assert run(clients, lambda client: receive_stream._complete(client, "orders", numbers)) == ()
    assert host.namespace.operation_count - before == 32


def test_orphans_are_left_or_taken(clients: WorkerClients) -> None:
    create(clients)
    send(clients, range(10))
    stream = Stream(clients, mode="receive", maxMessagesPerTrigger=4)
    assert stream.plan()  # and ends before Spark stores the offset
    left = Stream(clients, mode="receive")
    assert left.all() == texts(range(4, 10))
    assert states(clients) == ["DEFERRED"] * 4
    taken = Stream(clients, mode="receive", orphans="take")
    assert taken.all() == texts(range(4))
    assert states(clients) == []


def test_orphans_of_each_queue_are_taken(clients: WorkerClients) -> None:
    queues = ("orders", "bills", "notes")
    for number, queue in enumerate(queues):
        create(clients, queue)
        send(clients, range(10 * number, 10 * number + 3), queue)
        assert Stream(clients, mode="receive", queue=queue).plan()  # and ends before Spark stores the offset
    read = Stream(clients, mode="receive", orphans="take", queues=",".join(queues))
    assert sorted(read.all(), key=int) == texts(range(3)) + texts(range(10, 13)) + texts(range(20, 23))


def test_available_now_receives_nothing_that_came_later(clients: WorkerClients) -> None:
    create(clients, enable_partitioning=True)
    send(clients, range(20), partition_key="k")
    stream = Stream(clients, mode="receive", maxMessagesPerTrigger=15)
    stream.reader.prepareForTriggerAvailableNow()
    assert len(stream.batch()) == 15
    send(clients, range(20, 30), partition_key="k")
    assert stream.all() == texts(range(15, 20))
    assert states(clients) == ["ACTIVE"] * 10


def test_available_now_leaves_no_message_that_comes_late(
    clients: WorkerClients, monkeypatch: pytest.MonkeyPatch
) -> None:
    receive, answers = ServiceBusReceiver.receive_messages, iter([True, False, True])

    async def receive_late(receiver: ServiceBusReceiver, *given: Any, **more: Any) -> list[ServiceBusReceivedMessage]:
        return await receive(receiver, *given, **more) if next(answers, False) else []

    create(clients)
    send(clients, range(10))
    stream = Stream(clients, mode="receive", maxMessagesPerTrigger=6)
    stream.reader.prepareForTriggerAvailableNow()
    with monkeypatch.context() as late:
        late.setattr(ServiceBusReceiver, "receive_messages", receive_late)
        assert stream.batch() == texts(range(6))
        assert stream.batch() == texts(range(6, 10))
    assert stream.all() == []
    assert states(clients) == []


def test_deferred_messages_that_are_gone_are_an_error(clients: WorkerClients) -> None:
    create(clients)
    send(clients, range(5))
    stream = Stream(clients, mode="receive")
    assert stream.plan()

    async def complete(client: ServiceBusClient) -> None:
        receiver = client.get_queue_receiver("orders")
        for message in await receiver.receive_deferred_messages([2]):
            await receiver.complete_message(message)

    run(clients, complete)
    with pytest.raises(InvalidOperationError, match="up to 1 messages"):
        stream.rows()


# -- options -----------------------------------------------------------------------------------------------------


def test_receiving_has_no_starting_number(clients: WorkerClients) -> None:
    with pytest.raises(InvalidOperationError, match="startingSequenceNumber"):
        Stream(clients, mode="receive", startingSequenceNumber="latest")
