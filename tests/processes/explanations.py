"""Why a message may be there more than once: for each copy, an event that really happened.

The law: whoever sends a message towards a namespace a second time must have had a reason to doubt the first. From its
first passing to the second one of these was true:

* the application was told that it is in doubt, or was killed before it was told anything;
* something injected the sender's proxies, a namespace, or the sender itself;
* the sender waited for the answer until its time was over.

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
"""How long a fault may have effects after its end: held data arrives, and cut connections are noticed."""

SYPHON_TRY_S: Final = 20.0
"""How long a syphon waits at least, before it gives up waiting for an answer."""

LOST_LOCK: Final = ("syphon.lock_lost", "syphon.not_settled", "syphon.gave_up_waiting", "syphon.not_given_back")


class Told(Protocol):
    """What explanations need of a try."""

    begin: float
    end: float
    outcome: str
    program: str


class Explanations:
    """What happened in one run.

    Args:
        crossings: of each uid, in order.
        injected: the injected faults.
        syphon_logs: of every life.
        timeout_s: how long a sender waits for the primary at least, before it gives up.
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
        """Messages that passed towards the backlog."""
        return sum(any(one.side == SECONDARY for one in crossings) for crossings in self._crossings.values())

    def had_effect(self, program: str, begin: float, end: float) -> bool:
        """Whether a fault affected a program, its proxies or a namespace between two times."""
        return any(
            one.begin <= end and one.end + LINGER_S >= begin and _concerns(one, program) for one in self._injected
        )

    def why_not(self, uid: str, tries: Sequence[Told], copies: int) -> str:
        """What speaks against so many copies; empty if they are explained."""
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

    def _may_send_again(self, before: Crossing, after: Crossing, tries: Sequence[Told]) -> bool:
        is_told = any(one.outcome != "ok" and one.begin <= before.at and _ended_by(one, after.at) for one in tries)
        is_late = after.at - before.at >= self._timeout_s
        return is_told or is_late or self.had_effect(before.program, before.at, after.at)

    def _may_move_again(self, before: Crossing, after: Crossing) -> bool:
        lost = any(before.at - SYPHON_TRY_S <= at <= after.at + LINGER_S for at in self._lock_losses)
        is_late = after.at - before.at >= SYPHON_TRY_S
        return lost or is_late or self.had_effect(before.program, before.at, after.at)


def _ended_by(one: Told, at: float) -> bool:
    """Whether a try had its answer by then, or never got one because its program was killed."""
    return one.end <= at or one.end == float("inf")


def _is_syphon(crossing: Crossing) -> bool:
    return crossing.program.startswith("syphon-")


def _was_refused(crossing: Crossing, tries: Sequence[Told]) -> bool:
    """Whether it passed in a try of which the application was told for certain that nothing was stored.

    Behind a try in doubt nobody can tell: what was held back of that one may pass much later.
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
    """When a line of the syphon's log was written, in seconds since 1970."""
    return datetime.fromisoformat(line["timestamp"]).timestamp()
