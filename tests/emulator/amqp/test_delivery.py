"""What of a stored message goes to a client, whichever way it came in."""

from __future__ import annotations

import math
import pickle
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from sbclient.amqp import EncodedMessage, Sections, encode_message
from sbclient.amqp.types import UByte
from sbclient.broker.entry import Entry, utc_datetime, uuid_of
from sbclient.broker.session import SessionLock
from sbclient.emulator.amqp.delivery import encode_entry, tag_of
from sbclient.message import ServiceBusMessage, ServiceBusMessageState

AT = 1_700_000_000.123
TOKEN = UUID("01234567-89ab-cdef-0123-456789abcdef")


def entry(content: ServiceBusMessage, **facts: object) -> Entry:
    made = Entry(encode_message(content), 0)
    made.number = 7
    made.enqueued_at = AT
    for name, value in facts.items():
        setattr(made, name, value)
    return made


def message(**attributes: object) -> ServiceBusMessage:
    return ServiceBusMessage(b"body", application_properties={"a": 1}, message_id="m", **attributes)  # type: ignore[arg-type]


def test_content_of_the_sender_is_delivered() -> None:
    sections = Sections(encode_entry(entry(message())).payload)
    assert sections.data() == [b"body"]
    assert sections.application_properties == {"a": 1}
    assert sections.properties.message_id == "m"


def test_a_held_message_carries_its_lock() -> None:
    payload, token = encode_entry(entry(message(), token=TOKEN.int, locked_until=AT + 60))
    sections = Sections(payload)
    assert token == TOKEN
    assert sections.delivery_annotations == {"x-opt-lock-token": TOKEN}
    assert sections.message_annotations["x-opt-locked-until"] == moment(60)
    assert sections.message_annotations["x-opt-enqueued-time"] == moment(0)


def moment(after_s: float) -> datetime:
    return datetime(2023, 11, 14, 22, 13, 20, 123_000, UTC) + timedelta(seconds=after_s)


def test_a_message_of_a_session_has_the_end_of_the_session_lock() -> None:
    lock = SessionLock("a", 0, 7, AT + 30)
    payload, token = encode_entry(entry(message(), token=TOKEN.int, locked_until=math.inf), lock=lock)
    assert token == TOKEN
    assert Sections(payload).message_annotations["x-opt-locked-until"] == utc_datetime(AT + 30)


def test_a_peeked_message_has_no_lock() -> None:
    payload, token = encode_entry(entry(message(), token=TOKEN.int, locked_until=AT + 60), is_peeked=True)
    assert token is None
    assert Sections(payload).delivery_annotations == {}
    assert "x-opt-locked-until" not in Sections(payload).message_annotations


@pytest.mark.parametrize(
    ("asked", "expires_after_s", "told_ms"),
    [(None, None, None), (5.0, None, 5_000), (5.0, 5.0, 5_000), (5.0, 2.0, 2_000), (None, 2.0, 2_000)],
)
def test_a_message_has_the_shorter_time_to_live(
    asked: float | None, expires_after_s: float | None, told_ms: int | None
) -> None:
    content = message(time_to_live=None if asked is None else timedelta(seconds=asked))
    expires_at = math.inf if expires_after_s is None else AT + expires_after_s
    assert Sections(encode_entry(entry(content, expires_at=expires_at)).payload).header.ttl == told_ms


def test_a_dead_letter_has_its_reason_and_source() -> None:
    dead = entry(
        message(),
        dead_letter_reason="why",
        dead_letter_description="how",
        dead_letter_source="q",
        original_number=3,
        delivery_count=2,
    )
    sections = Sections(encode_entry(dead).payload)
    assert sections.application_properties == {
        "a": 1,
        "DeadLetterReason": "why",
        "DeadLetterErrorDescription": "how",
    }
    assert sections.message_annotations["x-opt-deadletter-source"] == "q"
    assert sections.message_annotations["x-opt-enqueue-sequence-number"] == 3
    assert sections.header.delivery_count == 2


def test_a_state_other_than_active_is_annotated() -> None:
    deferred = entry(message(), state=ServiceBusMessageState.DEFERRED)
    assert Sections(encode_entry(deferred).payload).message_annotations["x-opt-message-state"] == 1
    assert "x-opt-message-state" not in Sections(encode_entry(entry(message())).payload).message_annotations


def test_types_that_python_does_not_have_survive() -> None:
    raw = b"\x00\x53\x74\xc1\x06\x02\xa1\x01a\x50\x07" + b"\x00\x53\x75\xa0\x00"
    stored = Entry(EncodedMessage.of(raw), len(raw))
    properties = Sections(encode_entry(stored).payload).application_properties
    assert properties == {"a": 7}
    assert type(properties["a"]) is UByte


def test_lock_tokens_are_uuids_and_their_tags_have_the_byte_order_of_dotnet() -> None:
    for number in (TOKEN.int, 1, 1 << 127, (1 << 128) - 1):
        token = uuid_of(number)
        expected = UUID(int=number)
        assert (token, hash(token), repr(token), token.is_safe) == (
            *(expected, hash(expected), repr(expected)),
            expected.is_safe,
        )
        assert tag_of(token) == expected.bytes_le
        assert pickle.loads(pickle.dumps(token)) == expected
