from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from enum import Enum
from inspect import signature
from pathlib import Path
from typing import Any, Final

import pytest
from azure.servicebus import management as sdk

from sbclient.administration import ServiceBusAdministrationClient
from sbclient.entities import (
    DEFAULT_RULE_NAME,
    NEVER,
    SETTINGS,
    UNLIMITED,
    AccessRights,
    AuthorizationRule,
    CorrelationRuleFilter,
    EntityAddress,
    EntityAvailabilityStatus,
    EntityKind,
    EntityStatus,
    MessagingSku,
    QueueProperties,
    RuleProperties,
    RuntimeProperties,
    SqlRuleAction,
    SqlRuleFilter,
    SubscriptionProperties,
    TopicProperties,
    TrueRuleFilter,
    element_name,
    settings_of,
)
from sbclient.formats.description_tables import TABLES
from sbclient.transport.sdk.entities import LACKING

ROOT: Final = Path(__file__).parents[1]
UNKNOWN_TO_THE_SDK: Final[frozenset[str]] = frozenset()
"""Settings of the emulator alone."""


def names_of(kind: type) -> set[str]:
    return set(signature(kind).parameters)


@pytest.mark.parametrize(
    "kind", [QueueProperties, TopicProperties, SubscriptionProperties, RuleProperties, CorrelationRuleFilter]
)
def test_descriptions_have_exactly_the_sdks_names(kind: type) -> None:
    theirs = names_of(getattr(sdk, kind.__name__))
    assert names_of(kind) - UNKNOWN_TO_THE_SDK == theirs, "name in UNKNOWN_TO_THE_SDK what azure-servicebus lacks"


def test_what_the_sdk_does_not_know_is_sent_and_documented() -> None:
    deviations = (ROOT / "sbclient/cli/deviations.json").read_text(encoding="utf-8")
    assert set(LACKING) >= UNKNOWN_TO_THE_SDK, "name it in LACKING of transport/sdk/entities.py"
    assert [name for name in UNKNOWN_TO_THE_SDK if name not in deviations] == [], "add an entry to cli/deviations.json"


@pytest.mark.parametrize("kind", [EntityStatus, EntityAvailabilityStatus, AccessRights, MessagingSku])
def test_enumeration_values_equal_those_of_the_sdk_and_their_text(kind: type[Enum]) -> None:
    theirs = {member.name: member.value for member in getattr(sdk, kind.__name__)}
    assert {member.name: member.value for member in kind} == theirs
    assert all(member == member.value for member in kind)


@pytest.mark.deviation("client.management")
@pytest.mark.parametrize("kind", ["Queue", "Topic", "Subscription"])
def test_counts_have_the_sdks_names(kind: str) -> None:
    sdk_names = {name for name in dir(getattr(sdk, f"{kind}RuntimeProperties")) if not name.startswith("_")}
    assert sdk_names <= names_of(RuntimeProperties)


def test_counts_begin_at_nothing() -> None:
    runtime = RuntimeProperties(name="orders")
    assert all(
        getattr(runtime, name) == 0 for name in names_of(RuntimeProperties) if name.endswith(("_count", "bytes"))
    )
    assert runtime.accessed_at_utc == NEVER == datetime(1, 1, 1, tzinfo=UTC)


def test_a_description_leaves_everything_but_the_name_to_the_service() -> None:
    for kind in (QueueProperties, TopicProperties, SubscriptionProperties):
        described = kind("orders")
        assert described.name == "orders"
        assert all(getattr(described, field.name) is None for field in fields(kind)[1:])


CREATED: Final[dict[EntityKind, Callable[..., Any]]] = {
    EntityKind.QUEUE: ServiceBusAdministrationClient.create_queue,
    EntityKind.TOPIC: ServiceBusAdministrationClient.create_topic,
    EntityKind.SUBSCRIPTION: ServiceBusAdministrationClient.create_subscription,
}
NOT_AT_CREATION: Final = {"status", *(name for name, each in SETTINGS.items() if each.is_answer)}
"""As with azure-servicebus, where a topic takes its size."""


@pytest.mark.parametrize("kind", CREATED)
def test_every_setting_is_described_can_be_given_and_has_an_element(kind: EntityKind) -> None:
    settings = set(settings_of(kind))
    assert settings <= set(SETTINGS), "describe the setting in SETTINGS of entities.py"
    given = set(signature(CREATED[kind]).parameters)
    assert settings - given <= NOT_AT_CREATION, f"add the setting to create_{kind} of administration.py"
    names = {"self", "topic_name", f"{kind}_name"}
    assert given - names <= settings, f"create_{kind} takes what no field of its class in entities.py has"
    elements = {element_name(each) for each in settings - {"availability_status"}}
    assert elements <= set(TABLES[kind]), "add the element to formats/description_tables.py"


def test_every_described_setting_is_one_of_an_entity() -> None:
    of_entities = {name for kind in CREATED for name in settings_of(kind)}
    assert set(SETTINGS) == of_entities, "entities.py needs a field of each kind and a row of SETTINGS"
    assert all(each.about.endswith(".") for each in SETTINGS.values())


@pytest.mark.parametrize("name", SETTINGS)
def test_the_broker_acts_on_a_setting_or_its_meaning_says_that_it_is_only_stored(name: str) -> None:
    broker = (path for part in ("broker", "emulator", "hosting") for path in (ROOT / "sbclient" / part).rglob("*.py"))
    is_used = any(re.search(rf"\.{name}\b", path.read_text(encoding="utf-8")) for path in broker)
    is_only_stored = "The emulator only stores it." in SETTINGS[name].about or name == "user_metadata"
    assert is_used or is_only_stored or SETTINGS[name].is_answer, "see broker/policy.py and policy_of"


def test_a_rule_matches_every_message_by_default() -> None:
    assert RuleProperties("$Default").filter == TrueRuleFilter()
    assert RuleProperties("a").filter is not RuleProperties("b").filter
    assert RuleProperties("a").action is None
    assert DEFAULT_RULE_NAME == "$Default"


def test_descriptions_are_compared_by_what_they_say() -> None:
    assert QueueProperties("a", requires_session=True) == QueueProperties("a", requires_session=True)
    assert QueueProperties("a", requires_session=True) != QueueProperties("a", requires_session=False)
    assert SqlRuleFilter("a = @b", {"@b": 1}) != SqlRuleFilter("a = @b", {"@b": 2})
    assert SqlRuleAction("SET a = 1") == SqlRuleAction("SET a = 1", None)


def test_keys_are_never_shown() -> None:
    rule = AuthorizationRule(
        key_name="root", rights=[AccessRights.SEND], primary_key="SECRET-1", secondary_key="SECRET-2"
    )
    for shown in (repr(rule), str(rule), repr(QueueProperties("orders", authorization_rules=[rule]))):
        assert "root" in shown
        assert "SECRET" not in shown


def test_an_address_says_what_it_names() -> None:
    assert str(EntityAddress(EntityKind.QUEUE, ("orders/eu",))) == "queue orders/eu"
    assert str(EntityAddress(EntityKind.RULE, ("prices", "eu", "$Default"))) == "rule prices/eu/$Default"
    assert [str(kind) for kind in EntityKind] == ["queue", "topic", "subscription", "rule"]
    assert [kind.name_count for kind in EntityKind] == [1, 1, 2, 3]


def test_unlimited_is_longer_than_anything_the_service_counts() -> None:
    assert timedelta(days=10675199, hours=2, minutes=48, seconds=5.477581) < UNLIMITED
