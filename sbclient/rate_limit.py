"""Limits the rate of sends, in messages and bytes per second."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Final

from sbclient import clock
from sbclient.options import SyphonLimits
from sbclient.rules.entity_path import canonical

GROUP_MESSAGES: Final = 100
"""The largest group of messages sent at once, at any rate."""
GROUP_S: Final = 0.5
"""A group never exceeds the messages that the rate allows in this many seconds."""
LIMITERS_KEPT: Final = 2_000
"""The maximum number of limiters of entities; the least recently used one is dropped."""


class RateLimiter:
    """Delays sends so that they keep to a rate.

    Args:
        messages_per_second, bytes_per_second: None = no limit.

    Attributes:
        turn: held by the one who waits for this limiter and for another one.
    """

    def __init__(self, messages_per_second: float | None, bytes_per_second: float | None) -> None:
        self._messages_per_second = messages_per_second
        self._bytes_per_second = bytes_per_second
        self._free_at = float("-inf")
        self.turn = asyncio.Lock()

    async def take(self, messages: int, size_bytes: int) -> float:
        """Wait until a transfer may be sent; return the seconds waited.

        Each transfer delays the next one by its size divided by the rate, so rates hold on average for transfers of any
        size.
        """
        wait_s = max(0.0, self._free_at - clock.monotonic())
        self.reserve(messages, size_bytes)
        if wait_s:
            await clock.sleep(wait_s)
        return wait_s

    async def until_free(self) -> None:
        """Wait until the last transfer no longer delays the next one, which the caller then reserves."""
        wait_s = self._free_at - clock.monotonic()
        if wait_s > 0:
            await clock.sleep(wait_s)

    def reserve(self, messages: int, size_bytes: int) -> None:
        """Delay the transfers after one that begins as soon as the rate allows."""
        delay_s = 0.0
        if self._messages_per_second is not None:
            delay_s = messages / self._messages_per_second
        if self._bytes_per_second is not None:
            delay_s = max(delay_s, size_bytes / self._bytes_per_second)
        if delay_s:
            self._free_at = max(clock.monotonic(), self._free_at) + delay_s


class RateLimits:
    """The rates of one syphon: in total, and for each entity.

    Attributes:
        total: the limiter of all sends.
        group_messages: the number of messages that may be sent at once.
    """

    def __init__(self, limits: SyphonLimits) -> None:
        self._own_rate = limits.max_messages_per_second_per_destination
        self._own: OrderedDict[str, RateLimiter] = OrderedDict()
        rates = [rate for rate in (limits.max_messages_per_second, self._own_rate) if rate is not None]
        self.total = RateLimiter(limits.max_messages_per_second, None)
        self.group_messages = max(1, min([GROUP_MESSAGES, *(int(rate * GROUP_S) for rate in rates)]))

    async def take(self, path: str, messages: int) -> None:
        """Wait until this number of messages may be sent to an entity.

        The entity's rate counts from the end of the wait for the total rate. Otherwise a long wait for the total and
        then a short one would bring two transfers to the entity close together.
        """
        own = self.to(path)
        async with own.turn:
            await own.until_free()
            await self.total.take(messages, 0)
            own.reserve(messages, 0)

    def to(self, path: str) -> RateLimiter:
        """Return the limiter of one entity."""
        if self._own_rate is None:
            return RateLimiter(None, None)
        key = canonical(path)
        limiter = self._own.setdefault(key, RateLimiter(self._own_rate, None))
        self._own.move_to_end(key)
        while len(self._own) > LIMITERS_KEPT:
            self._own.popitem(last=False)
        return limiter
