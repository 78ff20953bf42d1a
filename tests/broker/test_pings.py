"""What is known of the last ping to an entity, and the counts that cost nothing to read."""

from __future__ import annotations

import pytest

from sbclient.broker.faults import FaultKind, NoAnswer
from sbclient.broker.pings import MAX_PATHS, Ping
from sbclient.errors import MessagingEntityNotFoundError, ServiceBusConnectionError
from sbclient.rules.ping import ping_message
from tests.broker.driver import DEAD_LETTER, START, Driver, at, message


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


def test_pings_to_nowhere_do_not_fill_the_table(broker: Driver) -> None:
    for number in range(MAX_PATHS + 1):
        with pytest.raises(MessagingEntityNotFoundError):
            broker.send(f"q{number}", ping_message(message_id="m"))
    assert broker.namespace.pings.last("q0") is None
    assert broker.namespace.pings.last(f"q{MAX_PATHS}") is not None


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
