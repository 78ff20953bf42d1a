"""A progress line on stderr for a person at a terminal: text, time, rate and remaining time.

The line is drawn after one second and erased at the end.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple, Self

import typer

from sbclient import clock
from sbclient.telemetry.log import printable

DELAY_S: Final = 1.0
"""Work that ends sooner draws no line."""

REDRAW_S: Final = 0.2
RATE_REDRAWS: Final = 25
"""The rate is that of this many redraws, which take five seconds."""

_ERASE_LINE: Final = "\r\x1b[K"


class Amount(NamedTuple):
    """How much is done.

    Attributes:
        text: what and how much, such as "accepted 3".
        done: the number in the text.
        total: its value at the end; None = unknown.
    """

    text: str
    done: int
    total: float | None = None


class Progress:
    """A line with a text, the elapsed seconds and, of an amount, the rate. Drawn only if stderr is a terminal.

    Args:
        text: what the command does.
        is_wanted: False draws no line, for a command that reads from or prints to the same terminal.
    """

    def __init__(self, text: str, *, is_wanted: bool = True) -> None:
        self._text = text
        self._amount: Callable[[], Amount] | None = None
        self._samples: deque[tuple[float, int]] = deque(maxlen=RATE_REDRAWS + 1)
        self._is_wanted = is_wanted and sys.stderr.isatty()
        self._began_at = 0.0
        self._is_drawn = False
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Self:
        if self._is_wanted:
            self._began_at = clock.monotonic()
            self._timer = clock.call_later(DELAY_S, self._draw)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._erase()

    def show(self, text: str) -> None:
        """Change the text; it is shown at the next redraw."""
        self._text, self._amount = text, None

    def follow(self, amount: Callable[[], Amount]) -> None:
        """Show an amount; `amount` is called for each redraw."""
        self._amount = amount
        self._samples.clear()

    def print_above(self, line: str) -> None:
        """Print a line on stderr, above the progress line if that is drawn."""
        self._erase()
        typer.echo(printable(line), err=True)

    def _draw(self) -> None:
        line = self.line(clock.monotonic())
        sys.stderr.write(_ERASE_LINE + printable(line)[: shutil.get_terminal_size().columns - 1])
        sys.stderr.flush()
        self._is_drawn = True
        self._timer = clock.call_later(REDRAW_S, self._draw)

    def line(self, now: float) -> str:
        """Add a sample for the rate, and return the line.

        Args:
            now: monotonic seconds.
        """
        amount = self._amount() if self._amount is not None else None
        line = f"{self._text if amount is None else amount.text}  {now - self._began_at:.0f} s"
        if amount is None:
            return line
        self._samples.append((now, amount.done))
        sampled_at, done = self._samples[0]
        if now == sampled_at:
            return line
        rate = (amount.done - done) / (now - sampled_at)
        line += f", {rate:,.0f} per second"
        if rate and amount.total is not None:
            line += f", {span_text(max(0.0, amount.total - amount.done) / rate)} left"
        return line

    def _erase(self) -> None:
        if self._is_drawn:
            sys.stderr.write(_ERASE_LINE)
            sys.stderr.flush()
            self._is_drawn = False


def span_text(seconds: float) -> str:
    """Return a duration as text: `12 s`, `3 min`, `2 h 5 min`. Up to 119 of a unit, the next larger one is not used."""
    whole_seconds = round(seconds)
    if whole_seconds < 120:
        return f"{whole_seconds} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
