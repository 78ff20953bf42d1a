"""A client that browses the entities, page by page, while traffic goes on.

While it browses, some fragments are unreachable. A message that is there from the first page to the last, in a fragment
that is reached whenever the look goes on from one to another, must be shown, and nothing must be shown twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final

from sbclient import clock
from sbclient.client.client import ServiceBusClient
from sbclient.client.receiver import ServiceBusReceiver
from sbclient.delivery import ServiceBusSubQueue
from sbclient.errors import ServiceBusError
from sbclient.hosting.host import BrokerHost
from sbclient.message import ServiceBusReceivedMessage
from sbclient.rules.sequence_number import COUNTER_BITS
from sbclient.testing import Fault, FaultKind, Operation
from sbclient.transport.memory.transport import MemoryTransport
from tests.simulation.census import stored
from tests.simulation.history import History

MOST_PAGES: Final = 200


class Browser:
    """Looks through what applications and syphons use, without taking anything.

    Args:
        paths: what there is to look through: each with its namespace.
    """

    def __init__(self, history: History, random: Random, paths: Sequence[tuple[BrokerHost, str]]) -> None:
        self._history = history
        self._random = random
        self._paths = paths

    async def run(self, looks: int, within_s: float) -> None:
        """Look so many times, over so many seconds."""
        for _ in range(looks):
            await clock.sleep(self._random.uniform(0.1, 1.0) * within_s / looks)
            host, path = self._random.choice(self._paths)
            sub_queue = self._random.choice((None, ServiceBusSubQueue.DEAD_LETTER))
            client = ServiceBusClient(
                transport=MemoryTransport(host),
                random=Random(self._random.getrandbits(64)),
                timeout=20.0,
                retry_total=0,
            )
            queue, _, subscription = path.partition("/Subscriptions/")
            async with client:
                try:
                    if subscription:
                        receiver = client.get_subscription_receiver(queue, subscription, sub_queue=sub_queue)
                    else:
                        receiver = client.get_queue_receiver(path, sub_queue=sub_queue)
                    async with receiver:
                        await self._look(_Look(host, path, sub_queue), receiver)
                except ServiceBusError as error:
                    self._history.refused(error)  # a look that breaks off shows nothing

    async def _look(self, look: _Look, receiver: ServiceBusReceiver) -> None:
        random, size = self._random, self._random.choice((1, 1, 2, 5))
        for _ in range(MOST_PAGES):
            lost = random.randrange(look.fragment_count) if random.random() < 0.3 else None
            page = await self._page(look, receiver, size, lost)
            if look.is_void:
                return
            for number in look.turn(page):
                self._history.violated("I17", f"a look through {look.path} shows {number} twice")
            if not page:
                break
            await clock.sleep(random.choice((0.0, 0.0, 0.1, 1.0)))
        else:
            self._history.violated("I15", f"a look through {look.path} is not over after {MOST_PAGES} pages")
            return
        missed = look.missed()
        self._history.note("browser", look.path, look.sub_queue, len(look.seen), len(missed))
        if missed:
            self._history.violated("I17", f"a look through {look.path} passed over {missed[:5]}")

    async def _page(
        self, look: _Look, receiver: ServiceBusReceiver, size: int, lost: int | None
    ) -> list[ServiceBusReceivedMessage]:
        look.note_struck()
        if lost is None:
            return await receiver.peek_messages(size)
        fault = look.host.inject(Fault(FaultKind.DOWN, look.path, fragments=(lost,), operations=(Operation.PEEK,)))
        look.note_struck()
        try:
            return await receiver.peek_messages(size)
        finally:
            look.host.heal(fault)


class _Look:
    """One look through one queue, and what it must show."""

    def __init__(self, host: BrokerHost, path: str, sub_queue: ServiceBusSubQueue | None) -> None:
        self.host = host
        self.path = path
        self.sub_queue = sub_queue
        self.seen: dict[int, None] = {}
        self._entity = host.namespace.directory.get(path)
        self.fragment_count = len(self._entity.body.fragments) if self._entity is not None else 1
        self._first = self._numbers()
        self._at = -1
        self._struck: set[int] = set()
        self._passed_over: set[int] = set()

    @property
    def is_void(self) -> bool:
        """Whether the entity is another one by now."""
        return self.host.namespace.directory.get(self.path) is not self._entity

    def note_struck(self) -> None:
        """Record the fragments that may be unreachable now."""
        now = clock.true_now()
        for fault in self.host.namespace.faults.active(now):
            if fault.fragments is not None:
                self._struck.update(fault.fragments)

    def turn(self, page: list[ServiceBusReceivedMessage]) -> list[int]:
        """Take note of a page; returns what it shows again."""
        self.note_struck()
        fragment = page[0].sequence_number >> COUNTER_BITS if page else None
        if fragment != self._at:
            self._passed_over |= self._struck
        self._at = fragment if fragment is not None else -1
        self._struck = set()
        numbers = [message.sequence_number for message in page]
        again = [number for number in numbers if number in self.seen]
        self.seen.update(dict.fromkeys(numbers))
        return again

    def missed(self) -> list[int]:
        """What was there all the time, could be reached and was not shown."""
        there = sorted(self._first & self._numbers())
        return [one for one in there if one not in self.seen and one >> COUNTER_BITS not in self._passed_over]

    def _numbers(self) -> set[int]:
        now = clock.true_now()
        return {
            one.entry.number
            for one in stored(self.host, self.path)
            if one.sub_queue == self.sub_queue and one.entry.expires_at > now
        }
