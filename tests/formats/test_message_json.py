"""Messages and their properties as JSON, written and read."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbclient.amqp.decode import decode_value
from sbclient.amqp.encode import encode_value
from sbclient.amqp.types import (
    Array,
    Binary,
    Byte,
    Char,
    DateTimeOffset,
    Described,
    Float,
    Long,
    Symbol,
    TimeSpan,
    ULong,
    Uri,
)
from sbclient.entities import LEAST_UNLIMITED, UNLIMITED
from sbclient.errors import InvalidOperationError
from sbclient.formats.iso8601 import read_timestamp
from sbclient.formats.message_json import (
    ATTRIBUTES,
    content_text,
    message_of,
    property_json,
    property_of,
    read_duration,
    timestamp_text,
    value_json,
    value_of_json,
)
from sbclient.message import AmqpMessageBodyType, ServiceBusMessage

NAN = st.just(math.nan)  # one of many, which JSON does not tell apart
PROPERTIES = st.one_of(
    st.text(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False) | NAN,
    st.booleans(),
    st.none(),
    st.datetimes(
        min_value=datetime(1, 1, 2),  # noqa: DTZ001
        timezones=st.just(UTC),
    ),
    st.uuids(),
    st.decimals(-(10**20), 10**20, places=2),
    st.binary().map(Binary),
    st.integers(-(2**63), 2**63 - 1).map(TimeSpan.of_ticks),
    st.integers(0, 3_155_378_975_999_999_999).map(DateTimeOffset.of_ticks),
    st.integers(0, 2**64 - 1).map(ULong),
    st.integers(-128, 127).map(Byte),
    st.integers(-(2**31), 2**31 - 1).map(Long),
    (st.floats(width=32, allow_nan=False) | NAN).map(Float),
    st.characters(codec="utf-8").map(Char),
    st.text().map(Uri),
    st.text().map(Symbol),
)
BODIES = st.recursive(
    PROPERTIES | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text() | st.sampled_from(["uuid", "encoded", "long"]), inner, max_size=2)
        | st.dictionaries(st.uuids() | st.integers(0, 9), inner, max_size=2)
        | st.builds(Described, st.text().map(Symbol), inner)
        | st.lists(st.integers(0, 99), max_size=3).map(lambda items: Array(items, 0x54))
    ),
    max_leaves=6,
)


@given(value=PROPERTIES)
def test_a_property_is_the_same_again_with_the_same_type(value: Any) -> None:
    again = property_of(json.loads(json.dumps(property_json(value))))
    assert type(again) is type(value)
    assert encode_value(again) == encode_value(value)


@pytest.mark.parametrize("body", [{"uuid": "x"}, {"encoded": "AA=="}, {"a": {"long": "1"}}, {"base64": ""}])
def test_a_map_that_looks_like_a_value_with_a_type_stays_a_map(body: Any) -> None:
    assert encode_value(value_of_json(json.loads(json.dumps(value_json(body))))) == encode_value(body)


@pytest.mark.parametrize("body", ["", " text\r\n", None, True, False, 0, 1.5, [], [None], {}, {"é": None}])
def test_a_body_is_a_text_or_the_json_of_any_other_value(body: Any) -> None:
    sent = bytes(message_of({"body": body})).decode()
    assert sent == body if isinstance(body, str) else json.loads(sent) == body
    assert bytes(message_of({})) == b""


@given(value=BODIES)
def test_a_body_of_any_values_is_encoded_equally_after_its_way_through_json(value: Any) -> None:
    raw = encode_value(value)
    again = value_of_json(json.loads(json.dumps(value_json(decode_value(raw, typed=True)))))
    assert encode_value(again) == raw


@pytest.mark.parametrize("inner", [1, "a", None, b"x", Long(3), [2], {"b": 2}])
def test_lists_and_maps_are_arrays_and_objects_at_every_depth(inner: Any) -> None:
    shown = value_json(inner)
    assert value_json([{"a": [inner]}, (inner,)]) == [{"a": [shown]}, [shown]]


@pytest.mark.parametrize("fraction", ["", ".5", ".000001"])
@pytest.mark.parametrize("moment", ["2030-01-02T03:04:05", "2030-01-02T03:04:10", "2030-01-02T00:00:00"])
def test_a_time_is_written_in_utc_with_the_digits_that_it_needs(moment: str, fraction: str) -> None:
    at = datetime.fromisoformat(f"{moment}{fraction}+00:00")
    for zone in (UTC, timezone(timedelta(hours=5, minutes=30)), timezone(timedelta(hours=-11))):
        assert timestamp_text(at.astimezone(zone)) == f"{moment}{fraction}Z"


SCHEDULE = datetime(2030, 1, 2, 3, 4, 10, tzinfo=UTC)
MESSAGES = [
    ServiceBusMessage(body, **attributes)
    for body in ("text", " \r\n", "", b"\xff\x00", b"")
    for attributes in (
        {},
        {"message_id": "m ", "session_id": " s", "correlation_id": "c", "subject": "x", "content_type": "t/x"},
        {"reply_to": "r", "to": "t", "reply_to_session_id": "rs", "time_to_live": timedelta(days=1, microseconds=1000)},
        {"scheduled_enqueue_time_utc": SCHEDULE, "application_properties": {"a": 1, "b": "1", " c": SCHEDULE}},
        {"partition_key": " k", "application_properties": {"": None, "yes": False, "0": 0.0}},
        {"session_id": "", "message_id": "0", "time_to_live": timedelta(0), "subject": ""},
    )
]
ENCODED_BODIES: dict[AmqpMessageBodyType, list[Any]] = {
    AmqpMessageBodyType.VALUE: [
        *(None, "", " text ", 0, False, b"\xff", Symbol("x")),
        *([], [None, {"uuid": "x"}], {"a": [Long(1)]}),
    ],
    AmqpMessageBodyType.SEQUENCE: [[[]], [[1, None]], [["a"], [b"", {"b": ULong(2)}]]],
}
ATTRIBUTES_OF_A_MESSAGE = (*ATTRIBUTES, "application_properties", "body_type")


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_is_the_same_again_after_its_way_through_json_twice(message: ServiceBusMessage) -> None:
    text = content_text(message)
    again = message_of(json.loads(text))
    assert content_text(again) == text
    assert bytes(again) == bytes(message)
    for name in ATTRIBUTES_OF_A_MESSAGE:
        assert getattr(again, name) == getattr(message, name), name


@pytest.mark.parametrize(("kind", "body"), [(kind, body) for kind, bodies in ENCODED_BODIES.items() for body in bodies])
def test_a_body_of_values_is_the_same_again_in_its_sections(kind: AmqpMessageBodyType, body: Any) -> None:
    message = ServiceBusMessage(None, application_properties={"a": 1, "mark": 2})
    message._body_type, message._body = kind, body
    text = content_text(message, hidden=("mark",))
    again = message_of(json.loads(text))
    assert (again.body_type, again.application_properties) == (kind, {"a": 1})
    assert encode_value(again.body) == encode_value(body)
    assert content_text(again) == text


@pytest.mark.parametrize(
    "wrong",
    [
        {"body": "a", "body_base64": "YQ=="},
        {"body_base64": "YQ"},
        {"body_base64": "%"},
        {"body_base64": 5},
        {"body_base64": "YQ==", "body_type": "value"},
        {"body": [[1], 2], "body_type": "sequence"},
        {"body": [], "body_type": "sequence"},
        {"body_type": "sequence"},
        {"body_type": "rows"},
        {"body": "\ud800"},
        {"subject": 5},
        {"time_to_live": 5},
        {"time_to_live": ""},
        {"scheduled_enqueue_time_utc": ""},
        {"application_properties": []},
        {"application_properties": {"a": [1]}},
        {"bodi": "a"},
    ],
)
def test_a_member_that_is_no_value_of_a_message_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidOperationError):
        message_of(wrong)


def test_a_member_that_is_null_or_ignored_is_not_set() -> None:
    again = message_of(dict.fromkeys(ATTRIBUTES) | {"application_properties": None, "n": 1}, ignored=("n",))
    assert content_text(again) == content_text(ServiceBusMessage(b""))
    assert bytes(message_of({"body": None, "body_base64": "/w=="})) == b"\xff"


@pytest.mark.parametrize(("body_type", "body"), [("value", [1, "2"]), ("value", "x"), ("sequence", [[1], ["a", None]])])
def test_a_body_that_is_no_data_says_what_it_is(body_type: str, body: Any) -> None:
    fields = {"body_type": body_type, "body": body}
    assert json.loads(content_text(message_of(fields))) == fields


@pytest.mark.parametrize("hidden", [["a"], ["a", "b", " c"], ["A", "none"]])
def test_hidden_properties_are_left_out(hidden: list[str]) -> None:
    properties = {"a": 1, "b": "1", " c": SCHEDULE}
    shown = {name: value for name, value in properties.items() if name not in hidden}
    whole = ServiceBusMessage("x", application_properties=properties)
    assert content_text(whole, hidden=hidden) == content_text(ServiceBusMessage("x", application_properties=shown))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e308])
def test_every_number_is_written_as_strict_json(value: float) -> None:
    text = content_text(ServiceBusMessage("x", application_properties={"n": value}))
    read = json.loads(text, parse_constant=pytest.fail)["application_properties"]["n"]
    assert str(property_of(read)) == str(value)


@pytest.mark.parametrize("lifetime", [LEAST_UNLIMITED, UNLIMITED, LEAST_UNLIMITED - timedelta(seconds=1)])
def test_only_a_time_to_live_that_is_a_limit_is_written(lifetime: timedelta) -> None:
    fields = json.loads(content_text(ServiceBusMessage("x", time_to_live=lifetime)))
    assert ("time_to_live" in fields) == (lifetime < LEAST_UNLIMITED)
    assert message_of(fields).time_to_live == (lifetime if lifetime < LEAST_UNLIMITED else None)


@pytest.mark.parametrize(
    "value",
    [
        {"datetime": "soon"},
        {"uuid": "x"},
        {"decimal": "ten"},
        {"base64": "%"},
        {"uuid": 5},
        {"a": "b"},
        {},
        ["a"],
        {"long": "x"},
        {"encoded": "AA=="},
        {"ulong": "-1"},
        {"timespan": "1 s"},
    ],
)
def test_value_that_is_no_property_is_rejected(value: Any) -> None:
    with pytest.raises(InvalidOperationError):
        property_of(value)


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("30s", timedelta(seconds=30)),
        ("1.5m", timedelta(seconds=90)),
        ("2h", timedelta(hours=2)),
        ("7d", timedelta(days=7)),
        ("PT30S", timedelta(seconds=30)),
        ("P14D", timedelta(days=14)),
        ("unlimited", UNLIMITED),
        ("never", UNLIMITED),
        ("P10675199DT2H48M5.4775807S", UNLIMITED),
        ("9" * 400 + "d", UNLIMITED),
        ("90", timedelta(seconds=90)),
    ],
)
def test_durations_are_read_as_people_write_them(text: str, duration: timedelta) -> None:
    assert read_duration(text) == duration
    assert read_duration(f" {text}\r\n") == duration


@pytest.mark.parametrize("text", ["", "soon", "s", "1e9d", "30x", "-5s"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(InvalidOperationError):
        read_duration(text)


def test_a_timestamp_without_a_zone_is_in_utc() -> None:
    assert read_timestamp("2030-01-02T03:04:05") == datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
    with pytest.raises(InvalidOperationError):
        read_timestamp("tomorrow")
