"""What somebody who waits at a terminal sees: one line on stderr, from the first second on, gone at the end."""

from __future__ import annotations

import asyncio
import shutil
import sys
from types import TracebackType
from typing import Final, Self

import typer

from sbclient.clock import Clock

PATIENCE_S: Final = 1.0
"""What is over sooner shows nothing."""

REDRAW_S: Final = 0.2
_ERASE_LINE: Final = "\r\x1b[K"


class Progress:
    """A line that says what is going on and for how long; nothing where stderr is no terminal.

    Args:
        text: what is going on.
        is_wanted: whether it is to be shown at all; a command whose output moves on the same terminal shows none.
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
            self._timer = self._clock.call_later(PATIENCE_S, self._draw)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._erase()

    def tell(self, text: str) -> None:
        """Say how far it is; seen at the next redraw."""
        self._text = text

    def note(self, line: str) -> None:
        """A line on stderr that stays, above what moves."""
        self._erase()
        typer.echo(line, err=True)

    def _draw(self) -> None:
        line = f"{self._text}  {self._clock.monotonic() - self._began_at:.0f} s"
        sys.stderr.write(_ERASE_LINE + line[: shutil.get_terminal_size().columns - 1])
        sys.stderr.flush()
        self._is_drawn = True
        self._timer = self._clock.call_later(REDRAW_S, self._draw)

    def _erase(self) -> None:
        if self._is_drawn:
            sys.stderr.write(_ERASE_LINE)
            sys.stderr.flush()
            self._is_drawn = False
