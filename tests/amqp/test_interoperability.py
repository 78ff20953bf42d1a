"""The SDK's own encoder and decoder against ours, both ways, through a socket pair."""

from __future__ import annotations

import socket
import struct
import uuid
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from azure.servicebus._pyamqp import _decode, _encode, message, outcomes, performatives
from azure.servicebus._pyamqp.error import AMQPError
from azure.servicebus._pyamqp.types import AMQPTypes
from hypothesis import given, settings

from sbclient.amqp.batch import split_batch
from sbclient.amqp.broker_annotations import BrokerAnnotations, encode_delivery
from sbclient.amqp.decode import decode_value
from sbclient.amqp.encode import encode_value
from sbclient.amqp.encoded import EncodedMessage
from sbclient.amqp.errors import AmqpError
from sbclient.amqp.fields import encode_composite
from sbclient.amqp.frames import FrameReader, encode_frame
from sbclient.amqp.performatives import (
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    Open,
    Source,
    Target,
    Transfer,
)
from sbclient.amqp.sections import Properties, Sections
from sbclient.amqp.states import ACCEPTED, Modified, Rejected
from sbclient.amqp.transfers import write_disposition, write_transfers
from sbclient.amqp.types import (
    Array,
    Byte,
    DateTimeOffset,
    Float,
    Int,
    Long,
    Short,
    Symbol,
    TimeSpan,
    Timestamp,
    UByte,
    UInt,
    ULong,
    Uri,
    UShort,
    longs,
    symbols,
    timestamps,
    uuids,
)
from sbclient.message import ServiceBusMessage
from tests.amqp.strategies import messages
from tests.payloads import encode_sections, payload_of

TOKEN = UUID("00112233-4455-6677-8899-aabbccddeeff")
MOMENT = datetime(2024, 5, 6, 7, 8, 9, 123000, tzinfo=UTC)
MOMENT_MS = 1_714_979_289_123


def carried(raw: bytes) -> bytes:
    """The bytes after a way through a real socket."""
    near, far = socket.socketpair()
    with near, far:
        near.sendall(raw)
        near.shutdown(socket.SHUT_WR)
        received = b""
        while chunk := far.recv(65_536):
            received += chunk
    return received


def sdk_encoded(kind: str | None, value: Any) -> bytes:
    output = bytearray()
    _encode.encode_value(output, {"TYPE": kind, "VALUE": value} if kind else value)
    return bytes(output)


def sdk_decoded(raw: bytes) -> Any:
    view = memoryview(raw)
    rest, value = _decode._DECODE_BY_CONSTRUCTOR[view[0]](view[1:])
    assert len(rest) == 0
    return value


THEIRS: list[tuple[str | None, Any, Any]] = [
    (AMQPTypes.null, None, None),
    (AMQPTypes.boolean, True, True),
    (AMQPTypes.boolean, False, False),
    (AMQPTypes.ubyte, 200, UByte(200)),
    (AMQPTypes.byte, -5, Byte(-5)),
    (AMQPTypes.ushort, 60_000, UShort(60_000)),
    (AMQPTypes.short, -300, Short(-300)),
    (AMQPTypes.uint, 0, UInt(0)),
    (AMQPTypes.uint, 200, UInt(200)),
    (AMQPTypes.uint, 2**32 - 1, UInt(2**32 - 1)),
    (AMQPTypes.int, -5, -5),
    (AMQPTypes.int, 2**31 - 1, 2**31 - 1),
    (AMQPTypes.ulong, 0, ULong(0)),
    (AMQPTypes.ulong, 200, ULong(200)),
    (AMQPTypes.ulong, 2**64 - 1, ULong(2**64 - 1)),
    (AMQPTypes.long, -5, Long(-5)),
    (AMQPTypes.long, -(2**63), -(2**63)),
    (AMQPTypes.float, 1.5, Float(1.5)),
    (AMQPTypes.double, 1.1, 1.1),
    (AMQPTypes.timestamp, MOMENT, MOMENT),
    (AMQPTypes.timestamp, 253_402_300_800_000, Timestamp(253_402_300_800_000)),
    (AMQPTypes.uuid, TOKEN, TOKEN),
    (AMQPTypes.binary, b"x" * 300, b"x" * 300),
    (AMQPTypes.string, "é" * 200, "é" * 200),
    (AMQPTypes.symbol, b"sym", Symbol("sym")),
    (AMQPTypes.decimal128, Decimal("12345.678"), Decimal("12345.678")),
    (
        AMQPTypes.decimal128,
        Decimal("-9999999999999999999999999999999999E-20"),
        Decimal("-99999999999999.99999999999999999999"),
    ),
    (AMQPTypes.list, [1, "a", None, [True]], [1, "a", None, [True]]),
    (AMQPTypes.list, list(range(300)), list(range(300))),
    (AMQPTypes.map, {"a": 1, "b": {"c": [1.5]}}, {"a": 1, "b": {"c": [1.5]}}),
    (None, ({"TYPE": AMQPTypes.symbol, "VALUE": b"d"}, "x"), ("d", "x")),
]


@pytest.mark.parametrize(
    ("kind", "value", "ours"), THEIRS, ids=[f"{kind}-{str(value)[:20]}" for kind, value, _ in THEIRS]
)
def test_what_the_sdk_encodes_is_read_with_its_type(kind: str | None, value: Any, ours: Any) -> None:
    decoded = decode_value(carried(sdk_encoded(kind, value)), typed=True)
    assert decoded == ours
    assert isinstance(ours, tuple) or type(decoded) is type(ours)


@pytest.mark.parametrize(
    ("kind", "values", "ours"),
    [
        (AMQPTypes.long, [1, 2**40], longs([1, 2**40])),
        (AMQPTypes.uuid, [TOKEN], uuids([TOKEN])),
        (AMQPTypes.timestamp, [MOMENT], timestamps([MOMENT])),
        (AMQPTypes.symbol, [b"a", b"bc"], Array(["a", "bc"], 0xB3)),
        (AMQPTypes.long, list(range(300)), longs(range(300))),
    ],
)
def test_arrays_of_the_sdk_are_read(kind: str, values: list[Any], ours: Array) -> None:
    raw = sdk_encoded(AMQPTypes.array, [{"TYPE": kind, "VALUE": value} for value in values])
    decoded = decode_value(carried(raw), typed=True)
    assert (list(decoded.items), decoded.code) == (list(ours.items), ours.code)


OURS: list[tuple[Any, Any]] = [
    (None, None),
    (True, True),
    (False, False),
    (UByte(200), 200),
    (Byte(-5), -5),
    (UShort(60_000), 60_000),
    (Short(-300), -300),
    (UInt(0), 0),
    (UInt(200), 200),
    (UInt(2**32 - 1), 2**32 - 1),
    (Int(-5), -5),
    (2**31 - 1, 2**31 - 1),
    (ULong(0), 0),
    (ULong(2**64 - 1), 2**64 - 1),
    (Long(-5), -5),
    (-(2**63), -(2**63)),
    (Float(1.5), 1.5),
    (1.1, 1.1),
    (MOMENT, MOMENT_MS),
    (TOKEN, TOKEN),
    (b"x" * 300, b"x" * 300),
    ("é" * 200, ("é" * 200).encode()),
    (Symbol("s" * 300), b"s" * 300),
    ([], []),
    ([1, "a", None, [True]], [1, b"a", None, [True]]),
    (list(range(300)), list(range(300))),
    ({"a": 1, "b": {"c": [1.5]}}, {b"a": 1, b"b": {b"c": [1.5]}}),
    (symbols(["ANONYMOUS", "PLAIN"]), [b"ANONYMOUS", b"PLAIN"]),
    (longs(range(300)), list(range(300))),
    (uuids([TOKEN]), [TOKEN]),
    (Decimal("-12345.6780"), Decimal("-12345.6780")),
    (TimeSpan.of_ticks(-12_345), -12_345),
    (DateTimeOffset.of_ticks(639_310_248_000_000_001), 639_310_248_000_000_001),
    (Uri("http://x/y"), b"http://x/y"),
]


@pytest.mark.parametrize(("value", "theirs"), OURS, ids=[repr(value)[:30] for value, _ in OURS])
def test_the_sdk_reads_what_we_encode(value: Any, theirs: Any) -> None:
    assert sdk_decoded(carried(encode_value(value))) == theirs


@pytest.mark.parametrize("text", ["-9999999999999999999999999999999999E-20", "1E+6000", "1E-29"])
def test_decimals_that_net_lacks_have_the_bytes_of_the_sdk(text: str) -> None:
    assert encode_value(Decimal(text)) == sdk_encoded(AMQPTypes.decimal128, Decimal(text))


def test_the_sdk_cannot_read_the_decimals_that_it_writes() -> None:
    with pytest.raises(ValueError):  # when this fails, transport="sdk" may send decimals
        sdk_decoded(sdk_encoded(AMQPTypes.decimal128, Decimal("12345.678")))


def test_the_sdk_reads_our_performatives() -> None:
    error = AmqpError("com.microsoft:server-busy", "wait", {"retry": 5})
    performatives_and_fields: list[tuple[Any, int, dict[int, Any]]] = [
        (
            Open("id", "host", 65_536, 255, 240_000, properties={"product": "x"}),
            16,
            {0: b"id", 2: 65_536, 4: 240_000, 9: {b"product": b"x"}},
        ),
        (Begin(1, 0, 5_000, 2**31 - 1, 255), 17, {0: 1, 2: 5_000, 4: 255}),
        (
            Attach(
                "l",
                3,
                True,
                0,
                1,
                Source("q", filter={"f": "s"}),
                Target("t"),
                None,
                False,
                0,
                262_144,
                properties={"p": Long(7)},
            ),
            18,
            {0: b"l", 1: 3, 2: True, 4: 1, 9: 0, 10: 262_144, 13: {b"p": 7}},
        ),
        (Flow(5, 10, 7, 20, 3, 4, 100, drain=True), 19, {0: 5, 4: 3, 5: 4, 6: 100, 8: True}),
        (Disposition(False, 5, None, True, Rejected(AmqpError("c"))), 21, {1: 5, 3: True}),
        (Detach(3, True, error), 22, {0: 3, 1: True, 2: [b"com.microsoft:server-busy", b"wait", {b"retry": 5}]}),
        (End(), 23, {0: None}),
        (Close(AmqpError("amqp:connection:forced")), 24, {0: [b"amqp:connection:forced", None, None]}),
    ]
    for performative, code, expected in performatives_and_fields:
        frame = carried(encode_frame(1, performative, 65_536))
        kind, fields = _decode.decode_frame(memoryview(frame)[8:])
        assert kind == code
        assert {index: fields[index] for index in expected} == expected


def test_the_sdk_finds_all_three_fields_in_a_rejection() -> None:
    raw = write_disposition(0, True, 1, None, settled=True, state=Rejected(AmqpError("amqp:not-found")))
    _, fields = _decode.decode_frame(memoryview(raw)[8:])
    assert fields[4] == {"rejected": [[b"amqp:not-found", None, None]]}
    raw = write_disposition(0, False, 1, None, settled=True, state=Rejected())
    _, fields = _decode.decode_frame(memoryview(raw)[8:])
    assert fields[4] == {"rejected": []}


def sdk_performative(name: str, **fields: Any) -> Any:
    """A performative of the SDK, absent fields None."""
    kind = getattr(performatives, f"{name}Frame")
    return kind(**(dict.fromkeys(kind._fields) | fields))


def sdk_frame(performative: Any, channel: int = 1) -> bytes:
    header, body = _encode.encode_frame(performative)
    return bytes(header) + struct.pack(">H", channel) + bytes(body or b"")


def test_performatives_of_the_sdk_are_read() -> None:
    reason = {"DeadLetterReason": "r"}
    rejection = outcomes.Rejected(error=AMQPError(condition=b"com.microsoft:dead-letter", description="d", info=reason))
    theirs = [
        sdk_performative(
            "Open", container_id="SBSender", hostname="h", max_frame_size=1_048_576, channel_max=65_535
        )._replace(properties={"product": "x"}),
        sdk_performative("Begin", next_outgoing_id=0, incoming_window=65_536, outgoing_window=65_536),
        sdk_performative(
            "Disposition", role=True, first=3, last=3, settled=False, state=outcomes.Modified(True, True, None)
        ),
        sdk_performative("Disposition", role=True, first=4, settled=False, state=rejection),
        sdk_performative("Detach", handle=3, closed=True),
        sdk_performative(
            "Transfer",
            handle=3,
            delivery_id=7,
            delivery_tag=b"\0\0\0\7",
            message_format=0x80013700,
            settled=False,
            more=True,
        )._replace(payload=b"abc"),
    ]
    reader = FrameReader(65_536)
    reader.feed(carried(b"".join(map(sdk_frame, theirs)) + sdk_frame(None, 0)))
    read = []
    while (frame := reader.next_frame(0)) is not None:
        read.append(frame)
    assert [frame.performative for frame in read] == [
        Open("SBSender", "h", 1_048_576, properties={"product": "x"}),
        Begin(None, 0, 65_536, 65_536),
        Disposition(True, 3, 3, False, Modified(True, True)),
        Disposition(
            True, 4, None, False, Rejected(AmqpError("com.microsoft:dead-letter", "d", {"DeadLetterReason": "r"}))
        ),
        Detach(3, True),
        Transfer(3, 7, b"\0\0\0\7", 0x80013700, False, True),
        None,
    ]
    assert read[5].payload == b"abc"
    assert all(frame.channel == 1 for frame in read[:-1])


def test_the_sdk_reads_our_transfer_frames() -> None:
    frames = list(
        write_transfers(1, 3, 300, TOKEN.bytes_le, 0, b"x" * 1_000, settled=False, state=None, max_frame_size=512)
    )
    payload = b""
    for frame in frames:
        assert len(frame) <= 512
        _, fields = _decode.decode_frame(memoryview(frame)[8:])
        assert fields[:4] == [3, 300, TOKEN.bytes_le, 0]
        assert uuid.UUID(bytes_le=fields[2]) == TOKEN
        payload += bytes(fields[11])
    assert [_decode.decode_frame(memoryview(frame)[8:])[1][5] for frame in frames] == [True, True, False]
    assert payload == b"x" * 1_000


@given(messages)
@settings(max_examples=60)
def test_the_sdk_reads_our_messages(sent: ServiceBusMessage) -> None:
    properties = sent.application_properties
    sent.application_properties = {name: value for name, value in properties.items() if not isinstance(value, Decimal)}
    read: Any = _decode.decode_payload(memoryview(payload_of(sent)))
    assert b"".join(read.data) == bytes(sent)
    assert set(read.application_properties or ()) == {name.encode() for name in sent.application_properties}
    if sent.message_id is not None:
        assert read.properties.message_id == sent.message_id.encode()
    if sent.partition_key is not None:
        assert read.message_annotations[b"x-opt-partition-key"] == sent.partition_key.encode()


def test_the_sdk_reads_our_deliveries_and_replies() -> None:
    sections = Sections(payload_of(ServiceBusMessage(b"body", message_id="m", application_properties={"n": 5})))
    annotations = BrokerAnnotations(
        7, MOMENT_MS, 2, 60_000, MOMENT_MS + 5, TOKEN, 6, 1, "orders", {"DeadLetterReason": "why"}
    )
    read: Any = _decode.decode_payload(memoryview(carried(encode_delivery(sections, annotations))))
    assert (read.header.delivery_count, read.header.ttl) == (2, 60_000)
    assert read.delivery_annotations == {b"x-opt-lock-token": TOKEN}
    assert read.message_annotations == {
        b"x-opt-enqueued-time": MOMENT_MS,
        b"x-opt-sequence-number": 7,
        b"x-opt-locked-until": MOMENT_MS + 5,
        b"x-opt-enqueue-sequence-number": 6,
        b"x-opt-message-state": 1,
        b"x-opt-deadletter-source": b"orders",
    }
    assert read.application_properties == {b"n": 5, b"DeadLetterReason": b"why"}
    reply = encode_sections(
        properties=Properties(correlation_id=TOKEN),
        application_properties={"statusCode": 200, "errorCondition": Symbol("amqp:not-found")},
        value={"expirations": timestamps([MOMENT])},
    )
    read = _decode.decode_payload(memoryview(reply))
    assert read.properties.correlation_id == TOKEN
    assert read.application_properties[b"statusCode"] == 200
    assert read.value == {b"expirations": [MOMENT_MS]}


def sdk_message(**parts: Any) -> bytes:
    output = bytearray()
    _encode.encode_payload(output, message.Message(**parts))
    return bytes(output)


def test_messages_of_the_sdk_are_read_and_their_bare_bytes_kept() -> None:
    schedule = {"TYPE": AMQPTypes.timestamp, "VALUE": MOMENT}
    sent = {"int": 5, "float": 1.5, "text": "é", "when": MOMENT, "id": TOKEN, "yes": True, "price": Decimal("1.50")}
    ids: dict[str, Any] = {"message_id": "m", "group_id": "g", "reply_to_group_id": "r", "correlation_id": "c"}
    raw = sdk_message(
        header=message.Header(ttl=90_000),
        message_annotations={b"x-opt-partition-key": "k", b"x-opt-scheduled-enqueue-time": schedule},
        properties=message.Properties(subject="s", content_type="text/plain", to="t", reply_to="rt", **ids),
        application_properties={**sent, "none": None},
        data=[b"body"],
        delivery_annotations={b"x-opt-other": "late"},
    )
    read = EncodedMessage.of(carried(raw))
    assert (read.message_id, read.subject, read.session_id, read.partition_key) == ("m", "s", "g", "k")
    assert (read.content_type, read.reply_to_session_id, read.to, read.reply_to) == ("text/plain", "r", "t", "rt")
    assert (read.correlation_id, read.time_to_live) == ("c", timedelta(seconds=90))
    assert read.scheduled_enqueue_time_utc == MOMENT
    assert read.application_properties == {**sent, "none": None}
    assert bytes(read) == b"body"
    sections = read
    delivered = Sections(encode_delivery(sections, BrokerAnnotations(1, 2)))
    assert delivered.raw(0x73) == sections.raw(0x73)
    assert delivered.raw_body == sections.raw_body
    theirs: Any = _decode.decode_payload(memoryview(delivered.payload))
    assert theirs.application_properties[b"price"] == Decimal("1.50")  # in the form of the service


def test_batches_of_the_sdk_are_split() -> None:
    inner = [sdk_message(properties=message.Properties(message_id=str(number)), data=[b"b"]) for number in range(3)]
    raw = sdk_message(properties=message.Properties(message_id="0"), data=inner)
    assert split_batch(raw) == inner
    assert [EncodedMessage.of(piece).message_id for piece in split_batch(raw)] == ["0", "1", "2"]


def test_outcomes_are_described_by_small_numbers() -> None:
    assert encode_composite(ACCEPTED).hex() == "00532445"
