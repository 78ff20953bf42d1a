"""Converts column values to JSON, for bodies made of columns and for files of bad rows.

Like Spark's `to_json`, it leaves null fields out, writes NaN and infinity as text, and timestamps in ISO 8601, here
always in UTC, and those of type `timestamp_ntz` without a zone. Decimals of at most 15 digits are numbers, which every
reader reads exactly; larger ones are text. Binary values are base64. A variant is written as its value.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final, TypeAlias
from uuid import UUID

import pyarrow as pa

from sbclient.amqp.value_texts import float_json, shortest_single
from sbclient_spark.write.variants import is_variant, value_of

Convert: TypeAlias = Callable[[Any], Any]

EXACT_DIGITS: Final = 15
"""A decimal with at most this many digits is exact as a 64-bit float."""


def json_text(record: dict[str, Any]) -> str:
    """Return a record as one line of JSON, without null fields."""
    present = {name: value for name, value in record.items() if value is not None}
    return json.dumps(present, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def converter(kind: pa.DataType) -> Convert | None:
    """Return the function that converts values of a type to JSON; None if they need no conversion."""
    if pa.types.is_timestamp(kind):
        return _timestamp
    if pa.types.is_date(kind):
        return date.isoformat
    if pa.types.is_time(kind):
        return time.isoformat
    if pa.types.is_duration(kind):
        return timedelta.total_seconds
    if pa.types.is_decimal(kind):
        return float if kind.precision <= EXACT_DIGITS else str
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return _base64
    if pa.types.is_float32(kind):
        return shortest_single
    if pa.types.is_floating(kind):
        return float_json
    if is_variant(kind):
        return lambda value: _variant_json(value_of(value))
    if pa.types.is_struct(kind):
        inside = {kind.field(index).name: _of(kind.field(index).type) for index in range(kind.num_fields)}
        return lambda value: {name: convert(value[name]) for name, convert in inside.items() if value[name] is not None}
    if pa.types.is_map(kind):
        convert_item = _of(kind.item_type)
        return lambda value: {str(name): convert_item(item) for name, item in value}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        convert_part = _of(kind.value_type)
        return lambda value: [convert_part(part) for part in value]
    return None


def _of(kind: pa.DataType) -> Convert:
    convert = converter(kind)
    if convert is None:
        return lambda value: value
    return lambda value: None if value is None else convert(value)


def _variant_json(value: Any) -> Any:
    """Convert the value of a variant by the rules of columns; nulls inside are kept."""
    if isinstance(value, dict):
        return {name: _variant_json(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_variant_json(part) for part in value]
    convert = next((convert for kind, convert in _CONVERSIONS if isinstance(value, kind)), None)
    return value if convert is None else convert(value)


def _decimal(value: Decimal) -> float | str:
    return float(value) if len(value.as_tuple().digits) <= EXACT_DIGITS else str(value)


def _base64(value: bytes) -> str:
    return b64encode(value).decode()


def _timestamp(value: datetime) -> str:
    if value.tzinfo is None:  # a `timestamp_ntz`, which has no zone
        return value.isoformat()
    return value.astimezone(UTC).isoformat().replace("+00:00", "Z")


_CONVERSIONS: Final[tuple[tuple[type, Convert], ...]] = (
    (datetime, _timestamp),  # before `date`, its base class
    (date, date.isoformat),
    (time, time.isoformat),
    (timedelta, timedelta.total_seconds),
    (Decimal, _decimal),
    (bytes, _base64),
    (float, float_json),
    (UUID, str),
)
"""Conversions of the types in a variant; text, integers and booleans need none."""
