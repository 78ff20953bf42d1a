from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from functools import partial
from itertools import count
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from azure.servicebus import exceptions as sdk_errors

from sbclient import clock
from sbclient.errors import (
    InvalidOperationError,
    MessageSizeExceededError,
    OperationTimeoutError,
    ServiceBusConnectionError,
    ServiceBusError,
    TransactionNotSupportedError,
)
from sbclient.message import ServiceBusMessage
from sbclient.transport.sdk.sender import FIRST_IDLE_S, FURTHER_IDLE_S, MAX_SENDERS, SdkSender, SdkTransaction
from tests.payloads import batch_of
from tests.transport.sdk.sdk_double import OPENING_S, OwnerDouble, SenderDouble


@pytest.fixture
async def owner() -> AsyncIterator[OwnerDouble]:
    owner = OwnerDouble()
    yield owner
    await owner.tasks.close()
    assert owner.faults == []


@pytest.fixture
def sender(owner: OwnerDouble) -> SdkSender:
    return SdkSender(owner, "orders")


def message(body: str = "x", key: str | None = None) -> ServiceBusMessage:
    return ServiceBusMessage(body, session_id=key, message_id=f"id-{body}")


def bodies(sdk: SenderDouble) -> list[list[str]]:
    return [[str(each) for each in transfer] for transfer in sdk.log]


def sends_take(seconds: float) -> Any:
    async def slow(_: Any) -> None:
        await asyncio.sleep(seconds)

    def prepare(sdk: SenderDouble) -> None:
        sdk.on_call = slow

    return prepare


async def test_no_sdk_sender_is_made_before_the_first_send(owner: OwnerDouble, sender: SdkSender) -> None:
    assert (owner.senders, sender.is_open) == ([], False)
    await sender.send(batch_of([message()]), timeout_s=5.0)
    assert (len(owner.senders), sender.is_open) == (1, True)


async def test_successive_sends_share_one_connection(owner: OwnerDouble, sender: SdkSender) -> None:
    for number in range(5):
        await sender.send(batch_of([message(str(number), key=str(number))]), timeout_s=5.0)
    assert len(owner.senders) == 1
    assert bodies(owner.senders[0]) == [["0"], ["1"], ["2"], ["3"], ["4"]]


async def test_one_key_stays_on_one_connection_in_call_order(owner: OwnerDouble, sender: SdkSender) -> None:
    owner.prepare = sends_take(1.0)
    await asyncio.gather(
        *(sender.send(batch_of([message(str(number), key="a")]), timeout_s=30.0) for number in range(6))
    )
    assert len(owner.senders) == 1
    assert bodies(owner.senders[0]) == [[str(number)] for number in range(6)]


async def test_a_key_without_an_answer_delays_no_other_key(owner: OwnerDouble, sender: SdkSender) -> None:
    async def hang_for_bad(transfer: Any) -> None:
        if transfer[0].session_id == "bad":
            await asyncio.Event().wait()

    def prepare(sdk: SenderDouble) -> None:
        sdk.on_call = hang_for_bad

    owner.prepare = prepare
    bad = sender.send(batch_of([message("bad", key="bad")]), timeout_s=20.0)
    await asyncio.sleep(0)
    began = clock.monotonic()
    for number in range(10):
        await sender.send(batch_of([message(str(number), key=f"good-{number}")]), timeout_s=5.0)
    assert clock.monotonic() - began < 2.0
    with pytest.raises(OperationTimeoutError):
        await bad


async def test_the_number_of_connections_is_limited(owner: OwnerDouble, sender: SdkSender) -> None:
    owner.prepare = sends_take(1.0)
    sends = MAX_SENDERS * 3
    await asyncio.gather(
        *(sender.send(batch_of([message(str(number), key=str(number))]), timeout_s=30.0) for number in range(sends))
    )
    assert len(owner.senders) == MAX_SENDERS
    assert sum(len(sdk.log) for sdk in owner.senders) == sends


async def test_idle_connections_are_closed_all_but_the_first_sooner(owner: OwnerDouble, sender: SdkSender) -> None:
    owner.prepare = sends_take(1.0)
    await asyncio.gather(*(sender.send(batch_of([message(key=key)]), timeout_s=9.0) for key in "abc"))
    await asyncio.sleep(FURTHER_IDLE_S + 1.0)
    assert [sdk.closed for sdk in owner.senders] == [0, 1, 1]
    await asyncio.sleep(FIRST_IDLE_S)
    assert [sdk.closed for sdk in owner.senders] == [1, 1, 1]
    assert not sender.is_open
    await sender.send(batch_of([message()]), timeout_s=9.0)
    assert len(owner.senders) == 4


@pytest.mark.parametrize("others", [1, 2, 5])
async def test_calls_of_a_key_that_wait_for_a_lost_connection_use_another_one(
    owner: OwnerDouble, sender: SdkSender, others: int
) -> None:
    async def cut(_: Any) -> None:
        await asyncio.sleep(1.0)
        raise sdk_errors.ServiceBusConnectionError(message="cut")

    def prepare(sdk: SenderDouble) -> None:
        sdk.on_call = cut
        owner.prepare = lambda _: None  # the next one works

    owner.prepare = prepare
    calls = (sender.send(batch_of([message(str(n), key="k")]), timeout_s=20.0) for n in range(others + 1))
    first, *results = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(first, ServiceBusConnectionError)
    assert results == [None] * others
    assert clock.monotonic() < 5.0


@pytest.mark.parametrize("seed", range(8))
async def test_calls_of_a_key_keep_their_order_whatever_ends_the_others(
    owner: OwnerDouble, sender: SdkSender, seed: int
) -> None:
    """Calls are cancelled, time out, lose their connection or are refused, and others of the key begin meanwhile."""
    random = Random(seed)
    begun: dict[str, list[int]] = {"a": [], "b": []}
    running: dict[str, list[int]] = {"a": [], "b": []}

    async def work(transfer: Any) -> None:
        key, number = transfer[0].session_id, int(str(transfer[0]))
        assert not running[key]
        running[key].append(number)
        begun[key].append(number)
        try:
            await asyncio.sleep(random.choice((0.0, 0.5, 1.0, 9.0)))
            if (what := random.random()) < 0.3:
                raise sdk_errors.ServiceBusConnectionError(message="cut")
            if what < 0.4:
                raise sdk_errors.ServiceBusServerBusyError(message="busy")
        finally:
            running[key].remove(number)

    def prepare(sdk: SenderDouble) -> None:
        sdk.on_call = work

    owner.prepare = prepare
    sends = []
    for number in range(60):
        key = random.choice("ab")
        sends.append(sender.send(batch_of([message(str(number), key=key)]), timeout_s=random.choice((4.0, 20.0))))
        if random.random() < 0.5:
            await asyncio.sleep(random.choice((0.0, 0.1, 0.5, 2.0)))
        if random.random() < 0.3:
            random.choice(sends).cancel()
    results = await asyncio.gather(*sends, return_exceptions=True)
    assert not [each for each in results if isinstance(each, AssertionError)]
    assert all(numbers == sorted(numbers) and len(numbers) > 5 for numbers in begun.values()), begun
    await asyncio.sleep(FIRST_IDLE_S + 1.0)
    assert not sender.is_open


async def test_a_lost_connection_is_replaced_by_the_next_send(owner: OwnerDouble, sender: SdkSender) -> None:
    async def cut(_: Any) -> None:
        raise sdk_errors.ServiceBusConnectionError(message="cut")

    await sender.send(batch_of([message("one")]), timeout_s=5.0)
    owner.senders[0].on_call = cut
    with pytest.raises(ServiceBusConnectionError):
        await sender.send(batch_of([message("two")]), timeout_s=5.0)
    await sender.send(batch_of([message("two")]), timeout_s=5.0)
    assert bodies(owner.senders[1]) == [["two"]]
    await asyncio.sleep(1.0)
    assert owner.senders[0].closed == 1


async def test_a_send_that_waited_for_a_discarded_connection_uses_another(
    owner: OwnerDouble, sender: SdkSender
) -> None:
    async def hang(_: Any) -> None:
        await asyncio.Event().wait()

    await sender.open(timeout_s=5.0)
    owner.senders[0].on_call = hang
    first = sender.send(batch_of([message("first", key="a")]), timeout_s=2.0)
    await asyncio.sleep(0)
    second = sender.send(batch_of([message("second", key="a")]), timeout_s=10.0)
    with pytest.raises(OperationTimeoutError):
        await first
    await second
    assert bodies(owner.senders[0]) == [["first"]]
    assert bodies(owner.senders[1]) == [["second"]]


async def test_limits_are_those_of_a_batch_of_the_sdk(sender: SdkSender) -> None:
    limits = await sender.limits(timeout_s=5.0)
    assert (limits.max_message_size_bytes, limits.max_batch_size_bytes) == (262_144, 262_144)


async def test_a_single_message_is_sent_without_a_batch(owner: OwnerDouble, sender: SdkSender) -> None:
    sent: list[Any] = []
    await sender.open(timeout_s=5.0)

    async def send_messages(message: Any, *, timeout: float) -> None:
        sent.append(message)

    owner.senders[0].send_messages = send_messages  # type: ignore[method-assign]  # records the argument itself
    await sender.send(batch_of([message("a")]), timeout_s=5.0)
    await sender.send(batch_of([message("b"), message("c")]), timeout_s=5.0)
    assert [type(each).__name__ for each in sent] == ["ServiceBusMessage", "list"]


@pytest.mark.deviation("client.sdk-scheduling")
async def test_schedule_sends_one_request_per_enqueue_time(owner: OwnerDouble, sender: SdkSender) -> None:
    await sender.open(timeout_s=5.0)
    numbers = count(7)

    async def schedule(request: Any) -> list[int]:
        return [next(numbers) for _ in request[1]]

    owner.senders[0].on_call = schedule
    noon, later = datetime(2030, 1, 1, 12, tzinfo=UTC), datetime(2030, 1, 1, 13, tzinfo=UTC)
    messages = [
        message(body, key="k").copy(scheduled_enqueue_time_utc=at)
        for body, at in (("a", noon), ("b", noon), ("c", later))
    ]
    assert await sender.schedule(batch_of(messages), timeout_s=5.0) == [7, 8, 9]
    assert [(name, [str(each) for each in group], at) for name, group, at in owner.senders[0].log] == [
        ("schedule", ["a", "b"], noon),
        ("schedule", ["c"], later),
    ]


@pytest.mark.parametrize("accepted", [0, 1, 2])
async def test_a_schedule_of_which_a_part_was_accepted_is_in_doubt(
    owner: OwnerDouble, sender: SdkSender, accepted: int
) -> None:
    await sender.open(timeout_s=5.0)

    async def schedule(request: Any) -> list[int]:
        if len(owner.senders[0].log) > accepted:
            raise sdk_errors.ServiceBusQuotaExceededError(message="full")
        return [7]

    owner.senders[0].on_call = schedule
    times = [datetime(2030, 1, 1, hour, tzinfo=UTC) for hour in range(3)]
    messages = [message().copy(scheduled_enqueue_time_utc=at) for at in times]
    with pytest.raises(ServiceBusError) as caught:
        await sender.schedule(batch_of(messages), timeout_s=5.0)
    assert caught.value.is_in_doubt == (accepted > 0)


async def test_each_link_states_its_limits_anew(owner: OwnerDouble, sender: SdkSender) -> None:
    for size in (262_144, 1_048_576, 262_144):
        owner.prepare = partial(limited_to, size)
        await sender.send(batch_of([message()]), timeout_s=5.0)
        assert sender.known_limits == await sender.limits(timeout_s=5.0)
        assert sender.known_limits is not None
        assert sender.known_limits.max_batch_size_bytes == size
        owner.senders[-1].on_call = fails
        with pytest.raises(ServiceBusConnectionError):
            await sender.send(batch_of([message()]), timeout_s=5.0)


def limited_to(size: int, sdk: SenderDouble) -> None:
    async def create_message_batch() -> Any:
        return SimpleNamespace(max_size_in_bytes=size)

    vars(sdk)["create_message_batch"] = create_message_batch


async def fails(_: object) -> None:
    raise sdk_errors.ServiceBusConnectionError(message="lost")


async def test_a_closed_sender_rejects_messages(owner: OwnerDouble, sender: SdkSender) -> None:
    await sender.send(batch_of([message()]), timeout_s=5.0)
    await sender.close()
    await sender.close()
    assert (owner.senders[0].closed, owner.forgotten) == (1, [sender, sender])
    with pytest.raises(InvalidOperationError):
        await sender.send(batch_of([message()]), timeout_s=5.0)


# -- transactions ------------------------------------------------------------------------------------------------------


@pytest.mark.deviation("client.transactions")
async def test_a_transaction_is_one_batch_on_commit(owner: OwnerDouble, sender: SdkSender) -> None:
    transaction = SdkTransaction()
    await sender.send(batch_of([message("a")]), timeout_s=5.0, transaction=transaction)
    await sender.send(batch_of([message("b"), message("c")]), timeout_s=5.0, transaction=transaction)
    assert owner.senders[0].log == []
    await transaction.commit(timeout_s=5.0)
    assert bodies(owner.senders[0]) == [["a", "b", "c"]]
    with pytest.raises(InvalidOperationError):
        await sender.send(batch_of([message("d")]), timeout_s=5.0, transaction=transaction)


async def test_a_rolled_back_transaction_sends_nothing(owner: OwnerDouble, sender: SdkSender) -> None:
    transaction = SdkTransaction()
    await sender.send(batch_of([message("a")]), timeout_s=5.0, transaction=transaction)
    await transaction.rollback(timeout_s=5.0)
    with pytest.raises(InvalidOperationError):
        await transaction.commit(timeout_s=5.0)
    assert owner.senders[0].log == []


async def test_a_transaction_whose_commit_fails_is_over(owner: OwnerDouble, sender: SdkSender) -> None:
    async def lose(_: Any) -> None:
        raise sdk_errors.ServiceBusConnectionError(message="lost")

    transaction = SdkTransaction()
    await sender.send(batch_of([message("a")]), timeout_s=5.0, transaction=transaction)
    owner.senders[0].on_call = lose
    with pytest.raises(ServiceBusConnectionError) as caught:
        await transaction.commit(timeout_s=5.0)
    assert caught.value.is_in_doubt
    with pytest.raises(InvalidOperationError):
        await transaction.commit(timeout_s=5.0)
    with pytest.raises(InvalidOperationError):
        await sender.send(batch_of([message("b")]), timeout_s=5.0, transaction=transaction)
    assert [bodies(sdk) for sdk in owner.senders] == [[["a"]]]


@pytest.mark.parametrize("end", [SdkTransaction.commit, SdkTransaction.rollback])
async def test_what_is_sent_while_its_transaction_ends_is_refused(
    owner: OwnerDouble, sender: SdkSender, end: Any
) -> None:
    transaction = SdkTransaction()
    sending = sender.send(batch_of([message("a")]), timeout_s=5.0, transaction=transaction)
    await asyncio.sleep(OPENING_S / 2)
    await end(transaction, timeout_s=5.0)
    with pytest.raises(InvalidOperationError):
        await sending
    assert owner.senders[0].log == []


async def test_an_empty_transaction_commits_without_a_connection(owner: OwnerDouble) -> None:
    await SdkTransaction().commit(timeout_s=5.0)
    assert owner.senders == []


@pytest.mark.deviation("client.transactions")
async def test_a_transaction_accepts_only_sends_to_one_entity(owner: OwnerDouble, sender: SdkSender) -> None:
    transaction = SdkTransaction()
    other = SdkSender(owner, "invoices")
    await sender.send(batch_of([message("a")]), timeout_s=5.0, transaction=transaction)
    with pytest.raises(TransactionNotSupportedError):
        await other.send(batch_of([message("b")]), timeout_s=5.0, transaction=transaction)
    with pytest.raises(TransactionNotSupportedError):
        await sender.schedule(batch_of([message("c")]), timeout_s=5.0, transaction=transaction)
    await SdkSender(owner, "ORDERS").send(batch_of([message("d")]), timeout_s=5.0, transaction=transaction)
    await transaction.commit(timeout_s=5.0)
    assert [transfer for sdk in owner.senders for transfer in bodies(sdk)] == [["a", "d"]]


@pytest.mark.deviation("client.transactions")
async def test_a_transaction_larger_than_a_batch_is_rejected_when_it_grows(
    owner: OwnerDouble, sender: SdkSender
) -> None:
    transaction = SdkTransaction()
    half = ServiceBusMessage(b"x" * 150_000, message_id="half")
    await sender.send(batch_of([half]), timeout_s=5.0, transaction=transaction)
    with pytest.raises(MessageSizeExceededError):
        await sender.send(batch_of([half]), timeout_s=5.0, transaction=transaction)
    await transaction.commit(timeout_s=5.0)
    assert len(owner.senders[0].log) == 1
