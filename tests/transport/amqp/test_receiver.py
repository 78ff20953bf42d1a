from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

import pytest

from sbclient import (
    NEXT_AVAILABLE_SESSION,
    ServiceBusMessage,
    ServiceBusReceiveMode,
    clock,
)
from sbclient.amqp import (
    ACCEPTED,
    RELEASED,
    AmqpError,
    DispositionReceived,
    Modified,
    Rejected,
    encode_message,
)
from sbclient.amqp.types import timestamps
from sbclient.delivery import Settlement, SettleMode
from sbclient.errors import (
    InvalidOperationError,
    MessageLockLostError,
    MessageNotFoundError,
    OperationTimeoutError,
    ServiceBusCommunicationError,
    ServiceBusConnectionError,
    ServiceBusError,
    SessionCannotBeLockedError,
    SessionLockLostError,
)
from sbclient.message import ServiceBusReceivedMessage
from sbclient.transport.amqp import token_requests
from sbclient.transport.amqp.receiver import AmqpReceiver
from sbclient.transport.amqp.transport import AmqpTransport
from tests.payloads import batch_of, encode_sections
from tests.transport.amqp.service import Answer, Service

COMPLETE = Settlement(SettleMode.COMPLETE)


def store(service: Service, *bodies: str) -> None:
    service.stored += [ServiceBusMessage(body, message_id=body) for body in bodies]


def put(service: Service, *bodies: str) -> None:
    """Store messages while a receiver waits."""
    store(service, *bodies)
    end = service.end
    end.serve(end.link("orders"))
    end.flush()


async def receive(receiver: AmqpReceiver, count: int = 10, wait_s: float = 5.0) -> list[ServiceBusReceivedMessage]:
    return await receiver.receive(max_message_count=count, max_wait_time_s=wait_s)


async def test_message_has_the_facts_of_the_service(service: Service, transport: AmqpTransport) -> None:
    service.stored.append(
        ServiceBusMessage(
            b"\x00x",
            application_properties={"n": 1, "t": "ä", "u": UUID(int=5)},
            subject="s",
            time_to_live=timedelta(minutes=2),
        )
    )
    (message,) = await receive(transport.open_receiver("orders"), 1)
    now = datetime.fromtimestamp(clock.now(), tz=UTC)
    assert bytes(message) == b"\x00x"
    assert message.application_properties == {"n": 1, "t": "ä", "u": UUID(int=5)}
    assert (message.subject, message.sequence_number, message.delivery_count) == ("s", 1, 0)
    assert message.lock_token == UUID(int=1)
    assert message.locked_until_utc == now + timedelta(seconds=60)
    assert message.enqueued_time_utc == now
    copied = message.copy(subject="t")
    assert (bytes(copied), copied.subject, copied.application_properties["n"]) == (b"\x00x", "t", 1)


async def test_binary_property_is_read_and_sent_as_it_came(service: Service, transport: AmqpTransport) -> None:
    from sbclient.amqp import EncodedMessage, Sections

    service.stored.append(EncodedMessage.of(encode_sections(application_properties={"b": b"\xff\x00"}, data=[b"x"])))
    (message,) = await receive(transport.open_receiver("orders"), 1)
    assert message.application_properties["b"] == b"\xff\x00"
    await transport.open_sender("copies").send(batch_of([message.copy()]), timeout_s=10)
    sent = Sections(service.end.transfers[0].payload)
    assert sent.application_properties == {"b": b"\xff\x00"}


async def test_credit_is_what_the_call_asks_for(service: Service, transport: AmqpTransport) -> None:
    store(service, *"abcdef")
    receiver = transport.open_receiver("orders")
    assert [str(each) for each in await receive(receiver, 2)] == ["a", "b"]
    assert [str(each) for each in await receive(receiver, 3)] == ["c", "d", "e"]
    assert service.end.grants == [(2, False), (3, False)]


@pytest.mark.deviation("client.leftover-credit")
async def test_fewer_messages_than_asked_for_end_with_a_drain(service: Service, transport: AmqpTransport) -> None:
    store(service, "a")
    receiver = transport.open_receiver("orders")
    assert len(await receive(receiver, 10)) == 1
    assert receiver.is_drained
    assert service.end.grants == [(10, False), (9, True)]
    put(service, "b")
    assert service.stored, "the service has no credit left"
    assert len(await receive(receiver, 10)) == 1


@pytest.mark.deviation("client.leftover-credit")
async def test_message_that_crosses_the_drain_is_returned(service: Service, transport: AmqpTransport) -> None:
    receiver = transport.open_receiver("orders")
    waiting = asyncio.create_task(receive(receiver, 10, 5))
    await clock.sleep(4.999)
    service.answers_drain = False
    await clock.sleep(0.1)
    put(service, "late")
    assert [str(each) for each in await waiting] == ["late"]
    assert not receiver.is_drained, "another message may be on its way"


@pytest.mark.deviation("client.leftover-credit")
async def test_drain_without_answer_holds_the_call_up_for_200_ms(service: Service, transport: AmqpTransport) -> None:
    service.answers_drain = False
    receiver = transport.open_receiver("orders")
    await receiver.open(timeout_s=5)
    began_at = clock.monotonic()
    assert await receive(receiver, 10, 5) == []
    assert clock.monotonic() - began_at == pytest.approx(5.2, abs=0.01)


async def test_drain_answered_late_costs_the_next_call_nothing(service: Service, transport: AmqpTransport) -> None:
    service.answers_drain = False
    receiver = transport.open_receiver("orders")
    assert await receive(receiver, 10, 1) == []
    waiting = asyncio.create_task(receive(receiver, 5, 60))
    await clock.sleep(1)
    service.answers_drain = True
    link = service.end.link("orders")
    link.drained()
    service.end.flush()
    await clock.sleep(1)
    put(service, "a")
    assert [str(each) for each in await waiting] == ["a"]


async def test_cancelled_call_discards_nothing(service: Service, transport: AmqpTransport) -> None:
    receiver = transport.open_receiver("orders")
    waiting = asyncio.create_task(receive(receiver, 10, 60))
    await clock.sleep(1)
    store(service, "a", "b")
    service.end.serve(service.end.link("orders"))
    waiting.cancel()  # before the messages cross
    service.end.flush()
    await clock.sleep(1)
    assert service.end.dispositions == []
    assert [str(each) for each in await receive(receiver, 10, 5)] == ["a", "b"]


@pytest.mark.parametrize("is_cancelled", [True, False])
async def test_deleting_receiver_leaves_no_credit_behind(
    service: Service, transport: AmqpTransport, is_cancelled: bool
) -> None:
    receiver = transport.open_receiver("orders", receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE)
    waiting = asyncio.create_task(receive(receiver, 10, 5))
    await clock.sleep(1)
    if is_cancelled:
        waiting.cancel()
    await clock.sleep(5)
    put(service, "a")
    assert service.stored, "nothing may be deleted for a call that is over"
    (message,) = await receive(receiver, 1)
    assert (str(message), message.lock_token) == ("a", None)
    assert max(credit for credit, _ in service.end.grants) == 10


async def test_deleted_messages_outlive_the_link_that_brought_them(service: Service, transport: AmqpTransport) -> None:
    service.answers_drain = False
    receiver = transport.open_receiver("orders", receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE)
    waiting = asyncio.create_task(receive(receiver, 5, 60))
    await clock.sleep(1)
    waiting.cancel()
    await clock.sleep(0)
    put(service, "a")
    service.end.cut()
    assert [str(each) for each in await receive(receiver, 5, 1)] == ["a"]


async def test_prefetch_keeps_credit_up(service: Service, transport: AmqpTransport) -> None:
    store(service, *(str(number) for number in range(20)))
    receiver = transport.open_receiver("orders", prefetch_count=8)
    await receiver.open(timeout_s=10)
    await clock.sleep(1)
    assert len(service.stored) == 12  # before any call
    began_at = clock.monotonic()
    seen = []
    for _ in range(20):
        (message,) = await receive(receiver, 1)
        seen.append(str(message))
    assert seen == [str(number) for number in range(20)]
    assert not any(drain for _, drain in service.end.grants)
    assert len(service.end.grants) <= 10  # not one for each message
    assert clock.monotonic() - began_at < 1


async def test_messages_come_ahead_of_the_calls_but_no_more_than_these_will_receive(
    service: Service, transport: AmqpTransport
) -> None:
    store(service, *(str(number) for number in range(20)))
    receiver = transport.open_receiver("orders")
    receiver.fetch_ahead(5, 12)
    assert len(await receive(receiver, 4)) == 4
    await clock.sleep(1)
    assert len(service.stored) == 11  # without another call
    seen = 4
    while seen < 12:
        seen += len(await receive(receiver, 3))
    await clock.sleep(1)
    assert [str(each) for each in service.stored] == [str(number) for number in range(12, 20)]
    assert not any(drain for _, drain in service.end.grants)
    for number in range(12, 15):  # more than was announced
        assert [str(each) for each in await receive(receiver, 1)] == [str(number)]
    receiver.fetch_ahead(2, 2)
    await clock.sleep(1)
    assert len(service.stored) == 3  # the link stood already
    assert len(await receive(receiver, 2)) == 2
    service.end.cut()
    assert [str(each) for each in await receive(receiver, 2)] == ["17", "18"]


@pytest.mark.parametrize("prefetch_count", [0, 5])
@pytest.mark.parametrize("calls", [1, 2])
async def test_a_close_at_any_step_ends_the_calls_that_wait(
    service: Service, transport: AmqpTransport, prefetch_count: int, calls: int
) -> None:
    for steps in range(60):
        receiver = transport.open_receiver("orders", prefetch_count=prefetch_count)
        waiting = [
            asyncio.ensure_future(receiver.receive(max_message_count=1, max_wait_time_s=600)) for _ in range(calls)
        ]
        for _ in range(steps):
            await asyncio.sleep(0)
        began_at = clock.monotonic()
        await receiver.close()
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(result, ServiceBusError) for result in results), steps
        assert clock.monotonic() - began_at < 2.0, steps


@pytest.mark.parametrize("taken", [0, 3, 7, 11])
async def test_no_more_than_announced_comes_over_a_second_link(
    service: Service, transport: AmqpTransport, taken: int
) -> None:
    store(service, *(str(number) for number in range(40)))
    receiver = transport.open_receiver("orders")
    receiver.fetch_ahead(5, 12)
    seen = len(await receive(receiver, 1))
    while seen < taken:
        seen += len(await receive(receiver, 1))
    await clock.sleep(1)
    service.end.cut()
    before = len(service.stored)
    seen += len(await receive(receiver, 1))
    await clock.sleep(1)
    assert before - len(service.stored) <= 12 - seen + 1


async def test_message_with_less_than_half_of_its_lock_is_released(service: Service, transport: AmqpTransport) -> None:
    store(service, "a", "b")
    receiver = transport.open_receiver("orders", prefetch_count=5)
    assert [str(each) for each in await receive(receiver, 1)] == ["a"]
    await clock.sleep(20)
    put(service, "c")
    await clock.sleep(9)
    assert service.end.dispositions == []
    await clock.sleep(2)
    (released,) = service.end.dispositions
    assert (released.state, released.settled, released.delivery.delivery_id) == (RELEASED, True, 1)
    assert [str(each) for each in await receive(receiver, 1)] == ["c"]


async def test_release_at_half_of_the_lock_needs_one_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    timers, call_later = iter(range(1_000)), clock.call_later

    def counted(delay_s: float, action: Callable[[], None]) -> asyncio.TimerHandle:
        next(timers)  # fails if timers are set again and again
        return call_later(delay_s, action)

    monkeypatch.setattr(clock, "call_later", counted)
    service = Service()
    transport = service.transport()
    receiver = transport.open_receiver("orders", prefetch_count=100)
    assert await receive(receiver, 1, 1) == []
    for number in range(40):
        await clock.sleep(1 / 3 + number / 7_000_003)
        put(service, "a")
        await clock.sleep(31)
    assert len(service.end.dispositions) == 40
    await transport.close()


async def test_prefetching_receiver_fetches_again_after_everything_was_released(
    service: Service, transport: AmqpTransport
) -> None:
    store(service, "a", "b", "c")
    receiver = transport.open_receiver("orders", prefetch_count=2)
    assert [str(each) for each in await receive(receiver, 1)] == ["a"]
    store(service, "d")
    await clock.sleep(40)
    assert len(service.end.dispositions) == 2
    assert [str(each) for each in await receive(receiver, 1)] == ["d"]


async def test_messages_of_a_cancelled_call_are_released_at_half_of_their_lock(
    service: Service, transport: AmqpTransport
) -> None:
    service.answers_drain = False
    receiver = transport.open_receiver("orders")
    call = asyncio.create_task(receiver.receive(max_message_count=5, max_wait_time_s=60))
    await clock.sleep(1)
    put(service, "a")
    await clock.sleep(0.1)  # the call waits for the answer to its drain
    call.cancel()
    await asyncio.wait({call})
    assert call.cancelled()
    await clock.sleep(31)
    assert [each.state for each in service.end.dispositions] == [RELEASED]


async def test_messages_that_follow_a_late_answer_to_a_drain_are_received(
    service: Service, transport: AmqpTransport
) -> None:
    service.answers_drain = False
    receiver = transport.open_receiver("orders", receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE)
    store(service, "a")
    assert [str(each) for each in await receive(receiver, 10)] == ["a"]
    link = service.end.link("orders")
    service.end.send(link, ServiceBusMessage("b"))
    link.drained()  # the service reads the credit of the next call after this
    waiting = asyncio.create_task(receive(receiver, 20, 60))
    await asyncio.sleep(0)
    service.end.flush()
    assert [str(each) for each in await waiting] == ["b"]
    put(service, "c")
    put(service, "d")
    assert [str(each) for each in await receive(receiver, 20)] == ["c", "d"]
    assert service.end.links["orders"] == [link]


async def test_drain_that_is_never_answered_starves_no_later_call(service: Service, transport: AmqpTransport) -> None:
    service.answers_drain = False
    receiver = transport.open_receiver("orders", receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE)
    assert await receive(receiver, 10, 1) == []
    waiting = asyncio.create_task(receive(receiver, 5, 60))
    await clock.sleep(1)
    put(service, "a")
    assert [str(each) for each in await waiting] == ["a"]
    assert service.end.grants == [(10, False), (10, True), (10, False), (9, True)]


async def test_close_releases_undelivered_messages(service: Service, transport: AmqpTransport) -> None:
    store(service, "a", "b", "c")
    receiver = transport.open_receiver("orders", prefetch_count=5)
    assert len(await receive(receiver, 1)) == 1
    await receiver.close()
    await receiver.close()
    assert service.end.grants[-1][1]  # the service was asked to stop first
    assert [(each.state, each.delivery.delivery_id) for each in service.end.dispositions] == [
        (RELEASED, 1),
        (RELEASED, 2),
    ]
    with pytest.raises(InvalidOperationError):
        await receive(receiver)


async def test_closing_a_receiver_ends_a_call_without_doubt(service: Service, transport: AmqpTransport) -> None:
    receiver = transport.open_receiver("orders")
    waiting = asyncio.create_task(receive(receiver, 1, 60))
    await clock.sleep(1)
    await receiver.close()
    with pytest.raises(ServiceBusConnectionError) as caught:
        await waiting
    assert not caught.value.is_in_doubt
    assert service.end.grants[-1] == (1, True)


async def test_messages_beyond_a_call_are_released_at_half_of_their_lock(
    service: Service, transport: AmqpTransport
) -> None:
    receiver = transport.open_receiver("orders", prefetch_count=5)
    waiting = asyncio.create_task(receive(receiver, 1, 60))
    await clock.sleep(1)
    put(service, "a", "b", "c")
    assert [str(each) for each in await waiting] == ["a"]
    await clock.sleep(29.9)
    assert service.end.dispositions == []
    await clock.sleep(0.2)
    assert [each.delivery.delivery_id for each in service.end.dispositions] == [1, 2]


async def test_two_calls_share_arriving_messages(service: Service, transport: AmqpTransport) -> None:
    receiver = transport.open_receiver("orders")
    calls = [asyncio.create_task(receive(receiver, 1, 60)) for _ in range(2)]
    await clock.sleep(1)
    put(service, "a", "b")
    received = await asyncio.gather(*calls)
    assert sorted(str(message) for messages in received for message in messages) == ["a", "b"]


# -- settling ---------------------------------------------------------------------------------------------------------


def frames_of(service: Service) -> int:
    return bytes(service.end.written).count(b"\x00\x53\x15")


def tag_of(message: ServiceBusReceivedMessage) -> bytes:
    assert message.lock_token is not None
    return message.lock_token.bytes_le


async def test_settlements_of_one_step_leave_as_one_disposition(service: Service, transport: AmqpTransport) -> None:
    store(service, *(str(number) for number in range(100)))
    receiver = transport.open_receiver("orders")
    messages = await receive(receiver, 100)
    before = frames_of(service)
    await asyncio.gather(*(receiver.settle(message, COMPLETE, timeout_s=10) for message in reversed(messages)))
    assert frames_of(service) == before + 1
    assert [each.state for each in service.end.dispositions] == [ACCEPTED] * 100


@pytest.mark.parametrize(
    ("settlement", "outcome"),
    [
        (COMPLETE, ACCEPTED),
        (Settlement(SettleMode.ABANDON), Modified(True, False)),
        (Settlement(SettleMode.DEFER), Modified(True, True)),
        (
            Settlement(SettleMode.DEAD_LETTER, "bad", "it is"),
            Rejected(
                AmqpError(
                    "com.microsoft:dead-letter",
                    None,
                    {"DeadLetterReason": "bad", "DeadLetterErrorDescription": "it is"},
                )
            ),
        ),
    ],
)
async def test_settlement_is_stated_unsettled_and_confirmed(
    service: Service, transport: AmqpTransport, settlement: Settlement, outcome: Any
) -> None:
    store(service, "a")
    receiver = transport.open_receiver("orders")
    (message,) = await receive(receiver, 1)
    await receiver.settle(message, settlement, timeout_s=10)
    (stated,) = service.end.dispositions
    assert (stated.state, stated.settled) == (outcome, False)


async def test_settlement_that_is_confirmed_twice_is_confirmed_once(service: Service, transport: AmqpTransport) -> None:
    def confirm_twice(event: DispositionReceived) -> None:
        if not event.settled:
            event.delivery.settle(ACCEPTED, settled=False)
            event.delivery.settle(ACCEPTED)

    service.on_disposition = confirm_twice
    receiver = transport.open_receiver("orders")
    for body in "ab":
        store(service, body)
        (message,) = await receive(receiver, 1)
        await receiver.settle(message, COMPLETE, timeout_s=10)
    assert len(service.ends) == 1


async def test_refused_settlement_raises_the_condition(service: Service, transport: AmqpTransport) -> None:
    error = AmqpError("com.microsoft:message-lock-lost", "gone")
    service.on_disposition = lambda event: event.delivery.settle(Rejected(error))
    store(service, "a")
    receiver = transport.open_receiver("orders")
    (message,) = await receive(receiver, 1)
    with pytest.raises(MessageLockLostError) as caught:
        await receiver.settle(message, COMPLETE, timeout_s=10)
    assert not caught.value.is_in_doubt


@pytest.mark.parametrize("closes", ["link", "transport"])
@pytest.mark.parametrize("count", [1, 3])
async def test_what_is_settled_before_a_close_is_settled(
    service: Service, transport: AmqpTransport, closes: str, count: int
) -> None:
    """In the same step of the event loop, before anything of it was written; each of two links."""
    for cycle in (1, 2):
        store(service, *(str(number) for number in range(count)))
        receiver = transport.open_receiver("orders")
        messages = await receive(receiver, count)
        settling = [asyncio.ensure_future(receiver.settle(each, COMPLETE, timeout_s=10)) for each in messages]
        if closes == "link" or cycle == 1:
            await receiver.close()
        else:
            await transport.close()
        await asyncio.gather(*settling, return_exceptions=True)
        stated = [each.state for each in service.end.dispositions if not each.settled]
        assert stated == [ACCEPTED] * count * cycle


async def test_unconfirmed_settlement_is_in_doubt(service: Service, transport: AmqpTransport) -> None:
    service.on_disposition = lambda event: None
    store(service, "a")
    receiver = transport.open_receiver("orders")
    (message,) = await receive(receiver, 1)
    with pytest.raises(OperationTimeoutError) as caught:
        await receiver.settle(message, COMPLETE, timeout_s=10)
    assert caught.value.is_in_doubt


async def test_message_whose_link_is_lost_is_settled_by_its_token(service: Service, transport: AmqpTransport) -> None:
    service.replies["com.microsoft:update-disposition"] = lambda body: (200, None, {})
    store(service, "a")
    receiver = transport.open_receiver("orders")
    (message,) = await receive(receiver, 1)
    service.end.cut()
    await receiver.settle(message, Settlement(SettleMode.DEAD_LETTER, "r", "d"), timeout_s=10)
    operation, _, body = service.end.requests[-1]
    assert operation == "com.microsoft:update-disposition"
    assert body["disposition-status"] == "suspended"
    assert list(body["lock-tokens"].items if hasattr(body["lock-tokens"], "items") else body["lock-tokens"]) == [
        message.lock_token
    ]
    assert (body["deadletter-reason"], body["deadletter-description"]) == ("r", "d")


@pytest.mark.parametrize(
    ("mode", "status"),
    [(SettleMode.COMPLETE, "completed"), (SettleMode.ABANDON, "abandoned"), (SettleMode.DEFER, "defered")],
)
async def test_settlement_by_token_names_its_outcome(
    service: Service, transport: AmqpTransport, mode: SettleMode, status: str
) -> None:
    service.replies["com.microsoft:update-disposition"] = lambda body: (200, None, {})
    store(service, "a")
    receiver = transport.open_receiver("orders")
    (message,) = await receive(receiver, 1)
    service.end.cut()
    await receiver.settle(message, Settlement(mode), timeout_s=10)
    assert service.end.requests[-1][2]["disposition-status"] == status


async def test_settlement_that_left_before_the_loss_stays_in_doubt_if_the_token_is_refused(
    service: Service, transport: AmqpTransport
) -> None:
    service.replies["com.microsoft:update-disposition"] = lambda body: (410, "com.microsoft:message-lock-lost", None)
    service.on_disposition = lambda event: service.end.cut()
    store(service, "a")
    receiver = transport.open_receiver("orders")
    (message,) = await receive(receiver, 1)
    with pytest.raises(MessageLockLostError) as caught:
        await receiver.settle(message, COMPLETE, timeout_s=10)
    assert caught.value.is_in_doubt
    store(service, "b")
    (message,) = await receive(receiver, 1)
    settling = receiver.settle(message, COMPLETE, timeout_s=10)
    service.end.cut()  # before the disposition was written
    with pytest.raises(MessageLockLostError) as caught:
        await settling
    assert not caught.value.is_in_doubt


async def test_cancelled_settlement_leaves_the_link_usable(service: Service, transport: AmqpTransport) -> None:
    held: list[DispositionReceived] = []
    service.on_disposition = held.append
    store(service, "a", "b")
    receiver = transport.open_receiver("orders")
    one, other = await receive(receiver, 2)
    settling = asyncio.ensure_future(receiver.settle(one, COMPLETE, timeout_s=60))
    await clock.sleep(1)
    settling.cancel()
    second = asyncio.ensure_future(receiver.settle(other, COMPLETE, timeout_s=60))
    await clock.sleep(1)
    for event in held:
        event.delivery.settle(ACCEPTED)
    service.end.flush()
    await second


@pytest.mark.parametrize("has_left", [False, True])
@pytest.mark.parametrize("mode", [SettleMode.COMPLETE, SettleMode.ABANDON])
async def test_second_settlement_of_a_message_ends_at_once_and_the_first_goes_on(
    service: Service, transport: AmqpTransport, mode: SettleMode, has_left: bool
) -> None:
    held: list[DispositionReceived] = []
    service.on_disposition = held.append
    store(service, "a", "b")
    receiver = transport.open_receiver("orders")
    messages = await receive(receiver, 2)
    first = asyncio.ensure_future(receiver.settle_together(messages, COMPLETE, timeout_s=60))
    await clock.sleep(1 if has_left else 0)
    began_at = clock.monotonic()
    assert await receiver.settle_together(messages, Settlement(mode), timeout_s=60) == []
    with pytest.raises(InvalidOperationError, match="settle it once"):
        await receiver.settle(messages[0], Settlement(mode), timeout_s=60)
    assert clock.monotonic() == began_at
    await clock.sleep(1)
    for event in held:
        event.delivery.settle(event.state)
    service.end.flush()
    assert await first == messages


@pytest.mark.parametrize("timeouts", [[5, 1], [1, 5], [3, 1, 2, 1]])
async def test_settlements_of_one_step_end_at_their_own_deadlines(
    service: Service, transport: AmqpTransport, timeouts: list[float]
) -> None:
    service.on_disposition = lambda event: None
    store(service, *map(str, timeouts))
    receiver = transport.open_receiver("orders")
    messages = await receive(receiver, len(timeouts))
    began_at = clock.monotonic()

    async def settle(message: ServiceBusReceivedMessage, timeout_s: float) -> None:
        with pytest.raises(OperationTimeoutError) as caught:
            await receiver.settle(message, COMPLETE, timeout_s=timeout_s)
        assert (caught.value.is_in_doubt, clock.monotonic() - began_at) == (True, timeout_s)

    await asyncio.gather(*map(settle, messages, timeouts))


async def test_message_can_be_settled_when_the_call_that_settled_it_has_ended(
    service: Service, transport: AmqpTransport
) -> None:
    held: list[DispositionReceived] = []
    service.on_disposition = held.append
    store(service, "a")
    receiver = transport.open_receiver("orders")
    (message,) = await receive(receiver, 1)
    for steps in (2, 0):  # after the settlement has left, and before
        ended = asyncio.ensure_future(receiver.settle(message, Settlement(SettleMode.ABANDON), timeout_s=60))
        for _ in range(steps):
            await asyncio.sleep(0)
        ended.cancel()
    settling = asyncio.ensure_future(receiver.settle(message, COMPLETE, timeout_s=60))
    await clock.sleep(1)
    assert held[-1].state == ACCEPTED
    held[-1].delivery.settle(ACCEPTED)
    service.end.flush()
    await settling


async def test_settling_together_returns_the_confirmed_messages(service: Service, transport: AmqpTransport) -> None:
    error = AmqpError("com.microsoft:message-lock-lost", "gone")

    def answer(event: DispositionReceived) -> None:
        is_refused = event.delivery.tag == tag_of(messages[7])
        event.delivery.settle(Rejected(error) if is_refused else ACCEPTED)

    service.on_disposition = answer
    store(service, *(str(number) for number in range(100)))
    receiver = transport.open_receiver("orders")
    messages = await receive(receiver, 100)
    before = frames_of(service)
    settled = await receiver.settle_together(messages, COMPLETE, timeout_s=10)
    assert frames_of(service) == before + 1
    assert settled == messages[:7] + messages[8:]


async def test_settling_together_settles_nothing_after_the_loss_of_the_link(
    service: Service, transport: AmqpTransport
) -> None:
    store(service, "a", "b")
    receiver = transport.open_receiver("orders")
    messages = await receive(receiver, 2)
    service.end.cut()
    assert await receiver.settle_together(messages, COMPLETE, timeout_s=10) == []


async def test_settling_together_ends_at_the_deadline(service: Service, transport: AmqpTransport) -> None:
    def answer(event: DispositionReceived) -> None:
        if event.delivery.tag == tag_of(messages[0]):
            event.delivery.settle(ACCEPTED)

    service.on_disposition = answer
    store(service, "a", "b")
    receiver = transport.open_receiver("orders")
    messages = await receive(receiver, 2)
    began_at = clock.monotonic()
    assert await receiver.settle_together(messages, COMPLETE, timeout_s=10) == messages[:1]
    assert clock.monotonic() == began_at + 10


# -- sessions ---------------------------------------------------------------------------------------------------------


async def test_session_is_accepted_and_let_go(service: Service, transport: AmqpTransport) -> None:
    receiver = transport.open_receiver("orders", session=NEXT_AVAILABLE_SESSION)
    await receiver.open(timeout_s=20)
    attach = service.end.link("orders").remote
    assert attach.source.filter == {"com.microsoft:session-filter": None}
    assert attach.properties["com.microsoft:timeout"] == 20_000
    assert receiver.session_id == "s1"
    assert receiver.session_locked_until_utc == datetime(2022, 9, 28, 22, 13, 20, tzinfo=UTC)
    await receiver.close()
    assert service.end.link("orders").is_over


async def test_requests_of_a_session_name_it_and_go_over_its_connection(
    service: Service, transport: AmqpTransport
) -> None:
    until = datetime(2030, 1, 1, tzinfo=UTC)
    states: list[Any] = []

    def set_state(body: Any) -> Answer:
        states.append(body["session-state"])
        return 200, None, {}

    payload = encode_message(ServiceBusMessage("a")).payload
    service.replies |= {
        "com.microsoft:set-session-state": set_state,
        "com.microsoft:get-session-state": lambda body: (200, None, {"session-state": states[-1]}),
        "com.microsoft:renew-session-lock": lambda body: (200, None, {"expiration": until}),
        "com.microsoft:peek-message": lambda body: (200, None, {"messages": [{"message": payload}]}),
        "com.microsoft:receive-by-sequence-number": lambda body: (
            200,
            None,
            {"messages": [{"message": payload, "lock-token": UUID(int=7)}]},
        ),
        "com.microsoft:update-disposition": lambda body: (200, None, {}),
    }
    receiver = transport.open_receiver("orders", session=NEXT_AVAILABLE_SESSION)
    for state in (b"one", None, b"two"):
        await receiver.set_session_state(state, timeout_s=10)
        assert await receiver.get_session_state(timeout_s=10) == state
    assert await receiver.renew_session_lock(timeout_s=10) == until == receiver.session_locked_until_utc
    (peeked,) = await receiver.peek(max_message_count=3, sequence_number=0, timeout_s=10)
    assert (str(peeked), peeked.lock_token) == ("a", None)
    (deferred,) = await receiver.receive_deferred([5], timeout_s=10)
    assert (deferred.lock_token, deferred.locked_until_utc) == (UUID(int=7), None)
    await receiver.settle(deferred, COMPLETE, timeout_s=10)
    asked = [(arguments, body) for operation, arguments, body in service.end.requests if operation != "put-token"]
    assert len(asked) == 10
    name = service.end.link("orders").name
    assert {(arguments["associated-link-name"], body["session-id"]) for arguments, body in asked} == {(name, "s1")}
    assert (asked[7][1]["from-sequence-number"], asked[7][1]["message-count"]) == (1, 3)
    assert asked[8][1]["receiver-settle-mode"] == 1


@pytest.mark.parametrize("mode", ServiceBusReceiveMode)
async def test_deferred_messages_have_their_own_lock(
    service: Service, transport: AmqpTransport, mode: ServiceBusReceiveMode
) -> None:
    payload = encode_message(ServiceBusMessage("a")).payload
    entry = {"message": payload, "lock-token": UUID(int=7)}
    service.replies["com.microsoft:receive-by-sequence-number"] = lambda body: (200, None, {"messages": [entry, entry]})
    service.replies["com.microsoft:update-disposition"] = lambda body: (200, None, {})
    receiver = transport.open_receiver("orders", receive_mode=mode)
    messages = await receiver.receive_deferred([1, 2], timeout_s=10)
    is_locking = mode is ServiceBusReceiveMode.PEEK_LOCK
    assert [each.lock_token for each in messages] == [UUID(int=7) if is_locking else None] * 2
    arguments, body = service.end.requests[-1][1:]
    assert body["receiver-settle-mode"] == is_locking
    assert "session-id" not in body
    assert "associated-link-name" not in arguments
    if is_locking:
        await receiver.settle(messages[0], COMPLETE, timeout_s=10)
        assert service.end.requests[-1][0] == "com.microsoft:update-disposition"
    else:
        with pytest.raises(InvalidOperationError):
            await receiver.settle(messages[0], COMPLETE, timeout_s=10)


@pytest.mark.parametrize("body", [None, "text", {}, {"messages": [{}]}, {"messages": [1]}, {"expirations": []}])
async def test_replies_without_what_was_asked_for_are_errors(
    service: Service, transport: AmqpTransport, body: Any
) -> None:
    for operation in ("peek-message", "receive-by-sequence-number", "renew-session-lock", "renew-lock"):
        service.replies[f"com.microsoft:{operation}"] = lambda _: (200, None, body)
    store(service, "a")
    plain, held = transport.open_receiver("orders"), transport.open_receiver("orders", session="s1")
    (message,) = await receive(plain, 1)
    calls: list[tuple[Any, type[ServiceBusError]]] = [
        (plain.renew_lock(message, timeout_s=10), ServiceBusCommunicationError),
        (held.renew_session_lock(timeout_s=10), ServiceBusCommunicationError),
        (plain.renew_session_lock(timeout_s=10), InvalidOperationError),
        (plain.get_session_state(timeout_s=10), InvalidOperationError),
    ]
    if isinstance(body, dict) and "messages" in body:
        calls.append((plain.peek(max_message_count=1, sequence_number=1, timeout_s=10), ServiceBusCommunicationError))
    else:
        calls.append((plain.receive_deferred([1], timeout_s=10), MessageNotFoundError))
    for call, error in calls:
        with pytest.raises(error):
            await call
    assert held.session_locked_until_utc == datetime(2022, 9, 28, 22, 13, 20, tzinfo=UTC)  # as at the attach


@pytest.mark.parametrize("filters", [None, {}, {"com.microsoft:session-filter": 1}])
async def test_attach_without_a_session_is_an_error(
    service: Service, transport: AmqpTransport, filters: dict[str, Any] | None
) -> None:
    service.unanswered.add("orders")
    receiver = transport.open_receiver("orders", session=NEXT_AVAILABLE_SESSION)
    opening = asyncio.create_task(receiver.open(timeout_s=20))
    await clock.sleep(1)
    link = service.end.link("orders")
    link.accept(source=link.remote.source._replace(filter=filters))
    service.end.flush()
    with pytest.raises(ServiceBusCommunicationError):
        await opening
    assert link.is_over
    service.unanswered.clear()
    await receiver.open(timeout_s=20)
    assert receiver.session_id == "s1"


async def test_accept_without_answer_ends_with_grace_and_without_doubt(
    service: Service, transport: AmqpTransport
) -> None:
    service.unanswered.add("orders")
    for session, ends_at in (("s1", 22.0), (None, 20.0)):
        began_at = clock.monotonic()
        with pytest.raises(OperationTimeoutError) as caught:
            await transport.open_receiver("orders", session=session).open(timeout_s=20)
        assert clock.monotonic() - began_at == ends_at
        assert not caught.value.is_in_doubt


@pytest.mark.parametrize("session", [None, "s1"])
async def test_cancelled_caller_does_not_end_the_attach_for_another(
    service: Service, transport: AmqpTransport, session: str | None
) -> None:
    service.unanswered.add("orders")
    receiver = transport.open_receiver("orders", session=session)
    await transport.open_receiver("other").open(timeout_s=5)  # a connection stands
    first, second = (asyncio.create_task(receiver.open(timeout_s=60)) for _ in range(2))
    await clock.sleep(1)
    first.cancel()
    await clock.sleep(1)
    link = service.end.link("orders")
    link.accept(source=link.remote.source._replace(filter={"com.microsoft:session-filter": "s1"}))
    service.end.flush()
    await second
    assert not link.is_over
    assert service.end.attached.count("orders") == 1


@pytest.mark.parametrize(("wait_s", "answered_s"), [(1.0, 14.0), (40.0, 30.0)])
async def test_attach_in_a_receive_call_has_15_s_or_what_the_call_waits(
    service: Service, transport: AmqpTransport, wait_s: float, answered_s: float
) -> None:
    service.unanswered.add("orders")
    receiver = transport.open_receiver("orders")
    receiving = asyncio.create_task(receive(receiver, 1, wait_s))
    await clock.sleep(answered_s)
    link = service.end.link("orders")
    link.owner = "queue"
    store(service, "a")
    link.accept(source=link.remote.source)
    service.end.flush()
    assert [str(each) for each in await receiving] == ["a"]
    service.end.cut()
    began_at = clock.monotonic()
    with pytest.raises(OperationTimeoutError):
        await receive(receiver, 1, wait_s)
    assert clock.monotonic() - began_at == max(wait_s, 15.0)


@pytest.mark.parametrize("is_lost", [True, False])
async def test_requests_end_at_the_deadline_of_their_call(
    service: Service, transport: AmqpTransport, is_lost: bool
) -> None:
    for operation in ("update-disposition", "renew-lock", "peek-message"):
        service.replies[f"com.microsoft:{operation}"] = lambda body: None
    store(service, "a", "b")
    receiver = transport.open_receiver("orders")
    one, other = await receive(receiver, 2)
    if is_lost:
        service.end.cut()
    calls: list[tuple[Callable[[], Any], bool]] = [
        (lambda: receiver.renew_lock(one, timeout_s=3), False),
        (lambda: receiver.peek(max_message_count=1, sequence_number=1, timeout_s=3), False),
    ]
    if is_lost:  # by its token, and in doubt
        calls.append((lambda: receiver.settle(other, COMPLETE, timeout_s=3), True))
    for call, is_in_doubt in calls:
        began_at = clock.monotonic()
        with pytest.raises(OperationTimeoutError) as caught:
            await call()
        assert clock.monotonic() - began_at == 3
        assert caught.value.is_in_doubt == is_in_doubt
    assert service.end.attached.count("orders") == (not is_lost)  # none of these needs the link


async def test_session_that_is_held_elsewhere_is_refused(service: Service, transport: AmqpTransport) -> None:
    service.refusals["orders"] = AmqpError("com.microsoft:session-cannot-be-locked", "held")
    with pytest.raises(SessionCannotBeLockedError):
        await transport.open_receiver("orders", session="s1").open(timeout_s=20)


@pytest.mark.parametrize("is_connection", [True, False])
async def test_lost_link_of_a_session_is_a_lost_lock(
    service: Service, transport: AmqpTransport, is_connection: bool
) -> None:
    store(service, "a")
    receiver = transport.open_receiver("orders", session="s1")
    (message,) = await receive(receiver, 1)
    waiting = asyncio.create_task(receive(receiver, 1, 60))
    await clock.sleep(1)
    if is_connection:
        service.end.cut()
    else:
        service.end.link("orders").detach(AmqpError("amqp:link:detach-forced"))
        service.end.flush()
    calls: list[Callable[[], Any]] = [
        lambda: waiting,
        lambda: receive(receiver, 1),
        lambda: receiver.settle(message, COMPLETE, timeout_s=10),
        lambda: receiver.get_session_state(timeout_s=10),
    ]
    for call in calls:
        with pytest.raises(SessionLockLostError):
            await call()


async def test_each_accept_waits_as_long_as_its_call(service: Service, transport: AmqpTransport) -> None:
    service.refusals["orders"] = AmqpError("com.microsoft:timeout", "no session")
    receiver = transport.open_receiver("orders", session=NEXT_AVAILABLE_SESSION)
    for wait_s in (5, 60, 20):
        with pytest.raises(ServiceBusError):
            await receiver.open(timeout_s=wait_s)
        assert service.end.link("orders").remote.properties["com.microsoft:timeout"] == wait_s * 1000


async def test_cancelled_accept_lets_the_session_go(service: Service, transport: AmqpTransport) -> None:
    service.unanswered.add("orders")
    receiver = transport.open_receiver("orders", session="s1")
    opening = asyncio.create_task(receiver.open(timeout_s=60))
    await clock.sleep(1)
    opening.cancel()
    await clock.sleep(1)
    assert service.end.link("orders").is_over
    service.unanswered.clear()
    await receiver.open(timeout_s=60)


# -- reopening, hostile services ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_connection", [True, False])
async def test_waiting_call_attaches_again_at_once(
    service: Service, transport: AmqpTransport, is_connection: bool
) -> None:
    receiver = transport.open_receiver("orders")
    waiting = asyncio.create_task(receive(receiver, 5, 60))
    await clock.sleep(1)
    if is_connection:
        service.end.cut()
    else:
        service.end.link("orders").detach(AmqpError("amqp:link:detach-forced", "idle"))
        service.end.flush()
    await clock.sleep(0.1)
    put(service, "a")
    assert [str(each) for each in await waiting] == ["a"]
    assert len(service.ends) == 1 + is_connection


async def test_more_messages_than_credit_end_the_link(service: Service, transport: AmqpTransport) -> None:
    receiver = transport.open_receiver("orders")
    waiting = asyncio.create_task(receive(receiver, 1, 60))
    await clock.sleep(1)
    link = service.end.link("orders")
    for number in range(3):
        service.end.send(link, ServiceBusMessage(str(number)), needs_credit=False)
    service.end.flush()
    await clock.sleep(1)
    assert link.is_over
    await asyncio.wait([waiting])
    put(service, "z")
    assert len(service.end.links["orders"]) <= 2


async def test_transfer_to_a_wrong_handle_ends_that_session_alone(service: Service, transport: AmqpTransport) -> None:
    from sbclient.amqp.transfers import write_transfers

    other = transport.open_sender("other")
    await other.send(batch_of([ServiceBusMessage("x")]), timeout_s=10)
    receiver = transport.open_receiver("orders")
    waiting = asyncio.create_task(receive(receiver, 1, 60))
    await clock.sleep(1)
    channel = service.end.link("orders").session.channel
    for frame in write_transfers(channel, 99, 0, b"t", 0, b"", settled=True, state=None, max_frame_size=512):
        service.end.engine.write_bytes(frame)
    service.end.flush()
    await clock.sleep(1)
    put(service, "a")
    assert [str(each) for each in await waiting] == ["a"]
    assert other.is_open
    assert len(service.ends) == 1


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(b"\xff\xff", id="no section"),
        pytest.param(b"\x00\x53\x72\xc1\x06\x02\xa3\x01a\xa1\x09\x00\x53\x75\xa0\x01x", id="malformed annotations"),
    ],
)
async def test_unreadable_message_is_left_out(service: Service, transport: AmqpTransport, payload: bytes) -> None:
    receiver = transport.open_receiver("orders")
    waiting = asyncio.create_task(receive(receiver, 2, 5))
    await clock.sleep(1)
    link = service.end.link("orders")
    link.send(payload, tag=UUID(int=77).bytes_le)
    put(service, "a")
    assert [str(each) for each in await waiting] == ["a"]
    assert service.end.dispositions == []


async def test_lock_token_is_an_annotation_if_the_tag_is_none(service: Service, transport: AmqpTransport) -> None:
    receiver = transport.open_receiver("orders")
    waiting = asyncio.create_task(receive(receiver, 1, 5))
    await clock.sleep(1)
    payload = encode_sections(delivery_annotations={"x-opt-lock-token": UUID(int=7)}, data=[b"a"])
    service.end.link("orders").send(payload, tag=b"1")
    service.end.flush()
    assert [message.lock_token for message in await waiting] == [UUID(int=7)]


async def test_receive_ends_when_the_namespace_cannot_be_reached(service: Service, transport: AmqpTransport) -> None:
    from tests.transport.amqp.service import refused

    receiver = transport.open_receiver("orders")
    waiting = asyncio.create_task(receive(receiver, 5, 60))
    await clock.sleep(1)
    service.connect_error = refused("connection refused")
    service.end.cut()
    with pytest.raises(ServiceBusConnectionError):
        await waiting


# -- requests ---------------------------------------------------------------------------------------------------------


def renews(service: Service) -> datetime:
    """Let the service renew all locks; return their new end."""
    until = datetime.fromtimestamp(clock.now() + 100, tz=UTC)
    service.replies["com.microsoft:renew-lock"] = lambda body: (
        200,
        None,
        {"expirations": timestamps([until] * len(list(body["lock-tokens"])))},
    )
    return until


async def test_renewals_of_one_step_share_a_request(service: Service, transport: AmqpTransport) -> None:
    until = renews(service)
    store(service, *"abc")
    receiver = transport.open_receiver("orders")
    messages = await receive(receiver, 3)
    ends = await asyncio.gather(*(receiver.renew_lock(message, timeout_s=10) for message in messages))
    assert ends == [until] * 3
    assert service.asked.count("com.microsoft:renew-lock") == 1
    _, arguments, _ = service.end.requests[-1]
    assert arguments["associated-link-name"] == service.end.link("orders").name


async def test_renewals_are_grouped_by_the_link_that_brought_the_messages(
    service: Service, transport: AmqpTransport
) -> None:
    renews(service)
    receiver = transport.open_receiver("orders")
    store(service, "a")
    (lost,) = await receive(receiver, 1)
    service.end.cut()
    store(service, "b", "c")
    messages = await receive(receiver, 2)
    await asyncio.gather(*(receiver.renew_lock(message, timeout_s=10) for message in (lost, *messages)))
    renewals = [(arguments, body) for operation, arguments, body in service.end.requests if "renew" in operation]
    assert [
        (arguments.get("associated-link-name"), len(list(body["lock-tokens"]))) for arguments, body in renewals
    ] == [
        (None, 1),
        (service.end.link("orders").name, 2),
    ]


class Shared(NamedTuple):
    """Calls that share requests: the operation, a call about a message, its result, and whether it changes messages."""

    operation: str
    call: Callable[[ServiceBusReceivedMessage], Awaitable[Any]]
    result: Any
    is_changing: bool


def renewing(service: Service, receiver: AmqpReceiver) -> Shared:
    until = renews(service)
    return Shared("com.microsoft:renew-lock", lambda one: receiver.renew_lock(one, timeout_s=10), until, False)


def completing(service: Service, receiver: AmqpReceiver) -> Shared:
    service.replies["com.microsoft:update-disposition"] = lambda body: (200, None, {})
    service.end.cut()  # so that messages are settled by their tokens
    return Shared(
        "com.microsoft:update-disposition", lambda one: receiver.settle(one, COMPLETE, timeout_s=10), None, True
    )


Sharing: TypeAlias = Callable[[Service, AmqpReceiver], Shared]


@pytest.fixture(params=[renewing, completing], ids=["renew", "complete"])
def sharing(request: pytest.FixtureRequest) -> Sharing:
    sharing: Sharing = request.param
    return sharing


async def received(service: Service, receiver: AmqpReceiver, count: int, partitions: int) -> list[Any]:
    """Messages of several partitions, in turn."""
    store(service, *map(str, range(count)))
    messages = await receive(receiver, count)
    for index, message in enumerate(messages):
        message.sequence_number = index % partitions << 48 | index
    return messages


async def test_calls_about_locks_share_a_request_for_each_partition(
    service: Service, transport: AmqpTransport, sharing: Sharing
) -> None:
    receiver = transport.open_receiver("orders")
    messages = await received(service, receiver, 5, partitions=2)
    operation, call, result, _ = sharing(service, receiver)
    assert await asyncio.gather(*map(call, messages)) == [result] * 5
    asked = [list(body["lock-tokens"]) for name, _, body in service.end.requests if name == operation]
    assert asked == [[message.lock_token for message in messages[part::2]] for part in range(2)]


async def test_requests_for_many_locks_are_limited(
    service: Service, transport: AmqpTransport, sharing: Sharing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_requests, "MAX_TOKENS", 2)
    receiver = transport.open_receiver("orders")
    messages = await received(service, receiver, 5, partitions=1)
    operation, call, result, _ = sharing(service, receiver)
    assert await asyncio.gather(*map(call, messages)) == [result] * 5
    asked = [len(list(body["lock-tokens"])) for name, _, body in service.end.requests if name == operation]
    assert asked == [2, 2, 1]


@pytest.mark.parametrize("others", [1, 2])
async def test_one_lost_lock_does_not_fail_the_calls_about_others(
    service: Service, transport: AmqpTransport, sharing: Sharing, others: int
) -> None:
    receiver = transport.open_receiver("orders")
    messages = await received(service, receiver, 1 + others, partitions=1)
    operation, call, result, _ = sharing(service, receiver)
    answer = service.replies[operation]
    service.replies[operation] = lambda body: (
        (410, "com.microsoft:message-lock-lost", None)
        if messages[0].lock_token in list(body["lock-tokens"])
        else answer(body)
    )
    lost, *results = await asyncio.gather(*map(call, messages), return_exceptions=True)
    assert isinstance(lost, MessageLockLostError)
    assert not lost.is_in_doubt
    assert results == [result] * others


async def test_answer_that_does_not_come_leaves_only_its_own_partition_in_doubt(
    service: Service, transport: AmqpTransport, sharing: Sharing
) -> None:
    receiver = transport.open_receiver("orders")
    messages = await received(service, receiver, 4, partitions=2)
    operation, call, result, is_changing = sharing(service, receiver)
    answer = service.replies[operation]
    service.replies[operation] = lambda body: (
        None if messages[0].lock_token in list(body["lock-tokens"]) else answer(body)
    )
    results: list[Any] = await asyncio.gather(*map(call, messages), return_exceptions=True)
    assert results[1::2] == [result] * 2
    assert [(type(one), one.is_in_doubt) for one in results[::2]] == [(OperationTimeoutError, is_changing)] * 2
    assert results[0] is not results[2]


async def test_peek_without_messages_is_empty(service: Service, transport: AmqpTransport) -> None:
    service.replies["com.microsoft:peek-message"] = lambda body: (204, None, None)
    assert await transport.open_receiver("orders").peek(max_message_count=5, sequence_number=1, timeout_s=10) == []


@pytest.mark.parametrize("ended", [0, 10, 30])
async def test_sessions_that_end_between_two_pages_leave_no_other_out(
    service: Service, transport: AmqpTransport, ended: int
) -> None:
    sessions = [f"{number:03}" for number in range(350)]

    def page(body: Any) -> Answer:
        del sessions[:ended]
        found = sessions[body["skip"] : body["skip"] + body["top"]]
        return (200, None, {"skip": body["skip"], "sessions-ids": found}) if found else (204, None, None)

    service.replies["com.microsoft:get-message-sessions"] = page
    listed = await transport.list_sessions("orders", state_updated_after=None, timeout_s=5.0)
    assert set(sessions) <= set(listed)
    assert len(listed) == len(set(listed))
