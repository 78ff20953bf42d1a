"""Values of options from texts; an empty text, a value beside a limit, and one that only looks like a number."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

import pytest

from sbclient.errors import InvalidOperationError
from sbclient.settings.kinds import (
    FLAG,
    NAMES,
    NUMBERS,
    POSITIVE_SECONDS,
    RATE,
    SIZE,
    TEXT,
    ValueKind,
    choice,
    duration,
    timespan,
    whole,
)

RANGE: Final = (timedelta(seconds=1), timedelta(hours=1))


@pytest.mark.parametrize(
    ("kind", "accepted", "refused"),
    [
        (TEXT, {" a b ": "a b"}, ["", "  "]),
        (FLAG, {"TRUE": True, "1": True, "on": True, "0": False, "No": False}, ["", "2", "tru"]),
        (NAMES, {"a": ("a",), " a,,b ": ("a", "b")}, ["", " , "]),
        (duration(), {"90": 90.0, "2m": 120.0, "0": 0.0}, ["", "-1", "soon"]),
        (duration(1, 60), {"1": 1.0, "60": 60.0, "1m": 60.0}, ["", "0.9", "60.1"]),
        (SIZE, {"1": 1, "64 MiB": 2**26, "2kib": 2048}, ["", "0", "1.5", "1 TiB", "-1", "MiB"]),
        (NUMBERS, {"3,0, 3": (0, 3), "7": (7,)}, ["", "1,", "-1", "1.0"]),
        (whole(0), {"0": 0, "12": 12}, ["", "-1", "1.0", "True"]),
        (whole(1, 9), {"1": 1, "9": 9}, ["0", "10"]),
        (RATE, {"0.5": 0.5, "3": 3.0}, ["", "0", "-1", "inf", "nan"]),
        (POSITIVE_SECONDS, {"0.1": 0.1, "PT1M": 60.0}, ["", "0", "-1"]),
        (timespan(*RANGE), {"1": RANGE[0], "1 h": RANGE[1]}, ["", "0.9", "61 min"]),
        (choice("a", "B"), {" A ": "a", "b": "B"}, ["", "c"]),
    ],
)
def test_a_text_is_a_value_or_an_error_that_names_the_option(
    kind: ValueKind, accepted: dict[str, Any], refused: list[str]
) -> None:
    for given, value in accepted.items():
        for around in ("{}", " {}", "{}\r\n", "\t{} "):  # as a variable of a shell or of a file has it
            found = kind.parse("the_option", around.format(given))
            assert (found, type(found)) == (value, type(value))
    for given in refused:
        with pytest.raises(InvalidOperationError, match="the_option"):
            kind.parse("the_option", given)


@pytest.mark.parametrize(
    ("kind", "allowed", "refused"),
    [
        (TEXT, ["a"], ["", " ", 5, None, b"a"]),
        (FLAG, [True, False], [0, 1, "true", None]),
        (NAMES, [["a", "b/*"], ("a",)], ["a", b"a", [], ["a", ""], [1], 5, None, iter(["a"])]),
        (duration(1, 60), [1, 60.0], [0.9, 60.1, True, "1", None, float("nan"), timedelta(seconds=1)]),
        (timespan(*RANGE), RANGE, [timedelta(0), timedelta.max, 60, "1", None]),
        (POSITIVE_SECONDS, [0.001, 1], [0, -1, True, "1", None, float("nan"), float("inf")]),
        (RATE, [0.001, 1], [0, -1.0, float("nan"), float("inf"), "10", True]),
        (SIZE, [1], [0, -1, 1e6, None, True]),
        (whole(1), [1, 10**9], [0, -1, 1.0, True, "1", None]),
        (whole(0, 9), [0, 9], [-1, 10]),
        (choice("a", "B"), ["a", "B"], ["", "A", None, 1]),
    ],
)
def test_a_value_is_allowed_or_an_error_that_names_the_option(
    kind: ValueKind, allowed: list[Any], refused: list[Any]
) -> None:
    for value in allowed:
        kind.check("the_option", value)
        read_again = tuple(value) if kind is NAMES else value
        assert kind.parse("the_option", kind.show(read_again)) == read_again
    for value in refused:
        with pytest.raises(InvalidOperationError, match="the_option is "):
            kind.check("the_option", value)
