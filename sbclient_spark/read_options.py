"""The options of a read. The driver reads and checks them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal, get_args

from sbclient.errors import InvalidOperationError
from sbclient.rules.connection_string import parse_connection_string
from sbclient.settings.table import FLAG, NAMES, TEXT, Kind, choice, setting, whole
from sbclient_spark.connection_options import CONNECTION_KINDS, ConnectionOptions, connection_options
from sbclient_spark.option_table import given_fields, table_of
from sbclient_spark.option_table import read_options as read_table

SubQueueWord = Literal["none", "deadletter", "transferDeadletter"]


def _timestamp(name: str, value: str) -> datetime:
    try:
        found = datetime.fromisoformat(value.strip())
    except ValueError:
        raise InvalidOperationError(
            f"option {name} is {value!r}: write a timestamp such as 2024-05-31T12:00:00Z"
        ) from None
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found


TIMESTAMP: Final = Kind("timestamp", "TIMESTAMP", _timestamp, (str,))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """The options of a read.

    Attributes:
        connection: the namespaces.
        paths: queues, or subscriptions as `topic/Subscriptions/name`; empty with `backlog`.
    """

    connection: ConnectionOptions
    paths: tuple[str, ...] = ()
    backlog: bool = setting(FLAG, "Read all backlog queues of the pair, in the secondary.", default=False)
    sub_queue: SubQueueWord = setting(choice(*get_args(SubQueueWord)), "The sub-queue to read.", default="none")
    max_messages: int | None = setting(
        whole(1), "The largest number of messages per queue, or per fragment of a partitioned queue."
    )
    from_sequence_number: int = setting(whole(0), "Skip messages with a lower sequence number.", default=0)
    ending_time: datetime | None = setting(
        TIMESTAMP, "Skip messages that were enqueued at or after this time; None = the start of the read."
    )


READ_TABLE: Final = table_of(
    ReadOptions,
    CONNECTION_KINDS
    | dict.fromkeys(("queue", "entity", "topic", "subscription", "path"), TEXT)
    | {"queues": NAMES, "mode": choice("peek")},
)
"""Every option of a read, by name."""


def read_options(options: Mapping[str, str]) -> ReadOptions:
    """Parse the options of a read.

    Args:
        options: as Spark passes them, with names in any case.

    Raises:
        InvalidOperationError: an option is unknown, invalid, or contradicts another one.
    """
    given = read_table(options, READ_TABLE)
    connection = connection_options(given)
    backlog = given.get("backlog", False)
    if backlog and not connection.secondary.is_given:
        raise InvalidOperationError("backlog is true, but no secondary is given: set secondaryConnectionString")
    paths = _paths(given, connection)
    if backlog and paths:
        raise InvalidOperationError(f"both backlog and {', '.join(paths)} are given: leave one of them out")
    if not backlog and not paths:
        raise InvalidOperationError("no source is given: set queue, queues, topic and subscription, or backlog")
    return ReadOptions(connection=connection, paths=paths, **given_fields(ReadOptions, given))


def _paths(given: Mapping[str, Any], connection: ConnectionOptions) -> tuple[str, ...]:
    if ("topic" in given) != ("subscription" in given):
        raise InvalidOperationError("topic and subscription require each other: a topic itself holds no messages")
    ways: dict[str, tuple[str, ...]] = {
        name: given[name] if name == "queues" else (given[name],)
        for name in ("queue", "queues", "entity", "path")
        if name in given
    }
    if "topic" in given:
        ways["topic"] = (f"{given['topic']}/Subscriptions/{given['subscription']}",)
    if len(ways) > 1:
        raise InvalidOperationError(f"{' and '.join(ways)} are given: leave all but one of them out")
    if ways:
        return next(iter(ways.values()))
    value = connection.primary.connection_string.value
    path = parse_connection_string(value).entity_path if value is not None else None
    return (path,) if path is not None and not given.get("backlog") else ()
