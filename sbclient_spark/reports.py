"""What a write reports: the account of each task, and what became of the whole."""

from __future__ import annotations

import json
import logging
from array import array
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from sbclient.clock import Clock
from sbclient.telemetry.log import sentence

log: Final = logging.getLogger("sbclient_spark")
"""With `spark.sql.pyspark.worker.logging.enabled` what is logged here, the facts included, is found in
`spark.tvf.python_worker_logs()`."""

log.setLevel(logging.INFO)  # Spark keeps what a logger lets through, and the reports of tasks are no warnings


@dataclass(slots=True, kw_only=True)
class TaskReport:
    """What one attempt of a task did.

    Attributes:
        partition, attempt: which.
        destination: where the rows went.
        rows: rows that were read.
        sent: rows that were acknowledged, by the primary or by a backlog queue.
        bytes: encoded bytes of these.
        batches: transfers that were acknowledged.
        diverted: how many of `sent` wait in a backlog queue for a syphon.
        retried: transfers that the task sent again, beyond the client's own retries.
        throttled: sends that ended with a busy service, beyond the client's own waiting.
        row_errors: rows that could not be sent, by `onRowError` or `onSendError`.
        in_doubt: rows that failed the task, or are among `row_errors`, of which nobody knows whether they arrived.
        p50_ms, p99_ms, max_ms: of one transfer, from its first try to its acknowledgement.
        connect_ms: to open the client; 0 where it was open already.
        paced_ms: waiting that the rate limits asked for, summed over all lanes.
        failovers, recoveries: of destinations, seen by this task's process.
        is_unpaired: the secondary could not be reached, so that this task had no failover.
        bad_records: the file of the rows that could not be sent.
        seconds: from the first row to the last acknowledgement.
    """

    partition: int = 0
    attempt: int = 0
    destination: str = ""
    rows: int = 0
    sent: int = 0
    bytes: int = 0
    batches: int = 0
    diverted: int = 0
    retried: int = 0
    throttled: int = 0
    row_errors: int = 0
    in_doubt: int = 0
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    max_ms: float = 0.0
    connect_ms: float = 0.0
    paced_ms: float = 0.0
    failovers: int = 0
    recoveries: int = 0
    is_unpaired: bool = False
    bad_records: str | None = None
    seconds: float = 0.0

    def set_latencies(self, spans_ms: array[float]) -> None:
        """Fill in the percentiles."""
        if spans_ms:
            ordered = sorted(spans_ms)
            self.p50_ms, self.p99_ms, self.max_ms = (
                round(ordered[min(int(len(ordered) * part), len(ordered) - 1)], 1) for part in (0.5, 0.99, 1.0)
            )


REPORT_SCHEMA: Final = (
    "partition int, attempt int, destination string, rows long, sent long, bytes long, batches long, diverted long, "
    "retried long, throttled long, row_errors long, in_doubt long, p50_ms double, p99_ms double, max_ms double, "
    "connect_ms double, paced_ms double, failovers int, recoveries int, is_unpaired boolean, bad_records string, "
    "seconds double"
)
"""A `TaskReport` as a row of a DataFrame, in the order of its fields."""

_SUMS: Final = (
    "rows",
    "sent",
    "bytes",
    "batches",
    "diverted",
    "retried",
    "throttled",
    "row_errors",
    "failovers",
    "recoveries",
)


@dataclass(slots=True, kw_only=True)
class WriteReport:
    """What a whole batch, or micro-batch, did.

    Attributes:
        outcome: `commit` or `abort`.
        batch_id: of the micro-batch; None for a batch job.
        tasks: tasks that succeeded, in their last attempt.
        failed_tasks: tasks whose report is missing; what they sent before they failed is in their error and log.
        totals: of the tasks that succeeded; what their earlier attempts sent is not in it.
        unpaired_tasks: tasks that had no failover, since the secondary could not be reached.
        bad_records: files of rows that could not be sent.
    """

    outcome: str
    destination: str
    batch_id: int | None = None
    tasks: int = 0
    failed_tasks: int = 0
    totals: dict[str, int] = field(default_factory=dict)
    max_ms: float = 0.0
    unpaired_tasks: int = 0
    bad_records: list[str] = field(default_factory=list)


def summary(
    outcome: str, destination: str, reports: Sequence[TaskReport | None], *, batch_id: int | None = None
) -> WriteReport:
    """The account of a whole batch; None stands for a task without a report."""
    told = [report for report in reports if report is not None]
    return WriteReport(
        outcome=outcome,
        destination=destination,
        batch_id=batch_id,
        tasks=len(told),
        failed_tasks=len(reports) - len(told),
        totals={name: sum(getattr(report, name) for report in told) for name in _SUMS},
        max_ms=max((report.max_ms for report in told), default=0.0),
        unpaired_tasks=sum(report.is_unpaired for report in told),
        bad_records=[report.bad_records for report in told if report.bad_records],
    )


def tell(event: str, message: str, facts: dict[str, Any], *, level: int = logging.INFO) -> None:
    """Log an event; its name and facts form the `context` of a row of Spark's worker logs."""
    if log.isEnabledFor(level):
        context = {name: str(value) for name, value in (facts | {"event_name": event}).items()}
        log.log(level, sentence(message, facts), extra={"event_name": event, "context": context})


def publish(report: WriteReport, *, metrics_path: str | None, metrics_log: bool) -> None:
    """Log a whole batch and add it to the metrics file. Never raises: a report must not fail what was sent."""
    facts = asdict(report)
    level = logging.WARNING if report.outcome == "abort" or report.unpaired_tasks else logging.INFO
    if metrics_log:
        message = "{outcome} of the write to {destination!r}: {sent} of {rows} rows sent"
        tell(f"write.{report.outcome}", message, facts.pop("totals") | facts, level=level)
    if metrics_path is None:
        return
    facts = asdict(report)
    line = json.dumps({"at": Clock().now(), **facts.pop("totals"), **facts}, ensure_ascii=False)
    try:
        path = Path(metrics_path)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
    except OSError as error:
        tell(
            "metrics.not_written",
            "cannot write metrics to {path!r}: {error}",
            {"path": metrics_path, "error": type(error).__name__},
            level=logging.WARNING,
        )
