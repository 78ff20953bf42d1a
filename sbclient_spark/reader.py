"""Reads queues by peeking: nothing is taken or changed, however often Spark asks.

Nothing is locked either, but for one thing: a session can only be looked into by who holds it. So where there are
sessions each of them is locked in turn while it is read, by one task, and a read fails if a consumer holds one.

Spark runs a read again for every action and every retry, and never says when rows have arrived for good. A read that
takes messages would lose some, so there is none.
"""

# mypy: disallow-subclassing-any=False

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import (
    BinaryType,
    DayTimeIntervalType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from sbclient.client.client import ServiceBusClient
from sbclient.client.receiver import ServiceBusReceiver
from sbclient.delivery import ServiceBusSubQueue
from sbclient.errors import InvalidOperationError, MessagingEntityNotFoundError, ServiceBusError
from sbclient.message import AmqpMessageBodyType, ServiceBusReceivedMessage
from sbclient.rules.backlog import backlog_queue_names, primary_name_of, session_backlog_queue_names
from sbclient_spark.connection_options import ConnectionOptions, NamespaceOptions
from sbclient_spark.credentials import connection_string_of
from sbclient_spark.read_options import ReadOptions, SubQueueWord
from sbclient_spark.schema import READ_ONLY
from sbclient_spark.worker_clients import open_client, worker_clients

PAGE: Final = 250
FRAGMENT_BITS: Final = 48
"""On a partitioned entity the bits of a sequence number above these name the fragment."""

FRAGMENTS: Final = 16
SUBSCRIPTIONS: Final = "/Subscriptions/"

_TEXTS: Final = (
    "message_id",
    "session_id",
    "partition_key",
    "correlation_id",
    "subject",
    "content_type",
    "reply_to",
    "reply_to_session_id",
    "to",
)

READ_SCHEMA: Final = StructType(
    [
        StructField("body", BinaryType()),
        StructField("application_properties", MapType(StringType(), StringType())),
        *(StructField(name, StringType()) for name in _TEXTS),
        StructField("time_to_live", DayTimeIntervalType()),
        StructField("scheduled_enqueue_time", TimestampType()),
        StructField("queue", StringType()),
        *(StructField(name, kind) for name, kind in READ_ONLY.items()),
    ]
)
"""The columns of a read; those that a write takes have the same names and meaning there."""

_ARROW: Final[dict[str, pa.DataType]] = {
    "body": pa.binary(),
    "application_properties": pa.map_(pa.string(), pa.string()),
    "time_to_live": pa.duration("us"),
    "scheduled_enqueue_time": pa.timestamp("us", tz="UTC"),
    "sequence_number": pa.int64(),
    "enqueued_time": pa.timestamp("us", tz="UTC"),
    "expires_at": pa.timestamp("us", tz="UTC"),
    "delivery_count": pa.int32(),
}


@dataclass(frozen=True)
class PeekPartition(InputPartition):
    """What one task reads.

    Attributes:
        path: of the queue or subscription.
        first, last: sequence numbers, both included; `last` None = to the end. A range of one fragment where the entity
            is partitioned, but for one with sessions: two tasks would want the lock of the same session.
        before_utc: messages enqueued then or later are left out.
        in_secondary: whether the queue is in the secondary namespace.
        may_be_missing: a queue that does not exist is read as an empty one.
    """

    path: str
    first: int
    last: int | None
    before_utc: datetime
    in_secondary: bool = False
    may_be_missing: bool = False


class PeekReader(DataSourceReader):
    """A batch read."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        unknown = [name for name in schema.names if name not in READ_SCHEMA.names]
        if unknown:
            raise InvalidOperationError(f"there is no column {unknown[0]!r} to read: {', '.join(READ_SCHEMA.names)}")
        self._options = options
        self._names = list(schema.names)

    def partitions(self) -> list[PeekPartition]:
        options, clients = self._options, worker_clients()
        before = options.ending_time or datetime.fromtimestamp(clients.clock.now(), UTC)
        first = options.from_sequence_number
        if options.backlog:
            return [
                PeekPartition(queue, first, None, before, in_secondary=True, may_be_missing=may_be_missing)
                for queue, may_be_missing in _backlog_queues(options.connection)
            ]
        divisible = clients.run(_divisible_among(options))
        found: list[PeekPartition] = []
        for path in options.paths:
            if path not in divisible or options.sub_queue != "none":
                found.append(PeekPartition(path, first, None, before))
                continue
            for fragment in range(FRAGMENTS):
                low = fragment << FRAGMENT_BITS
                last = None if fragment == FRAGMENTS - 1 else ((fragment + 1) << FRAGMENT_BITS) - 1
                if last is None or last >= first:
                    found.append(PeekPartition(path, max(low, first), last, before))
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, PeekPartition)  # Spark hands back what `partitions` made
        clients = worker_clients()
        connection = self._options.connection
        if partition.in_secondary:
            connection = of_secondary(connection)
        pages = peek(connection, partition, self._options)
        try:
            while (page := clients.run(_next(pages))) is not None:
                yield record_batch(page, partition, self._names)
        finally:
            clients.run(_end(pages))


async def _next(pages: AsyncIterator[list[ServiceBusReceivedMessage]]) -> list[ServiceBusReceivedMessage] | None:
    return await anext(pages, None)


async def _end(pages: Any) -> None:
    await pages.aclose()


def of_secondary(options: ConnectionOptions) -> ConnectionOptions:
    """The secondary namespace as one to be opened by itself."""
    return replace(options, primary=options.secondary, secondary=NamespaceOptions(), pairing=(), failover="auto")


def _backlog_queues(options: ConnectionOptions) -> list[tuple[str, bool]]:
    """The backlog queues of a pair, and whether each may be missing: those for sessions are made when asked for."""
    pairing = options.pairing_options()
    name = pairing.primary_name
    if name is None:
        primary = connection_string_of(options.primary, "connectionString")
        name = primary_name_of(
            primary.namespace if primary is not None else options.primary.fully_qualified_namespace or ""
        )
    count = pairing.backlog_queue_count
    plain = [(queue, False) for queue in backlog_queue_names(name, count)]
    return plain + [(queue, True) for queue in session_backlog_queue_names(name, count)]


async def _divisible_among(options: ReadOptions) -> set[str]:
    """Those paths that are partitioned and have no sessions, as far as that can be known: each fragment is then a task
    of its own. Where there are sessions, each task would look into all of them, at the same time as the others.
    """
    found: set[str] = set()
    client = open_client(options.connection, paired=False, clock=worker_clients().clock)
    async with client:
        for path in options.paths:
            try:
                if SUBSCRIPTIONS in path:
                    topic, subscription = path.split(SUBSCRIPTIONS)
                    partitioned: Any = await client.administration.get_topic(topic)
                    described: Any = await client.administration.get_subscription(topic, subscription)
                else:
                    described = partitioned = await client.administration.get_queue(path)
            except MessagingEntityNotFoundError:
                raise MessagingEntityNotFoundError(
                    f"there is nothing to read at {path!r} in {client.fully_qualified_namespace}: mend the name"
                ) from None
            except ServiceBusError:
                continue  # without the right to look, or in an outage, one task reads it all
            if partitioned.enable_partitioning and not described.requires_session:
                found.add(path)
    return found


async def peek(
    connection: ConnectionOptions, partition: PeekPartition, options: ReadOptions
) -> AsyncIterator[list[ServiceBusReceivedMessage]]:
    """The messages of a partition, page by page; where there are sessions, one session after the other.

    Raises:
        SessionCannotBeLockedError: the entity has sessions, which can only be looked into by who holds them, and
            somebody holds one.
    """
    async with open_client(connection, paired=False, clock=worker_clients().clock) as client:
        left = options.max_messages
        try:
            sessions = await _sessions_of(client, partition.path, options.sub_queue)
            for session_id in sessions:
                receiver = _receiver(client, partition.path, options.sub_queue, session_id)
                async for page in _pages(receiver, partition):
                    wanted = page[:left]
                    left = None if left is None else left - len(wanted)
                    if wanted:
                        yield wanted
                    if left == 0:
                        return
        except MessagingEntityNotFoundError:
            if not partition.may_be_missing:
                raise


async def _sessions_of(client: ServiceBusClient, path: str, word: SubQueueWord) -> list[str | None]:
    """The sessions to be looked into; None stands for an entity that has none, as no sub-queue has."""
    receiver = _receiver(client, path, word, None)
    try:
        await receiver.peek_messages(1)
    except InvalidOperationError:
        if SUBSCRIPTIONS in path:
            topic, subscription = path.split(SUBSCRIPTIONS)
            return [session async for session in client.list_subscription_sessions(topic, subscription)]
        return [session async for session in client.list_queue_sessions(path)]
    finally:
        await receiver.close()
    return [None]


async def _pages(
    receiver: ServiceBusReceiver, partition: PeekPartition
) -> AsyncIterator[list[ServiceBusReceivedMessage]]:
    """Pages from the first number on, until the entity or the fragment ends.

    Browsing begins at whatever fragment it likes where the number is 1, and goes on from there through all of them. So
    the first fragment ends where it was seen and left; any other one where it was left.
    """
    number = max(partition.first, 1)
    was_seen = number > 1
    try:
        while page := await receiver.peek_messages(PAGE, sequence_number=number):
            number = page[-1].sequence_number + 1
            is_beyond = partition.last is not None and page[0].sequence_number > partition.last
            if is_beyond and was_seen:
                return
            was_seen = was_seen or not is_beyond
            yield [message for message in page if _is_wanted(message, partition)]
    finally:
        await receiver.close()


def _receiver(client: ServiceBusClient, path: str, word: SubQueueWord, session_id: str | None) -> ServiceBusReceiver:
    sub_queue = {
        "none": None,
        "deadletter": ServiceBusSubQueue.DEAD_LETTER,
        "transferDeadletter": ServiceBusSubQueue.TRANSFER_DEAD_LETTER,
    }[word]
    if SUBSCRIPTIONS in path:
        topic, subscription = path.split(SUBSCRIPTIONS)
        return client.get_subscription_receiver(topic, subscription, sub_queue=sub_queue, session_id=session_id)
    return client.get_queue_receiver(path, sub_queue=sub_queue, session_id=session_id)


def _is_wanted(message: ServiceBusReceivedMessage, partition: PeekPartition) -> bool:
    """Whether a message is one of its partition's. Browsing begins where it likes if it does not know the number, as
    that of another fragment than a session's, so the first number is looked at too.
    """
    number = message.sequence_number
    is_here = number >= partition.first and (partition.last is None or number <= partition.last)
    return is_here and message.enqueued_time_utc < partition.before_utc


def _body(message: ServiceBusReceivedMessage) -> bytes:
    """The bytes of a body; one that is an AMQP value, as other clients send, as text."""
    return bytes(message) if message.body_type is AmqpMessageBodyType.DATA else str(message.body).encode()


_VALUES: Final[dict[str, Callable[[ServiceBusReceivedMessage], Any]]] = {
    "body": _body,
    "application_properties": lambda message: {
        name: None if value is None else str(value) for name, value in message.application_properties.items()
    },
    "time_to_live": lambda message: _life(message.time_to_live),
    "scheduled_enqueue_time": lambda message: message.scheduled_enqueue_time_utc,
    "enqueued_time": lambda message: message.enqueued_time_utc,
    "expires_at": lambda message: message.expires_at_utc,
    "state": lambda message: message.state.name.lower(),
}


def _life(life: timedelta | None) -> timedelta | None:
    """Longer than Spark can say, 292,471 years, is no limit."""
    return None if life is None or life > timedelta(days=106_751_990) else life


def record_batch(
    messages: list[ServiceBusReceivedMessage], partition: PeekPartition, names: list[str]
) -> pa.RecordBatch:
    """Messages as rows, with these columns."""
    arrays: list[pa.Array] = []
    for name in names:
        kind = _ARROW.get(name, pa.string())
        if name in ("queue", "backlog_queue"):
            is_told = name == "queue" or partition.in_secondary
            values: list[Any] = [partition.path if is_told else None] * len(messages)
        else:
            value_of = _VALUES.get(name)
            values = [getattr(message, name) if value_of is None else value_of(message) for message in messages]
        if pa.types.is_map(kind):
            values = [None if value is None else list(value.items()) for value in values]
        arrays.append(pa.array(values, type=kind))
    return pa.RecordBatch.from_arrays(arrays, names=names)
