"""Keeps a task below a rate of messages and of bytes."""

from __future__ import annotations

from sbclient.clock import Clock


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
