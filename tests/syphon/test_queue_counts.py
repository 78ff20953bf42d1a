"""Counts of a queue between two scans, with literal times."""

from __future__ import annotations

from datetime import UTC, datetime

from sbclient.amqp import encode_message
from sbclient.message import ServiceBusMessage, ServiceBusMessageState, ServiceBusReceivedMessage
from sbclient.syphon.queue_source import QueueCounts


def at(second: int) -> datetime:
    return datetime(2024, 1, 1, 0, 0, second, tzinfo=UTC)


def message(second: int, *, is_parked: bool = False) -> ServiceBusReceivedMessage:
    state = ServiceBusMessageState.DEFERRED if is_parked else ServiceBusMessageState.ACTIVE
    return ServiceBusReceivedMessage.of(
        encode_message(ServiceBusMessage("a")), sequence_number=second, enqueued_time_utc=at(second), state=state
    )


def seen(*messages: ServiceBusReceivedMessage) -> QueueCounts:
    counts = QueueCounts()
    for each in messages:
        counts.add(each)
    return counts


def test_new_counts_are_zero() -> None:
    counts = QueueCounts()
    assert (counts.waiting, counts.parked, counts.oldest_waiting, counts.oldest_parked) == (0, 0, None, None)


def test_a_look_counts_and_finds_the_oldest() -> None:
    counts = seen(message(5), message(3), message(4), message(2, is_parked=True), message(9, is_parked=True))
    assert (counts.waiting, counts.oldest_waiting) == (3, at(3))
    assert (counts.parked, counts.oldest_parked) == (2, at(2))


def test_received_messages_are_subtracted_from_the_counts() -> None:
    counts = seen(message(1), message(2), message(3))
    counts.remove_received([message(1), message(2)])
    assert (counts.waiting, counts.oldest_waiting) == (1, at(2))
    counts.remove_received([message(3), message(4), message(5)])
    assert (counts.waiting, counts.oldest_waiting) == (0, None)


def test_empty_receive_resets_the_counts() -> None:
    counts = seen(message(1), message(2))
    counts.remove_received([])
    assert (counts.waiting, counts.oldest_waiting) == (0, None)


def test_parked_ones_come_and_go() -> None:
    counts = QueueCounts()
    counts.add_parked(message(4))
    counts.add_parked(message(7))
    assert (counts.parked, counts.oldest_parked) == (2, at(4))
    counts.remove_parked()
    counts.remove_parked()
    assert (counts.parked, counts.oldest_parked) == (0, None)
    counts.add_parked(message(8))
    assert (counts.parked, counts.oldest_parked) == (1, at(8))
    counts.remove_parked()
    counts.remove_parked()
    assert counts.parked == 0
