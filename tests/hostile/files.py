"""Give commands files without an end: `python -m tests.hostile.files [--before CHECKOUT]`.

A row shows the exit status, the lines of the error, the duration and the highest memory. A command may have 2 GiB.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Final, NamedTuple

from tests.commands import SBCLIENT

_ADDRESS: Final = "Endpoint=sb://127.0.0.1:1/;UseDevelopmentEmulator=true"
_SEND: Final = ("send", "--queue", "orders", "--primary", "memory://contoso", "--input", "/dev/zero")
ENDLESS: Final = (
    ("emulator", "--config", "/dev/zero"),
    ("admin", "import", "/dev/zero", "--primary", "memory://contoso"),
    _SEND,
    (*_SEND, "--format", "csv"),
    (*_SEND, "--format", "messages"),
    ("syphon", "--config", "/dev/zero"),
    ("peek", "--queue", "orders", "--primary", f"{_ADDRESS};CredentialFile=/dev/zero"),
)
_MEMORY: Final = 2 * 2**30
_MAX_MIB: Final = 200


class Ended(NamedTuple):
    """How a command ended. `peak_mib` is its highest memory."""

    status: int
    error: str
    lasted_s: float
    peak_mib: float

    @property
    def is_right(self) -> bool:
        """Whether it is a short error in one line, with little memory."""
        is_short = len(self.error.splitlines()) == 1 and len(self.error) < 1_000
        return self.status > 0 and is_short and self.peak_mib < _MAX_MIB


_LAUNCH: Final = f"""
import os, resource, subprocess, sys
resource.setrlimit(resource.RLIMIT_AS, ({_MEMORY}, {_MEMORY}))
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
_, status, usage = os.wait4(process.pid, 0)
print(os.waitstatus_to_exitcode(status), usage.ru_maxrss)
"""
"""A small process between, since the highest memory of a process includes that of the one that started it."""


def run(arguments: tuple[str, ...], checkout: Path | None = None) -> Ended:
    """Run a command of the package in a directory; None = this one."""
    began_at = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-c", _LAUNCH, *SBCLIENT, *arguments],
        cwd="/",
        env={**os.environ, "PYTHONPATH": str(checkout or Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=True,
    )
    status, peak_kib = map(int, ended.stdout.split())
    return Ended(status, ended.stderr, time.monotonic() - began_at, peak_kib / 1024)


def main() -> int:
    """Run the commands; the exit status is 1 if one does not end with a short error."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, metavar="CHECKOUT", help="also run the version in this directory")
    before: Path | None = parser.parse_args().before
    are_right = True
    for arguments in ENDLESS:
        for checkout in [*([before] if before else []), None]:
            ended = run(arguments, checkout)
            are_right = are_right and (ended.is_right or checkout is not None)
            version, lines = "after" if checkout is None else "before", len(ended.error.splitlines())
            print(
                f"{version:6} {ended.lasted_s:6.1f} s {ended.peak_mib:7.1f} MiB  status {ended.status}, {lines} lines  "
                f"{' '.join(arguments)}",
                flush=True,
            )
    return int(not are_right)


if __name__ == "__main__":
    sys.exit(main())
