"""The data directory of an emulator: a SQLite database with all namespaces.

Answers that depend on a change leave the server after the change is committed: see `DataDirectory.is_behind`. All
changes of one step of the event loop are one transaction. The open database is locked, which excludes a second
emulator; the system removes the lock when the process ends.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

from sbclient.amqp import EncodeError
from sbclient.broker.namespace import Namespace
from sbclient.emulator.data.rows import SCHEMA, VERSION, NamespaceRows
from sbclient.errors import InvalidOperationError
from sbclient.telemetry.log import get_logger

log = get_logger(__name__)

FILE_NAME: Final = "emulator.db"
OLD_FILES: Final = "*.sbdata"
"""The files of version 1, one for each namespace."""

APPLICATION_ID: Final = 0x5342_454D  # "SBEM"


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
        self._database: sqlite3.Connection | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._namespaces: list[NamespaceRows] = []
        self._waiting: list[Callable[[], None]] = []
        self._is_due = False

    def open(self) -> None:
        """Create, lock and check the database.

        Raises:
            InvalidOperationError: another emulator uses it, it is damaged, or another release has written it.
            OSError: it cannot be created, read or written.
        """
        self._loop = asyncio.get_running_loop()
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if old := next(self.path.glob(OLD_FILES), None):
            raise InvalidOperationError(
                f"{old} has version 1 of the format, and this release reads version {VERSION}: use another directory, "
                "or delete the file to begin without messages"
            )
        path = self.path / FILE_NAME
        path.touch(mode=0o600)  # SQLite gives its other files the same rights
        self._database = open_database(path, fsync=self._fsync)

    def keep(self, namespace: Namespace, now: float) -> bool:
        """Restore a namespace that has no entities, and keep its changes from now on.

        Returns: whether there was anything to restore.

        Raises:
            InvalidOperationError: its rows are damaged, or were written by another release or with another profile.
            OSError: they cannot be read or written.
        """
        assert self._database is not None  # the directory is open
        try:
            rows = NamespaceRows(self._database, namespace, now, self._note_change)
        except sqlite3.DatabaseError as error:
            raise _explained(error, self.path / FILE_NAME) from error
        self._namespaces.append(rows)
        return not rows.is_new

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
        if not self._is_due or self.failure is not None or self._database is None:
            return
        try:
            self._database.execute("BEGIN")
            for rows in self._namespaces:
                rows.write()
            self._database.execute("COMMIT")
        except (sqlite3.Error, EncodeError, ValueError) as error:
            with suppress(sqlite3.Error):
                self._database.execute("ROLLBACK")
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

    def close(self) -> None:
        """Write what is left, and unlock the directory. Safe to call twice."""
        self.write()
        self._namespaces.clear()
        self._loop = None
        if self._database is not None:
            with suppress(sqlite3.Error):
                self._database.executescript("PRAGMA incremental_vacuum")  # `execute` makes only one step
            self._database.close()
            self._database = None


def open_database(path: Path, *, fsync: bool) -> sqlite3.Connection:
    """Lock and check a database, and create its tables if it is empty.

    Args:
        fsync: as for `DataDirectory`.

    Raises:
        InvalidOperationError, OSError: as `DataDirectory.open`.
    """
    with ExitStack() as on_error:
        try:
            database = sqlite3.connect(path, timeout=0, isolation_level=None)
            on_error.callback(database.close)
            _prepare(database, path, fsync=fsync)
        except sqlite3.DatabaseError as error:
            raise _explained(error, path) from error
        on_error.pop_all()
    return database


def _prepare(database: sqlite3.Connection, path: Path, *, fsync: bool) -> None:
    def pragma(text: str) -> object:
        return database.execute(f"PRAGMA {text}").fetchone()[0]

    pragma("locking_mode = EXCLUSIVE")
    if not pragma("schema_version"):  # it has no tables
        database.executescript(
            f"PRAGMA auto_vacuum = INCREMENTAL; BEGIN; PRAGMA application_id = {APPLICATION_ID}; "
            f"PRAGMA user_version = {VERSION}; {SCHEMA}; COMMIT"
        )
    if pragma("application_id") != APPLICATION_ID:
        raise InvalidOperationError(f"{path} is not a data file of the emulator: choose another directory")
    if (version := pragma("user_version")) != VERSION:
        raise InvalidOperationError(
            f"{path} has version {version} of the format, and this release reads version {VERSION}: use the release "
            "that has written it, or another directory"
        )
    if pragma("quick_check(1)") != "ok":
        raise sqlite3.DatabaseError("quick_check")
    pragma("journal_mode = WAL")
    database.execute(f"PRAGMA synchronous = {'FULL' if fsync else 'NORMAL'}")
    database.execute("PRAGMA foreign_keys = ON")


def _explained(error: sqlite3.DatabaseError, path: Path) -> Exception:
    """The error to raise for one of SQLite while a data directory is opened."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return InvalidOperationError(f"another emulator uses the data directory {path.parent}: choose another one")
    if code == sqlite3.SQLITE_NOTADB:
        return InvalidOperationError(f"{path} is not a data file of the emulator: choose another directory")
    if code == sqlite3.SQLITE_CORRUPT:
        return InvalidOperationError(
            f"{path} is damaged, so nothing was read: restore the directory from a copy, or move the file away to "
            "begin without messages"
        )
    return OSError(f"{path} cannot be used: {error}")
