"""Background tasks with an owner, which ends them when it is closed; the event loop of an owner; deadlines of waiters.

Laws of `LoopHome`:
1. An object belongs to the event loop and the process that first use it.
2. If that loop is closed, or the process was forked, the object moves to the next loop that uses it: what belonged to
   the old loop is dropped, and nothing of it is called. A loop that is neither closed nor running is left likewise by
   its own thread. A forked process must not go on with the loop of its parent.
3. While the old loop may run, use in another one is an error, not a wait for callbacks that run elsewhere.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Callable, Coroutine, Iterable
from enum import Enum
from threading import get_ident
from typing import Any, Final, Protocol, TypeVar
from weakref import WeakSet

from sbclient import clock
from sbclient.errors import InvalidOperationError
from sbclient.telemetry import tracing
from sbclient.telemetry.log import get_logger

log = get_logger(__name__)

T = TypeVar("T")

_LOOK_AGAIN_S: Final = 0.1
"""How often `close` checks a task that other code has cancelled: such a task may continue."""


class OwnedTasks:
    """The tasks of one owner. Unlike a `TaskGroup` it needs no `async with`, so that an object can be the owner.

    A task that fails does not end the others. Its exception is passed to `on_failure`, or logged without one.
    """

    def __init__(self, on_failure: Callable[[BaseException], None] | None = None) -> None:
        self._tasks: dict[asyncio.Task[Any], None] = {}  # a dict keeps the order, so that tests are deterministic
        self._cancelled: set[asyncio.Task[Any]] = set()
        self._on_failure = on_failure
        self.is_closed = False

    def start(self, work: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        """Run `work` in a new task.

        Raises:
            RuntimeError: the owner is closed.
        """
        if self.is_closed:
            work.close()
            raise RuntimeError(f"{name} cannot start: its owner is closed")
        task = asyncio.get_running_loop().create_task(work, name=name, context=tracing.outside())
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        self._cancelled.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        if self._on_failure is not None:
            self._on_failure(error)
        else:
            log.error(
                "task.failed",
                "background task {task!r} failed: unexpected {error}",
                task=task.get_name(),
                error=error,
                exc_info=error,
            )

    def end(self, task: asyncio.Task[Any]) -> bool:
        """Cancel one task, unless it is being cancelled: a second cancellation would interrupt its cleanup.

        Returns:
            Whether this owner has cancelled the task, now or before. If not, other code is cancelling it, or a timeout
            in the task has just expired; then the task may continue.
        """
        if task not in self._cancelled and not task.cancelling():
            self._cancelled.add(task)
            task.cancel()
        return task in self._cancelled

    def cancel(self) -> None:
        """Cancel every task, and accept no new one."""
        self.is_closed = True
        for task in list(self._tasks):
            self.end(task)

    def abandon(self) -> None:
        """Forget the tasks of event loops other than the running one, and accept no new task."""
        self.is_closed = True
        here = asyncio.get_running_loop()
        for task in list(self._tasks):
            loop = task.get_loop()
            if loop is not here:
                if not (loop.is_closed() or loop.is_running()):
                    self.end(task)  # it ends if its loop goes on
                self._tasks.pop(task)
                self._cancelled.discard(task)

    async def close(self) -> None:
        """Cancel every task and wait until all have ended. Safe to call twice, and from one of the tasks."""
        self.abandon()
        current = asyncio.current_task()
        ending = [task for task in self._tasks if task is not current]
        while ending:
            are_cancelled = [self.end(task) for task in ending]
            if all(are_cancelled):
                await asyncio.wait(ending)
            else:
                await clock.wait(ending, _LOOK_AGAIN_S)
            ending = [task for task in ending if not task.done()]


async def gather(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run coroutines concurrently; the first error cancels the others and is raised.

    A TaskGroup of Python 3.11 and 3.12 drops a cancellation of the caller if a task fails at that time.
    """
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def when_done(future: asyncio.Future[T], action: Callable[[asyncio.Future[T]], object]) -> None:
    """Call `action` with a future when it is done; at once, without a step of the event loop, if it is done now."""
    if future.done():
        action(future)
    else:
        future.add_done_callback(action)


class Move(Enum):
    """Why an object left its event loop."""

    LOOP_ENDED = "the event loop has ended"
    FORKED = "this process was forked: sockets are shared with the parent, which goes on using them"


NOWHERE: Final = object()
"""Differs from every loop, and from None."""


class LoopHome:
    """The event loop and the process of one object.

    Attributes:
        loop: the loop; None before the first use, and in a forked process.
        ready: the loop in which the object is ready, as its owner says; `NOWHERE` if in none. Whether it is the running
            loop takes one comparison, so that each call can ask.
    """

    __slots__ = ("__weakref__", "_inherited", "_thread", "loop", "ready")

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self.ready: object = NOWHERE
        self._thread = 0
        self._inherited: asyncio.AbstractEventLoop | None = None
        _homes.add(self)

    def enter(self, what: str) -> Move | None:
        """Let the object belong to the running loop; return why it left another one, None if it did not.

        Args:
            what: the object, for errors.

        Raises:
            InvalidOperationError: no loop runs, or the object belongs to another one that may run.
        """
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError as error:
            raise InvalidOperationError(
                "no asyncio event loop is running, as under trio: use asyncio, uvloop, or anyio with its asyncio "
                "backend"
            ) from error
        old, thread = self.loop, get_ident()
        if old is loop:
            return None
        if old is not None and not old.is_closed() and (old.is_running() or self._thread != thread):
            raise InvalidOperationError(
                f"{what} belongs to another event loop, which is not closed: use one client for each event loop, or "
                "asyncio.run_coroutine_threadsafe to call the loop of this one"
            )
        if loop is self._inherited:
            raise InvalidOperationError(
                f"{what} belongs to this event loop in the parent process, and both would read the same sockets: run "
                "another loop in the forked process, for example by asyncio.run"
            )
        move = Move.FORKED if self._inherited is not None else None if old is None else Move.LOOP_ENDED
        self.loop, self.ready, self._thread, self._inherited = loop, NOWHERE, thread, None
        return move

    def _forked(self) -> None:
        self._inherited = self._inherited or self.loop
        self.loop, self.ready = None, NOWHERE


_homes: Final[WeakSet[LoopHome]] = WeakSet()


def _leave_parent() -> None:
    for home in list(_homes):
        home._forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_parent)


class Waiting(Protocol):
    """A call that waits until a deadline in monotonic seconds."""

    deadline: float

    def expire(self) -> None:
        """End the wait: the deadline has passed."""


class Deadlines:
    """The deadlines of everything that waits for the service, on one timer.

    A timer per message would cost as much as its encoding. The timer is set for the earliest deadline that was added
    since it last fired; then all that wait are checked. Most calls end long before, so this happens rarely.
    """

    def __init__(self) -> None:
        self._waiters: dict[Waiting, None] = {}
        self._due_at = math.inf
        self._timer: asyncio.TimerHandle | None = None

    def add(self, waiter: Waiting) -> None:
        """Watch a waiter until `remove`."""
        self._waiters[waiter] = None
        if waiter.deadline < self._due_at:
            self._set(waiter.deadline)

    def remove(self, waiter: Waiting) -> None:
        """Watch it no longer."""
        self._waiters.pop(waiter, None)

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._due_at = math.inf

    def _set(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due_at = at
        self._timer = clock.call_later(max(0.0, at - clock.monotonic()), self._sweep)

    def _sweep(self) -> None:
        self._timer = None
        self._due_at = math.inf
        now = clock.monotonic()
        expired = [waiter for waiter in self._waiters if waiter.deadline <= now]
        for waiter in expired:
            if waiter in self._waiters:  # the end of another may have removed it
                del self._waiters[waiter]
                waiter.expire()
        if self._waiters:
            earliest = min(waiter.deadline for waiter in self._waiters)
            if earliest < self._due_at:
                self._set(earliest)
