"""docs/log-events.md lists every log event of `sbclient` with the level, the message and the facts of its log calls."""

from __future__ import annotations

import ast
import re
from importlib import import_module
from pathlib import Path
from string import Formatter
from typing import Final, NamedTuple

import pytest

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


class Call(NamedTuple):
    path: Path
    node: ast.Call
    name: str

    @property
    def place(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.node.lineno}"


@pytest.fixture(scope="module")
def calls() -> list[Call]:
    """The log calls of the package."""
    found = []
    for path in sorted((ROOT / "sbclient").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
                name = node.args[0].value if isinstance(node.args[0], ast.Constant) else None
                if node.func.attr in (*LEVELS, "record") and isinstance(name, str) and EVENT.fullmatch(name):
                    found.append(Call(path, node, name))
    return found


def test_the_page_shows_each_call(calls: list[Call]) -> None:
    shown = rows()
    for each in calls:
        assert isinstance(each.node.func, ast.Attribute)
        module = import_module(".".join(each.path.relative_to(ROOT).with_suffix("").parts))
        message = eval(ast.unparse(each.node.args[1]), vars(module))
        given = {keyword.arg: keyword.value for keyword in each.node.keywords}
        level = each.node.func.attr
        facts = {fact for fact in given if fact is not None} - {"exc_info", "level"}
        if level == "record":
            named = ast.unparse(given["level"]).removeprefix("logging.").lower() if "level" in given else "info"
            level = f"{named}, pair"
            facts |= {"path"}
        row = shown[each.name]
        assert (row.level, row.message) == (level, plain(message)), each.place
        assert facts <= row.facts, each.place
        assert fields_of(message) <= (row.facts if None in given else facts), each.place


def test_the_page_lists_no_other_event(calls: list[Call]) -> None:
    assert set(rows()) == {each.name for each in calls}
