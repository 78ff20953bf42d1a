from datetime import UTC, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any
from uuid import UUID

import pytest

from sbclient.amqp import encode_message
from sbclient.amqp.types import TimeSpan
from sbclient.broker.filters import FilterError, SystemProperties, compile_action, compile_filter
from sbclient.entities import CorrelationRuleFilter, FalseRuleFilter, SqlRuleAction, SqlRuleFilter, TrueRuleFilter
from sbclient.errors import InvalidOperationError
from sbclient.message import ServiceBusMessage

SYSTEM = SystemProperties()
MOMENT = datetime(2020, 7, 5, 11, 12, 13, tzinfo=UTC)


def message(properties: dict[str, Any] | None = None, **attributes: Any) -> ServiceBusMessage:
    return ServiceBusMessage(b"body", application_properties=properties, **attributes)


def test_the_true_filter_selects_every_message_and_the_false_filter_none() -> None:
    assert compile_filter(TrueRuleFilter()).matches(encode_message(message()), SYSTEM) is True
    assert compile_filter(FalseRuleFilter()).matches(encode_message(message()), SYSTEM) is False


@pytest.mark.parametrize(
    ("expression", "is_selected"),
    [
        ("1 = 1", True),
        ("1 = 0", False),
        ("color = 'blue' AND quantity = 10", True),
        ("color = 'red'", False),
        ("missing = 1", False),
        ("NOT missing = 1", False),
        ("NOT color = 'red'", True),
    ],
)
def test_an_sql_filter_selects_only_where_it_is_true(expression: str, is_selected: bool) -> None:
    selected = compile_filter(SqlRuleFilter(expression)).matches(
        encode_message(message({"color": "blue", "quantity": 10})), SYSTEM
    )
    assert selected is is_selected


def test_an_sql_filter_takes_parameters() -> None:
    ready = compile_filter(SqlRuleFilter("priority = @param1 AND level = @Param2", {"@param1": "str1", "param2": 1}))
    assert ready.matches(encode_message(message({"Priority": "str1", "Level": 1})), SYSTEM)
    assert not ready.matches(encode_message(message({"Priority": "str1", "Level": 2})), SYSTEM)


def test_an_unknown_system_property_is_refused_when_the_filter_is_made() -> None:
    with pytest.raises(InvalidOperationError, match=r"line 1, column 9.*sys\.Colour"):
        compile_filter(SqlRuleFilter("1=1 OR  sys.Colour = 'x'"))


def test_a_filter_that_cannot_be_evaluated_raises_a_filter_error() -> None:
    ready = compile_filter(SqlRuleFilter("quantity > 10"))
    with pytest.raises(FilterError, match="quantity > 10: text cannot be compared with an integer"):
        ready.matches(encode_message(message({"quantity": "11"})), SYSTEM)


def test_a_filter_error_never_shows_the_value() -> None:
    with pytest.raises(FilterError) as caught:
        compile_filter(SqlRuleFilter("secret > 10")).matches(encode_message(message({"secret": "hunter2"})), SYSTEM)
    assert "hunter2" not in str(caught.value)


def test_a_filter_leaves_the_message_as_it_is_and_never_sees_the_body() -> None:
    sent = message({"body": 1})
    assert compile_filter(SqlRuleFilter("body = 1")).matches(encode_message(sent), SYSTEM)
    assert bytes(sent) == b"body"
    with pytest.raises(InvalidOperationError):
        compile_filter(SqlRuleFilter("sys.Body = 'body'"))


def test_newid_in_a_filter_uses_the_given_random_generator() -> None:
    ready = compile_filter(SqlRuleFilter("newid() = @id", {"@id": UUID(int=Random(7).getrandbits(128), version=4)}))
    assert ready.matches(encode_message(message()), SYSTEM, Random(7))
    assert not ready.matches(encode_message(message()), SYSTEM, Random(8))
    with pytest.raises(FilterError):
        ready.matches(encode_message(message()), SYSTEM)


# -- correlation filters --------------------------------------------------------------------------------------------

SENT: dict[str, Any] = {
    "correlation_id": "c",
    "message_id": "m",
    "to": "t",
    "reply_to": "r",
    "subject": "l",
    "session_id": "s",
    "reply_to_session_id": "rs",
    "content_type": "ct",
}


@pytest.mark.parametrize("attribute", sorted(SENT))
def test_each_system_property_can_be_correlated(attribute: str) -> None:
    name = "label" if attribute == "subject" else attribute
    ready = compile_filter(CorrelationRuleFilter(**{name: SENT[attribute]}))
    assert ready.matches(encode_message(message(**SENT)), SYSTEM)
    assert not ready.matches(encode_message(message(**{**SENT, attribute: SENT[attribute].upper()})), SYSTEM)
    assert not ready.matches(encode_message(message(**{**SENT, attribute: None})), SYSTEM)


def test_every_condition_of_a_correlation_filter_must_hold() -> None:
    ready = compile_filter(CorrelationRuleFilter(label="a", properties={"x": 1, "y": "b"}))
    assert ready.matches(encode_message(message({"x": 1, "y": "b"}, subject="a")), SYSTEM)
    assert not ready.matches(encode_message(message({"x": 1, "y": "b"}, subject="b")), SYSTEM)
    assert not ready.matches(encode_message(message({"x": 2, "y": "b"}, subject="a")), SYSTEM)
    assert not ready.matches(encode_message(message({"x": 1, "y": "B"}, subject="a")), SYSTEM)
    assert not ready.matches(encode_message(message({"x": 1}, subject="a")), SYSTEM)


@pytest.mark.parametrize(
    ("wanted", "sent", "is_selected"),
    [
        (2, 2, True),
        (2, "2", False),
        ("2", 2, False),
        (2, 2.0, True),
        (Decimal("2.5"), 2.5, True),
        (True, True, True),
        (True, 1, False),
        (1, True, False),
        (MOMENT.replace(tzinfo=None), MOMENT, True),
        (UUID(int=1), UUID(int=1), True),
        (timedelta(hours=1), "1:00:00", False),
        (timedelta(hours=1), TimeSpan(hours=1), True),
        ("x", None, False),
    ],
)
def test_a_correlated_user_property_must_be_of_the_same_type(wanted: object, sent: object, is_selected: bool) -> None:
    ready = compile_filter(CorrelationRuleFilter(properties={"key": wanted}))
    assert ready.matches(encode_message(message({"KEY": sent})), SYSTEM) is is_selected


def test_an_empty_correlation_filter_selects_every_message() -> None:
    assert compile_filter(CorrelationRuleFilter()).matches(encode_message(message()), SYSTEM)


@pytest.mark.parametrize(
    "rule_filter",
    [
        CorrelationRuleFilter(label=5),  # type: ignore[arg-type]
        CorrelationRuleFilter(properties={"x": None}),
        CorrelationRuleFilter(properties={"x": [1]}),
        CorrelationRuleFilter(properties={"x": 2**63}),
    ],
)
def test_a_correlation_filter_with_a_value_that_can_never_be_equal_is_refused(rule_filter: Any) -> None:
    with pytest.raises(InvalidOperationError):
        compile_filter(rule_filter)


# -- actions --------------------------------------------------------------------------------------------------------


def test_an_action_changes_a_copy() -> None:
    sent = message({"quantity": 11, "priority": "high"}, subject="red", message_id="m")
    action = compile_action(
        SqlRuleAction("SET quantity = quantity / 2; REMOVE priority;SET sys.CorrelationId = 'low';")
    )
    changed = action.apply(encode_message(sent), SYSTEM, Random(1))
    assert changed.application_properties == {"quantity": 5}
    assert (changed.correlation_id, changed.subject, changed.message_id) == ("low", "red", "m")
    assert bytes(changed) == b"body"
    assert sent.application_properties == {"quantity": 11, "priority": "high"}
    assert sent.correlation_id is None


def test_an_action_uses_parameters_and_the_random_generator() -> None:
    action = compile_action(SqlRuleAction("SET a = @a SET b = newid()", {"@a": MOMENT.replace(tzinfo=None)}))
    changed = action.apply(encode_message(message()), SYSTEM, Random(1))
    assert changed.application_properties == {
        "a": MOMENT,
        "b": UUID(int=Random(1).getrandbits(128), version=4),
    }
    assert (
        action.apply(encode_message(message()), SYSTEM, Random(2)).application_properties
        != changed.application_properties
    )


def test_an_action_reads_system_properties() -> None:
    changed = compile_action(SqlRuleAction("SET n = sys.SequenceNumber + 1")).apply(
        encode_message(message()), SystemProperties(sequence_number=41), Random(1)
    )
    assert changed.application_properties == {"n": 42}


def test_the_error_of_an_invalid_action_names_the_action() -> None:
    with pytest.raises(InvalidOperationError, match="the action is refused at line 1, column 5"):
        compile_action(SqlRuleAction("SET 1 = 2"))
