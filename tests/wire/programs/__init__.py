"""Programs in other languages that check the emulator with the client of their language.

A program prints one line for each check, `ok <check>` or `failed <check> <why>`. With the line `outage` it asks for the
reset of all connections, and waits for a line. The packages of a language are kept in the cache of the user, outside of
the tree.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from sbclient.emulator import Emulator
from tests.stage.serving import ServingThread, reset_connections

RUN_S = 120.0
MODES = os.environ.get("SBCLIENT_WIRE_MODES", "plain").split()
"""How the programs connect: plain, tls or websocket. `.ci/proofs` runs all of them."""

FETCH_S = 240.0
BUILD_S = 900.0
"""The first time Go compiles 1,900 packages for KEDA: six minutes of one processor."""


def cache_of(language: str) -> Path:
    """A directory for the packages of a language."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    path = base / f"sbclient-wire-{language}"
    path.mkdir(parents=True, exist_ok=True)
    return path


def fetch(command: Sequence[str], cwd: Path, *, for_what: str) -> None:
    """Run the package client of a language; skip the test if it fails."""
    try:
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=FETCH_S, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip(f"{command[0]} did not fetch {for_what} in {FETCH_S:.0f} s")
    if done.returncode:
        pytest.skip(f"{command[0]} could not fetch {for_what}: {done.stderr.strip()[-200:]}")


def build_go(sources: Path, *, for_what: str) -> Path:
    """Build a Go program in the cache of the user; returns it. Skips the test if Go or a module is missing.

    Args:
        sources: the folder of the program. Its name becomes that of the program.
        for_what: the module that Go fetches.
    """
    if shutil.which("go") is None:
        pytest.skip("go is not installed")
    root = cache_of(sources.name)
    for source in sources.iterdir():
        shutil.copy(source, root)
    fetch(["go", "list", "-mod=mod", "-deps", "."], root, for_what=for_what)  # only what the program imports
    command = ["go", "build", "-mod=mod", "-o", "checks", "."]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=BUILD_S, check=False)
    assert done.returncode == 0, done.stderr
    return root / "checks"


def run_program(
    command: Sequence[str], emulator: Emulator, thread: ServingThread, env: Mapping[str, str] | None = None
) -> list[str]:
    """Run a program; returns its lines."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(env or {})},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    lines: list[str] = []
    errors: list[str] = []
    reader = threading.Thread(target=lambda: errors.extend(process.stderr or ()), daemon=True)
    reader.start()
    deadline = threading.Timer(RUN_S, process.kill)
    deadline.start()
    try:
        for line in process.stdout:
            if line.strip() == "outage":
                thread.run(reset_connections(emulator.context().wire_faults))
                process.stdin.write("done\n")
                process.stdin.flush()
            else:
                lines.append(line.rstrip("\n"))
        status = process.wait(RUN_S)
    finally:
        deadline.cancel()
        process.kill()
        process.wait()
    reader.join(10)
    process.stdin.close()
    process.stdout.close()
    process.stderr.close()
    assert status == 0, "".join(errors)
    return lines


def check_lines(lines: Sequence[str], checks: Sequence[str]) -> None:
    """Assert that every check has succeeded."""
    failed = [line.replace(" | ", "\n") for line in lines if not line.startswith("ok ")]
    assert not failed, "\n".join(failed)
    assert sorted(line.removeprefix("ok ") for line in lines) == sorted(checks)
