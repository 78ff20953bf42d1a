"""Descriptions of queues, topics, subscriptions and rules, with the names of `azure.servicebus.management`.

A description is a plain value. When an entity is created, `None` selects the service's default; the returned
description has the actual value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import cache
from types import MappingProxyType, NoneType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, cast, get_args, get_origin, get_type_hints

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

UNLIMITED: Final = timedelta.max
"""No limit, for times to live and idle times. The service writes it as `P10675199DT2H48M5.4775807S`."""

LEAST_UNLIMITED: Final = timedelta(days=10_675_199)
"""A duration of at least this means no limit. SDKs that cannot write the longest one shorten it."""

NEVER: Final = datetime(1, 1, 1, tzinfo=UTC)
"""The service's value of `accessed_at_utc` for an entity that was never accessed."""


class EntityStatus(StrEnum):
    """Whether an entity accepts and delivers messages."""

    ACTIVE = "Active"
    CREATING = "Creating"
    DELETING = "Deleting"
    DISABLED = "Disabled"
    RECEIVE_DISABLED = "ReceiveDisabled"
    RENAMING = "Renaming"
    RESTORING = "Restoring"
    SEND_DISABLED = "SendDisabled"
    UNKNOWN = "Unknown"


class EntityAvailabilityStatus(StrEnum):
    """Whether all fragments of an entity can be reached; `LIMITED` when some cannot."""

    AVAILABLE = "Available"
    LIMITED = "Limited"
    RENAMING = "Renaming"
    RESTORING = "Restoring"
    UNKNOWN = "Unknown"


class MessagingSku(StrEnum):
    """The tier of a namespace."""

    BASIC = "Basic"
    STANDARD = "Standard"
    PREMIUM = "Premium"


class NamespaceType(StrEnum):
    """The purpose of a namespace; `MESSAGING` for Service Bus."""

    MESSAGING = "Messaging"
    NOTIFICATION_HUB = "NotificationHub"
    MIXED = "Mixed"
    EVENT_HUB = "EventHub"
    RELAY = "Relay"


class AccessRights(StrEnum):
    """The rights of an authorization rule; Manage includes the other two."""

    MANAGE = "Manage"
    SEND = "Send"
    LISTEN = "Listen"


def _fields_of(attributes: Attributes) -> Mapping[str, Any]:
    """Return the fields of a dataclass by name."""
    return cast("DataclassInstance", attributes).__dataclass_fields__


class Attributes(Mapping[str, Any]):
    """Gives access to the attributes of a dataclass by key, as azure-servicebus does: `queue["name"]`."""

    __slots__ = ()

    def __getitem__(self, key: str) -> Any:
        if key not in _fields_of(self):
            raise KeyError(key)
        return getattr(self, key)

    def __setitem__(self, key: str, value: Any) -> None:
        if key not in _fields_of(self):
            raise KeyError(key)
        setattr(self, key, value)

    def __len__(self) -> int:
        return len(_fields_of(self))

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of the attributes."""
        return iter(_fields_of(self))

    def update(self, *args: Any, **changes: Any) -> None:
        """Set attributes, with the arguments of `dict.update`."""
        for key, value in dict(*args, **changes).items():
            self[key] = value


@dataclass(slots=True, kw_only=True)
class AuthorizationRule(Attributes):
    """A named pair of keys and their rights. Manage includes the other two rights.

    Attributes:
        type, claim_type, claim_value: as azure-servicebus has them; the service knows only the defaults.
    """

    key_name: str
    rights: list[AccessRights]
    primary_key: str | None = field(default=None, repr=False)
    secondary_key: str | None = field(default=None, repr=False)
    created_at_utc: datetime | None = None
    modified_at_utc: datetime | None = None
    type: str = "SharedAccessAuthorizationRule"
    claim_type: str = "SharedAccessKey"
    claim_value: str = "None"


@dataclass(slots=True)
class QueueProperties(Attributes):
    """A queue. Sizes are in MB or KB as named; see `create_queue` of the administration client."""

    name: str
    authorization_rules: list[AuthorizationRule] | None = None
    auto_delete_on_idle: timedelta | None = None
    dead_lettering_on_message_expiration: bool | None = None
    default_message_time_to_live: timedelta | None = None
    duplicate_detection_history_time_window: timedelta | None = None
    enable_batched_operations: bool | None = None
    enable_express: bool | None = None
    enable_partitioning: bool | None = None
    lock_duration: timedelta | None = None
    max_delivery_count: int | None = None
    max_size_in_megabytes: int | None = None
    requires_duplicate_detection: bool | None = None
    requires_session: bool | None = None
    status: EntityStatus | None = None
    forward_to: str | None = None
    user_metadata: str | None = None
    forward_dead_lettered_messages_to: str | None = None
    max_message_size_in_kilobytes: int | None = None
    availability_status: EntityAvailabilityStatus | None = None


@dataclass(slots=True)
class TopicProperties(Attributes):
    """A topic; see `create_topic` of the administration client."""

    name: str
    authorization_rules: list[AuthorizationRule] | None = None
    auto_delete_on_idle: timedelta | None = None
    default_message_time_to_live: timedelta | None = None
    duplicate_detection_history_time_window: timedelta | None = None
    enable_batched_operations: bool | None = None
    enable_express: bool | None = None
    enable_partitioning: bool | None = None
    filtering_messages_before_publishing: bool | None = None
    max_size_in_megabytes: int | None = None
    requires_duplicate_detection: bool | None = None
    size_in_bytes: int | None = None
    status: EntityStatus | None = None
    support_ordering: bool | None = None
    user_metadata: str | None = None
    max_message_size_in_kilobytes: int | None = None
    availability_status: EntityAvailabilityStatus | None = None


@dataclass(slots=True)
class SubscriptionProperties(Attributes):
    """A subscription of a topic; see `create_subscription` of the administration client."""

    name: str
    auto_delete_on_idle: timedelta | None = None
    dead_lettering_on_filter_evaluation_exceptions: bool | None = None
    dead_lettering_on_message_expiration: bool | None = None
    default_message_time_to_live: timedelta | None = None
    enable_batched_operations: bool | None = None
    forward_dead_lettered_messages_to: str | None = None
    forward_to: str | None = None
    lock_duration: timedelta | None = None
    max_delivery_count: int | None = None
    requires_session: bool | None = None
    status: EntityStatus | None = None
    user_metadata: str | None = None
    availability_status: EntityAvailabilityStatus | None = None


@dataclass(slots=True)
class SqlRuleFilter:
    """Matches messages for which the expression is true. `parameters` are the values of its `@names`.

    `requires_preprocessing` is stored and returned without effect.
    """

    sql_expression: str
    parameters: dict[str, Any] | None = None
    requires_preprocessing: bool | None = None


@dataclass(slots=True)
class TrueRuleFilter:
    """Matches every message."""


@dataclass(slots=True)
class FalseRuleFilter:
    """Matches no message."""


@dataclass(slots=True, kw_only=True)
class CorrelationRuleFilter:
    """Matches messages whose properties equal all that are set here. Strings are compared case-sensitively."""

    correlation_id: str | None = None
    message_id: str | None = None
    to: str | None = None
    reply_to: str | None = None
    label: str | None = None
    session_id: str | None = None
    reply_to_session_id: str | None = None
    content_type: str | None = None
    properties: dict[str, Any] | None = None


CORRELATION_FIELDS: Final = tuple(each.name for each in fields(CorrelationRuleFilter) if each.name != "properties")
"""The attributes of a message that a correlation filter compares, in the order in which AMQP lists them."""

RuleFilter: TypeAlias = SqlRuleFilter | TrueRuleFilter | FalseRuleFilter | CorrelationRuleFilter


@dataclass(slots=True)
class SqlRuleAction:
    """`SET` and `REMOVE` statements that change the copy of a message made by a rule; see `SqlRuleFilter`."""

    sql_expression: str
    parameters: dict[str, Any] | None = None
    requires_preprocessing: bool | None = None


@dataclass(slots=True)
class RuleProperties(Attributes):
    """A rule of a subscription: a filter, and an action that changes matching messages."""

    name: str
    filter: RuleFilter = field(default_factory=TrueRuleFilter)
    action: SqlRuleAction | None = None
    created_at_utc: datetime | None = None


Description: TypeAlias = QueueProperties | TopicProperties | SubscriptionProperties
EntityProperties: TypeAlias = Description | RuleProperties

DEFAULT_RULE_NAME: Final = "$Default"
"""The rule of a new subscription, which matches every message."""


@dataclass(slots=True, kw_only=True)
class RuntimeProperties(Attributes):
    """Counts and times of an entity, summed over the reachable fragments.

    A topic has only scheduled messages of its own; its other message counts are 0. Only topics count subscriptions and
    their filters. A true or false filter counts as a SQL filter.
    """

    name: str
    accessed_at_utc: datetime = NEVER
    created_at_utc: datetime = NEVER
    updated_at_utc: datetime = NEVER
    size_in_bytes: int = 0
    total_message_count: int = 0
    active_message_count: int = 0
    dead_letter_message_count: int = 0
    scheduled_message_count: int = 0
    transfer_message_count: int = 0
    transfer_dead_letter_message_count: int = 0
    subscription_count: int = 0
    sql_filter_count: int = 0
    correlation_filter_count: int = 0


@dataclass(slots=True, kw_only=True)
class NamespaceProperties(Attributes):
    """A namespace: its name, its tier and, in the Premium tier, the number of its messaging units."""

    name: str
    messaging_sku: MessagingSku = MessagingSku.STANDARD
    messaging_units: int | None = None
    created_at_utc: datetime = NEVER
    modified_at_utc: datetime = NEVER
    alias: str | None = None
    namespace_type: NamespaceType = NamespaceType.MESSAGING


class EntityKind(StrEnum):
    """The kinds of entities of the administration client."""

    QUEUE = "queue"
    TOPIC = "topic"
    SUBSCRIPTION = "subscription"
    RULE = "rule"

    @property
    def name_count(self) -> int:
        """The number of names that identify an entity: a rule has those of its topic, its subscription and its own."""
        return {EntityKind.SUBSCRIPTION: 2, EntityKind.RULE: 3}.get(self, 1)


PROPERTIES_OF: Final[Mapping[EntityKind, type[Any]]] = {
    EntityKind.QUEUE: QueueProperties,
    EntityKind.TOPIC: TopicProperties,
    EntityKind.SUBSCRIPTION: SubscriptionProperties,
    EntityKind.RULE: RuleProperties,
}
"""The class that describes entities of a kind."""


def kind_of(properties: EntityProperties) -> EntityKind:
    """Return the kind of entity that a description describes."""
    return next(kind for kind, described in PROPERTIES_OF.items() if isinstance(properties, described))


@cache
def settings_of(kind: EntityKind) -> Mapping[str, type[Any]]:
    """Return the types of the attributes of a description, without the name: `{"lock_duration": timedelta, ...}`."""
    types = {
        name: next(each for each in (*get_args(hint), hint) if each is not NoneType)
        for name, hint in get_type_hints(PROPERTIES_OF[kind]).items()
        if name != "name"
    }
    return MappingProxyType({name: get_origin(each) or each for name, each in types.items()})


def element_name(attribute: str) -> str:
    """Return the name of an attribute in the documents of the service: `LockDuration` for `lock_duration`."""
    return attribute.title().replace("_", "")


class InConfig(StrEnum):
    """Whether Config.json has a setting, and who added it to that file."""

    MICROSOFT = "yes"
    OURS = "added"
    NO = ""


class EntitySetting(NamedTuple):
    """What is true of a setting for all kinds of entities that have it.

    Attributes:
        about: a sentence, with the unit.
        default: of the service; None = none, or it depends on the tier or on other settings.
        least, most: the range of a duration.
        in_config: whether Config.json has it.
        config_default: its default there; None = that of the service.
        is_fixed: whether it cannot be changed after the creation.
        is_path: whether it is the path of another entity.
        is_answer: whether only the service states it.
        is_in_basic: whether the Basic tier has it.
        listed_of: the kinds of entities of which `sbclient admin list` shows it.
    """

    about: str
    default: Any = None
    least: timedelta | None = None
    most: timedelta = UNLIMITED
    in_config: InConfig = InConfig.NO
    config_default: Any = None
    is_fixed: bool = False
    is_path: bool = False
    is_answer: bool = False
    is_in_basic: bool = True
    listed_of: tuple[EntityKind, ...] = ()


_QUEUE, _TOPIC, _SUBSCRIPTION = EntityKind.QUEUE, EntityKind.TOPIC, EntityKind.SUBSCRIPTION

SETTINGS: Final[Mapping[str, EntitySetting]] = MappingProxyType(
    {
        "status": EntitySetting(
            "Whether the entity accepts and delivers messages.",
            EntityStatus.ACTIVE,
            in_config=InConfig.OURS,
            listed_of=(_QUEUE, _TOPIC, _SUBSCRIPTION),
        ),
        "availability_status": EntitySetting(
            "Whether all fragments can be reached.", is_answer=True, listed_of=(_QUEUE, _TOPIC, _SUBSCRIPTION)
        ),
        "authorization_rules": EntitySetting("Keys with rights on this entity alone.", in_config=InConfig.OURS),
        "auto_delete_on_idle": EntitySetting(
            "The entity is deleted when nothing has used it for this time.",
            UNLIMITED,
            timedelta(minutes=5),
            in_config=InConfig.OURS,
        ),
        "dead_lettering_on_filter_evaluation_exceptions": EntitySetting(
            "Whether a message is dead-lettered if a filter of the subscription fails on it.", True
        ),
        "dead_lettering_on_message_expiration": EntitySetting(
            "Whether expired messages are dead-lettered instead of dropped.", False, in_config=InConfig.MICROSOFT
        ),
        "default_message_time_to_live": EntitySetting(
            "The time to live of messages that have none, and the longest one of the others.",
            UNLIMITED,
            timedelta(seconds=1),
            in_config=InConfig.MICROSOFT,
            config_default=timedelta(hours=1),
        ),
        "duplicate_detection_history_time_window": EntitySetting(
            "How long message ids are kept for duplicate detection.",
            timedelta(minutes=10),
            timedelta(seconds=20),
            timedelta(days=7),
            in_config=InConfig.MICROSOFT,
            config_default=timedelta(seconds=20),
        ),
        "enable_batched_operations": EntitySetting(
            "An optimization of the service. The emulator only stores it.", True
        ),
        "enable_express": EntitySetting("An optimization of the service. The emulator only stores it.", False),
        "enable_partitioning": EntitySetting(
            "Whether the entity has several fragments, each on a broker of its own.",
            False,
            in_config=InConfig.OURS,
            is_fixed=True,
            listed_of=(_QUEUE, _TOPIC),
        ),
        "filtering_messages_before_publishing": EntitySetting("The emulator only stores it.", False),
        "forward_dead_lettered_messages_to": EntitySetting(
            "The queue or topic that dead letters are moved to.",
            in_config=InConfig.MICROSOFT,
            is_path=True,
            is_in_basic=False,
        ),
        "forward_to": EntitySetting(
            "The queue or topic that messages are moved to.",
            in_config=InConfig.MICROSOFT,
            is_path=True,
            is_in_basic=False,
            listed_of=(_SUBSCRIPTION,),
        ),
        "lock_duration": EntitySetting(
            "How long a received message stays locked.",
            timedelta(minutes=1),
            timedelta(seconds=5),
            timedelta(minutes=5),
            in_config=InConfig.MICROSOFT,
            config_default=timedelta(minutes=1),
        ),
        "max_delivery_count": EntitySetting(
            "A message that was delivered this often is dead-lettered.",
            10,
            in_config=InConfig.MICROSOFT,
            config_default=3,
            listed_of=(_QUEUE, _SUBSCRIPTION),
        ),
        "max_message_size_in_kilobytes": EntitySetting(
            "The largest message. Only the Premium tier can change it.", in_config=InConfig.OURS
        ),
        "max_size_in_megabytes": EntitySetting(
            "The size of all messages together; of a partitioned entity, that of one fragment when it is created and "
            "that of all when it is returned.",
            in_config=InConfig.OURS,
        ),
        "requires_duplicate_detection": EntitySetting(
            "Whether a message is dropped if its message id was sent before, within the window.",
            False,
            in_config=InConfig.MICROSOFT,
            is_fixed=True,
            is_in_basic=False,
            listed_of=(_TOPIC,),
        ),
        "requires_session": EntitySetting(
            "Whether every message belongs to a session.",
            False,
            in_config=InConfig.MICROSOFT,
            is_fixed=True,
            is_in_basic=False,
            listed_of=(_QUEUE, _SUBSCRIPTION),
        ),
        "size_in_bytes": EntitySetting("The size of the stored messages.", is_answer=True),
        "support_ordering": EntitySetting(
            "Default: whether the topic is not partitioned. The emulator only stores it."
        ),
        "user_metadata": EntitySetting("Any text of at most 1,024 characters.", in_config=InConfig.OURS),
    }
)
"""The settings of queues, topics and subscriptions by name. `settings_of` has those of a kind, with their types."""

FORWARDING: Final = tuple(name for name, each in SETTINGS.items() if each.is_path)
FIXED: Final = tuple(name for name, each in SETTINGS.items() if each.is_fixed)
SETTABLE_STATUS: Final = (
    EntityStatus.ACTIVE,
    EntityStatus.DISABLED,
    EntityStatus.SEND_DISABLED,
    EntityStatus.RECEIVE_DISABLED,
)


class EntityAddress(NamedTuple):
    """Identifies an entity by its names: `("orders",)`, `("prices", "eu")` or `("prices", "eu", "$Default")`."""

    kind: EntityKind
    names: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.kind} {'/'.join(self.names)}"
