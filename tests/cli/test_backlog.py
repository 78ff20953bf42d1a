"""`sbclient backlog`: what it shows, and what it does only when it is told to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sbclient import PairedNamespaceOptions, ServiceBusClient, ServiceBusMessage
from sbclient.backlog import BacklogQueueView, DestinationView
from sbclient.cli.backlog_report import LOOKS_KEPT, Looks
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
    (report,) = lines(paired("backlog", "show", "--json", "--sample", "0", *arguments))
    return report


def test_the_backlog_is_shown_by_queue_and_destination() -> None:
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


def test_alone_it_shows_and_says_in_words_what_there_is() -> None:
    drain()
    left_behind("an order", path="orders")
    out = paired("backlog", "--sample", "0.1").stdout
    assert "orders" in out
    assert BACKLOG_0 in out
    assert "1 to bring home, in 10 backlog queues; it is not getting less" in out


def test_missing_queues_are_told() -> None:
    drain()
    out = paired("backlog", "--backlog-queue-count", "12").stdout
    assert "0 to bring home, in 12 backlog queues, 2 of them missing" in out
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


@pytest.mark.parametrize("command", ["show", "resubmit", "purge"])
def test_that_there_is_no_backlog_queue_at_all_is_an_error_and_no_empty_backlog(command: str) -> None:
    drain()
    result = paired("backlog", command, "--primary-name", "other", status=5)
    assert result.stdout == ""
    assert "none of the 10 backlog queues other/x-servicebus-transfer/0" in result.stderr
    assert "--primary-name" in result.stderr


def view(depth: int) -> list[BacklogQueueView]:
    held = DestinationView(waiting=depth, oldest_utc=datetime.fromtimestamp(NOW, UTC) - timedelta(minutes=1))
    queue = BacklogQueueView("q", by_destination={"orders": held} if depth else {})
    if depth:
        queue.add(held)
    return [queue]


def test_two_looks_tell_how_long_it_will_take() -> None:
    looks = Looks()
    assert looks.add(0.0, NOW, view(100))["seconds_to_drain"] is None
    second = looks.add(2.0, NOW, view(80))
    assert (second["drained_per_second"], second["seconds_to_drain"]) == (10.0, 8)
    assert second["oldest_age_seconds"] == 60
    assert looks.add(4.0, NOW, view(110))["seconds_to_drain"] is None
    assert looks.add(6.0, NOW, view(0))["seconds_to_drain"] == 0


def test_the_rate_is_that_of_the_last_looks() -> None:
    looks = Looks()
    for moment in range(100):
        looks.add(float(moment), NOW, view(1000))
    for moment in range(100, 100 + LOOKS_KEPT):
        report = looks.add(float(moment), NOW, view(1100 - moment))
    assert report["drained_per_second"] == 1.0


def test_dead_letters_are_put_back_for_the_syphon_to_try_again() -> None:
    async def work(client: ServiceBusClient) -> None:
        await client.administration.create_queue("parcels", requires_session=True)

    on(PRIMARY, work)
    with dead_letters("parcels", None):
        dry = lines(paired("backlog", "resubmit", "--reason", "DestinationRefused", "--dry-run", "--json"))
        assert dry == [{"found": {"DestinationRefused": 1}, "done": 0, "is_dry_run": True}]
        out = paired("backlog", "resubmit", "--reason", "DestinationRefused", "--yes").stdout
        assert out == "put back 1\n"
    assert shown()["destinations"]["parcels"]["waiting"] == 1
    assert shown()["dead_letters"] == {"DestinationMissing": 1}


def test_a_purge_deletes_dead_letters_and_nothing_else() -> None:
    with dead_letters(None, None):
        left_behind("an order", path="orders")
    assert paired("backlog", "purge", "--dry-run").stdout == "found 2 dead letters (2 DestinationMissing)\n"
    assert paired("backlog", "purge", "--yes", "--reason", "other").stdout == "found 0 dead letters\n"
    assert paired("backlog", "purge", "--yes", "--backlog-queue", BACKLOG_0).stdout == "deleted 2\n"
    report = shown()
    assert (report["depth"], report["dead_letters"]) == (1, {})


@pytest.mark.parametrize("command", ["resubmit", "purge"])
def test_without_a_terminal_to_ask_on_nothing_is_done(command: str) -> None:
    with dead_letters(None):
        result = paired("backlog", command, status=2, stdin="y\n")
    assert "add --yes" in result.stderr
    assert shown()["dead_letters"] == {"DestinationMissing": 1}


def test_a_backlog_queue_is_named_by_its_number_too() -> None:
    with dead_letters(None, None):
        assert paired("backlog", "purge", "--yes", "--backlog-queue", "1").stdout == "found 0 dead letters\n"
        assert paired("backlog", "purge", "--yes", "--backlog-queue", "0").stdout == "deleted 2\n"
    assert "'10'" in paired("backlog", "purge", "--yes", "--backlog-queue", "10", status=2).stderr


def test_an_unknown_backlog_queue_is_refused() -> None:
    drain()
    assert "orders" in paired("backlog", "purge", "--yes", "--backlog-queue", "orders", status=2).stderr


def test_the_backlog_needs_a_secondary() -> None:
    assert "--secondary" in call("backlog", "show", status=2).stderr


def test_the_queues_for_sessions_are_looked_at_when_asked() -> None:
    async def work(client: ServiceBusClient) -> None:
        await client.administration.create_queue("visits", requires_session=True)
        client.pair.force_failover("visits")
        async with client.get_queue_sender("visits") as sender:
            await sender.send_messages([ServiceBusMessage("x", session_id="a")])

    on(PRIMARY, work, secondary=SECONDARY, options=PairedNamespaceOptions(ordering="session"))
    assert shown()["depth"] == 0
    assert shown("--sessions")["destinations"]["visits"]["depth"] == 1
