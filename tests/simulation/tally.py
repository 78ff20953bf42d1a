"""What many runs have in common: sums, and the first failure of each invariant."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import combinations
from typing import Any, Final

from tests.simulation.checkers import INVARIANTS
from tests.simulation.run import Result
from tests.simulation.weather import KINDS, pairs_of

SUMMED = (
    "tries",
    "in_doubt",
    "sent",
    "accepted",
    "delivered",
    "lost",
    "unexpected",
    "duplicates",
    "unexplained",
    "excused",
    "diverted",
    "failovers",
    "redirected",
    "wire_calls",
)

BROKEN_KEPT: Final = 200


@dataclass(slots=True)
class Tally:
    """The report of a range of seeds.

    Attributes:
        first: for each broken invariant the first seed, and what was found there.
        broken_seeds: the first seeds at which anything was broken.
        pairs: which kinds of weather met in one run.
    """

    runs: int = 0
    calm_runs: int = 0
    sums: Counter[str] = field(default_factory=Counter)
    violations: Counter[str] = field(default_factory=Counter)
    broken_runs: Counter[str] = field(default_factory=Counter)
    first: dict[str, tuple[int, str]] = field(default_factory=dict)
    broken_seeds: list[int] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)
    pairs: set[tuple[str, str]] = field(default_factory=set)
    digest: str = ""

    def add(self, result: Result) -> None:
        """Count one more run; runs are added by rising seed."""
        self.runs += 1
        self.calm_runs += not result.failovers
        for name in SUMMED:
            self.sums[name] += getattr(result, name)
        for invariant, count in result.invariants.items():
            self.violations[invariant] += count
            self.broken_runs[invariant] += 1
        if result.violations and len(self.broken_seeds) < BROKEN_KEPT:
            self.broken_seeds.append(result.seed)
        for violation in result.violations:
            self.first.setdefault(violation.invariant, (result.seed, violation.text))
        self.kinds.update(result.kinds)
        self.pairs.update(pairs_of(result.kinds))
        self.digest = sha256(f"{self.digest} {result.seed} {result.digest}".encode()).hexdigest()[:16]

    @property
    def first_seed(self) -> int | None:
        """The first seed at which anything was broken."""
        return min((seed for seed, _ in self.first.values()), default=None)

    def share(self, part: str, whole: str) -> float:
        return self.sums[part] / max(self.sums[whole], 1)

    def as_json(self) -> dict[str, Any]:
        return {
            "runs": self.runs,
            "violations": {name: self.violations[name] for name in INVARIANTS},
            **{name: self.sums[name] for name in SUMMED},
            "in_doubt_share": round(self.share("in_doubt", "tries"), 4),
            "excused_share": round(self.share("excused", "accepted"), 4),
            "runs_without_failover_share": round(self.calm_runs / max(self.runs, 1), 4),
            "first": {name: {"seed": seed, "found": text} for name, (seed, text) in sorted(self.first.items())},
            "broken_seeds": self.broken_seeds,
            "kinds": dict(sorted(self.kinds.items())),
            "pairs_of_kinds": len(self.pairs),
            "pairs_never_met": [f"{one}+{other}" for one, other in never_met(self.pairs)],
            "digest": self.digest,
        }

    def as_text(self) -> str:
        """A table of the invariants, and below it what makes the zeros mean something."""
        lines = [f"{'':4} {'runs':>7} {'broken':>7} {'times':>7}"]
        for name, meaning in INVARIANTS.items():
            lines.append(f"{name:4} {self.runs:7} {self.broken_runs[name]:7} {self.violations[name]:7}  {meaning}")
        sums = self.sums
        lines += [
            "",
            f"accepted messages      {sums['accepted']:9} of {sums['sent']} sent in {sums['tries']} tries",
            f"lost                   {sums['lost']:9}",
            f"unexpected             {sums['unexpected']:9}",
            f"duplicates             {sums['duplicates']:9} of which unexplained {sums['unexplained']}",
            f"diverted               {sums['diverted']:9} in {sums['failovers']} failovers",
            f"redirected             {sums['redirected']:9} to the secondary",
            f"tries in doubt         {self.share('in_doubt', 'tries'):9.2%}",
            f"excused                {self.share('excused', 'accepted'):9.2%} of the accepted",
            f"runs without failover  {self.calm_runs / max(self.runs, 1):9.2%}",
            f"pairs of kinds         {len(self.pairs):9} met, {len(never_met(self.pairs))} never",
            f"digest                 {self.digest}",
        ]
        lines += [f"first {name}: seed {seed}: {text}" for name, (seed, text) in sorted(self.first.items())]
        return "\n".join(lines)


def never_met(pairs: Collection[tuple[str, str]]) -> list[tuple[str, str]]:
    """The pairs of kinds of weather that are not among those that met."""
    return [pair for pair in combinations(sorted(KINDS), 2) if pair not in pairs]
