"""Values to bytes and back: `amqp.types`, `encode`, `decode`, `decimals`."""

from __future__ import annotations

import contextlib
import math
from datetime import UTC, datetime, timedelta
from decimal import Context, Decimal
from itertools import product
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbclient.amqp.decimals import DECIMAL128, decode_decimal, encode_decimal, of_service, service_decimal
from sbclient.amqp.decode import MAX_COUNT, decode_value, skip_value
from sbclient.amqp.encode import encode_map, encode_value
from sbclient.amqp.errors import EncodeError, WireError
from sbclient.amqp.types import (
    Array,
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Described,
    Float,
    Int,
    Long,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
    longs,
    milliseconds_of,
    moment_of,
    symbols,
    timestamps,
    uuids,
)
from tests.amqp.strategies import protocol_values, values

MOMENT = datetime(2024, 5, 6, 7, 8, 9, 123000, tzinfo=UTC)
TOKEN = UUID("00112233-4455-6677-8899-aabbccddeeff")

EXACT: list[tuple[Any, str]] = [
    (None, "40"),
    (True, "41"),
    (False, "42"),
    (UInt(0), "43"),
    (ULong(0), "44"),
    ([], "45"),
    (UByte(200), "50c8"),
    (Byte(-2), "51fe"),
    (UInt(255), "52ff"),
    (UInt(256), "7000000100"),
    (ULong(255), "53ff"),
    (ULong(2**64 - 1), "80ffffffffffffffff"),
    (0, "5400"),
    (-128, "5480"),
    (128, "7100000080"),
    (2**31, "810000000080000000"),
    (Int(7), "5407"),
    (Long(-1), "55ff"),
    (Long(2**31 - 1), "81000000007fffffff"),
    (UShort(258), "600102"),
    (Short(-2), "61fffe"),
    (Float(1.5), "723fc00000"),
    (Char("é"), "73000000e9"),
    (1.5, "823ff8000000000000"),
    (MOMENT, "830000018f4cbb3823"),
    (Decimal32("1.5"), "743200000f"),
    (Decimal64("-1"), "84b1c0000000000001"),
    (Decimal32("8388607"), "7432ffffff"),
    (Decimal32("9999999"), "746cb8967f"),
    (Decimal64("-9999999999999999"), "84ec7386f26fc0ffff"),
    (Decimal("1.50"), "94" + "0c3c" + "0" * 26 + "96"),
    (Decimal("Infinity"), "94" + "78" + "0" * 30),
    (Decimal("-Infinity"), "94" + "f8" + "0" * 30),
    (TOKEN, "9800112233445566778899aabbccddeeff"),
    (b"ab", "a0026162"),
    ("é", "a102c3a9"),
    (Symbol("ab"), "a3026162"),
    ([1, "a"], "c00602" + "5401" + "a10161"),
    ({"a": 1}, "c10602" + "a10161" + "5401"),
    (Described(ULong(36), []), "00532445"),
    (Described(Symbol("x"), None), "00a3017840"),
    (symbols(["A", "BC"]), "e00702a3" + "0141" + "024243"),
    (longs([-1]), "e00a0181" + "ff" * 8),
    (timestamps([MOMENT]), "e00a0183" + "0000018f4cbb3823"),
    (uuids([TOKEN]), "e0120198" + "00112233445566778899aabbccddeeff"),
    (Array([1, 2], 0x54), "e00402540102"),
    (Array([True, False], 0x56), "e00402560100"),
    (Array([None] * 3, 0x40), "e0020340"),
    (Array([1], 0x54, ULong(5)), "e006010053055401"),
]


@pytest.mark.parametrize(("value", "encoded"), EXACT, ids=[encoded[:24] for _, encoded in EXACT])
def test_value_has_the_bytes_of_the_specification(value: Any, encoded: str) -> None:
    assert encode_value(value).hex() == encoded
    decoded = decode_value(bytes.fromhex(encoded), typed=True)
    if isinstance(value, Array):
        assert (list(decoded.items), decoded.code, decoded.descriptor) == (
            list(value.items),
            value.code,
            value.descriptor,
        )
    else:
        assert decoded == value
        assert type(decoded) is (int if type(value) is Int else type(value))


@given(values)
def test_typed_value_is_decoded_with_its_type(value: Any) -> None:
    encoded = encode_value(value)
    decoded = decode_value(encoded, typed=True)
    assert encode_value(decoded) == encoded
    assert decoded == value
    assert skip_value(encoded, 0) == len(encoded)


@given(st.integers(-(2**101), 2**101), st.integers(-40, 40))
def test_a_decimal_keeps_its_value_whatever_its_exponent(coefficient: int, exponent: int) -> None:
    number = Decimal(f"{coefficient}E{exponent}")
    assert decode_value(encode_value(number)) == number


@given(protocol_values)
def test_plain_value_equals_the_typed_one(value: Any) -> None:
    assert decode_value(encode_value(value)) == value


@pytest.mark.parametrize(
    ("value", "head"),
    [
        ("a" * 255, "a1ff"),
        ("a" * 256, "b100000100"),
        (Symbol("a" * 256), "b300000100"),
        (b"a" * 256, "b000000100"),
        (["a" * 252], "c0ff01a1fc"),
        (["a" * 253], "d00000010300000001a1fd"),
        ({"": "a" * 250}, "c1ff02a100a1fa"),
        ({"": "a" * 251}, "d10000010300000002a100a1fb"),
        (list(range(100)) + [None] * 156, "d0"),
        (symbols(["a" * 252]), "e0ff01a3fc"),
        (symbols(["a" * 253]), "f00000010300000001a3fd"),
        (symbols(["a" * 256]), "f00000010900000001b300000100"),
        (longs(range(300)), "f0"),
    ],
)
def test_encoding_grows_at_its_limit(value: Any, head: str) -> None:
    encoded = encode_value(value)
    assert encoded.hex().startswith(head)
    decoded = decode_value(encoded)
    assert decoded == (list(value.items) if isinstance(value, Array) else value)


@pytest.mark.parametrize(
    "array",
    [
        Array([[1], [2, "x"]], 0xC0),
        Array([[1], []], 0xD0),
        Array([{"a": [1]}], 0xC1),
        Array([{"a": 1}, {}], 0xD1),
        Array([longs([1]), longs([2, 3])], 0xE0),
        Array([longs([1]), longs(range(100))], 0xF0),
        Array(["a", "b"], 0xB1),
        Array([b"a"], 0xA0),
        Array([b"a"], 0xB0),
        Array([1, 2], 0x52),
        Array([1, 2], 0x53),
        Array([1, -2], 0x55),
        Array([1.5], 0x72),
        Array([1.5], 0x82),
        Array([1], 0x50),
        Array([-1], 0x51),
        Array([1], 0x60),
        Array([-1], 0x61),
        Array([1], 0x70),
        Array([-1], 0x71),
        Array([1], 0x80),
        Array([Decimal(1)], 0x74),
        Array([Decimal(1)], 0x84),
        Array([Decimal(1)], 0x94),
        Array(["x"], 0x73),
        Array([], 0x81),
    ],
)
def test_array_of_any_type_is_decoded_as_encoded(array: Array) -> None:
    encoded = encode_value(array)
    assert encode_value(decode_value(encoded, typed=True)) == encoded
    assert len(decode_value(encoded)) == len(array.items)


def test_described_elements_of_an_array_are_decoded() -> None:
    assert decode_value(encode_value(Array([1, 2], 0x54, Symbol("x")))) == [Described("x", 1), Described("x", 2)]


def test_empty_array_without_constructor_is_read_as_the_sdk_writes_it() -> None:
    assert decode_value(b"\xe0\x01\x00") == []
    assert decode_value(b"\xf0\0\0\0\x04\0\0\0\0") == []


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(object(), id="object"),  # its repr holds an address, which differs between workers
        2**63,
        -(2**63) - 1,
        "\ud800",
        Symbol("\ud800"),
        Array([1], 0x01),
        Array(["x"], 0x81),
        Array([2**63], 0x81),
        Array([1e300], 0x72),
        Array(["ab"], 0x73),
        Array(["\ud800"], 0x73),
        Array([5], 0xA0),
        Array(["a" * 256], 0xA1),
        Array([[0] * 256], 0xC0),
        Array([longs(range(100))], 0xE0),
        Char("ab"),
        Float(1e300),
        Decimal("1" * 35),
        Decimal("1E+7000"),
        Decimal("1E-7000"),
        Decimal((0, (1,) * 2000, 0)),
        Decimal32("12345678"),
        Decimal64("1E+400"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_value_without_amqp_form_is_refused(value: Any) -> None:
    with pytest.raises(EncodeError):
        encode_value(value)


@pytest.mark.parametrize(
    ("kind", "value"), [(UByte, 256), (UInt, -1), (Long, 2**63), (Byte, 128), (ULong, 2**64), (Timestamp, 2**63)]
)
def test_typed_integer_refuses_what_its_type_cannot_hold(kind: type[int], value: int) -> None:
    with pytest.raises(ValueError, match=str(value)):
        kind(value)


def test_decimal_moves_zeros_between_digits_and_exponent() -> None:
    for number in (Decimal("1E+6140"), Decimal("1" + "0" * 40), Decimal("0E+9999"), Decimal((0, (1, 0, 0), -6178))):
        assert decode_value(encode_value(number)) == number


@pytest.mark.deviation("client.decimals")
@pytest.mark.parametrize(
    ("kind", "digits", "lowest", "highest"),
    [(Decimal32, 7, -101, 96), (Decimal64, 16, -398, 384), (Decimal, 34, -6176, 6144)],
)
def test_decimals_reach_to_both_ends_of_their_range(kind: Any, digits: int, lowest: int, highest: int) -> None:
    largest = kind(f"{'9' * digits}E{highest - digits + 1}")
    for number in (largest, kind(f"1E{highest}"), kind(f"-1E{highest}"), kind(f"1E{lowest}"), kind(f"1E{lowest + 1}")):
        assert decode_value(encode_value(number)) == number
    for beyond in (kind(f"1E{highest + 1}"), kind(f"1E{lowest - 1}"), kind(f"1{'0' * (digits - 1)}1E0")):
        with pytest.raises(EncodeError):
            encode_value(beyond)


def test_decimals_of_up_to_96_bits_have_the_form_of_the_service() -> None:
    for coefficient, exponent in product([1, 2**63, 2**95 - 1, 2**95, 2**96 - 1, 2**96], [-29, -28, -1, 0, 1]):
        number = Decimal(coefficient).scaleb(exponent, Context(prec=60))
        raw = encode_decimal(number, DECIMAL128)
        shown = decode_decimal(service_decimal(raw), DECIMAL128)
        is_of_net = exponent >= -28 and coefficient * 10 ** max(exponent, 0) < 2**96
        assert (shown != number) == is_of_net
        assert of_service(shown) == number


def test_decimal_of_the_service_has_an_exponent_that_reads_as_4608_less() -> None:
    for exponent, read in ((-4637, -4637), (-4636, -28), (-4610, -2), (-4608, 0), (-4607, -4607)):
        assert decode_value(encode_value(Decimal((1, (1, 2, 5), exponent)))).as_tuple() == (1, (1, 2, 5), read)


def test_decimal_not_a_number_keeps_its_kind() -> None:
    assert decode_value(encode_value(Decimal("NaN"))).is_qnan()
    assert decode_value(encode_value(Decimal("sNaN"))).is_snan()


def test_decimal_coefficient_above_its_limit_counts_as_zero() -> None:
    assert decode_value(bytes.fromhex("746fffffff")) == 0  # the implicit 100 form, beyond seven digits


def test_timestamp_out_of_range_stays_a_number() -> None:
    beyond = moment_of(253_402_300_800_000)
    assert isinstance(beyond, Timestamp)
    assert decode_value(encode_value(beyond)) == beyond
    assert moment_of(milliseconds_of(MOMENT)) == MOMENT
    assert milliseconds_of(datetime(1969, 12, 31, 23, 59, 59, 999_500, tzinfo=UTC)) == -1
    assert milliseconds_of(MOMENT + timedelta(microseconds=999)) == milliseconds_of(MOMENT)
    assert milliseconds_of(MOMENT.replace(tzinfo=None)) == milliseconds_of(MOMENT)


def test_nan_and_infinities_are_decoded_as_encoded() -> None:
    assert math.isnan(decode_value(encode_value(math.nan)))
    assert decode_value(encode_value(-math.inf)) == -math.inf


def test_subclasses_are_written_as_their_base() -> None:
    class Level(int):
        pass

    assert encode_value(Level(5)) == encode_value(5)
    assert encode_value((1, 2)) == encode_value([1, 2])
    assert encode_value(bytearray(b"ab")) == encode_value(memoryview(b"ab")) == encode_value(b"ab")


def test_map_of_symbols() -> None:
    assert decode_value(encode_map({"a": 1}), typed=True) == {Symbol("a"): 1}


MALFORMED: list[tuple[str, str]] = [
    ("nothing", ""),
    ("unknown code", "3f"),
    ("unknown code in a list", "c0020190"),
    ("bytes behind the value", "4040"),
    ("boolean of two", "5602"),
    ("short uint", "700000"),
    ("short uuid", "9800"),
    ("short decimal", "940000"),
    ("short binary", "a00561"),
    ("huge binary", "b0ffffffff61"),
    ("string not UTF-8", "a101ff"),
    ("symbol not UTF-8", "a301ff"),
    ("char beyond Unicode", "7300110000"),
    ("char half a character", "730000d800"),
    ("list longer than its bytes", "c0050140"),
    ("list with more elements than bytes", "c00305"),
    ("list shorter than its size", "c003014040"),
    ("list of 2**32 elements", "d0ffffffffffffffff"),
    ("list of too many elements", "d0" + f"{70_000 + 4:08x}" + f"{MAX_COUNT + 1:08x}" + "40" * 70_000),
    ("map with an odd number of elements", "c103014040"),
    ("map with the same key twice", "c107045401405401" + "41"),
    ("map with a list for a key", "c103024540"),
    ("array without constructor", "e00101"),
    ("array of unknown code", "e0020190"),
    ("array described twice", "e006010053050053"),
    ("array of too many empty elements", "f000000005" + "0000010040"),
    ("array of 2**32 empty elements", "f000000005" + "ffffffff40"),
    ("array longer than its size", "e003028101"),
    ("described without value", "005305"),
    ("described without descriptor", "00"),
]


@pytest.mark.parametrize("encoded", [encoded for _, encoded in MALFORMED], ids=[name for name, _ in MALFORMED])
@pytest.mark.parametrize("typed", [False, True])
def test_malformed_value_is_a_decode_error(encoded: str, typed: bool) -> None:
    with pytest.raises(WireError) as caught:
        decode_value(bytes.fromhex(encoded), typed=typed)
    assert caught.value.error.condition == "amqp:decode-error"


def test_deep_nesting_is_a_decode_error_and_no_stack_overflow() -> None:
    deep = b"\x40"
    for _ in range(5_000):
        deep = b"\xd0" + (len(deep) + 4).to_bytes(4, "big") + b"\x00\x00\x00\x01" + deep
    for raw in (deep, b"\x00" * 5_000 + b"\x40", b"\x00\x40" * 5_000):
        with pytest.raises(WireError):
            decode_value(raw)
    with pytest.raises(WireError):
        skip_value(b"\x00" * 5_000 + b"\x40", 0)


def test_nesting_of_63_lists_is_allowed_both_ways() -> None:
    nested: list[Any] = []
    for _ in range(62):
        nested = [nested]
    assert decode_value(encode_value(nested)) == nested
    for _ in range(10):
        nested = [nested]
    with pytest.raises(EncodeError):
        encode_value(nested)


@given(st.binary(max_size=60))
def test_any_bytes_give_a_value_or_a_wire_error(raw: bytes) -> None:
    for typed in (False, True):
        with contextlib.suppress(WireError):
            decode_value(raw, typed=typed)


@pytest.mark.parametrize("encoded", ["", "b0ffffffff", "a0", "3f", "70", "00", "0053"])
def test_skipping_malformed_bytes_is_a_wire_error(encoded: str) -> None:
    with pytest.raises(WireError):
        skip_value(bytes.fromhex(encoded), 0)
