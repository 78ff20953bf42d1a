"""Transactions."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Final

import pytest

from sbclient.broker.faults import FaultKind, NoAnswer
from sbclient.broker.session import SessionLock
from sbclient.broker.transactions import Transaction
from sbclient.entities import SqlRuleFilter
from sbclient.errors import (
    InvalidOperationError,
    MessageLockLostError,
    MessageNotFoundError,
    MessageSizeExceededError,
    MessagingEntityAlreadyExistsError,
    MessagingEntityNotFoundError,
    ServiceBusConnectionError,
    ServiceBusInternalError,
    ServiceBusQuotaExceededError,
    SessionLockLostError,
)
from sbclient.rules.partition_key import fragment_of
from tests.broker.driver import (
    ABANDON,
    COMPLETE,
    DEAD_LETTER,
    DEFER,
    KEYS,
    START,
    Driver,
    address,
    at,
    bodies,
    message,
    seconds,
)


def same_fragment_as(key: str) -> str:
    return next(f"k{n}" for n in range(10_000) if fragment_of(f"k{n}", 16) == fragment_of(key, 16) and f"k{n}" != key)


@pytest.mark.deviation("broker.transaction-keys", "broker.transaction-rejected-send")
def test_messages_of_a_transaction_have_one_key_and_refused_ones_leave_the_rest_untouched(broker: Driver) -> None:
    broker.partitioned()
    transaction = broker.begin()
    for number in range(3):
        broker.send("q", message(str(number), partition_key="k"), transaction=transaction)
    for other in ({}, {"message_id": "m"}, {"partition_key": same_fragment_as("k")}, {"partition_key": "other"}):
        with pytest.raises(InvalidOperationError):
            broker.send("q", message("x", **other), transaction=transaction)
    broker.send("q", message("3", partition_key="k"), message("4", partition_key="k"), transaction=transaction)
    assert broker.peek() == []
    broker.commit(transaction)
    assert [len(fragment) for fragment in broker.body().fragments if len(fragment)] == [5]
    assert bodies(broker.drain()) == list("01234")


@pytest.mark.deviation("broker.transaction-message-ids")
def test_the_message_id_is_a_key_with_duplicate_detection(broker: Driver) -> None:
    broker.partitioned(requires_duplicate_detection=True)
    transaction = broker.begin()
    broker.send("q", message("a", message_id="m"), transaction=transaction)
    broker.commit(transaction)
    assert bodies(broker.drain()) == ["a"]


def test_to_a_session_entity_it_is_the_session_id(broker: Driver) -> None:
    broker.partitioned(requires_session=True)
    transaction = broker.begin()
    with pytest.raises(InvalidOperationError):
        broker.send("q", message(partition_key="k"), transaction=transaction)
    broker.send("q", message(session_id="k"), transaction=transaction)
    broker.commit(transaction)
    assert broker.sessions() == ["k"]


def test_which_the_partition_key_must_equal(broker: Driver) -> None:
    broker.partitioned(requires_session=True)
    transaction = broker.begin()
    with pytest.raises(InvalidOperationError):
        broker.send("q", message(session_id="a", partition_key="b"), transaction=transaction)
    broker.send("q", message(session_id="a", partition_key="a"), transaction=transaction)


@pytest.mark.parametrize("is_partitioned", [False, True])
def test_different_sessions_in_one_transaction_need_a_plain_entity(broker: Driver, is_partitioned: bool) -> None:
    broker.queue(enable_partitioning=is_partitioned, requires_session=True)
    transaction = broker.begin()
    broker.send("q", message(session_id="a"), transaction=transaction)
    if is_partitioned:
        with pytest.raises(InvalidOperationError):
            broker.send("q", message(session_id="b"), transaction=transaction)
    else:
        broker.send("q", message(session_id="b"), transaction=transaction)
    broker.commit(transaction)
    assert broker.sessions() == (["a"] if is_partitioned else ["a", "b"])


def test_different_via_keys_in_one_transaction_need_a_plain_entity(broker: Driver) -> None:
    broker.queue("via")
    broker.queue("end")
    transaction = broker.begin()
    for key in ("a", "b", None):
        broker.send("end", message(str(key)), via="via", via_partition_key=key, transaction=transaction)
    broker.commit(transaction)
    assert sorted(bodies(broker.receive("end", 5))) == ["None", "a", "b"]


def test_via_keys_in_one_transaction_on_a_partitioned_entity_are_equal(broker: Driver) -> None:
    """Also those that lead to the same fragment, whether the messages pass through it or stay."""
    broker.partitioned("via")
    broker.queue("end")
    broker.queue("plain")
    other = same_fragment_as("a")
    for path, via in (("end", "via"), ("via", None)):
        transaction = broker.begin()
        broker.send(path, message(path), via=via, via_partition_key="a", transaction=transaction)
        for key in (other, None):
            with pytest.raises(InvalidOperationError):
                broker.send(path, message(), via=via, via_partition_key=key, transaction=transaction)
        broker.send(path, message(path), via=via, via_partition_key="a", transaction=transaction)
        broker.commit(transaction)
    assert bodies(broker.drain("end")) == ["end"] * 2
    stored = broker.peek("via")
    assert [each.sequence_number >> 48 for each in stored] == [fragment_of("a", 16)] * 2
    transaction = broker.begin()
    for key in ("a", other, None):
        broker.send("plain", message(), via_partition_key=key, transaction=transaction)
    broker.commit(transaction)
    assert len(broker.body("plain")) == 3


def test_nor_one_batch_of_several_sessions(broker: Driver) -> None:
    broker.partitioned(requires_session=True)
    with pytest.raises(InvalidOperationError):
        broker.send("q", message(session_id="a"), message(session_id="b"), transaction=broker.begin())


def test_rules_change_outside_transactions_on_a_partitioned_topic(broker: Driver) -> None:
    broker.topic(enable_partitioning=True)
    broker.subscription()
    with pytest.raises(InvalidOperationError):
        broker.rule("t/Subscriptions/s", "r", transaction=broker.begin())
    with pytest.raises(InvalidOperationError):
        broker.delete(address("t/Subscriptions/s/$Rules/$Default"), transaction=broker.begin())
    broker.rule("t/Subscriptions/s", "r")
    broker.delete(address("t/Subscriptions/s/$Rules/$Default"))


def test_and_inside_them_on_a_plain_one(broker: Driver) -> None:
    broker.topic()
    broker.subscription()
    transaction = broker.begin()
    broker.rule("t/Subscriptions/s", "r", transaction=transaction, filter=SqlRuleFilter("1=0"))
    broker.delete(address("t/Subscriptions/s/$Rules/$Default"), transaction=transaction)
    broker.send("t", message("before"))
    broker.commit(transaction)
    broker.send("t", message("after"))
    assert bodies(broker.drain("t/Subscriptions/s")) == ["before"]


def test_a_rule_that_appeared_meanwhile_undoes_the_transaction(broker: Driver) -> None:
    broker.topic()
    broker.subscription()
    transaction = broker.begin()
    broker.rule("t/Subscriptions/s", "r", transaction=transaction)
    broker.send("t", message("a"), transaction=transaction)
    broker.rule("t/Subscriptions/s", "r")
    with pytest.raises(MessagingEntityAlreadyExistsError):
        broker.commit(transaction)
    assert broker.receive("t/Subscriptions/s") == []


def test_sends_schedules_and_settlements_happen_together(broker: Driver) -> None:
    broker.queue()
    for number in range(4):
        broker.send("q", message(str(number)))
    held = broker.receive("q", 4)
    transaction = broker.begin()
    settlements = (COMPLETE, ABANDON, DEFER, DEAD_LETTER)
    for each, settlement in zip(held, settlements, strict=True):
        broker.settle("q", each, how=settlement, transaction=transaction)
    broker.send("q", message("new"), transaction=transaction)
    (number,) = broker.schedule(
        "q", message("later", scheduled_enqueue_time_utc=at(START + 10)), transaction=transaction
    )
    assert len(broker.peek()) == 4
    broker.commit(transaction)
    assert sorted((str(each), int(each.state)) for each in broker.peek()) == [
        ("1", 0),
        ("2", 1),
        ("later", 2),
        ("new", 0),
    ]
    assert bodies(broker.receive("q", 5)) == ["1", "new"]
    assert bodies(broker.receive("q/$DeadLetterQueue")) == ["3"]
    broker.cancel("q", number)


def test_scheduled_messages_are_cancelled_at_the_commit(broker: Driver) -> None:
    broker.partitioned()

    def scheduled(key: str, count: int, delay_s: float = 10.0) -> list[int]:
        due = at(broker.now + delay_s)
        each = [message("x", partition_key=key, scheduled_enqueue_time_utc=due) for _ in range(count)]
        return broker.schedule("q", *each)

    ours, others = scheduled(KEYS[3], 101, 200.0), scheduled(KEYS[4], 1)
    (early,) = scheduled(KEYS[3], 1)
    transaction = broker.begin()
    for refused in ([ours[0], others[0]], ours):  # of two fragments; more than a hundred
        with pytest.raises(InvalidOperationError):
            broker.cancel("q", *refused, transaction=transaction)
    broker.cancel("q", ours[0], ours[1], ours[0], transaction=transaction)
    for refused in (others, [ours[1]], ours[2:]):  # of another fragment; named already; 99 more
        with pytest.raises(InvalidOperationError):
            broker.cancel("q", *refused, transaction=transaction)
    broker.cancel("q", *ours[2:100], transaction=transaction)
    assert len(broker.body()) == 103
    broker.commit(transaction)
    assert sorted(each.sequence_number for each in broker.browse()) == [ours[100], early, *others]

    rolled_back, late = broker.begin(), broker.begin()
    broker.cancel("q", ours[100], transaction=rolled_back)
    broker.rollback(rolled_back)
    broker.cancel("q", early, ours[100], transaction=late)
    broker.wait(10)  # one of them is enqueued under a new number
    with pytest.raises(MessageNotFoundError):
        broker.commit(late)
    broker.cancel("q", ours[100])
    assert len(broker.body()) == 2
    with pytest.raises(InvalidOperationError):
        broker.cancel("q", *scheduled(KEYS[3], 1), transaction=late)


def test_a_hundred_operations_and_no_more(broker: Driver) -> None:
    broker.queue()
    transaction = broker.begin()
    broker.send("q", *(message() for _ in range(99)), transaction=transaction)
    with pytest.raises(InvalidOperationError):
        broker.send("q", message(), message(), transaction=transaction)
    broker.send("q", message("last"), transaction=transaction)
    with pytest.raises(InvalidOperationError):
        broker.send("q", message(), transaction=transaction)
    broker.commit(transaction)
    assert len(broker.body()) == 100


@pytest.mark.parametrize(("span_s", "is_in_time"), [(119.9, True), (120.0, False)])
def test_two_minutes_from_the_first_operation(broker: Driver, span_s: float, is_in_time: bool) -> None:
    broker.queue()
    transaction = broker.begin()
    broker.wait(1000)
    broker.send("q", message(), transaction=transaction)
    broker.wait(span_s)
    if is_in_time:
        broker.commit(transaction)
    else:
        with pytest.raises(InvalidOperationError):
            broker.send("q", message(), transaction=transaction)
        with pytest.raises(InvalidOperationError):
            broker.commit(transaction)
    assert len(broker.body()) == is_in_time


def test_no_operation_is_added_after_the_two_minutes_or_the_end(broker: Driver) -> None:
    broker.queue()
    broker.queue("end")
    broker.queue("sessions", requires_session=True, lock_duration=seconds(300))
    broker.send("q", message("held"))
    for path in ("q", "sessions"):
        lock = broker.held("sessions", "s")
        (number,) = broker.schedule("q", message(scheduled_enqueue_time_utc=at(broker.now + 1_000)))
        late, over = broker.begin(), broker.begin()
        for each in (late, over):
            broker.send(path, message(session_id="s"), transaction=each)
        broker.rollback(over)
        broker.wait(120)
        (held,) = broker.receive("q", 1)
        for each in (late, over):
            for attempt in (
                lambda: broker.send(path, message(session_id="s"), transaction=each),  # noqa: B023
                lambda: broker.send("end", message(), via=path, transaction=each),  # noqa: B023
                lambda: broker.settle("q", held, transaction=each),  # noqa: B023
                lambda: broker.cancel("q", number, transaction=each),  # noqa: B023
                lambda: broker.set_state("sessions", lock, b"x", transaction=each),  # noqa: B023
            ):
                with pytest.raises(InvalidOperationError, match=r"ended|began"):
                    attempt()
        broker.settle("q", held, how=ABANDON)
        broker.release("sessions", lock)


def test_later_operations_do_not_extend_the_two_minutes(broker: Driver) -> None:
    broker.queue()
    broker.send("q", message("a"))
    for settles in (False, True):
        transaction = broker.begin()
        broker.wait(300)
        broker.send("q", message("b"), transaction=transaction)
        broker.wait(50)
        if settles:
            broker.settle("q", broker.one(), transaction=transaction)
        broker.send("q", message("c"), transaction=transaction)
        broker.wait(70)
        with pytest.raises(InvalidOperationError):
            broker.commit(transaction)
    assert bodies(broker.browse()) == ["a"]


@pytest.mark.parametrize("is_settled_first", [False, True])
def test_a_settlement_does_not_change_the_key_of_a_transaction(broker: Driver, is_settled_first: bool) -> None:
    broker.partitioned()
    key, other = KEYS[9], same_fragment_as(KEYS[9])
    for number in range(2):
        broker.send("q", message(f"old {number}", partition_key=key))
    received = broker.receive("q", 2)
    transaction = broker.begin()
    if is_settled_first:
        broker.settle("q", received[0], transaction=transaction)
    broker.send("q", message("a", partition_key=key), transaction=transaction)
    broker.settle("q", received[1], transaction=transaction)
    with pytest.raises(InvalidOperationError):
        broker.send("q", message("b", partition_key=other), transaction=transaction)
    broker.send("q", message("c", partition_key=key), transaction=transaction)
    broker.commit(transaction)
    assert sorted(bodies(broker.drain())) == ["a", "c"]


def test_one_entity_only(broker: Driver) -> None:
    broker.queue("a")
    broker.queue("b")
    broker.send("b", message())
    held = broker.one("b")
    transaction = broker.begin()
    broker.send("a", message(), transaction=transaction)
    with pytest.raises(InvalidOperationError, match="cannot span multiple entities or partitions"):
        broker.send("b", message(), transaction=transaction)
    with pytest.raises(InvalidOperationError, match="cannot span multiple entities or partitions"):
        broker.settle("b", held, transaction=transaction)
    broker.commit(transaction)
    assert len(broker.body("a")) == 1


def test_the_dead_letter_queue_belongs_to_its_entity(broker: Driver) -> None:
    broker.queue()
    broker.send("q", message("a"))
    broker.settle("q", broker.one(), how=DEAD_LETTER)
    dead = broker.one("q/$DeadLetterQueue")
    transaction = broker.begin()
    broker.send("q", message("again"), transaction=transaction)
    broker.settle("q/$DeadLetterQueue", dead, transaction=transaction)
    broker.commit(transaction)
    assert bodies(broker.drain()) == ["again"]
    assert broker.counts("q").total_message_count == 0


def test_a_token_named_twice_counts_once(broker: Driver) -> None:
    broker.queue()
    broker.send("q", message("a"), message("b"))
    first, second = broker.receive("q", 2)
    transaction = broker.begin()
    broker.settle("q", first, first, second, transaction=transaction)
    broker.commit(transaction)
    assert len(broker.body()) == 0
    broker.send("q", message("c"))
    third = broker.one()
    broker.settle("q", third, third)
    assert len(broker.body()) == 0


def test_settling_messages_of_two_entities_is_refused_and_keeps_both_locks(broker: Driver) -> None:
    for path in ("q", "r"):
        broker.queue(path)
        broker.send(path, message("x"))
    first, second = broker.one("q"), broker.one("r")
    transaction = broker.begin()
    broker.settle("q", first, transaction=transaction)
    with pytest.raises(InvalidOperationError):
        broker.settle("r", second, transaction=transaction)
    assert [broker.receive(path, 1) for path in ("q", "r")] == [[], []]
    broker.rollback(transaction)
    broker.settle("q", first)
    broker.settle("r", second)


def test_settling_messages_of_two_fragments_is_refused(broker: Driver) -> None:
    broker.partitioned()
    broker.send("q", message(partition_key=KEYS[0]))
    broker.send("q", message(partition_key=KEYS[1]))
    first, second = broker.receive("q", 2)
    transaction = broker.begin()
    broker.settle("q", first, transaction=transaction)
    with pytest.raises(InvalidOperationError):
        broker.settle("q", second, transaction=transaction)
    assert broker.receive("q", 2) == []  # both are still locked
    broker.commit(transaction)
    broker.settle("q", second)
    assert len(broker.body()) == 0


@pytest.mark.parametrize("is_partitioned", [False, True])
def test_a_rollback_undoes_and_keeps_the_locks(broker: Driver, is_partitioned: bool) -> None:
    broker.queue(enable_partitioning=is_partitioned)
    broker.send("q", message("a", partition_key="k"))
    held = broker.one()
    transaction = broker.begin()
    broker.settle("q", held, transaction=transaction)
    broker.send("q", message("b", partition_key="k"), transaction=transaction)
    broker.rollback(transaction)
    assert broker.receive() == []
    broker.settle("q", held)
    assert len(broker.body()) == 0


def test_after_its_end_a_transaction_does_nothing(broker: Driver) -> None:
    broker.queue()
    transaction = broker.begin()
    broker.commit(transaction)
    for attempt in (
        lambda: broker.commit(transaction),
        lambda: broker.send("q", message(), transaction=transaction),
    ):
        with pytest.raises(InvalidOperationError):
            attempt()
    broker.rollback(transaction)


def test_a_commit_that_cannot_do_everything_does_nothing(broker: Driver) -> None:
    broker.queue()
    broker.send("q", message("a"))
    held = broker.one()
    transaction = broker.begin()
    broker.send("q", message("b"), transaction=transaction)
    broker.settle("q", held, transaction=transaction)
    broker.wait(60)
    with pytest.raises(MessageLockLostError):
        broker.commit(transaction)
    assert bodies(broker.drain()) == ["a"]


def test_a_message_is_settled_once_in_a_transaction(broker: Driver) -> None:
    broker.queue()
    broker.send("q", message())
    held = broker.one()
    transaction = broker.begin()
    broker.settle("q", held, transaction=transaction)
    with pytest.raises(InvalidOperationError):
        broker.settle("q", held, transaction=transaction)


def test_a_session_lost_meanwhile_undoes_the_transaction(broker: Driver) -> None:
    broker.queue(requires_session=True)
    broker.send("q", message(session_id="s"))
    lock = broker.held("q", "s")
    held = broker.one(lock=lock)
    transaction = broker.begin()
    broker.settle("q", held, lock=lock, transaction=transaction)
    broker.wait(60)
    with pytest.raises(SessionLockLostError):
        broker.commit(transaction)
    assert len(broker.body()) == 1


def test_a_transaction_that_does_not_fit_is_undone(broker: Driver) -> None:
    broker.queue()
    broker.body().policy.max_size_bytes = 1500
    transaction = broker.begin()
    broker.send("q", message("x" * 900), transaction=transaction)
    broker.send("q", message("x" * 900), transaction=transaction)
    with pytest.raises(ServiceBusQuotaExceededError):
        broker.commit(transaction)
    assert len(broker.body()) == 0


@pytest.mark.parametrize(("kind", "error"), [(FaultKind.DOWN, ServiceBusInternalError), (FaultKind.HANG, NoAnswer)])
def test_an_outage_at_the_commit_undoes_everything(broker: Driver, kind: FaultKind, error: type[Exception]) -> None:
    broker.partitioned()
    transaction = broker.begin()
    broker.send("q", message(partition_key=KEYS[2]), transaction=transaction)
    broker.down("q", 2, kind=kind)
    with pytest.raises(error):
        broker.commit(transaction)
    broker.heal()
    assert len(broker.body()) == 0
    with pytest.raises(InvalidOperationError):
        broker.commit(transaction)


@pytest.mark.parametrize("was_partitioned", [False, True])
def test_a_transaction_on_an_entity_that_was_made_again_is_undone(broker: Driver, was_partitioned: bool) -> None:
    broker.queue(enable_partitioning=was_partitioned)
    transaction = broker.begin()
    broker.send("q", message(partition_key=KEYS[9]), transaction=transaction)
    broker.delete(address("q"))
    broker.queue()
    with pytest.raises(InvalidOperationError):
        broker.commit(transaction)
    assert broker.counts("q").total_message_count == 0


@pytest.mark.parametrize("settles_first", [False, True])
def test_a_transaction_on_a_subscription_that_was_made_again_is_undone(broker: Driver, settles_first: bool) -> None:
    broker.topic()
    for _ in range(2):
        broker.subscription()
        broker.send("t", message("a"))
        received = broker.one("t/Subscriptions/s")
        transaction = broker.begin()
        if settles_first:
            broker.settle("t/Subscriptions/s", received, transaction=transaction)
        broker.send("t", message("b"), transaction=transaction)
        if not settles_first:
            broker.settle("t/Subscriptions/s", received, transaction=transaction)
        broker.delete(address("t/Subscriptions/s"))
        broker.subscription()
        with pytest.raises(InvalidOperationError):
            broker.commit(transaction)
        assert broker.peek("t/Subscriptions/s") == []
        broker.delete(address("t/Subscriptions/s"))


def test_a_transaction_on_a_deleted_entity_is_undone(broker: Driver) -> None:
    broker.queue()
    transaction = broker.begin()
    broker.send("q", message(), transaction=transaction)
    broker.delete(address("q"))
    with pytest.raises(MessagingEntityNotFoundError):
        broker.commit(transaction)


def test_a_transaction_open_at_an_outage_fails_whole(broker: Driver) -> None:
    broker.queue()
    transaction = broker.begin()
    broker.send("q", message("a"), transaction=transaction)
    broker.down(None)
    with pytest.raises(ServiceBusConnectionError):
        broker.commit(transaction)
    broker.heal()
    assert broker.receive() == []


def test_messages_of_one_transfer_share_their_key_on_a_partitioned_entity(broker: Driver) -> None:
    broker.partitioned()
    with pytest.raises(InvalidOperationError):
        broker.send("q", message(partition_key="a"), message(partition_key="b"))
    with pytest.raises(InvalidOperationError):
        broker.send("q", message(partition_key="a"), message())
    broker.send("q", message(), message())
    assert sorted(len(fragment) for fragment in broker.body().fragments)[-2:] == [0, 2]


def test_and_their_message_id_with_duplicate_detection(broker: Driver) -> None:
    broker.partitioned(requires_duplicate_detection=True)
    with pytest.raises(InvalidOperationError):
        broker.send("q", message(message_id="a", partition_key="k"), message(message_id="b", partition_key="k"))
    assert len(broker.body()) == 0


def test_a_plain_entity_takes_any_keys_in_one_transfer(broker: Driver) -> None:
    broker.queue()
    broker.send("q", message("0", partition_key="a"), message("1", session_id="b"), message("2"))
    assert bodies(broker.drain()) == ["0", "1", "2"]


# -- session states ----------------------------------------------------------------------------------------------------


def test_a_session_state_is_set_at_the_commit(broker: Driver) -> None:
    broker.queue(requires_session=True)
    broker.send("q", message("a", session_id="s"))
    lock = broker.held("q", "s")
    broker.set_state("q", lock, b"old")
    for ends, state in ((broker.rollback, b"old"), (broker.commit, b"new")):
        transaction = broker.begin()
        broker.settle("q", broker.one(lock=lock), lock=lock, transaction=transaction)
        broker.set_state("q", lock, b"new", transaction=transaction)
        assert broker.state("q", lock) == b"old"
        ends(transaction)
        assert broker.state("q", lock) == state
        broker.release("q", lock)
        lock = broker.held("q", "s")
    assert broker.receive(lock=lock) == []


def test_a_session_state_needs_its_lock_and_room_at_the_commit(broker: Driver) -> None:
    broker.queue(requires_session=True)
    lock = broker.held("q", "s")
    transaction = broker.begin()
    broker.send("q", message("a", session_id="s"), transaction=transaction)
    broker.set_state("q", lock, b"x", transaction=transaction)
    broker.wait(61)
    with pytest.raises(SessionLockLostError):
        broker.commit(transaction)
    assert broker.browse() == []
    lock = broker.held("q", "s")
    assert broker.state("q", lock) is None
    with pytest.raises(MessageSizeExceededError):
        broker.set_state("q", lock, b"x" * 300_000, transaction=broker.begin())
    fragment = broker.body().fragments[0]
    transaction = broker.begin()
    broker.set_state("q", lock, b"x" * 1_000, transaction=transaction)
    broker.send("q", message("a", session_id="s"), transaction=transaction)
    fragment.usage.size_bytes = fragment.policy.max_size_bytes - 1_001
    with pytest.raises(ServiceBusQuotaExceededError):
        broker.commit(transaction)
    assert (broker.state("q", lock), broker.receive(lock=lock)) == (None, [])


def test_session_states_of_two_entities_or_fragments_are_not_set_in_one_transaction(broker: Driver) -> None:
    broker.partitioned(requires_session=True)
    one, two = broker.held("q", KEYS[1]), broker.held("q", KEYS[2])
    transaction = broker.begin()
    broker.set_state("q", one, b"x", transaction=transaction)
    with pytest.raises(InvalidOperationError):
        broker.set_state("q", two, b"x", transaction=transaction)
    broker.commit(transaction)
    assert (broker.state("q", one), broker.state("q", two)) == (b"x", None)


NUMBERS: Final = count()
WORKS: Final[dict[str, Callable[[Driver, str, SessionLock, Transaction], object]]] = {
    "send": lambda broker, path, _, each: broker.send(top(path), message("sent", session_id="s"), transaction=each),
    "schedule": lambda broker, path, _, each: broker.schedule(
        top(path), message("later", session_id="s", scheduled_enqueue_time_utc=at(START + 50)), transaction=each
    ),
    "complete": lambda broker, path, lock, each: broker.settle(
        path, broker.one(path, lock=lock), lock=lock, transaction=each
    ),
    "defer": lambda broker, path, lock, each: broker.settle(
        path, broker.one(path, lock=lock), how=DEFER, lock=lock, transaction=each
    ),
    "state": lambda broker, path, lock, each: broker.set_state(path, lock, b"new", transaction=each),
    "rule": lambda broker, path, _, each: broker.rule(path, f"r{next(NUMBERS)}", each) if "/" in path else None,
}


def top(path: str) -> str:
    return path.split("/")[0]


@pytest.mark.parametrize("first", WORKS)
@pytest.mark.parametrize("path", ["q", "t/Subscriptions/s"])
def test_all_operations_of_an_entity_share_a_transaction_and_those_of_another_do_not(path: str, first: str) -> None:
    for second in WORKS:
        broker = Driver()
        other = path.replace("q", "q2").replace("t/", "t2/")
        locks = {}
        for each in (path, other):
            if "/" in each:
                broker.topic(top(each))
                broker.subscription(top(each), requires_session=True)
            else:
                broker.queue(each, requires_session=True)
            broker.send(top(each), *(message("m", session_id="s") for _ in range(2)))
            locks[each] = broker.held(each, "s")
        transaction = broker.begin()
        WORKS[first](broker, path, locks[path], transaction)
        if "/" in path or "rule" not in (first, second):
            with pytest.raises(InvalidOperationError):
                WORKS[second](broker, other, locks[other], transaction)
        WORKS[second](broker, path, locks[path], transaction)
        broker.commit(transaction)
        assert (broker.state(path, locks[path]) == b"new") is ("state" in (first, second))
        assert (broker.state(other, locks[other]), broker.counts(other).total_message_count) == (None, 2)


def test_a_commit_and_a_begin_fail_with_the_namespace(broker: Driver) -> None:
    empty, fault = broker.begin(), broker.down(None)
    for work in (broker.begin, lambda: broker.commit(empty)):
        with pytest.raises(ServiceBusConnectionError):
            work()
    broker.heal(fault)
    with pytest.raises(InvalidOperationError):
        broker.commit(empty)  # it is over
