"""`sbclient syphon` as a process between two served namespaces: signals, its HTTP port, its exit statuses."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from sbclient import PairedNamespaceOptions, ServiceBusClient, ServiceBusMessage
from tests.limit import HANG_S
from tests.stage.namespaces import Namespace
from tests.stage.workers import NAME, QUEUES, WorkerProcess, drained_of, errors_in
from tests.worker.scene import Listener

QUEUE = "orders"
OPTIONS = PairedNamespaceOptions(backlog_queue_count=QUEUES, primary_name=NAME)


@pytest.fixture
def worker(tmp_path: Path, primary: Namespace, secondary: Namespace) -> Iterator[WorkerProcess]:
    worker = WorkerProcess(tmp_path, primary, secondary)
    yield worker
    worker.close()


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[Listener]:
    listener = Listener(tmp_path)
    yield listener
    listener.close()


def paired(primary: Namespace, secondary: Namespace) -> ServiceBusClient:
    return ServiceBusClient.from_connection_string(
        primary.connection_string,
        secondary=secondary.connection_string,
        options=OPTIONS,
    )


async def make_backlog(primary: Namespace, secondary: Namespace, count: int) -> list[str]:
    """Messages in the backlog; returns their bodies."""
    bodies = [f"order {number}" for number in range(count)]
    async with paired(primary, secondary) as client:
        await client.administration.create_queue(QUEUE)
        client.pair.force_failover(QUEUE)
        async with client.get_queue_sender(QUEUE) as sender:
            await sender.send_messages([ServiceBusMessage(body) for body in bodies])
    return bodies


async def arrived(primary: Namespace) -> Counter[str]:
    """What the destination holds, by body; it is empty then."""
    seen: Counter[str] = Counter()
    async with (
        ServiceBusClient.from_connection_string(primary.connection_string) as client,
        client.get_queue_receiver(QUEUE) as receiver,
    ):
        while messages := await receiver.receive_messages(100, max_wait_time=1.0):
            for message in messages:
                seen[str(message)] += 1
                await receiver.complete_message(message)
    return seen


async def test_worker_drains_reports_its_status_and_ends_with_status_0(
    primary: Namespace, secondary: Namespace, worker: WorkerProcess, listener: Listener
) -> None:
    bodies = await make_backlog(primary, secondary, 300)
    worker.start("--http-port", "0", "--json", NOTIFY_SOCKET=listener.path, WATCHDOG_USEC="500000")
    content = await worker.readiness_is(lambda status, said: status == 200 and said["drained"] == 300)
    assert content["reasons"] == []
    assert content["primary"]["is_reachable"]
    assert (await worker.asked("/healthz"))[0] == 200
    status, content_type, text = await worker.asked("/metrics")
    assert (status, content_type.partition(";")[0]) == (200, "text/plain")
    (line,) = [
        line for line in text.decode().splitlines() if line.startswith("sbclient_syphon_drained_messages_total{")
    ]
    assert line.endswith(" 300.0")
    heard = listener.heard()  # a socket holds a few messages only
    assert heard[0]["READY"] == "1"
    while sum("WATCHDOG" in message for message in heard) < 2:
        await asyncio.sleep(0.1)
        heard += listener.heard()
    worker.program.signal(signal.SIGTERM)
    assert await worker.program.ended(HANG_S) == 0
    assert drained_of(worker.program.file("out").read_text()) == 300
    assert [event["event"] for event in worker.events][-1] == "worker.ended"
    assert sum("STOPPING" in message for message in listener.heard()) == 1
    assert await arrived(primary) == Counter(bodies)


async def test_signals_pause_and_resume_it_and_ctrl_c_ends_it(
    primary: Namespace, secondary: Namespace, worker: WorkerProcess
) -> None:
    bodies = await make_backlog(primary, secondary, 300)
    worker.start("--http-port", "0", "--json", "--max-messages-per-second", "100")
    await worker.readiness_is(lambda _, said: said["drained"] > 0)
    worker.program.signal(signal.SIGUSR1)
    await worker.heard_of("worker.paused")
    status, content = await worker.readiness()
    assert (status, content["state"], content["reasons"]) == (503, "paused", ["the worker is paused"])
    assert 0 < content["drained"] < 300
    await asyncio.sleep(1.0)
    assert (await worker.readiness())[1]["drained"] == content["drained"]
    worker.program.signal(signal.SIGUSR2)
    await worker.readiness_is(lambda status, said: status == 200 and said["drained"] == 300)
    worker.program.signal(signal.SIGINT)
    assert await worker.program.ended(HANG_S) == 0
    assert await arrived(primary) == Counter(bodies)


async def test_stopped_in_the_middle_it_releases_everything(
    primary: Namespace, secondary: Namespace, worker: WorkerProcess
) -> None:
    bodies = await make_backlog(primary, secondary, 400)
    worker.start("--http-port", "0", "--json", "--max-messages-per-second", "60")
    await worker.readiness_is(lambda _, said: said["drained"] > 20)
    worker.program.signal(signal.SIGTERM)
    assert await worker.program.ended(HANG_S) == 0
    drained = drained_of(worker.program.file("out").read_text())
    assert 0 < drained < 400
    began = time.monotonic()
    status, out, said = await worker.run("--until", "empty", "--json")
    assert (status, said) == (0, [])
    assert drained + drained_of(out) == 400
    assert time.monotonic() - began < 55.0, "what was given back can be had at once: no lock had to end first"
    assert await arrived(primary) == Counter(bodies)


async def test_stopped_while_it_starts_it_ends_in_order(
    primary: Namespace, secondary: Namespace, worker: WorkerProcess
) -> None:
    bodies = await make_backlog(primary, secondary, 10)
    await secondary.hurt("frozen")
    worker.start("--http-port", "0")
    await worker.heard_of("worker.started")
    status, content = await worker.readiness()
    assert (status, content["state"]) == (503, "starting")
    assert (await worker.asked("/healthz"))[0] == 200
    worker.program.signal(signal.SIGTERM)
    assert await worker.program.ended(HANG_S) == 0
    await secondary.heal("frozen")
    assert (await worker.run("--until", "empty"))[0] == 0
    assert await arrived(primary) == Counter(bodies)


async def test_worker_ends_in_time_without_responses(
    primary: Namespace, secondary: Namespace, worker: WorkerProcess
) -> None:
    await make_backlog(primary, secondary, 300)
    worker.start("--http-port", "0", "--max-messages-per-second", "30", "--shutdown-timeout", "2")
    await worker.readiness_is(lambda _, said: said["drained"] > 0)
    await secondary.hurt("frozen")
    began = time.monotonic()
    worker.program.signal(signal.SIGTERM)
    assert await worker.program.ended(HANG_S) == 1
    assert time.monotonic() - began > 1.5
    assert worker.events[-1]["event"] == "worker.late"


async def test_a_second_signal_ends_it_at_once(primary: Namespace, secondary: Namespace, worker: WorkerProcess) -> None:
    await make_backlog(primary, secondary, 300)
    worker.start("--http-port", "0", "--max-messages-per-second", "30", "--shutdown-timeout", "30")
    await worker.readiness_is(lambda _, said: said["drained"] > 0)
    await secondary.hurt("frozen")
    worker.program.signal(signal.SIGTERM)
    await worker.heard_of("worker.stopping")
    worker.program.signal(signal.SIGINT)
    assert await worker.program.ended(10.0) == 130


async def test_an_outage_of_either_namespace_is_reported_and_survived(
    primary: Namespace, secondary: Namespace, worker: WorkerProcess
) -> None:
    bodies = await make_backlog(primary, secondary, 20)
    await primary.hurt("refuse")
    await primary.hurt("reset")
    worker.start("--http-port", "0", "--probe-interval", "1", "--long-poll", "2")
    content = await worker.readiness_is(lambda status, said: status == 503 and said["state"] == "running")
    assert not content["primary"]["is_reachable"]
    await primary.heal("reset")
    await worker.readiness_is(lambda status, said: status == 200 and said["drained"] == 20)
    await secondary.hurt("refuse")
    await secondary.hurt("reset")
    content = await worker.readiness_is(lambda status, said: not said["secondary"]["is_reachable"])
    assert "the secondary" in content["reasons"][0]
    await secondary.heal("reset")
    await worker.readiness_is(lambda status, _: status == 200)
    worker.program.signal(signal.SIGTERM)
    assert await worker.program.ended(HANG_S) == 0
    assert await arrived(primary) == Counter(bodies)


async def test_namespaces_of_no_use_print_one_line_and_set_the_exit_status(
    primary: Namespace, secondary: Namespace, tmp_path: Path
) -> None:
    await make_backlog(primary, secondary, 1)
    wrong = tmp_path / "wrong"
    wrong.write_text(secondary.connection_string.replace("SharedAccessKey=", "SharedAccessKey=WRONG"))
    unreachable = tmp_path / "unreachable"
    unreachable.write_text(
        "Endpoint=sb://localhost:1;SharedAccessKeyName=n;SharedAccessKey=k;UseDevelopmentEmulator=true"
    )
    cases = (
        (["--secondary-file", str(wrong), "--start-timeout", "0"], 4, "rejects"),
        (["--secondary-file", str(unreachable), "--start-timeout", "0"], 3, "localhost:1"),
    )
    workers = [WorkerProcess(tmp_path, primary, secondary, f"w{number}") for number in range(len(cases))]
    runs = [one.run(*arguments) for one, (arguments, _, _) in zip(workers, cases, strict=True)]
    for one, (_, expected, part), (status, out, said) in zip(workers, cases, await asyncio.gather(*runs), strict=True):
        assert (status, out) == (expected, ""), said
        (line,) = said
        assert errors_in(said) == [line]
        assert part in line
        assert "WRONG" not in one.program.file("log").read_text()
