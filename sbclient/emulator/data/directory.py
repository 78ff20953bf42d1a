"""The data directory of an emulator: a SQLite database with all namespaces.

Answers that depend on a change leave the server after the change is committed: see `DataDirectory.hold_back`. All
changes of one step of the event loop are one transaction. The open database is locked, which excludes a second
emulator; the system removes the lock when the process ends. Only the user may be able to change the directory and its
files, which are checked before they are used.

SQLite would ignore the rest of a damaged write-ahead log without a word, so it is checked too (source:
https://sqlite.org/walformat.html). A log that a killed process leaves ends anywhere, but each of its whole frames is
valid. Behind them may be frames of an earlier log, which have other salts. `LogEnd` keeps the size of the log after the
last transaction: a log that is shorter has lost its end.
"""

from __future__ import annotations

import asyncio
import errno
import os
import sqlite3
import stat
import struct
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Final, NamedTuple

from sbclient.amqp import EncodeError
from sbclient.broker.namespace import Namespace
from sbclient.certificate import check_owner
from sbclient.emulator.data.rows import SCHEMA, VERSION, NamespaceRows
from sbclient.errors import InvalidOperationError
from sbclient.telemetry.log import get_logger

log = get_logger(__name__)

FILE_NAME: Final = "emulator.db"
OLD_FILES: Final = "*.sbdata"
"""The files of version 1, one for each namespace."""

END_OF_LOG: Final = f"{FILE_NAME}-end"
MAX_LOG_BYTES: Final = 4_194_304
"""Of the log, before its contents are moved to the database."""

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
        self._log = path / f"{FILE_NAME}-wal"
        self._end = LogEnd(path / END_OF_LOG)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._namespaces: list[NamespaceRows] = []
        self._waiting: list[Callable[[], None]] = []
        self._is_due = False

    def open(self) -> None:
        """Create, lock and check the database.

        Raises:
            InvalidOperationError: another emulator uses it, it is damaged, or another release has written it.
            OSError: it cannot be created, read or written, or another user may change it.
        """
        self._loop = asyncio.get_running_loop()
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_owner(self.path)
        if old := next(self.path.glob(OLD_FILES), None):
            raise InvalidOperationError(
                f"{old} has version 1 of the format, and this release reads version {VERSION}: use another directory, "
                "or delete the file to begin without messages"
            )
        path = self.path / FILE_NAME
        for each in self.path.glob(f"{FILE_NAME}*"):
            status = each.lstat()
            if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
                raise PermissionError(errno.EPERM, "it is a link, or no file", str(each))
            check_owner(each)
            each.chmod(0o600)
        if not path.exists():  # else the time of its last change would be lost
            path.touch(mode=0o600)  # SQLite gives its other files the same rights
        self._database = open_database(path, fsync=self._fsync, log_bytes=self._end.read(path))
        self._end.write(self._log_bytes())

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

    def hold_back(self, action: Callable[[], None]) -> bool:
        """Call a function when the changes up to now are written; return False, and do not call it, if they are."""
        if self._is_due:
            self._waiting.append(action)
        return self._is_due

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
            self._note_end()
        except (sqlite3.Error, EncodeError, ValueError, OSError) as error:
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

    def _note_end(self) -> None:
        """Note where the log ends, so that a later start notices a shorter one, and keep it short."""
        assert self._database is not None  # the directory is open
        size = self._log_bytes()
        if size >= MAX_LOG_BYTES:
            self._end.write(0)
            self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            size = self._log_bytes()
        self._end.write(size)

    def _log_bytes(self) -> int:
        try:
            return self._log.stat().st_size
        except FileNotFoundError:
            return 0

    def close(self) -> None:
        """Write what is left, and unlock the directory. Safe to call twice."""
        self.write()
        self._namespaces.clear()
        self._loop = None
        if self._database is not None:
            with suppress(sqlite3.Error):
                self._database.executescript("PRAGMA incremental_vacuum")  # `execute` makes only one step
            self._end.remove()
            self._database.close()
            self._database = None


def open_database(path: Path, *, fsync: bool, log_bytes: int = 0) -> sqlite3.Connection:
    """Lock and check a database, and create its tables if it is empty.

    Args:
        fsync: as for `DataDirectory`.
        log_bytes: the least size that its log must have.

    Raises:
        InvalidOperationError, OSError: as `DataDirectory.open`.
    """
    _check_log(path, log_bytes)
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
    pragma("wal_autocheckpoint = 0")  # see `DataDirectory.write`: SQLite would write over the log from its start
    database.execute(f"PRAGMA synchronous = {'FULL' if fsync else 'NORMAL'}")
    database.execute("PRAGMA foreign_keys = ON")


def _check_log(path: Path, least_bytes: int) -> None:
    """Check the log before SQLite opens the database, which removes a log that it cannot read.

    Raises:
        InvalidOperationError: the log is damaged, or another emulator uses the database.
    """
    log = path.with_name(f"{path.name}-wal")
    content = log.read_bytes() if log.exists() else b""
    state = state_of_log(content)
    if not state.is_damaged and len(content) >= least_bytes:
        return
    if _is_in_use(path):
        raise _used(path)
    raise InvalidOperationError(
        f"{log} is damaged: {state.whole_bytes} of {max(len(content), least_bytes)} bytes are whole, so nothing was "
        "read. Restore the directory from a copy, or, to start without the changes in the rest, cut the file to "
        f"{state.whole_bytes} bytes and delete {END_OF_LOG}"
    )


def _is_in_use(path: Path) -> bool:
    """Whether another process writes to the log, which then may look damaged."""
    shared = path.with_name(f"{path.name}-shm")
    is_new = not shared.exists()
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", timeout=0, uri=True)) as database:
            database.execute("PRAGMA schema_version").fetchone()
    except sqlite3.Error as error:
        return getattr(error, "sqlite_errorcode", 0) & 0xFF in _IN_USE
    finally:
        if is_new:
            shared.unlink(missing_ok=True)
    return False


_IN_USE: Final = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def _used(path: Path) -> InvalidOperationError:
    return InvalidOperationError(f"another emulator uses the data directory {path.parent}: choose another one")


def _explained(error: sqlite3.DatabaseError, path: Path) -> Exception:
    """The error to raise for one of SQLite while a data directory is opened."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
    if code in _IN_USE:
        return _used(path)
    if code == sqlite3.SQLITE_NOTADB:
        return InvalidOperationError(f"{path} is not a data file of the emulator: choose another directory")
    if code == sqlite3.SQLITE_CORRUPT:
        return InvalidOperationError(
            f"{path} is damaged, so nothing was read: restore the directory from a copy, or move the file away to "
            "begin without messages"
        )
    return OSError(f"{path} cannot be used: {error}")


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
