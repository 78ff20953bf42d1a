"""Values of options as people write them: text in, a checked value out, or a sentence that says what it must be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from sbclient.errors import InvalidOperationError
from sbclient.settings.durations import seconds_of

Parser: TypeAlias = Callable[[str, str], Any]
"""Makes a value of an option's name and text, or raises `InvalidOperationError` naming both."""

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
