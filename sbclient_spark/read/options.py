"""The options of a read. The driver reads and checks them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

from sbclient.arguments.kinds import utc
from sbclient.errors import InvalidOperationError
from sbclient.rules.connection_string import parse_connection_string
from sbclient.rules.entity_path import check_entity_path, split_sub_queue, split_subscription, subscription_path
from sbclient.settings.kinds import NAMES, SIZE, TEXT, ValueKind, whole
from sbclient.settings.table import setting
from sbclient_spark.options import (
    ConnectionOptions,
    checked_values,
    connection_options,
    given_fields,
    table_of,
)

SubQueueWord = Literal["none", "deadletter", "transferDeadletter"]
Mode = Literal["peek", "receive"]
BodyType = Literal["binary", "string"]
Orphans = Literal["leave", "take"]

EARLIEST: Final = 0
LATEST: Final = -1

_STREAM: Final = "a stream"
_BATCH: Final = "a batch read"


def _timestamp(text: str) -> datetime:
    return utc("timestamp", datetime.fromisoformat(text))


SESSIONS: Final = ValueKind(
    word="all, or session ids",
    metavar="all|ID,ID",
    read=lambda text: () if text.lower() == "all" else NAMES.read(text) or None,
    allows=lambda value: isinstance(value, tuple),
    advice=NAMES.advice,
    in_file=(str, list),
)
_START: Final = whole(LATEST)
START: Final = ValueKind(
    word="sequence number, earliest or latest",
    metavar="N",
    read=lambda text: (
        {"earliest": EARLIEST, "latest": LATEST}.get(text.lower()) if text.isalpha() else _START.read(text)
    ),
    allows=_START.allows,
    advice="give a sequence number, earliest or latest",
    in_file=(int, str),
    show=lambda value: {EARLIEST: "earliest", LATEST: "latest"}.get(value, str(value)),
)
TIMESTAMP: Final = ValueKind(
    word="timestamp",
    metavar="TIMESTAMP",
    read=_timestamp,
    allows=lambda value: isinstance(value, datetime),
    advice="write a timestamp such as 2024-05-31T12:00:00Z",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """The options of a read or of a stream.

    Attributes:
        connection: the namespaces.
        paths: queues, or subscriptions as `topic/Subscriptions/name`; empty with `backlog`.
    """

    connection: ConnectionOptions
    paths: tuple[str, ...] = ()
    backlog: bool = setting("Read all backlog queues of the pair, in the secondary.", _BATCH, default=False)
    sub_queue: SubQueueWord = setting("The sub-queue to read.", _BATCH, default="none")
    max_messages: int | None = setting(
        "The largest number of messages per queue, or per fragment of a partitioned queue.", _BATCH, kind=whole(1)
    )
    from_sequence_number: int = setting("Skip messages with a lower sequence number.", _BATCH, kind=whole(0), default=0)
    ending_time: datetime | None = setting(
        "Skip messages that were enqueued at or after this time; None = the start of the read.", _BATCH, kind=TIMESTAMP
    )
    body_type: BodyType = setting("The type of the column `body`; `string` decodes UTF-8.", default="binary")
    min_partitions: int | None = setting(
        "The number of tasks to split sequence numbers into; None = one per queue or fragment.", kind=whole(1, 10_000)
    )
    mode: Mode = setting(
        "`peek` takes nothing; `receive` takes the messages of a stream and completes them when Spark has processed "
        "them.",
        default="peek",
    )
    max_messages_per_trigger: int | None = setting(
        "The largest number of messages of a micro-batch; None = all, or 10,000 with `mode` receive.",
        _STREAM,
        kind=whole(1),
    )
    max_bytes_per_trigger: int | None = setting(
        "The largest size of the messages of a micro-batch; a larger message is read alone. None = no limit.",
        _STREAM,
        kind=SIZE,
    )
    sessions: tuple[str, ...] | None = setting(
        "Of a queue with sessions: `all`, or ids separated by commas, which may be patterns with `*`, `?` and `[…]`.",
        _STREAM,
        kind=SESSIONS,
    )
    max_sessions_per_trigger: int = setting(
        "With `mode` receive, the number of sessions that are locked while a micro-batch runs.",
        _STREAM,
        kind=whole(1, 100_000),
        default=1000,
    )
    starting_sequence_number: int = setting(
        "Where a new stream starts: a sequence number, `earliest` or `latest`.",
        _STREAM,
        kind=START,
        default=EARLIEST,
    )
    fail_on_data_loss: bool = setting(
        "Fail a stream if messages left the queue before it read them; otherwise log a warning.", _STREAM, default=True
    )
    orphans: Orphans = setting(
        "With `mode` receive, deferred messages that no micro-batch names: `leave` them, or `take` them at the start.",
        _STREAM,
        default="leave",
    )


READ_TABLE: Final = table_of(
    ReadOptions,
    dict.fromkeys(("queue", "entity", "topic", "subscription", "path"), TEXT) | {"queues": NAMES},
)
"""Every option of a read, by name."""

BATCH_TABLE: Final = {name: row for name, row in READ_TABLE.items() if row.group != _STREAM}
STREAM_TABLE: Final = {name: row for name, row in READ_TABLE.items() if row.group != _BATCH}


def read_options(options: Mapping[str, str], *, is_streaming: bool = False) -> ReadOptions:
    """Parse the options of a read.

    Args:
        options: as Spark passes them, with names in any case.
        is_streaming: for `readStream`.

    Raises:
        InvalidOperationError: an option is unknown, invalid, or contradicts another one.
    """
    if "bodyformat" in {name.lower() for name in options}:
        raise InvalidOperationError(
            "bodyFormat is for a write: parse the column body of a read with from_json, from_csv or from_avro, which "
            "have the modes of Spark's own sources"
        )
    given = checked_values(options, READ_TABLE)
    _check_kind({name.lower() for name in options}, given, is_streaming=is_streaming)
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


def _check_kind(names: set[str], given: Mapping[str, Any], *, is_streaming: bool) -> None:
    """Reject options of streams in a batch read, and the reverse."""
    kind, table = (_STREAM, STREAM_TABLE) if is_streaming else (_BATCH, BATCH_TABLE)
    for name, row in READ_TABLE.items():
        if name not in table and name.lower() in names:
            raise InvalidOperationError(f"option {name} is for {row.group}, and this is {kind}: remove it")
    if not is_streaming and given.get("mode") == "receive":
        raise InvalidOperationError(
            "mode is 'receive', but a batch read only peeks, because Spark repeats it for each action: use readStream"
        )
    if "max_messages" in given and "min_partitions" in given:
        raise InvalidOperationError("maxMessages and minPartitions exclude each other: leave one of them out")


def _checked_path(path: str) -> str:
    """Return the path of a queue or subscription, or of a sub-queue of one.

    Raises:
        InvalidOperationError: nothing can have this path.
    """
    base, _ = split_sub_queue(path)
    topic, subscription = split_subscription(base) or (None, None)
    if topic is None or subscription is None:
        check_entity_path(base)
    else:
        check_entity_path(topic, "topic")
        check_entity_path(subscription, "subscription")
    return path


def _paths(given: Mapping[str, Any], connection: ConnectionOptions) -> tuple[str, ...]:
    if ("topic" in given) != ("subscription" in given):
        raise InvalidOperationError("topic and subscription require each other: a topic itself holds no messages")
    ways: dict[str, tuple[str, ...]] = {
        name: given[name] if name == "queues" else (given[name],)
        for name in ("queue", "queues", "entity", "path")
        if name in given
    }
    if "topic" in given:
        topic, subscription = (check_entity_path(given[word], word) for word in ("topic", "subscription"))
        ways["topic"] = (subscription_path(topic, subscription),)
    if len(ways) > 1:
        raise InvalidOperationError(f"{' and '.join(ways)} are given: leave all but one of them out")
    if ways:
        return tuple(map(_checked_path, *ways.values()))
    value = connection.primary.connection_string.value
    path = parse_connection_string(value).entity_path if value is not None else None
    return (path,) if path is not None and not given.get("backlog") else ()
