"""Maps columns to parts of a message, and rejects invalid schemas on the driver."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final, NamedTuple

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    CharType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    NumericType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
    VariantType,
)

from sbclient.errors import InvalidOperationError
from sbclient.formats.message_json import TEXTS
from sbclient_spark.options import Destination
from sbclient_spark.read.columns import READ_ONLY
from sbclient_spark.write.message_ids import MessageIdPlan, choose_plan
from sbclient_spark.write.options import WriteOptions

ATTRIBUTES: Final = {
    **{name: name for name in TEXTS},
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
        body_type: the column that says how a body is encoded; None = as data.
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
    body_type: int | None = None
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


_TEXT: Final = (StringType, CharType, VarcharType)
_WHOLE: Final = (LongType, IntegerType, ShortType, ByteType)
_SCALARS: Final = (*_TEXT, *_WHOLE, DoubleType, FloatType, BooleanType, TimestampType, TimestampNTZType)


class _Column(NamedTuple):
    """A column of the write schema. `is_allowed` checks its type, `allowed` describes the types."""

    is_allowed: Callable[[DataType], bool]
    allowed: str


def _of(types: tuple[type[DataType], ...], allowed: str) -> _Column:
    return _Column(lambda kind: isinstance(kind, types), allowed)


def _is_property_map(kind: DataType) -> bool:
    return (
        isinstance(kind, MapType)
        and isinstance(kind.keyType, _TEXT)
        and isinstance(kind.valueType, (*_SCALARS, VariantType))
    )


def _is_headers(kind: DataType) -> bool:
    """Whether the type is that of Kafka headers: an array of structs with a key and a value."""
    entry = kind.elementType if isinstance(kind, ArrayType) else None
    return (
        isinstance(entry, StructType)
        and [one.name.lower() for one in entry] == ["key", "value"]
        and isinstance(entry[0].dataType, _TEXT)
        and isinstance(entry[1].dataType, (*_TEXT, BinaryType))
    )


def _is_text_map(kind: DataType) -> bool:
    return isinstance(kind, MapType) and isinstance(kind.keyType, _TEXT) and isinstance(kind.valueType, _TEXT)


_PROPERTY_MAP: Final = _Column(_is_property_map, "map<string, string|long|double|boolean|timestamp|variant>")

COLUMNS: Final[dict[str, _Column]] = {
    "body": _of((*_TEXT, BinaryType), "binary or string"),
    "body_type": _of(_TEXT, "string"),
    "application_properties": _PROPERTY_MAP,
    "properties": _PROPERTY_MAP,
    "property_types": _Column(_is_text_map, "map<string, string>, the AMQP type of each property"),
    "headers": _Column(_is_headers, "array<struct<key: string, value: binary|string>>"),
    **dict.fromkeys(ATTRIBUTES, _of(_TEXT, "string")),
    "time_to_live": _of(
        (DayTimeIntervalType, *_WHOLE, *_TEXT), "day-time interval, whole seconds, or a string as 'PT1H'"
    ),
    "scheduled_enqueue_time": _of((TimestampType, TimestampNTZType), "timestamp"),
    "queue": _of(_TEXT, "string"),
    "topic": _of(_TEXT, "string"),
}
"""The reserved columns with their types."""

BROKER_PROPERTIES: Final = ("DeadLetterReason", "DeadLetterErrorDescription", "DeadLetterSource")
"""Application properties that the service adds; a write of rows that were read leaves them out."""

_JSON_TYPES: Final = (
    *_TEXT,
    BinaryType,
    BooleanType,
    NumericType,
    DateType,
    TimestampType,
    TimestampNTZType,
    DayTimeIntervalType,
    VariantType,
    NullType,
)
_JSON_KEYS: Final = (*_TEXT, *_WHOLE)

_PROPERTY_COLUMNS: Final = ("application_properties", "properties", "headers")

_KEY_TYPES: Final = (*_SCALARS, BinaryType, DateType, DecimalType)


def row_plan(schema: StructType, options: WriteOptions, *, is_streaming: bool) -> RowPlan:
    """Return the use of each column.

    Args:
        schema: of the rows that are written.
        is_streaming: whether Spark numbers the rows by query and micro-batch.

    Raises:
        InvalidOperationError: a column is missing, unknown or of the wrong type, or contradicts the options.
    """
    places = _places(schema)
    for name, column in COLUMNS.items():
        if name in places and not column.is_allowed(schema[places[name]].dataType):
            kind = schema[places[name]].dataType.simpleString()
            raise InvalidOperationError(f"column {name!r} is of type {kind}: it must be {column.allowed}; cast it")
    is_json = options.body_format == "json"
    left_out = set() if is_json else _read_only_names(schema, places)
    unknown = {name: place for name, place in places.items() if name not in COLUMNS and name not in left_out}
    for name in ("body", "body_type") if is_json else ():
        if name in places:
            raise InvalidOperationError(f"bodyFormat 'json' excludes a column {name}: drop the column, or use 'raw'")
    for place in unknown.values() if is_json else ():
        _check_json(schema[place].name, schema[place].dataType)
    if is_json and not unknown:
        raise InvalidOperationError("bodyFormat 'json' requires a column that is not reserved: add one")
    if not is_json and "body" not in places:
        raise InvalidOperationError(
            f"no column is named body (columns: {', '.join(schema.names) or 'none'}): rename one, or set bodyFormat "
            "'json' to send an object of all columns that are not reserved"
        )
    properties = [name for name in _PROPERTY_COLUMNS if name in places]
    extra: dict[str, int] = {}
    if not is_json:
        # A key column is not an unknown column, unless all unknown columns become properties.
        used = set() if options.unknown_columns == "property" else _key_names(options)
        unknown_left = {name: place for name, place in unknown.items() if name not in used}
        extra = _extra_properties(schema, unknown_left, options, properties)
    if len(properties) > 1:
        raise InvalidOperationError(f"columns {' and '.join(properties)} are the same thing: keep one of them")
    if "property_types" in places and (not properties or not _is_text_map(schema[places[properties[0]]].dataType)):
        raise InvalidOperationError(
            "a column property_types gives the types of texts: it requires a column application_properties of type "
            "map<string, string>; drop property_types, or give the properties as text"
        )
    destination, queue, topic = _destination(places, options)
    transaction = (options.txn_app_id, options.txn_version or 0) if options.txn_app_id is not None else None
    return RowPlan(
        ids=choose_plan(
            options.message_id_mode,
            has_column="message_id" in places,
            key_columns=options.message_id_columns,
            prefix=options.message_id_prefix,
            transaction=transaction,
            is_streaming=is_streaming,
        ),
        body=None if is_json else places["body"],
        body_type=places.get("body_type"),
        json_fields=tuple((schema[place].name, place) for place in unknown.values()) if is_json else (),
        attributes=tuple((attribute, places[name]) for name, attribute in ATTRIBUTES.items() if name in places),
        properties=places[properties[0]] if properties else None,
        property_types=places.get("property_types"),
        dropped_properties=BROKER_PROPERTIES if left_out else (),
        extra_properties=tuple((schema[place].name, place) for place in extra.values()),
        keys=tuple(_key_place(schema, places, name) for name in options.message_id_columns),
        destination=destination,
        queue=queue,
        topic=topic,
    )


def _check_json(name: str, kind: DataType) -> None:
    """Check that a JSON body can hold the values of a column."""
    if isinstance(kind, StructType):
        for field in kind:
            _check_json(f"{name}.{field.name}", field.dataType)
    elif isinstance(kind, ArrayType):
        _check_json(name, kind.elementType)
    elif isinstance(kind, MapType) and isinstance(kind.keyType, _JSON_KEYS):
        _check_json(name, kind.valueType)
    elif not isinstance(kind, _JSON_TYPES) and kind.typeName() != "time":
        raise InvalidOperationError(
            f"column {name!r} is of type {kind.simpleString()}, which a JSON body cannot hold: cast it, keys of maps "
            "to a string or a whole number, or drop it"
        )


def _places(schema: StructType) -> dict[str, int]:
    """Return the index of each column by its name in lower case, because Spark ignores case too."""
    places: dict[str, int] = {}
    for place, column in enumerate(schema):
        name = column.name.lower()
        if name in places:
            raise InvalidOperationError(f"two columns are named {name!r}: rename or drop one")
        places[name] = place
    return places


def _read_only_names(schema: StructType, places: dict[str, int]) -> set[str]:
    """Return the columns that a read has added, so that rows can be read and sent again.

    They must have the names and types of a read and include the sequence number. Otherwise a column such as `state`
    belongs to the application and must not be dropped silently.
    """
    found = {name for name, kind in READ_ONLY.items() if name in places and schema[places[name]].dataType == kind}
    return found if "sequence_number" in found else set()


def _key_names(options: WriteOptions) -> set[str]:
    return {name.lower() for name in options.message_id_columns}


def _key_place(schema: StructType, places: dict[str, int], name: str) -> int:
    place = places.get(name.lower())
    if place is None:
        raise InvalidOperationError(f"messageIdColumns names {name!r}, but the columns are {', '.join(schema.names)}")
    kind = schema[place].dataType
    if not isinstance(kind, _KEY_TYPES):
        raise InvalidOperationError(
            f"the key column {name!r} is of type {kind.simpleString()}, which has no canonical form: cast it"
        )
    return place


def _extra_properties(
    schema: StructType, unknown: dict[str, int], options: WriteOptions, properties: Iterable[str]
) -> dict[str, int]:
    """Return the unknown columns that become application properties."""
    if not unknown or options.unknown_columns == "ignore":
        return {}
    if options.unknown_columns == "property":
        if named := list(properties):
            raise InvalidOperationError(f"unknownColumns 'property' excludes a column {named[0]}: use one of them")
        for name, place in unknown.items():
            if not isinstance(schema[place].dataType, _SCALARS):
                kind = schema[place].dataType.simpleString()
                raise InvalidOperationError(
                    f"column {name!r} is of type {kind}, which is not a type of application properties: cast or drop it"
                )
        return unknown
    name = next(iter(unknown))
    near = get_close_matches(name, COLUMNS, n=1, cutoff=0.6)
    hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(COLUMNS)}."
    raise InvalidOperationError(
        f"column {name!r} is unknown: {hint} unknownColumns 'ignore' leaves it out, 'property' makes it an application "
        "property"
    )


def _destination(places: dict[str, int], options: WriteOptions) -> tuple[Destination | None, int | None, int | None]:
    """Return the destination; the options take precedence over the columns."""
    if options.entity_path is not None:
        return Destination(options.entity_path, options.entity or "queue"), None, None
    queue, topic = places.get("queue"), places.get("topic")
    if queue is None and topic is None:
        raise InvalidOperationError(
            "no destination is given: set the option queue or topic, or add a column queue or topic"
        )
    return None, queue, topic
