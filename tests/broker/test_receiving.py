"""Receiving and browsing on several fragments and front ends."""

from __future__ import annotations

from datetime import timedelta

import pytest

from sbclient.broker import entity
from sbclient.broker.entity import PeekCursor, SharedPeekCursor
from sbclient.broker.entry import WORK_AT_ONCE, Entry, Selector
from sbclient.broker.faults import FaultKind, NoAnswer, Operation
from sbclient.broker.fragment import Fragment
from sbclient.emulator.amqp.jms import compile_selector
from sbclient.errors import InvalidOperationError, MessagingEntityNotFoundError, ServiceBusInternalError
from sbclient.message import ServiceBusReceivedMessage
from tests.broker.driver import ABANDON, DEFER, DELETE, KEYS, Driver, at, bodies, message, seconds


@pytest.fixture
def two() -> Driver:
    """A partitioned queue behind two front ends."""
    broker = Driver(front_end_count=2)
    broker.partitioned()
    return broker


@pytest.fixture
def queried(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The fragments that were queried for a front end's cache, in order."""
    fragments: list[int] = []
    take = Fragment.take_for_cache

    def taken(self: Fragment, now: float) -> Entry | None:
        fragments.append(self.index)
        return take(self, now)

    monkeypatch.setattr(Fragment, "take_for_cache", taken)
    return fragments


def fill(broker: Driver, *fragments: int) -> None:
    for index in fragments:
        broker.send("q", message(str(index), partition_key=KEYS[index]))


@pytest.mark.parametrize("index", [0, 7, 15])
def test_a_receive_finds_the_only_message_in_any_fragment(broker: Driver, index: int) -> None:
    broker.partitioned()
    fill(broker, index)
    assert str(broker.one()) == str(index)


def test_other_messages_are_cached_for_later_receives(two: Driver, queried: list[int]) -> None:
    fill(two, 1, 4, 9)
    first = two.receive()
    queried.clear()
    rest = [two.receive(), two.receive()]
    assert sorted(bodies(first + rest[0] + rest[1])) == ["1", "4", "9"]
    assert not queried


def test_cached_messages_are_delivered_while_only_one_fragment_is_reachable(two: Driver) -> None:
    fill(two, 1, 4)
    first = two.one()
    kept = 1 if str(first) == "4" else 4
    two.down("q", *(index for index in range(16) if index != kept))
    assert bodies(two.receive()) == [str(kept)]


def test_the_store_is_queried_only_when_the_cache_is_empty(two: Driver, queried: list[int]) -> None:
    fill(two, 1, 4)
    two.receive()
    two.receive()
    queried.clear()
    assert two.receive() == []
    assert sorted(queried) == list(range(16))


def test_messages_cached_by_another_front_end_cannot_be_received(two: Driver) -> None:
    fill(two, 1, 4, 9)
    assert len(two.receive(front_end=0)) == 1
    assert two.receive(front_end=1) == []
    assert two.counts("q").active_message_count == 3


def test_cached_messages_return_when_their_lock_ends(two: Driver) -> None:
    fill(two, 1, 4)
    given = two.one(front_end=0)
    two.wait(60)
    again = {str(each): each.delivery_count for each in two.receive("q", 2, front_end=1)}
    assert again == {str(given): 1, "4" if str(given) == "1" else "1": 0}


def test_a_cached_message_whose_lock_has_ended_is_not_delivered(two: Driver) -> None:
    fill(two, 1, 4)
    two.receive(front_end=0)
    two.wait(60)
    taken = two.receive("q", 2, front_end=1)
    assert len(taken) == 2
    assert two.receive(front_end=0) == []


def test_an_expired_cached_message_is_not_delivered(two: Driver) -> None:
    two.partitioned(
        "short", default_message_time_to_live=timedelta(seconds=20), dead_lettering_on_message_expiration=True
    )
    two.send("short", *(message(str(index), partition_key=KEYS[1]) for index in (1, 2)))
    two.send("short", message("4", partition_key=KEYS[4]))
    (given,) = two.receive("short", front_end=0)
    two.wait(20)
    assert two.receive("short", 3, front_end=0) == []
    assert two.counts("short").dead_letter_message_count == 2
    two.settle("short", given)
    assert two.counts("short").total_message_count == 2


def test_a_single_batch_receive_may_be_short_and_a_loop_gets_all(two: Driver) -> None:
    fill(two, *range(16))
    assert len(two.drain(front_end=0)) == 16


def test_a_lost_front_end_gives_back_when_locks_end(two: Driver) -> None:
    two.queue("plain")
    two.topic()
    fill(two, 1, 4)
    two.receive(front_end=0)
    two.namespace.lose_front_end(0)
    assert two.receive(front_end=0) == []
    two.wait(60)
    assert len(two.receive("q", 5, front_end=0)) == 2


def test_receive_and_delete_uses_the_cache(two: Driver) -> None:
    fill(two, 1, 4)
    assert len([each for _ in range(3) for each in two.receive(mode=DELETE)]) == 2
    assert two.counts("q").total_message_count == 0


def test_subscriptions_cache_messages_too() -> None:
    broker = Driver(front_end_count=2)
    broker.topic(enable_partitioning=True)
    broker.subscription()
    for index in (1, 2):
        broker.send("t", message(partition_key=KEYS[index]))
    assert len(broker.receive("t/Subscriptions/s", front_end=0)) == 1
    assert broker.receive("t/Subscriptions/s", front_end=1) == []


@pytest.mark.deviation("broker.front-ends")
def test_a_single_front_end_caches_nothing(broker: Driver) -> None:
    broker.partitioned()
    fill(broker, 1, 4)
    broker.receive()
    broker.namespace.lose_front_end(0)
    assert len(broker.receive()) == 1


@pytest.mark.deviation("broker.cached-messages")
def test_cached_messages_have_no_delivery(two: Driver) -> None:
    two.partitioned("once", max_delivery_count=1)
    for index in (1, 2):
        two.send("once", message(str(index), partition_key=KEYS[index]))
    two.receive("once")
    two.wait(60)
    assert len(two.receive("once", 5)) == 1
    assert two.counts("once").dead_letter_message_count == 1


@pytest.mark.parametrize("kind", [FaultKind.DOWN, FaultKind.HANG, FaultKind.BUSY])
def test_fragments_that_do_not_answer_are_passed_over(broker: Driver, kind: FaultKind) -> None:
    broker.partitioned()
    fill(broker, 1, 4)
    broker.down("q", 4, kind=kind)
    assert bodies(broker.drain()) == ["1"]


def test_a_slow_fragment_answers_a_receive_later(broker: Driver) -> None:
    broker.partitioned()
    fill(broker, 4)
    broker.down("q", 4, kind=FaultKind.SLOW, latency_s=3.0)
    call = broker.call(Operation.RECEIVE)
    assert broker.namespace.receive(call, "q", max_message_count=1) == []
    assert call.retry_after_s == 3.0
    later = broker.call(Operation.RECEIVE)
    later.waited_s = 3.0
    assert len(broker.namespace.receive(later, "q", max_message_count=1)) == 1


def test_a_slow_plain_queue_does_not_act_before_its_time(broker: Driver) -> None:
    broker.queue()
    broker.send("q", message())
    broker.down("q", kind=FaultKind.SLOW, latency_s=2.0)
    with pytest.raises(NoAnswer) as silence:
        broker.receive()
    assert silence.value.after_s == 2.0
    broker.heal()
    assert broker.one().delivery_count == 0


def test_peek_on_a_plain_entity_gives_the_oldest(broker: Driver) -> None:
    broker.queue()
    for number in range(3):
        broker.send("q", message(str(number)))
    assert bodies(broker.peek(count=1)) == ["0"]
    assert bodies(broker.peek(count=5, from_number=2)) == ["1", "2"]


@pytest.mark.deviation("broker.peek-order")
def test_peek_returns_the_oldest_of_a_random_fragment() -> None:
    seen: dict[int, str] = {}
    for seed in (*range(30), *range(30)):
        broker = Driver(seed=seed)
        broker.partitioned()
        for index in (2, 5, 11):
            fill(broker, index, index)
        (peeked,) = broker.peek(count=1)
        assert peeked.sequence_number & 2**48 - 1 == 1
        assert seen.setdefault(seed, str(peeked)) == str(peeked), "the seed selects the fragment"
    assert set(seen.values()) == {"2", "5", "11"}


def test_oldest_is_by_number_within_the_fragment(broker: Driver) -> None:
    broker.partitioned()
    for number in range(3):
        broker.send("q", message(str(number), partition_key="k"))
    assert bodies(broker.peek(count=3)) == ["0", "1", "2"]


@pytest.mark.parametrize("is_partitioned", [False, True])
def test_a_peek_gives_at_most_256_kb(broker: Driver, is_partitioned: bool) -> None:
    broker.queue(enable_partitioning=is_partitioned)
    for _ in range(10):
        broker.send("q", message("x" * 100_000, partition_key="k"))
    assert len(broker.peek(count=10)) == 2


def test_a_single_message_over_the_limit_is_given(broker: Driver) -> None:
    broker.queue()
    broker.body().policy.max_message_size_bytes = 2**20
    broker.send("q", message("x" * 300_000))
    assert len(broker.peek()) == 1


def test_a_peek_gives_no_more_than_one_fragment_holds(broker: Driver) -> None:
    broker.partitioned()
    fill(broker, *range(16))
    assert len(broker.peek(count=16)) == 1


@pytest.mark.parametrize("page", [1, 3, 50])
def test_further_peeks_return_each_message_once(broker: Driver, page: int) -> None:
    broker.partitioned()
    for number in range(40):
        broker.send("q", message(str(number)))
    assert sorted(map(int, bodies(broker.browse(count=page)))) == list(range(40))


def test_peek_continues_after_a_fragment_goes_down(broker: Driver) -> None:
    broker.partitioned()
    fill(broker, *range(16))
    cursor = PeekCursor()
    (first,) = broker.peek(count=1, cursor=cursor)
    broker.down("q", first.sequence_number >> 48)
    seen = [first]
    while page := broker.peek(count=1, from_number=seen[-1].sequence_number + 1, cursor=cursor):
        seen += page
    assert len(seen) == 16


def test_peek_from_a_number_starts_at_its_fragment(broker: Driver) -> None:
    broker.partitioned()
    fill(broker, 3, 3, 9)
    assert bodies(broker.peek(from_number=3 << 48 | 2)) == ["3"]
    assert bodies(broker.peek(from_number=4 << 48)) == ["9"]
    assert broker.peek(from_number=10 << 48) == []
    cursor = PeekCursor()
    for number, found in ((9 << 48, "9"), (3 << 48 | 2, "3"), (0, None), (3 << 48 | 2, "3"), (9 << 48, "9")):
        peeked = broker.peek(count=1, from_number=number, cursor=cursor)  # whatever the last number was
        assert found in (None, *bodies(peeked))


@pytest.mark.parametrize("cursor", [PeekCursor(), SharedPeekCursor()], ids=lambda cursor: type(cursor).__name__)
def test_a_fragment_that_is_back_before_its_turn_is_not_left_out(broker: Driver, cursor: PeekCursor) -> None:
    broker.partitioned()
    fill(broker, *range(16), *range(16))
    seen: list[int] = []
    while page := broker.peek(count=1, from_number=seen[-1] + 1 if seen else 0, cursor=cursor):
        seen += [each.sequence_number for each in page]
        broker.heal()
        if len(seen) % 2:  # the next message is of the same fragment
            broker.down("q", *(index for index in range(16) if index % 3 and index != seen[-1] >> 48))
    assert len(set(seen)) == len(seen) == 32


def test_readers_that_cannot_be_distinguished_each_get_every_message(broker: Driver) -> None:
    broker.partitioned()
    fill(broker, *range(16), *range(16))
    cursor = SharedPeekCursor()
    readers: list[list[ServiceBusReceivedMessage]] = [[], [], []]
    for turn in range(34):
        for first, read in enumerate(readers):
            if turn >= first:  # they begin one after another
                number = read[-1].sequence_number + 1 if read else first % 2
                read += broker.peek(count=1, from_number=number, cursor=cursor)
    assert [len({one.sequence_number for one in read}) for read in readers] == [32, 32, 32]
    assert [len(read) for read in readers] == [32, 32, 32]
    assert len({read[0].sequence_number for read in readers}) == 1  # in one order
    for number in (3 << 48, 3 << 48 | 2):
        assert bodies(broker.peek(count=1, from_number=number, cursor=cursor)) == ["3"]
    assert bodies(broker.peek(from_number=16 << 48, cursor=cursor)) == []


def test_the_position_that_was_used_last_is_remembered_longest(broker: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entity, "MAX_SHARED_POSITIONS", 2)
    broker.partitioned()
    fill(broker, *range(16), *range(16))
    cursor = SharedPeekCursor()

    def step(number: int) -> int:
        return broker.peek(count=1, from_number=number, cursor=cursor)[0].sequence_number + 1

    first = step(0)
    second = step(first)
    assert step(0) == first  # used again, so that the other one is the oldest
    third = step(second)
    assert [one - 1 in cursor._orders for one in (first, second, third)] == [True, False, True]


@pytest.mark.promise("emulator.selectors")
@pytest.mark.parametrize("partitioned", [False, True])
@pytest.mark.parametrize("count", [1, 3, 100])
def test_a_call_does_some_work_for_a_selector_and_the_next_call_goes_on(
    broker: Driver, partitioned: bool, count: int
) -> None:
    broker.queue(enable_partitioning=partitioned)
    steps = WORK_AT_ONCE // 20
    sent = 67
    wanted = [0, 1, 2, 20, 21, sent - 1]
    for number in range(sent):
        broker.send("q", message(f"{number}", partition_key="k" if partitioned else None))
    looked_at: list[int] = []

    def matches(entry: Entry) -> tuple[bool, int]:
        looked_at.append(entry.number)
        return int(bytes(entry.content.body)) in wanted, steps

    selector, found = Selector(matches), list[str]()
    for _ in range(4 + len(wanted)):
        before = len(looked_at)
        found += bodies(broker.receive(count=count, selector=selector))
        assert len(looked_at) - before <= 20
    assert found == [f"{number}" for number in wanted]
    assert len(looked_at) == len(set(looked_at)) == sent
    assert not selector.is_unfinished


def test_a_selector_takes_what_it_matches_in_order(broker: Driver) -> None:
    broker.queue()
    for number in range(6):
        broker.send(
            "q", message(str(number), application_properties={"n": number, "odd": number % 2 == 1}, subject="it's n")
        )
    returned = broker.receive(count=4)
    broker.settle("q", *reversed(returned), how=ABANDON)
    odd = compile_selector("odd = TRUE AND JMSType = 'it''s n'")
    assert bodies(broker.receive(count=2, selector=odd)) == ["1", "3"]
    assert bodies(broker.receive(count=2, selector=odd)) == ["5"]
    assert broker.receive(selector=compile_selector("n / 0 = 1")) == []  # it cannot be evaluated
    assert broker.receive(selector=compile_selector("JMSType = 'JMSType'")) == []
    assert bodies(broker.receive(count=1, selector=compile_selector("n > 0"))) == ["2"]
    assert bodies(broker.receive(count=9)) == ["0", "4"]


def test_returned_messages_keep_their_order_around_one_that_a_selector_took(broker: Driver) -> None:
    broker.queue()
    broker.send("q", *(message(str(number), application_properties={"n": number}) for number in range(5)))
    taken = broker.receive(count=5)
    for number in (0, 3, 1, 2, 4):
        broker.settle("q", taken[number], how=ABANDON)
    assert bodies(broker.receive(selector=compile_selector("n = 0"))) == ["0"]
    assert bodies(broker.receive(count=9)) == ["1", "2", "3", "4"]


def test_the_newest_messages_are_browsed_first_without_those_that_have_expired(broker: Driver) -> None:
    broker.queue()
    broker.send("q", *(message(text, time_to_live=seconds(5 if text == "b" else 50)) for text in "abc"))
    (fragment,) = broker.body().fragments
    assert [str(entry.peeked()) for entry in fragment.browse_back(broker.now + 5)] == ["c", "a"]


def test_a_selector_takes_nothing_that_has_expired_or_is_gone(broker: Driver) -> None:
    broker.queue()
    broker.send("q", message("brief", time_to_live=seconds(5)), *(message(text) for text in "abc"))
    every = compile_selector("1 = 1")
    (first,) = broker.receive(count=1, selector=every)
    broker.settle("q", first, how=ABANDON)
    broker.wait(5)
    assert bodies(broker.receive(count=2, selector=every)) == ["a", "b"]
    assert bodies(broker.receive(count=2, selector=every)) == ["c"]


@pytest.mark.deviation("broker.jms")
def test_a_selector_knows_four_headers(broker: Driver) -> None:
    broker.queue()
    broker.send("q", message("a", message_id="m", correlation_id="c", subject="t", session_id="g"))
    for header, value in (("MessageID", "m"), ("CorrelationID", "c"), ("Type", "t"), ("XGroupID", "g")):
        assert broker.receive(selector=compile_selector(f"JMS{header} = 'other'")) == []
        (taken,) = broker.receive(selector=compile_selector(f"JMS{header} = '{value}'"))
        broker.settle("q", taken, how=ABANDON)


@pytest.mark.parametrize("header", ["JMSPriority", "JMSTimestamp"])
def test_a_selector_with_an_unknown_header_is_refused(header: str) -> None:
    with pytest.raises(InvalidOperationError, match=header):
        compile_selector(f"{header} > 1")


def test_peek_without_reachable_fragment_returns_nothing(broker: Driver) -> None:
    broker.partitioned()
    fill(broker, 3)
    broker.down("q", *range(16))
    assert broker.peek() == []


def test_peek_on_a_dead_plain_queue_fails(broker: Driver) -> None:
    broker.queue()
    broker.down("q", 0)
    with pytest.raises(ServiceBusInternalError):
        broker.peek()


def test_peek_removes_nothing_and_shows_every_state(broker: Driver) -> None:
    broker.queue()
    broker.send("q", message("ready"), message("held"), message("deferred"))
    ready, held, deferred = broker.receive("q", 3)
    broker.namespace.release(broker.call(Operation.RECEIVE), "q", [ready.lock_token or held.lock_token])  # type: ignore[list-item]
    broker.settle("q", deferred, how=DEFER)
    broker.schedule("q", message("scheduled", scheduled_enqueue_time_utc=at(broker.now + 60)))
    shown = broker.peek()
    assert [(str(each), int(each.state)) for each in shown] == [
        ("ready", 0),
        ("held", 0),
        ("deferred", 1),
        ("scheduled", 2),
    ]
    assert {each.lock_token for each in shown} == {None}


def test_a_topic_cannot_be_received_from(broker: Driver) -> None:
    broker.topic()
    with pytest.raises(MessagingEntityNotFoundError):
        broker.receive("t")


def test_one_peek_can_return_many_messages(broker: Driver) -> None:
    broker.partitioned()
    fill(broker, 3, 3, 3)
    assert len(broker.peek(count=10)) == 3
