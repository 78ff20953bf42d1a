"""Values as the management documents write them: spans, moments, numbers, flags, and values of any type.

Laws (source: XML Schema and the service's answers):

1. A span is `PT1M`, `P14D`, `PT0.5S`; years and months count 365 and 30 days, as in .NET. From 10,675,199 days on it
   means "no limit", which is written `P10675199DT2H48M5.4775807S`.
2. A moment is in UTC with up to seven digits of fraction; one that says no zone is in UTC.
3. A value of any type names its type: string, int, long, boolean, double, dateTime or duration.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

from sbclient.entities import UNLIMITED
from sbclient.errors import InvalidOperationError

NO_LIMIT: Final = "P10675199DT2H48M5.4775807S"
MAX_INT: Final = 2**31 - 1
MAX_LONG: Final = 2**63 - 1

_LONGEST = timedelta(days=10_675_199)
_SPAN = re.compile(
    r"(?P<sign>-?)P(?=.)(?:(?P<years>\d{1,9})Y)?(?:(?P<months>\d{1,9})M)?(?:(?P<weeks>\d{1,9})W)?(?:(?P<days>\d{1,9})D)?"
    r"(?:T(?=.)(?:(?P<hours>\d{1,12})H)?(?:(?P<minutes>\d{1,12})M)?(?:(?P<seconds>\d{1,12}(?:\.\d{1,12})?)S)?)?",
    re.ASCII,
)
_MOMENT = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,12}))?(Z|[+-]\d\d:\d\d)?", re.ASCII)
_WHOLE = re.compile(r"[+-]?\d{1,19}", re.ASCII)
_DAYS_OF: Final = {"years": 365, "months": 30, "weeks": 7, "days": 1}
_FLAGS: Final = {"true": True, "1": True, "false": False, "0": False}


def read_span(text: str) -> timedelta:
    """
    Raises:
        InvalidOperationError: it is no span.
    """
    match = _SPAN.fullmatch(text.strip())
    if match is None:
        raise InvalidOperationError(f"{text[:64]!r} is no time span: write it in ISO 8601, as PT30S or P14D")
    days = sum(int(match[name] or 0) * length for name, length in _DAYS_OF.items())
    seconds = int(match["hours"] or 0) * 3600 + int(match["minutes"] or 0) * 60
    whole, _, fraction = (match["seconds"] or "0").partition(".")
    days, seconds = days + (seconds + int(whole)) // 86_400, (seconds + int(whole)) % 86_400
    if days >= _LONGEST.days:
        span = UNLIMITED
    else:
        span = timedelta(days=days, seconds=seconds, microseconds=int(fraction.ljust(6, "0")[:6]) if fraction else 0)
    return -span if match["sign"] and span != UNLIMITED else span


def write_span(span: timedelta) -> str:
    if span >= _LONGEST:
        return NO_LIMIT
    sign, span = ("-", -span) if span < timedelta(0) else ("", span)
    minutes, seconds = divmod(span.seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days = f"{span.days}D" if span.days else ""
    fraction = f".{span.microseconds:06d}".rstrip("0") if span.microseconds else ""
    time = "".join(f"{count}{unit}" for count, unit in ((hours, "H"), (minutes, "M")) if count)
    if seconds or fraction or not (days or time):
        time += f"{seconds}{fraction}S"
    return f"{sign}P{days}" + (f"T{time}" if time else "")


def read_moment(text: str) -> datetime:
    """
    Raises:
        InvalidOperationError: it is no moment.
    """
    match = _MOMENT.fullmatch(text.strip())
    try:
        if match is None:
            raise ValueError
        zone = "+00:00" if match[3] in (None, "Z") else match[3]
        micros = (match[2] or "0").ljust(6, "0")[:6]
        return datetime.fromisoformat(f"{match[1]}.{micros}{zone}").astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise InvalidOperationError(
            f"{text[:64]!r} is no moment: write it in ISO 8601, as 2026-01-31T12:00:00Z"
        ) from error


def write_moment(moment: datetime) -> str:
    moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    fraction = f".{moment.microsecond:06d}0" if moment.microsecond else ""
    return f"{moment.year:04d}-{moment:%m-%dT%H:%M:%S}{fraction}Z"


def read_flag(text: str) -> bool:
    """
    Raises:
        InvalidOperationError: it is neither true nor false.
    """
    flag = _FLAGS.get(text.strip().lower())
    if flag is None:
        raise InvalidOperationError(f"{text[:64]!r} is no flag: write true or false")
    return flag


def write_flag(flag: bool) -> str:
    return "true" if flag else "false"


def read_whole(text: str) -> int:
    """
    Raises:
        InvalidOperationError: it is no whole number of 64 bits.
    """
    if _WHOLE.fullmatch(text.strip()) is None or not -MAX_LONG - 1 <= int(text) <= MAX_LONG:
        raise InvalidOperationError(f"{text[:64]!r} is no whole number of 64 bits")
    return int(text)


def read_double(text: str) -> float:
    """
    Raises:
        InvalidOperationError: it is no number.
    """
    try:
        return float(text.strip().replace("INF", "inf").replace("_", "?"))
    except ValueError as error:
        raise InvalidOperationError(f"{text[:64]!r} is no number") from error


_READERS: Final[dict[str, Callable[[str], Any]]] = {
    **dict.fromkeys(("string", "char", "guid", "anyURI"), str),
    **dict.fromkeys(("int", "long", "short", "byte"), read_whole),
    **dict.fromkeys(("unsignedInt", "unsignedLong", "unsignedShort", "unsignedByte"), read_whole),
    **dict.fromkeys(("double", "float", "decimal"), read_double),
    "boolean": read_flag,
    "dateTime": read_moment,
    "duration": read_span,
}


def read_any(type_name: str, text: str) -> Any:
    """A value of a type of XML Schema.

    Raises:
        InvalidOperationError: the type is not known, or the text is no value of it.
    """
    reader = _READERS.get(type_name)
    if reader is None:
        raise InvalidOperationError(f"{type_name[:64]!r} is no type of a value: use one of {', '.join(_READERS)}")
    return reader(text)


def write_any(value: Any) -> tuple[str, str]:
    """The name of a value's type in XML Schema, and its text.

    Raises:
        InvalidOperationError: values of that type cannot be written.
    """
    if isinstance(value, bool):
        return "boolean", write_flag(value)
    if isinstance(value, int):
        return ("int" if -MAX_INT - 1 <= value <= MAX_INT else "long"), str(value)
    if isinstance(value, float):
        return "double", str(value) if math.isfinite(value) else str(value).upper().replace("NAN", "NaN")
    if isinstance(value, datetime):
        return "dateTime", write_moment(value)
    if isinstance(value, timedelta):
        return "duration", write_span(value)
    if isinstance(value, str | UUID):
        return "string", str(value)
    raise InvalidOperationError(f"a value of type {type(value).__name__} cannot be written in a description")
