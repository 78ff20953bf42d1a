"""The syphon: drains the backlog queues into the entities that the messages were sent to.

Peek-lock, completion after acceptance and concurrent syphons are documented; the other rules are our choice:

1. A message is completed only after the primary, or the secondary instead, has accepted it. A crash can therefore cause
   a duplicate, never a loss.
2. A destination that refuses messages delays no other: its messages are deferred in their queue and tried again later.
3. A message that can never be forwarded is dead-lettered in its backlog queue, with a stable reason.
4. Messages in flight are limited, in number and in bytes, and their locks are renewed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

from sbclient import clock
from sbclient.options import SyphonLimits
from sbclient.pairing.pair import Pair
from sbclient.syphon.budget import SyphonBudget
from sbclient.syphon.destination_table import Destinations
from sbclient.syphon.queue_source import QueueSource
from sbclient.syphon.session_source import WORKERS, SessionSource
from sbclient.syphon.source import Source
from sbclient.syphon.status import DONE, Progress, SyphonStatus
from sbclient.tasks import OwnedTasks
from sbclient.telemetry import metrics
from sbclient.telemetry.log import get_logger

log = get_logger(__name__)

SHUT_DOWN_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class SyphonReport:
    """Result of a syphon.

    Attributes:
        drained: number of messages that the primary or, with `redirect_after`, the secondary accepted.
        dead_lettered: number of messages that were dead-lettered in their backlog queue, by reason.
        parked: number of messages known to be deferred in their backlog queue, because their destination refuses them.
        redirected: number of the drained messages that the secondary accepted.
    """

    drained: int = 0
    dead_lettered: dict[str, int] = field(default_factory=dict)
    parked: int = 0
    redirected: int = 0


class Syphon:
    """One run of a syphon over the backlog queues of a pair.

    Args:
        pair: opened.
        until: `"empty"` ends it when no message is left that can be forwarded; None runs until it is cancelled.
        queues: names of the backlog queues to drain; None = every one of the pair.
        limits: of rates and messages in flight; None = the defaults.
        shut_down_s: how long running transfers may take at the end.
    """

    def __init__(
        self,
        pair: Pair,
        *,
        until: Literal["empty"] | None = None,
        queues: Collection[str] | None = None,
        limits: SyphonLimits | None = None,
        shut_down_s: float = SHUT_DOWN_S,
    ) -> None:
        self._pair = state = pair.state
        self._until = until
        self._shut_down_s = shut_down_s
        chosen = {*state.backlog_queues, *state.session_backlog_queues} if queues is None else set(queues)
        plain = [name for name in state.backlog_queues if name in chosen]
        with_sessions = [name for name in state.session_backlog_queues if name in chosen]
        budget = SyphonBudget(
            limits or SyphonLimits(),
            queues=len(plain) + len(with_sessions),
            pollers=len(plain) + WORKERS * len(with_sessions),
            long_poll_s=None if until == "empty" else state.options.syphon_long_poll.total_seconds(),
        )
        self._longest_pause_s = budget.longest_pause_s
        self._progress = progress = Progress()
        self._failure: BaseException | None = None
        self._runs: list[asyncio.Task[None]] = []
        self._tasks = OwnedTasks(on_failure=self._fail)
        self._sources: list[Source] = []
        self._destinations = Destinations(state, budget.rates, progress, self._sources, on_failure=self._fail)
        self._sources += [QueueSource(state, name, self._destinations, progress, budget, until=until) for name in plain]
        self._sources += [
            SessionSource(state, name, self._destinations, progress, budget, until=until) for name in with_sessions
        ]

    async def run(self) -> SyphonReport:
        """Drain until the end. A cancellation waits for running transfers and releases the other messages in flight.

        Errors of a message, an entity or a namespace never end it: it tries again, or dead-letters the message.
        """
        log.info(
            "syphon.started",
            "the syphon started ({queues} queues, until {until})",
            queues=len(self._sources),
            until=self._until or "cancelled",
        )
        try:
            self._runs = [self._start(source.run(), source.queue) for source in self._sources]
            for source in self._sources:
                for work in source.background():
                    self._start(work, f"background of {source.queue}")
            metrics.watch(self)
            if self._runs:
                await asyncio.wait(self._runs)
        finally:
            metrics.unwatch(self)
            await self._shut_down()
        if self._failure is not None:
            raise self._failure
        report = self.report()
        log.info("syphon.ended", "the syphon ended; " + DONE, **asdict(report))
        return report

    def report(self) -> SyphonReport:
        """Return the result so far."""
        dead_lettered = dict(sorted(self._progress.dead_lettered.items()))
        parked = sum(source.parked_count for source in self._sources)
        return SyphonReport(self._progress.drained, dead_lettered, parked, self._progress.redirected)

    def status(self) -> SyphonStatus:
        """Return the current status."""
        return SyphonStatus(
            queues=tuple(source.status() for source in self._sources),
            refusing=self._destinations.refusing(),
            is_stalled=self._destinations.is_stalled,
            accepted=self._progress.accepted,
            longest_pause_s=self._longest_pause_s,
            redirected=self._destinations.redirected(),
        )

    def measured(self) -> Iterator[tuple[metrics.Instrument, float, metrics.Attributes]]:
        """Yield the measurements of its queues and destinations; see `metrics.Watched`."""
        yield (
            metrics.UNAVAILABLE_DESTINATIONS,
            len(self._destinations.refusing()),
            metrics.server(self._pair.primary.namespace),
        )
        yield (
            metrics.REDIRECTED_DESTINATIONS,
            len(self._destinations.redirected()),
            metrics.server(self._pair.secondary.namespace),
        )
        for source in self._sources:
            yield from source.measured()

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        return self._tasks.start(work, name=f"syphon {name}")

    def _fail(self, error: BaseException) -> None:
        """End the run with an unexpected exception, so that its caller receives it."""
        self._failure = self._failure or error
        for run in self._runs:
            run.cancel()

    async def _shut_down(self) -> None:
        """Stop receiving, wait for running transfers, release the other messages in flight."""
        await self._tasks.close()
        late = await clock.wait(self._destinations.end(), self._shut_down_s)
        if late:
            log.warning(
                "syphon.gave_up_waiting",
                "{transfers} transfers did not end within {seconds:g} s",
                transfers=len(late),
                seconds=self._shut_down_s,
            )
        await self._destinations.stop()
        # Concurrently: each may take seconds if the namespace does not answer, and a service waits for the end.
        await asyncio.gather(*(source.close() for source in self._sources))
        await self._destinations.close()
