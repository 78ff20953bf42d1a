"""Renewal of locks in the background."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sbclient import clock
from sbclient.client.client import ServiceBusClient
from sbclient.client.lock_renewer import AutoLockRenewer
from sbclient.errors import AutoLockRenewFailed, AutoLockRenewTimeout, InvalidOperationError, MessageLockLostError
from sbclient.message import ServiceBusMessage
from sbclient.testing import Fault, FaultKind, MemoryPair
from tests.client.scene import QUEUE, make_queue, taken, texts


class Failures:
    """What a renewer reports."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, Exception | None]] = []

    async def __call__(self, renewable: Any, error: Exception | None) -> None:
        self.calls.append((renewable, error))


async def send(client: ServiceBusClient, queue: str = QUEUE, **attributes: Any) -> None:
    async with client.get_queue_sender(queue) as sender:
        await sender.send_messages(ServiceBusMessage("a", **attributes))


async def test_a_message_stays_locked_while_it_is_processed(pair: MemoryPair, client: ServiceBusClient) -> None:
    await send(client)
    async with (
        AutoLockRenewer() as renewer,
        client.get_queue_receiver(QUEUE, auto_lock_renewer=renewer) as receiver,
    ):
        (message,) = await receiver.receive_messages()
        await clock.sleep(290.0)
        await receiver.complete_message(message)
        before = pair.primary.namespace.operation_count
        await clock.sleep(600.0)
        assert pair.primary.namespace.operation_count == before
    assert await taken(pair) == []


async def test_a_message_whose_settlement_is_undone_stays_locked(client: ServiceBusClient) -> None:
    for _ in range(3):
        await send(client)
    async with (
        AutoLockRenewer() as renewer,
        client.get_queue_receiver(QUEUE, auto_lock_renewer=renewer) as receiver,
    ):
        messages = await receiver.receive_messages(3)
        for undecided_s in (0.0, 40.0, 0.0):  # the renewer looks after 30 s
            transaction = client.transaction()
            for message in messages:
                await receiver.complete_message(message, transaction=transaction)
            await clock.sleep(undecided_s)
            await transaction.rollback()
            await clock.sleep(70.0)
        async with client.transaction() as transaction:
            for message in messages:
                await receiver.complete_message(message, transaction=transaction)
        await clock.sleep(1.0)
        assert receiver.renewals == {}


async def test_nothing_is_left_of_a_renewal_whose_lock_ended_in_a_transaction(client: ServiceBusClient) -> None:
    await send(client)
    async with AutoLockRenewer() as renewer, client.get_queue_receiver(QUEUE, auto_lock_renewer=renewer) as receiver:
        (message,) = await receiver.receive_messages()
        transaction = client.transaction()
        await receiver.complete_message(message, transaction=transaction)
        await clock.sleep(65.0)
        assert receiver.renewals == {}
        await transaction.rollback()


async def test_the_callback_of_a_registration_comes_before_that_of_its_renewer(
    pair: MemoryPair, client: ServiceBusClient
) -> None:
    of_renewer, own = Failures(), Failures()
    async with AutoLockRenewer(on_lock_renew_failure=of_renewer) as renewer:
        for on_failure, called in ((own, own), (None, of_renewer)):
            await send(client)
            async with client.get_queue_receiver(QUEUE) as receiver:
                (message,) = await receiver.receive_messages()
                renewer.register(receiver, message, on_lock_renew_failure=on_failure)
                pair.primary.inject(Fault(FaultKind.DOWN))
                await clock.sleep(101.0)
                assert [renewable for renewable, _ in called.calls] == [message]
                pair.primary.heal()
    assert (len(of_renewer.calls), len(own.calls)) == (1, 1)


async def test_the_last_registration_of_a_lock_counts(pair: MemoryPair, client: ServiceBusClient) -> None:
    failures = Failures()
    await make_queue(pair, "sessions", requires_session=True)
    await send(client)
    await send(client, "sessions", session_id="s")
    async with (
        AutoLockRenewer(on_lock_renew_failure=failures) as renewer,
        client.get_queue_receiver(QUEUE, auto_lock_renewer=renewer) as receiver,
        client.get_queue_receiver("sessions", session_id="s", auto_lock_renewer=renewer) as by_session,
    ):
        (message,) = await receiver.receive_messages()
        for holder, renewable in ((receiver, message), (by_session, by_session.session)):
            assert renewable is not None
            for longest_s in (600, 100, 400):
                renewer.register(holder, renewable, max_lock_renewal_duration=longest_s)
        await clock.sleep(380)
        assert renewals() == 2
        for each in (message, by_session.session):
            assert each is not None
            assert (each.auto_renew_error, failures.calls) == (None, [])
        await receiver.complete_message(message)
        await by_session.close()
        await clock.sleep(0)
        assert renewals() == 0


def renewals() -> int:
    return sum(task.get_name() == "renew lock" for task in asyncio.all_tasks())


async def test_renewal_ends_after_its_duration_without_a_failure(pair: MemoryPair, client: ServiceBusClient) -> None:
    failures = Failures()
    await send(client)
    async with (
        AutoLockRenewer(max_lock_renewal_duration=100, on_lock_renew_failure=failures) as renewer,
        client.get_queue_receiver(QUEUE, auto_lock_renewer=renewer) as receiver,
    ):
        (message,) = await receiver.receive_messages()
        assert message.auto_renew_error is None
        await clock.sleep(100.5)
        assert isinstance(message.auto_renew_error, AutoLockRenewTimeout)
        message.auto_renew_error = None
        renewer.register(receiver, message, max_lock_renewal_duration=0)
        await clock.sleep(0.5)
        assert isinstance(message.auto_renew_error, AutoLockRenewTimeout)
        assert failures.calls == [], "the lock is held"
        await clock.sleep(60.0)
    assert texts(await taken(pair)) == ["a"]


async def test_a_failed_renewal_calls_the_callback(pair: MemoryPair, client: ServiceBusClient) -> None:
    failures = Failures()
    await send(client)
    async with AutoLockRenewer() as renewer, client.get_queue_receiver(QUEUE) as receiver:
        (message,) = await receiver.receive_messages()
        renewer.register(receiver, message, on_lock_renew_failure=failures)
        for count in (1, 2):  # it is registered again after the failure
            pair.primary.inject(Fault(FaultKind.DOWN))
            await clock.sleep(60.0)
            renewable, error = failures.calls[-1]
            assert (len(failures.calls), renewable) == (count, message)
            assert isinstance(error, AutoLockRenewFailed)
            assert error.__cause__ is not None
            assert message.auto_renew_error is error
            renewer.register(receiver, message, on_lock_renew_failure=failures)


@pytest.mark.parametrize("by", ["the callback", "another task"])
@pytest.mark.parametrize("how", ["settle", "close"])
async def test_nothing_interrupts_the_callback(pair: MemoryPair, client: ServiceBusClient, how: str, by: str) -> None:
    steps: list[str] = []
    await send(client)
    async with AutoLockRenewer() as renewer, client.get_queue_receiver(QUEUE) as receiver:
        (message,) = await receiver.receive_messages()

        async def end() -> None:
            await (receiver.complete_message(message) if how == "settle" else receiver.close())

        async def failed(*_: object) -> None:
            steps.append("begun")
            pair.primary.heal()
            await (end() if by == "the callback" else clock.sleep(10.0))
            await clock.sleep(1.0)
            steps.append("ended")

        renewer.register(receiver, message, on_lock_renew_failure=failed)
        pair.primary.inject(Fault(FaultKind.DOWN))
        while not steps:
            await clock.sleep(1.0)
        if by == "another task":
            await end()
        await clock.sleep(60.0)
    assert steps == ["begun", "ended"]


async def test_a_message_settled_while_its_renewal_fails_is_not_reported(
    pair: MemoryPair, client: ServiceBusClient
) -> None:
    failures = Failures()
    await send(client)
    async with (
        AutoLockRenewer(on_lock_renew_failure=failures) as renewer,
        client.get_queue_receiver(QUEUE, auto_lock_renewer=renewer) as receiver,
    ):
        (message,) = await receiver.receive_messages()
        pair.primary.inject(Fault(FaultKind.SLOW, latency_s=5.0))
        await clock.sleep(31.0)
        await receiver.complete_message(message)
        await clock.sleep(30.0)
    assert failures.calls == []


async def test_a_session_stays_locked(pair: MemoryPair, client: ServiceBusClient) -> None:
    await make_queue(pair, "visits", requires_session=True)
    await send(client, "visits", session_id="s")
    async with (
        AutoLockRenewer() as renewer,
        client.get_queue_receiver("visits", session_id="s", auto_lock_renewer=renewer) as receiver,
    ):
        (message,) = await receiver.receive_messages()
        await clock.sleep(250.0)
        await receiver.complete_message(message)
        await clock.sleep(100.0)
        assert receiver.session is not None
        assert isinstance(receiver.session.auto_renew_error, AutoLockRenewTimeout)


async def test_a_session_that_two_calls_open_is_renewed_once(pair: MemoryPair, client: ServiceBusClient) -> None:
    failures = Failures()
    await make_queue(pair, "visits", requires_session=True)
    async with AutoLockRenewer(on_lock_renew_failure=failures) as renewer:
        receiver = client.get_queue_receiver("visits", session_id="s", auto_lock_renewer=renewer)
        await asyncio.gather(*(receiver.receive_messages(max_wait_time=1) for _ in range(2)))
        pair.primary.inject(Fault(FaultKind.DOWN))
        await clock.sleep(101.0)
        assert [renewable for renewable, _ in failures.calls] == [receiver.session]
        await receiver.close()


async def test_a_lost_session_sets_auto_renew_error(pair: MemoryPair, client: ServiceBusClient) -> None:
    await make_queue(pair, "visits", requires_session=True)
    async with (
        AutoLockRenewer() as renewer,
        client.get_queue_receiver("visits", session_id="s", auto_lock_renewer=renewer) as receiver,
    ):
        pair.primary.inject(Fault(FaultKind.DOWN))
        await clock.sleep(100.0)
        assert receiver.session is not None
        assert isinstance(receiver.session.auto_renew_error, AutoLockRenewFailed)


@pytest.mark.parametrize("what", ["receiver", "renewer"])
async def test_closing_ends_the_renewal(pair: MemoryPair, client: ServiceBusClient, what: str) -> None:
    failures = Failures()
    await send(client)
    renewer = AutoLockRenewer(on_lock_renew_failure=failures)
    receiver = client.get_queue_receiver(QUEUE, auto_lock_renewer=renewer)
    await receiver.receive_messages()
    await (receiver.close() if what == "receiver" else renewer.close())
    before = pair.primary.namespace.operation_count
    await clock.sleep(400.0)
    assert pair.primary.namespace.operation_count == before
    assert failures.calls == []
    await renewer.close()


async def test_the_renewal_callback_is_optional(pair: MemoryPair, client: ServiceBusClient) -> None:
    await send(client)
    async with (
        AutoLockRenewer(max_lock_renewal_duration=10) as renewer,
        client.get_queue_receiver(QUEUE, auto_lock_renewer=renewer) as receiver,
    ):
        await receiver.receive_messages()
        await clock.sleep(80.0)
    assert texts(await taken(pair)) == ["a"]


async def test_deferred_messages_are_renewed(client: ServiceBusClient) -> None:
    for _ in range(3):
        await send(client)
    async with (
        AutoLockRenewer() as renewer,
        client.get_queue_receiver(QUEUE, auto_lock_renewer=renewer) as receiver,
        client.get_queue_receiver(QUEUE) as unrenewed,
    ):
        first, second, third = await receiver.receive_messages(3)
        for message in (first, second, third):
            await receiver.defer_message(message)
        both = await receiver.receive_deferred_messages([first.sequence_number, second.sequence_number])
        (lost,) = await unrenewed.receive_deferred_messages(third.sequence_number)
        await clock.sleep(250.0)
        for deferred in both:
            await receiver.complete_message(deferred)
        with pytest.raises(MessageLockLostError):
            await unrenewed.complete_message(lost)
        (again,) = await receiver.receive_deferred_messages(third.sequence_number)
        await clock.sleep(250.0)
        await receiver.complete_message(again)


async def test_message_without_a_lock_is_rejected(client: ServiceBusClient) -> None:
    await send(client)
    renewer = AutoLockRenewer(300, None, None)
    with pytest.raises(ValueError, match="PEEK_LOCK"):
        client.get_queue_receiver(QUEUE, receive_mode="receiveanddelete", auto_lock_renewer=renewer)
    receiver = client.get_queue_receiver(QUEUE)
    (peeked,) = await receiver.peek_messages()
    with pytest.raises(ValueError, match="no lock"):
        renewer.register(receiver, peeked)
    with pytest.raises(TypeError, match="str"):
        renewer.register(receiver, "message")  # type: ignore[arg-type]  # the wrong type is the subject


async def test_the_lock_of_a_session_is_renewed_for_a_receiver_that_deletes(
    pair: MemoryPair, client: ServiceBusClient
) -> None:
    await make_queue(pair, "sessions", requires_session=True)
    async with (
        AutoLockRenewer() as renewer,
        client.get_queue_receiver(
            "sessions", session_id="s", receive_mode="receiveanddelete", auto_lock_renewer=renewer
        ) as receiver,
    ):
        await clock.sleep(200.0)
        await send(client, queue="sessions", session_id="s")
        assert texts(await receiver.receive_messages(max_wait_time=1)) == ["a"]


async def test_no_call_asks_for_locks_that_a_closed_renewer_would_not_renew(
    pair: MemoryPair, client: ServiceBusClient
) -> None:
    await make_queue(pair, "sessions", requires_session=True)
    await send(client, "sessions", session_id="s")
    for _ in range(2):
        await send(client)
    renewer = AutoLockRenewer()
    receiver = client.get_queue_receiver(QUEUE, auto_lock_renewer=renewer)
    first, second = await receiver.receive_messages(2)
    await receiver.defer_message(first)
    sessions = client.get_queue_receiver("sessions", session_id="s", auto_lock_renewer=renewer)
    await renewer.close()
    before = pair.primary.namespace.operation_count
    for refused in (
        receiver.receive_messages(max_wait_time=1),
        receiver.receive_deferred_messages(first.sequence_number),
        sessions.receive_messages(max_wait_time=1),
        sessions.session.get_state(),
    ):
        with pytest.raises(InvalidOperationError, match="renewer is closed"):
            await refused
    with pytest.raises(InvalidOperationError, match="renewer is closed"):
        renewer.register(receiver, second)
    assert pair.primary.namespace.operation_count == before
    async with client.get_queue_receiver("sessions", session_id="s") as other:  # nothing holds the session
        assert texts(await other.receive_messages()) == ["a"]


async def test_a_renewal_that_has_ended_leaves_nothing_in_its_receiver(
    pair: MemoryPair, client: ServiceBusClient
) -> None:
    await send(client)
    async with AutoLockRenewer() as renewer, client.get_queue_receiver(QUEUE) as receiver:
        for end in ("settled", "duration", "lost", "settled"):
            (message,) = await receiver.receive_messages()
            renewer.register(receiver, message, 10 if end == "duration" else 500)
            renewer.register(receiver, message, 10 if end == "duration" else 400)
            assert len(receiver.renewals) == 1
            if end == "settled":
                await receiver.abandon_message(message)
            elif end == "lost":
                fault = pair.primary.inject(Fault(FaultKind.DOWN))
                await clock.sleep(200.0)
                pair.primary.heal(fault)
            else:
                await clock.sleep(70.0)
            await clock.sleep(0.1)
            assert receiver.renewals == {}
