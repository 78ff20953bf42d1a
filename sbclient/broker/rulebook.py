"""Add, replace, remove and count the rules of subscriptions.

Rules (source: partitioned entities and quotas, documented):

1. Rules change inside a transaction only on plain topics.
2. The number of SQL filters and of correlation filters of a topic is limited, over all its subscriptions. True and
   false filters count as SQL filters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sbclient.broker.directory import Entity, path_of
from sbclient.broker.entry import utc_datetime
from sbclient.broker.faults import Call
from sbclient.broker.profile import Profile
from sbclient.broker.request_gate import RequestGate, touch
from sbclient.broker.rule import Rule
from sbclient.broker.topic import Subscription
from sbclient.broker.transactions import Scope, Step, Transaction
from sbclient.entities import DEFAULT_RULE_NAME, EntityAddress, EntityKind, RuleProperties
from sbclient.errors import (
    InvalidOperationError,
    MessagingEntityAlreadyExistsError,
    MessagingEntityNotFoundError,
    ServiceBusQuotaExceededError,
)
from sbclient.rules.entity_path import canonical, check_entity_path


class Rulebook:
    """All rules of one namespace; an address names topic, subscription and rule.

    Args:
        profile: for the limits.
        gate: of the namespace; callers have passed it.
    """

    def __init__(self, profile: Profile, gate: RequestGate) -> None:
        self._profile = profile
        self._gate = gate
        self._directory = gate.directory

    def default_rule(self, topic: Entity, now: float) -> Rule:
        """The rule of a new subscription.

        Raises:
            ServiceBusQuotaExceededError: the topic has too many filters already.
        """
        rule = Rule(RuleProperties(DEFAULT_RULE_NAME, created_at_utc=utc_datetime(now)))
        self._check_count(topic, rule)
        return rule

    def create(
        self, call: Call, address: EntityAddress, properties: RuleProperties, transaction: Transaction | None
    ) -> RuleProperties:
        """Add a rule, now or when a transaction is committed; returns its complete description."""
        name = check_entity_path(address.names[2], "rule")
        rule = Rule(replace(properties, name=name, created_at_utc=utc_datetime(call.now)))

        def check(_: float) -> None:
            subscription = self.subscription_at(address)
            self._gate.check_reachable(call, path_of(address))
            if canonical(name) in subscription.rules:
                raise MessagingEntityAlreadyExistsError(
                    f"SubCode=40900. The messaging entity '{path_of(address)}/Rules/{name}' already exists: choose "
                    "another name, or update that rule"
                )
            self._check_count(self._topic_of(address), rule)

        self._change(call, address, check, lambda _: self._set(address, canonical(name), rule), transaction)
        return rule.described()

    def update(self, address: EntityAddress, properties: RuleProperties) -> RuleProperties:
        """Replace a rule; it keeps its name and age."""
        Rule(properties)  # the service validates an update before it looks the rule up
        replaced = self.at(address)
        before = replaced.properties
        rule = Rule(replace(properties, name=before.name, created_at_utc=before.created_at_utc))
        if rule.is_correlation is not replaced.is_correlation:
            self._check_count(self._topic_of(address), rule)
        self._set(address, canonical(before.name), rule)
        return rule.described()

    def delete(self, call: Call, address: EntityAddress, transaction: Transaction | None) -> None:
        """Remove a rule, now or when a transaction is committed."""
        key = canonical(address.names[2])
        self._change(call, address, lambda _: self.at(address), lambda _: self._set(address, key, None), transaction)

    def at(self, address: EntityAddress) -> Rule:
        """
        Raises:
            MessagingEntityNotFoundError: there is no such rule, subscription or topic.
        """
        rule = self.subscription_at(address).rules.get(canonical(address.names[2]))
        if rule is None:
            raise _missing(address)
        return rule

    def subscription_at(self, address: EntityAddress) -> Subscription:
        """The subscription that an address names, or that it lies below.

        Raises:
            MessagingEntityNotFoundError: there is no such subscription or topic.
        """
        subscription = self._topic_of(address).topic_body.subscriptions.get(canonical(address.names[1]))
        if subscription is None:
            raise _missing(EntityAddress(EntityKind.SUBSCRIPTION, address.names[:2]))
        return subscription

    def _set(self, address: EntityAddress, key: str, rule: Rule | None) -> Callable[[], None]:
        """Add, replace or, with None, remove a rule; return a function that undoes it."""
        subscription = self.subscription_at(address)
        before = dict(subscription.rules)

        def undo() -> None:
            subscription.restore(before)

        if self._gate.changes is not None:
            self._gate.changes.change_rule(subscription.queue.key, key)
        if rule is None:
            subscription.drop(key)
        else:
            subscription.put(key, rule)
        return undo

    def _change(
        self,
        call: Call,
        address: EntityAddress,
        check: Callable[[float], object],
        apply: Callable[[float], Callable[[], None]],
        transaction: Transaction | None,
    ) -> None:
        check(call.now)
        topic = self._topic_of(address)
        if transaction is None:
            apply(call.now)
            touch(self._directory.at(EntityAddress(EntityKind.SUBSCRIPTION, address.names[:2])), call.now)
            return
        if topic.is_partitioned:
            raise InvalidOperationError(
                f"rules of {topic.path}, which is partitioned, cannot change in a transaction: change them outside it"
            )
        scope = Scope(topic.path, 0)
        transaction.check_open(call.now)
        transaction.check_scope(scope, 1)
        transaction.add(Step(check, apply, topic.body.fragments[0], changes_rules=True), scope, call.now)

    def _topic_of(self, address: EntityAddress) -> Entity:
        return self._directory.at(EntityAddress(EntityKind.TOPIC, address.names[:1]))

    def _check_count(self, topic: Entity, rule: Rule) -> None:
        below = topic.topic_body.subscriptions.values()
        correlation_count = sum(subscription.correlation_count for subscription in below)
        if rule.is_correlation:
            kind, count, limit = "correlation", correlation_count, self._profile.max_correlation_filters
        else:
            all_count = sum(len(subscription.rules) for subscription in below)
            kind, count, limit = "SQL", all_count - correlation_count, self._profile.max_sql_filters
        if count >= limit:
            raise ServiceBusQuotaExceededError(
                f"SubCode=40300. topic {topic.path} has {count} {kind} filters, {limit} are allowed: remove some"
            )


def _missing(address: EntityAddress) -> MessagingEntityNotFoundError:
    return MessagingEntityNotFoundError(
        f"SubCode=40400. The messaging entity '{path_of(address)}/Rules/{address.names[-1]}' could not be found: "
        "create it, or check its name"
    )
