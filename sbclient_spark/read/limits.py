"""What a micro-batch may still take."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import NamedTuple

from sbclient.message import ServiceBusReceivedMessage


class Reservation(NamedTuple):
    """A part of a budget; without messages = the micro-batch is full."""

    messages: int
    size_bytes: int


class Budget:
    """The limits of one micro-batch, shared by concurrent receivers.

    The sizes of messages are unknown before they are received. A receiver therefore reserves as many as fit if none is
    larger than the largest one so far, and the first one reserves a single message. A message that is larger than the
    limit is received alone.

    Args:
        messages, size_bytes: the limits; None = none.
    """

    def __init__(self, messages: int | None, size_bytes: int | None) -> None:
        self._messages = messages
        self._bytes = size_bytes
        self._largest = 0  # bytes of the largest message so far
        self._reservations = 0
        self._changed = asyncio.Condition()

    async def reserve(self, most: int) -> Reservation:
        """Reserve up to `most` messages. Waits while other reservations may leave something over."""
        async with self._changed:
            while (count := self._available(most)) < 1 and self._reservations:
                await self._changed.wait()
            size = 0 if self._bytes is None else count * self._largest
            if self._messages is not None:
                self._messages -= count
            if self._bytes is not None:
                self._bytes -= size
            self._reservations += 1 if count else 0
            return Reservation(count, size)

    def _available(self, most: int) -> int:
        count = most if self._messages is None else min(most, self._messages)
        if self._bytes is None:
            return count
        if not self._largest:
            return min(count, 0 if self._reservations else 1)
        return min(count, max(self._bytes, 0) // self._largest)

    async def settle(self, reserved: Reservation, taken: Collection[ServiceBusReceivedMessage]) -> None:
        """Replace a reservation by the messages that were taken."""
        sizes = [message.size_bytes for message in taken]
        async with self._changed:
            if self._messages is not None:
                self._messages += reserved.messages - len(sizes)
            if self._bytes is not None:
                self._bytes += reserved.size_bytes - sum(sizes)
            self._largest = max([self._largest, *sizes])
            self._reservations -= 1
            self._changed.notify_all()
