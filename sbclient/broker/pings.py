"""The last ping to each entity, with the answer. Pings are not stored as messages."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from sbclient.broker.faults import Call, NoAnswer
from sbclient.errors import ServiceBusError

MAX_PATHS: Final = 1_000
"""The maximum number of remembered paths, so that callers cannot exhaust the memory."""


class Ping(NamedTuple):
    """The last ping to an entity.

    Attributes:
        path: as the client spelled it.
        at: seconds.
        refusal: the class of the error, `NoAnswer` without an answer; None = the ping was accepted.
    """

    path: str
    at: float
    refusal: str | None


class Pings:
    """The last ping to each path."""

    def __init__(self) -> None:
        self._last: OrderedDict[str, Ping] = OrderedDict()

    def last(self, path: str) -> Ping | None:
        """The last ping to a path, spelled as the client spelled it."""
        return self._last.get(path)

    @contextmanager
    def noted(self, path: str, call: Call) -> Iterator[None]:
        """Record a ping and the result of the body of this context."""
        refusal: str | None = None
        try:
            yield
            if call.answer_after_s == math.inf:
                refusal = NoAnswer.__name__
        except (ServiceBusError, NoAnswer) as error:
            refusal = type(error).__name__
            raise
        finally:
            self._last[path] = Ping(path, call.now, refusal)
            self._last.move_to_end(path)
            if len(self._last) > MAX_PATHS:
                self._last.popitem(last=False)
