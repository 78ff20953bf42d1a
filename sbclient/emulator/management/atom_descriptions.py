"""The elements of queues, topics, subscriptions and the namespace in the management documents.

Laws (source: the service's documents and recorded answers):

1. Fields have the order of the tables below. The reader accepts any order and skips unknown fields.
2. A request contains only the fields that are set. A response contains all, except counts and the time of access for
   an entity that was just created.
3. The destination of forwarding is a URL in documents and a path in descriptions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any, Final, TypeVar
from urllib.parse import unquote

from sbclient.emulator.management.atom_values import read_any, write_any
from sbclient.emulator.management.xml import Element, tag, text_tag
from sbclient.entities import (
    PROPERTIES_OF,
    AccessRights,
    AuthorizationRule,
    Description,
    EntityAvailabilityStatus,
    EntityKind,
    EntityStatus,
    NamespaceProperties,
    RuntimeProperties,
    element_name,
    kind_of,
    settings_of,
)
from sbclient.errors import InvalidOperationError
from sbclient.iso8601 import read_timestamp, write_timestamp

SERVICE_BUS: Final = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
COUNTS: Final = "http://schemas.microsoft.com/netservices/2011/06/servicebus"
SCHEMA_INSTANCE: Final = "http://www.w3.org/2001/XMLSchema-instance"

Choice = TypeVar("Choice", bound=StrEnum)


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


def _path_of(text: str) -> str | None:
    text = text.strip()
    if "://" in text:
        text = unquote(text.partition("://")[2].partition("/")[2].partition("?")[0])
    return text.strip("/") or None


def _member(choices: type[Choice], what: str, text: str) -> Choice:
    try:
        return choices(text.strip())
    except ValueError as error:
        raise InvalidOperationError(f"{text[:64]!r} is not a {what}: write one of {', '.join(choices)}") from error


# ---------------------------------------------------------------------- parts with children


def _write_rule(rule: AuthorizationRule) -> str:
    times = {"CreatedTime": rule.created_at_utc, "ModifiedTime": rule.modified_at_utc}
    return tag(
        "AuthorizationRule",
        [
            tag("ClaimType", "SharedAccessKey"),
            tag("ClaimValue", "None"),
            tag("Rights", [text_tag("AccessRights", right) for right in rule.rights]),
            *(text_tag(name, write_timestamp(time)) for name, time in times.items() if time is not None),
            text_tag("KeyName", rule.key_name),
            text_tag("PrimaryKey", rule.primary_key or ""),
            text_tag("SecondaryKey", rule.secondary_key or ""),
        ],
        i_type="SharedAccessAuthorizationRule",
    )


def _read_rule(element: Element) -> AuthorizationRule:
    texts = {child.name: child.text for child in element.children}
    if not texts.get("KeyName"):
        raise InvalidOperationError("an AuthorizationRule has no KeyName: give one")
    rights = element.child("Rights")
    created, modified = texts.get("CreatedTime"), texts.get("ModifiedTime")
    return AuthorizationRule(
        key_name=texts["KeyName"],
        rights=[_member(AccessRights, "right", child.text) for child in (rights.children if rights else ())],
        primary_key=texts.get("PrimaryKey") or None,
        secondary_key=texts.get("SecondaryKey") or None,
        created_at_utc=read_timestamp(created) if created else None,
        modified_at_utc=read_timestamp(modified) if modified else None,
    )


# ---------------------------------------------------------------------- the tables

_ELEMENTS: Final = {
    EntityKind.QUEUE: """
        LockDuration MaxSizeInMegabytes RequiresDuplicateDetection RequiresSession DefaultMessageTimeToLive
        DeadLetteringOnMessageExpiration DuplicateDetectionHistoryTimeWindow MaxDeliveryCount EnableBatchedOperations
        SizeInBytes MessageCount IsAnonymousAccessible AuthorizationRules Status CreatedAt UpdatedAt AccessedAt
        SupportOrdering CountDetails AutoDeleteOnIdle EnablePartitioning EntityAvailabilityStatus EnableExpress
        ForwardTo UserMetadata ForwardDeadLetteredMessagesTo MaxMessageSizeInKilobytes
    """,
    EntityKind.TOPIC: """
        DefaultMessageTimeToLive MaxSizeInMegabytes RequiresDuplicateDetection DuplicateDetectionHistoryTimeWindow
        EnableBatchedOperations SizeInBytes FilteringMessagesBeforePublishing IsAnonymousAccessible AuthorizationRules
        Status CreatedAt UpdatedAt AccessedAt SupportOrdering CountDetails SubscriptionCount SqlFilterCount
        CorrelationFilterCount AutoDeleteOnIdle EnablePartitioning EntityAvailabilityStatus
        EnableSubscriptionPartitioning EnableExpress UserMetadata MaxMessageSizeInKilobytes
    """,
    EntityKind.SUBSCRIPTION: """
        LockDuration RequiresSession DefaultMessageTimeToLive DeadLetteringOnMessageExpiration
        DeadLetteringOnFilterEvaluationExceptions MessageCount MaxDeliveryCount EnableBatchedOperations Status
        ForwardTo CreatedAt UpdatedAt AccessedAt CountDetails ForwardDeadLetteredMessagesTo AutoDeleteOnIdle
        EntityAvailabilityStatus UserMetadata
    """,
}
"""The elements of each kind, in their order."""

_RUNTIME: Final = {
    "AccessedAt": "accessed_at_utc",
    "CorrelationFilterCount": "correlation_filter_count",
    "CreatedAt": "created_at_utc",
    "MessageCount": "total_message_count",
    "SizeInBytes": "size_in_bytes",
    "SqlFilterCount": "sql_filter_count",
    "SubscriptionCount": "subscription_count",
    "UpdatedAt": "updated_at_utc",
}
"""The count or time that each of these elements shows."""

_COUNT_DETAILS: Final = [
    f"{kind}_message_count" for kind in ("active", "dead_letter", "scheduled", "transfer", "transfer_dead_letter")
]
_FORWARDING: Final = ("forward_to", "forward_dead_lettered_messages_to")
_NOT_READ: Final = ("availability_status", "size_in_bytes")
_XML_TYPES: Final[Mapping[type, str]] = {bool: "boolean", int: "long", timedelta: "duration"}

KINDS: Final = {f"{kind.capitalize()}Description": kind for kind in EntityKind}
"""The kind of entity that each element describes."""


def read_description(element: Element, name: str) -> Description:
    """The description in a QueueDescription, TopicDescription or SubscriptionDescription; missing values are None.

    Raises:
        InvalidOperationError: a value is not valid; the text names its element.
    """
    kind = KINDS[element.name]
    values = {}
    for attribute, type_ in settings_of(kind).items():
        found = element.child(element_name(attribute))
        if found is None or attribute in _NOT_READ or found.attributes.get("nil") == "true":
            continue
        try:
            values[attribute] = _read(attribute, type_, found)
        except InvalidOperationError as error:
            raise InvalidOperationError(f"{found.name} of {name}: {error.message}") from error
    described: Description = PROPERTIES_OF[kind](name, **values)
    return described


def _read(attribute: str, type_: type, element: Element) -> Any:
    if attribute in _FORWARDING:
        return _path_of(element.text)
    if type_ is EntityStatus:
        return _member(EntityStatus, "status", element.text)
    if type_ is list:
        return [_read_rule(child) for child in element.all("AuthorizationRule")]
    return element.text or None if type_ is str else read_any(_XML_TYPES[type_], element.text)


def write_description(shown: Shown, **attributes: str) -> str:
    """The element of a description, with these attributes."""
    kind, description, runtime = kind_of(shown.description), shown.description, shown.runtime
    values: dict[str, Any] = {"SupportOrdering": not description.get("enable_partitioning", False)}
    values |= {element_name(attribute): value for attribute, value in description.items()}
    values |= {element: getattr(runtime, attribute) for element, attribute in _RUNTIME.items()}
    values |= {
        "EntityAvailabilityStatus": description.availability_status or EntityAvailabilityStatus.AVAILABLE,
        "EnableSubscriptionPartitioning": False,
        "IsAnonymousAccessible": False,
    }
    for name in map(element_name, _FORWARDING):
        if values.get(name) is not None:
            values[name] = shown.base + values[name]
    counts = [tag(f"d2p1:{element_name(each)}", str(getattr(runtime, each))) for each in _COUNT_DETAILS]
    rules = values.pop("AuthorizationRules", None) or []
    parts = {name: text_tag(name, write_any(value)[1]) for name, value in values.items() if value is not None}
    parts["AuthorizationRules"] = tag("AuthorizationRules", [_write_rule(rule) for rule in rules])
    parts["CountDetails"] = tag("CountDetails", counts, xmlns_d2p1=COUNTS)
    if shown.is_new:
        parts["AccessedAt"] = parts["CountDetails"] = ""
    elements = [parts.get(name, "") for name in _ELEMENTS[kind].split()]
    return tag(f"{kind.capitalize()}Description", elements, **attributes)


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
