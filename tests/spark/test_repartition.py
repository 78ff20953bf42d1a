from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  (Spark's own custom)

import sbclient_spark
from sbclient.errors import InvalidOperationError


def test_each_session_is_in_one_partition_and_in_order(spark: SparkSession) -> None:
    df = spark.range(0, 1000, 1, 8).selectExpr("string(id % 37) as session_id", "1000 - id as seq", "id")
    prepared = sbclient_spark.repartition_by_session(df, order_by=["seq", "id"], partitions=4)
    rows = prepared.withColumn("partition", F.spark_partition_id()).collect()
    places: dict[str, set[int]] = {}
    sequences: dict[str, list[int]] = {}
    for row in rows:
        places.setdefault(row.session_id, set()).add(row.partition)
        sequences.setdefault(row.session_id, []).append(row.seq)
    assert {len(partitions) for partitions in places.values()} == {1}
    assert len(set().union(*places.values())) == 4
    assert all(sequence == sorted(sequence) for sequence in sequences.values())


def test_a_missing_column_is_an_error(spark: SparkSession) -> None:
    df = spark.range(1).selectExpr("'a' as session_id")
    for order_by in ("seq", [], ["seq"]):
        with pytest.raises(InvalidOperationError):
            sbclient_spark.repartition_by_session(df, order_by=order_by, partitions=1)
    with pytest.raises(InvalidOperationError):
        sbclient_spark.repartition_by_session(df, order_by="session_id", partitions=0)
