"""Holds back signals while a command starts, so that no signal interrupts an import.

`hold` blocks them, the command installs its handlers, and `release` lets the system deliver what has arrived. Until
`hold` runs, in about the first 10 ms of the process, a signal has its default effect. This file imports nothing
that the interpreter has not loaded already, so that `hold` runs as early as possible.
"""

from __future__ import annotations

import signal
from types import FrameType
from typing import Final

_NAMES: Final = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
_HELD: Final = [getattr(signal, name) for name in _NAMES if hasattr(signal, name)]
_CAN_HOLD: Final = hasattr(signal, "pthread_sigmask")  # not available on Windows


class Terminated(KeyboardInterrupt):
    """The process received SIGTERM."""


def hold() -> None:
    """Keep signals pending until `release`."""
    if _CAN_HOLD:
        signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)


def release() -> None:
    """Deliver pending signals. SIGTERM raises `Terminated` unless something handles it already."""
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminate)
    if _CAN_HOLD:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HELD)


def _terminate(number: int, frame: FrameType | None) -> None:
    raise Terminated
