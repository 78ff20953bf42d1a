"""The schedule of faults of a run, drawn from its seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random
from typing import Any, Final


class Kind(StrEnum):
    """The kinds of faults."""

    RESET = "reset"
    """All connections are reset; new ones are refused for a time."""
    MID_FRAME = "cut in a frame"
    """All connections are reset within the next data, after a few bytes of it."""
    BLACK_HOLE = "black hole"
    """No data passes in either direction; at the end it arrives, or is lost with its connection."""
    LOST_ANSWERS = "lost answers"
    """Responses are held until the connection is cut."""
    LOST_REQUESTS = "lost requests"
    """Requests are held until the connection is cut."""
    LATE_ANSWERS = "late answers"
    """Responses are held and arrive at the end."""
    LATENCY = "latency"
    SLOW_LINK = "slow link"
    SLICES = "slices"
    """Data arrives a few bytes at a time."""
    KILL = "SIGKILL"
    """A program is killed, and started again after a while."""
    TERMINATE = "SIGTERM"
    """A program gets SIGTERM, must end with status 0, and is started again after a while."""
    FREEZE = "SIGSTOP"
    """A program, or a namespace, stands still for a while."""
    FAULT = "fault"
    """A switch of the emulator's control API."""


PRIMARY: Final = "primary"
SECONDARY: Final = "secondary"

OF_PROXIES: Final = (
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
"""Faults that lose nothing."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A scheduled fault.

    Attributes:
        at_s: seconds after the start of the run.
        span_s: its duration; for a kill or termination, the time until the program restarts.
        whom: a namespace (all proxies to it, or its process), a program, or `sender-1>primary` for one proxy.
        facts: its parameters.
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
class FaultSource:
    """A source of repeated faults.

    Attributes:
        whom: as for `Fault`; `sender-*` and `sender-*>primary` draw one of the programs.
        longest_s: the longest duration.
        switches: for `Kind.FAULT`, the faults of the emulator from which one is drawn.
    """

    kind: Kind
    whom: str
    longest_s: float = 2.0
    switches: tuple[dict[str, Any], ...] = ()


SHORTEST_S: Final = 0.3
FIRST_AT: Final = 0.12
"""The share of a run after which the outage begins."""

QUIET_FROM: Final = 0.85
"""The share of a run after which no new fault begins."""


def draw_faults(
    seed: int, seconds: float, outages: Sequence[FaultSource], sources: Sequence[FaultSource], programs: Sequence[str]
) -> list[Fault]:
    """Return the schedule of a run in order of time.

    It starts with one outage for each of `outages` at the same time, long enough for a failover. Other
    faults follow, and in long runs more outages.

    Args:
        programs: the names that a star matches.
    """
    chance = Random(seed)
    faults: list[Fault] = []
    first_s = min(max(0.3 * seconds, 5.0), 12.0)
    for outage in outages:
        at_s = FIRST_AT * seconds + chance.uniform(0, 0.5)
        faults.append(_injected(chance, outage, at_s, first_s, programs))
    now_s = 0.5
    next_outage_s = FIRST_AT * seconds + first_s + 12.0
    while sources and (now_s := now_s + chance.uniform(0.4, 2.5)) < QUIET_FROM * seconds:
        if now_s >= next_outage_s and now_s + first_s < seconds:
            faults += [_injected(chance, outage, now_s, first_s, programs) for outage in outages]
            next_outage_s = now_s + first_s + chance.uniform(8.0, 14.0)
        source = chance.choice(sources)
        faults.append(_injected(chance, source, now_s, chance.uniform(SHORTEST_S, source.longest_s), programs))
    return sorted(faults, key=lambda fault: fault.at_s)


def _injected(chance: Random, source: FaultSource, at_s: float, span_s: float, programs: Sequence[str]) -> Fault:
    whom, _, end = source.whom.partition(">")
    if whom.endswith("*"):
        whom = chance.choice([name for name in programs if name.startswith(whom[:-1])])
    return Fault(
        round(at_s, 3),
        round(span_s, 3),
        source.kind,
        f"{whom}>{end}" if end else whom,
        _facts(chance, source),
    )


def _facts(chance: Random, source: FaultSource) -> dict[str, Any]:
    match source.kind:
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
            return dict(chance.choice(source.switches))
        case _:
            return {}
