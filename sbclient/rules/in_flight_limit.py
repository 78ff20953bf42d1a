"""Limits the messages in flight by their number and by their average size."""

from __future__ import annotations

from typing import Final

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
