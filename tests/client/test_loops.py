"""A client in one event loop after another: calls that hang when a loop stops hinder none of the next loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any, Final, NamedTuple

import pytest

from sbclient import clock
from sbclient.broker.faults import Operation
from sbclient.errors import InvalidOperationError
from sbclient.message import ServiceBusMessage
from sbclient.testing import Fault, FaultKind, MemoryPair, VirtualLoop, memory_pair
from tests.client.scene import QUEUE, make_queue, options

EPOCH: Final = 1_700_000_000.0
SESSIONS: Final = "sessions"
LATER_S: Final = 5.0
"""A call of a loop that has nothing to wait for is done after so long."""


class Program:
    """What a program keeps between its event loops."""

    def __init__(self, pair: MemoryPair) -> None:
        self.client = pair.client(options(ordering="session", failover_interval=60), retry_total=0)
        self.sender = self.client.get_queue_sender(QUEUE)
        self.ordered = self.client.get_queue_sender(SESSIONS)
        self.receiver = self.client.get_queue_receiver(QUEUE)
        self.sessions = count()

    async def send(self) -> None:
        await self.sender.send_messages(ServiceBusMessage("x", partition_key="k"))

    async def send_in_order(self) -> None:
        messages = [ServiceBusMessage("x", session_id=session) for session in "abc"]
        await asyncio.gather(*map(self.ordered.send_messages, messages))

    async def schedule(self) -> None:
        due = datetime.fromtimestamp(clock.now(), UTC) + timedelta(days=1)
        numbers = await self.sender.schedule_messages(ServiceBusMessage("x"), due)
        await self.sender.cancel_scheduled_messages(numbers)

    async def transact(self) -> None:
        async with self.client.transaction() as transaction:
            await self.sender.send_messages(ServiceBusMessage("x"), transaction=transaction)

    async def receive(self) -> None:
        await self.receiver.receive_messages(max_wait_time=1)

    async def take_session(self) -> None:
        async with self.client.get_queue_receiver(SESSIONS, session_id=str(next(self.sessions))) as receiver:
            await receiver.session.set_state(b"1")

    async def make_batch(self) -> None:
        await self.sender.create_message_batch()


class Hanging(NamedTuple):
    """A call of the program, and what of it hangs when its loop stops."""

    call: Callable[[Program], Awaitable[None]]
    operation: Operation
    is_secondary: bool = False


CALLS: Final = [
    Hanging(Program.send, Operation.SEND),
    Hanging(Program.send, Operation.MANAGE, is_secondary=True),  # the client opens
    Hanging(Program.send_in_order, Operation.SEND),
    Hanging(Program.send_in_order, Operation.SESSION, is_secondary=True),
    Hanging(Program.schedule, Operation.SCHEDULE),
    Hanging(Program.schedule, Operation.CANCEL),
    Hanging(Program.transact, Operation.TRANSACTION),
    Hanging(Program.transact, Operation.MANAGE),
    Hanging(Program.transact, Operation.SEND),
    Hanging(Program.receive, Operation.RECEIVE),
    Hanging(Program.take_session, Operation.SESSION),
    Hanging(Program.make_batch, Operation.OPEN),
]


class Loops:
    """Event loops that stop and are closed at the end."""

    def __init__(self) -> None:
        self._loops: list[VirtualLoop] = []

    def run(self, work: Awaitable[Any]) -> None:
        """Run some work in another loop."""
        self._loops.append(VirtualLoop(epoch=EPOCH))
        self._loops[-1].run_until_complete(work)

    def close(self) -> None:
        for loop in self._loops:
            loop.run_until_complete(end_tasks())
            loop.close()


@pytest.fixture
def loops() -> Iterator[Loops]:
    loops = Loops()
    yield loops
    loops.close()


async def end_tasks() -> None:
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)


async def make_queues(pair: MemoryPair) -> None:
    await make_queue(pair)
    await make_queue(pair, SESSIONS, requires_session=True)


async def call_twice(program: Program, call: Callable[[Program], Awaitable[None]]) -> set[asyncio.Task[Any]]:
    """Begin two calls; return those that are not done after a while."""
    calls = {asyncio.ensure_future(call(program)) for _ in range(2)}
    late: set[asyncio.Task[Any]] = await clock.wait(calls, LATER_S)
    for done in calls - late:
        done.result()
    return late


@pytest.mark.parametrize("row", CALLS, ids=lambda row: f"{row.call.__name__}-{row.operation}")
@pytest.mark.parametrize("was_used", [False, True])
def test_calls_that_hang_in_a_loop_that_stops_hinder_none_of_the_next(
    loops: Loops, row: Hanging, *, was_used: bool
) -> None:
    pair = memory_pair(seed=1)
    program = Program(pair)
    loops.run(make_queues(pair))

    async def hang() -> None:
        if was_used:
            await program.receive()
        host = pair.secondary if row.is_secondary else pair.primary
        host.inject(Fault(FaultKind.HANG, operations=[row.operation]))
        await call_twice(program, row.call)
        host.heal()

    async def go_on() -> None:
        assert not await call_twice(program, row.call)

    for _ in range(2):
        loops.run(hang())
        loops.run(go_on())
    loops.run(program.client.close())


def test_what_is_closed_in_one_loop_is_closed_in_the_next(loops: Loops) -> None:
    pair = memory_pair(seed=1)
    program = Program(pair)
    loops.run(make_queues(pair))
    loops.run(program.send())
    loops.run(program.client.close())

    async def refused() -> None:
        for call in {row.call for row in CALLS}:
            with pytest.raises(InvalidOperationError):
                await call(program)
        await program.client.close()

    loops.run(refused())
