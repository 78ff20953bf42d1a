"""What a signal means until a command listens to signals itself: while it is imported and put together.

Nothing is in hand then, so the process ends at once, by the one way that no import under way can stumble over. What
a signal does before Python runs this file, in its first hundredth of a second, is the system's choice: it ends the
process, status 143 or 130 in a shell; as the first process of a container it is not heard at all.

Nothing here imports more than the interpreter has loaded already: the sooner it listens, the better.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any, Final

WORKER: Final = "syphon"
STAYS: Final = {WORKER, "emulator"}
"""They run until they are told to end, so to be told is no failure."""

LOOKS: Final = {"--help", "--check-config", "--dry-run", "--deviations"}
"""With one of these they are commands like the others: cut short they have not done what they were asked for."""

_NOTHING_JSON: Final = '"drained": 0, "dead_lettered": {}, "parked": 0'
_NOTHING: Final = "drained 0   dead-lettered none   parked 0"

_ENDS: Final = (signal.SIGINT, signal.SIGTERM)
_LATER: Final = tuple(getattr(signal, name) for name in ("SIGUSR1", "SIGUSR2") if hasattr(signal, name))

_kept: list[int] = []
_begun: dict[int, Any] = {}
"""What a signal is to do once the command begins."""


def listen(arguments: list[str]) -> None:
    """End in order when told to from now on, until `begin`, or until an event loop listens."""
    for number in _ENDS:
        # Whoever starts a program with a signal ignored, as a shell does in the background, wants it not to be heard.
        if _stays(arguments) or signal.getsignal(number) is not signal.SIG_IGN:
            before = signal.signal(number, _ending(arguments))
            if number == signal.SIGINT and not _stays(arguments):
                _begun[number] = before
    for number in _LATER if _stays(arguments) and arguments[0] == WORKER else ():
        signal.signal(number, _keep)


def begin() -> None:
    """Let Ctrl-C raise KeyboardInterrupt again, as an event loop expects it; for what stays its loop does the rest.

    SIGTERM goes on ending the process at once until a loop listens to it: a command that has none has nothing in hand.
    """
    while _begun:
        signal.signal(*_begun.popitem())


def kept() -> list[int]:
    """The signals that were heard and are still to be obeyed: to pause, or to resume. They are told once."""
    numbers = _kept[:]
    _kept.clear()
    return numbers


def _stays(arguments: list[str]) -> bool:
    return bool(arguments) and arguments[0] in STAYS and not LOOKS.intersection(arguments)


def _keep(number: int, _: FrameType | None) -> None:
    _kept.append(number)


def _ending(arguments: list[str]) -> Callable[[int, FrameType | None], None]:
    def end(number: int, _: FrameType | None) -> None:
        as_json, stays = "--json" in arguments, _stays(arguments)
        if stays and arguments[0] == WORKER:
            _tell_worker(signal.Signals(number).name, as_json=as_json)
        else:
            _tell(arguments, number, as_json=as_json)
        os._exit(0 if stays else 128 + number)

    return end


def _tell_worker(name: str, *, as_json: bool) -> None:
    """Its stderr has events, its stdout the report."""
    _write(2, f'{{"reason": "{name}", {_NOTHING_JSON}, "event": "worker.ended", "level": "info"}}')
    _write(1, f"{{{_NOTHING_JSON}}}" if as_json else _NOTHING)


def _tell(arguments: list[str], number: int, *, as_json: bool) -> None:
    command = arguments[0] if arguments and arguments[0].isalpha() else ""
    kind = "Interrupted" if number == signal.SIGINT else "Terminated"
    text = f"{kind.lower()}; nothing was in hand"
    if as_json:
        status = 0 if _stays(arguments) else 128 + number
        facts = f'"command": "{command}", "type": "{kind}", "message": "{text}", "exit_status": {status}'
        _write(2, f'{{"error": {{{facts}}}}}')
    else:
        _write(2, f"{f'sbclient {command}'.strip()}: {text}")


def _write(to: int, line: str) -> None:
    with suppress(OSError):  # nobody reads it
        os.write(to, line.encode() + b"\n")
