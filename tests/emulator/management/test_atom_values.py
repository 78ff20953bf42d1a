"""Values of the management documents, read and written."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sbclient.emulator.management.atom_values import (
    read_any,
    read_flag,
    read_whole,
    write_any,
)
from sbclient.errors import InvalidOperationError


def test_flags_and_numbers() -> None:
    assert [read_flag(text) for text in ("true", "True", "1", "false", "0")] == [True, True, True, False, False]
    assert [read_whole(text) for text in ("0", "-5", "+7", str(2**63 - 1))] == [0, -5, 7, 2**63 - 1]


@pytest.mark.parametrize("text", ["", "yes", "2"])
def test_text_that_is_no_flag_is_rejected(text: str) -> None:
    with pytest.raises(InvalidOperationError):
        read_flag(text)


@pytest.mark.parametrize("text", ["", "1.0", "a", "1_0", str(2**63), "9" * 30])
def test_text_that_is_no_whole_number_is_rejected(text: str) -> None:
    with pytest.raises(InvalidOperationError):
        read_whole(text)


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        ("eu", "string", "eu"),
        (5, "int", "5"),
        (2**31, "long", "2147483648"),
        (-(2**31), "int", "-2147483648"),
        (True, "boolean", "true"),
        (2.5, "double", "2.5"),
        (datetime(2026, 1, 31, tzinfo=UTC), "dateTime", "2026-01-31T00:00:00Z"),
        (datetime(2026, 1, 31, tzinfo=UTC).replace(tzinfo=None), "dateTime", "2026-01-31T00:00:00"),
        (timedelta(hours=1), "duration", "PT1H"),
    ],
)
def test_value_of_any_type_names_its_type(value: Any, kind: str, text: str) -> None:
    assert write_any(value) == (kind, text)
    assert read_any(kind, text) == value


def test_numbers_that_are_not_finite_are_written_as_xml_does() -> None:
    assert [write_any(value)[1] for value in (float("inf"), float("-inf"), float("nan"))] == ["INF", "-INF", "NaN"]
    assert read_any("double", "-INF") == float("-inf")


@pytest.mark.parametrize(("kind", "text"), [("base64Binary", "aGk="), ("int", "x"), ("double", "1_0"), ("", "a")])
def test_value_of_an_unknown_type_or_form_is_rejected(kind: str, text: str) -> None:
    with pytest.raises(InvalidOperationError):
        read_any(kind, text)


def test_value_of_an_unsupported_type_is_rejected() -> None:
    with pytest.raises(InvalidOperationError):
        write_any(b"raw")
