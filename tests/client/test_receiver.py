"""Receivers: waiting, settling, sessions, and rejected operations."""

from __future__ import annotations

import asyncio
from copy import copy
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any, Final

import pytest

from sbclient import clock
from sbclient.broker.faults import Operation
from sbclient.client.client import ServiceBusClient
from sbclient.delivery import NEXT_AVAILABLE_SESSION, ServiceBusReceiveMode
from sbclient.errors import (
    InvalidOperationError,
    MessageAlreadySettled,
    MessageLockLostError,
    MessageNotFoundError,
    OperationTimeoutError,
    ServiceBusConnectionError,
    ServiceBusInternalError,
    SessionCannotBeLockedError,
    SessionLockLostError,
)
from sbclient.message import ServiceBusMessage
from sbclient.testing import Fault, FaultKind, MemoryPair
from sbclient.transport.memory.receiver import MemoryReceiver
from tests.broker.driver import KEYS
from tests.client.scene import QUEUE, cancel, make_queue, taken, texts, with_pings


async def send(client: ServiceBusClient, *texts: str, queue: str = QUEUE, **attributes: Any) -> None:
    async with client.get_queue_sender(queue) as sender:
        await sender.send_messages([ServiceBusMessage(text, **attributes) for text in texts])


@pytest.mark.parametrize(("own_s", "asked_s", "waits_s"), [(None, None, 60), (20, None, 20), (20, 5, 5)])
async def test_receive_returns_an_empty_list_after_the_wait(
    client: ServiceBusClient, own_s: float | None, asked_s: float | None, waits_s: float
) -> None:
    async with client.get_queue_receiver(QUEUE, max_wait_time=own_s) as receiver:
        assert await receiver.receive_messages(max_wait_time=asked_s) == []
    assert clock.monotonic() == waits_s


async def test_receive_returns_at_most_max_message_count(pair: MemoryPair, client: ServiceBusClient) -> None:
    await send(client, *"abcde")
    async with client.get_queue_receiver(QUEUE) as receiver:
        assert texts(await receiver.receive_messages()) == ["a"]
        assert texts(await receiver.receive_messages(None)) == ["b"]
        assert texts(await receiver.receive_messages(10)) == ["c", "d", "e"]


async def test_iteration_without_max_wait_time_does_not_end(pair: MemoryPair, client: ServiceBusClient) -> None:
    async with client.get_queue_receiver(QUEUE) as receiver:
        following = asyncio.ensure_future(receiver.__anext__())
        await clock.sleep(1000.0)
        assert not following.done()
        await send(client, "a")
        assert str(await following) == "a"


# -- settling ----------------------------------------------------------------------------------------------------------


async def test_a_lock_expires_and_can_be_renewed(pair: MemoryPair, client: ServiceBusClient) -> None:
    await send(client, "a")
    async with client.get_queue_receiver(QUEUE) as receiver:
        (message,) = await receiver.receive_messages()
        await clock.sleep(50.0)
        until = await receiver.renew_message_lock(message)
        assert until == message.locked_until_utc == datetime.fromtimestamp(clock.now(), UTC) + timedelta(seconds=60)
        await clock.sleep(61.0)
        for use in (receiver.complete_message(message), receiver.renew_message_lock(message)):
            with pytest.raises(MessageLockLostError):
                await use
        assert not message.is_settled
    assert texts(await taken(pair)) == ["a"]


async def test_a_settlement_is_retried_after_a_transient_error(pair: MemoryPair, client: ServiceBusClient) -> None:
    await send(client, "a")
    async with client.get_queue_receiver(QUEUE) as receiver:
        (message,) = await receiver.receive_messages()
        pair.primary.inject(Fault(FaultKind.DOWN, count=2))
        await receiver.complete_message(message)
    assert await taken(pair) == []


async def test_deferred_messages_are_received_all_or_none(pair: MemoryPair, client: ServiceBusClient) -> None:
    await send(client, "a")
    async with client.get_queue_receiver(QUEUE) as receiver:
        (message,) = await receiver.receive_messages()
        await receiver.defer_message(message)
        with pytest.raises(MessageNotFoundError):
            await receiver.receive_deferred_messages([message.sequence_number, 999])
        assert texts(await receiver.receive_deferred_messages([message.sequence_number])) == ["a"]


async def deferred_in_every_fragment(pair: MemoryPair, client: ServiceBusClient, queue: str) -> list[int]:
    await make_queue(pair, queue, enable_partitioning=True)
    numbers: list[int] = []
    async with client.get_queue_sender(queue) as sender, client.get_queue_receiver(queue) as receiver:
        for key in KEYS:
            await sender.send_messages(ServiceBusMessage(key, partition_key=key))
        while len(numbers) < len(KEYS):
            for message in await receiver.receive_messages(len(KEYS)):
                await receiver.defer_message(message)
                numbers.append(message.sequence_number)
    return sorted(numbers)


@pytest.mark.deviation("client.partitions")
async def test_a_partition_that_fails_leaves_the_deferred_messages_of_the_others_deferred(
    pair: MemoryPair, client: ServiceBusClient
) -> None:
    numbers = await deferred_in_every_fragment(pair, client, "p")
    async with client.get_queue_receiver("p") as receiver:
        for missing in (numbers[3] + 1, numbers[3] + 5):
            with pytest.raises(MessageNotFoundError, match=f"numbers: {missing}") as raised:
                await receiver.receive_deferred_messages([*numbers, missing])
            assert raised.value.__notes__ == [
                f"1 of 16 partitions failed, with the sequence numbers {numbers[3]}, {missing}"
            ]
        again = await receiver.receive_deferred_messages(numbers)
        assert texts(again) == KEYS
        assert [each.delivery_count for each in again] == [1 if each is again[3] else 3 for each in again]


@pytest.mark.deviation("client.partitions")
async def test_what_the_other_partitions_deleted_is_returned_by_the_next_call(
    pair: MemoryPair, client: ServiceBusClient
) -> None:
    numbers = await deferred_in_every_fragment(pair, client, "p")
    mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
    async with client.get_queue_receiver("p", receive_mode=mode) as receiver:
        fault = Fault(FaultKind.DOWN, entity_path="p", fragments=[7], operations=[Operation.RECEIVE_DEFERRED])
        pair.primary.inject(fault)
        with pytest.raises(ServiceBusInternalError):
            await receiver.receive_deferred_messages(numbers, timeout=30)
        pair.primary.heal(fault)
        hanging = Fault(FaultKind.HANG, entity_path="p", fragments=[7], operations=[Operation.RECEIVE_DEFERRED])
        pair.primary.inject(hanging)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await receiver.receive_deferred_messages(numbers[:9])
        pair.primary.heal(hanging)
        assert texts(await receiver.receive_deferred_messages(numbers[::-1])) == KEYS[::-1]
        for number in numbers:
            with pytest.raises(MessageNotFoundError):
                await receiver.receive_deferred_messages(number)


@pytest.mark.parametrize("starts", list(product((0, 2, 7), repeat=3)))
async def test_a_peek_continues_after_the_last_message_that_was_peeked(
    pair: MemoryPair, client: ServiceBusClient, starts: tuple[int, ...]
) -> None:
    await send(client, *"abcdefghi")
    position = 1
    async with client.get_queue_receiver(QUEUE) as receiver:
        for start in (*starts, 0, 0):
            found = [message.sequence_number for message in await receiver.peek_messages(2, sequence_number=start)]
            assert found == list(range(start or position, 10))[:2]
            position = found[-1] + 1 if found else position


# -- disturbances ------------------------------------------------------------------------------------------------------


async def test_receive_retries_transient_errors_and_raises_in_an_outage(
    pair: MemoryPair, client: ServiceBusClient
) -> None:
    await send(client, "a")
    async with client.get_queue_receiver(QUEUE) as receiver:
        pair.primary.inject(Fault(FaultKind.DOWN, count=3))
        assert texts(await receiver.receive_messages()) == ["a"]
        pair.primary.inject(Fault(FaultKind.DOWN))
        with pytest.raises(ServiceBusConnectionError):
            await receiver.receive_messages()


@pytest.mark.parametrize("steps", range(8))
async def test_a_cancelled_receive_loses_no_message(pair: MemoryPair, client: ServiceBusClient, steps: int) -> None:
    await send(client, "a")
    async with client.get_queue_receiver(QUEUE) as receiver:
        receive = asyncio.ensure_future(receiver.receive_messages())
        for _ in range(steps):
            await asyncio.sleep(0)
        receive.cancel()
        (answer,) = await asyncio.gather(receive, return_exceptions=True)
        if isinstance(answer, list):
            assert texts(answer) == ["a"]
            await receiver.abandon_message(answer[0])
    assert texts(await taken(pair)) == ["a"]


@pytest.mark.deviation("client.dropped-pings")
@pytest.mark.parametrize("mode", list(ServiceBusReceiveMode))
async def test_received_pings_are_completed_and_skipped(
    pair: MemoryPair, client: ServiceBusClient, mode: ServiceBusReceiveMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    await send(client, "ping", "ping", "a")
    monkeypatch.setattr(MemoryReceiver, "receive", with_pings(MemoryReceiver.receive))
    pair.primary.inject(Fault(FaultKind.ERROR, operations=[Operation.SETTLE], count=1))
    async with client.get_queue_receiver(QUEUE, receive_mode=mode) as receiver:
        assert texts(await receiver.receive_messages()) == ["a"]
        assert await receiver.receive_messages(max_wait_time=10) == []
        left = texts(await receiver.peek_messages(10))
    assert clock.monotonic() == pytest.approx(10.0)
    assert left == (["ping", "a"] if mode is ServiceBusReceiveMode.PEEK_LOCK else [])


# -- sessions ----------------------------------------------------------------------------------------------------------


async def test_a_named_session_is_locked_by_one_receiver(pair: MemoryPair, client: ServiceBusClient) -> None:
    await make_queue(pair, "visits", requires_session=True)
    await send(client, "a", queue="visits", session_id="s")
    async with client.get_queue_receiver("visits", session_id="s") as receiver:
        assert receiver.session is not None
        assert receiver.session.session_id == "s"
        with pytest.raises(SessionCannotBeLockedError):
            await client.get_queue_receiver("visits", session_id="s").__aenter__()
        (message,) = await receiver.receive_messages()
        with pytest.raises(TypeError, match=r"session\.renew_lock"):
            await receiver.renew_message_lock(message)
        await receiver.complete_message(message)
    async with client.get_queue_receiver("visits", session_id="s"):
        pass


async def test_a_named_session_has_the_timeout_of_the_client_whatever_the_wait_for_messages(
    pair: MemoryPair, client: ServiceBusClient
) -> None:
    await make_queue(pair, "visits", requires_session=True)
    pair.primary.inject(Fault(FaultKind.SLOW, latency_s=3, count=1))
    async with client.get_queue_receiver("visits", session_id="s", max_wait_time=1) as receiver:
        assert receiver.session.session_id == "s"


def test_a_session_of_dead_letters_is_refused(client: ServiceBusClient) -> None:
    with pytest.raises(ValueError, match="session_id and sub_queue"):
        client.get_queue_receiver("visits", session_id="s", sub_queue="deadletter")


@pytest.mark.deviation("client.entering")
async def test_receive_waits_for_the_next_available_session(pair: MemoryPair, client: ServiceBusClient) -> None:
    await make_queue(pair, "visits", requires_session=True)
    with pytest.raises(OperationTimeoutError):
        await client.get_queue_receiver("visits", session_id=NEXT_AVAILABLE_SESSION, max_wait_time=7).__aenter__()
    assert clock.monotonic() == 7.0
    receiver = client.get_queue_receiver("visits", session_id=NEXT_AVAILABLE_SESSION)
    receive = asyncio.ensure_future(receiver.receive_messages())
    await clock.sleep(20.0)
    await send(client, "a", queue="visits", session_id="s")
    assert texts(await receive) == ["a"]
    await receiver.close()


async def test_two_callers_of_one_receiver_accept_one_session(pair: MemoryPair, client: ServiceBusClient) -> None:
    await make_queue(pair, "visits", requires_session=True)
    for session in "st":
        await send(client, session, queue="visits", session_id=session)
    receiver = client.get_queue_receiver("visits", session_id=NEXT_AVAILABLE_SESSION)
    await asyncio.gather(*(receiver.receive_messages(max_wait_time=1) for _ in range(2)))
    async with client.get_queue_receiver("visits", session_id=NEXT_AVAILABLE_SESSION, max_wait_time=1) as other:
        assert receiver.session is not None
        assert other.session is not None
        assert other.session.session_id != receiver.session.session_id
    await receiver.close()


async def test_a_session_keeps_its_state(pair: MemoryPair, client: ServiceBusClient) -> None:
    await make_queue(pair, "visits", requires_session=True)
    for state, stored in (("text", b"text"), (b"bytes", b"bytes"), (bytearray(b"x"), b"x"), (None, None)):
        async with client.get_queue_receiver("visits", session_id="s") as receiver:
            assert receiver.session is not None
            await receiver.session.set_state(state, timeout=5)
        async with client.get_queue_receiver("visits", session_id="s") as receiver:
            assert receiver.session is not None
            assert await receiver.session.get_state(timeout=5) == stored


async def test_a_session_lock_is_renewed_or_lost(pair: MemoryPair, client: ServiceBusClient) -> None:
    await make_queue(pair, "visits", requires_session=True)
    await send(client, "a", queue="visits", session_id="s")
    async with client.get_queue_receiver("visits", session_id="s") as receiver:
        session = receiver.session
        assert session is not None
        await clock.sleep(50.0)
        assert await session.renew_lock() == session.locked_until_utc
        await clock.sleep(61.0)
        for use in (session.renew_lock(), session.get_state(), receiver.receive_messages()):
            with pytest.raises(SessionLockLostError):
                await use


async def test_session_id_raises_before_the_session_is_accepted(pair: MemoryPair, client: ServiceBusClient) -> None:
    receiver = client.get_queue_receiver(QUEUE, session_id="s")
    assert receiver.session is not None
    with pytest.raises(InvalidOperationError):
        _ = receiver.session.session_id
    assert client.get_queue_receiver(QUEUE).session is None


@pytest.mark.parametrize("given", ["a", None, ["1"], [1, None]])
async def test_receive_deferred_messages_requires_integers(client: ServiceBusClient, given: Any) -> None:
    with pytest.raises(TypeError, match="must be an int"):
        await client.get_queue_receiver("orders").receive_deferred_messages(given)


# -- one message, several calls ----------------------------------------------------------------------------------------

OPERATIONS: Final = (
    "complete_message",
    "abandon_message",
    "defer_message",
    "dead_letter_message",
    "renew_message_lock",
)


@pytest.mark.parametrize("later", OPERATIONS)
@pytest.mark.parametrize("earlier", [*OPERATIONS[:4], "in progress", "cancelled", "copied", "closed"])
async def test_a_message_is_settled_once_and_what_is_refused_asks_nothing(
    pair: MemoryPair, client: ServiceBusClient, earlier: str, later: str
) -> None:
    async with client.get_queue_sender(QUEUE) as sender:
        await sender.send_messages(ServiceBusMessage("a"))
    receiver = client.get_queue_receiver(QUEUE)
    (message,) = await receiver.receive_messages()
    used, first = message, None
    if earlier in OPERATIONS:
        await getattr(receiver, earlier)(message)
    elif earlier == "closed":
        await receiver.close()
    elif earlier == "copied":
        used = copy(message)
    else:
        hanging = pair.primary.inject(Fault(FaultKind.HANG, operations=[Operation.SETTLE]))
        first = asyncio.ensure_future(receiver.complete_message(message))
        await clock.sleep(0.1)
        if earlier == "cancelled":
            await cancel(first)
            pair.primary.heal(hanging)
    before = pair.primary.namespace.operation_count
    call = getattr(receiver, later)(used)
    if earlier == "cancelled" or (earlier == "in progress" and later == "renew_message_lock"):
        await call
        assert pair.primary.namespace.operation_count == before + 1
    else:
        is_settled = earlier in OPERATIONS or earlier == "in progress"
        text = "is closed: get a new one" if earlier == "closed" else None
        with pytest.raises(MessageAlreadySettled if is_settled else InvalidOperationError, match=text):
            await call
        assert pair.primary.namespace.operation_count == before
    pair.primary.heal()
    if first is not None and earlier == "in progress":
        await cancel(first)
    await receiver.close()
