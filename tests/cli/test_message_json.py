"""A message as a JSON object, and the same message again."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from sbclient import ServiceBusMessage, ServiceBusReceivedMessage
from sbclient.amqp import encode_message
from sbclient.cli.message_json import message_line, message_of, named, set_by_name
from sbclient.errors import InvalidOperationError
from sbclient.formats.message_json import ATTRIBUTES, timestamp_text
from sbclient.message import DEAD_LETTER_DESCRIPTION, DEAD_LETTER_REASON, AmqpMessageBodyType

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def received(content: ServiceBusMessage) -> ServiceBusReceivedMessage:
    return ServiceBusReceivedMessage.of(
        encode_message(content), sequence_number=7, enqueued_time_utc=NOW, expires_at_utc=NOW
    )


def message_json(message: ServiceBusReceivedMessage, **options: bool) -> Any:
    line = message_line(message, **options)
    assert line.isprintable()
    return json.loads(line)


def again(message: ServiceBusMessage) -> ServiceBusMessage:
    return message_of("file, line 1", message_json(received(message)))


FULL = ServiceBusMessage(
    b"\xff\x00binary",
    application_properties={
        "text": "ü",
        "whole": 2**40,
        "float": 1.0,
        "not a number": float("inf"),
        "flag": True,
        "nothing": None,
        "moment": NOW,
        "id": UUID(int=5),
        "price": Decimal("1.50"),
    },
    session_id="s",
    message_id="m",
    scheduled_enqueue_time_utc=NOW,
    time_to_live=timedelta(seconds=90),
    content_type="text/plain",
    correlation_id="c",
    subject="greeting",
    partition_key="s",
    to="t",
    reply_to="r",
    reply_to_session_id="rs",
)


def test_each_attribute_round_trips() -> None:
    copy = again(FULL)
    assert bytes(copy) == b"\xff\x00binary"
    assert {name: getattr(copy, name) for name in ATTRIBUTES} == {name: getattr(FULL, name) for name in ATTRIBUTES}
    assert all(getattr(FULL, name) is not None for name in ATTRIBUTES)
    assert copy.application_properties == FULL.application_properties
    assert [type(value) for value in copy.application_properties.values()] == [
        type(value) for value in FULL.application_properties.values()
    ]


@pytest.mark.parametrize("body", ["", "text", '{"order": 1}', "line\nline"])
def test_text_body_is_not_encoded(body: str) -> None:
    shown = message_json(received(ServiceBusMessage(body)))
    assert shown["body"] == body
    assert bytes(message_of("x", shown)) == body.encode()


def test_only_set_attributes_and_broker_facts_are_printed() -> None:
    assert message_json(received(ServiceBusMessage("x"))) == {
        "sequence_number": 7,
        "enqueued_time_utc": timestamp_text(NOW),
        "expires_at_utc": timestamp_text(NOW),
        "delivery_count": 0,
        "state": "active",
        "body": "x",
    }


def test_dead_letter_reason_is_not_a_property() -> None:
    reasons = {DEAD_LETTER_REASON: "spoilt", DEAD_LETTER_DESCRIPTION: "it smells", "mine": 1}
    message = received(ServiceBusMessage("x", application_properties=reasons))
    shown = message_json(message, is_dead_letter=True)
    assert (shown["dead_letter_reason"], shown["dead_letter_error_description"]) == ("spoilt", "it smells")
    assert message_of("x", shown).application_properties == {"mine": 1}
    assert message_of("x", message_json(message)).application_properties == reasons


def test_body_that_is_a_value_is_printed_and_sent() -> None:
    message = received(ServiceBusMessage(None))
    message._body_type = AmqpMessageBodyType.VALUE
    message._body = {"when": NOW, "list": [1, (2.5, None)]}
    shown = message_json(message)
    assert (shown["body_type"], shown["body"]) == (
        "value",
        {"when": {"datetime": "2030-01-01T00:00:00Z"}, "list": [1, [2.5, None]]},
    )
    again = message_of("x", shown)
    assert (again.body_type, again.body) == (AmqpMessageBodyType.VALUE, {"when": NOW, "list": [1, [2.5, None]]})


def test_body_that_is_a_sequence_is_sent() -> None:
    again = message_of("x", {"body_type": "sequence", "body": [[1, {"uuid": str(UUID(int=1))}], []]})
    assert (again.body_type, again.body) == (AmqpMessageBodyType.SEQUENCE, [[1, UUID(int=1)], []])


def test_body_can_be_any_json() -> None:
    assert bytes(message_of("x", {"body": {"order": [1, "ü"]}})) == '{"order": [1, "ü"]}'.encode()
    assert bytes(message_of("x", {})) == b""


@pytest.mark.parametrize(
    "fields",
    [
        {"boddy": "x"},
        {"body": "x", "body_base64": "eA=="},
        {"body_base64": "no base64!"},
        {"body_base64": 5},
        {"body": "\ud800"},
        {"session_id": 5},
        {"session_id": "s" * 129},
        {"time_to_live": "soon"},
        {"scheduled_enqueue_time_utc": "soon"},
        {"application_properties": []},
        {"application_properties": {"a": [1]}},
        {"body_type": "text", "body": "x"},
        {"body_type": 5},
        {"body_type": "value", "body_base64": "eA=="},
        {"body_type": "value", "body": {"long": "x"}},
        {"body_type": "value", "body": json.loads("[" * 70 + "]" * 70)},
        {"body_type": "sequence", "body": [1]},
        {"body_type": "sequence"},
    ],
)
def test_invalid_message_is_rejected_with_its_place(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidOperationError) as raised:
        message_of("orders.jsonl, line 3", fields)
    assert "orders.jsonl, line 3: " in str(raised.value)


def test_set_attributes_and_properties_by_name() -> None:
    message = ServiceBusMessage("x")
    for name, text in named("--set", ["subject=a=b", "time_to_live=5m", "property.country=IE"]):
        set_by_name(message, name, text)
    assert (message.subject, message.time_to_live) == ("a=b", timedelta(minutes=5))
    assert message.application_properties == {"country": "IE"}


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("property.a:=5", 5),
        ("property.a:=1.5", 1.5),
        ('property.a:="5"', "5"),
        ("property.a:=true", True),
        ("property.a:=null", None),
        ('property.a:={"decimal": "1.50"}', Decimal("1.50")),
        ("property.a=5", "5"),
    ],
)
def test_typed_property_setting(setting: str, value: Any) -> None:
    message = ServiceBusMessage("x")
    ((name, text),) = named("--set", [setting])
    set_by_name(message, name, text)
    assert message.application_properties == {"a": value}
    assert type(message.application_properties["a"]) is type(value)


@pytest.mark.parametrize("text", ["five", "9" * 5_000, "[" * 100_000])
def test_typed_property_requires_json(text: str) -> None:
    with pytest.raises(InvalidOperationError):
        set_by_name(ServiceBusMessage("x"), "property.a:", text)


@pytest.mark.parametrize("setting", ["subject", "colour=red", "body=x", "=x"])
def test_unknown_attribute_is_rejected(setting: str) -> None:
    with pytest.raises(InvalidOperationError):
        named("--set", [setting])


def test_a_line_of_hostile_text_is_printable_and_the_same() -> None:
    text = 'a "quoted" \\ text\n\u2028 with \u202e marks and an \x00'
    content = encode_message(ServiceBusMessage(text, subject=text, application_properties={text: text}))
    facts = {"sequence_number": 7, "enqueued_sequence_number": 3, "dead_letter_source": text, "delivery_count": 2}
    message = ServiceBusReceivedMessage.of(content, enqueued_time_utc=NOW, **facts)  # type: ignore[arg-type]  # mixed
    shown = message_json(message)
    assert {name: shown[name] for name in facts} == facts
    assert (shown["body"], shown["subject"], shown["application_properties"]) == (text, text, {text: text})
