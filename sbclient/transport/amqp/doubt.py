"""Errors of calls that share one cause, each with its own doubt."""

from __future__ import annotations

import copy
from typing import TypeVar

from sbclient.errors import ServiceBusError

E = TypeVar("E", bound=ServiceBusError)


def own_error(error: E, *, is_in_doubt: bool) -> E:
    """A copy of an error for one of several callers: an exception that many tasks raise mixes up their tracebacks.

    Args:
        error: the common cause.
        is_in_doubt: whether the service may have acted on this caller's request.
    """
    own = copy.copy(error)
    own.__cause__ = error.__cause__
    own.is_in_doubt = is_in_doubt
    return own
