"""What the worker tells over HTTP, and the two things it can be told: to pause and to resume.

`/healthz` says that the process is alive and its event loop turns: for a liveness probe. `/readyz` says whether backlog
would be brought home now, and why not: for people, alerts and readiness probes. `/metrics` is for Prometheus.

Pause and resume are taken from this machine only, and from no web page: the port has no other protection.
"""

from __future__ import annotations

import errno
import ipaddress
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

from sbclient import prometheus
from sbclient.clock import Clock
from sbclient.emulator.net.http_messages import JSON, Request, Response
from sbclient.emulator.net.http_port import HttpPort
from sbclient.errors import InvalidOperationError
from sbclient.rules.refusal import OngoingError
from sbclient.syphon.status import QueueStatus
from sbclient.telemetry.log import get_logger
from sbclient.worker.readiness import NamespaceHealth
from sbclient.worker.service import SyphonWorker
from sbclient.worker.settings import WorkerSettings

log = get_logger(__name__)

ENTITIES_TOLD: Final = 50
"""How many of the entities that refuse are listed."""

READS: Final = ("GET", "HEAD")
PATHS: Final = ("healthz", "readyz", "metrics", "pause", "resume")

Exposition = Callable[[], tuple[str, bytes]]
"""The content type and the text that Prometheus reads."""


OF_PORTS: Final = (errno.EADDRINUSE, errno.EACCES)
"""Errors for which the port is to blame; for any other it is the address."""


class WorkerApi:
    """Answers the HTTP requests to one worker.

    Args:
        exposition: raises `InvalidOperationError` where its packages are missing.
    """

    def __init__(self, worker: SyphonWorker, clock: Clock, exposition: Exposition) -> None:
        self._worker = worker
        self._clock = clock
        self._exposition = exposition

    async def answer(self, request: Request) -> Response:
        """Answer one request."""
        name = request.segments[0] if len(request.segments) == 1 else ""
        if not request.segments:
            return _json(200, {"paths": [f"/{path}" for path in PATHS]})
        if name not in PATHS:
            return _json(404, {"error": f"there is nothing here: ask for {', '.join(f'/{path}' for path in PATHS)}"})
        allowed = ("POST",) if name in ("pause", "resume") else READS
        if request.method not in allowed:
            told = _json(405, {"error": f"/{name} takes {' and '.join(allowed)} only"})
            return Response(told.status, told.body, told.content_type, {"Allow": ", ".join(allowed)})
        if name == "healthz":
            return _json(200, {"status": "alive"})
        if name == "readyz":
            return self._readiness()
        if name == "metrics":
            return self._metrics()
        return self._told(name, request)

    def _readiness(self) -> Response:
        reasons = self._worker.reasons_against()
        now = self._clock.monotonic()
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
                    for path, error in list(refusing.items())[:ENTITIES_TOLD]
                },
                "refusing_count": len(refusing),
                "drained": report.drained,
                "dead_lettered": report.dead_lettered,
                "parked": report.parked,
            },
        )

    def _metrics(self) -> Response:
        try:
            content_type, text = self._exposition()
        except InvalidOperationError as error:
            return _json(501, {"error": error.message})
        return Response(200, text, content_type)

    def _told(self, name: str, request: Request) -> Response:
        if not _is_from_this_machine(request):
            return _json(403, {"error": f"/{name} is taken from this machine only, and from no web page"})
        is_done = self._worker.pause() if name == "pause" else self._worker.resume()
        if not is_done:
            return _json(409, {"error": "the worker is stopping", "state": self._worker.state})
        return _json(200, {"state": self._worker.state})


@asynccontextmanager
async def served(worker: SyphonWorker, settings: WorkerSettings, clock: Clock) -> AsyncIterator[int | None]:
    """Answer requests to the worker for as long as the context lasts; gives the port, None if none is wanted.

    Raises:
        InvalidOperationError: the port cannot be had.
    """
    if settings.http_port is None:
        yield None
        return
    with suppress(InvalidOperationError):  # whoever asks for metrics is told what is missing
        prometheus.start()
    port = HttpPort(WorkerApi(worker, clock, prometheus.exposition).answer, clock)
    try:
        try:
            number = await port.start(settings.http_host, settings.http_port)
        except OSError as error:
            if error.errno not in OF_PORTS:
                raise InvalidOperationError(
                    f"http_host is {settings.http_host!r}, on which nothing can listen here ({error.strerror}): "
                    "give an address of this machine, 0.0.0.0 for all"
                ) from error
            reason = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be used ({error.strerror})"
            raise InvalidOperationError(
                f"http_port {settings.http_port} {reason} on {settings.http_host}: choose another, 0 for any that is "
                "free"
            ) from error
        log.info("worker.listening", "the worker listens on {host}:{port}", host=settings.http_host, port=number)
        yield number
    finally:
        await port.close()


def _is_from_this_machine(request: Request) -> bool:
    """A browser says where a page that posts comes from; nobody else has a reason to."""
    if "origin" in request.headers:
        return False
    try:
        address = ipaddress.ip_address(request.client.rpartition(":")[0].strip("[]").partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def _json(status: int, said: dict[str, Any]) -> Response:
    return Response(status, json.dumps(said).encode() + b"\n", JSON)


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
