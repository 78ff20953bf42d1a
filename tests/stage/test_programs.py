"""Start, stop, kill and clean up programs."""

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

from tests.limit import HANG_S
from tests.stage.programs import ROOT, Program

pytestmark = pytest.mark.real_time

SLEEPER = "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [15]); print('on', flush=True); signal.sigwait([15])"
"""A handler would be lost if the signal came between the line and a wait: Python calls it after the wait."""


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    program = Program("sleeper", tmp_path)
    yield program
    program.kill()


async def started(program: Program) -> None:
    program.start([sys.executable, "-c", SLEEPER])
    while "on" not in program.file("out").read_text():
        assert program.is_running, program.output()
        await asyncio.sleep(0.02)


async def test_terminate_ends_a_suspended_program_with_status_0(program: Program) -> None:
    await started(program)
    program.signal(signal.SIGSTOP)
    assert await program.terminate(HANG_S) == 0
    assert not program.is_running


async def test_killed_program_can_be_started_again(program: Program) -> None:
    await started(program)
    program.signal(signal.SIGSTOP)
    program.kill()
    assert program.status == -signal.SIGKILL
    await started(program)
    assert program.life == 1
    assert program.file("out", life=0).exists()


async def test_waiting_for_a_running_program_times_out(program: Program) -> None:
    await started(program)
    assert await program.ended(0.1) is None
    assert program.is_running


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends the children of a killed process")
def test_children_end_when_the_parent_is_killed(tmp_path: Path) -> None:
    starts = (
        "import sys, time; from pathlib import Path; from tests.stage.programs import Program;"
        f"program = Program('child', Path({str(tmp_path)!r})); program.start([sys.executable, '-c', {SLEEPER!r}]);"
        "print(program._process.pid, flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", starts], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    os.kill(child, signal.SIGSTOP)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + HANG_S
    while is_running(child):
        assert time.monotonic() < deadline, f"process {child} still runs"
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
