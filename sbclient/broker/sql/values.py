"""The values of the rule language: comparison, arithmetic and conversion.

Rules:

1. Null and unknown are one value, `None`. An operation on `None` gives `None`. Only EXISTS distinguishes a missing
   property from a null one.
2. Operators follow C# (documented). Integers have 64 bits and are divided towards zero. An integer and a double give a
   double. Text plus a value that can be written as text gives text. Other combinations of kinds are errors.
3. An overflow is an error, where C# would wrap around: a filter error shows in the dead-letter queue, while a wrong
   number would remain unnoticed.

Source: MicrosoftDocs/azure-docs, `service-bus-messaging-sql-filter.md` and `service-bus-messaging-sql-rule-action.md`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Context, Decimal
from typing import Any, Final, Self, TypeAlias
from uuid import UUID

from sbclient.amqp.types import ticks_of
from sbclient.errors import ServiceBusError

Value: TypeAlias = str | int | float | bool | Decimal | datetime | timedelta | UUID | None
"""A value of the language. `None` is null and unknown."""

Truth: TypeAlias = bool | None
"""The result of a predicate; `None` = unknown. Only True selects a message."""

INTEGER_MIN: Final = -(2**63)
INTEGER_MAX: Final = 2**63 - 1

MAX_STEPS: Final = 100_000
LEAST_STEPS: Final = 2_000
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


class PreciseTime(datetime):
    """A datetime with seven digits of a second, as a parameter of a rule.

    Attributes:
        tick: the seventh digit.
    """

    tick: int = 0

    def __deepcopy__(self, memo: object) -> Self:
        return self  # a copy of a datetime has no further digit


class FilterError(ServiceBusError):
    """A rule cannot be evaluated for a message, for example because of an overflow or a division by zero.

    Clients do not see it: the topic dead-letters the message if the subscription is configured so.
    """


class Steps:
    """The work that one evaluation of a rule for one message may take, because its amount depends on the message.

    A step takes about 0.2 µs: a property that is looked at, a place in a text where a pattern is tried, or 64
    characters that are searched.
    """

    __slots__ = ("_limit", "spent")

    def __init__(self, limit: int = MAX_STEPS) -> None:
        self._limit = limit
        self.spent = 0

    def spend(self, count: int) -> None:
        """Take steps.

        Raises:
            FilterError: there are not so many left.
        """
        self.spent += count
        if self.spent > self._limit:
            raise FilterError(f"the rule takes more than {self._limit} steps for this message: simplify the rule")


class StepsOfTopic:
    """The work that all rules of a topic may take for one message, because they run in one step of the event loop.

    Each rule may take `LEAST_STEPS`, whatever the others take, and all of them together `MAX_STEPS` more.
    """

    __slots__ = ("_left", "_steps")

    def __init__(self) -> None:
        self._left = MAX_STEPS
        self._steps: Steps | None = None

    def of_next_rule(self) -> Steps:
        """Return the steps of the next rule, after the evaluation of the last one."""
        if self._steps is not None:
            self._left -= min(self._left, max(0, self._steps.spent - LEAST_STEPS))
        self._steps = Steps(min(MAX_STEPS, LEAST_STEPS + self._left))
        return self._steps


def kind_of(value: object) -> type:
    """Return the type of the language for a value: a key of `_NAMES`, or the type of the value if there is none."""
    kind = type(value)
    return kind if kind in _NAMES else next((known for known in _NAMES if isinstance(value, known)), kind)


def describe(value: object) -> str:
    """Return the kind of a value for error texts, which do not show the value."""
    kind = kind_of(value)
    return _NAMES.get(kind, f"a {kind.__name__}")


def in_utc(time: datetime) -> datetime:
    """Return a datetime with a time zone; a naive one counts as UTC."""
    if time.tzinfo is not None:
        return time
    aware = time.replace(tzinfo=UTC)
    if isinstance(aware, PreciseTime):
        aware.tick = getattr(time, "tick", 0)
    return aware


def compare(symbol: str, left: object, right: object, where: str) -> bool:
    """Return whether a comparison of two values that are not null is true.

    Args:
        symbol: one of `COMPARISONS`.
        where: the expression, for the error.

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
        left, right = ((in_utc(each), getattr(each, "tick", 0)) for each in (left, right))
    elif isinstance(left, timedelta) and isinstance(right, timedelta):
        left, right = ticks_of(left), ticks_of(right)
    try:
        return COMPARISONS[symbol](left, right)
    except ArithmeticError as error:  # a NaN among exact decimal numbers
        raise FilterError(f"{where}: not a number has no order") from error


def calculate(symbol: str, left: object, right: object, where: str) -> Value:
    """Return `left symbol right` for two values that are not null; the symbol is one of + - * / %.

    Raises:
        FilterError: the operator does not apply, the result is out of range, or an integer is divided by zero.
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
    """Return `+value` or `-value` of a number or timespan that is not null.

    Raises:
        FilterError: the value has no sign, or -value is out of range.
    """
    kind = kind_of(value)
    if kind is not timedelta and kind not in _NUMBERS:
        raise FilterError(f"{where}: the sign {symbol} does not apply to {describe(value)}")
    return calculate(symbol, timedelta(0) if kind is timedelta else 0, value, where)


def checked(value: object) -> Value:
    """Check a value and return it; a naive datetime counts as UTC.

    Raises:
        ValueError: the language lacks its type, or an integer does not fit into 64 bits.
    """
    kind = kind_of(value)
    if value is not None and kind not in _NAMES:
        raise ValueError(f"{describe(value)} is no value of the language")
    if isinstance(value, int) and not INTEGER_MIN <= value <= INTEGER_MAX:
        raise ValueError("the integer does not fit into 64 bits")
    if isinstance(value, Decimal) and value.is_finite() and abs(value.adjusted()) > MAX_EXPONENT:
        raise ValueError(f"the exponent of the number is larger than {MAX_EXPONENT}")
    return in_utc(value) if isinstance(value, datetime) else value  # type: ignore[return-value]  # kind_of has checked it


def converted(value: object, kind: type) -> Value:
    """Convert a value that is not null to another kind, without loss; text is parsed.

    SET keeps the type of a property if it can (documented).

    Raises:
        ValueError: that kind has no equal value.
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
    """Return the text of a value as .NET writes it in the invariant culture.

    Raises:
        ValueError: the text of the kind depends on the culture, as for datetimes and timespans.
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
    """Convert two numbers to one kind: integer to exact decimal to double.

    C# has no implicit conversion from decimal to double. It is needed here to compare such a property with `2.5`.
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
    """Calculate by IEEE 754, as C# does: infinities and NaN instead of errors."""
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
