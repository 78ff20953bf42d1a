"""A batch write that returns the reports of its tasks as a DataFrame."""

# mypy: disallow-subclassing-any=False

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from sbclient_spark.job_description import described
from sbclient_spark.reports import REPORT_SCHEMA, TaskReport, publish, summary
from sbclient_spark.source import ServiceBusDataSource, ServiceBusWriter, TaskDone
from sbclient_spark.table_options import defaults_of, known_defaults, merged
from sbclient_spark.write_options import WRITE_TABLE
from sbclient_spark.write_task import TaskResult, WritePlan, check_sessions, current_place, plan_write, run_task

_ARROW = {"int": pa.int32(), "long": pa.int64(), "double": pa.float64(), "string": pa.string(), "boolean": pa.bool_()}
_FIELDS = [part.strip().split(" ") for part in REPORT_SCHEMA.split(",")]
ARROW_SCHEMA = pa.schema([*((name, _ARROW[kind]) for name, kind in _FIELDS), ("sessions", pa.binary())])


RESULTS_PATH = "resultspath"
"""The option that names the file of the results, in the form in which Spark passes it."""


class _Task:
    """Sends the rows of one task and yields its report as one row."""

    def __init__(self, plan: WritePlan) -> None:
        self._plan = plan

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        result = run_task(self._plan, batches, current_place())
        row: dict[str, Any] = asdict(result.report) | {"sessions": b"".join(sorted(result.sessions))}
        yield pa.RecordBatch.from_pylist([row], schema=ARROW_SCHEMA)


class ReportedDataSource(ServiceBusDataSource):
    """The data source of `write_with_report`: its commit stores the results of the tasks in a file on the driver."""

    @classmethod
    def name(cls) -> str:
        return "servicebus_reported"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        options = self.for_write(schema)
        results_path = options.pop(RESULTS_PATH)
        plan = plan_write(schema, options, is_streaming=False, overwrite=overwrite)
        return _ReportedWriter(plan, results_path)


class _ReportedWriter(ServiceBusWriter):
    """Leaves the report of a successful write to the process that has started it."""

    def __init__(self, plan: WritePlan, results_path: str) -> None:
        super().__init__(plan)
        self._results_path = results_path

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        results = [message.result for message in messages if isinstance(message, TaskDone)]
        rows = [asdict(each.report) | {"sessions": b"".join(sorted(each.sessions)).hex()} for each in results]
        Path(self._results_path).write_text(json.dumps(rows), encoding="utf-8")


def write_with_report(df: DataFrame, options: Mapping[str, str]) -> DataFrame:
    """Write a batch of rows at once and return the report of each task.

    Args:
        options: of the data source.

    Returns:
        One row per task with the fields of `TaskReport`. It does not include earlier attempts of the task.

    Raises:
        ServiceBusError: the options, the columns or the destination are invalid; nothing was sent.
        PythonException: a task failed; the text names the row, the reason and the number of sent rows.
    """
    defaults = known_defaults(defaults_of(df.sparkSession.conf.getAll), WRITE_TABLE)
    texts = merged(defaults, {name: str(value) for name, value in options.items()})
    plan = plan_write(df.schema, texts, is_streaming=False)
    with described(df.sparkSession, f"servicebus: write to {plan.destination}"):
        is_remote = getattr(df.sparkSession, "sparkContext", None) is None
        results = _by_mapping(df, plan) if is_remote else _by_writing(df, texts)
    publish(
        summary("commit", plan.destination, [result.report for result in results]),
        metrics_path=plan.options.metrics_path,
        metrics_log=plan.options.metrics_log,
    )
    if plan.options.ordering == "session":
        check_sessions(results)
    reports = [tuple(asdict(result.report).values()) for result in results]
    return df.sparkSession.createDataFrame(reports, REPORT_SCHEMA)


def _by_writing(df: DataFrame, options: Mapping[str, str]) -> list[TaskResult]:
    """Write with a data source whose commit runs on this machine."""
    with TemporaryDirectory(prefix="sbclient-") as folder:
        path = Path(folder) / "results.json"
        df.sparkSession.dataSource.register(ReportedDataSource)
        writer = df.write.format(ReportedDataSource.name()).mode("append")
        writer.options(**options, **{RESULTS_PATH: str(path)}).save()
        return [_result(row) for row in json.loads(path.read_text(encoding="utf-8"))]


def _by_mapping(df: DataFrame, plan: WritePlan) -> list[TaskResult]:
    """Write with `mapInArrow`, for Spark Connect, whose driver may be another machine. Its client has pandas."""
    rows = df.mapInArrow(_Task(plan), f"{REPORT_SCHEMA}, sessions binary").collect()
    return [_result(row.asDict()) for row in rows]


def _result(row: dict[str, Any]) -> TaskResult:
    sessions = row.pop("sessions")
    packed = bytes.fromhex(sessions) if isinstance(sessions, str) else bytes(sessions)
    return TaskResult(TaskReport(**row), {packed[start : start + 8] for start in range(0, len(packed), 8)})
