"""Operating system processes that a run starts, hurts and always ends."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final

ROOT: Final = Path(__file__).parents[2]
"""The command line as it is installed, from this tree."""

LOOK_S: Final = 0.02
_PR_SET_PDEATHSIG: Final = 1
_libc: Any = ctypes.CDLL(None) if sys.platform == "linux" else None


def _die_with_parent() -> None:
    """Even if the tests are killed, none of their processes is left behind, not even a stopped one."""
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


async def until(is_so: Callable[[], bool], within_s: float) -> bool:
    """Wait until something is so, at most that long; returns whether it is."""
    deadline = time.monotonic() + within_s
    while not is_so():
        if time.monotonic() >= deadline:
            return False
        await asyncio.sleep(LOOK_S)
    return True


class Program:
    """One program. It may be started again after it has ended; each start is a life of its own.

    Attributes:
        name: `sender-1`.
        folder: where what it writes is kept: `<name>.<life>.out` and `.log`.
        life: how often it was started before this time; -1 = never.
    """

    def __init__(self, name: str, folder: Path) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._is_stopped = False
        self.name = name
        self.folder = folder
        self.life = -1

    def file(self, suffix: str, life: int | None = None) -> Path:
        """A file of this life, or of another one."""
        return self.folder / f"{self.name}.{self.life if life is None else life}.{suffix}"

    def start(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        """Begin another life."""
        assert not self.is_running, f"{self.name} runs already"
        self.life += 1
        self._is_stopped = False
        with self.file("out").open("wb") as out, self.file("log").open("wb") as log:
            self._process = self._spawn(command, dict(environment or {}), out, log)

    def _spawn(
        self, command: Sequence[str], environment: dict[str, str], out: IO[bytes], log: IO[bytes]
    ) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            list(command),
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"} | environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=log,
            preexec_fn=_die_with_parent,
        )

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def process_id(self) -> int:
        """Of this life; 0 = it was never started."""
        return 0 if self._process is None else self._process.pid

    @property
    def status(self) -> int | None:
        """The exit status of the last life; negative = the signal that ended it, None = it has not ended."""
        return None if self._process is None else self._process.poll()

    def signal(self, number: int) -> None:
        """Send a signal; nothing happens if it has ended."""
        if self._process is not None and self.is_running:
            self._process.send_signal(number)
            self._is_stopped = (self._is_stopped or number == signal.SIGSTOP) and number != signal.SIGCONT

    async def ended(self, within_s: float) -> int | None:
        """Wait for the end, at most that long; returns the exit status, None if it has not ended."""
        await until(lambda: not self.is_running, within_s)
        return self.status

    async def terminate(self, within_s: float) -> int | None:
        """Tell it to end, and wait; returns the exit status, None if it has not ended."""
        if self._is_stopped:
            self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        return await self.ended(within_s)

    def kill(self) -> None:
        """End it at once, and wait until the system has cleared it away."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def output(self) -> str:
        """What its last life said on stderr, for errors."""
        return self.file("log").read_text(errors="replace")[-2000:] if self.life >= 0 else ""
