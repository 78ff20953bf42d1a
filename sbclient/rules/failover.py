"""Whether one entity's sends go to the primary or to the backlog: a table of states and events, and its deadlines.

Laws, one entity path each, never the whole namespace (source: paired namespaces, documented, unless said otherwise):

1. The first outage error arms a one-shot deadline; later ones do not move it. Any success disarms it.
2. When the deadline passes the entity is failed over, also if nobody sends. An interval of 0 fails over at once.
3. While failed over the primary is pinged; enough accepted pings in a row bring the entity back.
4. A success of a send begun before the last failover or recovery says nothing about now and is ignored (our choice).
5. What is forced stays until it is marked healthy: no pings (our choice).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from random import Random
from types import MappingProxyType
from typing import Final, NamedTuple

from sbclient.errors import MessagingEntityNotFoundError, ServiceBusError


class FailoverState(StrEnum):
    """Where the sends to an entity go: to the primary, to the primary while its errors are watched, to the backlog."""

    HEALTHY = "healthy"
    SUSPECT = "suspect"
    FAILED_OVER = "failed_over"


class FailoverEvent(StrEnum):
    """What moves an entity from one state to another."""

    OUTAGE = "outage"
    SUCCESS = "success"
    DEADLINE_PASSED = "deadline_passed"
    PINGS_ACCEPTED = "pings_accepted"
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
        (_FAILED_OVER, _E.MARKED_HEALTHY): _HEALTHY,
        (_FAILED_OVER, _E.MARKED_UNHEALTHY): _FAILED_OVER,
        (_FAILED_OVER, _E.FORCED): _FAILED_OVER,
    }
)
"""Every event that can happen in a state, and the state after it. What is not listed cannot happen."""

PING_JITTER: Final = 0.1
"""Each pause between pings is spread by this share, so that many clients do not ping in step."""


class Transition(NamedTuple):
    """A change of state: what it was, what it is, and why."""

    before: FailoverState
    after: FailoverState
    event: FailoverEvent
    at: float


class PingKeys(NamedTuple):
    """The keys a ping carries, so that it reaches the fragment that failed."""

    session_id: str | None = None
    partition_key: str | None = None


def is_outage(
    error: ServiceBusError,
    *,
    has_sent_before: bool,
    override: Callable[[ServiceBusError], bool] | None = None,
) -> bool:
    """Whether an error that survived the retries counts toward failing over.

    Args:
        has_sent_before: whether this client ever had a message accepted on that path. An entity that vanished is an
            outage, one that never was is a typing error.
        override: the application's own judgement, which then is the only one.
    """
    if override is not None:
        return override(error)
    if isinstance(error, MessagingEntityNotFoundError):
        return has_sent_before
    return error.is_outage


class EntityFailover:
    """The state of one entity path, shared by every sender of a client.

    It never looks at a clock: each method is told `now`, in seconds of a clock that never goes back, and
    `next_deadline()` says when `advance()` next wants to be called.

    Args:
        failover_interval_s: seconds from the first outage error to the failover.
        ping_interval_s: seconds between two pings, ±10 %.
        pings_to_recover: accepted pings in a row that bring the entity back.
        random: for the jitter of the pings.
        now: the moment the entity is first used.
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
        self._deadline_at: float | None = None
        self._ping_at: float | None = None
        self._pings_accepted = 0
        self.state = FailoverState.HEALTHY
        self.since_at = now
        self.generation = 0
        self.is_forced = False
        self.ping_keys = PingKeys()

    @property
    def is_failed_over(self) -> bool:
        """Whether sends go to the backlog."""
        return self.state is FailoverState.FAILED_OVER

    def outage(self, now: float, *, keys: PingKeys) -> Transition | None:
        """An outage error survived the retries of a send with these keys.

        The last keys that failed are kept for the pings, also when a send without keys fails after them: a ping
        without keys would prove nothing about their fragment.
        """
        if self.is_failed_over:
            return None
        if keys != PingKeys() or self.state is FailoverState.HEALTHY:
            self.ping_keys = keys
        changed = self._apply(FailoverEvent.OUTAGE, now)
        if self._deadline_at is None:
            self._deadline_at = now + self._failover_interval_s
        return self.advance(now) or changed

    def success(self, now: float, *, generation: int) -> Transition | None:
        """The primary accepted a send that began in that generation."""
        if generation != self.generation:
            return None
        return self._apply(FailoverEvent.SUCCESS, now)

    def advance(self, now: float) -> Transition | None:
        """Let time pass: fails the entity over if its deadline has come."""
        if self._deadline_at is not None and now >= self._deadline_at:
            return self._apply(FailoverEvent.DEADLINE_PASSED, now)
        return None

    def next_deadline(self) -> float | None:
        """When something is to be done next: `advance`, or a ping; None = nothing until somebody sends."""
        return self._ping_at if self.is_failed_over else self._deadline_at

    def is_ping_due(self, now: float) -> bool:
        """Whether a ping is to be sent now."""
        return self.is_failed_over and self._ping_at is not None and now >= self._ping_at

    def ping_started(self) -> int:
        """A ping is on its way, so that no second one is due; returns the generation it belongs to."""
        self._ping_at = None
        return self.generation

    def ping_answered(self, now: float, *, accepted: bool, generation: int) -> Transition | None:
        """A ping begun in that generation has ended; the next one is planned."""
        if generation != self.generation or not self.is_failed_over or self.is_forced:
            return None
        self._pings_accepted = self._pings_accepted + 1 if accepted else 0
        if self._pings_accepted >= self._pings_to_recover:
            return self._apply(FailoverEvent.PINGS_ACCEPTED, now)
        spread = self._random.uniform(1 - PING_JITTER, 1 + PING_JITTER)
        self._ping_at = now + self._ping_interval_s * spread
        return None

    def mark_healthy(self, now: float) -> Transition | None:
        """Send to the primary again, at once."""
        return self._apply(FailoverEvent.MARKED_HEALTHY, now)

    def mark_unhealthy(self, now: float) -> Transition | None:
        """Divert from now on; pings may bring the entity back."""
        return self._apply(FailoverEvent.MARKED_UNHEALTHY, now)

    def force(self, now: float) -> Transition | None:
        """Divert from now on, until `mark_healthy`."""
        transition = self._apply(FailoverEvent.FORCED, now)
        self.is_forced, self._ping_at = True, None
        return transition

    def _apply(self, event: FailoverEvent, now: float) -> Transition | None:
        before, after = self.state, TRANSITIONS[self.state, event]
        if after is not FailoverState.SUSPECT:
            self._deadline_at = None
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
