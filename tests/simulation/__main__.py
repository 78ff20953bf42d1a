# ruff: noqa: T201 - a command line prints
"""The command line of the simulation: `python -m tests.simulation --seeds 0:1000`."""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from tests.simulation.plan import Plan, draw_plan
from tests.simulation.run import Result, run_plan, run_seed, shrink
from tests.simulation.tally import Tally
from tests.simulation.weather import KINDS

CHUNK = 25


def main(arguments: Sequence[str] | None = None) -> int:
    """Run seeds and print what was found; 1 if anything was broken."""
    options = _parser().parse_args(arguments)
    only = options.profile.split(",") if options.profile else []
    if options.replay is not None:
        return _replay(options.replay, only)
    first, _, last = options.seeds.partition(":")
    seeds = range(int(first), int(last)) if last else range(int(first), int(first) + 1)
    began = time.perf_counter()
    tally = Tally()
    for result in _results(seeds, only, options.jobs):
        tally.add(result)
        if options.stop and result.violations:
            break
    if options.json:
        print(json.dumps(tally.as_json(), indent=1))
    else:
        seconds = time.perf_counter() - began
        print(tally.as_text())
        print(f"{tally.runs / seconds:.1f} seeds a second with {options.jobs} jobs")
        if tally.first_seed is not None and not options.no_shrink:
            _tell(tally.first_seed, only)
    return 1 if tally.violations else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", default="0:200", help="a range, 0:1000, or one seed; ranges may be run in parts")
    parser.add_argument("--profile", help=f"draw the weather only from these kinds, by comma: {', '.join(KINDS)}")
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--stop", action="store_true", help="stop at the first broken invariant")
    parser.add_argument("--no-shrink", action="store_true", help="do not make the first failing schedule smaller")
    parser.add_argument("--replay", type=int, help="repeat one seed and print everything that happens")
    return parser


def _results(seeds: range, only: Sequence[str], jobs: int) -> Iterator[Result]:
    """The results by rising seed, whatever the number of jobs."""
    chunks = [seeds[at : at + CHUNK] for at in range(0, len(seeds), CHUNK)]
    if jobs == 1:
        for chunk in chunks:
            for seed in chunk:
                yield run_seed(seed, only=only)
            gc.collect()
        return
    with ProcessPoolExecutor(jobs) as pool:
        for results in pool.map(partial(_run_chunk, only=only), chunks):
            yield from results


def _run_chunk(chunk: range, only: Sequence[str]) -> list[Result]:
    return [run_seed(seed, only=only) for seed in chunk]


def _replay(seed: int, only: Sequence[str]) -> int:
    """One seed with its trace."""
    plan = draw_plan(seed, only=only)
    print(_described(plan))
    result = run_plan(plan, trace=True)
    print("\n".join(result.lines))
    for violation in result.violations:
        print(f"BROKEN {violation.invariant}: {violation.text}")
    print(f"history {result.digest}")
    return 1 if result.violations else 0


def _tell(seed: int, only: Sequence[str]) -> None:
    """The first failing seed, with no more weather than it needs."""
    plan = draw_plan(seed, only=only)
    broken = run_plan(plan).invariants
    smaller = shrink(plan, broken)
    print(f"\nseed {seed}, shrunk from {plan.part_count} to {smaller.part_count} parts:")
    print(_described(smaller))
    for violation in run_plan(smaller).violations:
        print(f"BROKEN {violation.invariant}: {violation.text}")


def _described(plan: Plan) -> str:
    """The plan for somebody to read."""
    lines = [f"seed {plan.seed}: {', '.join(plan.kinds)}"]
    lines += [f"  lane {lane}" for lane in plan.lanes]
    lines += [f"  {strike}" for strike in plan.strikes]
    lines += [f"  {death}" for death in plan.deaths]
    lines.append(f"  {plan.options}")
    names = ("front_ends", "traffic_s", "timeout_s", "retries", "persistence", "latency_s", "producers", "skew_s")
    lines.append("  " + ", ".join(f"{name}={getattr(plan, name)}" for name in (*names, "syphons")))
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
