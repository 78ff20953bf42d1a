"""Settles messages through one SDK receiver; those that wait for it at the same time go out together.

Laws:
1. What waits when the turn comes is sent one behind the other, and the answers are awaited together: one way there and
   back for all. So 100 completions take about as long as one.
2. Each caller hears of its own message.
3. A caller that goes away ends nobody else's settlement. If its own has not gone out by then it never does.
"""

from __future__ import annotations

import asyncio
import copy
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from sbclient.clock import Clock
from sbclient.delivery import Settlement, SettleMode
from sbclient.errors import OperationTimeoutError
from sbclient.tasks import OwnedTasks
from sbclient.transport.sdk.errors import translated
from sbclient.transport.sdk.link import WATCHDOG_S, is_harmless
from sbclient.transport.sdk.payload import Tap


class Turns(Protocol):
    """What settling needs of its receiver."""

    async def __call__(self, work: Callable[[Any], Awaitable[None]], *, doing: str, timeout_s: float) -> None:
        """Do `work` with the SDK's receiver when the turn comes."""


@dataclass(slots=True)
class _Item:
    message: Any = field(repr=False)  # the SDK shows all of it
    settlement: Settlement
    deadline: float
    verdict: asyncio.Future[None]


class Settlements:
    """The settlements of one receiver.

    Args:
        path: what is received from, for errors.
        call: gives a turn with the SDK's receiver.
        tap: what that receiver is fitted with, if its inside is known.
        clock: the only source of time.
        tasks: owns what runs on behind a call.
    """

    def __init__(
        self, path: str, call: Turns, tap: Callable[[], Tap | None], *, clock: Clock, tasks: OwnedTasks
    ) -> None:
        self._path = path
        self._call = call
        self._tap = tap
        self._clock = clock
        self._tasks = tasks
        self._waiting: deque[_Item] = deque()
        self._emptying: asyncio.Task[None] | None = None

    async def settle(self, message: Any, settlement: Settlement, *, timeout_s: float) -> None:
        """Return when the service has confirmed it, or raise what it answered.

        Args:
            message: the SDK's.
        """
        deadline = self._clock.monotonic() + timeout_s
        item = _Item(message, settlement, deadline, asyncio.get_running_loop().create_future())
        self._waiting.append(item)
        if self._emptying is None or self._emptying.done():
            self._emptying = self._tasks.start(self._empty(), name=f"settle in {self._path}")
        try:
            # The turn ends at the deadline with a precise error; that one is waited for a moment longer.
            async with self._clock.timeout(timeout_s + 2 * WATCHDOG_S):
                await item.verdict
        except TimeoutError:
            raise OperationTimeoutError(
                f"{_doing(item)} {self._path!r}: no answer within {timeout_s:g} s, whether it happened is in doubt"
            ) from None
        finally:
            if item in self._waiting:
                self._waiting.remove(item)

    async def _empty(self) -> None:
        """Settle what waits, turn by turn, until nothing is left."""
        while self._waiting:
            taken: list[_Item] = []
            left_s = max(item.deadline for item in self._waiting) - self._clock.monotonic()
            try:
                await self._call(self._taking(taken), doing="settle messages of", timeout_s=left_s)
            except Exception as error:  # whatever it is, it belongs to those callers
                for item in taken or self._all_waiting():
                    _tell(item, copy.copy(error), error.__cause__)

    def _taking(self, taken: list[_Item]) -> Callable[[Any], Awaitable[None]]:
        async def settle(sdk: Any) -> None:
            taken.extend(self._all_waiting())
            await self._settle(sdk, taken)

        return settle

    def _all_waiting(self) -> list[_Item]:
        items = [item for item in self._waiting if not item.verdict.done()]
        self._waiting.clear()
        return items

    async def _settle(self, sdk: Any, items: list[_Item]) -> None:
        """Settle with the SDK's receiver, and tell each caller; raises an error that says how the receiver fares."""
        tap = self._tap()
        # What was deferred is settled by request, not on the link.
        together = [item for item in items if tap is not None and not item.message._is_deferred_message]
        alone = [item for item in items if item not in together]
        answers: list[tuple[_Item, BaseException | None]] = []
        if tap is not None and len(together) > 1:
            calls = [_end(sdk, item) for item in together]
            answers += zip(together, await tap.side_by_side(calls), strict=True)
        else:
            alone = items
        answers += [(item, await _answer(_end(sdk, item))) for item in alone]
        worst: Exception | None = None
        for item, error in answers:
            if error is None:
                if not item.verdict.done():
                    item.verdict.set_result(None)
                continue
            own = translated(error, f"{_doing(item)} {self._path!r}")
            _tell(item, own, error)
            if worst is None or is_harmless(worst):
                worst = own
        if worst is not None:
            raise worst


async def _end(sdk: Any, item: _Item) -> None:
    """The SDK's own call for one settlement."""
    match item.settlement.mode:
        case SettleMode.COMPLETE:
            await sdk.complete_message(item.message)
        case SettleMode.ABANDON:
            await sdk.abandon_message(item.message)
        case SettleMode.DEFER:
            await sdk.defer_message(item.message)
        case SettleMode.DEAD_LETTER:
            reason, description = item.settlement.reason, item.settlement.error_description
            await sdk.dead_letter_message(item.message, reason=reason, error_description=description)


async def _answer(call: Awaitable[None]) -> BaseException | None:
    try:
        await call
    except Exception as error:
        return error
    return None


def _doing(item: _Item) -> str:
    return f"{item.settlement.mode} a message of"


def _tell(item: _Item, error: Exception, cause: BaseException | None) -> None:
    if not item.verdict.done():
        if error is not cause:
            error.__cause__ = cause
        item.verdict.set_exception(error)
