"""Encode Python values as AMQP, in the shortest form.

The classes of `amqp.types` select AMQP types that have no Python type of their own.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Final, TypeAlias
from uuid import UUID

from sbclient.amqp.decimals import DECIMAL32, DECIMAL64, DECIMAL128, encode_decimal, service_decimal
from sbclient.amqp.errors import EncodeError
from sbclient.amqp.types import (
    DATE_TIME_OFFSET,
    TIME_SPAN,
    URI,
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
    milliseconds_of,
    ticks_of,
)

Encoder: TypeAlias = Callable[[Any], bytes]

MAX_DEPTH: Final = 64
"""How deep lists, maps, arrays and descriptions may be nested, both ways (as the SDK's decoder)."""

_PAIR: Final = struct.Struct(">BB").pack
_SMALL_SIGNED: Final = struct.Struct(">Bb").pack
_WORD: Final = struct.Struct(">BI").pack
_SIGNED_WORD: Final = struct.Struct(">Bi").pack
_LONG: Final = struct.Struct(">Bq").pack
_UNSIGNED_LONG: Final = struct.Struct(">BQ").pack
_DOUBLE: Final = struct.Struct(">Bd").pack
_COMPOUND32: Final = struct.Struct(">BII").pack

_STR8: Final = tuple(bytes((0xA1, size)) for size in range(256))
_SYM8: Final = tuple(bytes((0xA3, size)) for size in range(256))
_BIN8: Final = tuple(bytes((0xA0, size)) for size in range(256))
_SMALL_UINT: Final = (b"\x43", *(bytes((0x52, value)) for value in range(1, 256)))


def _utf8(value: str) -> bytes:
    try:
        return value.encode()
    except UnicodeEncodeError:  # its text would contain the value
        raise EncodeError("a string has a lone surrogate, which has no UTF-8 encoding: replace it") from None


def encode_string(value: str) -> bytes:
    """A string as str8 or str32."""
    raw = _utf8(value)
    size = len(raw)
    return _STR8[size] + raw if size < 256 else _WORD(0xB1, size) + raw


def encode_symbol(value: str) -> bytes:
    """A symbol as sym8 or sym32."""
    raw = _utf8(value)
    size = len(raw)
    return _SYM8[size] + raw if size < 256 else _WORD(0xB3, size) + raw


def binary_head(size: int) -> bytes:
    """What stands before the content of a binary with this size."""
    return _BIN8[size] if size < 256 else _WORD(0xB0, size)


def encode_binary(value: bytes) -> bytes:
    """Binary as vbin8 or vbin32."""
    size = len(value)
    return _BIN8[size] + value if size < 256 else _WORD(0xB0, size) + value


def encode_boolean(value: bool) -> bytes:
    """A boolean as one of the two zero-width forms."""
    return b"\x41" if value else b"\x42"


def encode_uint(value: int) -> bytes:
    """A uint as uint0, smalluint or uint."""
    return _SMALL_UINT[value] if 0 <= value < 256 else _packed(_WORD, 0x70, value)


def encode_ulong(value: int) -> bytes:
    """A ulong as ulong0, smallulong or ulong."""
    if value == 0:
        return b"\x44"
    return _PAIR(0x53, value) if 0 < value < 256 else _packed(_UNSIGNED_LONG, 0x80, value)


def encode_int(value: int) -> bytes:
    """An int as smallint or int."""
    return _SMALL_SIGNED(0x54, value) if -128 <= value < 128 else _packed(_SIGNED_WORD, 0x71, value)


def encode_long(value: int) -> bytes:
    """A long as smalllong or long."""
    return _SMALL_SIGNED(0x55, value) if -128 <= value < 128 else _packed(_LONG, 0x81, value)


def encode_integer(value: int) -> bytes:
    """A Python int: int where it fits into 32 bits, else long."""
    if -128 <= value < 128:
        return _SMALL_SIGNED(0x54, value)
    if -(2**31) <= value < 2**31:
        return _SIGNED_WORD(0x71, value)
    return _packed(_LONG, 0x81, value)


def encode_double(value: float) -> bytes:
    """A 64-bit number."""
    return _DOUBLE(0x82, value)


def encode_timestamp(value: datetime | int) -> bytes:
    """A datetime rounded down to milliseconds, or milliseconds since 1970."""
    return _packed(_LONG, 0x83, milliseconds_of(value) if isinstance(value, datetime) else value)


def encode_uuid(value: UUID) -> bytes:
    """A UUID in the order of RFC 4122."""
    return b"\x98" + value.bytes


def encode_ubyte(value: int) -> bytes:
    """An unsigned byte."""
    return _packed(_PAIR, 0x50, value)


def encode_ushort(value: int) -> bytes:
    """An unsigned 16-bit number."""
    return b"\x60" + _pack_of(">H")(value)


def _packed(pack: Callable[[int, int], bytes], code: int, value: int) -> bytes:
    try:
        return pack(code, value)
    except struct.error as error:
        raise EncodeError(f"a number is out of range for the AMQP type 0x{code:02x}") from error


def _pack_of(form: str) -> Encoder:
    pack = struct.Struct(form).pack

    def encode_packed(value: Any) -> bytes:
        try:
            return pack(value)
        except (struct.error, OverflowError) as error:
            raise EncodeError(
                f"a {type(value).__name__} does not fit into the {struct.calcsize(form)}-byte form of its type"
            ) from error

    return encode_packed


def list_of(parts: Sequence[bytes]) -> bytes:
    """A list of encoded elements."""
    return sized_list(b"".join(parts), len(parts))


def sized_list(content: bytes, count: int) -> bytes:
    """A list from the bytes of its elements and their count."""
    size = len(content)
    if size < 255 and count < 256:
        return bytes((0xC0, size + 1, count)) + content if count else b"\x45"
    return _COMPOUND32(0xD0, size + 4, count) + content


def sized_map(content: bytes, count: int) -> bytes:
    """A map from the bytes of its keys and values and their count (two for each pair)."""
    size = len(content)
    if size < 255 and count < 256:
        return bytes((0xC1, size + 1, count)) + content
    return _COMPOUND32(0xD1, size + 4, count) + content


def encode_array(array: Array, depth: int = 0) -> bytes:
    """An array, each element in the form that its code says.

    Raises:
        EncodeError: an element does not fit the code, or the code has no body.
    """
    encode_element = _BODIES.get(array.code)
    if encode_element is None:
        raise EncodeError(f"0x{array.code:02x} is no format code for the elements of an array")
    try:
        content = b"".join([encode_element(item) for item in array.items])
    except (AttributeError, TypeError) as error:
        raise EncodeError(f"an element of an array has not the type that code 0x{array.code:02x} stands for") from error
    constructor = bytes((array.code,))
    if array.descriptor is not None:
        constructor = b"\x00" + encode_value(array.descriptor, depth + 1) + constructor
    count = len(array.items)
    size = len(content) + len(constructor)
    if size < 255 and count < 256:
        return bytes((0xE0, size + 1, count)) + constructor + content
    return _COMPOUND32(0xF0, size + 4, count) + constructor + content


def encode_value(value: Any, depth: int = 0) -> bytes:
    """Any value, by its class.

    Args:
        value: see the table in `amqp.types`; keys of maps are values too.
        depth: how many compounds are around it.

    Raises:
        EncodeError: no AMQP type fits the value, or it is nested too deeply.
    """
    encode_simple = _SIMPLE.get(type(value))
    if encode_simple is not None:
        return encode_simple(value)
    if depth >= MAX_DEPTH:
        raise EncodeError(f"a value is nested more than {MAX_DEPTH} deep")
    if isinstance(value, Described):
        return b"\x00" + encode_value(_descriptor(value.descriptor), depth + 1) + encode_value(value.value, depth + 1)
    if isinstance(value, Array):
        return encode_array(value, depth)
    if isinstance(value, Mapping):
        return _encode_map(value, depth)
    for kind, encode_kind in _SIMPLE.items():
        if isinstance(value, kind):
            return encode_kind(value)
    if isinstance(value, Iterable):
        return list_of([encode_value(item, depth + 1) for item in value])
    raise EncodeError(f"a {type(value).__name__} has no AMQP type")


def encode_map(items: Mapping[Any, Any], encode_key: Encoder = encode_symbol) -> bytes:
    """A map with keys of one type, by default symbols."""
    parts: list[bytes] = []
    for key, value in items.items():
        parts.append(encode_key(key))
        parts.append(encode_value(value, 1))
    return sized_map(b"".join(parts), len(parts))


def _encode_map(items: Mapping[Any, Any], depth: int) -> bytes:
    parts: list[bytes] = []
    for key, value in items.items():
        parts.append(encode_value(key, depth + 1))
        parts.append(encode_value(value, depth + 1))
    return sized_map(b"".join(parts), len(parts))


def _descriptor(descriptor: Any) -> Any:
    """Descriptors are ulong or symbol."""
    if type(descriptor) is int:
        return ULong(descriptor)
    return Symbol(descriptor) if type(descriptor) is str else descriptor


def _decimal128(value: Decimal) -> bytes:
    return service_decimal(encode_decimal(value, DECIMAL128))


_TIME_SPAN: Final = b"\x00" + encode_symbol(TIME_SPAN)
_DATE_TIME_OFFSET: Final = b"\x00" + encode_symbol(DATE_TIME_OFFSET)
_URI: Final = b"\x00" + encode_symbol(URI)

_SIMPLE: Final[dict[type, Encoder]] = {
    type(None): lambda value: b"\x40",
    bool: encode_boolean,
    str: encode_string,
    int: encode_integer,
    float: encode_double,
    bytes: encode_binary,
    datetime: encode_timestamp,
    UUID: encode_uuid,
    Decimal: lambda value: b"\x94" + _decimal128(value),
    timedelta: lambda value: _TIME_SPAN + encode_long(ticks_of(value)),
    TimeSpan: lambda value: _TIME_SPAN + encode_long(value.ticks),
    DateTimeOffset: lambda value: _DATE_TIME_OFFSET + encode_long(value.ticks),
    Uri: lambda value: _URI + encode_string(value),
    Binary: encode_binary,
    Opaque: lambda value: value.encoded,
    Symbol: encode_symbol,
    UInt: encode_uint,
    ULong: encode_ulong,
    Long: encode_long,
    Int: encode_int,
    UByte: encode_ubyte,
    UShort: encode_ushort,
    Byte: lambda value: _SMALL_SIGNED(0x51, value),
    Short: lambda value: b"\x61" + _BODIES[0x61](value),
    Timestamp: encode_timestamp,
    Float: lambda value: b"\x72" + _BODIES[0x72](value),
    Char: lambda value: b"\x73" + _BODIES[0x73](value),
    Decimal32: lambda value: b"\x74" + encode_decimal(value, DECIMAL32),
    Decimal64: lambda value: b"\x84" + encode_decimal(value, DECIMAL64),
    bytearray: lambda value: encode_binary(bytes(value)),
    memoryview: lambda value: encode_binary(bytes(value)),
}
"""By exact class; subclasses found nowhere here are written as the first of these that they belong to."""


def _sized(size_form: str, to_bytes: Callable[[Any], bytes]) -> Encoder:
    encode_size = _pack_of(size_form)

    def encode_sized(value: Any) -> bytes:
        raw = to_bytes(value)
        return encode_size(len(raw)) + raw

    return encode_sized


def _wide(code32: int) -> Encoder:
    """The body of a list or map in its 32-bit form, without the constructor."""

    def encode_wide(value: Any) -> bytes:
        if code32 == 0xD1:
            flat = [encode_value(part, 1) for pair in value.items() for part in pair]
        else:
            flat = [encode_value(item, 1) for item in value]
        content = b"".join(flat)
        return struct.pack(">II", len(content) + 4, len(flat)) + content

    return encode_wide


def _narrow(code32: int) -> Encoder:
    def encode_narrow(value: Any) -> bytes:
        wide = _wide(code32)(value)
        size, count = struct.unpack_from(">II", wide)
        if size > 258 or count > 255:
            raise EncodeError(f"a compound of {size} bytes and {count} elements does not fit its 8-bit form")
        return bytes((size - 3, count)) + wide[8:]

    return encode_narrow


def _array_body(code: int) -> Encoder:
    def encode_array_body(value: Array) -> bytes:
        encoded = encode_array(value, 1)
        if encoded[0] == code:
            return encoded[1:]
        if encoded[0] == 0xF0:
            raise EncodeError("an array does not fit its 8-bit form")
        return struct.pack(">II", encoded[1] + 3, encoded[2]) + encoded[3:]

    return encode_array_body


def _char(value: str) -> bytes:
    if len(value) != 1 or "\ud800" <= value <= "\udfff":
        raise EncodeError(f"{value!r} is not one Unicode character")
    return value.encode("utf-32-be")


def _octets(value: bytes) -> bytes:
    return b"" + value


def _nothing(value: Any) -> bytes:
    return b""


_BODIES: Final[dict[int, Encoder]] = {
    0x40: _nothing,
    0x41: _nothing,
    0x42: _nothing,
    0x43: _nothing,
    0x44: _nothing,
    0x45: _nothing,
    0x50: _pack_of(">B"),
    0x51: _pack_of(">b"),
    0x52: _pack_of(">B"),
    0x53: _pack_of(">B"),
    0x54: _pack_of(">b"),
    0x55: _pack_of(">b"),
    0x56: _pack_of(">?"),
    0x60: _pack_of(">H"),
    0x61: _pack_of(">h"),
    0x70: _pack_of(">I"),
    0x71: _pack_of(">i"),
    0x72: _pack_of(">f"),
    0x73: _char,
    0x74: lambda value: encode_decimal(value, DECIMAL32),
    0x80: _pack_of(">Q"),
    0x81: _pack_of(">q"),
    0x82: _pack_of(">d"),
    0x83: lambda value: encode_timestamp(value)[1:],
    0x84: lambda value: encode_decimal(value, DECIMAL64),
    0x94: _decimal128,
    0x98: lambda value: value.bytes,
    0xA0: _sized(">B", _octets),
    0xA1: _sized(">B", _utf8),
    0xA3: _sized(">B", _utf8),
    0xB0: _sized(">I", _octets),
    0xB1: _sized(">I", _utf8),
    0xB3: _sized(">I", _utf8),
    0xC0: _narrow(0xD0),
    0xC1: _narrow(0xD1),
    0xD0: _wide(0xD0),
    0xD1: _wide(0xD1),
    0xE0: _array_body(0xE0),
    0xF0: _array_body(0xF0),
}
"""What follows the constructor, by format code: the elements of an array share one constructor."""
