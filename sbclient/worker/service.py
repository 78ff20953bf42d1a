"""The worker: waits for the secondary, runs syphons, pauses, resumes and shuts down.

Rules:

1. An unreachable namespace is no error: at the start it waits for the secondary, later the syphon retries. The same
   holds for a rejected credential that is read from a file. An error that waiting cannot resolve, such as another
   rejected credential or a missing queue, ends the start.
2. At a pause and at the shutdown the syphon waits for running transfers and releases the other messages.
3. The shutdown takes at most `shutdown_timeout`, even if an operation hangs. No message is lost: a message that was not
   released is delivered again when its lock expires.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import timedelta
from types import MappingProxyType
from typing import Any, Final

from sbclient import clock
from sbclient.backlog import Backlog
from sbclient.client.client import ServiceBusClient
from sbclient.errors import ServiceBusError
from sbclient.retry import repeat
from sbclient.rules.backlog import may_recover
from sbclient.rules.backoff import growing
from sbclient.rules.connection_string import parse_connection_string
from sbclient.syphon.status import DONE, RESTARTED, SyphonStatus
from sbclient.syphon.syphon import Syphon, SyphonReport
from sbclient.tasks import OwnedTasks
from sbclient.telemetry import metrics
from sbclient.telemetry.log import get_logger
from sbclient.worker.inspection import (
    QUEUES_MISSING,
    Finding,
    check_primary,
    check_queues,
    chosen_queues,
    ending,
    is_refused,
    is_unreachable,
    probe_queue,
    refusal_in,
    refusing_destination,
    sides_of,
)
from sbclient.worker.reachability import Reachability
from sbclient.worker.readiness import NamespaceHealth, WorkerState, reasons_against
from sbclient.worker.settings import WorkerSettings
from sbclient.worker.systemd import ServiceManager

log = get_logger(__name__)

FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 30.0
"""Pauses between two attempts to reach the secondary at the start."""

OPEN_S: Final = 30.0
"""Longest time of one attempt to open the backlog queues."""

RESTART_S: Final = 10.0
"""Pause after an unexpected exception of a syphon."""

RELEASE_S: Final = 7.0
"""Part of the shutdown timeout that is reserved for releasing messages and closing connections."""

SURVEY_MESSAGES: Final = 1_000
"""Limit of messages that a survey peeks in each backlog queue and in its dead letters; one operation returns 100."""

STALL_CHECK_S: Final = 1.0
"""Pause between two checks of a run until empty for progress."""


class SyphonWorker:
    """The syphon as a service. Create it inside the event loop that runs it.

    Attributes:
        is_late: whether the shutdown timed out, so that an operation still hangs.

    Args:
        settings: checked.
        client: of both namespaces, not open yet; the worker closes it.
        manager: receives the state of the worker.
        origins: where each setting comes from, by name.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        client: ServiceBusClient,
        *,
        manager: ServiceManager,
        origins: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._settings = settings
        self._client = client
        self._pair = pair = client.pair
        self._manager = manager
        self._tasks = OwnedTasks(on_failure=lambda _: None)  # the task that starts one handles its failure
        self._background = OwnedTasks()
        self._stop_requested = asyncio.Event()
        self._pause_requested = asyncio.Event()
        self._resume_requested = asyncio.Event()
        self._resume_requested.set()
        self._renewed = asyncio.Event()
        self._syphon: Syphon | None = None
        self._since_at = 0.0
        self._read_time = clock.reader()
        self._primary_side, self._secondary_side = sides_of(pair, settings.primary, settings.secondary, origins)
        self._primary = Reachability(
            self._primary_side,
            probe=self._probe_primary,
            reached_at=self._primary_reached_at,
            interval_s=settings.probe_interval,
        )
        self._secondary = Reachability(
            self._secondary_side,
            probe=self._probe_secondary,
            reached_at=self._secondary_reached_at,
            interval_s=settings.probe_interval,
        )
        self._opening = self._secondary
        self._missing: list[str] = []
        self._entity_found: list[Finding] = []
        self._drained = self._redirected = 0
        self._dead_lettered: Counter[str] = Counter()
        self._parked = 0
        self.is_late = False

    # -- control -------------------------------------------------------------------------------------------------

    def stop(self, reason: str) -> None:
        """Shut down. Safe to call twice."""
        if not self._stop_requested.is_set():
            log.info(
                "worker.stopping",
                "the worker stops within {seconds:g} s ({reason})",
                reason=reason,
                seconds=self._settings.shutdown_timeout,
            )
            self._stop_requested.set()

    def pause(self) -> bool:
        """Forward no messages until `resume`; return False if the worker is stopping."""
        if not self._stop_requested.is_set() and not self._pause_requested.is_set():
            self._resume_requested.clear()
            self._pause_requested.set()
        return self._pause_requested.is_set()

    def resume(self) -> bool:
        """Continue after a pause; return False if the worker is stopping."""
        if self._pause_requested.is_set() and not self._stop_requested.is_set():
            self._pause_requested.clear()
            self._resume_requested.set()
            log.info("worker.resumed", "the worker resumed")
        return not self._stop_requested.is_set()

    def renew_credentials(self) -> None:
        """Read the credentials again, and check at once that both namespaces accept them; not while stopping.

        At the start the next attempt checks it, which does not wait any longer.
        """
        if not self._stop_requested.is_set():
            self._background.start(self._renew_credentials(), name="renew credentials")

    async def _renew_credentials(self) -> None:
        await self._client.renew_credentials()
        self._renewed.set()
        if self._secondary.health().reached_at is not None:  # the start is over
            await asyncio.gather(self._primary.probe(), self._secondary.probe())

    # -- status --------------------------------------------------------------------------------------------------

    @property
    def state(self) -> WorkerState:
        """The phase of the worker."""
        if self._stop_requested.is_set():
            return WorkerState.STOPPING
        if self._pause_requested.is_set():
            return WorkerState.PAUSED
        return WorkerState.STARTING if self._syphon is None else WorkerState.RUNNING

    @property
    def missing_queues(self) -> list[str]:
        """Backlog queues that did not exist at the start."""
        return self._missing

    def syphon_status(self) -> SyphonStatus | None:
        """Return the status of the syphon; None if none runs."""
        return self._syphon.status() if self._syphon is not None else None

    def health(self) -> tuple[NamespaceHealth, NamespaceHealth]:
        """Return the health of the primary and of the secondary."""
        return self._primary.health(), self._secondary.health()

    def findings(self) -> list[Finding]:
        """Return what is wrong; first why the worker is not ready, if it is not. May be called in any thread."""
        status = self.syphon_status()
        refusing = {} if status is None else status.refusing
        entities = [refusing_destination(path, error.text) for path, error in refusing.items()]
        return [*self.reasons_against(), *self._entity_found, *entities]

    def reasons_against(self) -> list[Finding]:
        """Return why the worker is not ready; empty if it is. May be called in any thread."""
        return reasons_against(
            self.state, *self.health(), self.syphon_status(), now=self._read_time(), since_at=self._since_at
        )

    def measured(self) -> Iterator[tuple[metrics.Instrument, float, metrics.Attributes]]:
        """Yield readiness and reachability; see `metrics.Watched`."""
        where = metrics.server(self._pair.state.primary.namespace)
        reasons = self.reasons_against()
        for reason in reasons:
            yield metrics.WORKER_READY, 0, {**where, metrics.REASON: reason.code}
        if not reasons:
            yield metrics.WORKER_READY, 1, {**where, metrics.REASON: ""}
        yield metrics.WORKER_PAUSED, self.state is WorkerState.PAUSED, where
        for side, health in zip(("primary", "secondary"), self.health(), strict=True):
            if health.error is not None or health.reached_at is not None:
                attributes = {**metrics.server(health.namespace), metrics.SIDE: side}
                yield metrics.NAMESPACE_REACHABLE, health.error is None, attributes

    def report(self) -> SyphonReport:
        """Return the result since the start; `parked` is the current number."""
        running = self._syphon.report() if self._syphon is not None else SyphonReport(parked=self._parked)
        return SyphonReport(
            drained=self._drained + running.drained,
            dead_lettered=dict(sorted((self._dead_lettered + Counter(running.dead_lettered)).items())),
            parked=running.parked,
            redirected=self._redirected + running.redirected,
        )

    # -- run -----------------------------------------------------------------------------------------------------

    async def run(self) -> SyphonReport:
        """Run until `stop` or, with `until="empty"`, until no message is left that can be forwarded.

        Raises:
            ServiceBusError: the worker cannot start, or a run until empty cannot reach a backlog queue.
        """
        log.info(
            "worker.started",
            "the worker started with {settings}",
            settings=self._settings.shown() or "the defaults",
        )
        self._manager.notify("READY=1", self.line())
        metrics.watch(self)
        work = self._tasks.start(self._work(), name="worker")
        stopped = self._tasks.start(self._stop_requested.wait(), name="stop requested")
        if self._manager.watchdog_s is not None:
            self._background.start(self._beat(self._manager.watchdog_s), name="watchdog")
        try:
            await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
            self._stop_requested.set()
            self._manager.notify("STOPPING=1", self.line())
            if not work.done():
                work.cancel()
                self.is_late = bool(await clock.wait([work], self._settings.shutdown_timeout))
        finally:
            metrics.unwatch(self)
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
            await self._drain()
        finally:
            await self._client.close()

    async def _beat(self, interval_s: float) -> None:
        while True:
            self._manager.notify("WATCHDOG=1", self.line())
            await clock.sleep(interval_s)

    def line(self) -> str:
        """Return one line about the state for display."""
        for side, health in zip(("secondary", "primary"), reversed(self.health()), strict=True):
            if self.state is WorkerState.STARTING and health.error is not None:
                return f"waits for the {side}: {health.error.kind.__name__}"
        report = self.report()
        return f"{self.state}, drained {report.drained:,}, parked {report.parked:,}"

    # -- the start -----------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        """Open the client; retry until the secondary answers, and until a file has a credential that is accepted."""
        limit_s = self._settings.start_timeout_s
        ends_at = None if limit_s is None else clock.monotonic() + limit_s
        left_s = float("inf")

        async def is_open(_: int) -> bool:
            nonlocal left_s
            shown: ServiceBusError | None = None
            try:
                end = await self._open()
                if end is None or end.error is None:
                    return True
                error, shown = end.error, end.as_error()
            except ServiceBusError as raised:
                error = raised
            left_s = float("inf") if ends_at is None else ends_at - clock.monotonic()
            refused = refusal_in(error)
            may_change = refused is not None and self._reads_credential_again(self._opening)
            if not (may_recover(error) or may_change) or left_s <= 0:
                if shown is None:
                    raise error
                raise shown from error
            self._opening.failed(refused or error)
            return False

        async def pause(seconds: float) -> None:
            await clock.wait_for(self._renewed, min(seconds, left_s))
            self._renewed.clear()

        await repeat(is_open, growing(FIRST_PAUSE_S, LONGEST_PAUSE_S), pause)

    async def _open(self) -> Finding | None:
        """Open the client and check both namespaces; return what makes draining impossible, so that it is seen at once.

        An unreachable primary does not: the backlog is drained after the outage.
        """
        self._opening = self._secondary
        await self._client.__aenter__()
        pair, chosen = self._pair, self._settings.queue
        await pair.state.backlog.wait(OPEN_S)
        queues = chosen_queues(pair, chosen)
        found = await check_queues(pair, self._secondary_side, queues)
        if (end := ending(found, queues, are_chosen=chosen is not None)) is not None:
            return end
        self._missing = [queue for finding in found if finding.code == QUEUES_MISSING for queue in finding.names]
        self._secondary.record_result()
        self._opening = self._primary
        error = await self._check_primary(self._settings.probe_entity)
        if error is not None and error.error is not None and is_refused(error.error):
            return error
        self._primary.record_result(None if error is None else error.error)
        if self._missing:
            log.warning("worker.queues_missing", "backlog queues do not exist: {queues}", queues=self._missing)
        for finding in self._entity_found:
            log.warning("worker.found", "{text}; {advice}", text=finding.text, advice=finding.advice)
        return None

    async def _check_primary(self, path: str | None) -> Finding | None:
        """Return why the primary is unreachable; keep what is wrong with the entity."""
        found = await check_primary(self._pair, self._primary_side, path)
        unreachable = [one for one in found if one.error is not None and is_unreachable(one.error)]
        self._entity_found = [] if unreachable else found
        return unreachable[0] if unreachable else None

    def _reads_credential_again(self, side: Reachability) -> bool:
        """Return whether the credential of a namespace is in a file, which may change."""
        text = self._settings.primary if side is self._primary else self._settings.secondary
        return bool(text) and parse_connection_string(text).credential_file is not None

    async def _probe_primary(self) -> None:
        status = self.syphon_status()
        accepted = status.accepted[0] if status is not None and status.accepted is not None else None
        found = await self._check_primary(self._settings.probe_entity or accepted)
        if found is not None and found.error is not None:
            raise found.error

    async def _probe_secondary(self) -> None:
        present = [queue for queue in chosen_queues(self._pair, self._settings.queue) if queue not in self._missing]
        await probe_queue(self._pair, present[0])

    def _primary_reached_at(self) -> float | None:
        status = self.syphon_status()
        return status.accepted[1] if status is not None and status.accepted is not None else None

    def _secondary_reached_at(self) -> float | None:
        status = self.syphon_status()
        times = [queue.answered_at for queue in status.queues] if status is not None else []
        return max((at for at in times if at is not None), default=None)

    # -- the work ------------------------------------------------------------------------------------------------

    async def _drain(self) -> None:
        """Run one syphon after the other, until a run until empty ends or the task is cancelled."""
        if self._settings.http_port is not None:
            for namespace in (self._primary, self._secondary):
                self._background.start(namespace.probe_forever(), name="reachability")
            self._background.start(self._survey(), name="survey")
        while True:
            if self._pause_requested.is_set():
                log.info("worker.paused", "the worker is paused; no message is in flight")
                await self._resume_requested.wait()
            try:
                if await self._run_syphon():
                    return
            except ServiceBusError:
                raise
            except Exception as error:
                if self._settings.until == "empty":
                    raise
                log.error("syphon.restarted", RESTARTED, error=error, seconds=RESTART_S, exc_info=error)
                await clock.sleep(RESTART_S)

    async def _survey(self) -> None:
        """Count the messages that the syphon does not count, if metrics are read; runs until cancelled."""
        if metrics.is_read():
            queues = chosen_queues(self._pair, self._settings.queue)
            every = timedelta(seconds=self._settings.survey_interval)
            await Backlog(self._pair).watch(every=every, limit=SURVEY_MESSAGES, queues=queues, beside_syphon=True)

    async def _run_syphon(self) -> bool:
        """Run a syphon until it ends, or the worker pauses or stops; return whether it ended by itself."""
        limit_s = self._settings.shutdown_timeout
        self._since_at = clock.monotonic()
        self._syphon = syphon = Syphon(
            self._pair,
            until=self._settings.until,
            queues=chosen_queues(self._pair, self._settings.queue),
            limits=self._settings.limits(),
            shut_down_s=max(limit_s - RELEASE_S, limit_s / 2),
        )
        run = self._tasks.start(syphon.run(), name="syphon")
        others: list[asyncio.Task[Any]] = [self._tasks.start(self._pause_requested.wait(), name="pause requested")]
        if self._settings.until == "empty":
            others.append(self._tasks.start(self._watch_progress(syphon), name="until empty"))
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
        """Add the result of a syphon that has ended."""
        self._syphon = None
        self._drained += report.drained
        self._redirected += report.redirected
        self._dead_lettered += Counter(report.dead_lettered)
        self._parked = report.parked

    async def _watch_progress(self, syphon: Syphon) -> None:
        """Raise the error of an unreachable queue if a run until empty makes no progress any more."""
        limit_s = self._settings.start_timeout_s or 0.0
        drained, progress_at = 0, clock.monotonic()
        while True:
            await clock.sleep(STALL_CHECK_S)
            now = clock.monotonic()
            if syphon.report().drained != drained:
                drained, progress_at = syphon.report().drained, now
            for queue in syphon.status().queues:
                error = queue.error
                if error is not None and now - max(error.since_at, progress_at) >= limit_s:
                    raise error.kind(
                        f"backlog queue {queue.queue!r} is unavailable, so it may not be empty: {error.text}"
                    )
