"""The broker in this process behind the transport port: what the port promises and only this transport can break."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from random import Random
from time import thread_time
from typing import Any

import pytest

from sbclient import clock
from sbclient.broker.faults import Fault, FaultKind, Operation
from sbclient.broker.profile import PREM_2017, PREM_2021
from sbclient.delivery import NEXT_AVAILABLE_SESSION, ServiceBusReceiveMode, SessionChoice
from sbclient.entities import (
    EntityAddress,
    EntityKind,
    QueueProperties,
)
from sbclient.errors import (
    InvalidOperationError,
    MessagingEntityNotFoundError,
    ServiceBusConnectionError,
    SessionLockLostError,
)
from sbclient.hosting.host import BrokerHost
from sbclient.message import ServiceBusReceivedMessage
from sbclient.transport.base import ReceiverLink
from sbclient.transport.memory.transport import MemoryTransport, drop_memory_host, memory_host
from tests.broker.driver import ABANDON, COMPLETE, bodies, message
from tests.payloads import batch_of

QUEUE = EntityAddress(EntityKind.QUEUE, ("q",))
SESSIONS = EntityAddress(EntityKind.QUEUE, ("s",))
T = 10.0


@pytest.fixture
async def transport() -> AsyncIterator[MemoryTransport]:
    host = memory_host("test", random=Random(1))
    transport = MemoryTransport(host)
    await transport.administration.create(QUEUE, QueueProperties("q"))
    await transport.administration.create(SESSIONS, QueueProperties("s", requires_session=True))
    yield transport
    drop_memory_host("test")


async def send(transport: MemoryTransport, *names: str, path: str = "q", **attributes: Any) -> None:
    await transport.open_sender(path).send(batch_of([message(name, **attributes) for name in names]), timeout_s=T)


async def receive(link: ReceiverLink, count: int = 10, wait_s: float = 0.0) -> list[ServiceBusReceivedMessage]:
    return await link.receive(max_message_count=count, max_wait_time_s=wait_s)


@pytest.mark.parametrize(("path", "session"), [("s", "a"), ("s", NEXT_AVAILABLE_SESSION), ("q", None)])
async def test_what_comes_to_a_closed_receiver_is_free_at_once(
    transport: MemoryTransport, path: str, session: SessionChoice
) -> None:
    await send(transport, "1", path=path, session_id="a")
    transport.host.inject(Fault(FaultKind.SLOW, latency_s=5.0, count=1))
    late = transport.open_receiver(path, session=session)
    receiving = asyncio.create_task(receive(late, wait_s=T))
    await clock.sleep(1.0)
    await late.close()
    await asyncio.gather(receiving, return_exceptions=True)
    assert bodies(await receive(transport.open_receiver(path, session=session and "a"))) == ["1"]


async def test_a_send_that_waits_for_its_link_ends_with_its_sender(transport: MemoryTransport) -> None:
    transport.host.inject(Fault(FaultKind.HANG))
    sender = transport.open_sender("q", lambda *_: None)
    sending = [asyncio.ensure_future(sender.send(batch_of([message(name)]), timeout_s=T)) for name in "ab"]
    await clock.sleep(1.0)
    await sender.close()
    await asyncio.wait(sending)
    assert clock.monotonic() == 1.0
    transport.host.heal()
    await clock.sleep(T)
    assert await receive(transport.open_receiver("q")) == []


async def test_messages_through_a_partitioned_entity_need_the_key_of_their_transaction(
    transport: MemoryTransport,
) -> None:
    via = EntityAddress(EntityKind.QUEUE, ("via",))
    await transport.administration.create(via, QueueProperties("via", enable_partitioning=True))
    for key in ("k", "other"):
        across = MemoryTransport(transport.host, is_cross_entity=True)
        first, end = across.open_sender("via"), across.open_sender("q")
        await first.send(batch_of([message("0", partition_key="k")]), timeout_s=T)
        transaction = await across.begin_transaction(timeout_s=T, partition_key=key)
        await first.send(batch_of([message("1", partition_key="k")]), timeout_s=T, transaction=transaction)
        if key == "k":
            await end.send(batch_of([message("2")]), timeout_s=T, transaction=transaction)
            await transaction.commit(timeout_s=T)
        else:
            with pytest.raises(InvalidOperationError):
                await end.send(batch_of([message("3")]), timeout_s=T, transaction=transaction)
    assert bodies(await receive(transport.open_receiver("q"), wait_s=1.0)) == ["2"]


def test_a_namespace_is_found_by_its_name_in_any_case() -> None:
    host = memory_host("Found", profile="prem-2017")
    assert memory_host("memory://found/") is host
    assert host.namespace.profile is PREM_2017
    assert MemoryTransport(host).namespace == "memory://Found"
    drop_memory_host("FOUND")
    assert memory_host("found") is not host
    drop_memory_host("found")
    drop_memory_host("found")


async def test_sender_opens_at_first_use_and_reports_that_it_is_ready(transport: MemoryTransport) -> None:
    sender = transport.open_sender("q")
    assert not sender.is_open
    assert (await sender.limits(timeout_s=T)).max_message_size_bytes == 2**18
    assert sender.is_open
    before = transport.host.namespace.operation_count
    await sender.open(timeout_s=T)
    assert transport.host.namespace.operation_count == before
    transport.host.inject(Fault(FaultKind.DOWN, count=1))
    with pytest.raises(ServiceBusConnectionError):
        await sender.send(batch_of([message("a")]), timeout_s=T)
    assert not sender.is_open
    await sender.open(timeout_s=T)
    assert sender.is_open
    await sender.close()
    await sender.close()
    assert not sender.is_open
    with pytest.raises(InvalidOperationError):
        await sender.send(batch_of([message("a")]), timeout_s=T)


async def test_opening_proves_that_the_entity_exists(transport: MemoryTransport) -> None:
    with pytest.raises(MessagingEntityNotFoundError):
        await transport.open_sender("none").open(timeout_s=T)
    with pytest.raises(MessagingEntityNotFoundError):
        await transport.open_receiver("none").open(timeout_s=T)
    with pytest.raises(InvalidOperationError):
        await transport.open_receiver("s").open(timeout_s=T)
    with pytest.raises(InvalidOperationError):
        await transport.open_receiver("q", session="x").open(timeout_s=T)


async def test_a_transaction_of_another_transport_is_refused(transport: MemoryTransport) -> None:
    foreign: Any = object()
    with pytest.raises(InvalidOperationError):
        await transport.open_sender("q").send(batch_of([message("a")]), timeout_s=T, transaction=foreign)


async def test_message_received_and_deleted_cannot_be_settled(transport: MemoryTransport) -> None:
    receiver = transport.open_receiver("q", receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE, prefetch_count=5)
    await send(transport, "a", "b")
    (deleted,) = await receive(receiver, 1)
    with pytest.raises(InvalidOperationError):
        await receiver.settle(deleted, COMPLETE, timeout_s=T)
    with pytest.raises(InvalidOperationError):
        await receiver.renew_lock(deleted, timeout_s=T)
    await receiver.close()
    assert bodies(await receive(transport.open_receiver("q"))) == ["b"]


async def test_prefetched_messages_are_held_in_order_and_given_back_on_close(transport: MemoryTransport) -> None:
    receiver = transport.open_receiver("q", prefetch_count=2)
    await send(transport, "a", "b", "c", "d")
    (first,) = await receive(receiver, 1)
    other = transport.open_receiver("q")
    assert bodies(await receive(other)) == ["d"]
    await receiver.settle(first, ABANDON, timeout_s=T)
    assert bodies(await receive(receiver, 1)) == ["b"]
    await receiver.close()
    given_back = await receive(other)
    assert [(str(each), each.delivery_count) for each in given_back] == [("a", 1), ("c", 0)]


def test_a_receiver_in_another_event_loop_holds_the_locks_of_what_it_returns() -> None:
    host = memory_host("loops")
    transport = MemoryTransport(host)
    receiver = transport.open_receiver("q", prefetch_count=3)

    async def cycle(number: int) -> list[str]:
        transport.enter_loop()
        if not number:
            await transport.administration.create(QUEUE, QueueProperties("q"))
        await send(transport, *(f"{number}{letter}" for letter in "abcd"))
        (received,) = await receive(receiver, 1)
        await receiver.settle(received, COMPLETE, timeout_s=T)
        return bodies([received])

    assert [asyncio.run(cycle(number)) for number in range(4)] == [["0a"], ["0b"], ["0c"], ["0d"]]
    drop_memory_host("loops")


async def test_the_lock_of_a_prefetched_message_runs(transport: MemoryTransport) -> None:
    receiver = transport.open_receiver("q", prefetch_count=1)
    await send(transport, "a", "b")
    await receive(receiver, 1)
    await asyncio.sleep(60)
    assert sorted(bodies(await receive(transport.open_receiver("q")))) == ["a", "b"]


async def test_closing_a_session_s_link_lets_it_go_with_its_messages(transport: MemoryTransport) -> None:
    await send(transport, "a", path="s", session_id="x")
    receiver = transport.open_receiver("s", session="x")
    await receive(receiver)
    await receiver.close()
    await receiver.close()
    with pytest.raises(InvalidOperationError):
        await receive(receiver)
    again = transport.open_receiver("s", session="x")
    (held,) = await receive(again)
    assert held.delivery_count == 0
    await asyncio.sleep(60)
    with pytest.raises(SessionLockLostError):
        await again.settle(held, COMPLETE, timeout_s=T)


async def test_a_link_without_a_session_has_no_state(transport: MemoryTransport) -> None:
    with pytest.raises(InvalidOperationError):
        await transport.open_receiver("q").get_session_state(timeout_s=T)


async def test_messages_locked_by_a_lost_connection_are_redelivered(transport: MemoryTransport) -> None:
    await send(transport, "a")
    other = MemoryTransport(transport.host)
    await receive(other.open_receiver("q"))
    await other.close()
    await other.close()
    (again,) = await receive(transport.open_receiver("q"), wait_s=100)
    assert (str(again), again.delivery_count) == ("a", 1)
    for attempt in (
        lambda: other.begin_transaction(timeout_s=T),
        lambda: other.open_sender("q").open(timeout_s=T),
        lambda: receive(other.open_receiver("q")),
        lambda: other.open_receiver("s", session="x").open(timeout_s=T),
    ):
        with pytest.raises(InvalidOperationError):
            await attempt()


async def test_closing_a_connection_lets_go_what_no_call_has_returned(transport: MemoryTransport) -> None:
    other = MemoryTransport(transport.host)
    await other.open_receiver("s", session="x").open(timeout_s=T)
    await send(transport, "a", "b", "c")
    assert bodies(await receive(other.open_receiver("q", prefetch_count=5), 1)) == ["a"]
    await other.close()
    await transport.open_receiver("s", session="x").open(timeout_s=T)
    assert bodies(await receive(transport.open_receiver("q"))) == ["b", "c"]


async def test_a_fault_does_not_keep_a_closed_link_s_messages(transport: MemoryTransport) -> None:
    receiver = transport.open_receiver("q", prefetch_count=5)
    await send(transport, "a", "b")
    await receive(receiver, 1)
    fault = transport.host.inject(Fault(FaultKind.DOWN))
    await receiver.close()
    transport.host.heal(fault)
    assert bodies(await receive(transport.open_receiver("q"))) == ["b"]


async def test_an_operation_is_struck_by_its_own_fault_only(transport: MemoryTransport) -> None:
    await send(transport, "a")
    transport.host.inject(Fault(FaultKind.BUSY, "q", operations=[Operation.SETTLE]))
    receiver = transport.open_receiver("q")
    (held,) = await receive(receiver)
    with pytest.raises(Exception, match="throttled"):
        await receiver.settle(held, COMPLETE, timeout_s=T)


def test_a_sender_a_receiver_and_a_namespace_cost_well_under_a_millisecond() -> None:
    host = memory_host("cheap")
    names = iter(f"cheap{number}" for number in range(600))

    def cost_s(make: Any) -> float:
        taken = []
        for _ in range(3):  # one may wait for a collection of what other tests have left
            began_at = thread_time()
            for _ in range(200):
                make()
            taken.append(thread_time() - began_at)
        return min(taken) / 200

    transport = MemoryTransport(host)
    assert cost_s(lambda: transport.open_sender("q")) < 1e-3
    assert cost_s(lambda: transport.open_receiver("q")) < 1e-3
    assert cost_s(lambda: MemoryTransport(memory_host(next(names)))) < 1e-3
    for name in ("cheap", *(f"cheap{number}" for number in range(200))):
        drop_memory_host(name)


async def test_receive_from_a_hanging_entity_returns_nothing(transport: MemoryTransport) -> None:
    await send(transport, "a")
    transport.host.inject(Fault(FaultKind.HANG, "q"))
    assert await receive(transport.open_receiver("q"), wait_s=5) == []
    assert asyncio.get_running_loop().time() == 5


async def test_a_transaction_whose_connection_ends_does_nothing(transport: MemoryTransport) -> None:
    await send(transport, "a")
    other = MemoryTransport(transport.host)
    receiver = other.open_receiver("q")
    (held,) = await receive(receiver)
    transaction = await other.begin_transaction(timeout_s=T)
    await other.open_sender("q").send(batch_of([message("b")]), timeout_s=T, transaction=transaction)
    await receiver.settle(held, COMPLETE, timeout_s=T, transaction=transaction)
    await other.close()
    with pytest.raises(InvalidOperationError):
        await transaction.commit(timeout_s=T)
    assert bodies(await receive(transport.open_receiver("q"), wait_s=100)) == ["a"]


async def test_a_link_that_is_opened_again_knows_the_entity_of_now() -> None:
    transport = MemoryTransport(BrokerHost("premium", random=Random(1), profile=PREM_2021))
    await transport.administration.create(QUEUE, QueueProperties("q"))
    limits: list[int] = []
    sender = transport.open_sender("q", lambda _, known: limits.append(known.max_message_size_bytes))
    management = transport.administration
    for size in (2**20, 2**21, 2**22, 2**20):
        await sender.send(batch_of([message("a")]), timeout_s=T)
        await management.delete(QUEUE)
        with pytest.raises(MessagingEntityNotFoundError):
            await sender.send(batch_of([message("b")]), timeout_s=T)
        assert not sender.is_open
        await management.create(QUEUE, QueueProperties("q", max_message_size_in_kilobytes=size // 1024))
        assert (await sender.limits(timeout_s=T)).max_message_size_bytes == size
        await sender.send(batch_of([message("c")]), timeout_s=T)
        assert limits.pop() == size
        assert sender.known_limits == await sender.limits(timeout_s=T)
