"""A Spark data source that writes DataFrames to Service Bus with failover, peeks queues, and drains the backlog.

import sbclient_spark

sbclient_spark.register(spark)
df.write.format("servicebus").mode("append").options(connectionString=..., queue="orders").save()
"""

from __future__ import annotations

import logging

from pyspark.sql import SparkSession

from sbclient_spark.drain.drain import drain, drain_continuously
from sbclient_spark.java import ensure_java
from sbclient_spark.jobs import activate
from sbclient_spark.log import log_event
from sbclient_spark.read.held_sessions import HeldSessions
from sbclient_spark.read.preview import preview
from sbclient_spark.read.receive_stream import find_orphans
from sbclient_spark.source import ServiceBusDataSource
from sbclient_spark.table_options import defaults_of
from sbclient_spark.workers import check_worker_python
from sbclient_spark.write.progress import ProgressListener, report_progress
from sbclient_spark.write.repartition import repartition_by_session
from sbclient_spark.write.reported_write import write_with_report

__all__ = [
    "HeldSessions",
    "ProgressListener",
    "ServiceBusDataSource",
    "drain",
    "drain_continuously",
    "ensure_java",
    "find_orphans",
    "preview",
    "register",
    "repartition_by_session",
    "report_progress",
    "write_with_report",
]


def register(spark: SparkSession) -> None:
    """Register the format `servicebus` in a session. The package must be installed on the executors too.

    Call it once in each Python thread that uses the format, too: Spark looks for formats in the active session of the
    thread. The configuration of Spark is read once: after a change of `spark.servicebus.<option>`, register again.

    Logs a warning if `spark.speculation` is on: two attempts of a task may then send the same rows. Equal message ids
    and duplicate detection drop the second copy.

    Raises:
        InvalidOperationError: the configuration has an unknown option, a secret, or the name of a queue or topic; or
            the workers run a Python that lacks this package, which only a local master shows.
    """
    activate(spark)
    check_worker_python(spark)
    found: dict[str, str] = spark.conf.getAll
    facts = {
        "defaults": defaults_of(found),
        "pushes_filters": found.get("spark.sql.python.filterPushdown.enabled", "false") == "true",
    }
    # A class of its own is sent to the workers with its attributes; an imported one only by its name.
    spark.dataSource.register(type("ConfiguredDataSource", (ServiceBusDataSource,), facts))
    if spark.conf.get("spark.speculation", "false") == "true":
        advice = "use a messageIdMode other than random, and duplicate detection"
        log_event(
            "register.speculation_is_on", "spark.speculation is on: {advice}", {"advice": advice}, level=logging.WARNING
        )
