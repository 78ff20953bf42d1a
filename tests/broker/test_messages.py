"""Messages in a queue: locks, deliveries, expiry, dead letters, deferral, schedules, sizes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from sbclient.broker.faults import Operation
from sbclient.delivery import Settlement, SettleMode
from sbclient.errors import (
    InvalidOperationError,
    MessageLockLostError,
    MessageNotFoundError,
    MessageSizeExceededError,
)
from sbclient.message import ServiceBusMessageState
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

DEAD = "q/$DeadLetterQueue"


@pytest.fixture(params=[False, True], ids=["plain", "partitioned"])
def queue(request: pytest.FixtureRequest) -> Driver:
    broker = Driver()
    broker.queue(enable_partitioning=request.param)
    return broker


def test_a_message_has_its_enqueue_and_expiry_times(queue: Driver) -> None:
    queue.wait(5)
    queue.send("q", message(time_to_live=seconds(30)))
    received = queue.one()
    assert (received.enqueued_time_utc, received.expires_at_utc) == (at(START + 5), at(START + 35))
    assert received.time_to_live == seconds(30)


@pytest.mark.parametrize("waited_s", [0.0, 0.0004, 0.0005, 0.000999999])
@pytest.mark.parametrize("beyond_ms", [-2, -1, 0, 1])
def test_an_expiry_at_the_end_of_the_year_9999_is_a_time_or_none(waited_s: float, beyond_ms: int) -> None:
    broker = Driver()
    broker.queue()
    broker.wait(waited_s)
    time_to_live = datetime.max.replace(tzinfo=UTC) - at(START) + timedelta(microseconds=1, milliseconds=beyond_ms)
    broker.send("q", message(time_to_live=time_to_live))
    is_too_late = broker.now + time_to_live.total_seconds() >= 253_402_300_800
    for received in (broker.peek("q")[0], broker.one()):
        assert (received.expires_at_utc is None) == is_too_late


def test_a_message_without_time_to_live_never_expires(queue: Driver) -> None:
    queue.send("q", message())
    received = queue.one()
    assert received.expires_at_utc is None
    assert received.time_to_live is None


def test_the_lock_ends_after_its_duration_from_taking(queue: Driver) -> None:
    queue.send("q", message())
    first = queue.one()
    assert first.locked_until_utc == at(START + 60)
    queue.wait(59.9)
    assert queue.receive() == []
    queue.wait(0.1)
    assert queue.one().delivery_count == 1
    with pytest.raises(MessageLockLostError):
        queue.settle("q", first)


def test_a_queue_has_its_own_lock_duration(broker: Driver) -> None:
    broker.queue(lock_duration=seconds(5))
    broker.send("q", message())
    broker.receive()
    broker.wait(5)
    assert len(broker.receive()) == 1


def test_renewal_holds_for_another_duration(queue: Driver) -> None:
    queue.send("q", message())
    held = queue.one()
    queue.wait(50)
    assert queue.renew("q", held) == [START + 110]
    queue.wait(59)
    assert queue.receive() == []
    queue.settle("q", held)
    with pytest.raises(MessageLockLostError):
        queue.renew("q", held)


def test_an_abandoned_message_returns_to_the_front(queue: Driver) -> None:
    for number in range(3):
        queue.send("q", message(str(number), partition_key="k"))
    first = queue.one()
    queue.settle("q", first, how=ABANDON)
    assert bodies(queue.receive("q", 3)) == ["0", "1", "2"]


def test_returned_messages_keep_their_order(queue: Driver) -> None:
    for number in range(4):
        queue.send("q", message(str(number), partition_key="k"))
    held = queue.receive("q", 3)
    for each in reversed(held):
        queue.settle("q", each, how=ABANDON)
    again = queue.receive("q", 4)
    assert [(str(each), each.delivery_count) for each in again] == [("0", 1), ("1", 1), ("2", 1), ("3", 0)]


def test_the_delivery_count_counts_failed_deliveries(queue: Driver) -> None:
    queue.send("q", message())
    counts = []
    for _ in range(3):
        held = queue.one()
        counts.append(held.delivery_count)
        queue.settle("q", held, how=ABANDON)
    assert counts == [0, 1, 2]
    assert queue.peek()[0].delivery_count == 3


def test_a_released_message_has_had_no_delivery(queue: Driver) -> None:
    queue.send("q", message())
    held = queue.one()
    assert held.lock_token is not None
    queue.namespace.release(queue.call(Operation.RECEIVE), "q", [held.lock_token] * 2)
    assert queue.one().delivery_count == 0


@pytest.mark.parametrize("created", ["nothing", "queue", "topic"])
def test_a_release_after_the_deletion_of_its_queue_is_ignored(broker: Driver, created: str) -> None:
    broker.partitioned()
    broker.send("q", message(partition_key=KEYS[15]))
    held = broker.one()
    assert held.lock_token is not None
    broker.delete(address("q"))
    if created == "queue":
        broker.queue()
    elif created == "topic":
        broker.topic("q")
    broker.namespace.release(broker.call(Operation.RECEIVE), "q", [held.lock_token])


@pytest.mark.parametrize("deliveries", [1, 2, 10])
def test_too_many_failed_deliveries_dead_letter(broker: Driver, deliveries: int) -> None:
    broker.queue(max_delivery_count=deliveries)
    broker.send("q", message("a"))
    for _ in range(deliveries):
        assert broker.counts("q").dead_letter_message_count == 0
        broker.settle("q", broker.one(), how=ABANDON)
    assert broker.receive() == []
    dead = broker.one(DEAD)
    assert (dead.dead_letter_reason, dead.delivery_count) == ("MaxDeliveryCountExceeded", deliveries)


def test_ended_locks_count_as_failed(broker: Driver) -> None:
    broker.queue(max_delivery_count=2)
    broker.send("q", message())
    for _ in range(2):
        broker.receive()
        broker.wait(60)
    assert broker.receive() == []
    assert broker.one(DEAD).dead_letter_reason == "MaxDeliveryCountExceeded"


@pytest.fixture
def many(monkeypatch: pytest.MonkeyPatch, broker: Driver) -> Driver:
    """A queue with 10 locked messages; 2 locks end in one request."""
    monkeypatch.setattr("sbclient.broker.fragment.ENDED_LOCKS_AT_ONCE", 2)
    broker.queue(max_delivery_count=3, dead_lettering_on_message_expiration=True)
    broker.send("q", *(message(str(number)) for number in range(10)))
    return broker


def test_each_request_returns_some_of_the_messages_whose_locks_end_together(many: Driver) -> None:
    held = many.receive("q", 10)
    many.wait(60)
    many.send("q", message("new"))
    assert many.body().fragments[0].locked_count == 8
    many.peek()
    assert many.body().fragments[0].locked_count == 8, "the same moment"
    many.wait(1e-6)
    many.peek()
    assert many.body().fragments[0].locked_count == 6
    for settle in (many.settle, many.renew):
        with pytest.raises(MessageLockLostError):
            settle("q", held[9])
    received = many.receive("q", 20)
    assert bodies(received) == [*map(str, range(10)), "new"]
    assert [each.delivery_count for each in received] == [1] * 10 + [0]


def test_messages_whose_locks_end_together_are_deferred_expire_and_die_as_others(many: Driver) -> None:
    many.send("q", *(message("mortal", time_to_live=seconds(90)) for _ in range(4)))
    deferred = many.receive("q", 5)
    many.settle("q", *deferred, how=DEFER)
    many.receive("q", 20)
    many.deferred("q", *(each.sequence_number for each in deferred))
    many.wait(60)
    found = many.deferred("q", *(each.sequence_number for each in reversed(deferred)))
    assert [each.delivery_count for each in found] == [2] * 5
    many.wait(30)
    received = many.receive("q", 20)
    assert bodies(received) == ["5", "6", "7", "8", "9"]
    assert bodies(many.receive(DEAD, 20)) == ["mortal"] * 4
    many.wait(60)
    with pytest.raises(MessageNotFoundError):
        many.deferred("q", deferred[4].sequence_number)


def test_a_release_after_the_end_of_the_lock_is_a_failed_delivery(queue: Driver) -> None:
    queue.send("q", message())
    for span_s, failed in ((59, 0), (60, 1), (59, 1)):
        held = queue.one()
        queue.wait(span_s)
        assert held.lock_token is not None
        queue.namespace.release(queue.call(Operation.RECEIVE), "q", [held.lock_token])
        assert queue.peek()[0].delivery_count == failed


def test_each_settlement_adds_its_properties_to_those_of_earlier_ones(queue: Driver) -> None:
    queue.send("q", message(application_properties={"mine": 1}))
    for settlement in (
        Settlement(SettleMode.ABANDON, properties={"attempt": 1, "host": "a"}),
        Settlement(SettleMode.ABANDON, properties={"attempt": 2}),
        Settlement(SettleMode.DEAD_LETTER, properties={"last": "c"}),
    ):
        queue.settle("q", queue.one(), how=settlement)
    dead = queue.one("q/$deadletterqueue")
    assert dead.application_properties == {"mine": 1, "attempt": 2, "host": "a", "last": "c"}


def test_reason_and_description_are_properties_and_cut(queue: Driver) -> None:
    queue.send("q", message(application_properties={"mine": 1}))
    queue.settle("q", queue.one(), how=Settlement(SettleMode.DEAD_LETTER, "r" * 5000, "d" * 5000))
    dead = queue.one(DEAD)
    assert dead.application_properties == {
        "mine": 1,
        "DeadLetterReason": "r" * 4096,
        "DeadLetterErrorDescription": "d" * 4096,
    }
    assert dead.dead_letter_source == "q"


def test_a_dead_letter_may_have_no_reason(queue: Driver) -> None:
    for reason, description in ((None, None), (None, "d"), ("r", None), ("", "")):
        queue.send("q", message())
        queue.settle("q", queue.one(), how=Settlement(SettleMode.DEAD_LETTER, reason, description))
        dead = queue.one(DEAD)
        assert (dead.dead_letter_reason, dead.dead_letter_error_description) == (reason, description)


def test_the_dead_letter_queue_is_there_with_its_entity(queue: Driver) -> None:
    assert queue.receive(DEAD) == []
    assert queue.receive("Q/$deadletterqueue") == []
    assert queue.receive("q/$Transfer/$DeadLetterQueue") == []


def test_in_the_dead_letter_queue_nothing_expires_or_is_dead_lettered(broker: Driver) -> None:
    broker.queue(max_delivery_count=1, dead_lettering_on_message_expiration=True)
    broker.send("q", message(time_to_live=seconds(10)))
    broker.settle("q", broker.one(), how=DEAD_LETTER)
    broker.wait(1000)
    for _ in range(3):
        broker.settle(DEAD, broker.one(DEAD), how=ABANDON)
    dead = broker.one(DEAD)
    assert dead.dead_letter_reason == "why"
    assert dead.expires_at_utc is None
    with pytest.raises(InvalidOperationError):
        broker.settle(DEAD, dead, how=DEAD_LETTER)
    broker.settle(DEAD, dead)
    assert broker.counts("q").total_message_count == 0


def test_sending_to_the_dead_letter_queue_is_rejected(queue: Driver) -> None:
    with pytest.raises(InvalidOperationError):
        queue.send(DEAD, message())


def test_dead_letters_can_be_deferred_and_settled_in_a_transaction(queue: Driver) -> None:
    queue.send("q", message(), message())
    for each in queue.receive("q", 2):
        queue.settle("q", each, how=DEAD_LETTER)
    first, second = queue.receive(DEAD, 2)
    queue.settle(DEAD, first, how=DEFER)
    transaction = queue.begin()
    queue.settle(DEAD, second, transaction=transaction)
    queue.commit(transaction)
    (fetched,) = queue.deferred(DEAD, first.sequence_number)
    queue.settle(DEAD, fetched)
    assert queue.counts("q").total_message_count == 0


@pytest.mark.parametrize(("asked", "given"), [(None, 30), (seconds(10), 10), (seconds(100), 30)])
def test_the_time_to_live_of_the_entity_is_the_maximum(broker: Driver, asked: timedelta | None, given: float) -> None:
    broker.queue(default_message_time_to_live=seconds(30))
    broker.send("q", message(time_to_live=asked))
    received = broker.one()
    assert received.expires_at_utc == at(START + given)
    assert received.time_to_live == seconds(given)


@pytest.mark.deviation("broker.expiry")
def test_an_expired_message_is_dropped(queue: Driver) -> None:
    queue.send("q", message(time_to_live=seconds(10)))
    queue.wait(9.9)
    assert queue.counts("q").active_message_count == len(queue.peek()) == 1
    queue.wait(0.1)
    assert queue.counts("q").active_message_count == 0
    assert queue.peek() == queue.receive() == queue.receive(DEAD) == []


def test_an_expired_message_is_dead_lettered_if_configured(broker: Driver) -> None:
    broker.queue(dead_lettering_on_message_expiration=True)
    broker.send("q", message(time_to_live=seconds(10)))
    broker.wait(10)
    assert broker.receive() == []
    assert broker.one(DEAD).dead_letter_reason == "TTLExpiredException"


def test_a_held_message_does_not_expire_and_can_be_settled(queue: Driver) -> None:
    queue.send("q", message(time_to_live=seconds(10)), message(time_to_live=seconds(10)))
    first, second = queue.receive("q", 2)
    queue.wait(20)
    queue.settle("q", first)
    assert len(queue.peek()) == 1
    queue.settle("q", second, how=ABANDON)
    assert queue.peek() == []


def test_expiry_in_the_middle_leaves_the_others(queue: Driver) -> None:
    queue.send("q", message("0"), message("1", time_to_live=seconds(1)), message("2"))
    queue.wait(1)
    assert bodies(queue.drain()) == ["0", "2"]


def test_many_expired_messages_are_forgotten(broker: Driver) -> None:
    broker.queue()
    for _ in range(50):
        broker.send("q", message(time_to_live=seconds(1)))
    broker.wait(1)
    broker.send("q", message("last"))
    assert len(broker.body().fragments[0]._fresh) == 1
    assert str(broker.one()) == "last"


def test_a_deferred_message_expires_when_requested(broker: Driver) -> None:
    broker.queue(dead_lettering_on_message_expiration=True)
    broker.send("q", message(time_to_live=seconds(10)))
    held = broker.one()
    broker.settle("q", held, how=DEFER)
    broker.wait(100)
    assert len(broker.peek()) == 1
    with pytest.raises(MessageNotFoundError):
        broker.deferred("q", held.sequence_number)
    assert broker.one(DEAD).dead_letter_reason == "TTLExpiredException"


def test_receive_and_delete_leaves_nothing(queue: Driver) -> None:
    queue.send("q", message("a"), message("b"))
    received = queue.receive("q", 5, mode=DELETE)
    assert bodies(received) == ["a", "b"]
    assert [(each.lock_token, each.locked_until_utc) for each in received] == [(None, None)] * 2
    assert queue.counts("q").total_message_count == 0


def test_a_deferred_message_is_found_by_number_only(queue: Driver) -> None:
    queue.send("q", message("a"))
    held = queue.one()
    queue.settle("q", held, how=DEFER)
    assert queue.receive() == []
    assert [each.state for each in queue.peek()] == [ServiceBusMessageState.DEFERRED]
    (fetched,) = queue.deferred("q", held.sequence_number)
    assert str(fetched) == "a"
    with pytest.raises(MessageNotFoundError):
        queue.deferred("q", held.sequence_number)
    queue.settle("q", fetched)
    with pytest.raises(MessageNotFoundError):
        queue.deferred("q", held.sequence_number)


def test_each_of_several_settlements_succeeds_or_fails_by_itself(broker: Driver) -> None:
    broker.partitioned()
    broker.send("q", *(message(str(number), partition_key=KEYS[3]) for number in range(3)))
    broker.send("q", message("other", partition_key=KEYS[4]))
    held = broker.receive(count=4)
    tokens = [each.lock_token for each in held if each.lock_token is not None]
    broker.wait(50)
    broker.renew("q", *held[1:2])
    broker.wait(10)  # the locks of the others end
    unknown = UUID(int=tokens[0].int + (1 << 100))
    for how, failed in ((DEFER, {*tokens, unknown} - {tokens[1]}), (COMPLETE, {*tokens, unknown})):
        call = broker.call(Operation.SETTLE)
        errors = broker.namespace.settle_each(call, "q", [unknown, *tokens], how)
        assert set(errors) == failed
        assert {type(error) for error in errors.values()} == {MessageLockLostError}
    assert len(broker.body()) == 4
    assert sum(fragment.deferred_count for fragment in broker.body().fragments) == 1
    with pytest.raises(InvalidOperationError):  # for all of them
        broker.namespace.settle_each(broker.call(Operation.SETTLE), "q/$DeadLetterQueue", tokens, DEAD_LETTER)


def test_a_message_that_is_not_deferred_is_not_found_by_its_number(queue: Driver) -> None:
    queue.send("q", message("locked"), message("active"))
    numbers = [each.sequence_number for each in queue.peek()]
    held = queue.one()
    numbers += queue.schedule("q", message("later", scheduled_enqueue_time_utc=at(START + 10)))
    for number in numbers:
        with pytest.raises(MessageNotFoundError):
            queue.deferred("q", number)
    queue.settle("q", held, how=DEFER)
    again = queue.deferred("q", numbers[0])
    with pytest.raises(MessageNotFoundError):
        queue.deferred("q", numbers[0])  # it is locked
    queue.settle("q", *again, how=ABANDON)
    assert bodies(queue.deferred("q", numbers[0])) == ["locked"]


def test_all_deferred_messages_or_none(queue: Driver) -> None:
    queue.send("q", message("a"), message("b"))
    first, second = queue.receive("q", 2)
    queue.settle("q", first, how=DEFER)
    with pytest.raises(MessageNotFoundError):
        queue.deferred("q", first.sequence_number, second.sequence_number)
    assert len(queue.deferred("q", first.sequence_number, first.sequence_number)) == 1


def test_a_deferred_message_can_be_fetched_and_deleted(queue: Driver) -> None:
    queue.send("q", message("a"))
    held = queue.one()
    queue.settle("q", held, how=DEFER)
    assert bodies(queue.deferred("q", held.sequence_number, mode=DELETE)) == ["a"]
    assert queue.peek() == []


def test_each_fetch_of_a_deferred_message_is_a_delivery(queue: Driver) -> None:
    queue.send("q", message())
    held = queue.one()
    queue.settle("q", held, how=DEFER)
    counts = []
    for settlement in (DEFER, ABANDON, None):
        (fetched,) = queue.deferred("q", held.sequence_number)
        counts.append(fetched.delivery_count)
        if settlement is None:
            queue.wait(60)
        else:
            queue.settle("q", fetched, how=settlement)
    assert counts == [1, 2, 3]
    assert queue.deferred("q", held.sequence_number)[0].delivery_count == 4


def test_deferred_messages_can_end_in_every_way(queue: Driver) -> None:
    queue.send("q", message("a"), message("b"))
    numbers = []
    for each in queue.receive("q", 2):
        queue.settle("q", each, how=DEFER)
        numbers.append(each.sequence_number)
    first, second = queue.deferred("q", *numbers)
    queue.settle("q", first)
    queue.settle("q", second, how=DEAD_LETTER)
    assert bodies(queue.receive(DEAD)) == ["b"]
    assert queue.peek() == []


def test_a_scheduled_message_gets_a_new_number_and_time(queue: Driver) -> None:
    (number,) = queue.schedule("q", message("a", partition_key="k", scheduled_enqueue_time_utc=at(START + 30)))
    assert queue.receive() == []
    assert queue.counts("q").scheduled_message_count == 1
    queue.wait(40)
    received = queue.one()
    assert received.sequence_number > number
    assert received.enqueued_time_utc == at(START + 30)
    assert received.state is ServiceBusMessageState.SCHEDULED  # as the service shows it also after that time
    queue.settle("q", received, how=DEFER)
    assert queue.peek()[0].state is ServiceBusMessageState.DEFERRED
    assert queue.counts("q").scheduled_message_count == 0
    with pytest.raises(MessageNotFoundError):
        queue.cancel("q", number)


def test_the_time_to_live_begins_at_the_enqueue_time(queue: Driver) -> None:
    queue.schedule("q", message(time_to_live=seconds(5), scheduled_enqueue_time_utc=at(START + 30)))
    queue.wait(34)
    assert queue.one().expires_at_utc == at(START + 35)


def test_a_time_that_has_passed_is_now(queue: Driver) -> None:
    assert len(queue.schedule("q", message("a", scheduled_enqueue_time_utc=at(START - 30)))) == 1
    assert str(queue.one()) == "a"


def test_peeking_a_scheduled_message_returns_its_enqueue_time(queue: Driver) -> None:
    queue.wait(5)
    queue.schedule("q", message(scheduled_enqueue_time_utc=at(START + 60)))
    queue.wait(5)
    (peeked,) = queue.peek()
    assert peeked.enqueued_time_utc == at(START + 5)
    queue.wait(60)
    (peeked,) = queue.peek()
    assert peeked.enqueued_time_utc == at(START + 60)


def test_a_send_with_a_time_is_scheduled_too(queue: Driver) -> None:
    queue.send("q", message("a", scheduled_enqueue_time_utc=at(START + 30)))
    assert queue.receive() == []
    queue.wait(30)
    assert str(queue.one()) == "a"


def test_scheduling_without_a_time_is_refused(queue: Driver) -> None:
    with pytest.raises(InvalidOperationError):
        queue.schedule("q", message())


def test_cancelling_deletes_all_or_nothing(queue: Driver) -> None:
    later = at(START + 30)
    numbers = queue.schedule(
        "q", *(message(str(n), partition_key="k", scheduled_enqueue_time_utc=later) for n in range(3))
    )
    unknown = numbers[0] + 2000
    with pytest.raises(MessageNotFoundError, match=f"Missing sequence numbers: {unknown}, {unknown + 1}\\."):
        queue.cancel("q", numbers[0], unknown, unknown + 1)
    queue.cancel("q", numbers[0], numbers[0], numbers[1])
    with pytest.raises(MessageNotFoundError):
        queue.cancel("q", numbers[0])
    queue.wait(30)
    assert bodies(queue.receive("q", 5)) == ["2"]


def test_an_ordinary_message_cannot_be_cancelled(queue: Driver) -> None:
    queue.send("q", message())
    with pytest.raises(MessageNotFoundError):
        queue.cancel("q", queue.peek()[0].sequence_number)


@pytest.mark.deviation("broker.sizes")
@pytest.mark.parametrize("size", [-1, 0, 1])
def test_a_message_has_a_largest_size(broker: Driver, size: int) -> None:
    broker.queue()
    limit = broker.namespace.profile.max_message_size_bytes
    body = "x" * (limit - 8 + size)  # a data section of this length has 8 bytes around it
    if size > 0:
        with pytest.raises(MessageSizeExceededError, match=r"exceeds the limit .* currently allowed on the link"):
            broker.send("q", message(body))
    else:
        broker.send("q", message(body))
    assert len(broker.peek()) == (size <= 0)


def test_a_batch_has_a_largest_size(broker: Driver) -> None:
    broker.queue()
    broker.send("q", *(message("x" * 100_000) for _ in range(2)))
    with pytest.raises(MessageSizeExceededError):
        broker.send("q", *(message("x" * 100_000) for _ in range(3)))
    assert len(broker.body()) == 2


@pytest.mark.parametrize(("length", "is_fit"), [(32 * 1024, True), (32 * 1024 + 1, False)])
def test_one_property_has_a_largest_size(broker: Driver, length: int, is_fit: bool) -> None:
    broker.queue()
    sent = message("x" * 10, application_properties={"number": 1, "p": "v" * length})
    if is_fit:
        broker.send("q", sent)
    else:
        with pytest.raises(MessageSizeExceededError):
            broker.send("q", sent)


def test_all_headers_have_a_largest_size(broker: Driver) -> None:
    broker.queue()
    broker.send("q", message("x" * 70_000, application_properties={"a": "v" * 30_000, "b": "v" * 30_000}))
    with pytest.raises(MessageSizeExceededError):
        broker.send("q", message(application_properties=dict.fromkeys("abc", "v" * 30000)))


def test_an_error_names_the_full_number(broker: Driver) -> None:
    broker.partitioned()
    with pytest.raises(MessageNotFoundError, match=str(5 << 48 | 7)):
        broker.cancel("q", 5 << 48 | 7)


def test_a_dead_letter_keeps_its_first_number(queue: Driver) -> None:
    queue.send("q", message(), message())
    _, second = queue.receive("q", 2)
    queue.settle("q", second, how=DEAD_LETTER)
    dead = queue.one(DEAD)
    assert dead.enqueued_sequence_number == second.sequence_number
    assert dead.enqueued_time_utc == second.enqueued_time_utc


def test_a_batch_is_stored_whole_or_not_at_all(queue: Driver) -> None:
    with pytest.raises(InvalidOperationError):
        queue.send("q", message("a"), message("b", session_id="x", partition_key="y"))
    assert queue.peek() == []


def test_an_update_reaches_messages_that_are_already_there(queue: Driver) -> None:
    description = queue.get(address("q"))
    queue.send("q", message())
    description.lock_duration = seconds(10)
    description.max_size_in_megabytes = None
    queue.update(address("q"), description)
    assert queue.one().locked_until_utc == at(START + 10)
