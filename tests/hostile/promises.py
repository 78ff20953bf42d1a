"""Run the tests of the promises of docs/security.md: `python -m tests.hostile.promises [NAME ...] [--before CHECKOUT]`.

A row shows how many tests a promise has and how many failed, the attacks in them and the bytes of the largest one, how
much the memory of the process grew during one test, and how long another client waited, if the tests measure that. With
`--before` the tests also run against the package in a directory; those that need what it does not have fail there.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pytest

from tests.hostile.limits import MAX_P99_S, memory_limit_mib
from tests.hostile.target import Server
from tests.marked import arguments_of_markers

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "security.md"
REAL_SIZES: Final = {"SYPHON_DESTINATIONS": "5000", "CUT_STRIDE": "17"}
"""What the environment says to tests that take a sample otherwise."""

_IMPORTED: Final = "ignore::pytest.PytestAssertRewriteWarning"  # of this package, by this program
_VERSION: Final = "PROMISES_OF_VERSION"


@cache
def promises() -> Mapping[str, str]:
    """The promises of the page by name."""
    found = re.findall(r"^\| `([a-z-]+\.[a-z-]+)` \| (.*) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(found) == len(dict(found)), "a name occurs twice"
    return dict(found)


@dataclass
class Row:
    """What the tests of a promise did.

    Attributes:
        attacks: how many the tests make: one for each test that does not record another number.
        sent_bytes: of the largest attack.
        peak_mib: the largest growth of the memory during one test.
        wait_s: the 99th percentile of what another client waited, in the worst test; None = not measured.
    """

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    attacks: int = 0
    sent_bytes: int = 0
    peak_mib: float = 0.0
    wait_s: float | None = None

    @property
    def is_kept(self) -> bool:
        """Whether all tests passed, and the limits of memory and waiting were kept."""
        return (
            self.passed > 0
            and not self.failed
            and self.peak_mib <= memory_limit_mib(self.sent_bytes / 2**20)
            and (self.wait_s is None or self.wait_s <= MAX_P99_S)
        )


class Rows:
    """A plugin of pytest that fills the rows, by the name of the promise."""

    def __init__(self, names: list[str]) -> None:
        self.rows = {name: Row() for name in names}
        self._process = Server(0, 0, os.getpid())

    def _rows_of(self, item: pytest.Item) -> list[Row]:
        names = [name for marker in item.iter_markers("promise") for name in marker.args]
        return [self.rows[name] for name in names if name in self.rows]

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave out the tests of other promises."""
        items[:] = [item for item in items if self._rows_of(item)]

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        """Measure the memory, and take what the test recorded."""
        before = self._process.memory_mib()
        self._process.forget_peak()
        yield
        grown = self._process.memory_mib("VmHWM") - before
        recorded: dict[str, Any] = dict(item.user_properties)
        for row in self._rows_of(item):
            row.peak_mib = max(row.peak_mib, grown)
            row.attacks += recorded.get("attacks", 1)
            row.sent_bytes = max(row.sent_bytes, recorded.get("bytes", 0))
            if "wait_s" in recorded:
                row.wait_s = max(row.wait_s or 0.0, recorded["wait_s"])

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Iterator[None]:
        """Count the outcomes."""
        outcome: Any = yield
        report = outcome.get_result()
        for row in self._rows_of(item):
            row.failed += report.failed
            row.skipped += report.skipped
            row.passed += report.passed and report.when == "call"


def run(names: list[str], version: str) -> bool:
    """Run the tests in this process, print the rows, and return whether all promises are kept."""
    files = sorted({str(path) for path, name in arguments_of_markers("promise") if name in names})
    rows = Rows(names)
    options = ["-n0", "-q", "-m", "promise", "--continue-on-collection-errors", "--show-capture=no", "-W", _IMPORTED]
    for group in [files] if version == "after" else [[file] for file in files]:  # one may not even be imported
        pytest.main([*options, *group], [rows])
    print(f"\n{'':26} {'':6} {'tests':>5} {'failed':>6} {'attacks':>8} {'bytes':>11} {'MiB':>7} {'p99, ms':>8}")
    for name, row in rows.rows.items():
        skipped = f", {row.skipped} skipped" if row.skipped else ""
        verdict = "kept" if row.is_kept else "NOT KEPT" if row.passed + row.failed else "cannot run"
        wait = "" if row.wait_s is None else f"{row.wait_s * 1e3:.1f}"
        print(
            f"{name:26} {version:6} {row.passed + row.failed:5} {row.failed:6} {row.attacks:8} "
            f"{row.sent_bytes or '':>11} {row.peak_mib:7.1f} {wait:>8}  {verdict}{skipped}"
        )
    return all(row.is_kept for row in rows.rows.values())


def run_against(checkout: Path, names: list[str]) -> None:
    """Run the tests of this directory in another process, with the package of another one."""
    with TemporaryDirectory() as directory:
        for source, own in ((ROOT, False), (checkout.resolve(), True)):
            for path in source.iterdir():
                if path.name.startswith("sbclient") == own and not path.name.startswith("."):
                    (Path(directory) / path.name).symlink_to(path)
        variables = {"PYTHONPATH": directory, _VERSION: "before"}
        command = [sys.executable, "-m", "tests.hostile.promises", *names]
        subprocess.run(command, cwd=directory, env={**os.environ, **variables}, check=False)


def main() -> int:
    """Run the chosen promises; the exit status is 1 if one is not kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="of a promise; all by default")
    parser.add_argument("--before", type=Path, metavar="CHECKOUT", help="also run the package in this directory")
    options = parser.parse_args()
    names = options.names or list(promises())
    if unknown := set(names) - set(promises()):
        parser.error(f"docs/security.md has no promise {', '.join(sorted(unknown))}")
    os.environ.update(REAL_SIZES)
    if options.before:
        run_against(options.before, names)
    return int(not run(names, os.environ.get(_VERSION, "after")))


if __name__ == "__main__":
    sys.exit(main())
