"""The kinds of arguments: which values a parameter takes, in one declaration for its type, its check and its docs.

    Size: TypeAlias = Annotated[int, whole(1, INT64[-1])]

`Size` is the type of the parameter, `whole` checks its values, and `Kind.takes` describes them in docs/reference.md.

A value out of range raises an `InvalidOperationError`, one of a wrong type an `ArgumentTypeError`, which is also a
`TypeError`. Both name the parameter, what it takes, and the value if it can be no secret.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Annotated, Any, Final, TypeAlias, TypeVar

from sbclient.errors import ArgumentTypeError, InvalidOperationError

MAX_COUNT: Final = 2**31 - 1
"""The largest count of messages that every request can carry."""

MAX_SECONDS: Final = float(2**31)
"""The longest wait, 68 years: every clock, timer and request can hold it."""

MAX_ID_LENGTH: Final = 128
"""The most characters in a message id, session id or partition key. Source: Service Bus quotas."""

MAX_REASON: Final = 4_096
"""The characters that are kept of a reason or description of a dead letter (documented)."""

INT64: Final = range(-(2**63), 2**63)

_SHOWN: Final = (bool, int, float, timedelta, datetime, Enum)
"""The types of values that an error shows. Others may be secrets, or endless."""

E = TypeVar("E", bound=Enum)


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """A kind of argument.

    Attributes:
        takes: what is allowed, for errors and the documentation: "an int, at least 1".
        check: returns the value to use for a parameter's name and value, or raises.
        types: a value of exactly one of these types needs no check if the condition is true for it.
        condition: a Python expression about `{}`, the value; empty = none.
        takes_subclasses: whether a value of a class below one of the types needs no check, either.
    """

    takes: str
    check: Callable[[str, Any], Any]
    types: tuple[type[Any], ...] = ()
    condition: str = ""
    takes_subclasses: bool = False


def shown(value: object) -> str:
    """Return the type of a value, with the value itself if it is short and can be no secret."""
    kind = type(value).__name__
    if value is None:
        return "None"
    if isinstance(value, int) and int(value) not in INT64:  # Python does not write thousands of digits
        return f"{kind}, a number of {int(value).bit_length()} bits"
    if isinstance(value, Enum):
        return f"{kind}.{value.name}"
    return f"{kind} {value!r:.40}" if isinstance(value, _SHOWN) else kind


def shown_text(text: str) -> str:
    """Return a text in quotes and cut, for an error; of a connection string, which has a key, only what it is."""
    return "a connection string" if "sharedaccess" in text.lower() else f"{text!r:.100}"


def wrong_type(name: str, value: object, takes: str, remedy: str = "") -> ArgumentTypeError:
    """Return the error for a value of a wrong type."""
    return ArgumentTypeError(f"{name} must be {takes}, not {shown(value)}{remedy}")


def out_of_range(name: str, value: object, takes: str) -> InvalidOperationError:
    """Return the error for a value that is not allowed."""
    return InvalidOperationError(f"{name} must be {takes}, not {shown(value)}")


# -- numbers -------------------------------------------------------------------------------------------------------


def whole(least: int, most: int, *, is_capped: bool = False) -> Kind:
    """Return the kind of whole numbers in a range.

    Args:
        is_capped: whether larger numbers are taken as the largest one.
    """
    takes = f"an int from {least:,}" + ("" if is_capped or most == INT64[-1] else f" to {most:,}")

    def check(name: str, value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise wrong_type(name, value, takes)
        number = int(value)
        if number < least or (number > most and not is_capped):
            raise out_of_range(name, value, takes)
        return min(number, most)

    return Kind(takes, check, (int,), f"{least} <= {{}} <= {most}")


def number(what: str, *, least: str) -> Kind:
    """Return the kind of finite numbers, larger ones than `MAX_SECONDS` taken as that.

    Args:
        what: "a number of seconds".
        least: "more than 0" or "0 or more".
    """
    takes, may_be_0 = f"{what}, {least} and finite", least != "more than 0"

    def check(name: str, value: Any) -> float:
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise wrong_type(name, value, takes)
        if not (0 <= value < math.inf) or (value == 0 and not may_be_0):  # false for NaN
            raise out_of_range(name, value, takes)
        return float(min(value, MAX_SECONDS))

    return Kind(takes, check, (float, int), f"0 {'<=' if may_be_0 else '<'} {{}} <= {MAX_SECONDS}")


def duration(least: timedelta, most: timedelta) -> Kind:
    """Return the kind of durations in a range."""
    takes = f"a timedelta from {least} to {most}"

    def check(name: str, value: Any) -> timedelta:
        if not isinstance(value, timedelta):
            remedy = f": give timedelta(seconds={value})" if type(value) in (int, float) else ""
            raise wrong_type(name, value, takes, remedy)
        if not least <= value <= most:
            raise out_of_range(name, value, takes)
        return plain_timedelta(value)

    return Kind(takes, check)


def plain_timedelta(value: timedelta) -> timedelta:
    """Return a duration without what a subclass adds, for example pandas.Timedelta."""
    return value if type(value) is timedelta else timedelta(value.days, value.seconds, value.microseconds)


Seconds: TypeAlias = Annotated[float, number("a number of seconds", least="more than 0")]
Pause: TypeAlias = Annotated[float, number("a number of seconds", least="0 or more")]
Rate: TypeAlias = Annotated[float, number("a number", least="more than 0")]
Size: TypeAlias = Annotated[int, whole(1, INT64[-1])]
Count: TypeAlias = Annotated[int, whole(1, MAX_COUNT, is_capped=True)]


# -- texts ---------------------------------------------------------------------------------------------------------


def encodable(name: str, value: str) -> str:
    """Return the text, of exactly the type `str`, if UTF-8 can encode it; no encoder or hash fails on it later."""
    text = value if type(value) is str else str.__str__(value)
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:  # not chained: its text shows the value
            raise InvalidOperationError(
                f"{name} contains a lone surrogate, which UTF-8 cannot encode: decode the text correctly"
            ) from None
    return text


def _check_text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise wrong_type(name, value, _TEXT.takes)
    return encodable(name, value)


_TEXT: Final = Kind("a str", _check_text, (str,), "{}.isascii()")


def short_id(name: str, value: Any) -> str:
    """Return an id: a text of at most `MAX_ID_LENGTH` characters."""
    text = _check_text(name, value)
    if len(text) > MAX_ID_LENGTH:
        raise InvalidOperationError(
            f"{name} has {len(text)} characters, {MAX_ID_LENGTH} are allowed: shorten it or send its hash"
        )
    return text


ShortId: TypeAlias = Annotated[
    str,
    Kind(
        f"a str of at most {MAX_ID_LENGTH} characters",
        short_id,
        (str,),
        f"{{0}}.isascii() and len({{0}}) <= {MAX_ID_LENGTH}",
    ),
]


def _check_reason(name: str, value: Any) -> str | None:
    if isinstance(value, BaseException):
        value = str(value) or type(value).__name__
    if not isinstance(value, str):
        raise wrong_type(name, value, _REASON.takes, ": give str(value)")
    return encodable(name, value)[:MAX_REASON] or None


_REASON: Final = Kind(
    "a str or an exception", _check_reason, (str,), f"{{0}}.isascii() and 0 < len({{0}}) <= {MAX_REASON}"
)

Reason: TypeAlias = Annotated[str | BaseException, _REASON]
"""A reason or description of a dead letter. Of an exception its text is taken; a long one is cut, an empty one None."""


def choice_of(kind: type[E]) -> Kind:
    """Return the kind of the members of an enumeration of texts, which may also be given by their values."""
    takes = f"{kind.__name__} or {', '.join(repr(each.value) for each in kind)}"

    def check(name: str, value: Any) -> E:
        if not isinstance(value, str):
            raise wrong_type(name, value, takes)
        try:
            return kind(str.__str__(value))
        except ValueError:
            raise InvalidOperationError(f"{name} must be {takes}, not {str.__str__(value)!r:.40}") from None

    return Kind(takes, check, (kind,))


# -- sequence numbers, states, times ---------------------------------------------------------------------------------


def _check_sequence_numbers(name: str, value: Any) -> list[int]:
    takes = _SEQUENCE_NUMBERS.takes
    if isinstance(value, int) and not isinstance(value, bool):
        value = (value,)
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise wrong_type(name, value, takes)
    numbers = []
    for number in value:
        if not isinstance(number, int) or isinstance(number, bool):
            raise wrong_type(f"each of {name}", number, "an int")
        if int(number) not in INT64:
            raise out_of_range(f"each of {name}", number, "a number of 64 bits")
        numbers.append(int(number))
    return numbers


_SEQUENCE_NUMBERS: Final = Kind("an int, or an iterable of them", _check_sequence_numbers)

SequenceNumbers: TypeAlias = Annotated[int | Sequence[int], _SEQUENCE_NUMBERS]
SequenceNumber: TypeAlias = Annotated[int, whole(0, INT64[-1])]


def _check_state(name: str, value: Any) -> bytes:
    if isinstance(value, str):
        return encodable(name, value).encode()
    if not isinstance(value, bytes | bytearray | memoryview):
        raise wrong_type(name, value, _STATE.takes)
    return bytes(value)


_STATE: Final = Kind("a str, bytes or bytearray", _check_state, (bytes,))

State: TypeAlias = Annotated[str | bytes | bytearray, _STATE]


def utc(name: str, value: Any) -> datetime:
    """Return a time in UTC; a naive one is UTC."""
    if not isinstance(value, datetime):
        raise wrong_type(name, value, _UTC.takes)
    moment: datetime = value
    if type(value) is not datetime:
        try:
            moment = datetime.combine(value.date(), value.timetz())
        except ValueError:  # pandas.NaT
            raise out_of_range(name, value, _UTC.takes) from None
    try:
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except OverflowError:
        raise InvalidOperationError(f"{name} is {value}: UTC has no such time, choose another one") from None


_UTC: Final = Kind("a datetime, a naive one in UTC", utc)

Utc: TypeAlias = Annotated[datetime, _UTC]


def instance_of(kind: type[Any]) -> Kind:
    """Return the kind of instances of a class: for int numbers of 64 bits, for str texts that UTF-8 can encode."""
    if kind in _OF_CLASS:
        return _OF_CLASS[kind]
    takes = f"{'an' if kind.__name__[0].lower() in 'aeiou' else 'a'} {kind.__name__}"

    def check(name: str, value: Any) -> Any:
        if not isinstance(value, kind):
            raise wrong_type(name, value, takes)
        return value

    return Kind(takes, check, (kind,), takes_subclasses=True)


def _check_number(name: str, value: Any) -> int | float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise wrong_type(name, value, "a number")
    return value


_OF_CLASS: Final = {
    int: whole(INT64[0], INT64[-1]),
    float: Kind("a number", _check_number, (float, int)),
    str: _TEXT,
}


def one_of(classes: Sequence[type[Any]]) -> Kind:
    """Return the kind of instances of any of some classes."""
    kinds = {each: instance_of(each) for each in classes}
    takes = " or ".join(each.takes for each in kinds.values())

    def check(name: str, value: Any) -> Any:
        for each, kind in kinds.items():
            if isinstance(value, each) and not (each is int and isinstance(value, bool)):
                return kind.check(name, value)
        raise wrong_type(name, value, takes)

    return Kind(takes, check, tuple(each for each, kind in kinds.items() if not kind.condition))


def word_of(words: Sequence[Any]) -> Kind:
    """Return the kind of some constants."""
    takes = " or ".join(map(repr, words))

    def check(name: str, value: Any) -> Any:
        if type(value) not in map(type, words):
            raise wrong_type(name, value, takes)
        if value not in words:
            raise out_of_range(name, value, takes)
        return value

    return Kind(takes, check)
