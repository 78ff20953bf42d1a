"""Failed operations leave no frames in reference cycles: in an outage thousands fail, each with its message."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from types import FrameType
from typing import Any, Final, NamedTuple

import pytest

from sbclient import clock
from sbclient.client.client import ServiceBusClient
from sbclient.client.lock_renewer import AutoLockRenewer
from sbclient.client.receiver import ServiceBusReceiver
from sbclient.client.sender import ServiceBusSender
from sbclient.errors import ServiceBusError
from sbclient.message import ServiceBusMessage, ServiceBusReceivedMessage
from sbclient.options import PairedNamespaceOptions
from sbclient.testing import Fault, FaultKind, MemoryPair, Operation
from tests.client.scene import QUEUE

KINDS: Final = (FaultKind.DOWN, FaultKind.HANG, FaultKind.BUSY)
LATER: Final = datetime(2100, 1, 1, tzinfo=UTC)


class Open(NamedTuple):
    """What operations use."""

    client: ServiceBusClient
    sender: ServiceBusSender
    receiver: ServiceBusReceiver
    message: ServiceBusReceivedMessage


async def renew_automatically(use: Open) -> None:
    async with AutoLockRenewer() as renewer:
        renewer.register(use.receiver, use.message, max_lock_renewal_duration=300)
        await clock.sleep(100.0)
    use.message.auto_renew_error = None


async def send_in_transaction(use: Open) -> None:
    async with use.client.transaction() as transaction:
        await use.sender.send_messages(ServiceBusMessage("x"), transaction=transaction)


async def accept_session(use: Open) -> None:
    async with use.client.get_queue_receiver("sessions", session_id="x"):
        pass


OPERATIONS: Final[dict[str, Callable[[Open], Awaitable[Any]]]] = {
    "send one": lambda use: use.sender.send_messages(ServiceBusMessage("x"), timeout=30),
    "send a list": lambda use: use.sender.send_messages([ServiceBusMessage("x"), ServiceBusMessage("y")], timeout=30),
    "schedule": lambda use: use.sender.schedule_messages(ServiceBusMessage("x"), LATER, timeout=30),
    "send in a transaction": send_in_transaction,
    "receive": lambda use: use.receiver.receive_messages(max_wait_time=5),
    "peek": lambda use: use.receiver.peek_messages(timeout=30),
    "complete": lambda use: use.receiver.complete_message(use.message),
    "renew": lambda use: use.receiver.renew_message_lock(use.message, timeout=30),
    "renew automatically": renew_automatically,
    "accept a session": accept_session,
    "describe": lambda use: use.client.administration.get_queue(QUEUE),
    "ping": lambda use: clock.sleep(300.0),
}


@pytest.fixture
def only_counted() -> Iterator[None]:
    """Disable the garbage collector during a test; garbage from before does not count."""
    gc.collect()
    gc.freeze()
    gc.disable()
    yield
    gc.enable()
    gc.unfreeze()


def collected() -> set[str]:
    """Collect garbage; return the names of the functions whose frames were in it."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    gc.set_debug(0)
    names = {each.f_code.co_qualname for each in gc.garbage if isinstance(each, FrameType)}
    gc.garbage.clear()
    return names


async def left_by_operations(pair: MemoryPair, use: Open) -> dict[str, set[str]]:
    """Return the frames that failures leave behind, by operation and fault."""
    found = {}
    for kind in KINDS:
        for namespace in (pair.primary, pair.secondary):
            namespace.inject(Fault(kind))
        collected()
        for name, operation in OPERATIONS.items():
            for _ in range(2):
                with suppress(ServiceBusError):
                    await operation(use)
            if names := collected():
                found[f"{name}, {kind.value}"] = names
        pair.primary.heal()
        pair.secondary.heal()
    return found


@pytest.mark.parametrize("is_failed_over", [False, True], ids=["healthy", "failed over"])
async def test_failed_operations_leave_no_reference_cycles(
    pair: MemoryPair, is_failed_over: bool, only_counted: None
) -> None:
    interval = timedelta(hours=0 if is_failed_over else 1)
    async with pair.client(PairedNamespaceOptions(failover_interval=interval, backlog_queue_count=2)) as client:
        await client.administration.create_queue("sessions", requires_session=True)
        async with client.get_queue_sender(QUEUE) as sender, client.get_queue_receiver(QUEUE) as receiver:
            await sender.send_messages(ServiceBusMessage("first"))
            (message,) = await receiver.receive_messages()
            assert await left_by_operations(pair, Open(client, sender, receiver, message)) == {}


@pytest.mark.parametrize("ordering", ["none", "session"])
async def test_a_syphon_leaves_no_reference_cycles(pair: MemoryPair, ordering: Any, only_counted: None) -> None:
    options = PairedNamespaceOptions(backlog_queue_count=2, ordering=ordering)
    found = {}
    async with pair.client(options) as client:
        await client.administration.create_queue("sessions", requires_session=True)
        syphon = asyncio.create_task(client.run_syphon())
        async with client.get_queue_sender("sessions") as sender:
            for kind in KINDS:
                for name, where in (("primary", pair.primary), ("secondary", pair.secondary)):
                    for operation in (Operation.SEND, Operation.RECEIVE, Operation.PEEK, Operation.SETTLE):
                        client.pair.force_failover("sessions")
                        for number in range(4):
                            await sender.send_messages(ServiceBusMessage("x", session_id=f"{number % 2}"))
                        where.inject(Fault(kind, operations=[operation]))
                        await clock.sleep(600.0)
                        where.heal()
                        await clock.sleep(600.0)
                        if names := collected():
                            found[f"{operation.value}, {kind.value}, {name}"] = names
        syphon.cancel()
        with suppress(asyncio.CancelledError):
            await syphon
    assert found == {}
