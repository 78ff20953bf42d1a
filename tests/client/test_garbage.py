"""Failed operations leave no reference cycles: in an outage thousands fail, each with its message."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from types import TracebackType

import pytest

from sbclient import clock
from sbclient.client.receiver import ServiceBusReceiver
from sbclient.client.sender import ServiceBusSender
from sbclient.errors import ServiceBusError
from sbclient.message import ServiceBusMessage
from sbclient.options import PairedNamespaceOptions
from sbclient.testing import Fault, FaultKind, memory_pair


@pytest.fixture
def only_counted() -> Iterator[None]:
    """Disable the garbage collector during a test; garbage from before does not count."""
    gc.collect()
    gc.freeze()
    gc.disable()
    yield
    gc.enable()
    gc.unfreeze()


def left_behind() -> list[str]:
    """The frames that failures still hold, by name."""
    return [
        f"{trace.tb_frame.f_code.co_qualname}:{trace.tb_lineno}"
        for trace in gc.get_objects()
        if isinstance(trace, TracebackType)
    ]


async def fail(sender: ServiceBusSender, receiver: ServiceBusReceiver) -> None:
    for what in (
        lambda: sender.send_messages(ServiceBusMessage("x"), timeout=30),
        lambda: sender.send_messages([ServiceBusMessage("x"), ServiceBusMessage("y")], timeout=30),
        lambda: receiver.receive_messages(max_wait_time=5),
    ):
        with suppress(ServiceBusError):
            await what()


async def check_failures_leave_nothing(sender: ServiceBusSender, receiver: ServiceBusReceiver) -> None:
    """Check that further failures hold no more frames than the first ones."""
    await fail(sender, receiver)
    before = len(left_behind())
    for _ in range(5):
        await fail(sender, receiver)
    assert len(left_behind()) <= before, left_behind()


@pytest.mark.parametrize("kind", [FaultKind.DOWN, FaultKind.HANG, FaultKind.BUSY], ids=lambda kind: kind.value)
async def test_failed_operations_leave_no_reference_cycles(kind: FaultKind, only_counted: None) -> None:
    pair = memory_pair(seed=1)
    async with pair.client(PairedNamespaceOptions(failover_interval=timedelta(hours=1))) as client:
        await client.administration.create_queue("orders")
        async with client.get_queue_sender("orders") as sender, client.get_queue_receiver("orders") as receiver:
            await sender.send_messages(ServiceBusMessage("first"))
            pair.primary.inject(Fault(kind))
            await check_failures_leave_nothing(sender, receiver)


@pytest.mark.parametrize("kind", [FaultKind.DOWN, FaultKind.BUSY], ids=lambda kind: kind.value)
async def test_failed_diversions_leave_no_reference_cycles(kind: FaultKind, only_counted: None) -> None:
    pair = memory_pair(seed=1)
    async with pair.client(PairedNamespaceOptions(backlog_queue_count=2)) as client:
        await client.administration.create_queue("orders")
        async with client.get_queue_sender("orders") as sender, client.get_queue_receiver("orders") as receiver:
            client.pair.force_failover("orders")
            await sender.send_messages(ServiceBusMessage("first"))
            pair.secondary.inject(Fault(kind))  # the link of a busy queue stays attached
            await check_failures_leave_nothing(sender, receiver)


async def test_a_syphon_with_a_rejecting_destination_leaves_no_reference_cycles(only_counted: None) -> None:
    pair = memory_pair(seed=1)
    options = PairedNamespaceOptions(backlog_queue_count=2, ordering="session")
    async with pair.client(options) as client:
        await client.administration.create_queue("orders", requires_session=True)
        async with client.get_queue_sender("orders") as sender:
            client.pair.force_failover("orders")
            for number in range(20):
                await sender.send_messages(ServiceBusMessage(f"{number}", session_id=f"{number % 4}"))
        pair.primary.inject(Fault(FaultKind.DOWN))
        syphon = asyncio.create_task(client.run_syphon())
        await clock.sleep(600)
        before = len(left_behind())
        await clock.sleep(3600)
        after = left_behind()
        syphon.cancel()
        with suppress(asyncio.CancelledError):
            await syphon
    assert len(after) <= 2 * before + 20, after
