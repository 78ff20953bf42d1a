"""Kinds of values: the texts and the Python values that an option accepts, and how a value is described and shown."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import NoneType, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin

from sbclient.arguments.kinds import INT64, MAX_SECONDS, shown_text
from sbclient.errors import InvalidOperationError
from sbclient.settings.durations import duration_text, seconds_of


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:g}"
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueKind:
    """A kind of value.

    Attributes:
        word: describes the kind in the documentation.
        metavar: for the help; empty for a flag.
        read: returns the value of a text, or raises `ValueError` or `InvalidOperationError`.
        allows: whether a value is allowed, which may be of any type.
        advice: what a text must be, for errors.
        advice_in_code: what a Python value must be; empty = the same.
        in_file: the types that the value may have in a TOML file.
        unit: of the value, unless the setting has another one; empty = none.
        show: returns the text of a value, as `read` accepts it.
    """

    word: str
    metavar: str
    read: Callable[[str], Any]
    allows: Callable[[Any], bool]
    advice: str
    advice_in_code: str = ""
    in_file: tuple[type, ...] = (str,)
    unit: str = ""
    show: Callable[[Any], str] = _shown

    def parse(self, name: str, text: str) -> Any:
        """Return the value of a text.

        Raises:
            InvalidOperationError: it is not allowed. The error has the name and the text.
        """
        if "\0" in text or not _is_encodable(text, is_path=self.metavar == PATH.metavar):
            # The text is not shown: it may be a secret.
            raise InvalidOperationError(f"option {name} contains a NUL, or half of a surrogate pair: remove it")
        try:
            value = self.read(text.strip())
        except (ValueError, OverflowError, InvalidOperationError):
            value = None
        if value is None or not self.allows(value):
            raise InvalidOperationError(f"option {name} is {shown_text(text)}: {self.advice}")
        return value

    def check(self, name: str, value: Any, *, or_none: bool = False) -> None:
        """Check a value that a program gives.

        Raises:
            InvalidOperationError: it is not allowed. The error has the name and the value.
        """
        if not (self.allows(value) or (or_none and value is None)):
            shown = str(value) if isinstance(value, timedelta) else repr(value)
            advice = (self.advice_in_code or self.advice) + (", or None" if or_none else "")
            raise InvalidOperationError(f"{name} is {shown}: {advice}")


def _is_encodable(text: str, *, is_path: bool) -> bool:
    """Return whether a text can be sent, or for a path whether a file can have that name."""
    try:
        text.encode(errors="surrogateescape" if is_path else "strict")
    except UnicodeEncodeError:
        return False
    return True


def is_number(value: object) -> bool:
    """Return whether a value is an int or a float, and not a bool."""
    return isinstance(value, int | float) and not isinstance(value, bool)


_TRUE: Final = ("true", "1", "yes", "on")
_FALSE: Final = ("false", "0", "no", "off")


def _flag(text: str) -> bool:
    if text.lower() not in _TRUE + _FALSE:
        raise ValueError
    return text.lower() in _TRUE


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _are_names(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str) and len(value) > 0 and all(map(_is_text, value))


_BYTES: Final = {"": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30}


def _int64(text: str) -> int:
    number = int(text)
    if number not in INT64:
        raise ValueError
    return number


def _size(text: str) -> int:
    digits = text.lower().rstrip("bgikm ")
    return _int64(digits) * _BYTES.get(text.lower()[len(digits) :].strip(), 0) if digits.isdecimal() else 0


def _size_text(size_bytes: int) -> str:
    for unit, length in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size_bytes >= length and size_bytes % length == 0:
            return f"{size_bytes // length} {unit}"
    return f"{size_bytes}"


def _numbers(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise ValueError
    return tuple(sorted({_int64(part) for part in parts}))


def whole(least: int, most: int | None = None) -> ValueKind:
    """Return the kind of whole numbers from `least` to `most`; None = no upper limit."""
    range_text = f"of at least {least}, and of 64 bits" if most is None else f"from {least} to {most}"
    return ValueKind(
        word=f"whole number from {least}" + ("" if most is None else f" to {most:,}"),
        metavar="N",
        read=_int64,
        allows=lambda value: (
            isinstance(value, int) and is_number(value) and least <= value and (most is None or value <= most)
        ),
        advice=f"it must be a whole number {range_text}",
        in_file=(int,),
    )


def _range(least_s: float, most_s: float) -> str:
    return f"from {duration_text(least_s)}" + ("" if most_s == math.inf else f" to {duration_text(most_s)}")


def _seconds(text: str) -> float:
    """Return the seconds of a duration that timers can wait."""
    seconds = seconds_of(text)
    if seconds > _LONGEST_S:
        raise ValueError
    return seconds


_LONGEST_S: Final = MAX_SECONDS // 86_400 * 86_400
_EXAMPLES: Final = "such as 90, '90 s', '10 minutes' or 'PT1H30M'"


def duration(least_s: float = 0.0, most_s: float = math.inf) -> ValueKind:
    """Return the kind of durations in seconds within a range."""
    return ValueKind(
        word=f"duration {_range(least_s, most_s)}",
        metavar="DURATION",
        read=_seconds,
        allows=lambda value: is_number(value) and least_s <= value <= most_s,
        advice=f"it must be a duration {_range(least_s, min(most_s, _LONGEST_S))}, {_EXAMPLES}",
        advice_in_code=f"it must be a number of seconds {_range(least_s, most_s)}",
        in_file=(int, float, str),
        unit="seconds",
        show=duration_text,
    )


def timespan(least: timedelta, most: timedelta) -> ValueKind:
    """Return the kind of durations within a range that are a `timedelta` in a program."""
    text = _range(least.total_seconds(), most.total_seconds())
    return ValueKind(
        word=f"duration {text}",
        metavar="DURATION",
        read=lambda text: timedelta(seconds=seconds_of(text)),
        allows=lambda value: isinstance(value, timedelta) and least <= value <= most,
        advice=f"it must be a duration {text}, {_EXAMPLES}",
        advice_in_code=f"it must be a timedelta {text}, such as timedelta(seconds={most.total_seconds():g})",
        in_file=(int, float, str),
        unit="seconds",
        show=lambda value: duration_text(value.total_seconds()),
    )


def choice(*words: str) -> ValueKind:
    """Return the kind of one of some words, which a text may write in any case."""
    by_lower = {word.lower(): word for word in words}
    return ValueKind(
        word=" or ".join(words),
        metavar="|".join(words),
        read=lambda text: by_lower.get(text.lower()),
        allows=lambda value: value in words,
        advice=f"it must be one of {', '.join(words)}",
    )


TEXT: Final = ValueKind(
    word="text", metavar="TEXT", read=str, allows=_is_text, advice="give a text that is not empty, or leave it out"
)
PATH: Final = ValueKind(word="path", metavar="PATH", read=str, allows=_is_text, advice=TEXT.advice)
NAMES: Final = ValueKind(
    word="names",
    metavar="NAME,NAME",
    read=_names,
    allows=_are_names,
    advice="give at least one name, with commas between several",
    advice_in_code="give a list of at least one name",
    in_file=(str, list),
)
FLAG: Final = ValueKind(
    word="true or false",
    metavar="",
    read=_flag,
    allows=lambda value: isinstance(value, bool),
    advice="it must be true or false",
    in_file=(bool,),
)
RATE: Final = ValueKind(
    word="number",
    metavar="NUMBER",
    read=float,
    allows=lambda value: is_number(value) and 0 < value < math.inf,
    advice="it must be a number above 0; leave it out for no limit",
    advice_in_code="it must be a number above 0",
    in_file=(int, float),
)
SIZE: Final = ValueKind(
    word="size",
    metavar="SIZE",
    read=_size,
    allows=whole(1).allows,
    advice="write bytes, as 1048576, 512 KiB or 64 MiB",
    advice_in_code="it must be a whole number of bytes of at least 1",
    in_file=(int, str),
    unit="bytes",
    show=_size_text,
)
NUMBERS: Final = ValueKind(
    word="whole numbers",
    metavar="N,N",
    read=_numbers,
    allows=lambda value: isinstance(value, tuple),
    advice="write numbers with commas between them, as 0,3",
    in_file=(int, list),
)
POSITIVE_SECONDS: Final = ValueKind(
    word="duration above 0 s",
    metavar="DURATION",
    read=_seconds,
    allows=RATE.allows,
    advice=f"it must be a duration above 0 s, of at most {duration_text(_LONGEST_S)}, {_EXAMPLES}",
    advice_in_code="it must be a number of seconds, more than 0 and finite",
    in_file=(int, float, str),
    unit="seconds",
    show=duration_text,
)

_KINDS: Final = {bool: FLAG, str: TEXT, tuple[str, ...]: NAMES, Sequence[str]: NAMES}


def kind_of(hint: Any) -> ValueKind:
    """Return the kind of the values of a type: `bool`, `str`, `tuple[str, ...]` or a `Literal`, or one of them or None.

    Raises:
        TypeError: the type does not say which values are allowed.
    """
    types = [one for one in get_args(hint) if one is not NoneType] if get_origin(hint) in (Union, UnionType) else [hint]
    if len(types) == 1 and types[0] in _KINDS:
        return _KINDS[types[0]]
    if len(types) == 1 and get_origin(types[0]) is Literal:
        return choice(*get_args(types[0]))
    raise TypeError(f"the type {hint} has no kind of its own: give setting(kind=...)")
