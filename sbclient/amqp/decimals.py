"""Encode and decode decimal numbers: IEEE 754-2008 in the binary-integer form, with 32, 64 and 128 bits.

A number has a sign, an exponent and a coefficient. Source: AMQP 1.0 part 1 section 1.6, IEEE 754-2008 section 3.5.2.

Service Bus shows a decimal128 in a form of its own, which its clients read: the upper seven bits of the exponent are
two places too low, so that the number reads as one with an exponent that is 4608 less. Its numbers have the range of
.NET's decimal: a coefficient of 96 bits and at most 28 decimal places.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Final, NamedTuple

from sbclient.amqp.errors import EncodeError


class Format(NamedTuple):
    """The layout of one width."""

    width_bytes: int
    exponent_bits: int
    bias: int
    digits: int


DECIMAL32: Final = Format(4, 8, 101, 7)
DECIMAL64: Final = Format(8, 10, 398, 16)
DECIMAL128: Final = Format(16, 14, 6176, 34)

_SPECIAL: Final = {"F": 0b111100, "n": 0b111110, "N": 0b111111}
"""The six bits after the sign, by the exponent that `Decimal.as_tuple` gives to infinity and the two NaNs."""

_MOST_DIGITS: Final = 1000
"""Numbers with more digits are rejected without a search for trailing zeros."""


def decode_decimal(raw: bytes, form: Format) -> Decimal:
    """Decode `raw`, which has `form.width_bytes` bytes; a coefficient with too many digits counts as zero."""
    word = int.from_bytes(raw, "big")
    bits = form.width_bytes * 8
    sign = word >> (bits - 1)
    lead = (word >> (bits - 5)) & 0xF
    if lead == 0xF:
        if (word >> (bits - 6)) & 1:
            return Decimal("sNaN" if (word >> (bits - 7)) & 1 else "NaN")
        return Decimal("-Infinity" if sign else "Infinity")
    if lead >> 2 == 0b11:
        coefficient_bits = bits - 3 - form.exponent_bits
        coefficient = (0b100 << coefficient_bits) | (word & ((1 << coefficient_bits) - 1))
    else:
        coefficient_bits = bits - 1 - form.exponent_bits
        coefficient = word & ((1 << coefficient_bits) - 1)
    exponent = (word >> coefficient_bits) & ((1 << form.exponent_bits) - 1)
    if coefficient >= 10**form.digits:
        coefficient = 0
    return Decimal((sign, tuple(map(int, str(coefficient))), exponent - form.bias))


def encode_decimal(value: Decimal, form: Format) -> bytes:
    """Encode `value` without rounding.

    Raises:
        EncodeError: the digits or the exponent do not fit.
    """
    sign, digits, exponent = value.as_tuple()
    bits = form.width_bytes * 8
    if isinstance(exponent, str):
        word = (sign << (bits - 1)) | (_SPECIAL[exponent] << (bits - 7))
        return word.to_bytes(form.width_bytes, "big")
    if len(digits) > _MOST_DIGITS:
        raise EncodeError(f"the decimal has {len(digits)} digits, {form.digits} fit: round it or send it as text")
    coefficient = int("".join(map(str, digits)))
    exponent += form.bias
    coefficient, exponent = _fit(coefficient, exponent, form)
    if not 0 <= exponent < 3 << (form.exponent_bits - 2) or coefficient >= 10**form.digits:
        raise EncodeError(f"the decimal {value} does not fit into {form.digits} digits: round it or send it as text")
    coefficient_bits = bits - 1 - form.exponent_bits
    if coefficient >> coefficient_bits:
        coefficient_bits -= 2
        coefficient &= (1 << coefficient_bits) - 1
        exponent |= 0b11 << form.exponent_bits
    word = (sign << (bits - 1)) | (exponent << coefficient_bits) | coefficient
    return word.to_bytes(form.width_bytes, "big")


_SERVICE_SHIFT: Final = 4608
_SERVICE_PLACES: Final = 28
_SERVICE_BITS: Final = 96


def service_decimal(raw: bytes) -> bytes:
    """Convert an encoded decimal128 to the form of the service; one outside of its range is returned unchanged."""
    number = decode_decimal(raw, DECIMAL128)
    sign, digits, exponent = number.as_tuple()
    if not isinstance(exponent, int) or exponent < -_SERVICE_PLACES or exponent > _SERVICE_PLACES:
        return raw
    coefficient: int = int("".join(map(str, digits))) * 10 ** max(exponent, 0)
    if coefficient >> _SERVICE_BITS:
        return raw
    biased = DECIMAL128.bias + min(exponent, 0)
    lead = bytes((sign << 7 | biased >> 9, (biased & 0x7F) << 1, 0, 0))
    return lead + coefficient.to_bytes(12, "big")


def of_service(number: Decimal) -> Decimal:
    """The number that the service meant, given the number that its form reads as; other numbers are unchanged."""
    sign, digits, exponent = number.as_tuple()
    if isinstance(exponent, int) and -_SERVICE_PLACES <= exponent + _SERVICE_SHIFT <= 0:
        return Decimal((sign, digits, exponent + _SERVICE_SHIFT))
    return number


def _fit(coefficient: int, exponent: int, form: Format) -> tuple[int, int]:
    """Move zeros between coefficient and exponent until the number fits, if possible."""
    largest = (3 << (form.exponent_bits - 2)) - 1
    while coefficient and coefficient % 10 == 0 and (exponent < 0 or coefficient >= 10**form.digits):
        coefficient //= 10
        exponent += 1
    while exponent > largest and coefficient and coefficient * 10 < 10**form.digits:
        coefficient *= 10
        exponent -= 1
    if not coefficient:
        exponent = min(max(exponent, 0), largest)
    return coefficient, exponent
