from datetime import UTC, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any
from uuid import UUID

import pytest

from sbclient.broker.sql.binding import Binding
from sbclient.broker.sql.parser import parse_action
from sbclient.broker.sql.properties import SYSTEM_PROPERTIES, Scope, SystemProperties
from sbclient.broker.sql.statements import changes
from sbclient.broker.sql.values import FilterError, Steps, converted
from sbclient.errors import InvalidOperationError
from sbclient.message import ServiceBusMessage

NOON = datetime(2024, 1, 2, 12, tzinfo=UTC)
ID = UUID(int=5)
SETTABLE = {
    "ContentType": "content_type",
    "CorrelationId": "correlation_id",
    "Label": "subject",
    "Subject": "subject",
    "MessageId": "message_id",
    "PartitionKey": "partition_key",
    "ReplyTo": "reply_to",
    "ReplyToSessionId": "reply_to_session_id",
    "SessionId": "session_id",
    "To": "to",
}
READ_ONLY = [
    "DeadLetterSource",
    "DeliveryCount",
    "EnqueuedSequenceNumber",
    "EnqueuedTimeUtc",
    "ExpiresAtUtc",
    "ForcePersistence",
    "LockedUntilUtc",
    "LockToken",
    "SequenceNumber",
    "Size",
    "State",
    "TransactionPartitionKey",
    "ViaPartitionKey",
]


def changed(
    text: str, properties: dict[str, Any] | None = None, parameters: dict[str, Any] | None = None, **attributes: Any
) -> ServiceBusMessage:
    message = ServiceBusMessage(b"", application_properties=properties, **attributes)
    scope = Scope(message.application_properties, message, SystemProperties(delivery_count=3), Random(1), Steps())
    for change in changes(parse_action(text), Binding("action", parameters)):
        change(scope)
    return message


@pytest.mark.parametrize(
    ("text", "before", "after"),
    [
        ("SET a = 1", {}, {"a": 1}),
        ("SET a = 2", {"a": 1}, {"a": 2}),
        ("SET A = 2", {"a": 1}, {"a": 2}),
        ("SET Color = 5", {"COLOR": 1, "Color": 2}, {"COLOR": 1, "Color": 5}),
        ("SET [x y] = 'z'", {}, {"x y": "z"}),
        ("SET a = b", {"b": 2.5}, {"b": 2.5, "a": 2.5}),
        ("SET a = a + 1; SET a = a * 2", {"a": 1}, {"a": 4}),
        ("SET a = b SET b = 9", {"b": 1}, {"b": 9, "a": 1}),
        ("SET a = sys.DeliveryCount", {}, {"a": 3}),
        ("SET a = NULL", {"a": 1}, {"a": None}),
        ("SET a = missing", {"b": 1}, {"b": 1, "a": None}),
        ("SET a = missing + 1", {"a": 1}, {"a": None}),
        ("SET a = 1", {"a": None}, {"a": 1}),
        ("SET a = TRUE", {}, {"a": True}),
        ("SET a = newid()", {}, {"a": UUID(int=Random(1).getrandbits(128), version=4)}),
        ("REMOVE a", {"a": 1, "b": 2}, {"b": 2}),
        ("REMOVE a", {"A": 1, "a": 2, "b": 3}, {"b": 3}),
        ("REMOVE a", {"b": 1}, {"b": 1}),
        ("SET a = 1; REMOVE a", {}, {}),
    ],
)
def test_set_and_remove_user_properties(text: str, before: dict[str, Any], after: dict[str, Any]) -> None:
    assert changed(text, before).application_properties == after


@pytest.mark.parametrize(
    ("old", "text", "new"),
    [
        ("x", "5", "5"),
        ("x", "TRUE", "True"),
        (1, "'5'", 5),
        (1, "2.0", 2),
        (1, "2.5", 2.5),
        (1, "'x'", "x"),
        (1.5, "2", 2.0),
        (True, "'false'", False),
        (Decimal(1), "2", Decimal(2)),
        (NOON, "'2024-01-02T13:00:00Z'", NOON.replace(hour=13)),
        (ID, "'00000000-0000-0000-0000-000000000006'", UUID(int=6)),
        ("x", "@noon", NOON),
    ],
)
def test_set_keeps_the_type_of_the_property_where_it_can(old: object, text: str, new: object) -> None:
    value = changed(f"SET a = {text}", {"a": old}, {"noon": NOON}).application_properties["a"]
    assert value == new
    assert type(value) is type(new)


@pytest.mark.parametrize("name", sorted(SETTABLE))
def test_set_and_remove_system_properties(name: str) -> None:
    attributes: dict[str, Any] = {SETTABLE[name]: "y"}
    message = changed(f"SET sys.{name.upper()} = 'x' + 1")
    assert getattr(message, SETTABLE[name]) == "x1"
    assert getattr(changed(f"REMOVE sys.{name}", **attributes), SETTABLE[name]) is None
    assert getattr(changed(f"SET sys.{name} = missing", **attributes), SETTABLE[name]) is None


def test_text_system_property_accepts_values_convertible_to_text() -> None:
    assert changed("SET sys.CorrelationId = 5").correlation_id == "5"
    assert changed("SET sys.MessageId = @id", parameters={"id": ID}).message_id == str(ID)


def test_datetimes_and_durations_of_the_system_can_be_set() -> None:
    for name in ("ScheduledEnqueueTimeUtc", "ScheduledEnqueueTime"):
        assert changed(f"SET sys.{name} = @noon", parameters={"noon": NOON}).scheduled_enqueue_time_utc == NOON
        assert changed(f"SET sys.{name} = '2024-01-02T12:00:00Z'").scheduled_enqueue_time_utc == NOON
        assert changed(f"REMOVE sys.{name}", scheduled_enqueue_time_utc=NOON).scheduled_enqueue_time_utc is None
    message = changed(
        "SET sys.TimeToLive = sys.TimeToLive + @more", None, {"more": timedelta(1)}, time_to_live=timedelta(2)
    )
    assert message.time_to_live == timedelta(3)
    assert changed("REMOVE sys.TimeToLive", time_to_live=timedelta(2)).time_to_live is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("SET a = @hour", "SET a = @hour: a timespan cannot be stored in a user property"),
        ("SET sys.To = @hour", "SET sys.To = @hour: a timespan cannot be written as text"),
        ("SET sys.TimeToLive = 5", "an integer cannot become a timespan"),
        ("SET sys.TimeToLive = -@hour", "negative"),
        ("SET sys.ScheduledEnqueueTimeUtc = 'noon'", "SET sys.ScheduledEnqueueTimeUtc = 'noon': "),
        ("SET sys.SessionId = @long", "129 characters"),
        ("SET a = 1 / 0", "1 / 0: division by zero"),
    ],
)
def test_a_value_that_cannot_be_stored_is_a_filter_error(text: str, reason: str) -> None:
    with pytest.raises(FilterError, match=reason):
        changed(text, parameters={"hour": timedelta(hours=1), "long": "x" * 129})


@pytest.mark.parametrize("name", READ_ONLY)
def test_a_read_only_system_property_is_refused_when_the_action_is_made(name: str) -> None:
    for text in (f"SET sys.{name} = 1", f"REMOVE sys.{name}"):
        with pytest.raises(
            InvalidOperationError, match=rf"the action is refused at line 1, column \d: sys.{name} is read-only"
        ):
            changed(text)


def test_every_system_property_is_settable_or_read_only() -> None:
    moments_and_spans = {"ScheduledEnqueueTimeUtc", "ScheduledEnqueueTime", "TimeToLive"}
    assert {each.name for each in SYSTEM_PROPERTIES.values()} == {*SETTABLE, *READ_ONLY, *moments_and_spans}


def test_an_unknown_system_property_is_rejected_everywhere() -> None:
    for text in ("SET sys.Colour = 1", "REMOVE sys.Colour", "SET a = sys.Colour"):
        with pytest.raises(InvalidOperationError, match=r"there is no system property sys\.Colour"):
            changed(text)


def test_text_that_doubles_until_it_is_too_long_is_an_error() -> None:
    doubled = "; ".join(["SET a = 'xxxxxxxxxxxxxxxx'", *["SET a = a + a"] * 13])
    with pytest.raises(FilterError, match="65536"):
        changed(doubled)


def test_number_that_decimal128_cannot_hold_is_an_error() -> None:
    with pytest.raises(ValueError, match="6144"):
        converted("1E999999999", Decimal)
