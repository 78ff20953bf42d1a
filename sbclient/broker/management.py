"""Creating, describing, changing and deleting the entities of a namespace.

Laws (source: partitioned entities and quotas, documented, unless said otherwise):

1. Create, update and delete act on all fragments, or on none: while one cannot be reached they are refused whole.
2. What an entity counts is summed over the fragments that can be reached; if some cannot, its availability is Limited.
3. A partitioned entity counts as one toward the number of entities, and there may be fewer of those.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import cast

from sbclient.broker.descriptions import changed, completed, policy_of
from sbclient.broker.directory import Directory, Entity, kind_of, path_of
from sbclient.broker.entity import Queue, QueueRing
from sbclient.broker.entry import moment
from sbclient.broker.faults import Call, Faults
from sbclient.broker.policy import Policy, Usage
from sbclient.broker.profile import Partitioning, Profile
from sbclient.broker.rule import Rule
from sbclient.broker.topic import Subscription, Topic
from sbclient.entities import (
    DEFAULT_RULE_NAME,
    EntityAddress,
    EntityAvailabilityStatus,
    EntityKind,
    EntityProperties,
    NamespaceProperties,
    QueueProperties,
    RuleProperties,
    RuntimeProperties,
    SubscriptionProperties,
    TopicProperties,
)
from sbclient.errors import (
    InvalidOperationError,
    MessagingEntityAlreadyExistsError,
    MessagingEntityNotFoundError,
    ServiceBusInternalError,
    ServiceBusQuotaExceededError,
)
from sbclient.rules.entity_path import (
    canonical,
    check_entity_path,
    dead_letter_path,
    transfer_dead_letter_path,
)

_KINDS: dict[EntityKind, type] = {
    EntityKind.QUEUE: QueueProperties,
    EntityKind.TOPIC: TopicProperties,
    EntityKind.SUBSCRIPTION: SubscriptionProperties,
    EntityKind.RULE: RuleProperties,
}


class Management:
    """The management side of one namespace.

    Args:
        name: of the namespace.
        profile: what it can do.
        directory: its entities.
        faults, random: of the namespace.
        ring: told of messages that can be received.
        removed: told of each queue that is deleted, and of those behind it.
    """

    def __init__(
        self,
        name: str,
        profile: Profile,
        directory: Directory,
        faults: Faults,
        random: Random,
        ring: QueueRing,
        removed: Callable[[Queue], None],
    ) -> None:
        self._name = name
        self._profile = profile
        self._directory = directory
        self._faults = faults
        self._random = random
        self._ring = ring
        self._removed = removed
        self._created_at: float | None = None

    # ------------------------------------------------------------------ create

    def create(self, call: Call, address: EntityAddress, properties: EntityProperties) -> EntityProperties:
        """Make an entity; returns its complete description.

        Raises:
            InvalidOperationError: name or description is not allowed.
            MessagingEntityAlreadyExistsError: it is there.
            MessagingEntityNotFoundError: what it belongs to, or forwards to, is not.
            ServiceBusQuotaExceededError: there are too many.
        """
        self._faults.at_door(call, path_of(address))
        self._check_kind(address, properties)
        if isinstance(properties, RuleProperties):
            return self.create_rule(call, address, properties)
        path = path_of(address)
        self._check_reachable(call, path)
        check_entity_path(address.names[-1], address.kind.value[0])
        if self._directory.get(path) is not None:
            raise MessagingEntityAlreadyExistsError(
                f"SubCode=40900. {path!r} exists: choose another name, or update that entity"
            )
        if isinstance(properties, SubscriptionProperties):
            entity = self._made_subscription(call, address, properties)
        else:
            description = completed(replace(properties, name=address.names[0]), self._profile)
            self._check_entity_counts(is_partitioned=bool(description.enable_partitioning))
            entity = self._made(call, description)
        self._directory.add(entity)
        return self._described(entity, call.now)

    def create_legacy_partitioned(self, call: Call, properties: QueueProperties | TopicProperties) -> EntityProperties:
        """Put there a partitioned entity from before the profile stopped making them."""
        older = replace(self._profile, partitioning=Partitioning.ALWAYS)
        entity = self._made(call, completed(properties, older))
        self._directory.add(entity)
        return self._described(entity, call.now)

    def create_rule(self, call: Call, address: EntityAddress, properties: RuleProperties) -> RuleProperties:
        """Add a rule to a subscription."""
        subscription = self.subscription_at(address)
        self._check_reachable(call, path_of(address))
        name = check_entity_path(address.names[2], "rule")
        if canonical(name) in subscription.rules:
            raise MessagingEntityAlreadyExistsError(
                f"SubCode=40900. {address} exists: choose another name, or update that rule"
            )
        stated = replace(properties, name=name, created_at_utc=moment(call.now))
        subscription.rules[canonical(name)] = Rule(stated)
        return replace(stated)

    def subscription_at(self, address: EntityAddress) -> Subscription:
        """The subscription that a rule's address leads to.

        Raises:
            MessagingEntityNotFoundError: there is none.
        """
        entity = self._directory.at(EntityAddress(EntityKind.SUBSCRIPTION, address.names[:2]))
        return cast(Subscription, entity.subscription)

    def _made(self, call: Call, description: QueueProperties | TopicProperties) -> Entity:
        policy = policy_of(description, self._profile)
        usages = [Usage() for _ in range(self._profile.fragment_count if description.enable_partitioning else 1)]
        path, now = description.name, call.now
        if isinstance(description, TopicProperties):
            topic = Topic(path, policy, usages, self._faults, self._random)
            return Entity(path, description, topic, {}, None, None, now, now, now)
        queue, sub_queues = self._made_queue(path, policy, usages)
        return Entity(path, description, queue, sub_queues, None, None, now, now, now)

    def _made_queue(self, path: str, policy: Policy, usages: list[Usage]) -> tuple[Queue, dict[str, Queue]]:
        def queue(path: str, dead_letters: Queue | None) -> Queue:
            return Queue(path, policy, usages, self._faults, self._random, self._ring, dead_letters)

        dead_letters = queue(dead_letter_path(path), None)
        sub_queues = {"deadletter": dead_letters, "transferdeadletter": queue(transfer_dead_letter_path(path), None)}
        return queue(path, dead_letters), sub_queues

    def _made_subscription(self, call: Call, address: EntityAddress, properties: SubscriptionProperties) -> Entity:
        topic = self._directory.at(EntityAddress(EntityKind.TOPIC, address.names[:1]))
        body = cast(Topic, topic.body)
        if len(body.subscriptions) >= self._profile.max_subscriptions:
            raise ServiceBusQuotaExceededError(
                f"SubCode=40300. topic {topic.path} has {len(body.subscriptions)} subscriptions, "
                f"{self._profile.max_subscriptions} are allowed: delete some"
            )
        name = address.names[1]
        description = completed(replace(properties, name=name), self._profile)
        path = path_of(EntityAddress(address.kind, (topic.path, name)))
        usages = [fragment.usage for fragment in body.fragments]
        queue, sub_queues = self._made_queue(path, policy_of(description, self._profile, body.policy), usages)
        subscription = Subscription(
            queue, dead_letters_filter_errors=bool(description.dead_lettering_on_filter_evaluation_exceptions)
        )
        subscription.rules[canonical(DEFAULT_RULE_NAME)] = Rule(
            RuleProperties(DEFAULT_RULE_NAME, created_at_utc=moment(call.now))
        )
        body.subscriptions[canonical(name)] = subscription
        return Entity(path, description, queue, sub_queues, topic, subscription, call.now, call.now, call.now)

    def _check_entity_counts(self, *, is_partitioned: bool) -> None:
        profile = self._profile
        counted = [(len(self._directory), profile.max_entities, "queues and topics")]
        if is_partitioned:
            counted.append(
                (self._directory.partitioned_count, profile.max_partitioned_entities, "partitioned queues and topics")
            )
        for count, limit, what in counted:
            if limit is not None and count >= limit:
                raise ServiceBusQuotaExceededError(
                    f"SubCode=40300. namespace {self._name} has {count} {what}, {limit} are allowed: delete some"
                )

    # ------------------------------------------------------------------ describe

    def get(self, call: Call, address: EntityAddress) -> EntityProperties:
        """Describe an entity.

        Raises:
            MessagingEntityNotFoundError: it is not there.
        """
        self._faults.at_door(call, path_of(address))
        if address.kind is EntityKind.RULE:
            return replace(self._rule_at(address).properties)
        return self._described(self._directory.at(address), call.now)

    def listed(
        self, call: Call, kind: EntityKind, parents: tuple[str, ...] = (), prefix: str = ""
    ) -> list[EntityProperties]:
        """The entities of a kind by name, below `parents` for subscriptions and rules; only those with that prefix."""
        self._faults.at_door(call, None)
        if kind is EntityKind.RULE:
            rules = self.subscription_at(EntityAddress(kind, parents)).rules
            found: list[EntityProperties] = [replace(rule.properties) for rule in rules.values()]
        elif kind is EntityKind.SUBSCRIPTION:
            topic = self._directory.at(EntityAddress(EntityKind.TOPIC, parents))
            found = [self._described(entity, call.now) for entity in self._directory.subscriptions_of(topic)]
        else:
            found = [self._described(entity, call.now) for entity in self._directory.all() if kind_of(entity) is kind]
        wanted = [each for each in found if canonical(each.name).startswith(canonical(prefix))]
        return sorted(wanted, key=lambda each: canonical(each.name))

    def runtime(self, call: Call, address: EntityAddress) -> RuntimeProperties:
        """Counts and times, over the fragments that can be reached."""
        self._faults.at_door(call, path_of(address))
        entity = self._directory.at(address)
        lost = self._faults.unreachable(call.now, entity.path, len(entity.body.fragments))
        reached = [index for index in range(len(entity.body.fragments)) if index not in lost]
        for queue in (entity.body, *entity.sub_queues.values()):
            for index in reached:
                queue.fragments[index].advance(call.now)
        scheduled = sum(entity.body.fragments[index].scheduled_count for index in reached)
        counts = {
            name: sum(len(queue.fragments[index]) for index in reached) for name, queue in entity.sub_queues.items()
        }
        stored = sum(len(entity.body.fragments[index]) for index in reached)
        return RuntimeProperties(
            name=entity.description.name,
            accessed_at_utc=moment(entity.accessed_at)
            if entity.accessed_at
            else RuntimeProperties(name="").accessed_at_utc,
            created_at_utc=moment(entity.created_at),
            updated_at_utc=moment(entity.updated_at),
            size_in_bytes=self._size_bytes(entity, reached),
            total_message_count=stored + sum(counts.values()),
            active_message_count=stored - scheduled,
            dead_letter_message_count=counts.get("deadletter", 0),
            scheduled_message_count=scheduled,
            transfer_message_count=counts.get("transfer", 0),
            transfer_dead_letter_message_count=counts.get("transferdeadletter", 0),
            subscription_count=len(entity.body.subscriptions) if isinstance(entity.body, Topic) else 0,
        )

    def namespace(self, call: Call) -> NamespaceProperties:
        """Describe the namespace."""
        self._faults.at_door(call, None)
        if self._created_at is None:
            self._created_at = call.now
        created = moment(self._created_at)
        return NamespaceProperties(
            name=self._name,
            messaging_sku=self._profile.sku,
            messaging_units=self._profile.messaging_units,
            created_at_utc=created,
            modified_at_utc=created,
        )

    def _size_bytes(self, entity: Entity, reached: list[int]) -> int:
        if entity.topic is None:
            return sum(entity.body.fragments[index].usage.size_bytes for index in reached)
        queues = (cast(Queue, entity.body), *entity.sub_queues.values())
        return sum(queue.fragments[index].size_bytes for queue in queues for index in reached)

    def _described(self, entity: Entity, now: float) -> QueueProperties | TopicProperties | SubscriptionProperties:
        lost = self._faults.unreachable(now, entity.path, len(entity.body.fragments))
        availability = EntityAvailabilityStatus.LIMITED if lost else EntityAvailabilityStatus.AVAILABLE
        return replace(entity.description, availability_status=availability)

    # ------------------------------------------------------------------ update and delete

    def update(self, call: Call, address: EntityAddress, properties: EntityProperties) -> EntityProperties:
        """Replace a description; every fragment has it when this returns.

        Raises:
            InvalidOperationError: a value is not allowed, or cannot be changed.
            MessagingEntityNotFoundError: it is not there.
        """
        self._faults.at_door(call, path_of(address))
        self._check_kind(address, properties)
        self._check_reachable(call, path_of(address))
        if isinstance(properties, RuleProperties):
            before = self._rule_at(address).properties
            rule = Rule(replace(properties, name=before.name, created_at_utc=before.created_at_utc))
            self.subscription_at(address).rules[canonical(before.name)] = rule
            return replace(rule.properties)
        entity = self._directory.at(address)
        self._apply(
            entity, changed(entity.description, replace(properties, name=entity.description.name), self._profile)
        )
        entity.updated_at = call.now
        return self._described(entity, call.now)

    def _apply(self, entity: Entity, description: QueueProperties | TopicProperties | SubscriptionProperties) -> None:
        topic = None if entity.topic is None else entity.topic.body.policy
        policy = policy_of(description, self._profile, topic)
        for name in Policy.__slots__:
            setattr(entity.body.policy, name, getattr(policy, name))
        entity.description = description
        if isinstance(description, SubscriptionProperties) and entity.subscription is not None:
            entity.subscription.dead_letters_filter_errors = bool(
                description.dead_lettering_on_filter_evaluation_exceptions
            )

    def delete(self, call: Call, address: EntityAddress) -> None:
        """Remove an entity with all that is in and below it.

        Raises:
            MessagingEntityNotFoundError: it is not there.
        """
        self._faults.at_door(call, path_of(address))
        self._check_reachable(call, path_of(address))
        if address.kind is EntityKind.RULE:
            name = self._rule_at(address).properties.name
            del self.subscription_at(address).rules[canonical(name)]
            return
        self.remove(self._directory.at(address))

    def remove(self, entity: Entity) -> None:
        """Forget an entity with all that is in and below it."""
        for subscription in self._directory.subscriptions_of(entity):
            self.remove(subscription)
        if entity.topic is not None:
            del cast(Topic, entity.topic.body).subscriptions[canonical(entity.description.name)]
        self._directory.remove(entity)
        for queue in (entity.body, *entity.sub_queues.values()):
            if isinstance(queue, Queue):
                self._removed(queue)

    # ------------------------------------------------------------------ checks

    def _rule_at(self, address: EntityAddress) -> Rule:
        rule = self.subscription_at(address).rules.get(canonical(address.names[2]))
        if rule is None:
            raise MessagingEntityNotFoundError(f"SubCode=40400. There is no {address}: create it, or check its name")
        return rule

    def _check_kind(self, address: EntityAddress, properties: EntityProperties) -> None:
        if not isinstance(properties, _KINDS[address.kind]):
            raise InvalidOperationError(
                f"{address} cannot be described by {type(properties).__name__}: give {_KINDS[address.kind].__name__}"
            )

    def _check_reachable(self, call: Call, path: str) -> None:
        entity = self._directory.get(path)
        fragment_count = self._profile.fragment_count if entity is None else len(entity.body.fragments)
        lost = self._faults.unreachable(call.now, path, fragment_count)
        if lost:
            raise ServiceBusInternalError(
                f"{call.operation} of {path} needs all fragments and cannot reach {', '.join(map(str, lost))}: "
                "nothing was changed, try again when they are back"
            )
