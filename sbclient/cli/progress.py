"""A progress line on stderr for a person at a terminal: shown after one second, erased at the end."""

from __future__ import annotations

import asyncio
import shutil
import sys
from typing import Final, Self

import typer

from sbclient.clock import Clock
from sbclient.telemetry.log import printable

DELAY_S: Final = 1.0
"""Work that ends sooner shows nothing."""

REDRAW_S: Final = 0.2
_ERASE_LINE: Final = "\r\x1b[K"


class Progress:
    """A line with a text and the elapsed seconds. Shows nothing if stderr is not a terminal.

    Args:
        text: what the command does.
        is_wanted: False shows nothing, for a command that prints to the same terminal.
    """

    def __init__(self, text: str, *, is_wanted: bool = True) -> None:
        self._text = text
        self._is_wanted = is_wanted and sys.stderr.isatty()
        self._clock = Clock()
        self._began_at = 0.0
        self._is_drawn = False
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Self:
        if self._is_wanted:
            self._began_at = self._clock.monotonic()
            self._timer = self._clock.call_later(DELAY_S, self._draw)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._erase()

    def show(self, text: str) -> None:
        """Change the text; it is shown at the next redraw."""
        self._text = text

    def note(self, line: str) -> None:
        """Print a line on stderr that stays above the progress line."""
        self._erase()
        typer.echo(printable(line), err=True)

    def _draw(self) -> None:
        line = f"{self._text}  {self._clock.monotonic() - self._began_at:.0f} s"
        sys.stderr.write(_ERASE_LINE + printable(line)[: shutil.get_terminal_size().columns - 1])
        sys.stderr.flush()
        self._is_drawn = True
        self._timer = self._clock.call_later(REDRAW_S, self._draw)

    def _erase(self) -> None:
        if self._is_drawn:
            sys.stderr.write(_ERASE_LINE)
            sys.stderr.flush()
            self._is_drawn = False
