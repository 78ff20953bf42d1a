"""The columns of a read, and messages as rows with these columns."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from operator import attrgetter
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    DataType,
    DayTimeIntervalType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from sbclient.amqp.value_texts import name_of, text_of
from sbclient.errors import InvalidOperationError
from sbclient.formats.message_json import value_json
from sbclient.message import AmqpMessageBodyType, ServiceBusReceivedMessage
from sbclient.settings.table import suggestion

_TEXTS: Final = (
    "message_id",
    "session_id",
    "partition_key",
    "correlation_id",
    "subject",
    "content_type",
    "reply_to",
    "reply_to_session_id",
    "to",
)

READ_ONLY: Final[dict[str, DataType]] = {
    "sequence_number": LongType(),
    "enqueued_time": TimestampType(),
    "expires_at": TimestampType(),
    "delivery_count": IntegerType(),
    "dead_letter_reason": StringType(),
    "dead_letter_error_description": StringType(),
    "backlog_queue": StringType(),
    "state": StringType(),
}
"""Columns of a read that the service sets, with their types; a write of such rows leaves them out."""

READ_SCHEMA: Final = StructType(
    [
        StructField("body", BinaryType()),
        StructField("body_type", StringType()),
        StructField("application_properties", MapType(StringType(), StringType())),
        StructField("property_types", MapType(StringType(), StringType())),
        *(StructField(name, StringType()) for name in _TEXTS),
        StructField("time_to_live", DayTimeIntervalType()),
        StructField("scheduled_enqueue_time", TimestampType()),
        StructField("queue", StringType()),
        *(StructField(name, kind) for name, kind in READ_ONLY.items()),
    ]
)
"""The columns of a read. Columns that a write accepts have the same names and meaning."""

_ARROW: Final[dict[str, pa.DataType]] = {
    "body": pa.binary(),
    "application_properties": pa.map_(pa.string(), pa.string()),
    "property_types": pa.map_(pa.string(), pa.string()),
    "time_to_live": pa.duration("us"),
    "scheduled_enqueue_time": pa.timestamp("us", tz="UTC"),
    "sequence_number": pa.int64(),
    "enqueued_time": pa.timestamp("us", tz="UTC"),
    "expires_at": pa.timestamp("us", tz="UTC"),
    "delivery_count": pa.int32(),
}


TEXT: Final = "text"
"""The `body_type` of an AMQP value that is a string, as JMS sends its text messages: the body is that string."""


def _body_type(message: ServiceBusReceivedMessage) -> str:
    is_text = message.body_type is AmqpMessageBodyType.VALUE and type(message.body) is str
    return TEXT if is_text else message.body_type.value


def _body(message: ServiceBusReceivedMessage) -> bytes:
    """Return the bytes of a body. AMQP values and sequences become JSON, as in JSON lines."""
    if message.body_type is AmqpMessageBodyType.DATA:
        return bytes(message)
    if _body_type(message) == TEXT:
        return str(message.body).encode()
    return json.dumps(value_json(message.body), ensure_ascii=False).encode()


_VALUES: Final[dict[str, Callable[[ServiceBusReceivedMessage], Any]]] = {
    "body": _body,
    "body_type": _body_type,
    "application_properties": lambda message: {
        name: text_of(value) for name, value in message.application_properties.items()
    },
    "property_types": lambda message: _property_types(message) or None,
    "time_to_live": lambda message: _time_to_live(message.time_to_live),
    "scheduled_enqueue_time": lambda message: message.scheduled_enqueue_time_utc,
    "enqueued_time": lambda message: message.enqueued_time_utc,
    "expires_at": lambda message: message.expires_at_utc,
    "state": lambda message: message.state.name.lower(),
}


def _property_types(message: ServiceBusReceivedMessage) -> dict[str, str]:
    """Return the AMQP types of the application properties that are not strings."""
    names = {name: name_of(value) for name, value in message.application_properties.items()}
    return {name: kind for name, kind in names.items() if kind is not None}


def _time_to_live(value: timedelta | None) -> timedelta | None:
    """Return None for a duration of more than 292,471 years, the limit of Spark."""
    return None if value is None or value > timedelta(days=106_751_990) else value


def checked_columns(schema: StructType) -> list[StructField]:
    """Return the columns of a read after checking their names and types, before any task.

    Raises:
        InvalidOperationError: a read has no such column, or the column has another type.
    """
    types = {column.name: column.dataType for column in READ_SCHEMA}
    for column in schema:
        name = column.name.lower()
        if name not in types:
            near = suggestion(column.name, list(types))
            raise InvalidOperationError(f"a read has no column {column.name!r}: {near}")
        allowed = [types[name], *([StringType()] if name == "body" else [])]
        if column.dataType not in allowed:
            names = " or ".join(kind.simpleString() for kind in allowed)
            raise InvalidOperationError(
                f"column {column.name!r} is of type {column.dataType.simpleString()} in the schema of the read: it is "
                f"{names}; cast it after the read"
            )
    return list(schema)


def record_batch(
    messages: list[ServiceBusReceivedMessage], path: str, columns: list[StructField], *, in_backlog: bool = False
) -> pa.RecordBatch:
    """Return messages as rows with some columns; only these parts of the messages are converted."""
    arrays: list[pa.Array] = []
    for column in columns:
        name = column.name.lower()
        kind = _ARROW.get(name, pa.string())
        if name in ("queue", "backlog_queue"):
            values: list[Any] = [path if name == "queue" or in_backlog else None] * len(messages)
        elif name == "body" and isinstance(column.dataType, StringType):
            kind, values = pa.string(), [_body(message).decode(errors="replace") for message in messages]
        else:
            values = list(map(_VALUES.get(name) or attrgetter(name), messages))
        if values.count(None) == len(values):  # most columns of most messages
            arrays.append(pa.nulls(len(values), kind))
            continue
        if pa.types.is_map(kind):
            values = [None if value is None else list(value.items()) for value in values]
        arrays.append(pa.array(values, type=kind))
    return pa.RecordBatch.from_arrays(arrays, names=[column.name for column in columns])
