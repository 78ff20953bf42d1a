"""The cost of an open page for the emulator: 1,000 entities, 100,000 messages, and traffic beside.

    python -m tests.benchmarks.watched [seconds]

Traffic runs alternately unwatched and watched by four pages; printed are the messages of each second of processor time
in both, their ratio, what the watching takes of the processor when nothing else happens, and the first answer's size.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from sbclient.amqp import encode_message
from sbclient.broker.faults import Call, Operation
from sbclient.emulator import Emulator
from sbclient.emulator.sas import AuthorizationMode
from sbclient.entities import EntityAddress, EntityKind, QueueProperties
from sbclient.message import ServiceBusMessage

ENTITIES = 1_000
MESSAGES = 100_000
BACKLOG = "contoso/x-servicebus-transfer/0"
PAGES = 4
ROUNDS = 5
WATCH = b"GET /$control/watch?entity=q1 HTTP/1.1\r\nHost: localhost\r\n\r\n"


def fill(emulator: Emulator) -> None:
    """Half of the messages wait in queues, half in a backlog, where their destinations are read."""
    now = time.time()
    primary, secondary = (emulator.context(name).host.namespace for name in emulator.namespaces)
    for number in range(ENTITIES):
        address = EntityAddress(EntityKind.QUEUE, (f"q{number}",))
        call = Call(Operation.MANAGE, now + number)  # the profile allows so many a second
        primary.management.create(call, address, QueueProperties(f"q{number}"))
    secondary.management.create(
        Call(Operation.MANAGE, now), EntityAddress(EntityKind.QUEUE, (BACKLOG,)), QueueProperties(BACKLOG)
    )
    for number in range(MESSAGES // 2):
        path = f"q{number % ENTITIES}"
        primary.send(Call(Operation.SEND, now), path, [encode_message(ServiceBusMessage(b"x"))])
        diverted = ServiceBusMessage(b"x", application_properties={"x-ms-path": path})
        secondary.send(Call(Operation.SEND, now), BACKLOG, [encode_message(diverted)])


async def look(port: int, sizes: list[int]) -> None:
    """A page: reads what it is sent, and keeps how much came at first."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**24)
    writer.write(WATCH)
    await reader.readuntil(b"event: snapshot\n")
    sizes.append(len(await reader.readuntil(b"\n\n")))
    while await reader.read(2**16):
        pass


async def traffic(emulator: Emulator, seconds: float) -> float:
    """Messages sent and taken in a second of processor time, while watchers are served too."""
    host = emulator.context().host
    count, began, cpu = 0, time.monotonic(), time.process_time()
    while time.monotonic() - began < seconds:
        for _ in range(20):
            host.namespace.send(Call(Operation.SEND, time.time()), "q1", [encode_message(ServiceBusMessage(b"x"))])
            await host.receive("q1", max_message_count=1, max_wait_time_s=0)
            count += 1
        await asyncio.sleep(0)
    return count / (time.process_time() - cpu)


async def idle(seconds: float) -> float:
    """The share of the processor that is used while nothing but the watching happens."""
    cpu = time.process_time()
    await asyncio.sleep(seconds)
    return (time.process_time() - cpu) / seconds


async def measured(seconds: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with Emulator(
            "contoso", "contoso-backup", auth=AuthorizationMode.NONE, certificate_directory=Path(folder)
        ) as emulator:
            fill(emulator)
            unwatched, watched, sizes = [], [], list[int]()
            for _ in range(ROUNDS):
                unwatched.append(await traffic(emulator, seconds))
                pages = [asyncio.create_task(look(emulator.ports["contoso"], sizes)) for _ in range(PAGES)]
                await asyncio.sleep(1)
                watched.append(await traffic(emulator, seconds))
                share = await idle(seconds)
                for page in pages:
                    page.cancel()
                await asyncio.gather(*pages, return_exceptions=True)
    without, with_pages = median(unwatched), median(watched)
    print(f"messages for each second of processor time: {without:,.0f} unwatched, {with_pages:,.0f} with {PAGES} pages")
    print(f"ratio {with_pages / without:.2f}; watching alone takes {share:.1%} of a processor")
    print(f"the first answer to a page has {max(sizes):,} bytes for {ENTITIES:,} entities")


if __name__ == "__main__":
    asyncio.run(measured(float(sys.argv[1]) if len(sys.argv) > 1 else 2.0))
