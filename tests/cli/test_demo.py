"""`sbclient demo`: what it prints. How it ends by a signal: see test_startup_signals.py."""

from __future__ import annotations

import io
import json
import re
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any

import pytest
from rich.console import Console
from typer.testing import Result

from sbclient.cli.common import WIDE
from sbclient.cli.demo import MESSAGES, show
from sbclient.cli.outage import OutageRun, file_lane, sample_lanes
from sbclient.cli.records import Record
from sbclient.testing import run_virtual
from tests.commands import call

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "commands-admin.md"
SECTION = PAGE.read_text(encoding="utf-8").partition("## sbclient demo\n")[2]


def demo(*arguments: str, status: int = 0) -> Result:
    return call("demo", *arguments, status=status)


def account_of(*arguments: str) -> dict[str, Any]:
    run = demo("--json", *arguments)
    assert run.stderr == ""
    account = json.loads(run.stdout)
    assert isinstance(account, dict)
    return account


def test_account_is_consistent() -> None:
    account = account_of("--messages", "400")
    assert account["lost"] == account["altered"] == account["unexpected"] == 0
    assert account["sent"] == account["accepted"] == account["delivered"] == 400
    assert account["drained"] == account["diverted"] > 0
    assert sum(account["refused_tries"].values()) > 0
    assert account["refused_messages"] == {}


@pytest.mark.parametrize("ordering", ["none", "session"])
def test_a_primary_that_never_comes_back_loses_nothing(ordering: str) -> None:
    account = account_of("--messages", "400", "--lost-primary", "--ordering", ordering)
    assert account["lost"] == account["altered"] == account["unexpected"] == 0
    assert account["sent"] == account["accepted"] == account["delivered"] == 300
    assert account["drained"] == account["diverted"] > 150
    out = demo("--messages", "100", "--lost-primary").stdout
    assert "never comes back" in out
    assert "to the queues of the same name in the secondary" in out
    assert "the primary is back" not in out
    demo("--page", "--lost-primary", status=2)


def test_seed_repeats_a_run() -> None:
    def run(seed: int) -> dict[str, Any]:
        return asdict(run_virtual(OutageRun(sample_lanes(Random(seed), 60), seed=seed).run()))

    assert run(5) == run(5)
    assert run(5) | {"seed": 6} != run(6)


def test_csv_file_is_sent_through_the_outage(tmp_path: Path) -> None:
    path = tmp_path / "orders.csv"
    path.write_text("order,text\n" + "".join(f"{number // 5},line {number}\n" for number in range(300)))
    account = account_of("--input", str(path), "--session-column", "order")
    assert account["sent"] == account["delivered"] == 300
    assert account["diverted"] == account["drained"] > 0
    assert account["lost"] == 0


def test_ordering_session_keeps_the_order() -> None:
    records = [Record(b"%d" % number, session_id=f"session {number % 20}") for number in range(600)]

    def out_of_order(ordering: Any) -> int:
        return run_virtual(OutageRun([file_lane(records)], seed=3, ordering=ordering).run()).out_of_order

    assert out_of_order("none") > 0
    assert out_of_order("session") == 0


def test_invalid_message_is_sent_once() -> None:
    account = run_virtual(OutageRun([file_lane([Record(b"x" * 300_000), Record(b"y")])], seed=1).run())
    assert account.refused_messages == {"MessageSizeExceededError": 1}
    assert "MessageSizeExceededError" not in account.refused_tries
    assert (account.sent, account.accepted, account.delivered, account.lost) == (2, 1, 1, 0)


def test_text_output_without_json() -> None:
    out = demo("--messages", "100").stdout
    for line in ("100 messages go to 4 queues", "the primary goes down", "messages go to the backlog", "to go on:"):
        assert line in out
    assert "lost 0" in " ".join(out.split())


def test_documented_run_is_that_of_the_program() -> None:
    out = io.StringIO()
    outage = OutageRun(sample_lanes(Random(1), MESSAGES), seed=1)
    account = show(outage, Console(file=out, width=WIDE))
    text, figures = re.findall(r"^```(?:text|json)\n(.*?)^```", SECTION, re.M | re.S)
    assert out.getvalue().strip() == text.strip()
    assert asdict(account) == json.loads(figures)


def test_messages_wait_in_the_backlog_during_the_outage() -> None:
    outage = OutageRun(sample_lanes(Random(1), 100), seed=1)
    seen: list[tuple[dict[str, int], dict[str, int]]] = []

    def watch() -> None:
        if outage.phase == "primary down":
            seen.append((outage.waiting(), {name: number for name, number in outage.diverted.items() if number}))

    run_virtual(outage.run(watch=watch))
    waiting, diverted = seen[-1]
    assert waiting == diverted != {}
    assert outage.waiting().total() == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ("--input", "no such file.csv"),
        ("--session-column", "x"),
        ("--ordering", "alphabetical"),
        ("--messages", "0"),
        ("--speed", "10"),
        ("--page-port", "0"),
        ("--input", "one.txt", "--messages", "10"),
        ("--input", "empty.txt"),
    ],
)
def test_invalid_input_is_reported_with_status_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "one.txt").write_text("one\n")
    monkeypatch.chdir(tmp_path)
    run = demo(*arguments, status=2)
    assert run.stdout == ""
    assert run.stderr.splitlines()[-1].startswith(("Error: ", "sbclient demo: "))
