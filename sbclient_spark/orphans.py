"""Lists what a stream with `mode` receive has deferred and no micro-batch names."""

from __future__ import annotations

import json
from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, lit

from sbclient_spark.option_table import SPARK_OPTIONS
from sbclient_spark.stream_offsets import QueueOffset, ranges_of

FORMAT = "servicebus"


def find_orphans(spark: SparkSession, checkpoint: str, *, options: Mapping[str, str]) -> DataFrame:
    """Return the deferred messages of a queue that the last micro-batch in a checkpoint does not name.

    Stop the query before: a running one defers messages before it writes their numbers. To read orphans, start the
    query with the option `orphans` set to `take`; to remove one, receive it by its sequence number and complete it.

    Args:
        checkpoint: the checkpoint location, in any file system that Spark reads.
        options: of the data source: the namespace and the queue.

    Returns:
        The messages with the columns of a batch read.
    """
    lines = spark.read.text(f"{checkpoint.rstrip('/')}/offsets").select("value", "_metadata.file_name").collect()
    last = max((int(row.file_name) for row in lines if row.file_name.isdecimal()), default=None)
    named: list[int] = []
    for row in lines:
        if row.file_name == str(last) and row.value.startswith("{"):
            for queue in json.loads(row.value).get("queues", {}).values():
                offset = QueueOffset.of_json(queue)
                named += offset.numbers + offset.open
    known = {name: value for name, value in options.items() if name.lower() not in (*SPARK_OPTIONS, "mode", "orphans")}
    found = spark.read.format(FORMAT).options(**known).load().where(col("state") == "deferred")
    is_named = lit(False)
    for low, high in ranges_of(named):
        is_named = is_named | col("sequence_number").between(low, high)
    return found.where(~is_named)
