"""Background tasks with an owner, which ends them when it is closed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final, TypeVar

from sbclient import clock
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

    async def close(self) -> None:
        """Cancel every task and wait until all have ended. Safe to call twice, and from one of the tasks."""
        self.is_closed = True
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
