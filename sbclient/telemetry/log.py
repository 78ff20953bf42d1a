"""Structured log events on the standard logger `sbclient`, which is silent until an application configures logging.

A log call gives a dotted event name, a sentence, and the facts of the event as keywords. The record's message is the
sentence with the facts filled in. The name is the extra field `event_name`, and each fact is an extra field, too. A
handler or structlog's `ProcessorFormatter` with `ExtraAdder` can show them. Inside a span of OpenTelemetry, `trace_id`
and `span_id` are added to the facts; so are the context variables of structlog, if the application uses it. The record
is what `structlog.wrap_logger(..., processors=[merge_contextvars, render_to_log_kwargs])` would make of the call. But
importing structlog takes 70 ms, half of them for rich, and its records cannot hold a variable that is called `name`.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final
from unicodedata import category

from sbclient.telemetry import tracing

logging.getLogger("sbclient").addHandler(logging.NullHandler())

_TAKEN: Final = {*vars(logging.makeLogRecord({})), "message", "asctime"}
"""What a log record has itself: its constructor rejects extra fields with these names."""


class Logger:
    """The logger of one module. A disabled level costs one check, and the first event imports nothing.

    Each method takes the event name, a sentence with fields such as `{path!r}`, and the facts by name.
    """

    def __init__(self, name: str) -> None:
        self._standard = logging.getLogger(name)

    def info(self, event: str, message: str, /, **facts: Any) -> None:
        self.log(logging.INFO, event, message, **facts)

    def warning(self, event: str, message: str, /, **facts: Any) -> None:
        self.log(logging.WARNING, event, message, **facts)

    def error(self, event: str, message: str, /, **facts: Any) -> None:
        self.log(logging.ERROR, event, message, **facts)

    def log(self, level: int, event: str, message: str, /, **facts: Any) -> None:
        if self._standard.isEnabledFor(level):
            facts = without_error_text(facts)
            text, cause = sentence(message, facts), facts.pop("exc_info", None)
            extra = {**context_variables(), "event_name": event, **facts, **tracing.ids()}
            self._standard.log(level, text, exc_info=cause, extra=extra, stacklevel=3)  # of the caller of `warning`


def get_logger(name: str) -> Logger:
    """Return the logger of a module, by its `__name__`."""
    return Logger(name)


def context_variables() -> dict[str, Any]:
    """Return what the application has bound by `structlog.contextvars`. A name that a record has itself gains a `_`."""
    contextvars = sys.modules.get("structlog.contextvars")
    bound = contextvars.get_contextvars() if contextvars is not None else {}
    return {f"{name}_" if name in _TAKEN else name: value for name, value in bound.items()}


def without_error_text(facts: dict[str, Any]) -> dict[str, Any]:
    """Return the facts of an event; where `error` is an exception, it becomes the name of its class."""
    error = facts.get("error")
    return facts | {"error": type(error).__name__} if isinstance(error, BaseException) else facts


def sentence(message: str, facts: Mapping[str, Any]) -> str:
    """Return a message with its facts filled in, `printable`."""
    return printable(message.format_map(facts))


def printable(text: str) -> str:
    """Return a text that cannot control a terminal or forge a line, because parts of it may come from a peer.

    Control characters, line separators, marks of the writing direction and other invisible characters are escaped as
    by `repr`.
    """
    return text if text.isprintable() else "".join(each if _is_visible(each) else repr(each)[1:-1] for each in text)


def printable_json(value: Any, default: Callable[[Any], Any] | None = None) -> str:
    """Return a value as JSON on one line. The characters that `printable` escapes are escaped as JSON does.

    Args:
        default: as for `json.dumps`.
    """
    return printable_line(_encoder(default).encode(value))


def printable_line(line: str) -> str:
    """Return JSON on one line with the characters escaped that `printable` escapes."""
    if line.isprintable():
        return line
    return "".join(each if _is_visible(each) else json.dumps(each)[1:-1] for each in line)


@cache
def _encoder(default: Callable[[Any], Any] | None) -> json.JSONEncoder:
    return json.JSONEncoder(ensure_ascii=False, default=default)


def _is_visible(character: str) -> bool:
    return character.isprintable() or category(character) == "Zs"  # spaces other than that of ASCII
