"""What a write may be told by options: read and checked once, on the driver, before any task exists."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args
from urllib.parse import urlsplit

from sbclient.errors import InvalidOperationError
from sbclient.message import MAX_ID_LENGTH
from sbclient.rules.connection_string import parse_connection_string
from sbclient.rules.entity_path import check_entity_path
from sbclient.settings.values import Parser, choice, flag, names, rate, span, text, whole
from sbclient_spark.connection_options import (
    CONNECTION_TABLE,
    SDK_PREFIX,
    ConnectionOptions,
    connection_options,
)
from sbclient_spark.message_ids import DIGEST_CHARACTERS, MessageIdMode
from sbclient_spark.option_table import read_options

EntityWord = Literal["queue", "topic"]
BodyFormat = Literal["raw", "json"]
UnknownColumns = Literal["error", "ignore", "property"]
OnRowError = Literal["fail", "skip", "deadletter"]
OnSendError = Literal["fail", "badRecords"]
DryRun = Literal["off", "schema", "sample", "encode"]
Ordering = Literal["none", "session"]
Requirement = Literal["error", "warn", "off"]

WRITE_TABLE: Final[dict[str, Parser]] = {
    **CONNECTION_TABLE,
    "queue": text,
    "topic": text,
    "path": text,
    "bodyFormat": choice(*get_args(BodyFormat)),
    "unknownColumns": choice(*get_args(UnknownColumns)),
    "messageIdMode": choice(*get_args(MessageIdMode)),
    "messageIdColumns": names,
    "messageIdPrefix": text,
    "txnAppId": text,
    "txnVersion": whole(0),
    "requireDuplicateDetection": choice(*get_args(Requirement)),
    "duplicateDetectionWindow": span,
    "maxBatchBytes": whole(1),
    "maxBatchMessages": whole(1, 4500),
    "maxInFlightBatches": whole(1, 64),
    "lingerMs": whole(0, 60_000),
    "maxMessagesPerSecond": rate,
    "maxBytesPerSecond": rate,
    "maxRetries": whole(0),
    "retryBackoff": span,
    "retryMaxBackoff": span,
    "taskDeadline": span,
    "onRowError": choice(*get_args(OnRowError)),
    "maxRowErrors": whole(0),
    "badRecordsPath": text,
    "onSendError": choice(*get_args(OnSendError)),
    "dryRun": choice(*get_args(DryRun)),
    "ordering": choice(*get_args(Ordering)),
    "metricsPath": text,
    "metricsLog": flag,
}
"""Every option of a write. What they mean, and their defaults, stand at `WriteOptions`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """A write's options.

    Attributes:
        connection: the namespaces.
        entity, entity_path: where every row goes; None = each row says so in its column `queue` or `topic`. An `entity`
            of None beside a path = the word is not known, as with `save("orders")` or the path of a connection string.
        body_format: `raw` takes the column `body`; `json` makes an object of all columns that are not reserved.
        unknown_columns: what is done with columns that are not known: `error`, `ignore`, or `property`: each becomes an
            application property.
        message_id_mode, message_id_columns, message_id_prefix, txn_app_id, txn_version: see `message_ids`.
        require_duplicate_detection: whether a destination that does not detect duplicates is refused (`error`), warned
            of (`warn`, default) or not looked at (`off`).
        duplicate_detection_window_s: the shortest window that passes: longer than the longest outage, the syphon's
            delay and the job's retries together. Default 1 h.
        max_batch_bytes: of one transfer; None = what the entity accepts.
        max_batch_messages: of one transfer, 1 to 4500 (the service's limit), default 2000.
        max_in_flight_batches: transfers of a task that are under way at once, 1 to 64, default 4.
        linger_s: how long a transfer that is not full waits for more rows, default 0.
        max_messages_per_second, max_bytes_per_second: of one task; None = no limit.
        max_retries: how often a transfer that failed, the client's own retries included, is sent again inside the task;
            default 5. During an outage with a secondary it is sent again until the failover interval is over.
        retry_backoff_s, retry_max_backoff_s: the first and the longest pause between, 0.8 and 30 s.
        task_deadline_s: after how long a task gives up; None = never.
        on_row_error: a row that can never be sent `fail`s the job, or is left out, counted and logged (`skip`) or
            written to `bad_records_path` with its reason (`deadletter`).
        max_row_errors: more rows than that, of one task, fail the job all the same; None = no limit.
        on_send_error: a row that could not be sent, after all retries, fails the job or goes to `bad_records_path`.
        bad_records_path: a directory that every worker can write to.
        dry_run: `schema` looks at the plan only, `sample` encodes the first rows of each task, `encode` all; nothing is
            sent.
        ordering: `session` keeps the order inside each session, across a failover too; every session must be in one
            task, see `prepare`.
        metrics_path: a file of the driver that gains one JSON line for each commit or abort.
        metrics_log: whether tasks and commits are logged with their counts.
    """

    connection: ConnectionOptions
    entity: EntityWord | None = None
    entity_path: str | None = None
    body_format: BodyFormat = "raw"
    unknown_columns: UnknownColumns = "error"
    message_id_mode: MessageIdMode = "auto"
    message_id_columns: tuple[str, ...] = ()
    message_id_prefix: str = ""
    txn_app_id: str | None = None
    txn_version: int | None = None
    require_duplicate_detection: Requirement = "warn"
    duplicate_detection_window_s: float = 3600.0
    max_batch_bytes: int | None = None
    max_batch_messages: int = 2000
    max_in_flight_batches: int = 4
    linger_s: float = 0.0
    max_messages_per_second: float | None = None
    max_bytes_per_second: float | None = None
    max_retries: int = 5
    retry_backoff_s: float = 0.8
    retry_max_backoff_s: float = 30.0
    task_deadline_s: float | None = None
    on_row_error: OnRowError = "fail"
    max_row_errors: int | None = None
    bad_records_path: str | None = None
    on_send_error: OnSendError = "fail"
    dry_run: DryRun = "off"
    ordering: Ordering = "none"
    metrics_path: str | None = None
    metrics_log: bool = True

    @property
    def destination(self) -> str:
        """How errors and reports name where the rows go."""
        return self.entity_path or "the queues and topics that the rows name"


_FIELDS: Final = {
    "bodyFormat": "body_format",
    "unknownColumns": "unknown_columns",
    "messageIdMode": "message_id_mode",
    "messageIdColumns": "message_id_columns",
    "messageIdPrefix": "message_id_prefix",
    "txnAppId": "txn_app_id",
    "txnVersion": "txn_version",
    "requireDuplicateDetection": "require_duplicate_detection",
    "duplicateDetectionWindow": "duplicate_detection_window_s",
    "maxBatchBytes": "max_batch_bytes",
    "maxBatchMessages": "max_batch_messages",
    "maxInFlightBatches": "max_in_flight_batches",
    "maxMessagesPerSecond": "max_messages_per_second",
    "maxBytesPerSecond": "max_bytes_per_second",
    "maxRetries": "max_retries",
    "retryBackoff": "retry_backoff_s",
    "retryMaxBackoff": "retry_max_backoff_s",
    "taskDeadline": "task_deadline_s",
    "onRowError": "on_row_error",
    "maxRowErrors": "max_row_errors",
    "onSendError": "on_send_error",
    "dryRun": "dry_run",
    "ordering": "ordering",
    "metricsLog": "metrics_log",
}


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """What the options of a write say.

    Args:
        options: as Spark hands them over, keys in any case.

    Raises:
        InvalidOperationError: an option is unknown, has a value that it cannot have, or contradicts another one.
    """
    given = read_options(options, WRITE_TABLE, prefix=SDK_PREFIX, what="writing")
    connection = connection_options(given, ordering=given.get("ordering", "none"))
    entity, path = _destination(given, connection)
    chosen = {field: given[name] for name, field in _FIELDS.items() if name in given}
    result = WriteOptions(
        connection=connection,
        entity=entity,
        entity_path=path,
        linger_s=given.get("lingerMs", 0) / 1000,
        bad_records_path=_file_path("badRecordsPath", given.get("badRecordsPath")),
        metrics_path=_file_path("metricsPath", given.get("metricsPath")),
        **chosen,
    )
    _check_together(result)
    return result


def _destination(given: Mapping[str, Any], connection: ConnectionOptions) -> tuple[EntityWord | None, str | None]:
    """The one place for every row, if the options name one."""
    if "queue" in given and "topic" in given:
        raise InvalidOperationError(
            f"both queue {given['queue']!r} and topic {given['topic']!r} are given: leave one of them out, or let each "
            "row say where it goes in its column queue or topic"
        )
    for word in get_args(EntityWord):
        if word in given:
            return word, check_entity_path(given[word], word)
    if "path" in given and ":" not in given["path"]:  # a table of a catalog has a path of its own, as file:/warehouse/t
        return None, check_entity_path(given["path"])
    value = connection.primary.connection_string.value
    return None, parse_connection_string(value).entity_path if value is not None else None


def _file_path(name: str, value: str | None) -> str | None:
    """A path of this machine, or of a store mounted on it."""
    if value is None:
        return None
    parts = urlsplit(value)
    if parts.scheme not in ("", "file") or not parts.path.startswith("/"):
        raise InvalidOperationError(
            f"option {name} is {value!r}: give an absolute path, of a file system that is mounted where the job runs"
        )
    return parts.path


def _check_together(options: WriteOptions) -> None:
    """Refuse options that contradict each other."""
    longest = MAX_ID_LENGTH - DIGEST_CHARACTERS
    if len(options.message_id_prefix) > longest:
        raise InvalidOperationError(
            f"option messageIdPrefix has {len(options.message_id_prefix)} characters, {longest} are allowed: a message "
            f"id has at most {MAX_ID_LENGTH}, and {DIGEST_CHARACTERS} of them are the digest"
        )
    if options.message_id_columns and options.message_id_mode not in ("auto", "keys"):
        raise InvalidOperationError(
            f"messageIdColumns is given with messageIdMode {options.message_id_mode!r}: it belongs to 'keys'"
        )
    if options.message_id_mode == "keys" and not options.message_id_columns:
        raise InvalidOperationError("messageIdMode is 'keys': name the key columns in messageIdColumns")
    if (options.txn_app_id is None) != (options.txn_version is None):
        raise InvalidOperationError(
            "txnAppId and txnVersion belong together: the one names the job, the other counts its runs"
        )
    if options.bad_records_path is None:
        wanting = [
            name
            for name, is_wanting in (
                ("onRowError 'deadletter'", options.on_row_error == "deadletter"),
                ("onSendError 'badRecords'", options.on_send_error == "badRecords"),
            )
            if is_wanting
        ]
        if wanting:
            raise InvalidOperationError(f"{wanting[0]} needs a place for the rows: set badRecordsPath")
    if options.retry_max_backoff_s < options.retry_backoff_s:
        raise InvalidOperationError(
            f"retryMaxBackoff, {options.retry_max_backoff_s:g} s, is shorter than retryBackoff, "
            f"{options.retry_backoff_s:g} s: make it longer"
        )
    if options.task_deadline_s == 0:
        raise InvalidOperationError("option taskDeadline is 0 s: leave it out for none")
