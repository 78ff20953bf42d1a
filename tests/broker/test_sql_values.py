import math
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from enum import IntEnum
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbclient.amqp.types import DateTimeOffset, TimeSpan, Uri
from sbclient.broker.sql.values import (
    FilterError,
    calculate,
    checked,
    compare,
    converted,
    describe,
    signed,
    text_of,
)

INTEGER_MIN = -(2**63)
INTEGER_MAX = 2**63 - 1

NOON = datetime(2024, 1, 2, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
ID = UUID("12345678-1234-4234-8234-123456789abc")
integers = st.integers(INTEGER_MIN, INTEGER_MAX)


class Colour(IntEnum):
    RED = 1


class Text(str):
    __slots__ = ()


@pytest.mark.parametrize(
    ("left", "symbol", "right", "holds"),
    [
        (1, "=", 1, True),
        (1, "=", 1.0, True),
        (1, "<", 1.5, True),
        (2.5, ">", Decimal(2), True),
        (1, "=", Decimal(1), True),
        (Decimal("0.1"), "=", 0.1, True),
        (2**53 + 1, "=", float(2**53), True),  # C#: the integer becomes a double
        (2**53 + 1, "=", 2**53, False),
        (math.nan, "=", math.nan, False),
        (math.nan, "<>", 1, True),
        ("a", "=", "a", True),
        ("a", "=", "A", False),
        ("a", "<", "b", True),
        ("b", ">=", "b", True),
        ("", "<=", "a", True),
        (True, "=", True, True),
        (True, "<>", False, True),
        (NOON, "=", NOON.replace(tzinfo=None), True),
        (NOON, "=", NOON.astimezone(timezone(HOUR)), True),
        (NOON, "<", NOON + HOUR, True),
        (HOUR, ">", timedelta(0), True),
        (TimeSpan(hours=1), "=", HOUR, True),
        (TimeSpan.of_ticks(36_000_000_001), ">", HOUR, True),
        (HOUR, "<", TimeSpan.of_ticks(36_000_000_001), True),
        (DateTimeOffset.of_ticks(1), ">", DateTimeOffset.of_ticks(0), True),
        (Uri("a:b"), "=", "a:b", True),
        (ID, "=", UUID(str(ID)), True),
        (ID, "<>", ID, False),
        (Colour.RED, "=", 1, True),
        (Text("a"), "=", "a", True),
    ],
)
def test_two_values_are_compared_as_in_csharp(left: object, symbol: str, right: object, holds: bool) -> None:
    assert compare(symbol, left, right, "x") is holds


@pytest.mark.parametrize(
    ("left", "symbol", "right"),
    [
        ("1", "=", 1),
        (1, "<>", "1"),
        (True, "=", 1),
        (1.0, "=", True),
        (NOON, "=", str(NOON)),
        (ID, "=", str(ID)),
        (HOUR, "<", 3600),
        (True, "<", False),
        (ID, ">=", ID),
        (b"a", "=", b"a"),
        ([], "=", []),
        (Decimal("NaN"), "<", Decimal(1)),
    ],
)
def test_values_that_csharp_cannot_compare_are_a_filter_error(left: object, symbol: str, right: object) -> None:
    with pytest.raises(FilterError, match=r"^a < b: "):
        compare(symbol, left, right, "a < b")


@pytest.mark.parametrize(
    ("left", "symbol", "right", "result"),
    [
        (7, "+", 2, 9),
        (7, "-", 9, -2),
        (7, "*", -2, -14),
        (7, "/", 2, 3),
        (-7, "/", 2, -3),
        (7, "/", -2, -3),
        (-7, "/", -2, 3),
        (7, "%", 2, 1),
        (-7, "%", 2, -1),
        (7, "%", -2, 1),
        (-7, "%", -2, -1),
        (7, "/", 2.0, 3.5),
        (7.5, "%", 2, 1.5),
        (-7.5, "%", 2, -1.5),
        (1.5, "+", 1, 2.5),
        (1, "-", 0.5, 0.5),
        (1e308, "*", 10, math.inf),
        (1.0, "/", 0, math.inf),
        (-1.0, "/", 0, -math.inf),
        (1.0, "/", -0.0, -math.inf),
        (Decimal("1.1"), "+", 1, Decimal("2.1")),
        (Decimal("1.1"), "-", Decimal("0.1"), Decimal("1.0")),
        (Decimal("1.5"), "*", 2, Decimal("3.0")),
        (Decimal(1), "/", 8, Decimal("0.125")),
        (Decimal(-7), "%", 2, Decimal(-1)),
        (Decimal("1.5"), "+", 0.25, 1.75),
        ("a", "+", "b", "ab"),
        ("a", "+", 1, "a1"),
        (1, "+", "a", "1a"),
        ("a", "+", True, "aTrue"),
        ("a", "+", 2.0, "a2"),
        ("a", "+", ID, f"a{ID}"),
        (NOON, "-", NOON - HOUR, HOUR),
        (NOON, "-", NOON.replace(tzinfo=None), timedelta(0)),
        (NOON, "-", HOUR, datetime(2024, 1, 2, 11, tzinfo=UTC)),
        (NOON, "+", HOUR, datetime(2024, 1, 2, 13, tzinfo=UTC)),
        (HOUR, "+", HOUR, timedelta(hours=2)),
        (HOUR, "-", HOUR, timedelta(0)),
    ],
)
def test_two_values_are_calculated_with_as_in_csharp(left: Any, symbol: str, right: Any, result: object) -> None:
    calculated = calculate(symbol, left, right, "x")
    assert calculated == result
    assert type(calculated) is type(result)


@pytest.mark.parametrize(
    ("left", "symbol", "right"),
    [(0.0, "/", 0.0), (math.nan, "/", 0.0), (1.0, "%", 0.0), (math.inf, "%", 2.0), (math.nan, "%", 2.0)],
)
def test_a_double_that_has_no_value_is_not_a_number(left: float, symbol: str, right: float) -> None:
    assert math.isnan(calculate(symbol, left, right, "x"))  # type: ignore[arg-type]  # a float by the law


@pytest.mark.parametrize(
    ("left", "symbol", "right", "reason"),
    [
        (1, "/", 0, "division by zero"),
        (1, "%", 0, "division by zero"),
        (Decimal(1), "/", 0, "division by zero"),
        (Decimal(0), "/", 0, "cannot be held"),
        (INTEGER_MAX, "+", 1, "cannot be held"),
        (INTEGER_MIN, "-", 1, "cannot be held"),
        (INTEGER_MAX, "*", 2, "cannot be held"),
        (INTEGER_MIN, "/", -1, "cannot be held"),
        (datetime.max.replace(tzinfo=UTC), "+", HOUR, "cannot be held"),
        (timedelta.max, "+", HOUR, "cannot be held"),
        (Decimal("9e999999"), "*", Decimal("9e999999"), "cannot be held"),
        ("a", "-", "b", "does not apply"),
        ("a", "*", 2, "does not apply"),
        (True, "+", 1, "does not apply"),
        (NOON, "+", NOON, "does not apply"),
        (NOON, "*", HOUR, "does not apply"),
        (HOUR, "+", NOON, "does not apply"),
        (HOUR, "*", 2, "does not apply"),
        (b"a", "+", b"b", "does not apply"),
        ("a", "+", NOON, "cannot be written as text"),
        (HOUR, "+", "a", "cannot be written as text"),
    ],
)
def test_invalid_arithmetic_is_a_filter_error(left: object, symbol: str, right: object, reason: str) -> None:
    with pytest.raises(FilterError, match=f"^a . b: .*{reason}"):
        calculate(symbol, left, right, "a . b")


@given(integers, integers.filter(bool))
def test_quotient_and_remainder_make_the_dividend_again(left: int, right: int) -> None:
    if (left, right) != (INTEGER_MIN, -1):
        quotient, remainder = calculate("/", left, right, "x"), calculate("%", left, right, "x")
        assert isinstance(quotient, int)
        assert isinstance(remainder, int)
        assert quotient * right + remainder == left
        assert abs(remainder) < abs(right)
        assert remainder == 0 or (remainder < 0) == (left < 0)


@pytest.mark.deviation("broker.sql-overflow")
@given(integers, integers, st.sampled_from("+-*"))
def test_an_integer_result_is_exact_or_an_error(left: int, right: int, symbol: str) -> None:
    exact = {"+": left + right, "-": left - right, "*": left * right}[symbol]
    if INTEGER_MIN <= exact <= INTEGER_MAX:
        assert calculate(symbol, left, right, "x") == exact
    else:
        with pytest.raises(FilterError):
            calculate(symbol, left, right, "x")


@pytest.mark.parametrize(
    ("symbol", "value", "result"),
    [
        ("-", 1, -1),
        ("+", 1, 1),
        ("-", 1.5, -1.5),
        ("-", Decimal("1.5"), Decimal("-1.5")),
        ("-", HOUR, -HOUR),
        ("+", HOUR, HOUR),
    ],
)
def test_numbers_and_timespans_have_a_sign(symbol: str, value: object, result: object) -> None:
    assert signed(symbol, value, "x") == result


@pytest.mark.parametrize("value", ["1", True, NOON, ID, INTEGER_MIN, timedelta.max])
def test_negation_of_a_value_without_negative_is_a_filter_error(value: object) -> None:
    with pytest.raises(FilterError):
        signed("-", value, "x")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a", "a"),
        (-5, "-5"),
        (True, "True"),
        (False, "False"),
        (ID, "12345678-1234-4234-8234-123456789abc"),
        (Decimal("1.50"), "1.50"),
        (1.5, "1.5"),
        (2.0, "2"),
        (1e20, "1E+20"),
        (1.5e-7, "1.5E-07"),
        (math.nan, "NaN"),
        (math.inf, "Infinity"),
        (-math.inf, "-Infinity"),
    ],
)
def test_a_value_is_written_as_dotnet_writes_it(value: object, text: str) -> None:
    assert text_of(value) == text


@pytest.mark.parametrize(
    ("value", "kind", "result"),
    [
        (1, int, 1),
        ("a", str, "a"),
        (1, str, "1"),
        (1, float, 1.0),
        (2.0, int, 2),
        (Decimal(2), int, 2),
        (Decimal("2.5"), float, 2.5),
        (2, Decimal, Decimal(2)),
        (0.1, Decimal, Decimal("0.1")),
        ("5", int, 5),
        ("5.5", float, 5.5),
        ("5.5", Decimal, Decimal("5.5")),
        ("True", bool, True),
        ("false", bool, False),
        ("2024-01-02T12:00:00Z", datetime, NOON),
        ("2024-01-02T12:00:00", datetime, NOON),
        (str(ID), UUID, ID),
        (NOON, datetime, NOON),
    ],
)
def test_a_value_is_converted_where_nothing_is_lost(value: object, kind: type, result: object) -> None:
    assert converted(value, kind) == result
    assert type(converted(value, kind)) is kind


@pytest.mark.deviation("broker.sql-timestamps-as-text")
@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (2.5, int),
        (1e300, int),
        (math.nan, int),
        (math.inf, int),
        (Decimal("2.5"), int),
        ("x", int),
        (str(2**63), int),
        ("x", float),
        ("x", Decimal),
        ("yes", bool),
        (1, bool),
        (True, int),
        ("noon", datetime),
        (1, datetime),
        ("x", UUID),
        ("1:00:00", timedelta),
        (NOON, str),
    ],
)
def test_a_value_without_an_equal_of_that_kind_is_not_converted(value: object, kind: type) -> None:
    with pytest.raises(ValueError):
        converted(value, kind)


def test_values_from_outside_are_checked() -> None:
    for value in (None, "a", 1, 1.5, True, Decimal(1), HOUR, ID, INTEGER_MIN, INTEGER_MAX):
        assert checked(value) is value
    assert checked(NOON.replace(tzinfo=None)) == NOON
    for wrong in (INTEGER_MAX + 1, INTEGER_MIN - 1, b"a", [1], object()):
        with pytest.raises(ValueError):
            checked(wrong)


def test_a_value_is_described_by_its_kind_alone() -> None:
    assert [describe(each) for each in (Colour.RED, True, b"a", 1.5)] == [
        "an integer",
        "a boolean",
        "a bytes",
        "a decimal number",
    ]
