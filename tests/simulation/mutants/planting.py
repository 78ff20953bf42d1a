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

from tests.simulation.mutants.catalogue import Mutant

ROOT: Final = Path(__file__).parents[3]
PATIENCE_S: Final = 1800.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """How the search for one mutant ended. `seed` is the first that caught it, None if none did."""

    mutant: Mutant
    seed: int | None
    invariant: str
    found: str


def misfits(mutant: Mutant) -> list[str]:
    """What of a mutant does not fit the code any more."""
    wrong = []
    for patch in mutant.patches:
        count = (ROOT / "sbclient" / patch.file).read_text().count(patch.old)
        if count != 1:
            wrong.append(f"{mutant.name}: {patch.old.strip()[:80]!r} occurs {count} times in {patch.file}")
    return wrong


def plant(mutant: Mutant, folder: Path) -> None:
    """Put the code with the bug, and the tests beside it, into a folder."""
    shutil.copytree(ROOT / "sbclient", folder / "sbclient", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "tests").symlink_to(ROOT / "tests")
    for patch in mutant.patches:
        path = folder / "sbclient" / patch.file
        path.write_text(path.read_text().replace(patch.old, patch.new))


def is_caught_by_tests(mutant: Mutant, tests: str) -> bool:
    """Whether some of the tests fail on the code with the bug."""
    with TemporaryDirectory() as name:
        plant(mutant, Path(name))
        shutil.copy(ROOT / "pyproject.toml", name)
        command = [sys.executable, "-m", "pytest", "-n0", "-q", "-x", "-p", "no:cacheprovider", tests]
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
