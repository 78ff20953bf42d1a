"""A signal while a command is still starting: one line at most, a documented status, no traceback, nothing lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from sbclient.cli.common import Exit

ROOT: Final = Path(__file__).parents[2]
PROGRAM: Final = [sys.executable, "-c", "from sbclient.cli import main; main()"]
VARIABLES: Final = {
    "PYTHONPATH": str(ROOT),
    "SERVICEBUS_CONNECTION_STRING": "memory://early",
    "SERVICEBUS_SECONDARY_CONNECTION_STRING": "memory://early-backup",
}
PATIENCE_S: Final = 60.0
WORKER: Final = ("syphon", "--provision")
OTHER: Final = ("send", "--queue", "orders")
"""Reads its stdin for as long as it is open."""

REPORT: Final = {"drained": 0, "dead_lettered": {}, "parked": 0}

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux, to see who listens")


def hear_ctrl_c() -> None:
    """A shell starts what it puts in the background, as perhaps these tests, with SIGINT ignored; that is passed on."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def started(*arguments: str, before: Callable[[], None] = hear_ctrl_c) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*PROGRAM, *arguments],
        stdin=subprocess.PIPE,  # stays open until the end
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        env=os.environ | VARIABLES,
        preexec_fn=before,
    )


def listens(process: subprocess.Popen[str], number: int = signal.SIGTERM) -> bool:
    """Whether a process has a handler for a signal. Python itself has none for SIGTERM."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    (mask,) = [line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")]
    return bool(int(mask, 16) & 1 << (number - 1))


def end_of(process: subprocess.Popen[str], number: int, delay_s: float) -> tuple[int, str, str]:
    """Send a signal so long after the program has begun to listen; returns its status, and what it said."""
    ends_at = time.monotonic() + PATIENCE_S
    while not listens(process):
        assert process.poll() is None
        assert time.monotonic() < ends_at
    time.sleep(delay_s)
    process.send_signal(number)
    process.wait(PATIENCE_S)  # with its stdin open: to be closed would be another reason to end
    out, err = process.communicate()
    assert "Traceback" not in err, err
    assert "Exception" not in err, err
    return process.returncode, out, err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("delay_s", [0.0, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.2])
def test_a_worker_that_is_told_to_end_while_it_starts_ends_in_order(number: signal.Signals, delay_s: float) -> None:
    status, out, err = end_of(started(*WORKER, "--json"), number, delay_s)
    assert (status, json.loads(out)) == (0, REPORT)
    events = [json.loads(line) for line in err.splitlines()]
    assert events[-1]["event"] == "worker.ended"
    if len(events) == 1:
        assert events[0] == {"reason": number.name, **REPORT, "event": "worker.ended", "level": "info"}


def test_without_json_it_reports_in_words() -> None:
    assert end_of(started(*WORKER), signal.SIGTERM, 0.0)[:2] == (0, "drained 0   dead-lettered none   parked 0\n")


@pytest.mark.parametrize("delay_s", [0.0, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1.0])
def test_at_no_moment_does_sigterm_do_anything_else(delay_s: float) -> None:
    """Counted from the birth of the process: before it runs our code the system ends it, silently."""
    process = started(*WORKER)
    time.sleep(delay_s)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert "Traceback" not in err
    assert (process.returncode, out, err) == (-signal.SIGTERM, "", "") or (process.returncode, bool(out)) == (0, True)


@pytest.mark.parametrize(
    ("number", "status", "kind"),
    [(signal.SIGINT, Exit.INTERRUPTED, "Interrupted"), (signal.SIGTERM, Exit.TERMINATED, "Terminated")],
)
@pytest.mark.parametrize("delay_s", [0.0, 0.2, 1.5])
def test_every_other_command_says_in_a_line_what_ended_it(number: int, status: Exit, kind: str, delay_s: float) -> None:
    code, _, err = end_of(started(*OTHER, "--json"), number, delay_s)
    assert code == status
    told = json.loads(err)["error"]
    assert (told["type"], told["exit_status"]) == (kind, status)
    assert told["command"].startswith("send")


def test_the_line_is_for_people_where_json_is_not_asked_for() -> None:
    said = "sbclient send: terminated; nothing was in hand\n"
    assert end_of(started(*OTHER), signal.SIGTERM, 0.0) == (Exit.TERMINATED, "", said)


def test_a_look_at_the_settings_that_is_cut_short_has_not_done_its_work() -> None:
    assert end_of(started("syphon", "--check-config"), signal.SIGTERM, 0.0)[0] == Exit.TERMINATED


def test_an_emulator_that_is_told_to_end_while_it_starts_has_ended_as_it_should() -> None:
    status, out, err = end_of(started("emulator", "--namespace", "a:0", "--http-port", "0"), signal.SIGTERM, 0.0)
    assert (status, out, err) == (0, "", "sbclient emulator: terminated; nothing was in hand\n")


def test_a_pause_is_kept_until_the_worker_can_obey() -> None:
    process = started(*WORKER, "--log-level", "info")
    while not listens(process, signal.SIGUSR1):
        assert process.poll() is None
    process.send_signal(signal.SIGUSR1)
    assert process.stderr is not None
    assert any('"worker.paused"' in line for line in iter(process.stderr.readline, ""))
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=PATIENCE_S)[0]
    assert process.returncode == 0


def ignore_ctrl_c() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def test_a_signal_that_is_ignored_stays_so() -> None:
    process = started(*OTHER, before=ignore_ctrl_c)
    while not listens(process):
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert end_of(process, signal.SIGTERM, 0.3)[0] == Exit.TERMINATED


def test_sigterm_in_the_midst_of_a_demo_ends_it_with_a_line() -> None:
    """Its time is virtual, and no event loop listens to signals."""
    process = started("demo", "--json", "--messages", "200000")
    code, out, err = end_of(process, signal.SIGTERM, 4.0)
    assert (code, out, json.loads(err)["error"]["type"]) == (Exit.TERMINATED, "", "Terminated")
