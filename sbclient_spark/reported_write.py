"""A batch write that returns the reports of its tasks as a DataFrame."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from importlib.util import find_spec
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from sbclient.errors import InvalidOperationError
from sbclient_spark.job_description import described
from sbclient_spark.reports import REPORT_SCHEMA, TaskReport, publish, summary
from sbclient_spark.write_task import TaskResult, WritePlan, check_sessions, current_place, plan_write, run_task

_ARROW = {"int": pa.int32(), "long": pa.int64(), "double": pa.float64(), "string": pa.string(), "boolean": pa.bool_()}
_FIELDS = [part.strip().split(" ") for part in REPORT_SCHEMA.split(",")]
ARROW_SCHEMA = pa.schema([*((name, _ARROW[kind]) for name, kind in _FIELDS), ("sessions", pa.binary())])


class _Task:
    """Sends the rows of one task and yields its report as one row."""

    def __init__(self, plan: WritePlan) -> None:
        self._plan = plan

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        result = run_task(self._plan, batches, current_place())
        row: dict[str, Any] = asdict(result.report) | {"sessions": b"".join(sorted(result.sessions))}
        yield pa.RecordBatch.from_pylist([row], schema=ARROW_SCHEMA)


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
    if find_spec("pandas") is None:
        raise InvalidOperationError("write_with_report uses mapInArrow, which requires pandas: install it")
    plan = plan_write(df.schema, options, is_streaming=False)
    with described(df.sparkSession, f"servicebus: write to {plan.destination}"):
        rows = df.mapInArrow(_Task(plan), f"{REPORT_SCHEMA}, sessions binary").collect()
    results = [_result(row.asDict()) for row in rows]
    publish(
        summary("commit", plan.destination, [result.report for result in results]),
        metrics_path=plan.options.metrics_path,
        metrics_log=plan.options.metrics_log,
    )
    if plan.options.ordering == "session":
        check_sessions(results)
    reports = [tuple(asdict(result.report).values()) for result in results]
    return df.sparkSession.createDataFrame(reports, REPORT_SCHEMA)


def _result(row: dict[str, Any]) -> TaskResult:
    packed = bytes(row.pop("sessions"))
    return TaskResult(TaskReport(**row), {packed[start : start + 8] for start in range(0, len(packed), 8)})
