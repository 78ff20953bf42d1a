"""Settlements that wait for one receiver at the same time, over a double of the SDK's."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from azure.servicebus import exceptions
from azure.servicebus._pyamqp.constants import LinkState

from sbclient.clock import VirtualClock
from sbclient.delivery import Settlement, SettleMode
from sbclient.errors import MessageLockLostError, OperationTimeoutError, ServiceBusError
from sbclient.message import ServiceBusReceivedMessage
from sbclient.transport.sdk import receiver as azure_receiver
from sbclient.transport.sdk.receiver import AzureReceiver
from tests.transport.sdk.sdk_double import ANSWER_S, OwnerDouble, ReceiverDouble
from tests.transport.sdk.test_receiver import payload, receiver_of

COMPLETE = Settlement(SettleMode.COMPLETE)
ABANDON = Settlement(SettleMode.ABANDON)


class Owner(OwnerDouble):
    def make_receiver(self, asked: SimpleNamespace) -> Any:
        return ReceiverDouble()


@pytest.fixture
def owner(clock: VirtualClock) -> Owner:
    return Owner(clock)


async def held(owner: Owner, count: int) -> tuple[AzureReceiver, ReceiverDouble, list[ServiceBusReceivedMessage]]:
    """A receiver that holds so many messages."""
    receiver = receiver_of(owner)
    await receiver.open(timeout_s=5.0)
    (sdk,) = owner.receivers
    for number in range(count):
        sdk._handler.arrive(payload(str(number)))
    messages = await receiver.receive(max_message_count=count, max_wait_time_s=5.0)
    assert len(messages) == count
    return receiver, sdk, messages


def settled(sdk: ReceiverDouble) -> list[Any]:
    return [each for each in sdk.log if each != "receive"]


async def test_a_hundred_take_as_long_as_one(owner: Owner, clock: VirtualClock) -> None:
    receiver, sdk, messages = await held(owner, 100)
    began = clock.monotonic()
    await asyncio.gather(*(receiver.settle(message, COMPLETE, timeout_s=5.0) for message in messages))
    assert clock.monotonic() - began == pytest.approx(ANSWER_S)
    assert settled(sdk) == [("complete", number) for number in range(1, 101)]
    assert owner.faults == []


async def test_each_caller_hears_of_its_own(owner: Owner) -> None:
    receiver, sdk, messages = await held(owner, 4)
    sdk.refusals[2] = exceptions.MessageLockLostError(message="gone")
    modes = [COMPLETE, COMPLETE, ABANDON, COMPLETE]
    answers = await asyncio.gather(
        *(receiver.settle(message, mode, timeout_s=5.0) for message, mode in zip(messages, modes, strict=True)),
        return_exceptions=True,
    )
    assert [type(answer) for answer in answers] == [type(None), MessageLockLostError, type(None), type(None)]
    assert settled(sdk) == [("complete", 1), ("complete", 2), ("abandon", 3), ("complete", 4)]
    assert len(owner.receivers) == 1


async def test_what_comes_while_others_are_under_way_goes_with_the_next_turn(owner: Owner, clock: VirtualClock) -> None:
    receiver, sdk, messages = await held(owner, 3)
    began = clock.monotonic()
    first = asyncio.create_task(receiver.settle(messages[0], COMPLETE, timeout_s=5.0))
    await asyncio.sleep(ANSWER_S / 2)
    await asyncio.gather(*(receiver.settle(message, COMPLETE, timeout_s=5.0) for message in messages[1:]))
    await first
    assert clock.monotonic() - began == pytest.approx(2 * ANSWER_S)
    assert len(settled(sdk)) == 3


async def test_who_goes_away_before_the_turn_never_settles(owner: Owner) -> None:
    receiver, sdk, messages = await held(owner, 3)
    first = asyncio.create_task(receiver.settle(messages[0], COMPLETE, timeout_s=5.0))
    await asyncio.sleep(ANSWER_S / 2)
    others = [asyncio.create_task(receiver.settle(message, COMPLETE, timeout_s=5.0)) for message in messages[1:]]
    await asyncio.sleep(0)
    others[0].cancel()
    await asyncio.wait({first, *others})
    assert others[0].cancelled()
    assert settled(sdk) == [("complete", 1), ("complete", 3)]


async def test_who_goes_away_behind_it_ends_nobody_elses(owner: Owner) -> None:
    receiver, _, messages = await held(owner, 3)
    calls = [asyncio.create_task(receiver.settle(message, COMPLETE, timeout_s=5.0)) for message in messages]
    await asyncio.sleep(ANSWER_S / 2)
    calls[0].cancel()
    await asyncio.wait(calls)
    assert [call.cancelled() for call in calls] == [True, False, False]
    assert [call.exception() for call in calls[1:]] == [None, None]
    assert len(owner.receivers) == 1


async def test_a_link_that_is_lost_leaves_all_in_doubt(owner: Owner, clock: VirtualClock) -> None:
    receiver, sdk, messages = await held(owner, 20)
    sdk.answers = False
    calls = [asyncio.create_task(receiver.settle(message, COMPLETE, timeout_s=60.0)) for message in messages]
    await asyncio.sleep(1.0)
    sdk._handler._link.state = LinkState.DETACHED
    began = clock.monotonic()
    await asyncio.wait(calls)
    assert clock.monotonic() - began < 1.0
    for call in calls:
        error = call.exception()
        assert isinstance(error, ServiceBusError)
        assert error.is_in_doubt
    await receiver.open(timeout_s=5.0)
    assert len(owner.receivers) == 2


async def test_an_outcome_that_never_comes_ends_with_the_time(owner: Owner, clock: VirtualClock) -> None:
    receiver, sdk, messages = await held(owner, 3)
    sdk.answers = False
    began = clock.monotonic()
    answers = await asyncio.gather(
        *(receiver.settle(message, COMPLETE, timeout_s=5.0) for message in messages), return_exceptions=True
    )
    assert [type(answer) for answer in answers] == [OperationTimeoutError] * 3
    assert 5.0 <= clock.monotonic() - began <= 6.0
    await asyncio.sleep(10.0)
    assert sdk.closed


async def test_with_an_unknown_sdk_they_go_one_by_one(
    owner: Owner, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(azure_receiver, "is_known_sdk", lambda: False)
    receiver, sdk, messages = await held(owner, 3)
    began = clock.monotonic()
    await asyncio.gather(*(receiver.settle(message, COMPLETE, timeout_s=5.0) for message in messages))
    assert clock.monotonic() - began == pytest.approx(3 * ANSWER_S)
    assert settled(sdk) == [("complete", 1), ("complete", 2), ("complete", 3)]
    assert owner.faults == []
