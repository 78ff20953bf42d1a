"""Keeps the contents of one namespace in a file: writes changes, and replaces the file when it has grown too much.

The replacement is written in pieces between the requests, each about a millisecond of work. Until it is complete, all
changes are written to both files, so that a process that ends at any time leaves one complete file.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from sbclient.amqp import WireError
from sbclient.broker.namespace import Namespace
from sbclient.broker.recovery import StoredNamespace
from sbclient.clock import Clock
from sbclient.emulator.data.codec import decode_changes, encode_changes
from sbclient.emulator.data.data_file import END_OF_SNAPSHOT, MODE, Contents, DataFile, read, sync_directory
from sbclient.errors import InvalidOperationError, ServiceBusError
from sbclient.tasks import OwnedTasks
from sbclient.telemetry.log import get_logger

log = get_logger(__name__)

MIN_CHANGES_BYTES: Final = 2**23
MAX_CHANGES_RATIO: Final = 2
"""The file is replaced when the changes in it exceed 8 MiB and twice the size of its snapshot."""


class Journal:
    """The file of one namespace.

    Args:
        path: of the file.
        namespace: without entities.
        clock: for all times.
        on_change: called when there are changes to write.
        fsync: whether `write` waits until the changes survive a loss of power.

    Raises:
        InvalidOperationError: the file has another version or another profile, or is damaged.
        OSError: the file cannot be read or written.

    Attributes:
        is_new: whether there was no file.
    """

    def __init__(
        self, path: Path, namespace: Namespace, clock: Clock, on_change: Callable[[], None], *, fsync: bool
    ) -> None:
        self._path = path
        self._next_path = path.with_name(f"{path.name}.new")
        self._namespace = namespace
        self._clock = clock
        self._fsync = fsync
        self._tasks = OwnedTasks()
        self._next: DataFile | None = None
        self._is_replacing = self._is_complete = False
        self._next_snapshot_bytes = 0
        self.is_new = not path.exists()
        if self.is_new:
            self._changes = self._namespace.record_changes(on_change)
            self._file, self._snapshot_bytes = self._written()
            self._put_in_place()
        else:
            contents = read(path)
            self._restore(contents)
            if contents.lost_bytes:
                self._set_aside(contents)
            self._file, self._snapshot_bytes = DataFile.extend(path, contents.good_bytes), contents.snapshot_bytes
            self._changes = self._namespace.record_changes(on_change)

    # ------------------------------------------------------------------ read

    def _restore(self, contents: Contents) -> None:
        profile = self._namespace.profile.name
        if contents.profile != profile:
            raise InvalidOperationError(
                f"{self._path} belongs to a namespace with the profile {contents.profile}, and this one has {profile}: "
                f"use --profile {contents.profile}, or another directory"
            )
        stored = StoredNamespace()
        try:
            for frame in (*contents.snapshot, *contents.changes):
                for change in decode_changes(frame):
                    stored.apply(change)
            self._namespace.management.restore(stored, self._clock.now())
        except (WireError, ServiceBusError, TypeError, ValueError, LookupError) as error:
            raise InvalidOperationError(
                f"{self._path} has a record that this release cannot read ({type(error).__name__}), so the file was "
                "not changed: use the release that has written it, or move the file away to begin without messages"
            ) from error

    def _set_aside(self, contents: Contents) -> None:
        """Copy the damaged end of the file to a file of its own, because it is cut off."""
        number = 1
        while (kept := self._path.with_name(f"{self._path.name}.damaged-{number}")).exists():
            number += 1
        with self._path.open("rb") as file, os.fdopen(os.open(kept, os.O_WRONLY | os.O_CREAT, MODE), "wb") as copy:
            file.seek(contents.good_bytes)
            while piece := file.read(2**20):
                copy.write(piece)
        log.warning(
            "emulator.data_cut",
            "cut {lost_bytes} damaged bytes off the end of {path} and kept them as {kept}: the process ended while it "
            "wrote them, or the power was lost",
            lost_bytes=contents.lost_bytes,
            path=str(self._path),
            kept=kept.name,
        )

    # ------------------------------------------------------------------ write

    def write(self) -> None:
        """Write the changes since the last call with one call of the operating system.

        Raises:
            OSError, EncodeError: they cannot be written.
        """
        if not self._changes:
            return
        frame = encode_changes(self._changes.take())
        self._file.append(frame)
        if self._fsync:
            self._file.sync()
        if self._next is not None:
            try:
                self._next.append(frame)
                if self._is_complete:
                    self._exchange(self._next)
            except OSError as error:
                self._give_up(error)
        elif not self._is_replacing and self._changes_bytes > max(
            MIN_CHANGES_BYTES, MAX_CHANGES_RATIO * self._snapshot_bytes
        ):
            self._is_replacing = True
            self._tasks.start(self._replace(), name="replace data file")

    @property
    def _changes_bytes(self) -> int:
        return self._file.size_bytes - self._snapshot_bytes

    # ------------------------------------------------------------------ replace

    async def _replace(self) -> None:
        """Replace the file by a smaller one while requests are served."""
        try:
            file = self._next = DataFile.create(self._next_path, self._namespace.profile.name)
            for changes in self._namespace.snapshot():
                file.append(encode_changes(changes))
                await self._clock.sleep(0)
                if self._next is not file:
                    return  # a change could not be written to it
            file.append(END_OF_SNAPSHOT)
            self._next_snapshot_bytes = file.size_bytes
            await asyncio.to_thread(file.sync)
            if self._next is file:
                self._is_complete = True
                if not self._changes:  # else the last pieces may contain some of them, and `write` exchanges the files
                    self._exchange(file)
        except OSError as error:
            self._give_up(error)
        finally:
            self._is_replacing = False

    def _exchange(self, file: DataFile) -> None:
        if self._fsync:
            file.sync()  # the changes since the end of the snapshot
        self._put_in_place()
        self._file.close()
        self._file, self._snapshot_bytes = file, self._next_snapshot_bytes
        self._next, self._is_complete = None, False

    def _written(self) -> tuple[DataFile, int]:
        """Write a complete file, and return it with the size of its snapshot."""
        file = DataFile.create(self._next_path, self._namespace.profile.name)
        for changes in self._namespace.snapshot():
            file.append(encode_changes(changes))
        file.append(END_OF_SNAPSHOT)
        file.sync()
        return file, file.size_bytes

    def _put_in_place(self) -> None:
        self._next_path.replace(self._path)
        if self._fsync:
            sync_directory(self._path.parent)

    def _give_up(self, error: OSError) -> None:
        """Continue with the old file."""
        log.warning(
            "emulator.data_not_replaced",
            "{path} could not be replaced by a smaller file and keeps growing: {error}",
            path=str(self._path),
            error=str(error),
        )
        if self._next is not None:
            self._next.close()
            self._next, self._is_complete = None, False
        self._snapshot_bytes = self._file.size_bytes  # so that the next attempt is later

    async def close(self, *, has_failed: bool) -> None:
        """Close the file, after replacing it by a snapshot, so that the next start is quick.

        Args:
            has_failed: a write has failed; the file stays as it is.
        """
        await self._tasks.close()
        if self._next is not None:
            self._next.close()
        if self._changes_bytes and not has_failed:
            try:
                written, _ = self._written()
                self._put_in_place()
                written.close()
            except OSError as error:
                self._next = None
                self._give_up(error)
        self._file.close()
