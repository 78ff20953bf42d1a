"""Batches: which messages fit, and which copies they keep."""

from __future__ import annotations

import copy
import pickle
from itertools import count
from typing import Any

import pytest

from sbclient.client.batch import ServiceBusMessageBatch
from sbclient.errors import MessageSizeExceededError
from sbclient.message import ServiceBusMessage
from tests.payloads import batch_size_of


def batch(limit: int, growth: int = 0) -> ServiceBusMessageBatch:
    numbers = count()
    return ServiceBusMessageBatch(limit, growth_bytes=growth, new_id=lambda: f"{next(numbers):036}")


def test_an_empty_batch() -> None:
    empty = batch(1000)
    assert (len(empty), empty.size_in_bytes, empty.max_size_in_bytes, empty.messages) == (0, 0, 1000, ())


@pytest.mark.parametrize("body_bytes", [0, 1, 200, 300, 70_000])
def test_size_is_that_of_the_encoded_batch(body_bytes: int) -> None:
    filled = batch(1_000_000)
    for number in range(5):
        filled.add_message(ServiceBusMessage(b"x" * body_bytes, session_id=f"s{number}"))
        assert filled.size_in_bytes == batch_size_of(filled.messages)


@pytest.mark.parametrize("growth", [0, 166])
def test_a_message_that_does_not_fit_leaves_the_batch_unchanged(growth: int) -> None:
    message = ServiceBusMessage(b"x" * 100, message_id="i")
    size = batch_size_of([message]) + growth
    batch(size, growth).add_message(message)
    full = batch(size - 1, growth)
    with pytest.raises(MessageSizeExceededError):
        full.add_message(message)
    assert (len(full), full.size_in_bytes) == (0, 0)


def test_add_message_sets_the_message_id() -> None:
    filled, message = batch(1000), ServiceBusMessage("a")
    filled.add_message(message)
    assert message.message_id == filled.messages[0].message_id is not None


def test_changes_after_add_message_are_not_sent() -> None:
    filled, message = batch(1000), ServiceBusMessage("a", subject="before")
    filled.add_message(message)
    message.subject = "after"
    assert filled.messages[0].subject == "before"


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda given: pickle.loads(pickle.dumps(given))])
def test_a_copy_and_its_original_are_filled_apart(copied: Any) -> None:
    original = batch(100_000, 7)
    original.add_message(ServiceBusMessage("a"))
    other = copied(original)
    original.add_message(ServiceBusMessage("b"))
    other.add_message(ServiceBusMessage("c"))
    for filled, last in ((original, "b"), (other, "c")):
        assert [str(message) for message in filled.messages] == ["a", last]
        assert filled.size_in_bytes == batch_size_of(filled.messages) + 2 * 7


def test_a_batch_has_at_most_4500_messages() -> None:
    full, message = batch(10_000_000), ServiceBusMessage(b"", message_id="i")
    for _ in range(4500):
        full.add_message(message)
    size = full.size_in_bytes
    with pytest.raises(MessageSizeExceededError):
        full.add_message(message)
    assert (len(full), full.size_in_bytes) == (4500, size)


def test_only_messages_can_be_added() -> None:
    with pytest.raises(TypeError):
        batch(1000).add_message("text")  # type: ignore[arg-type]


def test_a_batch_made_by_hand() -> None:
    made = ServiceBusMessageBatch()
    made.add_message(ServiceBusMessage("a"))
    made.add_message({"body": "b", "message_id": "m"})
    first, second = made.messages
    assert made.max_size_in_bytes == 1_048_576
    assert len(str(first.message_id)) == 36
    assert (str(second), second.message_id) == ("b", "m")
    assert repr(made) == "ServiceBusMessageBatch(max_size_in_bytes=1048576, message_count=2)"
    with pytest.raises(TypeError, match="boby"):
        made.add_message({"boby": "c"})
