"""How many functions of this package one operation enters: client side, attached and warm, over AMQP.

    python -m tests.benchmarks entered [--functions]

A function counts each time it is entered or resumed, by `sys.setprofile`; a file counts once. Of a send or a receive
the numbers are the medians of 50 operations. Of a drained message they are the whole run of a syphon over one backlog
queue with 1,000 messages, divided by the messages. The counts do not depend on the load of the machine, except that
the socket may deliver bytes in other portions. docs/performance.md states them.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from statistics import median
from types import CodeType, FrameType
from typing import Any, Final

import sbclient
from sbclient import PairedNamespaceOptions, ServiceBusClient, ServiceBusMessage
from sbclient.testing import Fault, FaultKind
from tests.benchmarks.row import BODY
from tests.benchmarks.sending import QUEUE
from tests.stage.counting import SECONDARY, EmulatorProcess

TIMES: Final = 50
WARM_UP: Final = 20
DRAINED: Final = 1_000
PACKAGE: Final = str(Path(sbclient.__file__).parent)
SHOWN: Final = 40


@dataclass(frozen=True, slots=True)
class Entered:
    """The functions that one operation enters.

    Attributes:
        functions: their number.
        files: number of their files.
        by_function: the number by file and name.
    """

    functions: float
    files: float
    by_function: dict[str, float]

    @classmethod
    def of(cls, counts: list[Counter[CodeType]], operations: int = 1) -> Entered:
        """Return the medians of some counts, each of so many operations."""
        every = sum(counts, Counter[CodeType]())
        number = len(counts) * operations
        return cls(
            median(each.total() for each in counts) / operations,
            median(len({code.co_filename for code in each}) for each in counts),
            {
                f"{code.co_filename.removeprefix(PACKAGE)}:{code.co_firstlineno} {code.co_qualname}": count / number
                for code, count in every.most_common()
            },
        )


@contextmanager
def counted() -> Iterator[Counter[CodeType]]:
    """Count the functions of the package that this thread enters in the context."""
    counts: Counter[CodeType] = Counter()

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            counts[frame.f_code] += 1

    sys.setprofile(profile)
    try:
        yield counts
    finally:
        sys.setprofile(None)


async def entered() -> dict[str, Entered]:
    """Return what each operation enters, by its name."""
    with EmulatorProcess() as server:
        server.create_queue(QUEUE)
        options = PairedNamespaceOptions(failover_interval=timedelta(0), backlog_queue_count=1)
        async with ServiceBusClient.from_connection_string(
            server.primary, secondary=server.secondary, options=options
        ) as client:
            async with client.get_queue_sender(QUEUE) as sender, client.get_queue_receiver(QUEUE) as receiver:

                async def send() -> None:
                    await sender.send_messages(ServiceBusMessage(BODY))

                async def receive_and_complete() -> None:
                    [message] = await receiver.receive_messages(max_message_count=1, max_wait_time=10)
                    await receiver.complete_message(message)

                sent = await _repeated(send)
                received = await _repeated(receive_and_complete)
                server.inject(Fault(FaultKind.DOWN, QUEUE))
                diverted = await _repeated(send)
                await asyncio.gather(*(send() for _ in range(DRAINED - server.counts()[SECONDARY])))
            server.heal()
            with counted() as counts:
                report = await client.run_syphon(until="empty")
            assert report.drained == DRAINED, report
    return {
        "awaited send": sent,
        "diverted send": diverted,
        "receive and complete": received,
        "drained message": Entered.of([counts], DRAINED),
    }


async def _repeated(operation: Callable[[], Awaitable[None]]) -> Entered:
    for _ in range(WARM_UP):
        await operation()
    runs = []
    for _ in range(TIMES):
        with counted() as counts:
            await operation()
        runs.append(counts)
    return Entered.of(runs)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks entered")
    parser.add_argument("--functions", action="store_true", help="print the functions that are entered most")
    options = parser.parse_args()
    for name, each in asyncio.run(entered()).items():
        print(f"{name}: {each.functions:.1f} functions in {each.files:.0f} files")
        if options.functions:
            for function, count in list(each.by_function.items())[:SHOWN]:
                print(f"    {count:6.2f} {function}")


if __name__ == "__main__":
    main()
