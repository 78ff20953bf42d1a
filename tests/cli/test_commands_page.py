"""The pages about commands say of each what is true: its options, what it prints as JSON, how it ends."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from sbclient import ServiceBusClient, ServiceBusMessage
from sbclient.cli.app import COMMANDS, make_app
from sbclient.cli.common import Exit
from sbclient.cli.outage import Account
from tests.cli.calling import PRIMARY, SECONDARY, call, lines, on, paired, sent
from tests.pages.defaults import wrong_defaults
from tests.pages.table import COMMAND

DOCS: Final = Path(__file__).parents[2] / "docs"
TEXT: Final = "".join((DOCS / name).read_text(encoding="utf-8") for name in ("commands.md", "commands-admin.md"))
SECTIONS: Final = {
    title.removeprefix("sbclient "): body
    for title, body in re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", TEXT, re.M | re.S)
}
NAMED_BY_DATA: Final = {
    "dead_letters",
    "dead_lettered",
    "found",
    "application_properties",
    "connection_strings",
    "ports",
    "refused_tries",
    "refused_messages",
}
"""Objects whose members have the names of queues, reasons and the like."""


def shapes_in(section: str) -> list[Any]:
    return [json.loads(block) for block in re.findall(r"^```json\n(.*?)^```", SECTIONS[section], re.M | re.S)]


def shape(value: Any) -> Any:
    """The names in a JSON value, without what they stand for."""
    if isinstance(value, dict):
        return {
            name: "by name"
            if name in NAMED_BY_DATA
            else [shape(next(iter(each.values())))]
            if name == "destinations"
            else shape(each)
            for name, each in value.items()
        }
    return [shape(each) for each in value[:1]] if isinstance(value, list) else None


def parameters_of(command: str) -> list[Any]:
    """Every parameter of a command and of the commands below it."""
    found = get_command(make_app([command])).commands[command]  # type: ignore[attr-defined]
    return [each for one in (found, *getattr(found, "commands", {}).values()) for each in one.params]


def options_of(command: str) -> set[str]:
    names = {name for each in parameters_of(command) for name in each.opts} | {"--help"}
    return {name for name in names if name.startswith("-")}


def test_documented_exit_statuses_match_the_program() -> None:
    table = re.findall(r"^\| (\d+) \| `(\w+)` \|", TEXT, re.M)
    assert [(int(number), name) for number, name in table] == [(status.value, status.name) for status in Exit]


def test_each_command_has_a_section() -> None:
    assert set(SECTIONS) == {*COMMANDS, "Exit status"}


@pytest.mark.parametrize("command", COMMANDS)
def test_documented_options_exist(command: str) -> None:
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", SECTIONS[command]))
    allowed = options_of(command) | (options_of("receive") if command == "send" else set())
    allowed |= options_of("send") if command == "receive" else set()
    assert named <= allowed, f"docs/commands.md or commands-admin.md, section sbclient {command}"


@pytest.mark.parametrize("command", [name for name in COMMANDS if name not in ("syphon", "demo")])
def test_main_options_are_documented(command: str) -> None:
    """All but those that every command has, or that need no more words than --help gives."""
    common = {"--help", "--json", "--primary", "--secondary", "-y", "-f", "-w"}
    plain = {
        "send": {"--queue", "--topic", "--input", "--timeout"},
        "receive": {"--queue", "--topic", "--subscription", "--format"},
        "peek": {"--queue", "--topic", "--subscription", "--session", "--dead-letter", "--transfer-dead-letter"},
        "backlog": {"--backlog-queue-count", "--primary-name"},
        "emulator": {"--first-port", "--host", "--key", "--seed", "--tls-name"},
    }.get(command, set())
    missing = {name for name in options_of(command) if name not in SECTIONS[command]} - common - plain
    assert not missing, f"describe them in docs/commands.md or commands-admin.md, section sbclient {command}"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_default_in_a_sentence_is_the_declared_one(command: str) -> None:
    defaults = {
        name: f"{each.default:g}" if isinstance(each.default, float) else str(each.default)
        for each in parameters_of(command)
        for name in each.opts
        if each.default not in (None, False, True, [], ())
    }
    assert not list(wrong_defaults(SECTIONS[command], defaults))


@pytest.fixture
def _queues() -> None:
    async def work(client: ServiceBusClient) -> None:
        await client.administration.create_queue("orders")

    on(PRIMARY, work)


FULL: Final = ServiceBusMessage(
    "text",
    application_properties={"number": 1, "price": Decimal("1.50"), "at": datetime(2030, 1, 1, tzinfo=UTC)},
    session_id="a",
    message_id="7",
    scheduled_enqueue_time_utc=datetime(2020, 1, 1, tzinfo=UTC),
    time_to_live=timedelta(hours=1),
    content_type="text/plain",
    correlation_id="c",
    subject="new",
    partition_key="a",
    to="t",
    reply_to="r",
    reply_to_session_id="rs",
)


def one_received() -> Any:
    sent("orders", FULL)
    return lines(call("receive", "--queue", "orders", "--count", "1"))[0]


def backlog_shown() -> Any:
    on(PRIMARY, _nothing, secondary=SECONDARY)
    lost = [ServiceBusMessage("x", application_properties=each) for each in ({}, {"x-ms-path": "orders"})]
    sent("cli-test/x-servicebus-transfer/0", *lost, namespace=SECONDARY)
    report = lines(paired("backlog", "--sample", "0.1", "--json"))[0]
    report["destinations"].pop("(unknown)")
    return report


async def _nothing(client: ServiceBusClient) -> None:
    pass


def purged() -> Any:
    on(PRIMARY, _nothing, secondary=SECONDARY)
    return lines(paired("dead-letter", "purge", "--backlog", "--yes", "--json"))[0]


def listed() -> Any:
    async def work(client: ServiceBusClient) -> None:
        async with client.get_queue_sender("orders") as sender, client.get_queue_receiver("orders") as receiver:
            await sender.send_messages(ServiceBusMessage("x"))
            await receiver.dead_letter_message((await receiver.receive_messages())[0], reason="broken")

    on(PRIMARY, work)
    return lines(call("dead-letter", "list", "orders", "--json"))[0]


def syphoned() -> Any:
    on(PRIMARY, _nothing, secondary=SECONDARY)
    return lines(paired("syphon", "--until", "empty", "--json"))[0]


def error_told() -> Any:
    result = CliRunner().invoke(make_app(["peek"]), ["peek", "--queue", "missing", "--primary", PRIMARY, "--json"])
    return json.loads(result.stderr)


def imported() -> Any:
    with TemporaryDirectory() as folder:
        file = Path(folder, "entities.json")
        file.write_text('{"entities": [{"kind": "queue", "names": ["new"]}]}')
        return lines(call("admin", "import", str(file), "--json"))[0]


JSON: Final[dict[tuple[str, int], Callable[[], Any]]] = {
    ("Exit status", 0): error_told,
    ("send", 0): lambda: lines(call("send", "--queue", "orders", "--json", stdin="x\n"))[0],
    ("receive", 0): one_received,
    ("backlog", 0): backlog_shown,
    ("dead-letter", 0): purged,
    ("dead-letter", 1): listed,
    ("doctor", 0): lambda: lines(paired("doctor", "--json", status=5))[0],
    ("admin", 0): lambda: lines(call("admin", "show", "queue", "orders", "--json"))[0],
    ("admin", 1): lambda: lines(call("admin", "delete", "queue", "orders", "--yes", "--json"))[0],
    ("admin", 2): imported,
    ("syphon", 0): syphoned,
    ("demo", 0): lambda: {field.name: None for field in fields(Account)},
}


@pytest.mark.usefixtures("_queues")
@pytest.mark.parametrize("place", JSON, ids=lambda place: f"{place[0]} {place[1]}")
def test_json_has_the_documented_shape(place: tuple[str, int]) -> None:
    section, number = place
    printed, shown = shape(JSON[place]()), shape(shapes_in(section)[number])
    where = f"correct docs/commands.md or commands-admin.md, section sbclient {section}, and run {COMMAND}"
    assert set(printed) == set(shown) if section == "demo" else printed == shown, where
    assert list(printed) == list(shown), where


def test_each_documented_shape_is_compared() -> None:
    """Those of `emulator`, `fault` and `verify` are compared by their own tests, which start an emulator."""
    shown = {(section, number) for section in SECTIONS for number in range(len(shapes_in(section)))}
    assert shown - {("emulator", 0), ("fault", 0), ("verify", 0)} == set(JSON)
