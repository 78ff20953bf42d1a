"""Values that users hand in by mistake or with intent, by name. Each call makes new ones."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from typing import Any, Final, NoReturn, Self
from uuid import UUID

from sbclient import ServiceBusMessage


class Boom(Exception):
    """Raised by values of the user."""


class Text(str):
    __slots__ = ()


class Number(int):
    pass


class Color(str, Enum):  # noqa: UP042 - not a StrEnum: its str() is not its value
    RED = "red"


class Shade(StrEnum):
    DARK = "dark"


class Level(IntEnum):
    LOW = 1


class Plain(Enum):
    ONE = 1


class Stamp(datetime):
    """As a pandas.Timestamp."""


class Span(timedelta):
    """As a pandas.Timedelta."""


class NoDate(datetime):
    """As pandas.NaT: a datetime without a date, which is no number and equals nothing."""

    def timetz(self) -> NoReturn:
        raise ValueError

    def astimezone(self, tz: Any = None) -> Self:
        return self

    def __eq__(self, other: object) -> bool:
        return False

    def __hash__(self) -> int:
        return 1


class Hostile:
    """Fails when it is shown, compared or hashed."""

    def __repr__(self) -> str:
        raise Boom

    __str__ = __repr__

    def __bool__(self) -> bool:
        raise Boom

    def __eq__(self, other: object) -> bool:
        raise Boom

    def __hash__(self) -> int:
        raise Boom


class Untellable(Exception):
    def __str__(self) -> str:
        raise Boom


def failing() -> Iterator[Any]:
    yield ServiceBusMessage("never sent")
    raise Boom


MANY: Final = [ServiceBusMessage("m")] * 4_501
"""More than the service takes at once."""

HUGE: Final = 10**5000
LONG: Final = "x" * 10**6


def hostile_values() -> dict[str, Any]:
    """Return new values of every kind."""
    early, late = timezone(timedelta(hours=14)), timezone(timedelta(hours=-12))
    return {
        "True": True,
        "0": 0,
        "1": 1,
        "-1": -1,
        "2**31": 2**31,
        "2**32": 2**32,
        "2**63": 2**63,
        "2**64": 2**64,
        "maxsize": sys.maxsize,
        "10**5000": HUGE,
        "-10**5000": -HUGE,
        "1.5": 1.5,
        "-0.0": -0.0,
        "1e-300": 1e-300,
        "1e300": 1e300,
        "nan": math.nan,
        "inf": math.inf,
        "-inf": -math.inf,
        "Decimal": Decimal("1.5"),
        "Decimal nan": Decimal("sNaN"),
        "complex": 1j,
        "empty": "",
        "text": "invoices",
        "digits": "5",
        "spaces": "  ",
        "NUL": "a\0b",
        "surrogate": "a\ud800",
        "bidi": "\u202eabc\u2066",
        "emoji": "\U0001f600" * 40,
        "newline": "a\r\nb",
        "slashes": "a/../b//c",
        "129 letters": "x" * 129,
        "10**6 letters": LONG,
        "bytes": b"invoices",
        "not UTF-8": b"\xff",
        "bytearray": bytearray(b"a"),
        "memoryview": memoryview(b"abc")[::2],
        "Text": Text("invoices"),
        "Number": Number(1),
        "Color": Color.RED,
        "Shade": Shade.DARK,
        "Level": Level.LOW,
        "Plain": Plain.ONE,
        "list": [],
        "list of int": [1],
        "list of None": [None],
        "list of bool": [True, False],
        "list of big": [2**63],
        "list of text": ["a"],
        "nested list": [[1]],
        "tuple": (1, 2),
        "dict": {},
        "dict of text": {"a": "b"},
        "dict of int": {1: 2},
        "set": {1},
        "range": range(3),
        "iterator": iter([1, "a"]),
        "failing": failing(),
        "object": object(),
        "class": int,
        "function": lambda: None,
        "exception": ValueError("boom"),
        "exception with surrogate": ValueError("\ud800"),
        "untellable": Untellable(),
        "hostile": Hostile(),
        "UUID": UUID(int=1),
        "earliest": datetime.min,  # noqa: DTZ901
        "latest": datetime.max,  # noqa: DTZ901
        "before year 1": datetime.min.replace(tzinfo=early),
        "after year 9999": datetime.max.replace(tzinfo=late),
        "1970": datetime(1970, 1, 1, tzinfo=UTC),
        "1969": datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
        "naive": datetime(2026, 1, 1),  # noqa: DTZ001
        "no date": NoDate(1, 1, 1),
        "Stamp": Stamp(2026, 1, 1, tzinfo=UTC),
        "date": datetime(2026, 1, 1, tzinfo=UTC).date(),
        "no time": timedelta(0),
        "moment": timedelta(microseconds=1),
        "longest": timedelta.max,
        "Span": Span(seconds=5),
        "negative": timedelta(seconds=-1),
        "shortest": timedelta.min,
        "message": ServiceBusMessage("a message"),
        "4,501 messages": MANY,
    }
