"""The same client calls on a plain and on a partitioned queue: the results differ only as documented.

What the documents say of partitioned entities is the table at the end: peek answers from one fragment, and one
transfer, or one transaction, has one key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest

from sbclient import (
    InvalidOperationError,
    ServiceBusClient,
    ServiceBusError,
    ServiceBusMessage,
    ServiceBusReceivedMessage,
    ServiceBusReceiver,
    ServiceBusSender,
    clock,
)
from tests.broker.driver import KEYS
from tests.contract.kinds import NamespaceKind

pytestmark = pytest.mark.needs("partitioning")

Script = Callable[[NamespaceKind, ServiceBusClient, str], Awaitable[list[Any]]]


def texts(messages: Sequence[ServiceBusReceivedMessage]) -> list[str]:
    return [str(message) for message in messages]


async def refusal_of(work: Awaitable[object]) -> str:
    """The class of the error that something ends with; empty if it is done."""
    try:
        await work
    except ServiceBusError as error:
        return type(error).__name__
    return ""


async def taken(kind: NamespaceKind, receiver: ServiceBusReceiver, count: int) -> list[ServiceBusReceivedMessage]:
    """So many messages, in as many calls as it takes."""
    found: list[ServiceBusReceivedMessage] = []
    while len(found) < count:
        some = await receiver.receive_messages(count - len(found), max_wait_time=kind.patience_s)
        assert some, f"{len(found)} of {count} came"
        found += some
    return found


async def settling(kind: NamespaceKind, client: ServiceBusClient, queue: str) -> list[Any]:
    """Everything that can be done with a message, for messages of one key."""
    async with client.get_queue_sender(queue) as sender, client.get_queue_receiver(queue) as receiver:
        await sender.send_messages([ServiceBusMessage(f"{n}", partition_key="k", subject=f"s{n}") for n in range(5)])
        first, second, third, fourth, fifth = await taken(kind, receiver, 5)
        results: list[Any] = [texts([first, second, third, fourth, fifth]), fifth.subject, first.delivery_count]
        await receiver.complete_message(first)
        await receiver.abandon_message(second)
        await receiver.defer_message(third)
        await receiver.dead_letter_message(fourth, reason="why", error_description="in full")
        results.append(await receiver.renew_message_lock(fifth) >= fifth.enqueued_time_utc)
        await receiver.complete_message(fifth)
        (again,) = await taken(kind, receiver, 1)
        results += [str(again), again.delivery_count]
        await receiver.complete_message(again)
        assert third.sequence_number is not None
        (fetched,) = await receiver.receive_deferred_messages([third.sequence_number])
        results += [str(fetched), fetched.delivery_count]
        await receiver.complete_message(fetched)
        results.append(await refusal_of(receiver.receive_deferred_messages([third.sequence_number])))
        async with client.get_queue_receiver(queue, sub_queue="deadletter") as dead:
            (buried,) = await taken(kind, dead, 1)
            results += [str(buried), buried.dead_letter_reason, buried.dead_letter_error_description]
            await dead.complete_message(buried)
    return results


async def without_keys(kind: NamespaceKind, client: ServiceBusClient, queue: str) -> list[Any]:
    """Messages without a key: all come once; on a partitioned entity in any order."""
    async with client.get_queue_sender(queue) as sender, client.get_queue_receiver(queue) as receiver:
        for number in range(20):
            await sender.send_messages(ServiceBusMessage(f"{number:02}"))
        found = await taken(kind, receiver, 20)
        for message in found:
            await receiver.complete_message(message)
        return [sorted(texts(found)), await receiver.receive_messages(1, max_wait_time=kind.moment_s)]


async def scheduling(kind: NamespaceKind, client: ServiceBusClient, queue: str) -> list[Any]:
    """Numbers of scheduled messages cancel them, once."""
    moment = datetime.fromtimestamp(clock.now(), UTC) + timedelta(hours=1)
    async with client.get_queue_sender(queue) as sender:
        numbers = await sender.schedule_messages([ServiceBusMessage(n, partition_key="k") for n in "ab"], moment)
        await sender.cancel_scheduled_messages(numbers[0])
        twice = await refusal_of(sender.cancel_scheduled_messages(numbers[0]))
    counts = await client.administration.get_queue_runtime_properties(queue)
    return [len(set(numbers)), twice, counts.scheduled_message_count, counts.active_message_count]


async def mistakes(kind: NamespaceKind, client: ServiceBusClient, queue: str) -> list[Any]:
    """Errors that are the same for every kind of entity."""
    async with client.get_queue_sender(queue) as sender:
        return [
            await refusal_of(sender.send_messages(ServiceBusMessage("x", session_id="a", partition_key="b"))),
            await refusal_of(sender.send_messages(ServiceBusMessage(b"x" * 2**19))),
            await refusal_of(client.get_queue_receiver(queue, session_id="a").receive_messages(1, max_wait_time=1)),
            await refusal_of(sender.cancel_scheduled_messages(5)),
        ]


async def sessions(kind: NamespaceKind, client: ServiceBusClient, queue: str) -> list[Any]:
    """Sessions: order, state, and one holder."""
    results: list[Any] = []
    async with client.get_queue_sender(queue) as sender:
        for number in range(6):
            await sender.send_messages(ServiceBusMessage(f"{number}", session_id="ab"[number % 2]))
        results.append(await refusal_of(sender.send_messages(ServiceBusMessage("x"))))
    for name in "ab":
        async with client.get_queue_receiver(queue, session_id=name) as receiver:
            found = await taken(kind, receiver, 3)
            results.append([(str(each), each.session_id) for each in found])
            await receiver.abandon_message(found[0])
            results.append(texts(await taken(kind, receiver, 1)))
            assert receiver.session is not None
            results.append(await receiver.session.get_state())
            await receiver.session.set_state(f"state of {name}")
            results.append(await receiver.session.get_state())
            results.append(await refusal_of(client.get_queue_receiver(queue, session_id=name).__aenter__()))
    if "session lists" in kind.capabilities:
        results.append([name async for name in client.list_queue_sessions(queue)])
    return results


async def every_fragment(kind: NamespaceKind, client: ServiceBusClient, queue: str) -> list[Any]:
    """Everything that names several messages at once, for messages in all fragments."""
    results: list[Any] = []
    moment = datetime.fromtimestamp(clock.now(), UTC) + timedelta(hours=1)
    async with client.get_queue_sender(queue) as sender, client.get_queue_receiver(queue) as receiver:
        scheduled: list[int] = []
        for key in KEYS:
            await sender.send_messages(ServiceBusMessage(key, partition_key=key))
            scheduled += await sender.schedule_messages(ServiceBusMessage(key, partition_key=key), moment)
        await sender.cancel_scheduled_messages(scheduled[::-1])
        results.append(await refusal_of(sender.cancel_scheduled_messages(scheduled)))
        found = await taken(kind, receiver, len(KEYS))
        ends = await asyncio.gather(*map(receiver.renew_message_lock, found))
        results.append(len(ends))
        await asyncio.gather(*map(receiver.defer_message, found))
        numbers = [message.sequence_number for message in found]
        again = await receiver.receive_deferred_messages(numbers[::-1])
        results += [texts(again) == texts(found[::-1]), len(set(numbers)), {each.delivery_count for each in again}]
        results.append(await refusal_of(receiver.receive_deferred_messages(numbers)))
        await asyncio.gather(*map(receiver.abandon_message, again[:8]), *map(receiver.dead_letter_message, again[8:]))
        kept = await receiver.receive_deferred_messages([*numbers[8:], numbers[8]])
        results.append(texts(kept) == texts(found[8:]))
        await asyncio.gather(*map(receiver.defer_message, kept))
        seen = 0
        async with client.get_queue_receiver(queue) as other:
            while page := await other.peek_messages(250):
                seen += len(page)
        results.append(seen)
        async with client.get_queue_receiver(queue, receive_mode="receiveanddelete") as deleting:
            results.append(texts(await deleting.receive_deferred_messages(numbers[8:])) == texts(found[8:]))
    async with client.get_queue_receiver(queue, sub_queue="deadletter") as dead:
        buried = await taken(kind, dead, 8)
        await asyncio.gather(*map(dead.defer_message, buried))
        parked = await dead.receive_deferred_messages([each.sequence_number for each in buried])
        results.append(texts(parked) == texts(buried))
        await asyncio.gather(*map(dead.complete_message, parked))
    counts = await client.administration.get_queue_runtime_properties(queue)
    return [*results, counts.total_message_count]


async def sessions_of_every_fragment(kind: NamespaceKind, client: ServiceBusClient, queue: str) -> list[Any]:
    """Everything that can be done with a session, for sessions in all fragments."""
    results: list[Any] = []
    async with client.get_queue_sender(queue) as sender:
        for key in KEYS:
            await sender.send_messages([ServiceBusMessage(f"{key} {n}", session_id=key) for n in range(2)])
    for key in KEYS:
        async with client.get_queue_receiver(queue, session_id=key) as receiver:
            found = await taken(kind, receiver, 2)
            await asyncio.gather(*map(receiver.defer_message, found))
            await receiver.session.set_state(key)
            await receiver.session.renew_lock()
            again = await receiver.receive_deferred_messages([each.sequence_number for each in found[::-1]])
            results += [texts(again), await receiver.session.get_state()]
            await asyncio.gather(*map(receiver.complete_message, again))
    return results


async def duplicates(kind: NamespaceKind, client: ServiceBusClient, queue: str) -> list[Any]:
    """A second copy of a message is accepted and dropped."""
    async with client.get_queue_sender(queue) as sender, client.get_queue_receiver(queue) as receiver:
        for body in ("first", "second"):
            await sender.send_messages(ServiceBusMessage(body, message_id="m"))
        (kept,) = await taken(kind, receiver, 1)
        await receiver.complete_message(kept)
        return [str(kept), await receiver.receive_messages(1, max_wait_time=kind.moment_s)]


async def one_transaction(kind: NamespaceKind, client: ServiceBusClient, queue: str) -> list[Any]:
    """Messages of one key, sent together."""
    async with client.get_queue_sender(queue) as sender, client.get_queue_receiver(queue) as receiver:
        async with client.transaction() as transaction:
            for body in "ab":
                await sender.send_messages(ServiceBusMessage(body, partition_key="k"), transaction=transaction)
        undone = client.transaction()
        async with undone:
            await sender.send_messages(ServiceBusMessage("c", partition_key="k"), transaction=undone)
            await undone.rollback()
        return [texts(await taken(kind, receiver, 2)), await receiver.receive_messages(1, max_wait_time=kind.moment_s)]


@pytest.mark.parametrize(
    ("script", "described"),
    [
        (settling, {}),
        (without_keys, {}),
        (scheduling, {}),
        (mistakes, {}),
        (sessions, {"requires_session": True}),
        (every_fragment, {}),
        (sessions_of_every_fragment, {"requires_session": True}),
        (duplicates, {"requires_duplicate_detection": True}),
        (one_transaction, {}),
    ],
    ids=lambda each: getattr(each, "__name__", None),
)
async def test_the_same_calls_have_the_same_result(
    kind: NamespaceKind, script: Script, described: dict[str, bool]
) -> None:
    plain = await script(kind, kind.plain, await kind.queue(**described))
    partitioned = await script(kind, kind.plain, await kind.queue(enable_partitioning=True, **described))
    assert partitioned == plain


# What differs -------------------------------------------------------------------------------------------------------


async def two_keys_in_a_transfer(kind: NamespaceKind, sender: ServiceBusSender, queue: str) -> str:
    return await refusal_of(sender.send_messages([ServiceBusMessage("x", partition_key=key) for key in "ab"]))


async def two_keys_in_a_transaction(kind: NamespaceKind, sender: ServiceBusSender, queue: str) -> str:
    async with kind.plain.transaction() as transaction:
        await sender.send_messages(ServiceBusMessage("x", partition_key="a"), transaction=transaction)
        return await refusal_of(
            sender.send_messages(ServiceBusMessage("x", partition_key="b"), transaction=transaction)
        )


async def no_key_in_a_transaction(kind: NamespaceKind, sender: ServiceBusSender, queue: str) -> str:
    async with kind.plain.transaction() as transaction:
        return await refusal_of(sender.send_messages(ServiceBusMessage("x"), transaction=transaction))


async def one_id_under_two_keys(kind: NamespaceKind, sender: ServiceBusSender, queue: str) -> int:
    for key in "ab":
        await sender.send_messages(ServiceBusMessage("x", message_id="m", partition_key=key))
    return (await kind.administration.get_queue_runtime_properties(queue)).active_message_count


async def one_peek_at_sixteen_messages(kind: NamespaceKind, sender: ServiceBusSender, queue: str) -> int:
    for _ in range(16):
        await sender.send_messages(ServiceBusMessage("x"))
    async with kind.plain.get_queue_receiver(queue) as receiver:
        return len(await receiver.peek_messages(16))


async def numbers_beyond_48_bits(kind: NamespaceKind, sender: ServiceBusSender, queue: str) -> bool:
    for _ in range(2):
        await sender.send_messages(ServiceBusMessage("x"))
    async with kind.plain.get_queue_receiver(queue) as receiver:
        found = await taken(kind, receiver, 2)
    return any((message.sequence_number or 0) >> 48 for message in found)


REFUSED: Final = InvalidOperationError.__name__


@pytest.mark.parametrize(
    ("ask", "described", "on_plain", "on_partitioned"),
    [
        (two_keys_in_a_transfer, {}, "", REFUSED),
        (two_keys_in_a_transaction, {}, "", REFUSED),
        (no_key_in_a_transaction, {}, "", REFUSED),
        (one_id_under_two_keys, {"requires_duplicate_detection": True}, 1, 2),
        (one_peek_at_sixteen_messages, {}, 16, 1),
        (numbers_beyond_48_bits, {}, False, True),
    ],
    ids=lambda each: getattr(each, "__name__", None),
)
async def test_plain_and_partitioned_entities_differ_as_documented(
    kind: NamespaceKind,
    ask: Callable[[NamespaceKind, ServiceBusSender, str], Awaitable[Any]],
    described: dict[str, bool],
    on_plain: Any,
    on_partitioned: Any,
) -> None:
    for is_partitioned, expected in ((False, on_plain), (True, on_partitioned)):
        queue = await kind.queue(enable_partitioning=is_partitioned, **described)
        async with kind.plain.get_queue_sender(queue) as sender:
            assert await ask(kind, sender, queue) == expected
