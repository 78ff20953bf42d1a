"""Functions that read the values of a configuration by type.

Each one raises `ConfigError` for a value of another type, with the place of the value and the expected type.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from enum import StrEnum
from typing import Any, TypeVar

from sbclient.emulator.config.located_json import Located
from sbclient.entities import EntityKind
from sbclient.errors import InvalidOperationError
from sbclient.formats.iso8601 import read_duration
from sbclient.rules.entity_path import check_entity_path

Choice = TypeVar("Choice", bound=StrEnum)


def fields_of(place: Located, *names: str) -> dict[str, Located]:
    """The fields of an object, by lower-case name."""
    if not isinstance(place.value, dict):
        raise place.error(f"is {shown(place)}: an object with {', '.join(names)} is expected")
    allowed = {name.casefold() for name in names}
    found: dict[str, Located] = {}
    for name, each in place.value.items():
        if name.casefold() not in allowed:
            raise each.error(f"is unknown: {place.path} may have {', '.join(names)}")
        if name.casefold() in found:
            raise each.error(f"is given twice, also in line {found[name.casefold()].line}: keep one")
        if each.value is not None:
            found[name.casefold()] = each
    return found


def entries_of(place: Located | None) -> list[Located]:
    """The entries of an array; none if there is no array."""
    if place is None:
        return []
    if not isinstance(place.value, list):
        raise place.error(f"is {shown(place)}: an array is expected")
    return place.value


def required(place: Located, fields: Mapping[str, Located], name: str) -> Located:
    """The field with a name, which is required."""
    if name.casefold() not in fields:
        raise place.error(f"has no {name}: give one")
    return fields[name.casefold()]


def shown(place: Located) -> str:
    """A value for an error text; only its type if it may be a key in a wrong place."""
    if ".authorizationrules" in place.path.casefold():
        return f"a {type(place.value).__name__}"
    if isinstance(place.value, dict | list):
        return "an object" if isinstance(place.value, dict) else "an array"
    return repr(place.value)[:80]


def text_of(place: Located) -> str:
    """A string."""
    if not isinstance(place.value, str):
        raise place.error(f"is {shown(place)}: a string is expected")
    return place.value


def key_of(place: Located) -> str:
    """A key; no error shows it."""
    if not isinstance(place.value, str) or not place.value:
        raise place.error("is not a key: a non-empty string is expected")
    return place.value


def name_of(place: Located, kind: EntityKind) -> str:
    """A valid name for an entity of a kind."""
    name = text_of(place)
    try:
        return check_entity_path(name, kind)
    except InvalidOperationError as error:
        raise place.error(f"is not allowed: {error.message}") from error


def scalar_of(place: Located) -> Any:
    """A string, a number or a flag."""
    if not isinstance(place.value, str | int | float | bool):
        raise place.error(f"is {shown(place)}: a string, a number, true or false is expected")
    return place.value


def flag_of(place: Located) -> bool:
    """True or false."""
    if not isinstance(place.value, bool):
        raise place.error(f"is {shown(place)}: true or false is expected")
    return place.value


def whole_of(place: Located, least: int = -(2**31), most: int = 2**31 - 1) -> int:
    """A whole number in a range."""
    is_whole = isinstance(place.value, int) and not isinstance(place.value, bool)
    if not is_whole or not least <= place.value <= most:
        raise place.error(f"is {shown(place)}: a whole number from {least} to {most} is expected")
    return int(place.value)


def duration_of(place: Located) -> timedelta:
    """A duration in ISO 8601."""
    text = text_of(place)
    try:
        return read_duration(text)
    except InvalidOperationError as error:
        raise place.error(f"is not allowed: {error.message}") from error


def choice_of(place: Located, choices: type[Choice]) -> Choice:
    """A member of an enumeration, case-insensitive."""
    for choice in choices:
        if isinstance(place.value, str) and place.value.casefold() == choice.casefold():
            return choice
    raise place.error(f"is {shown(place)}: expected is one of {', '.join(choices)}")


def destination_of(place: Located) -> str | None:
    """The path of a forwarding destination; None for an empty one."""
    return text_of(place).strip("/") or None
