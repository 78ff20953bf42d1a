"""The row that compares clients on one emulator: processor time of the client for each message.

Each client sends messages, receives them, and completes them, in its fastest way: lists of 100 and concurrent
completions, or pipelined transfers and an accept of each message (qpid-proton).
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Awaitable, Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pytest
from azure.servicebus import ServiceBusMessage as SdkMessage
from azure.servicebus.aio import ServiceBusClient as SdkClient

from sbclient import ServiceBusClient, ServiceBusMessage
from sbclient.emulator.sas import ROOT_KEY, ROOT_KEY_NAME
from tests.benchmarks.row import BODY, Result, Sample, Settings, Side, by_client_time, sample
from tests.benchmarks.sending import QUEUE, in_lists
from tests.stage.counting import EmulatorProcess
from tests.wire.programs import build_go

LIST: Final = 100
PATIENCE_S: Final = 120.0


async def exchange(client: Any, message: Callable[[], Any], count: int) -> None:
    """Send lists, receive lists, and complete their messages concurrently."""
    async with client.get_queue_sender(QUEUE) as sender, client.get_queue_receiver(QUEUE) as receiver:
        await in_lists(sender, message, count, LIST)
        while count > 0:
            messages = await receiver.receive_messages(LIST, max_wait_time=10)
            assert messages, f"{count} messages did not arrive"
            await asyncio.gather(*map(receiver.complete_message, messages))
            count -= len(messages)


def exchange_by_proton(url: str, count: int) -> None:
    """Send messages as credit allows, then receive and accept them."""
    proton, handlers, reactor = (import_module(name) for name in ("proton", "proton.handlers", "proton.reactor"))
    base: Any = handlers.MessagingHandler  # not a class for the type checker, which may lack the package

    class Exchange(base):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(prefetch=LIST, auto_accept=True)
            self.sent = self.accepted = self.received = 0

        def on_start(self, event: Any) -> None:
            self.connection = event.container.connect(url, allowed_mechs="PLAIN")
            event.container.create_sender(self.connection, QUEUE)

        def on_sendable(self, event: Any) -> None:
            while event.sender.credit and self.sent < count:
                event.sender.send(proton.Message(body=BODY, inferred=True))
                self.sent += 1

        def on_accepted(self, event: Any) -> None:
            self.accepted += 1
            if self.accepted == count:
                event.container.create_receiver(self.connection, QUEUE)

        def on_message(self, event: Any) -> None:
            self.received += 1
            if self.received == count:
                event.receiver.close()
                event.connection.close()

    reactor.Container(Exchange()).run()


async def clients(settings: Settings) -> Result:
    """Compare our client with qpid-proton; the others are in the table."""
    if find_spec("proton") is None:
        return Result(not_run="python-qpid-proton is not installed")
    count = settings.count(5_000, LIST)
    notes: list[str] = []
    samples: dict[str, list[Sample]] = {}
    with EmulatorProcess() as server:
        server.create_queue(QUEUE)
        url = f"amqp://{ROOT_KEY_NAME}:{quote(ROOT_KEY, safe='')}@127.0.0.1:{server.port}"

        async def ours() -> None:
            async with ServiceBusClient.from_connection_string(server.primary) as client:
                await exchange(client, lambda: ServiceBusMessage(BODY), count)

        async def azure() -> None:
            async with SdkClient.from_connection_string(server.primary) as client:
                await exchange(client, lambda: SdkMessage(BODY), count)

        runs: dict[str, Callable[[], Awaitable[None]]] = {
            "sbclient": ours,
            "qpid-proton": lambda: asyncio.to_thread(exchange_by_proton, url, count),
            "azure-servicebus": azure,
        }
        program = _program(notes)
        for number in range(settings.pairs + 1):
            for name, run in runs.items():
                found = await sample(server, Side(name, count, run))
                if number:  # the first one is the warm-up
                    samples.setdefault(name, []).append(found)
            if program is not None and number:
                found_us = await asyncio.to_thread(_measured_us, program, server.primary, count)
                notes.append(f"azservicebus for Go: {found_us:.1f} µs of processor time of the client")
    ratios = [by_client_time(*each) for each in zip(samples["sbclient"], samples["qpid-proton"], strict=True)]
    return Result(ratios, samples, notes)


def _program(notes: list[str]) -> Path | None:
    """The program for Go; None, with a note, if it cannot be built."""
    try:
        return build_go(Path(__file__).parent / "azservicebus", for_what="azservicebus")
    except pytest.skip.Exception as reason:
        notes.append(f"azservicebus for Go did not run: {reason}")
        return None


def _measured_us(program: Path, connection_string: str, count: int) -> float:
    command = [str(program), connection_string, QUEUE, str(count)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    return float(done.stdout)
