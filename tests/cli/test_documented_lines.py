"""The shell lines of the README and the docs run, if they end by themselves and need no network."""

from __future__ import annotations

import re
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from typer.main import get_command

from sbclient.cli.app import COMMANDS, make_app
from tests.cli.calling import run_line
from tests.commands import start

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
CHECKED_ELSEWHERE: Final = {
    "python3 -m venv .venv && . .venv/bin/activate": "`.ci/run` makes an environment",
    "python -m pip install '.[emulator]' && sbclient demo": "tests/test_docs.py and tests/cli/test_demo.py",
    "python -m pip install -e '.[dev]' && python -m pytest": "the whole suite",
}
LONG_RUNNING: Final = ("demo", "emulator", "syphon", "verify")
"""These have tests of their own; only their options are checked here."""


def lines_in(page: Path) -> Iterator[str]:
    for block in re.findall(r"^```sh\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S):
        yield from filter(None, block.replace("\\\n", " ").splitlines())


EVERY: Final = [(page, line) for page in PAGES for line in lines_in(page) if line.startswith("sbclient ")]


def commands(*, long_running: bool) -> list[Any]:
    return [
        pytest.param(line, id=f"{page.name} {line}")
        for page, line in EVERY
        if (shlex.split(line)[1] in LONG_RUNNING) is long_running
    ]


@pytest.mark.parametrize("line", commands(long_running=False))
@pytest.mark.usefixtures("_what_readers_have")
def test_a_line_runs(line: str) -> None:
    run_line(line)


@pytest.mark.parametrize("line", commands(long_running=True))
def test_options_of_a_long_running_line_exist(line: str) -> None:
    name, *words = shlex.split(line)[1:]
    command = get_command(make_app([name])).commands[name]  # type: ignore[attr-defined]
    known = {each for parameter in command.params for each in [*parameter.opts, *parameter.secondary_opts]}
    assert {word.partition("=")[0] for word in words if word.startswith("-")} <= known | {"--help"}


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *(ROOT / "docs").glob("commands*.md")], ids=lambda page: page.name
)
def test_other_lines_are_checked_elsewhere(page: Path) -> None:
    others = [line for line in lines_in(page) if not line.startswith("sbclient ")]
    assert set(others) <= set(CHECKED_ELSEWHERE)


def test_the_documented_emulator_starts(tmp_path: Path) -> None:
    """On ports that are free, since those that are shown may not be."""
    line, *_ = [line for line in lines_in(ROOT / "docs" / "emulator.md") if line.startswith("sbclient emulator")]
    words = re.sub(r":\d+", ":0", line).split()[1:]
    variables = {"XDG_CACHE_HOME": str(tmp_path), "PYTHONUNBUFFERED": "1"}
    process = start(*words, "--http-port", "0", is_strict=False, stderr=None, env=variables)
    assert process.stdout is not None
    with process.stdout:
        seen = ""
        while "ready" not in seen:
            printed = process.stdout.readline()
            assert printed, seen
            seen += printed
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    assert "contoso-backup  Endpoint=sb://localhost:" in seen


def test_each_command_is_shown_somewhere() -> None:
    shown = " ".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert all(f"sbclient {name}" in shown for name in COMMANDS)
