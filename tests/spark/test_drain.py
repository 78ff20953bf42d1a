from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from sbclient import ServiceBusClient, ServiceBusMessage
from sbclient.errors import InvalidOperationError, ServiceBusAuthorizationError, ServiceBusConnectionError
from sbclient.testing import Fault, FaultKind
from sbclient.transport.memory.transport import drop_memory_host, memory_host
from sbclient_spark.clients import WorkerClients, open_client, worker_clients
from sbclient_spark.drain.drain import _check_reachable, _check_secondary
from sbclient_spark.drain.options import DrainOptions, drain_options
from sbclient_spark.drain.tasks import DrainReader, SurveyReader

GIVEN = {
    "connectionString": "memory://drained",
    "secondaryConnectionString": "memory://drained-backup",
    "backlogQueueCount": "3",
}
QUEUES = [f"drained/x-servicebus-transfer/{index}" for index in range(3)]
SESSION_QUEUES = [f"drained/x-servicebus-transfer-sessions/{index}" for index in range(3)]


class Namespaces:
    """A pair for the clients of this process, with something in its backlog."""

    def __init__(self, clients: WorkerClients) -> None:
        self.clients = clients
        self.primary = memory_host("drained")
        self.secondary = memory_host("drained-backup")

    def options(self, **more: Any) -> DrainOptions:
        return drain_options({**GIVEN, **{name: str(value) for name, value in more.items()}})

    def open(self) -> ServiceBusClient:
        connection = self.options().connection
        pairing = dict(connection.pairing) | {"provision": "create"}
        return open_client(replace(connection, pairing=tuple(sorted(pairing.items()))), paired=True)

    def divert(self, count: int, queue: str = "orders", **attributes: Any) -> None:
        async def divert() -> None:
            async with self.open() as client:
                names = [one.name async for one in client.administration.list_queues()]
                if queue not in names:
                    await client.administration.create_queue(queue, requires_session="session_id" in attributes)
                client.pair.force_failover(queue)
                for number in range(count):
                    sender = client.get_queue_sender(queue)
                    await sender.send_messages(ServiceBusMessage(str(number), **attributes))
                    await sender.close()

        self.clients.run(divert())

    def count(self, queue: str = "orders") -> int:
        async def count() -> int:
            async with self.open() as client:
                return (await client.administration.get_queue_runtime_properties(queue)).active_message_count

        return self.clients.run(count())

    def survey(self) -> dict[str, Any]:
        """Waiting messages and destinations, by queue."""
        look = SurveyReader(self.options())
        (part,) = look.partitions()
        return {row[0]: row for row in look.read(part)}

    def drain(self, **more: Any) -> list[tuple[Any, ...]]:
        reader = DrainReader(self.options(work="drain", **more))
        return [row for part in reader.partitions() for row in reader.read(part)]


@pytest.fixture
def namespaces() -> Iterator[Namespaces]:
    clients = worker_clients()
    yield Namespaces(clients)
    clients.run(clients.close())
    for name in ("drained", "drained-backup"):
        drop_memory_host(name)


def test_a_survey_counts_the_messages_and_lists_their_destinations(namespaces: Namespaces) -> None:
    namespaces.divert(20)
    found = namespaces.survey()
    assert set(found) == {*QUEUES, *SESSION_QUEUES}
    assert sum(row[1] for row in found.values()) == 20
    assert {row[4] for row in found.values() if row[1]} == {"orders"}
    assert {row[5] for row in found.values()} == {""}


def test_a_survey_of_a_secondary_without_queues_finds_nothing(namespaces: Namespaces) -> None:
    assert namespaces.survey() == {}


def test_a_survey_lists_a_destination_that_cannot_be_reached(namespaces: Namespaces) -> None:
    namespaces.divert(5)
    namespaces.primary.inject(Fault(FaultKind.DOWN))
    found = namespaces.survey()
    assert {row[5] for row in found.values() if row[1]} == {"orders"}


def test_a_drain_delivers_to_the_secondary_from_the_first_refusal(namespaces: Namespaces) -> None:
    namespaces.divert(5)
    namespaces.primary.inject(Fault(FaultKind.DOWN))

    async def in_the_secondary() -> int:
        async with ServiceBusClient.from_connection_string("memory://drained-backup") as client:
            if not moved:
                await client.administration.create_queue("orders")
            return (await client.administration.get_queue_runtime_properties("orders")).active_message_count

    moved: list[tuple[Any, ...]] = []
    assert namespaces.clients.run(in_the_secondary()) == 0
    moved = namespaces.drain(queues=",".join(QUEUES), redirectAfter="0 s")
    assert sum(row[1] for row in moved) == namespaces.clients.run(in_the_secondary()) == 5
    with pytest.raises(InvalidOperationError, match="a query reads one namespace"):
        drain_options({**GIVEN, "sbclient.receive_from": "both"})


def test_each_queue_is_drained_and_counted(namespaces: Namespaces) -> None:
    namespaces.divert(30)
    waiting = {queue: row[1] for queue, row in namespaces.survey().items()}
    rows = namespaces.drain(queues=",".join(QUEUES))
    assert {row[0]: row[1] for row in rows} == {queue: waiting[queue] for queue in QUEUES}
    assert [(row[4], row[5]) for row in rows] == [(0, True)] * 3
    assert namespaces.count() == 30


def test_only_the_queues_that_are_named_are_drained(namespaces: Namespaces) -> None:
    namespaces.divert(30)
    waiting = {queue: row[1] for queue, row in namespaces.survey().items()}
    namespaces.drain(queues=QUEUES[1])
    assert namespaces.count() == waiting[QUEUES[1]]


def test_sessions_are_drained_to_the_primary(namespaces: Namespaces) -> None:
    namespaces.divert(10, "sessions", session_id="s")
    assert [row[1:5] for row in namespaces.survey().values() if row[1]] == [(10, 0, 0, "sessions")]
    rows = namespaces.drain(queues=",".join(SESSION_QUEUES))
    assert sum(row[1] for row in rows) == 10
    assert namespaces.count("sessions") == 10


@pytest.mark.parametrize(("parallelism", "shares"), [(1, [3]), (2, [2, 1]), (9, [1, 1, 1])])
def test_queues_are_divided_among_the_tasks(namespaces: Namespaces, parallelism: int, shares: list[int]) -> None:
    reader = DrainReader(namespaces.options(queues=",".join(QUEUES), parallelism=parallelism, maxMessagesPerSecond=60))
    parts = reader.partitions()
    assert [len(part.queues) for part in parts] == shares
    assert [part.messages_per_second for part in parts] == [60 / len(shares)] * len(shares)


def test_a_deadline_leaves_the_remaining_messages(namespaces: Namespaces) -> None:
    namespaces.divert(200)
    rows = namespaces.drain(queues=",".join(QUEUES), parallelism=1, maxMessagesPerSecond=20, deadline="0.2 s")
    assert not all(row[5] for row in rows)
    moved, remaining = (sum(row[place] for row in rows) for place in (1, 4))
    assert (moved, remaining) == (namespaces.count(), 200 - namespaces.count())
    assert remaining > 100, "at 20 a second, 10 at a time, only a group or two of each queue fit into 0.2 s"


def test_a_secondary_that_is_down_is_an_outage(namespaces: Namespaces) -> None:
    """An error of a task would come back from Spark as a text only."""
    namespaces.divert(5)
    namespaces.secondary.inject(Fault(FaultKind.DOWN))
    found = [Row(row[4], row[5], row[0]) for row in namespaces.survey().values()]
    with pytest.raises(ServiceBusConnectionError):
        _check_secondary(found)
    namespaces.secondary.heal()
    found = [Row(row[4], row[5], row[0]) for row in namespaces.survey().values()]
    _check_secondary(found)
    assert len(found) == len(QUEUES + SESSION_QUEUES)


def test_a_permanent_error_is_no_outage(namespaces: Namespaces) -> None:
    namespaces.secondary.inject(Fault(FaultKind.ERROR, error=ServiceBusAuthorizationError))
    with pytest.raises(ServiceBusAuthorizationError):
        namespaces.survey()


class Row:
    def __init__(self, destinations: str, unreachable: str, queue: str = "backlog/0") -> None:
        self.queue = queue
        self.destinations = destinations
        self.unreachable = unreachable


def test_a_drain_begins_if_one_destination_can_be_reached() -> None:
    _check_reachable([], force=False)
    _check_reachable([Row("", "")], force=False)
    _check_reachable([Row("a,b", "a")], force=False)
    _check_reachable([Row("a", "a"), Row("a", "a")], force=True)
    with pytest.raises(ServiceBusConnectionError):
        _check_reachable([Row("a,b", "a,b"), Row("a", "a")], force=False)
