from __future__ import annotations

import pytest

from sbclient import InvalidOperationError, ServiceBusMessage, TransactionNotSupportedError
from sbclient.client.transaction import Transaction
from tests.contract.kinds import NamespaceKind


async def bodies(kind: NamespaceKind, queue: str) -> list[str]:
    async with kind.plain.get_queue_receiver(queue) as receiver:
        return [str(message) for message in await receiver.peek_messages(50, sequence_number=1)]


async def test_messages_of_a_transaction_are_visible_after_its_commit(kind: NamespaceKind) -> None:
    queue = await kind.queue()
    async with kind.plain.get_queue_sender(queue) as sender:
        async with kind.plain.transaction() as transaction:
            await sender.send_messages(ServiceBusMessage("a"), transaction=transaction)
            await sender.send_messages([ServiceBusMessage("b"), ServiceBusMessage("c")], transaction=transaction)
            assert await bodies(kind, queue) == []
        assert await bodies(kind, queue) == ["a", "b", "c"]
        with pytest.raises(InvalidOperationError):
            await sender.send_messages(ServiceBusMessage("d"), transaction=transaction)


async def test_an_exception_undoes_the_transaction(kind: NamespaceKind) -> None:
    queue = await kind.queue()

    async def fail(transaction: Transaction) -> None:
        async with transaction:
            await sender.send_messages(ServiceBusMessage("a"), transaction=transaction)
            raise KeyError("something of the application's")

    async with kind.plain.get_queue_sender(queue) as sender:
        with pytest.raises(KeyError):
            await fail(kind.plain.transaction())
        await sender.send_messages(ServiceBusMessage("b"))
    assert await bodies(kind, queue) == ["b"]


@pytest.mark.needs("partitioning")
async def test_a_partitioned_entity_requires_one_key_per_transaction(kind: NamespaceKind) -> None:
    queue = await kind.queue(enable_partitioning=True)
    async with kind.plain.get_queue_sender(queue) as sender:
        async with kind.plain.transaction() as transaction:
            await sender.send_messages(ServiceBusMessage("a", partition_key="k"), transaction=transaction)
            with pytest.raises(InvalidOperationError):
                await sender.send_messages(ServiceBusMessage("b", partition_key="other"), transaction=transaction)
            with pytest.raises(InvalidOperationError):
                await sender.send_messages(ServiceBusMessage("c"), transaction=transaction)
        assert await bodies(kind, queue) == ["a"]


@pytest.mark.needs("sends-only transactions")
async def test_invalid_transactional_sends_are_rejected_before_sending(kind: NamespaceKind) -> None:
    source, target = await kind.queue(), await kind.queue()
    client = kind.plain
    async with client.get_queue_sender(source) as sender, client.get_queue_sender(target) as other:
        await sender.send_messages(ServiceBusMessage("x"))
        async with client.get_queue_receiver(source) as receiver:
            (message,) = await receiver.receive_messages(1, max_wait_time=kind.patience_s)
            transaction = client.transaction()
            async with transaction:
                await other.send_messages(ServiceBusMessage("y"), transaction=transaction)
                with pytest.raises(TransactionNotSupportedError):
                    await receiver.complete_message(message, transaction=transaction)
                with pytest.raises(TransactionNotSupportedError):
                    await sender.send_messages(ServiceBusMessage("z"), transaction=transaction)
                await transaction.rollback()
            await receiver.complete_message(message)
    assert (await bodies(kind, source), await bodies(kind, target)) == ([], [])
