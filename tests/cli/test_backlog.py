"""`sbclient backlog`: what it shows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sbclient import PairedNamespaceOptions, ServiceBusClient, ServiceBusMessage
from sbclient.backlog import BacklogQueueView, DestinationView
from sbclient.cli.backlog import SURVEYS_KEPT, DrainEstimate
from tests.cli.calling import PRIMARY, SECONDARY, call, lines, on, paired, sent

NOW = 1_900_000_000.0
BACKLOG_0 = "cli-test/x-servicebus-transfer/0"


def drain() -> None:
    async def work(client: ServiceBusClient) -> None:
        await client.run_syphon(until="empty")

    on(PRIMARY, work, secondary=SECONDARY)


def left_behind(body: str, *, path: str | None = None) -> None:
    """What another client might leave in backlog queue 0."""
    properties = {"x-ms-path": path} if path else {}
    sent(BACKLOG_0, ServiceBusMessage(body, application_properties=properties), namespace=SECONDARY)


@contextmanager
def dead_letters(*paths: str | None) -> Iterator[None]:
    drain()
    for path in paths:
        left_behind("x", path=path)
    drain()
    yield


def shown(*arguments: str) -> dict[str, Any]:
    (report,) = lines(paired("backlog", "--json", "--sample", "0", *arguments))
    return report


def test_show_prints_the_backlog_by_queue_and_destination() -> None:
    with dead_letters(None):
        left_behind("an order", path="orders")
    report = shown()
    assert (report["depth"], report["waiting"], report["parked"]) == (1, 1, 0)
    assert report["dead_letters"] == {"DestinationMissing": 1}
    assert report["oldest_age_seconds"] in range(60)
    assert (report["drained_per_second"], report["seconds_to_drain"]) == (None, None)
    assert {path: held["depth"] for path, held in report["destinations"].items()} == {"(unknown)": 0, "orders": 1}
    assert report["destinations"]["(unknown)"]["dead_letters"] == {"DestinationMissing": 1}
    assert len(report["queues"]) == 10
    first, *others = report["queues"]
    assert (first["queue"], first["is_present"], first["depth"]) == (BACKLOG_0, True, 1)
    assert not any(queue["depth"] or queue["dead_letters"] for queue in others)


def test_backlog_without_a_command_prints_tables() -> None:
    drain()
    left_behind("an order", path="orders")
    out = paired("backlog", "--sample", "0.1").stdout
    assert "orders" in out
    assert BACKLOG_0 in out
    assert "1 to move, in 10 backlog queues; the number does not fall" in out


def test_show_reports_missing_queues() -> None:
    drain()
    out = paired("backlog", "--backlog-queue-count", "12").stdout
    assert "0 to move, in 12 backlog queues, 2 of them missing" in out
    assert shown("--backlog-queue-count", "12")["queues"][11] | {"dead_letters": {}} == {
        "queue": "cli-test/x-servicebus-transfer/11",
        "is_present": False,
        "is_complete": True,
        "depth": 0,
        "waiting": 0,
        "parked": 0,
        "oldest_utc": None,
        "oldest_age_seconds": None,
        "dead_letters": {},
    }


@pytest.mark.parametrize("command", [["backlog"], ["dead-letter", "list", "--backlog"]], ids=" ".join)
def test_missing_backlog_queues_are_an_error(command: list[str]) -> None:
    drain()
    result = paired(*command, "--primary-name", "other", status=5)
    assert result.stdout == ""
    assert "other/x-servicebus-transfer/0" in result.stderr
    assert "--primary-name" in result.stderr


def view(depth: int) -> list[BacklogQueueView]:
    held = DestinationView(waiting=depth, oldest_utc=datetime.fromtimestamp(NOW, UTC) - timedelta(minutes=1))
    queue = BacklogQueueView("q", by_destination={"orders": held} if depth else {})
    if depth:
        queue.add(held)
    return [queue]


def test_two_surveys_estimate_the_time_to_drain() -> None:
    estimate = DrainEstimate()
    assert estimate.report(0.0, NOW, view(100))["seconds_to_drain"] is None
    second = estimate.report(2.0, NOW, view(80))
    assert (second["drained_per_second"], second["seconds_to_drain"]) == (10.0, 8)
    assert second["oldest_age_seconds"] == 60
    assert estimate.report(4.0, NOW, view(110))["seconds_to_drain"] is None
    assert estimate.report(6.0, NOW, view(0))["seconds_to_drain"] == 0


def test_the_rate_covers_the_last_surveys() -> None:
    estimate = DrainEstimate()
    for moment in range(100):
        estimate.report(float(moment), NOW, view(1000))
    for moment in range(100, 100 + SURVEYS_KEPT):
        report = estimate.report(float(moment), NOW, view(1100 - moment))
    assert report["drained_per_second"] == 1.0


def test_backlog_requires_a_secondary() -> None:
    assert "--secondary" in call("backlog", status=2).stderr


def test_sessions_option_includes_session_queues() -> None:
    async def work(client: ServiceBusClient) -> None:
        await client.administration.create_queue("visits", requires_session=True)
        client.pair.force_failover("visits")
        async with client.get_queue_sender("visits") as sender:
            await sender.send_messages([ServiceBusMessage("x", session_id="a")])

    on(PRIMARY, work, secondary=SECONDARY, options=PairedNamespaceOptions(ordering="session"))
    assert shown()["depth"] == 0
    assert shown("--sessions")["destinations"]["visits"]["depth"] == 1
