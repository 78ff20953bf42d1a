"""Each promise of docs/security.md is shown by a test, and each test shows what is promised."""

from __future__ import annotations

import re

from tests.hostile.promises import PAGE, promises
from tests.marked import arguments_of_markers

PARTS = ("client", "commands", "emulator", "worker")


def test_each_promise_is_shown_by_a_test_and_each_marker_names_one() -> None:
    shown, listed = {name for _, name in arguments_of_markers("promise")}, set(promises())
    assert shown - listed == set(), "markers that name no promise"
    assert listed - shown == set(), "promises that no test has as its marker"


def test_what_is_protected_is_said_in_rows_with_names() -> None:
    text = PAGE.read_text(encoding="utf-8")
    section = text[text.index("\n## What is protected") : text.index("\n## What is not protected")]
    rows = [
        line
        for line in section.splitlines()
        if line.startswith("|") and line not in ("| name | promise |", "|---|---|")
    ]
    assert len(rows) == len(promises()) > 40
    assert all(re.fullmatch(r"\| `[a-z-]+\.[a-z-]+` \| \S.*\S \|", row) for row in rows)
    assert not re.search(r"^[*-] ", section, re.MULTILINE), "a promise in a list has no name"
    assert list(dict.fromkeys(name.partition(".")[0] for name in promises())) == list(PARTS)
