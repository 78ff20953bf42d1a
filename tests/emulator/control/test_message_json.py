"""Messages as JSON: what is shown of them, and what can be sent."""

from __future__ import annotations

from base64 import b64decode
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from sbclient.amqp import encode_message
from sbclient.broker.entry import Entry
from sbclient.emulator.control.message_json import (
    MAX_COPIES,
    MAX_PREVIEW,
    MAX_SHOWN_BYTES,
    body_of,
    line_of,
    read_messages,
    whole_of,
)
from sbclient.errors import InvalidOperationError
from sbclient.message import AmqpMessageBodyType, ServiceBusMessage


def entry(body: Any, **attributes: Any) -> Entry:
    stored = Entry(encode_message(ServiceBusMessage(body, **attributes)), 100)
    stored.number, stored.enqueued_at = (3 << 48) | 7, 1_700_000_000.0
    return stored


def of_type(kind: AmqpMessageBodyType, body: Any) -> ServiceBusMessage:
    message = ServiceBusMessage(b"")
    message._body_type, message._body = kind, body
    return message


class TestShown:
    def test_a_list_entry_has_the_state_of_its_message(self) -> None:
        line = line_of(entry("hello\n  world", message_id="m", session_id="s", subject="hi"))
        assert (line["fragment"], line["sequence_number"], line["state"]) == (3, (3 << 48) | 7, "active")
        assert (line["message_id"], line["session_id"], line["subject"]) == ("m", "s", "hi")
        assert (line["enqueued_at"], line["expires_at"], line["is_locked"]) == (1_700_000_000.0, None, False)
        assert line["preview"] == "hello world"

    def test_a_long_body_shows_its_beginning(self) -> None:
        assert len(line_of(entry("ä" * 10_000))["preview"]) == MAX_PREVIEW

    def test_everything_is_shown_of_one_message(self) -> None:
        at = datetime(2030, 1, 2, tzinfo=UTC)
        properties = {"n": 5, "at": at, "id": UUID(int=1), "d": Decimal("1.5"), "ok": True, "none": None, "t": "<b>"}
        stored = entry("x", application_properties=properties, time_to_live=timedelta(minutes=2), to="there")
        whole = whole_of(stored)
        assert (whole["to"], whole["time_to_live_s"]) == ("there", 120.0)
        shown = {each["name"]: (each["type"], each["value"]) for each in whole["application_properties"]}
        assert shown["n"] == ("int", "5")
        assert shown["at"] == ("datetime", "2030-01-02T00:00:00Z")
        assert shown["id"][1] == "00000000-0000-0000-0000-000000000001"
        assert shown["ok"] == ("bool", "true")
        assert shown["t"] == ("str", "<b>")

    @pytest.mark.parametrize("raw", [b"\xff\xfe", b"\x00text", b"a\x1b[31m"])
    def test_binary_is_shown_as_base64(self, raw: bytes) -> None:
        said = body_of(encode_message(ServiceBusMessage(raw)))
        assert b64decode(said["base64"]) == raw
        assert line_of(entry(raw))["preview"] is None

    def test_a_body_that_is_cut_stays_text(self) -> None:
        said = body_of(encode_message(ServiceBusMessage("x" + "ä" * MAX_SHOWN_BYTES)))
        assert said["is_cut"]
        assert said["size_bytes"] == 1 + 2 * MAX_SHOWN_BYTES
        assert said["text"].endswith("ä")

    def test_a_body_in_parts_is_joined(self) -> None:
        assert body_of(encode_message(ServiceBusMessage([b"a", b"b"])))["text"] == "ab"

    @pytest.mark.parametrize(
        ("kind", "value", "text"),
        [
            (AmqpMessageBodyType.VALUE, {"a": b"\x01\x02"}, '{"a": {"base64": "AQI="}}'),
            (AmqpMessageBodyType.VALUE, "plain", "plain"),
            (AmqpMessageBodyType.SEQUENCE, [[1, 2], [None]], "[[1, 2], [null]]"),
            (AmqpMessageBodyType.VALUE, {b"k": 1}, "{b'k': 1}"),
        ],
    )
    def test_values_and_sequences_are_shown_as_text(self, kind: AmqpMessageBodyType, value: Any, text: str) -> None:
        said = body_of(encode_message(of_type(kind, value)))
        assert (said["type"], said["text"]) == (kind.value, text)


class TestRead:
    """What messages and attributes are read is tested with `sbclient.formats.message_json`, in `tests/cli`."""

    def test_copies_are_messages_of_their_own(self) -> None:
        first, second = read_messages({"body": "x", "copies": 2})
        assert first is not second
        assert bytes(first) == bytes(second)

    @pytest.mark.parametrize(
        "said",
        [
            5,
            {"bodyy": "x"},
            {"time_to_live": "-1 s"},
            {"time_to_live": 5},
            {"application_properties": {"a": 2**70}},
            {"copies": 0},
            {"copies": MAX_COPIES + 1},
            {"copies": 1.5},
            {"copies": 2, "message_id": "m"},
        ],
    )
    def test_an_invalid_message_is_rejected_with_a_reason(self, said: Any) -> None:
        with pytest.raises(InvalidOperationError):
            read_messages(said)
