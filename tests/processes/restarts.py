# ruff: noqa: T201 - a command line prints
"""Kill an emulator with a data directory again and again under load: `python -m tests.processes.restarts --kills 100`.

A client sends, receives and settles through its connections, which every kill breaks. It notes what was acknowledged.
After the last start all queues are peeked: what was acknowledged is there, and nothing else has come back.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any, Final

from sbclient import ServiceBusClient, ServiceBusMessage, ServiceBusReceivedMessage, ServiceBusReceiver
from sbclient.errors import ServiceBusError
from sbclient.testing.ledger import Ledger
from tests.stage.namespaces import Namespace
from tests.stage.programs import until

PLAIN, PARTITIONED, SESSIONS, REMEMBERING = "plain", "partitioned", "sessions", "remembering"
CHAINS, PAIRS, SCHEDULED = "chains", "pairs", "scheduled"
CHAIN_COUNT: Final = 3
SESSION_COUNT: Final = 3
OPERATION_S: Final = 2.0
PROGRESS_S: Final = 60.0
LIVES_S: Final = (0.0, 0.6)
"""How long the emulator serves before it is killed; the kill may also come while it starts."""


@dataclass
class Acknowledged(Ledger):
    """What the client knows of one queue: a message is delivered when its removal is requested, or at the end.

    Attributes:
        completed: sequence numbers whose completion was acknowledged.
        deferred: sequence numbers that were acknowledged as deferred, and not requested again.
        failures: acknowledged abandons of each sequence number.
        ids: the id of each sequence number that was ever seen.
    """

    completed: set[int] = field(default_factory=set)
    deferred: set[int] = field(default_factory=set)
    failures: Counter[int] = field(default_factory=Counter)
    ids: dict[int, str] = field(default_factory=dict)


class Load:
    """The load of one client, and the answers that it got."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.ledgers: defaultdict[str, Acknowledged] = defaultdict(Acknowledged)
        self.violations: list[str] = []
        self.count = 0
        self.acknowledged = self.in_doubt = 0
        self.states: dict[str, tuple[int, int]] = {}
        self.chains: dict[str, tuple[int, int]] = {}
        self.pairs: set[str] = set()
        self.cancelled: set[str] = set()
        self.is_over = False

    def message(self, kind: str, **attributes: Any) -> ServiceBusMessage:
        self.count += 1
        name = f"{kind}-{self.count}"
        self.ledgers[kind].send(name)
        return ServiceBusMessage(b"x" * self.random.choice((10, 10, 3_000)), message_id=name, **attributes)

    async def until_over(self, work: Callable[[], Awaitable[None]]) -> None:
        """Repeat work; its errors mean that the emulator is gone, or that a lock has ended with it."""
        while not self.is_over:
            try:
                async with asyncio.timeout(OPERATION_S):
                    await work()
            except (ServiceBusError, TimeoutError):
                self.in_doubt += 1
                await asyncio.sleep(0.02)
            else:
                self.acknowledged += 1

    async def progress(self) -> None:
        """Wait until another completion is acknowledged."""
        known = self.completed_count
        assert await until(lambda: self.completed_count > known, PROGRESS_S)

    @property
    def completed_count(self) -> int:
        return sum(len(ledger.completed) for ledger in self.ledgers.values())

    def delivered(self, queue: str, message: ServiceBusReceivedMessage) -> None:
        ledger, number, name = self.ledgers[queue], message.sequence_number, message.message_id or ""
        if ledger.ids.setdefault(number, name) != name:
            self.violations.append(f"{queue}: number {number} was used for {ledger.ids[number]} and for {name}")
        if number in ledger.completed:
            self.violations.append(f"{queue}: {name} ({number}) came back after its completion")
        if message.delivery_count < ledger.failures[number]:
            self.violations.append(
                f"{queue}: {name} has {message.delivery_count} failures of {ledger.failures[number]}"
            )

    # ------------------------------------------------------------------ the parts of the load

    async def send(self, client: ServiceBusClient, queue: str) -> None:
        key = f"k{self.random.randrange(SESSION_COUNT)}"
        keys = {SESSIONS: {"session_id": key}, PARTITIONED: {"partition_key": key}}.get(queue, {})
        async with client.get_queue_sender(queue) as sender:
            for _ in range(20):
                messages = [self.message(queue, **keys) for _ in range(self.random.choice((1, 1, 5)))]
                await sender.send_messages(messages)
                self.ledgers[queue].accepted |= {message.message_id or "" for message in messages}
                if queue == REMEMBERING:
                    await sender.send_messages(messages)

    async def receive(self, client: ServiceBusClient, queue: str) -> None:
        session = f"k{self.random.randrange(SESSION_COUNT)}" if queue == SESSIONS else None
        async with client.get_queue_receiver(queue, session_id=session, max_wait_time=0.3) as receiver:
            if session is not None:
                await self._raise_state(receiver, session)
            for message in await receiver.receive_messages(10):
                self.delivered(queue, message)
                await self._settle(receiver, queue, message)
            if session is None and (deferred := list(self.ledgers[queue].deferred)[:1]):
                (message,) = await receiver.receive_deferred_messages(deferred)
                self.delivered(queue, message)
                await self._complete(receiver, queue, message)

    async def _raise_state(self, receiver: ServiceBusReceiver, session: str) -> None:
        known, tried = self.states.get(session, (0, 0))
        assert receiver.session is not None
        stored = int(await receiver.session.get_state() or b"0")
        if not known <= stored <= tried:
            self.violations.append(f"the state of {session} is {stored}, acknowledged was {known}, requested {tried}")
        self.states[session] = known, tried + 1
        await receiver.session.set_state(str(tried + 1))
        self.states[session] = tried + 1, tried + 1

    async def _settle(self, receiver: ServiceBusReceiver, queue: str, message: ServiceBusReceivedMessage) -> None:
        ledger, number = self.ledgers[queue], message.sequence_number
        chosen = self.random.random()
        if chosen < 0.7:
            await self._complete(receiver, queue, message)
        elif chosen < 0.8:
            await receiver.abandon_message(message)
            ledger.failures[number] += 1
        elif chosen < 0.9 or queue == SESSIONS:
            ledger.deliver(message.message_id)
            await receiver.dead_letter_message(message, "why")
            ledger.dead_lettered.add(message.message_id)
        else:
            await receiver.defer_message(message)
            ledger.failures[number] += 1
            ledger.deferred.add(number)

    async def _complete(self, receiver: ServiceBusReceiver, queue: str, message: ServiceBusReceivedMessage) -> None:
        ledger = self.ledgers[queue]
        ledger.deliver(message.message_id)
        ledger.deferred.discard(message.sequence_number)
        await receiver.complete_message(message)
        ledger.completed.add(message.sequence_number)

    async def advance_chain(self, client: ServiceBusClient) -> None:
        """Replace the message of a chain by the next one, in a transaction."""
        async with (
            client.get_queue_receiver(CHAINS, max_wait_time=0.3) as receiver,
            client.get_queue_sender(CHAINS) as sender,
        ):
            for message in await receiver.receive_messages(1):
                self.delivered(CHAINS, message)
                chain, link = str(message.subject), int(str(message))
                known, _ = self.chains[chain]
                self.chains[chain] = known, link + 1
                async with client.transaction() as transaction:
                    await receiver.complete_message(message, transaction=transaction)
                    following = ServiceBusMessage(f"{link + 1}", subject=chain)
                    await sender.send_messages(following, transaction=transaction)
                self.chains[chain] = link + 1, link + 1
                self.ledgers[CHAINS].completed.add(message.sequence_number)

    async def send_pair(self, client: ServiceBusClient) -> None:
        self.count += 1
        name = f"{self.count}"
        async with client.get_queue_sender(PAIRS) as sender:
            async with client.transaction() as transaction:
                for _ in range(2):
                    await sender.send_messages(ServiceBusMessage(b"", subject=name), transaction=transaction)
            self.pairs.add(name)

    async def schedule(self, client: ServiceBusClient) -> None:
        ledger = self.ledgers[SCHEDULED]
        async with client.get_queue_sender(SCHEDULED) as sender:
            at = datetime.now(UTC) + timedelta(seconds=self.random.choice((1, 3_600)))
            message = self.message(SCHEDULED)
            (number,) = await sender.schedule_messages(message, at)
            name = message.message_id or ""
            if ledger.ids.setdefault(number, name) != name:
                self.violations.append(f"scheduled: number {number} was used for {ledger.ids[number]} and for {name}")
            if self.random.random() < 0.5:
                ledger.accepted.add(name)
            else:
                await sender.cancel_scheduled_messages(number)
                self.cancelled.add(name)

    # ------------------------------------------------------------------ the end

    async def check(self, client: ServiceBusClient) -> None:
        """Compare what is there with what was acknowledged."""
        for queue in (PLAIN, PARTITIONED, SESSIONS, REMEMBERING, SCHEDULED):
            ledger = self.ledgers[queue]
            there = await peeked(client, queue)
            dead = {message.message_id for message in await peeked(client, queue, "deadletter")}
            for message in there:
                self.delivered(queue, message)
                ledger.deliver(message.message_id)
            self._report(queue, "lost", ledger.lost)
            self._report(queue, "never sent", ledger.unexpected)
            self._report(queue, "lost from the dead letters", ledger.dead_lettered - dead)
            self._report(queue, "lost though deferred", ledger.deferred - {each.sequence_number for each in there})
            if queue == REMEMBERING:
                copies = Counter(name for name in ledger.ids.values())
                self._report(queue, "stored twice", {name for name, count in copies.items() if count > 1})
        scheduled = {message.message_id or "" for message in await peeked(client, SCHEDULED)}
        self._report(SCHEDULED, "cancelled and there", self.cancelled & scheduled)
        self._check_transactions(await peeked(client, CHAINS), await peeked(client, PAIRS))

    def _check_transactions(
        self, chains: Sequence[ServiceBusReceivedMessage], pairs: Sequence[ServiceBusReceivedMessage]
    ) -> None:
        if len(chains) != CHAIN_COUNT:
            self.violations.append(f"there are {len(chains)} messages of {CHAIN_COUNT} chains")
        for message in chains:
            known, tried = self.chains[str(message.subject)]
            if not known <= int(str(message)) <= tried:
                self.violations.append(f"chain {message.subject} is at {message}, acknowledged was {known}")
        counts = Counter(str(message.subject) for message in pairs)
        self._report(PAIRS, "committed and not whole", {name for name in self.pairs if counts[name] != 2})
        self._report(PAIRS, "stored in part", {name for name, count in counts.items() if count != 2})

    def _report(self, queue: str, what: str, found: set[str] | set[int]) -> None:
        if found:
            self.violations.append(f"{queue}: {what}: {sorted(found)[:5]}, {len(found)} in all")


async def peeked(client: ServiceBusClient, queue: str, sub_queue: str | None = None) -> list[ServiceBusReceivedMessage]:
    """All messages of a queue."""
    found: list[ServiceBusReceivedMessage] = []
    receiver = client.get_queue_receiver(queue, sub_queue=sub_queue)
    async with receiver:
        while page := await receiver.peek_messages(250):
            found += page
    return found


async def run(
    folder: Path, *, kills: int, seed: int, lives_s: tuple[float, float] = LIVES_S, waits_for_progress: bool = False
) -> Load:
    """Kill an emulator that often under load, and check what is left.

    Args:
        waits_for_progress: whether each life lasts until a completion is acknowledged, however slow the machine is.
    """
    load = Load(seed)
    namespace = Namespace("contoso", folder, options=["--data", str(folder / "data")])
    await namespace.begin()
    try:
        await _prepare(namespace, load)
        async with namespace.client() as client:
            tasks = [asyncio.create_task(load.until_over(work)) for work in _parts(load, client)]
            for number in range(kills):
                if number % 10 == 9:  # while it starts, and perhaps reads
                    starting = asyncio.create_task(namespace.begin())
                    await asyncio.sleep(load.random.uniform(0.1, 1.0))
                    starting.cancel()
                    await asyncio.wait([starting])
                else:
                    if number:
                        await namespace.begin()
                    await asyncio.sleep(load.random.uniform(*lives_s))
                    if waits_for_progress:
                        await load.progress()
                namespace.kill()
            await namespace.begin()
            await asyncio.sleep(lives_s[1])
            load.is_over = True
            await asyncio.gather(*tasks)
        namespace.kill()
        await namespace.begin()
        async with namespace.client() as client:
            await load.check(client)
    finally:
        namespace.kill()
    return load


async def _prepare(namespace: Namespace, load: Load) -> None:
    async with namespace.client() as client:
        create = client.administration.create_queue
        await create(PLAIN, max_delivery_count=1_000)
        await create(PARTITIONED, enable_partitioning=True, max_delivery_count=1_000)
        await create(SESSIONS, requires_session=True, enable_partitioning=True, max_delivery_count=1_000)
        await create(REMEMBERING, requires_duplicate_detection=True, max_delivery_count=1_000)
        for queue in (CHAINS, PAIRS, SCHEDULED):
            await create(queue, max_delivery_count=1_000)
        async with client.get_queue_sender(CHAINS) as sender:
            for number in range(CHAIN_COUNT):
                await sender.send_messages(ServiceBusMessage("0", subject=f"{number}"))
                load.chains[f"{number}"] = 0, 0


def _parts(load: Load, client: ServiceBusClient) -> list[Callable[[], Awaitable[None]]]:
    parts: list[Callable[[], Awaitable[None]]] = []
    for queue in (PLAIN, PARTITIONED, SESSIONS, REMEMBERING):
        parts.append(lambda queue=queue: load.send(client, queue))  # type: ignore[misc]
        parts.append(lambda queue=queue: load.receive(client, queue))  # type: ignore[misc]
    return [
        *parts,
        lambda: load.advance_chain(client),
        lambda: load.send_pair(client),
        lambda: load.schedule(client),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, and print what was found; 1 if anything was lost or came back."""
    parser = argparse.ArgumentParser(prog="python -m tests.processes.restarts", description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder, suppress(KeyboardInterrupt):
        load = asyncio.run(run(Path(folder), kills=options.kills, seed=options.seed))
        print(as_text(load, options.kills))
        return 1 if load.violations else 0
    return 130


def as_text(load: Load, kills: int) -> str:
    """The result in lines."""
    sent = sum(len(ledger.accepted) for ledger in load.ledgers.values())
    completed = load.completed_count
    commits = sum(known for known, _ in load.chains.values()) + len(load.pairs)
    lines = [
        f"{kills} kills: {sent} messages accepted, {completed} completed, {commits} transactions committed, "
        f"{sum(known for known, _ in load.states.values())} session states set, {len(load.cancelled)} cancelled, "
        f"{load.in_doubt} rounds interrupted; {len(load.violations)} violations",
        *load.violations,
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
