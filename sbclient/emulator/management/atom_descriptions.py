"""The elements of queues, topics, subscriptions and the namespace in the management documents.

Laws (source: the service's documents and recorded answers):

1. Fields have the order of the tables below. The reader accepts any order and skips unknown fields.
2. A request contains only the fields that are set. A response contains all, except counts and the time of access for
   an entity that was just created.
3. The destination of forwarding is a URL in documents and a path in descriptions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import unquote

from sbclient.emulator.management.atom_values import read_flag, read_whole, write_flag
from sbclient.emulator.management.xml import Element, tag, text_tag
from sbclient.entities import (
    NEVER,
    AccessRights,
    AuthorizationRule,
    EntityAvailabilityStatus,
    EntityKind,
    EntityStatus,
    NamespaceProperties,
    QueueProperties,
    RuntimeProperties,
    SubscriptionProperties,
    TopicProperties,
)
from sbclient.errors import InvalidOperationError
from sbclient.iso8601 import read_duration, read_timestamp, write_duration, write_timestamp

SERVICE_BUS: Final = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
COUNTS: Final = "http://schemas.microsoft.com/netservices/2011/06/servicebus"
SCHEMA_INSTANCE: Final = "http://www.w3.org/2001/XMLSchema-instance"

Description: TypeAlias = QueueProperties | TopicProperties | SubscriptionProperties


@dataclass(frozen=True, slots=True)
class Shown:
    """A description with the other facts in its document.

    Attributes:
        runtime: counts and times.
        base: the URL before the path of a forwarding destination: `sb://localhost:5672/`.
        is_new: whether the entity was just created; its counts and time of access are left out.
    """

    description: Description
    runtime: RuntimeProperties
    base: str
    is_new: bool = False


class _Field(NamedTuple):
    """One element: the function that writes it (None = leave it out) and, if it can be set, the one that reads it."""

    name: str
    write: Callable[[Shown], str | None]
    attribute: str | None = None
    read: Callable[[Element], Any] | None = None


def _whole(element: Element) -> int:
    return read_whole(element.text)


def _path_of(element: Element) -> str | None:
    text = element.text.strip()
    if "://" in text:
        text = unquote(text.partition("://")[2].partition("/")[2].partition("?")[0])
    return text.strip("/") or None


def _status_of(element: Element) -> EntityStatus:
    try:
        return EntityStatus(element.text.strip())
    except ValueError as error:
        raise InvalidOperationError(
            f"{element.text[:64]!r} is not a status: write one of {', '.join(EntityStatus)}"
        ) from error


def _settable(name: str, attribute: str, read: Callable[[Element], Any], write: Callable[[Any], str] = str) -> _Field:
    def written(shown: Shown) -> str | None:
        value = getattr(shown.description, attribute)
        return None if value is None else text_tag(name, write(value))

    return _Field(name, written, attribute, read)


def _flag(name: str, attribute: str) -> _Field:
    return _settable(name, attribute, lambda element: read_flag(element.text), write_flag)


def _duration(name: str, attribute: str) -> _Field:
    return _settable(name, attribute, lambda element: read_duration(element.text), write_duration)


def _number(name: str, attribute: str) -> _Field:
    return _settable(name, attribute, _whole)


def _destination(name: str, attribute: str) -> _Field:
    def written(shown: Shown) -> str | None:
        path = getattr(shown.description, attribute)
        return None if path is None else text_tag(name, shown.base + path)

    return _Field(name, written, attribute, _path_of)


def _text(name: str, attribute: str) -> _Field:
    return _settable(name, attribute, lambda element: element.text or None)


def _constant(name: str, text: str) -> _Field:
    return _Field(name, lambda _: tag(name, text))


def _counted(name: str, count: Callable[[Shown], int]) -> _Field:
    return _Field(name, lambda shown: tag(name, str(count(shown))))


def _timestamp(name: str, attribute: str) -> _Field:
    return _Field(name, lambda shown: text_tag(name, write_timestamp(getattr(shown.runtime, attribute))))


# ---------------------------------------------------------------------- parts with children


def _write_rules(shown: Shown) -> str:
    assert not isinstance(shown.description, SubscriptionProperties)  # they have no such field
    return tag("AuthorizationRules", [_write_rule(rule) for rule in shown.description.authorization_rules or []])


def _write_rule(rule: AuthorizationRule) -> str:
    return tag(
        "AuthorizationRule",
        [
            tag("ClaimType", "SharedAccessKey"),
            tag("ClaimValue", "None"),
            tag("Rights", [text_tag("AccessRights", right) for right in rule.rights]),
            text_tag("CreatedTime", write_timestamp(rule.created_at_utc or NEVER)),
            text_tag("ModifiedTime", write_timestamp(rule.modified_at_utc or NEVER)),
            text_tag("KeyName", rule.key_name),
            text_tag("PrimaryKey", rule.primary_key or ""),
            text_tag("SecondaryKey", rule.secondary_key or ""),
        ],
        i_type="SharedAccessAuthorizationRule",
    )


def _read_rules(element: Element) -> list[AuthorizationRule]:
    return [_read_rule(child) for child in element.all("AuthorizationRule")]


def _read_rule(element: Element) -> AuthorizationRule:
    texts = {child.name: child.text for child in element.children}
    if not texts.get("KeyName"):
        raise InvalidOperationError("an AuthorizationRule has no KeyName: give one")
    rights = element.child("Rights")
    created, modified = texts.get("CreatedTime"), texts.get("ModifiedTime")
    return AuthorizationRule(
        key_name=texts["KeyName"],
        rights=[] if rights is None else [_read_right(child) for child in rights.all("AccessRights")],
        primary_key=texts.get("PrimaryKey") or None,
        secondary_key=texts.get("SecondaryKey") or None,
        created_at_utc=read_timestamp(created) if created else None,
        modified_at_utc=read_timestamp(modified) if modified else None,
    )


def _read_right(element: Element) -> AccessRights:
    try:
        return AccessRights(element.text.strip())
    except ValueError as error:
        raise InvalidOperationError(
            f"{element.text[:64]!r} is not a right: write one of {', '.join(AccessRights)}"
        ) from error


def _write_counts(shown: Shown) -> str | None:
    if shown.is_new:
        return None
    counts = {
        "ActiveMessageCount": shown.runtime.active_message_count,
        "DeadLetterMessageCount": shown.runtime.dead_letter_message_count,
        "ScheduledMessageCount": shown.runtime.scheduled_message_count,
        "TransferMessageCount": shown.runtime.transfer_message_count,
        "TransferDeadLetterMessageCount": shown.runtime.transfer_dead_letter_message_count,
    }
    return tag("CountDetails", [tag(f"d2p1:{name}", str(count)) for name, count in counts.items()], xmlns_d2p1=COUNTS)


def _write_accessed(shown: Shown) -> str | None:
    return None if shown.is_new else text_tag("AccessedAt", write_timestamp(shown.runtime.accessed_at_utc))


def _write_availability(shown: Shown) -> str:
    status = shown.description.availability_status or EntityAvailabilityStatus.AVAILABLE
    return text_tag("EntityAvailabilityStatus", status)


def _write_ordering(shown: Shown) -> str:
    return tag("SupportOrdering", write_flag(not getattr(shown.description, "enable_partitioning", False)))


# ---------------------------------------------------------------------- the tables

_TIME_TO_LIVE = _duration("DefaultMessageTimeToLive", "default_message_time_to_live")
_LOCK = _duration("LockDuration", "lock_duration")
_SIZE = _number("MaxSizeInMegabytes", "max_size_in_megabytes")
_DUPLICATES = _flag("RequiresDuplicateDetection", "requires_duplicate_detection")
_WINDOW = _duration("DuplicateDetectionHistoryTimeWindow", "duplicate_detection_history_time_window")
_SESSION = _flag("RequiresSession", "requires_session")
_EXPIRED = _flag("DeadLetteringOnMessageExpiration", "dead_lettering_on_message_expiration")
_DELIVERIES = _number("MaxDeliveryCount", "max_delivery_count")
_BATCHED = _flag("EnableBatchedOperations", "enable_batched_operations")
_BYTES = _counted("SizeInBytes", lambda shown: shown.runtime.size_in_bytes)
_MESSAGES = _counted("MessageCount", lambda shown: shown.runtime.total_message_count)
_ANONYMOUS = _constant("IsAnonymousAccessible", "false")
_RULES = _Field("AuthorizationRules", _write_rules, "authorization_rules", _read_rules)
_STATUS = _settable("Status", "status", _status_of)
_CREATED = _timestamp("CreatedAt", "created_at_utc")
_UPDATED = _timestamp("UpdatedAt", "updated_at_utc")
_ACCESSED = _Field("AccessedAt", _write_accessed)
_ORDERING = _Field("SupportOrdering", _write_ordering)
_COUNTS = _Field("CountDetails", _write_counts)
_IDLE = _duration("AutoDeleteOnIdle", "auto_delete_on_idle")
_PARTITIONING = _flag("EnablePartitioning", "enable_partitioning")
_AVAILABILITY = _Field("EntityAvailabilityStatus", _write_availability)
_EXPRESS = _flag("EnableExpress", "enable_express")
_FORWARD = _destination("ForwardTo", "forward_to")
_METADATA = _text("UserMetadata", "user_metadata")
_FORWARD_DEAD = _destination("ForwardDeadLetteredMessagesTo", "forward_dead_lettered_messages_to")
_MESSAGE_SIZE = _number("MaxMessageSizeInKilobytes", "max_message_size_in_kilobytes")

_QUEUE: Final = (
    *(_LOCK, _SIZE, _DUPLICATES, _SESSION, _TIME_TO_LIVE, _EXPIRED, _WINDOW, _DELIVERIES, _BATCHED, _BYTES, _MESSAGES),
    *(_ANONYMOUS, _RULES, _STATUS, _CREATED, _UPDATED, _ACCESSED, _ORDERING, _COUNTS, _IDLE, _PARTITIONING),
    *(_AVAILABILITY, _EXPRESS, _FORWARD, _METADATA, _FORWARD_DEAD, _MESSAGE_SIZE),
)
_TOPIC: Final = (
    *(_TIME_TO_LIVE, _SIZE, _DUPLICATES, _WINDOW, _BATCHED, _BYTES),
    _flag("FilteringMessagesBeforePublishing", "filtering_messages_before_publishing"),
    *(_ANONYMOUS, _RULES, _STATUS, _CREATED, _UPDATED, _ACCESSED, _ORDERING, _COUNTS),
    _counted("SubscriptionCount", lambda shown: shown.runtime.subscription_count),
    _counted("SqlFilterCount", lambda shown: shown.runtime.sql_filter_count),
    _counted("CorrelationFilterCount", lambda shown: shown.runtime.correlation_filter_count),
    *(_IDLE, _PARTITIONING, _AVAILABILITY, _constant("EnableSubscriptionPartitioning", "false"), _EXPRESS),
    *(_METADATA, _MESSAGE_SIZE),
)
_SUBSCRIPTION: Final = (
    *(_LOCK, _SESSION, _TIME_TO_LIVE, _EXPIRED),
    _flag("DeadLetteringOnFilterEvaluationExceptions", "dead_lettering_on_filter_evaluation_exceptions"),
    *(_MESSAGES, _DELIVERIES, _BATCHED, _STATUS, _FORWARD, _CREATED, _UPDATED, _ACCESSED, _COUNTS, _FORWARD_DEAD),
    *(_IDLE, _AVAILABILITY, _METADATA),
)

_TABLES: Final[dict[str, tuple[type[Description], tuple[_Field, ...]]]] = {
    "QueueDescription": (QueueProperties, _QUEUE),
    "TopicDescription": (TopicProperties, _TOPIC),
    "SubscriptionDescription": (SubscriptionProperties, _SUBSCRIPTION),
}
KINDS: Final = {
    "QueueDescription": EntityKind.QUEUE,
    "TopicDescription": EntityKind.TOPIC,
    "SubscriptionDescription": EntityKind.SUBSCRIPTION,
    "RuleDescription": EntityKind.RULE,
}
"""The kind of entity that each element describes."""


def read_description(element: Element, name: str) -> Description:
    """The description in a QueueDescription, TopicDescription or SubscriptionDescription; missing values are None.

    Raises:
        InvalidOperationError: a value is not valid; the text names its element.
    """
    described, table = _TABLES[element.name]
    return described(name, **dict(_read_fields(element, table, name)))


def _read_fields(element: Element, table: tuple[_Field, ...], name: str) -> Iterator[tuple[str, Any]]:
    for field in table:
        found = element.child(field.name)
        if found is None or field.attribute is None or field.read is None or found.attributes.get("nil") == "true":
            continue
        try:
            yield field.attribute, field.read(found)
        except InvalidOperationError as error:
            raise InvalidOperationError(f"{field.name} of {name}: {error.message}") from error


def write_description(shown: Shown, **attributes: str) -> str:
    """The element of a description, with these attributes."""
    for name, (described, table) in _TABLES.items():
        if isinstance(shown.description, described):
            return tag(name, [text for field in table if (text := field.write(shown)) is not None], **attributes)
    raise AssertionError(f"no document for {type(shown.description).__name__}")


def write_namespace(namespace: NamespaceProperties, **attributes: str) -> str:
    """The NamespaceInfo of a namespace, with these attributes."""
    units = namespace.messaging_units
    return tag(
        "NamespaceInfo",
        [
            text_tag("Alias", namespace.alias) if namespace.alias else "",
            text_tag("CreatedTime", write_timestamp(namespace.created_at_utc)),
            text_tag("MessagingSKU", namespace.messaging_sku),
            "" if units is None else tag("MessagingUnits", str(units)),
            text_tag("ModifiedTime", write_timestamp(namespace.modified_at_utc)),
            text_tag("Name", namespace.name),
            tag("NamespaceType", "Messaging"),
        ],
        **attributes,
    )
