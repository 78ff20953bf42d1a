"""What becomes of rows that cannot be sent: the task fails, or they are counted and written to a file.

Each task attempt has its own file of JSON lines, with the reason of each row.
"""

from __future__ import annotations

import json
from base64 import b64encode
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from sbclient.errors import BacklogUnavailableError, MessagingEntityNotFoundError, ServiceBusError
from sbclient.formats.message_json import property_json, value_json
from sbclient.message import AmqpMessageBodyType, ServiceBusMessage
from sbclient_spark.options import Destination
from sbclient_spark.write.encoded_rows import EncodedRows
from sbclient_spark.write.options import WriteOptions
from sbclient_spark.write.reports import TaskReport


class WriteFailedError(ServiceBusError):
    """A task failed. The text names the row, the reason and the number of rows sent before."""


class RowErrors:
    """The bad rows of one task.

    Args:
        options: of the write.
        report: receives the counts.
        bad_records: receives the rows.
    """

    def __init__(self, options: WriteOptions, report: TaskReport, bad_records: BadRecords) -> None:
        self._options = options
        self._report = report
        self._bad_records = bad_records

    def not_sent(self, rows: EncodedRows, error: ServiceBusError, *, is_in_doubt: bool) -> None:
        """Handle rows after the last retry or a permanent error.

        Raises:
            WriteFailedError: these rows fail the task.
        """
        if is_in_doubt:
            self._report.in_doubt += len(rows)
        if self._options.entity_path is None and isinstance(error, MessagingEntityNotFoundError):
            self.add_rows(rows, str(error), is_in_doubt=is_in_doubt)
            return
        is_temporary = error.is_transient or error.is_outage or isinstance(error, BacklogUnavailableError)
        if self._options.on_send_error == "badRecords" and is_temporary:
            reason = f"{type(error).__name__}: {error}"
            for place, message in enumerate(rows.encoded()):
                record = record_of(message.decoded(), rows.destination)
                self._count(rows.position(place), reason, record, is_in_doubt=is_in_doubt)
            return
        others = f" and {len(rows) - 1} others of its transfer" if len(rows) > 1 else ""
        verdict = "may have been sent" if is_in_doubt else "was not accepted"
        raise WriteFailedError(
            f"{self._place(rows.position(), rows.message_id())}{others}, for {rows.destination.path!r}, {verdict}: "
            f"{type(error).__name__}: {error}. {self._account()}"
        ) from error

    def add_rows(self, rows: EncodedRows, reason: str, *, is_in_doubt: bool) -> None:
        """Handle rows that the service rejects; raises as `add`."""
        for place, message in enumerate(rows.encoded()):
            record = record_of(message.decoded(), rows.destination)
            self.add(rows.position(place), reason, record, message.message_id, is_in_doubt=is_in_doubt)

    def add(
        self,
        position: int,
        reason: str,
        record: dict[str, object],
        message_id: str | None = None,
        *,
        is_in_doubt: bool = False,
    ) -> None:
        """Handle an invalid row as `onRowError` says.

        Args:
            position: of the row in its partition.
            record: its columns, or its message, as values for JSON.
            is_in_doubt: the row may have been sent.

        Raises:
            WriteFailedError: the row fails the task.
        """
        if self._options.on_row_error == "fail":
            raise WriteFailedError(
                f"{self._place(position, message_id)} cannot be sent: {reason}. Correct the row, or set onRowError to "
                f"'skip' or 'deadletter'. {self._account()}"
            )
        self._count(position, reason, record, is_in_doubt=is_in_doubt)

    def _count(self, position: int, reason: str, record: dict[str, object], *, is_in_doubt: bool) -> None:
        self._report.row_errors += 1
        self._bad_records.add(position, reason, record, is_in_doubt=is_in_doubt)
        self._report.bad_records = self._bad_records.path
        most = self._options.max_row_errors
        if most is not None and self._report.row_errors > most:
            raise WriteFailedError(
                f"{self._place(position, None)} is bad row number {self._report.row_errors} of its task, more than "
                f"maxRowErrors {most}: {reason}. {self._account()}"
            )

    def _place(self, position: int, message_id: str | None) -> str:
        known = f" (message id {message_id!r})" if message_id is not None else ""
        return f"partition {self._report.partition}, row {position}{known}"

    def _account(self) -> str:
        sent = self._report.sent
        return (
            f"This attempt of the task sent {sent} rows before. With equal message ids, duplicate detection drops "
            "repeated rows."
        )


class BadRecords:
    """The bad rows of one task attempt. The first row creates the file.

    Args:
        directory: None = no file, rows are only counted.
        name: unique among the attempts of all applications; an existing file is not overwritten.
    """

    def __init__(self, directory: str | None, name: str) -> None:
        self._directory = directory
        self._name = name
        self._file: TextIOWrapper | None = None
        self.path: str | None = None

    def add(self, position: int, reason: str, record: dict[str, Any], *, is_in_doubt: bool = False) -> None:
        """Write a row and flush, because Spark may kill a worker at any time.

        Args:
            is_in_doubt: the row may have been sent; the line records it.
        """
        if self._directory is None:
            return
        if self._file is None:
            Path(self._directory).mkdir(parents=True, exist_ok=True)
            path = Path(self._directory) / f"{self._name}.jsonl"
            self._file = path.open("x", encoding="utf-8")
            self.path = str(path)
        entry = {"row": position, "reason": reason} | ({"in_doubt": True} if is_in_doubt else {}) | {"record": record}
        line = json.dumps(entry, ensure_ascii=False, default=str)
        self._file.write(f"{line}\n")
        self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def record_of(message: ServiceBusMessage, destination: Destination) -> dict[str, Any]:
    """Return a message as values for JSON."""
    shown: dict[str, Any]
    if message.body_type is not AmqpMessageBodyType.DATA:
        shown = {"body_type": message.body_type.value, "body": value_json(message.body)}
    else:
        body = bytes(message)
        try:
            shown = {"body": body.decode()}
        except UnicodeDecodeError:
            shown = {"body_base64": b64encode(body).decode()}
    properties = {name: property_json(value) for name, value in message.application_properties.items()}
    time_to_live, schedule = message.time_to_live, message.scheduled_enqueue_time_utc
    rest = {
        "message_id": message.message_id,
        destination.word: destination.path,
        "session_id": message.session_id,
        "partition_key": message.partition_key,
        "correlation_id": message.correlation_id,
        "subject": message.subject,
        "content_type": message.content_type,
        "to": message.to,
        "reply_to": message.reply_to,
        "reply_to_session_id": message.reply_to_session_id,
        "time_to_live": time_to_live.total_seconds() if time_to_live is not None else None,
        "scheduled_enqueue_time": schedule.isoformat() if schedule is not None else None,
        "application_properties": properties or None,
    }
    return shown | {name: value for name, value in rest.items() if value is not None}
