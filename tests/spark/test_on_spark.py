"""The connector in real Spark workers, over AMQP, against two emulated namespaces."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import DataFrame, SparkSession

import sbclient_spark
from tests.spark.versions import PARTIAL_INSERTS, TIMES
from tests.stage.pair import SECONDARY, EmulatedPair

WINDOW: Final[dict[str, Any]] = {
    "requires_duplicate_detection": True,
    "duplicate_detection_history_time_window": timedelta(hours=2),
}


def frame(spark: SparkSession, count: int, *columns: str, partitions: int = 2) -> DataFrame:
    """Rows with a body, their number, and a message id."""
    exprs = columns or ("cast(id as string) as body", "concat('id ', id) as message_id")
    return spark.range(0, count, 1, partitions).selectExpr(*exprs)


def write(df: DataFrame, pair: EmulatedPair, **options: Any) -> None:
    df.write.format("servicebus").mode("append").options(**pair.options(**options)).save()


def refusal(df: DataFrame, pair: EmulatedPair, **options: Any) -> str:
    with pytest.raises(AnalysisException) as caught:
        write(df, pair, **options)
    return str(caught.value)


def numbers(pair: EmulatedPair, queue: str, **kwargs: Any) -> list[int]:
    return sorted(int(str(message)) for message in pair.take(queue, **kwargs))


# -- batches -----------------------------------------------------------------------------------------------------


def test_rows_arrive_once_with_everything_that_their_columns_say(spark: SparkSession, pair: EmulatedPair) -> None:
    orders = pair.create_queue("orders", **WINDOW)
    df = frame(
        spark,
        500,
        "cast(cast(id as string) as binary) as body",
        "concat('id ', id) as message_id",
        "concat('c', id % 3) as partition_key",
        "map('n', id, 'twice', 2 * id) as application_properties",
        "'order' as subject",
        "interval 90 seconds as time_to_live",
        "timestamp '2024-01-01 12:00:00' as scheduled_enqueue_time",
    )
    write(df, pair, queue=orders, requireDuplicateDetection="error")
    found = pair.take(orders)
    assert sorted(int(str(message)) for message in found) == list(range(500))
    message = next(one for one in found if str(one) == "7")
    assert (message.message_id, message.partition_key, message.subject) == ("id 7", "c1", "order")
    assert message.application_properties == {"n": 7, "twice": 14}
    assert message.time_to_live == timedelta(seconds=90)


def test_the_same_job_twice_is_one_set_of_messages(spark: SparkSession, pair: EmulatedPair) -> None:
    orders = pair.create_queue("orders", **WINDOW)
    df = frame(spark, 300, "cast(id as string) as body")
    for _ in range(2):
        write(df, pair, queue=orders, txnAppId="nightly", txnVersion=3)
    write(df, pair, queue=orders, messageIdMode="content")
    assert len(pair.take(orders)) == 600


@TIMES
def test_a_variant_and_a_time_of_day_are_part_of_a_json_body(spark: SparkSession, pair: EmulatedPair) -> None:
    orders = pair.create_queue("orders")
    df = frame(spark, 1, "parse_json('{\"a\":[1]}') as v", "array(parse_json('2')) as deep", "time'01:02:03' as t")
    write(df, pair, queue=orders, bodyFormat="json", messageIdMode="content")
    (message,) = pair.take(orders)
    assert json.loads(str(message)) == {"v": {"a": [1]}, "deep": [2], "t": "01:02:03"}


def test_an_empty_frame_and_a_queue_named_in_save_are_written(spark: SparkSession, pair: EmulatedPair) -> None:
    orders = pair.create_queue("orders")
    writer = frame(spark, 10).write.format("servicebus").mode("append").options(**pair.options())
    writer.save(orders)
    frame(spark, 0).write.format("servicebus").mode("append").options(**pair.options()).save(orders)
    assert numbers(pair, orders) == list(range(10))


def test_a_column_names_the_queue_of_each_row(spark: SparkSession, pair: EmulatedPair) -> None:
    even = pair.create_queue("even")
    odd = pair.create_queue("odd")
    where = f"if(id % 2 = 0, '{even}', '{odd}') as queue"
    df = frame(spark, 100, "cast(id as string) as body", "string(id) as message_id", where)
    write(df, pair)
    assert numbers(pair, even) == list(range(0, 100, 2))
    assert numbers(pair, odd) == list(range(1, 100, 2))


def test_a_topic_is_written_and_its_subscription_read(spark: SparkSession, pair: EmulatedPair) -> None:
    prices = pair.create_topic("prices", "eu")
    write(frame(spark, 200), pair, topic=prices)
    reading = spark.read.format("servicebus").options(**pair.reading(topic=prices, subscription="eu")).load()
    assert sorted(int(bytes(row.body)) for row in reading.collect()) == list(range(200))


def test_columns_become_json_bodies(spark: SparkSession, pair: EmulatedPair) -> None:
    orders = pair.create_queue("orders")
    df = frame(spark, 3, "id as number", "cast(id / 4 as decimal(10,2)) as price", "string(id) as message_id")
    write(df, pair, queue=orders, bodyFormat="json")
    found = [json.loads(str(message)) for message in pair.take(orders)]
    assert {"number": 2, "price": 0.5} in found


@PARTIAL_INSERTS
def test_sql_inserts_rows(spark: SparkSession, pair: EmulatedPair, tmp_path: Path) -> None:
    orders = pair.create_queue("orders")
    secret = tmp_path / "primary"
    secret.write_text(pair.primary)
    spark.sql("CREATE TABLE outgoing USING servicebus")
    try:
        spark.sql(
            f"INSERT INTO outgoing WITH ('connectionStringFile' = '{secret}', 'queue' = '{orders}') (body, message_id) "
            "SELECT cast('1' AS binary), 'a'"
        )
    finally:
        spark.sql("DROP TABLE outgoing")
    assert numbers(pair, orders) == [1]


def descriptions(spark: SparkSession) -> set[str]:
    """What the Spark UI calls the jobs so far."""
    jobs = spark.sparkContext._jsc.sc().statusStore().jobsList(None)
    return {job.description().get() for job in map(jobs.apply, range(jobs.size())) if job.description().isDefined()}


def test_write_with_report_returns_a_report_of_each_task(spark: SparkSession, pair: EmulatedPair) -> None:
    orders = pair.create_queue("orders")
    reports = sbclient_spark.write_with_report(frame(spark, 1000), pair.options(queue=orders)).collect()
    assert sorted(report.partition for report in reports) == [0, 1]
    assert sum(report.sent for report in reports) == 1000
    assert len(pair.take(orders)) == 1000
    assert f"servicebus: write to {orders}" in descriptions(spark)


def test_a_worker_keeps_its_client(spark: SparkSession, pair: EmulatedPair, tmp_path: Path) -> None:
    orders = pair.create_queue("orders")
    options = pair.options(queue=orders, idleTimeout="299 s")
    connecting = [
        report.connect_ms
        for _ in range(5)
        for report in sbclient_spark.write_with_report(frame(spark, 20), options).collect()
    ]
    assert len(connecting) == 10
    assert sum(one > 0 for one in connecting) <= 4, "there are four workers at most"


@pytest.mark.usefixtures("worker_logs")
def test_metrics_and_worker_logs_have_each_commit(spark: SparkSession, pair: EmulatedPair, tmp_path: Path) -> None:
    orders = pair.create_queue("orders")
    path = tmp_path / "metrics.jsonl"
    write(frame(spark, 100), pair, queue=orders, metricsPath=path)
    line = json.loads(path.read_text())
    assert (line["outcome"], line["sent"], line["tasks"], line["destination"]) == ("commit", 100, 2, orders)
    logged = spark.tvf.python_worker_logs().where("logger = 'sbclient_spark'").collect()
    assert any(row.context["event_name"] == "task.ended" and row.context["sent"] for row in logged)


def test_any_thread_and_any_session_can_write(spark: SparkSession, pair: EmulatedPair) -> None:
    orders = pair.create_queue("orders")

    def work(session: SparkSession, first: int) -> int:
        rows = session.range(first, first + 50).selectExpr("string(id) as body", "string(id) as message_id")
        reports = sbclient_spark.write_with_report(rows, pair.options(queue=orders)).collect()
        sbclient_spark.register(session)
        write(rows, pair, queue=orders)
        return sum(int(row.sent) for row in reports)

    with ThreadPoolExecutor(3) as threads:
        sessions = (spark, spark, spark.newSession())
        assert list(threads.map(work, sessions, (0, 50, 100))) == [50, 50, 50]
    assert numbers(pair, orders) == sorted([*range(150)] * 2)


# -- what is refused before any task -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"queue": "{}", "maxBatchMesages": 1}, "maxBatchMessages"),
        ({"topic": "{}"}, "is a queue"),
    ],
)
def test_a_wrong_option_is_an_error_before_any_task(
    spark: SparkSession, pair: EmulatedPair, options: dict[str, Any], text: str
) -> None:
    orders = pair.create_queue("orders")
    given = {name: str(value).format(orders) for name, value in options.items()}
    assert text in refusal(frame(spark, 1), pair, **given)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("bodyTpe", "did you mean bodyType"),
        ("minPartitions", "whole number"),
        ("columnNameOfCorruptRecord", "known are .*orphans\n"),  # the last option of a read, and none of a write
    ],
)
def test_a_wrong_option_of_a_read_is_an_error_of_load(
    spark: SparkSession, pair: EmulatedPair, name: str, text: str
) -> None:
    for read in (spark.read, spark.readStream):
        with pytest.raises(AnalysisException, match=text):
            read.format("servicebus").options(**pair.reading(queue="orders")).option(name, "none").load()


def test_a_wrong_schema_and_overwriting_are_rejected(spark: SparkSession, pair: EmulatedPair) -> None:
    orders = pair.create_queue("orders")
    assert "body" in refusal(frame(spark, 1, "id as body"), pair, queue=orders)
    assert "message_id" in refusal(frame(spark, 1, "'a' as body"), pair, queue=orders)
    with pytest.raises(AnalysisException) as caught:
        frame(spark, 1).write.format("servicebus").mode("overwrite").options(**pair.options(queue=orders)).save()
    assert "append" in str(caught.value)


def test_no_secret_is_in_the_event_log_or_the_plan(
    spark: SparkSession, pair: EmulatedPair, event_logs: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    orders = pair.create_queue("orders")
    write(frame(spark, 10), pair, queue=orders)
    df = spark.read.format("servicebus").options(**pair.reading(queue=orders)).load()
    df.explain(True)
    df.count()
    logs = [path.read_text() for path in event_logs.rglob("*") if path.is_file()]
    assert any("SparkListenerTaskEnd" in log for log in logs)
    assert not any("SAS_KEY_VALUE" in text for text in (*logs, *capfd.readouterr()))


def test_secrets_may_be_known_to_the_workers_only(spark: SparkSession, pair: EmulatedPair, tmp_path: Path) -> None:
    orders = pair.create_queue("orders")
    secret = tmp_path / "primary"
    secret.write_text(pair.primary)
    options = pair.options(queue=orders, connectionStringFile=secret)
    del options["connectionString"]
    frame(spark, 10).write.format("servicebus").mode("append").options(**options).save()
    assert numbers(pair, orders) == list(range(10))


def test_a_dry_run_sends_nothing_and_finds_invalid_rows(spark: SparkSession, pair: EmulatedPair) -> None:
    orders = pair.create_queue("orders")
    bad = frame(spark, 10, "if(id = 7, null, 'a') as body", "string(id) as message_id")
    write(bad, pair, queue=orders, dryRun="schema")
    with pytest.raises(PythonException) as caught:
        write(bad, pair, queue=orders, dryRun="encode")
    assert "row 2" in str(caught.value)
    assert pair.count(orders) == 0


# -- rows that cannot be sent ------------------------------------------------------------------------------------


def test_a_bad_row_fails_the_job_with_its_place(spark: SparkSession, pair: EmulatedPair) -> None:
    orders = pair.create_queue("orders")
    df = frame(spark, 1000, "if(id = 700, repeat('x', 300000), 'a') as body", "string(id) as message_id")
    with pytest.raises(PythonException) as caught:
        write(df, pair, queue=orders)
    assert "partition 1, row 200" in str(caught.value)
    assert "'700'" in str(caught.value)


def test_bad_rows_are_written_to_files_with_their_reasons(
    spark: SparkSession, pair: EmulatedPair, tmp_path: Path
) -> None:
    orders = pair.create_queue("orders")
    df = frame(spark, 100, "if(id % 10 = 3, null, cast(id as string)) as body", "string(id) as message_id")
    write(df, pair, queue=orders, onRowError="deadletter", badRecordsPath=tmp_path)
    assert len(pair.take(orders)) == 90
    lines = [json.loads(line) for path in tmp_path.glob("*.jsonl") for line in path.read_text().splitlines()]
    assert sorted(int(line["record"]["message_id"]) for line in lines) == list(range(3, 100, 10))


@pytest.mark.parametrize("scheme", ["file", "viewfs"])
def test_reports_and_bad_rows_are_written_by_the_file_systems_of_spark(
    spark: SparkSession, pair: EmulatedPair, tmp_path: Path, scheme: str
) -> None:
    orders = pair.create_queue("orders")
    spark.conf.set("fs.viewfs.mounttable.default.link./out", tmp_path.as_uri())
    folder = "viewfs:///out" if scheme == "viewfs" else tmp_path.as_uri()
    df = frame(spark, 20, "if(id = 3, null, 'a') as body", "string(id) as message_id")
    options = pair.options(
        queue=orders, onRowError="deadletter", badRecordsPath=f"{folder}/bad", metricsPath=f"{folder}/metrics"
    )
    reports = sbclient_spark.write_with_report(df, options).collect()
    assert sum(row.sent for row in reports) == 19
    assert [
        row.bad_records.startswith(folder if scheme == "viewfs" else "/") for row in reports if row.bad_records
    ] == [True]
    (bad,) = (json.loads(line.value) for line in spark.read.text(f"{folder}/bad").collect())
    assert (bad["row"], bad["record"]["message_id"]) == (3, "3")
    (line,) = (json.loads(line.value) for line in spark.read.text(f"{folder}/metrics").collect())
    assert (line["sent"], line["row_errors"]) == (19, 1)


# -- outages and crashes -----------------------------------------------------------------------------------------


def test_with_both_namespaces_down_the_job_fails_and_reports_nothing_as_sent(
    spark: SparkSession, pair: EmulatedPair, tmp_path: Path
) -> None:
    orders = pair.create_queue("orders")
    pair.cut()
    pair.cut(SECONDARY)
    metrics = tmp_path / "metrics.jsonl"
    with pytest.raises(PythonException) as caught:
        write(frame(spark, 10, partitions=1), pair, queue=orders, maxRetries=0, sendTimeout="2 s", metricsPath=metrics)
    assert "SAS_KEY_VALUE" not in str(caught.value)
    line = json.loads(metrics.read_text())
    assert (line["outcome"], line["sent"], line["failed_tasks"]) == ("abort", 0, 1)
    pair.heal()
    assert pair.count(orders) == 0


def test_a_session_in_two_tasks_fails_the_job(spark: SparkSession, pair: EmulatedPair) -> None:
    sessions = pair.create_queue("sessions", requires_session=True)
    df = frame(spark, 20, "'a' as body", "string(id) as message_id", "'s' as session_id")
    with pytest.raises(Exception, match="repartition_by_session"):
        write(df, pair, queue=sessions, ordering="session")


# -- reading -----------------------------------------------------------------------------------------------------


def test_reading_takes_nothing(spark: SparkSession, pair: EmulatedPair) -> None:
    orders = pair.create_queue("orders")
    write(frame(spark, 700), pair, queue=orders)
    reading = spark.read.format("servicebus").options(**pair.reading(queue=orders)).load()
    rows = reading.selectExpr("cast(cast(body as string) as int) as number", "message_id", "queue", "state").collect()
    assert sorted(row.number for row in rows) == list(range(700))
    assert {(row.queue, row.state) for row in rows} == {(orders, "active")}
    some = spark.read.format("servicebus").options(**pair.reading(queue=orders, maxMessages=5)).load()
    assert some.count() == 5
    assert pair.count(orders) == 700


def test_a_partitioned_queue_is_read_fragment_by_fragment(spark: SparkSession, pair: EmulatedPair) -> None:
    parts = pair.create_queue("parts", enable_partitioning=True)
    df = frame(spark, 100, "cast(id as string) as body", "string(id) as message_id", "string(id % 7) as partition_key")
    write(df, pair, queue=parts)
    reading = spark.read.format("servicebus").options(**pair.reading(queue=parts)).load()
    assert reading.rdd.getNumPartitions() == 16
    assert sorted(int(bytes(row.body)) for row in reading.collect()) == list(range(100))


def test_rows_that_were_read_can_be_written_again(spark: SparkSession, pair: EmulatedPair) -> None:
    orders = pair.create_queue("orders")
    copies = pair.create_queue("copies")
    write(frame(spark, 50), pair, queue=orders)
    reading = spark.read.format("servicebus").options(**pair.reading(queue=orders)).load()
    write(reading, pair, queue=copies)
    assert numbers(pair, copies) == list(range(50))


# -- the drain ---------------------------------------------------------------------------------------------------


def test_a_drain_reports_first_fails_while_the_primary_is_down_and_then_moves(
    spark: SparkSession, pair: EmulatedPair
) -> None:
    orders = pair.create_queue("orders", **WINDOW)
    write(frame(spark, 200), pair, queue=orders, failover="backlog")
    assert (pair.count(orders), pair.backlog()) == (0, 200)
    options = pair.reading()
    survey = sbclient_spark.drain(spark, options=options, dry_run=True).collect()
    assert "servicebus: survey of the backlog" in descriptions(spark)
    assert spark.sparkContext.getLocalProperty("spark.job.description") is None
    assert sum(row.waiting for row in survey) == 200
    assert {row.destinations for row in survey if row.waiting} == {orders}
    backlog = spark.read.format("servicebus").options(**options, backlog="true").load()
    assert backlog.count() == 200
    pair.cut()
    with pytest.raises(Exception, match=orders):
        sbclient_spark.drain(spark, options=options)
    pair.heal()
    moved = sbclient_spark.drain(spark, options=options, parallelism=2, max_messages_per_second=1000).collect()
    assert sum(row.moved for row in moved) == 200
    assert "servicebus: drain of the backlog" in descriptions(spark)
    assert numbers(pair, orders) == list(range(200))
    assert sbclient_spark.drain(spark, options=options).collect() == []
