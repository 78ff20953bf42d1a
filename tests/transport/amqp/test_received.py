"""Messages that pass through the backlog keep the bytes of their body and the types of their properties."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from sbclient.amqp import EncodedMessage, Header, Properties, Sections, encode_message
from sbclient.amqp.broker_annotations import BrokerAnnotations, encode_delivery
from sbclient.amqp.encode import encode_value
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
)
from sbclient.delivery import UNKNOWN_TIME
from sbclient.errors import ServiceBusError
from sbclient.message import AmqpMessageBodyType, AmqpMessageHeader, ServiceBusMessage, ServiceBusMessageState
from sbclient.rules.envelope import seal, unseal
from sbclient.transport.amqp.received import AmqpReceivedMessage
from tests.payloads import encode_sections, payload_of

MOMENT = datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC)
PLAIN: Sequence[Any] = (
    None,
    True,
    UByte(200),
    UShort(60_000),
    UInt(4_000_000_000),
    ULong(2**63),
    Byte(-100),
    Short(-30_000),
    Int(7),
    Long(7),
    Float(1.5),
    1.5,
    Decimal32("1.5"),
    Decimal64("1.5"),
    Decimal("1.5"),
    Char("ü"),
    datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC),
    Timestamp(2**60),
    UUID(int=7),
    b"\x00\xff",
    "text",
    Symbol("symbol"),
)
"""A value of every primitive AMQP type."""

WIDE = {
    "int": b"\x71\x00\x00\x00\x07",
    "string": b"\xb1\x00\x00\x00\x01x",
    "boolean": b"\x56\x01",
    "binary": b"\xb0\x00\x00\x00\x01\xff",
    "list": b"\xd0\x00\x00\x00\x06\x00\x00\x00\x01\x54\x07",
}
"""Encodings that are longer than necessary."""


def entries(payload: bytes) -> dict[str, Any]:
    """The application properties with their AMQP types."""
    return {name: (type(value), value) for name, value in Sections(payload).application_properties.items()}


def delivered(payload: bytes) -> bytes:
    """The message as the service delivers it."""
    return encode_delivery(EncodedMessage.of(payload), BrokerAnnotations(1, 1_700_000_000_000))


def received(payload: bytes) -> AmqpReceivedMessage:
    """The delivered message as the transport returns it."""
    return AmqpReceivedMessage.read(delivered(payload), lock_token=None, has_session=False)


def through_the_backlog(message: ServiceBusMessage) -> bytes:
    """The encoding of a message that was diverted, and drained to its entity."""
    stored = payload_of(seal(encode_message(message), "orders"))
    drained = unseal(received(stored), now=1_700_000_000.0, time_to_live_mode="remaining")
    return payload_of(drained.message)


def payload(body: bytes, properties: dict[str, bytes]) -> bytes:
    """A message of encoded parts."""
    pairs = b"".join(encode_value(name) + value for name, value in properties.items())
    count = (2 * len(properties)).to_bytes(4, "big")
    return b"\x00\x53\x74\xd1" + (len(pairs) + 4).to_bytes(4, "big") + count + pairs + body


BODIES = {
    "data": b"\x00\x53\x75\xb0\x00\x00\x00\x01x",
    "two data sections": b"\x00\x53\x75\xa0\x01x\x00\x53\x75\xa0\x01y",
    "every type": b"\x00\x53\x77"
    + encode_value([*PLAIN, list(PLAIN), {"map": 1}, Array([1, 2], 0x71), Described(5, "x")]),
    "wide": b"\x00\x53\x77\xd0\x00\x00\x00\x22\x00\x00\x00\x05" + b"".join(WIDE.values()),
    "sequences": b"\x00\x53\x76\xc0\x03\x01\x54\x07\x00\x53\x76\x45",
}


@pytest.mark.parametrize("name", BODIES)
def test_body_passes_through_the_backlog_byte_by_byte(name: str) -> None:
    message = received(payload(BODIES[name], {"n": encode_value(1)})).copy()
    assert Sections(through_the_backlog(message)).raw_body == BODIES[name]


def test_properties_of_every_type_pass_through_the_backlog() -> None:
    properties = {f"p{number}": encode_value(value) for number, value in enumerate(PLAIN)} | WIDE
    properties["x-ms-path"] = properties["x-ms-user-own"] = encode_value(UShort(9))
    sent = payload(BODIES["data"], properties)
    passed = through_the_backlog(received(sent).copy())
    assert entries(delivered(passed)) == entries(delivered(sent))


def test_value_of_an_edited_property_replaces_the_received_one() -> None:
    message = received(payload(BODIES["data"], {"kept": WIDE["int"], "edited": WIDE["int"]})).copy()
    message.application_properties["edited"] = "new"
    message.application_properties["added"] = True
    encoded = payload_of(message)
    assert entries(encoded) == {"kept": (int, 7), "edited": (str, "new"), "added": (bool, True)}
    assert WIDE["int"] in encoded


def test_copy_of_a_copy_keeps_the_bytes() -> None:
    message = received(payload(BODIES["wide"], {"n": WIDE["binary"]})).copy().copy(subject="s")
    encoded = Sections(payload_of(message))
    assert (encoded.raw_body, encoded.properties.subject) == (BODIES["wide"], "s")
    assert encoded.application_properties["n"] == b"\xff"


def test_a_received_message_shows_every_section() -> None:
    payload = encode_sections(
        header=Header(priority=7, ttl=1000),
        delivery_annotations={"d": 1},
        message_annotations={"x-opt-sequence-number": 5, "mine": "a"},
        properties=Properties(message_id=UUID(int=1), user_id=b"u", group_sequence=3),
        application_properties={"n": 1},
        value=[1, "x"],
        footer={"f": 2},
    )
    raw = AmqpReceivedMessage.read(payload, lock_token=None, has_session=False).raw_amqp_message
    assert (raw.header.priority, raw.header.time_to_live, raw.header.first_acquirer) == (7, 1000, False)
    assert (raw.properties.message_id, raw.properties.user_id, raw.properties.group_sequence) == (UUID(int=1), b"u", 3)
    assert (raw.annotations, raw.delivery_annotations) == ({"x-opt-sequence-number": 5, "mine": "a"}, {"d": 1})
    assert (raw.footer, raw.application_properties) == ({"f": 2}, {"n": 1})
    assert (raw.body, raw.body_type) == ([1, "x"], AmqpMessageBodyType.VALUE)
    bare = AmqpReceivedMessage.read(payload_of(ServiceBusMessage("x")), lock_token=None, has_session=False)
    assert bare.raw_amqp_message.header == AmqpMessageHeader()


def test_a_repr_of_a_message_with_unreadable_properties_says_so() -> None:
    payload = b"\x00\x53\x74" + b"\xc1\x06\x02\x54\x05\xa1\x01a"  # the name of the property is a number
    received = AmqpReceivedMessage.read(payload, lock_token=None, has_session=False)
    with pytest.raises(ServiceBusError):
        _ = received.application_properties
    assert repr(received).startswith("ServiceBusReceivedMessage(")
    assert "application_properties=unreadable" in repr(received)


def test_attribute_that_was_set_is_not_decoded_any_more() -> None:
    message = received(payload_of(ServiceBusMessage("x", subject="sent", message_id="m")))
    message.subject = "set"
    message.locked_until_utc = until = datetime(2030, 1, 1, tzinfo=UTC)
    assert (message.message_id, message.subject, message.sequence_number) == ("m", "set", 1)
    assert message.locked_until_utc == until


@pytest.mark.parametrize(
    ("name", "annotation", "value", "shown"),
    [
        (
            "enqueued_time_utc",
            "x-opt-enqueued-time",
            datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC),
            datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC),
        ),
        ("enqueued_time_utc", "x-opt-enqueued-time", "text", datetime(1970, 1, 1, tzinfo=UTC)),
        ("enqueued_time_utc", "x-opt-enqueued-time", Timestamp(2**62), datetime.max.replace(tzinfo=UTC)),
        ("dead_letter_source", "x-opt-deadletter-source", "q", "q"),
        ("dead_letter_source", "x-opt-deadletter-source", 5, None),
        ("sequence_number", "x-opt-sequence-number", Long(5), 5),
        ("sequence_number", "x-opt-sequence-number", "5", 0),
        ("enqueued_sequence_number", "x-opt-enqueue-sequence-number", Long(5), 5),
        ("enqueued_sequence_number", "x-opt-enqueue-sequence-number", "5", None),
        ("locked_until_utc", "x-opt-locked-until", MOMENT, None),  # it is not locked
        ("state", "x-opt-message-state", Int(1), ServiceBusMessageState.DEFERRED),
        ("state", "x-opt-message-state", Int(9), ServiceBusMessageState.ACTIVE),
    ],
)
def test_annotations_of_the_broker_have_their_type_or_are_unknown(
    name: str, annotation: str, value: Any, shown: Any
) -> None:
    payload = encode_sections(message_annotations={annotation: value}, data=[b""])
    message = AmqpReceivedMessage.read(payload, lock_token=None, has_session=False)
    assert getattr(message, name) == shown


def test_delivery_count_and_end_of_the_time_to_live_are_read() -> None:
    payload = encode_sections(
        header=Header(ttl=1000, delivery_count=2), message_annotations={"x-opt-enqueued-time": MOMENT}, data=[b""]
    )
    message = AmqpReceivedMessage.read(payload, lock_token=None, has_session=False)
    assert (message.delivery_count, message.expires_at_utc) == (2, MOMENT + timedelta(seconds=1))
    without = encode_sections(header=Header(ttl=1000), data=[b""])
    message = AmqpReceivedMessage.read(without, lock_token=None, has_session=False)
    assert (message.enqueued_time_utc, message.expires_at_utc) == (UNKNOWN_TIME, None)


def test_message_of_a_session_has_a_token_and_no_lock_of_its_own() -> None:
    payload = encode_sections(message_annotations={"x-opt-locked-until": MOMENT}, data=[b""])
    token = UUID(int=7).bytes_le
    locked, in_session = (
        AmqpReceivedMessage.read(payload, lock_token=token, has_session=has_session) for has_session in (False, True)
    )
    assert (locked.lock_token, locked.locked_until_utc) == (UUID(int=7), MOMENT)
    assert (in_session.lock_token, in_session.locked_until_utc) == (UUID(int=7), None)


def test_unknown_attribute_is_an_attribute_error() -> None:
    message = received(payload_of(ServiceBusMessage("x")))
    assert not hasattr(message, "nothing")
    assert message.auto_renew_error is None
