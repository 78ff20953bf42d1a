"""JSON texts in any encoding, and texts that Python takes for JSON and its standard does not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbclient.errors import InvalidOperationError
from sbclient.formats.strict_json import read_json

ENCODINGS = ("utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32")
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(value=VALUES, around=st.sampled_from(["{}", " {}", "{}\r\n", "\t{}\n "]))
def test_each_value_is_read_from_each_encoding(value: Any, around: str) -> None:
    text = around.format(json.dumps(value))
    for found in [read_json(text), *(read_json(text.encode(encoding)) for encoding in ENCODINGS)]:
        assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    "text",
    [
        "NaN",
        "Infinity",
        "-Infinity",
        "1e400",
        "-1e400",
        "1" * 5000,
        "[" * 200_000,
        "",
        " ",
        "{",
        "[1] 2",
        "'a'",
        "[1,]",
    ],
    ids=lambda text: text[:9],
)
def test_a_text_that_is_no_json_or_too_large_is_refused(text: str) -> None:
    for given_text in (text, text.encode(), f"[{text}", f'{{"a": {text}'):
        with pytest.raises(InvalidOperationError):
            read_json(given_text)


def test_bytes_that_are_no_text_are_refused_and_not_shown() -> None:
    for raw in (b'"secret\xff"', b'"secret', b'\xef\xbb\xbf"secret'):
        with pytest.raises(InvalidOperationError) as refused:
            read_json(raw)
        assert "secret" not in str(refused.value)
