"""Python classes for AMQP types that have no Python type of their own.

Python values are encoded as: None null, bool boolean, int int (long beyond 32 bits), float double, str string,
bytes binary, datetime timestamp, timedelta the timespan of .NET, UUID uuid, Decimal decimal128, list and tuple list,
dict map. Every other type has a class here. It is a subclass of the Python class, so that a decoded value behaves like
the plain value and is encoded again as the same type. Source: AMQP 1.0 part 1 section 1.6; the .NET clients for the
three described types of theirs, and for the form of decimals (see `amqp.decimals`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final, NamedTuple, Self
from uuid import UUID

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_YEAR_ONE: Final = datetime(1, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_MICROSECOND: Final = timedelta(microseconds=1)


class Symbol(str):
    """A name from a constrained set. The specification demands ASCII; UTF-8 is accepted, as by the SDK."""

    __slots__ = ()


class Char(str):
    """One Unicode character."""

    __slots__ = ()


class TypedInteger(int):
    """An integer with a range of its own."""

    __slots__ = ()
    limits: range = range(0)

    def __new__(cls, value: int) -> Self:
        if int(value) not in cls.limits:  # for a subclass of int, `in` would search the whole range
            raise ValueError(f"{value} is out of range for {cls.__name__}: {cls.limits.start} to {cls.limits.stop - 1}")
        return int.__new__(cls, value)


class UByte(TypedInteger):
    __slots__ = ()
    limits = range(2**8)


class UShort(TypedInteger):
    __slots__ = ()
    limits = range(2**16)


class UInt(TypedInteger):
    __slots__ = ()
    limits = range(2**32)


class ULong(TypedInteger):
    __slots__ = ()
    limits = range(2**64)


class Byte(TypedInteger):
    __slots__ = ()
    limits = range(-(2**7), 2**7)


class Short(TypedInteger):
    __slots__ = ()
    limits = range(-(2**15), 2**15)


class Int(TypedInteger):
    __slots__ = ()
    limits = range(-(2**31), 2**31)


class Long(TypedInteger):
    __slots__ = ()
    limits = range(-(2**63), 2**63)


class Timestamp(TypedInteger):
    """Milliseconds since 1970-01-01 UTC, for times outside the range of `datetime`."""

    __slots__ = ()
    limits = range(-(2**63), 2**63)


class Float(float):
    """A 32-bit number; a Python float is encoded with 64 bits."""

    __slots__ = ()


class Decimal32(Decimal):
    """A decimal of at most 7 digits."""

    __slots__ = ()


class Decimal64(Decimal):
    """A decimal of at most 16 digits."""

    __slots__ = ()


class Binary(bytes):
    """Binary in an application property; plain `bytes` are sent as text there, as by azure-servicebus."""

    __slots__ = ()


class TimeSpan(timedelta):
    """A duration of .NET, `com.microsoft:timespan`: a timedelta with seven digits of a second.

    Attributes:
        tick: the seventh digit.
    """

    tick: int = 0

    @classmethod
    def of_ticks(cls, ticks: int) -> Self:
        """Return the duration of `ticks` times 100 ns.

        Raises:
            OverflowError: they do not fit into 64 bits.
        """
        if not -(2**63) <= ticks < 2**63:
            raise OverflowError(f"{ticks} ticks do not fit into 64 bits")
        value = cls(microseconds=ticks // 10)
        value.tick = ticks % 10
        return value

    @property
    def ticks(self) -> int:
        """The duration in units of 100 ns."""
        return ticks_of(self)

    def __reduce__(self) -> Any:
        return self.of_ticks, (self.ticks,)


class DateTimeOffset(datetime):
    """A time of .NET, `com.microsoft:datetime-offset`: a datetime in UTC with seven digits of a second.

    Attributes:
        tick: the seventh digit.
    """

    tick: int = 0

    @classmethod
    def of_ticks(cls, ticks: int) -> Self:
        """Return the time that is `ticks` times 100 ns after the beginning of the year 1.

        Raises:
            OverflowError: it is not in the years 1 to 9999.
        """
        value = cls(1, 1, 1, tzinfo=UTC) + timedelta(microseconds=ticks // 10)
        value.tick = ticks % 10
        return value

    @property
    def ticks(self) -> int:
        """The time since the beginning of the year 1, in units of 100 ns; a naive time counts as UTC."""
        return _since_year_one(self) // _MICROSECOND * 10 + self.tick

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.of_ticks, (self.ticks,)


def _since_year_one(time: datetime) -> timedelta:
    return (time if time.tzinfo is not None else time.replace(tzinfo=UTC)) - _YEAR_ONE


class Uri(str):
    """An address of .NET, `com.microsoft:uri`."""

    __slots__ = ()


TIME_SPAN: Final = Symbol("com.microsoft:timespan")
DATE_TIME_OFFSET: Final = Symbol("com.microsoft:datetime-offset")
URI: Final = Symbol("com.microsoft:uri")


class Opaque(str):
    """A string in place of a value that an application property cannot be, such as a list.

    Attributes:
        encoded: the AMQP encoding of the value.
    """

    __slots__ = ("encoded",)

    encoded: bytes

    @classmethod
    def of(cls, shown: str, encoded: bytes) -> Self:
        """Create a value with the text `shown`."""
        value = cls(shown)
        value.encoded = encoded
        return value


class Described(NamedTuple):
    """A value with a descriptor: a number (ulong) or a symbol."""

    descriptor: Any
    value: Any


class Array(NamedTuple):
    """Values of one type, encoded with one constructor.

    Attributes:
        items: the values.
        code: the format code of their encoding, e.g. 0x81 for long.
        descriptor: of each element, or None.
    """

    items: Sequence[Any]
    code: int
    descriptor: Any = None


def symbols(names: Iterable[str]) -> Array:
    """An array of symbols, the form of capabilities and SASL mechanisms."""
    held = tuple(names)
    short = all(len(name.encode()) <= 255 for name in held)
    return Array(held, 0xA3 if short else 0xB3)


def longs(values: Iterable[int]) -> Array:
    """An array of long."""
    return Array(tuple(values), 0x81)


def timestamps(values: Iterable[datetime]) -> Array:
    """An array of timestamp."""
    return Array(tuple(values), 0x83)


def uuids(values: Iterable[UUID]) -> Array:
    """An array of uuid."""
    return Array(tuple(values), 0x98)


def ticks_of(duration: timedelta) -> int:
    """Units of 100 ns; exact for a `TimeSpan`, else whole microseconds."""
    return duration // _MICROSECOND * 10 + getattr(duration, "tick", 0)


def milliseconds_of(time: datetime) -> int:
    """Whole milliseconds since 1970, rounded down; a naive datetime counts as UTC."""
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    return (time - EPOCH) // _MILLISECOND


@lru_cache(maxsize=256)
def moment_of(milliseconds: int) -> datetime | Timestamp:
    """The datetime in UTC, or a `Timestamp` outside of its range (before year 1, after 9999)."""
    try:
        return EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return Timestamp(milliseconds)
