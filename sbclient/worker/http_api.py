"""The HTTP endpoints of the worker: health, metrics, pause and resume.

`/healthz` is for a liveness probe: it answers while the event loop runs. `/readyz` is for people, alerts and readiness
probes: it returns whether backlog is drained now, and if not, why. `/metrics` is for Prometheus.

Pause and resume are accepted from this machine only, and not from a web page: the port has no other protection. A web
page whose name resolves to this machine is known by the `Host` of its requests. Idle connections cannot keep a probe
from being answered: beyond the limit the oldest one is closed.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import json
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final, cast

from aiohttp import web

from sbclient import clock, prometheus
from sbclient.certificate import LOCAL_NAMES, is_this_machine
from sbclient.errors import InvalidOperationError
from sbclient.rules.refusal import OngoingError
from sbclient.syphon.status import QueueStatus
from sbclient.telemetry.log import get_logger
from sbclient.worker.readiness import NamespaceHealth
from sbclient.worker.service import SyphonWorker

log = get_logger(__name__)

ENTITIES_LISTED: Final = 50
"""Limit of the entities that refuse in one answer of `/readyz`."""

MAX_BODY_BYTES: Final = 2**20
MAX_CONNECTIONS: Final = 100
REQUEST_S: Final = 30.0
"""Limit of the time to receive a request, also the first one of a connection, and to send its response."""
KEEP_ALIVE_S: Final = 120.0
"""How long a connection may be idle after a request."""
SHUT_DOWN_S: Final = 1.0

READS: Final = ("GET", "HEAD")
METHODS: Final[Mapping[str, tuple[str, ...]]] = {
    "/healthz": READS,
    "/readyz": READS,
    "/metrics": READS,
    "/pause": ("POST",),
    "/resume": ("POST",),
}
"""The allowed methods of each path."""

PORT_ERRORS: Final = (errno.EADDRINUSE, errno.EACCES)
"""Errors of `listen` that the port causes; the address causes all others."""

JSON: Final = "application/json; charset=utf-8"
TEXT: Final = "text/plain; charset=utf-8"

Exposition = Callable[[], tuple[str, bytes]]
"""Returns the content type and the text for Prometheus."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP response."""

    status: int
    body: bytes = field(repr=False)
    content_type: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


class WorkerApi:
    """Answers the HTTP requests to one worker.

    Args:
        exposition: raises `InvalidOperationError` if its packages are missing.
        is_exposed: whether other machines can reach the port. They use any name for it.
    """

    def __init__(self, worker: SyphonWorker, exposition: Exposition, *, is_exposed: bool = False) -> None:
        self._worker = worker
        self._exposition = exposition
        self._is_exposed = is_exposed

    def answer(
        self, method: str, path: str, *, client: str | None, host: str = "localhost", has_origin: bool = False
    ) -> Answer:
        """Answer one request.

        Args:
            path: without query.
            client: IP address of the client; None = unknown.
            host: the header `Host`.
            has_origin: whether the request has an `Origin` header, as those of web pages have.
        """
        path = f"/{path.strip('/')}"
        is_changing = "POST" in METHODS.get(path, ())
        if (is_changing or not self._is_exposed) and not _is_local_name(host):
            return _json(403, {"error": f"the host name {host[:100]!r} is not that of this machine: use localhost"})
        if path == "/":
            return _json(200, {"paths": list(METHODS)})
        if path not in METHODS:
            return _json(404, {"error": f"unknown path: use one of {', '.join(METHODS)}"})
        allowed = METHODS[path]
        if method not in allowed:
            refused = _json(405, {"error": f"{path} accepts only {' and '.join(allowed)}"})
            return Answer(refused.status, refused.body, headers={"Allow": ", ".join(allowed)})
        match path:
            case "/healthz":
                return _json(200, {"status": "alive"})
            case "/readyz":
                return self._readiness()
            case "/metrics":
                return self._metrics()
        if has_origin or not _is_this_machine(client):
            return _json(403, {"error": f"{path} is accepted from this machine only, and not from a web page"})
        is_done = self._worker.pause() if path == "/pause" else self._worker.resume()
        if not is_done:
            return _json(409, {"error": "the worker is stopping", "state": self._worker.state})
        return _json(200, {"state": self._worker.state})

    def _readiness(self) -> Answer:
        reasons = self._worker.reasons_against()
        now = clock.monotonic()
        primary, secondary = self._worker.health()
        syphon, report = self._worker.syphon_status(), self._worker.report()
        refusing = syphon.refusing if syphon is not None else {}
        return _json(
            503 if reasons else 200,
            {
                "status": "not ready" if reasons else "ready",
                "reasons": reasons,
                "state": self._worker.state,
                "primary": _namespace(primary, now),
                "secondary": _namespace(secondary, now),
                "queues": [_queue(queue, now) for queue in syphon.queues] if syphon is not None else [],
                "missing_queues": self._worker.missing_queues,
                "refusing": {
                    path: {"for_s": _ago(error.since_at, now), "error": error.text}
                    for path, error in list(refusing.items())[:ENTITIES_LISTED]
                },
                "refusing_count": len(refusing),
                "redirected_for_s": {
                    path: _ago(since_at, now)
                    for path, since_at in list(syphon.redirected.items() if syphon is not None else ())[
                        :ENTITIES_LISTED
                    ]
                },
                "drained": report.drained,
                "dead_lettered": report.dead_lettered,
                "parked": report.parked,
                "redirected": report.redirected,
            },
        )

    def _metrics(self) -> Answer:
        try:
            content_type, text = self._exposition()
        except InvalidOperationError as error:
            return _json(501, {"error": error.message})
        return Answer(200, text, content_type)


class HttpPort:
    """Serves the endpoints on one port, with limits of connections, time and request size."""

    def __init__(self, api: WorkerApi) -> None:
        self._api = api
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.router.add_route("*", "/{path:.*}", self._handle)
        # aiohttp would log what a client sent; failures of a handler are logged here.
        silent = logging.Logger("silent", level=logging.CRITICAL + 1)
        self._runner = web.AppRunner(
            app, access_log=None, logger=silent, keepalive_timeout=KEEP_ALIVE_S, shutdown_timeout=SHUT_DOWN_S
        )
        self._new: set[Any] = set()
        self._busy: set[Any] = set()
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen and return the port.

        Args:
            port: 0 = any free port.

        Raises:
            OSError: the address or the port cannot be used.
        """
        await self._runner.setup()
        self._server = await asyncio.get_running_loop().create_server(self._connection, host, port)
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stop listening and close every connection. Safe to call twice."""
        if self._server is not None:
            self._server.close()
        await self._runner.cleanup()

    def _connection(self) -> asyncio.BaseProtocol:
        server = self._runner.server
        if server is None:
            return _Rejected()
        connections = [each for each in server.connections if each.transport and not each.transport.is_closing()]
        if len(connections) >= MAX_CONNECTIONS:
            idle = [each for each in connections if each not in self._busy]
            cast(asyncio.Transport, (idle or connections)[0].transport).abort()
        connection = server()
        self._new.add(connection)
        clock.call_later(REQUEST_S, lambda: self._close_new(connection))
        return connection

    def _close_new(self, connection: Any) -> None:
        """Close a connection that has not sent the head of its first request in time."""
        if connection in self._new:
            self._new.discard(connection)
            if connection.transport is not None:
                connection.transport.abort()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self._new.discard(request.protocol)
        self._busy.add(request.protocol)
        try:
            return await self._answered(request)
        finally:
            self._busy.discard(request.protocol)

    async def _answered(self, request: web.Request) -> web.StreamResponse:
        try:
            async with clock.timeout(REQUEST_S):
                await request.read()
            answer = self._api.answer(
                request.method,
                request.path,
                client=request.remote,
                host=request.host,
                has_origin="Origin" in request.headers,
            )
        except TimeoutError:
            answer = Answer(408, f"the request was not complete within {REQUEST_S:g} s".encode(), TEXT)
        except web.HTTPRequestEntityTooLarge:
            answer = Answer(413, f"the body is larger than the {MAX_BODY_BYTES} bytes allowed".encode(), TEXT)
        except Exception as error:
            log.error(
                "http.handler_failed",
                "a {method} request failed: unexpected {error}",
                method=request.method,
                error=error,
                exc_info=error,
            )
            answer = Answer(500, b"unexpected error: see the log", TEXT)
        headers = {"Content-Type": answer.content_type, "Server": "sbclient", **answer.headers}
        response = web.Response(status=answer.status, body=answer.body, headers=headers)
        if answer.status in (408, 413):
            response.force_close()  # the rest of the request is not read
        try:
            async with clock.timeout(REQUEST_S):
                await response.prepare(request)
                await response.write_eof()
        except TimeoutError:  # the client does not read
            if request.transport is not None:
                request.transport.abort()
        return response


class _Rejected(asyncio.Protocol):
    """A connection while the port closes."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).abort()


@asynccontextmanager
async def served(worker: SyphonWorker, *, host: str, port: int) -> AsyncIterator[int]:
    """Serve the endpoints of a worker while the context lasts; the value is the port.

    Args:
        port: 0 = any free port.

    Raises:
        InvalidOperationError: the address or the port cannot be used.
    """
    with suppress(InvalidOperationError):  # `/metrics` reports a missing package
        prometheus.start()
    server = HttpPort(WorkerApi(worker, prometheus.exposition, is_exposed=not is_this_machine(host)))
    try:
        try:
            number = await server.start(host, port)
        except OSError as error:
            if error.errno not in PORT_ERRORS:
                raise InvalidOperationError(
                    f"http_host is {host!r}, which is no address of this machine ({error.strerror}): use an address of "
                    "this machine, or 0.0.0.0 for all of them"
                ) from error
            reason = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be used ({error.strerror})"
            raise InvalidOperationError(
                f"http_port {port} {reason} on {host}: choose another port, or 0 for any free one"
            ) from error
        log.info("worker.listening", "the worker listens on {host}:{port}", host=host, port=number)
        yield number
    finally:
        await server.close()


def _is_local_name(authority: str) -> bool:
    """Whether a `Host`, with or without a port, is a name of this machine for itself or for its containers."""
    host = authority.strip().lower()
    host = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0].rstrip(".")
    return host in LOCAL_NAMES or is_this_machine(host)


def _is_this_machine(client: str | None) -> bool:
    try:
        address = ipaddress.ip_address((client or "").partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def _json(status: int, content: dict[str, Any]) -> Answer:
    return Answer(status, json.dumps(content).encode() + b"\n")


def _ago(at: float | None, now: float) -> float | None:
    return None if at is None else round(now - at, 1)


def _error(error: OngoingError | None, now: float) -> dict[str, Any]:
    if error is None:
        return {"error": None}
    return {"error": error.text, "error_for_s": _ago(error.since_at, now)}


def _namespace(health: NamespaceHealth, now: float) -> dict[str, Any]:
    return {
        "namespace": health.namespace,
        "is_reachable": health.error is None and health.reached_at is not None,
        "answered_s_ago": _ago(health.reached_at, now),
        **_error(health.error, now),
    }


def _queue(queue: QueueStatus, now: float) -> dict[str, Any]:
    return {
        "queue": queue.queue,
        "in_flight": queue.in_flight,
        "answered_s_ago": _ago(queue.answered_at, now),
        "waits_for_s": _ago(queue.polled_at, now),
        **_error(queue.error, now),
    }
