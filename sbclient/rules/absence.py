"""For how long an entity is known to be missing, so that its messages are given up only after a whole grace.

The law, ours: only the time between two answers counts of which both say that there is no such entity. An answer that
proves that there is one ends it all; one that says nothing of it, as when the connection is lost, only interrupts it.
"""

from __future__ import annotations

from sbclient.errors import (
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
)


class Absence:
    """Of one entity. Moments are in seconds, of a clock that never jumps."""

    def __init__(self) -> None:
        self._missing_at: float | None = None
        self._span_s = 0.0

    def note(self, error: ServiceBusError, now: float) -> None:
        """The entity was asked, and this is what came instead of an acceptance."""
        if isinstance(error, MessagingEntityNotFoundError):
            if self._missing_at is not None:
                self._span_s += now - self._missing_at
            self._missing_at = now
        elif isinstance(error, MessagingEntityDisabledError | ServiceBusQuotaExceededError):
            self.end()
        else:
            self._missing_at = None

    def end(self) -> None:
        """The entity is there."""
        self._missing_at, self._span_s = None, 0.0

    def has_lasted(self, grace_s: float) -> bool:
        """Whether the last answer said that the entity is missing, and it is known to have been for so long."""
        return self._missing_at is not None and self._span_s >= grace_s
