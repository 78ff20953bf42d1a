"""A look at a queue."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession

from sbclient_spark.jobs import activate

COLUMNS = ("sequence_number", "enqueued_time", "state", "message_id", "session_id", "subject", "delivery_count", "body")


def preview(spark: SparkSession, options: Mapping[str, str], *, messages: int = 20) -> DataFrame:
    """Return the first messages of a queue or subscription, without taking or locking any.

    Args:
        options: of a batch read: the namespace and the queue, or `subQueue` for dead letters.
        messages: the largest number of messages.

    Returns:
        The columns that tell most about a message, with the body as text; `spark.read` returns all columns.

    Raises:
        AnalysisException: an option is unknown or invalid.
        TypeError: the options are not a mapping.
    """
    if not isinstance(options, Mapping):
        raise TypeError(
            f"the options are of type {type(options).__name__}: give a mapping, such as "
            "{'connectionString': …, 'queue': 'orders'}"
        )
    activate(spark)
    chosen = {name: str(value) for name, value in options.items()} | {
        "bodyType": "string",
        "maxMessages": str(messages),
    }
    found = spark.read.format("servicebus").options(**chosen).load()
    return found.select(*COLUMNS).orderBy("enqueued_time", "sequence_number").limit(messages)
