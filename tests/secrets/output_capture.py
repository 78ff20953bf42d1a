"""Capture all output of a test, and search it for canaries."""

from __future__ import annotations

import asyncio
import logging
import pickle
import traceback
import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from tests.secrets.canaries import found_in

FOREIGN = ("azure", "urllib3", "aiohttp", "msal")
"""Loggers of other libraries, which log frames at DEBUG."""


class OutputCapture(logging.Handler):
    """The captured texts, each with its source."""

    def __init__(self) -> None:
        super().__init__(logging.NOTSET)
        self.entries: list[tuple[str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.partition(".")[0] not in FOREIGN:
            shown = logging.Formatter().format(record)
            self.add(f"log {record.name}", f"{shown} {record.__dict__}")
            if record.exc_info and record.exc_info[1] is not None:
                self.add_error(f"log {record.name}", record.exc_info[1])

    def add(self, where: str, value: Any) -> None:
        """Add a text, or the repr of another value."""
        self.entries.append((where, value if isinstance(value, str) else repr(value)))

    def add_error(self, where: str, error: BaseException) -> None:
        """Add the texts, causes, traceback and pickle of an error."""
        self.add(where, "".join(traceback.format_exception(error)))
        for each in _chain(error):
            self.add(where, f"{each!r} {each} {each.args!r} {vars(each)!r}")
            with suppress(TypeError, AttributeError, pickle.PicklingError):
                self.add(f"{where}, pickled", pickle.dumps(each).decode("latin-1"))

    @contextmanager
    def expecting(self, *kinds: type[BaseException], where: str = "error") -> Iterator[None]:
        """Check that the body raises, and add the error."""
        try:
            yield
        except kinds as error:
            self.add_error(where, error)
        else:
            raise AssertionError(f"{where}: nothing was raised")

    def leaks(self, allowed: Collection[str] = ()) -> list[str]:
        """Return each captured canary with its source and the start of the text."""
        return [
            f"{where} shows {name}: {text[:300]!r}" for where, text in self.entries for name in found_in(text, allowed)
        ]

    def check(self, *, at_least: int = 1) -> None:
        """Check that enough texts were captured, and that none contains a canary."""
        assert len(self.entries) >= at_least, f"only {len(self.entries)} texts were captured"
        leaks = self.leaks()
        assert not leaks, "\n".join(leaks[:10])


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield the errors that a traceback shows: this one, its causes, and the members of a group."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        each = waiting.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        waiting += [each.__cause__, None if each.__suppress_context__ else each.__context__]
        if isinstance(each, BaseExceptionGroup):
            waiting += each.exceptions


@contextmanager
def capture_output() -> Iterator[OutputCapture]:
    """Capture all log records, warnings, and debug output of the running loop."""
    capture, root = OutputCapture(), logging.getLogger()
    ours = [logging.getLogger(name) for name in ("sbclient", "sbclient_spark", "asyncio")]
    levels = [(logger, logger.level) for logger in (root, *ours)]
    root.addHandler(capture)
    for logger, _ in levels:
        logger.setLevel(logging.DEBUG)
    with warnings.catch_warnings():
        show = warnings.showwarning
        warnings.showwarning = lambda *values, **more: capture.add("warning", f"{values} {more}")
        try:
            yield capture
        finally:
            warnings.showwarning = show
            root.removeHandler(capture)
            for logger, level in levels:
                logger.setLevel(level)


def debug(loop: asyncio.AbstractEventLoop) -> None:
    """Let a loop log every callback, as `PYTHONASYNCIODEBUG=1` does for slow ones."""
    loop.set_debug(True)
    loop.slow_callback_duration = 0.0
