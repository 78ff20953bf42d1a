"""Duplicate detection."""

from __future__ import annotations

import pytest

from sbclient.amqp import encode_message
from sbclient.broker.deduplication import DuplicateWindow, identity_of, identity_with_key
from sbclient.errors import InvalidOperationError
from tests.broker.driver import START, Driver, at, bodies, message, seconds


@pytest.fixture(params=[False, True], ids=["plain", "partitioned"])
def queue(request: pytest.FixtureRequest) -> Driver:
    broker = Driver()
    broker.queue(enable_partitioning=request.param, requires_duplicate_detection=True)
    return broker


def test_a_duplicate_is_accepted_and_dropped(queue: Driver) -> None:
    queue.send("q", message("first", message_id="m"))
    queue.send("q", message("second", message_id="m"))
    assert bodies(queue.drain()) == ["first"]
    queue.send("q", message("third", message_id="m"))
    assert queue.receive() == []


@pytest.mark.parametrize(("asked", "window_s"), [(None, 600), (seconds(20), 20)])
def test_ids_are_remembered_for_the_window(broker: Driver, asked: object, window_s: float) -> None:
    broker.queue(requires_duplicate_detection=True, duplicate_detection_history_time_window=asked)
    broker.send("q", message("0", message_id="m"))
    broker.wait(window_s - 1)
    broker.send("q", message("1", message_id="m"))
    broker.wait(1)
    broker.send("q", message("2", message_id="m"))
    assert bodies(broker.drain()) == ["0", "2"]
    assert len(broker.body().fragments[0].seen) == 1


def test_without_the_flag_nothing_is_dropped(broker: Driver) -> None:
    broker.queue()
    broker.send("q", message(message_id="m"))
    broker.send("q", message(message_id="m"))
    assert len(broker.body()) == 2


@pytest.mark.parametrize(("is_partitioned", "kept"), [(True, ["a", "b"]), (False, ["a"])])
def test_a_partitioned_entity_compares_keys_too(broker: Driver, is_partitioned: bool, kept: list[str]) -> None:
    broker.queue(requires_duplicate_detection=True, enable_partitioning=is_partitioned)
    for key in ("a", "b", "a", "b"):
        broker.send("q", message(key, message_id="m", partition_key=key))
    assert sorted(bodies(broker.drain())) == kept


def test_a_partitioned_entity_requires_an_id_or_a_key(broker: Driver) -> None:
    broker.partitioned(requires_duplicate_detection=True)
    with pytest.raises(InvalidOperationError):
        broker.send("q", message())
    broker.send("q", message(partition_key="k"))
    broker.send("q", message(partition_key="k"))
    assert len(broker.body()) == 2


def test_a_plain_entity_keeps_duplicates_without_an_id(broker: Driver) -> None:
    broker.queue(requires_duplicate_detection=True)
    broker.send("q", message())
    broker.send("q", message())
    assert len(broker.body()) == 2


def test_duplicate_detection_includes_scheduled_messages(queue: Driver) -> None:
    later = at(START + 30)
    queue.schedule("q", message("scheduled", message_id="m", scheduled_enqueue_time_utc=later))
    queue.send("q", message("sent", message_id="m"))
    queue.send("q", message("sent", message_id="n"))
    (number,) = queue.schedule("q", message("late", message_id="n", scheduled_enqueue_time_utc=later))
    assert number > 0
    queue.wait(30)
    assert sorted(bodies(queue.drain())) == ["scheduled", "sent"]


def test_copies_inside_one_batch_are_dropped(queue: Driver) -> None:
    queue.send("q", message("a", message_id="m"), message("b", message_id="m"))
    assert bodies(queue.drain()) == ["a"]


def test_a_topic_drops_copies_before_its_subscriptions(broker: Driver) -> None:
    broker.topic(requires_duplicate_detection=True)
    broker.subscription()
    broker.send("t", message("a", message_id="m"))
    broker.send("t", message("b", message_id="m"))
    assert bodies(broker.drain("t/Subscriptions/s")) == ["a"]


def test_an_in_doubt_send_repeated_within_the_window_leaves_one_copy(queue: Driver) -> None:
    in_doubt = message("a", message_id="m", partition_key="k")
    queue.send("q", in_doubt)
    queue.wait(599)
    queue.send("q", in_doubt.copy())
    assert bodies(queue.drain()) == ["a"]
    queue.wait(1)
    queue.send("q", in_doubt.copy())
    assert bodies(queue.drain()) == ["a"]


def test_a_duplicate_does_not_extend_the_window() -> None:
    window = DuplicateWindow()
    window.remember("m", 0.0)
    assert window.is_known("m", 9.0, 10.0)
    assert not window.is_known("m", 10.0, 10.0)
    assert len(window) == 0


def test_identities() -> None:
    both = message(message_id="m", session_id="s")
    assert identity_of(encode_message(both), is_partitioned=False) == "m"
    assert identity_of(encode_message(both), is_partitioned=True) == identity_with_key("m", "s")
    assert identity_with_key("m", "s") not in (identity_with_key("ms", ""), identity_with_key("", "ms"))
    assert identity_of(encode_message(message(message_id="m")), is_partitioned=True) == "m"
    assert identity_of(encode_message(message()), is_partitioned=True) is None
