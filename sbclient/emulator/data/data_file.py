"""The file with the contents of one namespace: a snapshot, then the changes since, in the order of their writing.

Layout: a line of text with the version; then frames, each with its length and CRC-32 (four bytes each, most significant
first) and its content. The first frame names the profile of the namespace. A frame with `END_OF_SNAPSHOT` ends the
snapshot. All other frames contain changes as `codec` encodes them; those of one frame belong together.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple, Self
from zlib import crc32

from sbclient.errors import InvalidOperationError

VERSION: Final = 1
END_OF_SNAPSHOT: Final = b"end of snapshot"
MODE: Final = 0o600

_TITLE: Final = b"sbclient emulator data, version "
_HEADER: Final = _TITLE + b"%d\n" % VERSION
_MAX_HEADER: Final = 64
_FRAME: Final = struct.Struct(">II")


class Contents(NamedTuple):
    """What was read from a file.

    Attributes:
        profile: the name of the profile of the namespace.
        snapshot, changes: frames.
        snapshot_bytes: the size of the file up to the end of the snapshot.
        good_bytes: the size of the file up to its damaged end; its whole size if it is not damaged.
        lost_bytes: the size of the damaged end.
    """

    profile: str
    snapshot: list[bytes]
    changes: list[bytes]
    snapshot_bytes: int
    good_bytes: int
    lost_bytes: int

    def __repr__(self) -> str:
        return f"Contents({self.good_bytes} bytes)"


def read(path: Path) -> Contents:
    """Read a file. The damage of a write that did not finish is at its end, and reported; any other is an error.

    Raises:
        InvalidOperationError: the file has another version, or its snapshot is damaged.
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        size_bytes = os.fstat(file.fileno()).st_size
        _check_header(file.readline(_MAX_HEADER), path)
        frames = _frames(file, size_bytes)
        snapshot: list[bytes] = []
        while (frame := next(frames, None)) not in (None, END_OF_SNAPSHOT):
            snapshot.append(frame)
        if frame is None or not snapshot:
            raise InvalidOperationError(
                f"the snapshot in {path} is damaged at byte {file.tell()} of {size_bytes}, so nothing was read and the "
                "file was not changed: restore the file from a copy, or move it away to begin without messages"
            )
        snapshot_bytes = good_bytes = file.tell()
        changes = []
        for frame in frames:
            changes.append(frame)
            good_bytes = file.tell()
    return Contents(snapshot[0].decode(), snapshot[1:], changes, snapshot_bytes, good_bytes, size_bytes - good_bytes)


def _check_header(header: bytes, path: Path) -> None:
    if header == _HEADER:
        return
    if not header.startswith(_TITLE):
        raise InvalidOperationError(f"{path} is not a data file of the emulator: choose another directory")
    version = header.removeprefix(_TITLE).strip().decode("ascii", "replace")
    raise InvalidOperationError(
        f"{path} has version {version} of the format, and this release reads version {VERSION}: use the release that "
        "has written it, or another directory"
    )


def _frames(file: BinaryIO, size_bytes: int) -> Iterator[bytes]:
    """The intact frames up to the end of the file, or to the first damaged frame, before which the file stays."""
    while True:
        position = file.tell()
        head = file.read(_FRAME.size)
        if len(head) == _FRAME.size:
            length, checksum = _FRAME.unpack(head)
            if 0 < length <= size_bytes - position - _FRAME.size:
                frame = file.read(length)
                if crc32(frame) == checksum:
                    yield frame
                    continue
        file.seek(position)
        return


class DataFile:
    """A file that is open for appending.

    Args:
        descriptor: of the file.
        size_bytes: its size.
    """

    def __init__(self, descriptor: int, size_bytes: int) -> None:
        self._descriptor = descriptor
        self.size_bytes = size_bytes

    @classmethod
    def create(cls, path: Path, profile: str) -> Self:
        """Create a file, or replace the one at the path.

        Args:
            profile: the name of the profile of the namespace.
        """
        path.unlink(missing_ok=True)
        created = cls(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, MODE), 0)
        created._write(_HEADER)
        created.append(profile.encode())
        return created

    @classmethod
    def extend(cls, path: Path, size_bytes: int) -> Self:
        """Open a file whose intact part has a size; the rest is cut off."""
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
        os.ftruncate(descriptor, size_bytes)
        return cls(descriptor, size_bytes)

    def append(self, frame: bytes) -> None:
        """Write a frame. After the return it survives the end of the process."""
        self._write(_FRAME.pack(len(frame), crc32(frame)) + frame)

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]
        self.size_bytes += len(data)

    def sync(self) -> None:
        """Wait until all that was written survives a loss of power."""
        os.fsync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)


def sync_directory(path: Path) -> None:
    """Wait until the names in a directory survive a loss of power, where the system can do that."""
    if os.name == "posix":
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
