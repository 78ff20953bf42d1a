"""The file of `send --failed`: messages that were not accepted, to be sent again with `--format messages`."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Self

from sbclient.errors import InvalidOperationError
from sbclient.message import ServiceBusMessage
from sbclient.message_json import content_json


def _private(path: Path) -> int:
    """Open a file that only its owner may read, because it contains messages. A link is not followed."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0), 0o600)
    if hasattr(os, "fchmod"):
        os.fchmod(descriptor, 0o600)
    return descriptor


class FailedFile:
    """Opened before the first send, and removed at the end if it is new and empty.

    Args:
        path: a file that does not exist or is empty, so that no input and no earlier result is overwritten.

    Raises:
        InvalidOperationError: the file is not empty, or it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._was_there = path.exists()
            if self._was_there and path.stat().st_size:
                raise InvalidOperationError(f"--failed {path} is not empty: send its messages, or name another file")
            self._file = os.fdopen(
                _private(path), "w", encoding="utf-8", errors="surrogateescape", buffering=1
            )  # writes each line at once, and bytes that could not be decoded as they were
        except OSError as error:
            raise InvalidOperationError(
                f"--failed {path} cannot be written ({error.strerror}): name another file"
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # what a failed write left in the buffer; the write has raised
            self._file.close()
        if not self._was_there and not self.path.stat().st_size:
            self.path.unlink()

    def write(self, unsent: ServiceBusMessage | str) -> None:
        """Write a message as JSON with its message id, or a line of input unchanged. May raise OSError."""
        if isinstance(unsent, ServiceBusMessage):
            unsent = json.dumps(content_json(unsent), ensure_ascii=False)
        self._file.write(unsent.rstrip("\r\n") + "\n")
