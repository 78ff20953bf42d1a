from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from datetime import UTC, datetime
from typing import Any

import pytest
from azure.servicebus import exceptions as sdk_errors

from sbclient import clock
from sbclient.amqp import encode_message
from sbclient.delivery import NEXT_AVAILABLE_SESSION, ServiceBusReceiveMode, SessionChoice, Settlement, SettleMode
from sbclient.errors import (
    InvalidOperationError,
    MessageNotFoundError,
    OperationTimeoutError,
    ServiceBusConnectionError,
    SessionLockLostError,
    TransactionNotSupportedError,
)
from sbclient.message import ServiceBusMessage, ServiceBusReceivedMessage
from sbclient.tasks import Move
from sbclient.transport.sdk.receiver import SILENCE_S, SLICE_GRACE_S, SLICE_S, SdkReceiver
from sbclient.transport.sdk.sender import SdkTransaction
from sbclient.transport.sdk.transport import SdkTransport
from tests.transport.sdk.sdk_double import LOCK, OwnerDouble, ReceiverDouble

PEEK_LOCK = ServiceBusReceiveMode.PEEK_LOCK
DELETE = ServiceBusReceiveMode.RECEIVE_AND_DELETE
COMPLETE = Settlement(SettleMode.COMPLETE)
LOCKED_UNTIL = datetime(2026, 1, 1, tzinfo=UTC)


class Owner(OwnerDouble):
    def make_receiver(self, session: SessionChoice) -> ReceiverDouble:
        session_id = session if session is None or isinstance(session, str) else "next"
        return ReceiverDouble(session_id=session_id, locked_until_utc=LOCKED_UNTIL)


@pytest.fixture
async def owner() -> AsyncIterator[Owner]:
    owner = Owner()
    yield owner
    await owner.tasks.close()
    assert owner.faults == []


def receiver_of(owner: OwnerDouble, mode: ServiceBusReceiveMode = PEEK_LOCK, session: Any = None) -> SdkReceiver:
    return SdkReceiver(owner, "orders", session, mode, 0)


async def opened(receiver: SdkReceiver, owner: Owner) -> ReceiverDouble:
    await receiver.open(timeout_s=5.0)
    sdk = owner.receivers[-1]
    assert isinstance(sdk, ReceiverDouble)
    return sdk


async def receive(receiver: SdkReceiver, count: int = 1, wait_s: float = 10.0) -> list[str]:
    return [str(message) for message in await receiver.receive(max_message_count=count, max_wait_time_s=wait_s)]


async def take(receiver: SdkReceiver) -> ServiceBusReceivedMessage:
    (message,) = await receiver.receive(max_message_count=1, max_wait_time_s=10.0)
    return message


def requests(sdk: ReceiverDouble) -> list[Any]:
    """The calls except for receive calls."""
    return [each for each in sdk.log if each != "receive"]


async def cancelled(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def cut_connection(sdk: ReceiverDouble) -> None:
    async def cut(_: Any) -> None:
        raise sdk_errors.ServiceBusConnectionError(message="cut")

    sdk.on_call = cut


async def test_no_receiver_is_made_before_its_first_use(owner: Owner) -> None:
    receiver = receiver_of(owner)
    assert (owner.receivers, receiver.session_id, receiver.session_locked_until_utc) == ([], None, None)
    await receiver.close()
    assert owner.receivers == []


async def test_receive_returns_when_a_message_arrives(owner: Owner) -> None:
    receiver = receiver_of(owner)
    sdk = await opened(receiver, owner)
    waiting = asyncio.create_task(receive(receiver, wait_s=600.0))
    await asyncio.sleep(200.0)
    sdk.arrive("x")
    assert await waiting == ["x"]
    assert clock.monotonic() < 201.0


async def test_receive_without_a_message_returns_after_the_wait(owner: Owner) -> None:
    receiver = receiver_of(owner)
    await opened(receiver, owner)
    began = clock.monotonic()
    assert await receive(receiver, wait_s=150.0) == []
    assert clock.monotonic() - began == pytest.approx(150.0, abs=0.5)


@pytest.mark.deviation("client.sdk-receiving")
async def test_settle_waits_for_at_most_one_slice_of_a_receive_call(owner: Owner) -> None:
    receiver = receiver_of(owner)
    sdk = await opened(receiver, owner)
    sdk.arrive("first")
    first = await take(receiver)
    waiting = asyncio.create_task(receive(receiver, wait_s=60.0))
    await asyncio.sleep(10.05)
    began = clock.monotonic()
    await receiver.settle(first, COMPLETE, timeout_s=5.0)
    assert clock.monotonic() - began <= SLICE_S
    assert not waiting.done()
    sdk.arrive("second")
    assert await waiting == ["second"]
    assert requests(sdk) == [("complete", "first")]


@pytest.mark.parametrize(
    ("settlement", "request_"),
    [
        (COMPLETE, ("complete", "x")),
        (Settlement(SettleMode.ABANDON), ("abandon", "x")),
        (Settlement(SettleMode.DEFER), ("defer", "x")),
        (
            Settlement(SettleMode.DEAD_LETTER, reason="bad", error_description="worse"),
            ("dead-letter", "x", "bad", "worse"),
        ),
    ],
)
async def test_each_settlement_calls_its_method(owner: Owner, settlement: Settlement, request_: Any) -> None:
    receiver = receiver_of(owner)
    sdk = await opened(receiver, owner)
    sdk.arrive("x")
    await receiver.settle(await take(receiver), settlement, timeout_s=5.0)
    assert requests(sdk) == [request_]


@pytest.mark.deviation("client.sdk-receiving")
@pytest.mark.parametrize(
    ("mode", "session", "expected"),
    [(PEEK_LOCK, None, ["a", "b"]), (DELETE, None, ["a"]), (PEEK_LOCK, "s", ["a"])],
)
async def test_sessions_and_deleting_receivers_ask_for_one_message_per_call(
    owner: Owner, mode: ServiceBusReceiveMode, session: str | None, expected: list[str]
) -> None:
    receiver = receiver_of(owner, mode, session)
    (await opened(receiver, owner)).arrive("a", "b")
    assert await receive(receiver, count=10) == expected


@pytest.mark.parametrize(("mode", "session"), [(PEEK_LOCK, None), (DELETE, None), (PEEK_LOCK, "s")])
async def test_the_next_call_returns_the_messages_of_a_cancelled_call(
    owner: Owner, mode: ServiceBusReceiveMode, session: str | None
) -> None:
    receiver = receiver_of(owner, mode, session)
    sdk = await opened(receiver, owner)
    waiting = asyncio.create_task(receive(receiver, wait_s=600.0))
    await asyncio.sleep(1.05)
    sdk.arrive("first")
    await cancelled(waiting)
    sdk.arrive("second")
    assert [*await receive(receiver), *await receive(receiver)] == ["first", "second"]
    assert (len(owner.receivers), sdk.closed) == (1, 0)


@pytest.mark.parametrize("move", Move)
@pytest.mark.parametrize("mode", ServiceBusReceiveMode)
async def test_deleted_messages_of_a_cancelled_call_are_returned_in_the_next_event_loop(
    owner: Owner, mode: ServiceBusReceiveMode, move: Move
) -> None:
    receiver = receiver_of(owner, mode)
    sdk = await opened(receiver, owner)
    waiting = asyncio.create_task(receive(receiver, wait_s=600.0))
    await asyncio.sleep(1.05)
    sdk.arrive("x")
    await cancelled(waiting)
    await asyncio.sleep(0.1)
    receiver.leave_loop(move)
    is_kept = mode is DELETE and move is Move.LOOP_ENDED  # a locked one comes again, and the parent process returns it
    assert await receive(receiver, wait_s=1.0) == (["x"] if is_kept else [])


async def test_messages_of_a_cancelled_call_precede_later_ones(owner: Owner) -> None:
    receiver = receiver_of(owner, DELETE)
    sdk = await opened(receiver, owner)
    waiting = asyncio.create_task(receive(receiver, wait_s=600.0))
    await asyncio.sleep(1.05)
    await cancelled(waiting)
    following = asyncio.create_task(receive(receiver))
    await asyncio.sleep(0.01)
    sdk.arrive("first")
    await asyncio.sleep(0.01)
    sdk.arrive("second")
    assert [*await following, *await receive(receiver)] == ["first", "second"]


async def test_messages_of_a_cancelled_call_are_dropped_when_their_locks_expire(owner: Owner) -> None:
    receiver = receiver_of(owner)
    sdk = await opened(receiver, owner)
    waiting = asyncio.create_task(receive(receiver, wait_s=600.0))
    await asyncio.sleep(1.05)
    sdk.arrive("x")
    await cancelled(waiting)
    await asyncio.sleep(LOCK.total_seconds() + 1.0)
    assert await receive(receiver, wait_s=1.0) == []


async def test_a_link_without_messages_is_replaced(owner: Owner) -> None:
    receiver = receiver_of(owner)
    await opened(receiver, owner)
    assert await receive(receiver, wait_s=SILENCE_S + 130.0) == []
    assert len(owner.receivers) == 2
    await asyncio.sleep(1.0)
    assert owner.receivers[0].closed == 1


@pytest.mark.parametrize("answered", ["messages", "renewals", "settlements", "peeks"])
async def test_a_link_that_answers_is_not_replaced(owner: Owner, answered: str) -> None:
    receiver = receiver_of(owner)
    sdk = await opened(receiver, owner)
    sdk.arrive(*map(str, range(10)))
    held = await receiver.receive(max_message_count=9, max_wait_time_s=1.0)
    for message in held[: 3 if answered != "messages" else 1]:
        for _ in range(2):
            await asyncio.sleep(SILENCE_S / 2.5)
            if answered == "renewals":
                await receiver.renew_lock(message, timeout_s=5.0)
            elif answered == "peeks":
                await receiver.peek(max_message_count=1, sequence_number=1, timeout_s=5.0)
            elif answered == "settlements":
                await receiver.settle(message, COMPLETE, timeout_s=5.0)
    assert await receive(receiver) == ["9"]
    sdk.arrive("next")
    await asyncio.sleep(SILENCE_S / 1.5)
    assert await receive(receiver) == ["next"]
    assert len(owner.receivers) == 1


async def test_a_link_without_messages_is_not_replaced_under_a_running_receive_call(owner: Owner) -> None:
    receiver = receiver_of(owner)
    sdk = await opened(receiver, owner)
    waiting = asyncio.create_task(receive(receiver, wait_s=SILENCE_S + 60.0))
    await asyncio.sleep(SILENCE_S + 0.5)
    following = asyncio.create_task(receive(receiver, wait_s=60.0))
    await asyncio.sleep(0.1)
    assert sdk.closed == 0
    sdk.arrive("first", "second")
    assert [await waiting, await following] == [["first"], ["second"]]
    assert len(owner.receivers) == 1


async def test_a_link_without_messages_is_replaced_while_several_calls_receive(owner: Owner) -> None:
    receiver = receiver_of(owner)
    await opened(receiver, owner)
    assert await asyncio.gather(*(receive(receiver, wait_s=SILENCE_S + 130.0) for _ in range(3))) == [[], [], []]
    assert len(owner.receivers) == 2


async def test_a_receive_call_without_an_answer_discards_the_link(owner: Owner) -> None:
    receiver = receiver_of(owner)
    sdk = await opened(receiver, owner)

    async def hang(_: Any) -> None:
        await asyncio.Event().wait()

    sdk.on_call = hang
    began = clock.monotonic()
    with pytest.raises(OperationTimeoutError):
        await receive(receiver, wait_s=2.0)
    assert clock.monotonic() - began == pytest.approx(SLICE_S + SLICE_GRACE_S)
    assert await receive(receiver, wait_s=1.0) == []
    assert len(owner.receivers) == 2


async def test_a_lost_link_is_replaced(owner: Owner) -> None:
    receiver = receiver_of(owner)
    cut_connection(await opened(receiver, owner))
    with pytest.raises(ServiceBusConnectionError):
        await receive(receiver)
    assert await receive(receiver, wait_s=1.0) == []
    assert len(owner.receivers) == 2


async def test_a_session_is_accepted_once(owner: Owner) -> None:
    receiver = receiver_of(owner, session=NEXT_AVAILABLE_SESSION)
    sdk = await opened(receiver, owner)
    assert (receiver.session_id, receiver.session_locked_until_utc) == ("next", LOCKED_UNTIL)
    cut_connection(sdk)
    with pytest.raises(ServiceBusConnectionError):
        await receive(receiver)
    with pytest.raises(SessionLockLostError):
        await receive(receiver)
    assert len(owner.receivers) == 1


async def test_accepting_a_session_can_be_repeated_after_a_failure(owner: Owner) -> None:
    receiver = receiver_of(owner, session="s")

    def reject_the_first(sdk: ReceiverDouble) -> None:
        async def reject() -> None:
            raise sdk_errors.ServiceBusError("held", condition=b"com.microsoft:timeout")

        sdk.on_open = reject if not owner.receivers else None

    owner.prepare = reject_the_first
    with pytest.raises(OperationTimeoutError):
        await receiver.open(timeout_s=5.0)
    await receiver.open(timeout_s=5.0)
    assert receiver.session_id == "s"


async def test_missing_deferred_messages_raise(owner: Owner) -> None:
    with pytest.raises(MessageNotFoundError, match="17"):
        await receiver_of(owner).receive_deferred([17], timeout_s=5.0)


async def test_only_locked_messages_of_this_transport_can_be_settled(owner: Owner) -> None:
    receiver = receiver_of(owner)
    sdk = await opened(receiver, owner)
    sdk.arrive("x")
    message = await take(receiver)
    foreign = ServiceBusReceivedMessage.of(
        encode_message(ServiceBusMessage("y")),
        sequence_number=1,
        enqueued_time_utc=LOCKED_UNTIL,
        lock_token=message.lock_token,
    )
    peeked = ServiceBusReceivedMessage.of(
        encode_message(ServiceBusMessage("z")), sequence_number=2, enqueued_time_utc=LOCKED_UNTIL
    )
    for wrong in (foreign, peeked):
        with pytest.raises(InvalidOperationError):
            await receiver.settle(wrong, COMPLETE, timeout_s=5.0)
    with pytest.raises(TransactionNotSupportedError):
        await receiver.settle(message, COMPLETE, timeout_s=5.0, transaction=SdkTransaction())
    assert requests(sdk) == []


async def test_close_abandons_the_messages_of_a_cancelled_call(owner: Owner) -> None:
    receiver = receiver_of(owner)
    sdk = await opened(receiver, owner)
    waiting = asyncio.create_task(receive(receiver, wait_s=600.0))
    await asyncio.sleep(1.05)
    sdk.arrive("x")
    waiting.cancel()
    await receiver.close()
    assert (requests(sdk), sdk.closed, owner.forgotten) == ([("abandon", "x")], 1, [receiver])
    with pytest.raises(InvalidOperationError):
        await receive(receiver)


async def cancelled_once(closing: Coroutine[Any, Any, None]) -> None:
    """Begin to close, and cancel that while it waits."""
    task = asyncio.create_task(closing)
    await asyncio.sleep(0)
    assert not task.done()
    await cancelled(task)


@pytest.mark.parametrize("is_closed_again", [True, False])
async def test_a_cancelled_close_closes_the_connection(owner: Owner, is_closed_again: bool) -> None:
    receiver = receiver_of(owner, session="s")
    sdk = await opened(receiver, owner)
    waiting = asyncio.create_task(receive(receiver, wait_s=600.0))
    await asyncio.sleep(1.05)
    waiting.cancel()
    await cancelled_once(receiver.close())
    if is_closed_again:
        await receiver.close()
        assert owner.forgotten == [receiver]
    else:
        await asyncio.sleep(30.0)
        assert owner.forgotten == [], "the transport still has to close it"
    assert sdk.closed == 1
    with pytest.raises(InvalidOperationError):
        await receive(receiver)


async def test_a_second_close_of_the_transport_finishes_a_cancelled_one() -> None:
    made: list[ReceiverDouble] = []

    class Doubled(SdkTransport):
        def sdk_receiver(self, path: str, *_: Any) -> ReceiverDouble:
            made.append(ReceiverDouble(session_id="s", locked_until_utc=LOCKED_UNTIL))
            return made[-1]

    transport = Doubled(None, "contoso", None, {})
    await transport.open_receiver("orders", session="s").open(timeout_s=5.0)
    half_closed = transport.open_receiver("prices", session="s")
    await half_closed.open(timeout_s=5.0)
    await cancelled_once(half_closed.close())
    await cancelled_once(transport.close())
    await transport.close()
    assert [sdk.closed for sdk in made] == [1, 1]
    assert transport.tasks.is_closed
    await transport.close()
    with pytest.raises(InvalidOperationError):
        await transport.begin_transaction(timeout_s=1.0)
