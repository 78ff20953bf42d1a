"""Each protocol operation on a partitioned queue and on a subscription of a partitioned topic."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

import pytest

from sbclient.broker.faults import FaultKind, Operation
from sbclient.entities import FalseRuleFilter
from sbclient.errors import (
    MessageLockLostError,
    MessagingEntityNotFoundError,
    ServiceBusError,
)
from tests.broker.driver import COMPLETE, DEFER, START, Driver, address, at, bodies, message


@dataclass
class Pair:
    """Where to send, and where to receive what was sent."""

    broker: Driver
    sent_to: str
    path: str


@pytest.fixture(params=["queue", "subscription"])
def pair(request: pytest.FixtureRequest) -> Pair:
    return made(request.param, requires_session=False)


@pytest.fixture(params=["queue", "subscription"])
def sessions(request: pytest.FixtureRequest) -> Pair:
    return made(request.param, requires_session=True)


def made(kind: str, *, requires_session: bool) -> Pair:
    broker = Driver()
    if kind == "queue":
        broker.partitioned(requires_session=requires_session)
        return Pair(broker, "q", "q")
    broker.topic(enable_partitioning=True)
    broker.subscription(requires_session=requires_session)
    return Pair(broker, "t", "t/Subscriptions/s")


def test_send_and_receive(pair: Pair) -> None:
    pair.broker.send(pair.sent_to, message("a"))
    assert bodies(pair.broker.drain(pair.path)) == ["a"]


def test_batch_send(pair: Pair) -> None:
    pair.broker.send(pair.sent_to, *(message(str(n), partition_key="k") for n in range(5)))
    assert bodies(pair.broker.drain(pair.path)) == ["0", "1", "2", "3", "4"]


def test_batch_receive(pair: Pair) -> None:
    for number in range(20):
        pair.broker.send(pair.sent_to, message(str(number)))
    received = pair.broker.receive(pair.path, 20)
    assert sorted(map(int, bodies(received))) == list(range(20))


def test_receive_by_sequence_number(pair: Pair) -> None:
    for number in range(3):
        pair.broker.send(pair.sent_to, message(str(number)))
    held = pair.broker.receive(pair.path, 3)
    for each in held:
        pair.broker.settle(pair.path, each, how=DEFER)
    for each in held:
        assert bodies(pair.broker.deferred(pair.path, each.sequence_number)) == [str(each)]


def test_peek(pair: Pair) -> None:
    for number in range(20):
        pair.broker.send(pair.sent_to, message(str(number)))
    assert sorted(map(int, bodies(pair.broker.browse(pair.path)))) == list(range(20))


def test_renew_message_lock(pair: Pair) -> None:
    pair.broker.send(pair.sent_to, message())
    held = pair.broker.one(pair.path)
    pair.broker.wait(59)
    pair.broker.renew(pair.path, held)
    pair.broker.wait(59)
    pair.broker.settle(pair.path, held)


def test_schedule_message(pair: Pair) -> None:
    (number,) = pair.broker.schedule(pair.sent_to, message("a", scheduled_enqueue_time_utc=at(START + 5)))
    assert number > 0
    assert pair.broker.receive(pair.path) == []
    pair.broker.wait(5)
    assert bodies(pair.broker.drain(pair.path)) == ["a"]


def test_cancel_scheduled_message(pair: Pair) -> None:
    later = at(START + 5)
    numbers = pair.broker.schedule(
        pair.sent_to, *(message(name, partition_key="k", scheduled_enqueue_time_utc=later) for name in "ab")
    )
    pair.broker.cancel(pair.sent_to, numbers[0])
    pair.broker.wait(5)
    assert bodies(pair.broker.drain(pair.path)) == ["b"]


def test_add_rule() -> None:
    pair = made("subscription", requires_session=False)
    pair.broker.rule(pair.path, "none", filter=FalseRuleFilter())
    pair.broker.rule(pair.path, "all")
    pair.broker.send("t", message("a"))
    assert bodies(pair.broker.drain(pair.path)) == ["a"]


def test_remove_rule() -> None:
    pair = made("subscription", requires_session=False)
    pair.broker.delete(address(f"{pair.path}/$Rules/$Default"))
    pair.broker.send("t", message("a"))
    assert pair.broker.receive(pair.path) == []
    with pytest.raises(MessagingEntityNotFoundError):
        pair.broker.delete(address(f"{pair.path}/$Rules/$Default"))


def test_renew_session_lock(sessions: Pair) -> None:
    sessions.broker.send(sessions.sent_to, message(session_id="s"))
    lock = sessions.broker.held(sessions.path, "s")
    sessions.broker.wait(59)
    assert sessions.broker.renew_session(sessions.path, lock) == START + 119
    sessions.broker.wait(59)
    assert len(sessions.broker.receive(sessions.path, lock=lock)) == 1


def test_set_and_get_session_state(sessions: Pair) -> None:
    lock = sessions.broker.held(sessions.path, "s")
    assert sessions.broker.state(sessions.path, lock) is None
    sessions.broker.set_state(sessions.path, lock, b"state")
    assert sessions.broker.state(sessions.path, lock) == b"state"


def test_enumerate_sessions(sessions: Pair) -> None:
    names = [f"s{n:02}" for n in range(30)]
    for name in reversed(names):
        sessions.broker.send(sessions.sent_to, message(session_id=name))
    assert sessions.broker.sessions(sessions.path) == names
    assert sessions.broker.sessions(sessions.path, most=7) == names[:7]


@pytest.mark.parametrize("kind", [FaultKind.DOWN, FaultKind.BUSY])
def test_sessions_are_not_enumerated_without_those_of_an_unreachable_fragment(sessions: Pair, kind: FaultKind) -> None:
    broker = sessions.broker
    broker.send(sessions.sent_to, message("x", session_id="a"))
    fault = broker.down(sessions.path, 5, kind=kind)
    with pytest.raises(ServiceBusError) as caught:
        broker.sessions(sessions.path)
    assert caught.value.is_transient
    broker.namespace.faults.heal(fault)
    assert broker.sessions(sessions.path) == ["a"]


def test_each_of_several_settlements_has_its_own_result() -> None:
    broker = Driver()
    broker.partitioned()
    for number in range(6):
        broker.send("q", message(str(number)))
    tokens = [each.lock_token for each in broker.receive("q", 6) if each.lock_token is not None]
    unknown = UUID(int=99)
    before = broker.namespace.operation_count
    call = broker.call(Operation.SETTLE)
    errors = broker.namespace.settle_each(call, "q", [*tokens[:3], unknown, *tokens[3:]], COMPLETE)
    assert list(errors) == [unknown]
    assert isinstance(errors[unknown], MessageLockLostError)
    assert len(broker.body()) == 0
    assert broker.namespace.operation_count == before + 7
