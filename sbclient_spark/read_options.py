"""What a read may be told by options: read and checked once, on the driver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal, get_args

from sbclient.errors import InvalidOperationError
from sbclient.rules.connection_string import parse_connection_string
from sbclient.settings.values import Parser, choice, flag, names, text, whole
from sbclient_spark.connection_options import CONNECTION_TABLE, SDK_PREFIX, ConnectionOptions, connection_options
from sbclient_spark.option_table import read_options as read_table

SubQueueWord = Literal["none", "deadletter", "transferDeadletter"]


def _moment(name: str, value: str) -> datetime:
    try:
        moment = datetime.fromisoformat(value.strip())
    except ValueError:
        raise InvalidOperationError(f"option {name} is {value!r}: write a moment as 2024-05-31T12:00:00Z") from None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment


READ_TABLE: Final[dict[str, Parser]] = {
    **CONNECTION_TABLE,
    "queue": text,
    "queues": names,
    "entity": text,
    "topic": text,
    "subscription": text,
    "path": text,
    "backlog": flag,
    "subQueue": choice(*get_args(SubQueueWord)),
    "mode": choice("peek"),
    "maxMessages": whole(1),
    "fromSequenceNumber": whole(0),
    "endingTime": _moment,
}
"""Every option of a read. What they mean, and their defaults, stand at `ReadOptions`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """A read's options.

    Attributes:
        connection: the namespaces.
        paths: queues, or subscriptions as `topic/Subscriptions/name`; empty with `backlog`.
        backlog: read every backlog queue of the pair, in the secondary.
        sub_queue: the dead letters instead of the messages.
        max_messages: of each queue, or of each fragment of a partitioned one; None = all.
        from_sequence_number: older ones are left out.
        ending_time: ones enqueued at or after that moment are left out; None = the moment when the reading begins.
    """

    connection: ConnectionOptions
    paths: tuple[str, ...] = ()
    backlog: bool = False
    sub_queue: SubQueueWord = "none"
    max_messages: int | None = None
    from_sequence_number: int = 0
    ending_time: datetime | None = None


def read_options(options: Mapping[str, str]) -> ReadOptions:
    """What the options of a read say.

    Args:
        options: as Spark hands them over, keys in any case.

    Raises:
        InvalidOperationError: an option is unknown, has a value that it cannot have, or contradicts another one.
    """
    given = read_table(options, READ_TABLE, prefix=SDK_PREFIX, what="reading")
    connection = connection_options(given)
    backlog = given.get("backlog", False)
    if backlog and not connection.secondary.is_given:
        raise InvalidOperationError("backlog is true, but there is no secondary to read it from: set one")
    paths = _paths(given, connection)
    if backlog and paths:
        raise InvalidOperationError(f"both backlog and {', '.join(paths)} are to be read: leave one of them out")
    if not backlog and not paths:
        raise InvalidOperationError("nothing says what to read: set queue, queues, topic and subscription, or backlog")
    return ReadOptions(
        connection=connection,
        paths=paths,
        backlog=backlog,
        sub_queue=given.get("subQueue", "none"),
        max_messages=given.get("maxMessages"),
        from_sequence_number=given.get("fromSequenceNumber", 0),
        ending_time=given.get("endingTime"),
    )


def _paths(given: Mapping[str, Any], connection: ConnectionOptions) -> tuple[str, ...]:
    if ("topic" in given) != ("subscription" in given):
        raise InvalidOperationError("topic and subscription belong together: a topic itself holds no messages")
    ways: dict[str, tuple[str, ...]] = {
        name: given[name] if name == "queues" else (given[name],)
        for name in ("queue", "queues", "entity", "path")
        if name in given
    }
    if "topic" in given:
        ways["topic"] = (f"{given['topic']}/Subscriptions/{given['subscription']}",)
    if len(ways) > 1:
        raise InvalidOperationError(f"{' and '.join(ways)} are given: one of them says what is read")
    if ways:
        return next(iter(ways.values()))
    value = connection.primary.connection_string.value
    path = parse_connection_string(value).entity_path if value is not None else None
    return (path,) if path is not None and not given.get("backlog") else ()
