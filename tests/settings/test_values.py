"""Values of options from texts; an empty text, a value beside a limit, and one that only looks like a number."""

from __future__ import annotations

from typing import Any

import pytest

from sbclient.errors import InvalidOperationError
from sbclient.settings.values import duration, flag, names, numbers, rate, size, span, text, whole


@pytest.mark.parametrize(
    ("parse", "accepted", "refused"),
    [
        (text, {" a b ": "a b"}, ["", "  "]),
        (flag, {"TRUE": True, "1": True, "on": True, "0": False, "No": False}, ["", "2", "tru"]),
        (names, {"a": ("a",), " a,,b ": ("a", "b")}, ["", " , "]),
        (span, {"90": 90.0, "2m": 120.0}, ["", "-1", "soon"]),
        (duration(1, 60), {"1": 1.0, "60": 60.0, "1m": 60.0}, ["", "0.9", "60.1"]),
        (size, {"1": 1, "64 MiB": 2**26, "2kib": 2048}, ["", "0", "1.5", "1 TiB", "-1", "MiB"]),
        (numbers, {"3,0, 3": (0, 3), "7": (7,)}, ["", "1,", "-1", "1.0"]),
        (whole(0), {"0": 0, "12": 12}, ["", "-1", "1.0", "True"]),
        (whole(1, 9), {"1": 1, "9": 9}, ["0", "10"]),
        (rate, {"0.5": 0.5, "3": 3.0}, ["", "0", "-1", "inf", "nan"]),
    ],
)
def test_a_text_is_a_value_or_an_error_that_names_the_option(
    parse: Any, accepted: dict[str, Any], refused: list[str]
) -> None:
    for given, value in accepted.items():
        found = parse("the_option", given)
        assert (found, type(found)) == (value, type(value))
    for given in refused:
        with pytest.raises(InvalidOperationError, match="the_option"):
            parse("the_option", given)
