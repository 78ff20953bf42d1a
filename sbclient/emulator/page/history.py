"""What the page draws over time: numbers of messages, and states. Kept here, to survive a reload of the page."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

from sbclient.emulator.context import AnyFault
from sbclient.emulator.control.fault_states import state_of_namespace

Point: TypeAlias = tuple[float, int, int]
"""A time, and the numbers of messages that had arrived and left."""

Change: TypeAlias = dict[str, Any]
"""A state and the time at which it began: `{"from": 1700000000.0, "state": "down"}`."""

STATES_KEPT: Final = 200
RATE_POINTS: Final = 7


class CountHistory:
    """The points at which two numbers changed, oldest first.

    Args:
        kept: the maximum number of points; older ones are dropped.
    """

    __slots__ = ("_points", "_total")

    def __init__(self, kept: int) -> None:
        self._points: deque[Point] = deque(maxlen=kept)
        self._total = 0

    @property
    def total(self) -> int:
        """The number of points that were ever added."""
        return self._total

    def note(self, before_at: float, at: float, arrived: int, left: int) -> None:
        """Add a point if the numbers have changed, after the last point at which they had not.

        Args:
            before_at: the time of the previous look.
        """
        if self._points and self._points[-1][1:] == (arrived, left):
            return
        if self._points and before_at > self._points[-1][0]:
            self._add((before_at, *self._points[-1][1:]))
        self._add((at, arrived, left))

    def after(self, total: int) -> list[Point]:
        """The points that were added since `total` had that value."""
        new = min(self._total - total, len(self._points))
        return list(self._points)[len(self._points) - new :]

    def _add(self, point: Point) -> None:
        self._points.append(point)
        self._total += 1


class RecentRate:
    """The rates at which two numbers rise, over the last looks."""

    __slots__ = ("_points",)

    def __init__(self) -> None:
        self._points: deque[Point] = deque(maxlen=RATE_POINTS)

    def note(self, at: float, arrived: int, left: int) -> tuple[float, float]:
        """Add a look; returns the rates per second."""
        self._points.append((at, arrived, left))
        first = self._points[0]
        duration_s = at - first[0]
        if duration_s <= 0:
            return 0.0, 0.0
        return max(arrived - first[1], 0) / duration_s, max(left - first[2], 0) / duration_s

    def clear(self) -> None:
        """Forget the looks, because none followed for a longer time."""
        self._points.clear()


def note_state(states: deque[Change], state: str, at: float) -> None:
    """Add a state if it differs from the last one; it begins no earlier than that one."""
    if not states or states[-1]["state"] != state:
        states.append({"from": max(at, states[-1]["from"]) if states else at, "state": state})


def states_of(log: Sequence[tuple[float, Sequence[AnyFault]]], now: float) -> list[Change]:
    """The states of a namespace since the start of its log of faults.

    Args:
        log: times, and the faults that were active from then on; each fault until its end.
    """
    states: deque[Change] = deque(maxlen=STATES_KEPT)
    ends = [at for at, _ in log[1:]] + [now]
    for (began_at, faults), ended_at in zip(log, ends, strict=True):
        expiries = {fault.until_at for fault in faults if began_at < fault.until_at < ended_at}
        for at in (began_at, *sorted(expiries)):
            active = [fault for fault in faults if fault.until_at > at]
            note_state(states, state_of_namespace(active).health.value, at)
    return list(states)
