"""Whether a program of the world still lives: it is killed at a call on the wire, before or after that is done."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class RunawayError(BaseException):
    """The run makes no progress and never ends by itself."""


class Lifeline:
    """One program of the world, as far as the wire knows it: dead programs reach nobody.

    Args:
        name: of the program and which life of it.
        dies_at_call: the call on the wire at which it is killed; None = it lives.
        dies_after_work: whether that call is still carried out, and only its answer never seen.
    """

    def __init__(self, name: str, *, dies_at_call: int | None = None, dies_after_work: bool = False) -> None:
        self.name = name
        self.is_dead = False
        self.dies_after_work = dies_after_work
        self.on_death: Callable[[], object] = lambda: None
        self._calls_left = dies_at_call

    def is_last_call(self) -> bool:
        if self._calls_left is None:
            return False
        self._calls_left -= 1
        return self._calls_left == 0

    async def die(self) -> None:
        """Be killed here; whoever waits for the answer waits until he is cancelled."""
        self.is_dead = True
        self.on_death()
        await asyncio.Event().wait()
