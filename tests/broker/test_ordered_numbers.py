"""The numbers of messages in order equal sorted ones after any sequence of changes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from sbclient.broker.ordered_numbers import OrderedNumbers

CHANGES = st.lists(st.one_of(st.tuples(st.sampled_from(["add", "remove"]), st.integers(0, 60)), st.just(("drain", 0))))


def read(found: Iterable[Any]) -> list[Any]:
    return list(found)


@settings(max_examples=300)
@given(first=st.integers(0, 200), changes=CHANGES, from_number=st.integers(-1, 260))
def test_messages_are_read_in_the_order_of_their_numbers(
    first: int, changes: list[tuple[str, int]], from_number: int
) -> None:
    entries: dict[int, Any] = {}
    numbers = OrderedNumbers(entries)
    for number in range(first):
        entries[number] = number
        numbers.add(number)
    for change, number in changes:
        if change == "add" and number not in entries:
            entries[number] = number
            numbers.add(number)
        else:  # the lowest messages, as receivers take them, or one
            for each in list(entries)[: first // 2] if change == "drain" else {number} & entries.keys():
                del entries[each]
                numbers.removed()
        assert len(numbers) == len(entries)
        assert read(numbers.descending(None)) == sorted(entries, reverse=True)
    assert read(numbers.ascending(from_number)) == sorted(each for each in entries if each >= from_number)
    assert read(numbers.descending(from_number)) == sorted(each for each in entries if each <= from_number)[::-1]


def test_removed_numbers_are_forgotten() -> None:
    entries: dict[int, Any] = {-1: "never received"}
    numbers = OrderedNumbers(entries)
    numbers.add(-1)
    for number in range(10_000):
        entries[number] = number
        numbers.add(number)
        del entries[number]
        numbers.removed()
        assert len(numbers._numbers) < 20


def test_an_iterator_continues_while_messages_are_removed() -> None:
    entries: dict[int, Any] = {number: number for number in range(100)}
    numbers = OrderedNumbers(entries)
    for number in entries:
        numbers.add(number)
    reader = numbers.ascending(0)
    seen = [next(reader)]
    for number in range(90):
        del entries[number]
        numbers.removed()
        list(numbers.ascending(0))  # forgets those before
    assert [*seen, *reader] == [0, *range(90, 100)]
