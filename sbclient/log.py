"""What is logged, and where it goes: structured events on the standard logger `sbclient`, silent until an application
listens.

An event is a dotted name, its facts are keywords. They reach `logging` as the record's message and its `extra` fields,
so any handler, or structlog's `ProcessorFormatter` with `ExtraAdder`, can show them.
"""

from __future__ import annotations

import logging
from typing import Any

import structlog

logging.getLogger("sbclient").addHandler(logging.NullHandler())


def get_logger(name: str) -> Any:
    """The logger of a module, by its `__name__`."""
    return structlog.wrap_logger(
        logging.getLogger(name),
        processors=[structlog.stdlib.filter_by_level, structlog.stdlib.render_to_log_kwargs],
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
