"""What an HTTP client asks for, and what it is answered; whoever answers needs to know no more of HTTP."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeAlias

TEXT: Final = "text/plain; charset=utf-8"
JSON: Final = "application/json; charset=utf-8"


class EventSource(Protocol):
    """Pieces of a response that come as time goes by."""

    def __aiter__(self) -> EventSource: ...

    async def __anext__(self) -> bytes:
        """The next piece."""

    async def aclose(self) -> None:
        """Nobody wants more; called once, whatever happened."""


@dataclass(frozen=True, slots=True)
class Request:
    """What a client asks for.

    Attributes:
        segments: of the path, each unquoted by itself, so that `%2F` is part of a name; none for `/`.
        query: the last value of each name.
        headers: by lower-case name; several of one name are joined by commas.
        client: the other side's address, for logs.
    """

    method: str
    segments: tuple[str, ...]
    query: Mapping[str, str]
    headers: Mapping[str, str] = field(repr=False)  # with a token
    body: bytes = field(repr=False)
    client: str

    @property
    def authority(self) -> str:
        """What the client calls this server: `localhost:5672`."""
        return self.headers.get("host", "localhost")


@dataclass(frozen=True, slots=True)
class Response:
    """What it is answered.

    Attributes:
        events: sent piece by piece after `body`, until they end or the client goes.
    """

    status: int
    body: bytes = field(default=b"", repr=False)
    content_type: str = TEXT
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    events: EventSource | None = None


class NoResponse(Exception):
    """Raised by a handler that lets the client wait for nothing: the connection ends without an answer."""


Handler: TypeAlias = Callable[[Request], Awaitable[Response]]
