"""Each type that .NET clients send reaches Python with a documented class, and goes back equal on every way."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from sbclient.amqp import EncodedMessage, encode_message
from sbclient.amqp.encode import encode_map, encode_string, encode_value, sized_map
from sbclient.amqp.sections import APPLICATION_PROPERTIES
from sbclient.amqp.value_texts import name_of, text_of, value_of
from sbclient.cli.message_json import message_line, message_of
from sbclient.message import AmqpMessageBodyType, ServiceBusMessage, ServiceBusReceivedMessage
from sbclient.rules.envelope import seal, unseal
from tests.net_types import NET_TYPES, NetType, bodies

NOW = datetime(2026, 11, 24, tzinfo=UTC)

EACH = pytest.mark.parametrize("net", NET_TYPES, ids=[each.name for each in NET_TYPES])


def received(raw: bytes) -> ServiceBusReceivedMessage:
    return ServiceBusReceivedMessage.of(EncodedMessage.of(raw), sequence_number=1, enqueued_time_utc=NOW)


def with_property(raw: bytes) -> bytes:
    return b"\x00\x53\x74" + sized_map(encode_string("v") + raw, 2)


def through_json(message: ServiceBusReceivedMessage) -> ServiceBusMessage:
    return message_of("line 1", json.loads(message_line(message)))


@EACH
def test_property_has_its_documented_class_and_value(net: NetType) -> None:
    value: Any = received(with_property(net.raw)).application_properties["v"]
    assert (type(value), value) == (type(net.value), net.value)


@EACH
def test_property_goes_back_equal(net: NetType) -> None:
    raw = with_property(net.raw)
    message = received(raw)
    copies = [
        message,
        message.copy(application_properties=dict(message.application_properties)),
        ServiceBusMessage(b"", application_properties={"v": net.value}),
        through_json(message),
    ]
    for copy in copies:
        assert encode_message(copy).raw(APPLICATION_PROPERTIES) == raw
    home = unseal(received(seal(EncodedMessage.of(raw), "q").payload), now=NOW.timestamp(), time_to_live_mode="restart")
    assert home.message.payload == raw


@EACH
def test_property_goes_back_equal_through_rows_of_spark(net: NetType) -> None:
    value = received(with_property(net.raw)).application_properties["v"]
    text, kind = text_of(value), name_of(value)
    again = text if kind is None or text is None else value_of(kind, text)
    assert encode_value(again) == net.raw


@EACH
def test_bodies_go_back_equal(net: NetType) -> None:
    for raw in bodies(net.raw):
        message = received(raw)
        body = message.body
        if message.body_type is AmqpMessageBodyType.VALUE and not isinstance(body, list | dict):
            assert body == net.value
        made = ServiceBusMessage(None)
        made._body, made._body_type = body, message.body_type
        for copy in (message, made, through_json(message)):
            assert encode_message(copy).payload == raw


def test_a_map_with_keys_that_json_lacks_goes_back_equal() -> None:
    raw = b"\x00\x53\x77" + encode_map({1: "a", 2: {"uuid": "x"}}, encode_value)
    assert encode_message(through_json(received(raw))).payload == raw
