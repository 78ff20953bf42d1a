"""Durations as people write them in options and columns: `90`, `1.5 s`, `10 minutes`, `PT1H30M`."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

from sbclient.arguments.kinds import shown_text
from sbclient.errors import InvalidOperationError
from sbclient.formats.iso8601 import ticks_of

_UNITS_S: Final = {
    "": 1.0,
    "ms": 0.001,
    "millisecond": 0.001,
    "milliseconds": 0.001,
    "s": 1.0,
    "sec": 1.0,
    "second": 1.0,
    "seconds": 1.0,
    "m": 60.0,
    "min": 60.0,
    "minute": 60.0,
    "minutes": 60.0,
    "h": 3600.0,
    "hour": 3600.0,
    "hours": 3600.0,
    "d": 86400.0,
    "day": 86400.0,
    "days": 86400.0,
}
_PLAIN: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)")


def seconds_of(text: str) -> float:
    """Return the seconds of a duration, 0 or more; a bare number is seconds.

    Args:
        text: `90`, `1.5 s`, `10 minutes`, or ISO 8601 without years and months, whose length varies: `PT1H30M`.

    Raises:
        InvalidOperationError: the text is none of these.
    """
    stripped = text.strip()
    ticks = ticks_of(stripped.upper())
    if ticks is not None:
        return ticks // 10 / 1_000_000
    match = _PLAIN.fullmatch(stripped.lower())
    if match is None or match[2] not in _UNITS_S:
        raise InvalidOperationError(
            f"{shown_text(text)} is not a duration: write 90, '90 s', '10 minutes', '1 hour' or 'PT1H30M'"
        )
    return float(match[1]) * _UNITS_S[match[2]]


def duration_text(seconds: float) -> str:
    """Return a duration as `seconds_of` reads it: `90 s`, `15 min`, `24 h`, `10 d`."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length and seconds % length == 0 and not (unit == "d" and seconds < 2 * length):
            return f"{_digits(seconds / length)} {unit}"
    return f"{_digits(seconds)} s"


def _digits(number: float) -> str:
    """All digits of a number, without an exponent."""
    return f"{Decimal(repr(number)):f}".removesuffix(".0")
