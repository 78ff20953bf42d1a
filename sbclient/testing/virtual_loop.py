"""For tests and simulations: an asyncio event loop in which time is a number, so that hours of waiting pass at once.

    async def main() -> float:
        await asyncio.sleep(3600)
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == 3600.0   # at once

The laws of the virtual loop:

1. Its time starts at 0 and stands still while anything is ready to run. When nothing is, it becomes exactly the moment
   of the next timer. Nothing really sleeps.
2. Timers of one moment fire in the order in which they were set, and asyncio's sets of tasks have the same order in
   every process. With the same program and the same seeds, two runs are the same step by step.
3. While a thread works for the loop (`run_in_executor`, `asyncio.to_thread`), virtual time stands still and the loop
   really waits. Callbacks of other threads (`call_soon_threadsafe`) run at the virtual moment at which they come in.
4. Sockets are served when they are ready, but they do not hold up time: what waits for the network under a timeout
   belongs on a real loop.
5. It never hangs. Where a real loop would wait for ever it raises `DeadlockError`, which says who waits and where.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import selectors
import threading
import time as real_time
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from contextvars import Context
from itertools import count
from typing import TYPE_CHECKING, Any, Final, TypeVar, TypeVarTuple

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike

PATIENCE_S: Final = 10.0
"""How long, in real seconds, the loop waits for threads and sockets when nothing else can go on."""

_MANY_TIMERS: Final = 100
"""With more of them asyncio looks whether most are cancelled."""

_LEAPS_AT_ONCE: Final = 64
"""After so many turns without a look at the loop's own pipe there is one."""

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class DeadlockError(RuntimeError):
    """Nothing in a virtual loop can go on, or its time ran past the horizon. The text says which tasks wait where."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose `time()` is virtual; see the laws above.

    All of asyncio works on it: `sleep`, `timeout`, `call_later`, `TaskGroup`, `Queue`, `Event`, threads. It is a loop
    factory for `asyncio.Runner`; `run_virtual` is the short way.

    Args:
        horizon_s: the loop time after which `DeadlockError` is raised, so that a periodic task does not keep a
            forgotten program alive for ever; None = no end.
        patience_s: real seconds to wait for threads and sockets when nothing else can go on; then `DeadlockError`.
        speed: virtual seconds that pass in a real one, for somebody to watch; None = as fast as possible.
    """

    # What this class shares with `asyncio.BaseEventLoop`, unchanged from Python 3.7 on.
    _scheduled: list[_Timer]
    _ready: deque[asyncio.Handle]
    _timer_cancelled_count: int
    _clock_resolution: float
    _debug: bool

    def __init__(
        self, *, horizon_s: float | None = None, patience_s: float = PATIENCE_S, speed: float | None = None
    ) -> None:
        self._time_s = 0.0
        self._speed = speed
        self._horizon_s = math.inf if horizon_s is None else horizon_s
        self._patience_s = patience_s
        self._looked_at: float | None = None
        self._threads_at_work = 0
        self._leaps = 0
        self._ranks = count()
        self._poll = _Poll(self._pass_time)
        super().__init__(self._poll)
        self.set_task_factory(self._ranked_task)
        self._clock_resolution = math.ulp(0.0)

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._time_s

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """As in asyncio, and callbacks of the same moment are called in the order of these calls."""
        if self.is_closed():
            raise RuntimeError("Event loop is closed")
        timer = _Timer(when, callback, args, self, context)
        timer.rank = next(self._ranks)
        heapq.heappush(self._scheduled, timer)
        timer._scheduled = True
        return timer

    def _ranked_task(self, _: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
        return _Task(next(self._ranks), work, loop=self, **options)

    def run_in_executor(self, executor: Any, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        """As in asyncio; virtual time stands still until the thread has finished."""
        result: asyncio.Future[T] = super().run_in_executor(executor, func, *args)
        self._threads_at_work += 1
        result.add_done_callback(self._thread_finished)
        return result

    async def shutdown_default_executor(self, *args: Any) -> None:
        """As in asyncio; virtual time stands still until the threads have ended."""
        self._threads_at_work += 1
        try:
            await super().shutdown_default_executor(*args)
        finally:
            self._threads_at_work -= 1

    def _thread_finished(self, _: asyncio.Future[Any]) -> None:
        self._threads_at_work -= 1

    def _run_once(self) -> None:
        """One turn, as in asyncio. Where nobody but timers can make anything ready, nobody else is asked."""
        ready, scheduled = self._ready, self._scheduled
        if self._poll.has_sockets or self._debug or len(scheduled) > _MANY_TIMERS or not (ready or self._leap()):
            super()._run_once()  # type: ignore[misc]  # asyncio does not say that it has it
            return
        now = self.time()
        while scheduled and ((timer := scheduled[0])._cancelled or timer._when <= now):
            heapq.heappop(scheduled)
            timer._scheduled = False
            if timer._cancelled:
                self._timer_cancelled_count -= 1
            else:
                ready.append(timer)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()

    def _leap(self) -> bool:
        """Let it be the moment of the next timer, if nothing else can come before; returns whether it is.

        Now and then it declines, for those who knock by the loop's own pipe: signals, and threads of others.
        """
        scheduled = self._scheduled
        while scheduled and scheduled[0]._cancelled:
            heapq.heappop(scheduled)._scheduled = False
            self._timer_cancelled_count -= 1
        self._leaps = (self._leaps + 1) % _LEAPS_AT_ONCE
        if not scheduled or not self._leaps or self._threads_at_work or self._speed is not None:
            return False
        moment = scheduled[0]._when
        if moment > self._horizon_s or moment == math.inf:
            return False
        self._time_becomes(max(moment, self._time_s))
        return True

    def _pass_time(self, poll: _Poll, timeout_s: float | None) -> list[_Event]:
        """What the loop does where a real one blocks.

        Args:
            poll: the sockets, and the pipe by which other threads wake the loop.
            timeout_s: real loops would block that long; 0 = something is ready, None = there is no timer.
        """
        if timeout_s == 0:
            return poll.ready(0) if poll.has_sockets else _NOTHING
        moment = self._scheduled[0].when() if timeout_s is not None else math.inf
        is_watched = self._speed is not None and moment < math.inf and moment <= self._horizon_s
        if is_watched and not self._threads_at_work:
            return self._pass_watched_time(poll, moment)
        if events := poll.ready(0):
            return events
        if self._threads_at_work or moment == math.inf:
            return self._wait_for_the_world(poll)
        if moment > self._horizon_s:
            raise DeadlockError(self._story(f"its time would pass the horizon of {self._horizon_s:g} s"))
        self._time_becomes(moment)
        return []

    def _pass_watched_time(self, poll: _Poll, moment: float) -> list[_Event]:
        """As `_pass_time`, with a speed: time goes on also while sockets speak, and never beyond the next timer."""
        speed = self._speed or 1.0
        waited_from, self._looked_at = self._looked_at, real_time.monotonic()
        if waited_from is not None:
            self._time_becomes(min(moment, self._time_s + (self._looked_at - waited_from) * speed))
        span_s = (moment - self._time_s) / speed
        events = poll.ready(min(span_s, self._patience_s))
        now_at = real_time.monotonic()
        is_over = not events and span_s <= self._patience_s
        self._time_becomes(moment if is_over else min(moment, self._time_s + (now_at - self._looked_at) * speed))
        self._looked_at = now_at
        return events

    def _time_becomes(self, moment: float) -> None:
        self._time_s = moment
        # A timer is due when it is earlier than now plus the resolution: one float further is exactly "not later".
        self._clock_resolution = math.ulp(moment)

    def _wait_for_the_world(self, poll: _Poll) -> list[_Event]:
        if not (self._threads_at_work or poll.has_sockets or threading.active_count() > 1):
            raise DeadlockError(self._story("nothing is ready, and no timer is set"))
        if events := poll.ready(self._patience_s):
            return events
        raise DeadlockError(self._story(f"no thread and no socket moved for {self._patience_s:g} real seconds"))

    def _story(self, reason: str) -> str:
        waiting = sorted(asyncio.all_tasks(self), key=lambda task: (len(task.get_name()), task.get_name()))
        lines = [f"the virtual loop stands at {self._time_s:g} s: {reason}. Who waits:"]
        return "\n".join(lines + [f"  {task.get_name()} {_place(task)}" for task in waiting])


def run_virtual(
    main: Coroutine[Any, Any, T],
    *,
    horizon_s: float | None = None,
    patience_s: float = PATIENCE_S,
    speed: float | None = None,
) -> T:
    """Run a coroutine to its end on a new virtual loop, as `asyncio.run` does on a real one.

    Within it, `sbclient.clock.VirtualClock()` and `loop.time()` tell the virtual time, which starts at 0.

    Args:
        main: what to run; tasks it leaves behind are cancelled.
        horizon_s, patience_s, speed: as in `VirtualLoop`.

    Returns: what `main` returns.

    Raises:
        DeadlockError: all tasks wait for something that can never happen.
        RuntimeError: an event loop is already running in this thread.
    """

    def virtual_loop() -> VirtualLoop:
        return VirtualLoop(horizon_s=horizon_s, patience_s=patience_s, speed=speed)

    with asyncio.Runner(loop_factory=virtual_loop) as runner:
        return runner.run(main)


def _place(task: asyncio.Task[Any]) -> str:
    """Where a task waits: the innermost place outside asyncio, and what it awaits there."""
    frames = []
    awaited: Any = task.get_coro()
    while (frame := getattr(awaited, "cr_frame", None)) is not None:
        frames.append(frame)
        awaited = awaited.cr_await
    if not frames:
        return "at an unknown place"
    own = [frame for frame in frames if not frame.f_globals.get("__name__", "").startswith("asyncio.")]
    place = (own or frames)[-1]
    where = f"at {place.f_code.co_filename}:{place.f_lineno} in {place.f_code.co_qualname}"
    return where if frames[-1] is place else f"{where}, for {frames[-1].f_code.co_qualname}"


_Event = tuple[selectors.SelectorKey, int]
_NOTHING: Final[list[_Event]] = []


class _Task(asyncio.Task[T]):
    """A task whose hash is its rank in its loop.

    Task groups and `asyncio.wait` keep tasks in sets. By the address of a task, which is its hash otherwise, the tasks
    of a group would be cancelled in another order in each process.
    """

    __slots__ = ("_rank",)

    def __init__(self, rank: int, work: Coroutine[Any, Any, T], **options: Any) -> None:
        self._rank = rank  # first, since asyncio registers the task by its hash
        super().__init__(work, **options)

    def __hash__(self) -> int:
        return self._rank

    def __eq__(self, other: object) -> bool:
        return self is other


class _Timer(asyncio.TimerHandle):
    """A timer that knows how many were set before it."""

    __slots__ = ("rank",)

    rank: int
    _scheduled: bool
    _when: float

    def __lt__(self, other: object) -> bool:
        if not isinstance(other, _Timer):
            return NotImplemented
        mine, theirs = self._when, other._when
        return mine < theirs or (mine == theirs and self.rank < other.rank)


class _Poll(selectors.BaseSelector):
    """The sockets of a loop, where the loop itself decides whether to wait for them.

    Args:
        pass_time: called with this object wherever a loop would block.

    Attributes:
        has_sockets: whether anything but the loop's own wake-up pipe is registered.
    """

    def __init__(self, pass_time: Callable[[_Poll, float | None], list[_Event]]) -> None:
        self._pass_time = pass_time
        self._system = selectors.DefaultSelector()
        self.has_sockets = False

    def _count(self) -> None:
        self.has_sockets = len(self._system.get_map()) > 1

    def ready(self, real_s: float) -> list[_Event]:
        """What is ready, or becomes ready within so many real seconds."""
        return self._system.select(real_s)

    def select(self, timeout: float | None = None) -> list[_Event]:
        return self._pass_time(self, timeout)

    def register(self, fileobj: FileDescriptorLike, events: int, data: Any = None) -> selectors.SelectorKey:
        key = self._system.register(fileobj, events, data)
        self._count()
        return key

    def unregister(self, fileobj: FileDescriptorLike) -> selectors.SelectorKey:
        key = self._system.unregister(fileobj)
        self._count()
        return key

    def modify(self, fileobj: FileDescriptorLike, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._system.modify(fileobj, events, data)

    def get_map(self) -> Mapping[FileDescriptorLike, selectors.SelectorKey]:
        return self._system.get_map()

    def get_key(self, fileobj: FileDescriptorLike) -> selectors.SelectorKey:
        return self._system.get_key(fileobj)

    def close(self) -> None:
        self._system.close()
