"""Transactions: all or nothing, one key on partitioned entities, no diversion."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from random import Random
from typing import Any, Final

import pytest

from sbclient import clock
from sbclient.broker.faults import Operation
from sbclient.client.client import ServiceBusClient
from sbclient.client.transaction import Transaction, TransactionState
from sbclient.entities import EntityAddress, EntityProperties
from sbclient.errors import (
    InvalidOperationError,
    MessageAlreadySettled,
    OperationTimeoutError,
    ServiceBusAuthorizationError,
    ServiceBusConnectionError,
    ServiceBusInternalError,
    TransactionNotSupportedError,
)
from sbclient.message import ServiceBusMessage
from sbclient.rules.failover import FailoverState
from sbclient.rules.transaction_key import MAX_OPERATIONS
from sbclient.testing import Fault, FaultKind, MemoryPair
from sbclient.transport.memory.administration import MemoryAdministration
from sbclient.transport.memory.sender import MemorySender
from sbclient.transport.memory.transport import MemoryTransport
from tests.client.scene import AT_ONCE, QUEUE, diverted, make_queue, taken, texts


def keyed(text: str, key: str | None = None) -> ServiceBusMessage:
    return ServiceBusMessage(text, partition_key=key)


async def test_sends_and_settlements_happen_together(pair: MemoryPair, client: ServiceBusClient) -> None:
    async with client.get_queue_sender(QUEUE) as sender, client.get_queue_receiver(QUEUE) as receiver:
        await sender.send_messages(ServiceBusMessage("old"))
        (old,) = await receiver.receive_messages()
        async with client.transaction() as transaction:
            await sender.send_messages(ServiceBusMessage("new"), transaction=transaction)
            await receiver.complete_message(old, transaction=transaction)
            async with client.get_queue_receiver(QUEUE) as other:
                assert await other.receive_messages(max_wait_time=1) == []
        assert transaction.state is TransactionState.COMMITTED
        with pytest.raises(MessageAlreadySettled):
            await receiver.complete_message(old)
    assert texts(await taken(pair)) == ["new"]


async def test_an_exception_in_the_block_undoes_everything(pair: MemoryPair, client: ServiceBusClient) -> None:
    async with client.get_queue_sender(QUEUE) as sender, client.get_queue_receiver(QUEUE) as receiver:
        await sender.send_messages(ServiceBusMessage("old"))
        (old,) = await receiver.receive_messages()
        with pytest.raises(KeyError):  # noqa: PT012  # the block is the point
            async with client.transaction() as transaction:
                await sender.send_messages(ServiceBusMessage("new"), transaction=transaction)
                await receiver.complete_message(old, transaction=transaction)
                raise KeyError("stop")
        assert transaction.state is TransactionState.ROLLED_BACK
        assert not old.is_settled
        await receiver.abandon_message(old)
    assert texts(await taken(pair)) == ["old"]


async def test_a_transaction_can_be_committed_and_rolled_back_explicitly(
    pair: MemoryPair, client: ServiceBusClient
) -> None:
    async with client.get_queue_sender(QUEUE) as sender:
        one, other = client.transaction(), client.transaction()
        await sender.send_messages(ServiceBusMessage("1"), transaction=one)
        await sender.send_messages(ServiceBusMessage("2"), transaction=other)
        for ends in (one.commit(timeout=0), other.rollback(timeout=-1)):
            with pytest.raises(InvalidOperationError, match="timeout"):
                await ends
        await one.commit(timeout=5)
        await other.rollback(timeout=5)
        for transaction in (one, other):
            for use in (
                transaction.commit(),
                transaction.rollback(),
                sender.send_messages(ServiceBusMessage("3"), transaction=transaction),
            ):
                with pytest.raises(InvalidOperationError):
                    await use
    assert texts(await taken(pair)) == ["1"]


async def test_a_block_that_has_committed_does_not_commit_again(pair: MemoryPair, client: ServiceBusClient) -> None:
    async with client.get_queue_sender(QUEUE) as sender, client.transaction() as transaction:
        await sender.send_messages(ServiceBusMessage("1"), transaction=transaction)
        await transaction.commit()
    assert texts(await taken(pair)) == ["1"]


async def test_operations_after_two_minutes_are_rejected_before_sending(
    pair: MemoryPair, client: ServiceBusClient
) -> None:
    async with client.get_queue_sender(QUEUE) as sender:
        transaction = client.transaction()
        await sender.send_messages(ServiceBusMessage("1"), transaction=transaction)
        await clock.sleep(120.0)
        before = pair.primary.namespace.operation_count
        with pytest.raises(InvalidOperationError, match="older than 120 s"):
            await sender.send_messages(ServiceBusMessage("2"), transaction=transaction)
        assert pair.primary.namespace.operation_count == before
        with pytest.raises(InvalidOperationError):
            await transaction.commit()
    assert await taken(pair) == []


async def test_two_minutes_count_from_the_first_operation(pair: MemoryPair, client: ServiceBusClient) -> None:
    async with client.get_queue_sender(QUEUE) as sender, client.transaction() as transaction:
        await clock.sleep(150.0)
        await sender.send_messages(ServiceBusMessage("1"), transaction=transaction)
        await clock.sleep(100.0)
        await sender.send_messages(ServiceBusMessage("2"), transaction=transaction)
    assert texts(await taken(pair)) == ["1", "2"]
    async with client.get_queue_sender(QUEUE) as sender:
        transaction = client.transaction()
        for _ in range(2):
            await sender.send_messages(ServiceBusMessage("3"), transaction=transaction)
            await clock.sleep(60.0)
        with pytest.raises(InvalidOperationError, match="older than 120 s"):
            await sender.send_messages(ServiceBusMessage("4"), transaction=transaction)


# -- keys --------------------------------------------------------------------------------------------------------------


@pytest.mark.deviation("client.early-rejections")
@pytest.mark.parametrize("partitioned", [None, True])
async def test_a_partitioned_entity_requires_one_key_in_a_transaction(
    pair: MemoryPair, client: ServiceBusClient, partitioned: bool | None
) -> None:
    await make_queue(pair, "wide", enable_partitioning=True)
    async with client.get_queue_sender("Wide", partitioned=partitioned) as sender, client.transaction() as transaction:
        with pytest.raises(InvalidOperationError):
            await sender.send_messages(keyed("none"), transaction=transaction)
        await sender.send_messages(keyed("1", "k"), transaction=transaction)
        before = pair.primary.namespace.operation_count
        with pytest.raises(InvalidOperationError, match="'other'"):
            await sender.send_messages(keyed("other", "other"), transaction=transaction)
        assert pair.primary.namespace.operation_count == before
        await sender.send_messages([keyed("2", "k"), keyed("3", "k")], transaction=transaction)
    assert texts(await taken(pair, "wide")) == ["1", "2", "3"]


async def test_a_session_id_is_the_key_of_a_transaction_too(pair: MemoryPair, client: ServiceBusClient) -> None:
    await make_queue(pair, "wide", enable_partitioning=True)
    async with client.get_queue_sender("wide") as sender, client.transaction() as transaction:
        await sender.send_messages(ServiceBusMessage("1", session_id="a"), transaction=transaction)
        asked = pair.primary.namespace.operation_count
        for other in (ServiceBusMessage("2", session_id="b"), keyed("2", "b")):
            with pytest.raises(InvalidOperationError, match="'b'"):
                await sender.send_messages(other, transaction=transaction)
        assert pair.primary.namespace.operation_count == asked
        await sender.send_messages(keyed("2", "a"), transaction=transaction)
    assert texts(await taken(pair, "wide")) == ["1", "2"]


async def test_a_rejected_send_does_not_set_the_key_of_a_transaction(
    pair: MemoryPair, client: ServiceBusClient
) -> None:
    await make_queue(pair, "wide", enable_partitioning=True)
    async with client.get_queue_sender("wide") as sender, client.transaction() as transaction:
        await sender.create_message_batch()
        pair.primary.inject(Fault(FaultKind.ERROR, operations=[Operation.SEND], count=1))
        with pytest.raises(ServiceBusInternalError):
            await sender.send_messages(keyed("1", "k"), transaction=transaction)
        await sender.send_messages(keyed("2", "other"), transaction=transaction)
    assert texts(await taken(pair, "wide")) == ["2"]


async def test_a_plain_entity_allows_several_keys_in_a_transaction(pair: MemoryPair, client: ServiceBusClient) -> None:
    async with client.get_queue_sender(QUEUE) as sender, client.transaction() as transaction:
        await sender.send_messages(keyed("1"), transaction=transaction)
        await sender.send_messages(keyed("2", "a"), transaction=transaction)
        await sender.send_messages(keyed("3", "b"), transaction=transaction)
    assert texts(await taken(pair)) == ["1", "2", "3"]


async def test_concurrent_first_sends_look_up_the_entity_once(pair: MemoryPair, client: ServiceBusClient) -> None:
    async with client.get_queue_sender(QUEUE) as sender, client.transaction() as transaction:
        sends = (sender.send_messages(keyed(text), transaction=transaction) for text in "ab")
        assert await asyncio.gather(*sends, return_exceptions=True) == [None, None]
    assert len(await taken(pair)) == 2


LOOK_UPS: Final = [
    (None, 1),
    (Fault(FaultKind.ERROR, operations=[Operation.MANAGE], error=ServiceBusAuthorizationError), 1),
    (Fault(FaultKind.ERROR, operations=[Operation.MANAGE], count=2), 3),
]
"""A fault of the look-ups of an entity, and how many a sender makes."""


@pytest.mark.parametrize(("fault", "look_ups"), LOOK_UPS, ids=["answered", "no right", "transient"])
@pytest.mark.parametrize("kind", ["queue", "topic"])
async def test_a_sender_looks_an_entity_up_until_it_knows_and_then_refuses_before_sending(
    pair: MemoryPair, client: ServiceBusClient, fault: Fault | None, look_ups: int, kind: str
) -> None:
    create, sender_of = (
        (client.administration.create_queue, client.get_queue_sender)
        if kind == "queue"
        else (client.administration.create_topic, client.get_topic_sender)
    )
    await create("plain")
    await create("wide", enable_partitioning=True)
    await create("unique", enable_partitioning=True, requires_duplicate_detection=True)
    get, asked = MemoryAdministration.get, list[str]()

    async def noted(administration: MemoryAdministration, address: EntityAddress) -> EntityProperties:
        asked.append(address.names[0])
        return await get(administration, address)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryAdministration, "get", noted)
        for name in ("plain", "wide", "unique"):
            if fault is not None:
                pair.primary.inject(replace(fault))  # its count begins anew
            async with sender_of(name) as sender:
                for _ in range(4):  # concurrent calls ask once, and no later transaction asks again
                    before, transaction = pair.primary.namespace.operation_count, client.transaction()
                    messages = [ServiceBusMessage("1", message_id="1"), ServiceBusMessage("2", message_id="1")]
                    sends = (sender.send_messages(message, transaction=transaction) for message in messages)
                    outcomes = await asyncio.gather(*sends, return_exceptions=True)
                    await transaction.rollback()
            is_refused = name == "wide" or (fault is not None and fault.count is None)
            assert [isinstance(outcome, InvalidOperationError) for outcome in outcomes] == [is_refused] * 2
            assert pair.primary.namespace.operation_count - before == (0 if is_refused else 2)
            assert asked.count(name) == look_ups
            pair.primary.heal()


async def test_a_send_in_a_transaction_ends_by_its_timeout_whenever_it_begins(
    pair: MemoryPair, client: ServiceBusClient
) -> None:
    async with client.get_queue_sender(QUEUE, partitioned=False) as sender:
        for operation in (Operation.SEND, Operation.TRANSACTION):
            await clock.sleep(1000.0)
            hanging = pair.primary.inject(Fault(FaultKind.HANG, operations=[operation]))
            began_at, transaction = clock.monotonic(), client.transaction()
            with pytest.raises(OperationTimeoutError):
                await sender.send_messages(ServiceBusMessage("x"), transaction=transaction, timeout=20)
            assert clock.monotonic() - began_at == pytest.approx(20.0 if operation is Operation.SEND else 60.0, abs=1)
            pair.primary.heal(hanging)
    assert await taken(pair) == []


async def test_sends_in_transactions_of_the_secondary_share_one_link(pair: MemoryPair) -> None:
    await make_queue(pair, secondary=True)
    open_sender, opened = MemoryTransport.open_sender, list[str]()

    def noted(transport: MemoryTransport, path: str, *args: Any) -> MemorySender:
        opened.append(transport.namespace)
        return open_sender(transport, path, *args)

    with pytest.MonkeyPatch.context() as patch:
        async with pair.client() as client, client.get_queue_sender(QUEUE) as sender:
            patch.setattr(MemoryTransport, "open_sender", noted)
            for number in range(3):
                async with client.transaction(namespace="secondary") as transaction:
                    await sender.send_messages(ServiceBusMessage(str(number)), transaction=transaction)
    assert opened == ["memory://contoso-backup"]
    assert texts(await taken(pair, secondary=True)) == ["0", "1", "2"]


async def test_without_the_manage_right_an_entity_counts_as_partitioned(
    pair: MemoryPair, client: ServiceBusClient
) -> None:
    pair.primary.inject(Fault(FaultKind.ERROR, operations=[Operation.MANAGE], error=ServiceBusAuthorizationError))
    async with client.transaction() as transaction:
        async with client.get_queue_sender(QUEUE) as sender:
            for _ in range(2):
                with pytest.raises(InvalidOperationError):
                    await sender.send_messages(keyed("1"), transaction=transaction)
        async with client.get_queue_sender(QUEUE, partitioned=False) as sender:
            await sender.send_messages(keyed("2"), transaction=transaction)
    pair.primary.heal()
    assert texts(await taken(pair)) == ["2"]


async def test_a_failed_look_up_of_the_entity_is_repeated(pair: MemoryPair, client: ServiceBusClient) -> None:
    pair.primary.inject(Fault(FaultKind.ERROR, operations=[Operation.MANAGE], count=1))
    async with client.get_queue_sender(QUEUE) as sender, client.transaction() as transaction:
        with pytest.raises(InvalidOperationError):
            await sender.send_messages(keyed("1"), transaction=transaction)
        await sender.send_messages(keyed("2"), transaction=transaction)
    assert texts(await taken(pair)) == ["2"]


async def test_the_key_of_a_session_entity_is_the_session_id(pair: MemoryPair, client: ServiceBusClient) -> None:
    await make_queue(pair, "visits", requires_session=True, enable_partitioning=True)
    async with client.get_queue_sender("visits") as sender, client.transaction() as transaction:
        with pytest.raises(InvalidOperationError):
            await sender.send_messages(keyed("1", "s"), transaction=transaction)
        await sender.send_messages(ServiceBusMessage("2", session_id="s"), transaction=transaction)
    assert texts(await taken(pair, "visits")) == ["2"]


# -- outages -----------------------------------------------------------------------------------------------------------


@pytest.mark.deviation("pairing.transactions")
async def test_a_transaction_open_at_failover_raises(pair: MemoryPair, client: ServiceBusClient) -> None:
    async with client.get_queue_sender(QUEUE) as sender:
        with pytest.raises(TransactionNotSupportedError):  # noqa: PT012  # the block is the point
            async with client.transaction() as transaction:
                await sender.send_messages(ServiceBusMessage("1"), transaction=transaction)
                client.pair.force_failover(QUEUE)
                await sender.send_messages(ServiceBusMessage("2"), transaction=transaction)
        with pytest.raises(TransactionNotSupportedError):  # the block is the point
            async with client.transaction() as transaction:
                await sender.schedule_messages(
                    ServiceBusMessage("3"), datetime.fromtimestamp(clock.now(), UTC), transaction=transaction
                )
    assert await taken(pair) == []
    assert await diverted(pair) == []


@pytest.mark.deviation("pairing.transactions")
async def test_a_failed_send_in_a_transaction_is_not_retried_or_diverted(pair: MemoryPair) -> None:
    async with pair.client(AT_ONCE) as client, client.get_queue_sender(QUEUE, partitioned=False) as sender:
        with pytest.raises(ServiceBusConnectionError):  # noqa: PT012  # the block is the point
            async with client.transaction() as transaction:
                pair.primary.inject(Fault(FaultKind.DOWN))
                await sender.send_messages(ServiceBusMessage("1"), transaction=transaction)
        assert clock.monotonic() == 0.0
        assert client.pair.status().entities[QUEUE].state is FailoverState.FAILED_OVER
    pair.primary.heal()
    assert await taken(pair) == []
    assert await diverted(pair) == []


async def test_a_success_in_a_transaction_cancels_the_failover_deadline(
    pair: MemoryPair, client: ServiceBusClient
) -> None:
    async with client.get_queue_sender(QUEUE) as sender:
        pair.primary.inject(Fault(FaultKind.DOWN, operations=[Operation.OPEN]))
        with pytest.raises(ServiceBusConnectionError):
            await sender.send_messages(ServiceBusMessage("1"))
        pair.primary.heal()
        async with client.transaction() as transaction:
            await sender.send_messages(ServiceBusMessage("2"), transaction=transaction)
        assert client.pair.status().entities[QUEUE].state is FailoverState.HEALTHY


async def test_a_failed_commit_undoes_sends_and_settlements(pair: MemoryPair, client: ServiceBusClient) -> None:
    async with client.get_queue_sender(QUEUE) as sender, client.get_queue_receiver(QUEUE) as receiver:
        await sender.send_messages(ServiceBusMessage("old"))
        (old,) = await receiver.receive_messages()
        with pytest.raises(ServiceBusConnectionError):  # noqa: PT012  # the block is the point
            async with client.transaction() as transaction:
                await sender.send_messages(ServiceBusMessage("new"), transaction=transaction)
                await receiver.complete_message(old, transaction=transaction)
                pair.primary.inject(Fault(FaultKind.DOWN))
        pair.primary.heal()
        assert transaction.state is TransactionState.ROLLED_BACK
        await receiver.abandon_message(old)
    assert texts(await taken(pair)) == ["old"]


async def test_a_commit_without_an_answer_is_in_doubt(pair: MemoryPair, client: ServiceBusClient) -> None:
    async with client.get_queue_sender(QUEUE) as sender:
        with pytest.raises(OperationTimeoutError):  # noqa: PT012  # the block is the point
            async with client.transaction() as transaction:
                await sender.send_messages(ServiceBusMessage("new"), transaction=transaction)
                pair.primary.inject(Fault(FaultKind.LOSE_ACKNOWLEDGEMENT, operations=[Operation.TRANSACTION]))
    pair.primary.heal()
    assert texts(await taken(pair)) == ["new"]


async def test_a_cancelled_commit_ends_the_transaction(pair: MemoryPair, client: ServiceBusClient) -> None:
    async with client.get_queue_sender(QUEUE) as sender, client.get_queue_receiver(QUEUE) as receiver:
        await sender.send_messages(ServiceBusMessage("old"))
        (old,) = await receiver.receive_messages()
        transaction = client.transaction()
        await receiver.complete_message(old, transaction=transaction)
        pair.primary.inject(Fault(FaultKind.HANG, operations=[Operation.TRANSACTION]))
        commit = asyncio.ensure_future(transaction.commit())
        await clock.sleep(1.0)
        commit.cancel()
        with pytest.raises(asyncio.CancelledError):
            await commit
        assert transaction.state is TransactionState.ROLLED_BACK
        assert not old.is_settled
        await receiver.complete_message(old)
    pair.primary.heal()
    assert await taken(pair) == []


async def test_a_transaction_takes_what_the_service_allows_whatever_failed_before(
    pair: MemoryPair, client: ServiceBusClient
) -> None:
    random, sent = Random(1), 0
    async with client.get_queue_sender(QUEUE) as sender:
        transaction = client.transaction()
        while sent < MAX_OPERATIONS:
            messages = [ServiceBusMessage("x") for _ in range(random.randrange(1, MAX_OPERATIONS - sent + 1))]
            for _ in range(random.randrange(4)):
                kind = random.choice([FaultKind.DOWN, FaultKind.HANG])
                pair.primary.inject(Fault(kind, operations=[Operation.SEND], count=1))
                sending = asyncio.create_task(sender.send_messages(messages, transaction=transaction))
                if kind is FaultKind.HANG:
                    await clock.sleep(0.1)
                    sending.cancel()
                with pytest.raises((ServiceBusConnectionError, asyncio.CancelledError)):
                    await sending
            await sender.send_messages(messages, transaction=transaction)
            sent += len(messages)
            asked = pair.primary.namespace.operation_count
            too_many = [ServiceBusMessage("x") for _ in range(MAX_OPERATIONS - sent + 1)]
            with pytest.raises(InvalidOperationError, match=f"{len(too_many)} more exceed the 100"):
                await sender.send_messages(too_many, transaction=transaction)
            assert pair.primary.namespace.operation_count == asked
        await transaction.commit()
    assert len(await taken(pair)) == MAX_OPERATIONS


async def test_messages_of_a_rollback_that_fails_can_be_settled_again(
    pair: MemoryPair, client: ServiceBusClient
) -> None:
    async with client.get_queue_sender(QUEUE) as sender, client.get_queue_receiver(QUEUE) as receiver:
        await sender.send_messages(ServiceBusMessage("x"))
        (message,) = await receiver.receive_messages()
        transaction = client.transaction()
        await receiver.complete_message(message, transaction=transaction)
        pair.primary.inject(Fault(FaultKind.DOWN, count=1))
        with pytest.raises(ServiceBusConnectionError):
            await transaction.rollback()
        assert (transaction.state, message.is_settled) == (TransactionState.ROLLED_BACK, False)
        with pytest.raises(InvalidOperationError):
            await receiver.complete_message(message, transaction=transaction)


async def test_a_rollback_that_fails_is_a_note_on_the_error_that_caused_it(
    pair: MemoryPair, client: ServiceBusClient
) -> None:
    with pytest.raises(KeyError) as caught:  # noqa: PT012  # the block is the point
        async with client.transaction():
            pair.primary.inject(Fault(FaultKind.DOWN))
            raise KeyError("stop")
    assert "rollback failed" in caught.value.__notes__[0]


async def test_a_transaction_can_be_begun_again_after_an_error(pair: MemoryPair, client: ServiceBusClient) -> None:
    pair.primary.inject(Fault(FaultKind.DOWN, count=1))
    transaction = client.transaction()
    with pytest.raises(ServiceBusConnectionError):
        await transaction.link()
    assert transaction.state is TransactionState.NEW
    async with transaction:
        pass


async def test_concurrent_first_uses_begin_one_transaction(pair: MemoryPair, client: ServiceBusClient) -> None:
    transaction = client.transaction()
    links = await asyncio.gather(*(transaction.link() for _ in range(5)))
    assert len({id(link) for link in links}) == 1
    await transaction.rollback()


async def test_transactions_end_with_their_client(pair: MemoryPair) -> None:
    async with pair.client() as client:
        transaction: Transaction = client.transaction()
        await transaction.link()
    with pytest.raises(InvalidOperationError):
        await transaction.commit()
    assert transaction.state is TransactionState.ACTIVE
