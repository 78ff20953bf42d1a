"""Run a namespace of the broker on event loops: receivers wait for messages, and timers let locks and messages expire.

Rules:

1. Receivers that wait for the same messages are served in the order of arrival, and a cancelled receive loses no
   message (`wait_queues`).
2. Each entity has at most one timer, and only while a receiver waits.
3. A host is not bound to an event loop; it can outlive several.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine
from functools import partial
from random import Random
from typing import Any, Final, Generic, NamedTuple, TypeVar

from sbclient import clock
from sbclient.broker.directory import Entity
from sbclient.broker.entity import Queue
from sbclient.broker.entry import Entry, Selector
from sbclient.broker.faults import Call, Fault, NoAnswer, Operation
from sbclient.broker.namespace import Namespace
from sbclient.broker.profile import STD_2021, Profile
from sbclient.broker.session import SessionLock
from sbclient.delivery import NEXT_AVAILABLE_SESSION, ServiceBusReceiveMode, ServiceBusSessionFilter
from sbclient.errors import (
    InvalidOperationError,
    MessagingEntityNotFoundError,
    OperationTimeoutError,
    ServiceBusError,
)
from sbclient.hosting.wait_queues import Awaited, Waiter, WaitQueues
from sbclient.message import ServiceBusReceivedMessage
from sbclient.rules.entity_path import canonical, split_sub_queue
from sbclient.telemetry.log import get_logger

log = get_logger(__name__)

T = TypeVar("T")

_RECEIVE: Final = Operation.RECEIVE  # members of an enumeration are read slowly

LEAST_WAIT_S: Final = 1e-6
"""A shorter wait can be lost in the rounding of a float of seconds: it would end at once, again and again."""


class _Timer(NamedTuple):
    """The timer of one entity, on one loop."""

    loop: asyncio.AbstractEventLoop
    handle: asyncio.TimerHandle
    at: float


class Performed(Call, Generic[T]):
    """A request that the namespace has performed.

    Attributes:
        path: of the entity, None for the namespace.
        answer: set unless it failed.
        error: set if it failed.
    """

    __slots__ = ("answer", "error", "path")

    answer: T

    def __init__(self, operation: Operation, now: float, front_end: int, path: str | None) -> None:
        Call.__init__(self, operation, now, front_end)
        self.path = path
        self.error: ServiceBusError | None = None

    def finish(self, answer: asyncio.Future[T]) -> None:
        """Give the result to a future, once."""
        error, self.error = self.error, None
        if answer.done():
            return
        if error is None:
            answer.set_result(self.answer)
        else:
            answer.set_exception(error)

    def result(self) -> T:
        """Return or raise the result, once."""
        error, self.error = self.error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # its traceback refers to this frame
        return self.answer


class BrokerHost:
    """A namespace with its waiting receivers, in running time.

    Args:
        name: of the namespace.
        random: the source of all random choices of the broker.
        profile: tier and year.
        front_end_count: the number of front ends; each connection gets a random one. With more than one, each caches
            messages of partitioned entities, which other connections cannot receive until the cached locks expire.

    Raises:
        InvalidOperationError: there is no front end.

    Attributes:
        namespace: the broker itself, for calls that do not wait.
        update_listeners: called with the path of each updated entity.
        on_received: called by receivers in this process with the messages that they have received, before they return
            them; for tests.
    """

    def __init__(
        self, name: str, *, random: Random | None = None, profile: Profile = STD_2021, front_end_count: int = 1
    ) -> None:
        if front_end_count < 1:
            raise InvalidOperationError(f"front_end_count is {front_end_count}: a namespace needs at least 1")
        self._random = random or Random()
        self._front_end_count = front_end_count
        self.namespace = Namespace(
            name,
            random=self._random,
            profile=profile,
            on_ready=self._note_ready,
            on_removed=lambda queue: self._waiting.wake_all_of(queue.key),
            on_updated=self._tell_updated,
            is_waited_for=lambda queue: self._waiting.is_waited_for(queue.key),
            front_end_count=front_end_count,
        )
        self._waiting = WaitQueues(profile.max_concurrent_receives)
        self._selecting = asyncio.Lock()  # only the emulator has selectors, in one event loop
        self._timers: dict[Entity | None, _Timer] = {}
        self._arrivals: set[str] = set()
        self.update_listeners: dict[Callable[[str], None], None] = {}
        self.on_received: Callable[[list[ServiceBusReceivedMessage]], None] | None = None

    def _tell_updated(self, path: str) -> None:
        for listener in list(self.update_listeners):
            listener(path)

    def connect(self) -> int:
        """Choose the front end of a new connection."""
        return self._random.randrange(self._front_end_count)

    # ------------------------------------------------------------------ faults

    def inject(self, fault: Fault) -> Fault:
        """Inject a fault and return it, for `heal`. Waiting receivers are affected at once.

        A fault of an entity that does not exist is logged as a warning, since its path may be misspelt.
        """
        if fault.entity_path is not None:
            try:
                self.namespace.directory.find(fault.entity_path)
            except MessagingEntityNotFoundError:
                log.warning(
                    "fault.entity_missing",
                    "{path} does not exist in {namespace}; the fault takes effect when it is created",
                    path=fault.entity_path,
                    namespace=self.namespace.name,
                )
        self.namespace.faults.inject(fault)
        self._waiting.wake_all()
        return fault

    def heal(self, fault: Fault | None = None) -> None:
        """Remove one fault, or all of them. Waiting receivers are affected at once."""
        self.namespace.faults.heal(fault)
        self._waiting.wake_all()

    # ------------------------------------------------------------------ requests

    async def perform(
        self,
        operation: Operation,
        path: str | None,
        work: Callable[[Call], T],
        timeout_s: float,
        front_end: int = 0,
        check: Callable[[], None] | None = None,
    ) -> T:
        """Run a request that the namespace completes without waiting, and return or raise its result.

        Args:
            path: of the entity, None for the namespace.
            work: performs the request. It is called once; a cancellation before that has no effect on the broker.
            check: called before it; its error prevents the request.

        Raises:
            OperationTimeoutError: a fault held the answer back for too long. The work may have been done.
        """
        if clock.is_step_due():
            await clock.step()
        if check is not None:
            check()
        performed = self.perform_now(operation, path, work, front_end)
        if performed.answer_after_s:
            return await self.answered(performed, timeout_s=timeout_s)
        return performed.result()

    def perform_now(
        self, operation: Operation, path: str | None, work: Callable[[Call], T], front_end: int = 0
    ) -> Performed[T]:
        """Run a request as `perform` does, in this step of the event loop; `answered` waits for the answer."""
        performed: Performed[T] = Performed(operation, clock.true_now(), front_end, path)
        try:
            performed.answer = work(performed)
        except NoAnswer:
            performed.answer_after_s = math.inf
        except ServiceBusError as error:
            performed.error = error.with_traceback(None)  # its frames refer to those of the caller
        finally:
            self.namespace.advance(performed.now)
            if self._waiting.queues and path is not None:
                self._watch(path)
            if self.namespace.defects:
                self._report_defects()
        return performed

    def _report_defects(self) -> None:
        while self.namespace.defects:
            error = self.namespace.defects.popleft()
            log.error(
                "broker.callback_failed",
                "{namespace}: a callback failed, the operation is done: {error}",
                namespace=self.namespace.name,
                error=error,
                exc_info=error,
            )

    async def answered(self, performed: Performed[T], *, timeout_s: float) -> T:
        """Return or raise the result of a request when its answer arrives.

        Raises:
            OperationTimeoutError: a fault holds the answer back for too long.
        """
        if performed.answer_after_s > timeout_s:
            await clock.sleep(max(0.0, timeout_s))
            raise self._late(performed, timeout_s)
        if performed.answer_after_s:
            await clock.sleep(performed.answer_after_s)
        return performed.result()

    def answer_to(self, performed: Performed[T], timeout_s: float) -> asyncio.Future[T]:
        """Return the result of a request as a future, which ends when the answer arrives."""
        answer: asyncio.Future[T] = asyncio.Future()
        delay_s = performed.answer_after_s
        if not delay_s and performed.error is None:
            answer.set_result(performed.answer)
            return answer
        if delay_s > timeout_s:
            performed.error = self._late(performed, timeout_s)
            delay_s = timeout_s
        if delay_s > 0:
            clock.call_later(delay_s, partial(performed.finish, answer))
        else:
            performed.finish(answer)
        return answer

    def _late(self, performed: Performed[T], timeout_s: float) -> OperationTimeoutError:
        return OperationTimeoutError(
            "The operation did not complete within the allotted timeout: "
            f"{performed.path or self.namespace.name} did not answer to {performed.operation} within "
            f"{timeout_s:g} s: the operation may have been done, so check before you try again"
        )

    def receive(
        self,
        path: str,
        max_message_count: int,
        max_wait_time_s: float,
        mode: ServiceBusReceiveMode = ServiceBusReceiveMode.PEEK_LOCK,
        lock: SessionLock | None = None,
        front_end: int = 0,
        check: Callable[[], None] = lambda: None,
        selector: Selector | None = None,
    ) -> Coroutine[Any, Any, list[Entry]]:
        """Wait for a first message, and take the messages that are available with it; empty if none arrives in time.

        Args:
            check: called before messages are taken; its error ends the wait.
            selector: see `Namespace.receive`. Its receiver waits in a division of its own, because it does not take
                every message.

        Returns: the stored entries; see `Namespace.receive`.
        """

        def take(call: Call) -> list[Entry]:
            check()
            return self.namespace.receive(call, path, max_message_count, mode, lock, selector)

        awaited = None if lock is None else lock.session_id
        division = 0 if lock is None else lock.fragment_index
        if self._front_end_count > 1 and lock is None and self.namespace.is_partitioned(path):
            division = front_end  # which caches messages of partitioned entities only
        if selector is not None:
            division = id(selector)
        nothing: list[Entry] = []
        return self._wait_for(
            _RECEIVE, path, awaited, division, take, nothing, max_wait_time_s, front_end, selector is not None
        )

    async def accept_session(
        self,
        path: str,
        session: str | ServiceBusSessionFilter,
        *,
        timeout_s: float,
        front_end: int = 0,
        check: Callable[[], None] = lambda: None,
    ) -> SessionLock:
        """Lock a session; wait for one if the next available session is requested.

        Args:
            check: called before a session is locked; its error ends the wait.

        Raises:
            OperationTimeoutError: no session became available in time.
            SessionCannotBeLockedError: another receiver holds the session.
        """

        accepted: SessionLock | None = None

        def accept(call: Call) -> SessionLock | None:
            nonlocal accepted
            check()
            accepted = self.namespace.accept_session(call, path, session)
            return accepted

        try:
            if session is NEXT_AVAILABLE_SESSION:
                lock = await self._wait_for(Operation.SESSION, path, session, 0, accept, None, timeout_s, front_end)
            else:
                lock = await self.perform(Operation.SESSION, path, accept, timeout_s=timeout_s, front_end=front_end)
        except asyncio.CancelledError:
            if accepted is not None:  # the answer was delayed, and the link has ended
                self.namespace.release_session(Call(Operation.SESSION, clock.true_now()), path, accepted)
            raise
        if lock is None:
            raise OperationTimeoutError(
                f"The operation did not complete within the allotted timeout: no session of {path} became available "
                f"within {timeout_s:g} s",
                is_in_doubt=accepted is not None,  # a fault may have lost the answer
            )
        return lock

    async def selector_turn(self) -> None:
        """Wait for a step of the event loop in which no other call evaluates a selector."""
        async with self._selecting:
            await clock.step()

    def wake(self, path: str) -> None:
        """Let all that wait for messages of a path try again, because the `check` of one would raise now."""
        self._waiting.wake_all_of(canonical(path))

    async def _wait_for(
        self,
        operation: Operation,
        path: str,
        awaited: Awaited,
        division: int,
        work: Callable[[Call], T],
        nothing: T,
        wait_s: float,
        front_end: int,
        selects: bool = False,
    ) -> T:
        """Call `work` until it returns something other than None or empty, for at most `wait_s` seconds.

        The first call is skipped while others wait for the same, because they come first.

        Args:
            nothing: the result if it does not.
            selects: whether each call evaluates a selector.
        """
        if clock.is_step_due():
            await clock.step()
        waiting = self._waiting
        began_at = waited_s = 0.0
        waiter: Waiter | None = None
        try:
            while True:
                left_s = wait_s - waited_s
                if (
                    waiter is None
                    and left_s > 0
                    and waiting.queues  # without a waiting receiver, the path need not be normalized
                    and waiting.has_division(canonical(path), awaited, division)
                ):
                    retry_after_s = math.inf
                else:
                    if selects:
                        await self.selector_turn()
                    call = Call(operation, clock.true_now(), front_end, waited_s)
                    try:
                        found, retry_after_s = work(call), call.retry_after_s
                    except NoAnswer as silence:
                        found, retry_after_s = nothing, silence.after_s
                    if found and call.answer_after_s:
                        await clock.sleep(max(0.0, min(left_s, call.answer_after_s)))
                        return found if call.answer_after_s <= left_s else nothing
                    if call.is_unfinished and not found:
                        await clock.step()
                        continue
                    if found or left_s <= 0:
                        return found
                if waiter is None:
                    began_at = clock.monotonic()
                    waiter = waiting.join(path, awaited, division)
                self._watch(path)
                await self._sleep(waiter, min(left_s, retry_after_s))
                waited_s = clock.monotonic() - began_at
        finally:
            if waiter is not None:
                waiting.leave(path, awaited, division, waiter)

    async def _sleep(self, waiter: Waiter, at_most_s: float) -> None:
        waiter.woken = asyncio.get_running_loop().create_future()
        timer = clock.call_later(max(at_most_s, LEAST_WAIT_S), lambda: _wake(waiter))
        try:
            await waiter.woken
        finally:
            timer.cancel()

    # ------------------------------------------------------------------ time

    def _note_ready(self, queue: Queue, awaited: Awaited) -> None:
        """A message is ready; it may expire while receivers wait for dead letters."""
        if self._waiting.queues:
            self._waiting.wake(queue.key, awaited)
            self._arrivals.add(queue.path)

    def _watch(self, path: str) -> None:
        """Set the timers for changes that waiting receivers of a path must notice."""
        self._arm(None, self.namespace.faults.next_change_at())
        for entity in self.namespace.sources(path):
            self._arm(entity, entity.next_change_at())
        self._watch_arrivals()

    def _watch_arrivals(self) -> None:
        """Set the timers for changes of entities to which messages came, perhaps by way of another entity."""
        while self._arrivals:
            entity = self.namespace.directory.get(split_sub_queue(self._arrivals.pop())[0])
            if entity is not None:
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
            left_s = at - clock.true_now()
            delay_s = 0.0 if left_s <= 0 else max(left_s, LEAST_WAIT_S)
            self._timers[entity] = _Timer(loop, clock.call_later(delay_s, lambda: self._on_timer(entity)), at)

    def _on_timer(self, entity: Entity | None) -> None:
        del self._timers[entity]
        if entity is None:
            self._waiting.wake_all()
        elif self._waiting.queues:
            now = clock.true_now()
            entity.advance(now)
            self.namespace.advance(now)
            self._arm(entity, max(entity.next_change_at(), now + LEAST_WAIT_S))  # what is left takes a later moment
            self._watch_arrivals()


def _wake(waiter: Waiter) -> None:
    waiter.wake()
