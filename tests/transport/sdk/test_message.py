from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from azure import servicebus as sdk
from azure.servicebus._pyamqp._encode import encode_payload
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus.amqp import AmqpAnnotatedMessage
from hypothesis import given
from hypothesis import strategies as st

from sbclient.amqp import encode_message
from sbclient.amqp.annotated import is_sdk_message
from sbclient.amqp.encode import encode_value
from sbclient.amqp.types import Char, DateTimeOffset, Decimal32, Decimal64, TimeSpan, Uri
from sbclient.delivery import UNKNOWN_TIME
from sbclient.errors import InvalidOperationError
from sbclient.message import (
    AmqpMessageBodyType,
    ServiceBusMessage,
    ServiceBusMessageState,
    ServiceBusReceivedMessage,
)
from sbclient.transport.sdk.message import from_sdk, received, to_sdk
from tests.fresh_process import output_of
from tests.rules.strategies import FIELDS
from tests.transport.sdk.sdk_double import ReceivedDouble

NEW_YEAR = datetime(2031, 1, 1, 12, 30, 15, 250_000, tzinfo=UTC)
NEW_YEAR_MS = 1_925_037_015_250
ORDER_ID = UUID("00010203-0405-0607-0809-0a0b0c0d0e0f")


def content(message: ServiceBusMessage) -> dict[str, Any]:
    """Return the content of a message in a form that can be compared."""
    body = list(message.body) if message.body_type is AmqpMessageBodyType.DATA else message.body
    return {"body": body} | {name: getattr(message, name) for name in FIELDS}


def payload(message: ServiceBusMessage) -> bytes:
    """What the SDK puts on the wire for a message of ours."""
    outgoing = PyamqpTransport.to_outgoing_amqp_message(to_sdk(encode_message(message)).raw_amqp_message)
    return bytes(encode_payload(bytearray(), outgoing))


def over_the_wire(message: ServiceBusMessage) -> ServiceBusMessage:
    """The message, sent and received by the SDK."""
    return from_sdk(sdk.ServiceBusReceivedMessage.from_bytes(payload(message))).decoded()


def with_body(body_type: AmqpMessageBodyType, body: Any) -> ServiceBusMessage:
    kinds = {AmqpMessageBodyType.VALUE: "value_body", AmqpMessageBodyType.SEQUENCE: "sequence_body"}
    return from_sdk(AmqpAnnotatedMessage(**{kinds[body_type]: body})).decoded()


def test_every_attribute_of_an_sdk_message_is_kept() -> None:
    message = sdk.ServiceBusMessage(
        "héllo",
        application_properties={"text": "a", b"key": b"value", "number": 3, "id": ORDER_ID, "yes": True},
        session_id="s",
        message_id="m",
        scheduled_enqueue_time_utc=NEW_YEAR,
        time_to_live=timedelta(seconds=90),
        content_type="text/plain",
        correlation_id="c",
        subject="label",
        partition_key="s",
        to="there",
        reply_to="back",
        reply_to_session_id="rs",
    )
    assert content(from_sdk(message).decoded()) == {
        "body": ["héllo".encode()],
        "body_type": AmqpMessageBodyType.DATA,
        "application_properties": {"text": "a", "key": "value", "number": 3, "id": ORDER_ID, "yes": True},
        "session_id": "s",
        "message_id": "m",
        "scheduled_enqueue_time_utc": NEW_YEAR,
        "time_to_live": timedelta(seconds=90),
        "content_type": "text/plain",
        "correlation_id": "c",
        "subject": "label",
        "partition_key": "s",
        "to": "there",
        "reply_to": "back",
        "reply_to_session_id": "rs",
    }


def test_an_sdk_message_with_only_a_body_gets_no_other_attributes() -> None:
    message = sdk.ServiceBusMessage(b"x")  # has an id: the SDK gives one at once
    assert content(from_sdk(message).decoded()) == content(ServiceBusMessage(b"x", message_id=message.message_id))


def test_no_body_is_an_empty_body() -> None:
    assert content(from_sdk(AmqpAnnotatedMessage(value_body=None)).decoded()) == content(ServiceBusMessage(None))
    assert content(over_the_wire(ServiceBusMessage(None))) == content(ServiceBusMessage(None))


def test_enqueue_times_may_be_milliseconds_or_in_any_time_zone() -> None:
    for at in (
        NEW_YEAR,
        NEW_YEAR_MS,
        NEW_YEAR.astimezone(timezone(timedelta(hours=5))),
        NEW_YEAR.replace(tzinfo=None),
    ):
        annotated = AmqpAnnotatedMessage(data_body=b"", annotations={"x-opt-scheduled-enqueue-time": at})
        assert from_sdk(annotated).scheduled_enqueue_time_utc == NEW_YEAR


@pytest.mark.parametrize("key", ["x-opt-partition-key", b"x-opt-partition-key"])
@pytest.mark.parametrize("value", ["k", b"k"])
def test_the_partition_key_is_found_however_the_annotation_is_written(key: Any, value: Any) -> None:
    assert from_sdk(AmqpAnnotatedMessage(data_body=b"", annotations={key: value})).partition_key == "k"


@pytest.mark.parametrize(
    ("given_id", "expected"), [("a", "a"), (b"a", "a"), (7, "7"), (ORDER_ID, "00010203-0405-0607-0809-0a0b0c0d0e0f")]
)
def test_ids_become_text(given_id: Any, expected: str) -> None:
    annotated = AmqpAnnotatedMessage(data_body=b"", properties={"message_id": given_id, "correlation_id": given_id})
    assert (from_sdk(annotated).message_id, from_sdk(annotated).correlation_id) == (expected, expected)


def test_an_annotated_message_may_have_several_data_sections() -> None:
    message = from_sdk(AmqpAnnotatedMessage(data_body=["a", b"b", b""])).decoded()
    assert list(message.body) == [b"a", b"b", b""]
    assert list(over_the_wire(message).body) == [b"a", b"b", b""]


@pytest.mark.parametrize(
    "body",
    [
        {b"key": [1, 2.5, None]},
        [b"a", b"b"],
        b"binary",
        -7,
        True,
        ORDER_ID,
        # false values, which the SDK would omit
        0,
        0.0,
        b"",
        [],
        {},
        # integers that the SDK would encode in 32 bits
        [2**31, -(2**63), {b"deep": 2**63 - 1}],
    ],
)
def test_value_body_arrives_unchanged(body: Any) -> None:
    message = with_body(AmqpMessageBodyType.VALUE, body)
    assert message.body_type is AmqpMessageBodyType.VALUE
    assert message.body == body
    arrived = over_the_wire(message)
    assert arrived.body_type is AmqpMessageBodyType.VALUE
    assert arrived.body == body
    assert type(arrived.body) is type(body)


@pytest.mark.deviation("client.raw-amqp")
def test_text_as_a_value_body_is_sent_as_text_even_if_empty() -> None:
    assert over_the_wire(with_body(AmqpMessageBodyType.VALUE, "a")).body == b"a"  # the SDK decodes text to bytes
    assert payload(with_body(AmqpMessageBodyType.VALUE, "")).endswith(b"\x00\x53\x77\xa1\x00")


@pytest.mark.parametrize("body", [False, 2**31, -(2**31) - 1])
def test_a_value_body_that_the_sdk_cannot_encode_is_rejected(body: Any) -> None:
    with pytest.raises(InvalidOperationError):
        to_sdk(encode_message(with_body(AmqpMessageBodyType.VALUE, body)))


@pytest.mark.parametrize("body", [[[1, b"a"], [2**40]], [[]], [[None], []]])
def test_sequence_body_arrives_unchanged(body: list[list[Any]]) -> None:
    message = with_body(AmqpMessageBodyType.SEQUENCE, body)
    arrived = over_the_wire(message)
    assert (message.body_type, arrived.body_type) == (AmqpMessageBodyType.SEQUENCE, AmqpMessageBodyType.SEQUENCE)
    assert list(message.body) == list(arrived.body) == body


def test_integers_beyond_32_bits_arrive() -> None:
    numbers = {"above": 2**31, "below": -(2**31) - 1, "most": 2**63 - 1, "least": -(2**63), "small": 2**31 - 1}
    assert over_the_wire(ServiceBusMessage(b"", application_properties=numbers)).application_properties == numbers


def test_a_property_that_the_sdk_user_typed_by_hand_is_its_value() -> None:
    message = sdk.ServiceBusMessage(b"", application_properties={"n": {"TYPE": "LONG", "VALUE": 5}})  # type: ignore[dict-item]  # it works
    assert from_sdk(message).application_properties == {"n": 5}


def test_properties_arrive_with_their_types() -> None:
    sent = {"text": "ä", "yes": True, "no": False, "none": None, "pi": 3.25, "id": ORDER_ID}
    arrived = over_the_wire(ServiceBusMessage(b"", application_properties=sent)).application_properties
    assert arrived == sent
    assert {name: type(value) for name, value in arrived.items()} == {name: type(value) for name, value in sent.items()}


@pytest.mark.deviation("client.sdk-property-types")
def test_a_datetime_property_is_sent_as_a_timestamp() -> None:
    message = ServiceBusMessage(b"", application_properties={"due": NEW_YEAR})
    assert b"\x83" + NEW_YEAR_MS.to_bytes(8, "big") in payload(message)
    assert over_the_wire(message).application_properties == {"due": NEW_YEAR_MS}


NET_VALUES: list[Any] = [
    Decimal("1.20"),
    Decimal("-123456.78"),
    TimeSpan.of_ticks(-90_000_000_001),
    TimeSpan.of_ticks(5),
    DateTimeOffset.of_ticks(639_310_248_000_000_007),
    Uri("http://example.org/ü"),
]


@pytest.mark.parametrize("value", NET_VALUES, ids=repr)
def test_values_of_net_arrive_in_properties_and_bodies(value: Any) -> None:
    sent = ServiceBusMessage(b"", application_properties={"v": value})
    assert encode_value(value) in payload(sent)
    arrived = over_the_wire(sent).application_properties["v"]
    assert (type(arrived), encode_value(arrived)) == (type(value), encode_value(value))
    listed = with_body(AmqpMessageBodyType.VALUE, [{"k": value}])
    assert encode_value(value) in payload(listed)
    if not isinstance(value, Uri):  # the SDK returns texts in bodies as bytes
        ((found,),) = (item.values() for item in over_the_wire(listed).body)
        assert (type(found), encode_value(found)) == (type(value), encode_value(value))


@pytest.mark.deviation("client.sdk-property-types")
@pytest.mark.parametrize("number", [Decimal(2**32), Decimal("100000000"), Decimal("-0.123456789")])
def test_a_decimal_that_the_sdk_may_decode_wrongly_is_not_read(number: Decimal) -> None:
    in_property = ServiceBusMessage(b"", application_properties={"n": number})
    for message in (in_property, with_body(AmqpMessageBodyType.VALUE, [{"n": number}])):
        assert from_sdk(to_sdk(encode_message(message))).payload
        found = sdk.ServiceBusReceivedMessage.from_bytes(payload(message))
        assert received(found, is_locked=False, has_session=False) is None


@pytest.mark.deviation("client.sdk-property-types")
@pytest.mark.parametrize("value", [Char("x"), Decimal32("1"), Decimal64("1")], ids=lambda value: type(value).__name__)
def test_the_sdk_does_not_read_a_message_with_these_types(value: Any) -> None:
    sent = encode_message(ServiceBusMessage(b"", application_properties={"v": value}))
    with pytest.raises(ValueError, match="not a valid AMQP"):
        sdk.ServiceBusReceivedMessage.from_bytes(sent.payload)


def test_attributes_of_the_broker_are_those_of_the_sdk_message() -> None:
    given = ReceivedDouble("x", 7, NEW_YEAR)
    given.time_to_live = timedelta(minutes=1)
    given.enqueued_sequence_number, given.delivery_count, given.state = 3, 2, ServiceBusMessageState.DEFERRED.value
    given.dead_letter_source = "orders"
    ways = ((True, False), (True, True), (False, False))
    found = [received(given, is_locked=is_locked, has_session=has_session) for is_locked, has_session in ways]
    locked, in_session, peeked = (message for message in found if message is not None)
    assert (locked.sequence_number, locked.enqueued_sequence_number, locked.delivery_count) == (7, 3, 2)
    assert (locked.state, locked.dead_letter_source) == (ServiceBusMessageState.DEFERRED, "orders")
    assert locked.expires_at_utc == given.enqueued_time_utc + timedelta(minutes=1)
    assert (locked.lock_token, locked.locked_until_utc) == (UUID(int=7), NEW_YEAR)
    assert (in_session.lock_token, in_session.locked_until_utc) == (UUID(int=7), None)
    vars(given)["enqueued_time_utc"] = None
    unknown = received(given, is_locked=True, has_session=False)
    assert unknown is not None
    assert (unknown.enqueued_time_utc, unknown.expires_at_utc) == (UNKNOWN_TIME, None)
    assert (peeked.lock_token, peeked.locked_until_utc) == (None, None)


def test_a_plain_timedelta_is_sent_as_a_timespan() -> None:
    arrived = over_the_wire(ServiceBusMessage(b"", application_properties={"v": timedelta(hours=1)}))
    assert arrived.application_properties == {"v": TimeSpan(hours=1)}


def test_a_body_that_amqp_cannot_encode_is_rejected() -> None:
    message = ServiceBusMessage(None)
    message._body, message._body_type = object(), AmqpMessageBodyType.VALUE
    with pytest.raises(InvalidOperationError):
        encode_message(message)


def test_binary_properties_that_are_not_utf_8_are_rejected() -> None:
    with pytest.raises(InvalidOperationError):
        from_sdk(sdk.ServiceBusMessage(b"", application_properties={"n": b"\xff"}))
    with pytest.raises(InvalidOperationError):
        from_sdk(AmqpAnnotatedMessage(data_body=b"", properties={"subject": b"\xff"}))


@pytest.mark.parametrize(
    ("time_to_live", "arrives"),
    [
        (timedelta(milliseconds=500), timedelta(milliseconds=500)),
        (timedelta(microseconds=1_999), timedelta(milliseconds=1)),
        (timedelta(seconds=90), timedelta(seconds=90)),
        (timedelta(milliseconds=2**32 - 1), timedelta(milliseconds=2**32 - 1)),
        (timedelta(milliseconds=2**32), timedelta(milliseconds=2**32 - 1)),
        (timedelta.max, timedelta(milliseconds=2**32 - 1)),
        (timedelta(0), timedelta(0)),
        (None, None),
    ],
)
def test_times_to_live_arrive_in_milliseconds(time_to_live: timedelta | None, arrives: timedelta | None) -> None:
    assert over_the_wire(ServiceBusMessage(b"", time_to_live=time_to_live)).time_to_live == arrives


def test_a_time_to_live_beyond_the_range_is_unlimited() -> None:
    assert from_sdk(AmqpAnnotatedMessage(data_body=b"", header={"time_to_live": 2**70})).time_to_live == timedelta.max
    assert from_sdk(sdk.ServiceBusMessage(b"", time_to_live=timedelta.max)).time_to_live == timedelta.max


def test_message_without_an_id_stays_without() -> None:
    assert to_sdk(encode_message(ServiceBusMessage(b"", scheduled_enqueue_time_utc=NEW_YEAR))).message_id is None


def test_the_sdk_reads_the_attributes_it_needs_to_schedule_and_batch() -> None:
    message = to_sdk(
        encode_message(
            ServiceBusMessage(
                b"x", message_id="m", session_id="s", partition_key="s", scheduled_enqueue_time_utc=NEW_YEAR
            )
        )
    )
    assert (message.message_id, message.session_id, message.partition_key) == ("m", "s", "s")
    assert message.scheduled_enqueue_time_utc == NEW_YEAR
    batch = sdk.ServiceBusMessageBatch()
    batch.add_message(message)
    assert len(batch) == 1


def test_a_message_of_ours_is_not_changed_by_the_conversion() -> None:
    message = ServiceBusMessage(b"x", application_properties={"n": 2**40})
    before = content(message)
    to_sdk(encode_message(message))
    assert content(message) == before


def test_only_the_content_of_a_received_message_is_sent() -> None:
    received = ServiceBusReceivedMessage.of(
        encode_message(ServiceBusMessage(b"x", message_id="m")),
        sequence_number=9,
        enqueued_time_utc=NEW_YEAR,
        delivery_count=3,
    )
    raw = to_sdk(encode_message(received)).raw_amqp_message
    assert raw.annotations is None
    assert raw.header is not None
    assert raw.header.delivery_count is None


def test_annotations_of_a_broker_are_not_sent() -> None:
    own = {"mine": "a"}
    message = AmqpAnnotatedMessage(
        data_body=b"",
        annotations=own | {"x-opt-sequence-number": 5},
        delivery_annotations=own | {"x-opt-lock-token": ORDER_ID},
    )
    sent = from_sdk(message).annotated()
    assert (sent.annotations, sent.delivery_annotations) == (own, own)


def test_messages_of_the_sdk_are_recognised_by_class() -> None:
    class Own(sdk.ServiceBusMessage):
        """A class of the application."""

    for message in (Own(b""), sdk.ServiceBusMessage(b""), AmqpAnnotatedMessage(data_body=b"")):
        assert is_sdk_message(message)
    assert not is_sdk_message(sdk.ServiceBusMessageBatch())
    for other in (ServiceBusMessage(b""), b"", None, [sdk.ServiceBusMessage(b"")]):
        assert not is_sdk_message(other)


def test_objects_of_other_classes_are_rejected() -> None:
    with pytest.raises(TypeError):
        from_sdk(ServiceBusMessage(b""))  # type: ignore[arg-type]  # the mistake itself


def test_is_sdk_message_does_not_import_the_sdk() -> None:
    program = (
        "import sys\n"
        "from sbclient.amqp.annotated import is_sdk_message\n"
        "assert not is_sdk_message(object())\n"
        "sys.exit('azure.servicebus' in sys.modules)\n"
    )
    output_of(program)  # fails if the program fails


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
MAYBE_TEXT = st.none() | TEXT
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TIMES = st.integers(0, 10**13).map(lambda ms: EPOCH + timedelta(milliseconds=ms))
INTEGERS = st.integers(-(2**63), 2**63 - 1)
MESSAGES = st.builds(
    ServiceBusMessage,
    st.binary() | TEXT | st.lists(st.binary(), min_size=1, max_size=3),
    application_properties=st.dictionaries(
        TEXT, TEXT | INTEGERS | st.floats(allow_nan=False) | st.booleans() | st.uuids() | st.none(), max_size=4
    ),
    session_id=MAYBE_TEXT,
    message_id=MAYBE_TEXT,
    scheduled_enqueue_time_utc=st.none() | TIMES,
    time_to_live=st.none() | st.integers(0, 2**32 - 1).map(lambda ms: timedelta(milliseconds=ms)),
    content_type=MAYBE_TEXT,
    correlation_id=MAYBE_TEXT,
    subject=MAYBE_TEXT,
    partition_key=MAYBE_TEXT,
    to=MAYBE_TEXT,
    reply_to=MAYBE_TEXT,
    reply_to_session_id=MAYBE_TEXT,
)


@given(MESSAGES)
def test_message_is_decoded_as_it_was_encoded(message: ServiceBusMessage) -> None:
    assert content(from_sdk(to_sdk(encode_message(message))).decoded()) == content(message)
    assert content(over_the_wire(message)) == content(message)
