"""Messages: `amqp.message`, `sections`, `broker_annotations`, `batch`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import accumulate, permutations, product
from typing import Any, Final
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbclient.amqp.annotated import encode_annotated
from sbclient.amqp.batch import EncodedBatch, size_in_batch, split_batch
from sbclient.amqp.broker_annotations import BrokerAnnotations, encode_delivery
from sbclient.amqp.encode import encode_string, encode_value, sized_map
from sbclient.amqp.encoded import (
    ATTRIBUTES,
    LONGEST_HEADER_TTL,
    EncodedMessage,
    encode_application_properties,
    encode_message,
)
from sbclient.amqp.errors import EncodeError, WireError
from sbclient.amqp.fields import encode_composite
from sbclient.amqp.sections import (
    APPLICATION_PROPERTIES,
    DATA,
    FOOTER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    SEQUENCE,
    VALUE,
    Header,
    Properties,
    Sections,
    map_entries,
    rewritten_map,
)
from sbclient.amqp.states import Declare, Discharge
from sbclient.amqp.types import Byte, Described, Float, Long, Symbol, Timestamp, UInt, ULong
from sbclient.errors import InvalidOperationError
from sbclient.message import AmqpMessageBodyType, ServiceBusMessage, ServiceBusReceivedMessage
from tests.amqp.strategies import messages
from tests.client.scene import encoded
from tests.payloads import batch_of, encode_section, encode_sections, payload_of, size_of

TOKEN = UUID("00112233-4455-6677-8899-aabbccddeeff")
MOMENT = datetime(2024, 5, 6, 7, 8, 9, 123000, tzinfo=UTC)


def typed(body: Any, body_type: AmqpMessageBodyType) -> ServiceBusMessage:
    """A message as only foreign clients make them."""
    message = ServiceBusMessage(b"")
    message._body = body
    message._body_type = body_type
    return message


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ({"a": [1, None, True, b"x"], "b": TOKEN}, AmqpMessageBodyType.VALUE),
        (None, AmqpMessageBodyType.VALUE),
        ("text", AmqpMessageBodyType.VALUE),
        ([[1, "a"], []], AmqpMessageBodyType.SEQUENCE),
    ],
)
def test_bodies_of_foreign_types_are_decoded_as_encoded(body: Any, kind: AmqpMessageBodyType) -> None:
    message = typed(body, kind)
    read = EncodedMessage.of(payload_of(message))
    assert (read.body_type, read.body) == (kind, body)


@given(messages)
def test_message_is_decoded_as_it_was_encoded(sent: ServiceBusMessage) -> None:
    read = EncodedMessage.of(payload_of(sent))
    for name in (
        "message_id", "session_id", "partition_key", "content_type", "correlation_id", "subject", "to", "reply_to",
        "reply_to_session_id", "scheduled_enqueue_time_utc", "application_properties",
    ):  # fmt: skip
        assert getattr(read, name) == getattr(sent, name), name
    assert list(read.decoded().body) == (list(sent.body) or [b""])
    life = sent.time_to_live
    if life is not None:
        assert read.time_to_live == timedelta(milliseconds=life // timedelta(milliseconds=1))
    assert payload_of(read) == payload_of(sent)


def test_copy_of_a_received_message_keeps_amqp_types() -> None:
    raw = encode_sections(application_properties={"float": Float(1.5), "sym": Symbol("s")}, data=[b"b"])
    copy = EncodedMessage.of(raw).decoded().copy(message_id="new")
    assert type(copy) is ServiceBusMessage
    assert copy.application_properties == {"float": 1.5, "sym": "s"}
    again = EncodedMessage.of(payload_of(copy))
    assert again.raw(APPLICATION_PROPERTIES) == Sections(raw).raw(APPLICATION_PROPERTIES)
    assert (again.message_id, bytes(again)) == ("new", b"b")


def test_integers_that_filters_read_are_plain_and_pass_through_with_their_width() -> None:
    raw = encode_sections(application_properties={"long": Long(5), "byte": Byte(1)}, data=[b""])
    message = EncodedMessage.of(raw)
    assert {type(value) for value in message.application_properties.values()} == {int}
    assert {type(value) for value in message.decoded().application_properties.values()} == {Long, Byte}
    assert encode_message(message.decoded()).payload == raw
    added = message.with_added({"new": 1})
    assert added.typed_properties == {"long": 5, "byte": 1, "new": 1}
    assert {type(value) for value in added.typed_properties.values()} == {Long, Byte, int}


def test_rewriting_keeps_what_has_no_attribute() -> None:
    raw = encode_sections(
        header=Header(durable=True, priority=9, ttl=5_000, delivery_count=3),
        delivery_annotations={"x-opt-lock-token": TOKEN, "own": 1},
        message_annotations={"x-opt-sequence-number": 7, "x-opt-mine": "kept", "x-opt-partition-key": "k"},
        properties=Properties(message_id=TOKEN, user_id=b"u", content_encoding="gzip", group_sequence=4),
        application_properties={"byte": Byte(1)},
        sequences=[[1, "a"], []],
        footer={"f": 1},
    )
    message = EncodedMessage.of(raw)
    twin = message.rewritten(subject="new", time_to_live=None, partition_key=None, session_id="s")
    sections = twin
    assert sections.header == Header(durable=True, priority=9)
    assert sections.delivery_annotations == {"own": 1}
    assert sections.message_annotations == {"x-opt-mine": "kept"}
    assert sections.properties == Properties(
        message_id=TOKEN, user_id=b"u", subject="new", content_encoding="gzip", group_sequence=4, group_id="s"
    )
    assert sections.raw(APPLICATION_PROPERTIES) == message.raw(APPLICATION_PROPERTIES)
    assert (sections.sequences(), sections.footer) == ([[1, "a"], []], {"f": 1})
    again = EncodedMessage.of(twin.payload)
    assert [getattr(twin, name) for name in ATTRIBUTES] == [getattr(again, name) for name in ATTRIBUTES]


@given(messages, messages)
def test_rewriting_sets_every_attribute(one: ServiceBusMessage, other: ServiceBusMessage) -> None:
    wanted = {name: getattr(other, name) for name in ATTRIBUTES}
    twin = EncodedMessage.of(encode_message(one).rewritten(**wanted).payload)
    expected = EncodedMessage.of(payload_of(other))
    assert [getattr(twin, name) for name in ATTRIBUTES] == [getattr(expected, name) for name in ATTRIBUTES]
    assert twin.raw_body == encode_message(one).raw_body


LIVES: Final = [None, timedelta(seconds=5), LONGEST_HEADER_TTL, LONGEST_HEADER_TTL + timedelta(days=1), timedelta.max]


@pytest.mark.parametrize("fields", [{}, {"session_id": "s"}, {"reply_to_session_id": "r", "partition_key": "k"}])
def test_rewriting_replaces_every_time_to_live_by_every_other(fields: dict[str, Any]) -> None:
    for one, other in product(LIVES, repeat=2):
        message = EncodedMessage.of(payload_of(ServiceBusMessage(b"x", time_to_live=one, **fields), created_at_ms=5))
        twin = EncodedMessage.of(message.rewritten(time_to_live=other, created_at_ms=5).payload)
        expected = payload_of(ServiceBusMessage(b"x", time_to_live=other, **fields), created_at_ms=5)
        assert (twin.time_to_live, twin.payload) == (EncodedMessage.of(expected).time_to_live, expected)


def test_what_is_transferred_has_the_values_of_the_bytes() -> None:
    tick, day = timedelta(microseconds=1), timedelta(days=1)
    for life, later in product([None, day, day + tick, 60 * day + tick], [None, day, day + tick]):
        due = None if later is None else MOMENT + later
        moved = encode_message(
            ServiceBusMessage(b"", time_to_live=life, scheduled_enqueue_time_utc=due)
        ).as_transferred()
        held = EncodedMessage(moved.payload)
        assert [getattr(moved, name) for name in ATTRIBUTES] == [getattr(held, name) for name in ATTRIBUTES]


def test_joined_messages_of_any_size_are_found() -> None:
    payloads = [payload_of(ServiceBusMessage(b"x" * size)) for size in (*range(230, 270), 0, 1_000)]
    sections = list(map(encode_section, payloads))
    ends = list(accumulate(map(len, sections)))
    batch = EncodedBatch.of_sections(b"".join(sections), ends, message_id=None, session_id=None, partition_key=None)
    assert [message.payload for message in batch] == payloads


@pytest.mark.parametrize("created_at", [MOMENT, datetime(1960, 1, 1, tzinfo=UTC)])
def test_what_the_broker_says_replaces_what_the_sender_said(created_at: datetime) -> None:
    properties = Properties(creation_time=created_at, absolute_expiry_time=created_at + timedelta(days=400))
    sent = encode_sections(properties=properties, application_properties={"a": 1, "b": 1}, data=[b"x"])
    for ttl_ms, number in product((0, 5_000), (0, 7)):
        said = BrokerAnnotations(
            1, 0, ttl_ms=ttl_ms, enqueued_sequence_number=number, added_properties={"a": "broker"}, is_ttl_cut=True
        )
        read = Sections(encode_delivery(Sections(sent), said))
        assert read.header.ttl == ttl_ms
        assert read.message_annotations["x-opt-enqueue-sequence-number"] == number
        assert read.properties.absolute_expiry_time == created_at + timedelta(milliseconds=ttl_ms)
        entries = list(map_entries(read.raw_value(APPLICATION_PROPERTIES)))
        assert sorted(str(name) for name, _ in entries) == ["a", "b"]
        assert read.application_properties == {"a": "broker", "b": 1}


@pytest.mark.parametrize("before", [None, "a", "b"])
@pytest.mark.parametrize("others", [{}, {"x-opt-mine": 1, "x-opt-partition-key": "k"}])
def test_a_batch_passes_through_the_partition_of_its_last_key(before: str | None, others: dict[str, Any]) -> None:
    messages = [EncodedMessage.of(encode_sections(message_annotations=others, data=[each])) for each in (b"1", b"2")]
    for count in (1, 2):
        batch = EncodedBatch(messages[:count]).via(before).via("b")
        expected = {**others, "x-opt-via-partition-key": "b"}
        assert [EncodedMessage.of(each.payload).annotations for each in batch] == [expected] * count
        assert Sections(batch.payload).message_annotations["x-opt-via-partition-key"] == "b"
        for each in batch:
            names = [name for name, _ in map_entries(each.raw_value(MESSAGE_ANNOTATIONS))]
            assert len(names) == len(set(names))


def test_a_property_that_is_set_to_an_equal_value_of_another_type_gets_that_type() -> None:
    values: list[Any] = [True, 1, 1.0, Byte(1), Long(1), Float(1.0), Decimal(1)]
    for own, new in permutations(values, 2):
        message = EncodedMessage.of(encode_sections(application_properties={"n": own, "m": own}, data=[b""])).decoded()
        message.application_properties["n"] = new
        sent = encode_message(message).typed_properties
        assert {name: (type(each), each) for name, each in sent.items()} == {
            "n": (type(new), new),
            "m": (type(own), own),
        }


usual_messages = st.builds(
    ServiceBusMessage,
    st.binary(max_size=300),
    application_properties=st.dictionaries(st.text("abc", min_size=1), st.text("xyz", max_size=300), max_size=3),
    message_id=st.none() | st.text("m", max_size=128),
    session_id=st.none() | st.text("s", max_size=128),
)


@given(messages | usual_messages, st.dictionaries(st.text("def", min_size=1), st.text(), min_size=1, max_size=3))
def test_sections_stand_where_the_encoder_put_them(sent: ServiceBusMessage, further: dict[str, str]) -> None:
    for message in (
        encode_message(sent),
        encode_message(sent).rewritten(application_properties=encode_application_properties(further)),
    ):
        found = EncodedMessage(message.payload)
        assert (message._bounds, message._further, message.body_code) == (
            found._bounds, found._further, found.body_code
        )  # fmt: skip
    sent.application_properties = further
    assert message.payload == payload_of(sent)


def test_received_message_is_made_of_a_wire_message() -> None:
    content = EncodedMessage.of(payload_of(ServiceBusMessage([b"a", b"b"], application_properties={"n": 1})))
    received = ServiceBusReceivedMessage.of(content, sequence_number=1, enqueued_time_utc=MOMENT)
    assert (bytes(received), received.application_properties) == (b"ab", {"n": 1})


def test_bytes_in_application_properties_go_out_as_text() -> None:
    message = ServiceBusMessage(b"")
    message.application_properties.update({"text": "é".encode(), "binary": b"\xff"})
    assert EncodedMessage.of(payload_of(message)).application_properties == {"text": "é", "binary": b"\xff"}


@pytest.mark.parametrize(
    ("message_id", "shown"),
    [(TOKEN, str(TOKEN)), (5, "5"), (b"abc", "abc"), (b"\xff\x01", "ff01"), ("id", "id"), (None, None)],
)
def test_message_id_of_any_type_is_shown_as_text(message_id: Any, shown: str | None) -> None:
    read = EncodedMessage.of(encode_composite(Properties(message_id=message_id, correlation_id=message_id)))
    assert (read.message_id, read.correlation_id) == (shown, shown)


@pytest.mark.parametrize("ttl_ms", [None, 0, 5, 255, 256, 3_600_000, 2**32 - 1])
def test_time_to_live_is_read_from_headers_of_all_forms(ttl_ms: int | None) -> None:
    life = None if ttl_ms is None else timedelta(milliseconds=ttl_ms)
    for header in (Header(ttl=ttl_ms), Header(True, 7, ttl_ms, True, 3)):
        assert EncodedMessage.of(encode_composite(header)).time_to_live == life
    if ttl_ms is not None:
        assert EncodedMessage.of(payload_of(ServiceBusMessage(b"", time_to_live=life))).time_to_live == life


@pytest.mark.parametrize("life", [timedelta(milliseconds=2**32), timedelta(days=400)])
@pytest.mark.parametrize("others", [{}, {"content_type": "text"}, {"session_id": "s", "message_id": "m"}])
def test_time_to_live_beyond_the_header_is_written_as_creation_and_expiry(
    life: timedelta, others: dict[str, Any]
) -> None:
    message = ServiceBusMessage(b"", time_to_live=life, **others)
    encoded = payload_of(message, created_at_ms=1_700_000_000_000)
    sections = Sections(encoded)
    assert (sections.header.ttl, sections.properties.creation_time) == (
        2**32 - 1,
        datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC),
    )
    read = EncodedMessage.of(encoded)
    assert (read.time_to_live, read.session_id, read.content_type) == (life, message.session_id, message.content_type)
    assert split_batch(EncodedBatch([read, read]).payload) == [encoded, encoded]


@pytest.mark.parametrize("first_bytes", [*range(200, 280), 65_500, 65_536, 70_000])
def test_a_batch_has_the_size_that_was_counted(first_bytes: int) -> None:
    messages = [EncodedMessage.of(payload_of(ServiceBusMessage(bytes(each)))) for each in (first_bytes, 10, 300)]
    counted = sum(size_in_batch(message, is_first=number == 0) for number, message in enumerate(messages))
    batch = EncodedBatch(messages)
    assert counted == batch.size_bytes == len(batch.payload)


def test_the_longest_time_to_live_ends_with_the_year_9999() -> None:
    sections = Sections(payload_of(ServiceBusMessage(b"", time_to_live=timedelta.max), created_at_ms=5))
    assert sections.properties.absolute_expiry_time == datetime(9999, 12, 31, 23, 59, 59, 999000, tzinfo=UTC)


def test_time_to_live_beyond_the_header_is_read_from_creation_and_expiry() -> None:
    life = timedelta(days=400)
    properties = Properties(creation_time=MOMENT, absolute_expiry_time=MOMENT + life)
    assert EncodedMessage.of(encode_sections(header=Header(ttl=2**32 - 1), properties=properties)).time_to_live == life
    assert EncodedMessage.of(
        encode_sections(header=Header(ttl=5_000), properties=properties)
    ).time_to_live == timedelta(seconds=5)
    endless = Properties(
        creation_time=MOMENT, absolute_expiry_time=datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)
    )
    of_net = Header(ttl=(2**63 - 1) // 10_000 % 2**32)  # the lowest bits of the longest timespan, which is longer still
    assert EncodedMessage.of(encode_sections(header=of_net, properties=endless)).time_to_live == (
        datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC) - MOMENT
    )


@pytest.mark.parametrize(
    "raw",
    [
        encode_sections(message_annotations={"x-opt-partition-key": 5}),
        encode_sections(message_annotations={"x-opt-scheduled-enqueue-time": "soon"}),
        encode_composite(Properties(to=[1])),
        encode_composite(Properties(to=Timestamp(5))),
        encode_composite(Properties())[:3] + b"\xc0\x03\x01\x54\x05",  # a message id that is an int
        b"\x00\x53\x70\xc0\x04\x01\x56\x02\x40",
        b"\x00\x53\x72\xc1\x01\x01",
    ],
)
def test_property_of_the_wrong_type_is_a_wire_error(raw: bytes) -> None:
    with pytest.raises(WireError):
        EncodedMessage.of(raw)


@pytest.mark.parametrize(
    "raw",
    [
        encode_composite(Properties(message_id="a" * 129)),
        encode_composite(Properties(group_id="a" * 129)),
        encode_sections(message_annotations={"x-opt-partition-key": "a" * 129}),
    ],
)
def test_id_that_is_too_long_is_an_invalid_operation(raw: bytes) -> None:
    with pytest.raises(InvalidOperationError):
        EncodedMessage.of(raw)


def test_name_of_an_application_property_must_be_a_string() -> None:
    sections = Sections(b"\x00\x53\x74" + encode_value({5: 1}))
    with pytest.raises(WireError):
        _ = sections.application_properties


def test_value_without_amqp_form_is_refused() -> None:
    message = ServiceBusMessage(b"")
    message.application_properties["n"] = Decimal("1" * 40)
    with pytest.raises(EncodeError):
        payload_of(message)


def test_sections_are_found_in_any_order_and_with_any_descriptor() -> None:
    parts = [
        b"\x00\x80\x00\x00\x00\x00\x00\x00\x00\x75\xa0\x01b",
        b"\x00\xa3\x14amqp:properties:list" + b"\xc0\x03\x01\xa1\x00",
        b"\x00\x53\x71" + encode_value({Symbol("d"): 1}),
        b"\x00\x53\x70\x45",
        b"\x00\x53\x78" + encode_value({Symbol("f"): 1}),
    ]
    sections = Sections(b"".join(parts))
    assert sections.data() == [b"b"]
    assert sections.properties.message_id == ""
    assert (sections.delivery_annotations, sections.footer) == ({"d": 1}, {"f": 1})
    assert sections.header == Header()
    assert sections.bare is None
    delivered = Sections(encode_delivery(sections, BrokerAnnotations(1, 2)))
    assert (delivered.data(), delivered.footer) == ([b"b"], {"f": 1})
    assert delivered.properties.message_id == ""


def test_empty_message_has_no_sections() -> None:
    sections = Sections(b"")
    assert sections.data() == []
    assert sections.body_code == DATA
    assert sections.properties == Properties()
    assert sections.value() is None
    assert (
        Sections(encode_delivery(sections, BrokerAnnotations(5, 6))).message_annotations["x-opt-sequence-number"] == 5
    )
    assert bytes(EncodedMessage.of(b"")) == b""


@pytest.mark.parametrize(
    "raw",
    [
        b"\x01",
        b"\x00",
        b"\x00\x53",
        b"\x00\x53\x70",
        b"\x00\x53\x70\xa0\x00",  # a header that is binary
        b"\x00\x53\x79\x45",
        b"\x00\x53\x10\x45",
        b"\x00\xa3\x01xE",
        b"\x00\x40\x45",
        b"\x00\x53\x75\xa0\x05a",
        b"\x00\x53\x75\xb0\xff\xff\xff\xff",
        b"\x00\x53\x75\xb0\xff",
        b"\x00\x53\x70\x45" * 2,
        b"\x00\x53\x77\x40" * 2,
        b"\x00\x53\x75\xa0\x00\x00\x53\x77\x40",
        b"\x00\x53\x77\x3f",
        b"\x00\x53\x75\xa0\x00" * 65_537,
    ],
    ids=lambda raw: raw[:24].hex(),
)
def test_malformed_sections_are_a_decode_error(raw: bytes) -> None:
    with pytest.raises(WireError) as caught:
        Sections(raw)
    assert caught.value.error.condition == "amqp:decode-error"


@given(st.binary(max_size=80))
def test_any_bytes_give_sections_or_a_wire_error(raw: bytes) -> None:
    try:
        message = EncodedMessage.of(b"\x00\x53\x77" + raw)
        encode_delivery(message, BrokerAnnotations(1, 2))
        assert message.body is None or message.body is not ...
    except (WireError, InvalidOperationError):
        pass


def test_body_value_can_be_a_request_to_a_coordinator() -> None:
    assert Sections(encode_sections(value=Declare())).composite() == Declare()
    discharge = Discharge(b"txn", True)
    assert Sections(encode_sections(value=discharge)).composite() == discharge
    for raw in (
        encode_sections(value=5),
        encode_sections(data=[b"x"]),
        encode_sections(value=Described(ULong(99), [])),
    ):
        with pytest.raises(WireError):
            Sections(raw).composite()


def test_sections_of_a_message_are_decoded_as_encoded() -> None:
    raw = encode_sections(
        header=Header(durable=True, priority=7, ttl=5, delivery_count=3),
        delivery_annotations={"d": TOKEN},
        message_annotations={"m": 1},
        properties=Properties("id", b"user", "to", "subject", "reply", 7, "ct", "ce", MOMENT, MOMENT, "g", 5, "rg"),
        application_properties={"a": UInt(5)},
        sequences=[[1], ["x"]],
        footer={"f": None},
    )
    sections = Sections(raw)
    assert sections.header == Header(True, 7, 5, False, 3)
    assert (sections.delivery_annotations, sections.message_annotations) == ({"d": TOKEN}, {"m": 1})
    assert sections.properties[:6] == ("id", b"user", "to", "subject", "reply", 7)
    assert sections.properties[6:] == ("ct", "ce", MOMENT, MOMENT, "g", 5, "rg")
    assert (sections.body_code, sections.sequences(), sections.footer) == (SEQUENCE, [[1], ["x"]], {"f": None})
    assert sections.data() == []
    assert Sections(encode_sections(value=None)).body_code == VALUE


@pytest.mark.deviation("emulator.decimals")
def test_delivery_has_decimals_in_the_form_of_the_service() -> None:
    standard, service = bytes.fromhex("94303e" + "00" * 13 + "7d"), bytes.fromhex("940c3e" + "00" * 13 + "7d")
    other = encode_string("a") + b"\x54\x05"
    for sent in (standard, service):
        raw = b"\x00\x53\x74" + sized_map(other + encode_string("price") + sent, 4) + b"\x00\x53\x75\xa0\x00"
        delivered = Sections(encode_delivery(Sections(raw), BrokerAnnotations(7, 8, 2, 3_000, 9, TOKEN)))
        assert delivered.raw_value(APPLICATION_PROPERTIES) == sized_map(other + encode_string("price") + service, 4)


def test_delivery_keeps_the_bare_bytes_and_the_senders_annotations() -> None:
    raw = encode_sections(
        header=Header(durable=True, priority=9, ttl=1),
        message_annotations={
            "x-opt-partition-key": "k",
            "x-opt-sequence-number": Long(666),
            "x-opt-lock-token": "forged",
            "mine": Byte(1),
        },
        properties=Properties(message_id=5),
        application_properties={"b": Byte(5)},
        data=[b"1", b"2"],
        footer={"f": 1},
    )
    sections = Sections(raw)
    for _ in range(2):
        delivered = Sections(encode_delivery(sections, BrokerAnnotations(7, 8, 2, 3_000, 9, TOKEN)))
        assert delivered.header == Header(True, 9, 3_000, False, 2)
        assert delivered.delivery_annotations == {"x-opt-lock-token": TOKEN}
        assert delivered.message_annotations == {
            "x-opt-partition-key": "k",
            "mine": 1,
            "x-opt-enqueued-time": datetime(1970, 1, 1, 0, 0, 0, 8_000, tzinfo=UTC),
            "x-opt-sequence-number": 7,
            "x-opt-locked-until": datetime(1970, 1, 1, 0, 0, 0, 9_000, tzinfo=UTC),
        }
        for code in (PROPERTIES, APPLICATION_PROPERTIES, FOOTER):
            assert delivered.raw(code) == sections.raw(code)
        assert delivered.raw_body == sections.raw_body


def test_time_to_live_beyond_the_header_is_limited() -> None:
    delivered = Sections(encode_delivery(Sections(b""), BrokerAnnotations(1, 2, ttl_ms=2**40)))
    assert delivered.header.ttl == 2**32 - 1


def test_a_cut_time_to_live_is_also_in_the_absolute_expiry() -> None:
    fields: dict[str, Any] = {
        "message_id": "m",
        "creation_time": MOMENT,
        "absolute_expiry_time": MOMENT + timedelta(days=60),
    }
    for left_out in (None, "creation_time", "absolute_expiry_time"):
        sent = Sections(encode_sections(properties=Properties(**{**fields, left_out: None} if left_out else fields)))
        for is_cut in (True, False):
            broker = BrokerAnnotations(1, 2, ttl_ms=5_000, is_ttl_cut=is_cut)
            delivered = Sections(encode_delivery(sent, broker)).properties
            is_changed = is_cut and left_out is None
            expected = MOMENT + timedelta(seconds=5) if is_changed else sent.properties.absolute_expiry_time
            assert delivered == sent.properties._replace(absolute_expiry_time=expected)
    for bare in (b"", encode_sections(properties=Properties("m"))):
        delivered = Sections(
            encode_delivery(Sections(bare), BrokerAnnotations(1, 2, ttl_ms=5, is_ttl_cut=True))
        ).properties
        assert delivered == Sections(bare).properties


def test_all_sections_are_shown_and_copied_with_what_has_no_attribute() -> None:
    attributes: dict[str, Any] = {"message_id": "m", "session_id": "g", "application_properties": {"n": 1}}
    message = ServiceBusMessage("body", partition_key="g", **attributes)
    assert encode_annotated(message).payload == encode_message(message).payload
    for durable, priority in ((True, None), (None, 0), (False, 9)):
        encoded = encode_annotated(
            message,
            durable=durable,
            priority=priority,
            delivery_annotations={"d": 1},
            annotations={"mine": 2},
            fields={1: b"\xa0\x01u", 12: encode_string("rg")},
            footer={"f": 3},
        )
        shown = encoded.annotated()
        assert shown.header is not None
        assert (shown.header.durable, shown.header.priority, shown.header.time_to_live) == (durable, priority, None)
        assert (shown.annotations, shown.delivery_annotations) == ({"x-opt-partition-key": "g", "mine": 2}, {"d": 1})
        assert (shown.footer, shown.application_properties) == ({"f": 3}, {"n": 1})
        assert shown.properties is not None
        assert (shown.properties.message_id, shown.properties.user_id) == ("m", b"u")
        assert (shown.properties.group_id, shown.properties.reply_to_group_id) == ("g", "rg")
        assert (encoded.message_id, encoded.session_id, encoded.partition_key) == ("m", "g", "g")
        assert encoded.header_bytes == len(encoded.payload) - len(b"body")
    assert EncodedMessage(encode_sections(value="x" * 300)).header_bytes == 0


def test_added_properties_replace_those_of_the_same_name() -> None:
    sections = Sections(encode_sections(application_properties={"a": Byte(1), "DeadLetterReason": "old"}, data=[b"x"]))
    reason: dict[str, Any] = {"DeadLetterReason": "new", "more": 2}
    delivered = Sections(encode_delivery(sections, BrokerAnnotations(1, 2, added_properties=reason)))
    assert delivered.application_properties == {"a": 1, "DeadLetterReason": "new", "more": 2}
    assert type(delivered.application_properties["a"]) is Byte
    assert (
        Sections(
            encode_delivery(Sections(b""), BrokerAnnotations(1, 2, added_properties=reason))
        ).application_properties
        == reason
    )


def test_map_is_rewritten_without_decoding_its_values() -> None:
    raw = encode_value({"a": Byte(1), "b": [1], "c": {"d": 1}})
    assert [key for key, _ in map_entries(raw)] == ["a", "b", "c"]
    assert rewritten_map(raw, lambda key: key == "b") == encode_value({"a": Byte(1), "c": {"d": 1}})
    assert rewritten_map(raw, lambda key: True) == b""
    wide = encode_value({str(number): number for number in range(300)})
    assert rewritten_map(wide, lambda key: False) == wide
    for malformed in (b"", b"\xc1\x01", b"\xc0\x01\x00", b"\xc1\x02\x03\x40", b"\xd1\x00"):
        with pytest.raises(WireError):
            list(map_entries(malformed))


def test_batch_is_split_into_the_messages_it_was_joined_from() -> None:
    sent = [
        ServiceBusMessage(str(number), message_id=f"m{number}", session_id="s", partition_key="s")
        for number in range(3)
    ]
    raw = batch_of(sent).payload
    assert split_batch(raw) == [payload_of(message) for message in sent]
    sections = Sections(raw)
    assert (sections.properties.message_id, sections.properties.group_id) == ("m0", "s")
    assert sections.message_annotations == {"x-opt-partition-key": "s"}


@pytest.mark.parametrize("raw", [b"", encode_sections(value=5), encode_sections(properties=Properties("m"))])
def test_batch_without_messages_is_refused(raw: bytes) -> None:
    with pytest.raises(WireError):
        split_batch(raw)


def test_sections_of_annotations_may_be_absent() -> None:
    sections = Sections(payload_of(ServiceBusMessage(b"a")))
    assert sections.raw(MESSAGE_ANNOTATIONS) == sections.raw_value(MESSAGE_ANNOTATIONS) == b""


@given(st.lists(messages, min_size=1, max_size=4))
def test_joined_sections_are_the_same_batch(sent: list[ServiceBusMessage]) -> None:
    joined, batch = encoded(sent), batch_of(sent)
    assert joined.payload == batch.payload
    assert joined.message_format == batch.message_format
    assert joined.largest_bytes == batch.largest_bytes == max(map(size_of, sent))
    assert joined.size_bytes == batch.size_bytes == len(batch.payload)
    assert [message.payload for message in joined] == [message.payload for message in batch]
    assert len(joined) == len(batch) == len(sent)
    assert (joined.key, batch.key) == (None, batch.first.key)
    assert (joined.first.message_id, joined.first.session_id) == (batch.first.message_id, batch.first.session_id)
    for each in (joined, batch):
        assert each.via(None) is each
        via = each.via("v")
        inside = [Sections(message.payload) for message in via]
        assert {one.message_annotations["x-opt-via-partition-key"] for one in (*inside, Sections(via.payload))} == {"v"}
        assert [message.body for message in via] == [message.body for message in batch]
