"""The row that compares the emulator with RabbitMQ: the server's processor time under the same qpid-proton client."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Final
from urllib.parse import quote

from sbclient.emulator.sas import ROOT_KEY, ROOT_KEY_NAME
from tests.benchmarks.emulated import EmulatorProcess
from tests.benchmarks.row import BODY, Result, Sample, Settings, Side, by_server_time, sample
from tests.benchmarks.sending import QUEUE

RABBITMQ: Final = next(
    filter(None, map(shutil.which, ("rabbitmq-server", "/usr/lib/rabbitmq/bin/rabbitmq-server"))), None
)
START_S: Final = 120.0
PATIENCE_S: Final = 30.0
TICKS: Final = os.sysconf("SC_CLK_TCK")


def exchanged(url: str, path: str, count: int) -> None:
    """Send, receive and accept one message after another."""
    from proton import Message
    from proton.utils import BlockingConnection

    connection = BlockingConnection(url, timeout=PATIENCE_S, allowed_mechs="PLAIN")
    try:
        sender, receiver = connection.create_sender(path), connection.create_receiver(path, credit=10)
        for _ in range(count):
            sender.send(Message(body=BODY, inferred=True))
            receiver.receive(timeout=PATIENCE_S)
            receiver.accept()
    finally:
        connection.close()


async def emulator(settings: Settings) -> Result:
    """Compare the processor time of both servers for each message; RabbitMQ must be installed."""
    if find_spec("proton") is None:
        return Result(not_run="python-qpid-proton is not installed")
    try:
        return await _compared(settings)
    except _NotStartedError as error:
        return Result(not_run=str(error))


async def _compared(settings: Settings) -> Result:
    count = settings.count(2_000)
    ours: list[Sample] = []
    others: list[Sample] = []
    with EmulatorProcess() as server, _rabbitmq() as other:
        server.create_queue(QUEUE)
        url = f"amqp://{ROOT_KEY_NAME}:{quote(ROOT_KEY, safe='')}@127.0.0.1:{server.port}"
        side = Side("emulator", count, lambda: asyncio.to_thread(exchanged, url, QUEUE, count))
        for number in range(settings.pairs + 1):
            for found, one in ((ours, await sample(server, side)), (others, await _sample(other, count))):
                if number and one is not None:  # the first one is the warm-up
                    found.append(one)
    if other is None:
        return Result(sides={side.name: ours}, not_run="RabbitMQ is not installed")
    ratios = [by_server_time(*each) for each in zip(ours, others, strict=True)]
    return Result(ratios, {side.name: ours, "RabbitMQ": others})


class _NotStartedError(Exception):
    """RabbitMQ is installed, but ends or does not listen."""


class _RabbitMQ:
    """A running RabbitMQ with its AMQP 1.0 plugin."""

    def __init__(self, port: int, process_id: int) -> None:
        self.url = f"amqp://guest:guest@127.0.0.1:{port}"
        self._process_id = process_id

    def processor_s(self) -> float:
        """Return the processor time of its process and of those below it."""
        spent, parents = {}, {}
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = path.read_text().rpartition(")")[2].split()
            except OSError:  # it has ended
                continue
            parents[int(path.parent.name)] = int(fields[1])
            spent[int(path.parent.name)] = sum(map(int, fields[11:15])) / TICKS
        family = {self._process_id}
        while more := {child for child, parent in parents.items() if parent in family} - family:
            family |= more
        return sum(spent.get(process_id, 0.0) for process_id in family)


async def _sample(rabbitmq: _RabbitMQ | None, count: int) -> Sample | None:
    if rabbitmq is None:
        return None
    server_at, client_at, began_at = rabbitmq.processor_s(), time.process_time(), time.perf_counter()
    await asyncio.to_thread(exchanged, rabbitmq.url, f"/queue/{QUEUE}", count)
    seconds, client_s = time.perf_counter() - began_at, time.process_time() - client_at
    return Sample(count, seconds, client_s, rabbitmq.processor_s() - server_at, 0.0, 0.0, None)


@contextmanager
def _rabbitmq() -> Iterator[_RabbitMQ | None]:
    """Start RabbitMQ with all its files in a temporary directory; None if it is not installed."""
    if RABBITMQ is None:
        yield None
        return
    with tempfile.TemporaryDirectory() as folder, socket.socket() as first, socket.socket() as second:
        first.bind(("127.0.0.1", 0))
        second.bind(("127.0.0.1", 0))
        port, distribution_port = first.getsockname()[1], second.getsockname()[1]
        first.close()
        second.close()
        plugins = Path(folder, "enabled_plugins")
        plugins.write_text("[rabbitmq_amqp1_0].\n")
        environment = os.environ | {
            "HOME": folder,
            "RABBITMQ_NODENAME": f"benchmark-{port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(port),
            "RABBITMQ_DIST_PORT": str(distribution_port),
            "RABBITMQ_MNESIA_BASE": folder,
            "RABBITMQ_LOG_BASE": folder,
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(plugins),
        }
        process = subprocess.Popen([RABBITMQ], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            _wait_for(port, process)
            yield _RabbitMQ(port, process.pid)
        finally:
            process.terminate()
            process.wait(START_S)


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise _NotStartedError(f"RabbitMQ does not start: run {RABBITMQ} to see why") from None
            time.sleep(0.2)
