"""Encodes the rows of record batches as messages, whole columns at a time.

If a column has a value that cannot be converted, the column is converted in halves, and at last on slices of one row.
What fails there is an error of its row, and the other rows are encoded without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import repeat
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from sbclient.amqp import EncodeError
from sbclient.amqp.encode import encode_string
from sbclient.amqp.encoded import encode_application_properties, encode_body
from sbclient.amqp.value_texts import typed
from sbclient.errors import InvalidOperationError
from sbclient.formats.message_json import body_of
from sbclient.formats.strict_json import read_json
from sbclient.message import MAX_ID_LENGTH, AmqpMessageBodyType, ServiceBusMessage
from sbclient.rules.entity_path import check_entity_path
from sbclient.rules.partition_key import check_keys
from sbclient.rules.ping import PING_CONTENT_TYPE, check_not_ping
from sbclient_spark.options import Destination, EntityWord
from sbclient_spark.read.columns import TEXT
from sbclient_spark.write import amqp_columns as amqp
from sbclient_spark.write import columns
from sbclient_spark.write.amqp_columns import NotEncodableError
from sbclient_spark.write.columns import Convert, Values
from sbclient_spark.write.encoded_rows import SCHEMA, BadRow, EncodedRows, by_value
from sbclient_spark.write.json_values import converter, json_text
from sbclient_spark.write.message_ids import MessageIds, canonical
from sbclient_spark.write.schema import RowPlan

IDS: Final = ("message_id", "session_id", "partition_key", "reply_to_session_id")
"""The attributes with a limited length."""

_NO_COLUMN: Final = (NotEncodableError, pa.ArrowException, InvalidOperationError, TypeError, OverflowError, ValueError)
_NO_ROW: Final = (InvalidOperationError, EncodeError, TypeError)

Errors = dict[int, str]
"""The reasons of invalid rows, by their place in the batch."""


class RowEncoder:
    """Encodes the record batches of a task.

    Args:
        plan: the use of each column.
        ids: makes the message ids.
    """

    def __init__(self, plan: RowPlan, ids: MessageIds) -> None:
        self._plan = plan
        self._ids = ids
        self._known: dict[tuple[Any, ...], Destination] = {}

    def encode(self, batch: pa.RecordBatch, first_position: int) -> tuple[list[EncodedRows], list[BadRow]]:
        """Return the rows of a batch, grouped by destination and in order, and the invalid ones.

        Args:
            first_position: the position of the first row in its partition.
        """
        positions = pa.array(range(first_position, first_position + batch.num_rows), pa.int64())
        bad: list[BadRow] = []
        while batch.num_rows:
            errors: Errors = {}
            encoded = self._encode(batch, positions, errors)
            if not errors:
                return encoded, sorted(bad, key=lambda row: row.position)
            bad += [
                BadRow(positions[place].as_py(), reason, record_of(batch, place)) for place, reason in errors.items()
            ]
            sound = pa.array([place for place in range(batch.num_rows) if place not in errors], pa.int64())
            batch, positions = batch.take(sound), positions.take(sound)
        return [], sorted(bad, key=lambda row: row.position)

    def _encode(self, batch: pa.RecordBatch, positions: pa.Array, errors: Errors) -> list[EncodedRows]:
        """Return the encoded rows; an empty list if there are errors."""
        texts, ttl_us, schedule_us = self._attributes(batch, errors)
        body = self._body(batch, errors)
        properties = self._application_properties(batch, errors)
        destinations = self._destinations(batch, errors)
        self._check_attributes(texts, errors)
        if errors:
            return []
        sections = self._body_sections(batch, body, errors)
        message_id = self._message_ids(batch, texts, ttl_us, schedule_us, destinations, body, positions, errors)
        if message_id is None:
            return []
        parts = [
            *([] if ttl_us is None else [amqp.header_section(ttl_us)]),
            *amqp.annotation_section(texts.get("partition_key"), schedule_us),
            amqp.property_section(message_id, texts, ttl_us),
            *properties,
            sections,
        ]
        none = pa.nulls(batch.num_rows, pa.string())
        arrays = [
            amqp.join(b"\x00\x53\x75", amqp.sized(amqp.join(*parts), amqp.BINARY)),
            message_id.cast(pa.string()),
            texts["session_id"].cast(pa.string()) if "session_id" in texts else none,
            texts["partition_key"].cast(pa.string()) if "partition_key" in texts else none,
            pa.repeat(False, batch.num_rows) if schedule_us is None else schedule_us.is_valid(),
            positions,
        ]
        rows = pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
        if self._plan.destination is not None:
            return [EncodedRows(self._plan.destination, rows)]
        places = {one: place for place, one in enumerate(dict.fromkeys(destinations))}
        codes = pa.array([places[one] for one in destinations], pa.int32())
        names = list(places)
        return [EncodedRows(names[code], part.columns) for code, part in by_value(EncodedRows(names[0], rows), codes)]

    # -- attributes ------------------------------------------------------------------------------------------------

    def _attributes(
        self, batch: pa.RecordBatch, errors: Errors
    ) -> tuple[dict[str, pa.Array], pa.Array | None, pa.Array | None]:
        """Return the texts as binary columns, and time to live and schedule in microseconds."""
        texts: dict[str, pa.Array] = {}
        ttl_us = schedule_us = None
        for name, place in self._plan.attributes:
            column = batch.column(place)
            if name == "time_to_live":
                ttl_us = converted(column, pa.int64(), amqp.durations, columns.duration_us, errors, name=name)
            elif name == "scheduled_enqueue_time_utc":
                schedule_us = converted(column, pa.int64(), amqp.timestamps, columns.timestamp_us, errors, name=name)
            else:
                texts[name] = _text(column, name, errors)
        return texts, ttl_us, schedule_us

    def _check_attributes(self, texts: dict[str, pa.Array], errors: Errors) -> None:
        """Find rows without an id, and with attributes that exclude each other."""
        if self._ids.mode == "column":
            given = texts["message_id"]
            for place in _places(pc.or_(given.is_null(), pc.equal(pc.binary_length(given).fill_null(0), 0))):
                # Duplicate detection would keep only one of the rows with an empty id.
                found = "empty" if given[place].is_valid else "null"
                errors.setdefault(place, f"message_id is {found}: give each row an id")
        session, key, content_type = (texts.get(name) for name in ("session_id", "partition_key", "content_type"))
        if session is not None and key is not None:
            self._check(check_keys, texts, pc.not_equal(session, key), errors)
        if content_type is not None:
            lower = pc.utf8_lower(content_type.cast(pa.string()))
            self._check(check_not_ping, texts, pc.equal(lower, PING_CONTENT_TYPE), errors)

    @staticmethod
    def _check(
        check: Callable[[ServiceBusMessage], None], texts: dict[str, pa.Array], doubtful: pa.Array, errors: Errors
    ) -> None:
        """Check the attributes of some rows together."""
        for place in _places(doubtful):
            if place not in errors:
                values = {name: column[place].as_py() for name, column in texts.items()}
                try:
                    check(ServiceBusMessage(b"", **values))
                except InvalidOperationError as error:
                    errors[place] = str(error)

    def _body(self, batch: pa.RecordBatch, errors: Errors) -> pa.Array:
        if self._plan.body is None:
            bodies = self._json_bodies(batch)
            return pa.array([_kept(value, place, errors) for place, value in enumerate(bodies)], pa.string()).cast(
                pa.binary()
            )
        column = batch.column(self._plan.body)
        for place in _places(column.is_null()):
            errors.setdefault(place, "the body is null: give it a value, which may be empty")
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            return _text(column, "body", errors)
        return column.cast(pa.binary())

    def _other_types(self, batch: pa.RecordBatch) -> pa.Array | None:
        """Return the `body_type` of rows whose body is no data, null for the others; None if there are no such rows."""
        if self._plan.body_type is None:
            return None
        types = batch.column(self._plan.body_type).cast(pa.string())
        others = pc.if_else(pc.equal(types, AmqpMessageBodyType.DATA), pa.scalar(None, pa.string()), types)
        return None if others.null_count == len(others) else others

    def _body_sections(self, batch: pa.RecordBatch, body: pa.Array, errors: Errors) -> pa.Array:
        """Return the sections of each body."""
        sections = amqp.join(b"\x00\x53\x75", amqp.sized(body, amqp.BINARY))
        types = self._other_types(batch)
        if types is None:
            return sections
        found: list[bytes | None] = []
        for place, (kind, raw) in enumerate(zip(columns.plain(types), body.to_pylist(), strict=True)):
            try:
                found.append(None if kind is None else _other_body(_sound(kind), raw))
            except _NO_ROW as error:
                found.append(None)
                errors.setdefault(place, str(error))
        return pc.coalesce(pa.array(found, pa.binary()), sections)

    def _json_bodies(self, batch: pa.RecordBatch) -> Iterator[str | InvalidOperationError]:
        names = [name for name, _ in self._plan.json_fields]
        converts = [converter(batch.column(place).type) for _, place in self._plan.json_fields]
        rows = _by_rows(batch, [place for _, place in self._plan.json_fields])
        return (_json_body(names, converts, values) for values in rows)

    def _destinations(self, batch: pa.RecordBatch, errors: Errors) -> list[Destination]:
        """Return the destination of each row without an error; empty if all rows have the same."""
        if self._plan.destination is not None:
            return []
        found: list[Destination] = []
        named = [place for place in (self._plan.queue, self._plan.topic) if place is not None]
        for place, paths in enumerate(_by_rows(batch, named)):
            try:
                found.append(self._known.get(paths) or self._destination(paths))
            except InvalidOperationError as error:
                errors.setdefault(place, str(error))
        return found

    def _destination(self, paths: tuple[Any, ...]) -> Destination:
        """Return the destination that a row names; each text is checked once.

        Raises:
            InvalidOperationError: the row names no destination, two of them, or an illegal one.
        """
        words: list[EntityWord] = []
        if self._plan.queue is not None:
            words.append("queue")
        if self._plan.topic is not None:
            words.append("topic")
        named = [(word, path) for word, path in zip(words, paths, strict=True) if path is not None]
        if len(named) != 1:
            given = " and ".join(f"{word} {path!r}" for word, path in named) or "neither"
            raise InvalidOperationError(f"the row names {given}: give a value to exactly one of {' and '.join(words)}")
        word, path = named[0]
        if isinstance(path, InvalidOperationError):
            raise InvalidOperationError(f"column {word!r}: {path.message}")
        self._known[paths] = Destination(check_entity_path(path, word), word)
        return self._known[paths]

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
        errors: Errors,
    ) -> pa.Array | None:
        """Return the ids; None if there are errors."""
        mode = self._ids.mode
        if mode == "column":
            given = texts["message_id"]
            if self._ids.prefix:
                given = _text(amqp.join(self._ids.prefix.encode(), given).cast(pa.string()), "message_id", errors)
            return None if errors else given
        if mode == "random":
            made = [self._ids.random_id() for _ in range(batch.num_rows)]
        elif mode == "keys":
            made = []
            for place, values in enumerate(_by_rows(batch, self._plan.keys)):
                try:
                    made.append(self._ids.digest(b"".join(canonical(_sound(value)) for value in values)))
                except InvalidOperationError as error:
                    errors[place] = f"key columns {', '.join(map(repr, self._plan.ids.columns))}: {error.message}"
        else:
            parts = [] if mode == "content" else [_tagged(b"i", positions.cast(pa.string()).cast(pa.binary()))]
            fixed = self._plan.destination
            parts.append(
                canonical(fixed.path.casefold())
                if fixed is not None
                else pa.array([canonical(one.path.casefold()) for one in destinations], pa.binary())
            )
            parts.append(_tagged(b"b", body))
            names = ("session_id", "partition_key", "correlation_id", "subject", "content_type", "to", "reply_to")
            parts += [_canonical(texts.get(name), b"s") for name in (*names, "reply_to_session_id")]
            parts += [_canonical(_digits(ttl_us), b"p"), _canonical(_digits(schedule_us), b"m")]
            parts.append(self._canonical_properties(batch))
            if (types := self._other_types(batch)) is not None:
                parts.append(_tagged(b"k", types.cast(pa.binary())).fill_null(b""))
            made = [self._ids.digest(each) for each in amqp.join(*parts).to_pylist()]
        return None if errors else pa.array(made, pa.string()).cast(pa.binary())

    def _canonical_properties(self, batch: pa.RecordBatch) -> Any:
        if self._plan.properties is None and not self._plan.extra_properties:
            return canonical(None)
        found = []
        for properties in self._properties(batch):
            texts = {name: _decoded(value) for name, value in (properties or {}).items()}
            found.append(canonical(texts or None))
        return pa.array(found, pa.binary())

    # -- application properties ------------------------------------------------------------------------------------

    def _application_properties(self, batch: pa.RecordBatch, errors: Errors) -> list[Any]:
        """Return the section of each row; an empty list if no row can have properties."""
        if self._plan.properties is None and not self._plan.extra_properties:
            return []
        if self._has_usual_properties(batch):
            return [converted(batch, pa.binary(), self._property_section, self._section_of_one, errors)]
        found: list[bytes | None] = []
        for place, properties in enumerate(self._properties(batch)):
            try:
                found.append(_section(properties))
            except _NO_ROW as error:
                found.append(None)
                errors.setdefault(place, str(error))
        return [pa.array(found, pa.binary())]

    def _has_usual_properties(self, batch: pa.RecordBatch) -> bool:
        """Whether there are no variants, no types of texts, and no properties to leave out."""
        plan = self._plan
        if plan.property_types is not None:
            bounds = batch.column(plan.property_types).offsets
            if bounds[0] != bounds[-1]:
                return False
        if plan.properties is None:
            return True
        keys, items = columns.entries(batch.column(plan.properties))
        if pa.types.is_struct(items.type):
            return False
        dropped = pa.array(plan.dropped_properties, keys.type)
        return not len(dropped) or not pc.any(pc.is_in(keys, value_set=dropped)).as_py()

    def _property_section(self, batch: pa.RecordBatch) -> pa.Array:
        if self._plan.properties is not None:
            content, count = amqp.map_content(batch.column(self._plan.properties))
        else:
            parts: list[Any] = []
            count = pa.repeat(pa.scalar(0, pa.int32()), batch.num_rows)
            for name, place in self._plan.extra_properties:
                column = batch.column(place)
                parts.append(amqp.join(encode_string(name), amqp.property_values(column)).fill_null(b""))
                parts[-1] = pc.if_else(column.is_valid(), parts[-1], b"")
                count = pc.add(count, pc.if_else(column.is_valid(), pa.scalar(2, pa.int32()), 0))
            content = amqp.join(*parts)
        section = amqp.join(b"\x00\x53\x74", amqp.compound(content, count, b"\xc1", b"\xd1"))
        return pc.if_else(pc.greater(count, 0), section, b"")

    def _section_of_one(self, batch: pa.RecordBatch) -> bytes:
        (properties,) = self._properties(batch)
        return _section(properties)

    def _properties(self, batch: pa.RecordBatch) -> Iterator[Any]:
        """Return the application properties of each row as a dict or None, or an error in its place."""
        if self._plan.properties is not None:
            found = map(self._without_dropped, columns.properties(batch.column(self._plan.properties)))
            if self._plan.property_types is None:
                return found
            return map(_typed, found, columns.properties(batch.column(self._plan.property_types)))
        names = [name for name, _ in self._plan.extra_properties]
        values = [columns.property_values(batch.column(place)) for _, place in self._plan.extra_properties]
        return (_extra_properties(names, row) for row in zip(*values, strict=True))

    def _without_dropped(self, properties: Any) -> Any:
        if self._plan.dropped_properties and isinstance(properties, dict):
            return {name: value for name, value in properties.items() if name not in self._plan.dropped_properties}
        return properties


def converted(
    column: Any,
    kind: pa.DataType,
    whole: Callable[[Any], pa.Array],
    one: Callable[[Any], Any],
    errors: Errors,
    start: int = 0,
    *,
    name: str | None = None,
) -> pa.Array:
    """Return a converted column, with null in place of each invalid value.

    Args:
        column: an array or a record batch.
        kind: of the result.
        whole: converts columns of any length; raises if a value is unusual or invalid.
        one: converts columns of length 1; raises if the value is invalid.
        errors: receives the reason of each invalid value.
        start: the place of the first value.
        name: of the column, for reasons that do not name it.
    """
    try:
        return whole(column)
    except _NO_COLUMN:
        middle = len(column) // 2
    if middle:
        parts = [(column.slice(0, middle), start), (column.slice(middle), start + middle)]
        return pa.concat_arrays([converted(part, kind, whole, one, errors, place, name=name) for part, place in parts])
    try:
        return pa.array([one(column)], kind)
    except _NO_ROW as error:
        errors.setdefault(start, str(error) if name is None else f"column {name!r}: {error}")
        return pa.nulls(1, kind)


def _text(column: pa.Array, name: str, errors: Errors) -> pa.Array:
    """Return a column of text as bytes."""
    longest = MAX_ID_LENGTH if name in IDS else None
    return converted(
        column, pa.binary(), partial(amqp.text_bytes, longest=longest), partial(columns.text_bytes, name), errors
    )


def _places(mask: pa.Array) -> list[int]:
    found: list[int] = pc.indices_nonzero(mask).to_pylist()
    return found


def _by_rows(batch: pa.RecordBatch, places: Any) -> Iterator[tuple[Any, ...]]:
    """Yield some columns as rows; without columns, empty rows."""
    found: list[Values] = [columns.plain(batch.column(place)) for place in places]
    return zip(*found, strict=True) if found else repeat((), batch.num_rows)


def _sound(value: Any) -> Any:
    if isinstance(value, InvalidOperationError):
        raise value
    return value


def _kept(value: Any, place: int, errors: Errors) -> Any:
    """Return a value, or None for an error."""
    if isinstance(value, InvalidOperationError):
        errors.setdefault(place, str(value))
        return None
    return value


def _section(properties: Any) -> bytes:
    """Return the section of application properties.

    Raises:
        InvalidOperationError, TypeError, EncodeError: a property is invalid.
    """
    if not _sound(properties):
        return b""
    message = ServiceBusMessage(b"", application_properties=properties)
    try:
        return b"\x00\x53\x74" + encode_application_properties(message.application_properties)
    except EncodeError:
        for name, value in message.application_properties.items():
            try:
                encode_application_properties({name: value})
            except EncodeError as error:
                raise InvalidOperationError(f"property {name!r:.100}: {error}") from error
        raise


def _typed(properties: Any, types: Any) -> Any:
    """Return properties with their types, or an error in their place."""
    for found in (properties, types):
        if isinstance(found, InvalidOperationError):
            return found
    try:
        return typed(properties, types) if properties and types else properties
    except InvalidOperationError as error:
        return error


def _other_body(kind: str, raw: bytes) -> bytes:
    """Return a body that is no data as sections.

    Raises:
        InvalidOperationError, EncodeError: there is no such type, or the body is not of this type.
    """
    if kind not in (TEXT, *AmqpMessageBodyType):
        raise InvalidOperationError(f"body_type is {kind!r:.40}: give data, {TEXT}, value or sequence")
    try:
        text = raw.decode()
        found = {"body_type": "value", "body": text} if kind == TEXT else {"body_type": kind, "body": read_json(text)}
    except ValueError:
        wanted = "UTF-8" if kind == TEXT else "JSON"
        raise InvalidOperationError(f"the body of a row with body_type {kind!r} is not {wanted}") from None
    return encode_body(*body_of(found))


def _extra_properties(names: list[str], values: tuple[Any, ...]) -> dict[str, Any] | InvalidOperationError:
    error = columns.first_error(names, values)
    return error or {name: value for name, value in zip(names, values, strict=True) if value is not None}


def _json_body(
    names: list[str], converts: list[Convert | None], values: tuple[Any, ...]
) -> str | InvalidOperationError:
    record: dict[str, Any] = {}
    for name, convert, value in zip(names, converts, values, strict=True):
        if value is not None:
            try:
                record[name] = _sound(value) if convert is None else convert(_sound(value))
            except InvalidOperationError as error:
                return InvalidOperationError(f"column {name!r}: {error}")
    return json_text(record)


def record_of(batch: pa.RecordBatch, offset: int) -> dict[str, Any]:
    """Return the columns of a row as values for JSON; values that JSON lacks become text."""
    record: dict[str, Any] = {}
    for name, column in zip(batch.schema.names, batch.slice(offset, 1).columns, strict=True):
        value = columns.plain(column)[0]
        convert = converter(column.type)
        try:
            record[name] = _sound(value) if value is None or convert is None else convert(_sound(value))
        except InvalidOperationError:
            record[name] = str(value)
    return record


# -- bytes for message ids -----------------------------------------------------------------------------------------


def _decoded(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def _tagged(tag: bytes, raw: pa.Array) -> pa.Array:
    """Return `message_ids.canonical` of a column of bytes."""
    size = pc.binary_length(raw).cast(pa.string()).cast(pa.binary())
    return amqp.join(tag, size, b":", raw)


def _canonical(raw: pa.Array | None, tag: bytes) -> Any:
    return canonical(None) if raw is None else _tagged(tag, raw).fill_null(canonical(None))


def _digits(values: pa.Array | None) -> pa.Array | None:
    return None if values is None else values.cast(pa.string()).cast(pa.binary())
