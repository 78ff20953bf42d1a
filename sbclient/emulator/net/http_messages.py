"""HTTP requests and responses as the handlers of the emulator see them, without the protocol."""

from __future__ import annotations

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
