"""The emulator is killed at each step of each write and restarted. Everything that it had confirmed still holds."""

from __future__ import annotations

import asyncio
import itertools
import math
import sqlite3
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, cast

from sbclient import clock
from sbclient.broker.faults import Call, Operation
from sbclient.broker.namespace import Namespace
from sbclient.client.client import ServiceBusClient
from sbclient.client.sender import ServiceBusSender
from sbclient.emulator.amqp.connection import serve_amqp
from sbclient.emulator.context import NamespaceContext
from sbclient.emulator.data.directory import DataDirectory
from sbclient.emulator.faults import WireFaults
from sbclient.emulator.net.socket_stream import SocketStream
from sbclient.emulator.sas import AuthorizationMode, Authorizer
from sbclient.entities import EntityAddress, EntityKind, QueueProperties
from sbclient.errors import ServiceBusError
from sbclient.message import ServiceBusMessage, ServiceBusMessageState, ServiceBusReceivedMessage
from sbclient.tasks import Move, OwnedTasks
from sbclient.testing import MemoryNamespace
from sbclient.transport.amqp.connection import Sink, Stream
from sbclient.transport.amqp.credentials import shared_key
from sbclient.transport.amqp.transport import AmqpTransport
from sbclient.transport.memory.transport import MemoryTransport


class Killed(BaseException):
    """The process ends here."""


class Journal:
    """The database of a process that is killed before or after one of its statements."""

    def __init__(self, database: sqlite3.Connection, process: Process) -> None:
        self._database = database
        self._process = process

    def execute(self, statement: str, *arguments: Any) -> sqlite3.Cursor:
        self._process.step(statement)
        cursor = self._database.execute(statement, *arguments)
        if statement == "COMMIT":
            self._process.step("after COMMIT")
        return cursor

    def executemany(self, statement: str, rows: Any) -> sqlite3.Cursor:
        self._process.step(statement)
        return self._database.executemany(statement, rows)

    def executescript(self, script: str) -> sqlite3.Cursor:
        return self._database.executescript(script)

    def close(self) -> None:
        self._database.close()


class Process:
    """One emulator with one namespace.

    Args:
        dies_at: the number of the step at which it is killed; None = never.
    """

    def __init__(self, folder: Path, *, dies_at: int | None) -> None:
        self.steps_left: int | None = None
        self.is_dead = False
        self.died_at = ""
        self.tasks = OwnedTasks()
        self.lines: list[Line] = []
        self.host = MemoryNamespace("contoso", random=Random(1))
        self.namespace: Namespace = self.host.namespace
        self.data = DataDirectory(folder, fsync=False, on_failure=lambda error: None)
        self.data.open()
        assert self.data._database is not None
        self.data._database = cast(sqlite3.Connection, Journal(self.data._database, self))
        if not self.data.keep(self.namespace, clock.now()):
            call = Call(Operation.MANAGE, clock.now())
            made = QueueProperties("q", enable_partitioning=True, requires_duplicate_detection=True)
            self.namespace.management.create(call, EntityAddress(EntityKind.QUEUE, ("q",)), made)
        self.data.write()
        self.data.write = self._write  # type: ignore[method-assign]  # of this process
        self.steps_left = dies_at
        self.context = NamespaceContext(
            host=self.host,
            authorizer=Authorizer(AuthorizationMode.NONE),
            wire_faults=WireFaults(Random(1)),
            random=Random(1),
            data=self.data,
        )

    def _write(self) -> None:
        with suppress(Killed):
            DataDirectory.write(self.data)

    def step(self, what: str) -> None:
        """Count a step of a write; the process is killed at one of them."""
        if self.steps_left is None or self.is_dead:
            return
        self.steps_left -= 1
        if self.steps_left < 0:
            self.died_at = what
            self.kill()
            raise Killed

    def kill(self) -> None:
        """End at once: nothing more is written or sent."""
        self.is_dead = True
        database, self.data._database = self.data._database, None
        assert database is not None
        database.close()
        for line in self.lines:
            line.lose()

    async def serve(self, stream: SocketStream) -> None:
        first = await stream.read()
        if first:
            await serve_amqp(stream, self.context, first)

    async def end(self) -> None:
        self.is_dead = True
        for line in self.lines:
            line.lose()
        await self.tasks.close()
        self.data.close()


class Line(asyncio.Transport):
    """A connection: the stream of the client, and the transport of the server."""

    def __init__(self, process: Process, sink: Sink) -> None:
        super().__init__()
        self._process = process
        self._sink = sink
        self._is_lost = False
        self._loop = asyncio.get_running_loop()
        self._server = SocketStream(process.context.wire_faults, self._accepted, lambda _: None, process.data.hold_back)
        process.lines.append(self)
        self._server.connection_made(self)

    def _accepted(self, stream: SocketStream) -> None:
        self._process.tasks.start(self._process.serve(stream), name="serve")

    def lose(self) -> None:
        """Break the connection. The client first gets what was written before."""
        if not self._is_lost:
            self._is_lost = True
            self._loop.call_soon(self._sink.on_lost, ConnectionResetError("reset by peer"))
            self._server.connection_lost(None)

    # -- of the client -------------------------------------------------------------------------------------------

    class Client(Stream):
        """The end of the client."""

        def __init__(self, line: Line) -> None:
            self._line = line

        def write(self, data: bytes) -> None:
            self._line._loop.call_soon(self._line._take, bytes(data))

        def close(self) -> None:
            self._line.lose()

        def abort(self) -> None:
            self._line.lose()

        def abandon(self, move: Move) -> None:
            self._line.lose()

    def _take(self, data: bytes) -> None:
        if not self._is_lost:
            self._server.get_buffer(len(data))[: len(data)] = data
            self._server.buffer_updated(len(data))

    # -- of the server -------------------------------------------------------------------------------------------

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "socket":
            raise OSError("there is no socket")
        return default

    def is_closing(self) -> bool:
        return self._is_lost

    def write(self, data: Any) -> None:
        if not self._is_lost:
            self._loop.call_soon(self._sink.on_bytes, bytes(data))

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def close(self) -> None:
        self.lose()

    def abort(self) -> None:
        self.lose()


class Story:
    """What one client does, and what the emulator confirms.

    Args:
        dies_at: the step at which the emulator is killed; the client then reaches the one that follows.

    Attributes:
        places: where each message may be: `queue`, `deferred`, `dead` or `gone`.
    """

    def __init__(self, folder: Path, dies_at: int) -> None:
        self._folder = folder
        self.process = self._first = Process(folder, dies_at=dies_at)
        self.places: dict[str, set[str]] = {}

    @property
    def died_at(self) -> str:
        """The step at which the emulator was killed; empty if the story ended before."""
        return self._first.died_at

    async def connect(self, sink: Sink) -> Stream:
        if self.process.is_dead:
            await self.process.end()
            self.process = Process(self._folder, dies_at=None)
        return Line.Client(Line(self.process, sink))

    async def run(self) -> None:
        transport = AmqpTransport(
            "contoso",
            "contoso",
            self.connect,
            shared_key("root", "key"),
            random=Random(1),
            management=lambda: MemoryTransport(self.process.host),
        )
        async with ServiceBusClient(transport=transport, timeout=5.0, retry_total=0, random=Random(1)) as client:
            sender = client.get_queue_sender("q", partitioned=True)
            for names in (
                ["kept"],
                ["completed"],
                ["deferred"],
                ["lettered"],
                ["abandoned"],
                ["moved"],
                ["one", "two"],
            ):
                for _ in range(2):  # what is in doubt is sent again, so that its ids must be remembered
                    await self._confirmed(names, "queue", partial(sender.send_messages, messages(names)))
            later = datetime.fromtimestamp(clock.now() + 3_600, UTC)
            await self._confirmed(["later"], "queue", lambda: sender.schedule_messages(messages(["later"]), later))
            for _ in range(3):
                await self._settle(client, sender)
        await self.process.end()

    async def _confirmed(self, names: list[str], after: str, work: Callable[[], Awaitable[object]]) -> None:
        """Do something that moves messages, unless it is done, and note where they may be then."""
        if all(self.places.get(name) == {after} for name in names):
            return
        try:
            await work()
        except ServiceBusError as error:
            after_all = {after} if error.is_in_doubt else set()
            for name in names:
                self.places[name] = self.places.get(name, {"gone"}) | after_all
        else:
            for name in names:
                self.places[name] = {after}

    async def _settle(self, client: ServiceBusClient, sender: ServiceBusSender) -> None:
        """Settle what is still in the queue; locks have ended where the emulator was killed."""

        async def move(message: ServiceBusReceivedMessage) -> None:
            transaction = client.transaction()
            async with transaction:
                await sender.send_messages(messages(["sum"]), transaction=transaction)
                await receiver.complete_message(message, transaction=transaction)

        await clock.sleep(61.0)
        receiver = client.get_queue_receiver("q")
        with suppress(ServiceBusError):
            async with receiver:
                for message in await receiver.receive_messages(20, max_wait_time=1.0):
                    name = str(message)
                    ways: dict[str, tuple[str, Callable[[], Awaitable[object]]]] = {
                        "completed": ("gone", partial(receiver.complete_message, message)),
                        "deferred": ("deferred", partial(receiver.defer_message, message)),
                        "lettered": ("dead", partial(receiver.dead_letter_message, message)),
                        "abandoned": ("queue", partial(receiver.abandon_message, message)),
                        "moved": ("gone", partial(move, message)),
                    }
                    if name in ways:
                        await self._confirmed([name], *ways[name])


def messages(names: list[str]) -> list[ServiceBusMessage]:
    return [ServiceBusMessage(name, message_id=name, partition_key="k") for name in names]


def found(namespace: Namespace) -> Counter[tuple[str, str]]:
    """How often each message is in each place."""
    entity = namespace.directory.get("q")
    assert entity is not None
    counts: Counter[tuple[str, str]] = Counter()
    for name, body in [("", entity.body), *entity.sub_queues.items()]:
        for fragment in body.fragments:
            for entry in fragment.browse(-math.inf, 0):
                is_deferred = entry.state is ServiceBusMessageState.DEFERRED
                place = "dead" if name else "deferred" if is_deferred else "queue"
                counts[bytes(entry.content).decode(), place] += 1
    return counts


async def test_what_is_confirmed_holds_after_a_kill_at_each_step_of_each_write(tmp_path: Path) -> None:
    steps: Counter[str] = Counter()
    for number in itertools.count():
        story = Story(tmp_path / str(number), number)
        await story.run()
        survivor = Process(tmp_path / str(number), dies_at=None)
        counts = found(survivor.namespace)
        await survivor.end()
        where = f"killed at step {number}: {story.died_at}"
        for name, places in story.places.items():
            actual = [place for (one, place), count in counts.items() for _ in range(count) if one == name]
            assert actual in [[place] if place != "gone" else [] for place in places], f"{name}, {where}"
        assert counts["sum", "queue"] == 1 - counts["moved", "queue"], where
        if not story.died_at:
            break
        steps[story.died_at.split()[0]] += 1
    assert {"BEGIN", "REPLACE", "DELETE", "COMMIT", "after"} <= steps.keys()
    assert steps.total() > 80
