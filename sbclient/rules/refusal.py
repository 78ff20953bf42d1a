"""The state of an entity that rejects messages: its failures, its next attempt, and how long it has been missing.

The rules, our choice:

1. The pause before the next attempt is 1 s after the first failure. It doubles with each further failure, up to 60 s.
2. An entity counts as missing from a response that it does not exist until the next request with such a response. A
   slow response does not count: it does not show at which time the entity was missing. A response that proves its
   existence resets this time. Any other result, such as a lost connection, only interrupts it.
3. An outage begins with the first of consecutive outage errors, whatever their class; every other answer ends it. From
   `redirect_after` after its beginning the messages go to the entity of the same path in the secondary.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from sbclient.errors import (
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
)
from sbclient.rules.backoff import growing

FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0
_pause_s: Final = growing(FIRST_PAUSE_S, LONGEST_PAUSE_S)


@dataclass(frozen=True, slots=True)
class OngoingError:
    """An error that persists since its first occurrence. The exception is not stored: it would keep its frames alive.

    Attributes:
        since_at: time of the first occurrence, in monotonic seconds.
        kind: class of the last occurrence.
        text: class name and message of the last occurrence.
    """

    since_at: float
    kind: type[ServiceBusError]
    text: str

    @classmethod
    def of(cls, error: ServiceBusError, now: float, before: OngoingError | None = None) -> OngoingError:
        """Return the state after another error; `before` is the state until now."""
        since_at = now if before is None else before.since_at
        return cls(since_at, type(error), f"{type(error).__name__}: {error.message}")


class Refusal:
    """Consecutive failures of one entity. Times are monotonic seconds.

    Attributes:
        failures: number of consecutive failures.
        retry_at: time of the next attempt.
        error: the last error; set by the first call of `add`.
        outage_at: when the outage began; None = the last error was none of an outage.
        elsewhere: the failures of the entity of the same path in the secondary during the outage; None = none.
        is_elsewhere_named: whether the log says that the entity in the secondary refuses messages in this outage.
        redirected_at: when the secondary first accepted a message instead; None = not in this outage.
        redirected: number of messages that the secondary accepted instead, in all outages since the first failure.
    """

    error: OngoingError

    def __init__(self) -> None:
        self.failures = 0
        self.retry_at = float("-inf")
        self.outage_at: float | None = None
        self.elsewhere: Refusal | None = None
        self.is_elsewhere_named = False
        self.redirected_at: float | None = None
        self.redirected = 0
        self._missing_at: float | None = None
        self._missing_s = 0.0

    def add(
        self, error: ServiceBusError, now: float, *, asked_at: float, jitter: float = 1.0, is_outage: bool = False
    ) -> None:
        """Record another failure.

        Args:
            asked_at: time of the request that failed.
            jitter: factor of the pause before the next attempt.
            is_outage: whether the error counts as an outage for this pair.
        """
        if not is_outage:
            self.outage_at = None
        elif self.outage_at is None:
            self.outage_at = now
            self.redirected_at = self.elsewhere = None
            self.is_elsewhere_named = False
        self.error = OngoingError.of(error, now, self.error if self.failures else None)
        self.failures += 1
        self.retry_at = now + jitter * _pause_s(self.failures)
        if isinstance(error, MessagingEntityNotFoundError):
            if self._missing_at is not None:
                self._missing_s += max(0.0, asked_at - self._missing_at)
            self._missing_at = now
        else:
            self.interrupt()
            if isinstance(error, MessagingEntityDisabledError | ServiceBusQuotaExceededError):
                self._missing_s = 0.0

    def interrupt(self) -> None:
        """Record a result that is no failure and does not tell whether the entity exists: the service is busy."""
        self._missing_at = None

    def redirect_at(self, after: timedelta | None) -> float:
        """Return from when on messages go to the secondary; infinity = never.

        Args:
            after: the option `redirect_after`.
        """
        if after is None or self.outage_at is None:
            return float("inf")
        return self.outage_at + after.total_seconds()

    def is_missing_for(self, grace_s: float) -> bool:
        """Return whether the entity was missing at the last attempt, and for at least that time in total."""
        return self._missing_at is not None and self._missing_s >= grace_s
