"""`readStream` in Spark: each message once over restarts, in every mode."""

from __future__ import annotations

import json
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from sbclient_spark.read.held_sessions import HeldSessions
from sbclient_spark.read.stream import HAS_ADMISSION_CONTROL
from tests.spark.test_on_spark import frame, write
from tests.stage.pair import EmulatedPair


def run(spark: SparkSession, pair: EmulatedPair, folder: Path, **options: Any) -> list[int]:
    """Run a query until it has read what is there; return the numbers it has written so far."""
    return run_with_progress(spark, pair, folder, **options)[0]


def run_with_progress(
    spark: SparkSession, pair: EmulatedPair, folder: Path, **options: Any
) -> tuple[list[int], list[Any]]:
    reading = spark.readStream.format("servicebus").options(**pair.reading(**options)).load()
    rows = reading.selectExpr("cast(cast(body as string) as long) as number", "sequence_number")
    query = (
        rows.writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(folder / "found"))
    )
    assert query.awaitTermination(120)
    found = sorted(row.number for row in spark.read.parquet(str(folder / "found")).collect())
    return found, [json.loads(each.json) for each in query.recentProgress]


def progress_in(event: dict[str, Any]) -> dict[str, Any] | None:
    """The progress of a query that an event of the event log reports."""
    progress = event.get("progress")
    if not event["Event"].endswith("QueryProgressEvent"):
        return None
    return json.loads(progress) if isinstance(progress, str) else progress


def metrics_of(node: str, events: list[dict[str, Any]]) -> set[str]:
    """The names of the metrics of a node that the SQL page shows."""
    plans = [event["sparkPlanInfo"] for event in events if "sparkPlanInfo" in event]
    names: set[str] = set()
    while plans:
        plan = plans.pop()
        plans += plan["children"]
        if plan["nodeName"].startswith(node):
            names |= {metric["name"] for metric in plan["metrics"]}
    return names


def test_a_stream_of_a_queue_reads_each_message_once_over_restarts(
    spark: SparkSession, pair: EmulatedPair, tmp_path: Path
) -> None:
    orders = pair.create_queue("orders")
    for batch in range(2):
        write(frame(spark, 300), pair, queue=orders)
        assert len(run(spark, pair, tmp_path, queue=orders)) == 300 * (batch + 1)
    assert pair.count(orders) == 600


def test_a_stream_that_receives_empties_the_queue(
    spark: SparkSession, pair: EmulatedPair, tmp_path: Path, event_logs: Path
) -> None:
    orders = pair.create_queue("orders", enable_partitioning=True)
    write(frame(spark, 200, partitions=4), pair, queue=orders)
    options = {"queue": orders, "mode": "receive"} | ({"maxMessagesPerTrigger": 150} if HAS_ADMISSION_CONTROL else {})
    found, progress = run_with_progress(spark, pair, tmp_path, **options)
    assert found == list(range(200))
    if HAS_ADMISSION_CONTROL:
        assert [each["sources"][0]["numInputRows"] for each in progress] == [150, 50]
        shown = progress[0]["sources"][0]["latestOffset"]
        assert shown["maxMessagesPerTrigger"] == 150
        assert shown["queues"][orders]["backlog"] == 50
        assert shown["queues"][orders]["oldestAgeSeconds"] >= 0
        (log,) = event_logs.iterdir()
        events = [json.loads(line) for line in log.read_text().splitlines()]
        logged = [each["sources"][0]["latestOffset"] for each in map(progress_in, events) if each]
        assert shown in [json.loads(offset) for offset in logged if offset]  # other queries read files
        # Spark has no way for a Python source or sink to add metrics of its own to these.
        assert metrics_of("MicroBatchScan", events) == {
            "data returned from Python workers",
            "data sent to Python workers",
            "number of output rows",
        }
    if not HAS_ADMISSION_CONTROL:  # Spark then plans no further micro-batch
        assert run(spark, pair, tmp_path, **options) == list(range(200))
    assert pair.count(orders) == 0


@pytest.mark.skipif(HAS_ADMISSION_CONTROL, reason="PySpark has limits from 4.2")
def test_limits_are_refused_at_load_with_the_version(spark: SparkSession, pair: EmulatedPair) -> None:
    with pytest.raises(AnalysisException, match=rf"needs? PySpark 4.2, and this is {pyspark.__version__}"):
        spark.readStream.format("servicebus").options(**pair.reading(queue="q", maxMessagesPerTrigger=5)).load()


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
        options = pair.reading(queue=orders, mode="receive")
        reading = spark.readStream.format("servicebus").options(**options).load()
        writer = reading.writeStream.option("checkpointLocation", str(tmp_path)).foreachBatch(once)
        assert writer.trigger(availableNow=True).start().awaitTermination(120)

    with pytest.raises(StreamingQueryException, match="the sink is broken"):
        start()
    is_broken = False
    start()
    assert sorted(found) == list(range(100))


def test_sessions_are_locked_for_a_long_batch_streamed_in_order_and_replayed_in_order(
    spark: SparkSession, pair: EmulatedPair, tmp_path: Path
) -> None:
    lock_s = 5
    orders = pair.create_queue("orders", requires_session=True, lock_duration=timedelta(seconds=lock_s))
    rows = spark.range(0, 300, 1, 1).selectExpr("cast(id as string) as body", "cast(id % 30 as string) as session_id")
    write(rows, pair, queue=orders, messageIdMode="random")
    attempts: list[dict[str, list[int]]] = []
    fails_at = 2 if HAS_ADMISSION_CONTROL else 1

    def once(batch: DataFrame, number: int) -> None:
        found: dict[str, list[int]] = {}
        for row in batch.select("session_id", "body").collect():
            found.setdefault(row.session_id, []).append(int(row.body))
        attempts.append(found)
        if len(attempts) == 1:
            time.sleep(lock_s + 1)
            held, session = HeldSessions(pair.reading(queue=orders)), next(iter(found))
            held.set_state(session, b"seen")  # raises SessionLockLostError if the lock was not renewed
            assert held.get_state(session) == b"seen"
        if len(attempts) == fails_at:
            raise RuntimeError("the sink is broken")

    def start() -> None:
        options = pair.reading(queue=orders, mode="receive", minPartitions=2)
        if HAS_ADMISSION_CONTROL:
            options["maxMessagesPerTrigger"] = "100"
        reading = spark.readStream.format("servicebus").options(**options, bodyType="string").load()
        writer = reading.writeStream.option("checkpointLocation", str(tmp_path)).foreachBatch(once)
        assert writer.trigger(availableNow=True).start().awaitTermination(120)

    with pytest.raises(StreamingQueryException, match="the sink is broken"):
        start()
    start()
    failed = attempts.pop(fails_at - 1)
    assert attempts[fails_at - 1] == failed
    found: dict[str, list[int]] = {}
    for batch in attempts:
        for session, numbers in batch.items():
            found.setdefault(session, []).extend(numbers)
    assert found == {str(session): list(range(session, 300, 30)) for session in range(30)}
    if not HAS_ADMISSION_CONTROL:
        start()
    assert pair.count(orders) == 0


def test_what_a_stream_cannot_do_is_an_error_in_words(spark: SparkSession, pair: EmulatedPair, tmp_path: Path) -> None:
    orders = pair.create_queue("orders")
    with pytest.raises(StreamingQueryException, match="has no sessions") as caught:
        run(spark, pair, tmp_path, queue=orders, sessions="all")
    assert "SAS_KEY_VALUE" not in str(caught.value)
    with pytest.raises(StreamingQueryException, match="'peek'") as caught:
        run(spark, pair, tmp_path / "new", queue=orders, mode="receive", startingSequenceNumber=5)
    assert "UnboundLocalError" not in str(caught.value)  # of Spark, which may hide ours
