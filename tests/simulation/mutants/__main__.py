"""Which seed catches which planted bug: `python -m tests.simulation.mutants`."""
# ruff: noqa: T201 - a command line prints

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from tests.simulation.mutants.catalogue import MUTANTS
from tests.simulation.mutants.change import Mutant
from tests.simulation.mutants.planting import ADVICE, Verdict, hunt, is_caught_by_tests, misfit
from tests.simulation.mutants.transport import TRANSPORT_MUTANTS


def main(arguments: Sequence[str] | None = None) -> int:
    """Hunt every mutant and print what was found; 1 if one survives."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.mutants", description=__doc__)
    parser.add_argument("--seeds", default="0:1000", help="where to look, as for the simulation")
    parser.add_argument("--only", default="", help="mutants whose name or group contains this")
    parser.add_argument("--jobs", type=int, default=1, help="hunts side by side")
    parser.add_argument("--wire", action="store_true", help="hunt the bugs of the AMQP transport, over the network")
    options = parser.parse_args(arguments)
    catalogue = TRANSPORT_MUTANTS if options.wire else MUTANTS
    chosen = [one for one in catalogue if options.only in one.name or options.only == one.group]
    wrong = [text for one in chosen if (text := misfit(one))]
    if wrong:
        print("\n".join([*wrong, ADVICE]))
        return 2
    verdicts: list[Verdict] = []
    with ThreadPoolExecutor(options.jobs) as pool:
        for verdict in pool.map(lambda one: _hunted(one, options.seeds, wire=options.wire), chosen):
            verdicts.append(verdict)
            place = f"seed {verdict.seed:5}" if verdict.seed is not None else "SURVIVES  "
            print(f"{place}  {verdict.invariant:12} {verdict.mutant.group}: {verdict.mutant.name}", flush=True)
    return _judged(verdicts)


def _hunted(mutant: Mutant, seeds: str, *, wire: bool) -> Verdict:
    """The seed that catches a bug, or else the tests beside the changed code, which count as a seed of -1."""
    verdict = hunt(mutant, seeds, wire=wire)
    if verdict.seed is None and is_caught_by_tests(mutant):
        return Verdict(mutant, -1, "tests", "")
    return verdict


def _judged(verdicts: Sequence[Verdict]) -> int:
    planted = Counter(verdict.mutant.group for verdict in verdicts)
    caught = Counter(verdict.mutant.group for verdict in verdicts if verdict.seed is not None)
    print(f"{caught.total()} of {planted.total()} caught")
    for group in planted:
        print(f"  {group:12} {caught[group]} of {planted[group]}")
    return 0 if caught == planted else 1


if __name__ == "__main__":
    sys.exit(main())
