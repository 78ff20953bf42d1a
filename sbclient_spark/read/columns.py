"""The columns of a read, and messages as rows with these columns."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from functools import cached_property, partial
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

from sbclient.amqp.encoded import EncodedMessage, encoded_content
from sbclient.amqp.value_texts import name_of, text_of
from sbclient.errors import InvalidOperationError
from sbclient.formats.message_json import value_json
from sbclient.message import (
    DEAD_LETTER_DESCRIPTION,
    DEAD_LETTER_REASON,
    AmqpMessageBodyType,
    ServiceBusReceivedMessage,
)
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


class _Page:
    """Messages, and the parts of them that several columns have.

    What the sender set is read from the encoded content: a received message takes five times as long, because it takes
    each attribute from there when it is read for the first time.
    """

    def __init__(self, messages: list[ServiceBusReceivedMessage]) -> None:
        self.messages = messages
        self.contents = list(map(encoded_content, messages))

    @cached_property
    def properties(self) -> list[dict[str, Any]]:
        return [content.typed_properties for content in self.contents]

    def set_by_broker(self, name: str) -> list[Any]:
        return list(map(attrgetter(name), self.messages))

    def set_by_sender(self, name: str) -> list[Any]:
        return list(map(attrgetter(name), self.contents))

    def text_property(self, name: str) -> list[str | None]:
        values = [properties.get(name) for properties in self.properties]
        return [value if isinstance(value, str) else None for value in values]


def _body_type(content: EncodedMessage) -> str:
    is_text = content.body_type is AmqpMessageBodyType.VALUE and type(content.body) is str
    return TEXT if is_text else content.body_type.value


def _body(content: EncodedMessage) -> bytes:
    """Return the bytes of a body. AMQP values and sequences become JSON, as in JSON lines."""
    if content.body_type is AmqpMessageBodyType.DATA:
        return bytes(content)
    if _body_type(content) == TEXT:
        return str(content.body).encode()
    return json.dumps(value_json(content.body), ensure_ascii=False).encode()


_VALUES: Final[dict[str, Callable[[_Page], list[Any]]]] = {
    "body": lambda page: list(map(_body, page.contents)),
    "body_type": lambda page: list(map(_body_type, page.contents)),
    "application_properties": lambda page: [
        {name: text_of(value) for name, value in properties.items()} for properties in page.properties
    ],
    "property_types": lambda page: [_property_types(properties) or None for properties in page.properties],
    "time_to_live": lambda page: list(map(_time_to_live, page.set_by_sender("time_to_live"))),
    "scheduled_enqueue_time": lambda page: page.set_by_sender("scheduled_enqueue_time_utc"),
    "sequence_number": lambda page: page.set_by_broker("sequence_number"),
    "enqueued_time": lambda page: page.set_by_broker("enqueued_time_utc"),
    "expires_at": lambda page: page.set_by_broker("expires_at_utc"),
    "delivery_count": lambda page: page.set_by_broker("delivery_count"),
    "dead_letter_reason": lambda page: page.text_property(DEAD_LETTER_REASON),
    "dead_letter_error_description": lambda page: page.text_property(DEAD_LETTER_DESCRIPTION),
    "state": lambda page: [state.name.lower() for state in page.set_by_broker("state")],
    **{name: partial(_Page.set_by_sender, name=name) for name in _TEXTS},
}


def _property_types(properties: dict[str, Any]) -> dict[str, str]:
    """Return the AMQP types of the application properties that are not strings."""
    names = {name: name_of(value) for name, value in properties.items()}
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
    page = _Page(messages)
    arrays: list[pa.Array] = []
    for column in columns:
        name = column.name.lower()
        kind = _ARROW.get(name, pa.string())
        if name in ("queue", "backlog_queue"):
            values: list[Any] = [path if name == "queue" or in_backlog else None] * len(messages)
        elif name == "body" and isinstance(column.dataType, StringType):
            kind, values = pa.string(), [_body(content).decode(errors="replace") for content in page.contents]
        else:
            values = _VALUES[name](page)
        if values.count(None) == len(values):  # most columns of most messages
            arrays.append(pa.nulls(len(values), kind))
        else:
            arrays.append(_map_array(values, kind) if pa.types.is_map(kind) else pa.array(values, type=kind))
    return pa.RecordBatch.from_arrays(arrays, names=[column.name for column in columns])


def _map_array(maps: list[dict[str, Any] | None], kind: pa.MapType) -> pa.Array:
    return pa.array([None if each is None else list(each.items()) for each in maps], type=kind)
