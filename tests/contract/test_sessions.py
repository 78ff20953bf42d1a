from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from sbclient import (
    NEXT_AVAILABLE_SESSION,
    InvalidOperationError,
    MessagingEntityNotFoundError,
    OperationTimeoutError,
    ServiceBusMessage,
    SessionLockLostError,
    clock,
)
from tests.contract.kinds import NamespaceKind


async def filled(kind: NamespaceKind, sessions: dict[str, int], **description: object) -> str:
    """A session queue with so many messages in each session."""
    queue = await kind.queue(requires_session=True, **description)
    async with kind.plain.get_queue_sender(queue) as sender:
        for session, count in sessions.items():
            await sender.send_messages([ServiceBusMessage(str(n), session_id=session) for n in range(count)])
    return queue


async def test_an_empty_text_is_the_id_of_a_session(kind: NamespaceKind) -> None:
    queue = await filled(kind, {"": 2, "a": 1})
    async with kind.plain.get_queue_receiver(queue, session_id="") as receiver:
        assert receiver.session is not None
        assert receiver.session.session_id == ""
        for number in range(2):
            [message] = await receiver.receive_messages(1, max_wait_time=kind.patience_s)
            assert (message.session_id, str(message)) == ("", str(number))
            await receiver.complete_message(message)
        assert await receiver.receive_messages(1, max_wait_time=kind.moment_s) == []


async def test_an_empty_state_deletes_the_state_of_a_session(kind: NamespaceKind) -> None:
    queue = await filled(kind, {"a": 1})
    async with kind.plain.get_queue_receiver(queue, session_id="a") as receiver:
        assert receiver.session is not None
        await receiver.session.set_state("state")
        await receiver.session.set_state("")
        assert await receiver.session.get_state() is None


async def test_a_session_keeps_its_order_while_others_settle_and_wait(kind: NamespaceKind) -> None:
    queue = await filled(kind, {"a": 0})
    count = 60
    async with (
        kind.plain.get_queue_sender(queue) as sender,
        kind.plain.get_queue_receiver(queue, session_id="a") as receiver,
    ):
        assert receiver.session is not None

        async def produce() -> None:
            for number in range(count):
                await sender.send_messages(ServiceBusMessage(str(number), session_id="a"))

        producing = asyncio.create_task(produce())
        seen: list[int] = []
        while len(seen) < count:
            messages = await receiver.receive_messages(7, max_wait_time=kind.patience_s)
            assert messages
            waiting = asyncio.create_task(receiver.receive_messages(1, max_wait_time=0.2))
            await asyncio.sleep(0)
            await asyncio.gather(
                receiver.session.renew_lock(), *(receiver.complete_message(message) for message in messages)
            )
            more = await waiting
            for message in more:
                await receiver.complete_message(message)
            seen += [int(str(message)) for message in (*messages, *more)]
        await producing
    assert seen == list(range(count))


async def test_the_lock_of_a_session_is_renewed_and_lost(kind: NamespaceKind) -> None:
    queue = await filled(kind, {"a": 1}, lock_duration=timedelta(seconds=5))
    async with kind.plain.get_queue_receiver(queue, session_id="a") as receiver:
        assert receiver.session is not None
        (message,) = await receiver.receive_messages(1, max_wait_time=kind.patience_s)
        before = receiver.session.locked_until_utc
        assert before is not None
        await clock.sleep(1.2)
        until = await receiver.session.renew_lock()
        assert until - before >= timedelta(seconds=1)
        assert receiver.session.locked_until_utc == until
        await clock.sleep(until.timestamp() - clock.now() + 0.5)
        for call in (
            receiver.complete_message(message),
            receiver.receive_messages(1, max_wait_time=1),
            receiver.peek_messages(),
            receiver.session.get_state(),
            receiver.session.set_state(b"x"),
            receiver.session.renew_lock(),
        ):
            with pytest.raises(SessionLockLostError):
                await call


async def test_next_available_session_accepts_an_unlocked_session(kind: NamespaceKind) -> None:
    queue = await filled(kind, {"a": 1, "b": 1})
    held = set()
    async with (
        kind.plain.get_queue_receiver(queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=5.0) as one,
        kind.plain.get_queue_receiver(queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=5.0) as other,
    ):
        for receiver in (one, other):
            assert receiver.session is not None
            held.add(receiver.session.session_id)
        assert held == {"a", "b"}
        with pytest.raises(OperationTimeoutError):
            await kind.plain.get_queue_receiver(
                queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=kind.moment_s
            ).receive_messages(1)


@pytest.mark.needs("session lists")
async def test_sessions_are_listed(kind: NamespaceKind) -> None:
    queue = await filled(kind, {"a": 1, "b": 1, "c": 1})
    assert sorted([session async for session in kind.plain.list_queue_sessions(queue)]) == ["a", "b", "c"]
    with pytest.raises(MessagingEntityNotFoundError):
        [session async for session in kind.plain.list_queue_sessions("missing")]


async def test_a_plain_receiver_of_a_session_queue_raises(kind: NamespaceKind) -> None:
    sessions, plain = await filled(kind, {"a": 1}), await kind.queue()
    with pytest.raises(InvalidOperationError):
        await kind.plain.get_queue_receiver(sessions).receive_messages(1, max_wait_time=2.0)
    with pytest.raises(InvalidOperationError):
        await kind.plain.get_queue_receiver(plain, session_id="a").receive_messages(1, max_wait_time=2.0)


async def test_messages_are_deferred_and_peeked_in_their_session(kind: NamespaceKind) -> None:
    queue = await filled(kind, {"a": 2, "b": 1})
    async with kind.plain.get_queue_receiver(queue, session_id="a") as receiver:
        (first,) = await receiver.receive_messages(1, max_wait_time=kind.patience_s)
        await receiver.defer_message(first)
        (fetched,) = await receiver.receive_deferred_messages(first.sequence_number)
        assert str(fetched) == "0"
        await receiver.complete_message(fetched)
        peeked = await receiver.peek_messages(5, sequence_number=1)
        assert [str(message) for message in peeked] == ["1"]
