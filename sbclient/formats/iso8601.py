"""Reads and writes durations and timestamps in ISO 8601, in the format of the Service Bus management API.

Laws (source: XML Schema and the responses of the service):

1. A duration is `PT1M`, `P14D` or `PT0.5S`; years and months count 365 and 30 days, as in .NET. 10,675,199 days or more
   mean "no limit", which is written `P10675199DT2H48M5.4775807S`.
   A duration just below the longest one stays as it is.
2. `ticks_of` reads exact durations only: without sign, years and months.
3. A timestamp is written in UTC, with up to seven fractional digits. A timestamp without a time zone is in UTC.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from sbclient.entities import UNLIMITED
from sbclient.errors import InvalidOperationError

NO_LIMIT: Final = "P10675199DT2H48M5.4775807S"

_LONGEST: Final = timedelta(days=10_675_199, hours=2, minutes=48, seconds=5, microseconds=477_580)
"""The longest duration of the service is 0.7 µs longer."""

_DAYS_AT_MOST: Final = 99_999_999
_DURATION: Final = re.compile(
    r"(?P<sign>-?)P(?=.)(?:(?P<years>\d{1,9})Y)?(?:(?P<months>\d{1,9})M)?(?:(?P<weeks>\d{1,9})W)?(?:(?P<days>\d{1,9})D)?"
    r"(?:T(?=.)(?:(?P<hours>\d{1,12})H)?(?:(?P<minutes>\d{1,12})M)?(?:(?P<seconds>\d{1,12}(?:\.\d{1,12})?)S)?)?",
    re.ASCII,
)
_TIMESTAMP: Final = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,12}))?(Z|[+-]\d\d:\d\d)?", re.ASCII)
_NUMBER: Final = r"([0-9]{{1,20}}(?:[.,][0-9]{{1,20}})?){unit}"
_WEEKS: Final = re.compile("P" + _NUMBER.format(unit="W"))
_EXACT: Final = re.compile(
    "P(?=.)(?:{D})?(?:T(?=.)(?:{H})?(?:{M})?(?:{S})?)?".format(**{unit: _NUMBER.format(unit=unit) for unit in "DHMS"})
)
_UNITS: Final = (864_000_000_000, 36_000_000_000, 600_000_000, 10_000_000)
_MICROSECOND: Final = timedelta(microseconds=1)
_DAYS_OF: Final = {"years": 365, "months": 30, "weeks": 7, "days": 1}


def read_duration(text: str) -> timedelta:
    """Parse a duration.

    Raises:
        InvalidOperationError: the text is not a duration.
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise InvalidOperationError(f"{text[:64]!r} is not a duration: write it in ISO 8601, as PT30S or P14D")
    days = sum(int(match[name] or 0) * length for name, length in _DAYS_OF.items())
    seconds = int(match["hours"] or 0) * 3600 + int(match["minutes"] or 0) * 60
    whole, _, fraction = (match["seconds"] or "0").partition(".")
    days, seconds = days + (seconds + int(whole)) // 86_400, (seconds + int(whole)) % 86_400
    micros = int(fraction.ljust(6, "0")[:6]) if fraction else 0
    duration = timedelta(days=min(days, _DAYS_AT_MOST), seconds=seconds, microseconds=micros)
    if duration >= _LONGEST:
        duration = UNLIMITED
    return -duration if match["sign"] and duration != UNLIMITED else duration


def write_duration(duration: timedelta) -> str:
    return NO_LIMIT if duration >= _LONGEST else write_ticks(duration // _MICROSECOND * 10)


def write_ticks(ticks: int) -> str:
    """Return a duration in units of 100 ns as text."""
    sign, ticks = ("-", -ticks) if ticks < 0 else ("", ticks)
    seconds, fraction = divmod(ticks, _UNITS[-1])
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    time = "".join(f"{count}{unit}" for count, unit in ((hours, "H"), (minutes, "M")) if count)
    if seconds or fraction or not (days or time):
        time += f"{seconds}.{fraction:07d}".rstrip("0").removesuffix(".") + "S"
    return f"{sign}P" + (f"{days}D" if days else "") + (f"T{time}" if time else "")


def ticks_of(text: str) -> int | None:
    """Return the units of 100 ns, rounded down, of a duration without years and months; None if the text is not one.

    Weeks cannot be combined with other units. Only the last number may have a fraction, with a point or a comma.
    """
    weeks = _WEEKS.fullmatch(text)
    if weeks is not None:
        return _scaled(weeks[1], 7 * _UNITS[0])
    match = _EXACT.fullmatch(text)
    if match is None:
        return None
    given = [(number, unit) for number, unit in zip(match.groups(), _UNITS, strict=True) if number is not None]
    if any(not number.isdigit() for number, _ in given[:-1]):
        return None
    return sum(_scaled(number, unit) for number, unit in given)


def _scaled(number: str, unit: int) -> int:
    whole, _, fraction = number.replace(",", ".").partition(".")
    return int(whole + fraction) * unit // int(10 ** len(fraction))


def read_timestamp(text: str) -> datetime:
    """Parse a timestamp.

    Raises:
        InvalidOperationError: the text is not a timestamp.
    """
    match = _TIMESTAMP.fullmatch(text.strip())
    try:
        if match is None:
            raise ValueError
        zone = "+00:00" if match[3] in (None, "Z") else match[3]
        micros = (match[2] or "0").ljust(6, "0")[:6]
        return datetime.fromisoformat(f"{match[1]}.{micros}{zone}").astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise InvalidOperationError(
            f"{text[:64]!r} is not a timestamp: write it in ISO 8601, as 2026-01-31T12:00:00Z"
        ) from error


def write_timestamp(timestamp: datetime) -> str:
    timestamp = timestamp.replace(tzinfo=UTC) if timestamp.tzinfo is None else timestamp.astimezone(UTC)
    fraction = f".{timestamp.microsecond:06d}0" if timestamp.microsecond else ""
    return f"{timestamp.year:04d}-{timestamp:%m-%dT%H:%M:%S}{fraction}Z"
