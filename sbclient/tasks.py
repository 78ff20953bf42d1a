"""Background tasks with an owner: nothing runs on after the thing it runs for is closed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from sbclient.clock import Clock
from sbclient.telemetry import tracing
from sbclient.telemetry.log import get_logger

log = get_logger(__name__)

T = TypeVar("T")

_LOOK_AGAIN_S: Final = 0.1
"""How soon, while it is waited for, a task that was cancelled by others is looked at again: it may go on."""


class OwnedTasks:
    """The tasks of one owner. Unlike a `TaskGroup` it needs no `async with`, so that an object can be the owner.

    A task that fails does not end the others; its exception goes to `on_failure`.
    """

    def __init__(self, on_failure: Callable[[BaseException], None] | None = None) -> None:
        self._tasks: dict[asyncio.Task[Any], None] = {}  # in order, so that they always end in the same one
        self._told: set[asyncio.Task[Any]] = set()
        self._on_failure = on_failure
        self.is_closed = False

    def start(self, work: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        """Run `work` in a task of its own; after `close` it is refused with `RuntimeError`."""
        if self.is_closed:
            work.close()
            raise RuntimeError(f"{name} cannot start: its owner is closed")
        task = asyncio.get_running_loop().create_task(work, name=name, context=tracing.outside())
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        self._told.discard(task)
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
        """Ask one task to end, unless it is being cancelled: a second time would break into its tidying up.

        Returns:
            Whether it was asked, now or before. If not, somebody else has cancelled it, or a timeout within it is just
            over, and then it goes on.
        """
        if task not in self._told and not task.cancelling():
            self._told.add(task)
            task.cancel()
        return task in self._told

    def cancel(self) -> None:
        """Ask every task to end, and take no new one."""
        self.is_closed = True
        for task in list(self._tasks):
            self.end(task)

    async def close(self) -> None:
        """Cancel every task and wait until all have ended. Safe to call twice, and from one of the tasks."""
        self.is_closed = True
        current = asyncio.current_task()
        ending = [task for task in self._tasks if task is not current]
        while ending:
            are_asked = [self.end(task) for task in ending]
            if all(are_asked):
                await asyncio.wait(ending)
            else:
                await Clock().wait(ending, _LOOK_AGAIN_S)
            ending = [task for task in ending if not task.done()]
