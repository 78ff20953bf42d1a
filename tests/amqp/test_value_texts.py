from __future__ import annotations

import math
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbclient.amqp.encode import encode_value
from sbclient.amqp.types import (
    Binary,
    Byte,
    Char,
    DateTimeOffset,
    Decimal32,
    Decimal64,
    Described,
    Float,
    Int,
    Long,
    Opaque,
    Short,
    Symbol,
    TimeSpan,
    Timestamp,
    UByte,
    UInt,
    ULong,
    Uri,
    UShort,
)
from sbclient.amqp.value_texts import NAMES, name_of, text_of, value_of
from sbclient.errors import InvalidOperationError
from tests.amqp.strategies import scalars

VALUES: Final[dict[str, list[Any]]] = {
    "boolean": [True, False],
    "ubyte": [UByte(0), UByte(255)],
    "ushort": [UShort(0), UShort(65_535)],
    "uint": [UInt(0), UInt(2**32 - 1)],
    "ulong": [ULong(0), ULong(2**63 - 1), ULong(2**64 - 1)],
    "byte": [Byte(-128), Byte(127)],
    "short": [Short(-(2**15)), Short(2**15 - 1)],
    "int": [Int(-(2**31)), Int(5), 7],
    "long": [Long(5), Long(-(2**63)), 2**63 - 1],
    "float": [Float(0.1), Float(1e-45), Float("nan"), Float("inf"), Float("-inf"), Float(-0.0)],
    "double": [0.1, 5e-324, math.nan, math.inf, -math.inf, -0.0],
    "decimal32": [Decimal32("1.50")],
    "decimal64": [Decimal64("-12345.6789")],
    "decimal128": [Decimal("1.50"), Decimal("-79228162514264337593543950335"), Decimal("0E-18"), Decimal("1E+6000")],
    "char": [Char("x"), Char("\U0001f600")],
    "timestamp": [
        datetime(2024, 5, 6, 7, 8, 9, 123_000, tzinfo=UTC),
        datetime(1, 1, 1, tzinfo=UTC),
        Timestamp(2**62),
    ],
    "uuid": [UUID(int=2**127 + 1)],
    "binary": [Binary(raw) for raw in (b"", b"\x00\xff", b"text")],
    "symbol": [Symbol("amqp:name"), Symbol("")],
    "encoded": [
        Opaque.of("", encode_value(value))
        for value in (Described(Symbol("com.microsoft:timespan"), Int(5)), [1, "two"], {"k": 1})
    ],
    "timespan": [TimeSpan.of_ticks(ticks) for ticks in (0, 1, -1, 863_999_999_999, 2**63 - 1, -(2**63))],
    "datetimeoffset": [
        DateTimeOffset.of_ticks(ticks) for ticks in (0, 639_310_248_000_000_007, 3_155_378_975_999_999_999)
    ],
    "uri": [Uri("http://example.org/x"), Uri("")],
    "string": ["", "5", "true", "é\n"],
}
"""Values of every AMQP type, as a received message has them."""

EACH: Final = [
    pytest.param(name, value, id=f"{name}-{place}") for name in VALUES for place, value in enumerate(VALUES[name])
]
INT64: Final = st.integers(-(2**63), 2**63 - 1)
RANDOM: Final[dict[str, st.SearchStrategy[Any]]] = {
    "int": st.integers(-(2**31), 2**31 - 1).map(Int),
    "long": INT64.map(Long),
    # Those near 1000 need nine digits.
    "float": (st.floats(allow_nan=False, width=32) | st.floats(1000, 1024, width=32)).map(Float),
    "timespan": INT64.map(TimeSpan.of_ticks),
    "datetimeoffset": st.integers(0, 3_155_378_975_999_999_999).map(DateTimeOffset.of_ticks),
    "others": scalars.filter(lambda value: value is not None),
}
"""Any values: those of types with many digits often."""


def test_every_type_has_values() -> None:
    assert set(VALUES) == set(NAMES)


@pytest.mark.parametrize(("name", "value"), EACH)
def test_value_of_a_type_is_encoded_equally_after_its_way_through_text(name: str, value: Any) -> None:
    assert (name_of(value) or "string") == name
    check_text(value)


@pytest.mark.parametrize("kind", RANDOM)
@given(data=st.data())
def test_any_value_is_encoded_equally_after_its_way_through_text(kind: str, data: st.DataObject) -> None:
    check_text(data.draw(RANDOM[kind]))


def check_text(value: Any) -> None:
    text = text_of(value)
    assert text is not None
    assert encode_value(value_of(name_of(value) or "string", text)) == encode_value(value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("boolean", "yes"),
        ("ubyte", "256"),
        ("long", "1.5"),
        ("int", str(2**31)),
        ("decimal128", "ten"),
        ("char", "ab"),
        ("timestamp", "soon"),
        ("uuid", "1"),
        ("binary", "?"),
        ("timespan", "1 h"),
        ("timespan", "P10675200D"),
        ("datetimeoffset", "soon"),
        ("encoded", "AAA="),
        ("integer", "1"),
    ],
)
def test_text_that_is_no_value_of_the_type_is_rejected(name: str, text: str) -> None:
    with pytest.raises(InvalidOperationError, match=f"AMQP type '?{name}"):
        value_of(name, text)


def test_a_text_may_have_another_form() -> None:
    for name, text, value in (
        ("boolean", "TRUE", True),
        ("timestamp", "2024-05-06T07:08:09+02:00", datetime(2024, 5, 6, 5, 8, 9, tzinfo=UTC)),
        ("timestamp", "2024-05-06 07:08:09", datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC)),
        ("datetimeoffset", "2024-05-06T07:08:09.5+02:00", datetime(2024, 5, 6, 5, 8, 9, 500_000, tzinfo=UTC)),
    ):
        assert value_of(name, text) == value
    assert [name_of(value) for value in (-(2**31), 2**31 - 1, -(2**31) - 1, 2**31)] == ["int", "int", "long", "long"]


def test_texts_are_those_that_spark_casts() -> None:
    values = (True, Float(0.1), math.nan, math.inf, datetime(2024, 1, 2, tzinfo=UTC), b"\x00")
    assert [text_of(value) for value in values] == ["true", "0.1", "nan", "inf", "2024-01-02 00:00:00+00:00", "AA=="]


def test_texts_of_the_types_of_net_have_seven_digits_of_a_second() -> None:
    assert text_of(TimeSpan.of_ticks(-36_000_000_001)) == "-PT1H0.0000001S"
    assert text_of(DateTimeOffset.of_ticks(639_310_248_000_000_001)) == "2026-11-23T10:00:00.0000001Z"
