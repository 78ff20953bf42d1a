"""Many accepts of sessions at a time, and a long drain, on an emulator in a process of its own.

    python -m tests.benchmarks limits [--accepts 4000] [--messages 100000]

Checks that pending accepts need no task each, that the client opens a further connection at the limit of channels, that
the syphon delivers each message once, by the broker's count, and that its memory stays flat. The exit status is 1 if a
check fails. Many senders and receivers on one connection are the row `connections` of the table.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterable
from typing import Final

from sbclient import NEXT_AVAILABLE_SESSION, ServiceBusClient, ServiceBusMessage, clock
from tests.benchmarks.draining import Pair
from tests.benchmarks.receiving import established
from tests.benchmarks.sending import QUEUE
from tests.stage.counting import PRIMARY, SECONDARY, EmulatorProcess, rss_mib

QUEUES: Final = 8
CHANNELS: Final = 5_000
LOOK_S: Final = 0.25
GROWTH: Final = 1.25
"""The memory in the last quarter of a drain may be so many times that in the second quarter."""


async def accepts(count: int) -> bool:
    """Wait for sessions of several queues, and accept one of each queue; return whether the checks hold."""
    with EmulatorProcess() as server:
        queues = [server.create_queue(f"visits-{number}", requires_session=True) for number in range(QUEUES)]
        async with ServiceBusClient.from_connection_string(server.primary, timeout=120) as client:
            transport = client._core.primary
            receivers = [
                transport.open_receiver(queues[number % QUEUES], session=NEXT_AVAILABLE_SESSION)
                for number in range(count)
            ]
            before = len(asyncio.all_tasks())
            calls = [asyncio.ensure_future(receiver.open(timeout_s=100)) for receiver in receivers]
            await asyncio.sleep(15)
            tasks = len(asyncio.all_tasks()) - before - len(calls)
            connected = established(server.port)
            pending = sum(not call.done() for call in calls)
            for queue in queues:
                async with client.get_queue_sender(queue) as sender:
                    await sender.send_messages(ServiceBusMessage("x", session_id="a"))
            await asyncio.sleep(2)
            accepted = sum(call.done() for call in calls)
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
    sys.stdout.write(
        f"{pending} accepts pending on {QUEUES} queues, {tasks} tasks beside those of the callers, {connected} "
        f"connections; {accepted} accepted after one message to each queue\n"
    )
    needed = -(-count // (CHANNELS // 2 - 1))
    return (pending, accepted) == (count, QUEUES) and tasks <= 10 and connected <= needed + 1


async def drain(count: int) -> bool:
    """Drain a backlog; return whether each message was delivered once and memory stayed flat."""
    with EmulatorProcess() as server:
        server.create_queue(QUEUE)
        pair = Pair(server)
        await pair.fill(count)
        samples = list[tuple[int, float]]()
        began_at = clock.monotonic()
        async with pair.client() as client:
            running = asyncio.ensure_future(client.run_syphon())
            while (drained := (await asyncio.to_thread(server.counts))[PRIMARY]) < count:
                assert not running.done(), running.exception()
                samples.append((drained, rss_mib()))
                await asyncio.sleep(LOOK_S)
            took_s = clock.monotonic() - began_at
            deliveries = server.deliveries()[SECONDARY] / count
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
    early = _peak(memory for done, memory in samples if count // 4 <= done < count // 2)
    late = _peak(memory for done, memory in samples if count * 3 // 4 <= done)
    sys.stdout.write(
        f"{count:,} messages drained in {took_s:.0f} s, {deliveries:.4f} deliveries each, memory {early:.0f} MiB in "
        f"the second quarter and {late:.0f} MiB in the last\n"
    )
    return deliveries == 1.0 and late <= early * GROWTH


def _peak(samples: Iterable[float]) -> float:
    return max(samples, default=0.0)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.limits", description=__doc__)
    parser.add_argument("--accepts", type=int, default=4_000)
    parser.add_argument("--messages", type=int, default=100_000)
    options = parser.parse_args()
    results = [asyncio.run(accepts(options.accepts)), asyncio.run(drain(options.messages))]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
