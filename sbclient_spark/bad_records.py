"""Files of rows that could not be sent, with the reason: one JSON Lines file per task attempt."""

from __future__ import annotations

import json
from base64 import b64encode
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from sbclient.message import ServiceBusMessage
from sbclient_spark.rows import Destination


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
    body = bytes(message)
    try:
        shown: dict[str, Any] = {"body": body.decode()}
    except UnicodeDecodeError:
        shown = {"body_base64": b64encode(body).decode()}
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
        "application_properties": message.application_properties or None,
    }
    return shown | {name: value for name, value in rest.items() if value is not None}
