"""Plants a bug in a copy of the code and lets the simulation look for it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tests.simulation.mutants.change import PACKAGE, SPARK, Misfit, Mutant, apply

ROOT: Final = Path(__file__).parents[3]
PATIENCE_S: Final = 1800.0
ADVICE: Final = """
Where the code has changed, change the entries in tests/simulation/mutants (catalogue.py, transport.py): name the
function that does now what the entry breaks, and code that occurs in it once. `...` stands for any expression or block,
`**...` for other keyword arguments (change.py says more). Then check that the bug is still found:
    python -m tests.simulation.mutants [--wire] --only 'NAME'
Where a bug is no longer possible, because the code that it broke is gone, delete its entry."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How the search for one mutant ended. `seed` is the first that caught it, None if none did."""

    mutant: Mutant
    seed: int | None
    invariant: str
    found: str


def misfit(mutant: Mutant) -> str:
    """Say why a bug does not fit the code; empty if it does."""
    try:
        apply(mutant, ROOT / PACKAGE)
    except Misfit as error:
        return str(error)
    return ""


def plant(mutant: Mutant, folder: Path) -> None:
    """Put the code with the bug, and the tests beside it, into a folder."""
    for package in (PACKAGE, SPARK):
        shutil.copytree(ROOT / package, folder / package)  # with the bytecode, which Python compares with the sources
    (folder / "tests").symlink_to(ROOT / "tests")
    for path, source in apply(mutant, ROOT / PACKAGE).items():
        (folder / PACKAGE / path).write_text(source)


def tests_beside(mutant: Mutant) -> list[str]:
    """The tests of the code that a bug changes: those of its folder, or the file named after a module outside one."""
    paths = {
        Path("spark", change.path.name) if SPARK in change.path.parts else change.path for change in mutant.changes
    }
    folder = Path("tests")
    return sorted(str(folder / (path.parent if path.parent.name else f"test_{path.name}")) for path in paths)


def is_caught_by_tests(mutant: Mutant) -> bool:
    """Whether a test beside the changed code fails on the code with the bug."""
    with TemporaryDirectory() as name:
        plant(mutant, Path(name))
        shutil.copy(ROOT / "pyproject.toml", name)
        command = [sys.executable, "-m", "pytest", "-n0", "-q", "-x", "-p", "no:cacheprovider", *tests_beside(mutant)]
        environment = {**os.environ, "PYTHONPATH": name, "PYTHONDONTWRITEBYTECODE": "1"}
        run = subprocess.run(command, cwd=name, env=environment, capture_output=True, timeout=PATIENCE_S, check=False)
        return run.returncode == 1


def hunt(mutant: Mutant, seeds: str, *, wire: bool = False) -> Verdict:
    """Run seeds on the code with the bug until one of them breaks an invariant.

    Args:
        seeds: a range as on the command line of the simulation.
        wire: whether to simulate over the network.
    """
    with TemporaryDirectory() as name:
        folder = Path(name)
        plant(mutant, folder)
        command = [sys.executable, "-m", "tests.simulation", "--seeds", seeds, "--stop", "--json"]
        command += ["--wire"] if wire else []
        environment = {**os.environ, "PYTHONPATH": name, "PYTHONDONTWRITEBYTECODE": "1"}
        run = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
    if not run.stdout.startswith("{"):
        return Verdict(mutant, int(seeds.partition(":")[0]), "crash", run.stderr.strip().splitlines()[-1][:200])
    first = json.loads(run.stdout)["first"]
    if not first:
        return Verdict(mutant, None, "", "")
    invariant = min(first, key=lambda each: (first[each]["seed"], each))
    return Verdict(mutant, first[invariant]["seed"], ",".join(first), first[invariant]["found"])
