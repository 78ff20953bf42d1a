"""The data directory of an emulator: the file of each namespace, and a lock against a second emulator.

Answers that depend on a change leave the server after the change is written: see `DataDirectory.is_behind`.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from sbclient.amqp import EncodeError
from sbclient.broker.namespace import Namespace
from sbclient.clock import Clock
from sbclient.emulator.data.data_file import MODE
from sbclient.emulator.data.journal import Journal
from sbclient.errors import InvalidOperationError
from sbclient.telemetry.log import get_logger

log = get_logger(__name__)

LOCK_NAME: Final = "lock"
FILE_SUFFIX: Final = ".sbdata"


class DataDirectory:
    """The contents of all namespaces of an emulator, on a disk.

    Args:
        path: of the directory; created if it does not exist.
        fsync: whether acknowledged changes survive also a loss of power; else only the end of the process.
        on_failure: called once, with the reason, if changes cannot be written.

    Attributes:
        failure: why changes could not be written; None = they were.
    """

    def __init__(self, path: Path, *, fsync: bool, on_failure: Callable[[Exception], None]) -> None:
        self.path = path
        self.failure: Exception | None = None
        self._fsync = fsync
        self._on_failure = on_failure
        self._lock: int | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._journals: list[Journal] = []
        self._waiting: list[Callable[[], None]] = []
        self._is_due = False

    def open(self) -> None:
        """Create and lock the directory.

        Raises:
            InvalidOperationError: another emulator uses it.
            OSError: it cannot be created.
        """
        self._loop = asyncio.get_running_loop()
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(self.path / LOCK_NAME, os.O_RDWR | os.O_CREAT, MODE)
        if not _has_locked(lock):
            os.close(lock)
            raise InvalidOperationError(f"another emulator uses the data directory {self.path}: choose another one")
        self._lock = lock

    def keep(self, namespace: Namespace, clock: Clock) -> bool:
        """Restore a namespace that has no entities, and keep its changes from now on.

        Returns: whether there was anything to restore.

        Raises:
            InvalidOperationError: its file is damaged, or was written by another release or with another profile.
            OSError: its file cannot be read or written.
        """
        path = self.path / (namespace.name + FILE_SUFFIX)
        journal = Journal(path, namespace, clock, self._note_change, fsync=self._fsync)
        self._journals.append(journal)
        return not journal.is_new

    # ------------------------------------------------------------------ write

    @property
    def is_behind(self) -> bool:
        """Whether a change is not written yet, so that no answer may leave the server."""
        return self._is_due

    def when_written(self, action: Callable[[], None]) -> None:
        """Call a function when the changes up to now are written."""
        self._waiting.append(action)

    def _note_change(self) -> None:
        if not self._is_due and self._loop is not None and not self._loop.is_closed():
            self._is_due = True
            self._loop.call_soon(self.write)

    def write(self) -> None:
        """Write all changes, and let the answers leave that wait for it."""
        if not self._is_due or self.failure is not None:
            return
        try:
            for journal in self._journals:
                journal.write()
        except (OSError, EncodeError) as error:
            self.failure = error
            log.error(
                "emulator.data_failed",
                "cannot write to the data directory {path}: the emulator ends and acknowledges nothing more ({error})",
                path=str(self.path),
                error=str(error),
            )
            self._on_failure(error)
            return
        self._is_due = False
        waiting, self._waiting = self._waiting, []
        for action in waiting:
            action()

    async def close(self) -> None:
        """Write what is left and a snapshot of each namespace, and unlock the directory. Safe to call twice."""
        self.write()
        journals, self._journals = self._journals, []
        for journal in journals:
            await journal.close(has_failed=self.failure is not None)
        self._loop = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _has_locked(descriptor: int) -> bool:
    """Lock a file for this process, until its descriptor is closed; returns whether no other one has it."""
    with suppress(OSError):
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False
