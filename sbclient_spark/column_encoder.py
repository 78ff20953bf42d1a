"""Encodes the columns of a record batch as messages, whole columns at a time.

The result is the same as that of `rows.RowReader` and `encode_message`, byte by byte, which a test compares for random
columns. Rows that are unusual, such as those with an error, are left to `RowReader`: then this module encodes nothing
of their batch. `rules.size` documents the layout.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from sbclient.amqp.encode import encode_string, encode_symbol
from sbclient.annotated_message import PARTITION_KEY_ANNOTATION, SCHEDULED_ENQUEUE_TIME_ANNOTATION
from sbclient.errors import InvalidOperationError
from sbclient.message import MAX_ID_LENGTH
from sbclient.rules.ping import PING_CONTENT_TYPE
from sbclient.rules.size import MAX_TTL_MS
from sbclient.settings.durations import seconds_of
from sbclient_spark.encoded_rows import SCHEMA, EncodedRows, by_value
from sbclient_spark.message_ids import MessageIds, canonical
from sbclient_spark.rows import Destination, RowPlan, RowReader

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

SHORT_IDS: Final = ("session_id", "partition_key", "reply_to_session_id")

_MICROSECOND: Final = timedelta(microseconds=1)
_US: Final = {"s": 1_000_000, "ms": 1_000, "us": 1}
_FIRST_US, _LAST_US = -62_135_510_400_000_000, 253_402_214_400_000_000
"""The years 1 to 9999 in microseconds since 1970, without their first and last day."""


class NotEncodableError(Exception):
    """The rows of a batch must be encoded one by one."""


def _table(make: Callable[[int], bytes]) -> pa.Array:
    return pa.array([make(number) for number in range(256)], pa.binary())


_BYTES: Final = _table(lambda number: bytes((number,)))
_STRING: Final = _table(lambda size: bytes((0xA1, size))), b"\xb1"
_SYMBOL: Final = _table(lambda size: bytes((0xA3, size))), b"\xb3"
_BINARY: Final = _table(lambda size: bytes((0xA0, size))), b"\xb0"
_SMALL_INT: Final = _table(lambda number: bytes((0x54, (number - 128) % 256)))
_SMALL_UINT: Final = _table(lambda number: bytes((0x52, number)) if number else b"\x43")


class ColumnEncoder:
    """Encodes the record batches of a task.

    Args:
        plan: the use of each column.
        ids: makes the message ids.
        reader: reads columns that have no encoding as a whole, such as bodies that are JSON.
    """

    def __init__(self, plan: RowPlan, ids: MessageIds, reader: RowReader) -> None:
        self._plan = plan
        self._ids = ids
        self._reader = reader

    def encode(self, batch: pa.RecordBatch, first_position: int) -> list[EncodedRows]:
        """Encode all rows of a batch.

        Args:
            first_position: the position of the first row in its partition.

        Raises:
            NotEncodableError: a row is invalid or of a kind that only `RowReader` encodes.
        """
        try:
            return self._encode(batch, first_position)
        except (pa.ArrowException, InvalidOperationError, TypeError, OverflowError, ValueError) as error:
            raise NotEncodableError from error

    def _encode(self, batch: pa.RecordBatch, first_position: int) -> list[EncodedRows]:
        count = batch.num_rows
        texts, ttl_us, schedule_us = self._attributes(batch)
        destinations = self._destinations(batch)
        body = self._body(batch)
        positions = pa.array(range(first_position, first_position + count), pa.int64())
        message_id = self._message_ids(batch, texts, ttl_us, schedule_us, destinations, body, positions)
        parts = [
            *([] if ttl_us is None else [_header(ttl_us)]),
            *_annotations(texts.get("partition_key"), schedule_us),
            _properties(message_id, texts),
            *self._application_properties(batch),
            b"\x00\x53\x75",
            _sized(body, _BINARY),
        ]
        section = _join(b"\x00\x53\x75", _sized(_join(*parts), _BINARY))
        none = pa.nulls(count, pa.string())
        arrays = [
            section,
            message_id.cast(pa.string()),
            _text_or(texts.get("session_id"), none),
            _text_or(texts.get("partition_key"), none),
            pa.repeat(False, count) if schedule_us is None else schedule_us.is_valid(),
            positions,
        ]
        columns = pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
        if self._plan.destination is not None:
            return [EncodedRows(self._plan.destination, columns)]
        places = {one: place for place, one in enumerate(dict.fromkeys(destinations))}
        codes = pa.array([places[one] for one in destinations], pa.int32())
        names = list(places)
        grouped = by_value(EncodedRows(names[0], columns), codes)
        return [EncodedRows(names[code], rows.columns) for code, rows in grouped]

    # -- attributes ------------------------------------------------------------------------------------------------

    def _attributes(self, batch: pa.RecordBatch) -> tuple[dict[str, pa.Array], pa.Array | None, pa.Array | None]:
        """Return the texts as binary columns, and time to live and schedule in microseconds."""
        texts: dict[str, pa.Array] = {}
        ttl_us = schedule_us = None
        for name, place in self._plan.attributes:
            column = batch.column(place)
            if name == "time_to_live":
                ttl_us = _durations(column)
            elif name == "scheduled_enqueue_time_utc":
                schedule_us = _timestamps(column)
            else:
                texts[name] = _text(column, MAX_ID_LENGTH if name in SHORT_IDS else None)
        session, key = texts.get("session_id"), texts.get("partition_key")
        if session is not None:
            session = texts["session_id"] = pc.if_else(pc.equal(session, b""), pa.scalar(None, pa.binary()), session)
            if key is not None and pc.any(pc.not_equal(session, key)).as_py():
                raise NotEncodableError
        content_type = texts.get("content_type")
        if (
            content_type is not None
            and PING_CONTENT_TYPE in pc.utf8_lower(content_type.cast(pa.string())).unique().to_pylist()
        ):
            raise NotEncodableError
        return texts, ttl_us, schedule_us

    def _destinations(self, batch: pa.RecordBatch) -> list[Destination]:
        """Return the destination of each row; empty if all rows have the same."""
        if self._plan.destination is not None:
            return []
        return [self._reader.destination(places) for places in self._reader.places(batch)]

    def _body(self, batch: pa.RecordBatch) -> pa.Array:
        if self._plan.body is None:
            column = pa.array(list(self._reader.bodies(batch)), pa.string())
        else:
            column = batch.column(self._plan.body)
        if column.null_count:
            raise NotEncodableError
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            return _text(column, None)
        return column.cast(pa.binary())

    # -- message ids -----------------------------------------------------------------------------------------------

    def _message_ids(
        self,
        batch: pa.RecordBatch,
        texts: dict[str, pa.Array],
        ttl_us: pa.Array | None,
        schedule_us: pa.Array | None,
        destinations: list[Destination],
        body: pa.Array,
        positions: pa.Array,
    ) -> pa.Array:
        mode = self._ids.mode
        if mode == "column":
            given = texts["message_id"]
            if given.null_count or pc.min(pc.binary_length(given)).as_py() == 0:
                raise NotEncodableError
            return _text(_join(self._ids.prefix.encode(), given).cast(pa.string()), MAX_ID_LENGTH)
        if mode == "random":
            made = [self._ids.random_id() for _ in range(batch.num_rows)]
        elif mode == "keys":
            keys = self._reader.keys(batch)
            made = [self._ids.digest(b"".join(map(canonical, values))) for values in keys]
        else:
            parts = [] if mode == "content" else [_tagged(b"i", positions.cast(pa.string()).cast(pa.binary()))]
            fixed = self._plan.destination
            paths = fixed.path if fixed is not None else [one.path for one in destinations]
            parts.append(
                canonical(paths.casefold())
                if isinstance(paths, str)
                else pa.array([canonical(path.casefold()) for path in paths], pa.binary())
            )
            parts.append(_tagged(b"b", body))
            names = ("session_id", "partition_key", "correlation_id", "subject", "content_type", "to", "reply_to")
            parts += [_canonical(texts.get(name), b"s") for name in (*names, "reply_to_session_id")]
            parts += [_canonical(_digits(ttl_us), b"p"), _canonical(_digits(schedule_us), b"m")]
            parts.append(self._canonical_properties(batch))
            made = [self._ids.digest(each) for each in _join(*parts).to_pylist()]
        return pa.array(made, pa.string()).cast(pa.binary())

    def _canonical_properties(self, batch: pa.RecordBatch) -> Any:
        if self._plan.properties is None and not self._plan.extra_properties:
            return canonical(None)
        found = []
        for properties in self._reader.properties(batch):
            if isinstance(properties, InvalidOperationError):
                raise properties
            texts = {name: _decoded(value) for name, value in (properties or {}).items()}
            found.append(canonical(texts or None))
        return pa.array(found, pa.binary())

    # -- application properties ------------------------------------------------------------------------------------

    def _application_properties(self, batch: pa.RecordBatch) -> list[Any]:
        if self._plan.properties is not None:
            content, count = _map_content(batch.column(self._plan.properties), self._plan.dropped_properties)
        elif self._plan.extra_properties:
            parts: list[Any] = []
            count = pa.repeat(pa.scalar(0, pa.int32()), batch.num_rows)
            for name, place in self._plan.extra_properties:
                column = batch.column(place)
                parts.append(_join(encode_string(name), _values(column)).fill_null(b""))
                parts[-1] = pc.if_else(column.is_valid(), parts[-1], b"")
                count = pc.add(count, pc.if_else(column.is_valid(), pa.scalar(2, pa.int32()), 0))
            content = _join(*parts)
        else:
            return []
        section = _join(b"\x00\x53\x74", _compound(content, count, b"\xc1", b"\xd1"))
        return [pc.if_else(pc.greater(count, 0), section, b"")]


def _decoded(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


# -- sections ------------------------------------------------------------------------------------------------------


def _header(ttl_us: pa.Array) -> pa.Array:
    ttl_ms = _within(pc.divide(ttl_us, 1000), 0, MAX_TTL_MS - 1)  # a longer one is written in the properties too
    is_small = pc.less(ttl_ms, 256)
    wide = _join(b"\x70", _big_endian(ttl_ms.fill_null(0), "I"))
    ttl = pc.if_else(is_small, _SMALL_UINT.take(pc.min_element_wise(ttl_ms, 255, skip_nulls=False)), wide)
    content = _join(b"\x40\x40", ttl)
    head = _join(b"\x00\x53\x70\xc0", _BYTES.take(pc.add(pc.binary_length(content), 1)), b"\x03")
    return _join(head, content).fill_null(b"")


def _annotations(key: pa.Array | None, schedule_us: pa.Array | None) -> list[pa.Array]:
    parts = []
    if key is not None:
        parts.append(_join(encode_symbol(PARTITION_KEY_ANNOTATION), _sized(key, _STRING)))
    if schedule_us is not None:
        name = encode_symbol(SCHEDULED_ENQUEUE_TIME_ANNOTATION)
        parts.append(_join(name, _moments(schedule_us)))
    if not parts:
        return []
    count = pa.repeat(pa.scalar(0, pa.int32()), len(parts[0]))
    for part in parts:
        count = pc.add(count, pc.if_else(part.is_valid(), pa.scalar(2, pa.int32()), 0))
    content = _join(*(part.fill_null(b"") for part in parts))
    section = _join(b"\x00\x53\x72", _compound(content, count, b"\xc1", b"\xd1"))
    return [pc.if_else(pc.greater(count, 0), section, b"")]


def _properties(message_id: pa.Array, texts: dict[str, pa.Array]) -> pa.Array:
    """Encode the properties section. A null stands for each unset field before the last one that is set."""
    fields = {FIELDS[name]: (name, column) for name, column in texts.items() if name in FIELDS}
    count = pa.repeat(pa.scalar(1, pa.int32()), len(message_id))
    for place, (_, column) in fields.items():
        if column.null_count == 0:
            count = pc.max_element_wise(count, pa.scalar(place + 1, pa.int32()))
        else:
            count = pc.max_element_wise(count, pc.if_else(column.is_valid(), pa.scalar(place + 1, pa.int32()), 0))
    parts: list[Any] = [_sized(message_id, _STRING)]
    for place in range(1, max(fields, default=0) + 1):
        gap = pc.if_else(pc.greater(count, place), pa.scalar(b"\x40", pa.binary()), b"")
        if place in fields:
            name, column = fields[place]
            gap = pc.coalesce(_sized(column, _SYMBOL if name == "content_type" else _STRING), gap)
        parts.append(gap)
    return _join(b"\x00\x53\x73", _compound(_join(*parts), count, b"\xc0", b"\xd0"))


def _map_content(column: pa.Array, dropped: tuple[str, ...]) -> tuple[pa.Array, pa.Array]:
    """Return the encoded entries of each map, and the number of names and values.

    Args:
        dropped: names that are left out, which is done row by row.
    """
    if pa.types.is_map(column.type):
        keys, items = column.keys, column.items
    else:
        keys, items = column.values.field(0), column.values.field(1)
    offsets = column.offsets
    start = offsets[0].as_py()
    length = offsets[-1].as_py() - start
    keys, items = keys.slice(start, length), items.slice(start, length)
    offsets = pc.subtract(offsets, pa.scalar(start, pa.int32()))
    sizes = pc.subtract(offsets.slice(1), offsets.slice(0, len(column)))
    if not length:
        return pa.array([b""] * len(column), pa.binary()), sizes
    if keys.null_count or (dropped and pc.any(pc.is_in(keys, value_set=pa.array(dropped, keys.type))).as_py()):
        raise NotEncodableError
    _check_unique(keys, offsets)
    value = _values(items)
    entries = _join(_sized(_text(keys, None), _STRING), pc.if_else(items.is_valid(), value.fill_null(b""), b"\x40"))
    entry_offsets = pa.Array.from_buffers(pa.int32(), length + 1, [None, entries.buffers()[1]])
    ends = entry_offsets.take(offsets)
    content = pa.Array.from_buffers(pa.binary(), len(column), [None, ends.buffers()[1], entries.buffers()[2]])
    return content, pc.multiply(sizes, pa.scalar(2, pa.int32()))


def _check_unique(keys: pa.Array, offsets: pa.Array) -> None:
    """Check that no map has a key twice."""
    codes = keys.dictionary_encode()
    rows = pc.list_parent_indices(pa.ListArray.from_arrays(offsets, keys))
    places = pc.add(pc.multiply(rows.cast(pa.int64()), len(codes.dictionary)), codes.indices.cast(pa.int64()))
    if pc.count_distinct(places).as_py() != len(keys):
        raise NotEncodableError


# -- values --------------------------------------------------------------------------------------------------------


def _values(column: pa.Array) -> pa.Array:
    """Encode values of application properties; null stays null or becomes anything."""
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_binary(kind):
        return _sized(_text(column.cast(pa.string()), None), _STRING)
    if pa.types.is_boolean(kind):
        return pc.if_else(column, pa.scalar(b"\x41", pa.binary()), b"\x42")
    if pa.types.is_signed_integer(kind):
        return _integers(column.cast(pa.int64()).fill_null(0))
    if pa.types.is_float32(kind) or pa.types.is_float64(kind):
        return _join(b"\x82", _big_endian(column.fill_null(0.0), "d"))
    if pa.types.is_timestamp(kind):
        return _moments(_timestamps(column))
    raise NotEncodableError


def _integers(values: pa.Array) -> pa.Array:
    is_small = pc.and_(pc.greater_equal(values, -128), pc.less(values, 128))
    small = _SMALL_INT.take(pc.if_else(is_small, pc.add(values, 128), 0))
    if pc.all(is_small).as_py():
        return small
    is_int = pc.and_(pc.greater_equal(values, -(2**31)), pc.less(values, 2**31))
    wide = _join(b"\x71", _big_endian(pc.if_else(is_int, values, 0), "i"))
    return pc.if_else(is_small, small, pc.if_else(is_int, wide, _join(b"\x81", _big_endian(values, "q"))))


def _moments(timestamps_us: pa.Array) -> pa.Array:
    """Encode timestamps, rounded down to milliseconds; null stays null."""
    floored = pc.if_else(pc.less(timestamps_us, 0), pc.subtract(timestamps_us, 999), timestamps_us)
    encoded = _join(b"\x83", _big_endian(pc.divide(floored, 1000).fill_null(0), "q"))
    return pc.if_else(timestamps_us.is_valid(), encoded, pa.scalar(None, pa.binary()))


def _timestamps(column: pa.Array) -> pa.Array:
    """Return microseconds since 1970."""
    if column.type.unit not in _US:
        raise NotEncodableError
    return _within(pc.multiply_checked(column.cast(pa.int64()), _US[column.type.unit]), _FIRST_US, _LAST_US)


def _durations(column: pa.Array) -> pa.Array:
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


def _text(column: pa.Array, longest: int | None) -> pa.Array:
    """Check a column of text and return it as bytes.

    Args:
        longest: the most characters of a text.
    """
    text = column.cast(pa.string())
    text.validate(full=True)  # Spark allows bytes that are not UTF-8
    if longest is not None and (pc.max(pc.utf8_length(text)).as_py() or 0) > longest:
        raise NotEncodableError
    return text.cast(pa.binary())


def _text_or(column: pa.Array | None, otherwise: pa.Array) -> pa.Array:
    return otherwise if column is None else column.cast(pa.string())


# -- bytes ---------------------------------------------------------------------------------------------------------


def _join(*parts: Any) -> pa.Array:
    return pc.binary_join_element_wise(*parts, b"")


def _sized(raw: pa.Array, form: tuple[pa.Array, bytes]) -> pa.Array:
    """Return bytes behind their size, in the 8-bit or the 32-bit form; null stays null."""
    short, wide = form
    size = pc.binary_length(raw)
    if (pc.max(size).as_py() or 0) < 256:
        return _join(short.take(size), raw)
    heads = _join(wide, _big_endian(size.fill_null(0), "i"))
    is_short = pc.less(size, 256)
    return _join(pc.if_else(is_short, short.take(pc.min_element_wise(size, 255, skip_nulls=False)), heads), raw)


def _compound(content: pa.Array, count: pa.Array, short: bytes, wide: bytes) -> pa.Array:
    """Return the elements of lists or maps behind their size and count."""
    size = pc.binary_length(content)
    is_short = pc.and_(pc.less(size, 255), pc.less(count, 256))
    sizes = _BYTES.take(pc.if_else(is_short, pc.add(size, 1), 0))
    head = _join(short, sizes, _BYTES.take(pc.if_else(is_short, count, 0)))
    if not pc.all(is_short).as_py():
        long = _join(wide, _big_endian(pc.add(size, 4), "i"), _big_endian(count, "i"))
        head = pc.if_else(is_short, head, long)
    return _join(head, content)


_NUMBERS: Final = {"i": pa.int32(), "I": pa.uint32(), "q": pa.int64(), "d": pa.float64()}


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


# -- bytes for message ids -----------------------------------------------------------------------------------------


def _tagged(tag: bytes, raw: pa.Array) -> pa.Array:
    """Return `message_ids.canonical` of a column of bytes."""
    size = pc.binary_length(raw).cast(pa.string()).cast(pa.binary())
    return _join(tag, size, b":", raw)


def _canonical(raw: pa.Array | None, tag: bytes) -> Any:
    return canonical(None) if raw is None else _tagged(tag, raw).fill_null(canonical(None))


def _digits(values: pa.Array | None) -> pa.Array | None:
    return None if values is None else values.cast(pa.string()).cast(pa.binary())
