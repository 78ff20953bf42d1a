"""docs/syphon.md says of the worker what is true of it: its statuses, paths, reasons and limits."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from sbclient.cli.common import Exit
from sbclient.cli.syphon import EXIT_GRACE_S
from sbclient.settings.durations import seconds_of
from sbclient.settings.kinds import FLAG
from sbclient.worker.dry_run import LOOKED_AT
from sbclient.worker.http_api import METHODS
from sbclient.worker.reachability import UNREACHABLE_PROBE_INTERVAL_S
from sbclient.worker.settings import SETTINGS, START_UNTIL_EMPTY_S
from tests.commands import call

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = (ROOT / "docs" / "syphon.md").read_text(encoding="utf-8")
ALERTS: Final = (ROOT / "examples" / "deploy" / "prometheus-alerts.yml").read_text(encoding="utf-8")

SYPHON_STATUSES: Final = set(Exit) - {Exit.EXISTS}


def test_the_statuses_are_all_that_there_are() -> None:
    rows = re.findall(r"^\| ([\d, ]+) \|", PAGE, re.M)
    numbers = [int(number) for each in rows for number in each.split(", ")]
    assert numbers == sorted(SYPHON_STATUSES)


def test_the_help_has_the_same_statuses() -> None:
    help_text = " ".join(call("syphon", "--help").output.split())
    statuses = help_text.partition("Exit status:")[2].partition("Example:")[0]
    assert {int(number) for number in re.findall(r"(?:^|; |and )\s*(\d+)\b", statuses)} == SYPHON_STATUSES


def test_the_paths_are_those_that_are_served() -> None:
    assert re.findall(r"`(?:GET|POST) (/[a-z]+)`", PAGE) == list(METHODS)


def test_options_and_variables_that_are_named_exist() -> None:
    known = {setting.option for setting in SETTINGS.values()} | {
        f"--no-{setting.option[2:]}" for setting in SETTINGS.values() if setting.kind is FLAG
    }
    other = {"--config", "--check-config", "--dry-run", "--json", "--init", "--reason", "--sample"}
    other |= {"--backlog", "--worker"}
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", PAGE)) <= known | other
    variables = {setting.variable for setting in SETTINGS.values()} | {"SBCLIENT_SYPHON_CONFIG", "SBCLIENT_SYPHON_"}
    assert set(re.findall(r"\bS(?:BCLIENT|ERVICEBUS)_[A-Z_]+", PAGE)) <= variables


def test_numbers_in_the_text_are_those_of_the_code() -> None:
    assert f"`--shutdown-timeout`, {SETTINGS['shutdown_timeout'].default:.0f} s, and {EXIT_GRACE_S:.0f} s more" in PAGE
    assert f"up to {LOOKED_AT:,} messages of each backlog queue" in PAGE
    assert f"every {UNREACHABLE_PROBE_INTERVAL_S:.0f} s after it failed" in " ".join(PAGE.split())
    assert seconds_of("1 min") == START_UNTIL_EMPTY_S
    assert "cannot be reached within a minute (`--start-timeout`)" in PAGE


def test_the_alerts_that_are_named_exist() -> None:
    table = PAGE.partition("| alert |")[2].partition("\n\n")[0]
    named = set(re.findall(r"`([A-Z]\w+)`", table))
    assert named
    assert named <= set(re.findall(r"- alert: (\w+)", ALERTS))
