"""The state that the senders, the pinger and the syphon of one client share: failed-over entities, backlog queues."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from operator import attrgetter
from random import Random
from typing import Any, Final, Generic, NamedTuple, TypeVar

from sbclient import clock
from sbclient.amqp import EncodedMessage
from sbclient.delivery import LEAST_LIMITS, SenderLimits
from sbclient.errors import (
    InvalidOperationError,
    ServiceBusError,
    ServiceBusInternalError,
    ServiceBusServerBusyError,
)
from sbclient.message import ServiceBusReceivedMessage
from sbclient.options import BACKLOG_HEADROOM_BYTES, PairedNamespaceOptions
from sbclient.pairing.backlog_links import BacklogLinks
from sbclient.pairing.backlog_queues import BacklogQueues
from sbclient.pairing.status import PairEvent
from sbclient.rules.backlog import (
    Quarantine,
    backlog_queue_names,
    is_backlog_path,
    native_session_id_of,
    primary_name_of,
    session_backlog_queue_names,
    session_backlog_queue_of,
)
from sbclient.rules.entity_path import canonical
from sbclient.rules.failover import EntityFailover, FailoverEvent, FailoverState, PingKeys, Transition, is_outage
from sbclient.rules.known_sessions import KnownSessions
from sbclient.tasks import OwnedTasks
from sbclient.telemetry import metrics
from sbclient.telemetry.log import get_logger, without_error_text
from sbclient.transport.base import Transport

log = get_logger(__name__)

T = TypeVar("T")

EVENTS_KEPT: Final = 1000


class _Outage(NamedTuple):
    """An outage of an entity, from its first error on.

    Attributes:
        began_at: monotonic seconds.
        error: the class of the first error; None if the application forced the failover.
        diverted_before: the number of messages that had been sent to the backlog before.
    """

    began_at: float
    error: str | None
    diverted_before: int


class Attempts(Generic[T]):
    """An operation of the primary, which may be repeated.

    Attributes:
        generation: the failover generation in which the last attempt began.
    """

    def __init__(self, failover: EntityFailover, operation: Callable[..., T]) -> None:
        self._failover = failover
        self._operation = operation
        self.generation = failover.generation

    def __call__(self, *args: Any, **options: Any) -> T:
        self.generation = self._failover.generation
        return self._operation(*args, **options)


class PairedEntity:
    """One queue or topic of the primary, shared by every sender of the client.

    Attributes:
        failover: the failover state machine.
        has_sent: whether the primary has accepted a message or a ping of this client for the entity, so that it exists.
        failed_over: set while the entity is failed over; it interrupts the back-off of senders.
        diverted: the number of messages sent to the backlog.
        sessions: the sessions that may have messages in the backlog, with `ordering="session"`.
        attributes: the attributes of measurements of this entity.
    """

    def __init__(self, pair: PairState, path: str) -> None:
        self._pair = pair
        self.has_sent = False
        self.path = path
        self.failover = EntityFailover(
            failover_interval_s=pair.options.failover_interval.total_seconds(),
            ping_interval_s=pair.options.ping_primary_interval.total_seconds(),
            pings_to_recover=pair.options.pings_to_recover,
            random=pair.random,
            now=clock.monotonic(),
        )
        self.failed_over = asyncio.Event()
        self.diverted = 0
        self._outage: _Outage | None = None
        self.sessions = KnownSessions()
        self.attributes = {metrics.DESTINATION: path, **metrics.server(pair.primary.namespace)}

    def leave_loop(self) -> None:
        """Make anew what belonged to an event loop that has ended, and do not wait for the answer to its ping."""
        is_failed_over = self.failed_over.is_set()
        self.failed_over = asyncio.Event()
        if is_failed_over:
            self.failed_over.set()
        failover = self.failover
        if failover.next_deadline() is None:
            failover.ping_answered(clock.monotonic(), accepted=False, generation=failover.generation)

    @property
    def is_failed_over(self) -> bool:
        """Whether sends go to the backlog now. Checks the failover deadline too."""
        failover = self.failover
        if failover.deadline_at is not None:
            self.apply(failover.advance(clock.monotonic()))
        return failover.state is FailoverState.FAILED_OVER

    def succeeded(self, generation: int) -> None:
        """Record that the primary accepted a send that began in this failover generation."""
        self.has_sent = self._pair.is_primary_reached = True
        if self.failover.state is not FailoverState.HEALTHY:
            self.apply(self.failover.success(clock.monotonic(), generation=generation))

    def failed(self, error: ServiceBusError, keys: PingKeys) -> bool:
        """Record the final error of a send with these keys; return whether it counts as an outage."""
        counts = is_outage(error, has_sent_before=self.has_sent, override=self._pair.options.is_outage)
        if not error.is_transient or isinstance(error, ServiceBusServerBusyError | ServiceBusInternalError):
            self._pair.is_primary_reached = True
        if counts:
            self.apply(self.failover.outage(clock.monotonic(), keys=keys), error)
        return counts

    @contextmanager
    def observed(self, keys: PingKeys, operation: Callable[..., T]) -> Iterator[Attempts[T]]:
        """Record the success or the final error of the attempts at an operation that is never diverted."""
        attempts = Attempts(self.failover, operation)
        try:
            yield attempts
        except ServiceBusError as error:
            self.failed(error, keys)
            raise
        self.succeeded(attempts.generation)

    def ordered_session(self, message: EncodedMessage) -> str | None:
        """Return the session that a message must stay in order with; scheduled messages have none."""
        is_ordered = self._pair.options.ordering == "session" and message.scheduled_enqueue_time_utc is None
        return message.session_id if is_ordered else None

    def backlog_session(self, session_id: str) -> tuple[str, str]:
        """Return the session backlog queue of a session, and its session id there."""
        native = native_session_id_of(self.path, session_id)
        return session_backlog_queue_of(self._pair.session_names, native), native

    def apply(self, transition: Transition | None, cause: ServiceBusError | None = None) -> None:
        """Announce a change of state to senders, pinger, log, metrics and events; None means no change."""
        if transition is None:
            return
        if transition.after is FailoverState.FAILED_OVER:
            self.failed_over.set()
        else:
            self.failed_over.clear()
        why = {metrics.STATE: str(transition.after), metrics.REASON: str(transition.event)}
        metrics.add(metrics.TRANSITIONS, 1, {**self.attributes, **why})
        now = clock.monotonic()
        outage = self._outage or _Outage(now, None if cause is None else type(cause).__name__, self.diverted)
        self._outage = None if transition.after is FailoverState.HEALTHY else outage
        facts: dict[str, Any] = {"namespace": self._pair.primary.namespace, "reason": str(transition.event)}
        if transition.after is FailoverState.SUSPECT:
            self._pair.record(
                "failover.suspected",
                "sends to {path!r} of {namespace} fail with {error}; if this lasts {interval_s:g} s they are diverted",
                self.path,
                level=logging.WARNING,
                error=outage.error,
                interval_s=self._pair.options.failover_interval.total_seconds(),
                **facts,
            )
            self._pair.note_change(self)
            return
        facts["seconds"] = round(now - outage.began_at, 1)
        if transition.after is FailoverState.FAILED_OVER:
            self._pair.record(
                "failover.engaged",
                "failover engaged for {path!r} of {namespace} after {seconds} s ({reason}, {error}); sends go to the "
                "backlog",
                self.path,
                level=logging.WARNING,
                error=outage.error,
                **facts,
            )
        elif transition.event is FailoverEvent.ENTITY_MISSING:
            self._pair.record(
                "failover.entity_missing",
                "{path!r} does not exist in the primary, and this client has never sent to it; its sends are not "
                "diverted any more ({reason})",
                self.path,
                level=logging.WARNING,
                **facts,
            )
        elif transition.before is FailoverState.FAILED_OVER:
            self._pair.record(
                "failover.recovered",
                "{path!r} of {namespace} recovered after {seconds} s, {diverted:,} diverted ({reason}, {error}); sends "
                "go to the primary",
                self.path,
                diverted=self.diverted - outage.diverted_before,
                error=outage.error,
                **facts,
            )
        else:
            self._pair.record(
                "failover.cleared",
                "{path!r} of {namespace} answered again after {seconds} s; no failover ({reason})",
                self.path,
                **facts,
            )
        self._pair.note_change(self)


class PairState:
    """The two namespaces, the entities of the primary, and the backlog queues of the secondary.

    Attributes:
        backlog: the backlog queues, and whether they are provisioned.
        session_names: the names of the session backlog queues; all must be usable.
        is_primary_reached: whether the primary has answered this client.
        syphons: the number of syphons that the application runs, besides that of `enable_syphon`.
        quarantine: the backlog queues that senders avoid after a failure.
        accepted: the backlog messages that the primary has accepted and the syphon could not complete.
        events: the last 1,000 events, oldest first.
        changed: set while `take_changed` has something to return.
        backlog_links: the links to the backlog queues.

    Raises:
        InvalidOperationError: both namespaces are the same, or `primary_name` is invalid.
    """

    def __init__(
        self, primary: Transport, secondary: Transport, options: PairedNamespaceOptions, random: Random
    ) -> None:
        if primary.namespace.casefold() == secondary.namespace.casefold():
            raise InvalidOperationError(
                f"primary and secondary are the same namespace {primary.namespace!r}: use another one as secondary"
            )
        self.primary = primary
        self.secondary = secondary
        self.options = options
        self.random = random
        name, count = options.primary_name or primary_name_of(primary.namespace), options.backlog_queue_count
        self.session_names = session_backlog_queue_names(name, count) if options.ordering == "session" else []
        self.backlog = BacklogQueues(
            primary.namespace,
            secondary,
            options,
            random,
            names=backlog_queue_names(name, count),
            session_names=self.session_names,
        )
        self.backlog_links = BacklogLinks(secondary, self._answered)
        self._common_limits: tuple[SenderLimits | None, SenderLimits | None, SenderLimits] = None, None, LEAST_LIMITS
        self.is_primary_reached = False
        self._is_warned = False
        self.syphons = 0
        self.quarantine = Quarantine()
        self.accepted = AcceptedCopies()
        self.events: deque[PairEvent] = deque(maxlen=EVENTS_KEPT)
        self.changed = asyncio.Event()
        self._changed: dict[PairedEntity, None] = {}
        self._entities: dict[str, PairedEntity] = {}
        self._read_time: Callable[[], float] | None = None

    def leave_loop(self) -> None:
        """Make anew what belonged to an event loop that has ended; the states of entities remain."""
        self.changed = asyncio.Event()
        self.backlog.leave_loop()
        self.backlog_links.leave_loop()
        for entity in self._entities.values():
            entity.leave_loop()
            self.note_change(entity)

    async def open(self, tasks: OwnedTasks, timeout_s: float) -> None:
        """Provision the backlog queues; see `BacklogQueues.open`."""
        self._read_time = clock.reader()
        await self.backlog.open(tasks, timeout_s)
        metrics.watch(self)

    @property
    def has_syphon(self) -> bool:
        """Whether this client runs a syphon."""
        return self.options.enable_syphon or self.syphons > 0

    def warn_if_never_reached(self, path: str) -> None:
        """Log, at the first diversion, that the primary has never answered this client."""
        if not (self.is_primary_reached or self._is_warned):
            self._is_warned = True
            self.record(
                "failover.never_reached",
                "sends to {path!r} go to the backlog, but the primary {primary!r} has never answered this client: "
                "check its host name",
                path,
                level=logging.WARNING,
                primary=self.primary.namespace,
            )

    @property
    def backlog_queues(self) -> list[str]:
        """The names of the usable backlog queues without sessions; empty before they are provisioned."""
        return self.backlog.plain

    @property
    def session_backlog_queues(self) -> list[str]:
        """The names of the session backlog queues; empty before they are provisioned."""
        return self.backlog.with_sessions

    def common_limits(self, primary: SenderLimits) -> SenderLimits:
        """Return the limits of messages that the primary accepts and, with headroom reserved, the backlog too."""
        if not self.options.reserve_backlog_headroom:
            return primary
        known, backlog, common = self._common_limits
        if known is not primary or backlog is not self.backlog.limits:
            common = self.limits_with_headroom(primary)
            self._common_limits = primary, self.backlog.limits, common
        return common

    def limits_with_headroom(self, primary: SenderLimits) -> SenderLimits:
        """Return the limits of messages that the primary accepts and, when sealed, the backlog too."""
        backlog = self.backlog.limits or primary
        return SenderLimits(
            min(primary.max_message_size_bytes, backlog.max_message_size_bytes - BACKLOG_HEADROOM_BYTES),
            min(primary.max_batch_size_bytes, backlog.max_batch_size_bytes - BACKLOG_HEADROOM_BYTES),
        )

    def entity(self, path: str) -> PairedEntity:
        """Return the shared state of an entity; the first call creates it.

        Raises:
            InvalidOperationError: the path is that of a backlog queue.
        """
        key = canonical(path)
        entity = self._entities.get(key)
        if entity is None:
            if is_backlog_path(path):
                raise InvalidOperationError(f"{path!r} is a backlog queue, which cannot fail over: use another entity")
            entity = self._entities[key] = PairedEntity(self, path)
        return entity

    def note_change(self, entity: PairedEntity) -> None:
        """Wake the pinger, because a deadline of an entity may have changed."""
        self._changed[entity] = None
        self.changed.set()

    def take_changed(self) -> list[PairedEntity]:
        """Return the entities that have changed since the last call."""
        changed = list(self._changed)
        self._changed.clear()
        self.changed.clear()
        return changed

    def entities(self) -> list[PairedEntity]:
        """Return the entities that this client has sent to or that an application has failed over."""
        return list(self._entities.values())

    def record(self, name: str, message: str, path: str, *, level: int = logging.INFO, **facts: Any) -> None:
        """Log an event and keep it for `Pair.events`."""
        facts = without_error_text(facts)
        log.log(level, name, message, path=path, **facts)
        self.events.append(PairEvent(datetime.fromtimestamp(clock.now(), UTC), name, path, facts))

    def queue_failed(self, queue: str, error: ServiceBusError) -> None:
        """Withdraw a backlog queue from every sender for a while; say so unless it is withdrawn already."""
        if self.quarantine.failed(queue, clock.monotonic()):
            metrics.add(metrics.QUARANTINES, 1, {**self.at_backlog(queue), metrics.ERROR: type(error).__name__})
            self.record(
                "backlog.quarantined",
                "backlog queue {path!r} failed ({error}); senders use others until it accepts messages again",
                queue,
                level=logging.WARNING,
                error=error,
            )

    def _answered(self, queue: str, error: ServiceBusError | None) -> None:
        """Quarantine a backlog queue for every sender after a fault, or end that since it has accepted a message."""
        if error is not None:
            self.queue_failed(queue, error)
        elif self.quarantine.terms and self.quarantine.succeeded(queue):
            self.record("backlog.usable", "backlog queue {path!r} accepts messages again", queue)

    def at_backlog(self, queue: str) -> dict[str, str | int]:
        """Return the attributes of measurements of a backlog queue."""
        return {metrics.DESTINATION: queue, **metrics.server(self.secondary.namespace)}

    def measured(self) -> Iterator[tuple[metrics.Instrument, float, metrics.Attributes]]:
        """Yield the states of entities and backlog queues; see `metrics.Watched`."""
        if self._read_time is None:
            return
        now = self._read_time()
        yield (
            metrics.UNPROVISIONED,
            float(not self.backlog.provisioned.is_set()),
            metrics.server(self.secondary.namespace),
        )
        for entity in self.entities():
            current = entity.failover.state
            for state in FailoverState:
                yield metrics.FAILOVER_STATE, float(state is current), {**entity.attributes, metrics.STATE: str(state)}
            age_s = max(now - entity.failover.since_at, 0.0)
            yield metrics.FAILOVER_AGE, age_s, {**entity.attributes, metrics.STATE: str(current)}
        for queue in self.backlog_queues + self.session_backlog_queues:
            yield metrics.QUARANTINED, float(self.quarantine.is_in(queue, now)), self.at_backlog(queue)


ACCEPTED_KEPT: Final = 10_000
"""The most copies that are remembered. A copy that was evicted may be sent a second time."""

_copy_of = attrgetter("sequence_number", "enqueued_time_utc")


class AcceptedCopies:
    """Backlog messages that the primary has accepted but that could not be completed at once, and those that are being
    sent. They are not sent again.

    A copy is identified by its queue, sequence number and enqueue time. The message id is not used, since ids may
    repeat. The sequence number alone is not enough, since it restarts when the queue is deleted and created again.

    Shared by every syphon of a client. A copy that was delivered again is kept after its completion: another drain may
    still hold an earlier delivery.
    """

    def __init__(self) -> None:
        self._copies: OrderedDict[tuple[str, Any], None] = OrderedDict()
        self._sending: dict[tuple[str, Any], asyncio.Event] = {}

    def __len__(self) -> int:
        return len(self._copies)

    def add(self, queue: str, message: ServiceBusReceivedMessage) -> None:
        """Record that the primary has accepted this copy."""
        self._copies[queue, _copy_of(message)] = None
        while len(self._copies) > ACCEPTED_KEPT:
            self._copies.popitem(last=False)

    def discard(self, queue: str, message: ServiceBusReceivedMessage) -> None:
        """Forget a copy that is no longer in its queue."""
        self._copies.pop((queue, _copy_of(message)), None)

    def has(self, queue: str, message: ServiceBusReceivedMessage) -> bool:
        """Return whether the primary has accepted this copy."""
        return (queue, _copy_of(message)) in self._copies

    @contextmanager
    def sending(self, copies: Iterable[tuple[str, ServiceBusReceivedMessage]]) -> Iterator[None]:
        """Send these copies in the body, each given as its queue and its message."""
        ended = asyncio.Event()
        sending = dict.fromkeys([(queue, _copy_of(message)) for queue, message in copies], ended)
        self._sending |= sending
        try:
            yield
        finally:
            for copy in sending:
                del self._sending[copy]
            ended.set()

    def end_of_send(self, queue: str, message: ServiceBusReceivedMessage) -> asyncio.Event | None:
        """Return what is set when the send of this copy ends; None if it is not being sent."""
        return self._sending.get((queue, _copy_of(message))) if self._sending else None
