"""What holds the first time holds the second time: after an update, after a deletion, after a rollback."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from functools import partial
from random import Random
from typing import Any, Final

import pytest

from sbclient.broker.directory import path_of
from sbclient.broker.faults import Operation
from sbclient.broker.profile import BASIC_2021, PREM_2021, STD_2021, Profile
from sbclient.broker.transactions import Transaction
from sbclient.entities import (
    AccessRights,
    AuthorizationRule,
    CorrelationRuleFilter,
    EntityAddress,
    EntityKind,
    EntityProperties,
    EntityStatus,
    FalseRuleFilter,
    QueueProperties,
    RuleFilter,
    RuleProperties,
    SqlRuleAction,
    SqlRuleFilter,
    SubscriptionProperties,
    TopicProperties,
    TrueRuleFilter,
)
from sbclient.errors import ServiceBusError, ServiceBusQuotaExceededError
from tests.broker.driver import Driver, address, message, seconds, topic_address

RULES: Final = [AuthorizationRule(key_name=f"r{number}", rights=[AccessRights.SEND]) for number in range(13)]
REFUSED: Final[dict[str, list[Any]]] = {
    "auto_delete_on_idle": [seconds(299), 60],
    "authorization_rules": [RULES, [replace(RULES[0], rights=[AccessRights.MANAGE])], [RULES[0], RULES[0]]],
    "default_message_time_to_live": [timedelta(0), 5],
    "duplicate_detection_history_time_window": [seconds(19), timedelta(days=8)],
    "forward_dead_lettered_messages_to": ["nowhere"],
    "forward_to": ["nowhere", "e"],
    "lock_duration": [seconds(4), seconds(301)],
    "max_delivery_count": [0, 2**31, True],
    "max_message_size_in_kilobytes": [255, 1_000_000],
    "max_size_in_megabytes": [1000, 0],
    "status": [EntityStatus.CREATING],
    "user_metadata": ["x" * 1025],
}
DESCRIBED: Final = {
    EntityKind.QUEUE: (QueueProperties, EntityAddress(EntityKind.QUEUE, ("e",))),
    EntityKind.TOPIC: (TopicProperties, topic_address("e")),
    EntityKind.SUBSCRIPTION: (SubscriptionProperties, EntityAddress(EntityKind.SUBSCRIPTION, ("t", "s"))),
}


@pytest.mark.parametrize("kind", DESCRIBED)
@pytest.mark.parametrize("profile", [STD_2021, PREM_2021, BASIC_2021], ids=lambda profile: profile.name)
def test_an_update_is_refused_as_the_creation_is(profile: Profile, kind: EntityKind) -> None:
    described, where = DESCRIBED[kind]
    for name, value in ((name, value) for name, values in REFUSED.items() for value in values):
        if not hasattr(described("e"), name):
            continue
        broker = Driver(profile)
        if profile is not BASIC_2021:
            broker.topic()
        with pytest.raises(ServiceBusError) as first:
            broker.management.create(broker.call(Operation.MANAGE), where, described(where.names[-1], **{name: value}))
        if profile is BASIC_2021 and kind is not EntityKind.QUEUE:
            continue
        before = broker.management.create(broker.call(Operation.MANAGE), where, described(where.names[-1]))
        with pytest.raises(ServiceBusError) as second:
            broker.update(where, replace(before, **{name: value}))
        assert (type(second.value), str(second.value)) == (type(first.value), str(first.value))
        assert broker.get(where) == before, f"{name}={value!r}"


@pytest.mark.parametrize("kind", DESCRIBED)
@pytest.mark.parametrize("profile", [STD_2021, PREM_2021], ids=lambda profile: profile.name)
def test_an_update_leaves_the_rules_of_the_creation(profile: Profile, kind: EntityKind) -> None:
    """Also those that a subscription has from its topic, which is larger than others here."""
    described, where = DESCRIBED[kind]
    size = 4096 if profile is PREM_2021 else None
    broker = Driver(profile)
    broker.topic(max_message_size_in_kilobytes=size)
    given = {"max_message_size_in_kilobytes": size} if kind is not EntityKind.SUBSCRIPTION else {}
    made = broker.management.create(broker.call(Operation.MANAGE), where, described(where.names[-1], **given))

    def rules() -> dict[str, Any]:
        policy = broker.namespace.directory.find(path_of(where))[0].body.policy
        return {name: getattr(policy, name) for name in policy.__slots__}

    created = rules()
    for _ in range(2):
        broker.update(where, made)
        assert rules() == created


SPELLINGS: Final = ("Orders", "ORDERS", "orders", "orders/$DeadLetterQueue", "Orders/$deadletterqueue")


def test_an_entity_that_is_created_again_is_new_in_every_spelling() -> None:
    broker = Driver()
    for cycle in range(3):
        broker.queue("Orders")
        for path in SPELLINGS:
            assert broker.receive(path) == [], (cycle, path)
        for path in SPELLINGS[:3]:
            broker.send(path, message(path))
        assert sorted(map(str, broker.drain("oRDERS"))) == sorted(SPELLINGS[:3])
        broker.send("orders", message("left"))
        broker.delete(address("orders"))


FILTERS: Final[list[RuleFilter]] = [
    SqlRuleFilter("x = 1"),
    CorrelationRuleFilter(label="x"),
    TrueRuleFilter(),
    FalseRuleFilter(),
]
BAD_RULES: Final[list[dict[str, Any]]] = [
    {"filter": SqlRuleFilter("x = ")},
    {"filter": SqlRuleFilter("x" * 2000)},
    {"action": SqlRuleAction("SET = 1")},
]


@pytest.mark.parametrize("bad", BAD_RULES)
def test_an_update_of_a_rule_is_refused_as_the_creation_is(bad: dict[str, Any]) -> None:
    broker = Driver()
    broker.topic()
    broker.subscription()
    where = address("t/Subscriptions/s/$Rules/r")
    with pytest.raises(ServiceBusError) as first:
        broker.rule("t/Subscriptions/s", "r", **bad)
    good = broker.rule("t/Subscriptions/s", "r", filter=SqlRuleFilter("x = 1"))
    with pytest.raises(ServiceBusError) as second:
        broker.update(where, RuleProperties("r", **bad))
    assert (type(second.value), str(second.value)) == (type(first.value), str(first.value))
    assert broker.get(where) == good


def test_rules_and_bytes_are_counted_whatever_was_there_before() -> None:
    for seed in range(60):
        _change_rules(Random(seed))


def _change_rules(random: Random) -> None:
    profile = replace(STD_2021, max_sql_filters=4, max_correlation_filters=2, max_subscriptions=2)
    limits = profile.max_sql_filters, profile.max_correlation_filters
    broker = Driver(profile)
    broker.topic()
    for name in "ab":
        broker.subscription("t", name)
    for _ in range(40):
        before = counted(broker)
        transaction = broker.begin() if random.random() < 0.5 else None
        works = [partial(_change, broker, random, each, transaction) for each in random.choices(FILTERS, k=3)]
        if transaction is not None:  # a later change may undo the earlier ones
            works.append(partial(broker.commit if random.random() < 0.8 else broker.rollback, transaction))
        for count, work in enumerate(works if transaction is not None else works[:1]):
            rules = listed(broker)
            try:
                work()
            except ServiceBusError as error:
                assert listed(broker) == rules  # what fails undoes all that it did
                if isinstance(error, ServiceBusQuotaExceededError):
                    assert any(here + count >= limit for here, limit in zip(before, limits, strict=False))
        sql, correlation, size = counted(broker)
        assert sql <= profile.max_sql_filters
        assert correlation <= profile.max_correlation_filters
        topic = broker.management.runtime(broker.call(Operation.MANAGE), topic_address("t"))
        assert (topic.sql_filter_count, topic.correlation_filter_count) == (sql, correlation)
        assert topic.size_in_bytes == size


def _change(broker: Driver, random: Random, filter_: RuleFilter, transaction: Transaction | None) -> None:
    subscription = f"t/Subscriptions/{random.choice('ab')}"
    where = address(f"{subscription}/$Rules/{random.choice('rs')}")
    match random.randrange(11):
        case 0:
            broker.subscription("t", subscription[-1])
        case 1:
            broker.delete(address(subscription))
        case 2:
            broker.update(where, RuleProperties(where.names[-1], filter=filter_))
        case 3:
            broker.delete(where, transaction)
        case 4:
            broker.send("t", message("a" * random.randrange(99)))
        case 5:
            broker.drain(subscription)
        case _:
            broker.rule(subscription, where.names[-1], transaction, filter=filter_)


def listed(broker: Driver) -> dict[str, list[EntityProperties]]:
    """The rules of each subscription."""
    management, call = broker.management, broker.call(Operation.MANAGE)
    subscriptions = management.listed(call, EntityKind.SUBSCRIPTION, ("t",))
    return {each.name: [*management.listed(call, EntityKind.RULE, ("t", each.name))] for each in subscriptions}


def counted(broker: Driver) -> tuple[int, int, int]:
    """The SQL filters, the correlation filters and the bytes of the topic, from what is listed."""
    found = listed(broker)
    rules = [rule for each in found.values() for rule in each]
    correlation = sum(isinstance(rule.filter, CorrelationRuleFilter) for rule in rules)  # type: ignore[union-attr]
    sizes = [broker.counts(f"t/Subscriptions/{name}").size_in_bytes or 0 for name in found]
    return len(rules) - correlation, correlation, sum(sizes)
