"""One HTTP/1.1 connection on the side of the server: bytes to requests, and responses to bytes.

Laws:

1. Requests are served one at a time. The connection stays open for the next one unless either side closes it.
2. The memory for a client is bounded: `ServerSettings` limits head and body. A request must be complete in time, the
   client must read the response in time, and a silent connection ends.
3. An invalid request gets an error status, and its connection ends. An unexpected error of a handler is a 500.
4. A request that another web page makes is rejected, on every path, by its site: see `net.browsers`.
5. A client that sends much does not block the others: see `net.time_slice`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from email.utils import formatdate
from functools import cached_property
from http import HTTPStatus
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qsl, unquote

import h11

from sbclient import clock
from sbclient.amqp import servicebus
from sbclient.emulator.net.http_messages import Connection, EventSource, Handler, NoResponse, Request, Response, Site
from sbclient.emulator.net.stream import ByteStream
from sbclient.emulator.net.time_slice import TimeSlice, start_unauthenticated
from sbclient.emulator.net.tls_stream import TlsStream
from sbclient.telemetry.log import get_logger

log = get_logger(__name__)

MAX_TARGET_LENGTH: Final = 8192
MAX_HEADER_LINES: Final = 200
"""Of one request: each takes time to parse, and `max_header_bytes` has room for thousands."""

_END_OF_HEAD: Final = re.compile(rb"\n\r?\n")

Upgrade: TypeAlias = Callable[[ByteStream, Any, bytes], Awaitable[None]]
"""Takes over a connection, with the `h11.Request` for the upgrade and the bytes that followed it."""


async def serve_http(
    stream: ByteStream, site: Site, first: bytes, handler: Handler, upgrade: Upgrade | None = None
) -> None:
    """Serve one connection until it ends.

    Args:
        first: the bytes that were read to detect the protocol.
        handler: answers requests.
        upgrade: takes over a connection that becomes a WebSocket; None = none does.
    """
    connection = _Connection(stream, site, handler, upgrade)
    try:
        await connection.serve(first)
    except NoResponse:
        log.info("http.cut", "closed the connection of {client}: the client is too slow or silent", client=stream.peer)
    finally:
        await stream.close()


class _Connection:
    def __init__(self, stream: ByteStream, site: Site, handler: Handler, upgrade: Upgrade | None) -> None:
        self._stream = stream
        self._site = site
        self._settings = site.settings
        self._unauthenticated = site.unauthenticated
        self._handler = handler
        self._upgrade = upgrade
        self._time_slice = TimeSlice(site.unauthenticated)
        self._engine = h11.Connection(h11.SERVER, max_incomplete_event_size=site.settings.max_header_bytes)

    # ------------------------------------------------------------------ as the handler sees it

    @property
    def scheme(self) -> str:
        return "https" if isinstance(self._stream, TlsStream) else "http"

    @cached_property
    def front_end(self) -> int:
        return self._site.connect()

    async def gone(self) -> None:
        while True:
            ahead, _ = self._engine.trailing_data
            if len(ahead) > self._settings.max_header_bytes:  # read no more until the handler has answered
                await asyncio.Event().wait()
            data = await self._stream.read()
            if not data:
                return
            self._engine.receive_data(data)

    # ------------------------------------------------------------------ requests

    async def serve(self, first: bytes) -> None:
        if first:  # h11 takes empty data as the end of the connection
            self._engine.receive_data(first)
        try:
            while await self._serve_request():
                self._engine.start_next_cycle()
        except h11.RemoteProtocolError as error:
            # The text of the library may show what the client sent, such as a token.
            await self._refuse(error.error_status_hint, "the request is malformed: send HTTP/1.1")
        except TimeoutError:
            await self._refuse(408, f"the request was not complete within {self._settings.request_timeout_s:g} s")

    async def _serve_request(self) -> bool:
        """Serve one request; returns whether the connection stays open."""
        if not await self._await_request():
            return False
        async with clock.timeout(self._settings.request_timeout_s):
            head = await self._event()
            if not isinstance(head, h11.Request):
                return False
            if head.http_version not in (b"1.0", b"1.1"):
                await self._refuse(505, "the version is not supported: send HTTP/1.1")
                return False
            if _has_two_lengths(head):
                await self._refuse(400, "the request has a Content-Length and a Transfer-Encoding: send one of them")
                return False
            request = _request_of(head, self._stream.peer, self)
            if request is None:
                await self._refuse(400, "the target of the request is malformed: send a path with percent encoding")
                return False
            reason = self._site.reason_to_refuse(request)
            if reason is not None:
                await self._refuse(403, reason)
                return False
            upgrade = self._upgrade if _wants_websocket(request) else None
            if upgrade is not None and _has_body(request):
                await self._refuse(400, "a request for a WebSocket has a body: send none")
                return False
            max_body_bytes = self._site.max_body_bytes(request)
            body = await self._body(max_body_bytes) if upgrade is None else b""
        if upgrade is not None:
            await upgrade(self._stream, head, self._engine.trailing_data[0])
            return False
        if body is None:
            advice = ": a longer one needs a valid token" if max_body_bytes < self._settings.max_body_bytes else ""
            await self._refuse(413, f"the body is larger than {max_body_bytes} bytes{advice}")
            return False
        await self._respond(await self._answer(replace(request, body=body)), is_head=head.method == b"HEAD")
        return self._engine.states == {h11.CLIENT: h11.DONE, h11.SERVER: h11.DONE}

    async def _await_request(self) -> bool:
        """Wait for the first byte of a request; returns whether there is one."""
        if self._engine.trailing_data[0]:
            await self._time_slice.start_next()
            return True
        try:
            async with clock.timeout(self._settings.http_idle_timeout_s):
                data = await self._stream.read()
        except TimeoutError:
            return False
        await start_unauthenticated(self._unauthenticated)
        self._engine.receive_data(data)
        return bool(data)

    async def _event(self) -> Any:
        self._time_slice.count()
        if self._time_slice.is_over:
            await self._time_slice.start_next()
        while True:
            if self._engine.their_state is h11.IDLE:
                self._check_head()
            event = self._engine.next_event()
            if event is not h11.NEED_DATA:
                return event
            if self._engine.they_are_waiting_for_100_continue:
                self._send(h11.InformationalResponse(status_code=100, headers=[]))
            data = await self._stream.read()
            await start_unauthenticated(self._unauthenticated)
            self._engine.receive_data(data)

    def _check_head(self) -> None:
        """Check the number of header lines before the engine parses all of them in one step."""
        received, _ = self._engine.trailing_data
        end = _END_OF_HEAD.search(received)
        if received.count(b"\n", 0, end.start() if end else len(received)) > MAX_HEADER_LINES:
            raise h11.RemoteProtocolError(f"more than {MAX_HEADER_LINES} headers", error_status_hint=431)

    async def _body(self, max_body_bytes: int) -> bytes | None:
        """The body; None if it is too large."""
        parts, size_bytes = [], 0
        while isinstance(event := await self._event(), h11.Data):
            size_bytes += len(event.data)
            if size_bytes > max_body_bytes:
                return None
            parts.append(bytes(event.data))
        return b"".join(parts)

    async def _answer(self, request: Request) -> Response:
        try:
            return await self._handler(request)
        except NoResponse:
            raise
        except Exception as error:
            log.error(
                "http.handler_failed",
                "a {method} request failed: unexpected {error}",
                method=request.method,
                error=error,
                exc_info=error,
            )
            return Response(500, b"unexpected error: see the log")

    async def _refuse(self, status: int, text: str) -> None:
        if self._engine.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            with suppress(h11.LocalProtocolError):
                await self._respond(Response(status, text.encode(), headers={"Connection": "close"}))

    async def _respond(self, response: Response, *, is_head: bool = False) -> None:
        headers = {"Content-Type": response.content_type} if response.content_type else {}
        date = formatdate(clock.now(), usegmt=True)
        headers |= {"Date": date, "Server": "sbclient", **response.headers}
        has_length = response.events is None and not response.is_chunked
        if has_length and response.status != HTTPStatus.NO_CONTENT:
            headers["Content-Length"] = str(len(response.body))
        reason = (response.reason or HTTPStatus(response.status).phrase).encode()
        self._send(h11.Response(status_code=response.status, headers=list(headers.items()), reason=reason))
        if not is_head:
            self._send(h11.Data(data=response.body))
            if response.events is not None:
                await self._stream_out(response.events)
        self._send(h11.EndOfMessage())
        async with clock.timeout(self._settings.request_timeout_s):
            await self._stream.drain()

    async def _stream_out(self, events: EventSource) -> None:
        """Send events until the client sends anything or disconnects.

        Raises:
            NoResponse: the client does not read the events.
        """
        gone = asyncio.ensure_future(self._stream.read())

        async def send_all() -> None:
            async for event in events:
                self._send(h11.Data(data=event))
                async with clock.timeout(self._settings.request_timeout_s):
                    await self._stream.drain()

        sending = asyncio.ensure_future(send_all())
        try:
            await asyncio.wait({gone, sending}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (gone, sending):
                task.cancel()
            ends = await asyncio.gather(gone, sending, return_exceptions=True)
            await events.aclose()
        if isinstance(ends[1], TimeoutError):
            raise NoResponse

    def _send(self, event: Any) -> None:
        data = self._engine.send(event)
        if data:
            self._stream.write(data)


def _wants_websocket(request: Request) -> bool:
    path = "/" + "/".join(request.segments)
    return (
        path.casefold() == servicebus.WEBSOCKET_PATH
        and request.headers.get("upgrade", "").strip().casefold() == "websocket"
    )


def _has_two_lengths(head: h11.Request) -> bool:
    """Whether a proxy in between may have seen another end of the body. Source: RFC 9112, section 6.3."""
    return {b"content-length", b"transfer-encoding"} <= {name for name, _ in head.headers}


def _has_body(request: Request) -> bool:
    """Whether a body follows the head, which a proxy in between would not take for WebSocket frames."""
    return "transfer-encoding" in request.headers or request.headers.get("content-length", "0").strip() != "0"


def _request_of(head: h11.Request, client: str, connection: Connection) -> Request | None:
    """The request without its body; None if its target is malformed."""
    target = head.target.decode("ascii", "replace")
    if "://" in target[:12]:
        target = "/" + target.partition("://")[2].partition("/")[2]
    path, _, query = target.partition("?")
    if not path.startswith("/") or len(target) > MAX_TARGET_LENGTH:
        return None
    headers: dict[str, str] = {}
    header_names: dict[str, str] = {}
    for raw_name, raw_value in head.headers.raw_items():
        sent, value = raw_name.decode("ascii"), raw_value.decode("latin-1")
        name = sent.lower()
        header_names[name] = sent
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    try:
        fields = dict(parse_qsl(query, keep_blank_values=True, max_num_fields=64))
        segments = tuple(unquote(part, errors="strict") for part in path.strip("/").split("/"))
    except ValueError:
        return None
    return Request(
        method=head.method.decode("ascii").upper(),
        segments=() if segments == ("",) else segments,
        query=fields,
        headers=headers,
        body=b"",
        client=client,
        connection=connection,
        raw_query=query,
        header_names=header_names,
    )
