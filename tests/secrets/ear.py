"""Hears all that is told while something runs, and finds canaries in it."""

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
"""Loggers of others: what they say at DEBUG is theirs."""


class Ear(logging.Handler):
    """What was told, with where."""

    def __init__(self) -> None:
        super().__init__(logging.NOTSET)
        self.heard: list[tuple[str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.partition(".")[0] not in FOREIGN:
            shown = logging.Formatter().format(record)
            self.hear(f"log {record.name}", f"{shown} {record.__dict__}")
            if record.exc_info and record.exc_info[1] is not None:
                self.hear_error(f"log {record.name}", record.exc_info[1])

    def hear(self, where: str, told: Any) -> None:
        """Something was told, as text or as something whose repr is told."""
        self.heard.append((where, told if isinstance(told, str) else repr(told)))

    def hear_error(self, where: str, error: BaseException) -> None:
        """An error reached the application, or a log: its texts, its causes, its traceback and its pickle."""
        self.hear(where, "".join(traceback.format_exception(error)))
        for each in _chain(error):
            self.hear(where, f"{each!r} {each} {each.args!r} {vars(each)!r}")
            with suppress(TypeError, AttributeError, pickle.PicklingError):
                self.hear(f"{where}, pickled", pickle.dumps(each).decode("latin-1"))

    @contextmanager
    def expecting(self, *kinds: type[BaseException], where: str = "error") -> Iterator[None]:
        """The body is to fail, and the error is listened to."""
        try:
            yield
        except kinds as error:
            self.hear_error(where, error)
        else:
            raise AssertionError(f"{where}: nothing was raised")

    def leaks(self, allowed: Collection[str] = ()) -> list[str]:
        """Each canary that was heard, with where and some of the words around it."""
        return [
            f"{where} tells {name}: {text[:300]!r}" for where, text in self.heard for name in found_in(text, allowed)
        ]

    def check(self, *, at_least: int = 1) -> None:
        """Nothing was told that may not be; and that much was, or nothing is proved."""
        assert len(self.heard) >= at_least, f"only {len(self.heard)} things were told"
        leaks = self.leaks()
        assert not leaks, "\n".join(leaks[:10])


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The errors that a traceback shows: this one, its causes, and those of a group."""
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
def listening() -> Iterator[Ear]:
    """Hear every log record of every level, every warning, and the debug output of the running loop."""
    ear, root = Ear(), logging.getLogger()
    ours = [logging.getLogger(name) for name in ("sbclient", "sbclient_spark", "asyncio")]
    levels = [(logger, logger.level) for logger in (root, *ours)]
    root.addHandler(ear)
    for logger, _ in levels:
        logger.setLevel(logging.DEBUG)
    with warnings.catch_warnings():
        show = warnings.showwarning
        warnings.showwarning = lambda *told, **more: ear.hear("warning", f"{told} {more}")
        try:
            yield ear
        finally:
            warnings.showwarning = show
            root.removeHandler(ear)
            for logger, level in levels:
                logger.setLevel(level)


def debug(loop: asyncio.AbstractEventLoop) -> None:
    """Let a loop tell of everything that it runs, as `PYTHONASYNCIODEBUG=1` does of what is slow."""
    loop.set_debug(True)
    loop.slow_callback_duration = 0.0
