"""Local transactions over AMQP: what is done in one happens at the commit, all of it, or never."""

from __future__ import annotations

import asyncio
import gc
from typing import Any
from uuid import UUID

import pytest

from sbclient.amqp import (
    ACCEPTED,
    RELEASED,
    Declared,
    DeliveryReceived,
    DispositionReceived,
    IncomingDelivery,
    Modified,
    Rejected,
    Source,
    Target,
    TransactionalState,
)
from sbclient.amqp.types import uuids
from sbclient.broker.faults import Fault, FaultKind, Operation
from sbclient.emulator.amqp.coordinator import MAX_OPEN
from sbclient.emulator.amqp.peer import DeclaredTransaction
from sbclient.emulator.context import NamespaceContext
from sbclient.entities import EntityKind
from sbclient.hosting.host import BrokerHost
from sbclient.message import ServiceBusMessage
from tests.emulator.amqp.client import Client, condition_of, connected, create
from tests.payloads import encode_sections


@pytest.fixture
async def queue(host: BrokerHost) -> str:
    create(host, EntityKind.QUEUE, "q")
    return "q"


def stored(context: NamespaceContext, path: str = "q") -> int:
    return len(context.host.namespace.queue(path))


async def begun(client: Client) -> tuple[Any, bytes]:
    """A control link, and a transaction declared on it."""
    coordinator = await client.coordinator()
    declared = await client.declare(coordinator)
    assert isinstance(declared, Declared)
    return coordinator, declared.txn_id


async def received(client: Client, path: str) -> IncomingDelivery:
    return (await client.event(DeliveryReceived, await client.receiver(path, credit=1))).delivery


async def test_commit_stores_sent_messages(context: NamespaceContext, queue: str) -> None:
    async with connected(context, queue) as client:
        coordinator, txn = await begun(client)
        link = await client.sender(queue)
        state = TransactionalState(txn)
        assert await client.send(link, ServiceBusMessage("a"), state=state) == TransactionalState(txn, ACCEPTED)
        batch = [ServiceBusMessage("b"), ServiceBusMessage("c")]
        assert await client.send(link, *batch, state=state) == TransactionalState(txn, ACCEPTED)
        assert stored(context) == 0
        assert await client.discharge(coordinator, txn) == ACCEPTED
        assert stored(context) == 3


async def test_a_connection_is_read_on_after_many_bytes_in_transactions(
    context: NamespaceContext, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sbclient.emulator.amqp.peer.MAX_WORK_BYTES", 10_000)
    async with connected(context, queue) as client:
        link = await client.sender(queue)
        for _ in range(2):
            coordinator, txn = await begun(client)
            for _ in range(10):
                await client.send(link, ServiceBusMessage(b"x" * 3_000), state=TransactionalState(txn))
            assert await client.discharge(coordinator, txn) == ACCEPTED
    assert stored(context) == 20


async def test_commit_applies_settlements(context: NamespaceContext, queue: str) -> None:
    async with connected(context, queue) as client:
        link = await client.sender(queue)
        await client.send(link, ServiceBusMessage("in"))
        delivery = await received(client, queue)
        coordinator, txn = await begun(client)
        await client.send(link, ServiceBusMessage("out"), state=TransactionalState(txn))
        state = TransactionalState(txn, ACCEPTED)
        assert await client.settle(delivery, state) == state
        assert stored(context) == 1
        assert await client.discharge(coordinator, txn) == ACCEPTED
        assert [str(each) for each in await left(context)] == ["out"]
        settled = await client.event(DispositionReceived, delivery)
        assert (settled.state, settled.settled) == (state, True)


async def left(context: NamespaceContext) -> Any:
    return [entry.received() for entry in await context.host.receive("q", max_message_count=10, max_wait_time_s=0)]


async def rolled_back_completion(client: Client, queue: str) -> IncomingDelivery:
    """Return a delivery that was completed in a transaction, which was rolled back."""
    await client.send(await client.sender(queue), ServiceBusMessage("in"))
    delivery = await received(client, queue)
    coordinator, txn = await begun(client)
    await client.settle(delivery, TransactionalState(txn, ACCEPTED))
    await client.discharge(coordinator, txn, fail=True)
    return delivery


async def test_a_rolled_back_completion_keeps_the_lock(context: NamespaceContext, queue: str) -> None:
    async with connected(context, queue) as client:
        delivery = await rolled_back_completion(client, queue)
        assert await left(context) == []
        request = {"disposition-status": "completed", "lock-tokens": uuids([UUID(bytes_le=delivery.tag)])}
        assert (await client.ask(queue, "update-disposition", request))[0] == 200
        assert stored(context) == 0


async def test_a_delivery_is_settled_on_its_link_after_a_rollback(context: NamespaceContext, queue: str) -> None:
    async with connected(context, queue) as client:
        delivery = await rolled_back_completion(client, queue)
        assert not delivery.is_settled
        assert await client.settle(delivery, ACCEPTED) == ACCEPTED
        assert stored(context) == 0


@pytest.mark.deviation("broker.transaction-settlement")
@pytest.mark.parametrize("outcome", [Modified(True, False), Modified(True, True), Rejected(None)])
async def test_every_settlement_waits_for_the_commit(
    context: NamespaceContext, queue: str, outcome: Modified | Rejected
) -> None:
    async with connected(context, queue) as client:
        await client.send(await client.sender(queue), ServiceBusMessage("in"))
        delivery = await received(client, queue)
        coordinator, txn = await begun(client)
        state = TransactionalState(txn, outcome)
        assert await client.settle(delivery, state) == state
        await asyncio.sleep(1)
        assert await left(context) == []
        assert stored(context) == 1
        assert await client.discharge(coordinator, txn) == ACCEPTED
        assert stored(context) == (0 if isinstance(outcome, Rejected) else 1)


async def test_a_release_cannot_be_part_of_a_transaction(context: NamespaceContext, queue: str) -> None:
    async with connected(context, queue) as client:
        await client.send(await client.sender(queue), ServiceBusMessage("in"))
        delivery = await received(client, queue)
        _, txn = await begun(client)
        answer = await client.settle(delivery, TransactionalState(txn, RELEASED))
        assert condition_of(answer) == "amqp:not-allowed"


async def test_pipelined_transfers_belong_to_the_commit_that_follows(context: NamespaceContext, queue: str) -> None:
    async with connected(context, queue) as client:
        coordinator, txn = await begun(client)
        link = await client.sender(queue)
        async with asyncio.TaskGroup() as group:
            for number in range(50):
                message = ServiceBusMessage(str(number))
                group.create_task(client.send(link, message, state=TransactionalState(txn)))
            committed = group.create_task(client.discharge(coordinator, txn))
        assert committed.result() == ACCEPTED
        assert stored(context) == 50


async def test_after_two_minutes_nothing_is_committed(context: NamespaceContext, queue: str) -> None:
    async with connected(context, queue) as client:
        coordinator, txn = await begun(client)
        await client.send(await client.sender(queue), ServiceBusMessage("x"), state=TransactionalState(txn))
        await asyncio.sleep(121)
        assert condition_of(await client.discharge(coordinator, txn)) == "amqp:transaction:rollback"
        assert stored(context) == 0


async def test_send_by_way_of_another_queue_in_one_transaction(context: NamespaceContext, queue: str) -> None:
    create(context.host, EntityKind.QUEUE, "other")
    async with connected(context, queue, "other") as client:
        await client.send(await client.sender(queue), ServiceBusMessage("in"))
        delivery = await received(client, queue)
        coordinator, txn = await begun(client)
        properties = {"com.microsoft:transfer-destination-address": "other"}
        via = await client.sender(queue, properties=properties)
        state = TransactionalState(txn)
        assert await client.send(via, ServiceBusMessage("out"), state=state) == TransactionalState(txn, ACCEPTED)
        await client.settle(delivery, TransactionalState(txn, ACCEPTED))
        assert stored(context, "other") == 0
        assert await client.discharge(coordinator, txn) == ACCEPTED
        assert await received(client, "other")
        assert stored(context) == 0


def spread(host: BrokerHost) -> None:
    """Make entities that a transaction can span."""
    create(host, EntityKind.QUEUE, "out")
    create(host, EntityKind.TOPIC, "t")
    create(host, EntityKind.SUBSCRIPTION, "t", "s")


@pytest.mark.deviation("broker.transaction-first-entity")
@pytest.mark.parametrize("is_failed", [False, True])
@pytest.mark.parametrize("first", ["q", "t/Subscriptions/s"])
async def test_a_session_that_begins_with_a_coordinator_spans_entities(
    context: NamespaceContext, queue: str, first: str, is_failed: bool
) -> None:
    spread(context.host)
    other = "t" if first == queue else queue
    async with connected(context, "") as client:
        await client.send(await client.sender(first.partition("/")[0]), ServiceBusMessage("in"))
        client.begin()
        coordinator, txn = await begun(client)
        assert await client.refusal(await client.sender("missing")) == "amqp:not-found"  # which is not the first
        delivery = await received(client, first)
        state = TransactionalState(txn)
        for path in ("out", other):
            sent = await client.send(await client.sender(path), ServiceBusMessage("x"), state=state)
            assert sent == TransactionalState(txn, ACCEPTED)
        await client.settle(delivery, TransactionalState(txn, ACCEPTED))
        assert stored(context, "out") == 0
        assert await client.discharge(coordinator, txn, fail=is_failed) == ACCEPTED
        await asyncio.sleep(0.1)
        reached = queue if other == queue else "t/Subscriptions/s"
        assert [stored(context, path) for path in ("out", reached, first)] == ([0, 0, 1] if is_failed else [1, 1, 0])


@pytest.mark.deviation("broker.transaction-send-claim")
async def test_sends_of_a_transaction_need_the_send_claim_of_the_first_entity(
    context: NamespaceContext, queue: str
) -> None:
    spread(context.host)
    async with connected(context, "out", "t/Subscriptions/s") as client:
        _, txn = await begun(client)
        await client.receiver("t/Subscriptions/s")
        link, state = await client.sender("out"), TransactionalState(txn)
        refused = await client.send(link, ServiceBusMessage("x"), state=state)
        assert condition_of(refused) == "amqp:unauthorized-access"
        assert await client.send(link, ServiceBusMessage("x")) == ACCEPTED
        assert await client.put_token("t") == 202
        assert await client.send(link, ServiceBusMessage("x"), state=state) == TransactionalState(txn, ACCEPTED)


async def test_a_receiver_of_a_second_entity_is_refused_on_that_session(context: NamespaceContext, queue: str) -> None:
    spread(context.host)
    async with connected(context, queue, "out") as client:
        await client.coordinator()
        await client.receiver(queue)
        await client.receiver(f"{queue}/$DeadLetterQueue")
        await client.sender("out")
        link = client.session.attach_receiver("refused", source=Source(address="out"))
        client.flush()
        assert await client.refusal(link) == "amqp:not-allowed"
        client.begin()
        await client.receiver("out")


@pytest.mark.deviation("broker.transaction-first-entity")
async def test_a_session_whose_first_link_is_no_coordinator_spans_nothing(
    context: NamespaceContext, queue: str
) -> None:
    spread(context.host)
    async with connected(context, queue, "out") as client:
        client.begin()
        await client.sender("out")
        _, txn = await begun(client)
        await client.receiver(queue)
        state = TransactionalState(txn)
        await client.send(await client.sender("out"), ServiceBusMessage("x"), state=state)
        refused = await client.send(await client.sender(queue), ServiceBusMessage("x"), state=state)
        assert condition_of(refused) == "amqp:not-allowed"


async def test_the_via_key_of_a_partitioned_entity_is_read_from_the_annotation(context: NamespaceContext) -> None:
    create(context.host, EntityKind.QUEUE, "p", enable_partitioning=True)
    create(context.host, EntityKind.QUEUE, "out")
    async with connected(context, "p", "out") as client:
        client.begin()
        coordinator, txn = await begun(client)
        await client.sender("p")
        link, state = await client.sender("out"), TransactionalState(txn)
        assert condition_of(await client.send(link, ServiceBusMessage("x"), state=state)) == "amqp:not-allowed"
        payload = encode_sections(message_annotations={"x-opt-via-partition-key": "k"}, data=[b"x"])
        assert await client.transfer(link, payload, state=state) == TransactionalState(txn, ACCEPTED)
        assert await client.discharge(coordinator, txn) == ACCEPTED
        client.begin()
        assert await received(client, "out")


async def test_other_requests_are_refused_in_a_transaction(context: NamespaceContext, queue: str) -> None:
    async with connected(context, queue) as client:
        _, txn = await begun(client)
        answer = await client.ask(queue, "get-session-state", {"session-id": "a"}, state=TransactionalState(txn))
        assert answer == (400, "amqp:not-allowed")


async def test_an_unknown_transaction_is_refused_everywhere(context: NamespaceContext, queue: str) -> None:
    unknown = "amqp:transaction:unknown-id"
    async with connected(context, queue) as client:
        link = await client.sender(queue)
        await client.send(link, ServiceBusMessage("x"))
        state = TransactionalState(b"unknown")
        assert condition_of(await client.send(link, ServiceBusMessage("x"), state=state)) == unknown
        delivery = await received(client, queue)
        assert condition_of(await client.settle(delivery, TransactionalState(b"unknown", ACCEPTED))) == unknown
        assert condition_of(await client.discharge(await client.coordinator(), b"unknown")) == unknown
        request = {"rule-name": "x"}
        assert await client.ask(queue, "remove-rule", request, state=state) == (404, unknown)


@pytest.mark.parametrize("fail", [False, True])
async def test_a_discharged_transaction_is_forgotten(context: NamespaceContext, queue: str, fail: bool) -> None:
    async with connected(context, queue) as client:
        coordinator, txn = await begun(client)
        await client.send(await client.sender(queue), ServiceBusMessage("a"), state=TransactionalState(txn))
        await client.discharge(coordinator, txn, fail=fail)
        gc.collect()
        assert [one for one in gc.get_objects() if type(one) is DeclaredTransaction] == []


@pytest.mark.parametrize("end", ["discharge", "fault", "detach", "detach at once", "session", "loss"])
async def test_what_a_transaction_did_is_undone_however_it_ends(
    context: NamespaceContext, queue: str, end: str
) -> None:
    """A message is available at once if its client cannot settle it again, else it stays locked."""
    async with connected(context, queue) as client:
        sender = await client.sender(queue)
        for body in ("locked", "available"):
            await client.send(sender, ServiceBusMessage(body))
        receiver = await client.receiver(queue, credit=2)
        first, second = [(await client.event(DeliveryReceived, receiver)).delivery for _ in range(2)]
        coordinator, txn = await begun(client)
        await client.settle(first, TransactionalState(txn, ACCEPTED))
        second.settle(TransactionalState(txn, ACCEPTED))
        if end == "detach at once":
            coordinator.detach()
        await client.send(sender, ServiceBusMessage("sent"), state=TransactionalState(txn))
        if end != "detach at once":
            assert await left(context) == []
        if end == "discharge":
            await client.discharge(coordinator, txn, fail=True)
        elif end == "fault":
            context.host.inject(Fault(FaultKind.ERROR, queue, operations=(Operation.TRANSACTION,), count=1))
            await client.discharge(coordinator, txn)
        elif end == "detach":
            coordinator.detach()
        elif end == "session":
            client.session.end()
        if end in ("discharge", "fault", "detach", "detach at once"):
            refused = await client.send(sender, ServiceBusMessage("y"), state=TransactionalState(txn))
            assert condition_of(refused) == "amqp:transaction:unknown-id"
        client.flush()
        await asyncio.sleep(1)
        if end != "loss":
            assert [(str(each), each.delivery_count) for each in await left(context)] == [("available", 1)]
    if end == "loss":
        assert [(str(each), each.delivery_count) for each in await left(context)] == [("available", 1)]
    assert stored(context) == 2


async def test_a_transaction_belongs_to_its_connection(context: NamespaceContext, queue: str) -> None:
    async with connected(context, queue) as client, connected(context, queue) as other:
        _, txn = await begun(client)
        refused = await other.send(await other.sender(queue), ServiceBusMessage("x"), state=TransactionalState(txn))
        assert condition_of(refused) == "amqp:transaction:unknown-id"


async def test_message_other_than_declare_or_discharge_is_rejected(context: NamespaceContext, queue: str) -> None:
    async with connected(context, queue) as client:
        coordinator = await client.coordinator()
        assert condition_of(await client.transfer(coordinator, encode_sections(value="x"))) == "amqp:decode-error"
        assert condition_of(await client.transfer(coordinator, encode_sections(value=ACCEPTED))) == "amqp:invalid-field"
        assert condition_of(await client.transfer(coordinator, encode_sections(data=[b""]))) == "amqp:invalid-field"
        assert isinstance(await client.declare(coordinator), Declared)


async def test_open_transactions_of_a_connection_are_bounded(context: NamespaceContext, queue: str) -> None:
    async with connected(context, queue) as client:
        coordinator = await client.coordinator()
        for _ in range(MAX_OPEN):
            assert isinstance(await client.declare(coordinator), Declared)
        assert condition_of(await client.declare(coordinator)) == "amqp:resource-limit-exceeded"


async def test_commit_during_a_fault_rolls_back(context: NamespaceContext, queue: str) -> None:
    async with connected(context, queue) as client:
        coordinator, txn = await begun(client)
        await client.send(await client.sender(queue), ServiceBusMessage("x"), state=TransactionalState(txn))
        context.host.inject(Fault(FaultKind.ERROR, queue, operations=(Operation.TRANSACTION,)))
        assert condition_of(await client.discharge(coordinator, txn)) == "amqp:transaction:rollback"
        assert stored(context) == 0
        assert condition_of(await client.discharge(coordinator, txn)) == "amqp:transaction:unknown-id"


async def test_a_transaction_can_be_declared_before_the_first_token(context: NamespaceContext, queue: str) -> None:
    async with connected(context) as client:
        coordinator, txn = await begun(client)
        refused = client.session.attach_sender("refused", target=Target(address=queue))
        client.flush()
        assert await client.refusal(refused) == "amqp:unauthorized-access"
        assert await client.put_token(queue) == 202
        await client.send(await client.sender(queue), ServiceBusMessage("x"), state=TransactionalState(txn))
        assert await client.discharge(coordinator, txn) == ACCEPTED
        assert stored(context) == 1
