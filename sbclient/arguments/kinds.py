"""Checks the arguments of public calls, before a call does anything.

A wrong type is a `TypeError`, a value out of range an `InvalidOperationError`, which is a `ValueError`.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Final

from sbclient.errors import InvalidOperationError

MAX_COUNT: Final = 2**31 - 1
"""Larger counts of messages are taken as this, the largest that every request can carry."""


def check_encodable(name: str, value: str) -> str:
    """Return the text if UTF-8 can encode it, so that no encoder or hash fails on it later."""
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:  # not chained: its text shows the value
            raise InvalidOperationError(
                f"{name} contains a lone surrogate, which UTF-8 cannot encode: decode the text correctly"
            ) from None
    return value


def check_reason(name: str, value: Any) -> str | None:
    """Return a reason or description as text; None for an empty one. An exception is taken as its text."""
    if isinstance(value, BaseException):
        value = str(value) or type(value).__name__
    if value is None:
        return None
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, an exception or None, not {type(value).__name__}: give str(value)")
    return check_encodable(name, str.__str__(value)) or None


def check_count(name: str, value: Any) -> int:
    """Return a number of messages, at least 1 and at most `MAX_COUNT`."""
    if type(value) is not int and (not isinstance(value, int) or isinstance(value, bool)):
        raise TypeError(f"{name} must be an int, not {type(value).__name__} {value!r:.50}")
    if value < 1:
        raise InvalidOperationError(f"{name} is {value}: it must be at least 1")
    return min(int(value), MAX_COUNT)


def check_session(name: str, value: Any, next_available: Enum) -> Any:
    """Return a session id, None, or the member that means the next available session, also that of azure-servicebus."""
    if value is None or value is next_available:
        return value
    if isinstance(value, Enum) and str(value) == str(next_available):
        return next_available
    if not isinstance(value, str):
        raise TypeError(
            f"{name} must be a str, NEXT_AVAILABLE_SESSION or None, not {type(value).__name__}: give str(value)"
        )
    return check_encodable(name, str.__str__(value))
