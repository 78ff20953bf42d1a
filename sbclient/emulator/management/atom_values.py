"""Values in the management documents: numbers, flags, and values of any type. Durations and timestamps: `iso8601`.

Law (source: XML Schema and the answers of the service): a value of any type names its type, which is string, int, long,
boolean, double, dateTime or duration. A value is written with the type and the precision with which it was read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

from sbclient.amqp.types import Long, TimeSpan
from sbclient.broker.sql.values import PreciseTime
from sbclient.errors import InvalidOperationError
from sbclient.formats.iso8601 import read_duration, read_timestamp, write_duration, write_ticks, write_timestamp
from sbclient.formats.iso8601 import ticks_of as ticks_of_text

MAX_INT: Final = 2**31 - 1
MAX_LONG: Final = 2**63 - 1

_ZONE = re.compile(r"(?:Z|[+-]\d\d:\d\d)\Z")
_TICK = re.compile(r"\.\d{6}([1-9])")
_WHOLE = re.compile(r"[+-]?\d{1,19}", re.ASCII)
_FLAGS: Final = {"true": True, "1": True, "false": False, "0": False}


def read_flag(text: str) -> bool:
    """
    Raises:
        InvalidOperationError: the text is neither true nor false.
    """
    flag = _FLAGS.get(text.strip().lower())
    if flag is None:
        raise InvalidOperationError(f"{text[:64]!r} is neither true nor false: write one of them")
    return flag


def write_flag(flag: bool) -> str:
    return "true" if flag else "false"


def read_whole(text: str) -> int:
    """
    Raises:
        InvalidOperationError: the text is not a whole number of 64 bits.
    """
    if _WHOLE.fullmatch(text.strip()) is None or not -MAX_LONG - 1 <= int(text) <= MAX_LONG:
        raise InvalidOperationError(f"{text[:64]!r} is not a whole number of 64 bits")
    return int(text)


def read_double(text: str) -> float:
    """
    Raises:
        InvalidOperationError: the text is not a number.
    """
    try:
        return float(text.strip().replace("INF", "inf").replace("_", "?"))
    except ValueError as error:
        raise InvalidOperationError(f"{text[:64]!r} is not a number") from error


def _read_datetime(text: str) -> datetime:
    """A value without a time zone stays without; in a comparison it counts as UTC."""
    timestamp, tick = read_timestamp(text), _TICK.search(text)
    if tick is not None:
        timestamp = PreciseTime.fromtimestamp(0, UTC) + (timestamp - datetime.fromtimestamp(0, UTC))
        timestamp.tick = int(tick[1])
    return timestamp if _ZONE.search(text.strip()) else timestamp.replace(tzinfo=None)


def _read_duration(text: str) -> timedelta:
    ticks = ticks_of_text(text.strip()) or 0
    return TimeSpan.of_ticks(ticks) if ticks % 10 and ticks < MAX_LONG else read_duration(text)


_READERS: Final[dict[str, Callable[[str], Any]]] = {
    **dict.fromkeys(("string", "char", "guid", "anyURI"), str),
    **dict.fromkeys(("int", "short", "byte"), read_whole),
    "long": lambda text: Long(read_whole(text)),
    **dict.fromkeys(("unsignedInt", "unsignedLong", "unsignedShort", "unsignedByte"), read_whole),
    **dict.fromkeys(("double", "float", "decimal"), read_double),
    "boolean": read_flag,
    "dateTime": _read_datetime,
    "duration": _read_duration,
}


def read_any(type_name: str, text: str) -> Any:
    """Read a value of a type of XML Schema.

    Raises:
        InvalidOperationError: the type is unknown, or the text is not a value of it.
    """
    reader = _READERS.get(type_name)
    if reader is None:
        raise InvalidOperationError(f"{type_name[:64]!r} is not a supported type: use one of {', '.join(_READERS)}")
    return reader(text)


def write_any(value: Any) -> tuple[str, str]:
    """The name of a value's type in XML Schema, and its text.

    Raises:
        InvalidOperationError: values of that type cannot be written.
    """
    if isinstance(value, bool):
        return "boolean", write_flag(value)
    if isinstance(value, int):
        is_int = -MAX_INT - 1 <= value <= MAX_INT and not isinstance(value, Long)
        return "int" if is_int else "long", str(int(value))
    if isinstance(value, float):
        text = repr(value).removesuffix(".0") if math.isfinite(value) else str(value)
        return "double", text.upper().replace("NAN", "NaN")
    if isinstance(value, datetime):
        text = write_timestamp(value)
        if isinstance(value, PreciseTime):
            text = f"{text[:19]}.{value.microsecond:06d}{value.tick}Z"
        return "dateTime", text if value.tzinfo is not None else text.removesuffix("Z")
    if isinstance(value, timedelta):
        return "duration", write_ticks(value.ticks) if isinstance(value, TimeSpan) else write_duration(value)
    if isinstance(value, str | UUID):
        return "string", str(value)
    raise InvalidOperationError(f"a value of type {type(value).__name__} cannot be written in a description")
