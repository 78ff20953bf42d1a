# ruff: noqa: T201 - a command line prints
"""The command line of the simulation: `python -m tests.simulation --seeds 0:1000`."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from tests.simulation.corners import NAMED
from tests.simulation.plan import Plan, draw_plan, draw_wire_plan
from tests.simulation.run import Result, run_plan, run_seed, shrink
from tests.simulation.tally import Tally, never_met
from tests.simulation.weather import KINDS, pairs_of

CHUNK = 25


def main(arguments: Sequence[str] | None = None) -> int:
    """Run seeds and print what was found; 1 if anything was broken."""
    options = _parser().parse_args(arguments)
    only = options.profile.split(",") if options.profile else []
    if options.replay is not None:
        return _replay(options.replay, only, wire=options.wire)
    first, _, last = options.seeds.partition(":")
    seeds = range(int(first), int(last)) if last else range(int(first), int(first) + 1)
    if options.pairs:
        return _list_pairs(seeds)
    began = time.perf_counter()
    tally, processor_s = Tally(), 0.0
    size = 1 if options.stop and options.jobs == 1 else CHUNK
    for results, chunk_s in _chunks(seeds, only, options.jobs, size, wire=options.wire):
        processor_s += chunk_s
        for result in results:
            tally.add(result)
        if options.stop and tally.violations:
            break
    if options.json:
        print(json.dumps(tally.as_json(), indent=1))
    else:
        seconds = time.perf_counter() - began
        print(tally.as_text())
        print(
            f"{tally.runs / seconds:.1f} seeds a second with {options.jobs} jobs, "
            f"{tally.runs / processor_s:.1f} for each second of processor time"
        )
        if tally.first_seed is not None and not options.no_shrink:
            _tell(tally.first_seed, only, wire=options.wire)
    return 1 if tally.violations else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", default="0:200", help="a range, 0:1000, or one seed; ranges may be run in parts")
    parser.add_argument(
        "--profile", help=f"draw the weather only from these kinds, by comma: {', '.join((*KINDS, *NAMED))}"
    )
    parser.add_argument(
        "--wire", action="store_true", help="with the AMQP transport and server, over a simulated network"
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--stop", action="store_true", help="stop at the first broken invariant")
    parser.add_argument("--no-shrink", action="store_true", help="do not make the first failing schedule smaller")
    parser.add_argument("--pairs", action="store_true", help="run nothing: how often every two kinds of weather meet")
    parser.add_argument("--replay", type=int, help="repeat one seed and print everything that happens")
    return parser


def _chunks(
    seeds: range, only: Sequence[str], jobs: int, size: int, *, wire: bool
) -> Iterator[tuple[list[Result], float]]:
    """Yield the results by rising seed for any number of jobs, and the processor time of each chunk."""
    chunks = [seeds[at : at + size] for at in range(0, len(seeds), size)]
    run = partial(_run_chunk, only=only, wire=wire)
    if jobs == 1:
        yield from map(run, chunks)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(run, chunks)


def _run_chunk(chunk: range, only: Sequence[str], *, wire: bool) -> tuple[list[Result], float]:
    began = time.process_time()
    return [run_seed(seed, only=only, wire=wire) for seed in chunk], time.process_time() - began


def _list_pairs(seeds: range) -> int:
    """How often every two kinds meet in the plans of a range; 1 if some never do."""
    met = Counter(pair for seed in seeds for pair in pairs_of(draw_plan(seed).kinds))
    missing = never_met(met)
    rarest = min(met.values(), default=0) if not missing else 0
    print(f"{len(met)} pairs of {len(KINDS)} kinds meet, each {rarest} times at least; {len(missing)} never meet")
    print("\n".join(f"never: {one} and {other}" for one, other in missing))
    return 1 if missing else 0


def _replay(seed: int, only: Sequence[str], *, wire: bool) -> int:
    """One seed with its trace."""
    plan = _plan_of(seed, only, wire=wire)
    print(_described(plan))
    result = run_plan(plan, trace=True)
    print("\n".join(result.lines))
    for violation in result.violations:
        print(f"BROKEN {violation.invariant}: {violation.text}")
    print(f"history {result.digest}")
    return 1 if result.violations else 0


def _tell(seed: int, only: Sequence[str], *, wire: bool) -> None:
    """The first failing seed, with no more weather than it needs."""
    plan = _plan_of(seed, only, wire=wire)
    broken = run_plan(plan).invariants
    smaller = shrink(plan, broken)
    print(f"\nseed {seed}, shrunk from {plan.part_count} to {smaller.part_count} parts:")
    print(_described(smaller))
    for violation in run_plan(smaller).violations:
        print(f"BROKEN {violation.invariant}: {violation.text}")


def _plan_of(seed: int, only: Sequence[str], *, wire: bool) -> Plan:
    return (draw_wire_plan if wire else draw_plan)(seed, only=only)


def _described(plan: Plan) -> str:
    """Return the plan as text."""
    lines = [f"seed {plan.seed}: {', '.join(plan.kinds)}"]
    lines += [f"  lane {lane}" for lane in plan.lanes]
    lines += [f"  {incident}" for incident in plan.incidents]
    lines += [f"  {death}" for death in plan.deaths]
    lines.append(f"  {plan.options}")
    names = (
        "network",
        "front_ends",
        "traffic_s",
        "timeout_s",
        "retries",
        "persistence",
        "latency_s",
        "producers",
        "skew_s",
    )
    lines.append("  " + ", ".join(f"{name}={getattr(plan, name)}" for name in (*names, "syphons")))
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
