"""Runs one seed and judges it."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from sbclient.testing import DeadlockError, VirtualLoop
from tests.simulation.checkers import CHECKERS
from tests.simulation.checkers.accounting import arrived, excused_uids
from tests.simulation.history import CANARY, History, Outcome, Violation
from tests.simulation.lifeline import RunawayError
from tests.simulation.plan import Plan, draw_plan, draw_wire_plan
from tests.simulation.world import World

HORIZON_S: Final = 20_000.0
"""No run lasts longer, in virtual seconds."""

MOST_AT_ONE_MOMENT: Final = 100_000
"""Looks at the clock while it stands still; an honest run needs a few hundred."""


@dataclass(slots=True)
class Result:
    """What is known of one run; sums of them are the report.

    Attributes:
        in_doubt: tries with an error in doubt.
        excused: accepted messages that need not arrive.
        redirected: messages that syphons delivered to the secondary.
    """

    seed: int
    digest: str
    kinds: tuple[str, ...]
    violations: list[Violation]
    tries: int = 0
    in_doubt: int = 0
    sent: int = 0
    accepted: int = 0
    delivered: int = 0
    lost: int = 0
    unexpected: int = 0
    duplicates: int = 0
    unexplained: int = 0
    excused: int = 0
    diverted: int = 0
    failovers: int = 0
    redirected: int = 0
    wire_calls: int = 0
    lines: list[str] = field(default_factory=list)

    @property
    def invariants(self) -> Counter[str]:
        return Counter(violation.invariant for violation in self.violations)


def run_seed(seed: int, *, only: Sequence[str] = (), trace: bool = False, wire: bool = False) -> Result:
    """Run the plan of a seed; with `wire`, over the simulated network."""
    return run_plan((draw_wire_plan if wire else draw_plan)(seed, only=only), trace=trace)


def run_plan(plan: Plan, *, trace: bool = False) -> Result:
    """Run a plan to its end, and check everything that must hold."""
    complaints: list[str] = []
    with _garbage_afterwards():
        result = _judged(plan, complaints, trace=trace)
    result.violations += [Violation("I15", text) for text in complaints]
    return result


@contextmanager
def _garbage_afterwards() -> Iterator[None]:
    """Collect garbage once after a run, not repeatedly during it, and never what was there before the run."""
    was_enabled = gc.isenabled()
    gc.disable()
    gc.freeze()
    try:
        yield
    finally:
        gc.collect()
        if was_enabled:
            gc.enable()


def _judged(plan: Plan, complaints: list[str], *, trace: bool) -> Result:
    """
    Args:
        complaints: gains what the loop tells of tasks that failed without a waiter; some only when they are collected.
    """
    world = World(plan, trace=trace)
    history = world.history
    with _listening(history):
        failure = _failure_of(world, complaints)
    found = [*history.violations]
    if failure is not None:
        found.append(Violation("I15", failure))
    if all(one.invariant != "I15" for one in found):
        for check in CHECKERS:
            found += check(world)
    return _result(world, found)


def _failure_of(world: World, complaints: list[str]) -> str | None:
    """How a run broke off; None if it came to its end."""
    try:
        with asyncio.Runner(loop_factory=_PatientLoop) as runner:
            runner.get_loop().set_exception_handler(lambda _, context: complaints.append(_complaint(context)))
            runner.run(world.run())
    except (DeadlockError, RunawayError) as error:
        return str(error)
    except (Exception, BaseExceptionGroup) as error:
        return f"the run ended with {_innermost(error)}"
    return None


def _complaint(context: dict[str, Any]) -> str:
    error = context.get("exception")
    return f"{context['message']}: {_innermost(error) if error is not None else context.get('task')}"


class _PatientLoop(VirtualLoop):
    """A virtual loop that detects endless work without progress of time."""

    def __init__(self) -> None:
        super().__init__(horizon_s=HORIZON_S, epoch=1_700_000_000.0)
        self._looks = 0

    def time(self) -> float:
        self._looks += 1
        if self._looks > MOST_AT_ONE_MOMENT:
            self._looks = 0
            raise RunawayError(f"the loop stands at {self._time_s:g} s and is busy")
        return self._time_s

    def _set_time(self, moment: float) -> None:
        if moment > self._time_s:
            self._looks = 0
        super()._set_time(moment)


def _innermost(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    place = f" at {frame.tb_frame.f_code.co_filename}:{frame.tb_lineno}" if frame is not None else ""
    return f"{type(error).__name__}: {error}{place}"


@contextmanager
def _listening(history: History) -> Iterator[None]:
    """Keep what is logged, and take an error that is logged for the failure that it is."""
    logger = logging.getLogger("sbclient")
    handler = _Ear(history)
    level = logger.level
    logger.setLevel(logging.DEBUG)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


class _Ear(logging.Handler):
    def __init__(self, history: History) -> None:
        super().__init__(logging.DEBUG)
        self._history = history

    def emit(self, record: logging.LogRecord) -> None:
        line = f"{record.msg} {record.__dict__}"
        if CANARY in line:
            self._history.logged.append(line)
        if record.levelno >= logging.ERROR:
            error = record.exc_info[1] if record.exc_info else None
            story = _innermost(error) if error is not None else ""
            self._history.violated("I15", f"{record.msg} was logged as an error: {story}")


def _result(world: World, violations: list[Violation]) -> Result:
    history = world.history
    submissions = history.submissions.values()
    tries = [one for submission in submissions for one in submission.tries]
    arrivals = arrived(world)
    accepted = [submission for submission in submissions if submission.is_accepted]
    excused = excused_uids(world)
    by_invariant = Counter(violation.invariant for violation in violations)
    return Result(
        seed=world.plan.seed,
        digest=history.digest(),
        kinds=world.plan.kinds,
        violations=violations,
        tries=len(tries),
        in_doubt=sum(one.outcome is Outcome.DOUBT for one in tries),
        sent=sum(bool(submission.tries) for submission in submissions),
        accepted=len(accepted),
        delivered=sum(submission.uid in arrivals for submission in submissions),
        lost=by_invariant["I1"],
        unexpected=sum(uid not in history.submissions for uid in arrivals),
        duplicates=sum(len({(one.side, one.copy) for one in each}) > 1 for each in arrivals.values()),
        unexplained=by_invariant["I6"] + by_invariant["I7"],
        excused=sum(submission.uid in excused and submission.uid not in arrivals for submission in accepted),
        diverted=sum(history.diverted_reported.values()),
        failovers=sum(event.name == "failover.engaged" for events in history.pair_events.values() for event in events),
        redirected=sum(
            len(one.uids)
            for one in history.attempts
            if one.side == "secondary" and not one.is_backlog and one.outcome is Outcome.OK
        ),
        wire_calls=history.wire_calls,
        lines=history.lines,
    )


def shrink(plan: Plan, invariants: Collection[str], *, runs: int = 60) -> Plan:
    """Leave out lanes, incidents and deaths, one by one, for as long as one of the invariants is still broken."""
    current = plan
    number = current.part_count
    while number > 0 and runs > 0:
        number -= 1
        smaller = current.without({number})
        if not smaller.lanes:
            continue
        runs -= 1
        if set(run_plan(smaller).invariants) & set(invariants):
            current = smaller
    return current
