"""The limits of one syphon, shared by its backlog queues: rates, concurrent polls, messages in flight."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Final

from sbclient.options import SyphonLimits
from sbclient.rate_limit import RateLimits

EMPTY_WAIT_S: Final = 0.5
"""Length of a poll if the syphon stops at an empty backlog."""

POLL_AFTER_ERROR_S: Final = 1.0
"""Length of the first poll after an error, so that a recovery is noticed soon."""

SHARED_POLL_S: Final = 20.0
"""Longest poll while other backlog queues wait for a poll slot."""

WINDOW_S: Final = 30.0
"""With a rate limit, a queue has at most the messages of this time in flight: half the lock of a backlog queue."""


class SyphonBudget:
    """The limits of one syphon.

    Attributes:
        rates: limits of the send rates.
        poll_slots: entered around each poll of a backlog queue.
        poll_s: length of one poll.
        unreachable: backlog queues whose latest poll failed because the namespace is unreachable.
        longest_pause_s: longest time between two answers of a queue in normal operation.

    Args:
        queues: number of backlog queues.
        pollers: number of polls that run at once without a limit.
        long_poll_s: longest poll; None = the syphon stops at an empty backlog.
    """

    def __init__(self, limits: SyphonLimits, *, queues: int, pollers: int, long_poll_s: float | None) -> None:
        self._limits = limits
        self._queues = max(queues, 1)
        self.rates = RateLimits(limits)
        self.unreachable: set[str] = set()
        slots = min(limits.max_queues_polled or pollers, pollers)
        are_shared = slots < pollers
        self.poll_slots: AbstractAsyncContextManager[None] = asyncio.Semaphore(slots) if are_shared else nullcontext()
        self.poll_s = EMPTY_WAIT_S
        if long_poll_s is not None:
            self.poll_s = min(long_poll_s, SHARED_POLL_S) if are_shared else long_poll_s
        rounds = -(-pollers // max(slots, 1))
        rate = limits.max_messages_per_second
        self.longest_pause_s = self.poll_s * rounds + (0.0 if rate is None else max(WINDOW_S, self._queues / rate))

    def poll_after(self, failures: int) -> float:
        """Return the length of the next poll after some consecutive failures."""
        return min(self.poll_s, POLL_AFTER_ERROR_S) if failures else self.poll_s

    def window(self) -> InFlightLimit:
        """Return the limits of the messages in flight of one queue."""
        messages, rate = self._limits.max_messages_in_flight, self._limits.max_messages_per_second
        if rate is not None:
            messages = max(1, min(messages, int(rate * WINDOW_S / self._queues)))
        return InFlightLimit(messages, self._limits.max_bytes_in_flight / self._queues)


FIRST_GUESS_BYTES: Final = 1024.0 * 1024
"""The assumed size of a message until the first one is measured."""

LEARNT_FROM: Final = 8
"""The approximate number of messages that the moving average covers."""


class InFlightLimit:
    """The messages in flight and their limits.

    Attributes:
        count: number of messages in flight.
        size_bytes: their total size.

    Args:
        max_messages: the most messages in flight.
        max_bytes: the most bytes in flight. A single message may be larger.
    """

    def __init__(self, max_messages: int, max_bytes: float) -> None:
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._usual_bytes: float | None = None
        self.count = 0
        self.size_bytes = 0

    @property
    def room(self) -> int:
        """The number of messages that may be added. At least 1 if none is in flight."""
        usual_bytes = max(FIRST_GUESS_BYTES if self._usual_bytes is None else self._usual_bytes, 1.0)
        by_size = int((self._max_bytes - self.size_bytes) / usual_bytes)
        if not self.count:
            return max(1, min(self._max_messages, by_size))
        return max(0, min(self._max_messages - self.count, by_size))

    def add(self, size_bytes: int) -> None:
        """Add a message to those in flight, and its size to the average."""
        self.count += 1
        self.size_bytes += size_bytes
        if self._usual_bytes is None:
            self._usual_bytes = size_bytes
        else:
            self._usual_bytes += (size_bytes - self._usual_bytes) / LEARNT_FROM

    def remove(self, size_bytes: int) -> None:
        """Remove a message from those in flight."""
        self.count -= 1
        self.size_bytes -= size_bytes
