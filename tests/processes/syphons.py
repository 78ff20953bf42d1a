# ruff: noqa: T201 - a command line prints
"""Drain a backlog with syphons that are stopped, restarted and killed: `python -m tests.processes.syphons`.

The primary is down while the messages are sent, so that every one of them is diverted. Then three syphons run; one of
them is stopped with SIGTERM and restarted five times, another one is killed. The account checks what arrives.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Final

from tests.processes.account import Account, Evidence, account_of
from tests.processes.chaos import InjectedFault
from tests.processes.drain import drain_everything, left_in
from tests.processes.explanations import Explanations
from tests.processes.faults import PRIMARY, Fault, Kind
from tests.processes.scene import PRIMARY_NAME, SYPHON_END_S, Scene
from tests.simulation.history import Violation
from tests.stage.programs import Program, until
from tests.stage.proxy import Trouble

DESTINATIONS: Final = [f"orders-{number}" for number in range(4)]
QUEUES: Final = 10
SENDERS: Final = 4
SYPHONS: Final = 3
TERMINATIONS: Final = (0.1, 0.25, 0.4, 0.55, 0.7)
"""When the first syphon gets SIGTERM, as shares of the backlog that are drained."""

KILL_AT: Final = 0.35
LOCK_S: Final = 15.0
TIMEOUT_S: Final = 60.0


@dataclass(slots=True)
class Show:
    """The result.

    Attributes:
        statuses: the exit statuses of the syphon that gets SIGTERM.
        killed: how many times a syphon was killed.
        per_second: messages drained per second, from the first syphon's start to the last message.
    """

    account: Account
    backlog: int = 0
    statuses: list[int | None] = field(default_factory=list)
    killed: int = 0
    fill_s: float = 0.0
    drain_s: float = 0.0
    per_second: float = 0.0
    violations: list[Violation] = field(default_factory=list)


class Syphoning:
    """One run.

    Args:
        messages: how many are sent to the backlog.
        within_s: how long draining them may take.
        rate: the highest number of messages per second of each syphon, so that a small backlog lasts long enough;
            None = no limit.
    """

    def __init__(self, folder: Path, *, messages: int, within_s: float, rate: float | None = None) -> None:
        self._scene = Scene(folder)
        self._messages = messages
        self._within_s = within_s
        self._limits = ["--max-messages-per-second", str(rate)] if rate is not None else []
        self._injected: list[InjectedFault] = []
        self._wrong: list[Violation] = []

    async def run(self) -> Show:
        scene = self._scene
        async with scene:
            await self._make_entities()
            began = time.monotonic()
            await self._fill()
            fill_s = time.monotonic() - began
            backlog = sum(number for path, number in (await left_in(scene)).items() if "x-servicebus-transfer" in path)
            began = time.monotonic()
            statuses = await self._drain()
            drain_s = time.monotonic() - began
            left = await drain_everything(scene, DESTINATIONS, within_s=self._within_s)
            account = account_of(self._evidence(left))
        if backlog != account.accepted:
            text = f"{account.accepted} messages were accepted while the primary was down, {backlog} are in the backlog"
            self._wrong.append(Violation("I17", text))
        return Show(
            account,
            backlog=backlog,
            statuses=statuses,
            killed=sum(one.fault.kind is Kind.KILL for one in self._injected),
            fill_s=round(fill_s, 1),
            drain_s=round(drain_s, 1),
            per_second=round(backlog / drain_s, 1),
            violations=[*account.violations, *self._wrong],
        )

    async def _make_entities(self) -> None:
        async with self._scene.namespaces[PRIMARY].client() as client:
            for name in DESTINATIONS:
                await client.administration.create_queue(name, lock_duration=timedelta(seconds=LOCK_S))
        await self._scene.make_backlog(lock_s=LOCK_S, queues=QUEUES)

    # -- into the backlog ----------------------------------------------------------------------------------------

    async def _fill(self) -> None:
        """Send everything while no sender can reach the primary."""
        scene = self._scene
        senders = [await scene.add(f"sender-{number}") for number in range(1, SENDERS + 1)]
        shares = [len(range(number, self._messages, SENDERS)) for number in range(SENDERS)]
        for sender, share in zip(senders, shares, strict=True):
            scene.proxies[sender.name, PRIMARY].begin(Trouble(refuses=True))
            pairing = {
                "failover_interval_s": 0.0,
                "ping_primary_interval_s": 60.0,
                "backlog_queue_count": QUEUES,
                "primary_name": PRIMARY_NAME,
                "provision": "none",
            }
            scene.start_sender(
                sender,
                entities=DESTINATIONS,
                lanes=min(share, 200),
                count=share,
                pause_s=0.0,
                list_share=0.0,
                timeout_s=TIMEOUT_S,
                pairing=pairing,
            )
        for sender in senders:
            status = await sender.ended(self._within_s)
            assert status == 0, f"{sender.name} had status {status}: {sender.output()}"

    # -- drain ---------------------------------------------------------------------------------------------------

    async def _drain(self) -> list[int | None]:
        """Run the syphons until the backlog is empty; return the exit statuses of the one that gets SIGTERM."""
        scene = self._scene
        syphons = [await scene.add(f"syphon-{number}") for number in range(1, SYPHONS + 1)]
        for syphon in syphons:
            self._start(syphon)
        ended, killed, *_ = syphons
        statuses: list[int | None] = []
        for share in sorted((*TERMINATIONS, KILL_AT)):
            await self._until_moved(share * self._messages)
            if share == KILL_AT:
                await self._kill(killed)
            else:
                statuses.append(await self._end_and_start(ended))
        await self._until_moved(self._messages)
        running = [syphon for syphon in syphons if syphon.is_running]
        await scene.ready(running)
        for syphon in running:
            self._check_end(syphon, await syphon.terminate(SYPHON_END_S))
        await self._empty(ended)
        return statuses

    def _start(self, syphon: Program) -> None:
        self._scene.start_syphon(syphon, *self._limits, queues=QUEUES)

    async def _until_moved(self, number: float) -> None:
        """Wait until the syphons have sent this number of different messages to the primary."""
        scene = self._scene
        if not await until(lambda: len(scene.moved) >= number, self._within_s):
            self._wrong.append(
                Violation("I15", f"{len(scene.moved)} of {number:g} were drained in {self._within_s:g} s")
            )

    async def _end_and_start(self, syphon: Program) -> int | None:
        await self._scene.ready([syphon])
        begin = time.time()
        status = await syphon.terminate(SYPHON_END_S)
        self._check_end(syphon, status)
        self._start(syphon)
        self._injected.append(InjectedFault(Fault(0.0, 0.0, Kind.TERMINATE, syphon.name), begin, time.time()))
        return status

    async def _kill(self, syphon: Program) -> None:
        await self._scene.ready([syphon])
        begin = time.time()
        syphon.kill()
        # Its messages are delivered again when their locks end, and may be sent a second time until then.
        self._injected.append(InjectedFault(Fault(0.0, 0.0, Kind.KILL, syphon.name), begin, begin + LOCK_S))

    def _check_end(self, syphon: Program, status: int | None) -> None:
        if status != 0:
            self._wrong.append(Violation("I15", f"{syphon.name} had status {status} after SIGTERM"))
            syphon.kill()

    async def _empty(self, syphon: Program) -> None:
        """Run once more until the syphon reports an empty backlog."""
        self._scene.start_syphon(syphon, "--until", "empty", queues=QUEUES)
        self._check_end(syphon, await syphon.ended(self._within_s))

    # -- the account ---------------------------------------------------------------------------------------------

    def _evidence(self, left: dict[str, int]) -> Evidence:
        scene = self._scene
        return Evidence(
            sending={(program.name, life): lines for program, life, lines in scene.records("sender")},
            receiving={(program.name, life): lines for program, life, lines in scene.records("drain")},
            explanations=Explanations(
                scene.crossings,
                self._injected,
                [lines for _, _, lines in scene.syphon_logs()],
                timeout_s=TIMEOUT_S,
            ),
            expected_paths=lambda facts: [facts["entity"]],
            left=left,
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it and print the account; return 1 after a violation."""
    parser = argparse.ArgumentParser(prog="python -m tests.processes.syphons", description=__doc__)
    parser.add_argument("--messages", type=int, default=50_000, help="the number of messages to drain")
    parser.add_argument("--within", type=float, default=1200.0, help="seconds in which they must be drained")
    parser.add_argument("--rate", type=float, help="messages that each syphon moves in a second at most")
    parser.add_argument("--keep", type=Path, help="a folder in which all histories and logs are kept")
    parser.add_argument("--json", action="store_true", help="print JSON and nothing else")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="syphons-") as folder:
        kept = options.keep or Path(folder)
        kept.mkdir(parents=True, exist_ok=options.keep is None)
        syphoning = Syphoning(kept, messages=options.messages, within_s=options.within, rate=options.rate)
        show = asyncio.run(syphoning.run())
    print(json.dumps(asdict(show), indent=1) if options.json else as_text(show))
    return 1 if show.violations else 0


def as_text(show: Show) -> str:
    account = show.account
    lines = [
        f"{show.backlog:,} messages in the backlog after {show.fill_s:g} s",
        f"drained in {show.drain_s:g} s, {show.per_second:,.0f} a second, by {SYPHONS} syphons",
        f"stopped and restarted: statuses {', '.join(map(str, show.statuses))}; killed: {show.killed}",
        f"{account.accepted:,} accepted, {account.delivered:,} delivered, {account.lost} lost, "
        f"{account.unexpected} unexpected, {account.explained_duplicates} explained duplicates, "
        f"{account.unexplained_duplicates} unexplained",
    ]
    return "\n".join([*lines, *(f"BROKEN {one.invariant}: {one.text}" for one in show.violations[:20])])


if __name__ == "__main__":
    sys.exit(main())
