"""The options of a write. The driver reads and checks them before any task starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args
from urllib.parse import urlsplit

from sbclient.errors import InvalidOperationError
from sbclient.message import MAX_ID_LENGTH
from sbclient.rules.connection_string import parse_connection_string
from sbclient.rules.entity_path import check_entity_path
from sbclient.settings.kinds import POSITIVE_SECONDS, RATE, TEXT, ValueKind, duration, whole
from sbclient.settings.table import setting
from sbclient_spark.options import (
    ConnectionOptions,
    EntityWord,
    checked_values,
    connection_options,
    given_fields,
    table_of,
)
from sbclient_spark.write.message_ids import DIGEST_CHARACTERS, MessageIdMode

BodyFormat = Literal["raw", "json"]
UnknownColumns = Literal["error", "ignore", "property"]
OnRowError = Literal["fail", "skip", "deadletter"]
OnSendError = Literal["fail", "badRecords"]
DryRun = Literal["off", "schema", "sample", "encode"]
Ordering = Literal["none", "session"]
Requirement = Literal["error", "warn", "off"]

MILLISECONDS: Final = ValueKind(
    word="milliseconds",
    metavar="N",
    read=lambda text: int(text) / 1000,
    allows=duration(0, 60).allows,
    advice="it must be a whole number from 0 to 60000",
    show=lambda seconds: f"{seconds * 1000:.0f}",
)


def _local_path(text: str) -> str:
    """Return a path of the local file system, which may be a mounted store."""
    parts = urlsplit(text)
    if parts.scheme not in ("", "file") or not parts.path.startswith("/"):
        raise ValueError
    return parts.path


LOCAL_PATH: Final = ValueKind(
    word="absolute path",
    metavar="PATH",
    read=_local_path,
    allows=TEXT.allows,
    advice="give an absolute path of a file system that is mounted where the job runs, or use write_with_report, which "
    "writes to all file systems of Spark",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """The options of a write.

    Attributes:
        connection: the namespaces.
        entity, entity_path: the destination of all rows; None = each row names it in its column `queue` or `topic`. An
            `entity` of None beside a path = not known, as with `save("orders")` or the path of a connection string.
    """

    connection: ConnectionOptions
    entity: EntityWord | None = None
    entity_path: str | None = None
    body_format: BodyFormat = setting(
        "`raw` sends the column `body`; `json` sends an object of all columns that are not reserved.", default="raw"
    )
    unknown_columns: UnknownColumns = setting(
        "Other columns are an `error`, are left out, or each become an application property.", default="error"
    )
    message_id_mode: MessageIdMode = setting(
        "The message id is the column `message_id`, a hash of `messageIdColumns`, of the content or of the position of "
        "the row, or `random`; `auto` takes the first possible of `column`, `keys` and, for streams, `position`.",
        default="auto",
    )
    message_id_columns: tuple[str, ...] = setting("The key columns of the mode `keys`.", default=())
    message_id_prefix: str = setting("Prefix of every message id.", default="")
    txn_app_id: str | None = setting("The name of a batch job, for the mode `position`.")
    txn_version: int | None = setting("The number of a run of the batch job.", kind=whole(0))
    require_duplicate_detection: Requirement = setting(
        "A destination without duplicate detection is an `error`, a warning, or not checked.", default="warn"
    )
    duplicate_detection_window_s: float = setting(
        "The shortest accepted window: longer than an outage, the syphon's delay and the job's retries together.",
        kind=duration(),
        default=3600.0,
    )
    max_batch_bytes: int | None = setting("Bytes of one transfer; None = the limit of the entity.", kind=whole(1))
    max_batch_messages: int = setting(
        "Messages of one transfer; 4500 is the limit of the service.", kind=whole(1, 4500), default=2000
    )
    max_in_flight_batches: int = setting(
        "Transfers of a task in flight at the same time.", kind=whole(1, 64), default=4
    )
    linger_s: float = setting(
        "How long a transfer that is not full waits for more rows.", kind=MILLISECONDS, default=0.0, name="lingerMs"
    )
    max_messages_per_second: float | None = setting("Rate limit of one task.", kind=RATE)
    max_bytes_per_second: float | None = setting("Rate limit of one task.", kind=RATE)
    max_retries: int = setting(
        "How often a task repeats a failed transfer, after the client's retries. With a secondary, an outage is "
        "retried until the failover interval is over.",
        kind=whole(0),
        default=5,
    )
    retry_backoff_s: float = setting("The first pause between two attempts.", kind=duration(), default=0.8)
    retry_max_backoff_s: float = setting("The longest pause between two attempts.", kind=duration(), default=30.0)
    task_deadline_s: float | None = setting("A task fails after this time; None = never.", kind=POSITIVE_SECONDS)
    on_row_error: OnRowError = setting(
        "An invalid row fails the job, is skipped, or is written to `badRecordsPath`.", default="fail"
    )
    max_row_errors: int | None = setting("A task with more invalid rows fails; None = no limit.", kind=whole(0))
    bad_records_path: str | None = setting("A directory that all workers can write to.", kind=LOCAL_PATH)
    on_send_error: OnSendError = setting(
        "A row that could not be sent after all retries fails the job, or is written to `badRecordsPath`.",
        default="fail",
    )
    dry_run: DryRun = setting(
        "Send nothing: `schema` checks the plan, `sample` encodes the first rows of each task, `encode` all rows.",
        default="off",
    )
    ordering: Ordering = setting(
        "`session` keeps the order in each session across a failover; all rows of a session must be in one task.",
        default="none",
    )
    metrics_path: str | None = setting(
        "A file of the driver; each commit or abort appends a JSON line.", kind=LOCAL_PATH
    )
    metrics_log: bool = setting("Log the counts of tasks and commits.", default=True)

    @property
    def destination(self) -> str:
        """The destination as text for errors and reports."""
        return self.entity_path or "the queues and topics that the rows name"


WRITE_TABLE: Final = table_of(WriteOptions, dict.fromkeys(("queue", "topic", "path"), TEXT))
"""Every option of a write, by name."""


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """Read the options of a write.

    Args:
        options: as Spark passes them, with names in any case.

    Raises:
        InvalidOperationError: an option is unknown, invalid, or contradicts another one.
    """
    given = checked_values(options, WRITE_TABLE)
    connection = connection_options(given, ordering=given.get("ordering", "none"))
    entity, path = _destination(given, connection)
    result = WriteOptions(connection=connection, entity=entity, entity_path=path, **given_fields(WriteOptions, given))
    _check_together(result)
    return result


def _destination(given: Mapping[str, Any], connection: ConnectionOptions) -> tuple[EntityWord | None, str | None]:
    """Return the destination of all rows, if the options name one."""
    if "queue" in given and "topic" in given:
        raise InvalidOperationError(
            f"both queue {given['queue']!r} and topic {given['topic']!r} are given: leave one of them out, or name the "
            "destination of each row in a column queue or topic"
        )
    for word in get_args(EntityWord):
        if word in given:
            return word, check_entity_path(given[word], word)
    if "path" in given and ":" not in given["path"]:  # a catalog table has a path such as file:/warehouse/t
        return None, check_entity_path(given["path"])
    value = connection.primary.connection_string.value
    return None, parse_connection_string(value).entity_path if value is not None else None


def _check_together(options: WriteOptions) -> None:
    """Reject options that contradict each other."""
    longest = MAX_ID_LENGTH - DIGEST_CHARACTERS
    if len(options.message_id_prefix) > longest:
        raise InvalidOperationError(
            f"option messageIdPrefix has {len(options.message_id_prefix)} characters: give at most {longest}, because "
            f"the digest needs {DIGEST_CHARACTERS} of the {MAX_ID_LENGTH} characters of a message id"
        )
    if options.message_id_columns and options.message_id_mode not in ("auto", "keys"):
        raise InvalidOperationError(
            f"messageIdColumns has no effect with messageIdMode {options.message_id_mode!r}: set 'keys'"
        )
    if options.message_id_mode == "keys" and not options.message_id_columns:
        raise InvalidOperationError("messageIdMode 'keys' requires messageIdColumns: name the key columns")
    if (options.txn_app_id is None) != (options.txn_version is None):
        raise InvalidOperationError(
            "txnAppId and txnVersion require each other: the name of the job and the number of its run"
        )
    if options.bad_records_path is None:
        if options.on_row_error == "deadletter":
            raise InvalidOperationError("onRowError 'deadletter' requires badRecordsPath")
        if options.on_send_error == "badRecords":
            raise InvalidOperationError("onSendError 'badRecords' requires badRecordsPath")
    if options.retry_max_backoff_s < options.retry_backoff_s:
        raise InvalidOperationError(
            f"retryMaxBackoff is {options.retry_max_backoff_s:g} s, shorter than retryBackoff with "
            f"{options.retry_backoff_s:g} s: increase it"
        )
