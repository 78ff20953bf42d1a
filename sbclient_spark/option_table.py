"""Reads the options of a data source by a table: every value is checked by name, an unknown name is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any, Final, TypeAlias

from sbclient.errors import InvalidOperationError
from sbclient_spark.spans import seconds_of

Parser: TypeAlias = Callable[[str, str], Any]
"""Makes a value of an option's name and text, or raises `InvalidOperationError` naming both."""

SPARKS_OWN: Final = ("checkpointlocation", "queryname")
"""Options of a streaming query itself, which Spark hands to its sink along with the sink's own."""

_TRUE: Final = ("true", "1", "yes", "on")
_FALSE: Final = ("false", "0", "no", "off")


def text(name: str, value: str) -> str:
    """Any text but an empty one."""
    if not value.strip():
        raise InvalidOperationError(f"option {name} is empty: give it a value or leave it out")
    return value.strip()


def flag(name: str, value: str) -> bool:
    """true or false."""
    if value.lower() in _TRUE:
        return True
    if value.lower() in _FALSE:
        return False
    raise InvalidOperationError(f"option {name} is {value!r}: true or false")


def names(name: str, value: str) -> tuple[str, ...]:
    """Names with commas between them, at least one."""
    found = tuple(part.strip() for part in value.split(",") if part.strip())
    if not found:
        raise InvalidOperationError(f"option {name} is {value!r}: give at least one name, with commas between several")
    return found


def span(name: str, value: str) -> float:
    """Seconds."""
    try:
        return seconds_of(value)
    except InvalidOperationError as error:
        raise InvalidOperationError(f"option {name}: {error}") from None


def whole(least: int, most: int | None = None) -> Parser:
    """A whole number from `least` to `most`, both allowed; None = no end."""
    allowed = f"a whole number of at least {least}" if most is None else f"a whole number from {least} to {most}"

    def parse(name: str, value: str) -> int:
        try:
            number = int(value)
        except ValueError:
            number = least - 1
        if number < least or (most is not None and number > most):
            raise InvalidOperationError(f"option {name} is {value!r}: it must be {allowed}")
        return number

    return parse


def rate(name: str, value: str) -> float:
    """A number above 0, of messages or bytes in a second."""
    try:
        number = float(value)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise InvalidOperationError(
            f"option {name} is {value!r}: it must be a number above 0; leave it out for no limit"
        )
    return number


def choice(*allowed: str) -> Parser:
    """One of the words, whatever the case of its letters."""

    def parse(name: str, value: str) -> str:
        for word in allowed:
            if value.strip().lower() == word.lower():
                return word
        raise InvalidOperationError(f"option {name} is {value!r}: it must be one of {', '.join(allowed)}")

    return parse


def read_options(
    options: Mapping[str, str], table: Mapping[str, Parser], *, prefix: str | None = None, what: str
) -> dict[str, Any]:
    """The parsed value of every option that is given, by the name the table knows it by.

    Spark hands over the keys in lower case, so case never distinguishes two options.

    Args:
        options: as Spark hands them over.
        table: every option that there is.
        prefix: options that begin so are handed on as they are, under their lower-case names.
        what: "writing" or "reading", for the error.

    Raises:
        InvalidOperationError: a value cannot be used, or nothing is known by that name; the nearest name is said.
            Values are never repeated where the name is unknown: somebody may have put a secret there.
    """
    known = {name.lower(): name for name in table}
    found: dict[str, Any] = {}
    for key, value in options.items():
        lowered = key.lower()
        name = known.get(lowered)
        if lowered in SPARKS_OWN:
            continue
        if name is not None:
            found[name] = table[name](name, str(value))
        elif prefix is not None and lowered.startswith(prefix):
            found[lowered] = str(value)
        else:
            near = get_close_matches(lowered, known, n=1, cutoff=0.5)
            hint = f"did you mean {known[near[0]]}?" if near else f"known are {', '.join(table)}"
            raise InvalidOperationError(f"there is no option {key!r} for {what} servicebus: {hint}")
    return found
