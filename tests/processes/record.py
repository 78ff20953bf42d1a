"""The history file of one process: a line before and a line behind everything it does, so that a SIGKILL loses none.

Each line is a JSON object with `at`, in seconds since 1970 as the broker counts them too, and `event`. It is handed to
the operating system before the process goes on. A line that was torn by the end of its process is as if it had not
been written: then what it announces was not begun, or what it ends is in doubt.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

Line = dict[str, Any]

_FACTS: Final = ("path", "queue", "reason", "error", "mode", "drained")


class Record:
    """Writes the history of this process.

    Args:
        path: the file; it is made, or written on.
    """

    def __init__(self, path: str | Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, event: str, **facts: Any) -> None:
        line = json.dumps({"at": time.time(), "event": event, **facts}, separators=(",", ":")) + "\n"
        os.write(self._file, line.encode())

    def close(self) -> None:
        os.close(self._file)

    def take_log(self) -> None:
        """Write what the library logs, too."""
        logger = logging.getLogger("sbclient")
        logger.addHandler(_Handler(self))
        logger.setLevel(logging.INFO)


class _Handler(logging.Handler):
    def __init__(self, record: Record) -> None:
        super().__init__()
        self._record = record

    def emit(self, record: logging.LogRecord) -> None:
        facts = {name: getattr(record, name) for name in _FACTS if hasattr(record, name)}
        self._record.write("log", name=vars(record)["event_name"], **facts)


def lines_of(path: Path) -> Iterator[Line]:
    """The lines of a history file, or of a log that is written in lines of JSON; what is torn is left out."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for text in file:
            if text.endswith(b"\n") and text.startswith(b"{"):
                yield json.loads(text)
