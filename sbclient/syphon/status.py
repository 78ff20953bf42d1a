"""The status of a syphon: polls and errors of its backlog queues, entities that refuse messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from sbclient import clock
from sbclient.errors import ServiceBusError
from sbclient.rules.refusal import OngoingError

UNAVAILABLE: Final = "destination {path!r} is unavailable: {error}; its messages wait"
RECOVERED: Final = "destination {path!r} accepts messages again"
REDIRECTED: Final = "messages for {path!r} are delivered to the secondary: the primary refuses them ({error})"
NOT_REDIRECTED: Final = "messages for {path!r} cannot be delivered to the secondary either: {error}; they wait"
REDIRECT_ENDED: Final = "messages for {path!r} are delivered to the primary again; the secondary has {redirected}"
IN_DOUBT: Final = (
    "the {side} accepted {count} messages for {path!r} that may exist in the other namespace too: a send there was not "
    "answered"
)
DONE: Final = "drained {drained}, dead-lettered {dead_lettered}, parked {parked}"
RESTARTED: Final = "the syphon failed unexpectedly ({error}); it restarts in {seconds:g} s"
"""Messages of log events that more than one module logs."""

DOUBTS_KEPT: Final = 10_000


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """Status of one backlog queue. Times are monotonic seconds.

    Attributes:
        queue: name of the queue.
        in_flight: messages that this syphon has received and not yet settled.
        answered_at: time of the last answer, with messages or without; None = no answer yet.
        polled_at: start of the current poll; None = no poll runs, since there is no room or no poll slot.
        error: the error that the queue returns; None = no error.
    """

    queue: str
    in_flight: int
    answered_at: float | None
    polled_at: float | None
    error: OngoingError | None


@dataclass(frozen=True, slots=True)
class SyphonStatus:
    """Status of one syphon.

    Attributes:
        queues: its backlog queues.
        refusing: the error of each entity of the primary that refuses messages, by path.
        redirected: since when the secondary accepts the messages of an entity instead, in monotonic seconds, by path.
        is_stalled: whether every entity that was tried refuses, so that messages stay in the backlog queues.
        accepted: path of the entity that last accepted a message, and the time; None = none yet.
        longest_pause_s: longest time between two polls of a queue in normal operation.
    """

    queues: tuple[QueueStatus, ...]
    refusing: dict[str, OngoingError]
    is_stalled: bool
    accepted: tuple[str, float] | None
    longest_pause_s: float
    redirected: dict[str, float] = field(default_factory=dict)


class PollRecord:
    """The polls of one backlog queue and their results; several polls may run at once.

    Attributes:
        polled_at: start of the current poll, in monotonic seconds; None = no poll runs.
    """

    def __init__(self, queue: str) -> None:
        self._queue = queue
        self._polls = 0
        self.polled_at: float | None = None
        self._answered_at: float | None = None
        self._error: OngoingError | None = None

    @contextmanager
    def polling(self) -> Iterator[None]:
        """A context around one poll; the poll has an answer if the context ends without an exception."""
        self._polls += 1
        self.polled_at = clock.monotonic()
        try:
            yield
            self._answered_at = clock.monotonic()
            self._error = None
        finally:
            self._polls -= 1
            if not self._polls:
                self.polled_at = None

    def failed(self, error: ServiceBusError) -> None:
        """Record that the queue returned an error."""
        self._error = OngoingError.of(error, clock.monotonic(), self._error)

    def status(self, *, in_flight: int) -> QueueStatus:
        return QueueStatus(self._queue, in_flight, self._answered_at, self.polled_at, self._error)


class Progress:
    """What one syphon has done.

    Attributes:
        drained: number of messages that the primary or, redirected, the secondary accepted.
        redirected: number of those that the secondary accepted.
        dead_lettered: number of dead-lettered messages, by reason.
        accepted: path of the entity of the primary that last accepted a message, and the monotonic time; None = none
            yet.
        doubts: the messages of backlog queues that were sent in doubt, by queue and sequence number, and where: True =
            to the secondary. The latest `DOUBTS_KEPT`.
    """

    def __init__(self) -> None:
        self.drained = self.redirected = 0
        self.doubts: dict[tuple[str, int], frozenset[bool]] = {}
        self.dead_lettered: Counter[str] = Counter()
        self.accepted: tuple[str, float] | None = None

    @property
    def ended(self) -> int:
        """Number of messages that left the backlog."""
        return self.drained + self.dead_lettered.total()

    def add(self, path: str, now: float, count: int, *, is_redirected: bool) -> None:
        """Add messages that an entity accepted."""
        if is_redirected:
            self.redirected += count
        else:
            self.accepted = path, now
        self.drained += count

    def doubt(self, queue: str, number: int, *, is_redirected: bool) -> None:
        """Note a message whose send was in doubt."""
        before = self.doubts.pop((queue, number), frozenset())
        self.doubts[queue, number] = before | {is_redirected}
        if len(self.doubts) > DOUBTS_KEPT:
            del self.doubts[next(iter(self.doubts))]
