"""One run of one configuration: set-up, chaos, quiet phase, account."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from sbclient.entities import SqlRuleFilter
from tests.processes.account import Account, Evidence, account_of
from tests.processes.chaos import ChaosRun, InjectedFault
from tests.processes.configurations import Configuration
from tests.processes.drain import drain_everything
from tests.processes.explanations import Explanations
from tests.processes.faults import PRIMARY, Fault, draw_faults
from tests.processes.record import Line
from tests.processes.scene import BACKLOG_QUEUES, END_S, LOCK_S, PRIMARY_NAME, SYPHON_END_S, Scene
from tests.simulation.history import Violation
from tests.stage.programs import Program

TIMEOUT_S: Final = 6.0
PRIMARY_SHARE: Final = 0.75
"""How much of a sender's timeout is the primary's."""

EMPTY_S: Final = 120.0
"""How long the syphons may take, once everything is healed, until nothing is left."""


@dataclass(slots=True)
class Result:
    """The result of a run.

    Attributes:
        failovers, recoveries: how often a sender switched to the backlog, and back to the primary.
        injected: how often each kind of fault had an effect.
        phases: seconds that each part of the run took.
    """

    name: str
    seed: int
    account: Account
    faults: list[Fault]
    failovers: int = 0
    recoveries: int = 0
    injected: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    phases: dict[str, float] = field(default_factory=dict)


class Run:
    """One run.

    Args:
        folder: an empty folder for its files.
        seconds: how long the chaos lasts.
        seed: fixes the schedule of the chaos, and what programs draw.
    """

    def __init__(self, configuration: Configuration, folder: Path, *, seconds: float, seed: int) -> None:
        self._configuration = configuration
        self._seconds = seconds
        self._seed = seed
        self._scene = Scene(folder)
        self._wrong: list[str] = []
        self._phases: dict[str, float] = {}
        self._phase_began = time.monotonic()

    def _phase(self, name: str) -> None:
        """End the current phase and record its duration."""
        now = time.monotonic()
        self._phases[name], self._phase_began = round(now - self._phase_began, 1), now

    async def run(self) -> Result:
        configuration, scene = self._configuration, self._scene
        async with scene:
            await self._set_up()
            self._phase("set up")
            faults = draw_faults(
                self._seed, self._seconds, configuration.outages, configuration.sources, list(scene.programs)
            )
            chaos = ChaosRun(scene, faults, self._start)
            await chaos.run(self._seconds)
            self._phase("chaos")
            left = await self._settle_down()
            account = account_of(self._evidence(chaos.injected, left))
        for text in (*chaos.wrong, *self._wrong):
            account.violations.append(Violation("I15", text))
        result = Result(configuration.name, self._seed, account, faults, phases=self._phases)
        result.seconds = sum(self._phases.values())
        logs = [line for _, _, lines in scene.records("sender") for line in lines if line["event"] == "log"]
        result.failovers = sum(line["name"] == "failover.engaged" for line in logs)
        result.recoveries = sum(line["name"] == "failover.recovered" for line in logs)
        for injected in chaos.injected:
            if injected.had_effect:
                kind = str(injected.fault.kind)
                result.injected[kind] = result.injected.get(kind, 0) + 1
        if not result.failovers or not account.diverted:
            text = f"{result.failovers} failovers and {account.diverted} diverted messages: this run shows nothing"
            account.violations.append(Violation("I16", text))
        return result

    # -- before the faults

    async def _set_up(self) -> None:
        configuration, scene = self._configuration, self._scene
        await self._make_entities()
        await scene.make_backlog(lock_s=LOCK_S, ordering=configuration.ordering)
        for kind, number in (
            ("sender", configuration.senders),
            ("receiver", configuration.receivers),
            ("syphon", configuration.syphons),
        ):
            for index in range(1, number + 1):
                self._start(await scene.add(f"{kind}-{index}"))
        await scene.ready(list(scene.programs.values()))

    async def _make_entities(self) -> None:
        configuration = self._configuration
        description: dict[str, Any] = {
            "lock_duration": timedelta(seconds=LOCK_S),
            "max_delivery_count": 1000,
            "dead_lettering_on_message_expiration": True,
            **configuration.queue,
        }
        async with self._scene.namespaces[PRIMARY].client() as client:
            if not configuration.rules:
                await client.administration.create_queue("orders", **description)
                return
            await client.administration.create_topic("orders")
            for name, filtered in configuration.rules.items():
                await client.administration.create_subscription("orders", name, **description)
                await client.administration.delete_rule("orders", name, "$Default")
                await client.administration.create_rule("orders", name, "of-this", filter=SqlRuleFilter(filtered))

    def _start(self, program: Program) -> None:
        """Start a process of a program."""
        configuration, scene = self._configuration, self._scene
        kind, _, number = program.name.partition("-")
        seed = self._seed * 1000 + int(number)
        if kind == "sender":
            pairing = {
                "failover_interval_s": configuration.failover_interval_s,
                "ping_primary_interval_s": 1.0,
                "backlog_queue_count": BACKLOG_QUEUES,
                "primary_name": PRIMARY_NAME,
                "ordering": configuration.ordering,
                "provision": "none",
            }
            scene.start_sender(
                program,
                resumes=configuration.resumes,
                entities=["orders"],
                is_topic=bool(configuration.rules),
                keys=configuration.keys,
                seed=seed,
                timeout_s=TIMEOUT_S,
                pairing=pairing,
                **configuration.sending,
            )
        elif kind == "receiver":
            scene.start_receiver(
                program,
                paths=configuration.paths,
                has_sessions=configuration.has_sessions,
                seed=seed,
                **configuration.receiving,
            )
        else:
            scene.start_syphon(program, ordering=configuration.ordering)

    # -- after the faults

    async def _settle_down(self) -> dict[str, int]:
        """Remove all faults, let all programs finish, drain the backlog; return the remaining messages by queue."""
        scene = self._scene
        for namespace in scene.namespaces.values():
            await namespace.control("DELETE", "faults")
        await self._end("sender", END_S)
        self._phase("senders end")
        await self._end("syphon", SYPHON_END_S)
        self._phase("syphons end")
        await self._empty_backlog()
        self._phase("syphon until empty")
        await self._end("receiver", END_S)
        self._phase("receivers end")
        paths, has_sessions = self._configuration.paths, self._configuration.has_sessions
        left = await drain_everything(scene, paths, has_sessions=has_sessions, within_s=EMPTY_S)
        self._phase("drain")
        return left

    async def _end(self, kind: str, within_s: float) -> None:
        """Terminate all programs of a kind; they must end in time, with status 0."""
        programs = self._scene.programs_of(kind)
        for program, status in zip(
            programs, await asyncio.gather(*(program.terminate(within_s) for program in programs)), strict=True
        ):
            if status != 0:
                last_line = program.output().strip().rpartition("\n")[2]
                self._wrong.append(f"{program.name} had status {status} after SIGTERM: {last_line}")
                program.kill()

    async def _empty_backlog(self) -> None:
        """Run a syphon until it reports an empty backlog, as a cron job would."""
        syphon = self._scene.programs_of("syphon")[0]
        deadline = time.monotonic() + EMPTY_S
        while True:
            self._scene.start_syphon(syphon, "--until", "empty", ordering=self._configuration.ordering)
            status = await syphon.ended(deadline - time.monotonic())
            if status == 0:
                return
            if status is None or time.monotonic() > deadline:
                last_line = syphon.output().strip().rpartition("\n")[2]
                self._wrong.append(f"the backlog was not empty after {EMPTY_S:g} s: status {status}, {last_line}")
                syphon.kill()
                return

    # -- records ------------------------------------------------------------------------------------------------

    def _evidence(self, injected: list[InjectedFault], left: dict[str, int]) -> Evidence:
        configuration, scene = self._configuration, self._scene
        received = [*scene.records("receiver"), *scene.records("drain")]
        return Evidence(
            sending={(program.name, life): lines for program, life, lines in scene.records("sender")},
            receiving={(program.name, life): lines for program, life, lines in received},
            explanations=Explanations(
                scene.crossings,
                injected,
                [lines for _, _, lines in scene.syphon_logs()],
                timeout_s=TIMEOUT_S * PRIMARY_SHARE,
            ),
            expected_paths=self._expected_paths,
            has_sessions=configuration.has_sessions,
            keeps_order=configuration.ordering == "session",
            is_partitioned=bool(configuration.queue.get("enable_partitioning")),
            detects_duplicates=bool(configuration.queue.get("requires_duplicate_detection")),
            left=left,
        )

    def _expected_paths(self, facts: Line) -> list[str]:
        """Return where a message must arrive: the queue, or each subscription whose filter matches it."""
        rules = self._configuration.rules
        if not rules:
            return ["orders"]
        passes = {"all": True, "red": facts["color"] == "red", "not-red": facts["color"] != "red"}
        return [f"orders/Subscriptions/{name}" for name in rules if passes[name]]
