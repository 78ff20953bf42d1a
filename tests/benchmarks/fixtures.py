"""What a fresh pair of namespaces costs each test of a suite, beside a test without one and beside a server.

    python -m tests.benchmarks.fixtures [tests]

pytest runs the same empty tests without a fixture, with one that makes a directory (`tmp_path`), and with
`servicebus_pair`, alone and with a client opened on it; the cost is the processor time beyond that of the tests without
a fixture.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from statistics import median
from typing import Final

from sbclient.testing import served

ROOT: Final = Path(__file__).parents[2]
ROUNDS: Final = 3
KINDS: Final = {
    "nothing": "def test(number): pass",
    "tmp_path": "def test(number, tmp_path): pass",
    "servicebus_pair": "def test(number, servicebus_pair): pass",
    "servicebus_pair, opened": (
        "async def test(number, servicebus_pair):\n    async with servicebus_pair.client(): pass"
    ),
}
"""The test of each suite; `number` makes it many."""


@dataclass(frozen=True, slots=True)
class Result:
    """Milliseconds of the processor for each test beyond one without a fixture; and to start and end an emulator."""

    pair_ms: float
    opened_pair_ms: float
    directory_ms: float
    emulator_ms: float


def _suite_s(source: str, tests: int) -> float:
    """Seconds of the processor that pytest needs for so many tests."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "test_suite.py")
        path.write_text(f"import pytest\n@pytest.mark.parametrize('number', range({tests}))\n{source}\n")
        is_installed = any(point.name == "sbclient" for point in entry_points(group="pytest11"))
        plugin = [] if is_installed else ["-p", "sbclient.pytest_plugin"]
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:asyncio", "-p", "no:cacheprovider", *plugin, folder]
        before = getrusage(RUSAGE_CHILDREN)
        subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
        after = getrusage(RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _emulator_s() -> float:
    began_at = time.process_time()
    with served():
        pass
    return time.process_time() - began_at


def measured(tests: int) -> Result:
    """The medians of a few rounds, the kinds taking turns."""
    rounds = [{kind: _suite_s(source, tests) for kind, source in KINDS.items()} for _ in range(ROUNDS)]
    own_ms = {kind: median((each[kind] - each["nothing"]) / tests for each in rounds) * 1000 for kind in KINDS}
    return Result(
        pair_ms=own_ms["servicebus_pair"],
        opened_pair_ms=own_ms["servicebus_pair, opened"],
        directory_ms=own_ms["tmp_path"],
        emulator_ms=median(_emulator_s() for _ in range(ROUNDS)) * 1000,
    )


def main() -> None:
    tests = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    result = measured(tests)
    print(f"a fresh pair for each of {tests:,} tests   {result.pair_ms:8.3f} ms")
    print(f"the same, with a client opened       {result.opened_pair_ms:8.3f} ms")
    print(f"a directory for each (tmp_path)      {result.directory_ms:8.3f} ms")
    print(f"an emulator for each                 {result.emulator_ms:8.3f} ms")
    print(f"a pair costs {result.pair_ms / result.directory_ms:.1f} times a directory, ", end="")
    print(f"and an emulator {result.emulator_ms / result.pair_ms:,.0f} times a pair")


if __name__ == "__main__":
    main()
