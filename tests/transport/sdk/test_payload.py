from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from azure.servicebus import ServiceBusMessageBatch, ServiceBusReceivedMessage
from azure.servicebus._pyamqp._decode import decode_payload
from azure.servicebus._pyamqp._encode import encode_payload
from azure.servicebus._pyamqp.message import BatchMessage

from sbclient.amqp import Header, Properties, Sections, WireMessage, encode_sections, join_batch, split_batch
from sbclient.amqp.sections import APPLICATION_PROPERTIES
from sbclient.amqp.types import Byte, Char, Decimal64, Float, Long, Symbol, Timestamp, UInt, ULong
from sbclient.errors import InvalidOperationError
from sbclient.message import AmqpMessageBodyType, ServiceBusMessage
from sbclient.rules.envelope import seal, unseal
from sbclient.rules.size import batch_size
from sbclient.transport.sdk.payload import (
    OpaqueProperty,
    encoded,
    fill_batch,
    is_known_sdk,
    payload_of,
    read_payload,
    schedule_request,
    wrapped,
)
from sbclient.transport.sdk.received import AzureReceivedMessage, received

TOKEN = UUID("c2ce7ed4-d57b-1e2f-eb89-414c343c0000")
ENQUEUED_AT = datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
LOCKED_UNTIL = ENQUEUED_AT + timedelta(minutes=1)

ODD: dict[str, Any] = {
    "text": "grüße",
    "int": 5,
    "long": 2**40,
    "small long": Long(5),
    "ulong": ULong(2**63 + 5),
    "uint": UInt(7),
    "byte": Byte(-3),
    "symbol": Symbol("sym"),
    "binary": b"\xff\xfe",
    "binary text": b"abc",
    "float": Float(1.5),
    "double": 2.5,
    "char": Char("x"),
    "moment": datetime(2026, 5, 4, 3, 2, 1, 2000, tzinfo=UTC),
    "far moment": Timestamp(10**15),
    "uuid": UUID(int=5),
    "decimal": Decimal("1.10"),
    "decimal64": Decimal64("2.50"),
    "bool": True,
    "null": None,
}


class Receiver:
    """As much of a receiver as the SDK's message asks for."""

    session = None


def delivered(payload: bytes, **annotations: Any) -> ServiceBusReceivedMessage:
    """What the SDK makes of a delivery that was wrapped."""
    whole = (
        encode_sections(
            header=Header(delivery_count=2),
            message_annotations={
                "x-opt-enqueued-time": ENQUEUED_AT,
                "x-opt-locked-until": LOCKED_UNTIL,
                "x-opt-sequence-number": Long(77),
                **annotations,
            },
        )
        + payload
    )
    decoded = decode_payload(memoryview(wrapped(whole)))
    frame = [0, 1, TOKEN.bytes_le, 0, False, False, None, None, None, None, None, b""]
    return ServiceBusReceivedMessage(decoded, frame=frame, receiver=Receiver())  # type: ignore[arg-type]


def as_received(sdk_message: Any, **changes: Any) -> AzureReceivedMessage:
    message = received(sdk_message, **{"is_wrapped": True, "is_locked": True, "has_session": False, **changes})
    assert message is not None
    return message


def test_this_version_of_the_sdk_is_known() -> None:
    assert is_known_sdk()


def test_the_sdk_carries_a_payload_it_could_not_decode_itself() -> None:
    payload = encode_sections(application_properties={"c": Char("x")}, value=Decimal64("1"))
    with pytest.raises(TypeError):
        decode_payload(memoryview(payload))
    assert payload_of(delivered(payload)).endswith(payload)


def test_bytes_that_are_no_message_are_carried_too() -> None:
    decoded = decode_payload(memoryview(wrapped(b"\x01\x02\x03")))
    assert decoded.data == [b"\x01\x02\x03"]


def test_what_the_broker_says_is_read_from_the_annotations() -> None:
    payload = encode_sections(properties=Properties(message_id="m", group_id=None), data=[b"hello"])
    sdk_message = delivered(payload, **{"x-opt-message-state": 1, "x-opt-deadletter-source": "orders"})
    message = as_received(sdk_message)
    assert bytes(message) == b"hello"
    assert (message.message_id, message.sequence_number, message.delivery_count) == ("m", 77, 2)
    assert (message.enqueued_time_utc, message.locked_until_utc) == (ENQUEUED_AT, LOCKED_UNTIL)
    assert (message.lock_token, message.state.name, message.dead_letter_source) == (TOKEN, "DEFERRED", "orders")
    assert message.sdk is sdk_message


def test_the_end_of_a_life_counts_from_the_arrival() -> None:
    payload = encode_sections(data=[b""])
    whole = encode_sections(header=Header(ttl=90_000), message_annotations={"x-opt-enqueued-time": ENQUEUED_AT})
    decoded = decode_payload(memoryview(wrapped(whole + payload)))
    message = as_received(ServiceBusReceivedMessage(decoded, receiver=Receiver()))
    assert message.expires_at_utc == ENQUEUED_AT + timedelta(seconds=90)


def test_what_is_not_locked_has_no_token_and_a_session_has_its_own_lock() -> None:
    payload = encode_sections(data=[b"x"])
    peeked = as_received(delivered(payload), is_locked=False)
    assert (peeked.lock_token, peeked.locked_until_utc) == (None, None)
    in_session = as_received(delivered(payload), has_session=True)
    assert (in_session.lock_token, in_session.locked_until_utc) == (TOKEN, None)


def test_a_message_nobody_can_read_is_left_out() -> None:
    assert received(delivered(b"\x01\x02"), is_wrapped=True, is_locked=True, has_session=False) is None


def test_properties_of_every_amqp_type_go_out_as_they_came() -> None:
    payload = encode_sections(properties=Properties(message_id="m"), application_properties=ODD, data=[b"x"])
    message = read_payload(payload)
    assert encoded(message.copy()) == payload


def test_properties_read_as_values_of_python() -> None:
    properties = read_payload(encode_sections(application_properties=ODD, data=[b"x"])).application_properties
    plain = {name: value for name, value in ODD.items() if name not in ("binary", "binary text", "ulong")}
    assert {name: properties[name] for name in plain} == plain
    assert (properties["binary text"], properties["ulong"]) == ("abc", str(2**63 + 5))
    assert all(isinstance(name, str) for name in properties)


@pytest.mark.parametrize(
    "body",
    [
        {"value": [ULong(3), {"k": b"\xff"}, None, 2**40, Char("x")]},
        {"value": False},
        {"value": None},
        {"sequences": [[1, UInt(2)], ["a"]]},
        {"data": [b"one", b"two"]},
        {"data": [b"\xff\x00"]},
    ],
)
def test_a_message_comes_through_the_backlog_with_every_byte_of_its_own(body: dict[str, Any]) -> None:
    payload = encode_sections(properties=Properties(message_id="m", group_id="s"), application_properties=ODD, **body)
    sent = read_payload(payload).copy(time_to_live=timedelta(hours=1))
    in_backlog = as_received(delivered(encoded(seal(sent, "orders"))))
    destination, home, _ = unseal(in_backlog, now=ENQUEUED_AT.timestamp() + 60.0, time_to_live_mode="remaining")
    ours, original = Sections(encoded(home)), Sections(payload)
    assert destination == "orders"
    assert ours.raw_body == original.raw_body
    assert ours.raw(APPLICATION_PROPERTIES) == original.raw(APPLICATION_PROPERTIES)
    assert (home.session_id, home.message_id, home.time_to_live) == ("s", "m", timedelta(minutes=59))


def test_an_opaque_property_can_be_given_to_another_message() -> None:
    opaque = OpaqueProperty.of(b"\xff")
    message = ServiceBusMessage(b"x", application_properties={"raw": opaque, "n": 1})
    assert Sections(encoded(message)).application_properties == {"raw": b"\xff", "n": 1}


@pytest.mark.parametrize("keys", [{"session_id": "k"}, {"partition_key": "k"}, {}, {"message_id": None}])
def test_a_batch_has_exactly_the_bytes_that_are_counted_for_it(keys: dict[str, Any]) -> None:
    messages = [ServiceBusMessage("a" * 300, **{"message_id": "1", **keys}), ServiceBusMessage("b")]
    batch = ServiceBusMessageBatch(2**20)
    fill_batch(batch, messages, [encoded(message) for message in messages])
    wire = bytes(encode_payload(bytearray(), BatchMessage(*batch._message)))
    assert len(batch) == 2
    assert [str(WireMessage.of(part)) for part in split_batch(wire)] == ["a" * 300, "b"]
    front = Sections(wire).properties
    assert (front.message_id, front.group_id) == (messages[0].message_id, keys.get("session_id"))
    assert len(wire) == batch_size(messages)
    assert wire == join_batch(messages)


def test_a_body_amqp_cannot_say_is_refused_with_the_messages_name() -> None:
    message = ServiceBusMessage(None, message_id="m-17")
    message._body_type, message._body = AmqpMessageBodyType.VALUE, object()
    with pytest.raises(InvalidOperationError, match="m-17"):
        encoded(message)


def test_a_request_to_schedule_names_the_keys_beside_the_bytes() -> None:
    (entry,) = schedule_request([ServiceBusMessage("x", message_id="m", partition_key="p")])["messages"]
    assert {name: entry[name] for name in entry if name != "message"} == {"message-id": "m", "partition-key": "p"}
    assert isinstance(entry["message"], bytearray)
