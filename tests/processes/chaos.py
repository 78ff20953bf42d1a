"""Injects the scheduled faults of a run and records when each one was in effect."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final
from urllib.error import URLError

from tests.processes.faults import GENTLE, OF_PROXIES, PRIMARY, SECONDARY, Fault, Kind
from tests.processes.scene import LOCK_S, SYPHON_END_S, Scene, is_ready
from tests.stage.programs import Program
from tests.stage.proxy import Proxy, Trouble, Way


@dataclass(slots=True)
class InjectedFault:
    """The record of an injected fault.

    Attributes:
        begin, end: seconds since 1970.
        had_effect: whether the fault affected a connection or a running program.
    """

    fault: Fault
    begin: float
    end: float = float("inf")
    had_effect: bool = True


_LOSING: Final = (Kind.LOST_ANSWERS, Kind.LOST_REQUESTS)


class ChaosRun:
    """Injects the faults of one run.

    Args:
        restart: starts another life of a program.

    Attributes:
        injected: what has injected, in order.
        wrong: what should not have happened: programs that did not end as they should.
    """

    def __init__(self, scene: Scene, faults: Sequence[Fault], restart: Callable[[Program], None]) -> None:
        self._scene = scene
        self._faults = faults
        self._restart = restart
        self._busy: set[str] = set()
        self.injected: list[InjectedFault] = []
        self.wrong: list[str] = []

    async def run(self, seconds: float) -> None:
        """Inject each fault at its time, remove it after its duration, and return after `seconds`."""
        began = asyncio.get_running_loop().time()
        async with asyncio.TaskGroup() as group:
            for fault in self._faults:
                group.create_task(self._inject(fault, began))
        await asyncio.sleep(max(0.0, began + seconds - asyncio.get_running_loop().time()))

    async def _inject(self, fault: Fault, began: float) -> None:
        await asyncio.sleep(max(0.0, began + fault.at_s - asyncio.get_running_loop().time()))
        injected = InjectedFault(fault, time.time())
        self.injected.append(injected)
        try:
            if fault.kind in OF_PROXIES:
                injected.had_effect = await self._fault_proxies(fault)
            elif fault.kind is Kind.FAULT:
                injected.had_effect = await self._throw_switch(fault)
            else:
                injected.had_effect = await self._fault_program(fault)
        finally:
            injected.end = time.time()

    # -- proxies ---------------------------------------------------------------------------------------------------

    async def _fault_proxies(self, fault: Fault) -> bool:
        proxies = list(self._scene.proxies_of(fault.whom))
        if fault.kind is Kind.MID_FRAME:
            return await self._cut_in_a_frame(proxies, fault)
        trouble = _trouble_of(fault)
        cut_count = 0
        for proxy in proxies:
            proxy.begin(trouble)
            if fault.kind is Kind.RESET:
                cut_count += proxy.cut()
        await asyncio.sleep(fault.span_s)
        for proxy in proxies:
            if fault.kind in _LOSING or fault.facts.get("is_lost"):
                cut_count += proxy.cut()
            proxy.end(trouble)
        return cut_count > 0 or fault.kind not in (Kind.RESET, *_LOSING)

    async def _cut_in_a_frame(self, proxies: Sequence[Proxy], fault: Fault) -> bool:
        before = sum(proxy.cut_count for proxy in proxies)
        for proxy in proxies:
            proxy.cut_after(fault.facts["after_bytes"])
        await asyncio.sleep(fault.span_s)
        for proxy in proxies:
            proxy.spare()
        return sum(proxy.cut_count for proxy in proxies) > before

    # -- processes -----------------------------------------------------------------------------------------------

    async def _fault_program(self, fault: Fault) -> bool:
        program = self._scene.programs.get(fault.whom) or self._scene.namespaces[fault.whom]
        if program.name in self._busy or not program.is_running:
            return False  # two faults of one program would conflict
        self._busy.add(program.name)
        try:
            if fault.kind is Kind.FREEZE:
                program.signal(signal.SIGSTOP)
                await asyncio.sleep(fault.span_s)
                program.signal(signal.SIGCONT)
                return True
            if fault.kind is Kind.KILL:
                program.kill()
            else:
                await self._end(program)
            await asyncio.sleep(fault.span_s)
            self._restart(program)
            return True
        finally:
            program.signal(signal.SIGCONT)
            self._busy.discard(program.name)

    async def _end(self, program: Program) -> None:
        """Terminate a program, which must end in time with status 0.

        Status 1, for messages that were not released, is allowed during another fault. Before the interpreter runs, the
        default action of SIGTERM is allowed.
        """
        was_ready, began = is_ready(program), time.time()
        status = await program.terminate(SYPHON_END_S)
        excused = {0} | ({1} if self._is_faulted(program, began) else set())
        if status not in (excused if was_ready else excused | {-signal.SIGTERM}):
            self.wrong.append(f"{program.name} had status {status} after SIGTERM: {program.output()[-300:]}")
            program.kill()

    def _is_faulted(self, program: Program, since: float) -> bool:
        """Whether another fault affected the program or a namespace since then or shortly before."""
        return any(
            one.fault.whom.partition(">")[0] in (program.name, PRIMARY, SECONDARY)
            and one.fault.kind not in (*GENTLE, Kind.TERMINATE)
            and one.end >= since - LOCK_S
            for one in self.injected
        )

    # -- switches ------------------------------------------------------------------------------------------------

    async def _throw_switch(self, fault: Fault) -> bool:
        namespace = self._scene.namespaces[fault.whom]
        switch: dict[str, Any] = {**fault.facts, "duration_s": fault.span_s}
        request = asyncio.ensure_future(namespace.control("POST", "faults", switch))
        await asyncio.sleep(fault.span_s)
        with suppress(URLError, TimeoutError):  # the process is stopped
            await request
            return True
        return False


def _trouble_of(fault: Fault) -> Trouble:
    facts = {name: value for name, value in fault.facts.items() if name in Trouble.__slots__}
    match fault.kind:
        case Kind.RESET:
            return Trouble(refuses=True)
        case Kind.BLACK_HOLE:
            return Trouble(holds=True)
        case Kind.LOST_ANSWERS | Kind.LATE_ANSWERS:
            return Trouble(ways=(Way.BACK,), holds=True)
        case Kind.LOST_REQUESTS:
            return Trouble(ways=(Way.OUT,), holds=True)
        case _:
            return Trouble(**facts)
