"""The scenario of `sbclient demo`: traffic through a pair of namespaces whose primary fails and recovers.

Two namespaces of the bundled broker, the paired client, its pings and its syphon run on virtual time. A seed therefore
repeats a run exactly, and minutes of outage take seconds.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from hashlib import sha256
from random import Random
from typing import Any, Final, Literal

from sbclient import clock
from sbclient.cli.records import Record
from sbclient.client.client import ServiceBusClient
from sbclient.client.receiver import ServiceBusReceiver
from sbclient.client.sender import ServiceBusSender
from sbclient.delivery import NEXT_AVAILABLE_SESSION, ServiceBusSubQueue
from sbclient.errors import OperationTimeoutError, ServiceBusError
from sbclient.message import ServiceBusMessage
from sbclient.options import PairedNamespaceOptions, SyphonLimits
from sbclient.pairing.status import PairEvent, PairStatus
from sbclient.rules.backlog import is_backlog_path
from sbclient.rules.envelope import PATH
from sbclient.rules.failover import FailoverState
from sbclient.syphon.syphon import Syphon
from sbclient.testing import Fault, FaultKind, MemoryPair, memory_pair
from sbclient.testing.ledger import Ledger

EPOCH: Final = 1_700_000_000.0
"""The wall time at which each run begins, so that runs with the same seed are equal."""

TRAFFIC_S: Final = 480.0
"""Virtual seconds in which the messages are sent."""

OUTAGE_AT_S: Final = 90.0
RECOVERY_AT_S: Final = 300.0
SENDERS: Final = 8
RETRY_S: Final = 5.0

DRAIN_S: Final = 300.0
"""The rate of the syphon is limited so that moving all messages would take this time, which a viewer can follow."""

TRANSACTION_MESSAGES: Final = 3


@dataclass(frozen=True, slots=True)
class Lane:
    """A queue of the primary and the messages sent to it.

    Attributes:
        label: the kind of traffic.
        is_transactional: send `TRANSACTION_MESSAGES` messages in each transaction.
    """

    queue: str
    label: str
    records: Sequence[Record]
    is_partitioned: bool = False
    requires_session: bool = False
    is_transactional: bool = False


def sample_lanes(random: Random, count: int) -> list[Lane]:
    """Return plain, keyed, session and transactional traffic with `count` messages in total."""
    share = max(count // 4, TRANSACTION_MESSAGES)
    bodies = [f'{{"order": {number}, "cents": {random.randrange(100, 99_999)}}}'.encode() for number in range(share)]
    customers = [f"customer-{random.randrange(40)}" for _ in range(share)]
    return [
        Lane("orders", "plain", [Record(body) for body in bodies]),
        Lane(
            "payments",
            "keyed",
            [Record(body, partition_key=key) for body, key in zip(bodies, customers, strict=True)],
            is_partitioned=True,
        ),
        Lane(
            "shipments",
            "sessions",
            [Record(body, session_id=key) for body, key in zip(bodies, customers, strict=True)],
            is_partitioned=True,
            requires_session=True,
        ),
        Lane(
            "ledger",
            "transacted",
            [Record(body, partition_key=f"account-{at // TRANSACTION_MESSAGES % 7}") for at, body in enumerate(bodies)],
            is_partitioned=True,
            is_transactional=True,
        ),
    ]


def file_lane(records: Sequence[Record]) -> Lane:
    """Return a queue for the records of a file: with sessions if all records have one, partitioned if any has a key."""
    with_session = bool(records) and all(record.session_id is not None for record in records)
    has_keys = with_session or any(record.session_id or record.partition_key for record in records)
    label = "sessions" if with_session else "keyed" if has_keys else "plain"
    return Lane("input", label, records, is_partitioned=has_keys, requires_session=with_session)


@dataclass(slots=True, repr=False)
class Tally(Ledger):
    """The messages of one lane.

    Attributes:
        refused_tries: messages in sends that raised, by error class. The sender repeats them.
        refused_messages: messages that are invalid themselves, by error class.
        in_doubt: of the messages in `refused_tries`, those that may have been stored.
        altered: deliveries whose body differs from the sent one.
    """

    refused_tries: Counter[str] = field(default_factory=Counter)
    refused_messages: Counter[str] = field(default_factory=Counter)
    in_doubt: int = 0
    altered: int = 0


@dataclass(frozen=True, slots=True)
class Account:
    """The result of a run."""

    seed: int
    sent: int
    accepted: int
    refused_tries: dict[str, int]
    refused_messages: dict[str, int]
    in_doubt: int
    diverted: int
    drained: int
    delivered: int
    duplicates: int
    dead_lettered: int
    altered: int
    unexpected: int
    out_of_order: int
    lost: int
    virtual_seconds: float


class OutageRun:
    """One run of the scenario.

    Args:
        lanes: the traffic.
        seed: repeats a run.
        ordering: the pairing option; `"session"` keeps the order within sessions.
        is_lost: whether the primary never comes back. A syphon then delivers to the secondary, and receivers take from
            both; the lanes must not be transactional, since transactions are not diverted.

    Attributes:
        phases: the phases so far, each with its virtual second.
    """

    def __init__(
        self,
        lanes: Sequence[Lane],
        *,
        seed: int,
        ordering: Literal["none", "session"] = "none",
        is_lost: bool = False,
    ) -> None:
        self.lanes = lanes
        self.seed = seed
        self.phases = [(0.0, "healthy")]
        self.tallies = {lane.queue: Tally() for lane in lanes}
        self.events: Callable[[], Sequence[PairEvent]] = list
        self.status: Callable[[], PairStatus] | None = None
        self.states: dict[str, FailoverState] = {}
        self.diverted: dict[str, int] = {}
        self.elapsed_s = 0.0
        self.is_sent = False
        self._limits = SyphonLimits(max_messages_per_second=sum(len(lane.records) for lane in lanes) / DRAIN_S)
        self._drained = 0
        self._syphon: Syphon | None = None
        self.is_lost = is_lost
        self._options = PairedNamespaceOptions(
            ordering=ordering,
            receive_from="both" if is_lost else "primary",
            redirect_after=timedelta(0) if is_lost else None,
            redirect_sessions=is_lost,
        )
        self._pair: MemoryPair | None = None
        self._now = 0.0
        self._digests: dict[str, bytes] = {}

    @property
    def phase(self) -> str:
        """The current phase."""
        return self.phases[-1][1]

    @property
    def drained(self) -> int:
        """Number of messages that syphons have moved so far."""
        return self._drained + (0 if self._syphon is None else self._syphon.report().drained)

    def _enter(self, phase: str) -> None:
        self.phases.append((clock.monotonic(), phase))

    def make_pair(self) -> MemoryPair:
        """Return two new namespaces; the primary fails."""
        return memory_pair(seed=self.seed)

    async def run(self, *, watch: Callable[[], Any] | None = None, pair: MemoryPair | None = None) -> Account:
        """Run to the end on a virtual loop.

        Args:
            watch: called once per virtual second, to show the state.
            pair: from `make_pair`, for a caller that observes it; None = a new one.
        """
        pair = self._pair = pair or self.make_pair()
        async with pair.client(self._options) as client, asyncio.TaskGroup() as group:
            self.events, self.status = client.pair.events, client.pair.status
            background = [group.create_task(self._watch(client, watch))]
            for lane in self.lanes:
                await self._create_queue(client, lane)
                if self.is_lost:
                    async with pair.unpaired_client(secondary=True) as secondary:
                        await self._create_queue(secondary, lane)
                receive = self._receive_sessions if lane.requires_session else self._receive
                background.append(group.create_task(receive(pair, lane)))
            background.append(group.create_task(self._fail_primary(pair)))
            draining = group.create_task(self._drain(pair))
            senders = [
                group.create_task(self._send(client, lane, number)) for lane in self.lanes for number in range(SENDERS)
            ]
            await asyncio.wait(senders)
            for sender in senders:
                sender.result()
            self.is_sent = True
            await draining
            self._enter("delivering")
            await self._until(self._is_delivered, at_most_s=600)
            self._observe(client)
            self._enter("over")
            for task in background:
                task.cancel()
        if watch is not None:
            watch()
        await self._count_dead_letters(pair)
        return self.account()

    async def _create_queue(self, client: ServiceBusClient, lane: Lane) -> None:
        await client.administration.create_queue(
            lane.queue,
            enable_partitioning=lane.is_partitioned or None,
            requires_session=lane.requires_session or None,
        )

    def _consumer(self, pair: MemoryPair) -> ServiceBusClient:
        return pair.client(self._options) if self.is_lost else pair.unpaired_client()

    def waiting(self) -> Counter[str]:
        """Count the messages in the backlog queues by their destination."""
        found = Counter[str]()
        if self._pair is None:
            return found
        for entity in self._pair.secondary.namespace.directory.all():
            if is_backlog_path(entity.path):
                for fragment in entity.body.fragments:
                    entries = fragment.browse(self._now, 0)
                    found.update(str(entry.content.application_properties[PATH]) for entry in entries)
        return found

    def account(self) -> Account:
        """Return the counts so far."""
        tallies = self.tallies.values()
        return Account(
            seed=self.seed,
            sent=sum(len(tally.sent) for tally in tallies),
            accepted=sum(len(tally.accepted) for tally in tallies),
            refused_tries=_sum(tally.refused_tries for tally in tallies),
            refused_messages=_sum(tally.refused_messages for tally in tallies),
            in_doubt=sum(tally.in_doubt for tally in tallies),
            diverted=sum(self.diverted.values()),
            drained=self.drained,
            delivered=sum(len(tally.delivered) for tally in tallies),
            duplicates=sum(tally.duplicates for tally in tallies),
            dead_lettered=sum(len(tally.dead_lettered) for tally in tallies),
            altered=sum(tally.altered for tally in tallies),
            unexpected=sum(len(tally.unexpected) for tally in tallies),
            out_of_order=sum(tally.out_of_order for tally in tallies),
            lost=sum(len(tally.lost) for tally in tallies),
            virtual_seconds=round(self.elapsed_s, 3),
        )

    async def _fail_primary(self, pair: MemoryPair) -> None:
        await clock.sleep(OUTAGE_AT_S)
        self._enter("primary down")
        pair.primary.inject(Fault(FaultKind.DOWN))
        if self.is_lost:
            return
        await clock.sleep(RECOVERY_AT_S - OUTAGE_AT_S)
        self._enter("primary back")
        pair.primary.heal()

    async def _drain(self, pair: MemoryPair) -> None:
        """Run syphons after the recovery, or the outage if there is none, until all messages are sent and drained."""
        begins_at = OUTAGE_AT_S if self.is_lost else RECOVERY_AT_S
        await self._until(lambda: clock.monotonic() > begins_at and (self.is_lost or self._is_healthy()))
        self._enter("redirecting" if self.is_lost else "draining")
        async with pair.client(self._options) as worker:
            await worker.pair.state.backlog.provisioned.wait()
            is_last = False
            while not is_last:
                is_last = self.is_sent and (self.is_lost or self._is_healthy())
                self._syphon = Syphon(worker.pair, until="empty", limits=self._limits)
                await self._syphon.run()
                self._drained, self._syphon = self.drained, None
                await clock.sleep(1)

    def _is_healthy(self) -> bool:
        return all(state is FailoverState.HEALTHY for state in self.states.values())

    async def _watch(self, client: Any, watch: Callable[[], Any] | None) -> None:
        while True:
            self._observe(client)
            if watch is not None:
                watch()
            await clock.sleep(1)

    def _observe(self, client: Any) -> None:
        entities = client.pair.status().entities.values()
        self.states = {entity.path: entity.state for entity in entities}
        self.diverted = {entity.path: entity.diverted for entity in entities}
        self.elapsed_s, self._now = clock.monotonic(), clock.now()

    async def _until(self, condition: Callable[[], bool], at_most_s: float = 3600) -> None:
        end_at = clock.monotonic() + at_most_s
        while not condition() and clock.monotonic() < end_at:
            await clock.sleep(1)

    def _is_delivered(self) -> bool:
        return not any(tally.lost for tally in self.tallies.values())

    async def _send(self, client: Any, lane: Lane, number: int) -> None:
        """Send the share of one sender of a lane, each message when it is due and until it is accepted."""
        step = TRANSACTION_MESSAGES if lane.is_transactional else 1
        async with client.get_queue_sender(lane.queue) as sender:
            for at, first in enumerate(range(0, len(lane.records), step)):
                if _share_of(lane.records[first], at) != number:
                    continue
                due_s = TRAFFIC_S * first / len(lane.records)
                await clock.sleep(max(due_s - clock.monotonic(), 0))
                positions = range(first, min(first + step, len(lane.records)))
                await self._send_until_accepted(client, sender, lane, [self._message(lane, at) for at in positions])

    async def _send_until_accepted(
        self, client: Any, sender: ServiceBusSender, lane: Lane, messages: list[ServiceBusMessage]
    ) -> None:
        tally = self.tallies[lane.queue]
        tally.send(*(message.message_id for message in messages))
        while True:
            try:
                if lane.is_transactional:
                    async with client.transaction() as transaction:
                        for message in messages:
                            await sender.send_messages(message, transaction=transaction)
                else:
                    await sender.send_messages(messages[0])
            except ServiceBusError as error:
                if isinstance(error, ValueError):  # the message is invalid: a repetition is rejected too
                    tally.refused_messages[type(error).__name__] += len(messages)
                    return
                tally.refused_tries[type(error).__name__] += len(messages)
                tally.in_doubt += len(messages) if error.is_in_doubt else 0
                await clock.sleep(RETRY_S)
            else:
                tally.accepted.update(message.message_id for message in messages)
                return

    def _message(self, lane: Lane, at: int) -> ServiceBusMessage:
        record = lane.records[at]
        message_id = f"{lane.queue}-{at}"
        self._digests[message_id] = sha256(record.body).digest()
        return ServiceBusMessage(
            record.body,
            message_id=message_id,
            session_id=record.session_id,
            partition_key=record.partition_key,
        )

    async def _receive(self, pair: MemoryPair, lane: Lane) -> None:
        async with self._consumer(pair) as client:
            while True:
                async with client.get_queue_receiver(lane.queue, max_wait_time=30) as receiver:
                    await self._tolerant(self._consume, receiver, lane)

    async def _receive_sessions(self, pair: MemoryPair, lane: Lane) -> None:
        """Receive one session after another, each until no message arrives."""
        async with self._consumer(pair) as client:
            while True:
                receiver = client.get_queue_receiver(lane.queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=30)
                try:
                    await self._tolerant(self._consume, receiver, lane, 0.5)
                finally:
                    await receiver.close()

    async def _tolerant(self, work: Callable[..., Awaitable[None]], *args: Any) -> None:
        """Retry after errors: a receiver of the primary waits while that is down."""
        try:
            await work(*args)
        except OperationTimeoutError:
            pass
        except ServiceBusError:
            await clock.sleep(RETRY_S)

    async def _consume(self, receiver: ServiceBusReceiver, lane: Lane, wait_s: float | None = None) -> None:
        tally = self.tallies[lane.queue]
        while messages := await receiver.receive_messages(max_message_count=50, max_wait_time=wait_s):
            for message in messages:
                digest = self._digests.get(message.message_id or "")
                tally.altered += digest != sha256(bytes(message)).digest()
                tally.deliver(message.message_id, message.session_id)
                await receiver.complete_message(message)

    async def _count_dead_letters(self, pair: MemoryPair) -> None:
        async with pair.unpaired_client(secondary=self.is_lost) as client:
            for lane in self.lanes:
                async with client.get_queue_receiver(lane.queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
                    while peeked := await receiver.peek_messages(1000):  # a page has messages of one fragment
                        self.tallies[lane.queue].dead_lettered.update(message.message_id for message in peeked)


def _sum(counts: Iterable[Counter[str]]) -> dict[str, int]:
    return dict(sorted(sum(counts, Counter[str]()).items()))


def _share_of(record: Record, at: int) -> int:
    """Return the number of the sender of a record. As with real producers, one sender sends all records of a key."""
    key = record.session_id or record.partition_key
    return (sum(key.encode()) if key is not None else at) % SENDERS
