from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest
from azure.servicebus import exceptions as sdk_errors

from sbclient.amqp import WireMessage
from sbclient.clock import VirtualClock
from sbclient.errors import (
    InvalidOperationError,
    MessageSizeExceededError,
    OperationTimeoutError,
    ServiceBusConnectionError,
    TransactionNotSupportedError,
)
from sbclient.message import ServiceBusMessage
from sbclient.transport.sdk.sender import FIRST_IDLE_S, FURTHER_IDLE_S, MAX_SENDERS, AzureSender, AzureTransaction
from tests.transport.sdk.sdk_double import OwnerDouble, SenderDouble


@pytest.fixture
async def owner(clock: VirtualClock) -> AsyncIterator[OwnerDouble]:
    owner = OwnerDouble(clock)
    yield owner
    await owner.tasks.close()
    assert owner.faults == []


@pytest.fixture
def sender(owner: OwnerDouble) -> AzureSender:
    return AzureSender(owner, "orders")


def message(body: str = "x", key: str | None = None) -> ServiceBusMessage:
    return ServiceBusMessage(body, session_id=key, message_id=f"id-{body}")


def bodies(sdk: SenderDouble) -> list[list[str]]:
    return [[str(WireMessage.of(bytes(payload))) for payload in transfer] for transfer in sdk.log]


def sends_take(seconds: float) -> Any:
    async def slow(_: Any) -> None:
        await asyncio.sleep(seconds)

    def prepare(sdk: SenderDouble) -> None:
        sdk.on_call = slow

    return prepare


async def test_nothing_is_made_before_the_first_send(owner: OwnerDouble, sender: AzureSender) -> None:
    assert (owner.senders, sender.is_open) == ([], False)
    await sender.send([message()], timeout_s=5.0)
    assert (len(owner.senders), sender.is_open) == (1, True)


async def test_sends_one_after_the_other_share_one_connection(owner: OwnerDouble, sender: AzureSender) -> None:
    for number in range(5):
        await sender.send([message(str(number), key=str(number))], timeout_s=5.0)
    assert len(owner.senders) == 1
    assert bodies(owner.senders[0]) == [["0"], ["1"], ["2"], ["3"], ["4"]]


async def test_one_key_stays_on_one_connection_in_call_order(owner: OwnerDouble, sender: AzureSender) -> None:
    owner.prepare = sends_take(1.0)
    await asyncio.gather(*(sender.send([message(str(number), key="a")], timeout_s=30.0) for number in range(6)))
    assert len(owner.senders) == 1
    assert bodies(owner.senders[0]) == [[str(number)] for number in range(6)]


async def test_a_key_that_hangs_holds_up_no_other(owner: OwnerDouble, sender: AzureSender, clock: VirtualClock) -> None:
    async def hang_for_bad(payloads: Any) -> None:
        if WireMessage.of(bytes(payloads[0])).session_id == "bad":
            await asyncio.Event().wait()

    def prepare(sdk: SenderDouble) -> None:
        sdk.on_call = hang_for_bad

    owner.prepare = prepare
    bad = asyncio.create_task(sender.send([message("bad", key="bad")], timeout_s=20.0))
    await asyncio.sleep(0)
    began = clock.monotonic()
    for number in range(10):
        await sender.send([message(str(number), key=f"good-{number}")], timeout_s=5.0)
    assert clock.monotonic() - began < 2.0
    with pytest.raises(OperationTimeoutError):
        await bad


async def test_there_are_never_more_connections_than_allowed(owner: OwnerDouble, sender: AzureSender) -> None:
    owner.prepare = sends_take(1.0)
    count = MAX_SENDERS * 3
    await asyncio.gather(
        *(sender.send([message(str(number), key=str(number))], timeout_s=30.0) for number in range(count))
    )
    assert len(owner.senders) == MAX_SENDERS
    assert sum(len(sdk.log) for sdk in owner.senders) == count


async def test_idle_connections_are_closed_the_further_ones_sooner(owner: OwnerDouble, sender: AzureSender) -> None:
    owner.prepare = sends_take(1.0)
    await asyncio.gather(*(sender.send([message(key=key)], timeout_s=9.0) for key in "abc"))
    await asyncio.sleep(FURTHER_IDLE_S + 1.0)
    assert [sdk.closed for sdk in owner.senders] == [0, 1, 1]
    await asyncio.sleep(FIRST_IDLE_S)
    assert [sdk.closed for sdk in owner.senders] == [1, 1, 1]
    assert not sender.is_open
    await sender.send([message()], timeout_s=9.0)
    assert len(owner.senders) == 4


async def test_a_lost_connection_is_replaced_by_the_next_send(owner: OwnerDouble, sender: AzureSender) -> None:
    async def cut(_: Any) -> None:
        raise sdk_errors.ServiceBusConnectionError(message="cut")

    await sender.send([message("one")], timeout_s=5.0)
    owner.senders[0].on_call = cut
    with pytest.raises(ServiceBusConnectionError):
        await sender.send([message("two")], timeout_s=5.0)
    await sender.send([message("two")], timeout_s=5.0)
    assert bodies(owner.senders[1]) == [["two"]]
    await asyncio.sleep(1.0)
    assert owner.senders[0].closed == 1


async def test_who_waited_behind_a_connection_that_was_lost_goes_out_through_another(
    owner: OwnerDouble, sender: AzureSender
) -> None:
    async def hang(_: Any) -> None:
        await asyncio.Event().wait()

    await sender.open(timeout_s=5.0)
    owner.senders[0].on_call = hang
    first = asyncio.create_task(sender.send([message("first", key="a")], timeout_s=2.0))
    await asyncio.sleep(0)
    second = asyncio.create_task(sender.send([message("second", key="a")], timeout_s=10.0))
    with pytest.raises(OperationTimeoutError):
        await first
    await second
    assert bodies(owner.senders[0]) == [["first"]]
    assert bodies(owner.senders[1]) == [["second"]]


async def test_a_transfer_carries_the_first_ones_keys_in_front(owner: OwnerDouble, sender: AzureSender) -> None:
    envelopes: list[Any] = []
    await sender.open(timeout_s=5.0)
    sdk = owner.senders[0]
    send = sdk.send_messages

    async def look(batch: Any, *, timeout: float) -> None:
        envelopes.append((len(batch), batch._message[3][0], batch._message[3][10]))
        await send(batch, timeout=timeout)

    sdk.send_messages = look  # type: ignore[method-assign,assignment]  # to see the envelope before the double takes it apart
    await sender.send([message("a", key="k"), message("b", key="k")], timeout_s=5.0)
    assert envelopes == [(2, "id-a", "k")]


async def test_limits_are_those_of_the_link(sender: AzureSender) -> None:
    limits = await sender.limits(timeout_s=5.0)
    assert (limits.max_message_size_bytes, limits.max_batch_size_bytes) == (300_000, 262_144)


async def test_a_message_too_large_for_a_batch_goes_alone(owner: OwnerDouble, sender: AzureSender) -> None:
    await sender.limits(timeout_s=5.0)
    await sender.send([ServiceBusMessage(b"x" * 270_000, message_id="big")], timeout_s=5.0)
    (sent,) = owner.senders[0].log
    assert type(sent).__name__ == "ServiceBusMessage"
    assert b"".join(sent.body) == b"x" * 270_000


async def test_what_amqp_cannot_say_is_refused_before_anything_is_opened(
    owner: OwnerDouble, sender: AzureSender
) -> None:
    unsayable = message()
    unsayable._body_type = type(unsayable._body_type).VALUE
    unsayable._body = object()
    with pytest.raises(InvalidOperationError):
        await sender.send([unsayable], timeout_s=5.0)
    assert owner.senders == []


async def test_scheduling_asks_with_each_messages_own_bytes(owner: OwnerDouble, sender: AzureSender) -> None:
    await sender.open(timeout_s=5.0)

    async def numbers(_: Any) -> list[int]:
        return [7, 8]

    owner.senders[0].on_call = numbers
    at = datetime(2030, 1, 1, tzinfo=UTC)
    later = [message("a", key="k").copy(scheduled_enqueue_time_utc=at), message("b")]
    assert await sender.schedule(later, timeout_s=5.0) == [7, 8]
    ((operation, body),) = owner.senders[0].log
    first, second = body["messages"]
    assert operation == b"com.microsoft:schedule-message"
    assert (first["message-id"], first["session-id"], "session-id" in second) == ("id-a", "k", False)
    assert WireMessage.of(bytes(first["message"])).scheduled_enqueue_time_utc == at


async def test_a_closed_sender_sends_no_more(owner: OwnerDouble, sender: AzureSender) -> None:
    await sender.send([message()], timeout_s=5.0)
    await sender.close()
    await sender.close()
    assert (owner.senders[0].closed, owner.forgotten) == (1, [sender, sender])
    with pytest.raises(InvalidOperationError):
        await sender.send([message()], timeout_s=5.0)


# -- transactions ------------------------------------------------------------------------------------------------------


async def test_a_transaction_is_one_batch_on_commit(owner: OwnerDouble, sender: AzureSender) -> None:
    transaction = AzureTransaction()
    await sender.send([message("a")], timeout_s=5.0, transaction=transaction)
    await sender.send([message("b"), message("c")], timeout_s=5.0, transaction=transaction)
    assert owner.senders[0].log == []
    await transaction.commit(timeout_s=5.0)
    assert bodies(owner.senders[0]) == [["a", "b", "c"]]
    with pytest.raises(InvalidOperationError):
        await sender.send([message("d")], timeout_s=5.0, transaction=transaction)


async def test_a_transaction_that_is_rolled_back_sends_nothing(owner: OwnerDouble, sender: AzureSender) -> None:
    transaction = AzureTransaction()
    await sender.send([message("a")], timeout_s=5.0, transaction=transaction)
    await transaction.rollback(timeout_s=5.0)
    assert owner.senders[0].log == []


async def test_an_empty_transaction_commits_without_a_connection(owner: OwnerDouble) -> None:
    await AzureTransaction().commit(timeout_s=5.0)
    assert owner.senders == []


async def test_a_transaction_is_for_one_entity_and_for_sending_only(owner: OwnerDouble, sender: AzureSender) -> None:
    transaction = AzureTransaction()
    other = AzureSender(owner, "invoices")
    await sender.send([message("a")], timeout_s=5.0, transaction=transaction)
    with pytest.raises(TransactionNotSupportedError):
        await other.send([message("b")], timeout_s=5.0, transaction=transaction)
    with pytest.raises(TransactionNotSupportedError):
        await sender.schedule([message("c")], timeout_s=5.0, transaction=transaction)
    await AzureSender(owner, "ORDERS").send([message("d")], timeout_s=5.0, transaction=transaction)
    await transaction.commit(timeout_s=5.0)
    assert [transfer for sdk in owner.senders for transfer in bodies(sdk)] == [["a", "d"]]


async def test_a_transaction_larger_than_a_batch_is_refused_when_it_grows(
    owner: OwnerDouble, sender: AzureSender
) -> None:
    transaction = AzureTransaction()
    half = ServiceBusMessage(b"x" * 150_000, message_id="half")
    await sender.send([half], timeout_s=5.0, transaction=transaction)
    with pytest.raises(MessageSizeExceededError):
        await sender.send([half], timeout_s=5.0, transaction=transaction)
    await transaction.commit(timeout_s=5.0)
    assert len(owner.senders[0].log) == 1
