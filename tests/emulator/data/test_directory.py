"""What an emulator with a data directory keeps, and how it fails, without a network."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import stat
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Final
from uuid import UUID

import pytest

from sbclient import clock
from sbclient.amqp import encode_message
from sbclient.broker.faults import Call, Operation
from sbclient.broker.namespace import Namespace
from sbclient.broker.profile import PREM_2021, STD_2021, Profile
from sbclient.delivery import ServiceBusReceiveMode, Settlement, SettleMode
from sbclient.emulator.data.directory import MAX_LOG_BYTES, DataDirectory, state_of_log
from sbclient.entities import EntityAddress, EntityKind, QueueProperties
from sbclient.errors import InvalidOperationError
from sbclient.message import ServiceBusMessage
from tests.emulator.data.described import described

OPENED: list[DataDirectory] = []


@pytest.fixture(autouse=True)
def close_all() -> Iterator[Callable[[], None]]:
    """Close the directories of a test, which stay open as long as their process runs."""

    def close() -> None:
        while OPENED:
            OPENED.pop().close()

    yield close
    close()


class Process:
    """One process with one namespace."""

    def __init__(self, folder: Path, profile: Profile = STD_2021, *, fsync: bool = False) -> None:
        self.failures: list[Exception] = []
        self.folder = folder
        self.namespace = Namespace("contoso", random=Random(1), profile=profile)
        self.data = DataDirectory(folder, fsync=fsync, on_failure=self.failures.append)
        OPENED.append(self.data)
        self.data.open()
        self.was_restored = self.data.keep(self.namespace, clock.now())

    def call(self, operation: Operation) -> Call:
        return Call(operation, clock.now())

    def queue(self, name: str) -> None:
        address = EntityAddress(EntityKind.QUEUE, (name,))
        self.namespace.management.create(self.call(Operation.MANAGE), address, QueueProperties(name))

    def send(self, *bodies: str) -> None:
        for body in bodies:
            self.namespace.send(self.call(Operation.SEND), "q", [encode_message(ServiceBusMessage(body))])

    def delete(self, count: int) -> None:
        mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
        self.namespace.receive(self.call(Operation.RECEIVE), "q", max_message_count=count, mode=mode)

    @property
    def bodies(self) -> list[str]:
        return bodies(self.namespace)

    @property
    def state(self) -> object:
        return described(self.namespace, clock.now())

    @property
    def database(self) -> sqlite3.Connection:
        assert self.data._database is not None
        return self.data._database

    def survivor(self) -> Process:
        """The process that follows if this one is killed now: it has what is in the files."""
        copy = self.folder.with_name(f"{self.folder.name}-copy")
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self.folder, copy)  # with the times
        return Process(copy)


def bodies(namespace: Namespace) -> list[str]:
    (fragment,) = namespace.queue("q").fragments
    return [bytes(entry.content).decode() for entry in fragment.browse(0.0, 0)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def file(folder: Path) -> Path:
    return folder / "emulator.db"


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def dump(file: Path) -> list[str]:
    with closing(sqlite3.connect(file)) as database:
        return list(database.iterdump())


def put(file: Path, content: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)


def execute(file: Path, statement: str) -> None:
    with closing(sqlite3.connect(file, isolation_level=None)) as database:
        database.execute(statement)


def modes(folder: Path) -> set[int]:
    return {stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.iterdir())}


async def filled(folder: Path, *bodies: str) -> Process:
    process = Process(folder)
    process.queue("q")
    process.send(*bodies)
    process.data.write()
    return process


async def test_killed_process_comes_back_with_what_was_written(folder: Path) -> None:
    killed = await filled(folder, "one", "two")
    before = killed.state
    killed.send("not written")
    survivor = killed.survivor()
    assert survivor.was_restored
    assert survivor.state == before
    survivor.send("three")
    assert survivor.bodies == ["one", "two", "three"]


async def test_deferred_messages_are_counted_after_a_restart(folder: Path) -> None:
    killed = await filled(folder, "one", "two")
    received = killed.namespace.receive(killed.call(Operation.RECEIVE), "q", max_message_count=2)
    tokens = [UUID(int=entry.token) for entry in received]
    killed.namespace.settle(killed.call(Operation.SETTLE), "q", tokens, Settlement(SettleMode.DEFER))
    killed.data.write()
    survivor = killed.survivor()
    (fragment,) = survivor.namespace.queue("q").fragments
    assert fragment.deferred_count == 2
    numbers = [received[0].number]
    survivor.namespace.receive_deferred(
        survivor.call(Operation.RECEIVE_DEFERRED), "q", numbers, mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE
    )
    assert fragment.deferred_count == 1


async def test_message_that_is_removed_before_the_write_never_comes_back(folder: Path) -> None:
    """In each round the loop may do other work between the three: the message is stored, removed and written."""
    process = await filled(folder)
    process.database.execute("PRAGMA wal_autocheckpoint = 1")
    await clock.sleep(0)
    loop = asyncio.get_running_loop()
    for _ in range(100):
        loop.call_soon(process.delete, 1)
        process.send("x" * 500)
        assert process.survivor().bodies == []
        await clock.sleep(0)
        assert process.bodies == process.survivor().bodies == []


async def test_orderly_end_leaves_one_small_file(folder: Path) -> None:
    ended = await filled(folder, *["x" * 10_000] * 100)
    ended.delete(99)
    ended.data.write()
    before = ended.state
    ended.data.close()
    ended.data.close()
    (left,) = files(folder).values()
    assert len(left) < 200_000
    assert Process(folder).state == before


async def test_changes_of_one_step_of_the_loop_are_one_transaction(folder: Path) -> None:
    process = await filled(folder)
    statements: list[str] = []
    process.database.set_trace_callback(statements.append)
    process.send("one", "two")
    process.queue("other")
    written: list[int] = []
    assert process.data.hold_back(lambda: written.append(len(statements)))
    assert not statements
    await clock.sleep(0)
    assert statements[0] == "BEGIN"
    assert statements.count("COMMIT") == 1
    assert statements[-1] == "COMMIT"
    assert written == [len(statements)]
    assert not process.data.hold_back(statements.clear)


async def test_what_waits_for_a_write_follows_it(folder: Path) -> None:
    process = await filled(folder)
    process.send("one")
    followed: list[list[str]] = []
    process.data.hold_back(lambda: followed.append(process.survivor().bodies))
    assert not followed
    await clock.sleep(0)
    assert followed == [["one"]]


async def test_what_follows_a_write_may_change_more_which_is_written_too(folder: Path) -> None:
    process = await filled(folder)
    followed: list[list[str]] = []

    def change(left: int) -> None:
        followed.append(process.survivor().bodies)
        if left:
            process.send(str(left))
            assert process.data.hold_back(lambda: change(left - 1))

    process.send("first")
    assert process.data.hold_back(lambda: change(2))
    for _ in range(5):
        await clock.sleep(0)
    assert followed == [["first"], ["first", "2"], ["first", "2", "1"]]
    assert not process.data.hold_back(followed.clear)


async def test_torn_end_of_the_log_is_ignored(folder: Path) -> None:
    killed = await filled(folder, "one")
    before, acknowledged = killed.state, files(folder)
    killed.send("torn")
    killed.data.write()
    put(folder / "emulator.db-end", acknowledged["emulator.db-end"])  # it is written after the commit
    whole = files(folder)["emulator.db-wal"]
    for size in range(len(acknowledged["emulator.db-wal"]), len(whole), 509):
        put(folder / "emulator.db-wal", whole[:size])
        assert killed.survivor().state == before
        OPENED.pop().close()


DAMAGES: Final[dict[str, Callable[[bytes, int], bytes]]] = {
    "a flipped bit": lambda log, at: log[:at] + bytes([log[at] ^ 1]) + log[at + 1 :],
    "a lost end": lambda log, at: log[:at],
    "a lost start": lambda log, at: log[at + 1 :],
    "zeros": lambda log, at: log[:at] + bytes(min(512, len(log) - at)) + log[at + 512 :],
    "zeros up to the end": lambda log, at: log[:at] + bytes(len(log) - at),
    "zeros from the start": lambda log, at: bytes(at + 1) + log[at + 1 :],
}


@pytest.mark.promise("emulator.data-log")
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("is_reused", [False, True])
async def test_damaged_log_is_refused_and_stays(
    folder: Path, damage: str, is_reused: bool, record_property: Callable[[str, object], None]
) -> None:
    killed = await filled(folder, "one")
    if is_reused:  # by an earlier build: frames of earlier logs follow
        for _ in range(3):
            killed.send("x" * 20_000)
            killed.data.write()
            killed.database.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()
    for number in range(5):
        killed.send(f"acknowledged {number}")
        killed.data.write()
    before, whole = killed.state, files(folder)["emulator.db-wal"]
    assert killed.survivor().state == before
    end = state_of_log(whole).whole_bytes
    assert (end < len(whole)) == is_reused
    count = 0
    for at in sorted({*range(0, end, 1_021), *range(32), *range(32, 56), *range(end - 4_120, end - 4_096), end - 1}):
        damaged = DAMAGES[damage](whole, at)
        if damaged[:end] == whole[:end]:
            continue
        count += 1
        put(folder / "emulator.db-wal", damaged)
        copy, database = folder.with_name("data-copy"), files(folder)["emulator.db"]
        with pytest.raises(InvalidOperationError, match=r"db-wal is damaged: \d+ of \d+ bytes are whole"):
            killed.survivor()
        OPENED.pop().close()
        assert files(copy)["emulator.db-wal"] == damaged
        assert files(copy)["emulator.db"] == database
        assert "emulator.db-shm" not in files(copy)
    record_property("attacks", count)
    record_property("bytes", len(whole))


@pytest.mark.promise("emulator.data-log")
async def test_what_precedes_the_damage_of_a_log_can_be_used(folder: Path) -> None:
    killed = await filled(folder, "one")
    before, size = killed.state, len(files(folder)["emulator.db-wal"])
    killed.send("two")
    killed.data.write()
    log = files(folder)["emulator.db-wal"]
    put(folder / "emulator.db-wal", log[:-1] + bytes([log[-1] ^ 1]))
    with pytest.raises(InvalidOperationError, match=f"cut the file to {size} bytes and delete emulator.db-end"):
        killed.survivor()
    put(folder / "emulator.db-wal", log[:size])
    (folder / "emulator.db-end").unlink()
    assert killed.survivor().state == before


async def test_long_log_is_moved_to_the_database(folder: Path) -> None:
    """The process can be killed before and after each move."""
    process = await filled(folder, "one")
    sizes = [0]
    for _ in range(40):
        process.send("x" * 250_000)
        process.data.write()
        sizes.append(len(files(folder)["emulator.db-wal"]))
        if sizes[-1] < sizes[-2]:
            assert process.survivor().state == process.state
    assert max(sizes) < MAX_LOG_BYTES + 1_000_000
    assert len(files(folder)["emulator.db"]) > MAX_LOG_BYTES
    assert process.survivor().state == process.state


@pytest.mark.promise("emulator.data-log")
async def test_removed_log_is_noticed(folder: Path) -> None:
    killed = await filled(folder, "one")
    (folder / "emulator.db-wal").unlink()
    os.utime(folder / "emulator.db", ns=(0, 0))  # as if it had been written a while before
    with pytest.raises(InvalidOperationError, match=r"db-wal is damaged: 0 of \d+ bytes"):
        killed.survivor()


@pytest.mark.promise("emulator.data-files")
async def test_other_users_cannot_change_the_files(folder: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (await filled(folder, "one")).data.close()
    target = folder.with_name("target")

    def move() -> None:
        file.rename(target)
        file.symlink_to(target)

    spoils: list[tuple[Callable[[], object], Callable[[], object]]] = [
        (lambda: folder.chmod(0o777), lambda: folder.chmod(0o700)),
        (lambda: file.chmod(0o660), lambda: file.chmod(0o600)),
        (move, lambda: target.replace(file)),
        (lambda: os.link(file, target), target.unlink),
        (lambda: (folder / "emulator.db-wal").mkdir(), (folder / "emulator.db-wal").rmdir),
        (lambda: (folder / "emulator.db-wal").symlink_to(target), (folder / "emulator.db-wal").unlink),
        (lambda: os.mkfifo(folder / "emulator.db-end"), (folder / "emulator.db-end").unlink),
        (lambda: monkeypatch.setattr(os, "getuid", lambda: 4_711), monkeypatch.undo),
        (lambda: file.chmod(0o644), lambda: None),
    ]
    for spoil, restore in spoils[:-1]:
        spoil()
        with pytest.raises(PermissionError):
            Process(folder)
        restore()
    spoils[-1][0]()
    assert Process(folder).bodies == ["one"]
    assert modes(folder) == {0o700, 0o600}


@pytest.mark.promise("emulator.data-versions")
@pytest.mark.parametrize(
    ("position", "byte", "reason"),
    [
        (8192, b"\xff", "is damaged, so nothing was read"),
        (0, b"x", "is not a data file of the emulator"),
        (71, b"x", "is not a data file of the emulator"),
        (63, b"\x07", "has version 7 of the format, and this release reads version 2"),
    ],
)
async def test_unreadable_file_is_refused_and_stays(
    folder: Path, file: Path, position: int, byte: bytes, reason: str
) -> None:
    (await filled(folder, "one")).data.close()
    content = files(folder)[file.name]
    content = content[:position] + byte + content[position + 1 :]
    put(file, content)
    with pytest.raises(InvalidOperationError, match=reason):
        Process(folder)
    assert files(folder) == {file.name: content}


@pytest.mark.promise("emulator.data-versions")
async def test_database_of_another_program_is_refused(folder: Path, file: Path) -> None:
    put(file, b"")
    execute(file, "CREATE TABLE song (title TEXT)")
    with pytest.raises(InvalidOperationError, match="is not a data file of the emulator"):
        Process(folder)


@pytest.mark.promise("emulator.data-versions")
async def test_files_of_an_earlier_release_are_refused_and_stay(folder: Path) -> None:
    put(folder / "contoso.sbdata", b"sbclient emulator data, version 1\n")
    with pytest.raises(InvalidOperationError, match=r"contoso\.sbdata has version 1 .* use another directory"):
        Process(folder)
    assert list(files(folder)) == ["contoso.sbdata"]


async def test_folder_that_cannot_be_used_is_reported(folder: Path, file: Path) -> None:
    put(file / "x", b"")
    with pytest.raises(OSError, match=r"emulator\.db"):
        Process(folder)


@pytest.mark.promise("emulator.data-versions")
async def test_other_profile_is_refused(folder: Path) -> None:
    (await filled(folder)).data.close()
    with pytest.raises(InvalidOperationError, match="use --profile std-2021, or another directory"):
        Process(folder, PREM_2021)


@pytest.mark.promise("emulator.data-versions")
@pytest.mark.parametrize(
    "change",
    [
        "UPDATE entity SET description = x'a104736f6f6e'",
        "UPDATE entity SET description = x'00a105517565756500'",
        "UPDATE message SET payload = x'ff'",
        "UPDATE message SET state = 9",
        "UPDATE message SET number = 5 << 48",
    ],
)
async def test_unknown_row_is_refused_and_stays(
    folder: Path, file: Path, change: str, close_all: Callable[[], None]
) -> None:
    (await filled(folder, "one")).data.close()
    execute(file, change)
    before = dump(file)
    with pytest.raises(InvalidOperationError, match="has a row that this release cannot read"):
        Process(folder)
    close_all()
    assert dump(file) == before


async def test_second_emulator_on_the_directory_is_refused(folder: Path) -> None:
    first = Process(folder)
    with pytest.raises(InvalidOperationError, match="another emulator uses the data directory"):
        Process(folder)
    first.data.close()
    Process(folder).data.close()


@pytest.mark.parametrize(("fsync", "level"), [(False, 1), (True, 2)])
async def test_fsync_selects_that_a_commit_waits_for_the_disk(folder: Path, fsync: bool, level: int) -> None:
    process = Process(folder, fsync=fsync)
    assert process.database.execute("PRAGMA synchronous").fetchone() == (level,)
    assert process.database.execute("PRAGMA journal_mode").fetchone() == ("wal",)


async def test_failed_write_lets_no_answer_leave(folder: Path) -> None:
    process = await filled(folder, "one")
    before = process.state
    process.database.execute("PRAGMA max_page_count = 1")  # as a full disk: no page can be added
    process.send("x" * 100_000)
    answered: list[str] = []
    process.data.hold_back(lambda: answered.append("two"))
    for _ in range(3):
        process.data.write()
    assert process.data.hold_back(lambda: answered.append("three"))
    assert not answered
    assert process.failures == [process.data.failure]
    process.data.close()
    assert Process(folder).state == before


async def test_namespaces_share_the_directory(folder: Path) -> None:
    process = await filled(folder, "one")
    other = Namespace("fabrikam", random=Random(1))
    assert not process.data.keep(other, clock.now())
    address = EntityAddress(EntityKind.QUEUE, ("q",))
    other.management.create(process.call(Operation.MANAGE), address, QueueProperties("q"))
    other.send(process.call(Operation.SEND), "q", [encode_message(ServiceBusMessage("of the other"))])
    process.data.write()
    survivor = process.survivor()
    restored = Namespace("fabrikam", random=Random(1))
    assert survivor.data.keep(restored, clock.now())
    assert survivor.bodies == ["one"]
    assert bodies(restored) == ["of the other"]
