"""What strikes a run, and when: a schedule that follows from the seed alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random
from typing import Any, Final


class Kind(StrEnum):
    """What can strike."""

    RESET = "reset"
    """Every connection is reset, and new ones for a while."""
    MID_FRAME = "cut in a frame"
    """Every connection is reset in the midst of the next thing that is sent, after a few bytes of it."""
    BLACK_HOLE = "black hole"
    """Nothing passes in either direction; at the end what was held arrives, or is lost with its connection."""
    LOST_ANSWERS = "lost answers"
    """What is asked for is done, and the answer is held back until its connection is cut."""
    LOST_REQUESTS = "lost requests"
    """What is asked for does not arrive, and its connection is cut in the end."""
    LATE_ANSWERS = "late answers"
    """Answers are held back, and arrive in the end."""
    LATENCY = "latency"
    SLOW_LINK = "slow link"
    SLICES = "slices"
    """Everything comes a few bytes at a time."""
    KILL = "SIGKILL"
    """A program is killed, and started again after a while."""
    TERMINATE = "SIGTERM"
    """A program is told to end, must do so with status 0, and is started again after a while."""
    FREEZE = "SIGSTOP"
    """A program, or a namespace, stands still for a while."""
    FAULT = "fault"
    """A switch of the emulator's control API."""


PRIMARY: Final = "primary"
SECONDARY: Final = "secondary"

OF_ROADS: Final = (
    Kind.RESET,
    Kind.MID_FRAME,
    Kind.BLACK_HOLE,
    Kind.LOST_ANSWERS,
    Kind.LOST_REQUESTS,
    Kind.LATE_ANSWERS,
    Kind.LATENCY,
    Kind.SLOW_LINK,
    Kind.SLICES,
)
GENTLE: Final = (Kind.LATENCY, Kind.SLOW_LINK, Kind.SLICES)
"""Those by which nothing is lost."""


@dataclass(frozen=True, slots=True)
class Strike:
    """One thing that strikes.

    Attributes:
        at_s: after the beginning of the run.
        span_s: how long it lasts; of a kill and a termination, until the program is started again.
        whom: a namespace, for all roads to it or for its process; a program; or `sender-1>primary` for one road.
        facts: how bad it is.
    """

    at_s: float
    span_s: float
    kind: Kind
    whom: str
    facts: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        facts = " ".join(f"{name}={value}" for name, value in self.facts.items())
        return f"{self.at_s:6.2f} s  {self.span_s:5.2f} s  {self.kind:14}  {self.whom}  {facts}".rstrip()


@dataclass(frozen=True, slots=True)
class Gust:
    """Something that may strike again and again.

    Attributes:
        kind: what.
        whom: as for `Strike`; `sender-*` and `sender-*>primary` draw one of the programs.
        longest_s: how long at most.
        faults: of `Kind.FAULT`, the switches of which one is drawn.
    """

    kind: Kind
    whom: str
    longest_s: float = 2.0
    faults: tuple[dict[str, Any], ...] = ()


SHORTEST_S: Final = 0.3
FIRST_AT: Final = 0.12
"""The share of a run after which the outage begins."""

QUIET_FROM: Final = 0.85
"""The share of a run from which nothing new strikes."""


def draw_strikes(
    seed: int, seconds: float, outages: Sequence[Gust], gusts: Sequence[Gust], programs: Sequence[str]
) -> list[Strike]:
    """The schedule of a run, by rising moments.

    It begins with one outage for each of `outages`, side by side and long enough for a failover. Behind it come gusts,
    and, in long runs, more outages now and then.

    Args:
        programs: the names for which stars stand.
    """
    chance = Random(seed)
    strikes: list[Strike] = []
    first_s = min(max(0.3 * seconds, 5.0), 12.0)
    for outage in outages:
        at_s = FIRST_AT * seconds + chance.uniform(0, 0.5)
        strikes.append(_struck(chance, outage, at_s, first_s, programs))
    now_s = 0.5
    next_outage_s = FIRST_AT * seconds + first_s + 12.0
    while gusts and (now_s := now_s + chance.uniform(0.4, 2.5)) < QUIET_FROM * seconds:
        if now_s >= next_outage_s and now_s + first_s < seconds:
            strikes += [_struck(chance, outage, now_s, first_s, programs) for outage in outages]
            next_outage_s = now_s + first_s + chance.uniform(8.0, 14.0)
        gust = chance.choice(gusts)
        strikes.append(_struck(chance, gust, now_s, chance.uniform(SHORTEST_S, gust.longest_s), programs))
    return sorted(strikes, key=lambda strike: strike.at_s)


def _struck(chance: Random, gust: Gust, at_s: float, span_s: float, programs: Sequence[str]) -> Strike:
    whom, _, end = gust.whom.partition(">")
    if whom.endswith("*"):
        whom = chance.choice([name for name in programs if name.startswith(whom[:-1])])
    return Strike(
        round(at_s, 3),
        round(span_s, 3),
        gust.kind,
        f"{whom}>{end}" if end else whom,
        _facts(chance, gust),
    )


def _facts(chance: Random, gust: Gust) -> dict[str, Any]:
    match gust.kind:
        case Kind.MID_FRAME:
            return {"after_bytes": chance.randint(1, 60)}
        case Kind.BLACK_HOLE:
            return {"is_lost": chance.random() < 0.5}
        case Kind.LATENCY:
            return {"delay_s": round(chance.uniform(0.02, 0.3), 3)}
        case Kind.SLOW_LINK:
            return {"bytes_per_s": chance.choice([8_000, 20_000, 60_000])}
        case Kind.SLICES:
            return {"slice_bytes": chance.randint(3, 90)}
        case Kind.FAULT:
            return dict(chance.choice(gust.faults))
        case _:
            return {}
