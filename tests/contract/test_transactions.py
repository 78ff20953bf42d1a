from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from sbclient import (
    InvalidOperationError,
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusReceiver,
    ServiceBusSubQueue,
    TransactionNotSupportedError,
    clock,
)
from sbclient.administration import CorrelationRuleFilter, SqlRuleAction, SqlRuleFilter
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


@pytest.mark.needs("full transactions")
async def test_scheduling_is_part_of_a_transaction(kind: NamespaceKind) -> None:
    queue = await kind.queue()
    later = datetime.fromtimestamp(clock.now(), UTC) + timedelta(hours=1)
    async with kind.plain.get_queue_sender(queue) as sender:
        for text, is_committed in (("a", False), ("b", True)):
            transaction = kind.plain.transaction()
            (number,) = await sender.schedule_messages(ServiceBusMessage(text), later, transaction=transaction)
            assert await bodies(kind, queue) == []
            await (transaction.commit() if is_committed else transaction.rollback())
        assert await bodies(kind, queue) == ["b"]
        await sender.cancel_scheduled_messages(number)


@pytest.mark.needs("full transactions")
async def test_a_transaction_has_at_most_100_operations(kind: NamespaceKind) -> None:
    queue = await kind.queue()
    async with kind.plain.get_queue_sender(queue) as sender, kind.plain.transaction() as transaction:
        await sender.send_messages([ServiceBusMessage("a")] * 99, transaction=transaction)
        with pytest.raises(InvalidOperationError):
            await sender.send_messages([ServiceBusMessage("b")] * 2, transaction=transaction)
        await sender.send_messages(ServiceBusMessage("c"), transaction=transaction)
    async with kind.plain.get_queue_receiver(queue) as receiver:
        assert len(await receiver.peek_messages(200, sequence_number=1)) == 100


class Spread:
    """A queue or subscription to receive from, and two entities to send to, on a client for several entities."""

    def __init__(self, kind: NamespaceKind) -> None:
        self.kind = kind
        self.client: ServiceBusClient = kind.client(enable_cross_entity_transactions=True)

    async def make(self, *, from_subscription: bool, is_partitioned: bool) -> None:
        self.topic = await self.kind.topic("s", "t", enable_partitioning=is_partitioned)
        self.queue = await self.kind.queue(enable_partitioning=is_partitioned)
        self.from_subscription = from_subscription

    def receiver(self, client: ServiceBusClient) -> ServiceBusReceiver:
        if self.from_subscription:
            return client.get_subscription_receiver(self.topic, "s")
        return client.get_queue_receiver(self.queue)

    async def put(self, text: str, key: str) -> None:
        """Send a message to the entity that is received from."""
        client = self.kind.plain
        sender = client.get_topic_sender(self.topic) if self.from_subscription else client.get_queue_sender(self.queue)
        async with sender:
            await sender.send_messages(ServiceBusMessage(text, partition_key=key))

    async def left(self) -> list[str]:
        """The bodies that the entity still has."""
        async with self.receiver(self.kind.plain) as receiver:
            return [str(message) for message in await receiver.peek_messages(50, sequence_number=1)]

    async def reached(self, *queues: str) -> list[str]:
        """Receive and complete one message of each queue, and return their bodies."""
        found = []
        for queue in queues:
            async with self.kind.plain.get_queue_receiver(queue) as receiver:
                for message in await receiver.receive_messages(1, max_wait_time=self.kind.patience_s):
                    found.append(str(message))
                    await receiver.complete_message(message)
        return found


@pytest.mark.deviation("client.transactions")
@pytest.mark.needs("full transactions")
@pytest.mark.parametrize(
    ("from_subscription", "is_partitioned"),
    [
        (False, False),
        (True, False),
        pytest.param(False, True, marks=pytest.mark.needs("partitioning")),
        pytest.param(True, True, marks=pytest.mark.needs("partitioning")),
    ],
)
async def test_a_transaction_moves_a_message_to_two_other_entities(
    kind: NamespaceKind, from_subscription: bool, is_partitioned: bool
) -> None:
    spread = Spread(kind)
    await spread.make(from_subscription=from_subscription, is_partitioned=is_partitioned)
    one, other = await kind.queue(), await kind.queue(enable_partitioning=is_partitioned)
    await spread.put("x", "k")
    client = spread.client

    async def move(*, fails: bool) -> None:
        async with client.transaction(partition_key="k" if is_partitioned else None) as transaction:
            await receiver.complete_message(message, transaction=transaction)
            for sender in (to_one, to_other):
                await sender.send_messages(ServiceBusMessage("y"), transaction=transaction)
            if fails:
                raise KeyError("something of the application's")

    async with spread.receiver(client) as receiver:
        (message,) = await receiver.receive_messages(1, max_wait_time=kind.patience_s)
        async with client.get_queue_sender(one) as to_one, client.get_queue_sender(other) as to_other:
            with pytest.raises(KeyError):
                await move(fails=True)
            assert await spread.left() == ["x"]
            await move(fails=False)
    assert await spread.left() == []
    assert await spread.reached(one, other) == ["y", "y"]
    assert (await bodies(kind, one), await bodies(kind, other)) == ([], [])


@pytest.mark.needs("full transactions", "partitioning")
async def test_a_partitioned_first_entity_requires_the_partition_key_of_its_message(kind: NamespaceKind) -> None:
    spread = Spread(kind)
    await spread.make(from_subscription=False, is_partitioned=True)
    target = await kind.queue()
    await spread.put("x", "k")
    async with spread.receiver(spread.client) as receiver, spread.client.get_queue_sender(target) as sender:
        (message,) = await receiver.receive_messages(1, max_wait_time=kind.patience_s)
        for key in (None, "other"):
            transaction = spread.client.transaction(partition_key=key)
            await receiver.complete_message(message, transaction=transaction)
            with pytest.raises(InvalidOperationError):
                await sender.send_messages(ServiceBusMessage("y"), transaction=transaction)
            await transaction.rollback()
        await receiver.complete_message(message)


@pytest.mark.needs("full transactions")
async def test_a_client_for_several_entities_receives_from_one(kind: NamespaceKind) -> None:
    client = kind.client(enable_cross_entity_transactions=True)
    first, second = await kind.queue(), await kind.queue()
    async with (
        client.get_queue_receiver(first) as receiver,
        client.get_queue_receiver(first, sub_queue="deadletter") as dead_letters,
        client.get_queue_receiver(second) as refused,
    ):
        for each in (receiver, dead_letters):
            assert await each.receive_messages(1, max_wait_time=0.1) == []
        with pytest.raises(InvalidOperationError):
            await refused.receive_messages(1, max_wait_time=0.1)


@pytest.mark.needs("full transactions")
async def test_a_transaction_over_two_entities_requires_a_client_for_several(kind: NamespaceKind) -> None:
    first, second = await kind.queue(), await kind.queue()
    async with kind.plain.get_queue_sender(first) as one, kind.plain.get_queue_sender(second) as other:
        transaction = kind.plain.transaction()
        await one.send_messages(ServiceBusMessage("a"), transaction=transaction)
        with pytest.raises(InvalidOperationError):
            await other.send_messages(ServiceBusMessage("b"), transaction=transaction)
        await transaction.rollback()
    assert (await bodies(kind, first), await bodies(kind, second)) == ([], [])


@pytest.mark.needs("sends-only transactions")
async def test_a_client_for_several_entities_is_refused(kind: NamespaceKind) -> None:
    with pytest.raises(TransactionNotSupportedError):
        kind.client(enable_cross_entity_transactions=True)
    with pytest.raises(TransactionNotSupportedError):
        await kind.plain.transaction(partition_key="k").link()


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


@pytest.mark.needs("full transactions")
async def test_rules_change_with_the_commit_of_a_transaction(kind: NamespaceKind) -> None:
    topic, administration = await kind.topic("s"), kind.plain.administration

    async def names() -> list[str]:
        return [rule.name async for rule in administration.list_rules(topic, "s")]

    async def change(transaction: Transaction) -> None:
        await administration.delete_rule(topic, "s", "$Default", transaction=transaction)
        red = CorrelationRuleFilter(label="red", properties={"n": 1})
        await administration.create_rule(topic, "s", "red", filter=red, transaction=transaction)
        blue, action = SqlRuleFilter("colour = 'blue'"), SqlRuleAction("SET n = 2")
        await administration.create_rule(topic, "s", "blue", filter=blue, action=action, transaction=transaction)
        await administration.create_rule(topic, "s", "all", transaction=transaction)

    undone = kind.plain.transaction()
    await change(undone)
    await undone.rollback()
    assert await names() == ["$Default"]
    async with kind.plain.transaction() as transaction:
        await change(transaction)
        assert await names() == ["$Default"]
    assert await names() == ["all", "blue", "red"]
    red = await administration.get_rule(topic, "s", "red")
    assert red.filter == CorrelationRuleFilter(label="red", properties={"n": 1})
    assert (await administration.get_rule(topic, "s", "blue")).action == SqlRuleAction("SET n = 2")


@pytest.mark.needs("full transactions", "partitioning")
async def test_rules_of_partitioned_topics_change_outside_transactions_only(kind: NamespaceKind) -> None:
    topic = await kind.topic("s", enable_partitioning=True)
    async with kind.plain.transaction() as transaction:
        with pytest.raises(InvalidOperationError):
            await kind.plain.administration.create_rule(topic, "s", "all", transaction=transaction)


@pytest.mark.needs("sends-only transactions")
async def test_rules_are_not_part_of_a_transaction_of_the_sdk(kind: NamespaceKind) -> None:
    async with kind.plain.transaction() as transaction:
        with pytest.raises(TransactionNotSupportedError):
            await kind.plain.administration.delete_rule("t", "s", "$Default", transaction=transaction)


async def test_a_rule_is_not_changed_in_a_transaction_of_another_client(kind: NamespaceKind) -> None:
    async with kind.client() as other:
        with pytest.raises(InvalidOperationError, match="another client"):
            await kind.plain.administration.delete_rule("t", "s", "$Default", transaction=other.transaction())


@pytest.mark.needs("full transactions")
@pytest.mark.parametrize(
    ("reaches", "later"),
    [
        ("its entity", "is enqueued"),
        ("its entity", "expires"),
        ("its topic", "is enqueued"),
        ("its topic", "expires"),
        ("another entity", "expires"),  # a transaction schedules in its first entity only
    ],
)
async def test_a_receiver_that_waits_hears_in_time_of_what_a_transaction_brings_later(
    kind: NamespaceKind, reaches: str, later: str
) -> None:
    first, queue = await kind.queue(), await kind.queue(dead_lettering_on_message_expiration=True)
    topic = await kind.topic("s")
    administration = kind.administration
    subscription = await administration.get_subscription(topic, "s")
    subscription.dead_lettering_on_message_expiration = True
    await administration.update_subscription(topic, subscription)
    client = kind.client(enable_cross_entity_transactions=True) if reaches == "another entity" else kind.plain
    due_s = clock.now() + 2.0
    if later == "expires":
        message, sub_queue = ServiceBusMessage("x", time_to_live=timedelta(seconds=2)), ServiceBusSubQueue.DEAD_LETTER
    else:
        message = ServiceBusMessage("x", scheduled_enqueue_time_utc=datetime.fromtimestamp(due_s, UTC))
        sub_queue = None

    async def commit() -> None:
        sender = client.get_topic_sender(topic) if reaches == "its topic" else client.get_queue_sender(queue)
        async with sender, client.get_queue_sender(first) as before:
            await clock.sleep(0.5)
            async with client.transaction() as transaction:
                if reaches == "another entity":
                    await before.send_messages(ServiceBusMessage("first"), transaction=transaction)
                await sender.send_messages(message, transaction=transaction)

    if reaches == "its topic":
        receiver = kind.plain.get_subscription_receiver(topic, "s", sub_queue=sub_queue)
    else:
        receiver = kind.plain.get_queue_receiver(queue, sub_queue=sub_queue)
    async with receiver, asyncio.TaskGroup() as group:
        group.create_task(commit())
        (received,) = await receiver.receive_messages(1, max_wait_time=60.0)
        assert str(received) == "x"
        assert clock.now() < due_s + kind.patience_s
