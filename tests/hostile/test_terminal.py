"""Fields that a peer controls neither control a terminal nor forge a line: in commands, in the log, on the page."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from unicodedata import category

import pytest

from sbclient import ServiceBusClient, ServiceBusMessage
from sbclient.cli.common import cell, print_error
from sbclient.cli.progress import Progress
from sbclient.emulator.page.files import FOLDER
from sbclient.entities import SqlRuleFilter
from sbclient.telemetry.log import get_logger, printable, printable_json
from tests.cli.calling import PRIMARY, call, on, paired
from tests.cli.conftest import _namespaces
from tests.cli.test_backlog import drain, left_behind

__all__ = ["_namespaces"]

ATTACKS = {
    "esc": "\x1b[2J",
    "csi": "\x9b31m",
    "osc": "\x1b]0;t\x07",
    "c1 osc": "\x9d0;t\x9c",
    "newline": "\nforged",
    "carriage return": "\rforged",
    "backspace": "ab\b\bcd",
    "delete": "\x7f",
    "right to left": "\u202etxt.exe",
    "isolate": "\u2066x\u2069",
    "line separator": "\u2028forged",
    "paragraph separator": "\u2029forged",
    "zero width": "a\u200bb",
    "markup": "[red]x[/red]",
}
HOSTILE = "".join(ATTACKS.values())


def is_harmless(text: str, lines: int | None = None) -> bool:
    """Whether a text has only visible characters and line feeds, and as many lines as expected."""
    bad = [each for each in text if category(each) in ("Cc", "Cf", "Cs", "Zl", "Zp") and each != "\n"]
    return not bad and "\nforged" not in text and (lines is None or text.count("\n") == lines)


@pytest.mark.promise("commands.output")
@pytest.mark.parametrize("name", ATTACKS)
def test_printable_escapes_terminal_sequences(name: str) -> None:
    text = printable(f"before{ATTACKS[name]}after")

    assert is_harmless(text, lines=0)
    assert text.startswith("before")
    assert text.endswith("after")


@pytest.mark.parametrize("text", ["", "an order", "Straße 12", "日本語\u3000テスト", "naïve\u00a0café", "😀"])
def test_printable_keeps_visible_text(text: str) -> None:
    assert printable(text) == text
    assert json.loads(printable_json(text)) == text


@pytest.mark.promise("commands.output")
@pytest.mark.parametrize("name", ATTACKS)
def test_printable_json_has_the_same_value(name: str) -> None:
    line = printable_json({ATTACKS[name]: [ATTACKS[name], "\U000e0041"]})

    assert is_harmless(line, lines=0)
    assert json.loads(line) == {ATTACKS[name]: [ATTACKS[name], "\U000e0041"]}


def test_log_events_are_one_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "sbclient"):
        get_logger("sbclient.test").info("test.event", "a message from {client}", client=HOSTILE)

    assert is_harmless(caplog.records[0].getMessage(), lines=0)


@pytest.mark.promise("commands.output")
@pytest.mark.parametrize("as_json", [False, True])
def test_errors_are_one_line(capsys: pytest.CaptureFixture[str], as_json: bool) -> None:
    print_error("send", f"the service answered {HOSTILE}", "ServiceBusError", 3, as_json=as_json)

    assert is_harmless(capsys.readouterr().err, lines=1)


def test_notes_above_the_progress_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    Progress("receiving").print_above(HOSTILE)

    assert is_harmless(capsys.readouterr().err, lines=1)


def test_cells_of_tables_have_neither_markup_nor_controls() -> None:
    assert is_harmless(cell(HOSTILE).plain, lines=0)
    assert not cell(HOSTILE).spans


@pytest.fixture
def hostile_queue() -> str:
    """A queue with a message, and a dead letter, in which every field is hostile."""

    async def make(client: ServiceBusClient) -> None:
        await client.administration.create_queue("q", requires_session=True, user_metadata=HOSTILE)
        async with client.get_queue_sender("q") as sender:
            for _ in range(2):
                await sender.send_messages(hostile_message())
        async with client.get_queue_receiver("q", session_id=HOSTILE) as receiver:
            (message,) = await receiver.receive_messages(1)
            await receiver.dead_letter_message(message, HOSTILE, HOSTILE)

    on(PRIMARY, make)
    return "q"


def hostile_message() -> ServiceBusMessage:
    return ServiceBusMessage(
        HOSTILE,
        application_properties={HOSTILE: HOSTILE},
        message_id=HOSTILE,
        correlation_id=HOSTILE,
        session_id=HOSTILE,
        subject=HOSTILE,
        content_type=HOSTILE,
        to=HOSTILE,
        reply_to=HOSTILE,
        reply_to_session_id=HOSTILE,
    )


@pytest.mark.promise("commands.output")
def test_messages_are_printed_harmlessly(hostile_queue: str) -> None:
    for arguments in (
        ["peek", "--queue", "q"],
        ["peek", "--queue", "q", "--dead-letter"],
        ["receive", "--queue", "q", "--session", HOSTILE, "--wait", "0.1"],
    ):
        result = call(*arguments)
        assert is_harmless(result.stdout, lines=1)
        assert json.loads(result.stdout)["message_id"] == HOSTILE
        assert is_harmless(result.stderr)


@pytest.mark.promise("commands.output")
def test_descriptions_are_printed_harmlessly(hostile_queue: str) -> None:
    for arguments in (["show", "queue", "q"], ["show", "queue", "q", "--json"], ["list", "queue"]):
        assert is_harmless(call("admin", *arguments).stdout)


def test_rules_are_printed_harmlessly() -> None:
    async def make(client: ServiceBusClient) -> None:
        await client.administration.create_topic("t")
        await client.administration.create_subscription("t", "s")
        literal = HOSTILE.replace("'", "''")
        await client.administration.create_rule("t", "s", "r", filter=SqlRuleFilter(f"a = '{literal}'"))

    on(PRIMARY, make)
    for arguments in (["show", "rule", "t", "s", "r"], ["list", "rule", "t", "s"]):
        assert is_harmless(call("admin", *arguments).stdout)


def test_backlog_is_printed_harmlessly() -> None:
    drain()
    left_behind("x", path=f"orders{HOSTILE}")
    drain()
    for arguments in ([], ["--json"]):
        assert is_harmless(paired("backlog", *arguments, "--sample", "0").stdout)


def test_page_isolates_the_direction_of_texts() -> None:
    style = (Path(FOLDER) / "style.css").read_text(encoding="utf-8")

    assert "unicode-bidi: isolate" in style
