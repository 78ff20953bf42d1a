from __future__ import annotations

import copy
import inspect
import pickle
import re
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from enum import IntEnum
from inspect import signature
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import pytest
from azure.servicebus import ServiceBusMessage as SdkMessage
from azure.servicebus.amqp import AmqpMessageBodyType as SdkBodyType
from hypothesis import given, settings
from hypothesis import strategies as st

from sbclient.amqp import encode_message
from sbclient.errors import InvalidOperationError
from sbclient.message import (
    AmqpMessageBodyType,
    ServiceBusMessage,
    ServiceBusMessageState,
    ServiceBusReceivedMessage,
)
from tests.border.values import NoDate, Span, Stamp
from tests.rules.strategies import content_of, messages

MOMENT = datetime(2024, 1, 1, 12, tzinfo=UTC)
IDS = ("session_id", "message_id", "partition_key", "reply_to_session_id")
TEXTS = (*IDS, "content_type", "correlation_id", "subject", "to", "reply_to")


def saying(name: str, value: Any) -> ServiceBusMessage:
    """A message with one attribute set."""
    return ServiceBusMessage(None, **{name: value})


def with_property(value: Any) -> ServiceBusMessage:
    return ServiceBusMessage(None, application_properties={"a": value})


PLACES_OF_A_PROPERTY: Final = (
    "sbclient/amqp/annotated.py",
    "sbclient/amqp/encoded.py",
    "sbclient/broker/sql/properties.py",
    "sbclient/emulator/messaging/http_message.py",
    "sbclient/formats/message_json.py",
    "sbclient_spark/read/columns.py",
    "sbclient_spark/write/encoder.py",
)


@pytest.mark.parametrize("place", PLACES_OF_A_PROPERTY)
def test_every_property_is_known_where_messages_are_read_and_written(place: str) -> None:
    text = (Path(__file__).parents[1] / place).read_text(encoding="utf-8")
    names = inspect.signature(ServiceBusMessage).parameters.keys() - {"body", "encoding"}
    names -= {"application_properties"}  # each place has its own words for them
    words = {name: rf"\b_?{name}\b|\b{name.title().replace('_', '')}\b" for name in names}
    assert not [name for name, word in words.items() if not re.search(word, text)], f"add them to {place}"


def test_the_constructor_has_the_sdks_names() -> None:
    ours, theirs = signature(ServiceBusMessage).parameters, signature(SdkMessage).parameters
    assert set(ours) == set(theirs) - {"kwargs"} | {"encoding"}  # one of its kwargs
    assert [name for name in ours if ours[name].kind is ours[name].POSITIONAL_OR_KEYWORD] == ["body"]


@pytest.mark.parametrize(
    ("body", "parts"),
    [
        (None, [b""]),
        ("Größe", ["Größe".encode()]),
        (b"a", [b"a"]),
        (bytearray(b"a"), [b"a"]),
        (memoryview(b"a"), [b"a"]),
        ([b"a", b"", b"b"], [b"a", b"", b"b"]),
        (iter([b"a"]), [b"a"]),
        ([], []),
    ],
)
def test_a_body_is_one_or_more_parts_of_bytes(body: Any, parts: list[bytes]) -> None:
    message = ServiceBusMessage(body)
    for _ in range(2):
        assert list(message.body) == parts
    assert bytes(message) == b"".join(parts)
    assert message.body_type is AmqpMessageBodyType.DATA


@pytest.mark.parametrize("body", [1, [1], ["a"], object(), [b"a", None], {"a": 1}])
def test_a_body_of_anything_else_is_refused(body: Any) -> None:
    with pytest.raises(TypeError):
        ServiceBusMessage(body)


def test_a_body_of_another_client_has_no_bytes() -> None:
    message = ServiceBusMessage(None)
    message._body, message._body_type = {"a": 1}, AmqpMessageBodyType.VALUE
    assert message.body == {"a": 1}
    assert str(message) == "{'a': 1}"
    with pytest.raises(TypeError):
        bytes(message)


def test_text_is_read_back_and_broken_text_is_shown_escaped() -> None:
    assert str(ServiceBusMessage("Größe")) == "Größe"
    assert str(ServiceBusMessage([b"a", b"b"])) == "ab"
    assert str(ServiceBusMessage(b"\xff!")) == "\\xff!"


def test_a_repr_names_the_keys_and_never_the_body_or_a_value() -> None:
    message = ServiceBusMessage("SECRET", session_id="s", message_id="m", application_properties={"a": "SECRET"})
    assert repr(message) == "ServiceBusMessage(message_id='m', session_id='s', application_properties={'a'})"
    assert repr(ServiceBusMessage("SECRET")) == "ServiceBusMessage()"


def test_a_received_message_names_its_place_in_the_queue() -> None:
    class OfTransport(ServiceBusReceivedMessage):
        __slots__ = ()

    content = ServiceBusMessage("SECRET", message_id="m", subject="x")
    received = OfTransport.of(encode_message(content), sequence_number=7, enqueued_time_utc=MOMENT, delivery_count=1)
    assert repr(received) == (
        f"ServiceBusReceivedMessage(message_id='m', subject='x', sequence_number=7, enqueued_time_utc={MOMENT!r}, "
        "delivery_count=1)"
    )


@pytest.mark.parametrize("name", IDS)
def test_ids_have_at_most_128_characters(name: str) -> None:
    message = saying(name, "ü" * 128)
    assert getattr(message, name) == "ü" * 128
    with pytest.raises(InvalidOperationError) as caught:
        saying(name, "x" * 129)
    assert name in str(caught.value)
    with pytest.raises(InvalidOperationError):
        setattr(message, name, "x" * 129)
    assert getattr(message, name) == "ü" * 128


@pytest.mark.parametrize("name", TEXTS)
def test_texts_are_text_or_none(name: str) -> None:
    message = saying(name, "a")
    setattr(message, name, None)
    assert getattr(message, name) is None
    setattr(message, name, "")
    assert getattr(message, name) == ""
    assert getattr(message.copy(), name) == ""
    assert getattr(saying(name, ""), name) == ""
    with pytest.raises(TypeError) as caught:
        setattr(message, name, 1.5)
    assert name in str(caught.value)
    setattr(message, name, "Größe".encode())
    assert getattr(message, name) == "Größe"
    with pytest.raises(InvalidOperationError) as caught_bytes:
        setattr(message, name, b"\xff")
    assert name in str(caught_bytes.value)


@pytest.mark.parametrize("name", TEXTS)
def test_only_ids_may_be_numbers_or_uuids(name: str) -> None:
    message = ServiceBusMessage(None)
    for value in (5, UUID(int=7)):
        if name in ("message_id", "correlation_id"):
            setattr(message, name, value)
            assert getattr(message, name) == getattr(saying(name, value), name) == str(value)
        else:
            with pytest.raises(TypeError):
                setattr(message, name, value)


@pytest.mark.parametrize("name", TEXTS)
def test_a_lone_surrogate_is_rejected_when_it_is_set(name: str) -> None:
    with pytest.raises(InvalidOperationError) as caught:
        saying(name, "a\ud800")
    assert name in str(caught.value)


def test_a_lone_surrogate_is_rejected_in_bodies_and_properties() -> None:
    for wrong in ({"\ud800": 1}, {"a": "\ud800"}, {b"\xff": 1}):
        with pytest.raises(InvalidOperationError):
            saying("application_properties", wrong)
    with pytest.raises(InvalidOperationError) as caught:
        ServiceBusMessage("SECRET\ud800")
    assert "SECRET" not in str(caught.value)
    assert caught.value.__suppress_context__


def test_a_schedule_is_kept_in_utc() -> None:
    for moment in (MOMENT, MOMENT.replace(tzinfo=None), MOMENT.astimezone(timezone(timedelta(hours=5)))):
        message = ServiceBusMessage(None, scheduled_enqueue_time_utc=moment)
        kept = message.scheduled_enqueue_time_utc
        assert kept == MOMENT
        assert kept.tzinfo is UTC
        message.scheduled_enqueue_time_utc = None
        assert message.scheduled_enqueue_time_utc is None
    with pytest.raises(TypeError):
        saying("scheduled_enqueue_time_utc", "tomorrow")


def test_times_are_kept_without_what_a_subclass_adds() -> None:
    message = ServiceBusMessage(
        None, scheduled_enqueue_time_utc=Stamp(2026, 1, 1, tzinfo=UTC), time_to_live=Span(seconds=5)
    )
    kept: list[Any] = [message.scheduled_enqueue_time_utc, message.time_to_live]
    assert kept == [datetime(2026, 1, 1, tzinfo=UTC), timedelta(seconds=5)]
    assert [type(each) for each in kept] == [datetime, timedelta]
    with pytest.raises(InvalidOperationError, match="must be a datetime"):
        message.scheduled_enqueue_time_utc = NoDate(1, 1, 1)


def test_time_to_live_is_a_duration_that_is_not_negative() -> None:
    for life in (timedelta(0), timedelta(microseconds=1), timedelta.max, None):
        assert ServiceBusMessage(None, time_to_live=life).time_to_live == life
    with pytest.raises(InvalidOperationError):
        ServiceBusMessage(None, time_to_live=timedelta(microseconds=-1))
    assert saying("time_to_live", 60).time_to_live == timedelta(minutes=1)
    assert saying("time_to_live", 0.5).time_to_live == timedelta(milliseconds=500)
    for wrong in (float("nan"), float("inf"), 10**400, -1):
        with pytest.raises(InvalidOperationError):
            saying("time_to_live", wrong)
    for wrong_type in ("60", True):
        with pytest.raises(TypeError):
            saying("time_to_live", wrong_type)


@pytest.mark.parametrize(
    "value",
    ["a", 0, 2**63 - 1, -(2**63), 1.5, True, MOMENT, UUID(int=1), Decimal("1.10"), None, ""],
)
def test_properties_keep_value_and_type(value: Any) -> None:
    kept = with_property(value).application_properties["a"]
    assert kept == value
    assert type(kept) is type(value)


def test_names_and_bytes_become_text_and_naive_datetimes_utc() -> None:
    message = saying("application_properties", {b"a": "Größe".encode(), "b": MOMENT.replace(tzinfo=None)})
    assert message.application_properties == {"a": "Größe", "b": MOMENT}


@pytest.mark.parametrize("value", [b"\xff", 2**63, -(2**63) - 1])
def test_values_that_amqp_or_the_sdk_would_spoil_are_refused(value: Any) -> None:
    with pytest.raises(InvalidOperationError) as caught:
        with_property(value)
    assert "'a'" in str(caught.value)


@pytest.mark.parametrize("value", [[1], {"a": 1}, object(), 1j])
def test_values_of_other_types_are_refused(value: Any) -> None:
    with pytest.raises(TypeError):
        with_property(value)


def test_a_name_is_text() -> None:
    with pytest.raises(TypeError):
        saying("application_properties", {1: "a"})


def test_properties_are_a_copy_that_can_be_changed_in_place_or_replaced() -> None:
    own = {"a": 1}
    message = ServiceBusMessage(None, application_properties=own)
    message.application_properties["b"] = 2
    assert own == {"a": 1}
    assert message.application_properties == {"a": 1, "b": 2}
    message.application_properties = {"c": 3}
    assert message.application_properties == {"c": 3}
    message.application_properties = None
    assert message.application_properties == {}


def test_properties_changed_in_place_are_checked_by_the_copy_that_is_sent() -> None:
    message = ServiceBusMessage(None, application_properties={"a": 1})
    message.application_properties["a"] = 2**64
    with pytest.raises(InvalidOperationError):
        message.copy()


@settings(deadline=None)
@given(messages())
def test_a_copy_says_the_same_and_shares_nothing_that_can_change(message: ServiceBusMessage) -> None:
    twin = message.copy()
    before = content_of(message)
    assert content_of(twin) == before
    twin.application_properties["only here"] = 1
    twin.session_id = "only here"
    assert content_of(message) == before


@settings(deadline=None)
@given(messages(), st.text(max_size=128))
def test_a_copy_accepts_changes(message: ServiceBusMessage, other: str) -> None:
    twin = message.copy(message_id=other, time_to_live=None)
    assert content_of(twin) == content_of(message) | {"message_id": other, "time_to_live": None}


def test_changes_of_a_copy_are_checked() -> None:
    message = ServiceBusMessage(None)
    with pytest.raises(InvalidOperationError):
        message.copy(session_id="x" * 129)
    with pytest.raises(AttributeError):
        message.copy(colour="red")


def test_messages_can_be_pickled_and_copied_by_anyone() -> None:
    message = ServiceBusMessage([b"a", b"b"], session_id="s", application_properties={"a": MOMENT})
    for twin in (pickle.loads(pickle.dumps(message)), copy.copy(message), copy.deepcopy(message)):
        assert content_of(twin) == content_of(message)


def test_states_have_the_numbers_of_the_wire() -> None:
    assert [(state.name, int(state)) for state in ServiceBusMessageState] == [
        ("ACTIVE", 0),
        ("DEFERRED", 1),
        ("SCHEDULED", 2),
    ]
    assert {kind.name: kind.value for kind in AmqpMessageBodyType} == {kind.name: kind.value for kind in SdkBodyType}


def received(content: ServiceBusMessage, **broker: Any) -> ServiceBusReceivedMessage:
    return ServiceBusReceivedMessage.of(encode_message(content), sequence_number=7, enqueued_time_utc=MOMENT, **broker)


@settings(deadline=None)
@given(messages())
def test_a_received_message_says_what_was_sent_and_is_its_own(message: ServiceBusMessage) -> None:
    arrived = received(message)
    assert content_of(arrived) == content_of(message)
    arrived.application_properties["only here"] = 1
    assert "only here" not in message.application_properties


def test_a_received_message_says_what_the_broker_says() -> None:
    arrived = received(ServiceBusMessage(b"hi"))
    assert (arrived.sequence_number, arrived.enqueued_time_utc) == (7, MOMENT)
    assert (arrived.delivery_count, arrived.state) == (0, ServiceBusMessageState.ACTIVE)
    absent = ("enqueued_sequence_number", "expires_at_utc", "locked_until_utc", "lock_token", "dead_letter_source")
    assert all(getattr(arrived, name) is None for name in absent)
    assert arrived.is_settled is False
    locked = received(
        ServiceBusMessage(b"hi"),
        enqueued_sequence_number=3,
        expires_at_utc=MOMENT,
        locked_until_utc=MOMENT,
        lock_token=UUID(int=1),
        delivery_count=2,
        state=ServiceBusMessageState.DEFERRED,
        dead_letter_source="orders",
    )
    assert (locked.enqueued_sequence_number, locked.lock_token, locked.delivery_count) == (3, UUID(int=1), 2)
    assert (locked.expires_at_utc, locked.locked_until_utc) == (MOMENT, MOMENT)
    assert (locked.state, locked.dead_letter_source) == (ServiceBusMessageState.DEFERRED, "orders")


def test_a_received_message_is_sent_again_as_a_plain_one() -> None:
    assert type(received(ServiceBusMessage(b"hi")).copy()) is ServiceBusMessage


@pytest.mark.parametrize(("value", "read"), [("late", "late"), (1, None)])
def test_dead_letter_reasons_travel_as_properties(value: Any, read: str | None) -> None:
    properties = {"DeadLetterReason": value, "DeadLetterErrorDescription": value}
    arrived = received(ServiceBusMessage(None, application_properties=properties))
    assert (arrived.dead_letter_reason, arrived.dead_letter_error_description) == (read, read)
    plain = received(ServiceBusMessage(None))
    assert (plain.dead_letter_reason, plain.dead_letter_error_description) == (None, None)


class Level(IntEnum):
    HIGH = 3


def test_an_integer_of_a_class_of_its_own_is_a_property_like_any_other_and_checked_at_once() -> None:
    assert ServiceBusMessage(None, application_properties={"level": Level.HIGH}).application_properties == {"level": 3}


def test_lookup_of_a_property_by_bytes_warns() -> None:
    properties = ServiceBusMessage("x", application_properties={"name": 1}).application_properties
    name: Any = b"name"  # what a migrated program looks up
    with pytest.warns(UserWarning, match="look up 'name'") as caught:
        assert properties.get(name) is None
    assert caught[0].filename == __file__
    with pytest.warns(UserWarning, match="look up 'name'"):
        assert name not in properties
    with pytest.warns(UserWarning, match="look up 'name'"), pytest.raises(KeyError) as missed:
        _ = properties[name]
    assert "look up 'name'" in missed.value.__notes__[0]  # which the traceback shows
    assert (properties["name"], properties.get("name"), properties.get("other", 2)) == (1, 1, 2)
    assert "name" in properties
    assert "other" not in properties


def test_state_prints_as_in_azure_servicebus() -> None:
    assert (
        f"{ServiceBusMessageState.DEFERRED}"
        == str(ServiceBusMessageState.DEFERRED)
        == "ServiceBusMessageState.DEFERRED"
    )
    assert int(ServiceBusMessageState.DEFERRED) == 1


def test_classes_of_the_amqp_module_are_in_ours() -> None:
    from azure.servicebus import amqp as theirs

    from sbclient import amqp as ours

    assert all(hasattr(ours, name) for name in theirs.__all__)
