"""One run of some work for all callers that wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from sbclient.errors import InvalidOperationError, ServiceBusError
from sbclient.tasks import OwnedTasks
from sbclient.transport.amqp.waiter import own_error

T = TypeVar("T")


class SingleFlight(Generic[T]):
    """Runs work once for all concurrent callers. Cancelling one caller does not affect the others; the work is
    cancelled when no caller is left.

    Args:
        work: the work; started by the first caller, and again by the first one after its end.
        tasks: owns the run.
        name: of the task.
    """

    def __init__(self, work: Callable[[], Coroutine[Any, Any, T]], *, tasks: OwnedTasks, name: str) -> None:
        self._work = work
        self._tasks = tasks
        self._name = name
        self._task: asyncio.Task[T] | None = None
        self._caller_count = 0

    @property
    def is_running(self) -> bool:
        """Whether a run has begun and not ended."""
        return self._task is not None and not self._task.done()

    async def get(self) -> T:
        """The result of the run.

        Raises:
            ServiceBusError: what the work raised; nothing is in doubt.
        """
        while True:
            if self._tasks.is_closed:
                raise InvalidOperationError(f"{self._name}: the client was closed, open a new one")
            if self._task is None or self._task.done():
                self._task = self._tasks.start(self._work(), name=self._name)
                self._caller_count = 0
            task = self._task
            self._caller_count += 1
            try:
                return await asyncio.shield(task)
            except asyncio.CancelledError:
                if task.cancelled() and not _is_cancelling():  # its last other caller went as this one came
                    continue
                raise
            except ServiceBusError as error:
                raise own_error(error, is_in_doubt=False) from error.__cause__
            finally:
                if task is self._task:
                    self._caller_count -= 1
                    if not self._caller_count and not task.done():
                        self._tasks.end(task)
                        self._task = None


def _is_cancelling() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
