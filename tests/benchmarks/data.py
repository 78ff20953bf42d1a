"""What a data directory costs an emulator: `python -m tests.benchmarks data`.

A client in the same process sends, receives and completes messages over AMQP. Runs without and with the directory take
turns.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Final

from sbclient import ServiceBusClient, ServiceBusMessage
from sbclient.emulator.emulator import Emulator

MESSAGES: Final = 3_000
PAIRS: Final = 5
BODY: Final = b"x" * 200


async def cost_s(data: Path | None, *, fsync: bool = False, messages: int = MESSAGES) -> tuple[float, float]:
    """Seconds of processor time, and of time, for that many messages."""
    async with Emulator("contoso", data=data, fsync=fsync) as emulator:
        emulator.create_queue("q")
        async with (
            ServiceBusClient.from_connection_string(emulator.connection_string) as client,
            client.get_queue_sender("q") as sender,
            client.get_queue_receiver("q") as receiver,
        ):
            await sender.send_messages(ServiceBusMessage(BODY))
            used_at, began_at = process_time(), perf_counter()
            await asyncio.gather(*(sender.send_messages(ServiceBusMessage(BODY)) for _ in range(messages)))
            completed = 0
            while completed < messages:
                received = await receiver.receive_messages(200, max_wait_time=5)
                await asyncio.gather(*map(receiver.complete_message, received))
                completed += len(received)
            return process_time() - used_at, perf_counter() - began_at


def main(arguments: Sequence[str] = ()) -> None:
    """Print the ratios."""
    with tempfile.TemporaryDirectory() as folder:
        found: dict[str, list[tuple[float, float]]] = {"without": [], "--data": [], "--data --fsync": []}
        for pair in range(PAIRS):
            for name, samples in found.items():
                data = None if name == "without" else Path(folder) / f"{name}{pair}"
                samples.append(asyncio.run(cost_s(data, fsync="--fsync" in name)))
    for name, samples in found.items():
        ratios = [[each[at] / base[at] for each, base in zip(samples, found["without"], strict=True)] for at in (0, 1)]
        used_us = median(each[0] for each in samples) / MESSAGES * 1e6
        print(
            f"{name:16} {used_us:6.0f} us of processor time for each message (client and emulator), "
            f"ratio {median(ratios[0]):.2f}; time, ratio {median(ratios[1]):.2f}"
        )


if __name__ == "__main__":
    main()
