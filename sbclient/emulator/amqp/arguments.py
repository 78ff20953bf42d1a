"""The arguments of a management request, each checked for the type that its operation expects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

from sbclient.amqp import servicebus
from sbclient.amqp.types import Timestamp
from sbclient.emulator.amqp.conditions import ArgumentError
from sbclient.emulator.amqp.request_response import Request

EARLIEST: Final = datetime.min.replace(tzinfo=UTC)
LATEST: Final = datetime.max.replace(tzinfo=UTC)
"""What .NET reads from an earlier or a later timestamp. Source of the second: the Go client."""

_INT64: Final = range(-(2**63), 2**63)


class Arguments:
    """The body of one request.

    Args:
        request: its body is a map; no body counts as an empty one.

    Raises:
        ArgumentError: the body is not a map. Every method raises it for a value that is missing or of another type.
    """

    def __init__(self, request: Request) -> None:
        self._operation = request.operation
        self._body: Mapping[Any, Any] = request.body if request.body is not None else {}
        if not isinstance(self._body, Mapping):
            raise ArgumentError(f"the body of {self._operation} is a {type(self._body).__name__}: give a map")

    def text(self, name: str) -> str:
        """A string."""
        value = self.optional_text(name)
        if value is None:
            raise self._wrong(name, "a string", None)
        return value

    def optional_text(self, name: str) -> str | None:
        """A string; None if it is missing."""
        value = self._body.get(name)
        if value is not None and not isinstance(value, str):
            raise self._wrong(name, "a string", value)
        return value

    def session_id(self) -> str | None:
        """The session id; None if it is missing."""
        return self.optional_text(servicebus.SESSION_ID)

    def number(self, name: str, default: int | None = None) -> int:
        """A whole number of 64 bits."""
        value = self._body.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or value not in _INT64:
            raise self._wrong(name, "a whole number", value)
        return int(value)

    def count(self, name: str, default: int | None = None) -> int:
        """A whole number that is not negative."""
        value = self.number(name, default)
        if value < 0:
            raise self._wrong(name, "a number of at least 0", value)
        return value

    def flag(self, name: str) -> bool:
        """A boolean; False if it is missing."""
        value = self._body.get(name)
        if value is not None and not isinstance(value, bool):
            raise self._wrong(name, "a boolean", value)
        return bool(value)

    def numbers(self, name: str) -> list[int]:
        """At least one whole number."""
        return [int(value) for value in self._several(name, int, "whole numbers")]

    def tokens(self, name: str) -> list[UUID]:
        """At least one lock token."""
        return self._several(name, UUID, "uuids")

    def maps(self, name: str) -> list[Mapping[str, Any]]:
        """At least one map."""
        return self._several(name, Mapping, "maps")

    def map(self, name: str) -> Mapping[Any, Any]:
        """A map; empty if it is missing."""
        value = self._body.get(name)
        if value is not None and not isinstance(value, Mapping):
            raise self._wrong(name, "a map", value)
        return value or {}

    def binary(self, name: str) -> bytes | None:
        """Bytes; None if they are missing."""
        value = self._body.get(name)
        if value is not None and not isinstance(value, bytes):
            raise self._wrong(name, "binary or null", value)
        return value

    def timestamp(self, name: str) -> datetime | None:
        """A timestamp; None if it is missing, `EARLIEST` or `LATEST` if it is outside of the years 1 to 9999."""
        value = self._body.get(name)
        if isinstance(value, Timestamp):
            return LATEST if value > 0 else EARLIEST
        if value is None or isinstance(value, datetime):
            return value
        raise self._wrong(name, "a timestamp", value)

    def any(self, name: str) -> Any:
        """A value of any type; None if it is missing."""
        return self._body.get(name)

    def _several(self, name: str, kind: type, what: str) -> list[Any]:
        values = self._body.get(name)
        if not isinstance(values, Sequence) or isinstance(values, str | bytes) or not values:
            raise self._wrong(name, f"an array of {what}, at least one", values)
        for value in values:
            if not isinstance(value, kind) or isinstance(value, bool):
                raise self._wrong(name, f"an array of {what}", value)
        return list(values)

    def _wrong(self, name: str, expected: str, value: Any) -> ArgumentError:
        found = "is missing" if value is None else f"is a {type(value).__name__}"
        return ArgumentError(f"{name} of {self._operation} {found}: give {expected}")
