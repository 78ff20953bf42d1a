"""docs/log-events.md lists every log event of `sbclient` with the level, the message and the facts of its log calls."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from string import Formatter
from typing import Final, NamedTuple

import pytest
from _pytest.mark import ParameterSet

ROOT: Final = Path(__file__).parents[2]
EVENT: Final = re.compile(r"[a-z]+\.[a-z_]+")
LEVELS: Final = ("debug", "info", "warning", "error")


class Event(NamedTuple):
    level: str
    message: str
    facts: frozenset[str]


def rows() -> dict[str, Event]:
    page = (ROOT / "docs" / "log-events.md").read_text(encoding="utf-8")
    found = re.findall(r"^\| `([^`]+)` \| (.+?) \| (.+?) \| (.*?) ?\| .+ \|$", page, re.M)
    return {
        name: Event(level, message, frozenset(filter(None, facts.split(", ")))) for name, level, message, facts in found
    }


def fields_of(message: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(message) if name}


def plain(message: str) -> str:
    """A message as the page shows it: fields without conversions and formats."""
    return re.sub(r"\{(\w+)(?:![rs])?(?::[^}]*)?\}", r"{\1}", message)


def calls() -> Iterator[ParameterSet]:
    for path in sorted((ROOT / "sbclient").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
                name = node.args[0].value if isinstance(node.args[0], ast.Constant) else None
                if node.func.attr in (*LEVELS, "record") and isinstance(name, str) and EVENT.fullmatch(name):
                    yield pytest.param(path, node, name, id=f"{path.name}:{node.lineno} {name}")


@pytest.mark.parametrize(("path", "call", "name"), list(calls()))
def test_the_page_shows_the_call(path: Path, call: ast.Call, name: str) -> None:
    assert isinstance(call.func, ast.Attribute)
    module = import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
    message = eval(ast.unparse(call.args[1]), vars(module))
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    level = call.func.attr
    facts = {fact for fact in given if fact is not None} - {"exc_info", "level"}
    if level == "record":
        level = f"{ast.unparse(given['level']).removeprefix('logging.').lower() if 'level' in given else 'info'}, pair"
        facts |= {"path"}
    row = rows()[name]
    assert (row.level, row.message) == (level, plain(message))
    assert facts <= row.facts
    assert fields_of(message) <= (row.facts if None in given else facts)


def test_the_page_lists_no_other_event() -> None:
    assert set(rows()) == {parameter.values[2] for parameter in calls()}
