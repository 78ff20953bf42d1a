"""AMQP types by name, and the values of each type as text.

JSON and Spark have no type for many of them, such as unsigned integers, symbols and the types of .NET. Their values are
therefore written as text beside the name of the type, and both make the same value.
"""

from __future__ import annotations

import math
import re
import struct
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, Final
from uuid import UUID

from sbclient.amqp.decode import decode_value
from sbclient.amqp.encode import encode_value
from sbclient.amqp.errors import WireError
from sbclient.amqp.types import (
    Array,
    Binary,
    Byte,
    Char,
    DateTimeOffset,
    Decimal32,
    Decimal64,
    Described,
    Float,
    Int,
    Long,
    Opaque,
    Short,
    Symbol,
    TimeSpan,
    Timestamp,
    UByte,
    UInt,
    ULong,
    Uri,
    UShort,
    ticks_of,
)
from sbclient.errors import InvalidOperationError
from sbclient.formats.iso8601 import read_timestamp, write_ticks
from sbclient.formats.iso8601 import ticks_of as ticks_of_text

STRING: Final = "string"
ENCODED: Final = "encoded"
"""The type of any other value, such as a list: its text is its AMQP encoding in base64."""

_INT32: Final = range(-(2**31), 2**31)


def name_of(value: Any) -> str | None:
    """Return the name of the type of a value; None for a string or null."""
    if value is None or type(value) is str:
        return None
    if type(value) is int:
        return "int" if value in _INT32 else "long"
    return _BY_CLASS.get(type(value), ENCODED)


def text_of(value: Any) -> str | None:
    """Return a value as text; None for null. `value_of` returns the same value of the same type."""
    if value is None or type(value) is str:
        return value
    name = name_of(value)
    if name == ENCODED:
        return b64encode(encode_value(value)).decode()
    write = _WRITE.get(name or "")
    return str(value) if write is None else write(value)


def value_of(name: str, text: str) -> Any:
    """Return the value of a type.

    Raises:
        InvalidOperationError: there is no such type, or the text is not a value of it.
    """
    read = _READ.get(name)
    if read is None:
        raise InvalidOperationError(f"there is no AMQP type {name[:64]!r}: give one of {', '.join(_READ)}")
    try:
        return read(text)
    except (ValueError, KeyError, InvalidOperation, OverflowError, WireError):
        raise InvalidOperationError(f"{text[:64]!r} is not a value of the AMQP type {name}") from None


def typed(texts: Mapping[str, Any], types: Mapping[str, Any]) -> dict[str, Any]:
    """Return properties with the types that are given; all others are strings.

    Raises:
        InvalidOperationError: a value does not have its type; the text names the property.
    """
    found: dict[str, Any] = {}
    for name, text in texts.items():
        kind = types.get(name)
        try:
            found[name] = text if text is None or kind is None else value_of(kind, text)
        except InvalidOperationError as error:
            raise InvalidOperationError(f"property {name!r}: {error}") from None
    return found


def _char(text: str) -> Char:
    if len(text) != 1:
        raise ValueError
    return Char(text)


def _timestamp(text: str) -> datetime | Timestamp:
    try:
        return Timestamp(int(text))
    except ValueError:
        found = datetime.fromisoformat(text)
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found


def _time_span(text: str) -> TimeSpan:
    ticks = ticks_of_text(text.removeprefix("-"))
    if ticks is None:
        raise ValueError
    return TimeSpan.of_ticks(-ticks if text.startswith("-") else ticks)


def read_precise_time(text: str) -> DateTimeOffset:
    """Parse a timestamp in ISO 8601 with up to seven digits of a second; without a zone it is in UTC.

    Raises:
        InvalidOperationError: the text is not a timestamp.
    """
    found = read_timestamp(text)
    tick = _TICK.search(text)
    return DateTimeOffset.of_ticks(ticks_of(found - _YEAR_ONE) + (int(tick[1]) if tick else 0))


def write_precise_time(time: datetime) -> str:
    """Return a timestamp in ISO 8601, in UTC with seven digits of a second."""
    return f"{time.astimezone(UTC).isoformat(timespec='microseconds')[:26]}{getattr(time, 'tick', 0)}Z"


_TICK: Final = re.compile(r"\.\d{6}(\d)")
_YEAR_ONE: Final = datetime(1, 1, 1, tzinfo=UTC)


def _encoded(text: str) -> Any:
    raw = b64decode(text, validate=True)
    value = decode_value(raw, typed=True)
    return Opaque.of(str(value), raw) if isinstance(value, list | dict | Array | Described) else value


_READ: Final[dict[str, Callable[[str], Any]]] = {
    "boolean": lambda text: {"true": True, "false": False}[text.lower()],
    "ubyte": lambda text: UByte(int(text)),
    "ushort": lambda text: UShort(int(text)),
    "uint": lambda text: UInt(int(text)),
    "ulong": lambda text: ULong(int(text)),
    "byte": lambda text: Byte(int(text)),
    "short": lambda text: Short(int(text)),
    "int": lambda text: Int(int(text)),
    "long": lambda text: Long(int(text)),
    "float": lambda text: Float(text),
    "double": float,
    "decimal32": Decimal32,
    "decimal64": Decimal64,
    "decimal128": Decimal,
    "char": _char,
    "timestamp": _timestamp,
    "uuid": UUID,
    "binary": lambda text: Binary(b64decode(text, validate=True)),
    STRING: str,
    "symbol": Symbol,
    "timespan": _time_span,
    "datetimeoffset": read_precise_time,
    "uri": Uri,
    ENCODED: _encoded,
}

NAMES: Final = tuple(_READ)
"""All types."""

_BY_CLASS: Final[dict[type, str]] = {
    bool: "boolean",
    UByte: "ubyte",
    UShort: "ushort",
    UInt: "uint",
    ULong: "ulong",
    Byte: "byte",
    Short: "short",
    Int: "int",
    Long: "long",
    Float: "float",
    float: "double",
    Decimal32: "decimal32",
    Decimal64: "decimal64",
    Decimal: "decimal128",
    Char: "char",
    datetime: "timestamp",
    Timestamp: "timestamp",
    UUID: "uuid",
    bytes: "binary",
    Binary: "binary",
    Symbol: "symbol",
    timedelta: "timespan",
    TimeSpan: "timespan",
    DateTimeOffset: "datetimeoffset",
    Uri: "uri",
}

_WRITE: Final[dict[str, Callable[[Any], str]]] = {
    "boolean": lambda value: "true" if value else "false",
    "float": lambda value: str(shortest_single(value)),
    "binary": lambda value: b64encode(value).decode(),
    "timespan": lambda value: write_ticks(ticks_of(value)),
    "datetimeoffset": write_precise_time,
}
"""The functions that write values as text, where `str` does not."""


# -- floats


def float_json(value: float) -> float | str:
    """Return a number, or the text that `to_json` writes for the three floats that are not JSON numbers."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def shortest_single(value: float) -> float | str:
    """Return the shortest number that is equal as a 32-bit float, as `to_json` writes it."""
    if not math.isfinite(value):
        return float_json(value)
    single = _SINGLE.pack(value)
    texts = (f"{value:.{digits}g}" for digits in range(1, 10))
    return next(float(text) for text in texts if _SINGLE.pack(float(text)) == single)


_SINGLE: Final = struct.Struct("f")
