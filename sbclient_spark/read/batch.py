"""Reads queues and subscriptions by peeking, which changes no message.

Spark repeats a read for each action and each retry, and does not report when rows have been processed. A read that
completes messages would lose some, so there is none.

The service shows the messages of all sessions to a peek without a session. With `transport="sdk"` a session can be
peeked only by the receiver that has locked it. There one task locks some sessions at a time, and the read fails if a
consumer holds one.
"""

# mypy: disallow-subclassing-any=False

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from sbclient import clock
from sbclient.client.client import ServiceBusClient
from sbclient.errors import InvalidOperationError, MessagingEntityNotFoundError
from sbclient.message import ServiceBusReceivedMessage
from sbclient.rules.backlog import backlog_queue_names, primary_name_of, session_backlog_queue_names
from sbclient.rules.entity_path import split_subscription
from sbclient.rules.sequence_number import COUNTER_BITS
from sbclient_spark.clients import open_client, worker_clients
from sbclient_spark.credentials import connection_string_of
from sbclient_spark.options import ConnectionOptions, NamespaceOptions
from sbclient_spark.read.browsing import (
    FRAGMENTS,
    Extent,
    Pages,
    ahead,
    browse,
    entity_facts,
    extents,
    open_receiver,
    split_ranges,
)
from sbclient_spark.read.columns import checked_columns, record_batch
from sbclient_spark.read.options import ReadOptions, SubQueueWord

SESSIONS_AT_ONCE: Final = 32
"""Sessions that one task locks at the same time, where that is necessary."""


@dataclass(frozen=True)
class PeekPartition(InputPartition):
    """The range of messages that one task reads.

    Attributes:
        path: of the queue or subscription.
        first, last: sequence numbers, inclusive; `last` None = to the end.
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


class Shape(NamedTuple):
    """How a queue can be divided among tasks.

    Attributes:
        has_fragments: it is partitioned and without sessions; with sessions, every task would lock all of them.
        extents: with `minPartitions`, the numbers of its messages by fragment; empty = it cannot be divided.
    """

    has_fragments: bool
    extents: dict[int, Extent]


@dataclass
class Wanted:
    """What the filters of a query ask for; rows outside of it are not converted.

    Attributes:
        first, last: sequence numbers, inclusive; `last` None = no limit.
        queues: None = all.
    """

    first: int = 0
    last: int | None = None
    queues: frozenset[str] | None = None

    def add(self, name: str, column: str, value: Any) -> bool:
        """Add a filter; return whether the reader applies it, so that Spark need not.

        Args:
            name: of the class of PySpark, such as `GreaterThan`.
        """
        if column == "queue" and name in ("EqualTo", "In"):
            queues = frozenset((value,) if name == "EqualTo" else value)
            self.queues = queues if self.queues is None else self.queues & queues
            return True
        if column != "sequence_number" or not isinstance(value, int):
            return False
        if name in ("EqualTo", "GreaterThanOrEqual", "GreaterThan"):
            self.first = max(self.first, value + (name == "GreaterThan"))
        if name in ("EqualTo", "LessThanOrEqual", "LessThan"):
            last = value - (name == "LessThan")
            self.last = last if self.last is None else min(self.last, last)
        return name in ("EqualTo", "GreaterThanOrEqual", "GreaterThan", "LessThanOrEqual", "LessThan")


class PeekReader(DataSourceReader):
    """A batch read."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._columns = checked_columns(schema)
        self._wanted = Wanted(options.from_sequence_number)

    def partitions(self) -> list[PeekPartition]:
        options, clients = self._options, worker_clients()
        before = options.ending_time or datetime.fromtimestamp(clock.now(), UTC)
        first, last, queues = self._wanted.first, self._wanted.last, self._wanted.queues
        if options.backlog:
            return [
                PeekPartition(queue, first, last, before, in_secondary=True, may_be_missing=may_be_missing)
                for queue, may_be_missing in _backlog_queues(options.connection)
                if queues is None or queue in queues
            ]
        found: list[PeekPartition] = []
        shapes = clients.run(_shapes(options))
        for path in options.paths:
            if queues is None or path in queues:
                ranges = _ranges(shapes[path], options.min_partitions, len(options.paths))
                found += [
                    PeekPartition(path, max(low, first), _least(high, last), before)
                    for low, high in ranges
                    if (high is None or high >= first) and (last is None or low <= last)
                ]
        return found or [_nothing(before)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, PeekPartition)  # Spark returns the objects of `partitions`
        if not partition.path:
            return
        clients = worker_clients()
        connection = self._options.connection
        if partition.in_secondary:
            connection = of_secondary(connection)
        pages = peek(connection, partition, self._options)
        try:
            while (page := clients.run(_next(pages))) is not None:
                yield record_batch(page, partition.path, self._columns, in_backlog=partition.in_secondary)
        finally:
            clients.run(pages.aclose())


class FilteringReader(PeekReader):
    """A batch read that applies filters. PySpark rejects this class if its filter pushdown is off."""

    def pushFilters(self, filters: list[Any]) -> Iterator[Any]:  # noqa: N802
        """Keep the filters on `sequence_number` and `queue`, and yield those that Spark must apply."""
        for one in filters:
            column = one.attribute[0] if hasattr(one, "attribute") and len(one.attribute) == 1 else ""
            if not self._wanted.add(type(one).__name__, column.lower(), getattr(one, "value", None)):
                yield one


def _nothing(before: datetime) -> PeekPartition:
    """Return a partition without messages: for an empty list, Spark would ask for everything."""
    return PeekPartition("", 1, 0, before)


def _least(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else min(one, other)


def _ranges(shape: Shape, min_partitions: int | None, paths: int) -> list[tuple[int, int | None]]:
    """Return ranges of sequence numbers, inclusive, for the tasks of one queue; None = to the end."""
    if shape.extents and min_partitions is not None:
        parts = -(-min_partitions // paths)
        ranges = split_ranges([(extent.first, extent.end) for _, extent in sorted(shape.extents.items())], parts)
        return [(low, end - 1) for low, end in ranges]
    if not shape.has_fragments:
        return [(0, None)]
    bounds = [fragment << COUNTER_BITS for fragment in range(FRAGMENTS)]
    return [(low, high - 1) for low, high in pairwise(bounds)] + [(bounds[-1], None)]


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


async def _shapes(options: ReadOptions) -> dict[str, Shape]:
    """Return the shape of each path."""
    found: dict[str, Shape] = {}
    async with open_client(options.connection, paired=False) as client:
        for path in options.paths:
            facts = await entity_facts(client, path)
            is_divisible = facts.requires_session is False and options.sub_queue == "none"
            ranges: dict[int, Extent] = {}
            if is_divisible and options.min_partitions is not None:
                receiver = open_receiver(client, path)
                lowest = max(options.from_sequence_number, 1)
                ranges = await extents(receiver, {}, is_partitioned=facts.is_partitioned, default_start=lowest)
                await receiver.close()
            found[path] = Shape(is_divisible and bool(facts.is_partitioned), ranges)
    return found


async def peek(
    connection: ConnectionOptions, partition: PeekPartition, options: ReadOptions
) -> AsyncGenerator[list[ServiceBusReceivedMessage], None]:
    """Yield the messages of a partition in pages; the messages of a session are in order."""
    async with open_client(connection, paired=False) as client:
        left = options.max_messages
        try:
            sessions = await _sessions_of(client, partition.path, options.sub_queue)
            sources = (_pages(client, partition, options.sub_queue, session_id) for session_id in sessions)
            async with aclosing(ahead(sources, SESSIONS_AT_ONCE)) as pages:
                async for page in pages:
                    wanted = [one for one in page if one.enqueued_time_utc < partition.before_utc][:left]
                    left = None if left is None else left - len(wanted)
                    if wanted:
                        yield wanted
                    if left == 0:
                        return
        except MessagingEntityNotFoundError:
            if not partition.may_be_missing:
                raise


async def _pages(
    client: ServiceBusClient, partition: PeekPartition, word: SubQueueWord, session_id: str | None
) -> Pages:
    receiver = open_receiver(client, partition.path, word, session_id)
    try:
        async for page in browse(receiver, partition.first, partition.last):
            yield page
    finally:
        await receiver.close()


async def _sessions_of(client: ServiceBusClient, path: str, word: SubQueueWord) -> list[str | None]:
    """Return the sessions of an entity that must be peeked one by one; [None] = a peek without a session shows all."""
    receiver = open_receiver(client, path, word)
    try:
        await receiver.peek_messages(1)
    except InvalidOperationError:
        if (names := split_subscription(path)) is not None:
            topic, subscription = names
            return [session async for session in client.list_subscription_sessions(topic, subscription)]
        return [session async for session in client.list_queue_sessions(path)]
    finally:
        await receiver.close()
    return [None]
