from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from datetime import UTC, datetime
from typing import Any

import pytest
from azure.servicebus import exceptions as sdk_errors

from sbclient.amqp import encode_sections
from sbclient.clock import VirtualClock
from sbclient.delivery import NEXT_AVAILABLE_SESSION, ServiceBusReceiveMode, Settlement, SettleMode
from sbclient.errors import (
    InvalidOperationError,
    OperationTimeoutError,
    ServiceBusConnectionError,
    SessionLockLostError,
    TransactionNotSupportedError,
)
from sbclient.message import ServiceBusMessage, ServiceBusReceivedMessage
from sbclient.transport.sdk import receiver as azure_receiver
from sbclient.transport.sdk.receiver import BLIND_SLICE_S, SILENCE_S, SLICE_GRACE_S, AzureReceiver
from sbclient.transport.sdk.sender import AzureTransaction
from sbclient.transport.sdk.transport import AzureTransport
from tests.transport.sdk.sdk_double import ANSWER_S, OwnerDouble, ReceiverDouble

LOCK = ServiceBusReceiveMode.PEEK_LOCK
DELETE = ServiceBusReceiveMode.RECEIVE_AND_DELETE
COMPLETE = Settlement(SettleMode.COMPLETE)
LOCKED_UNTIL = datetime(2026, 1, 1, tzinfo=UTC)


class Owner(OwnerDouble):
    def make_receiver(self, asked: Any) -> ReceiverDouble:
        session = "next" if asked.session is NEXT_AVAILABLE_SESSION else asked.session
        return ReceiverDouble(session_id=session, locked_until_utc=LOCKED_UNTIL)


@pytest.fixture
async def owner(clock: VirtualClock) -> AsyncIterator[Owner]:
    owner = Owner(clock)
    yield owner
    await owner.tasks.close()
    assert owner.faults == []


def receiver_of(
    owner: OwnerDouble, mode: ServiceBusReceiveMode = LOCK, session: Any = None, prefetch_count: int = 0
) -> AzureReceiver:
    return AzureReceiver(owner, "orders", session, mode, prefetch_count)


def payload(body: str) -> bytes:
    return encode_sections(data=[body.encode()])


async def opened(receiver: AzureReceiver, owner: Owner) -> ReceiverDouble:
    await receiver.open(timeout_s=5.0)
    sdk = owner.receivers[-1]
    assert isinstance(sdk, ReceiverDouble)
    return sdk


async def receive(receiver: AzureReceiver, count: int = 1, wait_s: float = 10.0) -> list[str]:
    return [str(message) for message in await receiver.receive(max_message_count=count, max_wait_time_s=wait_s)]


async def take(receiver: AzureReceiver) -> ServiceBusReceivedMessage:
    (message,) = await receiver.receive(max_message_count=1, max_wait_time_s=10.0)
    return message


async def test_nothing_is_made_before_it_is_used(owner: Owner) -> None:
    receiver = receiver_of(owner)
    assert (owner.receivers, receiver.session_id, receiver.session_locked_until_utc) == ([], None, None)
    await receiver.close()
    assert owner.receivers == []


async def test_a_message_ends_the_wait(owner: Owner, clock: VirtualClock) -> None:
    receiver = receiver_of(owner)
    sdk = await opened(receiver, owner)
    waiting = asyncio.create_task(receive(receiver, wait_s=600.0))
    await asyncio.sleep(200.0)
    sdk._handler.arrive(payload("x"))
    assert await waiting == ["x"]
    assert clock.monotonic() < 201.0


async def test_no_message_ends_it_when_the_time_is_over(owner: Owner, clock: VirtualClock) -> None:
    receiver = receiver_of(owner)
    await opened(receiver, owner)
    began = clock.monotonic()
    assert await receive(receiver, wait_s=150.0) == []
    assert clock.monotonic() - began == pytest.approx(150.0, abs=0.5)


async def test_settling_interrupts_a_wait_which_then_goes_on(owner: Owner, clock: VirtualClock) -> None:
    receiver = receiver_of(owner)
    sdk = await opened(receiver, owner)
    sdk._handler.arrive(payload("first"))
    first = await take(receiver)
    waiting = asyncio.create_task(receive(receiver, wait_s=60.0))
    await asyncio.sleep(10.0)
    began = clock.monotonic()
    await receiver.settle(first, COMPLETE, timeout_s=5.0)
    assert clock.monotonic() - began == pytest.approx(ANSWER_S)
    assert not waiting.done()
    sdk._handler.arrive(payload("second"))
    assert await waiting == ["second"]
    assert [each for each in sdk.log if each != "receive"] == [("complete", 1)]


async def test_what_arrives_while_another_has_its_turn_is_kept_for_the_wait(owner: Owner) -> None:
    receiver = receiver_of(owner)
    sdk = await opened(receiver, owner)
    sdk._handler.arrive(payload("first"))
    first = await take(receiver)
    waiting = asyncio.create_task(receive(receiver, wait_s=60.0))
    await asyncio.sleep(1.0)
    settling = asyncio.create_task(receiver.settle(first, COMPLETE, timeout_s=5.0))
    while ("complete", 1) not in sdk.log:  # noqa: ASYNC110 - the double has no event for it
        await asyncio.sleep(0.01)
    sdk._handler.arrive(payload("second"))
    await sdk._handler.listen(wait=0.1)
    await settling
    assert await waiting == ["second"]
    assert sdk._handler.released == []


async def test_what_arrives_when_nobody_waits_is_given_back(owner: Owner) -> None:
    receiver = receiver_of(owner)
    sdk = await opened(receiver, owner)
    assert await receive(receiver, count=5, wait_s=1.0) == []
    sdk._handler.arrive(payload("late"))
    await sdk._handler.listen(wait=0.1)
    assert sdk._handler.released == [1]


async def test_in_a_session_it_is_kept_so_that_nothing_overtakes_it(owner: Owner) -> None:
    receiver = receiver_of(owner, session="s")
    sdk = await opened(receiver, owner)
    assert await receive(receiver, count=5, wait_s=1.0) == []
    sdk._handler.arrive(payload("late"))
    await sdk._handler.listen(wait=0.1)
    sdk._handler.arrive(payload("later"))
    assert await receive(receiver, count=5) == ["late"]
    assert await receive(receiver, count=5) == ["later"]
    assert sdk._handler.released == []


async def test_a_cancelled_wait_gives_back_what_it_brings(owner: Owner, clock: VirtualClock) -> None:
    receiver = receiver_of(owner)
    sdk = await opened(receiver, owner)
    waiting = asyncio.create_task(receive(receiver, wait_s=600.0))
    await asyncio.sleep(1.05)
    began = clock.monotonic()
    sdk._handler.arrive(payload("x"))
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert clock.monotonic() == began
    await asyncio.sleep(0.5)
    assert sdk._handler.released == [1]
    sdk._handler.arrive(payload("y"))
    assert await receive(receiver) == ["y"]
    assert (len(owner.receivers), sdk.closed) == (1, 0)


@pytest.mark.parametrize(("mode", "session"), [(DELETE, None), (LOCK, "s")])
async def test_where_nothing_can_be_given_back_the_next_call_has_it(
    owner: Owner, mode: ServiceBusReceiveMode, session: str | None
) -> None:
    receiver = receiver_of(owner, mode, session)
    sdk = await opened(receiver, owner)
    waiting = asyncio.create_task(receive(receiver, wait_s=600.0))
    await asyncio.sleep(1.05)
    sdk._handler.arrive(payload("first"))
    waiting.cancel()
    await asyncio.wait({waiting})
    sdk._handler.arrive(payload("second"))
    assert [*await receive(receiver), *await receive(receiver)] == ["first", "second"]


async def test_what_a_cancelled_wait_still_brings_comes_before_what_follows(owner: Owner) -> None:
    receiver = receiver_of(owner, DELETE)
    sdk = await opened(receiver, owner)
    waiting = asyncio.create_task(receive(receiver, wait_s=600.0))
    await asyncio.sleep(1.05)
    waiting.cancel()
    await asyncio.wait({waiting})
    following = asyncio.create_task(receive(receiver))
    await asyncio.sleep(0.01)
    sdk._handler.arrive(payload("first"))
    await asyncio.sleep(0.01)
    sdk._handler.arrive(payload("second"))
    assert [*await following, *await receive(receiver)] == ["first", "second"]


async def test_settling_need_not_wait_for_a_receive_that_is_still_opening(owner: Owner, clock: VirtualClock) -> None:
    receiver = receiver_of(owner)
    sdk = await opened(receiver, owner)
    sdk._handler.arrive(payload("x"))
    message = await take(receiver)
    assert receiver._link is not None
    receiver._link.give_up()
    waiting = asyncio.create_task(receive(receiver, wait_s=60.0))
    await asyncio.sleep(0.1)
    began = clock.monotonic()
    await receiver.settle(message, COMPLETE, timeout_s=5.0)
    assert clock.monotonic() - began < 1.0
    waiting.cancel()
    await asyncio.wait({waiting})


async def test_a_deleting_receiver_leaves_no_credit_behind(owner: Owner) -> None:
    receiver = receiver_of(owner, DELETE)
    sdk = await opened(receiver, owner)
    sdk._handler.arrive(payload("only"))
    assert await receive(receiver, count=10) == ["only"]
    assert (sdk._handler._link.current_link_credit, sdk._handler._link.drains) == (0, 1)
    sdk._handler.arrive(payload("later"))
    await sdk._handler.listen(wait=0.1)
    assert len(sdk._handler.arriving) == 1, "it stays with the service"


async def test_a_silent_link_is_opened_anew(owner: Owner) -> None:
    receiver = receiver_of(owner)
    await opened(receiver, owner)
    assert await receive(receiver, wait_s=SILENCE_S + 130.0) == []
    assert len(owner.receivers) == 2
    await asyncio.sleep(1.0)
    assert owner.receivers[0].closed == 1


async def test_a_receive_call_that_hangs_is_given_up(owner: Owner, clock: VirtualClock) -> None:
    receiver = receiver_of(owner)
    sdk = await opened(receiver, owner)

    async def hang(_: Any) -> None:
        await asyncio.Event().wait()

    sdk.on_call = hang
    began = clock.monotonic()
    with pytest.raises(OperationTimeoutError):
        await receive(receiver, wait_s=2.0)
    assert clock.monotonic() - began == pytest.approx(2.0 + SLICE_GRACE_S)
    owner_next = receive(receiver, wait_s=1.0)
    assert await owner_next == []
    assert len(owner.receivers) == 2


async def test_a_lost_link_is_replaced(owner: Owner) -> None:
    receiver = receiver_of(owner)
    sdk = await opened(receiver, owner)

    async def cut(_: Any) -> None:
        raise sdk_errors.ServiceBusConnectionError(message="cut")

    sdk.on_call = cut
    with pytest.raises(ServiceBusConnectionError):
        await receive(receiver)
    assert await receive(receiver, wait_s=1.0) == []
    assert len(owner.receivers) == 2


async def test_a_session_is_accepted_once(owner: Owner) -> None:
    receiver = receiver_of(owner, session=NEXT_AVAILABLE_SESSION)
    sdk = await opened(receiver, owner)
    assert (receiver.session_id, receiver.session_locked_until_utc) == ("next", LOCKED_UNTIL)

    async def cut(_: Any) -> None:
        raise sdk_errors.ServiceBusConnectionError(message="cut")

    sdk.on_call = cut
    with pytest.raises(ServiceBusConnectionError):
        await receive(receiver)
    with pytest.raises(SessionLockLostError):
        await receive(receiver)
    assert len(owner.receivers) == 1


async def test_a_session_that_could_not_be_had_can_be_tried_again(owner: Owner) -> None:
    receiver = receiver_of(owner, session="s")

    def refuse_the_first(sdk: ReceiverDouble) -> None:
        async def refuse() -> None:
            raise sdk_errors.ServiceBusError("held", condition=b"com.microsoft:timeout")

        sdk.on_open = refuse if not owner.receivers else None

    owner.prepare = refuse_the_first
    with pytest.raises(OperationTimeoutError):
        await receiver.open(timeout_s=5.0)
    await receiver.open(timeout_s=5.0)
    assert receiver.session_id == "s"


async def test_only_what_this_service_handed_over_can_be_settled(owner: Owner) -> None:
    receiver = receiver_of(owner)
    sdk = await opened(receiver, owner)
    sdk._handler.arrive(payload("x"))
    message = await take(receiver)
    foreign = ServiceBusReceivedMessage.of(
        ServiceBusMessage("y"), sequence_number=1, enqueued_time_utc=LOCKED_UNTIL, lock_token=message.lock_token
    )
    peeked = ServiceBusReceivedMessage.of(ServiceBusMessage("z"), sequence_number=2, enqueued_time_utc=LOCKED_UNTIL)
    for wrong in (foreign, peeked):
        with pytest.raises(InvalidOperationError):
            await receiver.settle(wrong, COMPLETE, timeout_s=5.0)
    with pytest.raises(TransactionNotSupportedError):
        await receiver.settle(message, COMPLETE, timeout_s=5.0, transaction=AzureTransaction())
    assert [each for each in sdk.log if each != "receive"] == []


async def test_closing_waits_for_what_is_under_way_and_gives_it_back(owner: Owner) -> None:
    receiver = receiver_of(owner)
    sdk = await opened(receiver, owner)
    waiting = asyncio.create_task(receive(receiver, wait_s=600.0))
    await asyncio.sleep(1.05)
    sdk._handler.arrive(payload("x"))
    waiting.cancel()
    await receiver.close()
    assert (sdk._handler.released, sdk.closed, owner.forgotten) == ([1], 1, [receiver])
    with pytest.raises(InvalidOperationError):
        await receive(receiver)


async def cancelled_once(closing: Coroutine[Any, Any, None]) -> None:
    """Begin to close, and be cancelled while that waits."""
    task = asyncio.create_task(closing)
    await asyncio.sleep(0)
    assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("is_closed_again", [True, False])
async def test_closing_that_was_cancelled_ends_the_connection_all_the_same(owner: Owner, is_closed_again: bool) -> None:
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
        assert owner.forgotten == [], "its transport still has to see to it"
    assert sdk.closed == 1
    with pytest.raises(InvalidOperationError):
        await receive(receiver)


async def test_a_transport_closes_what_an_earlier_call_left(clock: VirtualClock) -> None:
    made: list[ReceiverDouble] = []

    class Doubled(AzureTransport):
        def sdk_receiver(self, path: str, *_: Any) -> ReceiverDouble:
            made.append(ReceiverDouble(session_id="s", locked_until_utc=LOCKED_UNTIL))
            return made[-1]

    transport = Doubled(None, "contoso", None, clock, {})
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


async def test_with_an_unknown_sdk_others_have_their_turn_between_short_waits(
    owner: Owner, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(azure_receiver, "is_known_sdk", lambda: False)
    receiver = receiver_of(owner)
    sdk = await opened(receiver, owner)
    sdk._handler.arrive(payload("first"))
    first = await take(receiver)
    waiting = asyncio.create_task(receive(receiver, wait_s=60.0))
    await asyncio.sleep(10.05)
    began = clock.monotonic()
    await receiver.settle(first, COMPLETE, timeout_s=5.0)
    assert clock.monotonic() - began <= BLIND_SLICE_S + 0.21
    await asyncio.sleep(0.1)
    sdk._handler.arrive(payload("second"))
    waiting.cancel()
    await asyncio.wait({waiting})
    await asyncio.sleep(BLIND_SLICE_S + 0.5)
    assert [each for each in sdk.log if each != "receive"] == [("complete", 1), ("abandon", 2)]


async def test_with_an_unknown_sdk_a_deleting_receiver_asks_for_one_at_a_time(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(azure_receiver, "is_known_sdk", lambda: False)
    receiver = receiver_of(owner, DELETE)
    sdk = await opened(receiver, owner)
    for body in ("first", "second"):
        sdk._handler.arrive(payload(body))
    assert await receive(receiver, count=10) == ["first"]
    assert sdk._handler._link.current_link_credit == 0
