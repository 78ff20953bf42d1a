"""Keys in the options of real jobs: no plan, event log, exception, worker log, report or output tells one."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PythonException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import sbclient_spark
from tests.secrets.canaries import GUESS, KEY, SECOND_KEY
from tests.secrets.output_capture import OutputCapture, capture_output
from tests.stage.pair import EmulatedPair


@pytest.fixture
def capture(spark: SparkSession, event_logs: Path, capfd: pytest.CaptureFixture[str]) -> Iterator[OutputCapture]:
    """Capture errors and logs of a test and, at its end, all files of Spark."""
    before = {path: path.stat().st_size for path in event_logs.rglob("*") if path.is_file()}
    with capture_output() as capture:
        logging.getLogger("py4j").setLevel(logging.INFO)  # it tells each command to Java, the options with them
        yield capture
        if spark.conf.get("spark.sql.pyspark.worker.logging.enabled", "false") == "true":
            for row in spark.tvf.python_worker_logs().collect():
                capture.add("a worker's log", f"{row.msg} {row.context} {row.exception}")
        for path in event_logs.rglob("*"):
            if path.is_file():
                with path.open() as file:
                    file.seek(before.get(path, 0))
                    capture.add("the event log", file.read())
        for name, said in zip(("out", "err"), capfd.readouterr(), strict=True):
            capture.add(name, said)
        capture.check()


def keyed(pair: EmulatedPair, **more: Any) -> dict[str, str]:
    """Options of the pair with keys that open neither of its namespaces."""
    primary = pair.primary.replace("SAS_KEY_VALUE", KEY)
    secondary = pair.secondary.replace("SAS_KEY_VALUE", SECOND_KEY)
    return pair.options(connectionString=primary, secondaryConnectionString=secondary, **more)


def rows(spark: SparkSession, queue: str) -> DataFrame:
    return spark.range(0, 20, 1, 1).selectExpr(
        "cast(id as string) as body", "string(id) as message_id", f"'{queue}' as queue"
    )


@pytest.mark.usefixtures("worker_logs")
def test_error_before_any_task_does_not_show_the_key(
    spark: SparkSession, pair: EmulatedPair, capture: OutputCapture
) -> None:
    orders = pair.create_queue("orders")
    for options in (keyed(pair, queue=orders), keyed(pair, queue=orders, noSuchOption=GUESS)):
        with capture.expecting(AnalysisException):
            rows(spark, orders).write.format("servicebus").mode("append").options(**options).save()
    with capture.expecting(Exception):
        sbclient_spark.drain(spark, options=keyed(pair))


@pytest.mark.usefixtures("worker_logs")
def test_error_in_a_task_does_not_show_the_key(
    spark: SparkSession, pair: EmulatedPair, capture: OutputCapture, tmp_path: Path
) -> None:
    orders = pair.create_queue("orders")
    metrics = tmp_path / "metrics.jsonl"
    options = keyed(pair, maxRetries=0, metricsPath=metrics)  # the rows say where they go, so no destination is checked
    with capture.expecting(PythonException):
        rows(spark, orders).write.format("servicebus").mode("append").options(**options).save()
    capture.add("the metrics", metrics.read_text())
    assert pair.count(orders) == 0
    assert spark.tvf.python_worker_logs().where("context['event_name'] = 'task.failed'").count()


def test_plans_show_no_key(spark: SparkSession, pair: EmulatedPair, capture: OutputCapture) -> None:
    orders = pair.create_queue("orders")
    options = keyed(pair, queue=orders)
    del options["requireDuplicateDetection"]
    reading = spark.read.format("servicebus").options(**pair.reading(**{name: options[name] for name in KEYS})).load()
    for mode in ("simple", "extended", "codegen", "cost", "formatted"):
        reading.explain(mode)
    capture.add("a frame", repr(reading))
    spark.sql("CREATE TABLE outgoing USING servicebus")
    try:
        said = spark.sql(
            f"EXPLAIN EXTENDED INSERT INTO outgoing WITH ('connectionString' = '{pair.primary}', 'queue' = '{orders}') "
            "(body, message_id) SELECT cast('1' AS binary), 'a'"
        ).collect()[0][0]
    finally:
        spark.sql("DROP TABLE outgoing")
    assert "SAS_KEY_VALUE" not in said


KEYS = ("connectionString", "secondaryConnectionString")


def test_failed_query_shows_no_key(
    spark: SparkSession, pair: EmulatedPair, capture: OutputCapture, tmp_path: Path
) -> None:
    orders = pair.create_queue("orders")
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "one.txt").write_text("a\nb\n")
    lines = spark.readStream.text(str(tmp_path / "source")).selectExpr("value as body", f"'{orders}' as queue")
    options = keyed(pair, maxRetries=0, checkpointLocation=tmp_path / "checkpoint")
    query = lines.writeStream.format("servicebus").options(**options).trigger(availableNow=True).start()
    with capture.expecting(StreamingQueryException):
        query.awaitTermination(120)
    query.explain(True)
    capture.add("the query's error", str(query.exception()))
    capture.add("its progress", str(query.lastProgress))
    for path in (tmp_path / "checkpoint").rglob("*"):
        if path.is_file():
            capture.add("the checkpoint", path.read_text(errors="replace"))
