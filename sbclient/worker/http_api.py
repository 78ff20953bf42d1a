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
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from random import Random
from typing import Any, Final

from sbclient import clock, prometheus
from sbclient.certificate import is_this_machine
from sbclient.emulator.faults import WireFaults
from sbclient.emulator.net.browsers import host_of, is_loopback_name
from sbclient.emulator.net.http import serve_http
from sbclient.emulator.net.http_messages import JSON, HttpSettings, Request, Response
from sbclient.emulator.net.socket_stream import SocketStream
from sbclient.errors import InvalidOperationError
from sbclient.rules.refusal import OngoingError
from sbclient.syphon.status import QueueStatus
from sbclient.tasks import OwnedTasks
from sbclient.telemetry.log import get_logger
from sbclient.worker.readiness import NamespaceHealth
from sbclient.worker.service import SyphonWorker

log = get_logger(__name__)

ENTITIES_LISTED: Final = 50
"""Limit of the entities that refuse in one answer of `/readyz`."""

LIMITS: Final = HttpSettings()
MAX_CONNECTIONS: Final = 100
SERVED_AT_ONCE: Final = 8
"""Connections that are served in one step of the event loop."""

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

Exposition = Callable[[], tuple[str, bytes]]
"""Returns the content type and the text for Prometheus."""


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

    def answer(self, request: Request) -> Response:
        """Answer one request."""
        method, path, host = request.method, f"/{'/'.join(request.segments)}", request.authority
        is_changing = "POST" in METHODS.get(path, ())
        if (is_changing or not self._is_exposed) and not is_loopback_name(host_of(host)):
            return _json(403, {"error": f"the host name {host[:100]!r} is not that of this machine: use localhost"})
        if path == "/":
            return _json(200, {"paths": list(METHODS)})
        if path not in METHODS:
            return _json(404, {"error": f"unknown path: use one of {', '.join(METHODS)}"})
        allowed = METHODS[path]
        if method not in allowed:
            return _json(405, {"error": f"{path} accepts only {' and '.join(allowed)}"}, Allow=", ".join(allowed))
        match path:
            case "/healthz":
                return _json(200, {"status": "alive"})
            case "/readyz":
                return self._readiness()
            case "/metrics":
                return self._metrics()
        if "origin" in request.headers or not _is_from_this_machine(request.client):
            return _json(403, {"error": f"{path} is accepted from this machine only, and not from a web page"})
        is_done = self._worker.pause() if path == "/pause" else self._worker.resume()
        if not is_done:
            return _json(409, {"error": "the worker is stopping", "state": self._worker.state})
        return _json(200, {"state": self._worker.state})

    def _readiness(self) -> Response:
        reasons = self._worker.reasons_against()
        now = clock.monotonic()
        primary, secondary = self._worker.health()
        syphon, report = self._worker.syphon_status(), self._worker.report()
        refusing = syphon.refusing if syphon is not None else {}
        return _json(
            503 if reasons else 200,
            {
                "status": "not ready" if reasons else "ready",
                "reasons": [reason.text for reason in reasons],
                "findings": [finding.content() for finding in self._worker.findings()[:ENTITIES_LISTED]],
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

    def _metrics(self) -> Response:
        try:
            content_type, text = self._exposition()
        except InvalidOperationError as error:
            return _json(501, {"error": error.message})
        return Response(200, text, content_type)


class HttpPort:
    """Serves the endpoints on one port, with limits of connections, time and request size."""

    def __init__(self, api: WorkerApi) -> None:
        self._api = api
        self._faults = WireFaults(Random())
        self._tasks = OwnedTasks()
        self._streams: dict[SocketStream, None] = {}  # the oldest first
        self._server: asyncio.Server | None = None
        self.unauthenticated = asyncio.Semaphore(SERVED_AT_ONCE)

    async def start(self, host: str, port: int) -> int:
        """Listen and return the port.

        Args:
            port: 0 = any free port.

        Raises:
            OSError: the address or the port cannot be used.
        """
        self._server = await asyncio.get_running_loop().create_server(self._new_stream, host, port)
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stop listening and close every connection. Safe to call twice."""
        if self._server is not None:
            self._server.close()
        await self._tasks.close()
        for stream in list(self._streams):
            stream.cut()
        await clock.step()  # lets the last sockets close

    def _new_stream(self) -> SocketStream:
        return SocketStream(self._faults, self._accepted, lambda stream: self._streams.pop(stream, None))

    def _accepted(self, stream: SocketStream) -> None:
        if self._tasks.is_closed:
            stream.cut()
            return
        if len(self._streams) >= MAX_CONNECTIONS:
            next(iter(self._streams)).cut()
        self._streams[stream] = None
        self._tasks.start(self._serve(stream), name=f"serve {stream.peer}")

    async def _serve(self, stream: SocketStream) -> None:
        first = b""
        with suppress(TimeoutError):
            async with clock.timeout(self.settings.request_timeout_s):
                first = await stream.read()
        if first:
            await serve_http(stream, self, first, self._answer)
        else:
            await stream.close()

    async def _answer(self, request: Request) -> Response:
        return self._api.answer(request)

    # -- as the server sees it -----------------------------------------------------------------------------------

    @property
    def settings(self) -> HttpSettings:
        return LIMITS

    def connect(self) -> int:
        return 0

    def reason_to_refuse(self, request: Request) -> str | None:
        return None  # the API does, by the path

    def max_body_bytes(self, request: Request) -> int:
        return self.settings.max_body_bytes


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


def _is_from_this_machine(client: str) -> bool:
    try:
        address = ipaddress.ip_address(client.rpartition(":")[0].partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def _json(status: int, content: dict[str, Any], **headers: str) -> Response:
    return Response(status, json.dumps(content).encode() + b"\n", JSON, headers)


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
