"""Encode the descriptions of entities and rules as AMQP values, and decode them."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, Final

from sbclient import entities
from sbclient.amqp.decode import decode_value
from sbclient.amqp.encode import encode_value
from sbclient.amqp.types import EPOCH, Described, Long, TimeSpan
from sbclient.broker.sql.values import PreciseTime

_MICROSECOND: Final = timedelta(microseconds=1)
_NUMBERS: Final = {"long": Long, "ticks": TimeSpan.of_ticks}
_CLASSES: Final[dict[str, type[Any]]] = {
    name: each
    for name, each in vars(entities).items()
    if isinstance(each, type) and (is_dataclass(each) or issubclass(each, Enum))
}
"""The classes of descriptions, by the names with which their values are stored."""


def encode_description(description: entities.EntityProperties) -> bytes:
    """
    Raises:
        EncodeError: a value has no AMQP type.
    """
    return encode_value(_described(description))


def decode_description(raw: bytes) -> Any:
    """
    Raises:
        WireError, LookupError, TypeError, ValueError: the bytes are no description that this release knows.
    """
    return _restored(decode_value(raw))


def _described(value: Any) -> Any:
    """A description as AMQP values: classes become descriptors."""
    if isinstance(value, Enum):
        return Described(type(value).__name__, value.value)
    if is_dataclass(value):
        stated = {each.name: _described(getattr(value, each.name)) for each in fields(value)}
        return Described(type(value).__name__, {name: each for name, each in stated.items() if each is not None})
    if isinstance(value, Long):
        return Described("long", int(value))
    if isinstance(value, TimeSpan):
        return Described("ticks", value.ticks)
    if isinstance(value, timedelta):
        return Described("timedelta", [value.days, value.seconds, value.microseconds])
    if isinstance(value, datetime):
        aware = value.replace(tzinfo=UTC) if value.tzinfo is None else value
        since = (aware - EPOCH) // _MICROSECOND
        return (
            Described("precise", [since, value.tick])
            if isinstance(value, PreciseTime)
            else Described("datetime", since)
        )
    if isinstance(value, dict):
        return {name: _described(each) for name, each in value.items()}
    return [_described(each) for each in value] if isinstance(value, list) else value


def _restored(value: Any) -> Any:
    """The description that `_described` has encoded."""
    if isinstance(value, Described):
        name, content = value
        if name == "timedelta":
            return timedelta(*content)
        if name == "datetime":
            return EPOCH + content * _MICROSECOND
        if name == "precise":
            time = PreciseTime.fromtimestamp(0, UTC) + content[0] * _MICROSECOND
            time.tick = content[1]
            return time
        if name in _NUMBERS:
            return _NUMBERS[name](content)
        described = _CLASSES[name]
        return described(**_restored(content)) if isinstance(content, dict) else described(content)
    if isinstance(value, dict):
        return {name: _restored(each) for name, each in value.items()}
    return [_restored(each) for each in value] if isinstance(value, list) else value
