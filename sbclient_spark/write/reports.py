"""The reports of a write: the counts of each task and of the whole batch, and the sessions that several tasks had."""

from __future__ import annotations

import json
import logging
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields
from hashlib import blake2b
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from sbclient import clock
from sbclient_spark.log import log_event


@dataclass(slots=True, kw_only=True)
class TaskReport:
    """The counts of one attempt of a task.

    Attributes:
        rows: rows that were read.
        sent: rows that the primary or a backlog queue accepted.
        bytes: encoded bytes of these.
        batches: accepted transfers.
        diverted: rows of `sent` that are in a backlog queue.
        retried: transfers that the task repeated, after the client's own retries.
        throttled: sends that failed with a busy server, after the client's own retries.
        row_errors: rows that could not be sent, by `onRowError` or `onSendError`.
        in_doubt: rows that failed the task or are in `row_errors`, and may have been sent.
        p50_ms, p99_ms, max_ms: of one transfer, from the first attempt to the acknowledgement.
        connect_ms: the time to open the client; 0 if it was open.
        paced_ms: the time spent waiting for rate limits, summed over all lanes.
        failovers, recoveries: of destinations, as seen by the process of the task.
        is_unpaired: the secondary was unreachable, so the task had no failover.
        bad_records: the file of rows that could not be sent.
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

    def set_latencies(self, latencies_ms: array[float]) -> None:
        """Fill in the percentiles."""
        if latencies_ms:
            ordered = sorted(latencies_ms)
            self.p50_ms, self.p99_ms, self.max_ms = (
                round(ordered[min(int(len(ordered) * part), len(ordered) - 1)], 1) for part in (0.5, 0.99, 1.0)
            )


_TYPES: Final = {"str": "string", "float": "double", "bool": "boolean", "str | None": "string"}
_SMALL: Final = ("partition", "attempt", "failovers", "recoveries")

REPORT_SCHEMA: Final = ", ".join(
    f"{one.name} {_TYPES.get(str(one.type), 'int' if one.name in _SMALL else 'long')}" for one in fields(TaskReport)
)
"""The columns of a `TaskReport` in a DataFrame, in the order of its fields."""

_SUMS: Final = [
    one.name for one in fields(TaskReport) if one.type == "int" and one.name not in ("partition", "attempt")
]


@dataclass(slots=True, kw_only=True)
class WriteReport:
    """The counts of a batch or micro-batch.

    Attributes:
        outcome: `commit` or `abort`.
        batch_id: of the micro-batch; None for a batch job.
        tasks: successful tasks, by their last attempt.
        failed_tasks: tasks without a report; their error and log have their counts.
        totals: of the successful tasks, without their earlier attempts.
        unpaired_tasks: tasks without failover, because the secondary was unreachable.
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
    """Return the report of a batch; None stands for a task without a report."""
    present = [report for report in reports if report is not None]
    return WriteReport(
        outcome=outcome,
        destination=destination,
        batch_id=batch_id,
        tasks=len(present),
        failed_tasks=len(reports) - len(present),
        totals={name: sum(getattr(report, name) for report in present) for name in _SUMS},
        max_ms=max((report.max_ms for report in present), default=0.0),
        unpaired_tasks=sum(report.is_unpaired for report in present),
        bad_records=[report.bad_records for report in present if report.bad_records],
    )


def metrics_line(report: WriteReport) -> str:
    """Return a report as a line of JSON."""
    facts = asdict(report)
    return json.dumps({"at": clock.now(), **facts.pop("totals"), **facts}, ensure_ascii=False)


def publish(report: WriteReport, *, metrics_path: str | None, metrics_log: bool) -> None:
    """Log a whole batch and add it to the metrics file. Never raises: a report must not fail what was sent."""
    facts = asdict(report)
    level = logging.WARNING if report.outcome == "abort" or report.unpaired_tasks else logging.INFO
    if metrics_log:
        message = "{outcome} of the write to {destination!r}: {sent} of {rows} rows sent"
        log_event(f"write.{report.outcome}", message, facts.pop("totals") | facts, level=level)
    if metrics_path is None:
        return
    line = metrics_line(report)
    try:
        path = Path(metrics_path)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
    except OSError as error:
        log_event(
            "metrics.not_written",
            "cannot write metrics to {path!r}: {error}",
            {"path": metrics_path, "error": type(error).__name__},
            level=logging.WARNING,
        )


DIGEST_BYTES: Final = 8

KEPT: Final = 2**17
"""Digests that a task reports: 1 MiB. Of more sessions it reports the smallest digests, which are a random sample and
the same one in every task, so that tasks remain comparable."""


class SessionDigests:
    """Collects the sessions of one task.

    Args:
        kept: the largest number of digests.
    """

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._found: set[int] = set()

    def add(self, path: str, session_ids: Iterable[str]) -> None:
        """Add sessions of one queue or topic."""
        prefix = blake2b(f"{path.casefold()}\n".encode(), digest_size=DIGEST_BYTES)
        for session_id in session_ids:
            digest = prefix.copy()
            digest.update(session_id.encode())
            self._found.add(int.from_bytes(digest.digest()))
        if len(self._found) > 2 * self._kept:
            self._found = set(self._smallest())

    def packed(self) -> bytes:
        """Return the digests one after the other."""
        return array("Q", self._smallest()).tobytes()

    def _smallest(self) -> list[int]:
        return sorted(self._found)[: self._kept]


def split_sessions(tasks: Iterable[bytes]) -> int:
    """Return how many sessions were in several tasks; a lower bound if a task had more than it reports.

    Args:
        tasks: the packed digests of each task.
    """
    arrays = [pa.Array.from_buffers(pa.uint64(), len(one) // DIGEST_BYTES, [None, pa.py_buffer(one)]) for one in tasks]
    if not arrays:
        return 0
    counts = pc.value_counts(pa.concat_arrays(arrays)).field("counts")
    return int(pc.sum(pc.greater(counts, 1)).as_py() or 0)
