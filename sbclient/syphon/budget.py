"""What the backlog queues of one syphon share between them: rates, turns to be asked, and room for what is in hand."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Final

from sbclient.clock import Clock
from sbclient.options import SyphonLimits
from sbclient.rate_limit import Paces
from sbclient.rules.window import Window

EMPTY_WAIT_S: Final = 0.5
"""How long a syphon that is to stop at an empty backlog waits before it looks whether it is empty."""

AGAIN_S: Final = 1.0
"""How long the first question after an error waits, so that it is soon known whether the queue answers again."""

POLL_TURN_S: Final = 20.0
"""How long an empty backlog queue is waited at while others wait for their turn."""

HAND_S: Final = 30.0
"""Under a rate limit no more is taken in hand than it lets through in this time: half of a backlog queue's lock."""


class SyphonShare:
    """The limits of one syphon, shared out.

    Attributes:
        paces: how fast it sends.
        turns: entered around each question to a backlog queue.
        wait_s: how long one question waits for messages.
        longest_pause_s: how much time at most lies between two answers of a queue while all is well.

    Args:
        queues: how many backlog queues there are.
        askers: how many questions wait at them at once, if they may.
        long_poll_s: how long a question may wait; None = the syphon is to stop at an empty backlog.
    """

    def __init__(
        self, clock: Clock, limits: SyphonLimits, *, queues: int, askers: int, long_poll_s: float | None
    ) -> None:
        self._limits = limits
        self._queues = max(queues, 1)
        self.paces = Paces(clock, limits)
        polled = min(limits.max_queues_polled or askers, askers)
        self.turns: AbstractAsyncContextManager[None] = asyncio.Semaphore(polled) if polled < askers else nullcontext()
        if long_poll_s is None:
            self.wait_s = EMPTY_WAIT_S
        else:
            self.wait_s = min(long_poll_s, POLL_TURN_S) if polled < askers else long_poll_s
        rounds = -(-askers // max(polled, 1))
        rate = limits.max_messages_per_second
        self.longest_pause_s = self.wait_s * rounds + (0.0 if rate is None else max(HAND_S, self._queues / rate))

    def wait_after(self, failures: int) -> float:
        """How long the next question waits for messages, after so many that were answered with an error."""
        return min(self.wait_s, AGAIN_S) if failures else self.wait_s

    def window(self) -> Window:
        """What one of the queues may have in hand."""
        messages, rate = self._limits.max_messages_in_flight, self._limits.max_messages_per_second
        if rate is not None:
            messages = max(1, min(messages, int(rate * HAND_S / self._queues)))
        return Window(messages, self._limits.max_bytes_in_flight / self._queues)
