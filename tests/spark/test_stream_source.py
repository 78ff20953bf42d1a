"""`readStream` in Spark: each message once over restarts, in every mode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from sbclient_spark.read.stream import HAS_ADMISSION_CONTROL
from tests.spark.emulated import EmulatedPair
from tests.spark.test_on_spark import frame, write

needs_limits = pytest.mark.skipif(not HAS_ADMISSION_CONTROL, reason="needs PySpark 4.2")


def run(spark: SparkSession, pair: EmulatedPair, folder: Path, **options: Any) -> list[int]:
    """Run a query until it has read what is there; return the numbers it has written so far."""
    reading = spark.readStream.format("servicebus").options(**pair.reading(**options)).load()
    rows = reading.selectExpr("cast(cast(body as string) as long) as number", "sequence_number")
    query = (
        rows.writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(folder / "found"))
    )
    assert query.awaitTermination(120)
    return sorted(row.number for row in spark.read.parquet(str(folder / "found")).collect())


def test_a_stream_of_a_queue_reads_each_message_once_over_restarts(
    spark: SparkSession, pair: EmulatedPair, tmp_path: Path
) -> None:
    orders = pair.create_queue("orders")
    for batch in range(2):
        write(frame(spark, 300), pair, queue=orders)
        assert len(run(spark, pair, tmp_path, queue=orders)) == 300 * (batch + 1)
    assert pair.count(orders) == 600


@needs_limits
def test_a_stream_that_receives_empties_the_queue_in_limited_batches(
    spark: SparkSession, pair: EmulatedPair, tmp_path: Path
) -> None:
    orders = pair.create_queue("orders", enable_partitioning=True)
    write(frame(spark, 200, partitions=4), pair, queue=orders)
    options = {"queue": orders, "mode": "receive", "maxMessagesPerTrigger": 150}
    assert run(spark, pair, tmp_path, **options) == list(range(200))
    assert pair.count(orders) == 0


def test_a_batch_that_fails_is_read_again_after_the_restart(
    spark: SparkSession, pair: EmulatedPair, tmp_path: Path
) -> None:
    orders = pair.create_queue("orders")
    write(frame(spark, 100), pair, queue=orders)
    found: list[int] = []
    is_broken = True

    def once(batch: DataFrame, number: int) -> None:
        rows = [int(bytes(row.body)) for row in batch.collect()]
        if is_broken:
            raise RuntimeError("the sink is broken")
        found.extend(rows)

    def start() -> None:
        options = pair.reading(queue=orders, mode="receive" if HAS_ADMISSION_CONTROL else "peek")
        reading = spark.readStream.format("servicebus").options(**options).load()
        writer = reading.writeStream.option("checkpointLocation", str(tmp_path)).foreachBatch(once)
        assert writer.trigger(availableNow=True).start().awaitTermination(120)

    with pytest.raises(StreamingQueryException, match="the sink is broken"):
        start()
    is_broken = False
    start()
    assert sorted(found) == list(range(100))


@needs_limits
def test_sessions_are_streamed_in_order_and_a_failed_batch_is_replayed_in_order(
    spark: SparkSession, pair: EmulatedPair, tmp_path: Path
) -> None:
    orders = pair.create_queue("orders", requires_session=True)
    rows = spark.range(0, 300, 1, 1).selectExpr("cast(id as string) as body", "cast(id % 30 as string) as session_id")
    write(rows, pair, queue=orders, messageIdMode="random")
    attempts: list[dict[str, list[int]]] = []

    def once(batch: DataFrame, number: int) -> None:
        found: dict[str, list[int]] = {}
        for row in batch.select("session_id", "body").collect():
            found.setdefault(row.session_id, []).append(int(row.body))
        attempts.append(found)
        if len(attempts) == 2:
            raise RuntimeError("the sink is broken")

    def start() -> None:
        options = pair.reading(queue=orders, mode="receive", maxMessagesPerTrigger=100, minPartitions=2)
        reading = spark.readStream.format("servicebus").options(**options, bodyType="string").load()
        writer = reading.writeStream.option("checkpointLocation", str(tmp_path)).foreachBatch(once)
        assert writer.trigger(availableNow=True).start().awaitTermination(120)

    with pytest.raises(StreamingQueryException, match="the sink is broken"):
        start()
    start()
    failed = attempts.pop(1)
    assert attempts[1] == failed
    found: dict[str, list[int]] = {}
    for batch in attempts:
        for session, numbers in batch.items():
            found.setdefault(session, []).extend(numbers)
    assert found == {str(session): list(range(session, 300, 30)) for session in range(30)}
    assert pair.count(orders) == 0


def test_what_a_stream_cannot_do_is_an_error_in_words(spark: SparkSession, pair: EmulatedPair, tmp_path: Path) -> None:
    orders = pair.create_queue("orders")
    with pytest.raises(StreamingQueryException, match="has no sessions") as caught:
        run(spark, pair, tmp_path, queue=orders, sessions="all")
    assert "SAS_KEY_VALUE" not in str(caught.value)
