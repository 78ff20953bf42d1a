"""The operations of clients, and their failures, as rows: what one repetition of each does."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any, Final, Protocol, TypeAlias

from sbclient import (
    NEXT_AVAILABLE_SESSION,
    AutoLockRenewer,
    PairedNamespaceOptions,
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusReceiver,
)
from sbclient.broker.faults import Fault, FaultKind
from sbclient.emulator import Emulator
from sbclient.errors import ServiceBusError
from sbclient.hosting.host import BrokerHost
from sbclient.transport.memory.transport import MemoryTransport

_numbers = count(1)


class Faults(Protocol):
    """Injects faults into a namespace."""

    def inject(self, fault: Fault, /) -> object:
        """Inject a fault."""

    def heal(self, fault: Fault, /) -> None:
        """Remove it."""


class Scene:
    """A client with a sender, a receiver and a renewer that stay, and the namespace behind it.

    Args:
        host: the namespace, for faults and counts.
        new_client: opens a further client.
        pair: a client with a second namespace.
        second: a client of that namespace.
        faults: injects faults into the namespace.
    """

    def __init__(
        self,
        host: BrokerHost,
        new_client: Callable[..., ServiceBusClient],
        pair: ServiceBusClient,
        second: ServiceBusClient,
        faults: Faults,
    ) -> None:
        self.host = host
        self.faults = faults
        self.second = second
        self.new_client = new_client
        self.client = new_client()
        self.pair = pair
        self.sender = self.client.get_queue_sender("orders")
        self.receiver = self.client.get_queue_receiver("orders")
        self.deleting = self.client.get_queue_receiver("orders", receive_mode="receiveanddelete")
        self.renewer = AutoLockRenewer()
        self.renewed = self.client.get_queue_receiver("orders", auto_lock_renewer=self.renewer)
        self.diverting = pair.get_queue_sender("orders")

    async def close(self) -> None:
        for each in (self.renewer, self.client, self.pair, self.second):
            await each.close()

    async def send(self, queue: str = "orders", **attributes: Any) -> None:
        async with self.client.get_queue_sender(queue) as sender:
            await sender.send_messages(ServiceBusMessage("x", **attributes))

    def session_receiver(
        self, client: ServiceBusClient, session: str | None = None, **options: Any
    ) -> ServiceBusReceiver:
        return client.get_queue_receiver("sessions", session_id=session or NEXT_AVAILABLE_SESSION, **options)

    async def one(self, receiver: ServiceBusReceiver | None = None) -> Any:
        await self.sender.send_messages(ServiceBusMessage("x" * 1000))
        (message,) = await (receiver or self.receiver).receive_messages(1, max_wait_time=10)
        return message

    def count_broker(self) -> Counter[str]:
        """What the broker holds: messages, locks, sessions, waiting receivers."""
        found: Counter[str] = Counter()
        for entity in self.host.namespace.directory.all():
            for body in entity.queues():
                for fragment in body.fragments:
                    found["messages"] += len(fragment)
                    found["locks"] += fragment.locked_count
                    found["sessions"] += fragment.session_count
        found["waiting"] = sum(self.host._waiting._counts.values())
        found["entities"] = len(self.host.namespace.directory)
        return found


@asynccontextmanager
async def memory_scene(host: Any, transport_to: Callable[[Any], Any] = MemoryTransport) -> AsyncIterator[Scene]:
    """A scene on namespaces in this process.

    Args:
        transport_to: makes a transport to a namespace.
    """
    second = type(host)(f"{host.namespace.name}-backup")
    options: dict[str, Any] = {"retry_total": 1, "retry_backoff_factor": 0.01, "timeout": 5}

    def new_client(**more: Any) -> ServiceBusClient:
        return ServiceBusClient(transport=transport_to(host), **options, **more)

    pair = ServiceBusClient(
        transport=transport_to(host),
        secondary_transport=transport_to(second),
        options=PairedNamespaceOptions(failover_interval=timedelta(hours=1), backlog_queue_count=2),
        **options,
    )
    async with new_client() as client:
        await make_entities(client)
    scene = Scene(host, new_client, pair, ServiceBusClient(transport=transport_to(second), **options), host)
    yield scene
    await scene.close()


@asynccontextmanager
async def amqp_scene(emulator: Emulator) -> AsyncIterator[Scene]:
    """A scene on an emulator in another thread of this process, so that both ends of each link are counted."""
    first, second = (emulator.connection_strings[name] for name in emulator.namespaces)
    options: dict[str, Any] = {
        "retry_total": 1,
        "retry_backoff_factor": 0.01,
        "timeout": 5,
        "connection_verify": str(emulator.certificate_path),
    }

    def new_client(**more: Any) -> ServiceBusClient:
        return ServiceBusClient.from_connection_string(first, **options, **more)

    pair_options = PairedNamespaceOptions(failover_interval=timedelta(hours=1), backlog_queue_count=2)
    pair = new_client(secondary=second, options=pair_options)
    async with new_client() as client:
        await make_entities(client)
    host = emulator.context(emulator.namespaces[0]).host
    other = ServiceBusClient.from_connection_string(second, **options)

    class InThread:
        def inject(self, fault: Fault) -> object:
            return emulator.inject(fault, emulator.namespaces[0])

        def heal(self, fault: Fault) -> None:
            emulator.heal(fault, emulator.namespaces[0])

    scene = Scene(host, new_client, pair, other, InThread())
    yield scene
    await scene.close()


async def make_entities(client: ServiceBusClient) -> None:
    for name in ("orders", "empty"):
        await client.administration.create_queue(name, lock_duration=timedelta(minutes=5))
    await client.administration.create_queue("sessions", requires_session=True)


Row: TypeAlias = Callable[[Scene], Awaitable[object]]


async def send(scene: Scene) -> None:
    await settle(scene, "complete")


async def settle(scene: Scene, how: str) -> None:
    message = await scene.one()
    await getattr(scene.receiver, f"{how}_message")(message)
    if how == "abandon":
        (message,) = await scene.receiver.receive_messages(1, max_wait_time=10)
        await scene.receiver.complete_message(message)
    if how == "defer":
        (message,) = await scene.receiver.receive_deferred_messages(message.sequence_number)
        await scene.receiver.complete_message(message)
    if how == "dead_letter":
        async with scene.client.get_queue_receiver("orders", sub_queue="deadletter") as dead:
            (message,) = await dead.receive_messages(1, max_wait_time=10)
            await dead.complete_message(message)


async def several(scene: Scene) -> None:
    batch = await scene.sender.create_message_batch()
    batch.add_message(ServiceBusMessage("x"))
    await scene.sender.send_messages(batch)
    await scene.sender.send_messages([ServiceBusMessage("x", session_id=f"{next(_numbers)}") for _ in range(1)])
    left = 2
    while left:
        for message in await scene.receiver.receive_messages(2, max_wait_time=10):
            await scene.receiver.complete_message(message)
            left -= 1


async def at_once(scene: Scene) -> None:
    """Sends with one key wait for each other, and share a transfer whose calls have deadlines of their own."""
    sends = [
        scene.sender.send_messages(ServiceBusMessage("x", partition_key="k"), timeout=60 + number)
        for number in range(4)
    ]
    await asyncio.gather(*sends)
    left = len(sends)
    while left:
        for message in await scene.receiver.receive_messages(4, max_wait_time=10):
            await scene.receiver.complete_message(message)
            left -= 1


async def renewed(scene: Scene) -> None:
    """The lock of a message is renewed until it is settled, at once and later."""
    message = await scene.one(scene.renewed)
    await scene.renewed.complete_message(message)


async def renewed_and_closed(scene: Scene) -> None:
    async with scene.client.get_queue_receiver("orders", auto_lock_renewer=scene.renewer) as receiver:
        message = await scene.one(receiver)
    async with scene.client.get_queue_receiver("orders") as receiver:
        await receiver.complete_message(message)


async def renewed_once(scene: Scene) -> None:
    message = await scene.one()
    await scene.receiver.renew_message_lock(message)
    await scene.receiver.complete_message(message)


async def scheduled(scene: Scene) -> None:
    numbers = await scene.sender.schedule_messages(ServiceBusMessage("x"), datetime(2099, 1, 1, tzinfo=UTC))
    await scene.sender.cancel_scheduled_messages(numbers)


async def transacted(scene: Scene, *, commits: bool) -> None:
    message = await scene.one()
    with suppress(ZeroDivisionError):
        async with scene.client.transaction() as transaction:
            await scene.receiver.complete_message(message, transaction=transaction)
            if not commits:
                raise ZeroDivisionError
    if not commits:
        await scene.receiver.complete_message(message)


async def opened_and_closed(scene: Scene) -> None:
    async with scene.new_client() as client, client.get_queue_sender("orders"), client.get_queue_receiver("orders"):
        pass


async def dropped(scene: Scene) -> None:
    """Senders and receivers that are not closed, and never used."""
    scene.client.get_queue_sender("orders")
    scene.client.get_queue_receiver("orders")
    scene.session_receiver(scene.client)


async def session(scene: Scene) -> None:
    name = f"{next(_numbers)}"
    await scene.send("sessions", session_id=name)
    async with scene.session_receiver(scene.client, name, auto_lock_renewer=scene.renewer) as receiver:
        await receiver.session.set_state(b"state")
        await receiver.session.renew_lock()
        (message,) = await receiver.receive_messages(1, max_wait_time=10)
        await receiver.complete_message(message)
        await receiver.session.set_state(None)


async def no_session(scene: Scene) -> None:
    with suppress(ServiceBusError):
        async with scene.session_receiver(scene.client, max_wait_time=0.01, auto_lock_renewer=scene.renewer):
            raise AssertionError("there is a session")


async def busy_session(scene: Scene) -> None:
    async with scene.session_receiver(scene.client, "busy"):
        with suppress(ServiceBusError):
            async with scene.session_receiver(scene.client, "busy", auto_lock_renewer=scene.renewer):
                raise AssertionError("the session is free")


async def missing(scene: Scene) -> None:
    """Each call on an entity that does not exist."""
    name = f"missing-{next(_numbers)}"
    with suppress(ServiceBusError):
        await scene.client.get_queue_sender(name).send_messages(ServiceBusMessage("x"))
    with suppress(ServiceBusError):
        await scene.client.get_queue_receiver(name).receive_messages(1, max_wait_time=1)
    with suppress(ServiceBusError):
        await scene.client.get_queue_receiver(name, session_id="x").__aenter__()
    with suppress(ServiceBusError):
        await scene.client.get_queue_receiver(name).peek_messages()
    if scene.faults is scene.host:  # azure-core opens a connection for each request, which stays open for 15 s
        with suppress(ServiceBusError):
            await scene.client.administration.get_queue(name)


async def nothing_there(scene: Scene) -> None:
    """Calls that time out or find nothing."""
    async with scene.client.get_queue_receiver("empty") as receiver:
        assert not await receiver.receive_messages(1, max_wait_time=0.01)
        assert not await receiver.peek_messages()
        with suppress(ServiceBusError):
            await receiver.receive_deferred_messages(5)
    with suppress(ServiceBusError):
        await scene.sender.cancel_scheduled_messages(1)


async def found_in_part(scene: Scene, mode: str = "peeklock") -> None:
    """A deferred message is found, and another one of another partition is not."""
    message = await scene.one()
    await scene.receiver.defer_message(message)
    receiver = scene.receiver if mode == "peeklock" else scene.deleting
    with suppress(ServiceBusError):
        await receiver.receive_deferred_messages([message.sequence_number, 2**60])
    (message,) = await receiver.receive_deferred_messages(message.sequence_number)
    if mode == "peeklock":
        await receiver.complete_message(message)


async def prefetched(scene: Scene) -> None:
    """A receiver is closed before its calls have received what it has prefetched."""
    async with scene.client.get_queue_receiver("empty", prefetch_count=5) as receiver:
        assert not await receiver.receive_messages(1, max_wait_time=0.01)
        async with scene.client.get_queue_sender("empty") as sender:
            await sender.send_messages([ServiceBusMessage("x") for _ in range(3)])
        (message,) = await receiver.receive_messages(1, max_wait_time=10)
        await receiver.complete_message(message)
    async with scene.client.get_queue_receiver("empty", receive_mode="receiveanddelete") as receiver:
        left = 2
        while left:
            left -= len(await receiver.receive_messages(left, max_wait_time=10))


async def refused(scene: Scene) -> None:
    """Calls that the client or the broker refuses."""
    with suppress(ServiceBusError):
        await scene.sender.send_messages(ServiceBusMessage("x" * 2_000_000))
    async with scene.client.get_queue_sender("sessions") as sender:
        with suppress(ServiceBusError):
            await sender.send_messages(ServiceBusMessage("x"))
    message = await scene.one()
    await scene.receiver.complete_message(message)
    with suppress(ServiceBusError, ValueError):
        await scene.receiver.complete_message(message)


async def cancelled(scene: Scene, call: Callable[[], Awaitable[object]], after_steps: int) -> None:
    """Cancel a call after some steps of the event loop."""
    task = asyncio.ensure_future(call())
    for _ in range(after_steps):
        await asyncio.sleep(0)
    task.cancel()
    with suppress(asyncio.CancelledError, ServiceBusError):
        await task


async def cancelled_calls(scene: Scene) -> None:
    """Each call is cancelled at each of its first steps."""
    waiting = scene.client.get_queue_receiver("empty")
    for steps in range(6):
        await cancelled(scene, lambda: waiting.receive_messages(1, max_wait_time=60), steps)
        await cancelled(scene, lambda: scene.receiver.peek_messages(), steps)
        await cancelled(scene, lambda: scene.session_receiver(scene.client, max_wait_time=60).__aenter__(), steps)
        await cancelled(scene, lambda: scene.client.administration.get_queue("orders"), steps)
        await cancelled(scene, lambda: scene.sender.create_message_batch(), steps)
        await cancelled(scene, lambda: scene.sender.send_messages(ServiceBusMessage("x")), steps)
    await waiting.close()
    while messages := await scene.receiver.receive_messages(10, max_wait_time=0.2):
        for message in messages:
            await scene.receiver.complete_message(message)


async def closed_meanwhile(scene: Scene) -> None:
    receiver = scene.client.get_queue_receiver("empty", prefetch_count=3)
    sessions = scene.session_receiver(scene.client, max_wait_time=60)
    sender = scene.client.get_queue_sender("empty")
    calls = [
        asyncio.ensure_future(receiver.receive_messages(1, max_wait_time=60)),
        asyncio.ensure_future(sessions.__aenter__()),
    ]
    await asyncio.sleep(0.02)
    for each in (receiver, sessions, sender):
        await each.close()
    await asyncio.gather(*calls, return_exceptions=True)


async def several_fail(scene: Scene) -> None:
    """Sends with one key wait for each other, and each ends at its own time."""
    sends = [
        scene.sender.send_messages(ServiceBusMessage("x", partition_key="k"), timeout=timeout)
        for timeout in (0.08, 0.05, 0.06)
    ]
    assert not any(each is None for each in await asyncio.gather(*sends, return_exceptions=True))


async def unavailable(scene: Scene, kind: FaultKind) -> None:
    """Each call fails or times out, because the namespace does not answer."""
    fault = Fault(kind)
    scene.faults.inject(fault)
    try:
        for call in (
            lambda: scene.sender.send_messages(ServiceBusMessage("x"), timeout=0.05),
            lambda: several_fail(scene),
            lambda: scene.receiver.receive_messages(1, max_wait_time=0.05),
            lambda: scene.receiver.peek_messages(timeout=0.05),
            lambda: scene.receiver.receive_deferred_messages(1, timeout=0.05),
            lambda: scene.session_receiver(scene.client, "x", max_wait_time=0.05).__aenter__(),
        ):
            with suppress(ServiceBusError):
                await call()
    finally:
        scene.faults.heal(fault)


async def diverted(scene: Scene) -> None:
    """A pair diverts a send, and sends to the primary again."""
    scene.pair.pair.force_failover("orders")
    await scene.diverting.send_messages(ServiceBusMessage("x"))
    for queue in scene.pair.pair.status().backlog_queues:
        async with scene.second.get_queue_receiver(queue) as receiver:
            for message in await receiver.receive_messages(1, max_wait_time=0.05):
                await receiver.complete_message(message)
    scene.pair.pair.mark_healthy("orders")
    await scene.diverting.send_messages(ServiceBusMessage("x"))
    (message,) = await scene.receiver.receive_messages(1, max_wait_time=10)
    await scene.receiver.complete_message(message)


ROWS: Final[dict[str, Row]] = {
    "send": send,
    "send several": several,
    "send at once": at_once,
    "abandon": lambda scene: settle(scene, "abandon"),
    "defer": lambda scene: settle(scene, "defer"),
    "dead-letter": lambda scene: settle(scene, "dead_letter"),
    "renew by a renewer": renewed,
    "renew by a renewer, and close": renewed_and_closed,
    "renew": renewed_once,
    "schedule and cancel": scheduled,
    "commit": lambda scene: transacted(scene, commits=True),
    "roll back": lambda scene: transacted(scene, commits=False),
    "open and close": opened_and_closed,
    "drop senders and receivers": dropped,
    "receive from a session": session,
    "find no session": no_session,
    "find a session busy": busy_session,
    "use what does not exist": missing,
    "find nothing": nothing_there,
    "find a part": found_in_part,
    "find a part, and delete": lambda scene: found_in_part(scene, "receiveanddelete"),
    "prefetch and close": prefetched,
    "be refused": refused,
    "be cancelled": cancelled_calls,
    "be closed meanwhile": closed_meanwhile,
    "be cut off": lambda scene: unavailable(scene, FaultKind.DOWN),
    "get no answer": lambda scene: unavailable(scene, FaultKind.HANG),
    "be too many": lambda scene: unavailable(scene, FaultKind.BUSY),
    "divert": diverted,
}
