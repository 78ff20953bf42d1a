"""The smaller commands, from argument to exit status, on a namespace inside this process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sbclient import ServiceBusClient, ServiceBusMessage
from sbclient.cli.app import COMMANDS, make_app
from sbclient.transport.memory import drop_memory_host

NAMESPACE = "memory://cli-test"


@pytest.fixture(autouse=True)
def _namespace() -> Iterator[None]:
    yield
    drop_memory_host(NAMESPACE)
    drop_memory_host("memory://cli-test-backup")


def call(*arguments: str, status: int = 0, stdin: str | None = None) -> Any:
    result = CliRunner().invoke(make_app(), [*arguments, "--primary", NAMESPACE], input=stdin)
    assert result.exit_code == status, result.output
    return result


def lines(result: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_a_queue_is_made_shown_changed_listed_and_deleted() -> None:
    (made,) = lines(
        call("admin", "create", "queue", "q", "--set", "lock_duration=30s", "--set", "requires_session=true")
    )
    assert made["name"] == "q"
    assert made["requires_session"] is True
    (changed,) = lines(call("admin", "update", "queue", "q", "--set", "max_delivery_count=3"))
    assert changed["max_delivery_count"] == 3
    (shown,) = lines(call("admin", "show", "queue", "q"))
    assert shown["runtime"]["total_message_count"] == 0
    assert [entity["name"] for entity in lines(call("admin", "list", "queue"))] == ["q"]
    assert call("admin", "delete", "queue", "q", stdin="n\n", status=1)
    call("admin", "delete", "queue", "q", "--yes")
    assert lines(call("admin", "list", "queue")) == []


def test_a_subscription_with_a_rule() -> None:
    call("admin", "create", "topic", "prices")
    call("admin", "create", "subscription", "prices", "eu")
    (rule,) = lines(call("admin", "create", "rule", "prices", "eu", "cheap", "--set", "sql=price < 10"))
    assert rule["filter"]["sql_expression"] == "price < 10"
    assert len(lines(call("admin", "list", "rule", "prices", "eu"))) == 2


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (("admin", "create", "queue", "a", "b"), 2),
        (("admin", "create", "queue", "q", "--set", "colour=red"), 2),
        (("admin", "create", "queue", "q", "--set", "lock_duration=soon"), 2),
        (("admin", "create", "queue", "q", "--set", "requires_session=perhaps"), 2),
        (("admin", "create", "queue", "q", "--set", "requires_session"), 2),
        (("admin", "create", "queue", "q", "--set", "authorization_rules=x"), 2),
        (("admin", "create", "rule", "t", "s", "r", "--set", "sql=1=1", "--set", "label=x"), 2),
        (("admin", "create", "rule", "t", "s", "r", "--set", "colour=x"), 2),
        (("admin", "list", "subscription"), 2),
        (("admin", "show", "queue", "missing"), 5),
        (("send",), 2),
        (("send", "--queue", "q", "--topic", "t"), 2),
        (("send", "--queue", "q", "--input", "missing.txt"), 2),
        (("receive",), 2),
        (("receive", "--queue", "missing", "--wait", "0.1"), 5),
        (("peek", "--topic", "t"), 2),
    ],
)
def test_bad_input_is_one_line_and_an_exit_status(arguments: tuple[str, ...], status: int) -> None:
    result = call(*arguments, status=status)
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert "Traceback" not in result.stderr


def test_a_secret_in_a_bad_connection_string_is_not_repeated() -> None:
    result = CliRunner().invoke(
        make_app(),
        ["admin", "list", "queue"],
        env={"SERVICEBUS_CONNECTION_STRING": "Endpoint=sb://h/;SharedAccessKey=SECRET"},
    )
    assert result.exit_code == 2
    assert "SECRET" not in result.output


def test_lines_are_sent_peeked_and_received(tmp_path: Path) -> None:
    call("admin", "create", "queue", "q")
    path = tmp_path / "orders.csv"
    path.write_text("customer,text\nada,one\nada,two\n,three\n")
    sent = call(
        "send", "--queue", "q", "--input", str(path), "--body-column", "text", "--key-column", "customer", "--json"
    )
    assert lines(sent)[0] | {"seconds": 0} == {"accepted": 3, "diverted": 0, "refused": 0, "seconds": 0}
    peeked = lines(call("peek", "--queue", "q"))
    assert sorted(message["body"] for message in peeked) == ["one", "three", "two"]
    first = lines(call("receive", "--queue", "q", "--count", "1", "--wait", "0.1", "--settle", "abandon"))
    assert len(first) == 1
    received = lines(call("receive", "--queue", "q", "--wait", "0.1"))
    assert sorted(message["body"] for message in received) == ["one", "three", "two"]
    assert lines(call("peek", "--queue", "q")) == []


def test_stdin_is_sent_and_refusals_are_told_by_number() -> None:
    call("admin", "create", "queue", "s", "--set", "requires_session=true")
    result = call("send", "--queue", "s", "--json", stdin="one\ntwo\n", status=1)
    assert lines(result)[0]["refused"] == 2


def test_a_session_is_received_by_name_or_the_next_one() -> None:
    call("admin", "create", "queue", "s", "--set", "requires_session=true")
    call("send", "--queue", "s", "--format", "jsonl", "--session-column", "id", stdin='{"id": "a"}\n{"id": "b"}\n')
    assert [m["session_id"] for m in lines(call("receive", "--queue", "s", "--session", "b", "--wait", "0.1"))] == ["b"]
    assert [m["session_id"] for m in lines(call("receive", "--queue", "s", "--session", "*", "--wait", "0.1"))] == ["a"]


def test_sends_are_diverted_when_there_is_a_secondary(tmp_path: Path) -> None:
    call("admin", "create", "queue", "q")
    call("send", "--queue", "q", "--secondary", "memory://cli-test-backup", "--json", stdin="one\n")
    backlog = CliRunner().invoke(make_app(), ["admin", "list", "queue", "--primary", "memory://cli-test-backup"])
    assert len(lines(backlog)) == 10


def test_each_command_has_help_with_an_example() -> None:
    for command in (
        ["demo"],
        ["send"],
        ["receive"],
        ["peek"],
        *(["admin", name] for name in ("create", "list", "show")),
    ):
        result = CliRunner().invoke(make_app(), [*command, "--help"])
        assert result.exit_code == 0
        assert "Example: sbclient" in result.output


def backlog(*arguments: str, status: int = 0, stdin: str | None = None) -> Any:
    return call("backlog", *arguments, "--secondary", "memory://cli-test-backup", status=status, stdin=stdin)


def put_into_the_backlog(body: str, *, path: str | None = None) -> None:
    """What another client might leave behind in backlog queue 0."""

    async def work() -> None:
        async with (
            ServiceBusClient.from_connection_string("memory://cli-test-backup") as client,
            client.get_queue_sender("cli-test/x-servicebus-transfer/0") as sender,
        ):
            properties = {"x-ms-path": path} if path else {}
            await sender.send_messages(ServiceBusMessage(body, application_properties=properties))

    asyncio.run(work())


def drain() -> None:
    async def work() -> None:
        async with ServiceBusClient.from_connection_string(NAMESPACE, secondary="memory://cli-test-backup") as client:
            await client.run_syphon(until="empty")

    asyncio.run(work())


def test_the_backlog_is_shown_resubmitted_and_purged() -> None:
    drain()
    put_into_the_backlog("nobody's")
    drain()
    assert backlog("resubmit", "--yes").stdout == "put back 1\n"
    drain()
    put_into_the_backlog("an order", path="orders")
    (report,) = lines(backlog("show", "--json"))
    assert report["depth"] == 1
    assert report["destinations"] == {"orders": 1}
    assert report["dead_letters"] == {"DestinationMissing": 1}
    assert "1 dead-lettered DestinationMissing" in backlog("show").stdout
    assert "deleted" not in backlog("purge", stdin="n\n", status=1).stdout
    assert backlog("purge", "--yes", "--reason", "DestinationMissing").stdout == "deleted 1\n"
    assert lines(backlog("show", "--json"))[0]["dead_letters"] == {}


def test_an_estimate_says_when_nothing_moves() -> None:
    drain()
    put_into_the_backlog("an order", path="orders")
    assert "it is not getting less" in backlog("show", "--sample", "0.1").stdout


def test_the_backlog_needs_a_secondary() -> None:
    assert "--secondary" in call("backlog", "show", status=2).stderr


def test_the_program_with_one_command_says_the_same_of_it_as_with_all() -> None:
    for name in COMMANDS:
        every = CliRunner().invoke(make_app(), [name, "--help"]).output
        one = CliRunner().invoke(make_app([name, "--help"]), [name, "--help"]).output
        assert one == every
    assert all(name in CliRunner().invoke(make_app(), ["--help"]).output for name in COMMANDS)


def test_the_version_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: f"{name} 1.2.3")
    result = CliRunner().invoke(make_app(), ["--version"])
    assert (result.exit_code, result.stdout) == (0, "sbclient 1.2.3\n")
