"""A random scenario from one seed: clients, outages and syphons; at the end every message is accounted for."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random

from sbclient.broker.faults import Operation
from sbclient.client.client import ServiceBusClient
from sbclient.clock import VirtualClock
from sbclient.errors import (
    BacklogUnavailableError,
    InvalidOperationError,
    MessageSizeExceededError,
    OperationTimeoutError,
    ServiceBusConnectionError,
    ServiceBusInternalError,
    ServiceBusServerBusyError,
)
from sbclient.message import ServiceBusMessage
from sbclient.options import PairedNamespaceOptions
from sbclient.testing import Fault, FaultKind, MemoryPair, memory_pair, run_virtual
from tests.client.scene import BACKLOG, SESSION_BACKLOG, dead_letters, make_queue, taken, waiting

QUEUES = {
    "plain": {},
    "visits": {"requires_session": True},
    "wide": {"enable_partitioning": True},
    "once": {"requires_duplicate_detection": True},
}
IN_DOUBT = (OperationTimeoutError, ServiceBusConnectionError, BacklogUnavailableError, ServiceBusInternalError)
REFUSED = (InvalidOperationError, MessageSizeExceededError)
KINDS_WITHOUT_DOUBT = (FaultKind.DOWN, FaultKind.BUSY, FaultKind.ERROR)
TIME_TO_LIVE = timedelta(seconds=25)


@dataclass
class Account:
    """What was sent and what became of it, by the number that each body holds.

    Attributes:
        accepted, in_doubt, refused: what the senders heard.
        delivered: how often each arrived, at which queue.
        dead: the reason for which a message was dead-lettered.
        mortal: messages with a time to live.
        order: accepted numbers of each session, in order.
        arrivals: numbers of each session, in order of arrival.
        is_without_doubt: nothing in this run can have made a duplicate.
        diverted, left: messages that went to the backlog, and those that are still there.
    """

    accepted: dict[int, str] = field(default_factory=dict)
    in_doubt: dict[int, str] = field(default_factory=dict)
    refused: set[int] = field(default_factory=set)
    delivered: dict[int, Counter[str]] = field(default_factory=dict)
    dead: dict[int, str] = field(default_factory=dict)
    mortal: set[int] = field(default_factory=set)
    order: dict[str, list[int]] = field(default_factory=dict)
    arrivals: dict[str, list[int]] = field(default_factory=dict)
    is_ordered: bool = False
    is_without_doubt: bool = True
    diverted: int = 0
    left: int = 0

    def faults(self) -> list[str]:
        """Every law that was broken; none if all is well."""
        sent = {**self.accepted, **self.in_doubt}
        broken = [
            f"{number} for {queue} is lost"
            for number, queue in self.accepted.items()
            if number not in self.delivered and number not in self.dead and number not in self.mortal
        ]
        broken += [f"{number} was never sent" for number in self.delivered if number not in sent]
        broken += [f"{number} was refused and stored" for number in self.refused if number in self.delivered]
        broken += [
            f"{number} for {sent[number]} arrived at {queue}"
            for number, queues in self.delivered.items()
            for queue in queues
            if number in sent and queue != sent[number]
        ]
        broken += [f"{number} died of {reason}" for number, reason in self.dead.items() if number not in self.mortal]
        if self.is_without_doubt:
            broken += [f"{number} came twice" for number, queues in self.delivered.items() if queues.total() > 1]
        broken += [f"{number} came twice to once" for number, queues in self.delivered.items() if queues["once"] > 1]
        if self.left:
            broken.append(f"{self.left} messages are left in the backlog")
        if self.is_ordered:
            for session, numbers in self.order.items():
                arrived = [number for number in dict.fromkeys(self.arrivals.get(session, [])) if number in numbers]
                if arrived != numbers:
                    broken.append(f"session {session} sent {numbers} and got {arrived}")
        return broken


class World:
    """One run. Everything by chance comes from the seed."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.clock = VirtualClock()
        self.pair: MemoryPair = memory_pair(clock=self.clock, seed=seed)
        self.account = Account()
        self.numbers = iter(range(1_000_000))
        self.has_doubt = self.chance.random() < 0.6
        self.queue_count = self.chance.randint(1, 4)
        self.account.is_without_doubt = not self.has_doubt
        self.account.is_ordered = self.chance.random() < 0.3

    def options(self) -> PairedNamespaceOptions:
        chance = self.chance
        return PairedNamespaceOptions(
            failover_interval=timedelta(seconds=chance.choice([0, 0, 0, 1, 3])),
            ping_primary_interval=timedelta(seconds=chance.choice([1, 3, 8])),
            backlog_queue_count=self.queue_count,
            divert_while_suspect=chance.random() < 0.3,
            pings_to_recover=chance.choice([1, 1, 2]),
            probe=chance.choice(["message", "link"]),
            ordering="session" if self.account.is_ordered else "none",
        )

    async def run(self) -> Account:
        for name, description in QUEUES.items():
            await make_queue(self.pair, name, **description)
        chosen = self.options()
        async with self.pair.client(chosen) as one, self.pair.client(chosen) as other:
            clients = [one, other]
            # Another syphon knows nothing of a completion that this one lost: that explains a duplicate.
            syphons = [asyncio.ensure_future(self.syphon(one)) for one in (clients if self.has_doubt else clients[:1])]
            await asyncio.gather(
                *(
                    self.produce(client, number * 2 + index)
                    for number, client in enumerate(clients)
                    for index in (0, 1)
                ),
                self.disturb(),
            )
            self.pair.primary.heal()
            self.pair.secondary.heal()
            await self.clock.sleep(150.0)
            for syphon in syphons:
                syphon.cancel()
            await asyncio.wait(syphons)
            await self.clock.sleep(400.0)  # every lock, window and quarantine is over
            await one.run_syphon(until="empty")
            self.account.diverted = sum(
                sum(entity.diverted for entity in client.pair.status().entities.values()) for client in clients
            )
        await self.take_stock()
        return self.account

    async def produce(self, client: ServiceBusClient, producer: int) -> None:
        chance, senders = self.chance, {name: client.get_queue_sender(name) for name in QUEUES}
        sends: list[asyncio.Task[None]] = []
        for _ in range(22):
            queue = chance.choice(list(QUEUES))
            session = f"{producer}{chance.choice('ab')}" if queue == "visits" or chance.random() < 0.3 else None
            send = asyncio.ensure_future(self.send(senders[queue], queue, session))
            if session is not None or chance.random() < 0.5:
                await asyncio.wait([send])  # one producer for each session, and one message after the other
            else:
                sends.append(send)
                if chance.random() < 0.1:
                    await self.clock.sleep(chance.uniform(0, 2))
                    send.cancel()
            await self.clock.sleep(chance.uniform(0, 1.5))
        await asyncio.wait([*sends, asyncio.ensure_future(self.clock.sleep(0))])
        for sender in senders.values():
            await sender.close()

    async def send(self, sender, queue: str, session: str | None) -> None:  # type: ignore[no-untyped-def]
        number, account = next(self.numbers), self.account
        message = ServiceBusMessage(str(number), session_id=session, message_id=f"id {number}")
        if self.chance.random() < 0.1 and session is None:
            message.time_to_live = TIME_TO_LIVE
            account.mortal.add(number)
        if self.chance.random() < 0.03:
            message.partition_key = "another" if session else None
        account.in_doubt[number] = queue
        try:
            await sender.send_messages(message, timeout=self.chance.choice([2.0, 6.0, 30.0]))
        except REFUSED:
            del account.in_doubt[number]
            account.refused.add(number)
        except (*IN_DOUBT, ServiceBusServerBusyError):
            pass
        else:
            del account.in_doubt[number]
            account.accepted[number] = queue
            if session is not None:
                account.order.setdefault(f"{queue} {session}", []).append(number)

    async def syphon(self, client: ServiceBusClient) -> None:
        """Run a syphon; now and then it dies, with all it remembers, and another one takes over."""
        while True:
            run = asyncio.ensure_future(client.run_syphon())
            try:
                await self.clock.sleep(self.chance.uniform(2, 30) if self.has_doubt else 10_000.0)
            finally:
                run.cancel()
                with suppress(asyncio.CancelledError):
                    await run

    async def disturb(self) -> None:
        chance = self.chance
        await self.clock.sleep(chance.uniform(0, 6))
        outage = self.pair.primary.inject(Fault(FaultKind.HANG if self.has_doubt else FaultKind.DOWN))
        await self.clock.sleep(chance.uniform(6, 15))
        self.pair.primary.heal(outage)
        for _ in range(chance.randint(3, 6)):
            await self.clock.sleep(chance.uniform(0, 6))
            host = self.pair.primary if chance.random() < 0.55 else self.pair.secondary
            fault = host.inject(self.fault(is_primary=host is self.pair.primary))
            await self.clock.sleep(chance.uniform(2, 20))
            host.heal(fault)

    def fault(self, *, is_primary: bool) -> Fault:
        chance = self.chance
        kind = chance.choice(list(FaultKind) if self.has_doubt else KINDS_WITHOUT_DOUBT)
        path = (
            chance.choice([None, None, *QUEUES]) if is_primary else chance.choice([None, *BACKLOG[: self.queue_count]])
        )
        return Fault(
            kind,
            entity_path=path,
            fragments=[chance.randrange(16) for _ in range(3)] if path == "wide" and chance.random() < 0.7 else None,
            operations=[Operation.SEND] if chance.random() < 0.3 else None,
            probability=chance.choice([1.0, 1.0, 0.3]),
            latency_s=chance.uniform(0.1, 3),
            error=chance.choice([ServiceBusInternalError, ServiceBusServerBusyError]),
        )

    async def take_stock(self) -> None:
        account, names = self.account, BACKLOG[: self.queue_count]
        session_names = SESSION_BACKLOG[: self.queue_count] if account.is_ordered else []
        account.left = sum(map(len, (await waiting(self.pair, [*names, *session_names])).values()))
        for letter in await dead_letters(self.pair, [*names, *session_names]):
            account.dead[int(str(letter))] = letter.dead_letter_reason or "nothing"
        for queue in QUEUES:
            for message in await taken(self.pair, queue):
                number = int(str(message))
                account.delivered.setdefault(number, Counter())[queue] += 1
                account.arrivals.setdefault(f"{queue} {message.session_id}", []).append(number)


def played(seed: int) -> Account:
    """The account of the run with that seed."""
    return run_virtual(World(seed).run(), horizon_s=100_000.0)
