"""Receives from an entity of the primary and from the one of the same path in the secondary, as from one.

The rules, our choice:

1. Both are asked at once, and what comes first is returned. The one that delivered last has a head start, which saves
   the other request while it has messages; a side that was not asked for a second has it next, so that none starves.
2. A side that fails is left out with a growing pause, and one event says so. If both fail, the error is the primary's.
3. An entity that is missing in the secondary is looked for again each minute, without an event.
4. A receiver that deletes asks the sides in turns: two answers at the same time may be more than a call may return.
5. A session receiver holds one session of one side.
6. A message that both delivered at once waits for the next call. Its lock is renewed before that call returns it; if
   that fails, the message stays in its entity, and a later call receives it again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any, Final

from sbclient import clock
from sbclient.delivery import NEXT_AVAILABLE_SESSION, ServiceBusReceiveMode, SessionChoice, Settlement, SettleMode
from sbclient.errors import (
    InvalidOperationError,
    MessagingEntityNotFoundError,
    OperationTimeoutError,
    ServiceBusError,
)
from sbclient.message import NamespaceSide, ServiceBusReceivedMessage
from sbclient.pairing.state import PairState
from sbclient.rules.failover import is_outage
from sbclient.rules.refusal import Refusal
from sbclient.transport.base import ReceiverLink

HEAD_START_S: Final = 0.05
ASK_AGAIN_S: Final = 1.0
ANSWER_S: Final = 20.0
"""How long an answer may take beyond the wait for a message."""
MISSING_S: Final = 60.0
RELEASE_S: Final = 5.0
HELD_S: Final = 2.0
"""How old the lock of a held message may be; the shortest lock lasts 5 s."""

_ABANDON: Final = Settlement(SettleMode.ABANDON)
_SIDES: Final[tuple[NamespaceSide, NamespaceSide]] = ("primary", "secondary")


class BothLinks(ReceiverLink):
    """A receiver link of each side; an operation on a message uses the link of its side."""

    def __init__(self, pair: PairState, path: str, *, session: SessionChoice, prefetch_count: int, **mode: Any) -> None:
        self._pair = pair
        self._path = path
        self._session = session
        self._is_deleting = mode["receive_mode"] is ServiceBusReceiveMode.RECEIVE_AND_DELETE
        chosen = {"session": session, "prefetch_count": -(-prefetch_count // 2), **mode}
        sides = zip(_SIDES, (pair.primary, pair.secondary), strict=True)
        self._opening = {side: partial(transport.open_receiver, path, **chosen) for side, transport in sides}
        self._links: dict[NamespaceSide, ReceiverLink] = {side: make() for side, make in self._opening.items()}
        self._chosen: NamespaceSide = "primary"
        self._refusals: dict[NamespaceSide, Refusal] = {}
        self._left_out: set[NamespaceSide] = set()
        self._first: NamespaceSide = "primary"
        self._other_at = float("-inf")  # until then only the side that delivered last is asked
        self._asked_at = dict.fromkeys(_SIDES, float("-inf"))
        self._held: deque[ServiceBusReceivedMessage] = deque()
        self._held_at = 0.0  # when the first of them was locked

    def at(self, side: NamespaceSide) -> tuple[ReceiverLink, NamespaceSide]:
        """Return the link of a side, and the side; of a session receiver, those that hold the session."""
        side = side if self._session is None else self._chosen
        return self._links[side], side

    @property
    def session_id(self) -> str | None:
        return self._links[self._chosen].session_id

    @property
    def session_locked_until_utc(self) -> datetime | None:
        return self._links[self._chosen].session_locked_until_utc

    # -- sessions ------------------------------------------------------------------------------------------------

    async def open(self, *, timeout_s: float) -> None:
        if self._session is None:
            await self._links["primary"].open(timeout_s=timeout_s)
        elif self._session is NEXT_AVAILABLE_SESSION:
            await self._open_first(timeout_s)
        else:
            await self._open_named(timeout_s)

    async def _open_named(self, timeout_s: float) -> None:
        """Hold the session in the primary, unless that is away, or only the secondary has messages of it."""
        primary, secondary = self._links.values()
        self._chosen = "primary"
        try:
            await primary.open(timeout_s=timeout_s)
        except ServiceBusError as error:
            if not self._is_outage(error):
                raise
            try:
                await secondary.open(timeout_s=timeout_s)
            except ServiceBusError:
                raise error from error.__cause__
            self._chosen = "secondary"
            return
        if await primary.peek(max_message_count=1, sequence_number=1, timeout_s=timeout_s):
            return
        with suppress(ServiceBusError):
            await secondary.open(timeout_s=RELEASE_S)
            if await secondary.peek(max_message_count=1, sequence_number=1, timeout_s=RELEASE_S):
                self._chosen = "secondary"
        await self._replace("secondary" if self._chosen == "primary" else "primary")

    async def _open_first(self, timeout_s: float) -> None:
        """Hold the session that is available first."""
        opening = {side: asyncio.ensure_future(link.open(timeout_s=timeout_s)) for side, link in self._links.items()}
        winner: NamespaceSide | None = None
        done, waited = set[asyncio.Task[None]](), {*opening.values()}
        try:
            while waited and winner is None:
                done, waited = await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
                winner = next(
                    (side for side in _SIDES if opening[side] in done and not opening[side].exception()), None
                )
            if winner is None:
                await opening["primary"]  # raises its error
            self._chosen = winner or "primary"
        finally:
            for task in opening.values():
                task.cancel()
            await asyncio.gather(*opening.values(), return_exceptions=True)
            for tasks in (opening, done, waited):
                tasks.clear()  # their errors refer to this frame
            for side in _SIDES:
                if side != winner:
                    await self._replace(side)

    async def _replace(self, side: NamespaceSide) -> None:
        await self._links[side].close()
        self._links[side] = self._opening[side]()

    # -- receiving -----------------------------------------------------------------------------------------------

    async def receive(self, *, max_message_count: int, max_wait_time_s: float) -> list[ServiceBusReceivedMessage]:
        if self._session is not None:
            link = self._links[self._chosen]
            messages = await link.receive(max_message_count=max_message_count, max_wait_time_s=max_wait_time_s)
            return marked(messages, self._chosen)
        end_at = clock.monotonic() + max_wait_time_s
        if self._held and not self._is_deleting:
            await self._renew_held()
        if not self._held:
            if clock.monotonic() < self._other_at and (found := await self._receive_more(max_message_count)):
                return found
            found = await self._receive(max_message_count, end_at, self._order())
            self._held.extendleft(reversed(found))  # before what came after them
            self._held_at = clock.monotonic()
            self._note_flow()
        return [self._held.popleft() for _ in range(min(max_message_count, len(self._held)))]

    async def _renew_held(self) -> None:
        """Renew the locks of held messages that are not new, and drop those whose lock cannot be renewed."""
        now = clock.monotonic()
        if now - self._held_at < HELD_S:
            return
        held = list(self._held)
        renewing = (self.renew_lock(each, timeout_s=RELEASE_S) for each in held)
        outcomes = await asyncio.gather(*renewing, return_exceptions=True)
        self._held = deque(
            message for message, outcome in zip(held, outcomes, strict=True) if not isinstance(outcome, BaseException)
        )
        self._held_at = now

    async def _receive_more(self, count: int) -> list[ServiceBusReceivedMessage]:
        """Ask only the side that delivered last, for as long as its head start and without the cost of a task."""
        link = self._links[self._first]
        if not link.is_open:
            return []
        try:
            return marked(await link.receive(max_message_count=count, max_wait_time_s=HEAD_START_S), self._first)
        except ServiceBusError:  # the next request shows whether it fails
            return []

    def _note_flow(self) -> None:
        """Note until when only the side that delivered last is asked."""
        other = self._other
        self._other_at = float("-inf")
        if self._held:
            self._other_at = max(self._asked_at[other] + ASK_AGAIN_S, self._waits_until(other, {}))

    @property
    def _other(self) -> NamespaceSide:
        return "secondary" if self._first == "primary" else "primary"

    async def _receive(self, count: int, end_at: float, order: list[NamespaceSide]) -> list[ServiceBusReceivedMessage]:
        """Ask the sides until one delivers, or the time ends.

        Raises:
            ServiceBusError: both fail; it is the error of the primary.
        """
        running: dict[NamespaceSide, asyncio.Task[list[ServiceBusReceivedMessage] | ServiceBusError]] = {}
        errors: dict[NamespaceSide, ServiceBusError] = {}
        answered: set[NamespaceSide] = set()  # those that have answered
        found: list[ServiceBusReceivedMessage] = []
        woken = asyncio.Event()
        head_start_at = clock.monotonic() + HEAD_START_S

        def start(side: NamespaceSide, now: float) -> None:
            wait_s = max(end_at - now, 0.0)
            if self._is_deleting:
                wait_s = min(wait_s, HEAD_START_S if self._other_at > 0 and not answered else ASK_AGAIN_S)
            running[side] = asyncio.ensure_future(self._ask(side, count, wait_s))
            running[side].add_done_callback(lambda _: woken.set())

        try:
            while True:
                now = clock.monotonic()
                if answered and now >= end_at:
                    return []
                next_at = float("inf")
                for side in order:
                    if side in running or (running and self._is_deleting):
                        continue
                    waits_until = self._waits_until(side, errors)
                    if running and not errors:
                        waits_until = max(waits_until, head_start_at)
                    if waits_until <= now:
                        start(side, now)
                    else:
                        next_at = min(next_at, waits_until)
                if not running:
                    if "primary" in errors:
                        raise errors["primary"]
                    start("primary", now)
                woken.clear()
                await clock.wait_for(woken, None if next_at == float("inf") else max(next_at - clock.monotonic(), 0.0))
                for side in [side for side, task in running.items() if task.done()]:
                    outcome = running.pop(side).result()
                    if isinstance(outcome, ServiceBusError):
                        errors[side] = outcome
                        self._failed(side, outcome)
                        continue
                    errors.pop(side, None)
                    self._answered(side)
                    answered.add(side)
                    found += outcome
                    if outcome:
                        self._first = side
                    order.reverse()
                if found:
                    return found
        finally:
            errors.clear()  # they refer to this frame
            await self._stop(running)

    async def _ask(
        self, side: NamespaceSide, count: int, wait_s: float
    ) -> list[ServiceBusReceivedMessage] | ServiceBusError:
        try:
            async with clock.timeout(wait_s + ANSWER_S):
                link = self._links[side]
                return marked(await link.receive(max_message_count=count, max_wait_time_s=wait_s), side)
        except TimeoutError:
            return OperationTimeoutError(f"the {side} did not answer within {wait_s + ANSWER_S:g} s", is_in_doubt=False)
        except ServiceBusError as error:
            if side == "primary" and isinstance(error, InvalidOperationError):
                raise
            return error.with_traceback(None)

    async def _stop(
        self, running: dict[NamespaceSide, asyncio.Task[list[ServiceBusReceivedMessage] | ServiceBusError]]
    ) -> None:
        """End the requests that are not needed; keep what they have received for the next call."""
        for task in running.values():
            task.cancel()
        await asyncio.gather(*running.values(), return_exceptions=True)
        for side, task in running.items():
            if not task.cancelled() and task.exception() is None and isinstance(outcome := task.result(), list):
                self._answered(side)
                self._held.extend(outcome)

    def _order(self) -> list[NamespaceSide]:
        """Return the sides; the first has a head start."""
        now = clock.monotonic()
        order = [self._first, other := self._other]
        if self._asked_at[other] <= now - ASK_AGAIN_S and self._waits_until(other, {}) <= now:
            order.reverse()
        self._asked_at[order[0]] = now
        return order

    def _waits_until(self, side: NamespaceSide, errors: dict[NamespaceSide, ServiceBusError]) -> float:
        """Return until when a side is left out. The primary is asked at least once if the secondary fails."""
        refusal = self._refusals.get(side)
        if refusal is None or (side == "primary" and "primary" not in errors and "secondary" in errors):
            return float("-inf")
        return refusal.retry_at

    def _is_outage(self, error: ServiceBusError) -> bool:
        return is_outage(error, has_sent_before=True, override=self._pair.options.is_outage)

    def _failed(self, side: NamespaceSide, error: ServiceBusError) -> None:
        now = clock.monotonic()
        refusal = self._refusals.setdefault(side, Refusal())
        refusal.add(error, now, asked_at=now, jitter=self._pair.random.uniform(0.9, 1.1))
        if side == "secondary" and isinstance(error, MessagingEntityNotFoundError):
            refusal.retry_at = now + MISSING_S
        elif side not in self._left_out:
            self._left_out.add(side)
            self._pair.record(
                "receiver.side_left_out",
                "receiving from {path!r} goes on without the {side}: {error}",
                self._path,
                level=logging.WARNING,
                side=side,
                error=error,
            )

    def _answered(self, side: NamespaceSide) -> None:
        self._asked_at[side] = clock.monotonic()
        self._refusals.pop(side, None)
        if side == "primary":
            self._pair.is_primary_reached = True
        if side in self._left_out:
            self._left_out.discard(side)
            self._pair.record(
                "receiver.side_is_back", "receiving from {path!r} includes the {side} again", self._path, side=side
            )

    @property
    def is_drained(self) -> bool:
        return not self._held and all(link.is_drained for link in self._links.values())

    # -- operations on messages ----------------------------------------------------------------------------------

    async def peek(self, **asked: Any) -> list[ServiceBusReceivedMessage]:
        return await self._links["primary"].peek(**asked)

    async def receive_deferred(self, sequence_numbers: Sequence[int], **asked: Any) -> list[ServiceBusReceivedMessage]:
        return await self._links["primary"].receive_deferred(sequence_numbers, **asked)

    async def settle(self, message: ServiceBusReceivedMessage, settlement: Settlement, **asked: Any) -> None:
        await self._links[message.namespace].settle(message, settlement, **asked)

    async def settle_together(
        self, messages: Sequence[ServiceBusReceivedMessage], settlement: Settlement, *, timeout_s: float
    ) -> list[ServiceBusReceivedMessage]:
        parts = {side: [each for each in messages if each.namespace == side] for side in _SIDES}
        settling = (
            self._links[side].settle_together(part, settlement, timeout_s=timeout_s)
            for side, part in parts.items()
            if part
        )
        return [each for settled in await asyncio.gather(*settling) for each in settled]

    async def renew_lock(self, message: ServiceBusReceivedMessage, *, timeout_s: float) -> datetime:
        return await self._links[message.namespace].renew_lock(message, timeout_s=timeout_s)

    async def renew_session_lock(self, *, timeout_s: float) -> datetime:
        return await self._links[self._chosen].renew_session_lock(timeout_s=timeout_s)

    async def get_session_state(self, *, timeout_s: float) -> bytes | None:
        return await self._links[self._chosen].get_session_state(timeout_s=timeout_s)

    async def set_session_state(self, state: bytes | None, *, timeout_s: float) -> None:
        await self._links[self._chosen].set_session_state(state, timeout_s=timeout_s)

    async def close(self) -> None:
        held = list(self._held)
        self._held.clear()
        if not self._is_deleting:
            abandoning = (self.settle(each, _ABANDON, timeout_s=RELEASE_S) for each in held)
            await asyncio.gather(*abandoning, return_exceptions=True)
        await asyncio.gather(*(link.close() for link in self._links.values()))


def marked(messages: list[ServiceBusReceivedMessage], side: NamespaceSide) -> list[ServiceBusReceivedMessage]:
    """Note which side messages came from."""
    for message in messages:
        message.namespace = side
    return messages
