"""One task of a write: reads record batches, makes messages, and returns when every one was acknowledged."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import StructType

from sbclient.errors import InvalidOperationError, ServiceBusError
from sbclient.rules.size import encoded_size
from sbclient_spark.bad_records import BadRecords
from sbclient_spark.destination_check import check_destination
from sbclient_spark.message_ids import MessageIds, Place
from sbclient_spark.partition_writer import PartitionWriter
from sbclient_spark.reports import TaskReport, tell
from sbclient_spark.rows import BadRow, Destination, Row, RowPlan, RowReader
from sbclient_spark.schema import row_plan
from sbclient_spark.worker_clients import RANDOM, Connection, WorkerClients, worker_clients
from sbclient_spark.write_options import WriteOptions, write_options

SLICE_ROWS: Final = 1000
"""Rows that are made into messages at a time: the memory for them is small beside the record batch."""

COLLECT_AFTER: Final = 50_000
"""New objects after which Python looks for cycles while a task sends, instead of after 700."""

QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
"""Names by which Spark tells a task its query and micro-batch. They are not documented, so their absence is told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WritePlan:
    """Everything a task needs to know; made on the driver and sent to the executors.

    Attributes:
        rows: which column becomes what.
        mixes_keys: whether rows with different keys may share a transfer.
        source: how Spark calls the write, for its messages.
    """

    options: WriteOptions = field(repr=False)
    rows: RowPlan
    mixes_keys: bool

    @property
    def destination(self) -> str:
        return self.options.destination


def plan_write(schema: StructType, options: Any, *, is_streaming: bool, overwrite: bool = False) -> WritePlan:
    """Check everything that can be checked before there is a task.

    Args:
        schema: of the rows.
        options: as Spark hands them over.
        is_streaming: whether Spark numbers the rows by query and micro-batch.
        overwrite: whether the save mode, or the output mode, asks for what a queue cannot do.

    Raises:
        ServiceBusError: something is wrong; the text says what, and what would be right.
    """
    if overwrite:
        raise InvalidOperationError(
            "messages cannot be overwritten: use mode('append') for a batch, outputMode('append') for a stream"
        )
    checked = write_options(options)
    rows = row_plan(schema, checked, is_streaming=is_streaming)
    facts = check_destination(
        checked,
        has_sessions=any(name == "session_id" for name, _ in rows.attributes),
        makes_random_ids=rows.ids.mode == "random",
    )
    return WritePlan(options=checked, rows=rows, mixes_keys=facts.is_partitioned is False)


@dataclass(frozen=True, slots=True)
class TaskPlace:
    """Which task this is, as Spark says.

    Attributes:
        partition, attempt, attempt_id: `attempt_id` is unique in the whole application.
        query_id, batch_id: of the streaming query; None where Spark does not say.
    """

    partition: int
    attempt: int
    attempt_id: int
    query_id: str | None = None
    batch_id: int | None = None


def current_place() -> TaskPlace:
    """The task that this worker runs now."""
    context = TaskContext.get()
    if context is None:
        raise InvalidOperationError("there is no Spark task here: this runs on executors only")
    batch = context.getLocalProperty(BATCH_ID)
    return TaskPlace(
        partition=context.partitionId(),
        attempt=context.attemptNumber(),
        attempt_id=context.taskAttemptId(),
        query_id=context.getLocalProperty(QUERY_ID),
        batch_id=int(batch) if batch is not None and batch.isdigit() else None,
    )


@dataclass(slots=True)
class TaskResult:
    """What a task hands to the driver.

    Attributes:
        report: its account.
        sessions: digests of its sessions, with `ordering="session"`; 8 bytes each.
    """

    report: TaskReport
    sessions: set[bytes] = field(default_factory=set)


def run_task(
    plan: WritePlan, batches: Iterable[pa.RecordBatch], place: TaskPlace, *, clients: WorkerClients | None = None
) -> TaskResult:
    """Send every row of a task.

    Args:
        batches: the rows, in order.
        place: of the task.
        clients: where the connection is kept; None = this process's own.

    Raises:
        ServiceBusError: the task has failed; the text says which row, why, and what was sent.
    """
    report = TaskReport(partition=place.partition, attempt=place.attempt, destination=plan.destination)
    if plan.options.dry_run == "schema":
        return TaskResult(report)
    # Each application counts its attempts anew, and many may write to one directory: what was drawn tells them apart.
    name = f"part-{place.partition:05}-attempt-{place.attempt_id}-{RANDOM.getrandbits(64):016x}"
    bad_records = BadRecords(plan.options.bad_records_path, name)
    try:
        reader = RowReader(plan.rows, MessageIds(plan.rows.ids, _id_place(plan, place), RANDOM))
        if plan.options.dry_run != "off":
            return _rehearse(plan, reader, batches, report)
        with _rare_collections():
            return _Sending(plan, reader, report, bad_records, clients or worker_clients()).run(batches)
    except ServiceBusError as error:
        facts = {"error": type(error).__name__, "reason": str(error)}
        tell(
            "task.failed",
            "the task for {destination!r} failed after {sent} rows: {error}: {reason}",
            facts | asdict(report),
            level=logging.ERROR,
        )
        raise
    finally:
        bad_records.close()
        if plan.options.metrics_log:
            tell("task.ended", "the task for {destination!r} sent {sent} of {rows} rows", asdict(report))


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Messages hold no cycles, yet Python would look through the thousands that wait again and again: that took a
    quarter of a task's time."""
    first, *others = gc.get_threshold()
    gc.set_threshold(first and max(first, COLLECT_AFTER), *others)
    try:
        yield
    finally:
        gc.set_threshold(first, *others)


def _id_place(plan: WritePlan, place: TaskPlace) -> Place | None:
    if plan.rows.ids.transaction is not None:
        app, version = plan.rows.ids.transaction
        return Place(app, version, place.partition)
    if place.query_id is None or place.batch_id is None:
        return None
    return Place(place.query_id, place.batch_id, place.partition)


class _Sending:
    """One task that really sends."""

    def __init__(
        self, plan: WritePlan, reader: RowReader, report: TaskReport, bad_records: BadRecords, clients: WorkerClients
    ) -> None:
        self._plan = plan
        self._reader = reader
        self._report = report
        self._bad_records = bad_records
        self._clients = clients
        self._is_ordered = plan.options.ordering == "session"
        self._own_senders: dict[tuple[Destination, int], Any] = {}
        self._result = TaskResult(report)

    def run(self, batches: Iterable[pa.RecordBatch]) -> TaskResult:
        slices = _slices(batches)
        first = next(slices, None)
        if first is None:
            return self._result  # nothing to send, so there is nothing to open either
        connection = self._clients.run(self._clients.lease(self._plan.options.connection))
        try:
            if connection.uses == 1:
                self._report.connect_ms = round(connection.connect_ms, 1)
            self._report.is_unpaired = connection.is_unpaired
            writer = self._clients.run(self._open(connection))
            try:
                while first is not None:
                    self._offer(writer, first)
                    first = next(slices, None)
                self._clients.run(writer.finish())
            except BaseException:
                self._clients.run(writer.abandon())
                raise
        finally:
            self._clients.run(self._close(connection))
        return self._result

    async def _open(self, connection: Connection) -> PartitionWriter:
        def own_sender(destination: Destination, lane: int) -> Any:
            """A task is one producer: what a sender knows of sessions is worth nothing after another one's turn."""
            key = (destination, lane)
            if key not in self._own_senders:
                self._own_senders[key] = connection.new_sender(destination)
            return self._own_senders[key]

        return PartitionWriter(
            connection.client,
            own_sender if self._is_ordered else connection.sender,
            self._plan.options,
            mixes_keys=self._plan.mixes_keys,
            clock=self._clients.clock,
            report=self._report,
            bad_records=self._bad_records,
        )

    def _offer(self, writer: PartitionWriter, batch: pa.RecordBatch) -> None:
        rows: list[Row] = []
        refused: list[BadRow] = []
        for row in self._reader.read(batch, self._report.rows):
            if isinstance(row, BadRow):
                refused.append(row)
            else:
                rows.append(row)
        self._report.rows += batch.num_rows
        if self._is_ordered:
            self._result.sessions.update(
                _session_digest(row.destination.path, row.message.session_id)
                for row in rows
                if row.message.session_id is not None
            )
        self._clients.run(self._hand_over(writer, rows, refused))

    async def _hand_over(self, writer: PartitionWriter, rows: list[Row], refused: list[BadRow]) -> None:
        """In the thread of the clients, where rows that come back from the service are counted and written down too."""
        for bad in refused:
            writer.refuse(bad)
        await writer.offer(rows)

    async def _close(self, connection: Connection) -> None:
        for sender in self._own_senders.values():
            await sender.close()
        await self._clients.give_back(self._plan.options.connection)


def _slices(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for start in range(0, batch.num_rows, SLICE_ROWS):
            yield batch.slice(start, SLICE_ROWS)


def _session_digest(path: str, session_id: str) -> bytes:
    return blake2b(f"{path.casefold()}\n{session_id}".encode(), digest_size=8).digest()


def _rehearse(plan: WritePlan, reader: RowReader, batches: Iterable[pa.RecordBatch], report: TaskReport) -> TaskResult:
    """Make and measure messages without sending one: the first of them, or all."""
    for batch in _slices(batches):
        for row in reader.read(batch, report.rows):
            if not isinstance(row, BadRow):
                report.bytes += encoded_size(row.message)
            elif plan.options.on_row_error == "fail":
                raise InvalidOperationError(
                    f"partition {report.partition}, row {row.position} cannot be sent: {row.reason}"
                )
            else:
                report.row_errors += 1
        report.rows += batch.num_rows
        if plan.options.dry_run == "sample":
            break
    return TaskResult(report)


def check_sessions(results: Iterable[TaskResult]) -> None:
    """With `ordering="session"`: no session may have been in two tasks.

    Raises:
        InvalidOperationError: one was, so that its rows may be out of order.
    """
    seen: set[bytes] = set()
    split = 0
    for result in results:
        split += len(seen & result.sessions)
        seen |= result.sessions
    if split:
        raise InvalidOperationError(
            f"ordering is 'session', but {split} sessions were in more than one task, so that their rows may be out of "
            "order: use sbclient_spark.prepare(df, session=..., order_by=..., partitions=...) before writing"
        )
