"""The types of application properties that .NET clients send, as they encode them and as Python reads them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final, NamedTuple
from uuid import UUID

from azure.servicebus._pyamqp._decode import _DECODE_BY_CONSTRUCTOR

from sbclient.amqp.encode import encode_string, sized_list, sized_map
from sbclient.amqp.types import (
    Binary,
    Byte,
    Char,
    DateTimeOffset,
    Float,
    Long,
    Short,
    TimeSpan,
    UByte,
    UInt,
    ULong,
    Uri,
    UShort,
)


class NetType(NamedTuple):
    """One type.

    Attributes:
        name: in C#.
        amqp: the name of its AMQP type.
        raw: an encoded value.
        value: the same value as Python reads it from an application property.
    """

    name: str
    amqp: str
    raw: bytes
    value: Any


def _described(name: str, content: str) -> str:
    return f"00a3{len(name):02x}{name.encode().hex()}{content}"


_TICKS: Final = 639_310_248_000_000_001

NET_TYPES: Final = [
    NetType(name, amqp, bytes.fromhex(raw), value)
    for name, amqp, raw, value in (
        ("null", "null", "40", None),
        ("string", "string", "a10474657874", "text"),
        ("bool", "boolean", "41", True),
        ("byte", "ubyte", "5001", UByte(1)),
        ("sbyte", "byte", "51ff", Byte(-1)),
        ("short", "short", "61ff00", Short(-256)),
        ("ushort", "ushort", "60ffff", UShort(65_535)),
        ("int", "int", "71ffff0000", -65_536),
        ("uint", "uint", "70ffffffff", UInt(2**32 - 1)),
        ("long", "long", "5505", Long(5)),
        ("long above 32 bits", "long", "810000010000000000", 2**40),
        ("ulong", "ulong", "808000000000000000", ULong(2**63)),
        ("float", "float", "723fc00000", Float(1.5)),
        ("double", "double", "823ff8000000000000", 1.5),
        ("decimal", "decimal128", "940c3e" + "00" * 13 + "7d", Decimal("12.5")),
        ("char", "char", "7300000078", Char("x")),
        ("Guid", "uuid", "9800112233445566778899aabbccddeeff", UUID("00112233-4455-6677-8899-aabbccddeeff")),
        ("DateTime", "timestamp", "83000001a20846fe00", datetime(2026, 11, 23, 12, tzinfo=UTC)),
        (
            "DateTimeOffset",
            "com.microsoft:datetime-offset",
            _described("com.microsoft:datetime-offset", f"81{_TICKS:016x}"),
            DateTimeOffset.of_ticks(_TICKS),
        ),
        (
            "TimeSpan",
            "com.microsoft:timespan",
            _described("com.microsoft:timespan", "81000000006b49d201"),
            TimeSpan.of_ticks(1_800_000_001),
        ),
        (
            "Uri",
            "com.microsoft:uri",
            _described("com.microsoft:uri", "a114687474703a2f2f6578616d706c652e6f72672f78"),
            Uri("http://example.org/x"),
        ),
        ("byte[], Stream", "binary", "a00300ff61", Binary(b"\x00\xffa")),
    )
]


def bodies(raw: bytes) -> list[bytes]:
    """A value, a list, a map with a list in it, and two sequences."""
    listed = sized_list(raw + raw, 2)
    mapped = sized_map(encode_string("k") + raw + encode_string("l") + listed, 4)
    sequence = b"\x00\x53\x76" + listed
    return [*(b"\x00\x53\x77" + body for body in (raw, listed, mapped)), sequence + sequence]


def by_azure_servicebus(raw: bytes) -> str:
    """Return the class of the value that azure-servicebus decodes, or that it cannot decode it."""
    decode = _DECODE_BY_CONSTRUCTOR[raw[0]]
    if not callable(decode):
        return "the message is not received"
    _, value = decode(memoryview(raw[1:]))
    return f"`{value}`" if value is None else f"`{type(value).__name__}`"


def table() -> Iterator[str]:
    """Yield the lines of the table in docs/reference.md."""
    yield "| .NET | AMQP | this package | azure-servicebus |"
    yield "|---|---|---|---|"
    for name, amqp, raw, value in NET_TYPES:
        base = next((each for each in type(value).__mro__[1:] if each.__module__ in ("builtins", "datetime")), object)
        if type(value).__module__ == "sbclient.amqp.types":
            ours = f"`{type(value).__name__}`, derives from `{base.__name__}`"
        else:
            ours = "`None`" if value is None else f"`{type(value).__name__}`"
        yield f"| {name} | {amqp} | {ours} | {by_azure_servicebus(raw)} |"
