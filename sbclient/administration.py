"""A client that creates, reads, updates and deletes entities, with the names of `azure.servicebus.management`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import fields, replace
from datetime import timedelta
from random import SystemRandom
from types import TracebackType
from typing import Annotated, Any, Final, Protocol, Self, TypeAlias, TypeVar

from sbclient.arguments.checked import checked
from sbclient.arguments.kinds import Kind, wrong_type
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
    kind_of,
)
from sbclient.errors import InvalidOperationError
from sbclient.formats.iso8601 import read_duration
from sbclient.options import without_ignored
from sbclient.rules.connection_string import ConnectionString, parse_connection_string
from sbclient.rules.entity_path import check_entity_path
from sbclient.transport.base import OwnTransport, TransactionLink, Transport
from sbclient.transport.choice import open_transport

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
"""Three classes in azure-servicebus, one here. Counts that do not apply to a kind of entity are 0."""

T = TypeVar("T")
P = TypeVar("P", QueueProperties, TopicProperties, SubscriptionProperties, RuleProperties)


class RuleTransaction(Protocol):
    """The part of a transaction of a client that changes of rules need."""

    @property
    def transport(self) -> Transport:
        """The transport to the namespace of the transaction."""

    async def link(self) -> TransactionLink:
        """Return the transaction of the transport; begin it at the first call."""

    def counting(self, operation_count: int) -> AbstractContextManager[None]:
        """Count operations for the limits of the service, unless they fail."""


def _part_of_rule(kind: Any, wanted: str) -> Kind:
    takes = f"an {wanted}"

    def check(name: str, value: Any) -> Any:
        if not isinstance(value, kind):
            given = repr(value) if isinstance(value, str) else "..."
            raise wrong_type(name, value, takes, f": give {wanted}({given:.80}) of sbclient.management")
        return value

    return Kind(takes, check)


def _check_transaction(name: str, value: Any) -> RuleTransaction:
    if not all(hasattr(value, each) for each in ("transport", "link", "counting")):
        raise wrong_type(name, value, "a Transaction")
    transaction: RuleTransaction = value
    return transaction


_FILTER: Final = _part_of_rule(RuleFilter, "SqlRuleFilter")
_ACTION: Final = _part_of_rule(SqlRuleAction, "SqlRuleAction")

Filter: TypeAlias = Annotated[RuleFilter, _FILTER]
OfRules: TypeAlias = Annotated[RuleTransaction, Kind("a Transaction", _check_transaction)]
Action: TypeAlias = Annotated[SqlRuleAction, _ACTION]

TIMEOUT_S: Final = 60.0
"""Of an operation in a transaction."""


def _open(
    connection: ConnectionString | None,
    sdk_options: dict[str, Any],
    namespace: str | None = None,
    credential: Any = None,
) -> Transport:
    """Open a transport for administration only: azure-servicebus, or the broker in this process."""
    return open_transport(
        connection,
        fully_qualified_namespace=namespace,
        credential=credential,
        random=SystemRandom(),
        transport="sdk",
        **without_ignored(sdk_options, "sdk", stacklevel=4),
    )


@checked
class ServiceBusAdministrationClient:
    """Manages the entities of one namespace. Available as `client.administration`, or on its own.

    Every operation requires the Manage right and may raise `MessagingEntityNotFoundError`,
    `MessagingEntityAlreadyExistsError`, `ServiceBusQuotaExceededError`, `ServiceBusAuthorizationError`, or
    `InvalidOperationError` if a value is out of its range or cannot be changed after creation.

    Args:
        fully_qualified_namespace: `contoso.servicebus.windows.net`, with `credential`.
        credential: a credential of azure-identity or azure.core.
        transport: instead of both; `close` leaves it open.
        sdk_options: passed to azure-servicebus; docs/options.md lists them.

    Raises:
        InvalidOperationError: there is neither a namespace with a credential nor a transport.
    """

    def __init__(
        self,
        fully_qualified_namespace: str | None = None,
        credential: Any = None,
        *,
        transport: OwnTransport | None = None,
        **sdk_options: Any,
    ) -> None:
        self._is_owner = transport is None
        if transport is None:
            if fully_qualified_namespace is None or credential is None:
                raise InvalidOperationError(
                    "the administration client needs a namespace and a credential: give both, or use "
                    "from_connection_string"
                )
            transport = _open(None, sdk_options, fully_qualified_namespace, credential)
        self._transport = transport
        self._answered: Callable[[], None] = lambda: None

    @classmethod
    def from_connection_string(cls, conn_str: str, **sdk_options: Any) -> Self:
        """Create a client from a connection string of the service or of an emulator, or from `memory://name`.

        Raises:
            InvalidOperationError: the connection string is invalid; the text never repeats a key.
        """
        client = cls(transport=_open(parse_connection_string(conn_str), sdk_options))
        client._is_owner = True
        return client

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection, unless the client belongs to a `ServiceBusClient`. Safe to call twice."""
        if self._is_owner:
            await self._transport.close()

    async def get_namespace_properties(self) -> NamespaceProperties:
        """Return name and tier of the namespace."""
        return await self._ask(self._transport.administration.namespace())

    # -- queues --------------------------------------------------------------------------------------------------

    async def create_queue(
        self,
        queue_name: str,
        *,
        authorization_rules: list[AuthorizationRule] | None = None,
        auto_delete_on_idle: timedelta | str | None = None,
        dead_lettering_on_message_expiration: bool | None = None,
        default_message_time_to_live: timedelta | str | None = None,
        duplicate_detection_history_time_window: timedelta | str | None = None,
        enable_batched_operations: bool | None = None,
        enable_express: bool | None = None,
        enable_partitioning: bool | None = None,
        lock_duration: timedelta | str | None = None,
        max_delivery_count: int | None = None,
        max_size_in_megabytes: int | None = None,
        requires_duplicate_detection: bool | None = None,
        requires_session: bool | None = None,
        forward_to: str | None = None,
        user_metadata: str | None = None,
        forward_dead_lettered_messages_to: str | None = None,
        max_message_size_in_kilobytes: int | None = None,
    ) -> QueueProperties:
        """Create a queue and return its complete description. None selects the service's default.

        A duration may also be an ISO 8601 text, such as `PT1M`.

        Partitioning, sessions and duplicate detection cannot be changed later.
        """
        return await self._create(QueueProperties, (queue_name,), locals())

    async def get_queue(self, queue_name: str) -> QueueProperties:
        """Return the description of a queue."""
        return await self._get(QueueProperties, EntityKind.QUEUE, queue_name)

    async def get_queue_runtime_properties(self, queue_name: str) -> RuntimeProperties:
        """Return counts and times of a queue, summed over the reachable fragments."""
        return await self._runtime(EntityKind.QUEUE, queue_name)

    async def update_queue(self, queue: QueueProperties | Mapping[str, Any], **changes: Any) -> None:
        """Replace a queue's description. `changes` are attributes that override those of `queue`."""
        await self._update(EntityKind.QUEUE, (), QueueProperties, queue, changes)

    async def delete_queue(self, queue_name: str) -> None:
        """Delete a queue with all its messages."""
        await self._delete(EntityKind.QUEUE, queue_name)

    async def list_queues(self) -> AsyncIterator[QueueProperties]:
        """Iterate over the descriptions of all queues, page by page: `async for queue in …`."""
        async for queue in self._list(QueueProperties, EntityKind.QUEUE):
            yield queue

    async def list_queues_runtime_properties(self) -> AsyncIterator[RuntimeProperties]:
        """Iterate over counts and times of all queues, in the order of the service, by name."""
        async for queue in self._list_runtime(EntityKind.QUEUE):
            yield queue

    # -- topics --------------------------------------------------------------------------------------------------

    async def create_topic(
        self,
        topic_name: str,
        *,
        default_message_time_to_live: timedelta | str | None = None,
        max_size_in_megabytes: int | None = None,
        requires_duplicate_detection: bool | None = None,
        duplicate_detection_history_time_window: timedelta | str | None = None,
        enable_batched_operations: bool | None = None,
        size_in_bytes: int | None = None,
        filtering_messages_before_publishing: bool | None = None,
        authorization_rules: list[AuthorizationRule] | None = None,
        support_ordering: bool | None = None,
        auto_delete_on_idle: timedelta | str | None = None,
        enable_partitioning: bool | None = None,
        enable_express: bool | None = None,
        user_metadata: str | None = None,
        max_message_size_in_kilobytes: int | None = None,
    ) -> TopicProperties:
        """Create a topic and return its complete description. None selects the service's default."""
        return await self._create(TopicProperties, (topic_name,), locals())

    async def get_topic(self, topic_name: str) -> TopicProperties:
        """Return the description of a topic."""
        return await self._get(TopicProperties, EntityKind.TOPIC, topic_name)

    async def get_topic_runtime_properties(self, topic_name: str) -> RuntimeProperties:
        """Return the times of a topic and the counts of its scheduled messages and subscriptions."""
        return await self._runtime(EntityKind.TOPIC, topic_name)

    async def update_topic(self, topic: TopicProperties | Mapping[str, Any], **changes: Any) -> None:
        """Replace a topic's description."""
        await self._update(EntityKind.TOPIC, (), TopicProperties, topic, changes)

    async def delete_topic(self, topic_name: str) -> None:
        """Delete a topic with its subscriptions and all their messages."""
        await self._delete(EntityKind.TOPIC, topic_name)

    async def list_topics(self) -> AsyncIterator[TopicProperties]:
        """Iterate over the descriptions of all topics, in the order of the service, by name."""
        async for topic in self._list(TopicProperties, EntityKind.TOPIC):
            yield topic

    async def list_topics_runtime_properties(self) -> AsyncIterator[RuntimeProperties]:
        """Iterate over counts and times of all topics, in the order of the service, by name."""
        async for topic in self._list_runtime(EntityKind.TOPIC):
            yield topic

    # -- subscriptions -------------------------------------------------------------------------------------------

    async def create_subscription(
        self,
        topic_name: str,
        subscription_name: str,
        *,
        lock_duration: timedelta | str | None = None,
        requires_session: bool | None = None,
        default_message_time_to_live: timedelta | str | None = None,
        dead_lettering_on_message_expiration: bool | None = None,
        dead_lettering_on_filter_evaluation_exceptions: bool | None = None,
        max_delivery_count: int | None = None,
        enable_batched_operations: bool | None = None,
        forward_to: str | None = None,
        user_metadata: str | None = None,
        forward_dead_lettered_messages_to: str | None = None,
        auto_delete_on_idle: timedelta | str | None = None,
    ) -> SubscriptionProperties:
        """Create a subscription with the rule `$Default`, which matches every message."""
        return await self._create(SubscriptionProperties, (topic_name, subscription_name), locals())

    async def get_subscription(self, topic_name: str, subscription_name: str) -> SubscriptionProperties:
        """Return the description of a subscription."""
        return await self._get(SubscriptionProperties, EntityKind.SUBSCRIPTION, topic_name, subscription_name)

    async def get_subscription_runtime_properties(self, topic_name: str, subscription_name: str) -> RuntimeProperties:
        """Return counts and times of a subscription."""
        return await self._runtime(EntityKind.SUBSCRIPTION, topic_name, subscription_name)

    async def update_subscription(
        self, topic_name: str, subscription: SubscriptionProperties | Mapping[str, Any], **changes: Any
    ) -> None:
        """Replace a subscription's description."""
        await self._update(EntityKind.SUBSCRIPTION, (topic_name,), SubscriptionProperties, subscription, changes)

    async def delete_subscription(self, topic_name: str, subscription_name: str) -> None:
        """Delete a subscription with all its messages."""
        await self._delete(EntityKind.SUBSCRIPTION, topic_name, subscription_name)

    async def list_subscriptions(self, topic_name: str) -> AsyncIterator[SubscriptionProperties]:
        """Iterate over the descriptions of all subscriptions of a topic, in the order of the service, by name."""
        async for subscription in self._list(SubscriptionProperties, EntityKind.SUBSCRIPTION, topic_name):
            yield subscription

    async def list_subscriptions_runtime_properties(self, topic_name: str) -> AsyncIterator[RuntimeProperties]:
        """Iterate over counts and times of all subscriptions of a topic, in the order of the service, by name."""
        async for subscription in self._list_runtime(EntityKind.SUBSCRIPTION, topic_name):
            yield subscription

    # -- rules ---------------------------------------------------------------------------------------------------

    async def create_rule(
        self,
        topic_name: str,
        subscription_name: str,
        rule_name: str,
        *,
        filter: Filter | None = None,
        action: Action | None = None,
        transaction: OfRules | None = None,
    ) -> RuleProperties:
        """Create a rule. Without a filter it matches every message.

        Args:
            filter: a filter of this package, not a text; None = every message.
            action: changes the copies of matching messages; None = none.
            transaction: of the same client: the rule is created with its commit, and what is returned is its
                description as given. Not for partitioned topics, nor with `transport="sdk"`.
        """
        filter = TrueRuleFilter() if filter is None else filter
        if transaction is not None:
            rule = _with_values(RuleProperties(rule_name, filter, action))
            await self._in(transaction, (topic_name, subscription_name, rule_name), rule)
            return rule
        return await self._create(RuleProperties, (topic_name, subscription_name, rule_name), locals())

    async def get_rule(self, topic_name: str, subscription_name: str, rule_name: str) -> RuleProperties:
        """Return the description of a rule."""
        return await self._get(RuleProperties, EntityKind.RULE, topic_name, subscription_name, rule_name)

    async def update_rule(
        self, topic_name: str, subscription_name: str, rule: RuleProperties | Mapping[str, Any], **changes: Any
    ) -> None:
        """Replace a rule."""
        await self._update(EntityKind.RULE, (topic_name, subscription_name), RuleProperties, rule, changes)

    async def delete_rule(
        self,
        topic_name: str,
        subscription_name: str,
        rule_name: str,
        *,
        transaction: OfRules | None = None,
    ) -> None:
        """Delete a rule, with the commit of a transaction if there is one; see `create_rule`."""
        if transaction is not None:
            await self._in(transaction, (topic_name, subscription_name, rule_name), None)
            return
        await self._delete(EntityKind.RULE, topic_name, subscription_name, rule_name)

    async def list_rules(self, topic_name: str, subscription_name: str) -> AsyncIterator[RuleProperties]:
        """Iterate over the descriptions of all rules of a subscription, in the order of the service, by name."""
        async for rule in self._list(RuleProperties, EntityKind.RULE, topic_name, subscription_name):
            yield rule

    # -- inside --------------------------------------------------------------------------------------------------

    async def _create(self, described: type[P], names: tuple[str, ...], arguments: dict[str, Any]) -> P:
        """Create an entity; its settings are those arguments of the calling method that the description has."""
        settings = {each.name: arguments[each.name] for each in fields(described) if each.name in arguments}
        properties = _with_values(_with_rights(described(names[-1], **settings)))
        address = _address(kind_of(properties), names)
        check_entity_path(names[-1], address.kind)
        made = await self._ask(self._transport.administration.create(address, properties))
        return _of(described, made)

    async def _in(self, transaction: RuleTransaction, names: tuple[str, ...], rule: RuleProperties | None) -> None:
        """Create or, with None, delete a rule in a transaction."""
        address = _address(EntityKind.RULE, names)
        if transaction.transport is not self._transport:
            raise InvalidOperationError(
                f"the transaction for {address} belongs to another client: begin it with the client of this namespace"
            )
        link = await transaction.link()
        with transaction.counting(1):
            if rule is None:
                await link.delete_rule(address, timeout_s=TIMEOUT_S)
            else:
                await link.create_rule(address, rule, timeout_s=TIMEOUT_S)

    async def _get(self, described: type[P], kind: EntityKind, *names: str) -> P:
        return _of(described, await self._ask(self._transport.administration.get(_address(kind, names))))

    async def _update(
        self,
        kind: EntityKind,
        parents: tuple[str, ...],
        described: type[P],
        properties: P | Mapping[str, Any],
        changes: dict[str, Any],
    ) -> None:
        try:
            wanted = described(**properties) if isinstance(properties, Mapping) else properties
            wanted = replace(wanted, **changes)
        except TypeError as error:
            raise InvalidOperationError(f"{error}: {described.__name__} has no such attribute") from error
        address = _address(kind, (*parents, wanted.name))
        await self._ask(self._transport.administration.update(address, _with_values(_with_rights(wanted))))

    async def _delete(self, kind: EntityKind, *names: str) -> None:
        await self._ask(self._transport.administration.delete(_address(kind, names)))

    async def _runtime(self, kind: EntityKind, *names: str) -> RuntimeProperties:
        return await self._ask(self._transport.administration.runtime(_address(kind, names)))

    async def _list(self, described: type[P], kind: EntityKind, *parents: str) -> AsyncIterator[P]:
        async for properties in self._transport.administration.list(kind, parents):
            self._answered()
            yield _of(described, properties)

    async def _list_runtime(self, kind: EntityKind, *parents: str) -> AsyncIterator[RuntimeProperties]:
        async for runtime in self._transport.administration.list_runtime(kind, parents):
            self._answered()
            yield runtime

    async def _ask(self, request: Awaitable[T]) -> T:
        answer = await request
        self._answered()
        return answer


def _address(kind: EntityKind, names: tuple[str, ...]) -> EntityAddress:
    """Return the address of an entity.

    Raises:
        InvalidOperationError: a name is not a str.
    """
    for name in names:
        if not isinstance(name, str):
            raise InvalidOperationError(f"a {type(name).__name__} cannot name a {kind.value}: give its name, a str")
        if not all(segment.strip(".") for segment in name.replace("\\", "/").split("/")):
            # In the address of a request it would lead to another entity.
            raise InvalidOperationError(
                f"{name!r:.300} cannot name a {kind.value}: a segment is empty or has only dots"
            )
    return EntityAddress(kind, names)


def _with_rights(properties: P) -> P:
    """Return the description with rights that are given by their names, such as `"Send"`, as `AccessRights`.

    Raises:
        InvalidOperationError: there is no such right.
    """
    rules: list[AuthorizationRule] | None = getattr(properties, "authorization_rules", None)
    if not rules:
        return properties
    try:
        if any(isinstance(rule.rights, str) for rule in rules):
            raise TypeError("a str is not a list")
        rules = [replace(rule, rights=[AccessRights(right) for right in rule.rights]) for rule in rules]
    except (AttributeError, TypeError, ValueError) as error:
        raise InvalidOperationError(
            f"the authorization rules of {properties.name!r} are wrong, {error}: give a list of AuthorizationRule with "
            "a list of AccessRights each"
        ) from error
    return replace(properties, authorization_rules=rules)  # type: ignore[call-arg]  # rules and subscriptions have none


def _with_values(properties: P) -> P:
    """Return the description with ISO 8601 texts, such as `PT1M`, as timedeltas, and `"Active"` as `EntityStatus`.

    Raises:
        InvalidOperationError: there is no such status, the text is no duration, or a rule has no filter or action.
    """
    if isinstance(properties, RuleProperties):
        _FILTER.check("filter", properties.filter)
        if properties.action is not None:
            _ACTION.check("action", properties.action)
    given = {each.name: properties[each.name] for each in fields(properties) if "timedelta" in str(each.type)}
    read: dict[str, Any] = {name: read_duration(value) for name, value in given.items() if isinstance(value, str)}
    status = getattr(properties, "status", None)
    if isinstance(status, str):
        try:
            read["status"] = EntityStatus(status)
        except ValueError as error:
            raise InvalidOperationError(
                f"the status of {properties.name!r} is {status!r}: give one of {', '.join(EntityStatus)}"
            ) from error
    return replace(properties, **read)


def _of(described: type[P], properties: EntityProperties) -> P:
    if not isinstance(properties, described):
        raise TypeError(
            f"the transport returned a {type(properties).__name__} for a request for a {described.__name__}"
        )
    return properties
