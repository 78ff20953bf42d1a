"""Create, describe, update and delete the entities of a namespace.

Rules (source: partitioned entities and quotas, documented, unless said otherwise):

1. Create, update and delete act on all fragments or on none: they fail while a fragment is unreachable.
2. The counts of an entity are the sum over its reachable fragments. If some are unreachable, its availability is
   Limited.
3. A partitioned entity counts as one entity; the number of partitioned entities has a lower limit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from random import Random

from sbclient.broker.descriptions import (
    changed,
    check_api_version,
    check_values,
    completed,
    copy_of,
    policy_of,
    with_defaults,
    with_rule_times,
)
from sbclient.broker.directory import Entity, path_of
from sbclient.broker.entity import OnQueueReady, Queue
from sbclient.broker.entry import utc_datetime
from sbclient.broker.faults import Call
from sbclient.broker.policy import Policy, Usage
from sbclient.broker.profile import Profile
from sbclient.broker.request_gate import RequestGate, note_activity
from sbclient.broker.rulebook import Rulebook
from sbclient.broker.topic import Subscription, Topic
from sbclient.broker.transactions import Transaction
from sbclient.entities import (
    DEFAULT_RULE_NAME,
    NEVER,
    PROPERTIES_OF,
    Description,
    EntityAddress,
    EntityAvailabilityStatus,
    EntityKind,
    EntityProperties,
    NamespaceProperties,
    QueueProperties,
    RuleProperties,
    RuntimeProperties,
    SqlRuleFilter,
    SubscriptionProperties,
    TopicProperties,
)
from sbclient.errors import (
    InvalidOperationError,
    MessagingEntityAlreadyExistsError,
    MessagingEntityNotFoundError,
    ServiceBusQuotaExceededError,
)
from sbclient.rules.entity_path import canonical, check_entity_path, dead_letter_path, transfer_dead_letter_path


class Management:
    """The management side of one namespace.

    Args:
        name: of the namespace.
        profile: tier and year.
        gate: the checks of the namespace.
        random: of the namespace.
        on_ready: called when a message becomes ready.
        on_updated: called with the path of each updated queue, topic or subscription.
        front_end_count: of the namespace.
    """

    def __init__(
        self,
        name: str,
        profile: Profile,
        gate: RequestGate,
        random: Random,
        on_ready: OnQueueReady,
        on_updated: Callable[[str], None],
        front_end_count: int,
    ) -> None:
        self._name = name
        self._profile = profile
        self._gate = gate
        self._directory = gate.directory
        self._faults = gate.faults
        self._random = random
        self._on_ready = on_ready
        self._on_updated = on_updated
        self._front_end_count = front_end_count
        self._rulebook = Rulebook(profile, gate)
        self._created_at: float | None = None

    # ------------------------------------------------------------------ create

    def create(
        self,
        call: Call,
        address: EntityAddress,
        properties: EntityProperties,
        *,
        api_version: str | None = None,
        transaction: Transaction | None = None,
    ) -> EntityProperties:
        """Create an entity, and return its complete description.

        Args:
            api_version: of the HTTP request: "2021-05".
            transaction: for rules only: the rule is added when it is committed.

        Raises:
            InvalidOperationError: name or description is not allowed.
            MessagingEntityAlreadyExistsError: it exists.
            MessagingEntityNotFoundError: its parent, or its forwarding destination, does not exist.
            ServiceBusQuotaExceededError: there are too many.
        """
        path = path_of(address)
        self._gate.check_management(call, path)
        self._check_kind(address, properties)
        if isinstance(properties, RuleProperties):
            return self._rulebook.create(call, address, properties, transaction)
        self._gate.check_reachable(call, path)
        properties = replace(properties, name=check_entity_path(address.names[-1], address.kind))
        self._check_is_new(path)
        if isinstance(properties, SubscriptionProperties):
            return self._added(self._checked_subscription(call, address, properties), call.now)
        check_api_version(properties, api_version)
        description = with_rule_times(completed(properties, self._profile), None, utc_datetime(call.now))
        self._check_entity_counts(is_partitioned=bool(description.enable_partitioning))
        self._check_forwarding(description)
        return self._added(self._made(description, call.now), call.now)

    def subscribe(self, call: Call, topic: str, name: str, *, is_durable: bool, selector: str | None = None) -> str:
        """Create a client-scoped subscription of JMS unless it exists, and return its path.

        Args:
            name: may have characters that the names of other subscriptions may not have.
            is_durable: whether it remains while it has no receiver.
            selector: the condition for messages; None = all.
        """
        address = EntityAddress(EntityKind.SUBSCRIPTION, (topic, name))
        path = path_of(address)
        self._gate.check_management(call, path)
        if self._directory.get(path) is None:
            idle = None if is_durable else timedelta(minutes=5)  # if an earlier process has left it
            properties = SubscriptionProperties(name, auto_delete_on_idle=idle)
            self._added(self._checked_subscription(call, address, properties), call.now)
            if selector is not None:
                rule = RuleProperties(DEFAULT_RULE_NAME, filter=SqlRuleFilter(selector))
                self._rulebook.update(EntityAddress(EntityKind.RULE, (topic, name, rule.name)), rule)
        return path

    def _check_is_new(self, path: str) -> None:
        if self._directory.get(path) is not None:
            raise MessagingEntityAlreadyExistsError(
                f"SubCode=40900. The messaging entity '{path}' already exists: choose another name, or update that "
                "entity"
            )

    def put_back(self, topic: str | None, description: Description, now: float) -> Entity:
        """Create an entity of an earlier process, without rules and messages. Its idle time starts now.

        A setting that the earlier process did not know has its default. Call `direct_all` after the last one.

        Args:
            topic: the path of a subscription's topic.
        """
        description = with_defaults(description)
        if isinstance(description, SubscriptionProperties):
            assert topic is not None  # stored with each subscription
            above = self._directory.at(EntityAddress(EntityKind.TOPIC, (topic,)))
            entity = self._made_subscription(above, description, now)
        else:
            entity = self._made(with_rule_times(description, description, utc_datetime(now)), now)
        self._directory.add(entity)
        return entity

    def direct_all(self) -> None:
        """Start forwarding, and the idle times, of all entities."""
        for entity in self._directory.all():
            self._direct(entity)
            self._gate.watch_idle(entity)

    def _added(self, entity: Entity, now: float) -> EntityProperties:
        for name, body in [("", entity.body), *entity.sub_queues.items()]:
            self._gate.record(entity.path, name, body)
        if (changes := self._gate.changes) is not None:
            changes.define(canonical(entity.path))
            for key in [] if entity.subscription is None else entity.subscription.rules:
                changes.change_rule(canonical(entity.path), key)
        self._directory.add(entity)
        self._direct(entity)
        self._gate.watch_idle(entity)
        return self._described(entity, now)

    def _made(self, description: QueueProperties | TopicProperties, now: float) -> Entity:
        policy = policy_of(description, self._profile)
        usages = [Usage() for _ in range(self._profile.fragment_count if description.enable_partitioning else 1)]
        path = description.name
        if isinstance(description, TopicProperties):
            topic = Topic(path, policy, usages, self._faults, self._random)
            behind: dict[str, Queue] = {}
            make = self._sub_queue_maker(path, policy, usages, behind)
            return Entity(path, description, topic, behind, make, None, None, now, now, now)
        queue, behind, make = self._made_queue(path, policy, usages)
        return Entity(path, description, queue, behind, make, None, None, now, now, now)

    def _made_queue(
        self, path: str, policy: Policy, usages: list[Usage]
    ) -> tuple[Queue, dict[str, Queue], Callable[[str], Queue | None]]:
        """Create a queue and its dead-letter queue; the returned function creates the rarely used sub-queues."""
        dead_letters = self._new_queue(dead_letter_path(path), policy, usages, None)
        behind = {"deadletter": dead_letters}
        make = self._sub_queue_maker(path, policy, usages, behind)
        return self._new_queue(path, policy, usages, dead_letters), behind, make

    def _sub_queue_maker(
        self, path: str, policy: Policy, usages: list[Usage], behind: dict[str, Queue]
    ) -> Callable[[str], Queue | None]:
        """The function that creates the queues for transfers; it returns None for any other name.

        Args:
            behind: the sub-queues of the entity.
        """

        def make(name: str) -> Queue | None:
            if name == "transferdeadletter":
                behind[name] = self._new_queue(transfer_dead_letter_path(path), policy, usages, None)
                self._gate.record(path, name, behind[name])
            elif name == "transfer":
                if "transferdeadletter" not in behind:
                    make("transferdeadletter")
                refused = behind["transferdeadletter"]
                transfers = self._new_queue(path, Policy(max_size_bytes=policy.max_size_bytes), usages, refused)
                transfers.is_transfer = True
                behind[name] = transfers
                self._gate.record(path, name, transfers)
            return behind.get(name)

        return make

    def _new_queue(self, path: str, policy: Policy, usages: list[Usage], dead_letters: Queue | None) -> Queue:
        return Queue(
            path, policy, usages, self._faults, self._random, self._on_ready, dead_letters, self._front_end_count
        )

    def _checked_subscription(self, call: Call, address: EntityAddress, properties: SubscriptionProperties) -> Entity:
        topic = self._directory.at(EntityAddress(EntityKind.TOPIC, address.names[:1]))
        body = topic.topic_body
        if len(body.subscriptions) >= self._profile.max_subscriptions:
            raise ServiceBusQuotaExceededError(
                f"SubCode=40300. topic {topic.path} has {len(body.subscriptions)} subscriptions, "
                f"{self._profile.max_subscriptions} are allowed: delete some"
            )
        default_rule = self._rulebook.default_rule(topic, call.now)
        description = completed(properties, self._profile)
        self._check_forwarding(description)
        made = self._made_subscription(topic, description, call.now)
        assert made.subscription is not None  # it is one
        made.subscription.put(canonical(DEFAULT_RULE_NAME), default_rule)
        return made

    def _made_subscription(self, topic: Entity, description: SubscriptionProperties, now: float) -> Entity:
        """Create a subscription without rules."""
        body = topic.topic_body
        path = path_of(EntityAddress(EntityKind.SUBSCRIPTION, (topic.path, description.name)))
        usages = [fragment.usage for fragment in body.fragments]
        queue, sub_queues, make = self._made_queue(path, policy_of(description, self._profile, body.policy), usages)
        subscription = Subscription(
            queue, dead_letters_filter_errors=bool(description.dead_lettering_on_filter_evaluation_exceptions)
        )
        return Entity(path, description, queue, sub_queues, make, topic, subscription, now, now, now, accessed_at=now)

    # ------------------------------------------------------------------ describe

    def get(self, call: Call, address: EntityAddress) -> EntityProperties:
        """Describe an entity.

        Raises:
            MessagingEntityNotFoundError: it does not exist.
        """
        self._gate.check_management(call, path_of(address))
        if address.kind is EntityKind.RULE:
            return self._rulebook.at(address).described()
        return self._described(self._directory.at(address), call.now)

    def listed(
        self,
        call: Call,
        kind: EntityKind,
        parents: tuple[str, ...] = (),
        *,
        skip: int = 0,
        most: int | None = None,
    ) -> list[EntityProperties]:
        """The entities of a kind by name, below `parents` for subscriptions and rules.

        Args:
            skip: how many to leave out at the beginning.
            most: return at most so many; None = all.
        """
        self._gate.check_management(call, None)
        page = slice(skip, None if most is None else skip + most)
        if kind is EntityKind.RULE:
            rules = self._rulebook.subscription_at(EntityAddress(kind, parents)).rules
            names = sorted(rules)[page]  # as they are compared
            return [rules[name].described() for name in names]
        topic = self._directory.at(EntityAddress(EntityKind.TOPIC, parents)) if parents else None
        return [self._described(entity, call.now) for entity in self._directory.in_order(kind, topic)[page]]

    def runtime(self, call: Call, address: EntityAddress) -> RuntimeProperties:
        """The counts and times of an entity, over its reachable fragments."""
        self._gate.check_management(call, path_of(address))
        entity = self._directory.at(address)
        lost = self._faults.unreachable(call.now, entity.path, len(entity.body.fragments))
        reached = [index for index in range(len(entity.body.fragments)) if index not in lost]
        if entity.topic is not None:
            entity.topic.advance(call.now)
        for index in reached:
            for queue in entity.queues():
                queue.fragments[index].advance(call.now)
        self._gate.advance(call.now)  # forwards messages that have just become due
        counts = {
            name: sum(len(queue.fragments[index]) for index in reached) for name, queue in entity.sub_queues.items()
        }
        stored = sum(len(entity.body.fragments[index]) for index in reached)
        scheduled = sum(entity.body.fragments[index].scheduled_count for index in reached)
        subscriptions = entity.body.subscriptions.values() if isinstance(entity.body, Topic) else ()
        rules = [rule for subscription in subscriptions for rule in subscription.rules.values()]
        correlation_count = sum(rule.is_correlation for rule in rules)
        return RuntimeProperties(
            name=entity.description.name,
            accessed_at_utc=utc_datetime(entity.accessed_at) if entity.accessed_at else NEVER,
            created_at_utc=utc_datetime(entity.created_at),
            updated_at_utc=utc_datetime(entity.updated_at),
            size_in_bytes=_size_bytes(entity, reached),
            total_message_count=stored + sum(counts.values()),
            active_message_count=stored - scheduled,
            dead_letter_message_count=counts.get("deadletter", 0),
            scheduled_message_count=scheduled,
            transfer_message_count=counts.get("transfer", 0),
            transfer_dead_letter_message_count=counts.get("transferdeadletter", 0),
            subscription_count=len(subscriptions),
            sql_filter_count=len(rules) - correlation_count,
            correlation_filter_count=correlation_count,
        )

    def namespace(self, call: Call) -> NamespaceProperties:
        """Describe the namespace; its creation time is that of the first call."""
        self._gate.check_management(call, None)
        if self._created_at is None:
            self._created_at = call.now
        created = utc_datetime(self._created_at)
        return NamespaceProperties(
            name=self._name,
            messaging_sku=self._profile.sku,
            messaging_units=self._profile.messaging_units,
            created_at_utc=created,
            modified_at_utc=created,
        )

    def _described(self, entity: Entity, now: float) -> Description:
        lost = self._faults.unreachable(now, entity.path, len(entity.body.fragments))
        availability = EntityAvailabilityStatus.LIMITED if lost else EntityAvailabilityStatus.AVAILABLE
        return copy_of(entity.description, availability)

    # ------------------------------------------------------------------ update and delete

    def update(self, call: Call, address: EntityAddress, properties: EntityProperties) -> EntityProperties:
        """Replace a description, for all fragments at once.

        Raises:
            InvalidOperationError: a value is not allowed, or cannot be changed.
            MessagingEntityNotFoundError: it does not exist.
        """
        self._gate.check_management(call, path_of(address))
        self._check_kind(address, properties)
        self._gate.check_reachable(call, path_of(address))
        if isinstance(properties, RuleProperties):
            return self._rulebook.update(address, properties)
        check_values(properties)
        entity = self._directory.at(address)
        named = replace(properties, name=entity.description.name)
        description = changed(entity.description, named, self._profile)
        description = with_rule_times(description, entity.description, utc_datetime(call.now))
        self._check_forwarding(description)
        if self._gate.changes is not None:
            self._gate.changes.define(canonical(entity.path))
        self._apply(entity, description)
        entity.updated_at = call.now
        note_activity(entity, call.now)
        self._direct(entity)
        self._gate.watch_idle(entity)
        self._on_updated(entity.path)
        return self._described(entity, call.now)

    def _apply(self, entity: Entity, description: Description) -> None:
        topic = None if entity.topic is None else entity.topic.body.policy
        policy = policy_of(description, self._profile, topic)
        for name in Policy.__slots__:
            setattr(entity.body.policy, name, getattr(policy, name))
        entity.description = description
        if "transfer" in entity.sub_queues:  # the others behind it share its policy
            entity.sub_queues["transfer"].policy.max_size_bytes = policy.max_size_bytes
        for subscription in self._directory.subscriptions_of(entity):  # whose sizes are the topic's
            self._apply(subscription, subscription.description)
        if isinstance(description, SubscriptionProperties) and entity.subscription is not None:
            entity.subscription.dead_letters_filter_errors = bool(
                description.dead_lettering_on_filter_evaluation_exceptions
            )

    def _direct(self, entity: Entity) -> None:
        """Set the forwarding of an entity from its description."""
        description = entity.description
        if isinstance(description, TopicProperties) or not isinstance(entity.body, Queue):
            return
        forwarding, dead_letters = self._gate.forwarding, entity.sub_queues["deadletter"]
        if description.forward_to != entity.body.forward_to:
            forwarding.direct(entity.body, description.forward_to)
        if description.forward_dead_lettered_messages_to != dead_letters.forward_to:
            forwarding.direct(dead_letters, description.forward_dead_lettered_messages_to)

    def delete(self, call: Call, address: EntityAddress, *, transaction: Transaction | None = None) -> None:
        """Delete an entity with its messages, subscriptions and rules.

        Args:
            transaction: for rules only: the rule is removed when it is committed.

        Raises:
            MessagingEntityNotFoundError: it does not exist.
        """
        self._gate.check_management(call, path_of(address))
        self._gate.check_reachable(call, path_of(address))
        if address.kind is EntityKind.RULE:
            self._rulebook.delete(call, address, transaction)
        else:
            self._directory.remove(self._directory.at(address))

    # ------------------------------------------------------------------ checks

    def _check_kind(self, address: EntityAddress, properties: EntityProperties) -> None:
        described = PROPERTIES_OF[address.kind]
        if not isinstance(properties, described):
            raise InvalidOperationError(
                f"{address} cannot be described by {type(properties).__name__}: give {described.__name__}"
            )

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

    def _check_forwarding(self, description: Description) -> None:
        if isinstance(description, TopicProperties):
            return
        is_queue = isinstance(description, QueueProperties)
        if is_queue and canonical(description.forward_to or "") == canonical(description.name):
            raise InvalidOperationError(
                f"SubCode=40000. {description.name} cannot forward to itself: name another queue or topic"
            )
        for path in (description.forward_to, description.forward_dead_lettered_messages_to):
            destination = None if path is None else self._directory.get(path)
            if path is not None and (destination is None or destination.topic is not None):
                raise MessagingEntityNotFoundError(
                    f"SubCode=40400. {description.name} cannot forward to {path!r}, which is not a queue or topic: "
                    "create it"
                )


def _size_bytes(entity: Entity, reached: list[int]) -> int:
    """The bytes of an entity; a topic's are those of all its subscriptions, a subscription's are its own."""
    if entity.topic is None:
        return sum(entity.body.fragments[index].usage.size_bytes for index in reached)
    return sum(queue.fragments[index].size_bytes for queue in entity.queues() for index in reached)
