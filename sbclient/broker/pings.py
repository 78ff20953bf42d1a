"""The pings that came to a namespace, which nobody else ever sees: what each entity answered to the last one."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from sbclient.broker.faults import Call, NoAnswer
from sbclient.errors import ServiceBusError

MAX_PATHS: Final = 1_000
"""Paths of which the last ping is known, so that nobody can make the table grow for ever."""


class Ping(NamedTuple):
    """The last ping to an entity.

    Attributes:
        path: as the client spelled it.
        at: seconds.
        refusal: the class of the error that it met, `NoAnswer` if it met silence; None = it was accepted.
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
        """Note a ping and how the body of this context answers it."""
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
