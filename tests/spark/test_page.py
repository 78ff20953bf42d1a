"""What the pages about Spark show runs as it stands; the help lists every option."""

from __future__ import annotations

import json
import re
from inspect import getdoc as help_of
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.sql import SparkSession

import sbclient_spark
from sbclient_spark.read.options import READ_TABLE
from sbclient_spark.source import ServiceBusDataSource
from sbclient_spark.write.options import WRITE_TABLE
from tests.spark.test_on_spark import write
from tests.stage.pair import EmulatedPair

DOCS: Final = Path(__file__).parents[2] / "docs"
PAGES: Final = "".join((DOCS / name).read_text(encoding="utf-8") for name in ("spark.md", "spark-reference.md"))


def test_help_explains_every_option() -> None:
    text = help_of(ServiceBusDataSource) or ""
    for name, row in (READ_TABLE | WRITE_TABLE).items():
        assert row.about
        assert f"\n{name} ({row.kind.word}): {row.about}" in text


def shown(name: str) -> Any:
    """A function that one of the pages shows."""
    (block,) = (one for one in re.findall(r"^```python\n(.*?)^```", PAGES, re.M | re.S) if f"\ndef {name}(" in one)
    names: dict[str, Any] = {}
    exec(compile(block, "docs", "exec"), names)
    return names[name]


def test_the_documented_batches_run(spark: SparkSession, pair: EmulatedPair) -> None:
    orders, invoices = pair.create_queue("orders"), pair.create_queue("invoices", requires_session=True)
    shown("write")(spark, pair.primary, pair.secondary, orders)
    assert pair.count(orders) == 1000
    lines = spark.range(40).selectExpr(
        "cast(id AS string) AS body", "cast(id AS string) AS message_id", "concat('invoice ', id % 4) AS session_id"
    )
    shown("backfill")(lines.withColumn("line", lines.body.cast("long")), pair.primary, pair.secondary, invoices)
    arrived = pair.take(invoices, sessions=True)
    assert len(arrived) == 40
    for session in {message.session_id for message in arrived}:
        numbers = [int(str(message)) for message in arrived if message.session_id == session]
        assert numbers == sorted(numbers)
    assert shown("drain_backlog")(spark, pair.primary, pair.secondary) == 0


def test_the_documented_preview_takes_nothing(spark: SparkSession, pair: EmulatedPair) -> None:
    orders = pair.create_queue("orders")
    shown("write")(spark, pair.primary, pair.secondary, orders)
    found = shown("look")(spark, pair.primary, orders).collect()
    assert [(row.sequence_number, row.body[:5], row.state) for row in found] == [
        (number, "order", "active") for number in range(1, 11)
    ]
    assert pair.count(orders) == 1000
    with pytest.raises(TypeError, match="of type str: give a mapping"):
        sbclient_spark.preview(spark, "orders")  # type: ignore[arg-type]


def check_stream(name: str, location: str, spark: SparkSession, pair: EmulatedPair, folder: Path) -> None:
    """Check that a function of the page sends the lines of a stream."""
    (folder / "input").mkdir()
    (folder / "input" / "one.txt").write_text("first\nsecond\n")
    readings = pair.create_queue("readings")
    rows = spark.readStream.text(str(folder / "input")).withColumnRenamed("value", "body")
    query = shown(name)(rows, pair.primary, readings, location)
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    assert sorted(str(message) for message in pair.take(readings)) == ["first", "second"]


def test_the_documented_stream_runs(spark: SparkSession, pair: EmulatedPair, tmp_path: Path) -> None:
    check_stream("start", str(tmp_path / "checkpoint"), spark, pair, tmp_path)


def test_the_documented_stream_with_reports_runs(spark: SparkSession, pair: EmulatedPair, tmp_path: Path) -> None:
    spark.conf.set("fs.viewfs.mounttable.readings.link./out", tmp_path.as_uri())
    check_stream("start_with_reports", "viewfs://readings/out", spark, pair, tmp_path)
    (line,) = (json.loads(row.value) for row in spark.read.text("viewfs://readings/out/metrics").collect())
    assert (line["outcome"], line["sent"]) == ("commit", 2)


def test_the_documented_stream_of_sessions_keeps_states_and_dead_letters_a_bad_session(
    spark: SparkSession, pair: EmulatedPair, tmp_path: Path
) -> None:
    queue = pair.create_queue("amounts", requires_session=True)
    query = shown("keep_totals")(spark, pair.primary, queue, str(tmp_path))
    try:
        for bad in ("", "x"):
            rows = spark.range(12).selectExpr(
                f"concat(id, if(id % 3 = 2, '{bad}', '')) AS body", "id % 3 AS session_id"
            )
            write(
                rows.selectExpr("body", "string(session_id) AS session_id"), pair, queue=queue, messageIdMode="random"
            )
            query.processAllAvailable()
    finally:
        query.stop()

    async def states() -> list[int]:
        found = []
        async with pair.client() as client:
            for session_id in ("0", "1", "2"):
                async with client.get_queue_receiver(queue, session_id=session_id) as receiver:
                    found.append(json.loads(await receiver.session.get_state() or b"")[1])
        return found

    assert pair.run(states()) == [2 * (0 + 3 + 6 + 9), 2 * (1 + 4 + 7 + 10), 2 + 5 + 8 + 11]
    dead = spark.read.format("servicebus").options(**pair.reading(queue=queue, subQueue="deadletter")).load()
    assert {row.session_id for row in dead.collect()} == {"2"}


def test_the_documented_stream_of_a_queue_runs(spark: SparkSession, pair: EmulatedPair, tmp_path: Path) -> None:
    queue = pair.create_queue("archived")
    shown("write")(spark, pair.primary, pair.secondary, queue)
    assert shown("archive")(spark, pair.primary, queue, str(tmp_path)).awaitTermination(120)
    assert spark.read.parquet(str(tmp_path / "messages")).count() == 1000
    assert shown("lost_and_found")(spark, pair.primary, queue, str(tmp_path / "checkpoint")).collect() == []
