"""Encodes Arrow columns as AMQP: values, and the sections of a message. `sbclient.amqp.encoded` writes the same."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable
from datetime import timedelta
from itertools import accumulate
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from sbclient.amqp import servicebus
from sbclient.amqp.encode import encode_symbol
from sbclient.amqp.encoded import MAX_TTL_MS
from sbclient.settings.durations import seconds_of
from sbclient_spark.write.columns import entries

FIELDS: Final = {
    "to": 2,
    "subject": 3,
    "reply_to": 4,
    "correlation_id": 5,
    "content_type": 6,
    "session_id": 10,
    "reply_to_session_id": 12,
}
"""The place of each attribute in the properties section; the message id has place 0."""

EXPIRY: Final = 8
CREATION: Final = 9
LATEST_EXPIRY_US: Final = 253_402_300_799_999_000
"""The end of the year 9999."""

_MICROSECOND: Final = timedelta(microseconds=1)
_US: Final = {"s": 1_000_000, "ms": 1_000, "us": 1}
_FIRST_US, _LAST_US = -62_135_510_400_000_000, 253_402_214_400_000_000
"""The years 1 to 9999 in microseconds since 1970, without their first and last day."""


class NotEncodableError(Exception):
    """A column has a value that is invalid, or is of a kind that is encoded row by row."""


def _table(make: Callable[[int], bytes]) -> pa.Array:
    # `pa.array` would import pandas, in each process of Spark that imports this module to plan a read or write.
    made = [make(number) for number in range(256)]
    offsets = array("i", accumulate(map(len, made), initial=0))
    return pa.Array.from_buffers(pa.binary(), 256, [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(made))])


_BYTES: Final = _table(lambda number: bytes((number,)))
STRING: Final = _table(lambda size: bytes((0xA1, size))), b"\xb1"
SYMBOL: Final = _table(lambda size: bytes((0xA3, size))), b"\xb3"
BINARY: Final = _table(lambda size: bytes((0xA0, size))), b"\xb0"
_BYTE, _SMALL_INT, _SMALL_LONG = (
    _table(lambda number, code=code: bytes((code, (number - 128) % 256)))  # type: ignore[misc]
    for code in (0x51, 0x54, 0x55)
)
_SMALL_UINT: Final = _table(lambda number: bytes((0x52, number)) if number else b"\x43")


# -- sections ------------------------------------------------------------------------------------------------------


def header_section(ttl_us: pa.Array) -> pa.Array:
    """Encode the header; empty where the time to live is null."""
    ttl_ms = pc.min_element_wise(pc.divide(ttl_us, 1000), MAX_TTL_MS, skip_nulls=False)
    is_small = pc.less(ttl_ms, 256)
    wide = join(b"\x70", _big_endian(ttl_ms.fill_null(0), "I"))
    ttl = pc.if_else(is_small, _SMALL_UINT.take(pc.min_element_wise(ttl_ms, 255, skip_nulls=False)), wide)
    content = join(b"\x40\x40", ttl)
    head = join(b"\x00\x53\x70\xc0", _BYTES.take(pc.add(pc.binary_length(content), 1)), b"\x03")
    return join(head, content).fill_null(b"")


def annotation_section(key: pa.Array | None, schedule_us: pa.Array | None) -> list[pa.Array]:
    """Encode the message annotations; return an empty list if no row has any."""
    parts = []
    if key is not None:
        parts.append(join(encode_symbol(servicebus.PARTITION_KEY), sized(key, STRING)))
    if schedule_us is not None:
        name = encode_symbol(servicebus.SCHEDULED_ENQUEUE_TIME)
        parts.append(join(name, _moments(schedule_us)))
    if not parts:
        return []
    count = pa.repeat(pa.scalar(0, pa.int32()), len(parts[0]))
    for part in parts:
        count = pc.add(count, pc.if_else(part.is_valid(), pa.scalar(2, pa.int32()), 0))
    content = join(*(part.fill_null(b"") for part in parts))
    section = join(b"\x00\x53\x72", compound(content, count, b"\xc1", b"\xd1"))
    return [pc.if_else(pc.greater(count, 0), section, b"")]


def property_section(message_id: pa.Array, texts: dict[str, pa.Array], ttl_us: pa.Array | None) -> pa.Array:
    """Encode the properties section. A null stands for each unset field before the last one that is set.

    A time to live that the header cannot hold is also written as the creation and the expiry, counted from 1970.
    """
    fields = {
        FIELDS[name]: sized(column, SYMBOL if name == "content_type" else STRING)
        for name, column in texts.items()
        if name in FIELDS
    }
    if ttl_us is not None and (pc.max(ttl_us).as_py() or 0) > MAX_TTL_MS * 1000:
        lasting_us = pc.if_else(pc.greater(ttl_us, MAX_TTL_MS * 1000), ttl_us, pa.scalar(None, pa.int64()))
        fields[EXPIRY] = _moments(pc.min_element_wise(lasting_us, LATEST_EXPIRY_US, skip_nulls=False))
        fields[CREATION] = _moments(pc.multiply(lasting_us, 0))
    count = pa.repeat(pa.scalar(1, pa.int32()), len(message_id))
    for place, column in fields.items():
        if column.null_count == 0:
            count = pc.max_element_wise(count, pa.scalar(place + 1, pa.int32()))
        else:
            count = pc.max_element_wise(count, pc.if_else(column.is_valid(), pa.scalar(place + 1, pa.int32()), 0))
    parts: list[Any] = [sized(message_id, STRING)]
    for place in range(1, max(fields, default=0) + 1):
        gap = pc.if_else(pc.greater(count, place), pa.scalar(b"\x40", pa.binary()), b"")
        parts.append(pc.coalesce(fields[place], gap) if place in fields else gap)
    return join(b"\x00\x53\x73", compound(join(*parts), count, b"\xc0", b"\xd0"))


def map_content(column: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return the encoded entries of each map, and the number of names and values."""
    keys, items = entries(column)
    offsets = column.offsets
    start = offsets[0].as_py()
    length = offsets[-1].as_py() - start
    keys, items = keys.slice(start, length), items.slice(start, length)
    offsets = pc.subtract(offsets, pa.scalar(start, pa.int32()))
    sizes = pc.subtract(offsets.slice(1), offsets.slice(0, len(column)))
    if not length:
        return pa.array([b""] * len(column), pa.binary()), sizes
    if keys.null_count:
        raise NotEncodableError
    _check_unique(keys, offsets)
    value = property_values(items)
    encoded = join(sized(text_bytes(keys, None), STRING), pc.if_else(items.is_valid(), value.fill_null(b""), b"\x40"))
    entry_offsets = pa.Array.from_buffers(pa.int32(), length + 1, [None, encoded.buffers()[1]])
    ends = entry_offsets.take(offsets)
    content = pa.Array.from_buffers(pa.binary(), len(column), [None, ends.buffers()[1], encoded.buffers()[2]])
    return content, pc.multiply(sizes, pa.scalar(2, pa.int32()))


def _check_unique(keys: pa.Array, offsets: pa.Array) -> None:
    """Check that no map has a key twice."""
    codes = keys.dictionary_encode()
    rows = pc.list_parent_indices(pa.ListArray.from_arrays(offsets, keys))
    places = pc.add(pc.multiply(rows.cast(pa.int64()), len(codes.dictionary)), codes.indices.cast(pa.int64()))
    if pc.count_distinct(places).as_py() != len(keys):
        raise NotEncodableError


# -- values --------------------------------------------------------------------------------------------------------


def property_values(column: pa.Array) -> pa.Array:
    """Encode values of application properties; null stays null or becomes anything."""
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_binary(kind):
        return sized(text_bytes(column.cast(pa.string()), None), STRING)
    if pa.types.is_boolean(kind):
        return pc.if_else(column, pa.scalar(b"\x41", pa.binary()), b"\x42")
    if pa.types.is_signed_integer(kind):
        return _integers(column.fill_null(0))
    if pa.types.is_float32(kind):
        return join(b"\x72", _big_endian(column.fill_null(0.0), "f"))
    if pa.types.is_float64(kind):
        return join(b"\x82", _big_endian(column.fill_null(0.0), "d"))
    if pa.types.is_timestamp(kind):
        return _moments(timestamps(column))
    raise NotEncodableError


def _integers(values: pa.Array) -> pa.Array:
    """Encode integers without nulls as the AMQP type of their width."""
    bits = values.type.bit_width
    if bits == 16:
        return join(b"\x61", _big_endian(values, "h"))
    small_form = {8: _BYTE, 32: _SMALL_INT, 64: _SMALL_LONG}[bits]
    is_small = pc.and_(pc.greater_equal(values, -128), pc.less_equal(values, 127))
    small = small_form.take(pc.if_else(is_small, pc.add(values.cast(pa.int64()), 128), 0))
    if pc.all(is_small).as_py():
        return small
    wide = join(b"\x71", _big_endian(values, "i")) if bits == 32 else join(b"\x81", _big_endian(values, "q"))
    return pc.if_else(is_small, small, wide)


def _moments(timestamps_us: pa.Array) -> pa.Array:
    """Encode timestamps, rounded down to milliseconds; null stays null."""
    floored = pc.if_else(pc.less(timestamps_us, 0), pc.subtract(timestamps_us, 999), timestamps_us)
    encoded = join(b"\x83", _big_endian(pc.divide(floored, 1000).fill_null(0), "q"))
    return pc.if_else(timestamps_us.is_valid(), encoded, pa.scalar(None, pa.binary()))


def timestamps(column: pa.Array) -> pa.Array:
    """Return microseconds since 1970."""
    if column.type.unit not in _US:
        raise NotEncodableError
    return _within(pc.multiply_checked(column.cast(pa.int64()), _US[column.type.unit]), _FIRST_US, _LAST_US)


def durations(column: pa.Array) -> pa.Array:
    """Return a time to live in microseconds."""
    if pa.types.is_duration(column.type):
        if column.type.unit not in _US:
            raise NotEncodableError
        return _within(pc.multiply_checked(column.cast(pa.int64()), _US[column.type.unit]), 0, None)
    if pa.types.is_integer(column.type):
        seconds = _within(column.cast(pa.int64()), 0, 2**63 // 1_000_000 - 1)
        return pc.multiply_checked(seconds, 1_000_000)
    texts = column.to_pylist()
    made = [None if text is None else timedelta(seconds=seconds_of(text)) // _MICROSECOND for text in texts]
    return _within(pa.array(made, pa.int64()), 0, None)


def _within(values: pa.Array, low: int, high: int | None) -> pa.Array:
    found = pc.min_max(values).as_py()
    if found["min"] is not None and (found["min"] < low or (high is not None and found["max"] > high)):
        raise NotEncodableError
    return values


def text_bytes(column: pa.Array, longest: int | None) -> pa.Array:
    """Check a column of text and return it as bytes.

    Args:
        longest: the most characters of a text.
    """
    text = column.cast(pa.string())
    text.validate(full=True)  # Spark allows bytes that are not UTF-8
    if longest is not None and (pc.max(pc.utf8_length(text)).as_py() or 0) > longest:
        raise NotEncodableError
    return text.cast(pa.binary())


# -- bytes ---------------------------------------------------------------------------------------------------------


def join(*parts: Any) -> pa.Array:
    """Return the bytes of several columns one after the other; null where one of them is null."""
    return pc.binary_join_element_wise(*parts, b"")


def sized(raw: pa.Array, form: tuple[pa.Array, bytes]) -> pa.Array:
    """Return bytes after their size, in the 8-bit or the 32-bit form; null stays null."""
    short, wide = form
    size = pc.binary_length(raw)
    if (pc.max(size).as_py() or 0) < 256:
        return join(short.take(size), raw)
    heads = join(wide, _big_endian(size.fill_null(0), "i"))
    is_short = pc.less(size, 256)
    return join(pc.if_else(is_short, short.take(pc.min_element_wise(size, 255, skip_nulls=False)), heads), raw)


def compound(content: pa.Array, count: pa.Array, short: bytes, wide: bytes) -> pa.Array:
    """Return the elements of lists or maps behind their size and count."""
    size = pc.binary_length(content)
    is_short = pc.and_(pc.less(size, 255), pc.less(count, 256))
    sizes = _BYTES.take(pc.if_else(is_short, pc.add(size, 1), 0))
    head = join(short, sizes, _BYTES.take(pc.if_else(is_short, count, 0)))
    if not pc.all(is_short).as_py():
        long = join(wide, _big_endian(pc.add(size, 4), "i"), _big_endian(count, "i"))
        head = pc.if_else(is_short, head, long)
    return join(head, content)


_NUMBERS: Final = {
    "h": pa.int16(),
    "i": pa.int32(),
    "I": pa.uint32(),
    "q": pa.int64(),
    "f": pa.float32(),
    "d": pa.float64(),
}


def _big_endian(values: pa.Array, code: str) -> pa.Array:
    """Return numbers without nulls as bytes, the most significant first.

    Args:
        code: the type of the numbers, as in `array`.
    """
    values = values.cast(_NUMBERS[code])
    width = values.type.bit_width // 8
    start = values.offset * width
    swapped = array(code)
    swapped.frombytes(memoryview(values.buffers()[1])[start : start + len(values) * width])
    if sys.byteorder == "little":
        swapped.byteswap()
    kind = pa.binary(width)
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(swapped)]).cast(pa.binary())
