"""Converts the rows of a record batch to messages, or to errors with a reason."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, Final

import pyarrow as pa

from sbclient.errors import InvalidOperationError
from sbclient.message import ServiceBusMessage
from sbclient.rules.entity_path import check_entity_path
from sbclient.rules.partition_key import check_keys
from sbclient.rules.ping import check_not_ping
from sbclient_spark.options import Destination, EntityWord
from sbclient_spark.property_types import typed
from sbclient_spark.write import columns
from sbclient_spark.write.columns import Convert, Values
from sbclient_spark.write.json_values import converter, json_text
from sbclient_spark.write.message_ids import MessageIdPlan, MessageIds

ATTRIBUTES: Final = {
    "message_id": "message_id",
    "session_id": "session_id",
    "partition_key": "partition_key",
    "correlation_id": "correlation_id",
    "subject": "subject",
    "content_type": "content_type",
    "reply_to": "reply_to",
    "reply_to_session_id": "reply_to_session_id",
    "to": "to",
    "time_to_live": "time_to_live",
    "scheduled_enqueue_time": "scheduled_enqueue_time_utc",
}
"""Columns that set an attribute of the message, and the name of the attribute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPlan:
    """The use of each column, by its index in the schema; the driver makes it.

    Attributes:
        ids: how message ids are made.
        body: the column of the body; None = the body is JSON made of `json_fields`.
        json_fields: names and columns of a JSON body.
        attributes: names of `ServiceBusMessage` attributes, and their columns.
        properties: the column of the application properties.
        property_types: the column of their AMQP types.
        extra_properties: names of further properties, and their columns.
        dropped_properties: names of properties that are left out.
        keys: the key columns of a message id.
        destination: of all rows; None = named by the columns `queue` and `topic`.
        queue, topic: the columns that name the destination of a row.
    """

    ids: MessageIdPlan
    body: int | None
    json_fields: tuple[tuple[str, int], ...] = ()
    attributes: tuple[tuple[str, int], ...] = ()
    properties: int | None = None
    property_types: int | None = None
    extra_properties: tuple[tuple[str, int], ...] = ()
    dropped_properties: tuple[str, ...] = ()
    keys: tuple[int, ...] = ()
    destination: Destination | None = None
    queue: int | None = None
    topic: int | None = None


@dataclass(slots=True)
class Row:
    """A valid row. `position` counts the rows of its partition from 0."""

    position: int
    destination: Destination
    message: ServiceBusMessage


@dataclass(slots=True)
class BadRow:
    """An invalid row.

    Attributes:
        position: counts the rows of its partition from 0.
        reason: of the error.
        record: the columns as values for JSON.
    """

    position: int
    reason: str
    record: dict[str, Any] = field(repr=False)


class RowReader:
    """Converts the record batches of a task to messages.

    Args:
        plan: the use of each column.
        ids: makes the message ids.
    """

    def __init__(self, plan: RowPlan, ids: MessageIds) -> None:
        self._plan = plan
        self._ids = ids
        self._has_id_column = plan.ids.mode == "column"
        names = {name for name, _ in plan.attributes}
        self._may_differ = {"session_id", "partition_key"} <= names
        self._may_be_ping = "content_type" in names
        self._destinations: dict[tuple[Any, Any], Destination] = {}

    def read(self, batch: pa.RecordBatch, first_position: int) -> Iterator[Row | BadRow]:
        """Yield the rows of a batch in order.

        Args:
            first_position: the position of the first row in its partition.
        """
        names, attributes, converts = self._attributes(batch)
        to_convert = [(names[place], place, convert) for place, convert in enumerate(converts) if convert is not None]
        columns_of_rows = zip(
            self.bodies(batch), attributes, self.properties(batch), self.keys(batch), self.places(batch), strict=True
        )
        for offset, (body, values, properties, keys, places) in enumerate(columns_of_rows):
            position = first_position + offset
            try:
                given = dict(zip(names, values, strict=True))
                for value in values:
                    if isinstance(value, InvalidOperationError):
                        raise value
                for name, place, convert in to_convert:
                    if values[place] is not None:
                        given[name] = convert(values[place])
                yield self._row(position, body, given, properties, keys, places)
            except (InvalidOperationError, TypeError) as error:
                yield BadRow(position, str(error), record_of(batch, offset))

    def _row(
        self,
        position: int,
        body: Any,
        given: dict[str, Any],
        properties: Any,
        keys: tuple[Any, ...],
        places: tuple[Any, ...],
    ) -> Row:
        if isinstance(body, InvalidOperationError):
            raise body
        if body is None:
            raise InvalidOperationError("the body is null: give it a value, which may be empty")
        if isinstance(properties, InvalidOperationError):
            raise properties
        for key in keys:
            if isinstance(key, InvalidOperationError):
                raise key
        if self._has_id_column and not given["message_id"]:
            # Duplicate detection would keep only one of the rows with an empty id.
            found = "null" if given["message_id"] is None else "empty"
            raise InvalidOperationError(f"message_id is {found}: give each row an id")
        destination = self._plan.destination or self.destination(places)
        message = ServiceBusMessage(body, application_properties=properties, **given)
        if self._may_differ:
            check_keys(message)
        if self._may_be_ping:
            check_not_ping(message)
        message.message_id = self._ids.of(message, position, keys, destination.path)
        return Row(position, destination, message)

    def _attributes(self, batch: pa.RecordBatch) -> tuple[list[str], Iterator[tuple[Any, ...]], list[Convert | None]]:
        names: list[str] = []
        found: list[Values] = []
        converts: list[Convert | None] = []
        for name, place in self._plan.attributes:
            column, convert = batch.column(place), None
            if name == "scheduled_enqueue_time_utc":
                values, convert = columns.timestamps(column)
            elif name == "time_to_live":
                values, convert = columns.durations(column)
            else:
                values = columns.plain(column)
            names.append(name)
            found.append(values)
            converts.append(convert)
        return names, _across(found, batch.num_rows), converts

    def keys(self, batch: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
        """Return the key columns of a message id, by rows."""
        return self._plain(batch, self._plan.keys)

    def places(self, batch: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
        """Return the columns that name the destination, by rows."""
        return self._plain(batch, [place for place in (self._plan.queue, self._plan.topic) if place is not None])

    def bodies(self, batch: pa.RecordBatch) -> Iterator[Any]:
        """Return the body of each row, or an error in its place."""
        if self._plan.body is not None:
            return iter(columns.plain(batch.column(self._plan.body)))
        names = [name for name, _ in self._plan.json_fields]
        converts = [converter(batch.column(place).type) for _, place in self._plan.json_fields]
        rows = self._plain(batch, [place for _, place in self._plan.json_fields])
        return (_json_body(names, converts, values) for values in rows)

    def properties(self, batch: pa.RecordBatch) -> Iterator[Any]:
        """Return the application properties of each row as a dict or None, or an error in its place."""
        if self._plan.properties is not None:
            found = map(self._kept, columns.properties(batch.column(self._plan.properties)))
            if self._plan.property_types is None:
                return found
            return map(_typed, found, columns.properties(batch.column(self._plan.property_types)))
        if not self._plan.extra_properties:
            return repeat(None, batch.num_rows)
        names = [name for name, _ in self._plan.extra_properties]
        values_by_column = [columns.property_values(batch.column(place)) for _, place in self._plan.extra_properties]
        return (_extra_properties(names, values) for values in _across(values_by_column, batch.num_rows))

    def _kept(self, properties: Any) -> Any:
        if self._plan.dropped_properties and isinstance(properties, dict):
            return {name: value for name, value in properties.items() if name not in self._plan.dropped_properties}
        return properties

    @staticmethod
    def _plain(batch: pa.RecordBatch, places: Any) -> Iterator[tuple[Any, ...]]:
        return _across([columns.plain(batch.column(place)) for place in places], batch.num_rows)

    def destination(self, places: tuple[Any, ...]) -> Destination:
        """Return the destination that a row names; each text is checked once.

        Raises:
            InvalidOperationError: the row names no destination, two of them, or an illegal one.
        """
        known = self._destinations.get(places)
        if known is not None:
            return known
        words: list[EntityWord] = []
        if self._plan.queue is not None:
            words.append("queue")
        if self._plan.topic is not None:
            words.append("topic")
        named = [(word, path) for word, path in zip(words, places, strict=True) if path is not None]
        if len(named) != 1:
            given = " and ".join(f"{word} {path!r}" for word, path in named) or "neither"
            raise InvalidOperationError(f"the row names {given}: give a value to exactly one of {' and '.join(words)}")
        word, path = named[0]
        found = Destination(check_entity_path(path, word), word)
        self._destinations[places] = found
        return found


def _across(found: list[Values], count: int) -> Iterator[tuple[Any, ...]]:
    """Yield columns as rows; without columns, `count` empty rows."""
    return zip(*found, strict=True) if found else repeat((), count)


def _typed(properties: Any, types: Any) -> Any:
    """Return properties with their types, or an error in their place."""
    for found in (properties, types):
        if isinstance(found, InvalidOperationError):
            return found
    try:
        return typed(properties, types) if properties and types else properties
    except InvalidOperationError as error:
        return error


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
                if isinstance(value, InvalidOperationError):
                    raise value
                record[name] = value if convert is None else convert(value)
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
            if isinstance(value, InvalidOperationError):
                raise value
            record[name] = value if value is None or convert is None else convert(value)
        except InvalidOperationError:
            record[name] = str(value)
    return record
