"""Transactions over several entities, by the first entity that a client opens."""

from __future__ import annotations

import pytest

from sbclient.broker.transactions import Via
from sbclient.errors import InvalidOperationError
from tests.broker.driver import KEYS, START, Driver, address, at, bodies, message


def via(*paths: str) -> Via:
    made = Via()
    for path in paths:
        made.use(path, receives=False)
    return made


@pytest.mark.parametrize("is_committed", [True, False])
@pytest.mark.parametrize("is_partitioned", [False, True])
def test_completion_and_sends_to_two_entities_happen_together(
    broker: Driver, is_committed: bool, is_partitioned: bool
) -> None:
    broker.queue("in", enable_partitioning=is_partitioned)
    broker.queue("out")
    broker.topic("events", enable_partitioning=is_partitioned)
    broker.subscription("events", "all")
    broker.send("in", message("order", partition_key=KEYS[3]))
    held = broker.one("in")
    transaction = broker.begin(via("in"))
    broker.send("out", message("a"), transaction=transaction, via_partition_key=KEYS[3])
    broker.send("events", message("b"), transaction=transaction, via_partition_key=KEYS[3])
    broker.settle("in", held, transaction=transaction)
    if is_committed:
        broker.commit(transaction)
    else:
        broker.rollback(transaction)
    assert bodies(broker.drain("out")) == ["a"] * is_committed
    assert bodies(broker.drain("events/Subscriptions/all")) == ["b"] * is_committed
    assert len(broker.body("in")) == (not is_committed)
    if not is_committed:
        broker.settle("in", held)
        assert len(broker.body("in")) == 0


def test_the_via_of_a_subscription_is_its_topic(broker: Driver) -> None:
    broker.queue("out")
    broker.topic()
    broker.subscription()
    broker.send("t", message("a"))
    held = broker.one("t/Subscriptions/s")
    transaction = broker.begin(via("t/Subscriptions/s"))
    broker.send("out", message("b"), transaction=transaction)
    broker.send("t", message("c"), transaction=transaction)
    broker.settle("t/Subscriptions/s", held, transaction=transaction)
    assert broker.receive("out") == []
    broker.commit(transaction)
    assert bodies(broker.drain("out")) == ["b"]
    assert bodies(broker.drain("t/Subscriptions/s")) == ["c"]


def test_a_topic_and_its_subscription_share_a_transaction_without_a_via(broker: Driver) -> None:
    broker.topic()
    broker.subscription()
    broker.send("t", message("a"))
    held = broker.one("t/Subscriptions/s")
    transaction = broker.begin()
    broker.settle("t/Subscriptions/s", held, transaction=transaction)
    broker.send("t", message("b"), transaction=transaction)
    broker.commit(transaction)
    assert bodies(broker.drain("t/Subscriptions/s")) == ["b"]


def test_keys_of_a_partitioned_via_are_those_of_the_settled_message(broker: Driver) -> None:
    broker.partitioned("in")
    broker.queue("out")
    broker.send("in", message("a", partition_key=KEYS[3]))
    held = broker.one("in")
    transaction = broker.begin(via("in"))
    broker.settle("in", held, transaction=transaction)
    for key in (None, KEYS[4]):
        with pytest.raises(InvalidOperationError):
            broker.send("out", message(), transaction=transaction, via_partition_key=key)
    broker.send("out", message("b"), transaction=transaction, via_partition_key=KEYS[3])
    with pytest.raises(InvalidOperationError):
        broker.send("in", message("c", partition_key=KEYS[4]), transaction=transaction)
    broker.send("in", message("c", partition_key=KEYS[3]), transaction=transaction)
    broker.commit(transaction)
    assert (bodies(broker.drain("out")), bodies(broker.drain("in"))) == (["b"], ["c"])


def test_messages_of_several_keys_reach_a_partitioned_destination(broker: Driver) -> None:
    broker.queue("in")
    broker.partitioned("out")
    transaction = broker.begin(via("in"))
    for key in KEYS[:3]:
        broker.send("out", message(key, partition_key=key), transaction=transaction)
    broker.send("out", message("none"), transaction=transaction)
    broker.commit(transaction)
    assert sorted(bodies(broker.drain("out"))) == sorted([*KEYS[:3], "none"])


def test_of_other_entities_only_sends_belong_to_the_transaction(broker: Driver) -> None:
    broker.queue("in")
    broker.queue("out")
    broker.send("out", message("a"))
    held = broker.one("out")
    transaction = broker.begin(via("in"))
    with pytest.raises(InvalidOperationError):
        broker.settle("out", held, transaction=transaction)
    with pytest.raises(InvalidOperationError):
        broker.schedule("out", message(scheduled_enqueue_time_utc=at(START + 10)), transaction=transaction)
    broker.send("out", message("b"), transaction=transaction)
    broker.commit(transaction)
    assert bodies(broker.receive("out", 2)) == ["b"]


def test_a_client_with_a_via_receives_from_no_other_entity() -> None:
    first = via("in/$DeadLetterQueue", "out")
    first.use("IN", receives=True)
    with pytest.raises(InvalidOperationError, match="cannot span multiple top-level entities"):
        first.use("out", receives=True)


@pytest.mark.parametrize("is_deleted", [False, True])
def test_messages_that_wait_for_their_destination_go_with_the_entity_in_which_they_wait(
    broker: Driver, is_deleted: bool
) -> None:
    broker.queue("in")
    broker.queue("out")
    broker.down("out")
    transaction = broker.begin(via("in"))
    broker.send("out", message("a"), transaction=transaction)
    broker.commit(transaction)
    if is_deleted:
        broker.delete(address("in"))
    broker.heal()
    broker.wait(3600.0)
    assert bodies(broker.drain("out")) == ["a"] * (not is_deleted)
