"""Rows that could not be sent, written down with the reason: one file of JSON lines for each task attempt."""

from __future__ import annotations

import json
from base64 import b64encode
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from sbclient.message import ServiceBusMessage
from sbclient_spark.rows import Row


class BadRecords:
    """The bad rows of one task attempt. The file is made with the first of them.

    Args:
        directory: where; None = nowhere, rows are only counted.
        name: tells this attempt from every other one, of any application: a file that is there is never written over.
    """

    def __init__(self, directory: str | None, name: str) -> None:
        self._directory = directory
        self._name = name
        self._file: TextIOWrapper | None = None
        self.path: str | None = None

    def add(self, position: int, reason: str, record: dict[str, Any], *, is_in_doubt: bool = False) -> None:
        """Write a row down, on disk when this returns: a worker may be killed at any moment.

        Args:
            is_in_doubt: whether it may have arrived all the same; the line then says so.
        """
        if self._directory is None:
            return
        if self._file is None:
            Path(self._directory).mkdir(parents=True, exist_ok=True)
            path = Path(self._directory) / f"{self._name}.jsonl"
            self._file = path.open("x", encoding="utf-8")
            self.path = str(path)
        told = {"row": position, "reason": reason} | ({"in_doubt": True} if is_in_doubt else {}) | {"record": record}
        line = json.dumps(told, ensure_ascii=False, default=str)
        self._file.write(f"{line}\n")
        self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def record_of(row: Row) -> dict[str, Any]:
    """A message as it would have been sent, fit for JSON."""
    message: ServiceBusMessage = row.message
    body = bytes(message)
    try:
        shown: dict[str, Any] = {"body": body.decode()}
    except UnicodeDecodeError:
        shown = {"body_base64": b64encode(body).decode()}
    life, schedule = message.time_to_live, message.scheduled_enqueue_time_utc
    rest = {
        "message_id": message.message_id,
        row.destination.word: row.destination.path,
        "session_id": message.session_id,
        "partition_key": message.partition_key,
        "correlation_id": message.correlation_id,
        "subject": message.subject,
        "content_type": message.content_type,
        "to": message.to,
        "reply_to": message.reply_to,
        "reply_to_session_id": message.reply_to_session_id,
        "time_to_live": life.total_seconds() if life is not None else None,
        "scheduled_enqueue_time": schedule.isoformat() if schedule is not None else None,
        "application_properties": message.application_properties or None,
    }
    return shown | {name: value for name, value in rest.items() if value is not None}
