"""Limits the rate of sends, in messages and bytes per second."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from sbclient.clock import Clock
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
        clock: the only source of time.
        messages_per_second, bytes_per_second: None = no limit.
    """

    def __init__(self, clock: Clock, messages_per_second: float | None, bytes_per_second: float | None) -> None:
        self._clock = clock
        self._messages_per_second = messages_per_second
        self._bytes_per_second = bytes_per_second
        self._free_at = float("-inf")

    async def take(self, messages: int, size_bytes: int) -> float:
        """Wait until a transfer may be sent; return the seconds waited.

        Each transfer delays the next one by its size divided by the rate, so rates hold on average for transfers of any
        size.
        """
        delay_s = 0.0
        if self._messages_per_second is not None:
            delay_s = messages / self._messages_per_second
        if self._bytes_per_second is not None:
            delay_s = max(delay_s, size_bytes / self._bytes_per_second)
        if not delay_s:
            return 0.0
        now = self._clock.monotonic()
        starts_at = max(now, self._free_at)
        self._free_at = starts_at + delay_s
        if starts_at > now:
            await self._clock.sleep(starts_at - now)
        return starts_at - now


class RateLimits:
    """The rates of one syphon: in total, and for each entity.

    Attributes:
        total: the limiter of all sends.
        is_limited: whether any rate is set.
        group_messages: the number of messages that may be sent at once.
    """

    def __init__(self, clock: Clock, limits: SyphonLimits) -> None:
        self._clock = clock
        self._own_rate = limits.max_messages_per_second_per_destination
        self._own: OrderedDict[str, RateLimiter] = OrderedDict()
        rates = [rate for rate in (limits.max_messages_per_second, self._own_rate) if rate is not None]
        self.is_limited = bool(rates)
        self.total = RateLimiter(clock, limits.max_messages_per_second, None)
        self.group_messages = max(1, min([GROUP_MESSAGES, *(int(rate * GROUP_S) for rate in rates)]))

    async def take(self, path: str, messages: int) -> None:
        """Wait until this number of messages may be sent to an entity."""
        await self.to(path).take(messages, 0)
        await self.total.take(messages, 0)

    def to(self, path: str) -> RateLimiter:
        """Return the limiter of one entity."""
        if self._own_rate is None:
            return RateLimiter(self._clock, None, None)
        key = canonical(path)
        limiter = self._own.setdefault(key, RateLimiter(self._clock, self._own_rate, None))
        self._own.move_to_end(key)
        while len(self._own) > LIMITERS_KEPT:
            self._own.popitem(last=False)
        return limiter
