"""The properties that a rule can name: system properties, in a fixed table, and the user properties of the message.

Names are case-insensitive. An unknown system property is an error when the rule is created; a missing user
property is null. `Subject`, `ScheduledEnqueueTime` and `TransactionPartitionKey` are the names that newer clients use
for `Label`, `ScheduledEnqueueTimeUtc` and `ViaPartitionKey`.

Source: MicrosoftDocs/azure-docs, `service-bus-messages-payloads.md`, which lists the read-only ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from operator import attrgetter
from random import Random
from typing import Any, Final, NamedTuple
from uuid import UUID

from sbclient.amqp import EncodedMessage
from sbclient.broker.sql.values import Steps
from sbclient.message import ServiceBusMessage, ServiceBusMessageState


class SystemProperties(NamedTuple):
    """The values that the broker adds to a message; None = not known.

    Attributes:
        enqueued_time_utc, expires_at_utc, locked_until_utc: datetimes with a time zone.
        size_bytes: the stored size.
    """

    enqueued_time_utc: datetime | None = None
    sequence_number: int | None = None
    enqueued_sequence_number: int | None = None
    delivery_count: int = 0
    expires_at_utc: datetime | None = None
    locked_until_utc: datetime | None = None
    lock_token: UUID | None = None
    state: ServiceBusMessageState = ServiceBusMessageState.ACTIVE
    size_bytes: int | None = None
    dead_letter_source: str | None = None
    via_partition_key: str | None = None
    force_persistence: bool = False


class Scope(NamedTuple):
    """All that an expression is evaluated over. `properties` are those of `message`, by name.

    `steps` limits the work of the evaluation.
    """

    properties: Any
    message: EncodedMessage | ServiceBusMessage
    system: SystemProperties
    random: Random | None
    steps: Steps

    def __repr__(self) -> str:
        """Omit the content of the message."""
        return f"Scope({self.message!r})"


class SystemProperty(NamedTuple):
    """A system property.

    Attributes:
        read: returns its value in a scope.
        attribute: the attribute of the message that SET and REMOVE change; None = read-only.
    """

    name: str
    read: Callable[[Scope], Any]
    attribute: str | None


def _of_message(name: str, attribute: str) -> SystemProperty:
    return SystemProperty(name, attrgetter(f"message.{attribute}"), attribute)


def _of_broker(name: str, attribute: str) -> SystemProperty:
    return SystemProperty(name, attrgetter(f"system.{attribute}"), None)


SYSTEM_PROPERTIES: Final[Mapping[str, SystemProperty]] = {
    each.name.lower(): each
    for each in (
        _of_message("ContentType", "content_type"),
        _of_message("CorrelationId", "correlation_id"),
        _of_message("Label", "subject"),
        _of_message("Subject", "subject"),
        _of_message("MessageId", "message_id"),
        _of_message("PartitionKey", "partition_key"),
        _of_message("ReplyTo", "reply_to"),
        _of_message("ReplyToSessionId", "reply_to_session_id"),
        _of_message("ScheduledEnqueueTimeUtc", "scheduled_enqueue_time_utc"),
        _of_message("ScheduledEnqueueTime", "scheduled_enqueue_time_utc"),
        _of_message("SessionId", "session_id"),
        _of_message("TimeToLive", "time_to_live"),
        _of_message("To", "to"),
        _of_broker("DeadLetterSource", "dead_letter_source"),
        _of_broker("DeliveryCount", "delivery_count"),
        _of_broker("EnqueuedSequenceNumber", "enqueued_sequence_number"),
        _of_broker("EnqueuedTimeUtc", "enqueued_time_utc"),
        _of_broker("ExpiresAtUtc", "expires_at_utc"),
        _of_broker("ForcePersistence", "force_persistence"),
        _of_broker("LockedUntilUtc", "locked_until_utc"),
        _of_broker("LockToken", "lock_token"),
        _of_broker("SequenceNumber", "sequence_number"),
        _of_broker("Size", "size_bytes"),
        SystemProperty("State", lambda scope: int(scope.system.state), None),  # a plain integer
        _of_broker("TransactionPartitionKey", "via_partition_key"),
        _of_broker("ViaPartitionKey", "via_partition_key"),
    )
}


def key_of(scope: Scope, name: str) -> str | None:
    """Return the key of a user property: the equal one, else the first that differs only in case; None if missing."""
    properties = scope.properties
    if name in properties:
        return name
    scope.steps.spend(len(properties))
    lowered = name.lower()
    return next((key for key in properties if key.lower() == lowered), None)


def user_property(name: str) -> Callable[[Scope], Any]:
    """Return a function that reads a user property; it returns None if the property is missing or null."""
    lowered = name.lower()

    def read(scope: Scope) -> Any:
        properties = scope.properties
        if name in properties:
            return properties[name]
        scope.steps.spend(len(properties))
        for key in properties:
            if key.lower() == lowered:
                return properties[key]
        return None

    return read
