"""A row of the table of benchmarks: two sides that run in turn, and the ratio between them."""

from __future__ import annotations

import gc
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final, TypeAlias

from tests.stage.counting import EmulatorProcess, peak_mib, reset_peak

QUICK_PART: Final = 50
"""A quick run has this part of the messages."""

BODY: Final = b"x" * 100


@dataclass(frozen=True, slots=True)
class Sample:
    """One run of one side.

    Attributes:
        count: number of messages.
        seconds: duration of the run.
        client_s, server_s: processor time of this process and of the emulator.
        client_mib, server_mib: peak memory.
        latency_s: what the side measured itself; None = the duration for each message.
    """

    count: int
    seconds: float
    client_s: float
    server_s: float
    client_mib: float
    server_mib: float
    latency_s: float | None

    @property
    def rate(self) -> float:
        """Messages per second."""
        return self.count / self.seconds

    @property
    def each_s(self) -> float:
        """Latency of one message."""
        return self.seconds / self.count if self.latency_s is None else self.latency_s


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two things that are compared.

    Attributes:
        name: for the table.
        count: number of messages of a run.
        run: the measured part; may return a latency in seconds.
        prepare: called before each run, not measured.
        finish: called after each run, not measured.
    """

    name: str
    count: int
    run: Callable[[], Awaitable[float | None]]
    prepare: Callable[[], Awaitable[None]] | None = None
    finish: Callable[[], Awaitable[None]] | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """What a row has measured.

    Attributes:
        ratios: one for each pair of runs; none if it did not run.
        sides: the samples of each side, by its name.
        notes: further results.
        misses: conditions besides the bound that do not hold.
        not_run: why it did not run; None = it did.
    """

    ratios: Sequence[float] = ()
    sides: dict[str, list[Sample]] = field(default_factory=dict)
    notes: Sequence[str] = ()
    misses: Sequence[str] = ()
    not_run: str | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """How much is measured.

    Attributes:
        pairs: number of pairs of runs after the warm-up.
        quick: whether a small number of messages is enough; bounds are not checked then.
    """

    pairs: int
    quick: bool

    def count(self, full: int, multiple: int = 1) -> int:
        """Return the number of messages of a run, a multiple of a number."""
        return max(1, full // (QUICK_PART if self.quick else 1) // multiple) * multiple


Measure: TypeAlias = Callable[[Settings], Awaitable[Result]]


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table.

    Attributes:
        name: as on the command line.
        text: what is compared.
        bound: of the median ratio.
        is_most: whether the ratio must be at most the bound; otherwise at least.
    """

    name: str
    text: str
    bound: float
    measure: Measure
    is_most: bool = False

    def misses(self, result: Result) -> list[str]:
        """Return what does not hold; empty if the row has passed or did not run."""
        if result.not_run is not None:
            return []
        ratio = median(result.ratios)
        is_met = ratio <= self.bound if self.is_most else ratio >= self.bound
        missed = (
            [] if is_met else [f"the ratio is {ratio:.2f}, the bound {'≤' if self.is_most else '≥'} {self.bound:g}"]
        )
        return [*missed, *result.misses]


Compare: TypeAlias = Callable[[Sample, Sample], float]


def by_rate(ours: Sample, other: Sample) -> float:
    """How many times as many messages per second."""
    return ours.rate / other.rate


def by_latency(ours: Sample, other: Sample) -> float:
    """How many times as long for one message."""
    return ours.each_s / other.each_s


def by_client_time(ours: Sample, other: Sample) -> float:
    """How many times as much processor time of the client for each message."""
    return ours.client_s / ours.count / (other.client_s / other.count)


def by_server_time(ours: Sample, other: Sample) -> float:
    """How many times as much processor time of the server for each message."""
    return ours.server_s / ours.count / (other.server_s / other.count)


async def in_pairs(
    server: EmulatorProcess | None,
    ours: Side | Sequence[Side],
    others: Sequence[Side],
    settings: Settings,
    compare: Compare = by_rate,
) -> Result:
    """Warm up, then run both sides in turn; every second pair begins with the other side.

    Args:
        server: the emulator, None if the row has none.
        ours, others: variants of each side. The warm-up chooses the fastest; the notes have the ratios to the others.
    """
    variants = [ours] if isinstance(ours, Side) else ours
    warm_up = {side.name: await sample(server, side) for side in (*variants, *others)}
    own, other = (max(each, key=lambda side: warm_up[side.name].rate) for each in (variants, others))
    sides: dict[str, list[Sample]] = {own.name: [], other.name: []}
    for number in range(settings.pairs):
        for side in (own, other) if number % 2 == 0 else (other, own):
            sides[side.name].append(await sample(server, side))
    ratios = [compare(*each) for each in zip(sides[own.name], sides[other.name], strict=True)]
    notes = [
        f"{name}: {one.rate:,.0f}/s in the warm-up, the ratio to it {compare(warm_up[own.name], one):.1f}"
        for name, one in warm_up.items()
        if len(warm_up) > 2 and name != own.name
    ]
    return Result(ratios, sides, notes)


async def sample(server: EmulatorProcess | None, side: Side) -> Sample:
    """Run one side once."""
    if side.prepare is not None:
        await side.prepare()
    gc.collect()
    reset_peak()
    if server is not None:
        server.reset_peak()
    server_at = server.processor_s() if server is not None else 0.0
    client_at, began_at = time.process_time(), time.perf_counter()
    latency_s = await side.run()
    seconds, client_s = time.perf_counter() - began_at, time.process_time() - client_at
    server_s = server.processor_s() - server_at if server is not None else 0.0
    server_mib = server.peak_mib() if server is not None else 0.0
    found = Sample(side.count, seconds, client_s, server_s, peak_mib(), server_mib, latency_s)
    if side.finish is not None:
        await side.finish()
    return found
