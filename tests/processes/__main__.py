# ruff: noqa: T201 - a command line prints
"""The command line: `python -m tests.processes --configurations 10 --seconds 60`."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.processes.configurations import CONFIGURATIONS, Configuration, named
from tests.processes.report import HEAD, as_json, as_row, as_text
from tests.processes.run import Result, Run


def main(arguments: Sequence[str] | None = None) -> int:
    """Run configurations and print their accounts; 1 if anything was broken, 2 if the arguments cannot be used."""
    options = _parser().parse_args(arguments)
    try:
        chosen = _chosen(options.configurations)
    except LookupError as error:
        print(f"python -m tests.processes: {error}", file=sys.stderr)
        return 2
    if options.list:
        for configuration in chosen:
            print(f"{configuration.name:15}  {configuration.purpose}")
        return 0
    try:
        results = asyncio.run(_run_all(chosen, options))
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("python -m tests.processes: interrupted; every process is ended", file=sys.stderr)
        return 130
    if options.json:
        print(json.dumps([as_json(result) for result in results], indent=1))
    return 1 if any(result.account.violations for result in results) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.processes", description=__doc__)
    parser.add_argument("--configurations", default=str(len(CONFIGURATIONS)), help="how many, or names by comma")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long each chaos lasts; 12 at least")
    parser.add_argument("--seed", type=int, default=1, help="fixes the schedules")
    parser.add_argument("--keep", type=Path, help="a folder in which all histories and logs are kept")
    parser.add_argument("--json", action="store_true", help="print JSON and nothing else")
    parser.add_argument("--list", action="store_true", help="print what there is, and run nothing")
    return parser


def _chosen(said: str) -> list[Configuration]:
    return list(CONFIGURATIONS[: int(said)]) if said.isdigit() else [named(name) for name in said.split(",")]


async def _run_all(chosen: Sequence[Configuration], options: argparse.Namespace) -> list[Result]:
    """One after the other; SIGTERM ends the one that runs, with all its processes."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    results: list[Result] = []
    if not options.json:
        print(HEAD)
    for configuration in chosen:
        with tempfile.TemporaryDirectory(prefix="processes-") as folder:
            kept = Path(folder) if options.keep is None else options.keep / configuration.name.replace(" ", "-")
            kept.mkdir(parents=True, exist_ok=options.keep is None)
            run = Run(configuration, kept, seconds=options.seconds, seed=options.seed)
            results.append(await run.run())
        if not options.json:
            print(as_row(results[-1]), flush=True)
    if not options.json:
        print(as_text(results))
    return results


if __name__ == "__main__":
    sys.exit(main())
