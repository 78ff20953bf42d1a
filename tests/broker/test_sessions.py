"""Sessions."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sbclient.broker.session import SessionLock
from sbclient.delivery import NEXT_AVAILABLE_SESSION, Settlement
from sbclient.errors import (
    InvalidOperationError,
    MessageLockLostError,
    MessageNotFoundError,
    MessageSizeExceededError,
    ServiceBusQuotaExceededError,
    SessionCannotBeLockedError,
    SessionLockLostError,
)
from sbclient.message import ServiceBusReceivedMessage
from tests.broker.driver import (
    ABANDON,
    COMPLETE,
    DEAD_LETTER,
    DEFER,
    DELETE,
    KEYS,
    START,
    Driver,
    address,
    at,
    bodies,
    message,
    seconds,
)


@pytest.fixture(params=[False, True], ids=["plain", "partitioned"])
def queue(request: pytest.FixtureRequest) -> Driver:
    broker = Driver()
    broker.queue(enable_partitioning=request.param, requires_session=True)
    return broker


def fill(broker: Driver, *sessions: str) -> None:
    for number, session in enumerate(sessions):
        broker.send("q", message(f"{session}{number}", session_id=session))


def test_a_session_lock_is_lost_when_its_queue_is_made_again_with_fewer_fragments(broker: Driver) -> None:
    broker.partitioned(requires_session=True)
    lock = broker.held("q", KEYS[15])
    broker.delete(address("q"))
    broker.queue(requires_session=True)
    for use in (
        lambda: broker.receive(lock=lock),
        lambda: broker.deferred("q", 1, lock=lock),
        lambda: broker.renew_session("q", lock),
        lambda: broker.state("q", lock),
        lambda: broker.set_state("q", lock, b"state"),
    ):
        with pytest.raises(SessionLockLostError):
            use()
    broker.release("q", lock)


def test_bytes_of_messages_that_expire_while_a_state_is_set_are_not_counted(broker: Driver) -> None:
    broker.queue(requires_session=True)
    broker.send("q", message("short-lived", session_id="s", time_to_live=seconds(5)))
    lock = broker.held("q", "s")
    broker.wait(6.0)
    broker.set_state("q", lock, b"state")
    assert broker.body("q").fragments[0].usage.size_bytes == len(b"state")


def test_a_session_entity_takes_no_message_without_a_session(queue: Driver) -> None:
    with pytest.raises(InvalidOperationError):
        queue.send("q", message())
    assert queue.peek() == []


def test_a_session_entity_rejects_a_receiver_without_a_session(queue: Driver) -> None:
    with pytest.raises(InvalidOperationError):
        queue.receive()
    with pytest.raises(InvalidOperationError):
        queue.deferred("q", 1)


def test_a_plain_entity_rejects_a_session_receiver(broker: Driver) -> None:
    broker.queue()
    with pytest.raises(InvalidOperationError):
        broker.accept("q", "s")
    with pytest.raises(InvalidOperationError):
        broker.sessions()


def test_a_session_id_on_a_plain_entity_means_nothing_to_receivers(broker: Driver) -> None:
    broker.queue()
    broker.send("q", message("a", session_id="s"))
    assert str(broker.one()) == "a"


def test_one_receiver_at_a_time_holds_present_and_future_messages(queue: Driver) -> None:
    fill(queue, "s")
    lock = queue.held("q", "s")
    with pytest.raises(SessionCannotBeLockedError):
        queue.accept("q", "s")
    assert queue.accept() is None
    fill(queue, "s", "s")
    assert bodies(queue.receive("q", 5, lock=lock)) == ["s0", "s0", "s1"]


def test_a_session_may_be_held_before_it_has_messages(queue: Driver) -> None:
    lock = queue.held("q", "new")
    assert queue.receive(lock=lock) == []
    queue.release("q", lock)
    assert [fragment.session_count for fragment in queue.body().fragments] == [0] * len(queue.body().fragments)


def test_next_available_gives_each_free_session_once(queue: Driver) -> None:
    fill(queue, "a", "b", "c", "a")
    locks = [queue.accept() for _ in range(4)]
    assert sorted(lock.session_id for lock in locks if lock) == ["a", "b", "c"]
    assert locks[3] is None


def test_a_session_without_messages_to_receive_is_not_available(queue: Driver) -> None:
    fill(queue, "s")
    lock = queue.held("q", "s")
    held = queue.one(lock=lock)
    queue.settle("q", held, how=DEFER, lock=lock)
    queue.release("q", lock)
    assert queue.accept() is None
    again = queue.held("q", "s")
    assert len(queue.deferred("q", held.sequence_number, lock=again)) == 1


def test_expired_messages_do_not_make_a_session_available(queue: Driver) -> None:
    queue.send("q", message(session_id="s", time_to_live=seconds(5)), message(session_id="s", time_to_live=seconds(5)))
    queue.wait(5)
    assert queue.accept() is None
    assert queue.sessions() == []
    for span_s in (50, 5, 50):
        queue.send("q", message(f"{span_s}", session_id="s", time_to_live=seconds(span_s)))
    queue.wait(5)  # one of three
    lock = queue.accept()
    assert lock is not None
    assert bodies(queue.drain(lock=lock)) == ["50", "50"]


def test_expired_messages_are_passed_over_in_a_session(queue: Driver) -> None:
    queue.send("q", message("0", session_id="s", time_to_live=seconds(5)), message("1", session_id="s"))
    lock = queue.held("q", "s")
    queue.wait(5)
    assert bodies(queue.receive("q", 5, lock=lock)) == ["1"]
    assert queue.receive("q", lock=lock) == []


def test_order_is_kept_and_an_abandoned_message_is_next(queue: Driver) -> None:
    fill(queue, "s", "s", "s")
    lock = queue.held("q", "s")
    first = queue.one(lock=lock)
    queue.settle("q", first, how=ABANDON, lock=lock)
    received = queue.receive("q", 5, lock=lock)
    assert bodies(received) == ["s0", "s1", "s2"]
    assert [each.delivery_count for each in received] == [1, 0, 0]


def test_state_is_bytes_that_survive_the_messages(queue: Driver) -> None:
    lock = queue.held("q", "s")
    assert queue.state("q", lock) is None
    queue.set_state("q", lock, b"\x00state")
    queue.release("q", lock)
    again = queue.held("q", "s")
    assert queue.state("q", again) == b"\x00state"
    queue.set_state("q", again, None)
    assert queue.state("q", again) is None


@pytest.mark.parametrize(("size", "is_fit"), [(2**18 - 1, True), (2**18, True), (2**18 + 1, False)])
def test_state_is_at_most_one_message(queue: Driver, size: int, is_fit: bool) -> None:
    lock = queue.held("q", "s")
    if is_fit:
        queue.set_state("q", lock, b"x" * size)
    else:
        with pytest.raises(MessageSizeExceededError):
            queue.set_state("q", lock, b"x" * size)
        assert queue.state("q", lock) is None


def test_state_counts_toward_the_size(broker: Driver) -> None:
    broker.queue(requires_session=True)
    broker.body().policy.max_size_bytes = 100
    lock = broker.held("q", "s")
    broker.set_state("q", lock, b"x" * 100)
    with pytest.raises(ServiceBusQuotaExceededError):
        broker.send("q", message(session_id="s"))
    broker.set_state("q", lock, b"x" * 10)
    broker.send("q", message(session_id="s"))


@pytest.mark.parametrize("smaller", [None, b"x" * 200, b"y" * 300])
def test_state_may_become_smaller_in_a_full_entity(broker: Driver, smaller: bytes | None) -> None:
    broker.queue(requires_session=True)
    lock = broker.held("q", "a")
    for each in (broker.held("q", "b"), lock):
        broker.set_state("q", each, b"x" * 300)
    broker.body().policy.max_size_bytes = 100
    with pytest.raises(ServiceBusQuotaExceededError):
        broker.set_state("q", lock, b"x" * 301)
    broker.set_state("q", lock, smaller)
    assert broker.state("q", lock) == smaller


def test_an_ended_session_lock_is_a_failed_delivery(queue: Driver) -> None:
    fill(queue, "s", "s")
    queue.receive("q", 2, lock=queue.held("q", "s"))
    queue.wait(60)
    lock = queue.held("q", "s")
    assert [each.delivery_count for each in queue.receive("q", 2, lock=lock)] == [1, 1]


def test_releasing_a_session_is_not_a_failed_delivery(queue: Driver) -> None:
    fill(queue, "s", "s")
    lock = queue.held("q", "s")
    queue.receive("q", 2, lock=lock)
    queue.release("q", lock)
    again = queue.held("q", "s")
    received = queue.receive("q", 2, lock=again)
    assert [(str(each), each.delivery_count) for each in received] == [("s0", 0), ("s1", 0)]


def test_too_many_ended_locks_dead_letter(broker: Driver) -> None:
    broker.queue(requires_session=True, max_delivery_count=1)
    fill(broker, "s")
    broker.receive(lock=broker.held("q", "s"))
    broker.wait(60)
    assert broker.accept() is None
    assert broker.one("q/$DeadLetterQueue").session_id == "s"


ATTEMPTS: list[Callable[[Driver, SessionLock, ServiceBusReceivedMessage], object]] = [
    lambda queue, lock, _: queue.receive(lock=lock),
    lambda queue, lock, _: queue.deferred("q", 1, lock=lock),
    lambda queue, lock, _: queue.renew_session("q", lock),
    lambda queue, lock, _: queue.state("q", lock),
    lambda queue, lock, _: queue.set_state("q", lock, b""),
    lambda queue, lock, held: queue.settle("q", held, lock=lock),
]


def test_every_operation_fails_after_the_lock_is_lost(queue: Driver) -> None:
    """Each of them as the first request after the end of the lock."""
    fill(queue, "s", "s")
    for attempt in ATTEMPTS:
        lock = queue.held("q", "s")
        held = queue.one(lock=lock)
        queue.wait(60)
        with pytest.raises(SessionLockLostError, match="The session lock has expired on the MessageSession"):
            attempt(queue, lock, held)
    assert len(queue.peek("q", session_id="s")) == 2


@pytest.mark.parametrize("how", [COMPLETE, DEFER, DEAD_LETTER])
def test_a_session_with_a_further_message_is_available_again(queue: Driver, how: Settlement) -> None:
    fill(queue, *"ss")
    lock = queue.accept()
    assert lock is not None
    queue.settle("q", queue.one(lock=lock), how=how, lock=lock)
    queue.release("q", lock)
    lock = queue.accept()
    assert lock is not None
    assert bodies(queue.receive(count=5, lock=lock)) == ["s1"]


def test_a_lost_link_takes_the_lock_with_it(queue: Driver) -> None:
    fill(queue, "s")
    lock = queue.held("q", "s")
    held = queue.one(lock=lock)
    queue.release("q", lock)
    with pytest.raises(SessionLockLostError):
        queue.settle("q", held, lock=lock)
    with pytest.raises(MessageLockLostError):
        queue.settle("q", held, lock=queue.held("q", "s"))


def test_renewal_keeps_the_session_and_its_messages(queue: Driver) -> None:
    fill(queue, "s")
    lock = queue.held("q", "s")
    held = queue.one(lock=lock)
    assert held.locked_until_utc is None
    queue.wait(50)
    assert queue.renew_session("q", lock) == lock.locked_until == START + 110
    queue.wait(59)
    queue.settle("q", held, lock=lock)


def test_messages_of_a_session_are_not_renewed_one_by_one(queue: Driver) -> None:
    fill(queue, "s")
    held = queue.one(lock=queue.held("q", "s"))
    with pytest.raises(InvalidOperationError):
        queue.renew("q", held)


def test_sessions_with_messages_or_a_state_or_with_a_later_state(queue: Driver) -> None:
    fill(queue, "b", "a", "c")
    lock = queue.held("q", "b")
    queue.drain(lock=lock)
    queue.wait(10)
    queue.set_state("q", lock, b"x")
    assert queue.sessions() == ["a", "b", "c"]
    assert queue.sessions(after=START + 5) == ["b"]
    assert queue.sessions(after=START + 10) == []
    assert queue.sessions(after=START - 1, most=1) == ["b"]
    queue.set_state("q", lock, None)
    assert queue.sessions() == ["a", "c"]


def test_releasing_a_lost_session_or_one_of_a_deleted_queue_is_ignored(queue: Driver) -> None:
    lock = queue.held("q", "s")
    queue.wait(60)
    queue.release("q", lock)
    queue.release("nowhere", lock)
    queue.queue("other")
    lock.fragment_index = 15
    queue.release("other", lock)


def test_a_late_release_of_a_lost_session_leaves_it_to_its_next_holder(queue: Driver) -> None:
    fill(queue, "s", "s")
    first = queue.held("q", "s")
    for _ in range(2):
        queue.wait(61)
        second = queue.held("q", "s")
        one = queue.one(lock=second)
        queue.release("q", first)
        queue.settle("q", one, lock=second)
        assert queue.renew_session("q", second) == queue.now + 60
        first = second
    assert queue.sessions() == []


def test_a_session_is_browsed_alone(queue: Driver) -> None:
    fill(queue, "a", "b", "a", "a")
    assert bodies(queue.peek(session_id="a")) == ["a0", "a2", "a3"]
    second = queue.peek(session_id="a")[1].sequence_number
    assert bodies(queue.peek(session_id="a", from_number=second)) == ["a2", "a3"]


def test_session_is_browsed_in_order_after_a_commit(queue: Driver) -> None:
    transaction = queue.begin()
    later = message("later", session_id="s", scheduled_enqueue_time_utc=at(START + 100))
    queue.schedule("q", later, transaction=transaction)
    fill(queue, "s")
    queue.commit(transaction)
    assert bodies(queue.peek(session_id="s")) == ["later", "s0"]
    second = queue.peek(session_id="s")[1].sequence_number
    assert bodies(queue.peek(session_id="s", from_number=second)) == ["s0"]


def test_browsing_a_session_that_does_not_exist_shows_nothing(queue: Driver) -> None:
    assert queue.peek(session_id="missing") == []


def test_settled_messages_do_not_accumulate_in_a_session(broker: Driver) -> None:
    broker.queue(requires_session=True)
    lock = broker.held("q", "s")
    for number in range(100):
        broker.send("q", message(str(number), session_id="s"))
        broker.settle("q", broker.one(lock=lock), lock=lock)
    fill(broker, "s", "s")
    assert bodies(broker.peek(session_id="s")) == ["s0", "s1"]
    session = broker.body().fragments[0]._sessions.get("s")
    assert session is not None
    assert len(session.numbers) < 40


def test_receive_and_delete_in_a_session(queue: Driver) -> None:
    fill(queue, "s", "s")
    lock = queue.held("q", "s")
    assert bodies(queue.receive("q", 5, lock=lock, mode=DELETE)) == ["s0", "s1"]
    assert queue.sessions() == []


def test_dead_letters_of_a_session_are_received_without_one(queue: Driver) -> None:
    fill(queue, "s")
    lock = queue.held("q", "s")
    queue.settle("q", queue.one(lock=lock), how=DEAD_LETTER, lock=lock)
    assert str(queue.one("q/$DeadLetterQueue")) == "s0"


def test_deferred_message_of_another_session_is_not_returned(queue: Driver) -> None:
    fill(queue, "s")
    lock = queue.held("q", "s")
    held = queue.one(lock=lock)
    queue.settle("q", held, how=DEFER, lock=lock)
    with pytest.raises(MessageNotFoundError):
        queue.deferred("q", held.sequence_number, lock=queue.held("q", "other"))


def test_a_scheduled_message_waits_for_its_time_in_a_session(queue: Driver) -> None:
    queue.schedule("q", message("a", session_id="s", scheduled_enqueue_time_utc=at(START + 10)))
    assert queue.accept() is None
    queue.wait(10)
    lock = queue.accept(session=NEXT_AVAILABLE_SESSION)
    assert lock is not None
    assert bodies(queue.receive(lock=lock)) == ["a"]


def test_waiting_receivers_are_notified_of_sessions(queue: Driver) -> None:
    fill(queue, "s")
    lock = queue.held("q", "s")
    fill(queue, "s")
    queue.release("q", lock)
    assert [awaited for _, awaited in queue.ready] == [
        NEXT_AVAILABLE_SESSION,
        "s",
        "s",
        NEXT_AVAILABLE_SESSION,
    ]


def test_a_removed_message_does_not_make_its_session_available(broker: Driver) -> None:
    broker.queue(requires_session=True)
    fill(broker, "s", "s")
    fragment = broker.body().fragments[0]
    for entry in list(fragment.browse(broker.now, 0)):
        fragment.remove(entry)
    assert broker.accept() is None
    assert fragment.session_count == len(fragment) == 0
