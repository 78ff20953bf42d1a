"""One sender or receiver of azure-servicebus, and the rules by which it is used.

Such an object is one connection. It is neither safe for two coroutines nor sane after a failure: cut short, it keeps
what it had begun and sends that with the next call. Hence the laws:

1. One call at a time is inside, in the order in which they came. Whoever still waits has not begun and may go away.
2. A call runs in a task of its own under a watchdog. Its caller's cancellation or impatience never enters it: the
   object is given up, which cancels the task, and it is closed in the background and never used again.
3. So it is after any error that may mean that the connection is lost.
4. It is opened by its first call. Idle for a while it is closed, which costs the next call one opening.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final, Generic, TypeVar

from sbclient.clock import Clock
from sbclient.errors import (
    InvalidOperationError,
    MessageAlreadySettled,
    MessageLockLostError,
    MessageNotFoundError,
    MessageSizeExceededError,
    OperationTimeoutError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
)
from sbclient.tasks import OwnedTasks
from sbclient.telemetry.log import get_logger
from sbclient.transport.sdk.errors import Place, translated
from sbclient.transport.sdk.tracing import silence

log = get_logger(__name__)

S = TypeVar("S")
R = TypeVar("R")

WATCHDOG_S: Final = 0.25
"""How much longer than its own limit an SDK call is given, so that its own, more precise, error is seen first."""

END_S: Final = 2.0
"""How long a cancelled SDK call may take to end before its socket is cut."""

CLOSE_S: Final = 4.0
"""How long an SDK object may take to close; it needs about 1 s."""

_HARMLESS: Final = (
    InvalidOperationError,
    MessageAlreadySettled,
    MessageLockLostError,
    MessageNotFoundError,
    MessageSizeExceededError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
)
"""Answers of the service after which the link stands as before."""


def is_harmless(error: Exception) -> bool:
    """Whether, after this answer, the link stands as before."""
    return isinstance(error, _HARMLESS)


class GivenUpError(Exception):
    """The object was given up while a call waited for its turn: nothing was begun, try another one."""


class SdkLink(Generic[S]):
    """One SDK object.

    Attributes:
        is_open: whether it was opened and, as far as is known, still stands.
        is_gone: whether it was given up.
        calls: how many are inside or wait for their turn.

    Args:
        sdk: the object, not opened yet.
        subject: what it is for, for errors: `'orders'`.
        tasks: owns what runs on behind a call.
        prepare: called with the object when it has just been opened.
        idle_s: after how many seconds without a call it is closed; None = never.
        place: the namespace, for errors.
    """

    def __init__(
        self,
        sdk: S,
        subject: str,
        clock: Clock,
        tasks: OwnedTasks,
        *,
        prepare: Callable[[S], None] | None = None,
        idle_s: float | None = None,
        place: Place | None = None,
    ) -> None:
        self._sdk: Any = sdk
        self._place = place
        self._subject = subject
        self._clock = clock
        self._tasks = tasks
        self._prepare = prepare
        self._idle_s = idle_s
        self._idle_timer: asyncio.TimerHandle | None = None
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_taken = False
        self._disposal: asyncio.Task[None] | None = None
        self.is_open = False
        self.is_gone = False
        self.calls = 0

    async def call(self, work: Callable[[S], Awaitable[R]], *, doing: str, timeout_s: float) -> R:
        """Open the object if needed and do `work` with it, alone.

        Args:
            work: is given the object.
            doing: what for, for errors: `send to`.
            timeout_s: seconds for waiting, opening and working.

        Raises:
            GivenUpError: nothing was begun.
            OperationTimeoutError: the time is over; the text says whether anything was begun.
            ServiceBusError: what the service answered.
        """
        deadline = self._clock.monotonic() + timeout_s
        self.calls += 1
        try:
            await self._turn(doing, timeout_s)
            task = self.start(work, doing=doing)
            return await self._watched(task, doing, timeout_s, deadline)
        finally:
            self.calls -= 1

    async def _watched(self, task: asyncio.Task[R], doing: str, timeout_s: float, deadline: float) -> R:
        try:
            late = await self._clock.wait({task}, max(deadline - self._clock.monotonic(), 0.0) + WATCHDOG_S)
        except asyncio.CancelledError:
            self.give_up(task)
            raise
        if late:
            self.give_up(task)
            raise OperationTimeoutError(
                f"{doing} {self._subject}: no answer within {timeout_s:g} s, whether it happened is in doubt"
            )
        return task.result()

    def start(self, work: Callable[[S], Awaitable[R]], *, doing: str) -> asyncio.Task[R]:
        """Begin `work` in a task that has, and at its end passes on, the turn; the caller has waited for `turn`."""
        task = self._tasks.start(self._inside(work, doing), name=f"{doing} {self._subject}")
        task.add_done_callback(lambda _: self.pass_turn())
        return task

    async def turn(self, doing: str, timeout_s: float) -> None:
        """Wait for the turn, at most that long; then `start`, or `pass_turn`, must follow at once.

        Raises:
            GivenUpError, OperationTimeoutError: it did not come.
        """
        self.calls += 1
        try:
            await self._turn(doing, timeout_s)
        finally:
            self.calls -= 1

    async def _turn(self, doing: str, timeout_s: float) -> None:
        if self.is_gone:
            raise GivenUpError(self._subject)
        self._stop_idle_timer()
        if not self._is_taken:
            self._is_taken = True
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        try:
            async with self._clock.timeout(timeout_s):
                await self._in_line(place)
        except TimeoutError:
            raise OperationTimeoutError(
                f"{doing} {self._subject}: waited {timeout_s:g} s behind others, nothing was sent"
            ) from None

    async def _in_line(self, place: asyncio.Future[None]) -> None:
        try:
            await place
        except asyncio.CancelledError:
            self._leave(place)
            raise

    def _leave(self, place: asyncio.Future[None]) -> None:
        """Give back a place in the queue; the turn may have come in the very moment."""
        if place in self._waiting:
            self._waiting.remove(place)
        elif place.done() and not place.cancelled() and place.exception() is None:
            self.pass_turn()

    def pass_turn(self) -> None:
        """Let the next one in."""
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(None)
                return
        self._is_taken = False
        self._start_idle_timer()

    async def _inside(self, work: Callable[[S], Awaitable[R]], doing: str) -> R:
        silence()
        try:
            if not self.is_open:
                if hasattr(self._sdk, "__aenter__"):  # one that has it not opens itself when it is used
                    await self._sdk.__aenter__()
                if self._prepare is not None:
                    self._prepare(self._sdk)
                self.is_open = not self.is_gone
            return await work(self._sdk)
        except Exception as error:
            own = translated(error, f"{doing} {self._subject}", self._place)
            if not is_harmless(own) or not getattr(self._sdk, "_running", False):
                self.give_up()
            if own is error:
                raise
            raise own from error

    # -- the end -------------------------------------------------------------------------------------------------

    def give_up(self, task: asyncio.Task[Any] | None = None) -> None:
        """Never use the object again, and close it in the background.

        Args:
            task: the call that is inside, to be cancelled.
        """
        if self.is_gone:
            return
        self.is_gone = True
        self.is_open = False
        self._stop_idle_timer()
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_exception(GivenUpError(self._subject))
        if not self._tasks.is_closed:
            self._disposal = self._tasks.start(self._dispose(task), name=f"close {self._subject}")

    async def _dispose(self, task: asyncio.Task[Any] | None) -> None:
        if task is not None and not task.done():
            task.cancel()
            await self._clock.wait({task}, END_S)
        closing = self._tasks.start(self._close_sdk(), name=f"close {self._subject}")
        late = await self._clock.wait({closing}, CLOSE_S)
        if late or (task is not None and not task.done()):
            log.warning("azure.socket_cut", "closed the socket of {subject}: no answer in time", subject=self._subject)
            for each in (closing, task):
                if each is not None:
                    each.cancel()
            cut(self._sdk)

    async def _close_sdk(self) -> None:
        try:
            _stop_heart(self._sdk)
            await self._sdk.close()
        except Exception as error:
            log.debug("azure.not_closed", "cannot close {subject}: {error}", subject=self._subject, error=error)
            cut(self._sdk)

    async def close(self) -> None:
        """Give the object up and wait, for a few seconds, until it is closed."""
        self.give_up()
        if self._disposal is not None:
            await self._clock.wait({self._disposal}, END_S + CLOSE_S)

    def _start_idle_timer(self) -> None:
        if self._idle_s is not None and not self.is_gone:
            self._stop_idle_timer()
            self._idle_timer = self._clock.call_later(self._idle_s, self.give_up)

    def _stop_idle_timer(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None


def _stop_heart(sdk: Any) -> None:
    """End the SDK's keep-alive task, for whose next beat, up to a second, closing would wait."""
    handler: Any = getattr(sdk, "_handler", None)
    heart = getattr(handler, "_keep_alive_thread", None)
    if heart is not None:
        heart.cancel()
        handler._keep_alive_thread = None


def cut(sdk: Any) -> None:
    """Drop the socket of an SDK object that does not close; what cannot be found is left to the garbage collector."""
    handler = getattr(sdk, "_handler", None)
    if handler is None:
        return
    handler._shutdown = True
    _stop_heart(sdk)
    writer = getattr(getattr(getattr(handler, "_connection", None), "_transport", None), "writer", None)
    if writer is not None:
        writer.transport.abort()
