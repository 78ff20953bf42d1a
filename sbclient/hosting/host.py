"""A namespace of the broker in running time: who waits for messages, and what happens when time passes.

Laws:

1. Whoever waits for the same messages is served in the order of coming, and a cancelled receive loses none (`lines`).
2. One timer for each entity, and only while somebody waits.
3. A host belongs to no event loop; it outlives them.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from random import Random
from typing import Final, TypeVar

from sbclient.broker.directory import Entity
from sbclient.broker.entry import Entry
from sbclient.broker.faults import Call, Fault, NoAnswer, Operation
from sbclient.broker.namespace import Namespace
from sbclient.broker.profile import STD_2021, Profile
from sbclient.broker.session import SessionLock
from sbclient.clock import Clock
from sbclient.delivery import NEXT_AVAILABLE_SESSION, ServiceBusReceiveMode, ServiceBusSessionFilter
from sbclient.errors import OperationTimeoutError, ServiceBusError
from sbclient.hosting.wait_queues import Lines, Waiter, Whom
from sbclient.rules.entity_path import canonical

T = TypeVar("T")

LEAST_WAIT_S: Final = 1e-6
"""A wait shorter than what a float of seconds can tell apart would end at the moment it began, for ever."""


class _Timer:
    """When to look after an entity, on which loop."""

    __slots__ = ("at", "handle", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop, handle: asyncio.TimerHandle, at: float) -> None:
        self.loop = loop
        self.handle = handle
        self.at = at


class BrokerHost:
    """A namespace, its clock, and everybody who waits.

    Args:
        name: of the namespace.
        clock: for all times, also those in messages.
        random: for all chance in the broker.
        profile: tier and year.
        front_end_count: nodes that connections lead to, by lot.

    Attributes:
        namespace: the broker; asked directly, it does what can be done at once.
    """

    def __init__(
        self,
        name: str,
        *,
        clock: Clock | None = None,
        random: Random | None = None,
        profile: Profile = STD_2021,
        front_end_count: int = 1,
    ) -> None:
        self.clock = clock or Clock()
        self._random = random or Random()
        self._front_end_count = front_end_count
        self.namespace = Namespace(
            name,
            random=self._random,
            profile=profile,
            ring=lambda queue, whom: self._lines.give_turn(queue.key, whom),
            removed=lambda queue: self._lines.give_all_turns_of(queue.key),
            is_waited_for=lambda queue: self._lines.is_waited_for(queue.key),
            front_end_count=front_end_count,
        )
        self._lines = Lines(profile.max_concurrent_receives)
        self._timers: dict[Entity | None, _Timer] = {}

    def connect(self) -> int:
        """The front end that a new connection leads to."""
        return self._random.randrange(self._front_end_count)

    # ------------------------------------------------------------------ faults

    def inject(self, fault: Fault) -> Fault:
        """Throw a switch; returns it, to be healed by. Whoever waits notices at once."""
        self.namespace.faults.inject(fault)
        self._lines.give_all_turns()
        return fault

    def heal(self, fault: Fault | None = None) -> None:
        """Heal one fault, or all of them. Whoever waits notices at once."""
        self.namespace.faults.heal(fault)
        self._lines.give_all_turns()

    # ------------------------------------------------------------------ requests

    async def perform(
        self,
        operation: Operation,
        path: str | None,
        work: Callable[[Call], T],
        *,
        timeout_s: float,
        front_end: int = 0,
    ) -> T:
        """Ask the namespace for something that it does at once; returns, or raises, its answer.

        Args:
            path: of the entity, None for the namespace.
            work: asks; it is called once, and before it a cancellation changes nothing.

        Raises:
            OperationTimeoutError: no answer came in time; whether the work is done is in doubt.
        """
        await self.clock.sleep(0)
        call = Call(operation, self.clock.now(), front_end=front_end)
        try:
            answer = work(call)
        except NoAnswer:
            raise await self._timed_out(operation, path, timeout_s) from None
        except ServiceBusError:
            await self._hold_back(call, path, timeout_s)
            raise
        finally:
            self.namespace.let_pass(call.now)
            if self._lines.has_anybody and path is not None:
                self._watch(path)
        await self._hold_back(call, path, timeout_s)
        return answer

    async def receive(
        self,
        path: str,
        *,
        max_message_count: int,
        max_wait_time_s: float,
        mode: ServiceBusReceiveMode = ServiceBusReceiveMode.PEEK_LOCK,
        lock: SessionLock | None = None,
        front_end: int = 0,
    ) -> list[Entry]:
        """Wait for a first message, and take the messages that are available with it; empty if none arrives in time.

        Returns: the stored entries; see `Namespace.receive`.
        """

        def take(call: Call) -> list[Entry]:
            return self.namespace.receive(call, path, max_message_count=max_message_count, mode=mode, lock=lock)

        whom = None if lock is None else lock.session_id
        division = self._division(path, front_end) if lock is None else lock.fragment_index
        return await self._in_turn(Operation.RECEIVE, path, whom, division, take, max_wait_time_s, front_end) or []

    async def accept_session(
        self, path: str, session: str | ServiceBusSessionFilter, *, timeout_s: float, front_end: int = 0
    ) -> SessionLock:
        """Hold a session, for the next available one after waiting until there is one.

        Raises:
            OperationTimeoutError: none became available in time.
            SessionCannotBeLockedError: somebody else holds the session.
        """

        def accept(call: Call) -> SessionLock | None:
            return self.namespace.accept_session(call, path, session)

        if session is NEXT_AVAILABLE_SESSION:
            lock = await self._in_turn(Operation.SESSION, path, session, 0, accept, timeout_s, front_end)
        else:
            lock = await self.perform(Operation.SESSION, path, accept, timeout_s=timeout_s, front_end=front_end)
        if lock is None:
            raise OperationTimeoutError(f"no session of {path} became available within {timeout_s:g} s")
        return lock

    def _division(self, path: str, front_end: int) -> int:
        """Which division of the line at a path somebody stands in: only what is partitioned is kept by front ends."""
        return front_end if self._front_end_count > 1 and self.namespace.is_partitioned(path) else 0

    async def _in_turn(
        self,
        operation: Operation,
        path: str,
        whom: Whom,
        division: int,
        work: Callable[[Call], T],
        wait_s: float,
        front_end: int,
    ) -> T | None:
        """Let `work` try until it has found something; None if it has not within `wait_s` seconds."""
        await self.clock.sleep(0)
        began_at, key = self.clock.monotonic(), canonical(path)
        waiter: Waiter | None = None
        try:
            while True:
                waited_s = self.clock.monotonic() - began_at
                left_s = wait_s - waited_s
                if waiter is None and left_s > 0 and self._lines.has_line(key, whom, division):
                    ask_again_s = math.inf
                else:
                    call = Call(operation, self.clock.now(), front_end=front_end, waited_s=waited_s)
                    found, ask_again_s = _tried(call, work)
                    if found and call.answer_after_s:
                        await self.clock.sleep(max(0.0, min(left_s, call.answer_after_s)))
                        return found if call.answer_after_s <= left_s else None
                    if found or left_s <= 0:
                        return found
                waiter = waiter or self._lines.join(path, whom, division)
                self._watch(path)
                await self._turn(waiter, min(left_s, ask_again_s))
        finally:
            if waiter is not None:
                self._lines.leave(path, whom, division, waiter)

    async def _turn(self, waiter: Waiter, at_most_s: float) -> None:
        waiter.turn = asyncio.get_running_loop().create_future()
        timer = self.clock.call_later(max(at_most_s, LEAST_WAIT_S), lambda: _let_try(waiter))
        try:
            await waiter.turn
        finally:
            timer.cancel()

    async def _hold_back(self, call: Call, path: str | None, timeout_s: float) -> None:
        if call.answer_after_s > timeout_s:
            raise await self._timed_out(call.operation, path, timeout_s)
        if call.answer_after_s:
            await self.clock.sleep(call.answer_after_s)

    async def _timed_out(self, operation: Operation, path: str | None, timeout_s: float) -> OperationTimeoutError:
        await self.clock.sleep(max(0.0, timeout_s))
        return OperationTimeoutError(
            f"{path or self.namespace.name} did not answer to {operation} within {timeout_s:g} s: "
            "whether it acted is in doubt, try again or look"
        )

    # ------------------------------------------------------------------ time

    def _watch(self, path: str) -> None:
        """See to it that what happens by time alone is noticed by those who wait for it."""
        self._arm(None, self.namespace.faults.next_change_at())
        for entity in self.namespace.sources(path):
            self._arm(entity, entity.next_change_at())

    def _arm(self, entity: Entity | None, at: float) -> None:
        timer = self._timers.get(entity)
        if timer is None and at == math.inf:
            return
        loop = asyncio.get_running_loop()
        if timer is not None:
            if timer.loop is loop and timer.at <= at:
                return
            timer.handle.cancel()
            del self._timers[entity]
        if at < math.inf:
            left_s = at - self.clock.now()
            span_s = 0.0 if left_s <= 0 else max(left_s, LEAST_WAIT_S)
            self._timers[entity] = _Timer(loop, self.clock.call_later(span_s, lambda: self._time_has_come(entity)), at)

    def _time_has_come(self, entity: Entity | None) -> None:
        del self._timers[entity]
        if entity is None:
            self._lines.give_all_turns()
        elif self._lines.has_anybody:
            entity.advance(self.clock.now())
            self.namespace.let_pass(self.clock.now())
            self._arm(entity, entity.next_change_at())


def _let_try(waiter: Waiter) -> None:
    waiter.give_turn()


def _tried(call: Call, work: Callable[[Call], T]) -> tuple[T | None, float]:
    """What was found, and after how many seconds asking again makes sense if nothing happens before."""
    try:
        return work(call), call.ask_again_s
    except NoAnswer as silence:
        return None, silence.after_s
