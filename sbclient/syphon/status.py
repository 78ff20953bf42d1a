"""How a syphon stands: when each backlog queue was last asked, which entities refuse, how much is in hand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from sbclient.clock import Clock
from sbclient.errors import ServiceBusError

UNAVAILABLE: Final = "destination {path!r} is unavailable: {error}; its messages wait"
RECOVERED: Final = "destination {path!r} accepts messages again"
DEAD_LETTERED: Final = "dead-lettered a message of backlog queue {queue!r}: {reason}"
DONE: Final = "drained {drained}, dead-lettered {dead_lettered}, parked {parked}"
RESTARTED: Final = "the syphon failed unexpectedly ({error}); it restarts in {seconds:g} s"
"""Messages of log events that more than one module logs."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """What was answered instead of what was asked for. The error itself is not kept: it would keep its frames alive.

    Attributes:
        since_at: when it began, in monotonic seconds.
        kind: the class of the last error.
        text: of the last error, with its class.
    """

    since_at: float
    kind: type[ServiceBusError]
    text: str

    @classmethod
    def of(cls, error: ServiceBusError, now: float, before: Trouble | None = None) -> Trouble:
        """The trouble after another error; `before` is what there was already."""
        since_at = now if before is None else before.since_at
        return cls(since_at, type(error), f"{type(error).__name__}: {error.message}")


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """One backlog queue. Moments are monotonic seconds.

    Attributes:
        in_hand: messages that this syphon has taken and not yet settled.
        answered_at: when it last gave messages, or said that there are none; None = not yet.
        asked_at: since when an answer is waited for; None = it is not asked now, for there is no room, or no turn.
        trouble: what it answers instead; None = nothing is wrong.
    """

    queue: str
    in_hand: int
    answered_at: float | None
    asked_at: float | None
    trouble: Trouble | None


@dataclass(frozen=True, slots=True)
class SyphonStatus:
    """One syphon.

    Attributes:
        refusing: the entities of the primary that refuse what they are brought, by path.
        is_stalled: whether every entity that was tried refuses, so that the backlog is left where it is.
        accepted: the entity that was the last to accept a message, and when; None = nothing was accepted yet.
        longest_pause_s: how much time at most lies between two questions to a queue while all is well.
    """

    queues: tuple[QueueStatus, ...]
    refusing: dict[str, Trouble]
    is_stalled: bool
    accepted: tuple[str, float] | None
    longest_pause_s: float


class PollRecord:
    """When one backlog queue was asked for messages, and what it answered; several may ask it at once."""

    def __init__(self, queue: str, clock: Clock) -> None:
        self._clock = clock
        self._asking = 0
        self._asked_at: float | None = None
        self._answered_at: float | None = None
        self._trouble: Trouble | None = None
        self.queue = queue

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Around the question; an orderly end is an answer."""
        self._asking += 1
        self._asked_at = self._clock.monotonic()
        try:
            yield
            self._answered_at = self._clock.monotonic()
            self._trouble = None
        finally:
            self._asking -= 1
            if not self._asking:
                self._asked_at = None

    def failed(self, error: ServiceBusError) -> None:
        """It answered with an error."""
        self._trouble = Trouble.of(error, self._clock.monotonic(), self._trouble)

    def status(self, *, in_hand: int) -> QueueStatus:
        return QueueStatus(self.queue, in_hand, self._answered_at, self._asked_at, self._trouble)
