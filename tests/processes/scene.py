"""Everything that takes part in a run: two namespaces, the programs, and a proxy for each program to each namespace."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from tests.commands import SBCLIENT
from tests.processes.faults import PRIMARY, SECONDARY
from tests.processes.receiving import ReceivingPlan
from tests.processes.record import Line, lines_of
from tests.processes.sending import SendingPlan
from tests.stage.namespaces import READY_S, Namespace, connection_string
from tests.stage.programs import Program, until
from tests.stage.proxy import Proxy

PRIMARY_NAME: Final = "contoso"
NAMES: Final = {PRIMARY: PRIMARY_NAME, SECONDARY: "contoso-backup"}
BACKLOG_QUEUES: Final = 3
LOCK_S: Final = 8.0
"""How long a lock lasts, at the destinations and in the backlog."""

UNLIMITED_DELIVERIES: Final = 2_147_483_647

END_S: Final = 90.0
"""How long a program may take to end after SIGTERM, once everything is healed. Those that send try for 60 s."""

SYPHON_END_S: Final = 45.0
"""The same for a syphon, also behind failing proxies; service managers usually allow 90 s."""


@dataclass(frozen=True, slots=True)
class Crossing:
    """A message that passed, or was about to pass, towards a namespace."""

    at: float
    program: str
    side: str


class Scene:
    """The processes and proxies of one run. `async with` starts the namespaces, and ends every process and proxy.

    Attributes:
        folder: where all files of the run are.
        namespaces: by side.
        programs: by name.
        proxies: by program and side.
        crossings: of each uid, in order.
        moved: the uids that syphons have sent to the primary.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.namespaces = {side: Namespace(name, folder) for side, name in NAMES.items()}
        self.programs: dict[str, Program] = {}
        self.proxies: dict[tuple[str, str], Proxy] = {}
        self.crossings: dict[str, list[Crossing]] = {}
        self.moved: set[str] = set()

    async def __aenter__(self) -> Self:
        try:
            await asyncio.gather(*(namespace.begin() for namespace in self.namespaces.values()))
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close()

    async def _close(self) -> None:
        for program in (*self.programs.values(), *self.namespaces.values()):
            program.kill()
        for proxy in self.proxies.values():
            await proxy.close()

    # -- what is there -------------------------------------------------------------------------------------------

    def programs_of(self, kind: str) -> list[Program]:
        """`sender`, `receiver` or `syphon`."""
        return [program for name, program in self.programs.items() if name.startswith(f"{kind}-")]

    def proxies_of(self, whom: str) -> Iterator[Proxy]:
        """Return the proxies of `Fault.whom`: all to a namespace, all of a program, or one."""
        program, _, end = whom.partition(">")
        for (owner, side), proxy in self.proxies.items():
            if (end and (owner, side) == (program, end)) or (not end and program in (owner, side)):
                yield proxy

    def records(self, kind: str) -> Iterator[tuple[Program, int, list[Line]]]:
        """Return the records of all processes of all programs of a kind."""
        for program in self.programs_of(kind):
            for life in range(program.life + 1):
                yield program, life, list(lines_of(program.file("jsonl", life)))

    def syphon_logs(self) -> Iterator[tuple[Program, int, list[Line]]]:
        """Return the log lines of all processes of all syphons."""
        for program in self.programs_of("syphon"):
            for life in range(program.life + 1):
                yield program, life, list(lines_of(program.file("log", life)))

    # -- before anything runs ------------------------------------------------------------------------------------

    async def make_backlog(self, *, lock_s: float, ordering: str = "none", queues: int = BACKLOG_QUEUES) -> None:
        """The backlog queues, as pairing would make them but for the lock."""
        description: dict[str, Any] = {
            "lock_duration": timedelta(seconds=lock_s),
            "max_delivery_count": UNLIMITED_DELIVERIES,
            "dead_lettering_on_message_expiration": True,
        }
        async with self.namespaces[SECONDARY].client() as client:
            for index in range(queues):
                create = client.administration.create_queue
                await create(f"{PRIMARY_NAME}/x-servicebus-transfer/{index}", **description)
                if ordering == "session":
                    name = f"{PRIMARY_NAME}/x-servicebus-transfer-sessions/{index}"
                    await create(name, **description, requires_session=True)

    async def add(self, name: str) -> Program:
        """A program, and its proxies to both namespaces."""
        program = self.programs[name] = Program(name, self.folder)
        for side, namespace in self.namespaces.items():
            proxy = self.proxies[name, side] = Proxy(namespace.port, self._witness(name, side))
            await proxy.start()
        return program

    def _witness(self, program: str, side: str) -> Any:
        def note(uid: str) -> None:
            self.crossings.setdefault(uid, []).append(Crossing(time.time(), program, side))
            if side == PRIMARY and program.startswith("syphon-"):
                self.moved.add(uid)

        return note

    def way(self, program: str, side: str) -> str:
        """The connection string by which a program reaches a namespace."""
        return connection_string(self.proxies[program, side].port)

    # -- starting ------------------------------------------------------------------------------------------------

    def start_sender(self, program: Program, *, resumes: bool = False, **more: Any) -> None:
        """Another life of a sender; `more` are fields of its plan."""
        life = program.life + 1
        plan = SendingPlan(
            uid_prefix=f"{program.name}.{life}",
            primary=self.way(program.name, PRIMARY),
            secondary=self.way(program.name, SECONDARY),
            record=str(program.file("jsonl", life)),
            unfinished=str(program.file("jsonl", life - 1)) if resumes and life else "",
            **more,
        )
        path = plan.write(program.file("json", life))
        program.start([sys.executable, "-m", "tests.processes.sending", str(path)])

    def start_receiver(self, program: Program, **more: Any) -> None:
        """Another life of a receiver; `more` are fields of its plan."""
        life = program.life + 1
        record = str(program.file("jsonl", life))
        plan = ReceivingPlan(primary=self.way(program.name, PRIMARY), record=record, **more)
        path = plan.write(program.file("json", life))
        program.start([sys.executable, "-m", "tests.processes.receiving", str(path)])

    def start_syphon(
        self, program: Program, *arguments: str, ordering: str = "none", queues: int = BACKLOG_QUEUES
    ) -> None:
        """Another life of a syphon, started with the public command."""
        command = [*SBCLIENT, "syphon", "--primary-name", PRIMARY_NAME, "--backlog-queue-count", str(queues), "--json"]
        if ordering == "session":
            command.append("--sessions")
        program.start([*command, *arguments], self._syphon_environment(program))

    def _syphon_environment(self, program: Program) -> Mapping[str, str]:
        return {
            "SERVICEBUS_CONNECTION_STRING": self.way(program.name, PRIMARY),
            "SERVICEBUS_SECONDARY_CONNECTION_STRING": self.way(program.name, SECONDARY),
        }

    async def ready(self, programs: Sequence[Program]) -> None:
        """Wait until they are at work.

        Raises:
            AssertionError: one of them ended, or took too long.
        """
        await until(lambda: all(is_ready(program) or not program.is_running for program in programs), READY_S)
        for program in programs:
            assert is_ready(program), f"{program.name} is not ready, its status {program.status}: {program.output()}"


def is_ready(program: Program) -> bool:
    """Whether it has said so: a syphon in its log, others in their history."""
    events = {line["event"] for line in (*lines_of(program.file("jsonl")), *lines_of(program.file("log")))}
    return bool(events & {"ready", "syphon.started"})
