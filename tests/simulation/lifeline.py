"""The life of a program: it is killed at a call on the wire, before or after that is done."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class RunawayError(BaseException):
    """The run makes no progress and never ends by itself."""


class Lifeline:
    """One program of the world, as far as the wire knows it: a dead program reaches no namespace.

    Args:
        name: of the program and which life of it.
        dies_at_call: the call on the wire at which it is killed; None = at none.
        counts_sends_only: whether only the calls count that send something.
        dies_after_work: whether that call is still carried out, and only its answer never seen.
    """

    def __init__(
        self,
        name: str,
        *,
        dies_at_call: int | None = None,
        counts_sends_only: bool = False,
        dies_after_work: bool = False,
    ) -> None:
        self.name = name
        self.is_dead = False
        self.dies_after_work = dies_after_work
        self.on_death: Callable[[], object] = lambda: None
        self._calls_left = dies_at_call
        self._counts_sends_only = counts_sends_only

    @property
    def counts_calls(self) -> bool:
        """Whether the program is killed at one of its calls."""
        return self._calls_left is not None

    def is_last_call(self, *, is_send: bool) -> bool:
        if self._calls_left is None or (self._counts_sends_only and not is_send):
            return False
        self._calls_left -= 1
        return self._calls_left == 0

    def end(self) -> None:
        """Be killed, wherever it waits."""
        if not self.is_dead:
            self.is_dead = True
            self.on_death()

    async def die(self) -> None:
        """Kill the program here; its pending calls wait until they are cancelled."""
        self.end()
        await asyncio.Event().wait()
