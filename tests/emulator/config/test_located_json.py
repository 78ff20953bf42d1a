"""JSON that knows where each value stands."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbclient.emulator.config.located_json import ConfigError, read_located
from tests.blanks import AROUND_A_LINE

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


def test_values_know_their_path_and_line() -> None:
    root = read_located('{\n "a": [1,\n  {"b": "x"}\n ]\n}', "Config.json")
    found = root.value["a"].value[1].value["b"]
    assert (found.value, found.path, found.line) == ("x", "$.a[1].b", 3)
    assert str(found.error("is wrong")) == "Config.json, line 3: $.a[1].b is wrong"


def test_comments_and_a_last_comma_are_allowed() -> None:
    text = '// first\n{ /* two\nlines */ "a": "not // a comment", // last\n "b": [1, 2,], }\n// end'
    assert read_located(text, "c").plain() == {"a": "not // a comment", "b": [1, 2]}


@pytest.mark.parametrize(("before", "after"), AROUND_A_LINE)
def test_what_editors_leave_around_lines_is_skipped(before: str, after: str) -> None:
    lines = ["{", '"a": " x ",', "// all\t", '"b": 1', "}"]
    text = before + "".join(line + after.strip("\n") + "\n" for line in lines) + after
    assert read_located(text, "c").plain() == {"a": " x ", "b": 1}


@given(JSON_VALUES)
def test_reads_whatever_json_is(value: object) -> None:
    assert read_located(json.dumps(value), "c").plain() == value
    assert read_located(json.dumps(value, indent=2, ensure_ascii=False), "c").plain() == value


@pytest.mark.parametrize(
    ("text", "line", "named"),
    [
        ("", 1, "the end"),
        ("{", 1, "the end"),
        ('{\n"a" 1}', 2, "':' is expected"),
        ('{"a": 1\n"b": 2}', 2, "'}' is expected"),
        ("[1 2]", 1, "']' is expected"),
        ("[,]", 1, "a value is expected"),
        ("{,}", 1, "a name in quotation marks"),
        ("{a: 1}", 1, "unexpected 'a' in column 2"),
        ("[1]\n[2]", 2, "after the end"),
        ("\n\n'single'", 3, "unexpected"),
        ('"open', 1, "unexpected"),
        ('{"a": 1, "a": 2}', 1, "twice"),
        ("/* never closed", 1, "unexpected"),
        ("[" * 100, 1, "deeper"),
        ("1" + "0" * 5000, 1, "is not a value"),
        ('"\\x"', 1, "is not a value"),
        ('{"\\x": 1}', 1, "is not a name"),
        ("nul", 1, "unexpected"),
    ],
)
def test_invalid_json_is_rejected_with_its_line(text: str, line: int, named: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_located(text, "Config.json")
    assert caught.value.message.startswith(f"Config.json, line {line}: ")
    assert named in caught.value.message


@given(st.text(alphabet='{}[]":,/*\\ \n1a-.e', max_size=40))
def test_no_text_breaks_the_reader(text: str) -> None:
    with suppress(ConfigError):
        read_located(text, "c")
