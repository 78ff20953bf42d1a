"""Which fragment takes a message, and what happens when one is gone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbclient.broker.faults import FaultKind, NoAnswer
from sbclient.errors import (
    InvalidOperationError,
    MessageLockLostError,
    MessageNotFoundError,
    ServiceBusInternalError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
)
from sbclient.message import ServiceBusMessage
from sbclient.rules.partition_key import fragment_of
from sbclient.rules.ping import ping_message
from sbclient.rules.sequence_number import COUNTER_BITS
from tests.broker.driver import ABANDON, COMPLETE, DEAD_LETTER, DEFER, KEYS, Driver, at, bodies, message


def sizes(broker: Driver, path: str = "q") -> list[int]:
    return [len(fragment) for fragment in broker.body(path).fragments]


def home(broker: Driver, path: str = "q") -> int:
    """The fragment of the only message."""
    (index,) = (index for index, size in enumerate(sizes(broker, path)) if size)
    return index


def test_plain_entity_has_one_store_and_dies_with_it(broker: Driver) -> None:
    broker.queue()
    broker.send("q", message("a"))
    held = broker.one()
    assert len(broker.body().fragments) == 1
    broker.down("q", 0)
    for attempt in (
        lambda: broker.send("q", message("b")),
        lambda: broker.receive(),
        lambda: broker.settle("q", held),
        lambda: broker.peek(),
        lambda: broker.renew("q", held),
    ):
        with pytest.raises(ServiceBusInternalError):
            attempt()


def test_partitioned_entity_has_the_fragments_of_its_profile(broker: Driver) -> None:
    broker.partitioned()
    assert len(broker.body().fragments) == broker.namespace.profile.fragment_count == 16


def test_a_dead_store_affects_only_its_own_fragment(broker: Driver) -> None:
    broker.partitioned()
    broker.down("q", 5)
    for index, key in enumerate(KEYS):
        if index == 5:
            with pytest.raises(ServiceBusInternalError):
                broker.send("q", message(partition_key=key))
        else:
            broker.send("q", message(partition_key=key))
    assert sizes(broker) == [0 if index == 5 else 1 for index in range(16)]


def test_every_message_is_in_exactly_one_fragment(broker: Driver) -> None:
    broker.partitioned()
    for number in range(100):
        broker.send("q", message(str(number), partition_key=None if number % 3 else f"k{number}"))
    seen = bodies(broker.browse())
    assert sum(sizes(broker)) == len(seen) == len(set(seen)) == 100


@pytest.mark.parametrize("lost", [1, 8, 15])
def test_an_outage_of_some_stores_leaves_the_entity_available(broker: Driver, lost: int) -> None:
    broker.partitioned()
    broker.down("q", *range(lost))
    for number in range(32):
        broker.send("q", message(str(number)))
    assert sorted(map(int, bodies(broker.drain()))) == list(range(32))


def test_a_blocked_fragment_does_not_hold_up_another(broker: Driver) -> None:
    broker.partitioned()
    broker.down("q", 3, kind=FaultKind.HANG)
    assert broker.send("q", message(partition_key=KEYS[4])).answer_after_s == 0.0


def scripted(broker: Driver) -> list[object]:
    """Return what a client observes that receives, completes, defers, abandons and dead-letters."""
    for number in range(4):
        broker.send("q", message(str(number), partition_key="one key"))
    first, second, third, fourth = broker.receive("q", 4)
    broker.settle("q", first)
    broker.settle("q", second, how=ABANDON)
    broker.settle("q", third, how=DEFER)
    broker.settle("q", fourth, how=DEAD_LETTER)
    again = broker.one()
    broker.settle("q", again)
    (fetched,) = broker.deferred("q", third.sequence_number)
    broker.settle("q", fetched)
    dead = broker.one("q/$deadletterqueue")
    return [str(again), again.delivery_count, str(fetched), str(dead), dead.dead_letter_reason, sum(sizes(broker))]


def test_a_client_does_not_see_partitioning() -> None:
    plain, partitioned = Driver(), Driver()
    plain.queue()
    partitioned.partitioned()
    assert scripted(plain) == scripted(partitioned) == ["1", 1, "2", "3", "why", 0]


def test_sessions_and_transactions_work_on_a_partitioned_entity(broker: Driver) -> None:
    broker.partitioned(requires_session=True)
    transaction = broker.begin()
    broker.send("q", message("a", session_id="s"), message("b", session_id="s"), transaction=transaction)
    broker.commit(transaction)
    lock = broker.held("q", "s")
    assert bodies(broker.drain(lock=lock)) == ["a", "b"]


def test_an_operation_costs_one_on_any_entity() -> None:
    spent = []
    for is_partitioned in (False, True):
        broker = Driver()
        broker.queue(enable_partitioning=is_partitioned)
        for _ in range(20):
            broker.send("q", message())
        for _ in range(20):
            broker.settle("q", broker.one())
        spent.append(broker.namespace.operation_count)
    assert spent == [60, 60]


def test_the_key_fixes_the_fragment_and_without_one_the_broker_chooses(broker: Driver) -> None:
    broker.partitioned()
    broker.send("q", message(partition_key="a"))
    assert home(broker) == fragment_of("a", 16)
    broker.send("q", message())
    assert sum(sizes(broker)) == 2


def test_one_key_one_fragment_always() -> None:
    homes = set()
    for seed in (1, 2):
        broker = Driver(seed=seed)
        broker.partitioned()
        for _ in range(5):
            broker.send("q", message(partition_key="always"))
        homes.add(home(broker))
    assert homes == {fragment_of("always", 16)}


@given(st.text(max_size=128))
def test_any_key_has_a_fragment_and_keeps_it(key: str) -> None:
    assert 0 <= fragment_of(key, 16) == fragment_of(key, 16) < 16


@pytest.mark.parametrize("names", [["session_id", "message_id"], ["partition_key", "message_id"], ["message_id"]])
def test_the_key_is_the_session_id_or_the_partition_key_or_with_duplicate_detection_the_message_id(
    broker: Driver, names: list[str]
) -> None:
    broker.partitioned(requires_duplicate_detection=True)
    broker.send("q", message(**{name: name for name in names}))
    assert home(broker) == fragment_of(names[0], 16)


def test_without_duplicate_detection_the_message_id_is_no_key(broker: Driver) -> None:
    broker.partitioned()
    for _ in range(32):
        broker.send("q", message(message_id="m"))
    assert sizes(broker) == [2] * 16


@pytest.mark.parametrize("is_partitioned", [False, True])
def test_different_session_and_partition_keys_are_refused(broker: Driver, is_partitioned: bool) -> None:
    broker.queue(enable_partitioning=is_partitioned)
    with pytest.raises(InvalidOperationError):
        broker.send("q", message(session_id="a", partition_key="b"))
    assert sum(sizes(broker)) == 0
    broker.send("q", message(session_id="a", partition_key="a"))
    assert sum(sizes(broker)) == 1
    broker.send("q", message(session_id="", partition_key="b"))  # an empty one beside a key is none (seen)
    assert sizes(broker)[fragment_of("b", 16) if is_partitioned else 0]
    broker.queue("s", enable_partitioning=is_partitioned, requires_session=True)
    if is_partitioned:
        with pytest.raises(InvalidOperationError):
            broker.send("s", message(session_id="", partition_key="b"))
    else:
        broker.send("s", message(session_id="", partition_key="b"))


def test_one_fragment_holds_a_session_and_its_state(broker: Driver) -> None:
    broker.partitioned(requires_session=True)
    for _ in range(4):
        broker.send("q", message(session_id="s"))
    lock = broker.held("q", "s")
    broker.set_state("q", lock, b"state")
    assert home(broker) == lock.fragment_index == fragment_of("s", 16)
    assert [fragment.session_count for fragment in broker.body().fragments].index(1) == lock.fragment_index


def test_copies_reach_one_fragment_and_one_is_stored(broker: Driver) -> None:
    broker.partitioned(requires_duplicate_detection=True)
    for _ in range(5):
        broker.send("q", message(message_id="m"))
    assert sum(sizes(broker)) == 1


def test_a_key_pins_inside_and_outside_a_transaction(broker: Driver) -> None:
    broker.partitioned()
    broker.send("q", message(partition_key="k"))
    transaction = broker.begin()
    broker.send("q", message(partition_key="k"), transaction=transaction)
    broker.commit(transaction)
    assert sizes(broker)[fragment_of("k", 16)] == 2


@pytest.mark.deviation("broker.round-robin")
@pytest.mark.parametrize("rounds", [1, 3])
def test_messages_without_a_key_are_distributed_in_rotation(broker: Driver, rounds: int) -> None:
    broker.partitioned()
    for _ in range(16 * rounds):
        broker.send("q", message())
    assert sizes(broker) == [rounds] * 16


@pytest.mark.deviation("broker.round-robin")
def test_the_first_fragment_is_random() -> None:
    starts = set()
    for seed in range(20):
        broker = Driver(seed=seed)
        broker.partitioned()
        broker.send("q", message())
        starts.add(home(broker))
    assert len(starts) > 5


@pytest.mark.deviation("broker.round-robin")
@pytest.mark.parametrize("alive", range(0, 16, 5))
def test_keyless_send_skips_dead_fragments(broker: Driver, alive: int) -> None:
    broker.partitioned()
    broker.down("q", *(index for index in range(16) if index != alive))
    for _ in range(10):
        broker.send("q", message())
    assert sizes(broker)[alive] == 10


@pytest.mark.deviation("broker.dead-fragment")
@pytest.mark.parametrize(("dead", "keys"), [(range(16), {}), ([7], {"partition_key": KEYS[7]})])
def test_a_send_fails_where_every_fragment_that_it_may_go_to_is_dead(
    broker: Driver, dead: Sequence[int], keys: dict[str, str]
) -> None:
    broker.partitioned()
    broker.down("q", *dead)
    with pytest.raises(ServiceBusInternalError):
        broker.send("q", message(**keys))
    assert sum(sizes(broker)) == 0


def test_without_a_key_order_is_not_kept(broker: Driver) -> None:
    broker.partitioned()
    for number in range(20):
        broker.send("q", message(str(number)))
    received = bodies(broker.drain())
    assert sorted(received) == sorted(map(str, range(20)))
    assert received != list(map(str, range(20)))


@pytest.mark.deviation("broker.dead-fragment")
def test_a_pinned_send_to_a_hanging_fragment_is_never_answered(broker: Driver) -> None:
    broker.partitioned()
    broker.down("q", 7, kind=FaultKind.HANG)
    with pytest.raises(NoAnswer) as silence:
        broker.send("q", message(partition_key=KEYS[7]))
    assert silence.value.after_s == math.inf
    assert sum(sizes(broker)) == 0


def test_only_the_keys_of_the_dead_fragment_suffer(broker: Driver) -> None:
    broker.partitioned()
    broker.down("q", 7)
    refused = []
    for number in range(200):
        try:
            broker.send("q", message(partition_key=f"k{number}"))
        except ServiceBusInternalError:
            refused.append(f"k{number}")
    assert refused
    assert refused == [f"k{number}" for number in range(200) if fragment_of(f"k{number}", 16) == 7]


def test_sessions_of_a_dead_fragment_fail_in_everything(broker: Driver) -> None:
    broker.partitioned(requires_session=True)
    session = KEYS[2]
    broker.send("q", message(session_id=session))
    lock = broker.held("q", session)
    held = broker.one(lock=lock)
    broker.down("q", 2)
    for attempt in (
        lambda: broker.accept("q", session),
        lambda: broker.receive("q", lock=lock),
        lambda: broker.settle("q", held, lock=lock),
        lambda: broker.renew_session("q", lock),
        lambda: broker.state("q", lock),
        lambda: broker.set_state("q", lock, b""),
        lambda: broker.peek("q", session_id=session),
    ):
        with pytest.raises(ServiceBusInternalError):
            attempt()
    assert broker.accept("q") is None
    broker.heal()
    broker.settle("q", held, how=COMPLETE, lock=lock)


@pytest.mark.parametrize(
    ("kind", "error"),
    [(FaultKind.BUSY, ServiceBusServerBusyError), (FaultKind.ERROR, ServiceBusQuotaExceededError)],
)
def test_an_overloaded_fragment_refuses_its_keys_and_keyless_sends_avoid_it(
    broker: Driver, kind: FaultKind, error: type[Exception]
) -> None:
    broker.partitioned()
    broker.down("q", 1, kind=kind, error=ServiceBusQuotaExceededError)
    with pytest.raises(error):
        broker.send("q", message(partition_key=KEYS[1]))
    for _ in range(16):
        broker.send("q", message())
    assert sizes(broker)[1] == 0


def test_moving_a_keyless_message_off_a_hanging_fragment_takes_15_seconds(broker: Driver) -> None:
    broker.partitioned()
    broker.down("q", 7, kind=FaultKind.HANG)
    delays = [broker.send("q", message()).answer_after_s for _ in range(16)]
    assert sorted(delays) == [0.0] * 15 + [15.0]
    assert sum(sizes(broker)) == 16


def test_with_every_fragment_hanging_there_is_no_answer(broker: Driver) -> None:
    broker.partitioned()
    broker.down("q", *range(16), kind=FaultKind.HANG)
    with pytest.raises(NoAnswer):
        broker.send("q", message())


def test_keyless_sends_skip_a_full_fragment_and_its_keys_are_refused(broker: Driver) -> None:
    broker.partitioned()
    broker.body().policy.max_size_bytes = 1000
    broker.send("q", message("x" * 900, partition_key=KEYS[0]))
    with pytest.raises(ServiceBusQuotaExceededError, match="The maximum entity size has been reached or exceeded"):
        broker.send("q", message("x" * 900, partition_key=KEYS[0]))
    for _ in range(15):
        broker.send("q", message("x" * 900))
    assert sizes(broker) == [1] * 16
    with pytest.raises(ServiceBusQuotaExceededError):
        broker.send("q", message("x" * 900))


def test_an_entity_takes_exactly_its_size(broker: Driver) -> None:
    broker.queue()
    broker.send("q", message("first"))
    broker.body().policy.max_size_bytes = 2 * broker.body().fragments[0].size_bytes
    broker.send("q", message("other"))
    with pytest.raises(ServiceBusQuotaExceededError):
        broker.send("q", message(""))
    broker.settle("q", broker.one())
    broker.send("q", message("third"))


@pytest.mark.deviation("broker.fragment-numbers")
def test_numbers_name_the_fragment_in_the_top_16_bits(broker: Driver) -> None:
    broker.partitioned()
    for index, key in enumerate(KEYS):
        broker.send("q", message(partition_key=key))
        broker.send("q", message(partition_key=key))
        found = [each.sequence_number for each in broker.peek(from_number=index << COUNTER_BITS or 1)]
        if index:
            assert found == [index << 48 | 1, index << 48 | 2]


def test_the_counter_rolls_over_to_zero(broker: Driver) -> None:
    broker.partitioned()
    fragment = broker.body().fragments[3]
    fragment.counter = 2**48 - 1
    assert fragment.next_number() == 3 << 48


def test_numbers_are_positive_in_64_bits_and_decodable(broker: Driver) -> None:
    broker.partitioned()
    broker.send("q", message(partition_key=KEYS[15]))
    number = broker.one().sequence_number
    assert 0 < number < 2**63
    assert (number >> 48, number & 2**48 - 1) == (15, 1)


def test_numbers_rise_by_one_for_each_fragment(broker: Driver) -> None:
    broker.queue()
    for _ in range(5):
        broker.send("q", message())
    assert [each.sequence_number for each in broker.drain()] == [1, 2, 3, 4, 5]


def test_order_inside_a_fragment_is_the_order_of_arrival(broker: Driver) -> None:
    broker.partitioned()
    for number in range(10):
        broker.send("q", message(str(number), partition_key="k"))
    assert bodies(broker.drain()) == list(map(str, range(10)))


@pytest.mark.parametrize("is_partitioned", [False, True])
def test_a_call_without_a_lock_token_is_refused(broker: Driver, is_partitioned: bool) -> None:
    broker.queue(enable_partitioning=is_partitioned)
    for ask in (broker.settle, broker.renew):
        with pytest.raises(InvalidOperationError, match="no lock token of q is given"):
            ask("q")


def test_lock_tokens_of_several_fragments_in_one_call_are_refused(broker: Driver) -> None:
    broker.partitioned()
    broker.send("q", message(partition_key=KEYS[0]))
    broker.send("q", message(partition_key=KEYS[1]))
    held = broker.receive("q", 2)
    with pytest.raises(InvalidOperationError):
        broker.settle("q", *held)
    with pytest.raises(InvalidOperationError):
        broker.renew("q", *held)
    for each in held:
        broker.settle("q", each)


@pytest.mark.deviation("broker.cancelled-partitions")
@pytest.mark.parametrize("requires_session", [False, True])
def test_sequence_numbers_of_several_fragments_in_one_call_are_refused(broker: Driver, requires_session: bool) -> None:
    broker.partitioned(requires_session=requires_session)
    broker.partitioned("p")
    later = at(broker.now + 60)
    scheduled = [
        broker.schedule("p", message(partition_key=key, scheduled_enqueue_time_utc=later))[0] for key in KEYS[:2]
    ]
    with pytest.raises(InvalidOperationError, match="different partitions is not supported"):
        broker.cancel("p", *scheduled)
    for key in KEYS[:2]:
        broker.send("q", message(key, session_id=key))
    locks = [broker.held("q", key) for key in KEYS[:2]] if requires_session else [None, None]
    held = [each for lock in locks for each in broker.receive("q", lock=lock)]
    for lock, each in zip(locks, held, strict=True):
        broker.settle("q", each, how=DEFER, lock=lock)
    numbers = [each.sequence_number for each in held]
    words = "ReceiveBatch of sequence numbers from different partitions is not supported"
    with pytest.raises(InvalidOperationError, match=words):
        broker.deferred("q", *numbers, lock=locks[0])
    for lock, number in zip(locks, numbers, strict=True):
        assert len(broker.deferred("q", number, number, lock=lock)) == 1
    for number in scheduled:
        broker.cancel("p", number)


def test_unknown_lock_tokens_and_numbers_are_rejected(broker: Driver) -> None:
    broker.partitioned("p")
    broker.queue()
    broker.send("p", message(partition_key=KEYS[9]))
    foreign = broker.one("p")
    with pytest.raises(MessageLockLostError):
        broker.settle("q", foreign)
    with pytest.raises(MessageNotFoundError):
        broker.deferred("q", foreign.sequence_number)
    token = foreign.lock_token
    assert token is not None
    for path, beyond in (("q", 1), ("p", 16)):  # the index after the last fragment
        foreign.lock_token = UUID(int=token.int >> 16 << 16 | beyond)
        with pytest.raises(MessageLockLostError):
            broker.settle(path, foreign)
        for ask in (broker.deferred, broker.cancel):
            with pytest.raises(MessageNotFoundError):
                ask(path, beyond << 48 | 1)


@pytest.mark.deviation("broker.pings")
@pytest.mark.parametrize("is_partitioned", [False, True])
def test_a_ping_is_accepted_and_not_delivered(broker: Driver, is_partitioned: bool) -> None:
    broker.queue(enable_partitioning=is_partitioned, requires_duplicate_detection=True)
    broker.send("q", ping_message(message_id="m"))
    assert broker.receive() == []
    assert broker.browse() == []
    broker.send("q", message("real", message_id="m"))
    assert str(broker.one()) == "real"


def test_a_ping_is_checked_like_any_message(broker: Driver) -> None:
    broker.partitioned(requires_session=True)
    with pytest.raises(InvalidOperationError):
        broker.send("q", ping_message(message_id="m"))
    broker.down("q", 4)
    with pytest.raises(ServiceBusInternalError):
        broker.send("q", ping_message(message_id="m", session_id=KEYS[4]))
    broker.send("q", ping_message(message_id="m", session_id=KEYS[5]))


def test_one_dead_fragment_lets_keyless_and_other_keys_succeed(broker: Driver) -> None:
    broker.partitioned()
    broker.down("q", 3)
    outcomes = []
    for sent in (message(), message(partition_key=KEYS[3]), message(partition_key=KEYS[4]), message()):
        try:
            broker.send("q", sent)
            outcomes.append(True)
        except ServiceBusInternalError:
            outcomes.append(False)
    assert outcomes == [True, False, True, True]


def test_with_only_pinned_sends_a_dead_fragment_never_succeeds(broker: Driver) -> None:
    broker.partitioned()
    broker.down("q", 3)
    for _ in range(10):
        broker.wait(10)
        with pytest.raises(ServiceBusInternalError):
            broker.send("q", message(partition_key=KEYS[3]))


def test_a_restored_session_id_leads_to_its_fragment_and_must_equal_the_key(broker: Driver) -> None:
    broker.partitioned(requires_session=True)
    kept = ServiceBusMessage("", partition_key="k")
    broker.send("q", kept.copy(session_id="k"))
    assert home(broker) == fragment_of("k", 16)
    with pytest.raises(InvalidOperationError):
        broker.send("q", kept.copy(session_id="other"))


def test_a_keyless_ping_proves_nothing_about_a_dead_fragment(broker: Driver) -> None:
    broker.partitioned()
    broker.down("q", 3)
    broker.send("q", ping_message(message_id="a"))
    with pytest.raises(ServiceBusInternalError):
        broker.send("q", ping_message(message_id="b", partition_key=KEYS[3]))


def test_the_same_seed_gives_the_same_history() -> None:
    histories = []
    for _ in range(2):
        broker = Driver(seed=7)
        broker.partitioned()
        draw = Random(3)
        for number in range(50):
            broker.send("q", message(str(number), partition_key=draw.choice([None, "a", "b"])))
        histories.append([(str(each), each.sequence_number, each.lock_token) for each in broker.receive("q", 50)])
    assert histories[0] == histories[1]
