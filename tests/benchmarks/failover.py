"""How many messages go through a pair, an outage and a syphon in one process, at what cost, and whether any is lost.

    python -m tests.benchmarks.failover [messages]

Time is virtual, the cost is real: microseconds for each message, and peak memory, with the messages in it. Memory is
measured in a second run, since measuring slows everything down.
"""

from __future__ import annotations

import asyncio
import sys
import time
import tracemalloc
from dataclasses import dataclass
from datetime import timedelta

from sbclient import clock
from sbclient.client.client import ServiceBusClient
from sbclient.delivery import ServiceBusReceiveMode
from sbclient.message import ServiceBusMessage
from sbclient.options import PairedNamespaceOptions
from sbclient.testing import Fault, FaultKind, memory_pair, run_virtual
from sbclient.testing.ledger import Ledger

QUEUES = ("orders", "bills", "visits")
CALLERS = 200
"""So many messages are under way at once."""


@dataclass(frozen=True, slots=True)
class Result:
    """Counts of messages, microseconds for each, and bytes: the largest number in flight while the client drained."""

    sent: int
    diverted: int
    drained: int
    delivered: int
    lost: int
    duplicates: int
    send_us: float
    divert_us: float
    drain_us: float
    receive_us: float
    drain_growth_bytes: int


async def passed_through(messages: int) -> Result:
    """Half the messages are sent while the primary is well, half in an outage; then everything is drained."""
    pair, ledger = memory_pair(seed=1), Ledger()
    ledger.accepted.update(map(str, range(messages)))
    async with pair.client(PairedNamespaceOptions(failover_interval=timedelta(0))) as client:
        for queue in QUEUES:
            await client.administration.create_queue(queue, enable_partitioning=queue == "bills")
        healthy, outage = range(messages // 2), range(messages // 2, messages)
        send_us = await _sent(client, healthy)
        pair.primary.inject(Fault(FaultKind.DOWN))
        divert_us = await _sent(client, outage)
        pair.primary.heal()
        await clock.sleep(120.0)
        before = _memory()
        began_at = time.perf_counter()
        report = await client.run_syphon(until="empty")
        drain_us = _each(began_at, report.drained)
        growth_bytes = max(0, _memory(peak=True) - before)
        began_at = time.perf_counter()
        for queue in QUEUES:
            ledger.delivered.update(await _received(client, queue))
        receive_us = _each(began_at, ledger.delivered.total())
        diverted = sum(entity.diverted for entity in client.pair.status().entities.values())
    return Result(
        sent=messages,
        diverted=diverted,
        drained=report.drained,
        delivered=ledger.delivered.total(),
        lost=len(ledger.lost),
        duplicates=ledger.duplicates,
        send_us=send_us,
        divert_us=divert_us,
        drain_us=drain_us,
        receive_us=receive_us,
        drain_growth_bytes=growth_bytes,
    )


async def _sent(client: ServiceBusClient, numbers: range) -> float:
    """Send with many callers at once; returns microseconds for each message."""
    senders = [client.get_queue_sender(queue) for queue in QUEUES]
    left = iter(numbers)

    async def caller() -> None:
        for number in left:
            session = f"session {number % 50}" if number % 3 == 2 else None
            await senders[number % 3].send_messages(ServiceBusMessage(str(number), session_id=session))

    began_at = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(CALLERS)))
    for sender in senders:
        await sender.close()
    return _each(began_at, len(numbers))


async def _received(client: ServiceBusClient, queue: str) -> list[str]:
    bodies: list[str] = []
    async with client.get_queue_receiver(
        queue, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE, max_wait_time=1
    ) as receiver:
        while messages := await receiver.receive_messages(1000):
            bodies += map(str, messages)
    return bodies


def _each(began_at: float, count: int) -> float:
    return (time.perf_counter() - began_at) / max(count, 1) * 1e6


def _memory(*, peak: bool = False) -> int:
    """Traced bytes now, or the most since the last look; 0 where nothing is traced."""
    if not tracemalloc.is_tracing():
        return 0
    now, most = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    return most if peak else now


def main() -> None:
    messages = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    result = run_virtual(passed_through(messages))
    tracemalloc.start()
    traced = run_virtual(passed_through(messages))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    print(f"sent {result.sent}, diverted {result.diverted}, drained {result.drained}, delivered {result.delivered}")
    print(f"lost {result.lost}, duplicates {result.duplicates}")
    print(
        f"microseconds for each message: send {result.send_us:.0f}, divert {result.divert_us:.0f}, "
        f"drain {result.drain_us:.0f}, receive {result.receive_us:.0f}"
    )
    print(f"memory: while draining {traced.drain_growth_bytes / 2**20:.1f} MiB more than before it")
    print(f"        at the end, with every body received, {peak_bytes / 2**20:.1f} MiB at most")
    sys.exit(1 if result.lost else 0)


if __name__ == "__main__":
    main()
