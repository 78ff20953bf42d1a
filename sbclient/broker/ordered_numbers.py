"""The sequence numbers of a queue or of a session, in order."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from typing import Final

from sbclient.broker.entry import Entry

_SLACK: Final = 16


class OrderedNumbers:
    """The numbers of some messages in ascending order. Adding and removing cost O(1), since most are added at the end.

    A removed number stays in the list until a third of the list, or all of it, is stale. Readers skip it. Sorted
    containers cost eight times as much.

    Args:
        entries: all messages by number. A number is added after its message, and removed after it.
    """

    __slots__ = ("_count", "_entries", "_numbers")

    def __init__(self, entries: Mapping[int, Entry]) -> None:
        self._entries = entries
        self._numbers: list[int] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, number: int) -> None:
        """Add the number of a message that was added to the mapping."""
        numbers = self._numbers
        self._count += 1
        if not numbers or numbers[-1] < number:
            numbers.append(number)
            return
        position = bisect_left(numbers, number)
        if numbers[position] != number:  # it is equal if the number was removed before
            numbers.insert(position, number)

    def removed(self) -> None:
        """Note that the message of a number was removed from the mapping."""
        self._count -= 1
        if not self._count:
            self._numbers = []
        elif len(self._numbers) > _SLACK + self._count + (self._count >> 1):
            self._drop_stale()

    def ascending(self, from_number: int) -> Iterator[Entry]:
        """Return the messages from a number on."""
        numbers, entries = self._numbers, self._entries
        stale = 0
        while stale < len(numbers) and numbers[stale] not in entries:
            stale += 1
        if stale > _SLACK:  # else each reader from the start skips them again
            self._numbers = numbers = numbers[stale:]
        for position in range(bisect_left(numbers, from_number), len(numbers)):
            if (entry := entries.get(numbers[position])) is not None:
                yield entry

    def descending(self, from_number: int | None) -> Iterator[Entry]:
        """Return the messages from a number down, or from the last one."""
        numbers, entries = self._numbers, self._entries
        end = len(numbers) if from_number is None else bisect_right(numbers, from_number)
        for position in range(end - 1, -1, -1):
            if (entry := entries.get(numbers[position])) is not None:
                yield entry

    def _drop_stale(self) -> None:
        """Replace the list, since iterators may read the old one."""
        entries = self._entries
        self._numbers = [number for number in self._numbers if number in entries]
