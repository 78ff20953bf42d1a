"""What the worker answers over HTTP: each request handed to it as its port would."""

from __future__ import annotations

import asyncio
import json
import time
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from sbclient import clock
from sbclient.broker.faults import Operation
from sbclient.emulator.net.http_messages import Response
from sbclient.errors import InvalidOperationError, ServiceBusQuotaExceededError
from sbclient.testing import Fault, FaultKind, MemoryPair, memory_pair
from sbclient.worker import http_api
from sbclient.worker.http_api import WorkerApi, served
from sbclient.worker.service import SyphonWorker
from sbclient.worker.settings import WorkerSettings
from sbclient.worker.systemd import ServiceManager
from tests.client.scene import BACKLOG, QUEUE, make_queue
from tests.worker.scene import Run, make_backlog, request_to


def exposition() -> tuple[str, bytes]:
    return "text/plain; version=1.0.0", b"up 1\n"


def asked(run: Run, path: str, method: str = "GET", **options: Any) -> Response:
    return WorkerApi(run.worker, exposition).answer(request_to(path, method, **options))


def content(answer: Response) -> Any:
    assert answer.content_type.startswith("application/json")
    return json.loads(answer.body)


async def test_working_worker_is_live_and_ready(pair: MemoryPair) -> None:
    await make_backlog(pair, *range(5))
    async with Run(pair) as run:
        await clock.sleep(10.0)
        assert content(asked(run, "/healthz")) == {"status": "alive"}
        ready = asked(run, "/readyz")
    assert ready.status == 200
    body = content(ready)
    assert (body["status"], body["reasons"], body["state"]) == ("ready", [], "running")
    assert body["primary"] == {
        "namespace": "memory://contoso",
        "is_reachable": True,
        "answered_s_ago": 10.0,
        "error": None,
    }
    assert [queue["queue"] for queue in body["queues"]] == BACKLOG
    assert body["queues"][0] == {
        "queue": BACKLOG[0],
        "in_flight": 0,
        "answered_s_ago": None,
        "waits_for_s": 10.0,
        "error": None,
    }
    assert (body["drained"], body["dead_lettered"], body["parked"]) == (5, {}, 0)


async def test_blocked_worker_is_live_but_not_ready_with_a_reason(pair: MemoryPair) -> None:
    await make_backlog(pair, *range(5))
    pair.primary.inject(Fault(FaultKind.DOWN))
    async with Run(pair) as run:
        await clock.sleep(10.0)
        assert (asked(run, "/healthz")).status == 200
        ready = asked(run, "/readyz")
        body = content(ready)
    assert ready.status == 503
    assert body["status"] == "not ready"
    assert len(body["reasons"]) == 2
    assert body["primary"]["is_reachable"] is False
    assert body["secondary"]["is_reachable"] is True
    assert body["refusing_count"] == 1
    assert body["refusing"][QUEUE]["error"].startswith("ServiceBusConnectionError: ")


@pytest.mark.parametrize("refusing", range(5))
async def test_lists_are_cut_and_counts_are_not(
    pair: MemoryPair, monkeypatch: pytest.MonkeyPatch, refusing: int
) -> None:
    monkeypatch.setattr(http_api, "ENTITIES_LISTED", 3)
    names = [f"q{number}" for number in range(refusing)]
    for name in names:
        await make_queue(pair, name)
        await make_backlog(pair, 1, queue=name)
        pair.primary.inject(Fault(FaultKind.ERROR, name, error=ServiceBusQuotaExceededError))
    await make_backlog(pair)
    async with Run(pair) as run:
        await clock.sleep(20.0)
        body = content(asked(run, "/readyz"))
    assert (body["status"], body["refusing_count"]) == ("not ready" if refusing else "ready", refusing)
    assert len(body["refusing"]) == min(refusing, 3)
    assert body["refusing"].keys() <= set(names)
    assert [queue["queue"] for queue in body["queues"]] == BACKLOG  # also of a worker that is not ready


async def test_it_lists_what_is_delivered_to_the_secondary(pair: MemoryPair) -> None:
    await make_backlog(pair, *range(5))
    await make_queue(pair, secondary=True)
    pair.primary.inject(Fault(FaultKind.DOWN))
    async with Run(pair, redirect_after=timedelta(minutes=1)) as run:
        await clock.sleep(90.0)
        body = content(asked(run, "/readyz"))
    assert (body["refusing"], body["redirected"], body["drained"], body["parked"]) == ({}, 5, 5, 0)
    assert 0.0 < body["redirected_for_s"][QUEUE] <= 30.0


async def test_before_the_secondary_was_reached_it_is_not_ready(pair: MemoryPair) -> None:
    await make_backlog(pair)
    pair.secondary.inject(Fault(FaultKind.DOWN))
    async with Run(pair) as run:
        assert (asked(run, "/readyz")).status == 503  # nothing at all has happened yet
        await clock.sleep(10.0)
        body = content(asked(run, "/readyz"))
    assert body["state"] == "starting"
    assert body["secondary"]["error_for_s"] == 10.0
    assert body["queues"] == []


async def test_worker_pauses_and_resumes(pair: MemoryPair) -> None:
    await make_backlog(pair, *range(5))
    pair.primary.inject(Fault(FaultKind.SLOW, operations=[Operation.SEND], latency_s=3.0))
    async with Run(pair) as run:
        await clock.sleep(1.0)
        paused = asked(run, "/pause", "POST")
        assert (paused.status, content(paused)) == (200, {"state": "paused"})
        assert (asked(run, "/readyz")).status == 503
        await clock.sleep(10.0)
        resumed = asked(run, "/resume", "POST", client="::1:5")
        assert (resumed.status, content(resumed)["state"]) == (200, "starting")
        await clock.sleep(1.0)
        assert (asked(run, "/readyz")).status == 200


async def test_while_it_stops_it_neither_pauses_nor_resumes(pair: MemoryPair) -> None:
    await make_backlog(pair)
    async with Run(pair) as run:
        await clock.sleep(1.0)
        run.worker.stop("the test says so")
        for path in ("/pause", "/resume"):
            assert (asked(run, path, "POST")).status == 409
        assert content(asked(run, "/readyz"))["reasons"] == ["the worker is stopping"]


@pytest.mark.promise("worker.changes")
@pytest.mark.parametrize(
    ("client", "headers", "status"),
    [
        ("127.0.0.1:5", {}, 200),
        ("127.3.2.1:5", {}, 200),
        ("::1:5", {}, 200),
        ("::ffff:127.0.0.1:5", {}, 200),
        ("10.0.0.7:5", {}, 403),
        ("fe80::1%eth0:5", {}, 403),
        ("unknown", {}, 403),
        ("127.0.0.1:5", {"origin": "https://example.com"}, 403),
    ],
)
async def test_only_this_machine_and_no_web_page_may_pause_it(
    pair: MemoryPair, client: str, headers: dict[str, str], status: int
) -> None:
    await make_backlog(pair)
    async with Run(pair) as run:
        assert (asked(run, "/pause", "POST", client=client, **headers)).status == status
        assert run.state == ("paused" if status == 200 else "starting")


async def test_metrics_are_handed_out_as_they_are(pair: MemoryPair) -> None:
    async with Run(pair, provision=True) as run:
        response = asked(run, "/metrics", client="10.0.0.7:5")
    assert (response.status, response.content_type, response.body) == (200, "text/plain; version=1.0.0", b"up 1\n")


async def test_metrics_without_packages_names_what_to_install(pair: MemoryPair) -> None:
    def missing() -> tuple[str, bytes]:
        raise InvalidOperationError("python -m pip install '.[metrics]'")

    async with Run(pair, provision=True) as run:
        response = WorkerApi(run.worker, missing).answer(request_to("/metrics"))
    assert response.status == 501
    assert "metrics" in content(response)["error"]


async def test_unknown_paths_and_methods_are_rejected(pair: MemoryPair) -> None:
    async with Run(pair, provision=True) as run:
        assert content(asked(run, "/"))["paths"] == ["/healthz", "/readyz", "/metrics", "/pause", "/resume"]
        assert (asked(run, "/elsewhere")).status == 404
        assert (asked(run, "/healthz/more")).status == 404
        for path, method, allowed in (("/pause", "GET", "POST"), ("/healthz", "POST", "GET, HEAD")):
            refused = asked(run, path, method)
            assert (refused.status, refused.headers["Allow"]) == (405, allowed)


async def test_an_address_of_no_use_is_not_blamed_on_the_port(pair: MemoryPair) -> None:
    async with Run(pair) as run:
        with pytest.raises(InvalidOperationError, match=r"http_host is '192\.0\.2\.1'"):
            async with served(run.worker, host="192.0.2.1", port=0):
                pass


# -- the port, on real sockets -----------------------------------------------------------------------------------------

GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


@pytest.fixture
async def port() -> AsyncIterator[int]:
    """A port that serves a worker which has not started."""
    pair = memory_pair(seed=1)
    settings = WorkerSettings()
    worker = SyphonWorker(settings, pair.client(settings.pairing()), manager=ServiceManager({}))
    async with served(worker, host="127.0.0.1", port=0) as number:
        yield number


async def answered(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    async with asyncio.timeout(20):
        answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


@pytest.mark.real_time
async def test_requests_are_answered_over_http(port: int) -> None:
    head, _, body = (await answered(port, GET)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert {b"content-type: application/json; charset=utf-8", b"server: sbclient"} <= set(head.lower().split(b"\r\n"))
    assert json.loads(body) == {"status": "alive"}
    head, _, nothing = (await answered(port, GET.replace(b"GET", b"HEAD"))).partition(b"\r\n\r\n")
    assert f"content-length: {len(body)}".encode() in head.lower()
    assert nothing == b""
    assert json.loads(
        (await answered(port, GET.replace(b"GET /healthz", b"POST /pause"))).partition(b"\r\n\r\n")[2]
    ) == {"state": "paused"}


@pytest.mark.promise("worker.changes")
@pytest.mark.real_time
async def test_a_request_of_a_web_page_does_not_pause(port: int) -> None:
    request = b"POST /pause HTTP/1.1\r\nHost: localhost\r\nOrigin: https://example.com\r\nConnection: close\r\n\r\n"
    assert (await answered(port, request)).startswith(b"HTTP/1.1 403")


@pytest.mark.real_time
async def test_other_protocols_are_rejected(port: int, caplog: pytest.LogCaptureFixture) -> None:
    assert (await answered(port, b"AMQP\x00\x01\x00\x00\r\n\r\n")).startswith(b"HTTP/1.1 400")
    assert caplog.messages == []


@pytest.mark.promise("worker.requests")
@pytest.mark.real_time
async def test_a_body_that_is_too_large_is_rejected(port: int) -> None:
    size = http_api.LIMITS.max_body_bytes + 1
    request = f"POST /pause HTTP/1.1\r\nHost: localhost\r\nContent-Length: {size}\r\n\r\n".encode() + bytes(size)
    assert (await answered(port, request)).startswith(b"HTTP/1.1 413")


@pytest.mark.promise("worker.requests")
@pytest.mark.real_time
@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
async def test_a_compressed_body_is_not_unpacked(port: int, encoding: str) -> None:
    """As reported of aiohttp: 100 kB became 100 MB."""
    packer = zlib.compressobj(9, wbits=31 if encoding == "gzip" else 15)
    body = b"".join(packer.compress(bytes(2**20)) for _ in range(100)) + packer.flush()
    head = f"POST /pause HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Encoding: {encoding}\r\n"
    head += f"Content-Length: {len(body)}\r\n\r\n"
    tracemalloc.start()
    try:
        answer = await answered(port, head.encode() + body)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert answer.startswith((b"HTTP/1.1 200", b"HTTP/1.1 413"))
    assert peak < 4 * 2**20


@pytest.mark.promise("worker.requests")
@pytest.mark.real_time
async def test_pipelined_requests_are_read_no_faster_than_they_are_answered(port: int) -> None:
    """As reported of aiohttp: each waiting request needs memory."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    request = GET.replace(b"Connection: close\r\n", b"")
    tracemalloc.start()
    try:
        for _ in range(100):
            writer.write(request * 500)
            with suppress(TimeoutError):
                async with asyncio.timeout(0.02):
                    await writer.drain()
            if writer.transport.get_write_buffer_size() > 2**20:
                break
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        writer.transport.abort()
    assert reader is not None
    assert peak < 16 * 2**20


@pytest.mark.real_time
@pytest.mark.parametrize(
    ("request_bytes", "answer"),
    [
        (b"", b""),
        (b"GET /healthz HTTP/1.1\r\nHo", b"HTTP/1.1 408"),
        (b"POST /pause HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n", b"HTTP/1.1 408"),
    ],
)
async def test_a_slow_client_is_disconnected(
    port: int, monkeypatch: pytest.MonkeyPatch, request_bytes: bytes, answer: bytes
) -> None:
    monkeypatch.setattr(http_api, "LIMITS", replace(http_api.LIMITS, request_timeout_s=0.1))
    with suppress(ConnectionResetError):
        received = await answered(port, request_bytes)
        assert received.startswith(answer)
        assert bool(received) == bool(answer)


@pytest.mark.promise("worker.connections")
@pytest.mark.real_time
@pytest.mark.parametrize(
    "sent", [b"", b"GET /he", GET.replace(b"Connection: close\r\n", b""), GET.replace(b"GET", b"POST")[:-2] + b"X: "]
)
async def test_idle_connections_keep_no_probe_from_being_answered(
    port: int, sent: bytes, record_property: Callable[[str, object], None]
) -> None:
    idle = []
    for _ in range(2 * http_api.MAX_CONNECTIONS):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        idle.append((reader, writer))
    waits = []
    for _ in range(20):
        began_at = time.perf_counter()
        assert (await answered(port, GET)).startswith(b"HTTP/1.1 200")
        waits.append(time.perf_counter() - began_at)
    record_property("attacks", len(idle))
    record_property("bytes", len(idle) * len(sent))
    record_property("wait_s", max(waits))
    for reader, writer in idle:
        writer.transport.abort()
        with suppress(ConnectionResetError):
            await reader.read()


@pytest.mark.real_time
async def test_connections_that_have_ended_leave_the_open_ones_their_place(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for _ in range(http_api.MAX_CONNECTIONS + 5):
        assert (await answered(port, GET)).startswith(b"HTTP/1.1 200")
    writer.write(GET)
    assert (await reader.read()).startswith(b"HTTP/1.1 200")
    writer.close()
    await writer.wait_closed()


@pytest.mark.promise("worker.host")
@pytest.mark.parametrize(
    ("host", "is_exposed", "readable", "changeable"),
    [
        ("localhost:9400", False, 200, 200),
        ("127.0.0.1", False, 200, 200),
        ("[::1]:9400", True, 200, 200),
        ("LOCALHOST.", False, 200, 200),
        ("host.docker.internal:9400", False, 200, 200),
        ("attacker.example:9400", False, 403, 403),
        ("localhost.attacker.example", False, 403, 403),
        ("", False, 403, 403),
        ("[", False, 403, 403),
        ("10.0.0.7:9400", False, 403, 403),
        ("syphon.default.svc:9400", True, 200, 403),
        ("attacker.example", True, 200, 403),
    ],
)
async def test_name_of_another_host_is_rejected(
    pair: MemoryPair, host: str, is_exposed: bool, readable: int, changeable: int
) -> None:
    async with Run(pair) as run:
        api = WorkerApi(run.worker, exposition, is_exposed=is_exposed)
        assert api.answer(request_to("/healthz", host=host)).status == readable
        assert api.answer(request_to("/pause", "POST", host=host)).status == changeable


@pytest.mark.real_time
async def test_a_port_in_use_is_named(pair: MemoryPair, port: int) -> None:
    settings = WorkerSettings()
    worker = SyphonWorker(settings, pair.client(settings.pairing()), manager=ServiceManager({}))
    with pytest.raises(InvalidOperationError, match=f"http_port {port} is in use on 127.0.0.1"):
        async with served(worker, host="127.0.0.1", port=port):
            pass
