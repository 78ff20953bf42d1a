"""What the worker answers over HTTP: each request handed to it as its port would."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sbclient.broker.faults import Operation
from sbclient.clock import VirtualClock
from sbclient.emulator.net.http_messages import Request, Response
from sbclient.errors import InvalidOperationError
from sbclient.testing import Fault, FaultKind, MemoryPair
from sbclient.worker.http_api import WorkerApi, served
from sbclient.worker.settings import WorkerSettings
from tests.client.scene import BACKLOG, QUEUE
from tests.worker.scene import Run, make_backlog


def exposition() -> tuple[str, bytes]:
    return "text/plain; version=1.0.0", b"up 1\n"


async def asked(
    run: Run, clock: VirtualClock, path: str, method: str = "GET", *, client: str = "127.0.0.1:50000", **headers: str
) -> Response:
    segments = tuple(filter(None, path.split("/")))
    return await WorkerApi(run.worker, clock, exposition).answer(
        Request(method, segments, query={}, headers=headers, body=b"", client=client)
    )


def said(response: Response) -> Any:
    assert response.content_type.startswith("application/json")
    return json.loads(response.body)


async def test_a_worker_that_works_is_alive_and_ready(pair: MemoryPair, clock: VirtualClock) -> None:
    await make_backlog(pair, *range(5))
    async with Run(pair) as run:
        await clock.sleep(10.0)
        assert said(await asked(run, clock, "/healthz")) == {"status": "alive"}
        ready = await asked(run, clock, "/readyz")
    assert ready.status == 200
    told = said(ready)
    assert (told["status"], told["reasons"], told["state"]) == ("ready", [], "running")
    assert told["primary"] == {
        "namespace": "memory://contoso",
        "is_reachable": True,
        "answered_s_ago": 10.0,
        "error": None,
    }
    assert [queue["queue"] for queue in told["queues"]] == BACKLOG
    assert told["queues"][0] == {
        "queue": BACKLOG[0],
        "in_flight": 0,
        "answered_s_ago": None,
        "waits_for_s": 10.0,
        "error": None,
    }
    assert (told["drained"], told["dead_lettered"], told["parked"]) == (5, {}, 0)


async def test_one_that_cannot_work_is_alive_and_not_ready_and_says_why(pair: MemoryPair, clock: VirtualClock) -> None:
    await make_backlog(pair, *range(5))
    pair.primary.inject(Fault(FaultKind.DOWN))
    async with Run(pair) as run:
        await clock.sleep(10.0)
        assert (await asked(run, clock, "/healthz")).status == 200
        ready = await asked(run, clock, "/readyz")
        told = said(ready)
    assert ready.status == 503
    assert told["status"] == "not ready"
    assert len(told["reasons"]) == 2
    assert told["primary"]["is_reachable"] is False
    assert told["secondary"]["is_reachable"] is True
    assert told["refusing_count"] == 1
    assert told["refusing"][QUEUE]["error"].startswith("ServiceBusConnectionError: ")


async def test_before_the_secondary_was_reached_it_is_not_ready(pair: MemoryPair, clock: VirtualClock) -> None:
    await make_backlog(pair)
    pair.secondary.inject(Fault(FaultKind.DOWN))
    async with Run(pair) as run:
        assert (await asked(run, clock, "/readyz")).status == 503  # nothing at all has happened yet
        await clock.sleep(10.0)
        told = said(await asked(run, clock, "/readyz"))
    assert told["state"] == "starting"
    assert told["secondary"]["error_for_s"] == 10.0
    assert told["queues"] == []


async def test_it_pauses_and_resumes(pair: MemoryPair, clock: VirtualClock) -> None:
    await make_backlog(pair, *range(5))
    pair.primary.inject(Fault(FaultKind.SLOW, operations=[Operation.SEND], latency_s=3.0))
    async with Run(pair) as run:
        await clock.sleep(1.0)
        paused = await asked(run, clock, "/pause", "POST")
        assert (paused.status, said(paused)) == (200, {"state": "paused"})
        assert (await asked(run, clock, "/readyz")).status == 503
        await clock.sleep(10.0)
        resumed = await asked(run, clock, "/resume", "POST", client="::1:50000")
        assert (resumed.status, said(resumed)["state"]) == (200, "starting")
        await clock.sleep(1.0)
        assert (await asked(run, clock, "/readyz")).status == 200


async def test_while_it_stops_it_neither_pauses_nor_resumes(pair: MemoryPair, clock: VirtualClock) -> None:
    await make_backlog(pair)
    async with Run(pair) as run:
        await clock.sleep(1.0)
        run.worker.stop("the test says so")
        for path in ("/pause", "/resume"):
            assert (await asked(run, clock, path, "POST")).status == 409
        assert said(await asked(run, clock, "/readyz"))["reasons"] == ["the worker is stopping"]


@pytest.mark.parametrize(
    ("client", "headers", "status"),
    [
        ("127.0.0.1:1", {}, 200),
        ("127.3.2.1:1", {}, 200),
        ("::1:1", {}, 200),
        ("::ffff:127.0.0.1:1", {}, 200),
        ("10.0.0.7:1", {}, 403),
        ("fe80::1%eth0:1", {}, 403),
        ("unknown", {}, 403),
        ("127.0.0.1:1", {"origin": "https://example.com"}, 403),
    ],
)
async def test_only_this_machine_and_no_web_page_may_pause_it(
    pair: MemoryPair, clock: VirtualClock, client: str, headers: dict[str, str], status: int
) -> None:
    await make_backlog(pair)
    async with Run(pair) as run:
        assert (await asked(run, clock, "/pause", "POST", client=client, **headers)).status == status
        assert run.state == ("paused" if status == 200 else "starting")


async def test_metrics_are_handed_out_as_they_are(pair: MemoryPair, clock: VirtualClock) -> None:
    async with Run(pair, provision=True) as run:
        response = await asked(run, clock, "/metrics", client="10.0.0.7:1")
    assert (response.status, response.content_type, response.body) == (200, "text/plain; version=1.0.0", b"up 1\n")


async def test_without_the_packages_for_metrics_it_says_what_to_install(pair: MemoryPair, clock: VirtualClock) -> None:
    def missing() -> tuple[str, bytes]:
        raise InvalidOperationError("pip install 'sbclient[metrics]'")

    async with Run(pair, provision=True) as run:
        api = WorkerApi(run.worker, clock, missing)
        response = await api.answer(Request("GET", ("metrics",), query={}, headers={}, body=b"", client="127.0.0.1:1"))
    assert response.status == 501
    assert "metrics" in said(response)["error"]


async def test_what_there_is_not_and_what_it_does_not_take_are_told(pair: MemoryPair, clock: VirtualClock) -> None:
    async with Run(pair, provision=True) as run:
        assert said(await asked(run, clock, "/"))["paths"] == ["/healthz", "/readyz", "/metrics", "/pause", "/resume"]
        assert (await asked(run, clock, "/elsewhere")).status == 404
        assert (await asked(run, clock, "/healthz/more")).status == 404
        for path, method, allowed in (("/pause", "GET", "POST"), ("/healthz", "POST", "GET, HEAD")):
            refused = await asked(run, clock, path, method)
            assert (refused.status, refused.headers["Allow"]) == (405, allowed)


async def test_an_address_of_no_use_is_not_blamed_on_the_port(pair: MemoryPair, clock: VirtualClock) -> None:
    settings = WorkerSettings(primary="memory://a", secondary="memory://b", http_port=0, http_host="192.0.2.1")
    async with Run(pair) as run:
        with pytest.raises(InvalidOperationError, match=r"http_host is '192\.0\.2\.1'"):
            async with served(run.worker, settings, clock):
                pass
