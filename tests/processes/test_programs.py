"""Programs are started, stopped and always ended."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes.programs import ROOT, Program

pytestmark = pytest.mark.real_time

PATIENCE_S = 30.0
OBEYS = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(0)); print('on', flush=True); time.sleep(600)"


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    program = Program("sleeper", tmp_path)
    yield program
    program.kill()


async def started(program: Program) -> None:
    program.start([sys.executable, "-c", OBEYS])
    while "on" not in program.file("out").read_text():
        assert program.is_running, program.output()
        await asyncio.sleep(0.02)


async def test_it_ends_in_order_when_it_is_told_to_even_while_it_is_stopped(program: Program) -> None:
    await started(program)
    program.signal(signal.SIGSTOP)
    assert await program.terminate(PATIENCE_S) == 0
    assert not program.is_running


async def test_it_can_be_killed_and_lives_again(program: Program) -> None:
    await started(program)
    program.signal(signal.SIGSTOP)
    program.kill()
    assert program.status == -signal.SIGKILL
    await started(program)
    assert program.life == 1
    assert program.file("out", life=0).exists()


async def test_waiting_for_one_that_does_not_end_ends(program: Program) -> None:
    await started(program)
    assert await program.ended(0.1) is None
    assert program.is_running


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends the children of who is killed")
def test_none_is_left_behind_when_the_tests_are_killed(tmp_path: Path) -> None:
    starts = (
        "import sys, time; from pathlib import Path; from tests.processes.programs import Program;"
        f"program = Program('child', Path({str(tmp_path)!r})); program.start([sys.executable, '-c', {OBEYS!r}]);"
        "print(program._process.pid, flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", starts], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    os.kill(child, signal.SIGSTOP)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + PATIENCE_S
    while lives(child):
        assert time.monotonic() < deadline, f"process {child} lives on"
        time.sleep(0.02)


def lives(pid: int) -> bool:
    """Whether a process is there, and no zombie that nobody has looked after yet."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
