"""The AMQP types of application properties, by name, and the values of each type as text.

Spark has no type for many of them, such as unsigned integers, symbols and characters; nor has a variant. A read
therefore returns all values as text, beside a column with their types, and a write of both makes the same values.
"""

from __future__ import annotations

import math
import struct
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Final
from uuid import UUID

from sbclient.amqp import WireError
from sbclient.amqp.decode import decode_value
from sbclient.amqp.encode import encode_value
from sbclient.amqp.types import (
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Float,
    Int,
    Long,
    Opaque,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)
from sbclient.errors import InvalidOperationError

STRING: Final = "string"
ENCODED: Final = "encoded"
"""The type of any other value, such as a list or a time span of .NET: its text is its AMQP encoding in base64."""

_INT32: Final = range(-(2**31), 2**31)


def name_of(value: Any) -> str | None:
    """Return the name of the type of a property; None for a string or null."""
    if value is None or type(value) is str:
        return None
    if isinstance(value, Opaque):
        return _BY_CODE.get(value.encoded[0], ENCODED)
    if type(value) is int:
        return "int" if value in _INT32 else "long"
    return _BY_CLASS.get(type(value))


def text_of(value: Any) -> str | None:
    """Return a property as text; None for null. `value_of` returns the same value of the same type."""
    if isinstance(value, Opaque):
        name = name_of(value)
        raw = value.encoded if name == ENCODED else decode_value(value.encoded)
        return b64encode(raw).decode() if isinstance(raw, bytes) else str(raw)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, Float):
        return str(shortest_single(value))
    return None if value is None else str(value)


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


def _ulong(text: str) -> Any:
    value = ULong(int(text))
    return value if value < 2**63 else Opaque.of(text, encode_value(value))


def _binary(text: str) -> Opaque:
    return Opaque.of(text, encode_value(b64decode(text, validate=True)))


def _encoded(text: str) -> Opaque:
    raw = b64decode(text, validate=True)
    decode_value(raw)
    return Opaque.of(text, raw)


_READ: Final[dict[str, Callable[[str], Any]]] = {
    "boolean": lambda text: {"true": True, "false": False}[text.lower()],
    "ubyte": lambda text: UByte(int(text)),
    "ushort": lambda text: UShort(int(text)),
    "uint": lambda text: UInt(int(text)),
    "ulong": _ulong,
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
    "binary": _binary,
    STRING: str,
    "symbol": Symbol,
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
    Symbol: "symbol",
}
_BY_CODE: Final = {0x80: "ulong", 0xA0: "binary", 0xB0: "binary"}
"""Format codes of the values that a received message has as `Opaque`, because a property cannot be their class."""


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
