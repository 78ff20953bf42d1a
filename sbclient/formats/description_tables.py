"""The elements of the descriptions of entities in the management API, in the order of the service.

The service applies an element only if no later one of its table precedes it. Source: its recorded answers; for the
counts of filters a live test of azure-servicebus 7.15.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from sbclient.entities import EntityKind


class Row(NamedTuple):
    """An element.

    Attributes:
        name: of the element.
        source: `@` and the attribute that it shows, or `=` and its text if that never changes; empty = the setting with
            its name.
        since: the first api-version that has it.
        answers: `get` = only answers to GET have it, `none` = only requests.
    """

    name: str
    source: str = ""
    since: str = ""
    answers: str = ""


def _rows(*lines: str) -> Mapping[str, Row]:
    """A table, from elements such as `CountDetails get; IsClientAffine =false 2021-05`."""
    rows = {}
    for name, *marks in (text.split() for line in lines for text in line.split(";")):
        row = Row(name)
        for mark in marks:
            field = "source" if mark[0] in "@=" else "since" if mark[0].isdigit() else "answers"
            row = row._replace(**{field: mark})
        rows[name] = row
    return rows


TABLES: Final[Mapping[EntityKind, Mapping[str, Row]]] = {
    EntityKind.QUEUE: _rows(
        "LockDuration; MaxSizeInMegabytes; RequiresDuplicateDetection; RequiresSession; DefaultMessageTimeToLive",
        "DeadLetteringOnMessageExpiration; DuplicateDetectionHistoryTimeWindow; MaxDeliveryCount",
        "EnableBatchedOperations; SizeInBytes @size_in_bytes; MessageCount @total_message_count",
        "IsAnonymousAccessible =false; AuthorizationRules; Status; ForwardTo; CreatedAt @created_at_utc",
        "UpdatedAt @updated_at_utc; AccessedAt @accessed_at_utc get; UserMetadata; SupportOrdering; CountDetails get",
        "AutoDeleteOnIdle; EnablePartitioning; EntityAvailabilityStatus; ForwardDeadLetteredMessagesTo",
        "EnableExpress; MaxMessageSizeInKilobytes 2021-05",
    ),
    EntityKind.TOPIC: _rows(
        "DefaultMessageTimeToLive; MaxSizeInMegabytes; RequiresDuplicateDetection; DuplicateDetectionHistoryTimeWindow",
        "EnableBatchedOperations; SizeInBytes @size_in_bytes; FilteringMessagesBeforePublishing",
        "IsAnonymousAccessible =false; AuthorizationRules; Status; CreatedAt @created_at_utc",
        "UpdatedAt @updated_at_utc; AccessedAt @accessed_at_utc get; UserMetadata; SupportOrdering; CountDetails get",
        "SubscriptionCount @subscription_count get; SqlFilterCount @sql_filter_count get 2024-05",
        "CorrelationFilterCount @correlation_filter_count get 2024-05; AutoDeleteOnIdle; EnablePartitioning",
        "EntityAvailabilityStatus; EnableSubscriptionPartitioning =false; EnableExpress",
        "MaxMessageSizeInKilobytes 2021-05",
    ),
    EntityKind.SUBSCRIPTION: _rows(
        "LockDuration; RequiresSession; DefaultMessageTimeToLive; DeadLetteringOnMessageExpiration",
        "DeadLetteringOnFilterEvaluationExceptions; DefaultRuleDescription none; MessageCount @total_message_count",
        "MaxDeliveryCount; EnableBatchedOperations; Status; ForwardTo; CreatedAt @created_at_utc",
        "UpdatedAt @updated_at_utc; AccessedAt @accessed_at_utc; UserMetadata; CountDetails get",
        "ForwardDeadLetteredMessagesTo; AutoDeleteOnIdle; EntityAvailabilityStatus; IsClientAffine =false 2021-05",
    ),
    EntityKind.RULE: _rows("Filter; Action; CreatedAt; Name"),
}
"""The elements of each kind, in the order of the service. Defaults: `broker.descriptions`."""

KINDS: Final = {f"{kind.capitalize()}Description": kind for kind in EntityKind}
"""The kind of entity that each element describes."""
