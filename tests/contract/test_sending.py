from __future__ import annotations

import asyncio
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import count
from typing import Any
from uuid import UUID

import pytest
from azure.servicebus import ServiceBusMessage as SdkMessage

from sbclient import (
    InvalidOperationError,
    MessageSizeExceededError,
    MessagingEntityNotFoundError,
    ServiceBusError,
    ServiceBusMessage,
    ServiceBusMessageBatch,
    clock,
)
from sbclient.amqp import AmqpAnnotatedMessage, AmqpMessageBodyType, AmqpMessageHeader, AmqpMessageProperties
from sbclient.broker.faults import Fault, FaultKind
from tests.contract.kinds import NamespaceKind
from tests.payloads import batch_of

PROPERTIES: dict[str, Any] = {
    "text": "grüße",
    "empty": "",
    "int": -5,
    "long": 2**40,
    "float": 1.25,
    "yes": True,
    "no": False,
    "uuid": UUID(int=5),
    "decimal": Decimal("1.10"),
    "null": None,
}
FURTHER_PROPERTIES: dict[str, Any] = {"time": datetime(2026, 5, 4, 3, 2, 1, 2000, tzinfo=UTC)}


def properties_for(kind: NamespaceKind) -> dict[str, Any]:
    """Return one application property of each type that the kind supports."""
    return PROPERTIES | (FURTHER_PROPERTIES if "all property types" in kind.capabilities else {})


async def test_messages_given_as_mappings(kind: NamespaceKind) -> None:
    queue = await kind.queue()
    given = {"body": "first", "message_id": UUID(int=7), "application_properties": {"n": 1}}
    async with kind.plain.get_queue_sender(queue) as sender:
        await sender.send_messages(given)
        await sender.send_messages([{"body": b"second"}, ServiceBusMessage("grüße", encoding="latin-1")])
        batch = await sender.create_message_batch()
        batch.add_message({"body": None, "subject": "fourth"})
        await sender.send_messages(batch)
        with pytest.raises(TypeError, match="boby"):
            await sender.send_messages({"boby": "x"})
        await sender.cancel_scheduled_messages(
            await sender.schedule_messages({"body": "later"}, datetime.now(UTC) + timedelta(hours=1))
        )
    first, second, third, fourth = await kind.received(queue, 4)
    assert (str(first), first.message_id, first.application_properties) == ("first", str(UUID(int=7)), {"n": 1})
    assert (bytes(second), bytes(third)) == (b"second", "grüße".encode("latin-1"))
    assert (bytes(fourth), fourth.subject) == (b"", "fourth")


@pytest.mark.deviation("client.properties")
async def test_every_field_of_a_message_arrives(kind: NamespaceKind) -> None:
    queue = await kind.queue()
    sent = ServiceBusMessage(
        b"\x00\xff body",
        application_properties=properties_for(kind),
        message_id="m-1",
        content_type="text/plain",
        correlation_id="c-1",
        subject="greeting",
        partition_key="p-1",
        to="you",
        reply_to="me",
        reply_to_session_id="s-9",
        time_to_live=timedelta(minutes=5),
    )
    async with kind.plain.get_queue_sender(queue) as sender:
        await sender.send_messages(sent)
    (message,) = await kind.received(queue, 1)
    names = (
        "message_id content_type correlation_id subject partition_key to reply_to reply_to_session_id session_id "
        "time_to_live application_properties body_type"
    )
    for name in names.split():
        assert getattr(message, name) == getattr(sent, name), name
    assert bytes(message) == bytes(sent)
    assert {name: type(value) for name, value in message.application_properties.items()} == {
        name: type(value) for name, value in properties_for(kind).items()
    }
    assert message.sequence_number is not None
    assert message.delivery_count == 0
    assert abs(message.enqueued_time_utc.timestamp() - clock.now()) < 60.0
    assert message.expires_at_utc == message.enqueued_time_utc + timedelta(minutes=5)


@pytest.mark.parametrize("body", [b"", "text", [b"one", b"two"], b"x" * 100_000])
async def test_a_body_arrives_as_its_bytes(kind: NamespaceKind, body: Any) -> None:
    queue = await kind.queue()
    async with kind.plain.get_queue_sender(queue) as sender:
        await sender.send_messages(ServiceBusMessage(body))
    (message,) = await kind.received(queue, 1)
    assert bytes(message) == bytes(ServiceBusMessage(body))


async def test_a_message_of_the_sdk_can_be_sent(kind: NamespaceKind) -> None:
    queue = await kind.queue()
    async with kind.plain.get_queue_sender(queue) as sender:
        await sender.send_messages(SdkMessage("hello", application_properties={"n": 1}, subject="s"))
    (message,) = await kind.received(queue, 1)
    assert (str(message), message.application_properties, message.subject) == ("hello", {"n": 1}, "s")
    assert message.message_id


@pytest.mark.deviation("client.raw-amqp")
@pytest.mark.parametrize(
    ("body_type", "content"),
    [
        (AmqpMessageBodyType.VALUE, [12, 3]),
        (AmqpMessageBodyType.SEQUENCE, [[1, 3], [2]]),
        (AmqpMessageBodyType.DATA, b"x"),
    ],
)
async def test_every_section_of_an_annotated_message_arrives(
    kind: NamespaceKind, body_type: AmqpMessageBodyType, content: Any
) -> None:
    queue = await kind.queue()
    sent = AmqpAnnotatedMessage(
        properties=AmqpMessageProperties(message_id="m", user_id=b"u", content_encoding="gzip", group_sequence=3),
        header=AmqpMessageHeader(durable=True, priority=5),
        footer={"sum": 7},
        annotations={"x-opt-mine": "kept", "x-opt-partition-key": "k"},
        application_properties={"n": 1},
        content=content,
        body_type=body_type,
    )
    async with kind.plain.get_queue_sender(queue) as sender:
        await sender.send_messages(sent)
    (message,) = await kind.received(queue, 1)
    raw = message.raw_amqp_message
    assert (raw.header.durable, raw.header.priority) == (True, 5)
    assert (raw.properties.user_id, raw.properties.content_encoding, raw.properties.group_sequence) == (b"u", "gzip", 3)
    assert (raw.annotations["x-opt-mine"], message.partition_key) == ("kept", "k")
    assert raw.footer == {"sum": 7}
    assert (raw.body_type, raw.content) == (body_type, content)


async def test_a_message_gets_an_id_and_keeps_it(kind: NamespaceKind) -> None:
    queue = await kind.queue()
    sent = ServiceBusMessage("x")
    async with kind.plain.get_queue_sender(queue) as sender:
        for message in (sent, sent, ServiceBusMessage("y")):
            await sender.send_messages(message)
    first, second, other = await kind.received(queue, 3)
    assert first.message_id
    assert first.message_id == second.message_id == sent.message_id
    assert other.message_id not in (None, first.message_id)


@pytest.mark.deviation("client.concurrent-sends")
async def test_concurrent_sends_arrive_once(kind: NamespaceKind) -> None:
    queue = await kind.queue()
    count = 120
    async with kind.plain.get_queue_sender(queue) as sender:
        await asyncio.gather(
            *(
                sender.send_messages(ServiceBusMessage(str(number), partition_key=f"key-{number % 5}"))
                for number in range(count)
            )
        )
    by_key = defaultdict(list)
    for message in await kind.received(queue, count):
        by_key[message.partition_key].append(int(str(message)))
    assert sorted(number for numbers in by_key.values() for number in numbers) == list(range(count))
    assert all(numbers == sorted(numbers) for numbers in by_key.values()), "one key keeps the order of the calls"


async def test_a_message_that_is_too_large_is_rejected(kind: NamespaceKind) -> None:
    queue = await kind.queue()
    async with kind.plain.get_queue_sender(queue) as sender:
        with pytest.raises(MessageSizeExceededError):
            await sender.send_messages(ServiceBusMessage(b"x" * 2_000_000))
        with pytest.raises(MessageSizeExceededError):
            await sender.send_messages([ServiceBusMessage(b"x" * 200_000) for _ in range(10)])
        await sender.send_messages(ServiceBusMessage("small"))
    (message,) = await kind.received(queue, 1)
    assert str(message) == "small"


async def test_a_full_batch_rejects_messages(kind: NamespaceKind) -> None:
    queue = await kind.queue()
    async with kind.plain.get_queue_sender(queue) as sender:
        batch = await sender.create_message_batch(1000)
        count = 0
        while batch.size_in_bytes < 800:
            batch.add_message(ServiceBusMessage(b"x" * 50))
            count += 1
        with pytest.raises(MessageSizeExceededError):
            batch.add_message(ServiceBusMessage(b"x" * 500))
        assert len(batch) == count
        await sender.send_messages(batch)
        with pytest.raises(ValueError):
            await sender.create_message_batch(10**9)
    assert len(await kind.received(queue, count)) == count


@pytest.mark.deviation("client.missing-entities")
async def test_sending_to_a_missing_entity_raises_with_its_name(kind: NamespaceKind) -> None:
    name = kind.new_name("nowhere")
    async with kind.plain.get_queue_sender(name) as sender:
        with pytest.raises(MessagingEntityNotFoundError, match=name):
            await sender.send_messages(ServiceBusMessage("x"))


async def test_different_keys_are_rejected_before_sending(kind: NamespaceKind) -> None:
    queue = await kind.queue()
    async with kind.plain.get_queue_sender(queue) as sender:
        with pytest.raises(InvalidOperationError):
            await sender.send_messages(ServiceBusMessage("x", session_id="a", partition_key="b"))
    assert await kind.received(queue, 0) == []


async def test_a_session_queue_rejects_messages_without_session(kind: NamespaceKind) -> None:
    queue = await kind.queue(requires_session=True)
    async with kind.plain.get_queue_sender(queue) as sender:
        with pytest.raises(InvalidOperationError):
            await sender.send_messages(ServiceBusMessage("x"))
        await sender.send_messages(ServiceBusMessage("x", session_id="s"))


async def test_a_closed_sender_and_a_closed_client_send_no_more(kind: NamespaceKind) -> None:
    queue = await kind.queue()
    client = kind.client()
    sender = client.get_queue_sender(queue)
    await sender.send_messages(ServiceBusMessage("x"))
    await sender.close()
    await sender.close()
    with pytest.raises(InvalidOperationError):
        await sender.send_messages(ServiceBusMessage("y"))
    await client.close()
    await client.close()
    with pytest.raises(InvalidOperationError):
        client.get_queue_sender(queue)


@pytest.mark.needs("pings dropped")
async def test_a_ping_is_accepted_and_never_delivered(kind: NamespaceKind) -> None:
    queue = await kind.queue()
    ping = ServiceBusMessage(b"", time_to_live=timedelta(seconds=1))
    ping.content_type = "application/vnd.ms-servicebus-ping"
    transport = kind.plain._core.primary
    link = transport.open_sender(queue)
    await link.send(batch_of([ping]), timeout_s=kind.patience_s)
    await link.close()
    assert await kind.received(queue, 0) == []


@pytest.mark.needs("faults")
@pytest.mark.parametrize("fault", [FaultKind.DOWN, FaultKind.ERROR])
async def test_namespace_faults_apply_to_missing_entities(kind: NamespaceKind, fault: FaultKind) -> None:
    kind.inject(Fault(fault))
    async with kind.client(retry_total=0) as client:
        with pytest.raises(ServiceBusError) as caught:
            async with client.get_queue_sender("lacking") as sender:
                await sender.send_messages(ServiceBusMessage("x"))
    assert caught.value.is_outage


@pytest.mark.needs("long lives")
async def test_a_time_to_live_of_more_than_49_days_is_kept(kind: NamespaceKind) -> None:
    queue, life = await kind.queue(), timedelta(days=400)
    async with kind.plain.get_queue_sender(queue) as sender, kind.plain.get_queue_receiver(queue) as receiver:
        await sender.send_messages([ServiceBusMessage("x", time_to_live=life), ServiceBusMessage("y")])
        await sender.send_messages(ServiceBusMessage("z", time_to_live=life))
        lives = [message.time_to_live for message in await receiver.peek_messages(3)]
        assert lives == [life, None, life]


async def test_a_closed_client_can_be_entered_again(kind: NamespaceKind) -> None:
    queue, client = await kind.queue(), kind.client()
    async with client:
        sender = client.get_queue_sender(queue)
        await sender.send_messages(ServiceBusMessage("x"))
    with pytest.raises(InvalidOperationError):
        client.get_queue_sender(queue)
    async with client, client.get_queue_receiver(queue) as receiver:
        assert [str(message) for message in await receiver.peek_messages()] == ["x"]
        with pytest.raises(InvalidOperationError):
            await sender.send_messages(ServiceBusMessage("y"))


async def test_more_than_4500_messages_are_not_sent_at_once(kind: NamespaceKind) -> None:
    queue = await kind.queue()
    async with kind.plain.get_queue_sender(queue) as sender:
        for given in ([ServiceBusMessage("") for _ in range(4501)], (ServiceBusMessage("") for _ in count())):
            with pytest.raises(MessageSizeExceededError, match="4,500"):
                await sender.send_messages(given)
        batch = ServiceBusMessageBatch()
        for _ in range(4500):
            batch.add_message(ServiceBusMessage("", message_id=""))
        with pytest.raises(MessageSizeExceededError, match="4,500"):
            batch.add_message(ServiceBusMessage(""))
