"""An asyncio event loop with virtual time, for tests and simulations: hours of waiting pass at once.

    async def main() -> float:
        await asyncio.sleep(3600)
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == 3600.0   # at once

Laws:

1. Time starts at 0 and does not advance while anything is ready to run. Otherwise it advances to exactly the time of
   the next timer. The loop does not sleep.
2. Timers with the same time fire in the order in which they were set, and asyncio's sets of tasks have the same order
   in every process. Two runs of a program with the same seeds are equal step by step.
3. While a thread works for the loop (`run_in_executor`, `asyncio.to_thread`), or a subprocess of the loop runs, virtual
   time stops and the loop waits in real time. Callbacks from other threads (`call_soon_threadsafe`) run at the virtual
   time at which they arrive.
4. Sockets are served when they are ready, but time does not wait for them, nor for threads of other origin:
   `outside_work()` names them. Use a real loop for timeouts of network operations.
5. The loop never hangs. Where a real loop would wait for ever, it raises `DeadlockError` with the tasks that wait.
6. `datetime.now()` and `time.time()` are real, unless `patch_datetime` makes them virtual while the loop runs.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import selectors
import threading
import time as real_time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from contextvars import Context
from datetime import timedelta
from itertools import count
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, TypeVar, TypeVarTuple

from sbclient.clock import VirtualTime

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike

    from sbclient.testing.namespaces import MemoryNamespace

PATIENCE_S: Final = 1.5
"""Real seconds that the loop waits for other threads and for sockets when nothing else is ready."""

WORK_PATIENCE_S: Final = 30.0
"""The same while a thread works for the loop or one of its subprocesses runs."""

_MANY_TIMERS: Final = 100
"""With more timers, asyncio checks whether most of them are cancelled."""

MANY_LEAPS: Final = 5_000
"""A program that has advanced the time more often is busy."""

OUTAGE_LIMIT_S: Final = 3_600.0
"""The default of `outage_limit_s` for programs in virtual time."""

_LEAPS_TO_LOOK: Final = 100
"""Iterations between two looks for an outage that nothing ends."""

_LONG_WAIT_S: Final = 300.0
"""A test waits longer for something on purpose; a retry does not."""

NOTED_LEAD_S: Final = 60.0
"""A program that fails after more virtual time may have compared it with `datetime.now()`."""

_OURS: Final = ("sbclient.", "asyncio.", "contextlib", "tenacity")
"""Modules whose lines are not shown as the place of a program."""

_MOST_SHOWN: Final = 10
"""Waiting tasks in an error."""

_LEAPS_AT_ONCE: Final = 64
"""Iterations without a check of the wake-up pipe of the loop."""

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class DeadlockError(RuntimeError):
    """No task of a virtual loop can continue, or it waits beyond the horizon. The text lists the waiting tasks."""


class VirtualLoop(asyncio.SelectorEventLoop, VirtualTime):
    """An event loop whose `time()` is virtual; see the laws above.

    All of asyncio works on it: `sleep`, `timeout`, `call_later`, `TaskGroup`, `Queue`, `Event`, threads. It is a loop
    factory for `asyncio.Runner`; `run_virtual` is the short way.

    Args:
        horizon_s: the loop time after which `DeadlockError` is raised, so that a periodic task does not keep a
            forgotten program running for ever; None = no limit.
        busy_horizon_s: the same, once the time has advanced more than 5,000 times.
        outage_limit_s: how long tasks may try again during an outage that nothing ends: `DeadlockError` is raised so
            long after the last fault was injected or healed and the last message was accepted or settled, once the time
            has advanced more than 5,000 times since then. It applies to namespaces in memory; None = no limit.
        patience_s: real seconds to wait for threads, subprocesses and sockets when nothing else is ready, before
            `DeadlockError`; None = 30 for those that work for the loop, 1.5 for others.
        speed: virtual seconds per real second, for a viewer; None = as fast as possible.
        patch_datetime: whether `datetime.now()`, `time.time()` and the like are virtual while the loop runs. Requires
            the package time-machine.
        epoch: the wall time when the loop begins, in seconds since 1970-01-01 UTC, for repeatable runs; None = now, so
            that it fits `datetime.now()` in a tested program.

    Raises:
        ImportError: time-machine is not installed.
    """

    # Attributes of `asyncio.BaseEventLoop`, unchanged since Python 3.7.
    _scheduled: list[_Timer]
    _ready: deque[asyncio.Handle]
    _timer_cancelled_count: int
    _clock_resolution: float
    _debug: bool
    _closed = True  # until asyncio opens it, so that a loop without time-machine has nothing to close

    def __init__(
        self,
        *,
        horizon_s: float | None = None,
        busy_horizon_s: float | None = None,
        outage_limit_s: float | None = None,
        patience_s: float | None = None,
        speed: float | None = None,
        patch_datetime: bool = False,
        epoch: float | None = None,
    ) -> None:
        self._travel = _time_machine().travel if patch_datetime else None
        self._traveller: Any = None
        self._travelled = timedelta(0)
        self._main: Any = None
        self._time_s = 0.0
        self._began_at = real_time.time() if epoch is None else epoch
        self._speed = speed
        self._horizon_s = math.inf if horizon_s is None else horizon_s
        self._busy_horizon_s = math.inf if busy_horizon_s is None else busy_horizon_s
        self._outage_limit_s = math.inf if outage_limit_s is None else outage_limit_s
        self._namespaces: dict[MemoryNamespace, None] = {}
        self._event_s = 0.0
        self._event_leaps = 0
        self._patience_s = PATIENCE_S if patience_s is None else patience_s
        self._work_patience_s = WORK_PATIENCE_S if patience_s is None else patience_s
        self._polled_at: float | None = None
        self._threads_at_work = 0
        self._threads_before = frozenset(threading.enumerate())
        self._processes: list[asyncio.SubprocessTransport] = []
        self._leaps = 0
        self._ranks = count()
        self._poll = _Poll(self._pass_time)
        super().__init__(self._poll)
        self.set_task_factory(self._ranked_task)
        self._clock_resolution = math.ulp(0.0)

    def time(self) -> float:
        """Virtual seconds since the loop was created."""
        return self._time_s

    def note_event(self, namespace: MemoryNamespace) -> None:
        """A fault of a namespace was injected or healed, or the namespace accepted or settled a message."""
        self._namespaces[namespace] = None
        self._event_s, self._event_leaps = self._time_s, self._leaps

    def _check_outages(self, when_s: float) -> None:
        """Raise an error if tasks have tried again for too long during an outage that nothing ends."""
        self._event_s = max(self._event_s, self._main_waits_until_s())
        if when_s <= self._event_s + self._outage_limit_s:
            return
        if outages := [text for each in self._namespaces for text in each.lasting_outages()]:
            raise DeadlockError(
                self._report(
                    "waits too long",
                    f"{', '.join(outages)}, nothing has healed it, and no message was accepted for "
                    f"{_duration(self._time_s - self._event_s)}. Heal it, give the fault an end (until_at, count), or "
                    "set servicebus_outage_limit, or outage_limit_s of run_virtual",
                )
            )

    def _main_waits_until_s(self) -> float:
        """Return when a long wait of the main task itself ends; tasks beside it may try again until then."""
        future = getattr(self._main, "_fut_waiter", None)
        timers = (each for each in self._scheduled if future is not None and future in (each._args or ()))
        when_s = next((timer._when for timer in timers), 0.0)
        return when_s if when_s > self._time_s + _LONG_WAIT_S else 0.0

    def wall_time(self) -> float:
        """Virtual seconds since 1970-01-01 UTC."""
        wall_s = self._began_at + self._time_s
        return wall_s if self._travel is None else round(wall_s * 1e6) / 1e6  # whole microseconds, as in a datetime

    def run_until_complete(self, future: Any) -> Any:
        """As in asyncio; an error names the place of this task first."""
        self._main = future
        return super().run_until_complete(future)

    def run_forever(self) -> None:
        """As in asyncio, with a virtual `datetime.now()` if it is patched."""
        if self._travel is None:
            return super().run_forever()
        with self._travel(0, tick=False) as self._traveller:
            self._travelled = timedelta(0)
            self._travel_on()
            return super().run_forever()

    def _travel_on(self) -> None:
        """Set `datetime.now()`; by a duration, since a float would be rounded twice."""
        reached = timedelta(microseconds=round(self.wall_time() * 1e6))
        self._traveller.shift(reached - self._travelled)
        self._travelled = reached

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Note at an error what real time could have to do with it."""
        try:
            yield
        except Exception as error:
            if outside := self.outside_work():
                error.add_note(f"Virtual time did not wait for {', '.join(outside)}: real time would.")
            if self._travel is None and self._time_s >= NOTED_LEAD_S and not isinstance(error, DeadlockError):
                error.add_note(
                    f"Virtual time is {_duration(self._time_s)} ahead of datetime.now() and time.time(). If the "
                    "program reads them, set servicebus_time = virtual-datetime, or patch_datetime=True of run_virtual."
                )
            raise

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """As in asyncio; callbacks with the same time are called in the order of these calls."""
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
        """As in asyncio; virtual time stops until the thread has finished."""
        result: asyncio.Future[T] = super().run_in_executor(executor, func, *args)
        self._threads_at_work += 1
        result.add_done_callback(self._thread_finished)
        return result

    async def subprocess_exec(self, *args: Any, **kwargs: Any) -> Any:
        """As in asyncio; virtual time stops until the process has ended."""
        return self._watched(await super().subprocess_exec(*args, **kwargs))

    async def subprocess_shell(self, *args: Any, **kwargs: Any) -> Any:
        """As in asyncio; virtual time stops until the process has ended."""
        return self._watched(await super().subprocess_shell(*args, **kwargs))

    def _watched(self, process: Any) -> Any:
        self._processes.append(process[0])
        return process

    def _is_work_outside(self) -> bool:
        """Whether a thread works for the loop, or one of its subprocesses runs."""
        if self._processes:
            self._processes = [each for each in self._processes if each.get_returncode() is None]
        return self._threads_at_work > 0 or bool(self._processes)

    def outside_work(self) -> list[str]:
        """Return the threads that run and did not before, and whether sockets were used: time waits for neither."""
        threads = (each for each in threading.enumerate() if each not in self._threads_before)
        names = [f"thread {each.name!r}" for each in threads if not each.name.startswith(("asyncio_", "waitpid-"))]
        return [*names, "sockets"] if self._poll.had_sockets else names

    async def shutdown_default_executor(self, *args: Any) -> None:
        """As in asyncio; virtual time stops until the threads have ended."""
        self._threads_at_work += 1
        try:
            await super().shutdown_default_executor(*args)
        finally:
            self._threads_at_work -= 1

    def _thread_finished(self, _: asyncio.Future[Any]) -> None:
        self._threads_at_work -= 1

    def _run_once(self) -> None:
        """Run one iteration, as in asyncio. Skip the selector if only timers can make anything ready."""
        ready, scheduled = self._ready, self._scheduled
        timer: Any
        handle: Any
        if self._poll.has_sockets or self._debug or len(scheduled) > _MANY_TIMERS or not (ready or self._leap()):
            super()._run_once()  # type: ignore[misc]  # private in asyncio
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
        handle = timer = None  # tracebacks of coroutines refer to this frame, which would keep their tasks

    def _leap(self) -> bool:
        """Advance the time to the next timer if nothing else can become ready before; returns whether it has advanced.

        It declines regularly, so that the loop checks its wake-up pipe for signals and other threads.
        """
        scheduled = self._scheduled
        while scheduled and scheduled[0]._cancelled:
            heapq.heappop(scheduled)._scheduled = False
            self._timer_cancelled_count -= 1
        self._leaps += 1
        if not scheduled or self._leaps % _LEAPS_AT_ONCE == 0 or self._speed is not None or self._is_work_outside():
            return False
        when_s = scheduled[0]._when
        if self._leaps % _LEAPS_TO_LOOK == 1 and self._leaps > self._event_leaps + MANY_LEAPS:
            self._check_outages(when_s)
        if when_s > self._busy_horizon_s and self._leaps > MANY_LEAPS:
            self._horizon_s = self._busy_horizon_s
        if when_s > self._horizon_s or when_s == math.inf:
            return False
        self._set_time(max(when_s, self._time_s))
        return True

    def _pass_time(self, poll: _Poll, timeout_s: float | None) -> list[_Event]:
        """Called where a real loop blocks: advance the time or wait for sockets and threads.

        Args:
            poll: the sockets, and the pipe by which other threads wake the loop.
            timeout_s: how long a real loop would block; 0 = something is ready, None = there is no timer.
        """
        if timeout_s == 0:
            return poll.ready(0) if poll.has_sockets else _NOTHING
        when_s = self._scheduled[0].when() if timeout_s is not None else math.inf
        is_watched = self._speed is not None and when_s < math.inf and when_s <= self._horizon_s
        is_work_outside = self._is_work_outside()
        if is_watched and not is_work_outside:
            return self._pass_watched_time(poll, when_s)
        if events := poll.ready(0):
            return events
        if is_work_outside or when_s == math.inf:
            return self._wait_outside(poll, is_work_outside)
        if when_s > self._horizon_s:
            raise DeadlockError(
                self._report(
                    "waits too long",
                    f"its next timer is due at {_duration(when_s)}, and its limit is {_duration(self._horizon_s)}",
                )
            )
        self._set_time(when_s)
        return []

    def _pass_watched_time(self, poll: _Poll, when_s: float) -> list[_Event]:
        """As `_pass_time`, with a speed: time also advances while sockets are ready, but not beyond the next timer."""
        speed = self._speed or 1.0
        waited_from, self._polled_at = self._polled_at, real_time.monotonic()
        if waited_from is not None:
            self._set_time(min(when_s, self._time_s + (self._polled_at - waited_from) * speed))
        wait_s = (when_s - self._time_s) / speed
        events = poll.ready(min(wait_s, self._patience_s))
        now_at = real_time.monotonic()
        is_over = not events and wait_s <= self._patience_s
        self._set_time(when_s if is_over else min(when_s, self._time_s + (now_at - self._polled_at) * speed))
        self._polled_at = now_at
        return events

    def _set_time(self, when_s: float) -> None:
        self._time_s = when_s
        if self._traveller is not None:
            self._travel_on()
        # A timer is due when it is earlier than now plus the resolution: one float further is exactly "not later".
        self._clock_resolution = math.ulp(when_s)

    def _wait_outside(self, poll: _Poll, is_work_outside: bool) -> list[_Event]:
        if not (is_work_outside or poll.has_sockets or threading.active_count() > 1):
            raise DeadlockError(self._report("waits for ever", "nothing is ready, and no timer is set"))
        patience_s = self._work_patience_s if is_work_outside else self._patience_s
        if events := poll.ready(patience_s):
            return events
        running = f"{len(self._processes)} subprocesses run, and " if self._processes else ""
        idle = f"{running}no thread and no socket was active for {patience_s:g} s"
        raise DeadlockError(self._report("waits for ever", f"{idle}, run the program in real time if it needs more"))

    def _report(self, problem: str, reason: str) -> str:
        """Return where the tasks wait, the main task first, and why that is a problem."""
        waiting = sorted(asyncio.all_tasks(self), key=lambda task: (task is not self._main, hash(task)))
        places = [f"{_place(task)} [{task.get_name()}]" for task in waiting[:_MOST_SHOWN]]
        if len(waiting) > _MOST_SHOWN:
            places.append(f"and {len(waiting) - _MOST_SHOWN:,} more")
        return "\n  ".join(
            [
                f"{places[0] if places else 'no task'}\n{problem}. The virtual loop is at "
                f"{_duration(self._time_s)}: {reason}.",
                *(["Other tasks:"] if places[1:] else []),
                *places[1:],
            ]
        )


def run_virtual(
    main: Coroutine[Any, Any, T],
    *,
    horizon_s: float | None = None,
    busy_horizon_s: float | None = None,
    outage_limit_s: float | None = OUTAGE_LIMIT_S,
    patience_s: float | None = None,
    speed: float | None = None,
    patch_datetime: bool = False,
    epoch: float | None = None,
) -> T:
    """Run a coroutine to its end on a new virtual loop, as `asyncio.run` does on a real one.

    Within it, `loop.time()` is the virtual time, which starts at 0.

    Args:
        main: tasks that it leaves running are cancelled.
        horizon_s, busy_horizon_s, outage_limit_s, patience_s, speed, patch_datetime, epoch: as in `VirtualLoop`.

    Returns: the result of `main`.

    Raises:
        DeadlockError: all tasks wait for something that can never happen.
        ImportError: `patch_datetime` requires time-machine, which is not installed.
        RuntimeError: an event loop is already running in this thread.
    """
    try:
        loop = VirtualLoop(
            horizon_s=horizon_s,
            busy_horizon_s=busy_horizon_s,
            outage_limit_s=outage_limit_s,
            patience_s=patience_s,
            speed=speed,
            patch_datetime=patch_datetime,
            epoch=epoch,
        )
    except ImportError:
        main.close()
        raise
    with asyncio.Runner(loop_factory=lambda: loop) as runner, loop.explained():
        return runner.run(main)


def _time_machine() -> Any:
    try:
        import time_machine
    except ImportError as error:
        raise ImportError(
            "patch_datetime requires the package time-machine: python -m pip install time-machine"
        ) from error
    return time_machine


def _duration(seconds: float) -> str:
    """Return a time of the loop as text: `5.5 s`, `2:00:00`, `40 days, 0:00:00`."""
    return f"{seconds:g} s" if seconds < NOTED_LEAD_S else str(timedelta(seconds=round(seconds)))


def _place(task: asyncio.Task[Any]) -> str:
    """Where a task waits: the lines of its outermost and innermost functions that the application has, and the function
    that this awaits.
    """
    frames = []
    awaited: Any = task.get_coro()
    while (frame := getattr(awaited, "cr_frame", None)) is not None:
        frames.append(frame)
        awaited = awaited.cr_await
    if not frames:
        return "at an unknown place"
    where = _line(frames[0])
    inner = next(
        (each for each in reversed(frames) if not each.f_globals.get("__name__", "").startswith(_OURS)), frames[0]
    )
    if inner is not frames[0]:
        where = f"{where}, at {_line(inner)}"
    return where if frames[-1] is inner else f"{where}, awaiting {frames[-1].f_code.co_qualname}"


def _line(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_qualname}"


_Event = tuple[selectors.SelectorKey, int]
_NOTHING: Final[list[_Event]] = []


class _Task(asyncio.Task[T]):
    """A task whose hash is its rank in its loop.

    Task groups and `asyncio.wait` keep tasks in sets. The default hash is the address of a task, by which the tasks of
    a group would be cancelled in another order in each process.
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
    """A timer with the number of timers that were set before it."""

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
    """The selector of a loop; the loop decides whether to wait for sockets.

    Args:
        pass_time: called with this object where a loop would block.

    Attributes:
        has_sockets: whether anything but the loop's own wake-up pipe is registered.
        had_sockets: whether anything else ever was.
    """

    def __init__(self, pass_time: Callable[[_Poll, float | None], list[_Event]]) -> None:
        self._pass_time = pass_time
        self._system = selectors.DefaultSelector()
        self.has_sockets = self.had_sockets = False

    def _count(self) -> None:
        self.has_sockets = len(self._system.get_map()) > 1

    def ready(self, real_s: float) -> list[_Event]:
        """The events that are ready, or become ready within some real seconds."""
        return self._system.select(real_s)

    def select(self, timeout: float | None = None) -> list[_Event]:
        return self._pass_time(self, timeout)

    def register(self, fileobj: FileDescriptorLike, events: int, data: Any = None) -> selectors.SelectorKey:
        key = self._system.register(fileobj, events, data)
        self._count()
        self.had_sockets = self.had_sockets or self.has_sockets
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
