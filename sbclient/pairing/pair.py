"""What the senders, the pinger and the syphon of one client share: each entity's state, and the backlog queues."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from random import Random
from typing import Any, Final

from sbclient.clock import Clock
from sbclient.delivery import SenderLimits
from sbclient.errors import BacklogUnavailableError, InvalidOperationError, ServiceBusError
from sbclient.options import BACKLOG_HEADROOM_BYTES, PairedNamespaceOptions
from sbclient.pairing.provisioning import provision
from sbclient.rules.accepted import AcceptedCopies
from sbclient.rules.backlog import (
    Quarantine,
    backlog_queue_names,
    is_backlog_path,
    primary_name_of,
    session_backlog_queue_names,
)
from sbclient.rules.entity_path import canonical, check_entity_path
from sbclient.rules.failover import EntityFailover, FailoverState, PingKeys, Transition, is_outage
from sbclient.rules.known_sessions import KnownSessions
from sbclient.telemetry import metrics
from sbclient.telemetry.log import get_logger
from sbclient.transport.base import Transport

log = get_logger(__name__)

EVENTS_KEPT: Final = 1000


@dataclass(frozen=True, slots=True)
class PairEvent:
    """Something that happened to the pair.

    Attributes:
        at_utc: when.
        name: the name of the log event: `failover.suspected`, `failover.engaged`, `failover.recovered`,
            `failover.cleared`, `backlog.quarantined`, `backlog.usable`.
        path: the entity or backlog queue it happened to.
        facts: what else there is to say.
    """

    at_utc: datetime
    name: str
    path: str
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PairedEntityStatus:
    """One entity of the pair. `since_utc` is when it came into its state, `diverted` how many messages went to the
    backlog from this client."""

    path: str
    state: FailoverState
    since_utc: datetime
    is_forced: bool
    diverted: int


@dataclass(frozen=True, slots=True)
class PairStatus:
    """How the pair stands. Only entities that this client has sent to are listed."""

    primary: str
    secondary: str
    entities: dict[str, PairedEntityStatus]
    backlog_queues: tuple[str, ...]
    quarantined: tuple[str, ...]


class PairedEntity:
    """One entity path of the primary, as every sender of the client sees it.

    Attributes:
        failover: the machine.
        failed_over: set while the machine says so, for what waits.
        diverted: messages that went to the backlog.
        sessions: what is known of its sessions, with `ordering="session"`.
        attributes: what names it in measurements.
    """

    def __init__(self, pair: Pair, path: str, failover: EntityFailover) -> None:
        self._pair = pair
        self._has_sent = False
        self.path = path
        self.failover = failover
        self.failed_over = asyncio.Event()
        self.diverted = 0
        self.sessions = KnownSessions()
        self.attributes = {metrics.DESTINATION: path, **metrics.server(pair.primary.namespace)}

    @property
    def is_failed_over(self) -> bool:
        """Whether sends go to the backlog now; looks at the deadline too, so it is never late."""
        self._pair.note(self, self.failover.advance(self._pair.clock.monotonic()))
        return self.failover.is_failed_over

    def succeeded(self, generation: int) -> None:
        """The primary accepted a send that began in that generation."""
        self._has_sent = True
        self._pair.note(self, self.failover.success(self._pair.clock.monotonic(), generation=generation))

    def failed(self, error: ServiceBusError, keys: PingKeys) -> bool:
        """An error survived the retries of a send with these keys; returns whether it counts as an outage."""
        counts = is_outage(error, has_sent_before=self._has_sent, override=self._pair.options.is_outage)
        if counts:
            self._pair.note(self, self.failover.outage(self._pair.clock.monotonic(), keys=keys), error)
        return counts


class Pair:
    """Two namespaces, and which entities of the first are failed over to the second.

    An application reaches it as `client.pair`: `status()`, `events()`, `force_failover(path)`, `mark_healthy(path)`,
    `mark_unhealthy(path)`. The rest is for the client's own parts.
    """

    def __init__(
        self, primary: Transport, secondary: Transport, options: PairedNamespaceOptions, clock: Clock, random: Random
    ) -> None:
        if primary.namespace.casefold() == secondary.namespace.casefold():
            raise InvalidOperationError(
                f"primary and secondary are the same namespace, {primary.namespace!r}: the backlog needs another one"
            )
        self.primary = primary
        self.secondary = secondary
        self.options = options
        self.clock = clock
        self.random = random
        name = options.primary_name or primary_name_of(primary.namespace)
        self._all_queues = backlog_queue_names(name, options.backlog_queue_count)
        self._all_session_queues = (
            session_backlog_queue_names(name, options.backlog_queue_count) if options.ordering == "session" else []
        )
        self.backlog_queues: list[str] = []
        self.session_backlog_queues: list[str] = []
        self.backlog_limits: SenderLimits | None = None
        self.quarantine = Quarantine()
        self.accepted = AcceptedCopies()
        self.attention = asyncio.Event()
        self.counts: Counter[str] = Counter()
        self._entities: dict[str, PairedEntity] = {}
        self._read_time: Callable[[], float] | None = None
        self._events: deque[PairEvent] = deque(maxlen=EVENTS_KEPT)

    async def open(self, *, timeout_s: float) -> None:
        """Provision the backlog queues. On failure nothing is kept and it can be called again.

        Raises:
            BacklogUnavailableError: no backlog queue is usable, or with `ordering="session"` one is not.
        """
        mode = self.options.provision
        administration = self.secondary.administration
        queues = await provision(administration, self._all_queues, mode=mode)
        session_queues = (
            await provision(administration, self._all_session_queues, mode=mode, requires_session=True)
            if self._all_session_queues
            else []
        )
        if len(session_queues) < len(self._all_session_queues):
            missing = sorted(set(self._all_session_queues) - set(session_queues))
            raise BacklogUnavailableError(
                f'ordering="session" needs every one of its queues, {", ".join(missing)} cannot be had: '
                "which queue a session takes must be the same for every client"
            )
        self.backlog_limits = await self._limits_of(queues[0], timeout_s) if mode != "none" else None
        self.backlog_queues, self.session_backlog_queues = queues, session_queues
        self._read_time = self.clock.reader()
        metrics.watch(self)
        log.info("pair.opened", primary=self.primary.namespace, secondary=self.secondary.namespace, queues=len(queues))

    async def _limits_of(self, queue: str, timeout_s: float) -> SenderLimits | None:
        link = self.secondary.open_sender(queue)
        try:
            return await link.limits(timeout_s=timeout_s)
        except ServiceBusError:
            return None
        finally:
            await link.close()

    def message_limit(self, primary: SenderLimits) -> int:
        """The largest message, in encoded bytes, that the primary takes and the backlog would take too."""
        if not self.options.reserve_backlog_headroom:
            return primary.max_message_size_bytes
        backlog = (self.backlog_limits or primary).max_message_size_bytes
        return min(primary.max_message_size_bytes, backlog - BACKLOG_HEADROOM_BYTES)

    def batch_limit(self, primary: SenderLimits) -> int:
        """The largest batch, in encoded bytes, that the primary takes and the backlog would take too."""
        if not self.options.reserve_backlog_headroom:
            return primary.max_batch_size_bytes
        backlog = (self.backlog_limits or primary).max_batch_size_bytes
        return min(primary.max_batch_size_bytes, backlog - BACKLOG_HEADROOM_BYTES)

    def entity(self, path: str) -> PairedEntity:
        """The shared state of an entity path; made at its first use.

        Raises:
            InvalidOperationError: the path lies among backlog queues.
        """
        key = canonical(path)
        entity = self._entities.get(key)
        if entity is None:
            if is_backlog_path(path):
                raise InvalidOperationError(f"{path!r} is a backlog queue: it cannot itself be failed over")
            failover = EntityFailover(
                failover_interval_s=self.options.failover_interval.total_seconds(),
                ping_interval_s=self.options.ping_primary_interval.total_seconds(),
                pings_to_recover=self.options.pings_to_recover,
                random=self.random,
                now=self.clock.monotonic(),
            )
            entity = self._entities[key] = PairedEntity(self, path, failover)
        return entity

    def entities(self) -> Iterator[PairedEntity]:
        """Every entity that this client has sent to, or that was steered by hand."""
        yield from list(self._entities.values())

    def note(self, entity: PairedEntity, transition: Transition | None, cause: ServiceBusError | None = None) -> None:
        """Make a change of an entity's state known to everything that waits for it, to the log and to the events."""
        if transition is None:
            return
        self.attention.set()
        if transition.after is FailoverState.FAILED_OVER:
            entity.failed_over.set()
        else:
            entity.failed_over.clear()
        name = {
            FailoverState.SUSPECT: "failover.suspected",
            FailoverState.FAILED_OVER: "failover.engaged",
            FailoverState.HEALTHY: "failover.recovered"
            if transition.before is FailoverState.FAILED_OVER
            else "failover.cleared",
        }[transition.after]
        why: metrics.Attributes = {metrics.STATE: str(transition.after), metrics.REASON: str(transition.event)}
        metrics.add(metrics.TRANSITIONS, 1, {**entity.attributes, **why})
        facts: dict[str, Any] = {"reason": str(transition.event)}
        if cause is not None:
            facts["error"] = type(cause).__name__
        self.record(name, entity.path, **facts)

    def record(self, name: str, path: str, **facts: Any) -> None:
        """Log an event and keep it for `events()`."""
        log.info(name, path=path, **facts)
        self._events.append(PairEvent(datetime.fromtimestamp(self.clock.now(), UTC), name, path, facts))

    def queue_failed(self, queue: str, error: ServiceBusError) -> None:
        """Take a backlog queue out of every sender's rotation for a while."""
        self.quarantine.failed(queue, self.clock.monotonic())
        metrics.add(metrics.QUARANTINES, 1, {**self.at_backlog(queue), metrics.ERROR: type(error).__name__})
        self.record("backlog.quarantined", queue, error=type(error).__name__)

    def queue_succeeded(self, queue: str) -> None:
        """A backlog queue took a message: its quarantine, if there was one, is over."""
        if self.quarantine.succeeded(queue):
            self.record("backlog.usable", queue)

    def at_backlog(self, queue: str) -> dict[str, str | int]:
        """What names a backlog queue in measurements."""
        return {metrics.DESTINATION: queue, **metrics.server(self.secondary.namespace)}

    def measured(self) -> Iterator[tuple[metrics.Instrument, float, metrics.Attributes]]:
        """The states of entities and backlog queues; see `metrics.Watched`."""
        if self._read_time is None:
            return
        now = self._read_time()
        for entity in self.entities():
            current = entity.failover.state
            for state in FailoverState:
                yield metrics.FAILOVER_STATE, float(state is current), {**entity.attributes, metrics.STATE: str(state)}
            age_s = max(now - entity.failover.since_at, 0.0)
            yield metrics.FAILOVER_AGE, age_s, {**entity.attributes, metrics.STATE: str(current)}
        for queue in self.backlog_queues + self.session_backlog_queues:
            yield metrics.QUARANTINED, float(self.quarantine.is_in(queue, now)), self.at_backlog(queue)

    def status(self) -> PairStatus:
        """How the pair stands now."""
        offset_s = self.clock.now() - self.clock.monotonic()
        return PairStatus(
            primary=self.primary.namespace,
            secondary=self.secondary.namespace,
            entities={
                entity.path: PairedEntityStatus(
                    path=entity.path,
                    state=entity.failover.state,
                    since_utc=datetime.fromtimestamp(entity.failover.since_at + offset_s, UTC),
                    is_forced=entity.failover.is_forced,
                    diverted=entity.diverted,
                )
                for entity in self.entities()
            },
            backlog_queues=tuple(self.backlog_queues + self.session_backlog_queues),
            quarantined=tuple(self.quarantine.queues(self.clock.monotonic())),
        )

    def events(self) -> list[PairEvent]:
        """The last 1,000 events, oldest first."""
        return list(self._events)

    def force_failover(self, path: str) -> None:
        """Divert the sends to an entity from now on; only `mark_healthy` ends it, no ping is sent."""
        entity = self.entity(check_entity_path(path))
        self.note(entity, entity.failover.force(self.clock.monotonic()))

    def mark_unhealthy(self, path: str) -> None:
        """Fail an entity over now; it comes back as after any failover, by pings."""
        entity = self.entity(check_entity_path(path))
        self.note(entity, entity.failover.mark_unhealthy(self.clock.monotonic()))
        self.attention.set()  # of an entity that was forced the state stays as it is, and pings begin

    def mark_healthy(self, path: str) -> None:
        """Send to the primary again, at once, for every sender of the client."""
        entity = self.entity(check_entity_path(path))
        self.note(entity, entity.failover.mark_healthy(self.clock.monotonic()))
