"""Streams queues and subscriptions by peeking: nothing is taken, and offsets are sequence numbers.

The driver finds the end of each micro-batch by searching for the last message, and tasks peek ranges of sequence
numbers. A message keeps its number while it is in the queue, so a replay reads the same range. A number that is missing
there was given to a message that has left the queue, or to a scheduled one that has been cancelled or is due: it then
has a new number. The count of missing numbers is therefore an upper bound of the loss.
"""

# mypy: disallow-subclassing-any=False

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final
from zlib import crc32

import pyarrow as pa
import pyspark
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from sbclient import clock
from sbclient.client.client import ServiceBusClient
from sbclient.errors import InvalidOperationError, ServiceBusError
from sbclient.message import ServiceBusMessageState, ServiceBusReceivedMessage
from sbclient.rules.sequence_number import partition_of
from sbclient_spark.clients import open_client, worker_clients
from sbclient_spark.log import log_event
from sbclient_spark.read.browsing import (
    EntityFacts,
    Extent,
    ahead,
    browse,
    entity_facts,
    extents,
    first_number_of,
    open_receiver,
    split_ranges,
)
from sbclient_spark.read.columns import checked_columns, record_batch
from sbclient_spark.read.offsets import QueueOffset, StreamOffset
from sbclient_spark.read.options import LATEST, ReadOptions
from sbclient_spark.read.sessions import matches

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, SupportsTriggerAvailableNow

    HAS_ADMISSION_CONTROL = True
except ImportError:  # before PySpark 4.2
    HAS_ADMISSION_CONTROL = False

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Absent in this version of PySpark."""


CHECK_S: Final = 60.0
"""How often a running stream checks that its queue is still the same one."""


REPORT_S: Final = 10.0
"""How long a measured backlog is reported before it is measured again."""


def check_version(options: Mapping[str, str]) -> None:
    """Check that this version of PySpark can do what options of a stream ask for.

    Raises:
        InvalidOperationError: it cannot.
    """
    limits = [name for name in ("maxMessagesPerTrigger", "maxBytesPerTrigger") if name.lower() in options]
    if limits and not HAS_ADMISSION_CONTROL:
        raise InvalidOperationError(
            f"{' and '.join(limits)} need PySpark 4.2, and this is {pyspark.__version__}, which does not ask a Python "
            "source for a part of what is available: remove the option, or update PySpark"
        )


@dataclass(frozen=True)
class StreamPartition(InputPartition):
    """The messages that one task of a micro-batch reads.

    Attributes:
        first, last: sequence numbers, inclusive.
        counts_leading: whether numbers missing before the first message count as missing.
        numbers: leave out all others, ascending; None = none.
        may_be_settled: missing messages were settled by a consumer of their session, and are no error.
        share: of the sessions, the part that this task reads and the number of parts; None = all.
    """

    path: str
    first: int
    last: int
    counts_leading: bool = True
    numbers: tuple[int, ...] | None = None
    may_be_settled: bool = False
    share: tuple[int, int] | None = None


class ServiceBusStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """What the modes of a stream share: the client of the driver, checks of the queues, and the tasks."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._columns = checked_columns(schema)
        self._client: ServiceBusClient | None = None
        self._initial: StreamOffset | None = None
        self._position: StreamOffset | None = None
        self._checked_at: dict[str, float] = {}
        self._is_partitioned: dict[str, bool | None] = {}
        self._requires_session: dict[str, bool] = {}
        self._report: dict[str, Any] | None = None
        self._reported_until = 0.0
        self._targets: dict[str, dict[int, int]] | None = None  # with the trigger AvailableNow

    # -- called by Spark on the driver

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        if self._initial is None:
            self._initial = worker_clients().run(self._start())
        return self._initial.to_json()

    def latestOffset(self, start: dict[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:  # noqa: N802
        clients = worker_clients()
        if start is None:  # before PySpark 4.2; a restart has called `partitions` with the last offset
            position = self._position or StreamOffset.of_json(self.initialOffset(), **self._identity())
        else:
            position = StreamOffset.of_json(start, **self._identity())
        try:
            end = clients.run(self._plan(position, getattr(limit, "max_rows", None)))
        except ServiceBusError as error:
            if not (error.is_outage or error.is_transient) or self._targets is not None:
                raise
            facts = {"error": type(error).__name__, "reason": str(error)}
            log_event("stream.waits", "no new micro-batch: {error}: {reason}", facts, level=logging.WARNING)
            end = position
        self._position = end
        return start if end == position and start is not None else end.to_json()

    def getDefaultReadLimit(self) -> Any:  # noqa: N802
        most = self._limit()
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return what Spark shows as `latestOffset` of the source: what waits behind the position, and the limits."""
        try:
            worker_clients().run(self._measure())
        except ServiceBusError as error:
            facts = {"error": type(error).__name__, "reason": str(error)}
            log_event("stream.not_measured", "cannot measure the backlog: {error}: {reason}", facts)
        return self._report

    async def _measure(self) -> None:
        position = self._position
        if position is None or clock.monotonic() < self._reported_until:
            return
        self._reported_until = clock.monotonic() + REPORT_S
        client = await self._opened()
        queues: dict[str, Any] = {}
        for path, queue in position.queues.items():
            count, oldest = await self._waiting(client, path, queue)
            age_s = None if oldest is None else max(round(clock.now() - oldest.timestamp(), 1), 0.0)
            queues[path] = {"backlog": count, "oldestAgeSeconds": age_s}
        limits = {"maxMessagesPerTrigger": self._limit(), "maxBytesPerTrigger": self._options.max_bytes_per_trigger}
        self._report = {"queues": queues, **limits}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begin = StreamOffset.of_json(start, **self._identity())
        until = self._position = StreamOffset.of_json(end, **self._identity())
        if begin == until:
            return []
        worker_clients().run(self._prepare(until))
        return self._tasks(begin, until)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._targets = worker_clients().run(self._ends())

    async def _ends(self) -> dict[str, dict[int, int]]:
        client = await self._opened()
        return {path: _ends_of(await self._extents(client, path, {})) for path in self._options.paths}

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: the next `latestOffset` has the same information, and Spark never commits the last batch."""

    def stop(self) -> None:
        if self._client is not None:
            worker_clients().run(self._client.close())
            self._client = None

    # -- called by Spark in a task

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, StreamPartition)  # Spark returns the objects of `partitions`
        clients = worker_clients()
        pages = self._pages(partition)
        try:
            while (page := clients.run(anext(pages, None))) is not None:
                yield record_batch(page, partition.path, self._columns)
        finally:
            clients.run(pages.aclose())

    async def _pages(self, partition: StreamPartition) -> AsyncGenerator[list[ServiceBusReceivedMessage], None]:
        clients = worker_clients()
        options = replace(self._options.connection, failover="primary")  # a client for reading is not paired
        count, first = 0, partition.first if partition.counts_leading else None
        connection = await clients.lease(options)
        receiver = open_receiver(connection.client, partition.path)
        try:
            source = browse(receiver, partition.first, partition.last, numbers=partition.numbers)
            async with aclosing(ahead([source])) as pages:
                async for page in pages:
                    first = page[0].sequence_number if first is None else first
                    count += len(page)
                    now = clock.now()
                    yield [one for one in page if self._is_wanted(one, partition) and not is_waiting(one, now)]
        finally:
            await receiver.close()
            await clients.give_back(options)
        if partition.numbers is not None:
            self._report_missing(partition, len(partition.numbers) - count)
        elif first is not None and (partition.share is None or partition.share[0] == 0):
            self._report_missing(partition, partition.last + 1 - first - count)

    def _is_wanted(self, message: ServiceBusReceivedMessage, partition: StreamPartition) -> bool:
        """Whether a message is in a session that this task reads."""
        if partition.share is not None:
            part, parts = partition.share
            if crc32((message.session_id or "").encode()) % parts != part:
                return False
        # All messages that a micro-batch names will be completed, so all are read, even if `sessions` has changed.
        chosen = self._options.sessions if partition.numbers is None else None
        return not chosen or matches(message.session_id, chosen)

    def _report_missing(self, partition: StreamPartition, missing: int) -> None:
        if missing <= 0:
            return
        path = partition.path
        facts = {"queue": path, "missing": missing}
        log_event("stream.missing", "up to {missing} messages left {queue!r} unread", facts, level=logging.WARNING)
        if self._options.fail_on_data_loss and not partition.may_be_settled:
            raise InvalidOperationError(
                f"up to {missing} messages left {path!r} before the stream read them: {missing} sequence numbers are "
                "missing, of messages that were completed, expired or dead-lettered, or of scheduled messages that "
                "were cancelled or have a new number; set failOnDataLoss to false to continue without them"
            )

    async def _prepare(self, end: StreamOffset) -> None:
        """Find out what the tasks of a micro-batch depend on."""
        client = await self._opened()
        for path in end.queues:
            if path not in self._requires_session:
                await self._facts(client, path)

    # -- what the modes do differently

    def _limit(self) -> int | None:
        """Return the default limit of a micro-batch."""
        return self._options.max_messages_per_trigger

    @abstractmethod
    async def _started(self, client: ServiceBusClient, path: str, created: str | None) -> QueueOffset:
        """Return the initial offset of a queue."""

    @abstractmethod
    async def _waiting(
        self, client: ServiceBusClient, path: str, queue: QueueOffset
    ) -> tuple[int | None, datetime | None]:
        """Return how many messages of a queue wait to be read, None = unknown, and when the oldest was enqueued."""

    @abstractmethod
    async def _plan(self, position: StreamOffset, most: int | None) -> StreamOffset:
        """Return the end of the next micro-batch; the position itself if there is none."""

    @abstractmethod
    def _tasks(self, begin: StreamOffset, end: StreamOffset) -> list[StreamPartition]:
        """Return the tasks of a micro-batch."""

    # -- the client of the driver

    def _identity(self) -> dict[str, Any]:
        namespace = worker_clients().run(self._namespace())
        return {"mode": self._options.mode, "namespace": namespace, "paths": self._options.paths}

    async def _namespace(self) -> str:
        return (await self._opened()).fully_qualified_namespace

    async def _opened(self) -> ServiceBusClient:
        if self._client is None:
            client = open_client(self._options.connection, paired=False)
            self._client = await client.__aenter__()
        return self._client

    async def _start(self) -> StreamOffset:
        client = await self._opened()
        queues: dict[str, QueueOffset] = {}
        for path in self._options.paths:
            facts = await self._facts(client, path)
            queues[path] = await self._started(client, path, facts.created)
        return StreamOffset(self._options.mode, client.fully_qualified_namespace, 0, queues)

    async def _facts(self, client: ServiceBusClient, path: str) -> EntityFacts:
        """Read the facts about a queue.

        Raises:
            MessagingEntityNotFoundError: it does not exist.
            InvalidOperationError: it has no sessions, and the options name some.
        """
        facts = await entity_facts(client, path, with_creation=True)
        self._is_partitioned[path] = facts.is_partitioned
        is_asked_for = self._options.sessions is not None
        if is_asked_for and facts.requires_session is False:
            raise InvalidOperationError(f"{path!r} has no sessions: remove the option sessions")
        self._requires_session[path] = is_asked_for if facts.requires_session is None else facts.requires_session
        return facts

    async def _extents(
        self,
        client: ServiceBusClient,
        path: str,
        begins: Mapping[int, int],
        *,
        lowest: int = 1,
        most: int | None = None,
    ) -> dict[int, Extent]:
        if path not in self._is_partitioned:
            await self._facts(client, path)
        receiver = open_receiver(client, path)
        is_partitioned = self._is_partitioned[path]
        try:
            return await extents(
                receiver, begins, is_partitioned=is_partitioned, default_start=max(lowest, 1), max_width=most
            )
        finally:
            await receiver.close()

    async def _checked(self, client: ServiceBusClient, path: str, offset: QueueOffset) -> QueueOffset:
        """Return the offset, or the initial one of a queue that was deleted and created again.

        Raises:
            InvalidOperationError: it was created again, and `failOnDataLoss` is true.
        """
        now = clock.monotonic()
        if path in self._checked_at and now - self._checked_at[path] < CHECK_S:
            return offset
        facts = await self._facts(client, path)
        self._checked_at[path] = now
        if facts.created is None and offset.until is not None:
            is_new = await _is_numbered_anew(client, path, offset)
        else:
            is_new = None not in (facts.created, _known(offset.created)) and facts.created != offset.created
        if not is_new:
            is_learned = _known(offset.created) is None and facts.created is not None
            return replace(offset, created=facts.created) if is_learned else offset
        about = f"{path!r} was deleted and created again ({facts.created or 'its numbers start again'})"
        if self._options.fail_on_data_loss:
            raise InvalidOperationError(
                f"{about} since the checkpoint was written: start the stream with another checkpointLocation, or set "
                "failOnDataLoss to false to read it from its start"
            )
        log_event("stream.recreated", "{about}: reading it from its start", {"about": about}, level=logging.WARNING)
        return QueueOffset(created=facts.created or f"{AFTER}{offset.until}")


AFTER: Final = "after "
"""Stands before the time of the newest message that was read, where the time of a later creation is unknown."""


def _known(created: str | None) -> str | None:
    """The time of the creation of a queue; None if only the time is known that it came after."""
    return None if created is None or created.startswith(AFTER) else created


def _is_another(created: str | None, before: str | None) -> bool:
    """Whether a queue was created again between two offsets."""
    if created is None or created == before:
        return False
    return created.startswith(AFTER) or None not in (_known(created), _known(before))


async def _is_numbered_anew(client: ServiceBusClient, path: str, offset: QueueOffset) -> bool:
    """Whether a message with a number that was read has arrived after the newest message that was read."""
    receiver = open_receiver(client, path)
    try:
        oldest = await receiver.peek_messages(1, sequence_number=1)
    finally:
        await receiver.close()
    if not oldest or offset.until is None:
        return False
    number = oldest[0].sequence_number
    is_read = number < offset.next.get(partition_of(number), 0)
    return is_read and oldest[0].enqueued_time_utc > datetime.fromisoformat(offset.until)


def is_waiting(message: ServiceBusReceivedMessage, now: float) -> bool:
    """Whether a message waits for its scheduled time, at which it gets a new sequence number.

    The state remains `scheduled` after that time. But then the message is enqueued at its scheduled time or later.
    """
    at, enqueued = message.scheduled_enqueue_time_utc, message.enqueued_time_utc
    if message.state is not ServiceBusMessageState.SCHEDULED or at is None:
        return False
    return enqueued < at or enqueued.timestamp() > now


class PeekStreamReader(ServiceBusStreamReader):
    """A stream that takes nothing."""

    async def _started(self, client: ServiceBusClient, path: str, created: str | None) -> QueueOffset:
        start = self._options.starting_sequence_number
        if start == LATEST:
            return QueueOffset(created, next=_ends_of(await self._extents(client, path, {})))
        found = await self._extents(client, path, {}, lowest=start, most=1)
        return QueueOffset(created, next={fragment: extent.first for fragment, extent in found.items()})

    async def _plan(self, position: StreamOffset, most: int | None) -> StreamOffset:
        client = await self._opened()
        queues = {path: await self._checked(client, path, queue) for path, queue in position.queues.items()}
        lowest = max(self._options.starting_sequence_number, 1)
        found: dict[tuple[str, int], Extent] = {}
        for path, queue in queues.items():
            for fragment, extent in (await self._extents(client, path, queue.next, lowest=lowest, most=most)).items():
                end = extent.end if self._targets is None else min(extent.end, self._targets[path].get(fragment, 0))
                if end > extent.first:
                    found[path, fragment] = Extent(extent.first, end)
        if not found:
            return position
        planned: dict[str, QueueOffset] = {}
        chosen = shared(found, most)
        if self._options.max_bytes_per_trigger is not None:
            chosen = await _within(client, chosen, self._options.max_bytes_per_trigger)
        for path, queue in queues.items():
            ends = {fragment: extent.end for (other, fragment), extent in chosen.items() if other == path}
            first = queue.next if position.batch == 0 else None
            until = await _newest(client, path, ends.values()) or queue.until
            planned[path] = replace(queue, next=queue.next | ends, first=first, until=until)
        return StreamOffset("peek", position.namespace, position.batch + 1, planned)

    async def _waiting(
        self, client: ServiceBusClient, path: str, queue: QueueOffset
    ) -> tuple[int | None, datetime | None]:
        found = await self._extents(client, path, queue.next)
        receiver = open_receiver(client, path)
        try:
            pages = [await receiver.peek_messages(1, sequence_number=extent.first) for extent in found.values()]
        finally:
            await receiver.close()
        times = [page[0].enqueued_time_utc for page in pages if page]
        return sum(extent.end - extent.first for extent in found.values()), min(times, default=None)

    def _tasks(self, begin: StreamOffset, end: StreamOffset) -> list[StreamPartition]:
        ranges: dict[tuple[str, int], tuple[int, int]] = {}
        unknown: set[tuple[str, int]] = set()
        for path, queue in end.queues.items():
            before = begin.queues[path]
            starts = queue.first if begin.batch == 0 and queue.first is not None else before.next
            if _is_another(queue.created, before.created):
                starts = {}
            for fragment, high in queue.next.items():
                low = starts.get(fragment, first_number_of(fragment))
                if low == 1 or fragment not in starts:
                    unknown.add((path, low))  # messages before the first one were never part of the stream
                if low < high:
                    ranges[path, fragment] = (low, high)
        wanted = self._options.min_partitions or 1
        width = max(sum(high - low for low, high in ranges.values()) // wanted, 1)
        found: list[StreamPartition] = []
        for (path, _), (low, high) in ranges.items():
            parts = max(round((high - low) / width), 1)
            if self._requires_session[path] and parts > 1:  # each session in one task, so that its order is kept
                task = StreamPartition(path, low, high - 1, counts_leading=(path, low) not in unknown)
                found += [replace(task, share=(part, parts)) for part in range(parts)]
                continue
            found += [
                StreamPartition(path, first, end - 1, counts_leading=(path, first) not in unknown)
                for first, end in split_ranges([(low, high)], parts)
            ]
        return found


def shared(found: Mapping[Any, Extent], most: int | None) -> dict[Any, Extent]:
    """Share a limit of messages fairly among fragments: small ones are read whole, the others get equal parts."""
    if most is None:
        return dict(found)
    chosen: dict[Any, Extent] = {}
    by_width = sorted(found.items(), key=lambda item: item[1].end - item[1].first)
    for place, (key, (first, end)) in enumerate(by_width):
        part = min(end - first, most // (len(by_width) - place))
        most -= part
        if part:
            chosen[key] = Extent(first, first + part)
    return chosen


async def _within(
    client: ServiceBusClient, chosen: Mapping[tuple[str, int], Extent], size_bytes: int
) -> dict[tuple[str, int], Extent]:
    """Shorten extents to a size of all their messages, but to one message at least, by peeking them."""
    kept: dict[tuple[str, int], Extent] = {}
    for place, ((path, fragment), (first, end)) in enumerate(chosen.items()):
        left = size_bytes // (len(chosen) - place)
        receiver = open_receiver(client, path)
        try:
            async with aclosing(browse(receiver, first, end - 1)) as pages:
                async for message in (one async for page in pages for one in page):
                    if message.size_bytes > left and (kept or message.sequence_number > first):
                        end = message.sequence_number
                        break
                    left -= message.size_bytes
                    size_bytes -= message.size_bytes
        finally:
            await receiver.close()
        if end > first:
            kept[path, fragment] = Extent(first, end)
    return kept


def _ends_of(found: Mapping[int, Extent]) -> dict[int, int]:
    return {fragment: extent.end for fragment, extent in found.items()}


async def _newest(client: ServiceBusClient, path: str, ends: Iterable[int]) -> str | None:
    """Return the latest enqueued time of the messages before the ends, in ISO 8601."""
    receiver = open_receiver(client, path)
    try:
        pages = [await receiver.peek_messages(1, sequence_number=end - 1) for end in ends]
    finally:
        await receiver.close()
    times = [page[0].enqueued_time_utc for page in pages if page]
    return max(times).isoformat() if times else None
