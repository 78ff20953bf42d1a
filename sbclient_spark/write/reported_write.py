"""A batch write that returns the reports of its tasks as a DataFrame."""

# mypy: disallow-subclassing-any=False

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Any, NamedTuple
from urllib.parse import urlsplit
from uuid import uuid4

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from sbclient_spark.jobs import described
from sbclient_spark.source import ServiceBusDataSource, ServiceBusWriter, TaskDone
from sbclient_spark.table_options import defaults_of, known_defaults, merged
from sbclient_spark.write.options import WRITE_TABLE
from sbclient_spark.write.reports import REPORT_SCHEMA, TaskReport, metrics_line, publish, summary
from sbclient_spark.write.task import TaskResult, WritePlan, check_sessions, current_place, plan_write, run_task

_ARROW = {"int": pa.int32(), "long": pa.int64(), "double": pa.float64(), "string": pa.string(), "boolean": pa.bool_()}
_FIELDS = [part.strip().split(" ") for part in REPORT_SCHEMA.split(",")]
ARROW_SCHEMA = pa.schema(
    [*((name, _ARROW[kind]) for name, kind in _FIELDS), ("sessions", pa.binary()), ("bad", pa.string())]
)

RESULTS_PATH = "resultspath"
"""The option that names the file of the results, in the form in which Spark passes it."""

COLLECTED = "sbclient-collected-"
"""Prefix of the directories of bad records that are sent to the process that has started the write."""


class _Result(NamedTuple):
    """The result of a task, and its collected bad records as lines."""

    task: TaskResult
    bad: str = ""

    def row(self) -> dict[str, Any]:
        return asdict(self.task.report) | {"sessions": self.task.sessions, "bad": self.bad}

    @classmethod
    def of_row(cls, row: dict[str, Any]) -> _Result:
        sessions, bad = bytes(row.pop("sessions")), row.pop("bad")
        return cls(TaskResult(TaskReport(**row), sessions), bad)


@dataclass
class _ReportedTask(TaskDone):
    """The result of a task with its collected bad records."""

    bad: str = ""


def _run(plan: WritePlan, batches: Iterator[pa.RecordBatch]) -> _Result:
    """Run a task; take its bad records along if they are to be collected."""
    result = run_task(plan, batches, current_place())
    path = result.report.bad_records
    if path is None or not Path(path).parent.name.startswith(COLLECTED):
        return _Result(result)
    bad = Path(path).read_text(encoding="utf-8")
    Path(path).unlink()
    with suppress(OSError):  # another task of this machine may still write
        Path(path).parent.rmdir()
    return _Result(result, bad)


class _Task:
    """Sends the rows of one task and yields its report as one row."""

    def __init__(self, plan: WritePlan) -> None:
        self._plan = plan

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pylist([_run(self._plan, batches).row()], schema=ARROW_SCHEMA)


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

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskDone:
        found = _run(self._plan, iterator)
        return _ReportedTask(found.task, found.bad)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        rows = [_Result(one.result, one.bad).row() for one in messages if isinstance(one, _ReportedTask)]
        texts = [row | {"sessions": row["sessions"].hex()} for row in rows]
        Path(self._results_path).write_text(json.dumps(texts), encoding="utf-8")


def write_with_report(df: DataFrame, options: Mapping[str, str]) -> DataFrame:
    """Write a batch of rows at once and return the report of each task.

    Here `metricsPath` and `badRecordsPath` may also be folders of a file system of Spark, such as `abfss`, `dbfs` or
    `s3a`. Spark then adds a file of JSON lines. Bad records are collected in memory and written after a successful job.

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
    metrics_folder = texts.pop("metricspath") if is_foreign(texts.get("metricspath")) else None
    bad_folder = texts.get("badrecordspath") if is_foreign(texts.get("badrecordspath")) else None
    if bad_folder is not None:
        texts["badrecordspath"] = f"{gettempdir()}/{COLLECTED}{uuid4()}"
    spark = df.sparkSession
    plan = plan_write(df.schema, texts, is_streaming=False)
    with described(spark, f"servicebus: write to {plan.destination}"):
        is_remote = getattr(spark, "sparkContext", None) is None
        results = _by_mapping(df, plan) if is_remote else _by_writing(df, texts)
        if bad_folder is not None:
            add_lines(spark, bad_folder, [line for result in results for line in result.bad.splitlines()])
            for result in results:
                result.task.report.bad_records = bad_folder if result.bad else None
        report = summary("commit", plan.destination, [result.task.report for result in results])
        if metrics_folder is not None:
            add_lines(spark, metrics_folder, [metrics_line(report)])
    publish(report, metrics_path=plan.options.metrics_path, metrics_log=plan.options.metrics_log)
    if plan.options.ordering == "session":
        check_sessions(result.task for result in results)
    reports = [tuple(asdict(result.task.report).values()) for result in results]
    return spark.createDataFrame(reports, REPORT_SCHEMA)


def is_foreign(path: str | None) -> bool:
    """Whether a path is not of the local file system."""
    return path is not None and urlsplit(path).scheme not in ("", "file")


def add_lines(spark: SparkSession, folder: str, lines: Sequence[str]) -> None:
    """Add a file of lines to a folder of any file system that Spark is configured for."""
    if lines:
        rows = spark.createDataFrame([(line,) for line in lines], "value string")
        rows.coalesce(1).write.mode("append").text(folder)


def _by_writing(df: DataFrame, options: Mapping[str, str]) -> list[_Result]:
    """Write with a data source whose commit runs on this machine."""
    with TemporaryDirectory(prefix="sbclient-") as folder:
        path = Path(folder) / "results.json"
        df.sparkSession.dataSource.register(ReportedDataSource)
        writer = df.write.format(ReportedDataSource.name()).mode("append")
        writer.options(**options, **{RESULTS_PATH: str(path)}).save()
        rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
        return [_Result.of_row(row | {"sessions": bytes.fromhex(row["sessions"])}) for row in rows]


def _by_mapping(df: DataFrame, plan: WritePlan) -> list[_Result]:
    """Write with `mapInArrow`, for Spark Connect, whose driver may be another machine. Its client has pandas."""
    rows = df.mapInArrow(_Task(plan), f"{REPORT_SCHEMA}, sessions binary, bad string").collect()
    return [_Result.of_row(row.asDict()) for row in rows]
