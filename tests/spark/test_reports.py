from __future__ import annotations

import json
import logging
from array import array
from dataclasses import fields
from pathlib import Path

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from sbclient_spark.write.progress import ProgressListener
from sbclient_spark.write.reports import REPORT_SCHEMA, SessionDigests, TaskReport, publish, split_sessions, summary


def test_a_report_is_a_row_with_the_same_fields() -> None:
    assert [part.split()[0] for part in REPORT_SCHEMA.split(", ")] == [one.name for one in fields(TaskReport)]


def test_percentiles_are_of_the_transfers() -> None:
    report = TaskReport()
    report.set_latencies(array("d"))
    assert (report.p50_ms, report.max_ms) == (0.0, 0.0)
    report.set_latencies(array("d", [float(number) for number in range(100, 0, -1)]))
    assert (report.p50_ms, report.p99_ms, report.max_ms) == (51.0, 100.0, 100.0)


def test_a_summary_adds_the_reports_and_counts_the_tasks_without_one() -> None:
    totals = summary("abort", "orders", [TaskReport(sent=3, max_ms=5.0), None, TaskReport(sent=4)], batch_id=7)
    assert (totals.tasks, totals.failed_tasks, totals.totals["sent"], totals.max_ms) == (2, 1, 7, 5.0)


def test_metrics_are_one_line_for_each_commit(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "metrics.jsonl"
    for batch_id in range(2):
        report = summary("commit", "orders", [TaskReport(sent=3)], batch_id=batch_id)
        publish(report, metrics_path=str(path), metrics_log=False)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["outcome"], line["batch_id"], line["sent"]) for line in lines] == [("commit", 0, 3), ("commit", 1, 3)]


def test_a_listener_reports_each_micro_batch_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "metrics.jsonl"
    publish(summary("commit", "orders", [TaskReport(sent=9)], batch_id=6), metrics_path=str(path), metrics_log=False)
    reader = InMemoryMetricReader()
    listener = ProgressListener(str(path), MeterProvider([reader]))
    report = TaskReport(rows=5, sent=3, diverted=2, retried=1, in_doubt=1, max_ms=8.5)
    with caplog.at_level(logging.INFO, "sbclient_spark"):
        publish(summary("commit", "orders", [report], batch_id=7), metrics_path=str(path), metrics_log=False)
        with path.open("a") as file:
            file.write("{")  # a line that is being written
        listener.onQueryProgress(None)
        listener.onQueryTerminated(None)
    (record,) = caplog.records
    context = vars(record)["context"]
    assert [context[name] for name in ("batch_id", "rows", "diverted", "retried", "in_doubt")] == [
        "7",
        "5",
        "2",
        "1",
        "1",
    ]
    found = reader.get_metrics_data()
    assert found is not None
    metrics = {
        one.name: one.data for each in found.resource_metrics for scope in each.scope_metrics for one in scope.metrics
    }
    assert [point.value for point in metrics["sbclient.spark.sent"].data_points] == [3]  # type: ignore[union-attr]
    assert [point.max for point in metrics["sbclient.spark.transfer.max"].data_points] == [8.5]  # type: ignore[union-attr]


def test_a_metrics_file_that_cannot_be_written_does_not_fail_the_write(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with caplog.at_level(logging.INFO, "sbclient_spark"):
        publish(summary("commit", "orders", []), metrics_path=str(blocked / "metrics.jsonl"), metrics_log=True)
    assert [vars(record)["event_name"] for record in caplog.records] == ["write.commit", "metrics.not_written"]
    assert "context" in vars(caplog.records[0])


def test_sessions_of_two_queues_differ_however_their_names_end() -> None:
    tasks = [("q", "1s"), ("q1", "s"), ("q1s", ""), ("", "q1s")]
    digests = []
    for path, session in tasks:
        found = SessionDigests()
        found.add(path, [session])
        digests.append(found.packed())
    assert split_sessions(digests) == 0
    assert split_sessions([*digests, digests[0]]) == 1
