from __future__ import annotations

from datetime import UTC, datetime

import pytest

from sbclient.amqp import encode_message
from sbclient.message import ServiceBusMessage, ServiceBusReceivedMessage
from sbclient.pairing import state
from sbclient.pairing.state import AcceptedCopies

QUEUE = "contoso/x-servicebus-transfer/0"


def copy(number: int, second: int = 0) -> ServiceBusReceivedMessage:
    came_at = datetime(2026, 1, 1, 0, 0, second, tzinfo=UTC)
    content = ServiceBusMessage(b"", message_id="same")
    return ServiceBusReceivedMessage.of(encode_message(content), sequence_number=number, enqueued_time_utc=came_at)


def test_a_copy_is_identified_by_queue_and_number_not_by_message_id() -> None:
    copies = AcceptedCopies()
    copies.add(QUEUE, copy(7))
    assert copies.has(QUEUE, copy(7))
    assert not copies.has(QUEUE, copy(8))
    assert not copies.has("contoso/x-servicebus-transfer/1", copy(7))


def test_the_same_number_in_a_recreated_queue_is_another_copy() -> None:
    copies = AcceptedCopies()
    copies.add(QUEUE, copy(7, second=1))
    assert not copies.has(QUEUE, copy(7, second=2))


def test_a_copy_that_left_its_queue_is_forgotten() -> None:
    copies = AcceptedCopies()
    copies.add(QUEUE, copy(7))
    copies.discard(QUEUE, copy(7))
    copies.discard(QUEUE, copy(8))
    assert not copies.has(QUEUE, copy(7))
    assert len(copies) == 0


def test_the_oldest_copies_are_evicted_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "ACCEPTED_KEPT", 3)
    copies = AcceptedCopies()
    for number in range(5):
        copies.add(QUEUE, copy(number))
    assert [copies.has(QUEUE, copy(number)) for number in range(5)] == [False, False, True, True, True]


async def test_a_copy_is_being_sent_until_the_send_ends_however_it_ends() -> None:
    copies = AcceptedCopies()
    running = copies.sending([(QUEUE, copy(7)), (QUEUE, copy(8))])
    running.__enter__()
    with copies.sending([(QUEUE, copy(9))]):
        ended = [copies.end_of_send(QUEUE, copy(number)) for number in (7, 8, 9, 10)]
        assert [each is not None and not each.is_set() for each in ended] == [True, True, True, False]
    assert [each is not None and each.is_set() for each in ended] == [False, False, True, False]
    assert copies.end_of_send(QUEUE, copy(9)) is None
    error = TimeoutError()
    assert not running.__exit__(TimeoutError, error, None)
    assert [each is not None and each.is_set() for each in ended] == [True, True, True, False]
    assert copies.end_of_send(QUEUE, copy(7)) is None
    assert not copies.has(QUEUE, copy(7))
