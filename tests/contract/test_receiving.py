from __future__ import annotations

import asyncio
import copy
import pickle
import sys
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from enum import Enum
from typing import Any
from uuid import UUID

import pytest

from sbclient import (
    InvalidOperationError,
    MessageAlreadySettled,
    MessageLockLostError,
    MessageNotFoundError,
    MessagingEntityNotFoundError,
    ServiceBusMessage,
    ServiceBusReceiveMode,
    clock,
)
from sbclient.client.receiver import ServiceBusReceiver
from sbclient.message import ServiceBusMessageState, ServiceBusReceivedMessage
from tests.contract.kinds import NamespaceKind


async def all_of(receiver: ServiceBusReceiver, kind: NamespaceKind, count: int) -> list[ServiceBusReceivedMessage]:
    messages: list[ServiceBusReceivedMessage] = []
    while len(messages) < count:
        messages += await receiver.receive_messages(count, max_wait_time=kind.patience_s)
    return messages


class Color(str, Enum):  # noqa: UP042 - not a StrEnum: its str() is not its value
    RED = "red"


async def filled(kind: NamespaceKind, count: int, **description: object) -> str:
    """A queue with messages "0", "1", …"""
    queue = await kind.queue(**description)
    async with kind.plain.get_queue_sender(queue) as sender:
        await sender.send_messages([ServiceBusMessage(str(number)) for number in range(count)])
    return queue


async def test_receive_returns_with_the_first_message(kind: NamespaceKind) -> None:
    queue = await kind.queue()
    async with kind.plain.get_queue_receiver(queue) as receiver, kind.plain.get_queue_sender(queue) as sender:
        waiting = asyncio.create_task(receiver.receive_messages(max_wait_time=60.0))
        await clock.sleep(0.5)
        assert not waiting.done()
        await sender.send_messages(ServiceBusMessage("x"))
        (message,) = await waiting
        assert str(message) == "x"
        await receiver.complete_message(message)


async def test_receive_returns_an_empty_list_without_messages(kind: NamespaceKind) -> None:
    queue = await kind.queue()
    async with kind.plain.get_queue_receiver(queue) as receiver:
        began = clock.monotonic()
        assert await receiver.receive_messages(5, max_wait_time=kind.moment_s) == []
        assert clock.monotonic() - began >= kind.moment_s * 0.9


async def test_iteration_ends_when_no_more_messages_arrive(kind: NamespaceKind) -> None:
    queue = await filled(kind, 4)
    seen = []
    async with kind.plain.get_queue_receiver(queue, max_wait_time=kind.moment_s) as receiver:
        async for message in receiver:
            seen.append(str(message))
            await receiver.complete_message(message)
    assert seen == ["0", "1", "2", "3"]


async def test_a_deferred_message_is_received_only_by_its_sequence_number(kind: NamespaceKind) -> None:
    queue = await filled(kind, 2)
    async with kind.plain.get_queue_receiver(queue) as receiver:
        (first,) = await receiver.receive_messages(1, max_wait_time=kind.patience_s)
        await receiver.defer_message(first)
        (second,) = await receiver.receive_messages(1, max_wait_time=kind.patience_s)
        assert str(second) == "1"
        peeked = await receiver.peek_messages(5, sequence_number=1)
        assert {str(each): each.state for each in peeked}["0"] is ServiceBusMessageState.DEFERRED
        (fetched,) = await receiver.receive_deferred_messages(first.sequence_number)
        assert (str(fetched), fetched.state) == ("0", ServiceBusMessageState.DEFERRED)
        await receiver.complete_message(fetched)
        await receiver.complete_message(second)
        with pytest.raises(MessageNotFoundError):
            await receiver.receive_deferred_messages([first.sequence_number])


@pytest.mark.parametrize("how", ["complete", "abandon", "defer", "dead_letter"])
async def test_a_deferred_message_can_be_settled_in_every_way(kind: NamespaceKind, how: str) -> None:
    queue = await filled(kind, 1)
    async with kind.plain.get_queue_receiver(queue) as receiver:
        (message,) = await receiver.receive_messages(1, max_wait_time=kind.patience_s)
        await receiver.defer_message(message)
        (deferred,) = await receiver.receive_deferred_messages(message.sequence_number)
        await getattr(receiver, f"{how}_message")(deferred)
        left = [each.state for each in await receiver.peek_messages(5, sequence_number=1)]
    stays = how in ("abandon", "defer")
    assert left == ([ServiceBusMessageState.DEFERRED] if stays else [])


async def test_a_deferred_message_can_be_received_and_deleted(kind: NamespaceKind) -> None:
    queue = await filled(kind, 1)
    async with kind.plain.get_queue_receiver(queue) as receiver:
        (message,) = await receiver.receive_messages(1, max_wait_time=kind.patience_s)
        await receiver.defer_message(message)
    mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
    async with kind.plain.get_queue_receiver(queue, receive_mode=mode) as receiver:
        (fetched,) = await receiver.receive_deferred_messages(message.sequence_number)
        assert (str(fetched), fetched.lock_token) == ("0", None)
        assert await receiver.peek_messages(5, sequence_number=1) == []


async def test_a_message_is_dead_lettered_after_too_many_deliveries(kind: NamespaceKind) -> None:
    queue = await filled(kind, 1, max_delivery_count=2)
    async with kind.plain.get_queue_receiver(queue) as receiver:
        for _ in range(2):
            (message,) = await receiver.receive_messages(1, max_wait_time=kind.patience_s)
            await receiver.abandon_message(message)
    async with kind.plain.get_queue_receiver(queue, sub_queue="deadletter") as dead:
        (message,) = await dead.receive_messages(1, max_wait_time=kind.patience_s)
        assert message.dead_letter_reason == "MaxDeliveryCountExceeded"
        await dead.complete_message(message)


async def test_an_expired_message_is_dead_lettered_if_enabled(kind: NamespaceKind) -> None:
    queue = await kind.queue(dead_lettering_on_message_expiration=True)
    async with kind.plain.get_queue_sender(queue) as sender:
        await sender.send_messages(ServiceBusMessage("late", time_to_live=timedelta(seconds=1)))
    await clock.sleep(1.5)
    async with kind.plain.get_queue_receiver(queue) as receiver:
        assert await receiver.receive_messages(1, max_wait_time=kind.moment_s) == []
    async with kind.plain.get_queue_receiver(queue, sub_queue="deadletter") as dead:
        (message,) = await dead.receive_messages(1, max_wait_time=kind.patience_s)
        assert message.dead_letter_reason == "TTLExpiredException"
        await dead.complete_message(message)


async def test_two_receivers_that_peek_alternately_each_see_every_message(kind: NamespaceKind) -> None:
    queue = await kind.queue(enable_partitioning=True)
    async with kind.plain.get_queue_sender(queue) as sender:
        sends = (sender.send_messages(ServiceBusMessage(str(n), partition_key=f"key {n}")) for n in range(24))
        await asyncio.gather(*sends)
    expected = sorted(map(str, range(24)))
    async with kind.plain.get_queue_receiver(queue) as one, kind.plain.get_queue_receiver(queue) as other:
        seen: list[list[str]] = [[], []]
        for _ in range(24):
            for receiver, found in zip((one, other), seen, strict=True):
                found += map(str, await receiver.peek_messages(2))
        assert list(map(sorted, seen)) == [expected, expected]


async def test_peek_from_a_number_reaches_all_later_messages_after_others_have_peeked(kind: NamespaceKind) -> None:
    queue = await kind.queue(enable_partitioning=True)
    async with kind.plain.get_queue_sender(queue) as sender:
        sends = (sender.send_messages(ServiceBusMessage(str(n), partition_key=f"key {n}")) for n in range(24))
        await asyncio.gather(*sends)
    numbers: list[int] = []
    async with kind.plain.get_queue_receiver(queue) as other:
        while some := await other.peek_messages(10):
            numbers += [message.sequence_number for message in some]
    numbers.sort()
    for start in (5, 12, 5):
        async with kind.plain.get_queue_receiver(queue) as receiver:
            found: list[int] = []
            number = numbers[start]
            while some := await receiver.peek_messages(3, sequence_number=number):
                found += [message.sequence_number for message in some]
                number = found[-1] + 1
        assert sorted(found) == numbers[start:]


async def test_peek_continues_after_the_last_peeked_message(kind: NamespaceKind) -> None:
    queue = await filled(kind, 5)
    async with kind.plain.get_queue_receiver(queue) as receiver:
        seen: list[str] = []
        while some := await receiver.peek_messages(2):
            assert all(message.lock_token is None for message in some)
            seen += map(str, some)
        assert seen == ["0", "1", "2", "3", "4"]
        (peeked,) = await receiver.peek_messages(1, sequence_number=1)
        for use in (receiver.complete_message, receiver.renew_message_lock):
            with pytest.raises(InvalidOperationError, match="was peeked"):
                await use(peeked)
        assert len(await receiver.receive_messages(5, max_wait_time=kind.patience_s)) == 5


async def test_receive_and_delete_leaves_no_message_to_settle(kind: NamespaceKind) -> None:
    queue = await filled(kind, 3)
    mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
    async with kind.plain.get_queue_receiver(queue, receive_mode=mode) as receiver:
        seen: list[str] = []
        while some := await receiver.receive_messages(2, max_wait_time=kind.moment_s):
            assert all(message.lock_token is None for message in some)
            seen += map(str, some)
            with pytest.raises(InvalidOperationError):
                await receiver.complete_message(some[0])
        assert seen == ["0", "1", "2"]
        assert await receiver.peek_messages(5, sequence_number=1) == []


async def test_receive_and_delete_deletes_only_returned_messages(kind: NamespaceKind) -> None:
    queue = await filled(kind, 1)
    mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
    async with kind.plain.get_queue_sender(queue) as sender:
        async with kind.plain.get_queue_receiver(queue, receive_mode=mode) as receiver:
            assert len(await receiver.receive_messages(10, max_wait_time=kind.patience_s)) == 1
            await sender.send_messages([ServiceBusMessage("later") for _ in range(3)])
            await clock.sleep(0.3)
        async with kind.plain.get_queue_receiver(queue) as receiver:
            assert len(await receiver.peek_messages(5, sequence_number=1)) == 3


async def test_a_message_is_delivered_again_after_its_lock_expires(kind: NamespaceKind) -> None:
    queue = await filled(kind, 1, lock_duration=timedelta(seconds=5))
    async with kind.plain.get_queue_receiver(queue) as receiver:
        (message,) = await receiver.receive_messages(1, max_wait_time=kind.patience_s)
        assert message.locked_until_utc is not None
        await clock.sleep(message.locked_until_utc.timestamp() - clock.now() + 0.5)
        with pytest.raises(MessageLockLostError):
            await receiver.complete_message(message)
        (again,) = await receiver.receive_messages(1, max_wait_time=kind.patience_s)
        assert (again.sequence_number, again.delivery_count) == (message.sequence_number, 1)
        await receiver.complete_message(again)


async def test_a_message_is_settled_once(kind: NamespaceKind) -> None:
    """By the first of several calls, whether they come together or after it."""
    ways = ["complete", "abandon", "defer", "dead_letter"]
    queue = await filled(kind, len(ways))
    async with kind.plain.get_queue_receiver(queue) as receiver:
        messages = await all_of(receiver, kind, len(ways))
        for position, message in enumerate(messages):
            began_at = clock.monotonic()
            calls = [getattr(receiver, f"{how}_message")(message) for how in (ways[position], *ways)]
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
            assert [type(each) for each in outcomes] == [type(None), *[MessageAlreadySettled] * len(ways)]
            assert clock.monotonic() - began_at < kind.patience_s
            with pytest.raises(MessageAlreadySettled):
                await receiver.abandon_message(message)


async def test_settling_does_not_wait_for_a_receive_that_waits(kind: NamespaceKind) -> None:
    queue = await filled(kind, 1)
    async with kind.plain.get_queue_receiver(queue) as receiver:
        (message,) = await receiver.receive_messages(1, max_wait_time=kind.patience_s)
        waiting = asyncio.create_task(receiver.receive_messages(1, max_wait_time=60.0))
        await clock.sleep(0.5)
        await receiver.renew_message_lock(message)
        await receiver.complete_message(message)
        assert not waiting.done()
        waiting.cancel()
        await asyncio.wait({waiting})


async def test_many_settle_at_once_while_more_is_received(kind: NamespaceKind) -> None:
    queue = await filled(kind, 40)
    done: set[str] = set()
    async with kind.plain.get_queue_receiver(queue) as receiver:
        while len(done) < 40:
            messages = await receiver.receive_messages(10, max_wait_time=kind.patience_s)
            assert messages
            await asyncio.gather(*(receiver.complete_message(message) for message in messages))
            done |= {str(message) for message in messages}
        assert await receiver.peek_messages(5, sequence_number=1) == []


async def test_a_cancelled_receive_loses_no_message(kind: NamespaceKind) -> None:
    queue = await kind.queue()
    spent: Counter[str] = Counter()
    async with kind.plain.get_queue_sender(queue) as sender, kind.plain.get_queue_receiver(queue) as receiver:
        for number in range(4):
            waiting = asyncio.create_task(receiver.receive_messages(5, max_wait_time=30.0))
            await clock.sleep(0.3)
            await sender.send_messages(ServiceBusMessage(str(number)))
            waiting.cancel()
            await asyncio.wait({waiting})
            if not waiting.cancelled():
                for message in waiting.result():
                    await receiver.abandon_message(message)
                    spent[str(message)] += 1
        seen: set[str] = set()
        while len(seen) < 4:
            messages = await receiver.receive_messages(5, max_wait_time=kind.patience_s)
            assert messages, f"only {sorted(seen)} came again"
            for message in messages:
                assert message.delivery_count == spent[str(message)], (
                    "an unused message was released without a delivery"
                )
                await receiver.complete_message(message)
                seen.add(str(message))
    assert seen == {"0", "1", "2", "3"}


async def test_prefetched_messages_are_released_without_a_delivery(kind: NamespaceKind) -> None:
    queue = await filled(kind, 10)
    async with kind.plain.get_queue_receiver(queue, prefetch_count=20) as ahead:
        (first,) = await ahead.receive_messages(1, max_wait_time=kind.patience_s)
        await clock.sleep(0.5)
        await ahead.complete_message(first)
    async with kind.plain.get_queue_receiver(queue) as receiver:
        seen: dict[str, int] = {}
        while len(seen) < 9:
            messages = await receiver.receive_messages(10, max_wait_time=kind.patience_s)
            assert messages
            seen |= {str(message): message.delivery_count for message in messages}
    assert seen == {str(number): 0 for number in range(1, 10)}


async def test_a_receiver_of_a_missing_entity_raises(kind: NamespaceKind) -> None:
    name = kind.new_name("nowhere")
    async with kind.plain.get_queue_receiver(name) as receiver:
        with pytest.raises(MessagingEntityNotFoundError):
            await receiver.receive_messages(1, max_wait_time=kind.patience_s)


async def test_a_closed_receiver_receives_no_more(kind: NamespaceKind) -> None:
    queue = await filled(kind, 1)
    receiver = kind.plain.get_queue_receiver(queue)
    (message,) = await receiver.receive_messages(1, max_wait_time=kind.patience_s)
    await receiver.close()
    await receiver.close()
    with pytest.raises(InvalidOperationError):
        await receiver.receive_messages(1)
    with pytest.raises(InvalidOperationError):
        await receiver.complete_message(message)


@pytest.mark.deviation("client.raw-amqp")
async def test_the_sections_of_a_received_message_can_be_read(kind: NamespaceKind) -> None:
    queue = await kind.queue()
    ttl = timedelta(hours=1)
    sent = ServiceBusMessage("x", message_id="m", subject="s", time_to_live=ttl, application_properties={"n": 1})
    async with kind.plain.get_queue_sender(queue) as sender, kind.plain.get_queue_receiver(queue) as receiver:
        await sender.send_messages(sent)
        (message,) = await receiver.receive_messages(max_wait_time=kind.patience_s)
        await receiver.complete_message(message)
        raw = message.raw_amqp_message
        await sender.send_messages(raw)
        (again,) = await receiver.receive_messages(max_wait_time=kind.patience_s)
        await receiver.complete_message(again)
    assert (str(again), again.message_id, again.time_to_live) == ("x", "m", ttl)
    assert (raw.properties.message_id, raw.properties.subject, raw.properties.group_id) == ("m", "s", None)
    assert (raw.header.time_to_live, raw.header.delivery_count) == (3_600_000, 0)
    assert raw.annotations["x-opt-sequence-number"] == message.sequence_number
    assert raw.annotations["x-opt-enqueued-time"] == message.enqueued_time_utc
    with pytest.warns(UserWarning, match="look up 'x-opt-enqueued-time'"):
        assert raw.annotations.get(b"x-opt-enqueued-time") is None  # type: ignore[call-overload]
    assert raw.application_properties == {"n": 1}
    assert (list(raw.body), raw.body_type) == ([b"x"], message.body_type)
    assert "body=" not in repr(raw)


@pytest.mark.parametrize(
    ("given", "read"), [(ValueError("boom"), "boom"), (TimeoutError(), "TimeoutError"), (Color.RED, "red"), ("", None)]
)
async def test_a_reason_may_be_an_exception_or_an_enum(kind: NamespaceKind, given: Any, read: str | None) -> None:
    queue = await filled(kind, 1)
    async with kind.plain.get_queue_receiver(queue) as receiver:
        (message,) = await receiver.receive_messages(max_wait_time=kind.patience_s)
        await receiver.dead_letter_message(message, reason=given, error_description=given)
    async with kind.plain.get_queue_receiver(queue, sub_queue="deadletter") as receiver:
        (dead,) = await receiver.receive_messages(max_wait_time=kind.patience_s)
        assert (dead.dead_letter_reason, dead.dead_letter_error_description) == (read, read)
        assert type(dead.dead_letter_reason) in (str, type(None))


async def test_any_number_of_messages_can_be_asked_for(kind: NamespaceKind) -> None:
    queue = await filled(kind, 1)
    async with kind.plain.get_queue_receiver(queue) as receiver:
        for count in (2**31, 2**32, sys.maxsize):
            assert len(await receiver.peek_messages(count, sequence_number=1)) == 1
            (message,) = await receiver.receive_messages(count, max_wait_time=kind.patience_s)
            await receiver.abandon_message(message)


@pytest.mark.parametrize(
    "copied",
    [copy.copy, copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))],
    ids=["copy", "deepcopy", "pickle"],
)
async def test_copies_of_messages_and_batches(kind: NamespaceKind, copied: Callable[[Any], Any]) -> None:
    """A copy has what the message has but its link, so that it cannot be settled; the message still can."""
    queue = await kind.queue()
    properties = {"text": "é", "number": 5, "flag": True, "id": UUID(int=1)}
    async with kind.plain.get_queue_sender(queue) as sender, kind.plain.get_queue_receiver(queue) as receiver:
        sent = ServiceBusMessage("body", message_id="id", subject="s", application_properties={**properties})
        batch = await sender.create_message_batch()
        batch.add_message(sent)
        twin = copied(batch)
        twin.add_message(ServiceBusMessage("more"))
        assert (len(batch), len(twin)) == (1, 2)
        assert batch.size_in_bytes < twin.size_in_bytes
        await sender.send_messages(copied(sent))
        await sender.send_messages(twin)
        messages: list[Any] = []
        while len(messages) < 3:
            messages += await receiver.receive_messages(3, kind.patience_s)
        (peeked,) = await receiver.peek_messages(1, sequence_number=1)
        for message in (*messages, peeked):
            again = copied(copied(message))
            for name in ("message_id", "subject", "application_properties", "sequence_number", "lock_token", "state"):
                assert getattr(again, name) == getattr(message, name), name
            assert (again.locked_until_utc, again.enqueued_time_utc) == (
                message.locked_until_utc,
                message.enqueued_time_utc,
            )
            assert bytes(again) == bytes(message)
            for refused in (receiver.complete_message, receiver.renew_message_lock):
                with pytest.raises(InvalidOperationError, match="copied or unpickled"):
                    await refused(again)
        for message in messages:
            await receiver.complete_message(message)
            assert str(copied(message)) == str(message)


async def test_a_peek_of_the_dead_letters_shows_what_has_expired(kind: NamespaceKind) -> None:
    queue = await kind.queue(dead_lettering_on_message_expiration=True)
    sender = kind.plain.get_queue_sender(queue)
    dead = kind.plain.get_queue_receiver(queue, sub_queue="deadletter")
    async with sender, dead:
        for number in range(2):
            await sender.send_messages(ServiceBusMessage(str(number), time_to_live=timedelta(seconds=1)))
            await clock.sleep(1.5)
            assert [str(one) for one in await dead.peek_messages(5, sequence_number=1)] == ["0", "1"][: number + 1]
