"""One task of a write: converts record batches to messages and sends them."""

from __future__ import annotations

import gc
import logging
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import StructType

from sbclient import clock
from sbclient.errors import InvalidOperationError, ServiceBusError
from sbclient_spark.clients import RANDOM, Connection, WorkerClients, worker_clients
from sbclient_spark.log import log_event
from sbclient_spark.options import Destination
from sbclient_spark.write.destination_check import check_destination
from sbclient_spark.write.encoded_rows import BadRow, EncodedRows
from sbclient_spark.write.encoder import RowEncoder
from sbclient_spark.write.message_ids import MessageIds, Place
from sbclient_spark.write.options import WriteOptions, write_options
from sbclient_spark.write.partition_writer import PartitionWriter
from sbclient_spark.write.reports import SessionDigests, TaskReport, split_sessions
from sbclient_spark.write.row_errors import BadRecords
from sbclient_spark.write.schema import RowPlan, row_plan

ENCODED_ROWS: Final = 10_000
"""Rows that are encoded at a time: the size of Spark's record batches."""

COLLECT_AFTER: Final = 50_000
"""Allocations between two cycle collections while a task sends; Python's default is 700."""

QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
"""Properties with which Spark gives a task its query and micro-batch. They are undocumented and may be missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WritePlan:
    """The plan of a write, which the driver makes and sends to the executors.

    Attributes:
        rows: the use of each column.
        mixes_keys: whether rows with different keys may share a transfer.
    """

    options: WriteOptions = field(repr=False)
    rows: RowPlan
    mixes_keys: bool

    @property
    def destination(self) -> str:
        return self.options.destination


def plan_write(schema: StructType, options: Any, *, is_streaming: bool, overwrite: bool = False) -> WritePlan:
    """Check a write before it has tasks.

    Args:
        schema: of the rows.
        options: as Spark hands them over.
        is_streaming: whether Spark numbers the rows by query and micro-batch.
        overwrite: whether the save mode or output mode requires overwriting, which a queue does not support.

    Raises:
        ServiceBusError: the options, the columns or the destination are invalid.
    """
    if overwrite:
        raise InvalidOperationError(
            "messages cannot be overwritten: use mode('append') for a batch, outputMode('append') for a stream, INSERT "
            "INTO in SQL"
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
    """The identity of a task in Spark.

    Attributes:
        partition, attempt, attempt_id: `attempt_id` is unique in the application.
        query_id, batch_id: of the streaming query; None = unknown.
    """

    partition: int
    attempt: int
    attempt_id: int
    query_id: str | None = None
    batch_id: int | None = None


def current_place() -> TaskPlace:
    """Return the current task of this worker."""
    context = TaskContext.get()
    if context is None:
        raise InvalidOperationError("this process runs no Spark task: call it on executors only")
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
    """The result of a task for the driver.

    Attributes:
        report: the counts of the task.
        sessions: digests of its sessions, with `ordering="session"`, as `SessionDigests` packs them.
    """

    report: TaskReport
    sessions: bytes = b""


def run_task(
    plan: WritePlan, batches: Iterable[pa.RecordBatch], place: TaskPlace, *, clients: WorkerClients | None = None
) -> TaskResult:
    """Send every row of a task.

    Args:
        batches: the rows, in order.
        place: of the task.
        clients: holds the connection; None = the clients of this process.

    Raises:
        ServiceBusError: the task has failed; the text names the row, the reason and the number of sent rows.
    """
    report = TaskReport(partition=place.partition, attempt=place.attempt, destination=plan.destination)
    if plan.options.dry_run == "schema":
        return TaskResult(report)
    # Applications number their attempts independently and may share a directory: the random part makes the name unique.
    name = f"part-{place.partition:05}-attempt-{place.attempt_id}-{RANDOM.getrandbits(64):016x}"
    bad_records = BadRecords(plan.options.bad_records_path, name)
    try:
        encoder = RowEncoder(plan.rows, MessageIds(plan.rows.ids, _id_place(plan, place), RANDOM))
        if plan.options.dry_run != "off":
            return _run_dry(plan, encoder, batches, report)
        with _rare_collections():
            return _Sending(plan, encoder, report, bad_records, clients or worker_clients()).run(batches)
    except ServiceBusError as error:
        facts = {"error": type(error).__name__, "reason": str(error)}
        log_event(
            "task.failed",
            "the task for {destination!r} failed after {sent} rows: {error}: {reason}",
            facts | asdict(report),
            level=logging.ERROR,
        )
        raise
    finally:
        bad_records.close()
        if plan.options.metrics_log:
            log_event("task.ended", "the task for {destination!r} sent {sent} of {rows} rows", asdict(report))


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Collect cycles rarely: messages have none, and collections took a quarter of the time of a task."""
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


PROGRESS_S: Final = 60.0
"""How often a task shows its progress. It is logged as a warning, which a worker shows without being configured."""


class _Sending:
    """The run of a task that sends."""

    def __init__(
        self,
        plan: WritePlan,
        encoder: RowEncoder,
        report: TaskReport,
        bad_records: BadRecords,
        clients: WorkerClients,
    ) -> None:
        self._plan = plan
        self._encoder = encoder
        self._report = report
        self._bad_records = bad_records
        self._clients = clients
        self._is_ordered = plan.options.ordering == "session"
        self._own_senders: dict[Destination, Any] = {}
        self._sessions = SessionDigests()
        self._shown_at = math.inf

    def run(self, batches: Iterable[pa.RecordBatch]) -> TaskResult:
        slices = _slices(batches)
        first = next(slices, None)
        if first is None:
            return TaskResult(self._report)  # no rows: open no connection
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
        return TaskResult(self._report, self._sessions.packed())

    async def _open(self, connection: Connection) -> PartitionWriter:
        self._shown_at = clock.monotonic()

        def own_sender(destination: Destination) -> Any:
            """Return a sender of this task only: the session state of a sender is stale after another task has sent."""
            if destination not in self._own_senders:
                self._own_senders[destination] = connection.new_sender(destination)
            return self._own_senders[destination]

        async def mixes_keys(destination: Destination) -> bool:
            return self._plan.mixes_keys or (
                self._plan.rows.destination is None and await connection.is_unpartitioned(destination)
            )

        return PartitionWriter(
            connection.client,
            own_sender if self._is_ordered else connection.sender,
            self._plan.options,
            mixes_keys=mixes_keys,
            report=self._report,
            bad_records=self._bad_records,
        )

    def _offer(self, writer: PartitionWriter, batch: pa.RecordBatch) -> None:
        encoded, bad = self._encoder.encode(batch, self._report.rows)
        self._report.rows += batch.num_rows
        if self._is_ordered:
            for rows in encoded:
                sessions = rows.columns.column("session_id").drop_null().unique()
                self._sessions.add(rows.destination.path, sessions.to_pylist())
        self._clients.run(self._offer_rows(writer, encoded, bad))

    async def _offer_rows(self, writer: PartitionWriter, rows: list[EncodedRows], refused: list[BadRow]) -> None:
        """Offer rows in the thread of the clients, which also counts rejected rows."""
        for bad in refused:
            writer.refuse(bad)
        await writer.offer(rows)
        if (now := clock.monotonic()) >= self._shown_at + PROGRESS_S:
            self._shown_at = now
            text = (
                "the task for {destination!r} has sent {sent} of {rows} rows so far, {diverted} of them to the backlog"
            )
            log_event("task.progress", text, asdict(self._report), level=logging.WARNING)

    async def _close(self, connection: Connection) -> None:
        for sender in self._own_senders.values():
            await sender.close()
        await self._clients.give_back(self._plan.options.connection)


def _slices(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for start in range(0, batch.num_rows, ENCODED_ROWS):
            yield batch.slice(start, ENCODED_ROWS)


def _run_dry(plan: WritePlan, encoder: RowEncoder, batches: Iterable[pa.RecordBatch], report: TaskReport) -> TaskResult:
    """Encode messages without sending them: a sample or all."""
    for batch in _slices(batches):
        encoded, bad = encoder.encode(batch, report.rows)
        report.bytes += sum(rows.size_bytes for rows in encoded)
        if bad and plan.options.on_row_error == "fail":
            raise InvalidOperationError(
                f"partition {report.partition}, row {bad[0].position} cannot be sent: {bad[0].reason}"
            )
        report.row_errors += len(bad)
        report.rows += batch.num_rows
        if plan.options.dry_run == "sample":
            break
    return TaskResult(report)


def check_sessions(results: Iterable[TaskResult]) -> None:
    """Check with `ordering="session"` that each session was in one task.

    Raises:
        InvalidOperationError: a session was in two tasks, so its rows may be out of order.
    """
    split = split_sessions(result.sessions for result in results)
    if split:
        raise InvalidOperationError(
            f"ordering is 'session', but some sessions, at least {split}, were in several tasks: their rows may be "
            "out of order; call sbclient_spark.repartition_by_session before writing"
        )
