"""A client works in one event loop after another and after a fork, and refuses a second loop at the same time."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import warnings
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any, Final

import pytest

from sbclient import (
    AutoLockRenewer,
    InvalidOperationError,
    PairedNamespaceOptions,
    ServiceBusAdministrationClient,
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusReceiver,
    SessionLockLostError,
)
from sbclient.client.sender import ServiceBusSender
from sbclient.emulator import Emulator
from sbclient.testing import served
from sbclient.transport.memory.transport import drop_memory_host
from tests.fresh_process import output_of

pytestmark = pytest.mark.slow

TIMEOUT_S: Final = 5.0
_numbers = count(1)


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    """Collect sockets of TLS and tasks, which warn, because their event loop cannot close them any more."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield
        gc.collect()


@pytest.fixture(scope="module")
def emulator() -> Iterator[Emulator]:
    with served("contoso", "contoso-backup") as emulator:
        yield emulator


class Place:
    """A namespace with a queue `q` that has thirty messages, a session queue `s` and a topic; and its partner."""

    def __init__(self, strings: tuple[str, str], options: dict[str, Any], transport: str | None = None) -> None:
        self.strings = strings
        self.options = options
        self.transport = transport
        self.queue, self.sessions = (f"{name}-{next(_numbers)}" for name in "qs")
        asyncio.run(self._make())
        self.client = self.new_client()

    def new_client(self, **options: Any) -> ServiceBusClient:
        return ServiceBusClient.from_connection_string(
            self.strings[0], transport=self.transport, timeout=TIMEOUT_S, retry_total=0, **self.options, **options
        )

    def new_pair(self) -> ServiceBusClient:
        options = PairedNamespaceOptions(
            failover_interval=timedelta(0), backlog_queue_count=2, ping_primary_interval=timedelta(seconds=1)
        )
        return self.new_client(secondary=self.strings[1], options=options)

    async def _make(self) -> None:
        async with self.new_client() as client:
            await client.administration.create_queue(self.queue)
            await client.administration.create_queue(self.sessions, requires_session=True)
            async with client.get_queue_sender(self.queue) as sender, client.get_queue_sender(self.sessions) as other:
                await sender.send_messages([ServiceBusMessage(f"{number}") for number in range(30)])
                await other.send_messages([ServiceBusMessage(f"{number}", session_id="x") for number in range(30)])


@pytest.fixture(params=["memory", "amqp", "sdk"])
def place(request: pytest.FixtureRequest, emulator: Emulator) -> Iterator[Place]:
    if request.param == "memory":
        names = [f"loops-{next(_numbers)}" for _ in range(2)]
        yield Place((f"memory://{names[0]}", f"memory://{names[1]}"), {})
        for name in names:
            drop_memory_host(name)
    else:
        strings = [emulator.connection_strings[name] for name in emulator.namespaces]
        options = {"connection_verify": str(emulator.certificate_path)}
        yield Place((strings[0], strings[1]), options, transport=request.param)


class Objects:
    """What a program keeps between its event loops, each made at its first use or, for some, before any loop runs."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.client = place.client
        self.sender: ServiceBusSender = self.client.get_queue_sender(place.queue)
        self.receiver: ServiceBusReceiver = self.client.get_queue_receiver(place.queue, prefetch_count=3)
        self.peeking: ServiceBusReceiver = self.client.get_queue_receiver(place.queue)
        self.pair = place.new_pair()
        self.diverting = self.pair.get_queue_sender(place.queue)
        self.administration = ServiceBusAdministrationClient.from_connection_string(place.strings[0], **place.options)
        self.renewer = AutoLockRenewer()
        self.kept: list[Any] = []

    async def send(self) -> None:
        await self.sender.send_messages(ServiceBusMessage("x", session_id="x"))

    async def send_many(self) -> None:
        await asyncio.gather(*(self.sender.send_messages(ServiceBusMessage("x", session_id="x")) for _ in range(5)))

    async def schedule(self) -> None:
        at = datetime(2099, 1, 1, tzinfo=UTC)
        await self.sender.cancel_scheduled_messages(await self.sender.schedule_messages(ServiceBusMessage("x"), at))

    async def batch(self) -> None:
        batch = await self.sender.create_message_batch()
        batch.add_message(ServiceBusMessage("x"))
        await self.sender.send_messages(batch)

    async def transact(self) -> None:
        async with self.client.transaction() as transaction:
            await self.sender.send_messages(ServiceBusMessage("x", session_id="x"), transaction=transaction)

    async def receive(self) -> None:
        assert await self.receiver.receive_messages(1, max_wait_time=TIMEOUT_S)

    async def receive_unclosed(self) -> None:
        receiver = self.client.get_queue_receiver(self.place.queue)
        assert await receiver.receive_messages(1, max_wait_time=TIMEOUT_S)

    async def settle(self) -> None:
        for message in self.kept:
            await self.receiver.complete_message(message)
        self.kept = [*await self.receiver.receive_messages(1, max_wait_time=TIMEOUT_S)]
        assert self.kept

    async def renew(self) -> None:
        for message in self.kept:
            await self.receiver.renew_message_lock(message)
        self.kept += await self.receiver.receive_messages(1, max_wait_time=TIMEOUT_S)
        self.renewer.register(self.receiver, self.kept[-1])

    async def peek(self) -> None:
        assert await self.peeking.peek_messages(1, sequence_number=1)

    async def list_sessions(self) -> None:
        assert [one async for one in self.client.list_queue_sessions(self.place.sessions)] == ["x"]

    async def take_session(self) -> None:
        async with self.client.get_queue_receiver(self.place.sessions, session_id="x") as receiver:
            await receiver.session.set_state(b"1")

    async def keep_session(self) -> None:
        for receiver in self.kept:
            with pytest.raises(SessionLockLostError):
                await receiver.receive_messages(1, max_wait_time=1)
        receiver = self.client.get_queue_receiver(self.place.sessions, session_id="x")
        assert await receiver.receive_messages(1, max_wait_time=TIMEOUT_S)
        self.kept = [receiver]

    async def administer(self) -> None:
        assert (await self.client.administration.get_queue(self.place.queue)).name == self.place.queue
        assert (await self.administration.get_queue(self.place.queue)).name == self.place.queue

    async def send_paired(self) -> None:
        await self.diverting.send_messages(ServiceBusMessage("x"))
        assert [str(one.state) for one in self.pair.pair.status().entities.values()] == ["healthy"]

    async def divert(self) -> None:
        self.pair.pair.force_failover(self.place.queue)
        await self.diverting.send_messages(ServiceBusMessage("x"))
        assert self.pair.pair.status().entities[self.place.queue].is_forced

    async def recover(self) -> None:
        """Pings go on in the next loop."""
        if not self.kept:
            await self.diverting.send_messages(ServiceBusMessage("x"))
            self.pair.pair.mark_unhealthy(self.place.queue)
            self.kept.append("failed over")
            return
        await self.diverting.send_messages(ServiceBusMessage("x"))
        for _ in range(1000):
            if str(self.pair.pair.status().entities[self.place.queue].state) == "healthy":
                return
            await asyncio.sleep(0.01)
        raise AssertionError("no ping ended the failover")

    async def close(self) -> None:
        for each in (self.renewer, self.sender, self.receiver, self.client, self.pair, self.administration):
            await each.close()


OPERATIONS: Final = [name for name in vars(Objects) if not name.startswith("_") and name != "close"]

OF_SDK: Final = ("send", "settle", "take_session", "keep_session", "administer", "send_paired")
"""One operation of each kind of object."""


def on_each_transport(operations: Sequence[str], of_sdk: Sequence[str]) -> pytest.MarkDecorator:
    """Return the cases of a test of operations: some over azure-servicebus, where each connection takes a second."""
    cases = [
        (transport, operation)
        for transport in ("memory", "amqp", "sdk")
        for operation in operations
        if transport != "sdk" or operation in of_sdk
    ]
    return pytest.mark.parametrize(("place", "operation"), cases, indirect=["place"])


def run(work: Callable[[], Awaitable[None]]) -> None:
    """Run work in an event loop of its own. The limit is of a hang: each call ends by its own timeout."""
    asyncio.run(asyncio.wait_for(work(), 4 * TIMEOUT_S))


@on_each_transport(OPERATIONS, OF_SDK)
def test_operation_works_in_one_loop_after_another(place: Place, operation: str) -> None:
    objects = Objects(place)
    for _ in range(3):
        run(getattr(objects, operation))
    run(objects.close)


@on_each_transport(OPERATIONS, ["keep_session"])
def test_operation_works_after_a_loop_that_is_neither_closed_nor_running(place: Place, operation: str) -> None:
    objects = Objects(place)
    loops = [asyncio.new_event_loop() for _ in range(2)]
    for loop in (*loops, *loops):
        loop.run_until_complete(getattr(objects, operation)())
    loops[1].run_until_complete(objects.close())
    for loop in loops:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()


@on_each_transport([*OPERATIONS, "close"], ["send", "close"])
def test_operation_is_refused_while_another_loop_runs(place: Place, operation: str) -> None:
    if operation in ("keep_session", "divert", "recover"):
        pytest.skip("its first calls are those of other rows")
    objects = Objects(place)
    errors: list[BaseException] = []

    def use_in_thread() -> None:
        try:
            run(getattr(objects, operation))
        except BaseException as error:
            errors.append(error)

    async def use() -> None:
        for name in ("send", "send_paired", "administer", "renew"):
            await getattr(objects, name)()
        objects.kept.clear()
        thread = threading.Thread(target=use_in_thread)
        thread.start()
        await asyncio.to_thread(thread.join)
        await objects.send()
        await objects.close()

    run(use)
    (error,) = errors
    assert isinstance(error, InvalidOperationError)
    assert "another event loop" in str(error)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of tasks whose loop is closed
def test_an_interrupted_loop_leaves_nothing_that_the_next_one_waits_for(place: Place) -> None:
    """Calls that were under way when their loop ended hold no lock, lane or queue of the client."""
    objects = Objects(place)

    async def leave_calls() -> list[asyncio.Task[None]]:
        calls = []
        for name in ("send_many", "batch", "receive", "peek", "take_session", "administer", "send_paired"):
            calls.append(asyncio.ensure_future(getattr(objects, name)()))
            await asyncio.sleep(0)
        return calls

    loop = asyncio.new_event_loop()
    calls = loop.run_until_complete(leave_calls())
    loop.close()  # without ending its tasks, as `asyncio.run` would
    for name in ("send", "send_many", "batch", "receive", "peek", "take_session", "administer", "send_paired"):
        run(getattr(objects, name))
    run(objects.close)
    assert not all(call.done() for call in calls)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")
@pytest.mark.parametrize("moment", ["between loops", "inside a loop", "in the loop of the parent"])
def test_client_works_in_a_forked_process(moment: str, emulator: Emulator) -> None:
    """The child opens connections of its own, and the parent's go on working."""
    place = Place(
        (emulator.connection_strings["contoso"], emulator.connection_strings["contoso-backup"]),
        {"connection_verify": str(emulator.certificate_path)},
    )
    printed = output_of(_FORKING.format(place=(place.strings[0], place.options, place.queue), moment=moment))
    child, parent = printed.splitlines()
    if moment == "in the loop of the parent":
        assert child == "InvalidOperationError True"
        assert parent == "parent ['again', 'parent']"
    else:
        assert child == "child ['child', 'parent']"
        assert parent == "parent ['again', 'child', 'parent']"


_FORKING: Final = """
import asyncio, os, warnings
warnings.simplefilter("ignore")
from sbclient import ServiceBusClient, ServiceBusMessage
conn, options, queue = {place!r}
moment = {moment!r}
client = ServiceBusClient.from_connection_string(conn, timeout=5, retry_total=0, **options)
sender, receiver = client.get_queue_sender(queue), client.get_queue_receiver(queue)

async def send(text):
    await sender.send_messages(ServiceBusMessage(text))

async def bodies():
    found = await receiver.peek_messages(100, sequence_number=1)
    return sorted(str(each) for each in found if not str(each).isdigit())

async def in_child():
    await send("child")
    print("child", await bodies(), flush=True)

async def in_parent():
    await send("again")
    print("parent", await bodies(), flush=True)

def fork():
    pid = os.fork()
    if not pid:
        try:
            if moment == "in the loop of the parent":
                loop.run_until_complete(asyncio.wait_for(in_child(), 20))
            else:
                asyncio.run(asyncio.wait_for(in_child(), 20))
        except Exception as error:
            print(type(error).__name__, "run another loop" in str(error), flush=True)
        finally:
            os._exit(0)
    os.waitpid(pid, 0)

async def fork_inside():
    await send("parent")
    await asyncio.to_thread(int)  # the child has no thread that would write to the loop
    fork()
    await in_parent()

if moment == "inside a loop":
    asyncio.run(fork_inside())
else:
    loop = asyncio.new_event_loop()
    loop.run_until_complete(send("parent"))
    fork()
    loop.run_until_complete(asyncio.wait_for(in_parent(), 20))
"""
