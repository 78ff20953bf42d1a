"""The log of the connector: events with facts."""

from __future__ import annotations

import logging
from typing import Any, Final

from sbclient.telemetry.log import sentence

log: Final = logging.getLogger("sbclient_spark")
"""With `spark.sql.pyspark.worker.logging.enabled` what is logged here, the facts included, is found in
`spark.tvf.python_worker_logs()`."""

log.setLevel(logging.INFO)  # Spark keeps what a logger lets through, and the reports of tasks are no warnings


def log_event(event: str, message: str, facts: dict[str, Any], *, level: int = logging.INFO) -> None:
    """Log an event; its name and facts form the `context` of a row of Spark's worker logs."""
    if log.isEnabledFor(level):
        context = {name: str(value) for name, value in (facts | {"event_name": event}).items()}
        log.log(level, sentence(message, facts), extra={"event_name": event, "context": context})
