"""The sizes are compared with literal bytes, and with a plain encoder that writes them out."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbclient.message import AmqpMessageBodyType, ServiceBusMessage, chunks_of
from sbclient.options import BACKLOG_HEADROOM_BYTES
from sbclient.rules.envelope import USER_PREFIX, seal
from sbclient.rules.size import MAX_TTL_MS, batch_size, encoded_size
from tests.rules.strategies import messages, property_values

PLAIN = bytes.fromhex("005375 a0 02 6869")
"""The body `hi` and nothing else."""


def plain(**changes: Any) -> ServiceBusMessage:
    return ServiceBusMessage(b"hi", **changes)


def foreign(body: Any, body_type: AmqpMessageBodyType) -> ServiceBusMessage:
    """A message as other clients may send it; ours makes none of these."""
    message = ServiceBusMessage(None)
    message._body, message._body_type = body, body_type
    return message


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Symbol(str):
    """A str that AMQP writes as a symbol."""


class Unsigned(int):
    """An int that AMQP writes as a uint."""


def variable(short: int, content: bytes) -> bytes:
    if len(content) < 256:
        return bytes([short, len(content)]) + content
    return bytes([short + 0x10]) + struct.pack(">I", len(content)) + content


def compound(short: int, items: Sequence[Any]) -> bytes:
    inside = b"".join(map(encoded, items))
    if len(inside) + 1 < 256 and len(items) < 256:
        return bytes([short, len(inside) + 1, len(items)]) + inside
    return bytes([short + 0x10]) + struct.pack(">II", len(inside) + 4, len(items)) + inside


def encoded_integer(value: int) -> bytes:
    if isinstance(value, Unsigned):
        return b"\x43" if value == 0 else struct.pack(*(">BB", 0x52, value) if value < 256 else (">BI", 0x70, value))
    for constructor, form, bits in ((0x54, "b", 8), (0x71, "i", 32)):
        if -(2 ** (bits - 1)) <= value < 2 ** (bits - 1):
            return struct.pack(f">B{form}", constructor, value)
    return struct.pack(">Bq", 0x81, value)


def encoded(value: Any) -> bytes:
    match value:
        case None:
            return b"\x40"
        case bool():
            return b"\x41" if value else b"\x42"
        case int():
            return encoded_integer(value)
        case float():
            return struct.pack(">Bd", 0x82, value)
        case str():
            return variable(0xA3 if isinstance(value, Symbol) else 0xA1, value.encode())
        case bytes():
            return variable(0xA0, value)
        case datetime():
            return struct.pack(">Bq", 0x83, (value - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1))
        case UUID():
            return b"\x98" + value.bytes
        case Decimal():
            return b"\x94" + bytes(16)
        case dict():
            return compound(0xC1, [part for item in value.items() for part in item])
        case _:
            return compound(0xC0, list(value)) if value else b"\x45"


def section(code: int, value: Any) -> bytes:
    return bytes([0, 0x53, code]) + encoded(value)


def set_only(items: dict[Symbol, Any]) -> dict[Symbol, Any]:
    return {key: value for key, value in items.items() if value is not None}


def without_trailing_nulls(fields: list[Any]) -> list[Any]:
    while fields and fields[-1] is None:
        fields.pop()
    return fields


def encoded_properties(message: ServiceBusMessage) -> list[Any]:
    content_type = message.content_type
    fields: list[Any] = [
        message.message_id,
        None,
        message.to,
        message.subject,
        message.reply_to,
        message.correlation_id,
    ]
    is_lasting = message.time_to_live is not None and message.time_to_live > timedelta(milliseconds=MAX_TTL_MS)
    fields += [None if content_type is None else Symbol(content_type), None, *[EPOCH if is_lasting else None] * 2]
    return without_trailing_nulls([*fields, message.session_id, None, message.reply_to_session_id])


def encoded_message(message: ServiceBusMessage) -> bytes:
    annotations = set_only(
        {
            Symbol("x-opt-partition-key"): message.partition_key,
            Symbol("x-opt-scheduled-enqueue-time"): message.scheduled_enqueue_time_utc,
        }
    )
    written = b""
    if message.time_to_live is not None:
        ttl_ms = min(message.time_to_live // timedelta(milliseconds=1), MAX_TTL_MS)
        written += section(0x70, [None, None, Unsigned(ttl_ms)])
    written += section(0x72, annotations) if annotations else b""
    properties = encoded_properties(message)
    written += section(0x73, properties) if properties else b""
    if message.application_properties:
        written += section(0x74, message.application_properties)
    return written + b"".join(section(0x75, part) for part in chunks_of(message))


@given(messages())
def test_the_size_is_that_of_the_written_bytes(message: ServiceBusMessage) -> None:
    assert encoded_size(message) == len(encoded_message(message))


@given(st.lists(messages(), min_size=1, max_size=4))
def test_a_batch_holds_each_message_as_data_behind_the_keys_of_the_first(batch: list[ServiceBusMessage]) -> None:
    first = batch[0]
    annotations = set_only({Symbol("x-opt-partition-key"): first.partition_key})
    properties = without_trailing_nulls([first.message_id, *[None] * 9, first.session_id])
    written = section(0x72, annotations) if annotations else b""
    written += section(0x73, properties) if properties else b""
    written += b"".join(section(0x75, encoded_message(message)) for message in batch)
    assert batch_size(batch) == len(written)


@given(st.recursive(property_values, lambda some: st.lists(some) | st.dictionaries(st.text(max_size=5), some)))
def test_bodies_of_other_clients_are_measured_too(value: Any) -> None:
    assert encoded_size(foreign(value, AmqpMessageBodyType.VALUE)) == len(section(0x77, value))


def test_sequences_of_other_clients_are_one_section_for_each_list() -> None:
    body = [[1, "a"], [], (b"x" * 300, None)]
    expected = sum(len(section(0x76, part)) for part in body)
    assert encoded_size(foreign(body, AmqpMessageBodyType.SEQUENCE)) == expected


def test_the_longest_time_to_live_is_a_uint_of_milliseconds() -> None:
    assert MAX_TTL_MS == 4_294_967_295


def test_a_value_that_amqp_cannot_encode_has_no_size() -> None:
    with pytest.raises(TypeError):
        encoded_size(foreign(object(), AmqpMessageBodyType.VALUE))


@pytest.mark.parametrize(
    ("message", "sections"),
    [
        (plain(), PLAIN),
        (ServiceBusMessage(None), bytes.fromhex("005375 a0 00")),
        (ServiceBusMessage([]), bytes.fromhex("005375 a0 00")),
        (ServiceBusMessage([b"a", b""]), bytes.fromhex("005375 a0 01 61 005375 a0 00")),
        (plain(message_id="m"), bytes.fromhex("005373 c0 04 01 a1 01 6d") + PLAIN),
        (plain(message_id=""), bytes.fromhex("005373 c0 03 01 a1 00") + PLAIN),
        (plain(to="t"), bytes.fromhex("005373 c0 06 03 40 40 a1 01 74") + PLAIN),
        (plain(session_id="s"), bytes.fromhex("005373 c0 0e 0b 40404040404040404040 a1 01 73") + PLAIN),
        (plain(time_to_live=timedelta(0)), bytes.fromhex("005370 c0 04 03 40 40 43") + PLAIN),
        (plain(time_to_live=timedelta(microseconds=999)), bytes.fromhex("005370 c0 04 03 40 40 43") + PLAIN),
        (plain(time_to_live=timedelta(milliseconds=255)), bytes.fromhex("005370 c0 05 03 40 40 52 ff") + PLAIN),
        (plain(time_to_live=timedelta(milliseconds=256)), bytes.fromhex("005370 c0 08 03 40 40 70 00000100") + PLAIN),
        (
            plain(time_to_live=timedelta.max),
            bytes.fromhex("005370 c0 08 03 40 40 70 ffffffff 005373 c0 1b 0a 4040404040404040")
            + 2 * bytes.fromhex("83 0000000000000000")
            + PLAIN,
        ),
        (plain(application_properties={"a": True}), bytes.fromhex("005374 c1 05 02 a1 01 61 41") + PLAIN),
        (plain(application_properties={"a": -128}), bytes.fromhex("005374 c1 06 02 a1 01 61 54 80") + PLAIN),
        (plain(application_properties={"a": 128}), bytes.fromhex("005374 c1 09 02 a1 01 61 71 00000080") + PLAIN),
    ],
)
def test_small_messages_take_these_bytes(message: ServiceBusMessage, sections: bytes) -> None:
    assert encoded_size(message) == len(sections)


def test_annotations_take_these_bytes() -> None:
    key = b"\xa3\x13x-opt-partition-key" + b"\xa1\x01k"
    schedule = b"\xa3\x1cx-opt-scheduled-enqueue-time" + b"\x83" + bytes(8)
    moment = datetime(2024, 1, 1, tzinfo=UTC)
    assert encoded_size(plain(partition_key="k")) == 6 + len(key + PLAIN)
    assert encoded_size(plain(scheduled_enqueue_time_utc=moment)) == 6 + len(schedule + PLAIN)
    both = plain(partition_key="k", scheduled_enqueue_time_utc=moment)
    assert encoded_size(both) == 6 + len(key + schedule + PLAIN)


@pytest.mark.parametrize(
    ("value", "width"),
    [
        (2**31 - 1, 5),
        (2**31, 9),
        (-(2**31), 5),
        (-(2**31) - 1, 9),
        (127, 2),
        (-129, 5),
        (None, 1),
        (False, 1),
        (1.0, 9),
        (Decimal("1.5"), 17),
        (UUID(int=1), 17),
        (datetime(2024, 1, 1, tzinfo=UTC), 9),
        ("x" * 255, 257),
        ("x" * 256, 261),
        ("ü" * 127, 256),
        ("ü" * 128, 261),
        (b"x", 3),
    ],
)
def test_a_property_takes_the_narrowest_width(value: Any, width: int) -> None:
    beside = 3 + 3 + 3  # descriptor, map and key
    inside = width + 3
    assert encoded_size(plain(application_properties={"a": value})) - len(PLAIN) == beside + width + 6 * (inside > 254)


def test_a_map_widens_at_255_bytes_inside() -> None:
    assert encoded_size(plain(application_properties={"a": "x" * 249})) == len(PLAIN) + 3 + 3 + 254
    assert encoded_size(plain(application_properties={"a": "x" * 250})) == len(PLAIN) + 3 + 9 + 255


def test_a_body_widens_at_256_bytes() -> None:
    assert encoded_size(ServiceBusMessage(b"x" * 255)) == 3 + 2 + 255
    assert encoded_size(ServiceBusMessage(b"x" * 256)) == 3 + 5 + 256


def test_empty_batch_has_no_size() -> None:
    assert batch_size([]) == 0


def test_sealing_stays_within_the_headroom() -> None:
    message = ServiceBusMessage(
        b"x" * 240,
        session_id="ü" * 128,
        time_to_live=timedelta(days=12345, hours=11, minutes=11, seconds=11, microseconds=111111),
        scheduled_enqueue_time_utc=datetime(2024, 1, 1, tzinfo=UTC),
        partition_key="ü" * 128,
        application_properties={USER_PREFIX: "x"},
    )
    sealed = seal(message, "a/" * 129 + "ab", native_session_id="f" * 64)
    assert 0 < encoded_size(sealed) - encoded_size(message) <= 512 <= BACKLOG_HEADROOM_BYTES
