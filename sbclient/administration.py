"""Creates, describes, changes and deletes a namespace's entities, with the names of `azure.servicebus.management`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from datetime import timedelta
from types import TracebackType
from typing import Any, Self, TypeVar

from sbclient.entities import (
    AccessRights,
    AuthorizationRule,
    CorrelationRuleFilter,
    EntityAddress,
    EntityAvailabilityStatus,
    EntityKind,
    EntityProperties,
    EntityStatus,
    FalseRuleFilter,
    MessagingSku,
    NamespaceProperties,
    NamespaceType,
    QueueProperties,
    RuleFilter,
    RuleProperties,
    RuntimeProperties,
    SqlRuleAction,
    SqlRuleFilter,
    SubscriptionProperties,
    TopicProperties,
    TrueRuleFilter,
)
from sbclient.errors import InvalidOperationError
from sbclient.transport.base import Transport

__all__ = [
    "AccessRights",
    "AuthorizationRule",
    "CorrelationRuleFilter",
    "EntityAvailabilityStatus",
    "EntityStatus",
    "FalseRuleFilter",
    "MessagingSku",
    "NamespaceProperties",
    "NamespaceType",
    "QueueProperties",
    "QueueRuntimeProperties",
    "RuleProperties",
    "RuntimeProperties",
    "ServiceBusAdministrationClient",
    "SqlRuleAction",
    "SqlRuleFilter",
    "SubscriptionProperties",
    "SubscriptionRuntimeProperties",
    "TopicProperties",
    "TopicRuntimeProperties",
    "TrueRuleFilter",
]

QueueRuntimeProperties = TopicRuntimeProperties = SubscriptionRuntimeProperties = RuntimeProperties
"""Three classes in azure-servicebus, one here; what an entity of a kind does not have is 0."""

P = TypeVar("P", QueueProperties, TopicProperties, SubscriptionProperties, RuleProperties)


class ServiceBusAdministrationClient:
    """The management side of one namespace; as `client.administration`, or by itself.

    Every operation needs the Manage right. Errors, the same for all: `MessagingEntityNotFoundError`,
    `MessagingEntityAlreadyExistsError`, `ServiceBusQuotaExceededError`, `ServiceBusAuthorizationError`, and
    `InvalidOperationError` where a value is out of its range or cannot be changed any more.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Nothing to do: the connection belongs to whoever opened the transport."""

    async def get_namespace_properties(self) -> NamespaceProperties:
        """Name and tier of the namespace."""
        return await self._transport.administration.namespace()

    # -- queues --------------------------------------------------------------------------------------------------

    async def create_queue(
        self,
        queue_name: str,
        *,
        authorization_rules: list[AuthorizationRule] | None = None,
        auto_delete_on_idle: timedelta | None = None,
        dead_lettering_on_message_expiration: bool | None = None,
        default_message_time_to_live: timedelta | None = None,
        duplicate_detection_history_time_window: timedelta | None = None,
        enable_batched_operations: bool | None = None,
        enable_express: bool | None = None,
        enable_partitioning: bool | None = None,
        lock_duration: timedelta | None = None,
        max_delivery_count: int | None = None,
        max_size_in_megabytes: int | None = None,
        requires_duplicate_detection: bool | None = None,
        requires_session: bool | None = None,
        forward_to: str | None = None,
        user_metadata: str | None = None,
        forward_dead_lettered_messages_to: str | None = None,
        max_message_size_in_kilobytes: int | None = None,
    ) -> QueueProperties:
        """Make a queue; what is left out takes the service's default. Partitioning, sessions and duplicate detection
        can only be chosen here. Returns the complete description."""
        properties = QueueProperties(
            queue_name,
            authorization_rules=authorization_rules,
            auto_delete_on_idle=auto_delete_on_idle,
            dead_lettering_on_message_expiration=dead_lettering_on_message_expiration,
            default_message_time_to_live=default_message_time_to_live,
            duplicate_detection_history_time_window=duplicate_detection_history_time_window,
            enable_batched_operations=enable_batched_operations,
            enable_express=enable_express,
            enable_partitioning=enable_partitioning,
            lock_duration=lock_duration,
            max_delivery_count=max_delivery_count,
            max_size_in_megabytes=max_size_in_megabytes,
            requires_duplicate_detection=requires_duplicate_detection,
            requires_session=requires_session,
            forward_to=forward_to,
            user_metadata=user_metadata,
            forward_dead_lettered_messages_to=forward_dead_lettered_messages_to,
            max_message_size_in_kilobytes=max_message_size_in_kilobytes,
        )
        return await self._create(EntityKind.QUEUE, (queue_name,), properties)

    async def get_queue(self, queue_name: str) -> QueueProperties:
        """Describe a queue."""
        return await self._get(QueueProperties, EntityKind.QUEUE, queue_name)

    async def get_queue_runtime_properties(self, queue_name: str) -> RuntimeProperties:
        """Counts and times of a queue, summed over the fragments that can be reached."""
        return await self._runtime(EntityKind.QUEUE, queue_name)

    async def update_queue(self, queue: QueueProperties | Mapping[str, Any], **changes: Any) -> None:
        """Replace a queue's description: one that was got, changed, and perhaps with `changes` by name on top."""
        await self._update(EntityKind.QUEUE, (), QueueProperties, queue, changes)

    async def delete_queue(self, queue_name: str) -> None:
        """Remove a queue with all its messages."""
        await self._delete(EntityKind.QUEUE, queue_name)

    async def list_queues(self) -> AsyncIterator[QueueProperties]:
        """Describe every queue, by name: `async for queue in …`."""
        async for queue in self._list(QueueProperties, EntityKind.QUEUE):
            yield queue

    async def list_queues_runtime_properties(self) -> AsyncIterator[RuntimeProperties]:
        """Counts and times of every queue, by name."""
        async for queue in self._list(QueueProperties, EntityKind.QUEUE):
            yield await self._runtime(EntityKind.QUEUE, queue.name)

    # -- topics --------------------------------------------------------------------------------------------------

    async def create_topic(
        self,
        topic_name: str,
        *,
        default_message_time_to_live: timedelta | None = None,
        max_size_in_megabytes: int | None = None,
        requires_duplicate_detection: bool | None = None,
        duplicate_detection_history_time_window: timedelta | None = None,
        enable_batched_operations: bool | None = None,
        size_in_bytes: int | None = None,
        filtering_messages_before_publishing: bool | None = None,
        authorization_rules: list[AuthorizationRule] | None = None,
        support_ordering: bool | None = None,
        auto_delete_on_idle: timedelta | None = None,
        enable_partitioning: bool | None = None,
        enable_express: bool | None = None,
        user_metadata: str | None = None,
        max_message_size_in_kilobytes: int | None = None,
    ) -> TopicProperties:
        """Make a topic; what is left out takes the service's default. Returns the complete description."""
        properties = TopicProperties(
            topic_name,
            authorization_rules=authorization_rules,
            auto_delete_on_idle=auto_delete_on_idle,
            default_message_time_to_live=default_message_time_to_live,
            duplicate_detection_history_time_window=duplicate_detection_history_time_window,
            enable_batched_operations=enable_batched_operations,
            enable_express=enable_express,
            enable_partitioning=enable_partitioning,
            filtering_messages_before_publishing=filtering_messages_before_publishing,
            max_size_in_megabytes=max_size_in_megabytes,
            requires_duplicate_detection=requires_duplicate_detection,
            size_in_bytes=size_in_bytes,
            support_ordering=support_ordering,
            user_metadata=user_metadata,
            max_message_size_in_kilobytes=max_message_size_in_kilobytes,
        )
        return await self._create(EntityKind.TOPIC, (topic_name,), properties)

    async def get_topic(self, topic_name: str) -> TopicProperties:
        """Describe a topic."""
        return await self._get(TopicProperties, EntityKind.TOPIC, topic_name)

    async def get_topic_runtime_properties(self, topic_name: str) -> RuntimeProperties:
        """Times of a topic, and how many messages are scheduled and subscriptions there are."""
        return await self._runtime(EntityKind.TOPIC, topic_name)

    async def update_topic(self, topic: TopicProperties | Mapping[str, Any], **changes: Any) -> None:
        """Replace a topic's description."""
        await self._update(EntityKind.TOPIC, (), TopicProperties, topic, changes)

    async def delete_topic(self, topic_name: str) -> None:
        """Remove a topic with its subscriptions and all their messages."""
        await self._delete(EntityKind.TOPIC, topic_name)

    async def list_topics(self) -> AsyncIterator[TopicProperties]:
        """Describe every topic, by name."""
        async for topic in self._list(TopicProperties, EntityKind.TOPIC):
            yield topic

    async def list_topics_runtime_properties(self) -> AsyncIterator[RuntimeProperties]:
        """Counts and times of every topic, by name."""
        async for topic in self._list(TopicProperties, EntityKind.TOPIC):
            yield await self._runtime(EntityKind.TOPIC, topic.name)

    # -- subscriptions -------------------------------------------------------------------------------------------

    async def create_subscription(
        self,
        topic_name: str,
        subscription_name: str,
        *,
        lock_duration: timedelta | None = None,
        requires_session: bool | None = None,
        default_message_time_to_live: timedelta | None = None,
        dead_lettering_on_message_expiration: bool | None = None,
        dead_lettering_on_filter_evaluation_exceptions: bool | None = None,
        max_delivery_count: int | None = None,
        enable_batched_operations: bool | None = None,
        forward_to: str | None = None,
        user_metadata: str | None = None,
        forward_dead_lettered_messages_to: str | None = None,
        auto_delete_on_idle: timedelta | None = None,
    ) -> SubscriptionProperties:
        """Make a subscription, with the one rule `$Default` that takes every message."""
        properties = SubscriptionProperties(
            subscription_name,
            auto_delete_on_idle=auto_delete_on_idle,
            dead_lettering_on_filter_evaluation_exceptions=dead_lettering_on_filter_evaluation_exceptions,
            dead_lettering_on_message_expiration=dead_lettering_on_message_expiration,
            default_message_time_to_live=default_message_time_to_live,
            enable_batched_operations=enable_batched_operations,
            forward_dead_lettered_messages_to=forward_dead_lettered_messages_to,
            forward_to=forward_to,
            lock_duration=lock_duration,
            max_delivery_count=max_delivery_count,
            requires_session=requires_session,
            user_metadata=user_metadata,
        )
        return await self._create(EntityKind.SUBSCRIPTION, (topic_name, subscription_name), properties)

    async def get_subscription(self, topic_name: str, subscription_name: str) -> SubscriptionProperties:
        """Describe a subscription."""
        return await self._get(SubscriptionProperties, EntityKind.SUBSCRIPTION, topic_name, subscription_name)

    async def get_subscription_runtime_properties(self, topic_name: str, subscription_name: str) -> RuntimeProperties:
        """Counts and times of a subscription."""
        return await self._runtime(EntityKind.SUBSCRIPTION, topic_name, subscription_name)

    async def update_subscription(
        self, topic_name: str, subscription: SubscriptionProperties | Mapping[str, Any], **changes: Any
    ) -> None:
        """Replace a subscription's description."""
        await self._update(EntityKind.SUBSCRIPTION, (topic_name,), SubscriptionProperties, subscription, changes)

    async def delete_subscription(self, topic_name: str, subscription_name: str) -> None:
        """Remove a subscription with all its messages."""
        await self._delete(EntityKind.SUBSCRIPTION, topic_name, subscription_name)

    async def list_subscriptions(self, topic_name: str) -> AsyncIterator[SubscriptionProperties]:
        """Describe every subscription of a topic, by name."""
        async for subscription in self._list(SubscriptionProperties, EntityKind.SUBSCRIPTION, topic_name):
            yield subscription

    async def list_subscriptions_runtime_properties(self, topic_name: str) -> AsyncIterator[RuntimeProperties]:
        """Counts and times of every subscription of a topic, by name."""
        async for subscription in self._list(SubscriptionProperties, EntityKind.SUBSCRIPTION, topic_name):
            yield await self._runtime(EntityKind.SUBSCRIPTION, topic_name, subscription.name)

    # -- rules ---------------------------------------------------------------------------------------------------

    async def create_rule(
        self,
        topic_name: str,
        subscription_name: str,
        rule_name: str,
        *,
        filter: RuleFilter | None = None,
        action: SqlRuleAction | None = None,
    ) -> RuleProperties:
        """Make a rule; without a filter it takes every message."""
        properties = RuleProperties(rule_name, filter or TrueRuleFilter(), action)
        return await self._create(EntityKind.RULE, (topic_name, subscription_name, rule_name), properties)

    async def get_rule(self, topic_name: str, subscription_name: str, rule_name: str) -> RuleProperties:
        """Describe a rule."""
        return await self._get(RuleProperties, EntityKind.RULE, topic_name, subscription_name, rule_name)

    async def update_rule(
        self, topic_name: str, subscription_name: str, rule: RuleProperties | Mapping[str, Any], **changes: Any
    ) -> None:
        """Replace a rule."""
        await self._update(EntityKind.RULE, (topic_name, subscription_name), RuleProperties, rule, changes)

    async def delete_rule(self, topic_name: str, subscription_name: str, rule_name: str) -> None:
        """Remove a rule."""
        await self._delete(EntityKind.RULE, topic_name, subscription_name, rule_name)

    async def list_rules(self, topic_name: str, subscription_name: str) -> AsyncIterator[RuleProperties]:
        """Describe every rule of a subscription, by name."""
        async for rule in self._list(RuleProperties, EntityKind.RULE, topic_name, subscription_name):
            yield rule

    # -- inside --------------------------------------------------------------------------------------------------

    async def _create(self, kind: EntityKind, names: tuple[str, ...], properties: P) -> P:
        made = await self._transport.administration.create(EntityAddress(kind, names), properties)
        return _of(type(properties), made)

    async def _get(self, kind_of: type[P], kind: EntityKind, *names: str) -> P:
        return _of(kind_of, await self._transport.administration.get(EntityAddress(kind, names)))

    async def _update(
        self,
        kind: EntityKind,
        parents: tuple[str, ...],
        kind_of: type[P],
        properties: P | Mapping[str, Any],
        changes: dict[str, Any],
    ) -> None:
        try:
            wanted = kind_of(**properties) if isinstance(properties, Mapping) else properties
            wanted = replace(wanted, **changes)
        except TypeError as error:
            raise InvalidOperationError(f"{error}: {kind_of.__name__} has no such attribute") from error
        await self._transport.administration.update(EntityAddress(kind, (*parents, wanted.name)), wanted)

    async def _delete(self, kind: EntityKind, *names: str) -> None:
        await self._transport.administration.delete(EntityAddress(kind, names))

    async def _runtime(self, kind: EntityKind, *names: str) -> RuntimeProperties:
        return await self._transport.administration.runtime(EntityAddress(kind, names))

    async def _list(self, kind_of: type[P], kind: EntityKind, *parents: str) -> AsyncIterator[P]:
        for properties in await self._transport.administration.list(kind, parents):
            yield _of(kind_of, properties)


def _of(kind_of: type[P], properties: EntityProperties) -> P:
    if not isinstance(properties, kind_of):
        raise TypeError(
            f"the transport described a {type(properties).__name__} where a {kind_of.__name__} was asked for"
        )
    return properties
