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
_BYTES: Final = {"": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30}


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
    raise InvalidOperationError(f"option {name} is {value!r}: it must be true or false")


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


def duration(least_s: float, most_s: float) -> Parser:
    """Seconds from `least_s` to `most_s`, both allowed."""

    def parse(name: str, value: str) -> float:
        seconds = span(name, value)
        if not least_s <= seconds <= most_s:
            raise InvalidOperationError(f"option {name} is {value!r}: it must be {least_s:g} to {most_s:g} seconds")
        return seconds

    return parse


def size(name: str, value: str) -> int:
    """Bytes, at least 1: `1048576`, `64 MiB`."""
    digits = value.strip().lower().rstrip("bgikm ")
    unit = value.strip().lower()[len(digits) :].strip()
    if digits.isdecimal() and unit in _BYTES and int(digits):
        return int(digits) * _BYTES[unit]
    raise InvalidOperationError(f"option {name} is {value!r}: write bytes, as 1048576, 512 KiB or 64 MiB")


def size_text(size_bytes: int) -> str:
    """Return a size as `size` reads it: `64 MiB`."""
    for unit, length in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size_bytes >= length and size_bytes % length == 0:
            return f"{size_bytes // length} {unit}"
    return f"{size_bytes}"


def numbers(name: str, value: str) -> tuple[int, ...]:
    """Whole numbers with commas between them, each once, in order."""
    parts = [part.strip() for part in value.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise InvalidOperationError(f"option {name} is {value!r}: write numbers with commas between them, as 0,3")
    return tuple(sorted({int(part) for part in parts}))


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
