"""Columns of a record batch as Python values, a whole column at a time: a loop over rows costs three times more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, Final, TypeAlias

import pyarrow as pa

from sbclient.errors import InvalidOperationError
from sbclient.settings.durations import seconds_of
from sbclient_spark.variants import value_of

Values: TypeAlias = list[Any]
Convert: TypeAlias = Callable[[Any], Any]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_PER_SECOND: Final = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


def plain(column: pa.Array) -> Values:
    """A column's values; one that Python cannot hold, as a moment of the year 20000, comes as an error in its place."""
    try:
        values: Values = column.to_pylist()
    except (OverflowError, ValueError):
        values = [_one(column, place) for place in range(len(column))]
    return values


def _one(column: pa.Array, place: int) -> Any:
    try:
        return column[place].as_py()
    except (OverflowError, ValueError) as error:
        return InvalidOperationError(f"a value of type {column.type} cannot be read: {error}")


def first_error(names: Sequence[Any], values: Sequence[Any]) -> InvalidOperationError | None:
    """What is wrong with the first of these properties that came as an error, with its name; None if none did."""
    for name, value in zip(names, values, strict=True):
        for one in (name, value):
            if isinstance(one, InvalidOperationError):
                return InvalidOperationError(f"property {name!r}: {one}" if one is value else str(one))
    return None


def moments(column: pa.Array) -> tuple[Values, Convert]:
    """A timestamp column as whole ticks, and what makes a datetime of one.

    The ticks are taken as they are, since a moment that no datetime can hold must fail its own row only.
    """
    per_second = _PER_SECOND[column.type.unit]

    def moment(ticks: int) -> datetime:
        try:
            return _EPOCH + timedelta(microseconds=ticks * 1_000_000 // per_second)
        except OverflowError:
            raise InvalidOperationError(
                f"the moment {ticks} ticks of 1/{per_second} s after 1970 lies outside the years 1 to 9999"
            ) from None

    return column.cast(pa.int64()).to_pylist(), moment


def lives(column: pa.Array) -> tuple[Values, Convert]:
    """A column of spans: a day-time interval, whole seconds, or text as `PT1H`."""
    if pa.types.is_duration(column.type):
        per_second = _PER_SECOND[column.type.unit]
        return column.cast(pa.int64()).to_pylist(), lambda ticks: _span(microseconds=ticks * 1_000_000 // per_second)
    if pa.types.is_integer(column.type):
        return column.to_pylist(), lambda seconds: _span(seconds=seconds)
    return column.to_pylist(), lambda text: _span(seconds=seconds_of(text))


def _span(**spans: float) -> timedelta:
    try:
        return timedelta(**spans)
    except OverflowError:
        raise InvalidOperationError(
            "the time to live is longer than a time span can be: leave it null for no limit"
        ) from None


def properties(column: pa.Array) -> Values:
    """A column of properties as one dict for each row, None where there are none.

    The column is a map, or Kafka's array of structs with a key and a value. A key that stands twice in a row comes as a
    `DuplicateKeyError` in place of the dict, a value that Python cannot hold as an `InvalidOperationError`.
    """
    if pa.types.is_map(column.type):
        return _dicts(column, column.keys, column.items)
    entries = column.values
    return _dicts(column, entries.field(0), entries.field(1))


class DuplicateKeyError(InvalidOperationError):
    """A row names one property twice."""


def _dicts(column: pa.Array, keys: pa.Array, items: pa.Array) -> Values:
    """One dict for each row, cut out of the two long columns by the offsets."""
    offsets = column.offsets.to_pylist()
    start, length = offsets[0], offsets[-1] - offsets[0]
    names, values = plain(keys.slice(start, length)), plain(items.slice(start, length))
    if pa.types.is_struct(items.type):
        values = [_variant(value) for value in values]
    is_sound = InvalidOperationError not in {*map(type, names), *map(type, values)}  # asked once, for all rows
    return [
        _dict(names, values, low - start, high - start, is_sound) if high > low else None
        for low, high in pairwise(offsets)
    ]


def _variant(value: Any) -> Any:
    if value is None or isinstance(value, InvalidOperationError):
        return value
    try:
        return value_of(value)
    except InvalidOperationError as error:
        return error


def _dict(names: Values, values: Values, low: int, high: int, is_sound: bool) -> dict[str, Any] | InvalidOperationError:
    error = None if is_sound else first_error(names[low:high], values[low:high])
    if error is not None:
        return error
    found = dict(zip(names[low:high], values[low:high], strict=True))
    if len(found) < high - low:
        twice = next(name for name in found if names[low:high].count(name) > 1)
        return DuplicateKeyError(f"the property {twice!r} stands twice in one row: give it one value")
    return found
