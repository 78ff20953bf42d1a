"""Carries out the schedule of a run, and remembers what struck whom from when to when."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final
from urllib.error import URLError

from tests.processes.programs import Program
from tests.processes.road import Road, Trouble, Way
from tests.processes.scene import LOCK_S, SYPHON_END_S, Scene, is_ready
from tests.processes.strikes import GENTLE, OF_ROADS, PRIMARY, SECONDARY, Kind, Strike


@dataclass(slots=True)
class Struck:
    """What a strike really did.

    Attributes:
        begin, end: moments, in seconds since 1970.
        has_struck: whether anything was there to be struck: a connection, a running program.
    """

    strike: Strike
    begin: float
    end: float = float("inf")
    has_struck: bool = True


_LOSING: Final = (Kind.LOST_ANSWERS, Kind.LOST_REQUESTS)


class Storm:
    """The strikes of one run.

    Args:
        restart: starts another life of a program.

    Attributes:
        struck: what has struck, in order.
        wrong: what should not have happened: programs that did not end as they should.
    """

    def __init__(self, scene: Scene, strikes: Sequence[Strike], restart: Callable[[Program], None]) -> None:
        self._scene = scene
        self._strikes = strikes
        self._restart = restart
        self._busy: set[str] = set()
        self.struck: list[Struck] = []
        self.wrong: list[str] = []

    async def rage(self, seconds: float) -> None:
        """Let everything strike at its moment, heal each in time, and return when all is over."""
        began = asyncio.get_running_loop().time()
        async with asyncio.TaskGroup() as group:
            for strike in self._strikes:
                group.create_task(self._at_its_moment(strike, began))
        await asyncio.sleep(max(0.0, began + seconds - asyncio.get_running_loop().time()))

    async def _at_its_moment(self, strike: Strike, began: float) -> None:
        await asyncio.sleep(max(0.0, began + strike.at_s - asyncio.get_running_loop().time()))
        struck = Struck(strike, time.time())
        self.struck.append(struck)
        try:
            if strike.kind in OF_ROADS:
                struck.has_struck = await self._strike_roads(strike)
            elif strike.kind is Kind.FAULT:
                struck.has_struck = await self._throw_switch(strike)
            else:
                struck.has_struck = await self._strike_program(strike)
        finally:
            struck.end = time.time()

    # -- roads ---------------------------------------------------------------------------------------------------

    async def _strike_roads(self, strike: Strike) -> bool:
        roads = list(self._scene.roads_of(strike.whom))
        if strike.kind is Kind.MID_FRAME:
            return await self._cut_in_a_frame(roads, strike)
        trouble = _trouble_of(strike)
        cut_count = 0
        for road in roads:
            road.begin(trouble)
            if strike.kind is Kind.RESET:
                cut_count += road.cut()
        await asyncio.sleep(strike.span_s)
        for road in roads:
            if strike.kind in _LOSING or strike.facts.get("is_lost"):
                cut_count += road.cut()
            road.end(trouble)
        return cut_count > 0 or strike.kind not in (Kind.RESET, *_LOSING)

    async def _cut_in_a_frame(self, roads: Sequence[Road], strike: Strike) -> bool:
        before = sum(road.cut_count for road in roads)
        for road in roads:
            road.cut_after(strike.facts["after_bytes"])
        await asyncio.sleep(strike.span_s)
        for road in roads:
            road.spare()
        return sum(road.cut_count for road in roads) > before

    # -- processes -----------------------------------------------------------------------------------------------

    async def _strike_program(self, strike: Strike) -> bool:
        program = self._scene.programs.get(strike.whom) or self._scene.namespaces[strike.whom]
        if program.name in self._busy or not program.is_running:
            return False  # two hands on one program would not know of each other
        self._busy.add(program.name)
        try:
            if strike.kind is Kind.FREEZE:
                program.signal(signal.SIGSTOP)
                await asyncio.sleep(strike.span_s)
                program.signal(signal.SIGCONT)
                return True
            if strike.kind is Kind.KILL:
                program.kill()
            else:
                await self._end(program)
            await asyncio.sleep(strike.span_s)
            self._restart(program)
            return True
        finally:
            program.signal(signal.SIGCONT)
            self._busy.discard(program.name)

    async def _end(self, program: Program) -> None:
        """Tell a program to end; it must do so in time, and with status 0.

        It may say with status 1 that it could not give back what it held, but only if something kept it from that; and
        before its interpreter runs a program of Python it cannot listen to anybody.
        """
        was_ready, began = is_ready(program), time.time()
        status = await program.terminate(SYPHON_END_S)
        excused = {0} | ({1} if self._is_struck(program, began) else set())
        if status not in (excused if was_ready else excused | {-signal.SIGTERM}):
            self.wrong.append(f"{program.name} was told to end and had status {status}: {program.told()[-300:]}")
            program.kill()

    def _is_struck(self, program: Program, since: float) -> bool:
        """Whether anything else has struck a program, or a namespace, since then or not long before."""
        return any(
            one.strike.whom.partition(">")[0] in (program.name, PRIMARY, SECONDARY)
            and one.strike.kind not in (*GENTLE, Kind.TERMINATE)
            and one.end >= since - LOCK_S
            for one in self.struck
        )

    # -- switches ------------------------------------------------------------------------------------------------

    async def _throw_switch(self, strike: Strike) -> bool:
        namespace = self._scene.namespaces[strike.whom]
        fault: dict[str, Any] = {**strike.facts, "duration_s": strike.span_s}
        thrown = asyncio.ensure_future(namespace.control("POST", "faults", fault))
        await asyncio.sleep(strike.span_s)
        with suppress(URLError, TimeoutError):  # it stands still: nothing was thrown
            await thrown
            return True
        return False


def _trouble_of(strike: Strike) -> Trouble:
    facts = {name: value for name, value in strike.facts.items() if name in Trouble.__slots__}
    match strike.kind:
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
