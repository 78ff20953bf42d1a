"""The AMQP types of application properties and bodies through reads and writes of Spark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

from pyspark.sql import SparkSession

from sbclient import ServiceBusMessage
from sbclient.amqp import EncodedMessage
from sbclient.amqp.encode import encode_map, encode_value
from sbclient.amqp.encoded import encode_body
from sbclient.amqp.types import Long, Short, UInt
from sbclient.client.client import ServiceBusClient
from sbclient.message import AmqpMessageBodyType
from sbclient_spark.clients import open_client, worker_clients
from sbclient_spark.read.browsing import browse
from sbclient_spark.read.options import read_options
from sbclient_spark.write.message_ids import canonical
from tests.amqp.test_value_texts import VALUES
from tests.net_types import NET_TYPES, bodies
from tests.stage.pair import EmulatedPair

DATA = AmqpMessageBodyType.DATA


def test_values_of_different_content_have_different_canonical_bytes() -> None:
    values = [
        UUID(int=1),
        UUID(int=2),
        *VALUES["binary"],
        *VALUES["encoded"],
        *VALUES["timespan"],
        *VALUES["datetimeoffset"],
        str(UUID(int=1)),
    ]
    assert len(set(map(canonical, values))) == len(values)


# -- rows that are read and written again ------------------------------------------------------------------------


def peeked(pair: EmulatedPair, queue: str) -> dict[str, tuple[bytes, dict[str, bytes]]]:
    """The encoded bodies and properties of all messages of a queue by message id, received over AMQP."""

    async def peek(client: ServiceBusClient) -> Iterator[Any]:
        found = [message async for page in browse(client.get_queue_receiver(queue), 1) for message in page]
        return iter(found)

    async def connect() -> Iterator[Any]:
        options = read_options(pair.reading(queue=queue)).connection
        async with open_client(options, paired=False) as client:
            return await peek(client)

    return {
        message.message_id: (
            encode_body(message.body if message.body_type is not DATA else bytes(message), message.body_type),
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


def test_rows_that_are_written_again_keep_values_and_sequences(spark: SparkSession, pair: EmulatedPair) -> None:
    source, copies = pair.create_queue("source"), pair.create_queue("copies")
    others = [encode_map({1: "a"}, encode_value), encode_value("ü"), encode_value("")]
    raw = [*(body for net in NET_TYPES for body in bodies(net.raw)), *(b"\x00\x53\x77" + each for each in others)]
    messages = [EncodedMessage.of(each).decoded() for each in raw]
    for place, message in enumerate(messages):
        message.message_id = str(place)
    send(pair, source, [*messages, ServiceBusMessage("data", message_id="data")])
    rows = spark.read.format("servicebus").options(**pair.reading(queue=source)).load()
    rows.write.format("servicebus").mode("append").options(**pair.options(queue=copies)).save()
    read = {row.message_id: (row.body_type, row.body.decode()) for row in rows.collect()}
    of_decimal = read[str(4 * [net.name for net in NET_TYPES].index("decimal"))]
    assert of_decimal == ("value", '{"decimal": "12.5"}')
    assert read[str(len(raw) - 2)] == ("text", "ü")
    assert read["data"] == ("data", "data")
    copied = peeked(pair, copies)
    assert copied == {str(place): (body, {}) for place, body in enumerate(raw)} | {
        "data": (encode_body(b"data", DATA), {})
    }


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
    assert peeked(pair, copies) == {"bad": (encode_body(b"bad", DATA), encoded)}


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
