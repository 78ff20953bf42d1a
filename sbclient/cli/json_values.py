"""Values that `json` does not know, in the JSON that commands print."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from sbclient.entities import NEVER
from sbclient.formats.message_json import duration_text, timestamp_text


def plain(value: Any) -> Any:
    """The JSON form of a value: a string, an object, or null for "never" and "no limit".

    Raises:
        TypeError: the type has no form in JSON.
    """
    if isinstance(value, datetime):
        return None if value == NEVER else timestamp_text(value)
    if isinstance(value, timedelta):
        return duration_text(value)
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, UUID | Decimal):
        return str(value)
    raise TypeError(f"a {type(value).__name__} has no form in JSON")
