"""Reports what each micro-batch of a stream wrote, to the log and to OpenTelemetry.

Spark's `StreamingQueryProgress` has only the number of rows of a Python sink. The commit of a micro-batch runs in
another process on the driver and writes its report to `metricsPath`, from which a listener reads it.
"""

# mypy: disallow-subclassing-any=False

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

from sbclient_spark.log import log_event

COUNTERS: Final = ("rows", "sent", "diverted", "retried", "throttled", "row_errors", "in_doubt", "failed_tasks")
"""The counts of a micro-batch that are reported."""


class ProgressListener(StreamingQueryListener):
    """Reports the lines that are added to a metrics file.

    Args:
        metrics_path: the value of `metricsPath` of the query, one file per query.
        meter_provider: of OpenTelemetry, such as `opentelemetry.metrics.get_meter_provider()`; None = no metrics.
    """

    def __init__(self, metrics_path: str, meter_provider: Any = None) -> None:
        self._path = Path(metrics_path.removeprefix("file:"))
        self._read_bytes = self._path.stat().st_size if self._path.exists() else 0
        self._counters: dict[str, Any] = {}
        self._latency: Any = None
        if meter_provider is not None:
            meter = meter_provider.get_meter("sbclient_spark")
            self._counters = {name: meter.create_counter(f"sbclient.spark.{name}") for name in COUNTERS}
            self._latency = meter.create_histogram("sbclient.spark.transfer.max", unit="ms")

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        """Do nothing."""

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        self.report()

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        self.report()

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        self.report()

    def report(self) -> None:
        """Report the complete lines since the last call."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._read_bytes)
            lines = file.read().splitlines(keepends=True)
        for line in lines:
            if line.endswith(b"\n"):
                self._read_bytes += len(line)
                self._report(json.loads(line))

    def _report(self, found: dict[str, Any]) -> None:
        names = ("batch_id", "destination", "outcome", "max_ms", *COUNTERS)
        facts = {name: found[name] for name in names}
        log_event("stream.batch", "micro-batch {batch_id} of {destination!r}: {sent} of {rows} rows sent", facts)
        attributes = {"messaging.destination.name": found["destination"], "outcome": found["outcome"]}
        for name, counter in self._counters.items():
            counter.add(found[name], attributes)
        if self._latency is not None:
            self._latency.record(found["max_ms"], attributes)


def report_progress(spark: SparkSession, metrics_path: str, *, meter_provider: Any = None) -> ProgressListener:
    """Report each micro-batch of the query that writes with this `metricsPath`, as log event and metrics.

    Args:
        metrics_path: a path of the driver; with Spark Connect the driver must be on this machine.
        meter_provider: of OpenTelemetry, such as `opentelemetry.metrics.get_meter_provider()`; None = no metrics.

    Returns:
        The listener, for `spark.streams.removeListener`.
    """
    listener = ProgressListener(metrics_path, meter_provider)
    spark.streams.addListener(listener)
    return listener
