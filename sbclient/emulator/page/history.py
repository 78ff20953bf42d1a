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


class CountHistory:
    """The points at which two numbers changed, oldest first.

    Args:
        kept: the maximum number of points; older ones are dropped.
    """

    __slots__ = ("points",)

    def __init__(self, kept: int) -> None:
        self.points: deque[Point] = deque(maxlen=kept)

    def note(self, before_at: float, at: float, arrived: int, left: int) -> None:
        """Add a point if the numbers have changed, after the last point at which they had not.

        Args:
            before_at: the time of the previous look.
        """
        last = self.points[-1] if self.points else None
        if last is not None and last[1:] == (arrived, left):
            return
        if last is not None and before_at > last[0]:
            self.points.append((before_at, *last[1:]))
        self.points.append((at, arrived, left))


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
