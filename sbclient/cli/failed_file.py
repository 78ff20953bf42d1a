"""The file of `send --failed`: messages that were not accepted, to be sent again with `--format messages`."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Self

from sbclient.errors import InvalidOperationError
from sbclient.formats.message_json import content_text
from sbclient.message import ServiceBusMessage


def _open_private(path: Path) -> tuple[int, bool]:
    """Open a file for writing; return its descriptor, and whether this created it. Symbolic links are refused.

    Only its owner may read the file, because it contains messages. This also applies to an empty file that exists,
    but not to a device or a pipe, which belongs to other programs too.
    """
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), True
    except FileExistsError:
        descriptor = os.open(path, os.O_WRONLY | getattr(os, "O_NOFOLLOW", 0))
    try:
        status = os.fstat(descriptor)
        if status.st_size:
            raise InvalidOperationError(f"--failed {path} is not empty: send its messages, or name another file")
        if stat.S_ISREG(status.st_mode) and hasattr(os, "fchmod"):
            os.fchmod(descriptor, 0o600)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, False


class FailedFile:
    """A file for messages that were not accepted. It is opened before the first send.

    If it is new and still empty at the end, it is removed.

    Args:
        path: a file that does not exist or is empty, so that neither the input nor an earlier result is overwritten.

    Raises:
        InvalidOperationError: the file is not empty, or it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            descriptor, self._is_new = _open_private(path)
        except OSError as error:
            raise InvalidOperationError(
                f"--failed {path} cannot be written ({error.strerror}): name another file"
            ) from error
        # Each line is written at once. `surrogateescape` writes bytes that could not be decoded unchanged.
        self._file = os.fdopen(descriptor, "w", encoding="utf-8", errors="surrogateescape", buffering=1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # writes the buffer of a failed write again; that write has raised the error
            self._file.close()
        with suppress(FileNotFoundError):  # the user may have moved the file
            if self._is_new and not self.path.stat().st_size:
                self.path.unlink()

    def write(self, unsent: ServiceBusMessage | str) -> None:
        """Write a message as JSON with its message id, or a line of input unchanged. May raise OSError."""
        if isinstance(unsent, ServiceBusMessage):
            unsent = content_text(unsent)
        self._file.write(unsent.rstrip("\r\n") + "\n")
