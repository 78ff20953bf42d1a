"""One worker, from its start to its end: it waits for the secondary, runs syphons, pauses, resumes and shuts down.

The laws:

1. A namespace that cannot be reached never ends it: at the start the secondary is waited for, later the syphon tries
   again. What waiting cannot mend ends the start with an error: a refused credential, a queue that does not exist.
2. A pause and the end are the same thing to a syphon: what is on its way arrives, the rest is given back.
3. The end is bounded: after `shutdown_timeout` it is over, whatever still hangs. Nothing is lost by that: what was not
   given back comes again when its lock ends.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import asdict
from datetime import timedelta
from typing import Any, Final

from sbclient.backlog import Backlog
from sbclient.client.client import ServiceBusClient
from sbclient.clock import Clock
from sbclient.errors import ServiceBusError
from sbclient.syphon.status import DONE, RESTARTED, SyphonStatus
from sbclient.syphon.syphon import Syphon, SyphonReport
from sbclient.tasks import OwnedTasks
from sbclient.telemetry import metrics
from sbclient.telemetry.log import get_logger
from sbclient.worker.inspection import (
    ask_primary,
    ask_queue,
    check_primary,
    check_queues,
    chosen_queues,
    may_pass,
)
from sbclient.worker.reachability import Reachability
from sbclient.worker.readiness import NamespaceHealth, WorkerState, reasons_against
from sbclient.worker.settings import WorkerSettings
from sbclient.worker.systemd import ServiceManager

log = get_logger(__name__)

FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 30.0
"""Between two tries to reach the secondary at the start."""

RESTART_S: Final = 10.0
"""After a syphon met what it did not expect."""

GIVE_BACK_S: Final = 7.0
"""What is kept of the time for the end, to give back what is in hand and to close the connections."""

SURVEYED: Final = 1_000
"""Messages that a survey looks at in each backlog queue and in its dead letters: a hundred for an operation."""

LOOK_S: Final = 1.0
"""How often a run until empty looks whether it still gets anywhere."""


class SyphonWorker:
    """The syphon as a service. Make one inside the event loop that runs it.

    Attributes:
        is_late: whether the end took longer than it may, so that something still hangs.

    Args:
        settings: checked.
        client: of both namespaces, not opened yet; it is closed at the end.
        clock: for all times.
        manager: the service manager to tell.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        client: ServiceBusClient,
        *,
        clock: Clock,
        manager: ServiceManager,
    ) -> None:
        self._settings = settings
        self._client = client
        self._pair = pair = client.pair
        self._clock = clock
        self._manager = manager
        self._tasks = OwnedTasks(on_failure=lambda _: None)  # who started one hears of its failure
        self._background = OwnedTasks()
        self._told_to_end = asyncio.Event()
        self._told_to_pause = asyncio.Event()
        self._told_to_resume = asyncio.Event()
        self._told_to_resume.set()
        self._syphon: Syphon | None = None
        self._since_at = 0.0
        self._primary = Reachability(
            "primary",
            pair.state.primary.namespace,
            clock,
            ask=self._ask_primary,
            heard_at=self._primary_heard_at,
            interval_s=settings.probe_interval,
        )
        self._secondary = Reachability(
            "secondary",
            pair.state.secondary.namespace,
            clock,
            ask=self._ask_secondary,
            heard_at=self._secondary_heard_at,
            interval_s=settings.probe_interval,
        )
        self._missing: list[str] = []
        self._drained = 0
        self._dead_lettered: Counter[str] = Counter()
        self._parked = 0
        self.is_late = False

    # -- what it is told -----------------------------------------------------------------------------------------

    def stop(self, reason: str) -> None:
        """End in order. Safe to call twice."""
        if not self._told_to_end.is_set():
            log.info(
                "worker.stopping",
                "the worker stops within {seconds:g} s ({reason})",
                reason=reason,
                seconds=self._settings.shutdown_timeout,
            )
            self._told_to_end.set()

    def pause(self) -> bool:
        """Bring nothing home until `resume`; returns whether that is so, which it is not while it ends."""
        if not self._told_to_end.is_set() and not self._told_to_pause.is_set():
            self._told_to_resume.clear()
            self._told_to_pause.set()
        return self._told_to_pause.is_set()

    def resume(self) -> bool:
        """Go on after a pause; returns whether it goes on, which it does not while it ends."""
        if self._told_to_pause.is_set() and not self._told_to_end.is_set():
            self._told_to_pause.clear()
            self._told_to_resume.set()
            log.info("worker.resumed", "the worker resumed")
        return not self._told_to_end.is_set()

    # -- how it stands -------------------------------------------------------------------------------------------

    @property
    def state(self) -> WorkerState:
        """Where it is in its life."""
        if self._told_to_end.is_set():
            return WorkerState.STOPPING
        if self._told_to_pause.is_set():
            return WorkerState.PAUSED
        return WorkerState.STARTING if self._syphon is None else WorkerState.RUNNING

    @property
    def missing_queues(self) -> list[str]:
        """Backlog queues that did not exist at the start."""
        return self._missing

    def syphon_status(self) -> SyphonStatus | None:
        """How the syphon stands; None while none runs."""
        return self._syphon.status() if self._syphon is not None else None

    def health(self) -> tuple[NamespaceHealth, NamespaceHealth]:
        """What is known of the primary and of the secondary."""
        return self._primary.health(), self._secondary.health()

    def reasons_against(self) -> list[str]:
        """Why it is not ready; none if it is."""
        return reasons_against(
            self.state, *self.health(), self.syphon_status(), now=self._clock.monotonic(), since_at=self._since_at
        )

    def report(self) -> SyphonReport:
        """What was done since the start; what was parked is what is known to be so now."""
        running = self._syphon.report() if self._syphon is not None else SyphonReport(parked=self._parked)
        return SyphonReport(
            drained=self._drained + running.drained,
            dead_lettered=dict(sorted((self._dead_lettered + Counter(running.dead_lettered)).items())),
            parked=running.parked,
        )

    # -- its life ------------------------------------------------------------------------------------------------

    async def run(self) -> SyphonReport:
        """Work until it is told to end or, with `until="empty"`, until nothing is left that can be moved.

        Raises:
            ServiceBusError: it could not start, or a run until empty cannot reach what it has to.
        """
        log.info(
            "worker.started",
            "the worker started (until {until}, HTTP port {http_port})",
            until=self._settings.until or "stopped",
            http_port=self._settings.http_port,
        )
        self._manager.is_ready(self.line())
        work = self._tasks.start(self._work(), name="worker")
        told = self._tasks.start(self._told_to_end.wait(), name="told to end")
        if self._manager.watchdog_s is not None:
            self._background.start(self._beat(self._manager.watchdog_s), name="watchdog")
        try:
            await asyncio.wait({work, told}, return_when=asyncio.FIRST_COMPLETED)
            self._told_to_end.set()
            self._manager.is_stopping(self.line())
            if not work.done():
                work.cancel()
                self.is_late = bool(await self._clock.wait([work], self._settings.shutdown_timeout))
        finally:
            if not self.is_late:
                await self._tasks.close()
                await self._background.close()
        report = self.report()
        facts = asdict(report)
        if self.is_late:
            log.warning(
                "worker.late",
                "the worker did not stop within {seconds:g} s; " + DONE,
                seconds=self._settings.shutdown_timeout,
                **facts,
            )
            return report
        if not work.cancelled():
            work.result()
        log.info("worker.ended", "the worker ended; " + DONE, **facts)
        return report

    async def _work(self) -> None:
        try:
            await self._start()
            await self._bring_home()
        finally:
            await self._client.close()

    async def _beat(self, span_s: float) -> None:
        while True:
            self._manager.is_alive(self.line())
            await self._clock.sleep(span_s)

    def line(self) -> str:
        """How it stands, in one line for people."""
        _, secondary = self.health()
        if self.state is WorkerState.STARTING and secondary.error is not None:
            return f"waits for the secondary: {secondary.error.kind.__name__}"
        report = self.report()
        return f"{self.state}, drained {report.drained:,}, parked {report.parked:,}"

    # -- the start -----------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        """Open the client, once the secondary answers."""
        limit_s = self._settings.start_timeout_s
        ends_at = None if limit_s is None else self._clock.monotonic() + limit_s
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                await self._open()
                return
            except ServiceBusError as error:
                left_s = float("inf") if ends_at is None else ends_at - self._clock.monotonic()
                if not may_pass(error) or left_s <= 0:
                    raise
                self._secondary.failed(error)
            await self._clock.sleep(min(pause_s, left_s))
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)

    async def _open(self) -> None:
        """Open the client and ask both namespaces, so that what cannot work is told at once."""
        await self._client.__aenter__()
        pair, chosen = self._pair, self._settings.queue
        self._missing = await check_queues(pair, chosen_queues(pair, chosen), are_chosen=chosen is not None)
        self._secondary.answered()
        self._primary.answered(await check_primary(pair, self._settings.probe_entity))
        if self._missing:
            log.warning("worker.queues_missing", "backlog queues do not exist: {queues}", queues=self._missing)

    async def _ask_primary(self) -> None:
        status = self.syphon_status()
        accepted = status.accepted[0] if status is not None and status.accepted is not None else None
        await ask_primary(self._pair, self._settings.probe_entity or accepted)

    async def _ask_secondary(self) -> None:
        present = [queue for queue in chosen_queues(self._pair, self._settings.queue) if queue not in self._missing]
        await ask_queue(self._pair, present[0])

    def _primary_heard_at(self) -> float | None:
        status = self.syphon_status()
        return status.accepted[1] if status is not None and status.accepted is not None else None

    def _secondary_heard_at(self) -> float | None:
        status = self.syphon_status()
        heard = [queue.answered_at for queue in status.queues] if status is not None else []
        return max((at for at in heard if at is not None), default=None)

    # -- the work ------------------------------------------------------------------------------------------------

    async def _bring_home(self) -> None:
        """Run one syphon after the other until there is nothing more to do, or cancelled."""
        if self._settings.http_port is not None:
            for namespace in (self._primary, self._secondary):
                self._background.start(namespace.keep(), name="reachability")
            self._background.start(self._survey(), name="survey")
        while True:
            if self._told_to_pause.is_set():
                log.info("worker.paused", "the worker is paused; no message is in flight")
                await self._told_to_resume.wait()
            try:
                if await self._run_syphon():
                    return
            except ServiceBusError:
                raise
            except Exception as error:
                if self._settings.until == "empty":
                    raise
                log.error("syphon.restarted", RESTARTED, error=error, seconds=RESTART_S, exc_info=error)
                await self._clock.sleep(RESTART_S)

    async def _survey(self) -> None:
        """Count what the syphon does not see, for the metrics, as long as somebody reads them; until cancelled."""
        if metrics.is_read():
            queues = chosen_queues(self._pair, self._settings.queue)
            every = timedelta(seconds=self._settings.survey_interval)
            await Backlog(self._pair).watch(every=every, limit=SURVEYED, queues=queues, beside_syphon=True)

    async def _run_syphon(self) -> bool:
        """Run a syphon until it ends by itself, which is what it returns, or the worker pauses or ends."""
        limit_s = self._settings.shutdown_timeout
        self._since_at = self._clock.monotonic()
        self._syphon = syphon = Syphon(
            self._pair,
            until=self._settings.until,
            queues=chosen_queues(self._pair, self._settings.queue),
            limits=self._settings.limits(),
            shut_down_s=max(limit_s - GIVE_BACK_S, limit_s / 2),
        )
        run = self._tasks.start(syphon.run(), name="syphon")
        others: list[asyncio.Task[Any]] = [self._tasks.start(self._told_to_pause.wait(), name="told to pause")]
        if self._settings.until == "empty":
            others.append(self._tasks.start(self._stuck(syphon), name="until empty"))
        try:
            await asyncio.wait({run, *others}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not run.done():
                run.cancel()
                await asyncio.wait({run})
            for other in others:
                other.cancel()
            self._add(syphon.report())
        for other in others:
            if other.done() and not other.cancelled():
                other.result()
        if run.cancelled():
            return False
        run.result()
        return True

    def _add(self, report: SyphonReport) -> None:
        """Count what a syphon did, which has ended."""
        self._syphon = None
        self._drained += report.drained
        self._dead_lettered += Counter(report.dead_lettered)
        self._parked = report.parked

    async def _stuck(self, syphon: Syphon) -> None:
        """Watch a run until empty; it ends with an error if a queue cannot be reached and nothing moves any more."""
        limit_s = self._settings.start_timeout_s or 0.0
        drained, moved_at = 0, self._clock.monotonic()
        while True:
            await self._clock.sleep(LOOK_S)
            now = self._clock.monotonic()
            if syphon.report().drained != drained:
                drained, moved_at = syphon.report().drained, now
            for queue in syphon.status().queues:
                error = queue.error
                if error is not None and now - max(error.since_at, moved_at) >= limit_s:
                    raise error.kind(
                        f"backlog queue {queue.queue!r} gives no messages, so it is not known to be empty: {error.text}"
                    )
