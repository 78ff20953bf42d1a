"""Senders while the primary is healthy: accepted and rejected messages, sizes, retries, concurrent callers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import RFC_4122, UUID

import pytest
from azure import servicebus as sdk
from azure.servicebus.amqp import AmqpAnnotatedMessage

from sbclient import clock
from sbclient.broker.faults import Operation
from sbclient.broker.profile import PREM_2021
from sbclient.client.client import ServiceBusClient
from sbclient.errors import (
    InvalidOperationError,
    MessageNotFoundError,
    MessageSizeExceededError,
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    OperationTimeoutError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusInternalError,
    ServiceBusServerBusyError,
)
from sbclient.message import ServiceBusMessage
from sbclient.rules.failover import FailoverState
from sbclient.rules.partition_key import fragment_of
from sbclient.testing import Fault, FaultKind, MemoryPair, memory_pair
from tests.client.scene import AT_ONCE, QUEUE, diverted, encoded, make_queue, options, taken, texts
from tests.payloads import batch_size_of, size_of

LIMIT = 256 * 1024
HEADROOM = 1024


def sized(size: int) -> ServiceBusMessage:
    """A message of exactly so many encoded bytes."""
    empty = size_of(ServiceBusMessage(b"x" * 300, message_id="m")) - 300
    message = ServiceBusMessage(b"x" * (size - empty), message_id="m")
    assert size_of(message) == size
    return message


def a_key_of(fragment: int, count: int = 16) -> str:
    return next(key for number in range(10_000) if fragment_of(key := f"key {number}", count) == fragment)


# -- what can be sent ------------------------------------------------------------------------------------------------


@pytest.mark.deviation("client.sdk-batches")
async def test_messages_of_the_sdk_can_be_sent(pair: MemoryPair, client: ServiceBusClient) -> None:
    batch = await client.get_queue_sender(QUEUE).create_message_batch()
    batch.add_message(sdk.ServiceBusMessage("3"))
    async with client.get_queue_sender(QUEUE) as sender:
        await sender.send_messages(sdk.ServiceBusMessage("1", session_id="s"))
        await sender.send_messages([sdk.ServiceBusMessage("2")])
        await sender.send_messages(batch)
        with pytest.raises(TypeError, match="batch of this sender"):
            await sender.send_messages(sdk.ServiceBusMessageBatch())  # type: ignore[arg-type]
    received = await taken(pair)
    assert texts(received) == list("123")
    assert received[0].session_id == "s"
    assert all(message.message_id for message in received)


async def test_annotated_messages_of_the_sdk_are_sent_with_new_ids(pair: MemoryPair, client: ServiceBusClient) -> None:
    message = AmqpAnnotatedMessage(data_body=b"annotated")
    async with client.get_queue_sender(QUEUE) as sender:
        await sender.send_messages(message)
        await sender.send_messages([message])
    received = await taken(pair)
    assert texts(received) == ["annotated"] * 2
    assert len({one.message_id for one in received} - {None}) == 2


async def test_new_ids_are_random_uuids(pair: MemoryPair, client: ServiceBusClient) -> None:
    async with client.get_queue_sender(QUEUE) as sender:
        await sender.send_messages([ServiceBusMessage("a") for _ in range(50)])
    ids = [str(message.message_id) for message in await taken(pair)]
    assert ids == [str(UUID(one)) for one in ids]
    assert {(UUID(one).version, UUID(one).variant) for one in ids} == {(4, RFC_4122)}
    assert len(set(ids)) == 50


async def test_a_received_message_can_be_sent(pair: MemoryPair, client: ServiceBusClient) -> None:
    async with client.get_queue_sender(QUEUE) as sender, client.get_queue_receiver(QUEUE) as receiver:
        await sender.send_messages(ServiceBusMessage("on", message_id="m", application_properties={"a": "b"}))
        (message,) = await receiver.receive_messages()
        await sender.send_messages(message)
        await receiver.complete_message(message)
    (again,) = await taken(pair)
    assert (str(again), again.message_id, again.application_properties) == ("on", "m", {"a": "b"})


async def test_the_sections_of_a_received_message_can_be_sent_more_than_once(
    pair: MemoryPair, client: ServiceBusClient
) -> None:
    async with client.get_queue_sender(QUEUE) as sender, client.get_queue_receiver(QUEUE) as receiver:
        sent = ServiceBusMessage(
            [b"o", b"n"],
            message_id="m",
            session_id="s",
            subject="x",
            time_to_live=timedelta(hours=1),
            application_properties={"a": 1},
        )
        await sender.send_messages(sent)
        (message,) = await receiver.receive_messages()
        raw = message.raw_amqp_message
        await sender.send_messages(raw)
        await sender.send_messages([raw])
        await receiver.complete_message(message)
    for again in await taken(pair):
        assert (str(again), again.message_id, again.session_id, again.subject) == ("on", "m", "s", "x")
        assert (again.time_to_live, again.application_properties) == (timedelta(hours=1), {"a": 1})


async def test_a_message_gets_an_id_and_keeps_it(pair: MemoryPair, client: ServiceBusClient) -> None:
    message, theirs = ServiceBusMessage("a"), sdk.ServiceBusMessage("b")
    async with client.get_queue_sender(QUEUE) as sender:
        for _ in range(2):
            await sender.send_messages(message)
            await sender.send_messages(theirs)
    ids = [received.message_id for received in await taken(pair)]
    assert ids == [message.message_id, theirs.message_id] * 2
    assert len(set(ids)) == 2


@pytest.mark.deviation("client.message-ids")
async def test_a_message_gets_its_id_before_the_first_attempt(pair: MemoryPair, client: ServiceBusClient) -> None:
    pair.primary.inject(Fault(FaultKind.DOWN))
    message = ServiceBusMessage("a")
    async with client.get_queue_sender(QUEUE) as sender:
        with pytest.raises(ServiceBusConnectionError):
            await sender.send_messages(message)
    assert message.message_id


async def test_changes_after_send_messages_are_not_sent(pair: MemoryPair, client: ServiceBusClient) -> None:
    message = ServiceBusMessage("a", subject="before")
    async with client.get_queue_sender(QUEUE) as sender:
        send = asyncio.ensure_future(sender.send_messages(message))
        await asyncio.sleep(0)
        message.subject = "after"
        await send
    (received,) = await taken(pair)
    assert received.subject == "before"


async def test_an_empty_list_sends_nothing(pair: MemoryPair, client: ServiceBusClient) -> None:
    before = pair.primary.namespace.operation_count
    async with client.get_queue_sender(QUEUE) as sender:
        await sender.send_messages([])
        assert await sender.schedule_messages([], datetime(2030, 1, 1, tzinfo=UTC)) == []
        await sender.cancel_scheduled_messages([])
    assert pair.primary.namespace.operation_count == before


async def test_a_sender_knows_its_entity(client: ServiceBusClient) -> None:
    assert client.get_queue_sender(QUEUE).entity_name == QUEUE


# -- what is refused, before anything is sent --------------------------------------------------------------------------


@pytest.mark.parametrize("thing", [b"bytes", "text", 5, None, object(), [ServiceBusMessage("a"), "text"]])
async def test_only_messages_can_be_sent(pair: MemoryPair, client: ServiceBusClient, thing: Any) -> None:
    async with client.get_queue_sender(QUEUE) as sender:
        with pytest.raises(TypeError):
            await sender.send_messages(thing)
    assert await taken(pair) == []


@pytest.mark.deviation("client.early-rejections")
@pytest.mark.parametrize(
    "message",
    [
        ServiceBusMessage("a", session_id="s", partition_key="s").copy(_partition_key="t"),
        ServiceBusMessage("a", content_type="application/vnd.ms-servicebus-ping"),
    ],
    ids=["keys that differ", "a ping"],
)
async def test_an_invalid_message_rejects_the_whole_list(
    pair: MemoryPair, client: ServiceBusClient, message: ServiceBusMessage
) -> None:
    async with client.get_queue_sender(QUEUE) as sender:
        with pytest.raises(InvalidOperationError):
            await sender.send_messages([ServiceBusMessage("b"), message])
        batch = await sender.create_message_batch()
        with pytest.raises(InvalidOperationError):
            batch.add_message(message)
    assert await taken(pair) == []


async def test_a_sender_closed_while_the_client_opens_rejects_sends(pair: MemoryPair) -> None:
    async with pair.client() as client:
        pass
    client = pair.client()
    sender = client.get_queue_sender(QUEUE)
    send = asyncio.ensure_future(sender.send_messages(ServiceBusMessage("a")))
    await asyncio.sleep(0)
    await sender.close()
    with pytest.raises(InvalidOperationError):
        await send
    await client.close()


@pytest.mark.deviation("client.entering")
async def test_an_unknown_entity_raises_and_is_not_an_outage(pair: MemoryPair) -> None:
    async with pair.client(AT_ONCE) as client, client.get_queue_sender("typo") as sender:
        for _ in range(3):
            with pytest.raises(MessagingEntityNotFoundError):
                await sender.send_messages(ServiceBusMessage("a"))
        assert client.pair.status().entities["typo"].state is FailoverState.HEALTHY
    assert clock.monotonic() == 0.0


# -- sizes -------------------------------------------------------------------------------------------------------------


@pytest.mark.deviation("pairing.headroom")
@pytest.mark.parametrize(("beyond", "fits"), [(-1, True), (0, True), (1, False)])
@pytest.mark.parametrize("is_paired", [True, False])
async def test_headroom_for_sealing_is_reserved_while_healthy_and_none_without_pairing(
    pair: MemoryPair, is_paired: bool, beyond: int, fits: bool
) -> None:
    size = LIMIT + beyond - (HEADROOM if is_paired else 0)
    async with (
        pair.client() if is_paired else pair.unpaired_client() as client,
        client.get_queue_sender(QUEUE) as sender,
    ):
        if fits:
            await sender.send_messages(sized(size))
        else:
            with pytest.raises(MessageSizeExceededError):
                await sender.send_messages(sized(size))
    assert len(await taken(pair)) == fits


async def test_a_message_that_fits_with_headroom_can_be_diverted(pair: MemoryPair) -> None:
    key = "s" * 128
    async with pair.client(AT_ONCE) as client, client.get_queue_sender(QUEUE) as sender:
        message = sized(LIMIT - HEADROOM - 250).copy(
            session_id=key, partition_key=key, time_to_live=timedelta(days=3), message_id="i" * 10
        )
        client.pair.force_failover(QUEUE)
        await sender.send_messages(message)
        report = await client.run_syphon(until="empty")
    assert report.drained == 1
    assert [len(str(received)) for received in await taken(pair)] == [len(str(message))]


async def test_without_headroom_a_large_message_is_rejected_while_failed_over(
    pair: MemoryPair,
) -> None:
    async with (
        pair.client(options(reserve_backlog_headroom=False)) as client,
        client.get_queue_sender(QUEUE) as sender,
    ):
        await sender.send_messages(sized(LIMIT))
        client.pair.force_failover(QUEUE)
        with pytest.raises(MessageSizeExceededError):
            await sender.send_messages(sized(LIMIT))
        assert client.pair.status().quarantined == ()
    assert len(await taken(pair)) == 1
    assert await diverted(pair) == []


@pytest.mark.deviation("client.early-rejections")
async def test_a_list_too_large_for_one_transfer_is_rejected(pair: MemoryPair, client: ServiceBusClient) -> None:
    async with client.get_queue_sender(QUEUE) as sender:
        with pytest.raises(MessageSizeExceededError, match="3 messages"):
            await sender.send_messages([sized(100_000), sized(100_000), sized(100_000)])
        with pytest.raises(MessageSizeExceededError, match="a message"):
            await sender.send_messages([sized(1000), sized(300_000)])
    assert await taken(pair) == []


async def test_headroom_is_reserved_for_each_message_of_a_list(pair: MemoryPair) -> None:
    messages = [ServiceBusMessage(b"x", message_id=str(number)) for number in range(1500)]
    assert batch_size_of(messages) < LIMIT / 4
    async with pair.client() as client, client.get_queue_sender(QUEUE) as sender:
        with pytest.raises(MessageSizeExceededError):
            await sender.send_messages(messages)
    async with pair.unpaired_client() as client, client.get_queue_sender(QUEUE) as sender:
        await sender.send_messages(messages)
    assert len(await taken(pair)) == 1500


async def test_small_messages_share_transfers_with_headroom_reserved(
    pair: MemoryPair, client: ServiceBusClient
) -> None:
    async with client.get_queue_sender(QUEUE) as sender:
        await sender.send_messages(ServiceBusMessage("first"))
        before = pair.primary.namespace.operation_count
        await asyncio.gather(*(sender.send_messages(ServiceBusMessage(b"x" * 150)) for _ in range(2000)))
        assert pair.primary.namespace.operation_count - before <= 22  # a hundred messages fill a transfer
    assert len(await taken(pair)) == 2001


async def test_limits_are_requested_once(pair: MemoryPair, client: ServiceBusClient) -> None:
    async with client.get_queue_sender(QUEUE) as sender:
        await sender.send_messages(ServiceBusMessage("1"))
        before = pair.primary.namespace.operation_count
        for _ in range(10):
            await sender.send_messages(ServiceBusMessage("2"))
    assert pair.primary.namespace.operation_count - before == 10


async def test_limits_are_requested_again_from_an_entity_that_was_deleted_and_created() -> None:
    pair = memory_pair(seed=2, profile=PREM_2021)
    async with pair.unpaired_client() as client, client.get_queue_sender(QUEUE) as sender:
        for max_kilobytes in (2_000, 1_100, 1_500):
            await make_queue(pair, max_message_size_in_kilobytes=max_kilobytes)
            await sender.send_messages(ServiceBusMessage("1"))
            with pytest.raises(MessageSizeExceededError, match=f"{max_kilobytes * 1024} are allowed"):
                await sender.send_messages(ServiceBusMessage(b"x" * (max_kilobytes * 1024)))
            await client.administration.delete_queue(QUEUE)
            with pytest.raises(MessagingEntityNotFoundError):
                await sender.send_messages(ServiceBusMessage("2"))


# -- errors and retries ------------------------------------------------------------------------------------------------


async def test_transient_errors_are_retried(pair: MemoryPair, client: ServiceBusClient) -> None:
    pair.primary.inject(Fault(FaultKind.DOWN, count=3))
    async with client.get_queue_sender(QUEUE) as sender:
        await sender.send_messages(ServiceBusMessage("a"))
    assert texts(await taken(pair)) == ["a"]
    assert client.pair.events() == []


async def test_lasting_server_busy_raises_until_the_entity_fails_over(
    pair: MemoryPair, client: ServiceBusClient
) -> None:
    """The default interval of 1 min begins with the first error, when the retries have used up the timeout."""
    pair.primary.inject(Fault(FaultKind.BUSY))
    async with client.get_queue_sender(QUEUE) as sender:
        for text in "ab":
            with pytest.raises(ServiceBusServerBusyError):
                await sender.send_messages(ServiceBusMessage(text))
        await sender.send_messages(ServiceBusMessage("c"))
    assert 100.0 <= clock.monotonic() <= 120.0
    assert [event.name for event in client.pair.events()] == ["failover.suspected", "failover.engaged"]
    assert texts(await diverted(pair)) == ["c"]


async def test_one_success_ends_the_interval_that_a_busy_server_began(
    pair: MemoryPair, client: ServiceBusClient
) -> None:
    async with client.get_queue_sender(QUEUE) as sender:
        for _ in range(3):
            pair.primary.inject(Fault(FaultKind.BUSY))
            with pytest.raises(ServiceBusServerBusyError):
                await sender.send_messages(ServiceBusMessage("a"))
            pair.primary.heal()
            await sender.send_messages(ServiceBusMessage("b"))
    assert [event.name for event in client.pair.events()] == ["failover.suspected", "failover.cleared"] * 3
    assert await diverted(pair) == []


async def test_lasting_server_busy_reaches_every_waiting_caller(pair: MemoryPair, client: ServiceBusClient) -> None:
    pair.primary.inject(Fault(FaultKind.BUSY))
    async with client.get_queue_sender(QUEUE) as sender:
        sends = (sender.send_messages([ServiceBusMessage("a"), ServiceBusMessage("b")]) for _ in range(4))
        answers = await asyncio.gather(*sends, return_exceptions=True)
    assert [type(answer) for answer in answers] == [ServiceBusServerBusyError] * 4


async def test_transient_server_busy_is_retried_with_an_interval_of_0(pair: MemoryPair) -> None:
    async with pair.client(AT_ONCE) as client, client.get_queue_sender(QUEUE) as sender:
        pair.primary.inject(Fault(FaultKind.BUSY, count=2))
        await sender.send_messages(ServiceBusMessage("a"))
        assert clock.monotonic() == 20.0
        assert client.pair.events() == []
    assert texts(await taken(pair)) == ["a"]


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Fault(FaultKind.DOWN), ServiceBusConnectionError),
        (Fault(FaultKind.DOWN, entity_path=QUEUE), ServiceBusInternalError),
        (Fault(FaultKind.HANG), OperationTimeoutError),
        (Fault(FaultKind.ERROR, error=MessagingEntityDisabledError), MessagingEntityDisabledError),
    ],
    ids=["down", "entity down", "hangs", "disabled"],
)
async def test_errors_are_raised_within_the_timeout(
    pair: MemoryPair, client: ServiceBusClient, fault: Fault, error: type[ServiceBusError]
) -> None:
    pair.primary.inject(fault)
    async with client.get_queue_sender(QUEUE) as sender:
        with pytest.raises(error):
            await sender.send_messages(ServiceBusMessage("a"), timeout=30.0)
    assert clock.monotonic() <= 30.0
    assert await diverted(pair) == []


@pytest.mark.deviation("client.message-ids")
async def test_a_lost_acknowledgement_causes_at_most_a_duplicate_with_the_same_id(
    pair: MemoryPair, client: ServiceBusClient
) -> None:
    async with client.get_queue_sender(QUEUE) as sender:
        await sender.send_messages(ServiceBusMessage("first"))
        pair.primary.inject(Fault(FaultKind.LOSE_ACKNOWLEDGEMENT, operations=[Operation.SEND], count=1))
        await sender.send_messages(ServiceBusMessage("a"))
    received = (await taken(pair))[1:]
    assert texts(received) == ["a", "a"]
    assert received[0].message_id == received[1].message_id


async def test_duplicate_detection_removes_the_duplicate_of_a_lost_acknowledgement(pair: MemoryPair) -> None:
    await make_queue(pair, "once", requires_duplicate_detection=True)
    async with pair.client() as client, client.get_queue_sender("once") as sender:
        pair.primary.inject(Fault(FaultKind.LOSE_ACKNOWLEDGEMENT, operations=[Operation.SEND], count=1))
        await sender.send_messages(ServiceBusMessage("a"))
    assert texts(await taken(pair, "once")) == ["a"]


# -- many callers ------------------------------------------------------------------------------------------------------


async def test_concurrent_sends_to_a_partitioned_queue_with_duplicate_detection(pair: MemoryPair) -> None:
    await make_queue(pair, "odd", enable_partitioning=True, requires_duplicate_detection=True)
    async with pair.client() as client, client.get_queue_sender("odd") as sender:
        for _ in range(2):
            await asyncio.gather(*(sender.send_messages(ServiceBusMessage(str(number))) for number in range(50)))
    assert Counter(texts(await taken(pair, "odd"))) == Counter({str(number): 2 for number in range(50)})


async def test_a_hanging_fragment_delays_only_its_own_keys(pair: MemoryPair) -> None:
    await make_queue(pair, "wide", enable_partitioning=True)
    keys = [a_key_of(fragment) for fragment in range(16)]
    async with pair.client() as client, client.get_queue_sender("wide") as sender:
        await sender.send_messages(ServiceBusMessage("first", partition_key=keys[0]))
        pair.primary.inject(Fault(FaultKind.HANG, entity_path="wide", fragments=[3]))
        ended_at: dict[int, float] = {}

        async def send(number: int) -> None:
            await sender.send_messages(ServiceBusMessage(str(number), partition_key=keys[number % 16]))
            ended_at[number] = clock.monotonic()

        answers = await asyncio.gather(*(send(number) for number in range(100)), return_exceptions=True)
    for number, answer in enumerate(answers):
        if number % 16 == 3:
            assert isinstance(answer, OperationTimeoutError)
        else:
            assert answer is None
            assert ended_at[number] == 0.0
    pair.primary.heal()
    assert set(texts(await taken(pair, "wide"))) - {"first"} == {
        str(number) for number in range(100) if number % 16 != 3
    }
    assert clock.monotonic() <= 62.0


async def test_messages_without_key_avoid_a_hanging_fragment_after_15_s(pair: MemoryPair) -> None:
    await make_queue(pair, "wide", enable_partitioning=True)
    pair.primary.inject(Fault(FaultKind.HANG, entity_path="wide", fragments=list(range(15))))
    async with pair.client() as client, client.get_queue_sender("wide") as sender:
        await asyncio.gather(*(sender.send_messages(ServiceBusMessage(str(number))) for number in range(10)))
        assert clock.monotonic() <= 45.0
    pair.primary.heal()
    assert len(await taken(pair, "wide")) == 10


@pytest.mark.parametrize("steps", range(24))
async def test_a_cancelled_send_is_accepted_or_not(pair: MemoryPair, client: ServiceBusClient, steps: int) -> None:
    await cancel_after(steps, client, timeout=10.0)
    await clock.sleep(120.0)
    assert len(await taken(pair)) + len(await diverted(pair)) <= 1


@pytest.mark.parametrize("steps", range(24))
@pytest.mark.parametrize("fault", [FaultKind.DOWN, FaultKind.HANG, FaultKind.LOSE_ACKNOWLEDGEMENT])
async def test_a_cancelled_diversion_stores_the_message_at_most_once(
    pair: MemoryPair, steps: int, fault: FaultKind
) -> None:
    async with pair.client(AT_ONCE) as client:
        await client.get_queue_sender(QUEUE).send_messages(ServiceBusMessage("first"))
        pair.primary.inject(Fault(fault, operations=[Operation.SEND]))
        await cancel_after(steps, client, pause_s=30.0 if steps % 2 else 0.0)
        pair.primary.heal()
        await clock.sleep(120.0)
        left = await diverted(pair)
        assert len(left) <= 1
        assert all(message.application_properties["x-ms-path"] == QUEUE for message in left)
        drained = (await client.run_syphon(until="empty")).drained
    arrived = texts(await taken(pair))
    assert drained == len(left)
    assert arrived.count("one") <= 1 + (fault is FaultKind.LOSE_ACKNOWLEDGEMENT)


async def cancel_after(steps: int, client: ServiceBusClient, *, pause_s: float = 0.0, timeout: float = 60.0) -> None:
    """Send one message, and cancel the caller after so many steps of the loop."""
    sender = client.get_queue_sender(QUEUE)
    send = asyncio.ensure_future(sender.send_messages(ServiceBusMessage("one"), timeout=timeout))
    for _ in range(steps):
        await asyncio.sleep(0)
    if pause_s:
        await asyncio.sleep(pause_s)
    send.cancel()
    await asyncio.wait([send])
    await asyncio.sleep(60.0)
    await sender.close()


async def test_closing_a_sender_ends_sends_in_flight(pair: MemoryPair, client: ServiceBusClient) -> None:
    pair.primary.inject(Fault(FaultKind.HANG))
    sender = client.get_queue_sender(QUEUE)
    send = asyncio.ensure_future(sender.send_messages(ServiceBusMessage("a")))
    await clock.sleep(1.0)
    await sender.close()
    with pytest.raises(ServiceBusConnectionError):
        await send
    assert clock.monotonic() == 1.0


# -- batches and schedules ---------------------------------------------------------------------------------------------


async def test_a_batch_is_as_large_as_the_entity_and_the_backlog_accept(pair: MemoryPair) -> None:
    async with pair.client() as client, client.get_queue_sender(QUEUE) as sender:
        assert (await sender.create_message_batch()).max_size_in_bytes == LIMIT - HEADROOM
        assert (await sender.create_message_batch(1000)).max_size_in_bytes == 1000
        client.pair.force_failover(QUEUE)
        pair.primary.inject(Fault(FaultKind.DOWN))
        assert (await sender.create_message_batch()).max_size_in_bytes == LIMIT - HEADROOM
    pair.primary.heal()
    async with pair.unpaired_client() as client, client.get_queue_sender(QUEUE) as sender:
        assert (await sender.create_message_batch()).max_size_in_bytes == LIMIT


@pytest.mark.parametrize("is_failed_over", [False, True])
async def test_a_full_batch_is_accepted(pair: MemoryPair, is_failed_over: bool) -> None:
    async with pair.client() as client, client.get_queue_sender(QUEUE) as sender:
        batch = await sender.create_message_batch()
        with suppress(MessageSizeExceededError):
            while True:
                batch.add_message(ServiceBusMessage(b"x" * 100, session_id="s" * 30))
        if is_failed_over:
            client.pair.force_failover(QUEUE)
        await sender.send_messages(batch)
        await client.run_syphon(until="empty")
    assert len(await taken(pair)) == len(batch) > 500


async def test_messages_are_scheduled_and_cancelled_by_number(pair: MemoryPair, client: ServiceBusClient) -> None:
    due = datetime.fromtimestamp(clock.now(), UTC) + timedelta(minutes=5)
    async with client.get_queue_sender(QUEUE) as sender:
        one, two = await sender.schedule_messages([ServiceBusMessage("1"), ServiceBusMessage("2")], due)
        await sender.schedule_messages(ServiceBusMessage("3"), due.replace(tzinfo=None))
        await sender.cancel_scheduled_messages(one)
        with pytest.raises(MessageNotFoundError):
            await sender.cancel_scheduled_messages([one, two])
    assert await taken(pair) == []
    await clock.sleep(300.0)
    assert texts(await taken(pair)) == ["2", "3"]


async def test_an_iterable_that_raises_sends_nothing(pair: MemoryPair, client: ServiceBusClient) -> None:
    def messages() -> Iterator[ServiceBusMessage]:
        yield ServiceBusMessage("a")
        raise KeyError("no more")

    async with client.get_queue_sender(QUEUE) as sender:
        with pytest.raises(KeyError):
            await sender.send_messages(messages())
    assert await taken(pair) == []


@pytest.mark.parametrize("given", ["a", None, ["1"], [1, None]])
async def test_cancel_scheduled_messages_requires_integers(client: ServiceBusClient, given: Any) -> None:
    with pytest.raises(TypeError, match="must be an int"):
        await client.get_queue_sender("orders").cancel_scheduled_messages(given)


async def test_the_timeout_includes_opening_the_client(pair: MemoryPair) -> None:
    pair.secondary.inject(Fault(FaultKind.HANG))
    client = pair.client()
    opening = asyncio.ensure_future(client.__aenter__())
    await asyncio.sleep(0)
    sender = client.get_queue_sender(QUEUE)
    with pytest.raises(OperationTimeoutError) as caught:
        await sender.send_messages(ServiceBusMessage("x"), timeout=1)
    assert clock.monotonic() == 1
    assert not caught.value.is_in_doubt
    await opening
    await sender.send_messages(ServiceBusMessage("x"), timeout=2)
    await client.close()


def numbered(count: int, **fields: Any) -> list[ServiceBusMessage]:
    return [
        ServiceBusMessage(str(number), message_id=f"id {number}", application_properties={"n": number}, **fields)
        for number in range(count)
    ]


async def test_encoded_messages_are_sent_as_one_transfer(pair: MemoryPair, client: ServiceBusClient) -> None:
    async with client.get_queue_sender(QUEUE) as sender:
        await sender.send_encoded(encoded(numbered(3)))
        await sender.send_encoded(encoded(numbered(1)))
    received = await taken(pair)
    assert [(str(one), one.message_id, one.application_properties) for one in received] == [
        (str(number), f"id {number}", {"n": number}) for number in (0, 1, 2, 0)
    ]


async def test_encoded_messages_are_diverted_and_drained(pair: MemoryPair) -> None:
    async with pair.client(AT_ONCE) as client, client.get_queue_sender(QUEUE) as sender:
        pair.primary.inject(Fault(FaultKind.DOWN))
        await sender.send_encoded(encoded(numbered(3, session_id="s", time_to_live=timedelta(hours=1))))
        pair.primary.heal()
        await client.run_syphon(until="empty")
    received = await taken(pair)
    assert [(str(one), one.session_id, one.application_properties) for one in received] == [
        (str(number), "s", {"n": number}) for number in range(3)
    ]
    assert all(one.time_to_live is not None for one in received)


async def test_encoded_messages_that_are_too_large_are_rejected(pair: MemoryPair, client: ServiceBusClient) -> None:
    large = ServiceBusMessage(b"x" * (LIMIT + 1), message_id="id")
    async with client.get_queue_sender(QUEUE) as sender:
        with pytest.raises(MessageSizeExceededError, match="a message"):
            await sender.send_encoded(encoded([large]))
        with pytest.raises(MessageSizeExceededError, match="2 messages"):
            await sender.send_encoded(encoded([ServiceBusMessage(b"x" * (LIMIT // 2), message_id="id")] * 2))


async def test_each_call_of_a_closed_sender_is_refused_and_asks_nothing(
    pair: MemoryPair, client: ServiceBusClient
) -> None:
    sender = client.get_queue_sender(QUEUE)
    due = datetime.fromtimestamp(clock.now() + 60, UTC)
    (number,) = await sender.schedule_messages(ServiceBusMessage("a"), due)
    transaction = client.transaction()
    await transaction.link()
    for _ in range(2):
        await sender.close()
    before = pair.primary.namespace.operation_count
    for call in (
        sender.__aenter__(),
        sender.send_messages(ServiceBusMessage("a")),
        sender.send_messages(ServiceBusMessage("a"), transaction=transaction),
        sender.send_encoded(encoded([ServiceBusMessage("a", message_id="1")])),
        sender.schedule_messages(ServiceBusMessage("a"), due),
        sender.cancel_scheduled_messages(number),
        sender.create_message_batch(),
    ):
        with pytest.raises(InvalidOperationError, match="is closed: get a new one"):
            await call
    assert pair.primary.namespace.operation_count == before
    await transaction.rollback()
