"""`sbclient dead-letter`: what it selects, and what it does only after a confirmation."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from time import tzset
from typing import Any

import pytest

from sbclient import ServiceBusClient, ServiceBusMessage
from sbclient.cli.selection import MessageSelection, time
from sbclient.delivery import ServiceBusSubQueue
from sbclient.entities import EntityStatus
from sbclient.message import ServiceBusReceivedMessage
from tests.cli.calling import PRIMARY, SECONDARY, call, lines, on, paired
from tests.cli.test_backlog import BACKLOG_0, dead_letters, left_behind, shown
from tests.payloads import encoded


def filled(
    queue: str = "orders", namespace: str = PRIMARY, *, requires_session: bool = False, **properties: Any
) -> None:
    """A queue with three dead letters: prices 1 to 3, reasons `odd`, `even`, `odd`, sessions `s1` to `s3`."""

    async def work(client: ServiceBusClient) -> None:
        await client.administration.create_queue(queue, requires_session=requires_session, **properties)
        async with client.get_queue_sender(queue) as sender:
            for price in (1, 2, 3):
                message = ServiceBusMessage(str(price), message_id=f"m{price}", application_properties={"price": price})
                message.session_id = f"s{price}" if requires_session else None
                await sender.send_messages(message)
                async with client.get_queue_receiver(queue, session_id=message.session_id) as receiver:
                    (received,) = await receiver.receive_messages(1)
                    await receiver.dead_letter_message(received, reason="odd" if price % 2 else "even")

    on(namespace, work)


def found_in(sub_queue: ServiceBusSubQueue | None, queue: str = "orders") -> list[ServiceBusReceivedMessage]:
    async def work(client: ServiceBusClient) -> list[ServiceBusReceivedMessage]:
        async with client.get_queue_receiver(queue, sub_queue=sub_queue) as receiver:
            return await receiver.peek_messages(100)

    found: list[ServiceBusReceivedMessage] = on(PRIMARY, work)
    return found


def bodies(sub_queue: ServiceBusSubQueue | None) -> list[str]:
    return [str(message) for message in found_in(sub_queue)]


@pytest.mark.parametrize(
    ("arguments", "prices"),
    [
        ([], [1, 2, 3]),
        (["--reason", "odd"], [1, 3]),
        (["--where", "price > 1 AND DeadLetterReason = 'odd'"], [3]),
        (["--where", "sys.MessageId = 'm2'"], [2]),
        (["--where", "price LIKE 'text'"], []),
        (["--session", "s3"], [3]),
        (["--since", "1h"], [1, 2, 3]),
        (["--before", "1h"], []),
        (["--since", "2100-01-01"], []),
        (["--sequence-number", "1", "--sequence-number", "2"], [1, 2]),
    ],
)
def test_filters(arguments: list[str], prices: list[int]) -> None:
    filled(requires_session=True)
    found = lines(call("dead-letter", "show", "orders", *arguments))
    assert [each["application_properties"]["price"] for each in found] == prices
    if "--sequence-number" not in arguments:
        assert len(lines(call("dead-letter", "list", "orders", "--json", *arguments))) == len(prices)
        assert f"{len(prices)} dead letter" in call("dead-letter", "list", "orders", *arguments).stdout


def test_limits_of_a_selection_are_exact() -> None:
    at, tick = datetime(2030, 1, 1, tzinfo=UTC), timedelta(microseconds=1)
    message = ServiceBusReceivedMessage.of(encoded(ServiceBusMessage("x")), sequence_number=1, enqueued_time_utc=at)
    assert [MessageSelection(since=at + step * tick)(message) for step in (-1, 0, 1)] == [True, True, False]
    assert [MessageSelection(before=at + step * tick)(message) for step in (-1, 0, 1)] == [False, False, True]
    assert [MessageSelection(reason=reason)(message) for reason in (None, "", "x")] == [True, True, False]
    dead = ServiceBusReceivedMessage.of(
        encoded(ServiceBusMessage("x", application_properties={"DeadLetterReason": "odd"})),
        sequence_number=2,
        enqueued_time_utc=at,
    )
    assert [MessageSelection(reason=reason)(dead) for reason in (None, "", "odd")] == [True, False, True]
    assert [MessageSelection(session=session)(message) for session in (None, "", "x")] == [True, False, False]


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Asia/Tokyo"])
def test_a_time_is_in_utc_unless_it_says_otherwise(monkeypatch: pytest.MonkeyPatch, zone: str) -> None:
    monkeypatch.setenv("TZ", zone)
    tzset()
    try:
        noon = datetime(2030, 1, 1, 12, tzinfo=UTC)
        for text in ("2030-01-01T12:00", "2030-01-01 12:00:00Z", "2030-01-01T13:00+01:00"):
            assert time(text) == noon
        assert time("2030-01-01") == noon.replace(hour=0)
    finally:
        monkeypatch.undo()
        tzset()


def test_list_prints_one_line_without_the_body() -> None:
    filled()
    header, first, *_, last = call("dead-letter", "list", "orders").stdout.splitlines()
    assert header.split() == ["sequence", "number", "enqueued", "time", "utc", "reason", "message", "id"]
    number, enqueued, *rest = first.split()
    assert (number, rest) == ("1", ["odd", "m1"])
    assert enqueued.endswith("Z")
    assert last == "3 dead letters (2 odd, 1 even)"


def test_resubmit_sends_again_what_it_then_deletes() -> None:
    filled()
    assert call("dead-letter", "resubmit", "orders", "--reason", "odd", "--dry-run").stdout == (
        "found 2 dead letters (2 odd)\n"
    )
    (done,) = lines(call("dead-letter", "resubmit", "orders", "--reason", "odd", "--yes", "--json"))
    assert done == {"found": {"odd": 2}, "done": 2, "is_dry_run": False}
    assert (bodies(None), bodies(ServiceBusSubQueue.DEAD_LETTER)) == (["1", "3"], ["2"])
    again = found_in(None)[0]
    assert (again.message_id, again.application_properties) == ("m1", {"price": 1})


def test_resubmit_keeps_what_the_entity_refuses() -> None:
    filled()

    async def disable(client: ServiceBusClient) -> None:
        queue = await client.administration.get_queue("orders")
        queue.status = EntityStatus.SEND_DISABLED
        await client.administration.update_queue(queue)

    on(PRIMARY, disable)
    call("dead-letter", "resubmit", "orders", "--yes", status=3)
    assert (bodies(None), bodies(ServiceBusSubQueue.DEAD_LETTER)) == ([], ["1", "2", "3"])


def test_resubmit_is_not_dropped_as_a_duplicate() -> None:
    filled(requires_duplicate_detection=True)
    assert call("dead-letter", "resubmit", "orders", "--yes").stdout == "resubmitted 3\n"
    assert [message.message_id for message in found_in(None)] == ["m1#1", "m2#2", "m3#3"]


def test_resubmit_of_a_subscription_sends_to_its_topic() -> None:
    async def work(client: ServiceBusClient) -> None:
        await client.administration.create_topic("prices")
        await client.administration.create_subscription("prices", "eu")
        async with client.get_topic_sender("prices") as sender:
            await sender.send_messages(ServiceBusMessage("x"))
        async with client.get_subscription_receiver("prices", "eu") as receiver:
            (received,) = await receiver.receive_messages(1)
            await receiver.dead_letter_message(received, reason="r")

    on(PRIMARY, work)
    assert call("dead-letter", "resubmit", "prices/Subscriptions/eu", "--yes").stdout == "resubmitted 1\n"
    assert [each["body"] for each in lines(call("peek", "--topic", "prices", "--subscription", "eu"))] == ["x"]


def test_purge_deletes_only_what_is_selected() -> None:
    filled()
    assert call("dead-letter", "purge", "orders", "--where", "price = 2", "--yes").stdout == "deleted 1\n"
    assert bodies(ServiceBusSubQueue.DEAD_LETTER) == ["1", "3"]
    assert call("dead-letter", "purge", "orders", "--reason", "other", "--yes").stdout == "found 0 dead letters\n"


@pytest.mark.parametrize(
    ("arguments", "status", "part"),
    [
        (["list"], 2, "give either an entity"),
        (["list", "orders", "--backlog"], 2, "give either an entity"),
        (["list", "--backlog"], 2, "--secondary"),
        (["list", "missing"], 5, "there is no queue 'missing'"),
        (["list", "orders", "--where", "price >"], 2, "the filter is refused at line 1"),
        (["list", "orders", "--since", "soon"], 2, "not a time"),
        (["purge", "orders"], 2, "confirm with --yes"),
    ],
)
def test_bad_calls_say_what_to_do(arguments: list[str], status: int, part: str) -> None:
    filled()
    assert part in " ".join(call("dead-letter", *arguments, status=status, stdin="y\n").stderr.split())
    assert bodies(ServiceBusSubQueue.DEAD_LETTER) == ["1", "2", "3"]


def test_dead_letters_of_the_backlog_go_back_into_it() -> None:
    async def work(client: ServiceBusClient) -> None:
        await client.administration.create_queue("parcels", requires_session=True)

    on(PRIMARY, work)
    with dead_letters("parcels", None):
        rows = lines(paired("dead-letter", "list", "--backlog", "--json"))
        assert {row["queue"] for row in rows} == {BACKLOG_0}
        assert {row["reason"] for row in rows} == {"DestinationRefused", "DestinationMissing"}
        out = paired("dead-letter", "resubmit", "--backlog", "--reason", "DestinationRefused", "--yes").stdout
        assert out == "resubmitted 1\n"
    assert shown()["destinations"]["parcels"]["waiting"] == 1
    assert shown()["dead_letters"] == {"DestinationMissing": 1}


def test_resubmit_leaves_out_the_backlog_queues_for_sessions() -> None:
    queue = "cli-test/x-servicebus-transfer-sessions/0"
    with dead_letters():
        filled(queue, SECONDARY, requires_session=True)
    assert {row["queue"] for row in lines(paired("dead-letter", "list", "--backlog", "--json"))} == {queue}
    assert paired("dead-letter", "resubmit", "--backlog", "--dry-run").stdout == "found 0 dead letters\n"


def test_purge_of_the_backlog_deletes_only_dead_letters() -> None:
    with dead_letters(None, None):
        left_behind("an order", path="orders")
    purge = ("dead-letter", "purge", "--backlog")
    assert paired(*purge, "--dry-run").stdout == "found 2 dead letters (2 DestinationMissing)\n"
    assert paired(*purge, "--yes").stdout == "deleted 2\n"
    report = shown()
    assert (report["depth"], report["dead_letters"]) == (1, {})


def test_peek_and_receive_take_the_same_filter() -> None:
    filled()
    call("dead-letter", "resubmit", "orders", "--yes")
    where = ("--queue", "orders", "--where", "price IN (1, 3)")
    assert [each["body"] for each in lines(call("peek", *where, "--count", "1"))] == ["1"]
    received = lines(call("receive", *where, "--wait", "0.1"))
    assert [each["body"] for each in received] == ["1", "3"]
    assert bodies(None) == ["2"]
    assert [each["body"] for each in lines(call("receive", "--queue", "orders", "--wait", "0.1"))] == ["2"]
    assert "the filter is refused" in call("peek", "--queue", "orders", "--where", "price IN", status=2).stderr
