"""Every row once despite faults, in small; `python -m tests.benchmarks spark_endurance` does the same in full."""

from __future__ import annotations

import json
from pathlib import Path

from pyspark.sql import SparkSession

from tests.spark.endurance import Account, sessions, stream
from tests.stage.pair import EmulatedPair


def test_each_session_of_a_csv_arrives_once_and_in_order_through_both(
    spark: SparkSession, pair: EmulatedPair, tmp_path: Path
) -> None:
    path = tmp_path / "invoices.csv"
    lines = [f"{536365 + number // 50},P{number % 11},{number % 5}" for number in range(600)]
    path.write_text("\n".join(["InvoiceNo,StockCode,Quantity", *lines]))
    account = sessions(spark, pair, path, maxMessagesPerSecond=60, maxBatchMessages=20)
    assert account.is_clean, account
    assert account.sessions == 12, account
    assert account.killed, account
    assert account.failed_tasks, account
    assert account.drained >= account.most_waiting > 0, account


def test_a_stream_arrives_once_and_each_session_in_order_through_a_restart_and_an_outage(
    spark: SparkSession, pair: EmulatedPair, tmp_path: Path
) -> None:
    metrics = tmp_path / "metrics.jsonl"
    account = stream(spark, pair, tmp_path, files=4, rows=100, maxMessagesPerSecond=150, metricsPath=metrics)
    assert account.is_clean, account
    batches = [json.loads(line)["batch_id"] for line in metrics.read_text().splitlines()]
    assert set(batches) == set(range(4)), "a query that is started again goes on with its numbers"
    assert (account.sessions, account.restarts) == (4, 1)
    assert account.drained >= account.most_waiting > 0, account


def test_an_account_tells_what_is_lost_doubled_strange_and_out_of_order() -> None:
    account = Account(job="a job", rows=4)
    account.take_stock("abcd", [("s", "a"), ("t", "d"), ("s", "c"), ("s", "b"), ("s", "a"), ("t", "x")])
    assert (account.arrived, account.lost, account.duplicates, account.strangers) == (6, 0, 1, 1)
    assert (account.misordered, account.sessions, account.is_clean) == (1, 2, False)
    account.take_stock("abcd", [(None, "a"), (None, "b")])
    assert (account.lost, account.is_clean) == (2, False)
    clean = Account(job="a job", rows=3)
    clean.take_stock("abc", [("s", "a"), ("t", "b"), ("s", "c")])
    assert clean.is_clean
