"""Memory and requests of a syphon over many days: `python -m tests.benchmarks.worker_days [--days 7] [--daily 2000]`.

Time is virtual. Each day messages come for thousands of new entities, in plain queues and in sessions; each day brings
an outage of the primary of 50 minutes, a restart of the secondary, messages that cannot be forwarded, and messages
for entities that do not exist, each given up when that was known for 24 hours. One entity refuses for most of the day.
Printed at the end of each day:

    objects      instances of the classes of the client that are alive
    KiB          memory allocated by anything but the broker and this benchmark, by tracemalloc
    tasks, senders, receivers
    operations   requests of that day, for what

The memory of the broker is not counted: its classes and the allocations of its files are left out, and its queues are
emptied at the end of each day, so that the only messages in memory are those in flight in the syphon.
The list of the last events and the caches of paths, both bounded, are full from the beginning.

Then, each on a fresh pair: what a day costs in operations when nothing happens, and when a destination refuses.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import time
import tracemalloc
from collections import Counter
from dataclasses import dataclass
from typing import Final

from sbclient import clock
from sbclient.amqp import EncodedMessage, encode_message
from sbclient.broker.faults import Call, Fault, FaultKind, Operation
from sbclient.client.client import ServiceBusClient
from sbclient.delivery import ServiceBusReceiveMode
from sbclient.entities import EntityAddress, EntityKind, QueueProperties
from sbclient.errors import MessagingEntityDisabledError
from sbclient.hosting.host import BrokerHost
from sbclient.message import ServiceBusMessage
from sbclient.options import PairedNamespaceOptions
from sbclient.pairing.state import EVENTS_KEPT
from sbclient.rules.backlog import native_session_id_of, session_backlog_queue_of
from sbclient.rules.entity_path import canonical, split_sub_queue, split_subscription
from sbclient.rules.envelope import seal
from sbclient.syphon.syphon import Syphon
from sbclient.testing import MemoryPair, memory_pair, run_virtual
from tests.benchmarks.counted import CountedTransport

DAY_S: Final = 24 * 3600.0
ROUNDS: Final = 20
"""Hours of a day in which messages come; the rest is quiet, so that at the end of the day nothing is under way."""
OUTAGE_AT: Final = 8
RESTART_AT: Final = 14
OUTAGE_S: Final = 3000.0
RESTART_S: Final = 300.0
MISSING_DAILY: Final = 4
DISABLED: Final = "disabled"
QUEUES: Final = 2
BODY: Final = b"x" * 1024
KIB: Final = 1024

NOT_THE_CLIENTS: Final = ("sbclient.broker", "sbclient.transport.memory", "sbclient.testing")
NOT_ITS_FILES: Final = (
    "*/sbclient/broker/*",
    "*/sbclient/transport/memory*.py",
    "*/tests/benchmarks/*",
    tracemalloc.__file__,
)


@dataclass(frozen=True, slots=True)
class Day:
    """How things stood at the end of one day, and what was asked in it."""

    objects: Counter[str]
    size_bytes: int
    tasks: int
    senders: int
    receivers: int
    asked: Counter[Operation]
    drained: int


class Scene:
    """A pair, and a client whose requests are counted."""

    def __init__(self) -> None:
        self.pair: MemoryPair = memory_pair(seed=1)
        self.transports = CountedTransport(self.pair.primary), CountedTransport(self.pair.secondary)
        options = PairedNamespaceOptions(ordering="session", backlog_queue_count=QUEUES)
        self.client = ServiceBusClient(
            transport=self.transports[0],
            secondary_transport=self.transports[1],
            options=options,
            random=self.pair.random,
        )

    @property
    def asked(self) -> Counter[Operation]:
        """Requests of the client so far."""
        return self.transports[0].asked + self.transports[1].asked

    def _call(self, operation: Operation) -> Call:
        return Call(operation, clock.now())

    def make(self, name: str) -> None:
        """Make a queue of the primary."""
        address = EntityAddress(EntityKind.QUEUE, (name,))
        self.pair.primary.namespace.management.create(self._call(Operation.MANAGE), address, QueueProperties(name))

    def delete(self, name: str) -> None:
        """Delete a queue of the primary, with what came home to it."""
        address = EntityAddress(EntityKind.QUEUE, (name,))
        self.pair.primary.namespace.management.delete(self._call(Operation.MANAGE), address)

    def divert(self, path: str, session_id: str | None = None) -> None:
        """Put a message for an entity into the backlog."""
        message = ServiceBusMessage(BODY, session_id=session_id)
        queue = self.client.pair.state.backlog_queues[len(path) % QUEUES]
        native = None
        if session_id is not None:
            native = native_session_id_of(path, session_id)
            queue = session_backlog_queue_of(self.client.pair.state.session_backlog_queues, native)
        self.put(queue, seal(encode_message(message), path, native_session_id=native))

    def put(self, queue: str, message: EncodedMessage) -> None:
        """Put a message into a queue of the secondary, also during a fault."""
        self.pair.secondary.namespace.send(self._call(Operation.SEND), queue, [message])

    def empty(self, host: BrokerHost, path: str) -> int:
        """Take everything out of a queue of the broker; returns how much it was."""
        count = 0
        mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
        while taken := host.namespace.receive(self._call(Operation.RECEIVE), path, max_message_count=1000, mode=mode):
            count += len(taken)
        return count


async def _day(scene: Scene, number: int, daily: int) -> None:
    """Run one day: messages arrive each hour, with faults, and a quiet end."""
    began_at = clock.monotonic()
    last: list[str] = []
    disabled = Fault(FaultKind.ERROR, entity_path=DISABLED, error=MessagingEntityDisabledError)
    scene.pair.primary.inject(disabled)
    for hour in range(ROUNDS):
        for name in last:
            scene.delete(name)
        last = [f"queue-{number}-{hour}-{index}" for index in range(daily // ROUNDS)]
        for index, name in enumerate(last):
            scene.make(name)
            scene.divert(name, session_id=name if index % 3 == 0 else None)
        scene.divert(DISABLED)
        scene.divert(DISABLED, session_id=f"session {hour}")
        if hour < MISSING_DAILY:
            scene.divert(f"missing-{number}-{hour}", session_id="one" if hour % 2 else None)
        for queue in scene.client.pair.state.backlog_queues:
            scene.put(queue, encode_message(ServiceBusMessage(BODY, application_properties={"x-ms-path": "no//path"})))
        if hour == OUTAGE_AT:
            scene.pair.primary.inject(Fault(FaultKind.DOWN, until_at=clock.now() + OUTAGE_S))
        if hour == RESTART_AT:
            scene.pair.secondary.inject(Fault(FaultKind.DOWN, until_at=clock.now() + RESTART_S))
        await clock.sleep(began_at + (hour + 1) * 3600.0 - clock.monotonic())
    for name in last:
        scene.delete(name)
    scene.pair.primary.heal(disabled)
    await clock.sleep(began_at + DAY_S - clock.monotonic())
    scene.empty(scene.pair.primary, DISABLED)
    for queue in scene.client.pair.state.backlog_queues + scene.client.pair.state.session_backlog_queues:
        scene.empty(scene.pair.secondary, f"{queue}/$deadletterqueue")


def _measured(scene: Scene, before: Counter[Operation], drained: int) -> Day:
    gc.collect()
    objects: Counter[str] = Counter()
    for one in gc.get_objects():
        kind = type(one)
        if kind.__module__.startswith("sbclient") and not kind.__module__.startswith(NOT_THE_CLIENTS):
            objects[kind.__name__] += 1
    snapshot = tracemalloc.take_snapshot() if tracemalloc.is_tracing() else None
    filters = [tracemalloc.Filter(False, pattern) for pattern in NOT_ITS_FILES]
    statistics = snapshot.filter_traces(filters).statistics("filename") if snapshot is not None else []
    return Day(
        objects=objects,
        size_bytes=sum(one.size for one in statistics),
        tasks=len(asyncio.all_tasks()),
        senders=sum(one.senders for one in scene.transports),
        receivers=sum(one.receivers for one in scene.transports),
        asked=scene.asked - before,
        drained=drained,
    )


async def lived(days: int, daily: int, *, is_told: bool = True) -> list[Day]:
    """How the syphon stood at the end of each day.

    Args:
        daily: new entities each day.
        is_told: print each day when it ends.
    """
    scene = Scene()
    found: list[Day] = []
    scene.make(DISABLED)
    async with scene.client:
        _fill_what_is_bounded(scene)
        syphon = Syphon(scene.client.pair)
        run = asyncio.ensure_future(syphon.run())
        for number in range(days):
            before, drained = scene.asked, syphon.report().drained
            await _day(scene, number, daily)
            found.append(_measured(scene, before, syphon.report().drained - drained))
            if is_told:
                _tell(number + 1, found[-1])
        run.cancel()
        await asyncio.wait([run])
    return found


def _fill_what_is_bounded(scene: Scene) -> None:
    """Fill the list of the last events and the caches of paths, which else would grow for days until they are full."""
    for number in range(EVENTS_KEPT):
        path = f"queue-{number}"
        scene.client.pair.state.record("benchmark.filled", "filled", path, reason="filled", queue="contoso")
    for cached in (canonical, split_sub_queue, split_subscription):
        for number in range(cached.cache_info().maxsize or 0):
            cached(f"Queue-{number}-{number}-{number}")


async def quiet_day(*paths: str, in_session: bool = False) -> Counter[Operation]:
    """Requests of the second of two days in which nothing comes, with messages for entities that refuse."""
    scene = Scene()
    for path in paths:
        scene.make(path)
        scene.pair.primary.inject(Fault(FaultKind.ERROR, entity_path=path, error=MessagingEntityDisabledError))
    async with scene.client:
        run = asyncio.ensure_future(Syphon(scene.client.pair).run())
        for path in paths:
            scene.divert(path, session_id="one" if in_session else None)
        await clock.sleep(DAY_S)
        before = scene.asked
        await clock.sleep(DAY_S)
        asked = scene.asked - before
        run.cancel()
        await asyncio.wait([run])
    return asked


def _tell(number: int, day: Day) -> None:
    kinds = ", ".join(f"{count} {kind}" for kind, count in day.asked.most_common())
    print(
        f"day {number:2}: {day.objects.total():6} objects {day.size_bytes / KIB:8.0f} KiB {day.tasks:4} tasks "
        f"{day.senders:4} senders {day.receivers:4} receivers {day.drained:6} drained "
        f"{day.asked.total():7} operations ({kinds})",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.worker_days", description=__doc__)
    parser.add_argument("--days", type=int, default=7)
    parser.add_argument("--daily", type=int, default=2000, help="new entities each day")
    options = parser.parse_args()
    began_at = time.process_time()
    tracemalloc.start()
    days = run_virtual(lived(options.days, options.daily))
    tracemalloc.stop()
    if len(days) > 2:
        span = len(days) - 2
        objects = (days[-1].objects.total() - days[1].objects.total()) / span
        size_kib = (days[-1].size_bytes - days[1].size_bytes) / span / KIB
        print(f"growth a day after the second: {objects:.1f} objects, {size_kib:.1f} KiB")
    for text, paths, in_session in (
        ("nothing comes", (), False),
        ("one entity refuses", ("one",), False),
        ("ten entities refuse", tuple(f"entity{index}" for index in range(10)), False),
        ("one session's entity refuses", ("one",), True),
        ("ten sessions' entities refuse", tuple(f"entity{index}" for index in range(10)), True),
    ):
        asked = run_virtual(quiet_day(*paths, in_session=in_session))
        print(f"a day on which {text}: {asked.total()} operations ({dict(asked.most_common())})")
    print(f"took {time.process_time() - began_at:.0f} s of processor time")


if __name__ == "__main__":
    main()
