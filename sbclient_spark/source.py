"""The data source `servicebus`: the classes that Spark calls."""

# mypy: disallow-subclassing-any=False

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from sbclient_spark.read_options import read_options
from sbclient_spark.reader import READ_SCHEMA, PeekReader
from sbclient_spark.reports import log_event, publish, summary
from sbclient_spark.write_task import TaskResult, WritePlan, check_sessions, current_place, plan_write, run_task

FORMAT = "servicebus"


@dataclass
class TaskDone(WriterCommitMessage):
    """The result of a task, which Spark sends to the driver."""

    result: TaskResult


class ServiceBusDataSource(DataSource):
    """Peeks queues and writes rows as messages. `sbclient_spark.register` registers it."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return READ_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        return PeekReader(read_options(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return ServiceBusWriter(plan_write(schema, self.options, is_streaming=False, overwrite=overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        return ServiceBusStreamWriter(plan_write(schema, self.options, is_streaming=True, overwrite=overwrite))


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


class ServiceBusStreamWriter(DataSourceStreamArrowWriter):
    """The writer of a streaming query; Spark makes one for each micro-batch."""

    def __init__(self, plan: WritePlan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskDone:
        return TaskDone(run_task(self._plan, iterator, current_place()))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        _commit(self._plan, messages, batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        _abort(self._plan, messages, batchId)


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
