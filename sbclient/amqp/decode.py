"""Decode AMQP values, with limits on memory and nesting against hostile peers.

Every decoder takes (buffer, position after the constructor, depth) and returns (value, position after it). Sizes and
counts are compared with the available bytes before anything is allocated. Two tables of decoders are made from one
definition: `PLAIN` gives Python's own classes, for what is only read; `TYPED` gives those of `amqp.types` wherever the
plain value would be written as another type, for what has to be written again. `PLAIN` is for the protocol itself, and
accepts no other map keys than the protocol uses; `TYPED` is for properties and bodies.

The work and the memory are linear in the number of bytes, whatever they are.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final, TypeAlias
from uuid import UUID

from sbclient.amqp.decimals import DECIMAL32, DECIMAL64, DECIMAL128, Format, decode_decimal, of_service
from sbclient.amqp.encode import MAX_DEPTH
from sbclient.amqp.errors import DECODE_ERROR, WireError
from sbclient.amqp.types import (
    DATE_TIME_OFFSET,
    TIME_SPAN,
    URI,
    Array,
    Byte,
    Char,
    DateTimeOffset,
    Decimal32,
    Decimal64,
    Described,
    Float,
    Long,
    Short,
    Symbol,
    TimeSpan,
    UByte,
    UInt,
    ULong,
    Uri,
    UShort,
    moment_of,
)

Decoder: TypeAlias = Callable[[bytes, int, int], tuple[Any, int]]

MAX_COUNT: Final = 65_536
"""Elements in one list, map or array (as the SDK's decoder)."""

MAX_EMPTY_COUNT: Final = 16
"""Elements of an array whose elements have no bytes, which the size of the array does not limit."""

MAX_OTHER_KEYS: Final = 1_024
MAX_EQUAL_HASHES: Final = 8
"""Keys of a typed map that are neither text nor binary, and how many of them may share hashes with others.

Python hashes text and binary with a secret, but the sender of a number, UUID or decimal chooses its hash, and so could
make a dict compare each key with all others.
"""

_KEYED: Final = frozenset((0xA0, 0xA1, 0xA3, 0xB0, 0xB1, 0xB3))
"""Format codes of text and binary."""

_PLAIN_KEYS: Final = _KEYED | {0x43, 0x44, 0x50, 0x51, 0x52, 0x53, 0x54, 0x55}
"""Format codes of the keys of a plain map: also integers of one byte, of which there are few."""

MALFORMED: Final = (IndexError, struct.error, UnicodeDecodeError, ValueError, TypeError, OverflowError)
"""Errors of decoders besides `WireError`; the public functions convert them."""


def decode_value(raw: bytes, *, typed: bool = False) -> Any:
    """The one value that fills `raw`.

    Args:
        raw: its encoding, constructor first.
        typed: whether classes of `amqp.types` keep what Python's own would lose.

    Raises:
        WireError: with amqp:decode-error.
    """
    value, position = decode_at(raw, 0, typed=typed)
    if position != len(raw):
        raise WireError(DECODE_ERROR, f"the value ends at byte {position}, {len(raw)} bytes were given")
    return value


def decode_at(raw: bytes, position: int, *, typed: bool = False) -> tuple[Any, int]:
    """The value whose constructor is at `position`, and the position after it.

    Raises:
        WireError: with amqp:decode-error.
    """
    table = TYPED if typed else PLAIN
    try:
        value, stop = table[raw[position]](raw, position + 1, 0)
    except MALFORMED as error:
        raise malformed(error, position) from None
    if stop > len(raw):
        raise WireError(DECODE_ERROR, f"the value at byte {position} needs {stop - len(raw)} bytes more than there are")
    return value, stop


def malformed(error: Exception, position: int) -> WireError:
    """The `WireError` for what went wrong while decoding what begins at `position`; raise it `from None`.

    The original error may contain the text that could not be decoded, which may be a body.
    """
    return WireError(DECODE_ERROR, f"the bytes from {position} on are no AMQP value ({type(error).__name__})")


def skip_value(raw: bytes, position: int, depth: int = 0) -> int:
    """The position after the value whose constructor is at `position`; nothing of it is decoded.

    Raises:
        WireError: the bytes end before the value does, or it is nested too deeply.
    """
    try:
        code = raw[position]
        position += 1
        width = _WIDTHS[code >> 4]
        if width >= 0:
            position += width
        elif width == -1:
            position += 1 + raw[position]
        elif width == -4:
            position += 4 + int.from_bytes(raw[position : position + 4], "big")
        elif code == 0 and depth < MAX_DEPTH:
            return skip_value(raw, skip_value(raw, position, depth + 1), depth + 1)
        else:
            raise WireError(DECODE_ERROR, f"0x{code:02x} at byte {position - 1} is no format code")
    except IndexError as error:
        raise malformed(error, position) from error
    if position > len(raw):
        raise WireError(DECODE_ERROR, f"a value needs {position - len(raw)} bytes more than there are")
    return position


_WIDTHS: Final = (-9, -9, -9, -9, 0, 1, 2, 4, 8, 16, -1, -4, -1, -4, -1, -4)
"""Bytes after a constructor by its upper half; -1 and -4: a size of that many bytes comes first; -9: none such."""


def _unknown(buffer: bytes, position: int, depth: int) -> tuple[Any, int]:
    raise WireError(DECODE_ERROR, f"0x{buffer[position - 1]:02x} at byte {position - 1} is no format code")


def _constant(value: Any) -> Decoder:
    def decode_constant(buffer: bytes, position: int, depth: int) -> tuple[Any, int]:
        return value, position

    return decode_constant


def _empty_list(buffer: bytes, position: int, depth: int) -> tuple[Any, int]:
    return [], position


def _one_byte(buffer: bytes, position: int, depth: int) -> tuple[int, int]:
    return buffer[position], position + 1


def _boolean(buffer: bytes, position: int, depth: int) -> tuple[bool, int]:
    octet = buffer[position]
    if octet > 1:
        raise WireError(DECODE_ERROR, f"the boolean at byte {position} is 0x{octet:02x}, 0 or 1 is allowed")
    return octet == 1, position + 1


def _unpacked(form: str, wrap: Callable[[Any], Any] | None = None) -> Decoder:
    unpack = struct.Struct(form).unpack_from
    width = struct.calcsize(form)

    def decode_plain(buffer: bytes, position: int, depth: int) -> tuple[Any, int]:
        return unpack(buffer, position)[0], position + width

    if wrap is None:
        return decode_plain
    wrapped = wrap

    def decode_wrapped(buffer: bytes, position: int, depth: int) -> tuple[Any, int]:
        return wrapped(unpack(buffer, position)[0]), position + width

    return decode_wrapped


def _char(buffer: bytes, position: int, depth: int) -> tuple[Any, int]:
    return Char(buffer[position : position + 4].decode("utf-32-be")), position + 4


def _uuid(buffer: bytes, position: int, depth: int) -> tuple[UUID, int]:
    stop = position + 16
    return UUID(bytes=buffer[position:stop]), stop


def _decimal(form: Format, wrap: Callable[[Any], Any] | None = None) -> Decoder:
    width = form.width_bytes

    def decode_decimal_at(buffer: bytes, position: int, depth: int) -> tuple[Any, int]:
        raw = buffer[position : position + width]
        if len(raw) < width:
            raise IndexError
        number = decode_decimal(raw, form)
        return (wrap(number) if wrap else number), position + width

    return decode_decimal_at


def _binary8(buffer: bytes, position: int, depth: int) -> tuple[bytes, int]:
    stop = position + 1 + buffer[position]
    return buffer[position + 1 : stop], stop


_unpack_size: Final = struct.Struct(">I").unpack_from


def _binary32(buffer: bytes, position: int, depth: int) -> tuple[bytes, int]:
    stop = position + 4 + _unpack_size(buffer, position)[0]
    return buffer[position + 4 : stop], stop


def _text8(buffer: bytes, position: int, depth: int) -> tuple[str, int]:
    stop = position + 1 + buffer[position]
    return buffer[position + 1 : stop].decode(), stop


def _text32(buffer: bytes, position: int, depth: int) -> tuple[str, int]:
    stop = position + 4 + _unpack_size(buffer, position)[0]
    return buffer[position + 4 : stop].decode(), stop


def _symbol8(buffer: bytes, position: int, depth: int) -> tuple[Symbol, int]:
    stop = position + 1 + buffer[position]
    return Symbol(buffer[position + 1 : stop].decode()), stop


def _symbol32(buffer: bytes, position: int, depth: int) -> tuple[Symbol, int]:
    stop = position + 4 + _unpack_size(buffer, position)[0]
    return Symbol(buffer[position + 4 : stop].decode()), stop


_unpack_bounds: Final = struct.Struct(">II").unpack_from


def _bounds8(buffer: bytes, position: int, depth: int) -> tuple[int, int, int]:
    """Where the first element begins, where the compound ends, and how many elements it claims."""
    return position + 2, position + 1 + buffer[position], buffer[position + 1]


def _bounds32(buffer: bytes, position: int, depth: int) -> tuple[int, int, int]:
    size, count = _unpack_bounds(buffer, position)
    if count > MAX_COUNT:
        raise WireError(DECODE_ERROR, f"a compound claims {count} elements, {MAX_COUNT} are allowed")
    return position + 8, position + 4 + size, count


def _check(start: int, stop: int, count: int, depth: int, buffer: bytes) -> None:
    if depth >= MAX_DEPTH:
        raise WireError(DECODE_ERROR, f"values are nested more than {MAX_DEPTH} deep")
    if stop > len(buffer) or count > stop - start:
        raise WireError(DECODE_ERROR, f"a compound claims {count} elements in {stop - start} bytes")


def _compounds(
    table: list[Decoder], bounds: Callable[[bytes, int, int], tuple[int, int, int]], *, typed: bool
) -> tuple[Decoder, Decoder]:
    """The decoders of list and map, 8 or 32 bits, over a table."""
    allowed = _KEYED if typed else _PLAIN_KEYS

    def decode_list(buffer: bytes, position: int, depth: int) -> tuple[list[Any], int]:
        position, stop, count = bounds(buffer, position, depth)
        _check(position, stop, count, depth, buffer)
        values = []
        for _ in range(count):
            value, position = table[buffer[position]](buffer, position + 1, depth + 1)
            values.append(value)
        if position != stop:
            raise WireError(DECODE_ERROR, f"a list ends at byte {position}, its size says {stop}")
        return values, stop

    def decode_map(buffer: bytes, position: int, depth: int) -> tuple[dict[Any, Any], int]:
        position, stop, count = bounds(buffer, position, depth)
        _check(position, stop, count, depth, buffer)
        if count % 2:
            raise WireError(DECODE_ERROR, f"a map has {count} elements; keys and values come in pairs")
        values: dict[Any, Any] = {}
        others: _OtherKeys | None = None
        for _ in range(count // 2):
            code = buffer[position]
            key, position = table[code](buffer, position + 1, depth + 1)
            if code not in allowed:
                if not typed:
                    raise WireError(DECODE_ERROR, f"a key of a map has the format code 0x{code:02x}: use a string")
                others = others or _OtherKeys()
                others.add(key)
            values[key], position = table[buffer[position]](buffer, position + 1, depth + 1)
        if position != stop:
            raise WireError(DECODE_ERROR, f"a map ends at byte {position}, its size says {stop}")
        if len(values) * 2 != count:
            raise WireError(DECODE_ERROR, "a map holds the same key twice")
        return values, stop

    return decode_list, decode_map


class _OtherKeys:
    """Counts the keys of a map whose hashes the sender chooses."""

    def __init__(self) -> None:
        self._count = 0
        self._hashes: set[int] = set()

    def add(self, key: Any) -> None:
        """Check the next key before it is added to the map."""
        self._count += 1
        if self._count > MAX_OTHER_KEYS:
            raise WireError(DECODE_ERROR, f"a map has more than {MAX_OTHER_KEYS} keys that are not strings")
        self._hashes.add(key.__hash__())
        if self._count - len(self._hashes) > MAX_EQUAL_HASHES:
            raise WireError(DECODE_ERROR, "the keys of a map have equal hashes: use strings")


_EMPTY_CONSTANTS: Final = b"\x40\x41\x42\x43\x44"
"""Constructors of null, true, false and 0, whose values have no bytes and can be shared."""


def _array(table: list[Decoder], bounds: Callable[[bytes, int, int], tuple[int, int, int]], *, typed: bool) -> Decoder:
    def decode_array(buffer: bytes, position: int, depth: int) -> tuple[Any, int]:
        position, stop, count = bounds(buffer, position, depth)
        if count == 0 and position == stop:  # the SDK writes no constructor where there are no elements
            return (Array([], 0x40) if typed else []), stop
        descriptor = None
        if buffer[position] == 0:
            descriptor, position = table[buffer[position + 1]](buffer, position + 2, depth + 1)
        code = buffer[position]
        position += 1
        if code == 0:
            raise WireError(DECODE_ERROR, "the elements of an array are described twice")
        if 0x40 <= code < 0x50:
            if count > MAX_EMPTY_COUNT:
                raise WireError(DECODE_ERROR, f"an array claims {count} empty elements, {MAX_EMPTY_COUNT} are allowed")
            _check(position, stop, 0, depth, buffer)
        else:
            _check(position, stop, count, depth, buffer)
        decode_element = table[code]
        values = []
        if count and code in _EMPTY_CONSTANTS:
            values = [decode_element(buffer, position, depth + 1)[0]] * count
        else:
            for _ in range(count):
                value, position = decode_element(buffer, position, depth + 1)
                values.append(value)
        if position != stop:
            raise WireError(DECODE_ERROR, f"an array ends at byte {position}, its size says {stop}")
        if typed:
            return Array(values, code, descriptor), stop
        return (values if descriptor is None else [Described(descriptor, value) for value in values]), stop

    return decode_array


def _described(table: list[Decoder], *, typed: bool) -> Decoder:
    def decode_described(buffer: bytes, position: int, depth: int) -> tuple[Any, int]:
        if depth >= MAX_DEPTH:
            raise WireError(DECODE_ERROR, f"values are nested more than {MAX_DEPTH} deep")
        descriptor, position = table[buffer[position]](buffer, position + 1, depth + 1)
        code = buffer[position]
        value, position = table[code](buffer, position + 1, depth + 1)
        make, codes = _NET[descriptor] if typed and type(descriptor) is Symbol and descriptor in _NET else (None, b"")
        if make is not None and code in codes:
            try:
                return make(value), position
            except OverflowError:  # a time that no datetime can be
                pass
        return Described(descriptor, value), position

    return decode_described


_LONGS: Final = b"\x55\x81"
_NET: Final[dict[str, tuple[Callable[[Any], Any], bytes]]] = {
    TIME_SPAN: (TimeSpan.of_ticks, _LONGS),
    DATE_TIME_OFFSET: (DateTimeOffset.of_ticks, _LONGS),
    URI: (Uri, b"\xa1\xb1"),
}
"""The classes of described values of .NET, and the format codes of their content. Others stay `Described`."""


def _narrow_long(value: int) -> int:
    """A long that Python's int would write as an int."""
    return Long(value) if -(2**31) <= value < 2**31 else value


def _table(*, typed: bool) -> list[Decoder]:
    """The decoders by format code."""
    table: list[Decoder] = [_unknown] * 256

    def kind(wrap: Callable[[Any], Any]) -> Callable[[Any], Any] | None:
        return wrap if typed else None

    list8, map8 = _compounds(table, _bounds8, typed=typed)
    list32, map32 = _compounds(table, _bounds32, typed=typed)
    entries: dict[int, Decoder] = {
        0x00: _described(table, typed=typed),
        0x40: _constant(None),
        0x41: _constant(True),
        0x42: _constant(False),
        0x43: _constant(UInt(0) if typed else 0),
        0x44: _constant(ULong(0) if typed else 0),
        0x45: _empty_list,
        0x50: _unpacked(">B", UByte) if typed else _one_byte,
        0x51: _unpacked(">b", kind(Byte)),
        0x52: _unpacked(">B", UInt) if typed else _one_byte,
        0x53: _unpacked(">B", ULong) if typed else _one_byte,
        0x54: _unpacked(">b"),
        0x55: _unpacked(">b", kind(Long)),
        0x56: _boolean,
        0x60: _unpacked(">H", kind(UShort)),
        0x61: _unpacked(">h", kind(Short)),
        0x70: _unpacked(">I", kind(UInt)),
        0x71: _unpacked(">i"),
        0x72: _unpacked(">f", kind(Float)),
        0x73: _char,
        0x74: _decimal(DECIMAL32, kind(Decimal32)),
        0x80: _unpacked(">Q", kind(ULong)),
        0x81: _unpacked(">q", kind(_narrow_long)),
        0x82: _unpacked(">d"),
        0x83: _unpacked(">q", moment_of),
        0x84: _decimal(DECIMAL64, kind(Decimal64)),
        0x94: _decimal(DECIMAL128, of_service),
        0x98: _uuid,
        0xA0: _binary8,
        0xA1: _text8,
        0xA3: _symbol8 if typed else _text8,
        0xB0: _binary32,
        0xB1: _text32,
        0xB3: _symbol32 if typed else _text32,
        0xC0: list8,
        0xC1: map8,
        0xD0: list32,
        0xD1: map32,
        0xE0: _array(table, _bounds8, typed=typed),
        0xF0: _array(table, _bounds32, typed=typed),
    }
    for code, decoder in entries.items():
        table[code] = decoder
    return table


PLAIN: Final = _table(typed=False)
TYPED: Final = _table(typed=True)
