"""The file of `send --failed`: what was not accepted, to be sent again with `--format messages`."""

from __future__ import annotations

import json
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO

from sbclient.cli.json_values import plain
from sbclient.cli.message_json import content_json
from sbclient.errors import InvalidOperationError
from sbclient.message import ServiceBusMessage


class FailedFile:
    """Opened before anything is sent, so that what fails has a place; gone again at the end if it is empty.

    Args:
        path: of a file that does not exist, or is empty: what an earlier run left there is perhaps nowhere else.
        source: the input, if that is a file.

    Raises:
        InvalidOperationError: there is something in it already, or it cannot be written.
    """

    def __init__(self, path: Path, source: Path | None = None) -> None:
        self.path = path
        try:
            self._was_there = path.exists()
            if self._was_there and source is not None and source.exists() and path.samefile(source):
                raise InvalidOperationError(f"--failed {path} is the --input as well: name another file")
            if self._was_there and path.stat().st_size:
                raise InvalidOperationError(
                    f"--failed {path} holds something already, perhaps what failed before: send that, or name another "
                    "file"
                )
            # By lines, so that it is on the disk what the program says is kept.
            self._file: TextIO = path.open("w", encoding="utf-8", buffering=1)
        except OSError as error:
            raise InvalidOperationError(
                f"--failed {path} cannot be written ({error.strerror}): name a file that can be"
            ) from error
        self._is_empty = True
        self._is_broken = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._file.close()
        except OSError:
            if not self._is_broken:  # else it is known, and the file still holds what it could not write
                raise
        if self._is_empty and not self._was_there:
            self.path.unlink(missing_ok=True)

    def keep(self, message: ServiceBusMessage) -> None:
        """Write a message, with the id it went by. May raise OSError, as on a full disk."""
        self.keep_line(json.dumps(content_json(message), ensure_ascii=False, default=plain))

    def keep_line(self, line: str) -> None:
        """Write a line as it is. May raise OSError."""
        self._is_empty = False
        try:
            self._file.write(line.rstrip("\r\n") + "\n")
        except OSError:
            self._is_broken = True
            raise
