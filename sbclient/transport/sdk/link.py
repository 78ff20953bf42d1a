"""One sender or receiver of azure-servicebus, used by one call at a time.

Such an object has one connection. Two coroutines must not use it at the same time. When a call is cancelled, its
request stays in the object, and the next call sends it. Therefore:

1. Calls run one at a time, in the order in which they were made. A call that waits has sent nothing. An `asyncio.Lock`
   would do, except that the waiting calls must fail at once when the object is discarded.
2. A call runs in its own task with a timeout. If its caller is cancelled, or the timeout expires, the object is
   discarded: the task is cancelled, and the object is closed in the background and never used again.
3. The object is also discarded after an error that may mean that the connection is lost.
4. The first call opens the object. An idle object is closed, and the next call opens another one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, suppress
from socket import SHUT_RDWR
from typing import Any, Final, Generic, TypeVar

from sbclient import clock
from sbclient.errors import (
    InvalidOperationError,
    MessageAlreadySettled,
    MessageLockLostError,
    MessageNotFoundError,
    MessageSizeExceededError,
    OperationTimeoutError,
    ServiceBusAuthenticationError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
    with_doubt,
)
from sbclient.tasks import Move, OwnedTasks
from sbclient.telemetry import metrics
from sbclient.telemetry.log import get_logger
from sbclient.transport.sdk.errors import Place, translated

log = get_logger(__name__)

S = TypeVar("S")
R = TypeVar("R")

TIMEOUT_GRACE_S: Final = 0.25
"""Time that an SDK call gets beyond its own timeout, so that its own error, which is more precise, is raised first."""

CANCEL_TIMEOUT_S: Final = 2.0
"""How long to wait for a cancelled SDK call to end."""

CLOSE_S: Final = 4.0
"""Timeout for closing an SDK object, which takes about 1 s."""

_HARMLESS: Final = (
    InvalidOperationError,
    MessageAlreadySettled,
    MessageLockLostError,
    MessageNotFoundError,
    MessageSizeExceededError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
)
"""Errors after which the object can be used again, because its connection is not lost."""


class LinkDiscardedError(Exception):
    """The object was discarded while a call waited for it: nothing was sent, use another one."""


class SdkLink(Generic[S]):
    """Runs calls on one object of the SDK, one at a time.

    Attributes:
        is_open: whether it was opened and not discarded.
        is_gone: whether it was discarded.

    Args:
        sdk: the object, not opened yet.
        subject: the entity, for errors: `'orders'`.
        tasks: owns the tasks that outlive a call.
        prepare: called with the object when it has been opened.
        idle_s: seconds without a call after which the object is closed; None = never.
        place: the namespace, for errors.
    """

    def __init__(
        self,
        sdk: S,
        subject: str,
        tasks: OwnedTasks,
        *,
        prepare: Callable[[S], Awaitable[None]] | None = None,
        idle_s: float | None = None,
        place: Place | None = None,
    ) -> None:
        self._sdk: Any = sdk
        self._place = place
        self._subject = subject
        self._tasks = tasks
        self._prepare = prepare
        self._idle_s = idle_s
        self._idle_timer: asyncio.TimerHandle | None = None
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_in_use = False
        self._was_opened = False
        self._disposal: asyncio.Task[None] | None = None
        self.is_open = False
        self.is_gone = False

    @property
    def calls(self) -> int:
        """The number of calls that run or wait."""
        return len(self._waiting) + self._is_in_use

    async def call(self, work: Callable[[S], Awaitable[R]], *, doing: str, timeout_s: float) -> R:
        """Wait until no other call runs, open the object if needed, and run `work` with it.

        Args:
            work: is called with the object.
            doing: the operation, for errors: `send to`.
            timeout_s: seconds to wait, open and work.

        Raises:
            LinkDiscardedError: nothing was sent.
            OperationTimeoutError: the timeout expired; the text says whether anything was sent.
            ServiceBusError: the error that the service returned.
        """
        deadline = clock.monotonic() + timeout_s
        await self.acquire(doing, timeout_s)
        task = self.start(work, doing=doing)
        return await self._watched(task, doing, timeout_s, deadline)

    async def _watched(self, task: asyncio.Task[R], doing: str, timeout_s: float, deadline: float) -> R:
        try:
            late = await clock.wait({task}, max(deadline - clock.monotonic(), 0.0) + TIMEOUT_GRACE_S)
        except asyncio.CancelledError:
            self.discard(task)
            raise
        if late:
            self.discard(task)
            raise OperationTimeoutError(
                f"{doing} {self._subject}: no answer within {timeout_s:g} s, "
                + ("the result is unknown" if self._was_opened else "nothing was sent"),
                is_in_doubt=self._was_opened,
            )
        return task.result()

    def start(self, work: Callable[[S], Awaitable[R]], *, doing: str) -> asyncio.Task[R]:
        """Start `work` in a task. The caller has acquired the object; the task releases it at its end."""
        task = self._tasks.start(self._run(work, doing), name=f"{doing} {self._subject}")
        task.add_done_callback(lambda _: self.release())
        return task

    async def acquire(self, doing: str, timeout_s: float) -> None:
        """Wait until no other call runs; the caller must then call `start` or `release` at once.

        Raises:
            LinkDiscardedError: the object was discarded.
            OperationTimeoutError: the other calls took longer than `timeout_s` seconds.
        """
        if self.is_gone:
            raise LinkDiscardedError(self._subject)
        self._stop_idle_timer()
        if not self._is_in_use:
            self._is_in_use = True
            return
        acquired: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(acquired)
        try:
            async with clock.timeout(timeout_s):
                await self._wait_for(acquired)
        except TimeoutError:
            raise waited_too_long(doing, self._subject, timeout_s) from None

    async def _wait_for(self, acquired: asyncio.Future[None]) -> None:
        try:
            await acquired
        except asyncio.CancelledError:
            self._leave(acquired)
            raise

    def _leave(self, acquired: asyncio.Future[None]) -> None:
        """Stop waiting. If the object was acquired for this call in the meantime, release it."""
        if acquired in self._waiting:
            self._waiting.remove(acquired)
        elif acquired.done() and not acquired.cancelled() and acquired.exception() is None:
            self.release()

    def release(self) -> None:
        """Let the next waiting call use the object."""
        while self._waiting:
            acquired = self._waiting.popleft()
            if not acquired.done():
                acquired.set_result(None)
                return
        self._is_in_use = False
        self._start_idle_timer()

    async def _run(self, work: Callable[[S], Awaitable[R]], doing: str) -> R:
        try:
            if not self.is_open:
                await self._sdk.__aenter__()
                if self._prepare is not None:
                    await self._prepare(self._sdk)
                self.is_open = not self.is_gone
                self._was_opened = True
            return await work(self._sdk)
        except Exception as error:
            own = translated(error, f"{doing} {self._subject}", self._place)
            if isinstance(own, ServiceBusError) and not self._was_opened:
                with_doubt(own, False)
            if isinstance(own, ServiceBusAuthenticationError) and self._place is not None:
                metrics.add(metrics.CREDENTIAL_REJECTIONS, 1, metrics.server(self._place.namespace))
            if not isinstance(own, _HARMLESS):
                self.discard()
            if own is error:
                raise
            raise own from error

    # -- closing -------------------------------------------------------------------------------------------------

    def discard(self, task: asyncio.Task[Any] | None = None) -> None:
        """Never use the object again, and close it in the background.

        Args:
            task: the running call, which is cancelled.
        """
        if self.is_gone:
            return
        self.is_gone = True
        self.is_open = False
        self._stop_idle_timer()
        if task is not None:
            task.cancel()  # now, so that it asks nothing if it has just opened the object
        while self._waiting:
            acquired = self._waiting.popleft()
            if not acquired.done():
                acquired.set_exception(LinkDiscardedError(self._subject))
        if not self._tasks.is_closed:
            self._disposal = self._tasks.start(self._dispose(task), name=f"close {self._subject}")

    async def _dispose(self, task: asyncio.Task[Any] | None) -> None:
        if task is not None and not task.done():
            await clock.wait({task}, CANCEL_TIMEOUT_S)
        closing = self._tasks.start(self._close_sdk(), name=f"close {self._subject}")
        late = await clock.wait({closing}, CLOSE_S)
        is_running = task is not None and not task.done()
        if late:
            self._log_not_closed(f"no response within {CLOSE_S:g} s")
        elif is_running:
            self._log_not_closed(f"a cancelled call did not end within {CANCEL_TIMEOUT_S:g} s")
        if late or is_running:
            for each in (closing, task):
                if each is not None:
                    each.cancel()

    async def _close_sdk(self) -> None:
        try:
            await self._sdk.close()
        except Exception as error:
            self._log_not_closed(error)

    def _log_not_closed(self, error: Exception | str) -> None:
        log.info("sdk.not_closed", "cannot close {subject}: {error}", subject=self._subject, error=error)

    async def close(self) -> None:
        """Discard the object and wait until it is closed, at most `CANCEL_TIMEOUT_S` + `CLOSE_S`."""
        self.discard()
        if self._disposal is not None:
            await clock.wait({self._disposal}, CANCEL_TIMEOUT_S + CLOSE_S)

    def abandon(self, move: Move) -> None:
        """Close the connection without a call into the event loop, which has ended, so that locks become free."""
        if move is not Move.FORKED:
            with suppress(Exception):  # the SDK has no public name for its socket
                writer = self._sdk._handler._connection._transport.writer
                writer.transport.get_extra_info("socket").shutdown(SHUT_RDWR)

    def _start_idle_timer(self) -> None:
        if self._idle_s is not None and not self.is_gone:
            self._stop_idle_timer()
            self._idle_timer = clock.call_later(self._idle_s, self.discard)

    def _stop_idle_timer(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None


def waited_too_long(doing: str, subject: str, timeout_s: float) -> OperationTimeoutError:
    """Return the error of a call whose timeout has expired before its turn."""
    return OperationTimeoutError(
        f"{doing} {subject}: waited {timeout_s:g} s for other calls, nothing was sent", is_in_doubt=False
    )


async def call_any(
    choose: Callable[[], AbstractContextManager[SdkLink[S]]],
    work: Callable[[S], Awaitable[R]],
    *,
    doing: str,
    subject: str,
    timeout_s: float,
) -> R:
    """Run `work` with an object; if that one is discarded while the call waits, with another one.

    Args:
        choose: returns an object that is not discarded.
        work, doing, subject, timeout_s: as for `SdkLink`.

    Raises:
        OperationTimeoutError: the timeout expired; the text says whether anything was sent.
        ServiceBusError: the error that the service returned.
    """
    deadline = clock.monotonic() + timeout_s
    while (left_s := deadline - clock.monotonic()) > 0:
        with suppress(LinkDiscardedError), choose() as link:
            return await link.call(work, doing=doing, timeout_s=left_s)
    raise OperationTimeoutError(f"{doing} {subject}: the timeout expired before anything was sent", is_in_doubt=False)
