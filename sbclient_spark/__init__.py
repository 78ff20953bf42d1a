"""Spark DataFrames written to Service Bus through the failover client, and its backlog brought home on Spark.

import sbclient_spark

sbclient_spark.register(spark)
df.write.format("servicebus").mode("append").options(connectionString=..., queue="orders").save()
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from sbclient_spark.drain import drain, drain_continuously
from sbclient_spark.java import ensure_java
from sbclient_spark.preparation import prepare
from sbclient_spark.reported_write import write_with_report
from sbclient_spark.source import ServiceBusDataSource

__all__ = [
    "ServiceBusDataSource",
    "drain",
    "drain_continuously",
    "ensure_java",
    "prepare",
    "register",
    "write_with_report",
]


def register(spark: SparkSession) -> None:
    """Make the format `servicebus` known to a session. The package must be installed on the executors too."""
    spark.dataSource.register(ServiceBusDataSource)
