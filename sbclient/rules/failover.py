"""The failover state machine of one entity: it decides whether sends go to the primary or to the backlog.

Laws, for each entity path and never for a whole namespace (source: paired namespaces, documented, unless said
otherwise):

1. The first outage error arms a one-shot deadline; later ones do not move it. Any success disarms it.
2. When the deadline passes, the entity is failed over, even if no message is sent. An interval of 0 fails over at once.
3. While the entity is failed over, the primary is pinged. Enough consecutive accepted pings end the failover.
4. The success of a send that began before the last failover or recovery is out of date and is ignored (our choice).
5. A forced failover is not pinged and lasts until the entity is marked healthy (our choice).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from random import Random
from types import MappingProxyType
from typing import Final, NamedTuple

from sbclient.errors import MessagingEntityNotFoundError, ServiceBusError


class FailoverState(StrEnum):
    """The state of an entity. Sends go to the primary if it is healthy or suspect, to the backlog if failed over."""

    HEALTHY = "healthy"
    SUSPECT = "suspect"
    FAILED_OVER = "failed_over"


class FailoverEvent(StrEnum):
    """An event that may change the state of an entity."""

    OUTAGE = "outage"
    SUCCESS = "success"
    DEADLINE_PASSED = "deadline_passed"
    PINGS_ACCEPTED = "pings_accepted"
    ENTITY_MISSING = "entity_missing"
    MARKED_HEALTHY = "marked_healthy"
    MARKED_UNHEALTHY = "marked_unhealthy"
    FORCED = "forced"


_HEALTHY, _SUSPECT, _FAILED_OVER = FailoverState
_E = FailoverEvent

TRANSITIONS: Final[Mapping[tuple[FailoverState, FailoverEvent], FailoverState]] = MappingProxyType(
    {
        (_HEALTHY, _E.OUTAGE): _SUSPECT,
        (_HEALTHY, _E.SUCCESS): _HEALTHY,
        (_HEALTHY, _E.MARKED_HEALTHY): _HEALTHY,
        (_HEALTHY, _E.MARKED_UNHEALTHY): _FAILED_OVER,
        (_HEALTHY, _E.FORCED): _FAILED_OVER,
        (_SUSPECT, _E.OUTAGE): _SUSPECT,
        (_SUSPECT, _E.SUCCESS): _HEALTHY,
        (_SUSPECT, _E.DEADLINE_PASSED): _FAILED_OVER,
        (_SUSPECT, _E.MARKED_HEALTHY): _HEALTHY,
        (_SUSPECT, _E.MARKED_UNHEALTHY): _FAILED_OVER,
        (_SUSPECT, _E.FORCED): _FAILED_OVER,
        (_FAILED_OVER, _E.OUTAGE): _FAILED_OVER,
        (_FAILED_OVER, _E.SUCCESS): _FAILED_OVER,
        (_FAILED_OVER, _E.PINGS_ACCEPTED): _HEALTHY,
        (_FAILED_OVER, _E.ENTITY_MISSING): _HEALTHY,
        (_FAILED_OVER, _E.MARKED_HEALTHY): _HEALTHY,
        (_FAILED_OVER, _E.MARKED_UNHEALTHY): _FAILED_OVER,
        (_FAILED_OVER, _E.FORCED): _FAILED_OVER,
    }
)
"""The next state for each state and event. Pairs that are not listed cannot occur."""

PING_JITTER: Final = 0.1
"""Each pause between pings varies by this fraction, so that many clients do not ping at the same time."""


class Transition(NamedTuple):
    """A change of state: the state before, the state after, the event that caused it, and the time."""

    before: FailoverState
    after: FailoverState
    event: FailoverEvent
    at: float


class PingKeys(NamedTuple):
    """The keys of a ping, which direct it to the fragment that failed."""

    session_id: str | None = None
    partition_key: str | None = None


def is_outage(
    error: ServiceBusError,
    *,
    has_sent_before: bool,
    override: Callable[[ServiceBusError], bool] | tuple[type[ServiceBusError], ...] | None = None,
) -> bool:
    """Return whether an error that remains after the retries counts towards failover.

    Args:
        has_sent_before: whether the entity ever accepted a message of this client. A missing entity is an outage if it
            existed before; otherwise its name is probably misspelled.
        override: a function of the application that decides instead, or the classes of errors that count. A subclass
            with another `is_outage` does not count: time spent in the queue of the client is no timeout of the service.
    """
    if isinstance(override, tuple):
        return any(isinstance(error, kind) and error.is_outage is kind.is_outage for kind in override)
    if override is not None:
        return override(error)
    if isinstance(error, MessagingEntityNotFoundError):
        return has_sent_before
    return error.is_outage


class EntityFailover:
    """The failover state of one entity path. Shared by every sender of a client.

    It reads no clock: each method takes `now`, in monotonic seconds. Call `advance()` at `next_deadline()`.

    Args:
        failover_interval_s: seconds from the first outage error to the failover.
        ping_interval_s: seconds between two pings, ±10 %.
        pings_to_recover: consecutive accepted pings that end the failover.
        random: source of the jitter of the pings.
        now: the time of the first use of the entity.

    Attributes:
        deadline_at: when the entity fails over unless it succeeds before; None = it does not.
    """

    def __init__(
        self,
        *,
        failover_interval_s: float,
        ping_interval_s: float,
        pings_to_recover: int,
        random: Random,
        now: float,
    ) -> None:
        self._failover_interval_s = failover_interval_s
        self._ping_interval_s = ping_interval_s
        self._pings_to_recover = pings_to_recover
        self._random = random
        self._ping_at: float | None = None
        self._next_ping_at = now
        self._pings_accepted = 0
        self.state = FailoverState.HEALTHY
        self.since_at = now
        self.deadline_at: float | None = None
        self.generation = 0
        self.is_forced = False
        self.ping_keys = PingKeys()

    @property
    def is_failed_over(self) -> bool:
        """Whether sends go to the backlog."""
        return self.state is FailoverState.FAILED_OVER

    def outage(self, now: float, *, keys: PingKeys) -> Transition | None:
        """Record an outage error that remained after the retries of a send with these keys.

        Pings use the last keys that failed. A later failure without keys does not replace them: a ping without keys
        may reach a different fragment.
        """
        if self.is_failed_over:
            return None
        if keys != PingKeys() or self.state is FailoverState.HEALTHY:
            self.ping_keys = keys
        changed = self._apply(FailoverEvent.OUTAGE, now)
        if self.deadline_at is None:
            self.deadline_at = now + self._failover_interval_s
        return self.advance(now) or changed

    def success(self, now: float, *, generation: int) -> Transition | None:
        """Record that the primary accepted a send that began in that generation."""
        if generation != self.generation:
            return None
        return self._apply(FailoverEvent.SUCCESS, now)

    def advance(self, now: float) -> Transition | None:
        """Fail the entity over if its deadline has passed."""
        if self.deadline_at is not None and now >= self.deadline_at:
            return self._apply(FailoverEvent.DEADLINE_PASSED, now)
        return None

    def next_deadline(self) -> float | None:
        """Return the time of the next `advance` or ping; None if neither is due before the next send."""
        return self._ping_at if self.is_failed_over else self.deadline_at

    def is_ping_due(self, now: float) -> bool:
        """Return whether a ping is due."""
        return self.is_failed_over and self._ping_at is not None and now >= self._ping_at

    def ping_started(self) -> int:
        """Record that a ping was sent, so that no second one is due until it is answered. Returns its generation.

        The interval to the next ping counts from the time at which this one was due, however long its answer takes.
        """
        if self._ping_at is not None:
            spread = self._random.uniform(1 - PING_JITTER, 1 + PING_JITTER)
            self._next_ping_at = self._ping_at + self._ping_interval_s * spread
        self._ping_at = None
        return self.generation

    def ping_answered(
        self, now: float, *, accepted: bool, generation: int, is_unknown_entity: bool = False
    ) -> Transition | None:
        """Record the result of a ping of that generation; the next one is due after the interval, or at once.

        Args:
            is_unknown_entity: whether the primary reported that the entity is missing, and never accepted a message of
                this client for it. Then its name is misspelled: sends go to the primary, which rejects them.
        """
        if generation != self.generation or not self.is_failed_over or self.is_forced:
            return None
        if is_unknown_entity:
            return self._apply(FailoverEvent.ENTITY_MISSING, now)
        self._pings_accepted = self._pings_accepted + 1 if accepted else 0
        if self._pings_accepted >= self._pings_to_recover:
            return self._apply(FailoverEvent.PINGS_ACCEPTED, now)
        self._ping_at = max(self._next_ping_at, now)
        return None

    def mark_healthy(self, now: float) -> Transition | None:
        """Send to the primary from now on."""
        return self._apply(FailoverEvent.MARKED_HEALTHY, now)

    def mark_unhealthy(self, now: float) -> Transition | None:
        """Divert from now on, until enough pings are accepted."""
        return self._apply(FailoverEvent.MARKED_UNHEALTHY, now)

    def force(self, now: float) -> Transition | None:
        """Divert from now on, until `mark_healthy`."""
        transition = self._apply(FailoverEvent.FORCED, now)
        self.is_forced, self._ping_at = True, None
        return transition

    def _apply(self, event: FailoverEvent, now: float) -> Transition | None:
        before, after = self.state, TRANSITIONS[self.state, event]
        if after is not FailoverState.SUSPECT:
            self.deadline_at = None
        if event is FailoverEvent.MARKED_UNHEALTHY and self.is_forced:
            self.is_forced, self._ping_at, self._pings_accepted = False, now, 0
        if after is before:
            return None
        self.state, self.since_at = after, now
        if FailoverState.FAILED_OVER in (before, after):
            self.generation += 1
            self.is_forced = False
            self._pings_accepted = 0
            self._ping_at = now if after is FailoverState.FAILED_OVER else None
        return Transition(before, after, event, now)
