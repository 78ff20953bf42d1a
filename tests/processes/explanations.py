"""Explain duplicates: for each further copy of a message, an event that caused it.

A program sends a message a second time only if the outcome of the first send is in doubt. Between the two sends one of
these must be true:

* the send failed with an error in doubt, or the application was killed before the send returned;
* a fault affected the sender's proxies, a namespace, or the sender;
* the sender waited for the response until its timeout.

A syphon receives each copy from the backlog once. Its second transfer is explained by a fault of a syphon or its
proxies, by a lost lock that its log reports, or by the end of its timeout. A termination of the syphon is no
explanation, because it finishes the transfers in flight.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Final, Protocol

from tests.processes.chaos import InjectedFault
from tests.processes.faults import GENTLE, PRIMARY, SECONDARY, Kind
from tests.processes.record import Line
from tests.processes.scene import Crossing

LINGER_S: Final = 1.5
"""How long a fault has effects after its end: held data arrives, and programs notice closed connections."""

SYPHON_TRY_S: Final = 20.0
"""The shortest timeout of a syphon for a response."""

LOST_LOCK: Final = ("syphon.lock_lost", "syphon.not_settled", "syphon.gave_up_waiting", "syphon.not_given_back")


class Attempt(Protocol):
    """An attempt to send a message."""

    begin: float
    end: float
    outcome: str
    program: str


class Explanations:
    """The events of one run.

    Args:
        crossings: when each uid passed a proxy, in order.
        injected: the injected faults.
        syphon_logs: the log lines of each syphon process.
        timeout_s: the shortest timeout of a sender for the primary.
    """

    def __init__(
        self,
        crossings: Mapping[str, Sequence[Crossing]],
        injected: Sequence[InjectedFault],
        syphon_logs: Iterable[Sequence[Line]],
        *,
        timeout_s: float,
    ) -> None:
        self._crossings = crossings
        self._injected = [one for one in injected if one.had_effect]
        self._timeout_s = timeout_s
        self._lock_losses = sorted(moment_of(line) for lines in syphon_logs for line in lines if is_lock_loss(line))

    def diverted_count(self) -> int:
        """Return the number of messages that passed towards the backlog."""
        return sum(any(one.side == SECONDARY for one in crossings) for crossings in self._crossings.values())

    def had_effect(self, program: str, begin: float, end: float) -> bool:
        """Whether a fault affected a program, its proxies or a namespace between two times."""
        return any(
            one.begin <= end and one.end + LINGER_S >= begin and _concerns(one, program) for one in self._injected
        )

    def why_not(self, uid: str, tries: Sequence[Attempt], copies: int) -> str:
        """Return why the number of copies is wrong; empty if all copies are explained."""
        crossings = self._crossings.get(uid, ())
        sends = [one for one in crossings if not _is_syphon(one)]
        moves = [one for one in crossings if _is_syphon(one)]
        honest = [one for one in sends if not _was_refused(one, tries)]
        diverted = sum(one.side == SECONDARY for one in honest)
        possible = len(honest) - diverted + (len(moves) if diverted else 0)
        if copies > possible:
            return f"it was sent to the primary {possible} times at most"
        for before, after in pairwise(sends):
            if not self._may_send_again(before, after, tries):
                return f"{after.program} sent it again after {after.at - before.at:.2f} s without a reason"
        repeated = len(moves) - diverted
        reasons = sum(self._may_move_again(before, after) for before, after in pairwise(moves))
        if repeated > reasons:
            return f"syphons sent it {len(moves)} times from {diverted} copies, and {reasons} times with a reason"
        return ""

    def _may_send_again(self, before: Crossing, after: Crossing, tries: Sequence[Attempt]) -> bool:
        is_failed = any(one.outcome != "ok" and one.begin <= before.at and _ended_by(one, after.at) for one in tries)
        is_late = after.at - before.at >= self._timeout_s
        return is_failed or is_late or self.had_effect(before.program, before.at, after.at)

    def _may_move_again(self, before: Crossing, after: Crossing) -> bool:
        lost = any(before.at - SYPHON_TRY_S <= at <= after.at + LINGER_S for at in self._lock_losses)
        is_late = after.at - before.at >= SYPHON_TRY_S
        return lost or is_late or self.had_effect(before.program, before.at, after.at)


def _ended_by(one: Attempt, at: float) -> bool:
    """Whether an attempt had ended by then, or never ended because its program was killed."""
    return one.end <= at or one.end == float("inf")


def _is_syphon(crossing: Crossing) -> bool:
    return crossing.program.startswith("syphon-")


def _was_refused(crossing: Crossing, tries: Sequence[Attempt]) -> bool:
    """Whether it passed in an attempt that was rejected for certain.

    After an attempt in doubt this is unknown: data that a proxy held may pass much later.
    """
    begun = [one for one in tries if one.begin <= crossing.at]
    return all(one.outcome == "refused" for one in begun) and any(crossing.at <= one.end for one in begun)


def _concerns(injected: InjectedFault, program: str) -> bool:
    fault = injected.fault
    if fault.kind in GENTLE or (fault.kind is Kind.TERMINATE and program.startswith("syphon-")):
        return False
    return fault.whom.partition(">")[0] in (program, PRIMARY, SECONDARY)


def is_lock_loss(line: Line) -> bool:
    return line["event"] in LOST_LOCK


def moment_of(line: Line) -> float:
    """Return the time of a line of the syphon's log, in seconds since 1970."""
    return datetime.fromisoformat(line["timestamp"]).timestamp()
