"""Keeps whoever sends below a rate of messages and of bytes."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from sbclient.clock import Clock
from sbclient.options import SyphonLimits
from sbclient.rules.entity_path import canonical

GROUP_MESSAGES: Final = 100
"""The most that leave at once, whatever the rate."""
GROUP_S: Final = 0.5
"""What leaves at once is at most what the rate lets through in this time."""
PACES_KEPT: Final = 2_000
"""Entities whose rate is kept; what was sent to the one longest unused is forgotten."""


class Pace:
    """Lets through what fits the rates; whoever comes too early waits.

    Args:
        clock: tells the time of the running loop.
        messages_per_second, bytes_per_second: None = no limit.
    """

    def __init__(self, clock: Clock, messages_per_second: float | None, bytes_per_second: float | None) -> None:
        self._clock = clock
        self._messages_per_second = messages_per_second
        self._bytes_per_second = bytes_per_second
        self._free_at = float("-inf")

    async def take(self, messages: int, size_bytes: int) -> float:
        """Wait until these may leave; returns how many seconds that was.

        What leaves pushes back what comes after it by as long as the rates ask, so that the rates hold on average over
        any span, however large one transfer is.
        """
        span_s = 0.0
        if self._messages_per_second is not None:
            span_s = messages / self._messages_per_second
        if self._bytes_per_second is not None:
            span_s = max(span_s, size_bytes / self._bytes_per_second)
        if not span_s:
            return 0.0
        now = self._clock.monotonic()
        starts_at = max(now, self._free_at)
        self._free_at = starts_at + span_s
        if starts_at > now:
            await self._clock.sleep(starts_at - now)
        return starts_at - now


class Paces:
    """The rates of one syphon: of all that it sends, and of what it sends to each entity.

    Attributes:
        total: of all that it sends.
        is_limited: whether there is any rate at all.
        group_messages: how many messages may leave at once.
    """

    def __init__(self, clock: Clock, limits: SyphonLimits) -> None:
        self._clock = clock
        self._own_rate = limits.max_messages_per_second_per_destination
        self._own: OrderedDict[str, Pace] = OrderedDict()
        rates = [rate for rate in (limits.max_messages_per_second, self._own_rate) if rate is not None]
        self.is_limited = bool(rates)
        self.total = Pace(clock, limits.max_messages_per_second, None)
        self.group_messages = max(1, min([GROUP_MESSAGES, *(int(rate * GROUP_S) for rate in rates)]))

    async def take(self, path: str, messages: int) -> None:
        """Wait until so many messages may leave for an entity."""
        await self.to(path).take(messages, 0)
        await self.total.take(messages, 0)

    def to(self, path: str) -> Pace:
        """The rate to one entity."""
        if self._own_rate is None:
            return Pace(self._clock, None, None)
        key = canonical(path)
        pace = self._own.setdefault(key, Pace(self._clock, self._own_rate, None))
        self._own.move_to_end(key)
        while len(self._own) > PACES_KEPT:
            self._own.popitem(last=False)
        return pace
