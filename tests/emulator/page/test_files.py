"""The files of the page: all are there, and nothing in them is loaded from elsewhere, or run from text."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from sbclient.emulator.events import CONNECTION
from sbclient.emulator.page.files import FOLDER, HEADERS, INDEX, SETTINGS_FILE, page_file, settings_script
from sbclient.entities import CORRELATION_FIELDS, SETTINGS, EntityKind
from sbclient.formats.entity_settings import described, settings_text, with_settings
from tests.telemetry.test_log_events_page import rows as log_events

ROOT: Final = Path(__file__).parents[3]
FILES = {path: path.read_text(encoding="utf-8") for path in sorted(FOLDER.iterdir())}
FILES[FOLDER / SETTINGS_FILE] = settings_script()
NOT_WRITTEN = {FOLDER / "preact.js", FOLDER / "htm.js", FOLDER / SETTINGS_FILE}
OWN = {path: text for path, text in FILES.items() if path not in NOT_WRITTEN}


def test_each_file_is_served_with_its_type_and_the_policy() -> None:
    for path in FILES:
        answer = page_file(path.name)
        assert (answer.status, answer.body) == (200, FILES[path].encode())
        assert answer.content_type.startswith(("text/html", "text/css", "text/javascript", "image/svg+xml"))
        assert answer.headers == HEADERS


def test_nothing_else_is_served() -> None:
    for name in ("", "nothing.js", "../front.py", "/etc/passwd", ".", "page_files.py", "main.js/"):
        assert page_file(name).status == 404


def test_nothing_is_loaded_from_elsewhere_and_no_text_becomes_markup() -> None:
    for path, text in FILES.items():
        assert not re.search(r"https?://(?!\$\{|localhost|www\.w3\.org/)", text), path
        assert not re.search(r"eval\(|new Function|document\.write|DOMParser|import\(", text), path
    for path, text in OWN.items():
        assert not re.search(r"[iI]nnerHTML|outerHTML|insertAdjacent", text), path
        assert not re.search(r"<[^>]+\s(on\w+|style)=(?!\$\{)", text), path


def test_every_file_that_is_named_is_there_and_every_one_there_is_named() -> None:
    named = {INDEX}
    for text in FILES.values():
        named |= set(re.findall(r'from "\./([\w.]+)"', text)) | set(re.findall(r'"/\$page/([\w.]+)"', text))
    assert named == {path.name for path in FILES}


def test_the_policy_lets_nothing_in_from_elsewhere() -> None:
    policy = dict(part.split(" ", 1) for part in HEADERS["Content-Security-Policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert {policy[name] for name in ("script-src", "style-src", "img-src", "connect-src")} == {"'self'"}
    assert policy["require-trusted-types-for"] == "'script'"


def test_the_page_knows_the_key_that_every_emulator_has() -> None:
    text = (FOLDER / "access.js").read_text(encoding="utf-8")
    assert '"RootManageSharedAccessKey"' in text
    assert '"SAS_KEY_VALUE"' in text


def test_imports_of_scripts_exist_and_are_used() -> None:
    for path, text in OWN.items():
        rest = re.sub(r"^import .*?;$", "", text, flags=re.M | re.S)
        for names, source in re.findall(r'^import \{([^}]+)\} from "\./([\w.]+)";', text, re.M):
            for name in re.findall(r"\w+", names):
                exported = rf"^export (async )?(function|const|class) {name}\b|\bas {name}[,}}]"
                assert re.search(exported, FILES[FOLDER / source], re.M), (path, name, source)
                assert re.search(rf"\b{name}\b", rest), (path, name)


def _in_script(name: str) -> list[dict[str, Any]]:
    (rows,) = re.findall(rf"^export const {name} = (.*?);$", settings_script(), re.M | re.S)
    found: list[dict[str, Any]] = json.loads(rows)
    return found


@pytest.mark.parametrize("kind", [EntityKind.QUEUE, EntityKind.TOPIC, EntityKind.SUBSCRIPTION])
def test_a_form_as_it_opens_asks_for_every_setting_and_for_what_the_service_would_choose(kind: EntityKind) -> None:
    rows = {row["name"]: row for row in _in_script("SETTINGS") if kind in row["kinds"]}
    empty = described(kind, "x", [])
    assert rows.keys() == settings_text(empty).keys()
    given = with_settings(empty, [(name, row["initial"]) for name, row in rows.items() if row["initial"]])
    for name, row in rows.items():
        assert given[name] in (None, SETTINGS[name].default), name
        assert row["initial"] in row.get("choices", (row["initial"],)), name
        with_settings(empty, [(name, each) for each in row.get("choices", ()) if each])
        if "hint" in row and SETTINGS[name].default is not None:
            assert with_settings(empty, [(name, row["hint"])])[name] == SETTINGS[name].default, name
        assert row.get("isCheck") is None or row["initial"] in ("true", "false"), name


def test_a_form_asks_for_every_field_of_a_correlation_filter() -> None:
    assert [row["name"] for row in _in_script("CORRELATION")] == list(CORRELATION_FIELDS)


def published() -> Iterator[str]:
    """The events that the activity of the page can show: of the namespaces, and of a pair in the same process."""
    for path in (ROOT / "sbclient" / "emulator").rglob("*.py"):
        if path.name == "context.py":  # passes on the names that the others give
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and re.search(r"\.publish(_change)?$", ast.unparse(node.func)):
                name = node.args[0].value if isinstance(node.args[0], ast.Constant) else None
                assert isinstance(name, str), f"{path}, line {node.lineno}: write the name of the event as a literal"
                if not name.startswith(CONNECTION):
                    yield name
    yield from (name for name, row in log_events().items() if row.level.endswith(", pair"))


def test_the_activity_has_words_for_each_event_that_is_published_and_for_no_other() -> None:
    text = FILES[FOLDER / "activity.js"]
    (words,) = re.findall(r"^const WORDS = \{$(.*?)^\};$", text, re.M | re.S)
    named, events = set(re.findall(r'^  "([^"]+)": "', words, re.M)), set(published())
    assert events - named == set(), "published without words: add them to WORDS in emulator/page/static/activity.js"
    assert named - events == set(), "not published: remove them from WORDS in emulator/page/static/activity.js"
    for path, own in OWN.items():
        assert set(re.findall(r'"([a-z_]+\.[a-z_]+)"', own)) - events == set(), f"not published, but in {path}"


def test_lines_have_the_maximum_length_of_the_project() -> None:
    texts = (text for path, text in OWN.items() if path.suffix != ".svg")
    assert [line for text in texts for line in text.splitlines() if len(line) > 120] == []
