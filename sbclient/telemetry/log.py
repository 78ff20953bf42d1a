"""What is logged, and where it goes: structured events on the standard logger `sbclient`, silent until an application
listens.

An event is a dotted name, its facts are keywords. They reach `logging` as the record's message and its `extra` fields,
so any handler, or structlog's `ProcessorFormatter` with `ExtraAdder`, can show them. While a span of OpenTelemetry is
current, `trace_id` and `span_id` are among them.
"""

from __future__ import annotations

import logging
from functools import cached_property
from typing import Any

from sbclient.telemetry import tracing

logging.getLogger("sbclient").addHandler(logging.NullHandler())


class Logger:
    """The logger of one module. What nobody listens to costs a look at the level, and not even structlog's import."""

    def __init__(self, name: str) -> None:
        self._standard = logging.getLogger(name)

    @cached_property
    def _structured(self) -> Any:
        import structlog  # 40 ms, a tenth of what the emulator may take to start

        return structlog.wrap_logger(
            self._standard,
            processors=[structlog.stdlib.render_to_log_kwargs],
            wrapper_class=structlog.stdlib.BoundLogger,
        ).bind()  # until then it is put together anew for each event

    def debug(self, event: str, **facts: Any) -> None:
        if self._standard.isEnabledFor(logging.DEBUG):
            self._structured.debug(event, **facts, **tracing.ids())

    def info(self, event: str, **facts: Any) -> None:
        if self._standard.isEnabledFor(logging.INFO):
            self._structured.info(event, **facts, **tracing.ids())

    def warning(self, event: str, **facts: Any) -> None:
        if self._standard.isEnabledFor(logging.WARNING):
            self._structured.warning(event, **facts, **tracing.ids())

    def error(self, event: str, **facts: Any) -> None:
        if self._standard.isEnabledFor(logging.ERROR):
            self._structured.error(event, **facts, **tracing.ids())


def get_logger(name: str) -> Logger:
    """The logger of a module, by its `__name__`."""
    return Logger(name)
