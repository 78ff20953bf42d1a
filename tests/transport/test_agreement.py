"""Memory and AMQP do the same: random programs of calls, with their results, errors and what is left in the namespace.

A program is a list of steps, each at a time of its own. It runs over each transport against a namespace of its own that
begins with the same entities. The AMQP transport reaches the emulator's server through a simulated network.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from random import Random
from typing import Any, Final

import pytest

from sbclient import clock
from sbclient.broker.faults import Fault, FaultKind, Operation
from sbclient.delivery import NEXT_AVAILABLE_SESSION, ServiceBusReceiveMode, Settlement, SettleMode
from sbclient.emulator.control.namespace_state import state_of
from sbclient.entities import EntityAddress, EntityKind, EntityStatus, QueueProperties
from sbclient.errors import ServiceBusError
from sbclient.hosting.host import BrokerHost
from sbclient.message import ServiceBusMessage, ServiceBusReceivedMessage
from sbclient.testing import run_virtual
from sbclient.transport.amqp.transport import AmqpTransport
from sbclient.transport.base import ReceiverLink, SenderLink, TransactionLink, Transport
from sbclient.transport.memory.transport import MemoryTransport
from tests.payloads import batch_of
from tests.simulation.network import Line, Network
from tests.simulation.program import Signer
from tests.simulation.weather import Incident

EPOCH: Final = 1_700_000_000.0
STEP_S: Final = 30.0
TIMEOUT_S: Final = 4.0
LOCK: Final = timedelta(seconds=290)
QUEUES: Final = {
    "q": QueueProperties("q", lock_duration=LOCK, max_delivery_count=3),
    "s": QueueProperties("s", lock_duration=LOCK, requires_session=True),
}
DEAD: Final = "q/$DeadLetterQueue"
RECEIVERS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "q1": ("q", {}),
    "q2": ("q", {}),
    "deleting": ("q", {"receive_mode": ServiceBusReceiveMode.RECEIVE_AND_DELETE}),
    "dead": (DEAD, {}),
    "s1": ("s", {"session": "a"}),
    "s2": ("s", {"session": NEXT_AVAILABLE_SESSION}),
    "none": ("none", {}),
    "wrong": ("s", {}),
}
SETTLEMENTS: Final = [
    Settlement(SettleMode.COMPLETE),
    Settlement(SettleMode.ABANDON),
    Settlement(SettleMode.DEFER),
    Settlement(SettleMode.DEAD_LETTER),
    Settlement(SettleMode.DEAD_LETTER, "reason"),
    Settlement(SettleMode.DEAD_LETTER, " ", "described"),
]
Step = tuple[str, int, int, int]


@dataclass
class World:
    """A program under way on one transport.

    Attributes:
        names: the receivers that the program uses.
        lose: breaks the connection.
        held: messages that were received, with the receivers that did.
        deferred, scheduled: sequence numbers, also of messages that are gone.
    """

    transport: Transport
    host: BrokerHost
    names: Sequence[str] = tuple(RECEIVERS)
    lose: Callable[[], None] = lambda: None
    senders: dict[str, SenderLink] = field(default_factory=dict)
    receivers: dict[str, ReceiverLink] = field(default_factory=dict)
    held: list[tuple[str, ServiceBusReceivedMessage]] = field(default_factory=list)
    deferred: list[int] = field(default_factory=lambda: [99])
    scheduled: list[int] = field(default_factory=lambda: [98])
    transaction: TransactionLink | None = None
    is_ended: bool = False
    sent: int = 0

    def sender(self, path: str) -> SenderLink:
        if path not in self.senders:
            self.senders[path] = self.transport.open_sender(path)
        return self.senders[path]

    def receiver(self, name: str) -> ReceiverLink:
        if name not in self.receivers:
            path, options = RECEIVERS[name]
            self.receivers[name] = self.transport.open_receiver(path, **options)
        return self.receivers[name]

    def name(self, number: int) -> str:
        return self.names[number % len(self.names)]

    def left(self) -> Any:
        """What is in the namespace."""
        return state_of(self.host.namespace, clock.now())["entities"]

    def messages(self, count: int, kind: int) -> list[ServiceBusMessage]:
        made = []
        for _ in range(count):
            self.sent += 1
            one = ServiceBusMessage(
                str(self.sent),
                session_id="ab"[kind & 1],
                message_id=f"id {self.sent}",
                subject=("", " s ", None)[kind % 3],
                application_properties={"n": self.sent, "": kind},
            )
            if kind == 5:
                one.time_to_live = timedelta(seconds=505)
            made.append(one)
        return made


def seen(message: ServiceBusReceivedMessage) -> Any:
    """What all transports must say of a message."""
    return (
        str(message),
        message.sequence_number,
        message.enqueued_sequence_number,
        message.delivery_count,
        str(message.state),
        message.session_id,
        message.message_id,
        message.subject,
        message.application_properties,
        message.time_to_live,
        message.dead_letter_reason,
        message.dead_letter_error_description,
        message.dead_letter_source,
        message.lock_token is None,
        *map(second, (message.locked_until_utc, message.enqueued_time_utc, message.scheduled_enqueue_time_utc)),
    )


def second(time: datetime | None) -> int | None:
    return None if time is None else round(time.timestamp())


def failure(error: BaseException) -> Any:
    """What all transports must say of an error; the broker has subclasses of its own."""
    kind = next(each for each in type(error).__mro__ if each.__module__ in ("sbclient.errors", "builtins"))
    return kind.__name__, getattr(error, "is_in_doubt", None)


async def _send(world: World, a: int, b: int, c: int) -> Any:
    path = ("q", "s", "q", "s", "none")[a % 5]
    await world.sender(path).send(batch_of(world.messages(1 + b % 3, c)), timeout_s=TIMEOUT_S)


async def _schedule(world: World, a: int, b: int, c: int) -> Any:
    messages = world.messages(1 + b % 2, c)
    for one in messages:
        one.scheduled_enqueue_time_utc = datetime.fromtimestamp(clock.now() + (85, 5005)[c & 1], UTC)
    numbers = await world.sender("qs"[a & 1]).schedule(batch_of(messages), timeout_s=TIMEOUT_S)
    world.scheduled += numbers
    return numbers


async def _cancel_scheduled(world: World, a: int, b: int, c: int) -> Any:
    numbers = [world.scheduled[b % len(world.scheduled)], world.scheduled[c % len(world.scheduled)]]
    await world.sender("qs"[a & 1]).cancel_scheduled(numbers[: 1 + (c & 1)], timeout_s=TIMEOUT_S)


async def _open(world: World, a: int, b: int, c: int) -> Any:
    if a & 1:
        path = ("q", "s", "none")[b % 3]
        if path in world.senders:
            return None  # over AMQP the link knows its limits
        sender = world.sender(path)
        await sender.open(timeout_s=TIMEOUT_S)
        return await sender.limits(timeout_s=TIMEOUT_S), sender.is_open
    name = world.name(b)
    if name in world.receivers and "session" in RECEIVERS[name][1]:
        return None  # only over AMQP the link knows at once that it has lost its session
    receiver = world.receiver(name)
    await receiver.open(timeout_s=TIMEOUT_S)
    return receiver.session_id, second(receiver.session_locked_until_utc)


async def _close(world: World, a: int, b: int, c: int) -> Any:
    """Close a link, and forget it at once or use it once more."""
    links: dict[str, Any] = world.senders if a % 4 == 0 else world.receivers
    if links:
        name = list(links)[b % len(links)]
        await links[name].close()
        if c & 1:
            await links[name].close()
        if c % 3:
            del links[name]
        if name in ("s1", "s2"):  # with the session its messages are gone
            world.held = [one for one in world.held if one[0] != name]


async def _receive(world: World, a: int, b: int, c: int) -> Any:
    name = world.name(a)
    receiver = world.receiver(name)
    got = await receiver.receive(max_message_count=1 + b % 4, max_wait_time_s=1.0)
    world.held += [(name, one) for one in got]
    return list(map(seen, got)), receiver.session_id


async def _settle(world: World, a: int, b: int, c: int) -> Any:
    """Settle a message over its own link or over another one, and perhaps once more."""
    if not world.held:
        return None
    index = a % len(world.held)
    name, message = world.held[index]
    path = RECEIVERS[name][0]
    if c % 4 == 1:
        name = {"q": "q2"}.get(path, name)
    if c % 4 != 2 or path == "s":
        del world.held[index]
    settlement = SETTLEMENTS[b % len(SETTLEMENTS)]
    if settlement.mode is SettleMode.DEFER and message.sequence_number is not None:
        world.deferred.append(message.sequence_number)
    await world.receiver(name).settle(message, settlement, timeout_s=TIMEOUT_S)


async def _settle_together(world: World, a: int, b: int, c: int) -> Any:
    mine = [one for one in world.held if one[0] == "q1"]
    messages = [message for _, message in mine]
    settlement = SETTLEMENTS[b % len(SETTLEMENTS)]
    receiver = world.receiver("q1")
    for one in mine:
        world.held.remove(one)
    done = await receiver.settle_together(messages, settlement, timeout_s=TIMEOUT_S)
    errors = []
    for message in messages:
        if all(message is not one for one in done):
            try:
                await receiver.settle(message, settlement, timeout_s=TIMEOUT_S)
            except ServiceBusError as error:
                errors.append((message.sequence_number, failure(error)))
    return errors


async def _renew(world: World, a: int, b: int, c: int) -> Any:
    if world.held:
        name, message = world.held[a % len(world.held)]
        return second(await world.receiver(name).renew_lock(message, timeout_s=TIMEOUT_S))
    return None


async def _peek(world: World, a: int, b: int, c: int) -> Any:
    name = ("q1", "deleting", "dead", "none", "wrong")[a % 5]
    found = await world.receiver(name).peek(max_message_count=1 + c % 3, sequence_number=1 + b, timeout_s=TIMEOUT_S)
    return list(map(seen, found))


async def _receive_deferred(world: World, a: int, b: int, c: int) -> Any:
    name = world.name(a)
    numbers = [world.deferred[b % len(world.deferred)], world.deferred[c % len(world.deferred)]]
    got = await world.receiver(name).receive_deferred(numbers[: 1 + (c & 1)], timeout_s=TIMEOUT_S)
    world.held += [(name, one) for one in got]
    return list(map(seen, got))


async def _session(world: World, a: int, b: int, c: int) -> Any:
    receiver = world.receiver(("s1", "s2", "q1")[a % 5 % 3])
    if b % 3 == 0:
        return second(await receiver.renew_session_lock(timeout_s=TIMEOUT_S))
    if b % 3 == 1:
        return await receiver.get_session_state(timeout_s=TIMEOUT_S)
    state = (b"", b" \n", None, b"x" * 100)[c % 4]
    return await receiver.set_session_state(state, timeout_s=TIMEOUT_S)


async def _list_sessions(world: World, a: int, b: int, c: int) -> Any:
    after = datetime.fromtimestamp(clock.now() - 60, UTC) if b & 1 else None
    return sorted(await world.transport.list_sessions("qs"[a & 1], state_updated_after=after, timeout_s=TIMEOUT_S))


async def _wait_then_cancel(world: World, a: int, b: int, c: int) -> Any:
    """A receive call that is cancelled after a while takes nothing from the next one."""
    name = world.name(a)
    waiting = asyncio.ensure_future(world.receiver(name).receive(max_message_count=2, max_wait_time_s=3.0))
    await clock.sleep(1.0)
    done = waiting.done()
    waiting.cancel()
    (answer,) = await asyncio.gather(waiting, return_exceptions=True)
    if isinstance(answer, ServiceBusError):
        raise answer
    if isinstance(answer, list):
        world.held += [(name, one) for one in answer]
        return list(map(seen, answer)), done
    return failure(answer), done


async def _wait_then_send(world: World, a: int, b: int, c: int) -> Any:
    """Two receive calls that wait are served in the order in which they began."""
    names = ("q1", "q2") if a & 1 else ("q2", "q1")
    waiting = []
    for name in names:
        waiting.append(asyncio.ensure_future(world.receiver(name).receive(max_message_count=1, max_wait_time_s=3.0)))
        await clock.sleep(0.2)
    try:
        await world.sender("q").send(batch_of(world.messages(1 + b % 2, c)), timeout_s=TIMEOUT_S)
    finally:
        answers = await asyncio.gather(*waiting, return_exceptions=True)
    found = []
    for name, answer in zip(names, answers, strict=True):
        if isinstance(answer, BaseException):
            found.append(failure(answer))
        else:
            world.held += [(name, one) for one in answer]
            found.append(list(map(seen, answer)))
    return found


async def _transact(world: World, a: int, b: int, c: int) -> Any:
    """Begin a transaction, use it, or end it."""
    if world.transaction is None or (world.is_ended and a & 1):
        world.transaction, world.is_ended = await world.transport.begin_transaction(timeout_s=TIMEOUT_S), False
    transaction, was_ended = world.transaction, world.is_ended
    try:
        if a % 4 == 0:
            await world.sender("q").send(batch_of(world.messages(1, c)), timeout_s=TIMEOUT_S, transaction=transaction)
        elif a % 4 == 1 and world.held:
            name, message = world.held[b % len(world.held)]
            settlement = SETTLEMENTS[c % len(SETTLEMENTS)]
            await world.receiver(name).settle(message, settlement, timeout_s=TIMEOUT_S, transaction=transaction)
        elif a % 4 == 2:
            world.is_ended = True
            await transaction.commit(timeout_s=TIMEOUT_S)
        elif a % 4 == 3:
            world.is_ended = True
            await transaction.rollback(timeout_s=TIMEOUT_S)
    except ServiceBusError as error:
        if world.is_ended:  # which of several reasons is named may differ; a commit has one condition for all
            return "refused", was_ended, error.is_in_doubt
        raise


async def _manage(world: World, a: int, b: int, c: int) -> Any:
    """Create, update or delete a queue whose links are open."""
    address = EntityAddress(EntityKind.QUEUE, ("q",))
    management, described = MemoryTransport(world.host).administration, QUEUES["q"]
    if b % 4 == 0:
        await management.delete(address)
        if c & 1:
            await management.create(address, described)
    elif b % 4 == 1:
        await management.create(address, described)
    else:
        status = (EntityStatus.ACTIVE, EntityStatus.SEND_DISABLED, EntityStatus.RECEIVE_DISABLED)[c % 3]
        lock = (timedelta(seconds=50), LOCK)[b & 1]
        await management.update(address, replace(described, status=status, lock_duration=lock))


async def _fault(world: World, a: int, b: int, c: int) -> Any:
    operation = (Operation.SEND, Operation.SCHEDULE, Operation.SETTLE, Operation.RENEW, Operation.PEEK)[c % 5]
    path = "s" if b & 1 and c % 5 < 2 else "q"  # a lost session is noticed before or after a fault
    entity = world.host.namespace.directory.get(path)
    if entity is not None and entity.description.status is EntityStatus.ACTIVE:  # else two errors are possible
        world.host.inject(Fault((FaultKind.BUSY, FaultKind.ERROR)[a & 1], path, operations=[operation], count=1))


async def _pass_time(world: World, a: int, b: int, c: int) -> Any:
    await clock.sleep((150.0, 300.0)[a % 2])


async def _lose(world: World, a: int, b: int, c: int) -> Any:
    world.lose()


STEPS: Final[dict[str, tuple[int, Callable[[World, int, int, int], Awaitable[Any]]]]] = {
    "send": (12, _send),
    "schedule": (2, _schedule),
    "cancel_scheduled": (2, _cancel_scheduled),
    "open": (3, _open),
    "close": (4, _close),
    "receive": (14, _receive),
    "settle": (12, _settle),
    "settle_together": (3, _settle_together),
    "renew": (3, _renew),
    "peek": (3, _peek),
    "receive_deferred": (4, _receive_deferred),
    "session": (4, _session),
    "list_sessions": (1, _list_sessions),
    "wait_then_cancel": (3, _wait_then_cancel),
    "wait_then_send": (2, _wait_then_send),
    "transact": (6, _transact),
    "manage": (2, _manage),
    "fault": (2, _fault),
    "pass_time": (2, _pass_time),
    "lose": (8, _lose),
}
"""The steps, and how often each comes."""


PLAIN: Final = ("q1", "q2", "deleting", "dead", "none", "wrong")
"""Receivers without a session, which is lost with its connection."""


def program(seed: int, count: int, without: Sequence[str] = ("lose",)) -> list[Step]:
    random = Random(seed)
    names = [name for name in STEPS if name not in without]
    return [
        (name, *(random.randrange(840) for _ in range(3)))  # type: ignore[misc]
        for name in random.choices(names, [STEPS[name][0] for name in names], k=count)
    ]


async def carry_out(world: World, steps: list[Step]) -> list[Any]:
    """Return what each step gave, and what was in the namespace after it."""
    for name, described in QUEUES.items():
        await MemoryTransport(world.host).administration.create(EntityAddress(EntityKind.QUEUE, (name,)), described)
    found: list[Any] = []
    due = clock.monotonic()
    for name, *numbers in steps:
        try:
            answer = await STEPS[name][1](world, *numbers)
        except ServiceBusError as error:
            answer = failure(error)
        found.append((name, *numbers, answer))
        while due <= clock.monotonic():
            due += STEP_S
        await clock.sleep(due - clock.monotonic())
        found.append(world.left())
    for sender in world.senders.values():
        await sender.close()
    for receiver in world.receivers.values():
        await receiver.close()
    await clock.sleep(STEP_S)
    found.append(world.left())
    await world.transport.close()
    return found


Work = Callable[[World], Awaitable[list[Any]]]


async def over_memory(work: Work, **options: Any) -> list[Any]:
    host = BrokerHost("contoso", random=Random(1))
    return await work(World(MemoryTransport(host), host, **options))


async def over_amqp(work: Work, **options: Any) -> list[Any]:
    host = BrokerHost("contoso", random=Random(1))
    line = Line(latency_s=0.0, split_share=0.2, buffer_bytes=1 << 20, token_s=3600, max_frame_bytes=1 << 18)
    network = Network(host, line, Random(2))

    def lose() -> None:
        restart = Incident(kind="restart", what="restart", at_s=0.0, span_s=0.0)
        network.begin(restart)
        network.end(restart)

    transport = AmqpTransport(
        "contoso",
        "contoso",
        lambda sink: network.connect(sink, lambda: True),
        Signer(network),
        random=Random(3),
        management=lambda: MemoryTransport(host),
    )
    found = await work(World(transport, host, lose=lose, **options))
    await network.close()
    return found


def in_virtual_time(work: Coroutine[Any, Any, list[Any]]) -> list[Any]:
    return run_virtual(work, epoch=EPOCH, horizon_s=100_000.0)


def check_same(expected: list[Any], found: list[Any]) -> None:
    for one, other in zip(expected, found, strict=True):
        assert other == one


@pytest.mark.parametrize("seed", range(10))
def test_amqp_and_memory_agree(seed: int) -> None:
    work = partial(carry_out, steps=program(seed, 60))
    check_same(in_virtual_time(over_memory(work)), in_virtual_time(over_amqp(work)))


@pytest.mark.parametrize("seed", range(10))
def test_a_connection_that_is_lost_between_calls_changes_nothing_without_sessions(seed: int) -> None:
    work = partial(carry_out, steps=program(seed, 60, without=("session", "transact", "open")))
    expected, found = (in_virtual_time(over(work, names=PLAIN)) for over in (over_memory, over_amqp))
    check_same(expected, found)


@pytest.mark.parametrize("over", [over_memory, over_amqp])
@pytest.mark.parametrize("seed", range(6))
def test_concurrent_calls_end_whoever_of_them_is_cancelled(seed: int, over: Callable[..., Any]) -> None:
    in_virtual_time(over(partial(call_together, random=Random(seed))))


async def call_together(world: World, random: Random) -> list[Any]:
    """Call at the same time what shares requests, and cancel some of it in any step of the event loop."""
    await MemoryTransport(world.host).administration.create(EntityAddress(EntityKind.QUEUE, ("q",)), QUEUES["q"])
    sender, receiver = world.sender("q"), world.receiver("q1")
    for turn in range(15):
        await sender.send(batch_of(world.messages(6, turn % 3)), timeout_s=TIMEOUT_S)
        received = await receiver.receive(max_message_count=6, max_wait_time_s=1.0)
        assert len(received) == 6
        calls: list[Awaitable[Any]] = [
            receiver.renew_lock(message, timeout_s=TIMEOUT_S)
            if turn % 2
            else receiver.settle(message, random.choice(SETTLEMENTS[:3]), timeout_s=TIMEOUT_S)
            for message in received
        ]
        due = datetime.fromtimestamp(clock.now(), UTC) + timedelta(hours=1)
        later = [message.copy(scheduled_enqueue_time_utc=due) for message in world.messages(2, 0)]
        calls += [sender.schedule(batch_of([message]), timeout_s=TIMEOUT_S) for message in later]
        calls += [sender.send(batch_of([message]), timeout_s=TIMEOUT_S) for message in world.messages(2, 0)]
        calls += [receiver.peek(max_message_count=2, sequence_number=1, timeout_s=TIMEOUT_S) for _ in range(2)]
        random.shuffle(calls)
        tasks = [asyncio.ensure_future(call) for call in calls]
        cancelled = random.sample(tasks, random.randrange(1, len(tasks)))
        for task in cancelled:
            for _ in range(random.choice((0, 0, 1, 3, 9))):
                await asyncio.sleep(0)
            task.cancel()
        _, late = await asyncio.wait(tasks, timeout=1.0)
        assert not late
        for task in tasks:
            if not task.cancelled():
                task.result()
            else:
                assert task in cancelled
    await sender.close()
    await receiver.close()
    await world.transport.close()
    return []
