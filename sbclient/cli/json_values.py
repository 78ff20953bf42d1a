"""Python values in the JSON that commands print and read: moments and spans in ISO 8601, properties with their types.

Most values are what they are in JSON. An application property of a type that JSON lacks is an object with one member,
which names the type: `{"datetime": "2030-01-01T00:00:00Z"}`, `{"uuid": …}`, `{"decimal": "1.50"}`, `{"base64": …}`, and
`{"float": "NaN"}` for the three floats that are no JSON numbers.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from enum import Enum
from typing import Any, Final
from uuid import UUID

from sbclient.emulator.management.atom_values import NO_LIMIT, read_moment, write_span
from sbclient.entities import NEVER, UNLIMITED
from sbclient.errors import InvalidOperationError
from sbclient.message import PropertyValue
from sbclient.settings.durations import seconds_of

_NO_LIMIT: Final = ("none", "never", "unlimited")


def plain(value: Any) -> Any:
    """What stands for a value that `json` does not know: a string, an object, or null for "never" and "no limit".

    Raises:
        TypeError: nothing does.
    """
    if isinstance(value, datetime):
        return None if value == NEVER else moment_text(value)
    if isinstance(value, timedelta):
        return None if (text := write_span(value)) == NO_LIMIT else text
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, UUID | Decimal):
        return str(value)
    raise TypeError(f"a {type(value).__name__} has no form in JSON")


def moment_text(moment: datetime) -> str:
    """`2030-01-01T00:00:00.5Z`, in UTC."""
    text = moment.astimezone(UTC).isoformat().removesuffix("+00:00")
    return (text.rstrip("0") if "." in text else text) + "Z"


def span_of(text: str) -> timedelta:
    """A span as people write it: `30s`, `5m`, `2h`, `7d`, `PT30S`, or `unlimited`.

    Raises:
        InvalidOperationError: it is none of these.
    """
    if text.strip().lower() in _NO_LIMIT:
        return UNLIMITED
    try:
        span = timedelta(seconds=seconds_of(text))
    except OverflowError:
        return UNLIMITED
    return UNLIMITED if write_span(span) == NO_LIMIT else span


def moment_of(text: str) -> datetime:
    """A moment in ISO 8601; one that says no zone is in UTC.

    Raises:
        InvalidOperationError: it is none.
    """
    return read_moment(text)


def property_json(value: PropertyValue) -> Any:
    """An application property, so that `property_of` gives back the same value of the same type."""
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    for name, (kind, write, _) in _TYPES.items():
        if isinstance(value, kind) and name != "float":
            return {name: write(value)}
    return value


def property_of(value: Any) -> PropertyValue:
    """The application property that a JSON value stands for.

    Raises:
        InvalidOperationError: it stands for none.
    """
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, dict) and len(value) == 1:
        (name, text), *_ = value.items()
        if name in _TYPES and isinstance(text, str):
            try:
                read: PropertyValue = _TYPES[name][2](text)
            except (ValueError, InvalidOperation) as error:
                raise InvalidOperationError(f"{text[:64]!r} is no {name}") from error
            return read
    raise InvalidOperationError(
        "a property is a string, a number, true, false, null, or an object with one of the members "
        + ", ".join(_TYPES)
        + " and a text in it"
    )


_TYPES: Final[dict[str, tuple[type, Callable[[Any], str], Callable[[str], Any]]]] = {
    "datetime": (datetime, moment_text, read_moment),
    "uuid": (UUID, str, UUID),
    "decimal": (Decimal, str, Decimal),
    "base64": (
        bytes,
        lambda value: base64.b64encode(value).decode(),
        lambda text: base64.b64decode(text, validate=True),
    ),
    "float": (float, str, float),
}
