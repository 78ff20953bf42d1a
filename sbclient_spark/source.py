"""The data source `servicebus`: the classes that Spark calls."""

# mypy: disallow-subclassing-any=False

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from inspect import getdoc
from itertools import islice
from typing import Any, ClassVar, Final, cast

import pyarrow as pa
from pyspark.sql import datasource
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    WriterCommitMessage,
)
from pyspark.sql.types import StringType, StructField, StructType

from sbclient.errors import InvalidOperationError
from sbclient_spark.log import log_event
from sbclient_spark.options import listed
from sbclient_spark.read.batch import FilteringReader, PeekReader
from sbclient_spark.read.columns import READ_SCHEMA
from sbclient_spark.read.options import BATCH_TABLE, READ_TABLE, STREAM_TABLE, read_options
from sbclient_spark.read.receive_stream import ReceiveStreamReader
from sbclient_spark.read.stream import PeekStreamReader, check_version
from sbclient_spark.table_options import (
    check_given,
    is_copied,
    is_table,
    known_defaults,
    merged,
    names_entity,
    options_of_table,
    table_schema,
)
from sbclient_spark.write.options import WRITE_TABLE
from sbclient_spark.write.reports import publish, summary
from sbclient_spark.write.task import (
    ENCODED_ROWS,
    TaskResult,
    WritePlan,
    check_sessions,
    current_place,
    plan_write,
    run_task,
)

FORMAT = "servicebus"

STREAM_WRITER: Final[Any] = getattr(datasource, "DataSourceStreamArrowWriter", None)
"""The base class of a stream writer of record batches; None before PySpark 4.1."""


@dataclass
class TaskDone(WriterCommitMessage):
    """The result of a task, which Spark sends to the driver."""

    result: TaskResult


class InvalidStreamReader(DataSourceStreamReader):
    """Raises the error of a stream that cannot start. Spark hides an error of `streamReader` behind one of its own."""

    def __init__(self, error: InvalidOperationError) -> None:
        self._error = error

    def _raise(self, *_: Any) -> Any:
        raise self._error

    initialOffset = latestOffset = partitions = read = cast(Any, _raise)  # noqa: N815


class ServiceBusDataSource(DataSource):
    """Reads queues and writes rows as messages. `sbclient_spark.register` registers it.

    Attributes:
        defaults: options from the configuration of Spark.
        pushes_filters: whether Spark passes filters to a read.
    """

    defaults: ClassVar[Mapping[str, str]] = {}
    pushes_filters: ClassVar[bool] = False

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        options = merged(self.defaults, self.options)
        check_version(options)
        text = StructField("body", StringType())
        is_text = options.get("bodytype", "").lower() == "string"
        schema = StructType([text if is_text and one.name == "body" else one for one in READ_SCHEMA])
        if is_table(self.options):
            return table_schema(schema, self.options)
        check_given(self.options)  # here for an error at `load()`; Spark hides that of a stream that cannot start
        return schema

    def reader(self, schema: StructType) -> DataSourceReader:
        reader = FilteringReader if self.pushes_filters else PeekReader
        return reader(read_options(self.for_read(schema, is_streaming=False)), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        try:
            given = self.for_read(schema, is_streaming=True)
            check_version(given)
            options = read_options(given, is_streaming=True)
            return (PeekStreamReader if options.mode == "peek" else ReceiveStreamReader)(options, schema)
        except InvalidOperationError as error:
            return InvalidStreamReader(error)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        plan = plan_write(schema, self.for_write(schema), is_streaming=False, overwrite=overwrite)
        return ServiceBusWriter(plan)

    def streamWriter(self, schema: StructType, overwrite: bool) -> ServiceBusStreamWriter:  # noqa: N802
        plan = plan_write(schema, self.for_write(schema), is_streaming=True, overwrite=overwrite)
        return ServiceBusStreamWriter(plan, schema)

    def for_read(self, schema: StructType, *, is_streaming: bool) -> dict[str, str]:
        """Return the options of a read or a stream. Defaults that only the other kind takes are left out."""
        table = STREAM_TABLE if is_streaming else BATCH_TABLE
        return merged(known_defaults(self.defaults, table), options_of_table(schema, table), self.options)

    def for_write(self, schema: StructType) -> dict[str, str]:
        """Return the options of a write.

        Raises:
            InvalidOperationError: rows come unchanged from a table, and no option names the destination.
        """
        if is_copied(schema) and not names_entity(self.options):
            raise InvalidOperationError(
                "the rows come unchanged from a table of servicebus, and Spark passes the options of that table in "
                "place of the destination's: name the destination, as in INSERT INTO … WITH (queue = …), or select "
                "columns, as in INSERT INTO … (body, message_id) SELECT body, message_id FROM …"
            )
        defaults = known_defaults(self.defaults, WRITE_TABLE)
        return merged(defaults, options_of_table(schema, WRITE_TABLE), self.options)


ServiceBusDataSource.__doc__ = f"""{getdoc(ServiceBusDataSource)}

Options of a write:

{listed(WRITE_TABLE)}

Options of a read or a stream:

{listed(READ_TABLE)}
"""


class ServiceBusWriter(DataSourceArrowWriter):
    """The writer of a batch job."""

    def __init__(self, plan: WritePlan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskDone:
        return TaskDone(run_task(self._plan, iterator, current_place()))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _commit(self._plan, messages, None)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _abort(self._plan, messages, None)


class ServiceBusStreamWriter(STREAM_WRITER or datasource.DataSourceStreamWriter):  # type: ignore[misc]
    """The writer of a streaming query; Spark makes one for each micro-batch."""

    def __init__(self, plan: WritePlan, schema: StructType) -> None:
        self._plan = plan
        self._schema = schema

    def write(self, iterator: Iterator[Any]) -> TaskDone:
        batches = iterator if STREAM_WRITER is not None else record_batches(iterator, self._schema)
        return TaskDone(run_task(self._plan, batches, current_place()))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        _commit(self._plan, messages, batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        _abort(self._plan, messages, batchId)


def record_batches(rows: Iterator[Any], schema: StructType) -> Iterator[pa.RecordBatch]:
    """Return the rows that PySpark 4.0 passes to the writer of a stream as record batches."""
    from pyspark.sql.conversion import LocalDataToArrowConversion  # internal, and needed with this version only

    while some := list(islice(rows, ENCODED_ROWS)):
        yield from LocalDataToArrowConversion.convert(some, schema, False).to_batches()


def _commit(plan: WritePlan, messages: Sequence[Any], batch_id: int | None) -> None:
    """Report the batch and check the order; all rows are acknowledged before this call."""
    results = [message.result for message in messages if message is not None]
    _publish(plan, "commit", messages, batch_id)
    if plan.options.ordering == "session":
        check_sessions(results)


def _abort(plan: WritePlan, messages: Sequence[Any], batch_id: int | None) -> None:
    """Nothing that was sent can be called back; the same ids make a repetition harmless."""
    _publish(plan, "abort", messages, batch_id)


def _publish(plan: WritePlan, outcome: str, messages: Sequence[Any], batch_id: int | None) -> None:
    reports = [message.result.report if message is not None else None for message in messages]
    report = summary(outcome, plan.destination, reports, batch_id=batch_id)
    try:
        publish(report, metrics_path=plan.options.metrics_path, metrics_log=plan.options.metrics_log)
    except Exception as error:  # a failing commit would make Spark send everything once more
        log_event(
            "report.failed",
            "cannot report the write: unexpected {error}",
            {"error": type(error).__name__},
            level=logging.ERROR,
        )
