"""What is known of the last ping to an entity, and the counts that cost nothing to read."""

from __future__ import annotations

from random import Random

import pytest

from sbclient.amqp import EncodedMessage, Properties, encode_message
from sbclient.broker.faults import FaultKind, NoAnswer
from sbclient.broker.pings import MAX_PATHS, Ping
from sbclient.errors import MessagingEntityNotFoundError, ServiceBusConnectionError, ServiceBusQuotaExceededError
from sbclient.rules.partition_key import fragment_of
from sbclient.rules.ping import PING_CONTENT_TYPE, ping_message
from tests.broker.driver import DEAD_LETTER, START, Driver, at, message
from tests.original_client import PINGS
from tests.payloads import encode_sections


def test_the_last_ping_is_known_with_its_answer(broker: Driver) -> None:
    broker.queue()
    broker.send("q", ping_message(message_id="m"))
    assert broker.namespace.pings.last("q") == Ping("q", START, None)
    broker.wait(5)
    broker.down(None)
    with pytest.raises(ServiceBusConnectionError):
        broker.send("q", ping_message(message_id="m"))
    assert broker.namespace.pings.last("q") == Ping("q", START + 5, "ServiceBusConnectionError")


@pytest.mark.parametrize("kind", [FaultKind.HANG, FaultKind.LOSE_ACKNOWLEDGEMENT])
def test_unanswered_ping_is_reported_as_such(broker: Driver, kind: FaultKind) -> None:
    broker.queue()
    broker.down("q", kind=kind)
    try:
        broker.send("q", ping_message(message_id="m"))
    except NoAnswer:
        assert kind is FaultKind.HANG
    assert broker.namespace.pings.last("q") == Ping("q", START, "NoAnswer")


def test_other_messages_are_no_pings(broker: Driver) -> None:
    broker.queue()
    broker.send("q", message("x"))
    assert broker.namespace.pings.last("q") is None


WITH_OTHER_BODIES = [
    encode_sections(properties=Properties(content_type=PING_CONTENT_TYPE, group_id="s"), **body)
    for body in ({"value": None}, {"value": {"a": [1]}}, {"sequences": [[1], []]}, {"data": [b"x", b"y"]}, {})
]


@pytest.mark.parametrize("requires_session", [False, True])
@pytest.mark.parametrize("is_partitioned", [False, True])
def test_pings_of_the_original_client_and_with_any_body_are_not_stored(
    broker: Driver, requires_session: bool, is_partitioned: bool
) -> None:
    broker.queue(requires_session=requires_session, enable_partitioning=is_partitioned)
    broker.topic(enable_partitioning=is_partitioned)
    broker.subscription(requires_session=requires_session)
    for payload in [each.payload for each in PINGS] + WITH_OTHER_BODIES:
        broker.wait(1)
        for path, stored in (("q", "q"), ("t", "t/Subscriptions/s")):
            broker.send(path, EncodedMessage.of(payload))
            assert broker.namespace.pings.last(path) == Ping(path, broker.now, None)
            assert broker.browse(stored) == []
            assert broker.counts(stored).total_message_count == 0


def test_pings_to_nowhere_do_not_fill_the_table(broker: Driver) -> None:
    for number in (*range(MAX_PATHS), 0, MAX_PATHS):
        with pytest.raises(MessagingEntityNotFoundError):
            broker.send(f"q{number}", ping_message(message_id="m"))
    known = [number for number in range(MAX_PATHS + 1) if broker.namespace.pings.last(f"q{number}") is not None]
    assert known == [0, *range(2, MAX_PATHS + 1)]  # without the one that was pinged longest ago


@pytest.mark.parametrize("is_partitioned", [False, True])
def test_a_ping_needs_the_room_of_the_largest_message_refused_since_the_last_one(is_partitioned: bool) -> None:
    """Whatever was sent, received and refused before, in any order."""
    for seed in range(30):
        broker, random, largest = Driver(seed=seed), Random(seed), 0
        broker.queue(enable_partitioning=is_partitioned)
        broker.body().policy.max_size_bytes = 200_000
        usage = broker.body().fragments[fragment_of("k", 16) if is_partitioned else 0].usage
        ping = encode_message(ping_message(message_id="m", partition_key="k"))
        for _ in range(60):
            sent = random.choice([ping, encode_message(message("x" * random.randrange(120_000), partition_key="k"))])
            needed = max(sent.size_bytes, largest if sent is ping else 0)
            try:
                broker.send("q", sent)
            except ServiceBusQuotaExceededError:
                assert usage.size_bytes + needed > 200_000
                largest = max(largest, needed)
            else:
                assert usage.size_bytes + (needed if sent is ping else 0) <= 200_000
                largest = 0 if sent is ping else largest
            if random.random() < 0.3:
                broker.drain()


def test_each_message_arrives_once_after_any_operations(broker: Driver) -> None:
    broker.queue()
    broker.send("q", message("a"))
    broker.schedule("q", message("b", scheduled_enqueue_time_utc=at(START + 10)))
    (fragment,) = broker.body().fragments
    assert (fragment.arrived_count, len(fragment)) == (2, 2)
    broker.wait(11)
    taken = broker.receive(count=2)
    assert (fragment.arrived_count, fragment.locked_count, len(fragment)) == (2, 2, 2)
    broker.settle("q", taken[0])
    broker.settle("q", taken[1], how=DEAD_LETTER)
    assert (fragment.arrived_count, fragment.locked_count, len(fragment)) == (2, 0, 0)
    assert fragment.behind().arrived_count == 1


def test_topic_counts_forwarded_messages(broker: Driver) -> None:
    broker.topic()
    broker.subscription()
    broker.send("t", message("a"))
    assert broker.namespace.directory.find("t")[1].fragments[0].arrived_count == 1
    assert broker.body("t/Subscriptions/s").fragments[0].arrived_count == 1


def test_messages_are_browsed_from_the_newest_down(broker: Driver) -> None:
    broker.queue()
    broker.send("q", message("a"))
    broker.send("q", message("b"))
    broker.send("q", message("c"))
    (fragment,) = broker.body().fragments
    assert [entry.number for entry in fragment.browse_back(START)] == [3, 2, 1]
    assert [entry.number for entry in fragment.browse_back(START, 2)] == [2, 1]


def test_sessions_are_listed_with_their_holder_and_state(broker: Driver) -> None:
    broker.queue(requires_session=True)
    broker.send("q", message("a", session_id="one"))
    lock = broker.held("q", "two")
    broker.set_state("q", lock, b"state")
    ((_, one), (_, two)) = sorted(broker.body().fragments[0].sessions(START), key=lambda each: each[0])
    assert (one.message_count, one.token, one.state) == (1, 0, None)
    assert (two.message_count, bool(two.token), two.state) == (0, True, b"state")
