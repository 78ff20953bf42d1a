"""What an emulator with a data directory keeps, and how it fails, without a network."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from random import Random
from uuid import UUID

import pytest

from sbclient.broker.faults import Call, Operation
from sbclient.broker.namespace import Namespace
from sbclient.broker.profile import PREM_2021, STD_2021, Profile
from sbclient.clock import Clock
from sbclient.delivery import ServiceBusReceiveMode, Settlement, SettleMode
from sbclient.emulator.data import journal as journal_module
from sbclient.emulator.data.data_file import DataFile
from sbclient.emulator.data.directory import DataDirectory
from sbclient.entities import EntityAddress, EntityKind, QueueProperties
from sbclient.errors import InvalidOperationError
from sbclient.message import ServiceBusMessage
from tests.emulator.data.described import described


class Process:
    """One process with one namespace; `end` is an orderly end, without it the process was killed."""

    def __init__(self, folder: Path, profile: Profile = STD_2021, *, fsync: bool = False) -> None:
        self.failures: list[Exception] = []
        self.namespace = Namespace("contoso", random=Random(1), profile=profile)
        self.data = DataDirectory(folder, fsync=fsync, on_failure=self.failures.append)
        self.data.open()
        self.clock = Clock()
        self.was_restored = self.data.keep(self.namespace, self.clock)

    def call(self, operation: Operation) -> Call:
        return Call(operation, self.clock.now())

    def queue(self, name: str) -> None:
        address = EntityAddress(EntityKind.QUEUE, (name,))
        self.namespace.management.create(self.call(Operation.MANAGE), address, QueueProperties(name))

    def send(self, *bodies: str) -> None:
        for body in bodies:
            self.namespace.send(self.call(Operation.SEND), "q", [ServiceBusMessage(body)])

    def delete(self, count: int) -> None:
        mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
        self.namespace.receive(self.call(Operation.RECEIVE), "q", max_message_count=count, mode=mode)

    @property
    def bodies(self) -> list[str]:
        return [str(entry.content) for entry in self.namespace.queue("q").fragments[0].stored_between(-1)]

    @property
    def state(self) -> object:
        return described(self.namespace, self.clock.now())

    def kill(self) -> None:
        """What the end of the process does: the lock goes, and nothing is written."""
        assert self.data._lock is not None
        os.close(self.data._lock)
        self.data._lock = None


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def file(folder: Path) -> Path:
    return folder / "contoso.sbdata"


def read(file: Path) -> bytes:
    return file.read_bytes()


def damage(file: Path, position: int, byte: bytes) -> None:
    content = bytearray(file.read_bytes())
    content[position % len(content)] = byte[0]
    file.write_bytes(content)


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
    killed.kill()
    survivor = Process(folder)
    assert survivor.was_restored
    assert survivor.state == before
    survivor.send("three")
    assert survivor.bodies == ["one", "two", "three"]
    await survivor.data.close()


async def test_deferred_messages_are_counted_after_a_restart(folder: Path) -> None:
    killed = await filled(folder, "one", "two")
    call = killed.call(Operation.RECEIVE)
    received = killed.namespace.receive(call, "q", max_message_count=2)
    tokens = [UUID(int=entry.token) for entry in received]
    killed.namespace.settle(killed.call(Operation.SETTLE), "q", tokens, Settlement(SettleMode.DEFER))
    killed.data.write()
    killed.kill()
    survivor = Process(folder)
    (fragment,) = survivor.namespace.queue("q").fragments
    assert fragment.deferred_count == 2
    numbers = [received[0].number]
    survivor.namespace.receive_deferred(
        survivor.call(Operation.RECEIVE_DEFERRED), "q", numbers, mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE
    )
    assert fragment.deferred_count == 1
    await survivor.data.close()


async def test_orderly_end_leaves_only_a_snapshot(folder: Path, file: Path) -> None:
    ended = await filled(folder, *map(str, range(100)))
    ended.delete(99)
    ended.data.write()
    grown = len(read(file))
    before = ended.state
    await ended.data.close()
    assert Process(folder).state == before
    assert len(read(file)) < grown / 10


async def test_changes_of_one_step_of_the_loop_are_one_write(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = await filled(folder)
    written: list[bytes] = []
    monkeypatch.setattr(DataFile, "append", lambda _, frame: written.append(frame))
    process.send("one", "two")
    process.queue("other")
    assert process.data.is_behind
    assert not written
    await process.clock.sleep(0)
    assert len(written) == 1
    assert not process.data.is_behind


async def test_what_waits_for_a_write_follows_it(folder: Path) -> None:
    process = await filled(folder)
    process.send("one")
    followed: list[list[str]] = []
    process.data.when_written(lambda: followed.append(process.bodies))
    assert not followed
    await process.clock.sleep(0)
    assert followed == [["one"]]


async def test_damaged_end_is_cut_off_and_kept_aside(folder: Path, file: Path) -> None:
    killed = await filled(folder, "one")
    before = killed.state
    intact = len(read(file))
    killed.send("torn")
    killed.data.write()
    killed.kill()
    damage(file, -1, b"\xff")
    torn = read(file)[intact:]
    survivor = Process(folder)
    assert survivor.state == before
    assert read(folder / "contoso.sbdata.damaged-1") == torn
    assert len(read(file)) == intact


@pytest.mark.parametrize(
    ("position", "byte", "reason"),
    [
        (40, b"\xff", "the snapshot in .* is damaged at byte 34 of"),
        (0, b"x", "is not a data file of the emulator"),
        (32, b"7", "has version 7 of the format, and this release reads version 1"),
    ],
)
async def test_unreadable_file_is_refused_and_stays(
    folder: Path, file: Path, position: int, byte: bytes, reason: str
) -> None:
    process = await filled(folder, "one")
    await process.data.close()
    damage(file, position, byte)
    before = read(file)
    with pytest.raises(InvalidOperationError, match=reason):
        Process(folder)
    assert read(file) == before


async def test_other_profile_is_refused(folder: Path) -> None:
    await (await filled(folder)).data.close()
    with pytest.raises(InvalidOperationError, match="use --profile std-2021, or another directory"):
        Process(folder, PREM_2021)


async def test_unknown_record_is_refused_and_the_file_stays(
    folder: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = Process(folder)
    monkeypatch.setattr(journal_module, "encode_changes", lambda _: b"\xc0\x07\x01\xa1\x04soon")
    process.queue("q")
    process.data.write()
    process.kill()
    before = read(file)
    with pytest.raises(InvalidOperationError, match="has a record that this release cannot read"):
        Process(folder)
    assert read(file) == before


async def test_second_emulator_on_the_directory_is_refused(folder: Path) -> None:
    first = Process(folder)
    with pytest.raises(InvalidOperationError, match="another emulator uses the data directory"):
        Process(folder)
    await first.data.close()
    await Process(folder).data.close()


async def test_only_the_user_can_read_the_files(folder: Path) -> None:
    await filled(folder)
    assert modes(folder) == {0o700, 0o600}


async def test_fsync_follows_each_write(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process(folder, fsync=True)
    order: list[str] = []
    monkeypatch.setattr(DataFile, "append", lambda _, frame: order.append("write"))
    monkeypatch.setattr(DataFile, "sync", lambda _: order.append("sync"))
    process.queue("q")
    process.data.when_written(lambda: order.append("answer"))
    process.data.write()
    assert order == ["write", "sync", "answer"]


async def test_failed_write_lets_no_answer_leave(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = await filled(folder, "one")
    before = process.state

    def full(_: DataFile, frame: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(DataFile, "append", full)
    process.send("two")
    answered: list[str] = []
    process.data.when_written(lambda: answered.append("two"))
    for _ in range(3):
        process.data.write()
    assert not answered
    assert process.data.is_behind
    assert process.failures == [process.data.failure]
    monkeypatch.undo()
    await process.data.close()
    assert Process(folder).state == before


# ---------------------------------------------------------------------- replacement


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the file after few changes, with a snapshot of many pieces."""
    monkeypatch.setattr(journal_module, "MIN_CHANGES_BYTES", 2_000)
    monkeypatch.setattr("sbclient.broker.recovery.PIECE_COUNT", 2)


@pytest.mark.usefixtures("small")
async def test_file_is_replaced_while_messages_come_and_go(folder: Path, file: Path) -> None:
    process = await filled(folder)
    replacements, size_bytes = 0, 0
    async with process.clock.timeout(30):
        while replacements < 3:
            process.send("one more")
            process.delete(len(process.bodies) > 10)
            await process.clock.sleep(0)
            before_bytes, size_bytes = size_bytes, len(read(file))
            replacements += size_bytes < before_bytes
    before = process.state
    process.kill()
    assert Process(folder).state == before


@pytest.mark.usefixtures("small")
async def test_process_may_die_during_a_replacement(folder: Path) -> None:
    process = await filled(folder)
    while "contoso.sbdata.new" not in os.listdir(folder):
        process.send("more")
        await process.clock.sleep(0)
    process.send("last")
    process.data.write()
    before = process.state
    process.kill()
    assert Process(folder).state == before


@pytest.mark.usefixtures("small")
async def test_failed_replacement_leaves_the_old_file_in_use(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = await filled(folder)
    monkeypatch.setattr(DataFile, "create", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    for number in range(100):
        process.send(f"{number}")
        await process.clock.sleep(0)
    assert not process.failures
    monkeypatch.undo()
    before = process.state
    process.kill()
    assert Process(folder).state == before
