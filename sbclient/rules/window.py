"""How many more messages may be taken in hand: by their number, and by the size that they usually have."""

from __future__ import annotations

from typing import Final

FIRST_GUESS_BYTES: Final = 1024.0 * 1024
"""The size that messages are taken to have before the first one is seen; then it is learnt."""

LEARNT_FROM: Final = 8
"""About how many messages the usual size is the mean of."""


class Window:
    """What is in hand, and how much of it there may be.

    Attributes:
        count: messages in hand.
        size_bytes: of all of them.

    Args:
        max_messages: that may be in hand.
        max_bytes: that they may have, but for one message, which may have any size.
    """

    def __init__(self, max_messages: int, max_bytes: float) -> None:
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._usual_bytes: float | None = None
        self.count = 0
        self.size_bytes = 0

    @property
    def room(self) -> int:
        """How many more may be taken. Never 0 while there is nothing in hand."""
        usual_bytes = max(FIRST_GUESS_BYTES if self._usual_bytes is None else self._usual_bytes, 1.0)
        by_size = int((self._max_bytes - self.size_bytes) / usual_bytes)
        if not self.count:
            return max(1, min(self._max_messages, by_size))
        return max(0, min(self._max_messages - self.count, by_size))

    def add(self, size_bytes: int) -> None:
        """A message was taken in hand."""
        self.count += 1
        self.size_bytes += size_bytes
        self.learn(size_bytes)

    def learn(self, size_bytes: int) -> None:
        """A message of that size was seen."""
        if self._usual_bytes is None:
            self._usual_bytes = size_bytes
        else:
            self._usual_bytes += (size_bytes - self._usual_bytes) / LEARNT_FROM

    def remove(self, size_bytes: int) -> None:
        """A message is no longer in hand."""
        self.count -= 1
        self.size_bytes -= size_bytes
