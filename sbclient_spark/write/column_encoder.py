"""Encodes the columns of a record batch as messages, whole columns at a time.

The result is the same as that of `rows.RowReader` and `encode_message`, byte by byte, which a test compares for random
columns. Rows that are unusual, such as those with an error, are left to `RowReader`: then this module encodes nothing
of their batch.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from sbclient.amqp.encode import encode_string
from sbclient.errors import InvalidOperationError
from sbclient.message import MAX_ID_LENGTH
from sbclient.rules.ping import PING_CONTENT_TYPE
from sbclient_spark.options import Destination
from sbclient_spark.write import amqp_columns as amqp
from sbclient_spark.write.amqp_columns import NotEncodableError
from sbclient_spark.write.encoded_rows import SCHEMA, EncodedRows, by_value
from sbclient_spark.write.message_ids import MessageIds, canonical
from sbclient_spark.write.rows import RowPlan, RowReader

SHORT_IDS: Final = ("session_id", "partition_key", "reply_to_session_id")


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
            *([] if ttl_us is None else [amqp.header_section(ttl_us)]),
            *amqp.annotation_section(texts.get("partition_key"), schedule_us),
            amqp.property_section(message_id, texts),
            *self._application_properties(batch),
            b"\x00\x53\x75",
            amqp.sized(body, amqp.BINARY),
        ]
        section = amqp.join(b"\x00\x53\x75", amqp.sized(amqp.join(*parts), amqp.BINARY))
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
                ttl_us = amqp.durations(column)
            elif name == "scheduled_enqueue_time_utc":
                schedule_us = amqp.timestamps(column)
            else:
                texts[name] = amqp.text_bytes(column, MAX_ID_LENGTH if name in SHORT_IDS else None)
        session, key = texts.get("session_id"), texts.get("partition_key")
        if session is not None and key is not None and pc.any(pc.not_equal(session, key)).as_py():
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
            return amqp.text_bytes(column, None)
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
            return amqp.text_bytes(amqp.join(self._ids.prefix.encode(), given).cast(pa.string()), MAX_ID_LENGTH)
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
            made = [self._ids.digest(each) for each in amqp.join(*parts).to_pylist()]
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
        if self._plan.property_types is not None:
            bounds = batch.column(self._plan.property_types).offsets
            if bounds[0] != bounds[-1]:
                raise NotEncodableError
        if self._plan.properties is not None:
            content, count = amqp.map_content(batch.column(self._plan.properties), self._plan.dropped_properties)
        elif self._plan.extra_properties:
            parts: list[Any] = []
            count = pa.repeat(pa.scalar(0, pa.int32()), batch.num_rows)
            for name, place in self._plan.extra_properties:
                column = batch.column(place)
                parts.append(amqp.join(encode_string(name), amqp.property_values(column)).fill_null(b""))
                parts[-1] = pc.if_else(column.is_valid(), parts[-1], b"")
                count = pc.add(count, pc.if_else(column.is_valid(), pa.scalar(2, pa.int32()), 0))
            content = amqp.join(*parts)
        else:
            return []
        section = amqp.join(b"\x00\x53\x74", amqp.compound(content, count, b"\xc1", b"\xd1"))
        return [pc.if_else(pc.greater(count, 0), section, b"")]


def _decoded(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def _text_or(column: pa.Array | None, otherwise: pa.Array) -> pa.Array:
    return otherwise if column is None else column.cast(pa.string())


# -- bytes for message ids -----------------------------------------------------------------------------------------


def _tagged(tag: bytes, raw: pa.Array) -> pa.Array:
    """Return `message_ids.canonical` of a column of bytes."""
    size = pc.binary_length(raw).cast(pa.string()).cast(pa.binary())
    return amqp.join(tag, size, b":", raw)


def _canonical(raw: pa.Array | None, tag: bytes) -> Any:
    return canonical(None) if raw is None else _tagged(tag, raw).fill_null(canonical(None))


def _digits(values: pa.Array | None) -> pa.Array | None:
    return None if values is None else values.cast(pa.string()).cast(pa.binary())
