"""HTTP requests and responses as the handlers of a server see them, without the protocol."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeAlias

from sbclient.errors import InvalidOperationError
from sbclient.formats.strict_json import read_json

TEXT: Final = "text/plain; charset=utf-8"
JSON: Final = "application/json; charset=utf-8"


class EventSource(Protocol):
    """The parts of a streamed response."""

    def __aiter__(self) -> EventSource: ...

    async def __anext__(self) -> bytes:
        """The next part."""

    async def aclose(self) -> None:
        """The response has ended. Called exactly once."""


class Connection(Protocol):
    """The connection of a request."""

    @property
    def scheme(self) -> str:
        """`http` or `https`."""

    @property
    def front_end(self) -> int:
        """The front end of the broker that serves this connection."""

    async def gone(self) -> None:
        """Wait until the client has disconnected."""


@dataclass(frozen=True, slots=True)
class Request:
    """An HTTP request.

    Attributes:
        segments: of the path, each unquoted by itself, so that `%2F` is part of a name; empty for `/`.
        query: the last value of each name.
        headers: by lower-case name; several of one name are joined by commas.
        client: the address of the client, for logs.
        connection: of the client.
        raw_query: the query as it was sent.
        header_names: the names of the headers as they were sent, by lower-case name.
    """

    method: str
    segments: tuple[str, ...]
    query: Mapping[str, str]
    headers: Mapping[str, str] = field(repr=False)  # with a token
    body: bytes = field(repr=False)
    client: str
    connection: Connection = field(repr=False)
    raw_query: str = ""
    header_names: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def authority(self) -> str:
        """Host and port of this server, as the client addresses it: `localhost:5672`."""
        return self.headers.get("host", "localhost")


@dataclass(frozen=True, slots=True)
class Response:
    """An HTTP response.

    Attributes:
        content_type: empty = the header is left out.
        reason: after the status, without line breaks; empty = the usual one of the status.
        is_chunked: whether the body is sent in chunks, without a header for its length.
        events: sent part by part after `body`, until they end or the client disconnects.
    """

    status: int
    body: bytes = field(default=b"", repr=False)
    content_type: str = TEXT
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    events: EventSource | None = None
    reason: str = ""
    is_chunked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSettings:
    """Limits of an HTTP server.

    Attributes:
        max_header_bytes: of one request, including its first line.
        max_body_bytes: of one request; the description of an entity has some kilobytes.
        request_timeout_s: how long a client has to send one whole request after its first byte.
        http_idle_timeout_s: how long a connection may be silent between two requests.
    """

    max_header_bytes: int = 65_536
    max_body_bytes: int = 2**20
    request_timeout_s: float = 30.0
    http_idle_timeout_s: float = 120.0


class Site(Protocol):
    """What an HTTP server serves: a namespace of the emulator, or a worker."""

    @property
    def settings(self) -> HttpSettings:
        """The limits."""

    @property
    def unauthenticated(self) -> asyncio.Semaphore:
        """Limits how many clients without a token are served in one step of the event loop."""

    def connect(self) -> int:
        """The front end of the broker for a new connection."""

    def reason_to_refuse(self, request: Request) -> str | None:
        """The reason to reject a request before its body is read; None = accept it."""

    def max_body_bytes(self, request: Request) -> int:
        """The limit of the body of a request, at most that of the settings."""


class NoResponse(Exception):
    """Raised by a handler to end the connection without a response."""


Handler: TypeAlias = Callable[[Request], Awaitable[Response]]


def json_response(status: int, value: Any) -> Response:
    """A response with a JSON body."""
    return Response(status, json.dumps(value, indent=1, default=str).encode(), JSON)


def json_body(request: Request) -> Any:
    """The JSON value in the body of a request; None if the body is empty.

    Raises:
        InvalidOperationError: the body is not JSON.
    """
    return read_json(request.body) if request.body.strip() else None


def json_object(request: Request, *names: str) -> dict[str, Any]:
    """The JSON object in the body of a request; empty if the body is empty.

    Args:
        names: the members that are allowed.

    Raises:
        InvalidOperationError: the body is not an object, or has another member.
    """
    value = json_body(request)
    if value is None:
        return {}
    if not isinstance(value, dict) or any(name not in names for name in value):
        allowed = f"an object with {' and '.join(names)}, or nothing" if names else "nothing"
        raise InvalidOperationError(f"the body is not what this request takes: send {allowed}")
    return value
