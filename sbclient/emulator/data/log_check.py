"""Notices a damaged write-ahead log, of which SQLite would ignore the rest without a word.

Laws (source: https://sqlite.org/walformat.html):

1. A log that a killed process leaves ends anywhere, but each of its whole frames is valid. Behind them may be frames of
   an earlier log, which have other salts.
2. `LogEnd` keeps the size of the log after the last transaction. A log that is shorter has lost its end.
"""

from __future__ import annotations

import os
import struct
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

_HEADER: Final = struct.Struct(">8I")
_FRAME: Final = struct.Struct(">6I")
_ORDERS: Final = {0x377F0682: "<", 0x377F0683: ">"}
"""The byte order of checksums, by the first word of the log."""

_SIZE: Final = struct.Struct("<Q")
_MAX_EARLIER: Final = 1_000
"""The first salt of each log is that of the log before, plus one."""


class LogState(NamedTuple):
    """What a log contains.

    Attributes:
        whole_bytes: up to the end of the last transaction that SQLite would read.
        is_damaged: whether it contains more.
    """

    whole_bytes: int
    is_damaged: bool


def state_of_log(log: bytes) -> LogState:
    """Check the contents of a log."""
    if len(log) < _HEADER.size:
        return LogState(0, is_damaged=False)
    magic, _, page_bytes, _, *found = _HEADER.unpack_from(log)
    salts, sums = tuple(found[:2]), tuple(found[2:])
    order, frame_bytes = _ORDERS.get(magic, ""), _FRAME.size + page_bytes
    if not order or sums != _sums(order, log[: _HEADER.size - 8], (0, 0)):
        return LogState(0, is_damaged=True)
    ends = range(_HEADER.size + frame_bytes, len(log) + 1, frame_bytes)
    whole_bytes = 0
    for end in ends:
        _, committed_pages, *found = _FRAME.unpack_from(log, end - frame_bytes)
        if tuple(found[:2]) != salts:
            rest = [_FRAME.unpack_from(log, later - frame_bytes)[2:4] for later in ends if later >= end]
            is_earlier = all(
                1 <= (salts[0] - first) % 2**32 <= _MAX_EARLIER and second not in (0, salts[1])
                for first, second in rest
            )
            return LogState(whole_bytes, is_damaged=not is_earlier)
        head = log[end - frame_bytes : end - frame_bytes + 8]
        sums = _sums(order, head + log[end - page_bytes : end], sums)
        if sums != tuple(found[2:]):
            return LogState(whole_bytes, is_damaged=True)
        if committed_pages:
            whole_bytes = end
    return LogState(whole_bytes, is_damaged=False)


def _sums(order: str, content: bytes, before: tuple[int, int]) -> tuple[int, int]:
    first, second = before
    words = struct.unpack(f"{order}{len(content) // 4}I", content)
    for even, odd in zip(words[::2], words[1::2], strict=True):
        first = (first + even + second) & 0xFFFFFFFF
        second = (second + odd + first) & 0xFFFFFFFF
    return first, second


class LogEnd:
    """A file with the size of the log after the last transaction.

    Args:
        path: of the file. It exists while the database is open, and after a kill.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def read(self, database: Path) -> int:
        """The least size of the log of a database; 0 if there is no file, or SQLite has removed the log since."""
        try:
            noted_at = self._path.stat().st_mtime_ns
            if not database.with_name(f"{database.name}-wal").exists() and database.stat().st_mtime_ns >= noted_at:
                return 0
            (size,) = _SIZE.unpack(self._path.read_bytes()[: _SIZE.size].ljust(_SIZE.size, b"\0"))
        except FileNotFoundError:
            return 0
        return int(size)

    def write(self, size: int) -> None:
        """Note the size. It survives the end of the process, as a commit does."""
        if self._descriptor is None:
            self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o600)
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        os.write(self._descriptor, _SIZE.pack(size))

    def remove(self) -> None:
        """Remove the file, before the log is removed."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        with suppress(FileNotFoundError):
            self._path.unlink()
