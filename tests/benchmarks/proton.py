"""The row that compares the emulator with RabbitMQ: the server's processor time under the same qpid-proton client."""

from __future__ import annotations

import asyncio
import time
from importlib.util import find_spec
from typing import Final
from urllib.parse import quote

from sbclient.emulator.sas import ROOT_KEY, ROOT_KEY_NAME
from tests.benchmarks.row import BODY, Result, Sample, Settings, Side, by_server_time, sample
from tests.benchmarks.sending import QUEUE
from tests.stage.counting import EmulatorProcess
from tests.wire import rabbitmq

PATIENCE_S: Final = 30.0


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
    except rabbitmq.NotStartedError as error:
        return Result(not_run=str(error))


async def _compared(settings: Settings) -> Result:
    count = settings.count(2_000)
    ours: list[Sample] = []
    others: list[Sample] = []
    with EmulatorProcess() as server, rabbitmq.running() as other:
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


async def _sample(broker: rabbitmq.RabbitMQ | None, count: int) -> Sample | None:
    if broker is None:
        return None
    server_at, client_at, began_at = broker.processor_s(), time.process_time(), time.perf_counter()
    await asyncio.to_thread(exchanged, broker.url, f"/queue/{QUEUE}", count)
    seconds, client_s = time.perf_counter() - began_at, time.process_time() - client_at
    return Sample(count, seconds, client_s, broker.processor_s() - server_at, 0.0, 0.0, None)
