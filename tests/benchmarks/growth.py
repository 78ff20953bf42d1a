"""How cost grows with work: each cost at 1,000, 10,000 and 100,000 messages, sessions, ids or locks.

    python -m tests.benchmarks growth [--largest] [--sizes 1000,10000] [ROW ...]

A cost is processor time or memory for each unit. It is flat if it does not grow by more than half over the smallest
size; the exit status is 1 if a flat cost grows by more, or a cost exceeds its bound. Rows whose unit costs more run
with a part of the size. `--largest` adds 1,000,000 for what is in memory, and 300,000 for what goes over AMQP.

Sizes up to 10,000 are repeated, and the median counts: a large size runs for long, and so has a mean of busy and idle
moments of the machine. docs/performance.md shows the table.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import sys
import tempfile
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any, Final, TypeAlias

from sbclient import NEXT_AVAILABLE_SESSION, PairedNamespaceOptions, ServiceBusClient, ServiceBusMessage
from sbclient.administration import ServiceBusAdministrationClient
from sbclient.amqp import encode_message
from sbclient.broker.deduplication import DuplicateWindow, Identity, identity_with_key
from sbclient.broker.entity import PeekCursor
from sbclient.broker.faults import Operation
from sbclient.broker.namespace import Namespace
from sbclient.emulator import Emulator
from sbclient.entities import CorrelationRuleFilter, SqlRuleFilter
from sbclient.testing import Fault, FaultKind, drop_memory_host, memory_pair
from tests.benchmarks.broker_scale import Filled
from tests.benchmarks.row import BODY
from tests.benchmarks.sending import QUEUE
from tests.stage.counting import EmulatorProcess

SIZES: Final = (1_000, 10_000, 100_000)
LARGEST_MEMORY: Final = 1_000_000
LARGEST_AMQP: Final = 300_000
LIST: Final = 100
"""Messages of one call."""

MOST_GROWTH: Final = 1.5
LEAST: Final = 2.0
"""A cost below it counts as this."""

REPEATED: Final = 30_000
"""A smaller size is repeated until so many units have been measured, at most 5 times."""

STATUSES: Final = 20
HOST: Final = "growth"
TOPIC: Final = "news"
LARGE: Final[dict[str, Any]] = {"max_size_in_megabytes": 5120}

Costs: TypeAlias = dict[str, float]
"""Microseconds of processor time, bytes, or what the name says, for each unit."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table.

    Attributes:
        name: as on the command line.
        measure: returns the costs of one unit at a size.
        divisor: the row has this part of the size.
        is_remote: whether it goes over AMQP.
        most: bounds of some costs by name.
        not_flat: names of costs that may grow.
    """

    name: str
    measure: Callable[[int], Awaitable[Costs]]
    divisor: int = 1
    is_remote: bool = False
    most: dict[str, float] | None = None
    not_flat: Sequence[str] = ()

    def sizes(self, sizes: Sequence[int], *, largest: bool) -> list[int]:
        """Return the sizes of this row."""
        more = ((LARGEST_AMQP if self.is_remote else LARGEST_MEMORY),) if largest and self.divisor == 1 else ()
        return [max(1, size // self.divisor) for size in (*sizes, *more)]

    async def typical(self, size: int) -> Costs:
        """Return the median costs of some runs."""
        runs = [await self.measure(size) for _ in range(max(1, min(5, REPEATED // self.divisor // size)))]
        return {name: median(run[name] for run in runs) for name in runs[0]}

    def misses(self, costs: Sequence[Costs]) -> list[str]:
        """Return what does not hold of costs at rising sizes."""
        missed = []
        for name, first in costs[0].items():
            seen = [each[name] for each in costs]
            if name not in self.not_flat and max(seen) > MOST_GROWTH * max(first, LEAST):
                missed.append(f"{self.name}, {name}: {first:.4g} grows to {max(seen):.4g}")
            if max(seen) > (most := (self.most or {}).get(name, float("inf"))):
                missed.append(f"{self.name}, {name}: {max(seen):.4g}, at most {most:g} is allowed")
        return missed


class Timer:
    """Measures processor time of this process and, if there is one, of an emulator in another process."""

    def __init__(self, server: EmulatorProcess | None = None) -> None:
        self._server = server
        self.costs: Costs = {}
        gc.collect()

    async def of(self, name: str, units: int, work: Awaitable[object]) -> None:
        """Add what some work costs for each of its units."""
        server_at = self._server.processor_s() if self._server is not None else 0.0
        began_at = process_time()
        await work
        self.costs[f"{name}, µs"] = (process_time() - began_at) / units * 1e6
        if self._server is not None:
            self.costs[f"{name}, emulator µs"] = (self._server.processor_s() - server_at) / units * 1e6


@asynccontextmanager
async def in_memory(**settings: Any) -> AsyncIterator[ServiceBusClient]:
    """A client of a fresh broker in this process, with a queue."""
    drop_memory_host(HOST)
    async with ServiceBusClient.from_connection_string(f"memory://{HOST}") as client:
        await client.administration.create_queue(QUEUE, **LARGE, **settings)
        yield client
    drop_memory_host(HOST)


@asynccontextmanager
async def over_amqp(**settings: Any) -> AsyncIterator[tuple[EmulatorProcess, ServiceBusClient]]:
    """An emulator with a queue, and a client."""
    with EmulatorProcess() as server:
        server.create_queue(QUEUE, **LARGE, **settings)
        async with ServiceBusClient.from_connection_string(server.primary) as client:
            yield server, client


async def allocated(work: Callable[[], Awaitable[object]]) -> int:
    """Return the bytes that some work leaves allocated."""
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        await work()
        gc.collect()
        return tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()


def numbers_of(size: int) -> Iterable[range]:
    """The numbers below a size, in lists."""
    return (range(start, min(start + LIST, size)) for start in range(0, size, LIST))


async def send(client: ServiceBusClient, size: int, **attributes: Callable[[int], Any]) -> None:
    """Send lists of messages, whose attributes are functions of their number."""
    async with client.get_queue_sender(QUEUE) as sender:
        for numbers in numbers_of(size):
            await sender.send_messages(
                [ServiceBusMessage(BODY, **{name: of(number) for name, of in attributes.items()}) for number in numbers]
            )


async def receive_all(receiver: Any, size: int, settle: Callable[[Any], Awaitable[None]]) -> None:
    """Receive lists of messages, and settle them concurrently."""
    while size > 0:
        messages = await receiver.receive_messages(LIST, max_wait_time=10)
        assert messages, f"{size} messages did not arrive"
        await asyncio.gather(*map(settle, messages))
        size -= len(messages)


async def use(client: ServiceBusClient, timer: Timer, size: int) -> None:
    """Send, peek, count, receive and complete."""
    await timer.of("send", size, send(client, size))
    async with client.get_queue_receiver(QUEUE) as receiver:

        async def peek() -> None:
            for number in range(1, 21):
                await receiver.peek_messages(LIST, sequence_number=max(1, size * number // 40))

        await timer.of("peek", 20 * LIST if size >= 4 * LIST else 1, peek())
        await timer.of("receive and complete", size, receive_all(receiver, size, receiver.complete_message))


async def memory_queue(size: int) -> Costs:
    async with in_memory() as client:
        timer = Timer()

        async def count() -> None:
            for _ in range(200):
                await client.administration.get_queue_runtime_properties(QUEUE)

        await use(client, timer, size)
        timer.costs["bytes"] = await allocated(lambda: send(client, size)) / size
        await timer.of("counts", 200, count())
    return timer.costs


async def emulator_queue(size: int) -> Costs:
    async with over_amqp() as (server, client):
        timer = Timer(server)
        await use(client, timer, size)
    return timer.costs


def size_of(folder: str) -> int:
    return sum(path.stat().st_size for path in Path(folder).rglob("*"))


async def data_directory(size: int) -> Costs:
    """Costs of the emulator and the client together, which share this process."""
    timer = Timer()
    with tempfile.TemporaryDirectory() as folder:
        async with Emulator("contoso", data=folder) as emulator:
            emulator.create_queue(QUEUE, **LARGE)
            async with ServiceBusClient.from_connection_string(emulator.connection_string) as client:
                await timer.of("send, with the client", size, send(client, size))
        timer.costs["bytes on disk"] = size_of(folder) / size

        async def restart() -> None:
            async with Emulator("contoso", data=folder):
                pass

        await timer.of("restart", size, restart())
    return timer.costs


async def failed_over(size: int) -> Costs:
    """An entity of a client that is failed over."""
    names = [f"{QUEUE}-{number}" for number in range(size)]
    options = PairedNamespaceOptions(failover_interval=timedelta(0), ping_primary_interval=timedelta(minutes=30))
    pair = memory_pair()
    for name in names:
        pair.primary.create_queue(name)
    async with pair.client(options=options) as client:
        pair.primary.inject(Fault(FaultKind.DOWN))

        async def fail_over() -> None:
            for name in names:
                async with client.get_queue_sender(name) as sender:
                    await sender.send_messages(ServiceBusMessage(BODY))

        async def status() -> None:
            for _ in range(STATUSES):
                assert len(client.pair.status().entities) == size

        timer = Timer()
        await timer.of("fail over", size, fail_over())
        await timer.of("status", size * STATUSES, status())
    return timer.costs


async def accept_all(client: ServiceBusClient, size: int) -> None:
    """Accept each session, and complete its message."""
    for _ in range(size):
        async with client.get_queue_receiver(QUEUE, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=10) as receiver:
            await receive_all(receiver, 1, receiver.complete_message)


async def list_sessions(client: ServiceBusClient, size: int) -> None:
    assert len([each async for each in client.list_queue_sessions(QUEUE)]) == size


async def memory_sessions(size: int) -> Costs:
    async with in_memory(requires_session=True) as client:
        timer = Timer()
        await send(client, size, session_id=str)
        await timer.of("list", size, list_sessions(client, size))
        await timer.of("accept and drain", size, accept_all(client, size))
    return timer.costs


async def emulator_sessions(size: int) -> Costs:
    async with over_amqp(requires_session=True) as (server, client):
        timer = Timer(server)
        await send(client, size, session_id=str)
        await timer.of("list", size, list_sessions(client, size))
        await timer.of("accept and drain", size, accept_all(client, size))
    return timer.costs


async def subscriptions(size: int) -> Costs:
    """What each subscription of a topic adds to the cost of a message."""
    timer = Timer()
    rounds = max(5, 2_000 // size)
    alone = f"{TOPIC} alone"
    filters: dict[str, Callable[[int], Any] | None] = {
        alone: None,
        "SQL filter without a match": lambda number: SqlRuleFilter(f"color = 'c{number}'"),
        "correlation filter without a match": lambda number: CorrelationRuleFilter(label=f"c{number}"),
        "copy": lambda _: None,
    }
    for name, make in filters.items():
        async with in_memory() as client:
            manage: ServiceBusAdministrationClient = client.administration
            await manage.create_topic(TOPIC)
            for number in range(size if make is not None else 0):
                await manage.create_subscription(TOPIC, f"s{number}")
                if make is not None and (rule := make(number)) is not None:
                    await manage.create_rule(TOPIC, f"s{number}", "only", filter=rule)
                    await manage.delete_rule(TOPIC, f"s{number}", "$Default")
            async with client.get_topic_sender(TOPIC) as sender:

                async def publish(sender: Any = sender) -> None:
                    properties: Any = {"color": "none"}
                    await sender.send_messages(
                        [ServiceBusMessage(BODY, application_properties=properties) for _ in range(rounds)]
                    )

                await publish()
                await timer.of(name, rounds * size, publish())
    base = timer.costs.pop(f"{alone}, µs")
    return {name: max(0.0, cost - base) for name, cost in timer.costs.items()}


async def scheduled(size: int) -> Costs:
    async with in_memory() as client, client.get_queue_sender(QUEUE) as sender:
        later = datetime.now(UTC) + timedelta(days=1)
        numbers: list[int] = []

        async def schedule() -> None:
            for part in numbers_of(size):
                messages = [ServiceBusMessage(BODY) for _ in part]
                numbers.extend(await sender.schedule_messages(messages, later + timedelta(seconds=part[0])))

        async def cancel() -> None:
            for part in numbers_of(size):
                await sender.cancel_scheduled_messages(numbers[part[0] : part[-1] + 1])

        timer = Timer()
        await timer.of("schedule", size, schedule())
        await timer.of("cancel", size, cancel())
        numbers.clear()
        timer.costs["bytes"] = (
            await allocated(schedule) - sys.getsizeof(numbers)
        ) / size - 32  # the numbers themselves
    return timer.costs


async def deferred(size: int) -> Costs:
    async with over_amqp() as (server, client), client.get_queue_receiver(QUEUE) as receiver:
        await send(client, size)
        numbers: list[int] = []

        async def defer(message: Any) -> None:
            numbers.append(message.sequence_number)
            await receiver.defer_message(message)

        await receive_all(receiver, size, defer)

        async def complete() -> None:
            for part in numbers_of(size):
                messages = await receiver.receive_deferred_messages(numbers[part[0] : part[-1] + 1])
                await asyncio.gather(*map(receiver.complete_message, messages))

        timer = Timer(server)
        await timer.of("receive and complete", size, complete())
    return timer.costs


async def ended_locks(size: int) -> Costs:
    """Locks that end at the same time, in virtual time of the broker."""
    filled = Filled(size)
    namespace: Namespace = filled.namespace
    left = size
    while left:
        left -= len(namespace.receive(filled.call(Operation.RECEIVE), "q", max_message_count=left))
    filled.now += 3600
    fragment = namespace.queue("q").fragments[0]
    total_s = longest_s = 0.0
    while fragment.locked_count:
        filled.now += 1e-3
        began_at = process_time()
        namespace.peek(filled.call(Operation.PEEK), "q", PeekCursor(), max_message_count=1, from_number=0)
        took_s = process_time() - began_at
        total_s, longest_s = total_s + took_s, max(longest_s, took_s)
    return {"end of a lock, µs": total_s / size * 1e6, "longest request, ms": longest_s * 1e3}


async def changes_together(size: int) -> Costs:
    """Messages that expire at the same time, and scheduled messages that are due at the same time."""
    costs = {}
    in_a_minute = timedelta(seconds=60)
    for name in ("expiry", "schedule"):
        filled = Filled(size if name == "expiry" else 0, default_message_time_to_live=in_a_minute)
        at = datetime.fromtimestamp(filled.now, UTC) + in_a_minute
        for numbers in numbers_of(size) if name == "schedule" else ():
            messages = [ServiceBusMessage(b"x", message_id=f"{n}", scheduled_enqueue_time_utc=at) for n in numbers]
            filled.namespace.schedule(filled.call(Operation.SCHEDULE), "q", list(map(encode_message, messages)))
        filled.now += 60
        began_at = process_time()
        filled.namespace.peek(filled.call(Operation.PEEK), "q", PeekCursor(), max_message_count=1, from_number=0)
        took_s = process_time() - began_at
        costs[f"{name}, µs"] = took_s / size * 1e6
        costs[f"{name}, longest request, ms"] = took_s * 1e3
    return costs


async def renewed_locks(size: int) -> Costs:
    async with over_amqp() as (server, client), client.get_queue_receiver(QUEUE) as receiver:
        await send(client, size)
        held: list[Any] = []
        while len(held) < size:
            held += await receiver.receive_messages(LIST, max_wait_time=10)

        async def renew() -> None:
            for part in numbers_of(size):
                await asyncio.gather(*map(receiver.renew_message_lock, held[part[0] : part[-1] + 1]))

        timer = Timer(server)
        await timer.of("renew", size, renew())
    return timer.costs


async def remembered_ids(size: int) -> Costs:
    """Ids as long as a UUID."""
    costs = {}
    identities: dict[str, Callable[[str], Identity]] = {
        "plain": str,
        "with a partition key": lambda message_id: identity_with_key(message_id, "customer-1"),
    }
    for name, identity in identities.items():
        window = DuplicateWindow()

        async def remember(window: DuplicateWindow = window, identity: Callable[[str], Identity] = identity) -> None:
            for number in range(size):
                window.remember(identity(f"{number:036}"), float(number))

        costs[f"{name}, bytes"] = await allocated(remember) / size
    return costs


async def opened_clients(size: int) -> Costs:
    """Open a client, send a message, and close it."""
    with EmulatorProcess() as server:
        server.create_queue(QUEUE)

        async def open_and_close(times: int) -> None:
            for _ in range(times):
                async with (
                    ServiceBusClient.from_connection_string(server.primary) as client,
                    client.get_queue_sender(QUEUE) as sender,
                ):
                    await sender.send_messages(ServiceBusMessage(BODY))

        await open_and_close(2)
        timer = Timer(server)
        await timer.of("open and close", size, open_and_close(size))
    return timer.costs


ROWS: Final = (
    Row("memory-queue", memory_queue, most={"bytes": 900}),
    Row("emulator-queue", emulator_queue, is_remote=True),
    Row("data-directory", data_directory, is_remote=True),
    Row("failed-over", failed_over, divisor=100),
    Row("memory-sessions", memory_sessions),
    Row("emulator-sessions", emulator_sessions, divisor=10, is_remote=True),
    Row(
        "subscriptions",
        subscriptions,
        divisor=100,
        most={"SQL filter without a match, µs": 5, "correlation filter without a match, µs": 1, "copy, µs": 15},
        not_flat=("copy, µs",),
    ),
    Row("scheduled", scheduled, most={"bytes": 900}),
    Row(
        "deferred",
        deferred,
        divisor=10,
        is_remote=True,
        most={"receive and complete, µs": 100, "receive and complete, emulator µs": 100},
    ),
    Row("ended-locks", ended_locks, most={"longest request, ms": 20}, not_flat=("longest request, ms",)),
    Row(
        "changes-together",
        changes_together,
        not_flat=("expiry, longest request, ms", "schedule, longest request, ms"),
    ),
    Row("renewed-locks", renewed_locks, divisor=10, is_remote=True),
    Row("remembered-ids", remembered_ids, most={"plain, bytes": 150, "with a partition key, bytes": 150}),
    Row(
        "opened-clients",
        opened_clients,
        divisor=100,
        is_remote=True,
        most={"open and close, µs": 4_000, "open and close, emulator µs": 3_000},
    ),
)


def as_text(row: Row, sizes: Sequence[int], costs: Sequence[Costs]) -> str:
    """Return the lines of a row: each cost at the sizes."""
    lines = [f"{row.name:32}" + "".join(f"{size:>12,}" for size in sizes)]
    lines += [f"    {name:36}" + "".join(f"{each[name]:12.4g}" for each in costs) for name in costs[0]]
    return "\n".join(lines)


def main() -> int:
    rows = {row.name: row for row in ROWS}
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks growth", description=f"Rows: {', '.join(rows)}.")
    parser.add_argument("rows", nargs="*", metavar="ROW", help="default: all")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="default %(default)s")
    parser.add_argument("--largest", action="store_true", help="also 1,000,000 in memory and 300,000 over AMQP")
    options = parser.parse_args()
    if unknown := [name for name in options.rows if name not in rows]:
        parser.error(f"there is no row {', '.join(unknown)}: choose from {', '.join(rows)}")
    asked = [int(size) for size in options.sizes.split(",")]
    missed: list[str] = []
    for name in options.rows or rows:
        row = rows[name]
        sizes = row.sizes(asked, largest=options.largest)
        costs = [asyncio.run(_typical(row, size)) for size in sizes]
        print(as_text(row, sizes, costs), flush=True)
        missed += row.misses(costs)
    for miss in missed:
        print(f"missed: {miss}")
    return 1 if missed else 0


async def _typical(row: Row, size: int) -> Costs:
    return await row.typical(size)


if __name__ == "__main__":
    sys.exit(main())
