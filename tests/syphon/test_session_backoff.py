"""Which sessions rest because their destination refuses, and when one of them is due."""

from __future__ import annotations

from random import Random

import pytest

from sbclient.clock import VirtualClock
from sbclient.errors import MessagingEntityNotFoundError, ServiceBusConnectionError
from sbclient.syphon import session_backoff
from sbclient.syphon.session_backoff import SessionBackoff

LOST = ServiceBusConnectionError("the connection is lost")
MISSING = MessagingEntityNotFoundError("there is no such queue")


@pytest.fixture
def chance() -> Random:
    return Random(1)


async def refused(clock: VirtualClock, *sessions: str, path: str = "orders") -> SessionBackoff:
    backoff = SessionBackoff(clock)
    backoff.refused(path, LOST, clock.monotonic())
    for session_id in sessions:
        assert backoff.rest(session_id, path)
    return backoff


async def test_pauses_double_up_to_a_minute(clock: VirtualClock) -> None:
    backoff = await refused(clock, "a")
    spans = []
    for _ in range(9):
        began_at = clock.monotonic()
        spans.append(backoff.due_at - began_at)
        assert backoff.due() is None
        await clock.sleep(backoff.due_at - began_at)
        assert backoff.due() == "a"
        assert backoff.may_try("orders", "a")
        assert not backoff.refused("orders", LOST, clock.monotonic())
    assert spans == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]
    assert backoff.least_failures == 10


async def test_one_session_probes_while_the_others_wait(clock: VirtualClock) -> None:
    backoff = await refused(clock, "a", "b")
    await clock.sleep(1.0)
    assert backoff.due() == "a"
    assert backoff.due() is None
    assert backoff.may_try("ORDERS", "a")
    assert not backoff.may_try("orders", "b")
    backoff.refused("orders", LOST, clock.monotonic())
    await clock.sleep(2.0)
    assert backoff.due() == "b"


async def test_a_try_without_a_result_delays_the_others_for_20_s(clock: VirtualClock) -> None:
    backoff = await refused(clock, "a", "b")
    await clock.sleep(1.0)
    assert backoff.due() == "a"
    await clock.sleep(19.9)
    assert backoff.due() is None
    await clock.sleep(0.1)
    assert backoff.due() == "b"


async def test_an_answer_ends_the_rest_of_all_its_sessions(clock: VirtualClock) -> None:
    backoff = await refused(clock, "a", "b")
    backoff.refused("bills", LOST, clock.monotonic())
    backoff.rest("c", "bills")
    assert backoff.answered("Orders")
    assert not backoff.answered("orders")
    assert (len(backoff), backoff.count, list(backoff.errors)) == (1, 1, ["bills"])


async def test_only_sessions_that_are_not_known_to_rest_are_reported_and_those_that_are_gone_forgotten(
    clock: VirtualClock, chance: Random
) -> None:
    backoff = await refused(clock, "a", "b")
    assert backoff.forget_missing(["b", "c", "d"], chance, 10) == ["c", "d"]
    assert backoff.count == 1
    some = backoff.forget_missing([str(number) for number in range(1000)], chance, 10)
    assert len(set(some)) == 10
    assert some != backoff.forget_missing([str(number) for number in range(1000)], chance, 10)


async def test_a_destination_without_sessions_is_forgotten_after_a_while_and_no_other(
    clock: VirtualClock, chance: Random
) -> None:
    backoff = await refused(clock, "a")
    backoff.refused("bills", LOST, clock.monotonic())
    await clock.sleep(599.9)
    backoff.forget_idle()
    assert list(backoff.errors) == ["orders", "bills"]
    backoff.forget_missing(["a"], chance, 10)
    await clock.sleep(0.1)
    backoff.forget_idle()
    assert list(backoff.errors) == ["orders"]
    backoff.forget_missing([], chance, 10)
    await clock.sleep(600.0)
    backoff.forget_idle()
    assert len(backoff) == 0


async def test_sessions_are_bounded_and_each_destination_keeps_one(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_backoff, "SESSIONS_KEPT", 2)
    backoff = await refused(clock, "a", "b")
    assert not backoff.rest("c", "orders")
    backoff.refused("bills", LOST, clock.monotonic())
    assert backoff.rest("d", "bills")
    assert not backoff.rest("e", "bills")
    assert backoff.count == 3


async def test_destinations_are_bounded_with_their_sessions(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_backoff, "REFUSALS_KEPT", 1)
    backoff = await refused(clock, "a", "b")
    assert backoff.refused("bills", LOST, clock.monotonic())
    assert (list(backoff.errors), backoff.count) == (["bills"], 0)


async def test_next_message_is_processed_at_once_after_one_is_given_up(clock: VirtualClock) -> None:
    backoff = await refused(clock, "a", "b")
    for _ in range(3):
        backoff.refused("orders", MISSING, clock.monotonic())
        await clock.sleep(60.0)
    assert not backoff.is_missing_for("orders", 121.0)
    assert backoff.is_missing_for("orders", 120.0)
    assert not backoff.is_missing_for("bills", 0.0)
    backoff.refused("orders", MISSING, clock.monotonic())
    backoff.given_up("orders")
    assert backoff.may_try("orders", "a")
    backoff.given_up("orders")
    assert backoff.may_try("orders", "b")
