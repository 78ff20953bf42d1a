"""Settings of entities as text by name: read, written, and refused."""

from __future__ import annotations

from datetime import timedelta

import pytest

from sbclient.entities import (
    PROPERTIES_OF,
    SETTINGS,
    UNLIMITED,
    CorrelationRuleFilter,
    EntityKind,
    EntityProperties,
    EntityStatus,
    QueueProperties,
    RuleProperties,
    SqlRuleAction,
    SqlRuleFilter,
    TrueRuleFilter,
)
from sbclient.errors import InvalidOperationError
from sbclient.formats.entity_settings import described, settings_text, with_settings

QUEUE = QueueProperties("q", forward_to="next", lock_duration=timedelta(seconds=30), max_delivery_count=3)
CORRELATION = RuleProperties(
    "r",
    CorrelationRuleFilter(
        correlation_id="id",
        label="a",
        properties={"n": 1, "text": "1", "yes": True, "a:": "1", "b:": 1, ":": "", " c ": " ", "": "x"},
    ),
)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("forward_to", "", None),
        ("forward_to", "other", "other"),
        ("lock_duration", "1m", timedelta(minutes=1)),
        ("default_message_time_to_live", "unlimited", UNLIMITED),
        ("max_delivery_count", "1", 1),
        ("requires_session", "True", True),
        ("status", "SendDisabled", EntityStatus.SEND_DISABLED),
        ("status", "send_disabled", EntityStatus.SEND_DISABLED),
    ],
)
def test_text_of_a_setting_is_read_by_its_type(name: str, text: str, value: object) -> None:
    read = getattr(with_settings(QUEUE, [(name, text)]), name)
    assert (read, type(read)) == (value, type(value))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("max_delivery_count", ""),
        ("max_delivery_count", "1.0"),
        ("requires_session", "1"),
        ("requires_session", ""),
        ("lock_duration", "soon"),
        ("status", "asleep"),
        ("forward", "other"),
        ("authorization_rules", "[]"),
    ],
)
def test_text_that_is_no_value_or_names_no_setting_is_refused(name: str, text: str) -> None:
    with pytest.raises(InvalidOperationError, match=name):
        with_settings(QUEUE, [(name, text)])


@pytest.mark.parametrize(
    ("kind", "properties"),
    [
        (EntityKind.QUEUE, QUEUE),
        (EntityKind.RULE, CORRELATION),
        (EntityKind.RULE, RuleProperties("r", SqlRuleFilter("n = 1"), SqlRuleAction("SET n = 2"))),
        (EntityKind.RULE, RuleProperties("r", SqlRuleFilter("1=1"))),
    ],
)
def test_written_settings_describe_the_same_entity(kind: EntityKind, properties: EntityProperties) -> None:
    again = described(kind, properties.name, [pair for pair in settings_text(properties).items() if pair[1]])
    assert (again, settings_text(again)) == (properties, settings_text(properties))


@pytest.mark.parametrize("kind", [EntityKind.QUEUE, EntityKind.TOPIC, EntityKind.SUBSCRIPTION])
def test_an_empty_text_unsets_what_has_no_default(kind: EntityKind) -> None:
    for name in settings_text(PROPERTIES_OF[kind]("orders")):
        if SETTINGS[name].default is None:
            assert described(kind, "orders", [(name, "")]) == PROPERTIES_OF[kind]("orders"), name
        else:
            with pytest.raises(InvalidOperationError, match=name):
                described(kind, "orders", [(name, "")])


def test_parts_of_a_rule_that_are_not_given_stay() -> None:
    rule = RuleProperties("r", SqlRuleFilter("n = @n", {"@n": 1}), SqlRuleAction("SET m = @m", {"@m": 2}))
    changed = with_settings(rule, [("sql", "n > @n")])
    assert changed == RuleProperties("r", SqlRuleFilter("n > @n", {"@n": 1}), rule.action)
    labelled = with_settings(rule, [("label", ""), ("correlation_id", "c")])
    assert labelled == RuleProperties("r", CorrelationRuleFilter(correlation_id="c"), rule.action)
    assert with_settings(rule, [("action", "")]) == RuleProperties("r", rule.filter)
    assert settings_text(RuleProperties("r", TrueRuleFilter())) == {"sql": "1=1", "action": ""}
    with pytest.raises(InvalidOperationError, match="either"):
        with_settings(rule, [("sql", "1=1"), ("label", "a")])
