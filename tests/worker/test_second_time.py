"""A worker takes a second pause, outage or rejection as the first, and reports, counts and keeps nothing of that."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Final

import pytest

from sbclient import clock
from sbclient.errors import ServiceBusAuthenticationError, ServiceBusError, ServiceBusQuotaExceededError
from sbclient.message import ServiceBusMessage
from sbclient.rules.refusal import OngoingError
from sbclient.testing import Fault, FaultKind, MemoryPair
from tests.client.scene import BACKLOG, QUEUE, make_queue, taken
from tests.syphon.test_whole_state import shape
from tests.worker.scene import Run, make_backlog

SETTINGS: Final[dict[str, Any]] = {
    "probe_interval": 30.0,
    "http_port": 0,
    "redirect_after": timedelta(minutes=2),
    "long_poll": timedelta(seconds=20),
}
NAMESPACES: Final = {"primary", "secondary"}


class Course:
    """What a worker says during a time: reasons against its readiness, and errors of namespaces."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.reasons: list[str] = []
        self.longest_s: dict[str, float] = {}

    async def watch(self, seconds: int) -> None:
        for _ in range(seconds):
            await clock.sleep(1.0)
            now = clock.monotonic()
            for reason in self.run.worker.reasons_against():
                if reason.code not in self.reasons:
                    self.reasons.append(reason.code)
            for side, health in zip(("primary", "secondary"), self.run.worker.health(), strict=True):
                self._note(side, health.error, now)
            status = self.run.worker.syphon_status()
            if status is not None:
                for path, error in status.refusing.items():
                    self._note(path, error, now)
                for queue in status.queues:
                    self._note(queue.queue, queue.error, now)

    def _note(self, what: str, error: OngoingError | None, now: float) -> None:
        if error is not None:
            self.longest_s[what] = max(self.longest_s.get(what, 0.0), now - error.since_at)


async def pause(run: Run, pair: MemoryPair, course: Course, seconds: int = 10) -> None:
    run.worker.pause()
    await course.watch(seconds)
    run.worker.resume()
    course.reasons.clear()  # those of a paused worker; a worker is ready as soon as it goes on
    await course.watch(10)
    assert course.reasons == []


async def without(pair: MemoryPair, side: str, course: Course, error: type[ServiceBusError] | None = None) -> None:
    namespace = pair.primary if side == "primary" else pair.secondary
    namespace.inject(Fault(FaultKind.DOWN) if error is None else Fault(FaultKind.ERROR, error=error))
    await course.watch(100)
    namespace.heal()


async def defect(run: Run, course: Course) -> None:
    syphon = run.worker._syphon
    assert syphon is not None
    syphon._fail(ZeroDivisionError("planted"))
    await course.watch(30)


def kept(run: Run) -> dict[str, Any]:
    """What a worker at rest knows, without totals and times."""
    worker = run.worker
    parts = {"worker": worker, "primary": worker._primary, "secondary": worker._secondary, "tasks": worker._tasks}
    shapes = {name: shape(part) for name, part in parts.items()}
    for total in ("_drained", "_redirected", "_dead_lettered"):
        shapes["worker"].pop(total)
    names = Counter(task.get_name() for task in asyncio.all_tasks())
    return {**shapes, "names": {name: count for name, count in names.items() if not name.startswith("Task-")}}


COURSES: Final[dict[str, Callable[[Run, MemoryPair, Course], Awaitable[None]]]] = {
    "a pause": pause,
    "a long pause": lambda run, pair, course: pause(run, pair, course, 4000),
    "an outage of the primary": lambda run, pair, course: without(pair, "primary", course),
    "an outage of the secondary": lambda run, pair, course: without(pair, "secondary", course),
    "a rejected credential": lambda run, pair, course: without(
        pair, "secondary", course, ServiceBusAuthenticationError
    ),
    "a defect of the syphon": lambda run, pair, course: defect(run, course),
    "a quiet time": lambda run, pair, course: course.watch(30),
}


@pytest.mark.parametrize("name", COURSES)
async def test_a_second_one_takes_its_course_as_the_first(
    pair: MemoryPair, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sbclient")
    await make_backlog(pair, backlog_queue_count=1)
    courses: list[tuple[list[str], list[str], dict[str, Any]]] = []
    at_rest: list[dict[str, Any]] = []
    async with (
        Run(pair, **SETTINGS, primary_name="contoso") as run,
        pair.unpaired_client(secondary=True) as other,
        other.get_queue_sender(BACKLOG[0]) as sender,
    ):
        await Course(run).watch(60)
        for cycle in range(1, 4):
            await make_backlog(pair, *range(10))
            await sender.send_messages(ServiceBusMessage("lost"))
            await clock.sleep(5.0)
            course, before = Course(run), len(caplog.records)
            await COURSES[name](run, pair, course)
            await Course(run).watch(180)
            events = sorted({vars(record).get("event_name", "") for record in caplog.records[before:]})
            courses.append((events, course.reasons, course.longest_s))
            report = run.worker.report()
            assert (report.drained, report.dead_lettered) == (10 * cycle, {"DestinationMissing": cycle})
            assert (report.parked, report.redirected) == (0, 0)
            assert run.reasons == []
            assert len(await taken(pair, QUEUE)) == 10
            at_rest.append(kept(run))
    assert at_rest == [at_rest[0]] * 3
    (events, reasons, longest_s), *others = courses
    assert [other[:2] for other in others] == [(events, reasons)] * 2
    assert [other[2] for other in others] == [pytest.approx(longest_s, abs=35)] * 2


async def test_totals_add_up_over_pauses_and_parked_messages_are_those_of_now(pair: MemoryPair) -> None:
    await make_queue(pair, secondary=True)
    await make_backlog(pair, backlog_queue_count=1)
    async with Run(pair, **SETTINGS, primary_name="contoso") as run:
        for cycle in range(1, 4):
            pair.primary.inject(Fault(FaultKind.DOWN))
            await make_backlog(pair, *range(5))
            await clock.sleep(200.0)
            pair.primary.heal()
            await clock.sleep(100.0)
            for namespace in (pair.primary, pair.secondary):
                namespace.inject(Fault(FaultKind.ERROR, QUEUE, error=ServiceBusQuotaExceededError))
            await make_backlog(pair, *range(4))
            for _ in range(3):
                await clock.sleep(60.0)
                report = run.worker.report()
                assert (report.drained, report.redirected, report.parked) == (9 * cycle - 4, 5 * cycle, 4)
                assert run.worker.pause()
                await clock.sleep(5.0)
                assert run.worker.report() == report
                assert run.worker.resume()
            pair.primary.heal()
            pair.secondary.heal()
            await clock.sleep(200.0)
            report = run.worker.report()
            assert (report.drained, report.redirected, report.parked) == (9 * cycle, 5 * cycle, 0)
