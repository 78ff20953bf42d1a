from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import pytest
from pyspark.sql import SparkSession

from sbclient import ServiceBusMessage
from sbclient.amqp.encode import encode_value
from sbclient.amqp.types import (
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Described,
    Float,
    Int,
    Long,
    Opaque,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)
from sbclient.client.client import ServiceBusClient
from sbclient.errors import InvalidOperationError
from sbclient_spark.clients import open_client, worker_clients
from sbclient_spark.property_types import NAMES, name_of, text_of, value_of
from sbclient_spark.read.browsing import browse
from sbclient_spark.read.options import read_options
from sbclient_spark.write.message_ids import canonical
from tests.spark.emulated import EmulatedPair

VALUES: Final[dict[str, list[Any]]] = {
    "boolean": [True, False],
    "ubyte": [UByte(0), UByte(255)],
    "ushort": [UShort(0), UShort(65_535)],
    "uint": [UInt(0), UInt(2**32 - 1)],
    "ulong": [ULong(0), ULong(2**63 - 1), Opaque.of(str(2**64 - 1), encode_value(ULong(2**64 - 1)))],
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
    "binary": [Opaque.of("", encode_value(raw)) for raw in (b"", b"\x00\xff", b"text")],
    "symbol": [Symbol("amqp:name"), Symbol("")],
    "encoded": [
        Opaque.of("", encode_value(value))
        for value in (Described(Symbol("com.microsoft:timespan"), Long(10_000_000)), [1, "two"], {"k": 1})
    ],
    "string": ["", "5", "true", "é\n"],
}
"""Values of every AMQP type, as a received message has them."""

EACH: Final = [
    pytest.param(name, value, id=f"{name}-{place}") for name in VALUES for place, value in enumerate(VALUES[name])
]


def test_every_type_has_values() -> None:
    assert set(VALUES) == set(NAMES)


@pytest.mark.parametrize(("name", "value"), EACH)
def test_value_of_a_type_is_encoded_equally_after_its_way_through_text(name: str, value: Any) -> None:
    text = text_of(value)
    assert text is not None
    assert (name_of(value) or "string") == name
    assert encode_value(value_of(name, text)) == encode_value(value)


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
        ("encoded", "AAA="),
        ("integer", "1"),
    ],
)
def test_text_that_is_no_value_of_the_type_is_rejected(name: str, text: str) -> None:
    with pytest.raises(InvalidOperationError, match=f"AMQP type '?{name}"):
        value_of(name, text)


def test_texts_are_those_that_spark_casts() -> None:
    values = (True, Float(0.1), math.nan, math.inf, datetime(2024, 1, 2, tzinfo=UTC), b"\x00")
    assert [text_of(value) for value in values] == ["true", "0.1", "nan", "inf", "2024-01-02 00:00:00+00:00", "AA=="]


def test_values_of_different_content_have_different_canonical_bytes() -> None:
    values = [UUID(int=1), UUID(int=2), *VALUES["binary"], *VALUES["encoded"], str(UUID(int=1))]
    assert len(set(map(canonical, values))) == len(values)


# -- rows that are read and written again ------------------------------------------------------------------------


def peeked(pair: EmulatedPair, queue: str) -> dict[str, tuple[bytes, dict[str, bytes]]]:
    """The bodies and encoded properties of all messages of a queue by message id, received over AMQP."""

    async def peek(client: ServiceBusClient) -> Iterator[Any]:
        found = [message async for page in browse(client.get_queue_receiver(queue), 1) for message in page]
        return iter(found)

    async def connect() -> Iterator[Any]:
        options = read_options(pair.reading(queue=queue)).connection
        async with open_client(options, paired=False) as client:
            return await peek(client)

    return {
        message.message_id: (
            bytes(message),
            {name: encode_value(value) for name, value in message.application_properties.items()},
        )
        for message in worker_clients().run(connect())
    }


def send(pair: EmulatedPair, queue: str, messages: list[ServiceBusMessage]) -> None:
    async def send() -> None:
        async with pair.client() as client:
            await client.get_queue_sender(queue).send_messages(messages)

    pair.run(send())


def test_rows_that_are_written_again_keep_the_type_of_every_property(spark: SparkSession, pair: EmulatedPair) -> None:
    source, copies = pair.create_queue("source"), pair.create_queue("copies")
    messages = [
        ServiceBusMessage(
            f"{name} {place}", message_id=f"{name} {place}", application_properties={name: value, "s": "1"}
        )
        for name, values in VALUES.items()
        for place, value in enumerate([*values, None])
    ]
    whole = {name: values[0] for name, values in VALUES.items()}
    send(pair, source, [*messages, ServiceBusMessage("all", message_id="all", application_properties=whole)])
    rows = spark.read.format("servicebus").options(**pair.reading(queue=source)).load()
    rows.write.format("servicebus").mode("append").options(**pair.options(queue=copies)).save()
    expected = peeked(pair, source)
    assert len(expected) == len(messages) + 1
    assert peeked(pair, copies) == expected


def test_dead_letters_that_are_written_again_lose_what_the_service_has_added(
    spark: SparkSession, pair: EmulatedPair
) -> None:
    source, copies = pair.create_queue("source"), pair.create_queue("copies")
    own = {"n": Long(5), "DeadLetterCount": "mine"}
    send(pair, source, [ServiceBusMessage("bad", message_id="bad", application_properties=own)])

    async def dead_letter() -> None:
        async with pair.client() as client:
            receiver = client.get_queue_receiver(source)
            (message,) = await receiver.receive_messages(max_wait_time=1)
            await receiver.dead_letter_message(message, reason="Spoilt", error_description="too old")

    pair.run(dead_letter())
    letters = spark.read.format("servicebus").options(**pair.reading(queue=source, subQueue="deadletter")).load()
    assert letters.selectExpr("application_properties['DeadLetterReason'] AS r").first() == ("Spoilt",)
    letters.write.format("servicebus").mode("append").options(**pair.options(queue=copies)).save()
    encoded = {name: encode_value(value) for name, value in own.items()}
    assert peeked(pair, copies) == {"bad": (b"bad", encoded)}


def test_a_changed_text_keeps_its_type(spark: SparkSession, pair: EmulatedPair) -> None:
    source, copies = pair.create_queue("source"), pair.create_queue("copies")
    send(
        pair, source, [ServiceBusMessage("x", message_id="x", application_properties={"n": UInt(5), "drop": Short(1)})]
    )
    rows = spark.read.format("servicebus").options(**pair.reading(queue=source)).load()
    changed = rows.selectExpr(
        "* EXCEPT (application_properties)",
        "map('n', string(application_properties['n'] + 1), 'new', 'text') AS application_properties",
    )
    changed.write.format("servicebus").mode("append").options(**pair.options(queue=copies)).save()
    assert peeked(pair, copies)["x"][1] == {"n": encode_value(UInt(6)), "new": encode_value("text")}
