"""Structured Streaming: every row once over stops and restarts of the query."""

from __future__ import annotations

import os
import threading
from datetime import timedelta
from pathlib import Path
from time import sleep
from typing import Any, Final

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import sbclient_spark
from tests.stage.pair import SECONDARY, EmulatedPair

WINDOW: Final[dict[str, Any]] = {
    "requires_duplicate_detection": True,
    "duplicate_detection_history_time_window": timedelta(hours=2),
}
FILES: Final = 4
ROWS: Final = 200


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Files of numbers, one for each micro-batch."""
    folder = tmp_path / "source"
    folder.mkdir()
    for number in range(FILES):
        lines = (str(number * ROWS + row) for row in range(ROWS))
        path = folder / f"{number}.txt"
        path.write_text("\n".join(lines))
        os.utime(path, (1_700_000_000 + number,) * 2)  # the order in which Spark takes them
    return folder


def start(spark: SparkSession, pair: EmulatedPair, source: Path, **options: Any) -> StreamingQuery:
    """A query over the files, whose place is kept beside them."""
    rows = spark.readStream.option("maxFilesPerTrigger", 1).text(str(source)).withColumnRenamed("value", "body")
    writer = rows.writeStream.format("servicebus").option("checkpointLocation", str(source.parent / "checkpoint"))
    return writer.options(**pair.options(**options)).trigger(availableNow=True).start()


def end(query: StreamingQuery) -> None:
    assert query.awaitTermination(120)


def numbers(pair: EmulatedPair, orders: str) -> list[int]:
    return sorted(int(str(message)) for message in pair.take(orders))


def test_a_query_that_fails_in_mid_batch_replays_it_with_the_same_ids(
    spark: SparkSession, pair: EmulatedPair, source: Path
) -> None:
    orders = pair.create_queue("orders", **WINDOW)
    options: dict[str, Any] = {"failover": "primary", "maxRetries": 0, "sendTimeout": "2 s"}

    def cut_in_mid_batch() -> None:
        while pair.count(orders) < ROWS + ROWS // 3:
            sleep(0.01)
        pair.cut()

    cut = threading.Thread(target=cut_in_mid_batch)
    cut.start()
    with pytest.raises(StreamingQueryException) as caught:
        end(start(spark, pair, source, queue=orders, maxBatchMessages=20, maxMessagesPerSecond=200, **options))
    cut.join()
    assert "SAS_KEY_VALUE" not in str(caught.value)
    before = pair.count(orders)
    assert 0 < before < FILES * ROWS
    assert before % ROWS, "the outage came between two batches"
    pair.heal()
    end(start(spark, pair, source, queue=orders))
    assert numbers(pair, orders) == list(range(FILES * ROWS))


def test_a_continuous_drain_moves_new_messages(spark: SparkSession, pair: EmulatedPair) -> None:
    orders = pair.create_queue("orders", **WINDOW)
    pair.cut(SECONDARY)
    options = pair.reading(**{"sbclient.retry_total": 0})
    drain = sbclient_spark.drain_continuously(spark, every="1 second", options=options)
    try:
        while not drain.recentProgress:
            assert drain.isActive, drain.exception()
            sleep(0.1)
        pair.heal()
        rows = spark.range(200).selectExpr("cast(id as string) as body", "string(id) as message_id")
        options = pair.options(queue=orders, failover="backlog")
        rows.write.format("servicebus").mode("append").options(**options).save()
        while pair.count(orders) < 200:
            assert drain.isActive, drain.exception()
            sleep(0.1)
    finally:
        drain.stop()
    assert numbers(pair, orders) == list(range(200))
