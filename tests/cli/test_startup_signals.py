"""Signals sent while a command starts: a documented status, one line at most, no traceback."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from sbclient.cli.common import Exit
from tests.commands import start

VARIABLES: Final = {
    "SERVICEBUS_CONNECTION_STRING": "memory://startup",
    "SERVICEBUS_SECONDARY_CONNECTION_STRING": "memory://startup-backup",
}
WORKER: Final = ("syphon", "--provision")
OTHER: Final = ("send", "--queue", "orders", "--divert-anyway")
"""Reads stdin for as long as it is open."""

REPORT: Final = {"drained": 0, "dead_lettered": {}, "parked": 0, "redirected": 0}

pytestmark = [
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc to see signal masks"),
    pytest.mark.slow,  # starts many processes
]


def started(*arguments: str, before: Callable[[], None] | None = None) -> subprocess.Popen[str]:
    # stdin stays open until the end
    return start(*arguments, is_strict=False, stdin=subprocess.PIPE, env=VARIABLES, preexec_fn=before)


def wait_until_held(process: subprocess.Popen[str]) -> None:
    """Wait until the process blocks or handles SIGTERM. Python itself does neither."""
    masks = [0]
    while not any(mask & 1 << (signal.SIGTERM - 1) for mask in masks):
        assert process.poll() is None
        status = Path(f"/proc/{process.pid}/status").read_text()
        masks = [int(line.split()[1], 16) for line in status.splitlines() if line.startswith(("SigBlk:", "SigCgt:"))]


def end_of(process: subprocess.Popen[str], number: int, delay_s: float) -> tuple[int, str, str]:
    """Send a signal that long after the program holds signals; return the status, stdout and stderr."""
    wait_until_held(process)
    time.sleep(delay_s)
    process.send_signal(number)
    process.wait()  # stdin stays open: closing it would be another reason to end
    out, err = process.communicate()
    assert "Traceback" not in err, err
    assert "Exception" not in err, err
    return process.returncode, out, err


@pytest.mark.parametrize(("number", "delay_s"), [(signal.SIGTERM, 0.0), (signal.SIGINT, 0.0), (signal.SIGINT, 0.8)])
def test_worker_ends_normally_when_signalled_during_startup(number: signal.Signals, delay_s: float) -> None:
    status, out, err = end_of(started(*WORKER, "--json"), number, delay_s)
    assert (status, json.loads(out)) == (0, REPORT)
    assert [json.loads(line) for line in err.splitlines()][-1]["event"] == "worker.ended"


def test_worker_reports_as_text_without_json() -> None:
    assert end_of(started(*WORKER), signal.SIGTERM, 0.0)[:2] == (0, "drained 0   dead-lettered none   parked 0\n")


@pytest.mark.parametrize("delay_s", [0.0, 0.05, 0.5])
def test_sigterm_has_no_other_effect_at_any_time(delay_s: float) -> None:
    """Counted from the start of the process: the system ends it silently until it holds signals."""
    process = started(*WORKER)
    time.sleep(delay_s)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate()
    assert "Traceback" not in err
    assert (process.returncode, out, err) == (-signal.SIGTERM, "", "") or (process.returncode, bool(out)) == (0, True)


@pytest.mark.parametrize(
    ("number", "delay_s", "status", "kind"),
    [(signal.SIGINT, 0.0, Exit.INTERRUPTED, "Interrupted"), (signal.SIGTERM, 1.5, Exit.TERMINATED, "Terminated")],
)
def test_other_commands_report_the_signal_in_one_line(number: int, delay_s: float, status: Exit, kind: str) -> None:
    code, _, err = end_of(started(*OTHER, "--json"), number, delay_s)
    assert code == status
    error = {"command": "send", "type": kind, "message": kind.lower(), "exit_status": status}
    assert json.loads(err) == {"error": error}


def test_the_line_is_text_without_json() -> None:
    assert end_of(started(*OTHER), signal.SIGTERM, 0.0) == (Exit.TERMINATED, "", "sbclient send: terminated\n")


def test_sigterm_at_a_question_ends_the_command() -> None:
    parent, child = os.openpty()
    process = start("admin", "delete", "queue", "orders", is_strict=False, stdin=child, env=VARIABLES)
    wait_until_held(process)
    time.sleep(1.5)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate()
    os.close(parent)
    os.close(child)
    assert process.returncode == Exit.TERMINATED
    assert err.splitlines()[-1].endswith("sbclient admin delete: terminated")


def test_emulator_ends_with_status_0_when_signalled_during_startup() -> None:
    status, _, err = end_of(started("emulator", "--namespace", "a:0", "--http-port", "0"), signal.SIGTERM, 0.0)
    assert (status, err) == (0, "")


def test_signals_during_startup_take_effect_when_the_worker_runs() -> None:
    """SIGHUP makes it read the credentials again, and does not end it."""
    process = started(*WORKER, "--log-level", "info")
    wait_until_held(process)
    for number in (signal.SIGHUP, signal.SIGUSR1):
        process.send_signal(number)
    assert process.stderr is not None
    assert any('"worker.paused"' in line for line in iter(process.stderr.readline, ""))
    process.send_signal(signal.SIGTERM)
    assert process.communicate()[0]
    assert process.returncode == 0


def ignore_ctrl_c() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def test_an_ignored_signal_stays_ignored() -> None:
    process = started(*OTHER, before=ignore_ctrl_c)
    wait_until_held(process)
    process.send_signal(signal.SIGINT)
    assert end_of(process, signal.SIGTERM, 0.3)[0] == Exit.TERMINATED


@pytest.mark.parametrize(
    ("number", "status", "kind"),
    [(signal.SIGINT, Exit.INTERRUPTED, "Interrupted"), (signal.SIGTERM, Exit.TERMINATED, "Terminated")],
)
def test_a_signal_ends_a_running_demo_with_one_line(number: int, status: Exit, kind: str) -> None:
    """The demo runs on virtual time, on a loop without signal handlers."""
    process = started("demo", "--json", "--messages", "200000")
    code, out, err = end_of(process, number, 2.0)
    assert (code, out, json.loads(err)["error"]["type"]) == (status, "", kind)
