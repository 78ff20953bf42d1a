"""Which sessions rest because their destination refuses, and when one of them is due."""

from __future__ import annotations

from random import Random

import pytest

from sbclient.clock import VirtualClock
from sbclient.errors import MessagingEntityNotFoundError, ServiceBusConnectionError
from sbclient.syphon import session_backoff as resting_sessions
from sbclient.syphon.destination import FORGET_AFTER_S
from sbclient.syphon.session_backoff import RestingSessions

LOST = ServiceBusConnectionError("the connection is lost")
MISSING = MessagingEntityNotFoundError("there is no such queue")


@pytest.fixture
def chance() -> Random:
    return Random(1)


async def refused(clock: VirtualClock, *sessions: str, path: str = "orders") -> RestingSessions:
    resting = RestingSessions(clock)
    resting.refused(path, LOST)
    for session_id in sessions:
        assert resting.rest(session_id, path)
    return resting


async def test_pauses_double_up_to_a_minute(clock: VirtualClock) -> None:
    resting = await refused(clock, "a")
    spans = []
    for _ in range(9):
        began_at = clock.monotonic()
        spans.append(resting.due_at - began_at)
        assert resting.due() is None
        await clock.sleep(resting.due_at - began_at)
        assert resting.due() == "a"
        assert resting.may_try("orders", "a")
        assert not resting.refused("orders", LOST)
    assert spans == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]
    assert resting.least_failures == 10


async def test_one_session_tries_and_the_others_have_their_turn_after_it(clock: VirtualClock) -> None:
    resting = await refused(clock, "a", "b")
    await clock.sleep(1.0)
    assert resting.due() == "a"
    assert resting.due() is None
    assert resting.may_try("ORDERS", "a")
    assert not resting.may_try("orders", "b")
    resting.refused("orders", LOST)
    await clock.sleep(2.0)
    assert resting.due() == "b"


async def test_a_try_that_nobody_hears_of_again_holds_up_the_others_for_20_s(clock: VirtualClock) -> None:
    resting = await refused(clock, "a", "b")
    await clock.sleep(1.0)
    assert resting.due() == "a"
    await clock.sleep(19.9)
    assert resting.due() is None
    await clock.sleep(0.1)
    assert resting.due() == "b"


async def test_an_answer_ends_the_rest_of_all_its_sessions(clock: VirtualClock) -> None:
    resting = await refused(clock, "a", "b")
    resting.refused("bills", LOST)
    resting.rest("c", "bills")
    assert resting.answered("Orders")
    assert not resting.answered("orders")
    assert (len(resting), resting.count, list(resting.troubles)) == (1, 1, ["bills"])


async def test_only_sessions_that_are_not_known_to_rest_are_told_of_and_those_that_are_gone_forgotten(
    clock: VirtualClock, chance: Random
) -> None:
    resting = await refused(clock, "a", "b")
    assert resting.compare(["b", "c", "d"], chance, 10) == ["c", "d"]
    assert resting.count == 1
    some = resting.compare([str(number) for number in range(1000)], chance, 10)
    assert len(set(some)) == 10
    assert some != resting.compare([str(number) for number in range(1000)], chance, 10)


async def test_a_destination_without_sessions_is_forgotten_after_a_while_and_no_other(
    clock: VirtualClock, chance: Random
) -> None:
    resting = await refused(clock, "a")
    resting.refused("bills", LOST)
    await clock.sleep(FORGET_AFTER_S - 0.1)
    resting.forget_needless()
    assert list(resting.troubles) == ["orders", "bills"]
    resting.compare(["a"], chance, 10)
    await clock.sleep(0.1)
    resting.forget_needless()
    assert list(resting.troubles) == ["orders"]
    resting.compare([], chance, 10)
    await clock.sleep(FORGET_AFTER_S)
    resting.forget_needless()
    assert len(resting) == 0


async def test_sessions_are_bounded_and_each_destination_keeps_one(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resting_sessions, "SESSIONS_KEPT", 2)
    resting = await refused(clock, "a", "b")
    assert not resting.rest("c", "orders")
    resting.refused("bills", LOST)
    assert resting.rest("d", "bills")
    assert not resting.rest("e", "bills")
    assert resting.count == 3


async def test_destinations_are_bounded_with_their_sessions(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resting_sessions, "REFUSALS_KEPT", 1)
    resting = await refused(clock, "a", "b")
    assert resting.refused("bills", LOST)
    assert (list(resting.troubles), resting.count) == (["bills"], 0)


async def test_what_is_given_up_lets_the_next_message_be_looked_at_at_once(clock: VirtualClock) -> None:
    resting = await refused(clock, "a", "b")
    for _ in range(3):
        resting.refused("orders", MISSING)
        await clock.sleep(60.0)
    assert not resting.is_missing_for("orders", 121.0)
    assert resting.is_missing_for("orders", 120.0)
    assert not resting.is_missing_for("bills", 0.0)
    resting.refused("orders", MISSING)
    resting.given_up("orders")
    assert resting.may_try("orders", "a")
    resting.given_up("orders")
    assert resting.may_try("orders", "b")
