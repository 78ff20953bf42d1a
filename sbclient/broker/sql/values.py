"""What a value of the rule language is, and how two of them are compared, calculated with and converted.

Laws:
1. Null and unknown are one value, `None`; what is calculated from `None` is `None`. Only EXISTS distinguishes
   a missing property from one that is null.
2. Operators follow C# (documented): an integer has 64 bits, is divided towards zero, and becomes a double beside a
   double; text plus anything that can be written as text is text; two kinds that do not go together are an error, never
   unknown.
3. Where C# would wrap around silently we raise: a filter error shows in the dead-letter queue, a wrong number nowhere.

Source: MicrosoftDocs/azure-docs, `service-bus-messaging-sql-filter.md` and `service-bus-messaging-sql-rule-action.md`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Context, Decimal
from typing import Any, Final, TypeAlias
from uuid import UUID

from sbclient.errors import ServiceBusError

Value: TypeAlias = str | int | float | bool | Decimal | datetime | timedelta | UUID | None
"""A value of the language. `None` is null and unknown."""

Truth: TypeAlias = bool | None
"""What a predicate says; `None` is unknown, and a message is selected by True alone."""

INTEGER_MIN: Final = -(2**63)
INTEGER_MAX: Final = 2**63 - 1

MAX_STEPS: Final = 100_000
MAX_TEXT_LENGTH: Final = 65_536
"""Characters of a text that an action calculates. Source: the limit of the properties of a message."""

MAX_EXPONENT: Final = 6_144
"""Of an exact decimal number. Source: decimal128 of AMQP."""

COMPARISONS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}

_EXACT = Context(prec=28)  # the digits of System.Decimal

_NAMES: Final[dict[type, str]] = {
    bool: "a boolean",
    int: "an integer",
    float: "a decimal number",
    Decimal: "an exact decimal number",
    str: "text",
    datetime: "a datetime",
    timedelta: "a timespan",
    UUID: "a GUID",
}
_NUMBERS: Final = (int, float, Decimal)
_WITHOUT_ORDER: Final = (bool, UUID)
_NOT_FINITE: Final = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


class FilterError(ServiceBusError):
    """A rule could not be evaluated for a message: kinds that do not go together, an overflow, a division by zero.

    Never leaves the broker: the topic dead-letters the message where the subscription asks for it (B-079).
    """


class Steps:
    """The work that one evaluation of a rule for one message may take, because its amount depends on the message.

    A step takes about 0.2 µs: a property that is looked at, a place in a text where a pattern is tried, or 64
    characters that are searched.
    """

    __slots__ = ("_left",)

    def __init__(self, limit: int | None = None) -> None:
        self._left = MAX_STEPS if limit is None else limit

    def spend(self, count: int) -> None:
        """Take steps.

        Raises:
            FilterError: there are not so many left.
        """
        self._left -= count
        if self._left < 0:
            raise FilterError(f"the rule takes more than {MAX_STEPS} steps for this message: simplify the rule")


def kind_of(value: object) -> type:
    """The type of the language a value belongs to: a key of the table above, or its own type if it is none of them."""
    kind = type(value)
    return kind if kind in _NAMES else next((known for known in _NAMES if isinstance(value, known)), kind)


def describe(value: object) -> str:
    """The kind of a value in words; its content stays out of error texts."""
    kind = kind_of(value)
    return _NAMES.get(kind, f"a {kind.__name__}")


def in_utc(time: datetime) -> datetime:
    """Return a datetime with a time zone; a naive one counts as UTC."""
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time


def compare(symbol: str, left: object, right: object, where: str) -> bool:
    """Whether the comparison holds for two values that are not null.

    Args:
        symbol: one of `COMPARISONS`.
        where: the expression this belongs to, for the error.

    Raises:
        FilterError: the kinds cannot be compared, or have no order.
    """
    kind, other = kind_of(left), kind_of(right)
    if kind in _NUMBERS and other in _NUMBERS:
        left, right = _promoted(left, right, kind, other)
    elif kind is not other or kind not in _NAMES:
        raise FilterError(f"{where}: {describe(left)} cannot be compared with {describe(right)}")
    elif kind in _WITHOUT_ORDER and symbol not in ("=", "<>"):
        raise FilterError(f"{where}: {describe(left)} has no order, only = and <> apply")
    elif isinstance(left, datetime) and isinstance(right, datetime):
        left, right = in_utc(left), in_utc(right)
    try:
        return COMPARISONS[symbol](left, right)
    except ArithmeticError as error:  # a NaN among exact decimal numbers
        raise FilterError(f"{where}: not a number has no order") from error


def calculate(symbol: str, left: object, right: object, where: str) -> Value:
    """`left symbol right` for two values that are not null; the symbol is one of + - * / %.

    Raises:
        FilterError: the kinds do not go together, the result does not fit, or an integer is divided by zero.
    """
    kind, other = kind_of(left), kind_of(right)
    try:
        if kind in _NUMBERS and other in _NUMBERS:
            promoted = _promoted(left, right, kind, other)
            return _ARITHMETIC[kind_of(promoted[0])](symbol, *promoted)
        if symbol == "+" and str in (kind, other):
            return _limited(f"{text_of(left)}{text_of(right)}")
        if isinstance(left, datetime) and isinstance(right, datetime) and symbol == "-":
            return in_utc(left) - in_utc(right)
        if isinstance(left, datetime | timedelta) and isinstance(right, timedelta) and symbol in ("+", "-"):
            return left + right if symbol == "+" else left - right
    except ZeroDivisionError as error:
        raise FilterError(f"{where}: division by zero") from error
    except ArithmeticError as error:
        raise FilterError(f"{where}: the result of {symbol} cannot be held by {describe(left)}") from error
    except ValueError as error:
        raise FilterError(f"{where}: {error}") from error
    raise FilterError(f"{where}: {symbol} does not apply to {describe(left)} and {describe(right)}")


def signed(symbol: str, value: object, where: str) -> Value:
    """`+value` or `-value` of a number or timespan that is not null.

    Raises:
        FilterError: the value has no sign, or -value does not fit.
    """
    kind = kind_of(value)
    if kind is not timedelta and kind not in _NUMBERS:
        raise FilterError(f"{where}: the sign {symbol} does not apply to {describe(value)}")
    return calculate(symbol, timedelta(0) if kind is timedelta else 0, value, where)


def checked(value: object) -> Value:
    """Check a value from outside of the language; a naive datetime gets the zone UTC.

    Raises:
        ValueError: its type is not of the language, or an integer does not fit into 64 bits.
    """
    kind = kind_of(value)
    if value is not None and kind not in _NAMES:
        raise ValueError(f"{describe(value)} is no value of the language")
    if isinstance(value, int) and not INTEGER_MIN <= value <= INTEGER_MAX:
        raise ValueError("the integer does not fit into 64 bits")
    if isinstance(value, Decimal) and value.is_finite() and abs(value.adjusted()) > MAX_EXPONENT:
        raise ValueError(f"the exponent of the number is larger than {MAX_EXPONENT}")
    return in_utc(value) if isinstance(value, datetime) else value  # type: ignore[return-value]  # kind_of has looked


def converted(value: object, kind: type) -> Value:
    """A value that is not null as another kind: SET keeps the type that a property has where it can (documented).

    Only what loses nothing is converted, and text that says the value.

    Raises:
        ValueError: the value has no equal of that kind.
    """
    source = kind_of(value)
    if source is kind:
        return checked(value)
    if kind is str:
        return text_of(value)
    conversion = _CONVERSIONS.get((source, kind))
    if conversion is None:
        raise ValueError(f"{describe(value)} cannot become {_NAMES[kind]}")
    try:
        return checked(conversion(value))
    except ArithmeticError as error:
        raise ValueError(f"{describe(value)} cannot become {_NAMES[kind]}") from error


def text_of(value: object) -> str:
    """A value written as .NET writes it, independent of any culture.

    Raises:
        ValueError: the kind has no such text (datetimes and timespans depend on the culture).
    """
    kind = kind_of(value)
    if kind in (str, bool, int, UUID, Decimal):
        return str(value)
    if isinstance(value, float):
        return _NOT_FINITE.get(repr(value)) or repr(value).removesuffix(".0").replace("e", "E")
    raise ValueError(f"{describe(value)} cannot be written as text")


def _limited(text: str) -> str:
    if len(text) > MAX_TEXT_LENGTH:
        raise ValueError(f"the text has {len(text)} characters, {MAX_TEXT_LENGTH} are allowed")
    return text


def _promoted(left: Any, right: Any, kind: type, other: type) -> tuple[Any, Any]:
    """Two numbers as one kind: integer to exact decimal to double.

    C# has no conversion from exact decimal to double; without one such a property could not be compared with `2.5`.
    """
    if kind is other:
        return left, right
    target = float if float in (kind, other) else Decimal
    return target(left), target(right)


def _integer(symbol: str, left: int, right: int) -> int:
    if symbol in ("/", "%"):
        quotient = abs(left) // abs(right)
        quotient = quotient if (left < 0) == (right < 0) else -quotient
        result = quotient if symbol == "/" else left - quotient * right
    else:
        result = _WHOLE[symbol](left, right)
    if not INTEGER_MIN <= result <= INTEGER_MAX:
        raise OverflowError
    return result


def _double(symbol: str, left: float, right: float) -> float:
    """IEEE 754, as C#: no error, but infinities and not-a-number."""
    if symbol in _WHOLE:
        return float(_WHOLE[symbol](left, right))
    if symbol == "/":
        if right != 0:
            return left / right
        return math.nan if left == 0 or math.isnan(left) else math.copysign(math.inf, left) * math.copysign(1, right)
    return math.nan if right == 0 or math.isinf(left) else math.fmod(left, right)


def _exact(symbol: str, left: Decimal, right: Decimal) -> Decimal:
    return _EXACT_OPERATIONS[symbol](left, right)


_WHOLE: Final[dict[str, Callable[[Any, Any], Any]]] = {"+": operator.add, "-": operator.sub, "*": operator.mul}

_EXACT_OPERATIONS: Final[dict[str, Callable[[Decimal, Decimal], Decimal]]] = {
    "+": _EXACT.add,
    "-": _EXACT.subtract,
    "*": _EXACT.multiply,
    "/": _EXACT.divide,
    "%": _EXACT.remainder,
}

_ARITHMETIC: Final[dict[type, Callable[[str, Any, Any], Value]]] = {int: _integer, float: _double, Decimal: _exact}


def _whole(value: float | Decimal) -> int:
    if value != int(value):
        raise ValueError("the number has a fraction")
    return int(value)


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("the text is neither true nor false")
    return text.lower() == "true"


_CONVERSIONS: Final[dict[tuple[type, type], Callable[[Any], Value]]] = {
    (int, float): float,
    (Decimal, float): float,
    (str, float): float,
    (float, int): _whole,
    (Decimal, int): _whole,
    (str, int): int,
    (int, Decimal): Decimal,
    (float, Decimal): lambda value: Decimal(repr(value)),
    (str, Decimal): Decimal,
    (str, bool): _boolean,
    (str, datetime): datetime.fromisoformat,
    (str, UUID): UUID,
}
