"""Reads queues and subscriptions by peeking, which changes no message.

Spark repeats a read for each action and each retry, and does not report when rows have been processed. A read that
completes messages would lose some, so there is none.

A session can be peeked only by the receiver that has locked it. One task locks the sessions in sequence while it reads
them, and the read fails if a consumer holds one.
"""

# mypy: disallow-subclassing-any=False

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
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
"""The bits of a sequence number above these are the fragment of a partitioned entity."""

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
"""The columns of a read. Columns that a write accepts have the same names and meaning."""

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
    """The range of messages that one task reads.

    Attributes:
        path: of the queue or subscription.
        first, last: sequence numbers, inclusive; `last` None = to the end. One fragment of a partitioned entity, or
            all of one with sessions, because two tasks would lock the same session.
        before_utc: leave messages out that were enqueued at or after this time.
        in_secondary: whether the queue is in the secondary namespace.
        may_be_missing: a missing queue is read as empty.
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
            raise InvalidOperationError(f"a read has no column {unknown[0]!r}: it has {', '.join(READ_SCHEMA.names)}")
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
        partitioned = clients.run(_partitioned_paths(options))
        found: list[PeekPartition] = []
        for path in options.paths:
            if path not in partitioned or options.sub_queue != "none":
                found.append(PeekPartition(path, first, None, before))
                continue
            for fragment in range(FRAGMENTS):
                low = fragment << FRAGMENT_BITS
                last = None if fragment == FRAGMENTS - 1 else ((fragment + 1) << FRAGMENT_BITS) - 1
                if last is None or last >= first:
                    found.append(PeekPartition(path, max(low, first), last, before))
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, PeekPartition)  # Spark returns the objects of `partitions`
        clients = worker_clients()
        connection = self._options.connection
        if partition.in_secondary:
            connection = of_secondary(connection)
        pages = peek(connection, partition, self._options)
        try:
            while (page := clients.run(_next(pages))) is not None:
                yield record_batch(page, partition, self._names)
        finally:
            clients.run(pages.aclose())


async def _next(pages: AsyncIterator[list[ServiceBusReceivedMessage]]) -> list[ServiceBusReceivedMessage] | None:
    return await anext(pages, None)


def of_secondary(options: ConnectionOptions) -> ConnectionOptions:
    """Return the options that open only the secondary namespace."""
    return replace(options, primary=options.secondary, secondary=NamespaceOptions(), pairing=(), failover="auto")


def _backlog_queues(options: ConnectionOptions) -> list[tuple[str, bool]]:
    """Return the backlog queues of a pair, and whether each may be missing, as the queues for sessions may."""
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


async def _partitioned_paths(options: ReadOptions) -> set[str]:
    """Return the paths that are known to be partitioned and without sessions: one task can read each fragment.

    With sessions, every task would lock all of them at the same time.
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
                    f"{path!r} does not exist in {client.fully_qualified_namespace}: correct the name"
                ) from None
            except ServiceBusError:
                continue  # without the right to describe it, or in an outage, one task reads all of it
            if partitioned.enable_partitioning and not described.requires_session:
                found.add(path)
    return found


async def peek(
    connection: ConnectionOptions, partition: PeekPartition, options: ReadOptions
) -> AsyncGenerator[list[ServiceBusReceivedMessage], None]:
    """Yield the messages of a partition in pages, session by session if the entity has sessions.

    Raises:
        InvalidOperationError: the entity has sessions, and `transport="sdk"` cannot list them.
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
    """Return the session ids of an entity; [None] if it has no sessions, as for any sub-queue."""
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
    """Yield pages from the first number to the end of the entity or the fragment.

    With sequence number 1, the service may start to browse in any fragment, and continues through all of them. The
    first fragment therefore ends after it was seen; any other one ends at the first message beyond it.
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
    """Whether the message belongs to the partition. Browsing from an unknown number may start before `first`."""
    number = message.sequence_number
    is_here = number >= partition.first and (partition.last is None or number <= partition.last)
    return is_here and message.enqueued_time_utc < partition.before_utc


def _body(message: ServiceBusReceivedMessage) -> bytes:
    """Return the bytes of a body. The AMQP values of other clients become text."""
    return bytes(message) if message.body_type is AmqpMessageBodyType.DATA else str(message.body).encode()


_VALUES: Final[dict[str, Callable[[ServiceBusReceivedMessage], Any]]] = {
    "body": _body,
    "application_properties": lambda message: {
        name: None if value is None else str(value) for name, value in message.application_properties.items()
    },
    "time_to_live": lambda message: _time_to_live(message.time_to_live),
    "scheduled_enqueue_time": lambda message: message.scheduled_enqueue_time_utc,
    "enqueued_time": lambda message: message.enqueued_time_utc,
    "expires_at": lambda message: message.expires_at_utc,
    "state": lambda message: message.state.name.lower(),
}


def _time_to_live(value: timedelta | None) -> timedelta | None:
    """Return None for a duration of more than 292,471 years, the limit of Spark."""
    return None if value is None or value > timedelta(days=106_751_990) else value


def record_batch(
    messages: list[ServiceBusReceivedMessage], partition: PeekPartition, names: list[str]
) -> pa.RecordBatch:
    """Return messages as rows with the named columns."""
    arrays: list[pa.Array] = []
    for name in names:
        kind = _ARROW.get(name, pa.string())
        if name in ("queue", "backlog_queue"):
            path = partition.path if name == "queue" or partition.in_secondary else None
            values: list[Any] = [path] * len(messages)
        else:
            value_of = _VALUES.get(name)
            values = [getattr(message, name) if value_of is None else value_of(message) for message in messages]
        if pa.types.is_map(kind):
            values = [None if value is None else list(value.items()) for value in values]
        arrays.append(pa.array(values, type=kind))
    return pa.RecordBatch.from_arrays(arrays, names=names)
