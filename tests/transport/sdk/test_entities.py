from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from azure.servicebus import management as sdk

from sbclient.entities import (
    NEVER,
    UNLIMITED,
    AccessRights,
    AuthorizationRule,
    CorrelationRuleFilter,
    EntityAvailabilityStatus,
    EntityStatus,
    FalseRuleFilter,
    MessagingSku,
    QueueProperties,
    RuleFilter,
    RuleProperties,
    SqlRuleAction,
    SqlRuleFilter,
    SubscriptionProperties,
    TopicProperties,
    TrueRuleFilter,
)
from sbclient.errors import InvalidOperationError
from sbclient.transport.sdk.entities import (
    creation_options,
    from_sdk_namespace,
    from_sdk_properties,
    from_sdk_rule,
    to_sdk_properties,
)

RULE = AuthorizationRule(key_name="Sender", rights=[AccessRights.SEND], primary_key="p", secondary_key="s")
QUEUE = QueueProperties(
    "orders",
    authorization_rules=[RULE],
    auto_delete_on_idle=UNLIMITED,
    default_message_time_to_live=timedelta(hours=1),
    lock_duration=timedelta(seconds=30),
    max_delivery_count=3,
    requires_session=True,
    status=EntityStatus.SEND_DISABLED,
    forward_to="invoices",
    availability_status=EntityAvailabilityStatus.LIMITED,
)


def test_unset_properties_are_not_sent() -> None:
    assert creation_options(QueueProperties("orders", max_delivery_count=3)) == {"max_delivery_count": 3}


def test_read_only_properties_are_not_sent_at_creation() -> None:
    options = creation_options(QUEUE)
    assert not {"name", "status", "availability_status"} & options.keys()
    assert options["auto_delete_on_idle"] == "P10675199DT2H48M5.4775807S"
    assert [rule.key_name for rule in options["authorization_rules"]] == ["Sender"]


def test_a_description_survives_the_sdk_and_back() -> None:
    topic = TopicProperties("prices", size_in_bytes=5, status=EntityStatus.ACTIVE, authorization_rules=[])
    subscription = SubscriptionProperties("eu", max_delivery_count=7, status=EntityStatus.ACTIVE)
    assert from_sdk_properties(QueueProperties, to_sdk_properties(QUEUE)) == QUEUE
    assert from_sdk_properties(TopicProperties, to_sdk_properties(topic)) == topic
    assert from_sdk_properties(SubscriptionProperties, to_sdk_properties(subscription)) == subscription


@pytest.mark.parametrize(
    "rule_filter",
    [
        TrueRuleFilter(),
        FalseRuleFilter(),
        SqlRuleFilter("a = @b", {"@b": 1}),
        SqlRuleFilter("a = 1"),
        CorrelationRuleFilter(label="l", properties={"n": 1}),
        CorrelationRuleFilter(session_id="s"),
    ],
)
@pytest.mark.parametrize("action", [None, SqlRuleAction("SET a = 1"), SqlRuleAction("SET a = @b", {"@b": 2})])
def test_a_rule_survives_the_sdk_and_back(rule_filter: RuleFilter, action: SqlRuleAction | None) -> None:
    rule = RuleProperties("r", rule_filter, action)
    assert from_sdk_rule(to_sdk_properties(rule)) == rule


def test_a_filter_of_a_kind_unknown_to_us_is_not_guessed_at() -> None:
    unknown = SimpleNamespace(name="r", filter=SimpleNamespace(), action=None, created_at_utc=None)
    with pytest.raises(InvalidOperationError):
        from_sdk_rule(unknown)


def described(**values: Any) -> QueueProperties:
    model = to_sdk_properties(QueueProperties("q"))
    for name, value in values.items():
        setattr(model, name, value)
    return from_sdk_properties(QueueProperties, model)


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("sb://contoso.servicebus.windows.net/a/b", "a/b"),
        ("https://localhost:5672/a%20b", "a b"),
        ("orders", "orders"),
        ("", None),
        (None, None),
    ],
)
def test_where_to_forward_to_is_a_path(target: str | None, path: str | None) -> None:
    assert described(forward_to=target).forward_to == path


def test_as_long_as_can_be_is_no_limit() -> None:
    cut_by_the_sdk = timedelta(days=10675199, hours=2, minutes=48, seconds=5, microseconds=477539)
    assert described(default_message_time_to_live=cut_by_the_sdk).default_message_time_to_live == UNLIMITED
    assert described(auto_delete_on_idle="P10675199DT2H48M5.4775807S").auto_delete_on_idle == UNLIMITED
    assert described(auto_delete_on_idle=timedelta(minutes=5)).auto_delete_on_idle == timedelta(minutes=5)


def test_a_status_of_the_future_is_unknown() -> None:
    assert described(status="Hibernating").status is EntityStatus.UNKNOWN
    assert described(availability_status="Half").availability_status is EntityAvailabilityStatus.UNKNOWN
    assert described(status=None).status is None


def test_a_namespace_is_described() -> None:
    values = sdk.NamespaceProperties(
        "contoso",
        alias="",
        created_at_utc=datetime(2026, 1, 2),  # noqa: DTZ001 - the SDK may leave the zone out
        messaging_sku="Premium",
        messaging_units=2,
        modified_at_utc=None,
        namespace_type="Messaging",
    )
    ours = from_sdk_namespace(values)
    assert (ours.name, ours.messaging_sku, ours.messaging_units, ours.alias) == (
        "contoso",
        MessagingSku.PREMIUM,
        2,
        None,
    )
    assert (ours.created_at_utc, ours.modified_at_utc) == (datetime(2026, 1, 2, tzinfo=UTC), NEVER)
