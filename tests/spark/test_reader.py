from __future__ import annotations

import asyncio
import itertools
import operator
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql.types import StringType, StructField, StructType

from sbclient import ServiceBusClient, ServiceBusMessage
from sbclient.errors import InvalidOperationError, MessagingEntityNotFoundError, SessionLockLostError
from sbclient.transport.memory.transport import drop_memory_host, memory_host
from sbclient_spark.clients import WorkerClients, open_client, worker_clients
from sbclient_spark.read.batch import FilteringReader, PeekReader, Wanted
from sbclient_spark.read.browsing import ahead, browse
from sbclient_spark.read.columns import READ_SCHEMA
from sbclient_spark.read.options import read_options
from tests.stage.pair import EmulatedPair

CONNECTION = {"connectionString": "memory://read", "secondaryConnectionString": "memory://read-backup"}


@pytest.fixture
def clients() -> Iterator[WorkerClients]:
    """The clients of this process, and two namespaces of its own for them."""
    found = worker_clients()
    names = ("read", "read-backup")
    for name in names:
        memory_host(name)
    yield found
    found.run(found.close())
    for name in names:
        drop_memory_host(name)


def fill(
    clients: WorkerClients, queue: str, *messages: ServiceBusMessage, backup: bool = False, **properties: Any
) -> None:
    async def fill() -> None:
        where = "memory://read-backup" if backup else "memory://read"
        options = read_options({"connectionString": where, "queue": queue}).connection
        async with open_client(options, paired=False) as client:
            await client.administration.create_queue(queue, **properties)
            for message in messages:
                await client.get_queue_sender(queue).send_messages(message)

    clients.run(fill())


def read(schema: StructType = READ_SCHEMA, /, **options: Any) -> list[dict[str, Any]]:
    texts = {name: str(value) for name, value in options.items()}
    reader = PeekReader(read_options({**CONNECTION, **texts}), schema)
    return [row for partition in reader.partitions() for batch in reader.read(partition) for row in batch.to_pylist()]


def bodies(**options: Any) -> list[str]:
    return [row["body"].decode() for row in read(**options)]


def test_a_message_is_a_row_and_stays_where_it_is(clients: WorkerClients) -> None:
    message = ServiceBusMessage(
        b"body",
        message_id="m",
        partition_key="k",
        subject="s",
        application_properties={"n": 1, "at": datetime(2024, 1, 1, tzinfo=UTC)},
        time_to_live=timedelta(minutes=5),
    )
    fill(clients, "orders", message)
    for _ in range(2):
        (row,) = read(queue="orders")
        assert (row["body"], row["message_id"], row["partition_key"], row["subject"]) == (b"body", "m", "k", "s")
        assert dict(row["application_properties"]) == {"n": "1", "at": "2024-01-01 00:00:00+00:00"}
        assert dict(row["property_types"]) == {"n": "int", "at": "timestamp"}
        assert row["time_to_live"] == timedelta(minutes=5)
        assert (row["queue"], row["backlog_queue"], row["state"], row["delivery_count"]) == (
            "orders",
            None,
            "active",
            0,
        )
        assert row["sequence_number"] == 1


@pytest.mark.parametrize("subjects", [["a", None], [None, "a"], [None, None], ["a", "b"]])
def test_a_column_may_be_null_for_some_messages(clients: WorkerClients, subjects: list[str | None]) -> None:
    messages = [ServiceBusMessage("x", subject=one, application_properties={one: 1} if one else {}) for one in subjects]
    fill(clients, "orders", *messages)
    rows = read(queue="orders")
    assert [row["subject"] for row in rows] == subjects
    assert [row["property_types"] for row in rows] == [[(one, "int")] if one else None for one in subjects]


def test_columns_can_be_chosen_and_unknown_ones_are_refused(clients: WorkerClients) -> None:
    fill(clients, "orders", ServiceBusMessage(b"a", message_id="m"))
    chosen = StructType([StructField("message_id", StringType()), StructField("queue", StringType())])
    assert read(chosen, queue="orders") == [{"message_id": "m", "queue": "orders"}]
    with pytest.raises(InvalidOperationError):
        read(StructType([StructField("colour", StringType())]), queue="orders")


def test_a_schema_is_checked_before_a_task_and_may_have_the_body_as_text(clients: WorkerClients) -> None:
    fill(clients, "orders", ServiceBusMessage(b"\xff and text"))
    text = StructType([StructField("Body", StringType())])
    assert read(text, queue="orders") == [{"Body": "\ufffd and text"}]
    for name in ("sequence_number", "application_properties"):
        with pytest.raises(InvalidOperationError, match=name):
            PeekReader(read_options({**CONNECTION, "queue": "orders"}), StructType([StructField(name, StringType())]))


def test_a_queue_is_divided_by_its_numbers(clients: WorkerClients) -> None:
    fill(clients, "orders", *(ServiceBusMessage(str(number)) for number in range(100)))
    reader = PeekReader(read_options({**CONNECTION, "queue": "orders", "minPartitions": "4"}), READ_SCHEMA)
    sizes = [sum(len(batch) for batch in reader.read(partition)) for partition in reader.partitions()]
    assert sizes == [25, 25, 25, 25]
    assert bodies(queue="orders", minPartitions=4) == [str(number) for number in range(100)]


@dataclass(frozen=True)
class GreaterThan:
    """A filter as PySpark passes it."""

    attribute: tuple[str, ...]
    value: object


class LessThanOrEqual(GreaterThan):
    """Another one."""


class EqualTo(GreaterThan):
    """Another one."""


def test_filters_decide_what_is_fetched_and_others_are_left_to_spark(clients: WorkerClients) -> None:
    fill(clients, "a", *(ServiceBusMessage(str(number)) for number in range(20)))
    fill(clients, "b", ServiceBusMessage("other"))
    ours = [GreaterThan(("sequence_number",), 5), LessThanOrEqual(("sequence_number",), 8), EqualTo(("queue",), "a")]
    foreign = [EqualTo(("subject",), "s"), GreaterThan(("queue",), "a")]
    reader = FilteringReader(read_options({**CONNECTION, "queues": "a,b"}), READ_SCHEMA)
    assert list(reader.pushFilters([*ours, *foreign])) == foreign
    (partition,) = reader.partitions()
    assert [row["sequence_number"] for batch in reader.read(partition) for row in batch.to_pylist()] == [6, 7, 8]


BOUNDS = ("EqualTo", "GreaterThan", "GreaterThanOrEqual", "LessThan", "LessThanOrEqual")
COMPARE = dict(zip(BOUNDS, (operator.eq, operator.gt, operator.ge, operator.lt, operator.le), strict=True))


@pytest.mark.parametrize("names", list(itertools.product(BOUNDS, repeat=2)))
def test_several_filters_of_a_column_select_what_all_of_them_select(names: tuple[str, str]) -> None:
    for values in itertools.product(range(1, 5), repeat=2):
        wanted = Wanted()
        assert all(wanted.add(name, "sequence_number", value) for name, value in zip(names, values, strict=True))
        found = [n for n in range(1, 7) if wanted.first <= n and (wanted.last is None or n <= wanted.last)]
        assert found == [
            n for n in range(1, 7) if all(COMPARE[name](n, value) for name, value in zip(names, values, strict=True))
        ]


def test_filters_that_exclude_everything_read_nothing(clients: WorkerClients) -> None:
    fill(clients, "a", ServiceBusMessage("1"))
    reader = FilteringReader(read_options({**CONNECTION, "queue": "a"}), READ_SCHEMA)
    assert list(reader.pushFilters([EqualTo(("queue",), "z")])) == []
    assert [list(reader.read(partition)) for partition in reader.partitions()] == [[]]


def test_pages_and_limits_and_numbers(clients: WorkerClients) -> None:
    fill(clients, "orders", *(ServiceBusMessage(str(number)) for number in range(600)))
    assert bodies(queue="orders") == [str(number) for number in range(600)]
    assert bodies(queue="orders", maxMessages=300) == [str(number) for number in range(300)]
    assert bodies(queue="orders", fromSequenceNumber=599) == ["598", "599"]
    assert bodies(queue="orders", endingTime="2001-01-01") == []


def test_several_queues_are_read_and_a_missing_one_is_told(clients: WorkerClients) -> None:
    fill(clients, "a", ServiceBusMessage("1"))
    fill(clients, "b", ServiceBusMessage("2"))
    assert {row["queue"]: row["body"] for row in read(queues="a, b")} == {"a": b"1", "b": b"2"}
    with pytest.raises(MessagingEntityNotFoundError):
        read(queue="c")


def test_every_fragment_of_a_partitioned_queue_is_read_once(clients: WorkerClients) -> None:
    many = (ServiceBusMessage(str(number), partition_key=f"k{number % 40}") for number in range(200))
    fill(clients, "parts", *many, enable_partitioning=True)
    assert sorted(map(int, bodies(queue="parts"))) == list(range(200))


async def test_pages_of_a_source_stay_in_order_and_few_sources_are_read_at_once() -> None:
    most, current = 0, 0

    async def source(name: int) -> AsyncGenerator[list[Any], None]:
        nonlocal most, current
        current += 1
        most = max(most, current)
        for number in range(3):
            await asyncio.sleep(0)
            yield [] if number == 1 else [(name, number)]
        current -= 1

    found: list[Any] = [one async for page in ahead(map(source, range(10)), 4) for one in page]
    assert (most, current) == (4, 0)
    assert sorted(found) == [(name, number) for name in range(10) for number in (0, 2)]
    assert all(found.index((name, 0)) < found.index((name, 2)) for name in range(10))


async def test_sources_are_closed_when_one_fails_or_the_caller_stops() -> None:
    is_open = set()

    async def source(name: int, failing: int | None) -> AsyncGenerator[list[Any], None]:
        is_open.add(name)
        try:
            while True:
                await asyncio.sleep(0)
                if name == failing:
                    raise SessionLockLostError("a session is lost")
                yield [name]
        finally:
            is_open.remove(name)

    with pytest.raises(SessionLockLostError):
        [page async for page in ahead((source(name, 2) for name in range(5)), 3)]
    assert not is_open
    pages = ahead((source(name, None) for name in range(5)), 3)
    await anext(pages)
    assert len(is_open) == 3
    await pages.aclose()
    assert not is_open


async def test_numbers_far_apart_are_peeked_without_those_between() -> None:
    peeked: list[int] = []

    class Receiver:
        async def peek_messages(self, count: int, *, sequence_number: int) -> list[Any]:
            peeked.append(sequence_number)
            return [SimpleNamespace(sequence_number=sequence_number + place) for place in range(count)]

    numbers = [5, 6, 5000, 90_000]
    found = [one async for page in browse(cast(Any, Receiver()), 5, 90_000, numbers=numbers) for one in page]
    assert [one.sequence_number for one in found] == numbers
    assert peeked == [5, 5000, 90_000]


def test_each_session_is_read_once(clients: WorkerClients) -> None:
    many = (ServiceBusMessage(str(number), session_id=f"s{number % 3}") for number in range(30))
    fill(clients, "sessions", *many, requires_session=True)
    assert sorted(map(int, bodies(queue="sessions"))) == list(range(30))
    assert len(bodies(queue="sessions", maxMessages=15)) == 15


def in_sessions(count: int) -> Iterator[ServiceBusMessage]:
    return (ServiceBusMessage(str(number), session_id=f"s{number % 6}") for number in range(count))


def test_a_partitioned_queue_with_sessions_is_read_once_and_by_one_task(clients: WorkerClients) -> None:
    fill(clients, "parts", *in_sessions(60), enable_partitioning=True, requires_session=True)
    assert len(PeekReader(read_options({**CONNECTION, "queue": "parts"}), READ_SCHEMA).partitions()) == 1
    rows = read(queue="parts")
    assert sorted(int(row["body"]) for row in rows) == list(range(60))
    numbers = sorted(row["sequence_number"] for row in rows)
    found = read(queue="parts", fromSequenceNumber=numbers[20])
    assert sorted(row["sequence_number"] for row in found) == numbers[20:]


def test_a_subscription_with_sessions_of_a_partitioned_topic_is_read_once(clients: WorkerClients) -> None:
    async def fill() -> None:
        options = read_options({**CONNECTION, "queue": "any"}).connection
        async with open_client(options, paired=False) as client:
            await client.administration.create_topic("prices", enable_partitioning=True)
            await client.administration.create_subscription("prices", "all")
            await client.administration.create_subscription("prices", "in-order", requires_session=True)
            for message in in_sessions(60):
                await client.get_topic_sender("prices").send_messages(message)

    clients.run(fill())
    for name in ("all", "in-order"):
        assert sorted(map(int, bodies(topic="prices", subscription=name))) == list(range(60))
    with pytest.raises(MessagingEntityNotFoundError):
        read(topic="prices", subscription="none")


@pytest.mark.parametrize("name", ["all", "in-order"])
def test_path_of_a_subscription_is_read_in_any_case_of_letters(clients: WorkerClients, name: str) -> None:
    async def fill() -> None:
        options = read_options({"connectionString": "memory://read", "queue": "q"}).connection
        async with open_client(options, paired=False) as client:
            await client.administration.create_topic("prices")
            await client.administration.create_subscription("prices", name, requires_session=name == "in-order")
            await client.get_topic_sender("prices").send_messages(ServiceBusMessage("1", session_id="s"))

    clients.run(fill())
    assert bodies(path=f"prices/subscriptions/{name}") == ["1"]


def test_sessions_are_read_once_over_the_network(clients: WorkerClients, pair: EmulatedPair) -> None:
    queue = pair.create_queue("parts", enable_partitioning=True, requires_session=True)

    async def fill() -> None:
        async with pair.client() as client:
            for message in in_sessions(60):
                await client.get_queue_sender(queue).send_messages(message)

    pair.run(fill())
    rows = read(**pair.reading(queue=queue))
    assert sorted(int(row["body"]) for row in rows) == list(range(60))
    numbers = sorted(row["sequence_number"] for row in rows)
    found = read(**pair.reading(queue=queue, fromSequenceNumber=numbers[20]))
    assert sorted(row["sequence_number"] for row in found) == numbers[20:]

    async def hold() -> ServiceBusClient:
        client = await pair.client().__aenter__()
        await client.get_queue_receiver(queue, session_id="s3").receive_messages(max_wait_time=1)
        return client

    holder = pair.run(hold())
    assert len(read(**pair.reading(queue=queue))) == 60
    pair.run(holder.close())
    assert len(read(**pair.reading(queue=queue, transport="sdk"))) == 60


def test_dead_letters_are_read_with_their_reasons(clients: WorkerClients) -> None:
    fill(clients, "orders", ServiceBusMessage("bad"))

    async def dead_letter() -> None:
        options = read_options({"connectionString": "memory://read", "queue": "orders"}).connection
        async with open_client(options, paired=False) as client:
            receiver = client.get_queue_receiver("orders")
            (message,) = await receiver.receive_messages(max_wait_time=1)
            await receiver.dead_letter_message(message, reason="Spoilt", error_description="it smells")

    clients.run(dead_letter())
    assert read(queue="orders") == []
    (row,) = read(queue="orders", subQueue="deadletter")
    assert (row["body"], row["dead_letter_reason"], row["dead_letter_error_description"]) == (
        b"bad",
        "Spoilt",
        "it smells",
    )


def test_the_backlog_is_read_from_the_secondary(clients: WorkerClients) -> None:
    fill(clients, "read/x-servicebus-transfer/0", ServiceBusMessage("diverted"), backup=True)
    fill(clients, "read/x-servicebus-transfer/1", backup=True)
    (row,) = read(backlog="true", backlogQueueCount=2)
    assert (row["body"], row["backlog_queue"]) == (b"diverted", "read/x-servicebus-transfer/0")
