"""Sequence numbers: their top 16 bits are the partition of the message, which is 0 on entities without partitions.

The service refuses a request that names messages of several partitions, so that a caller asks for each one by itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

COUNTER_BITS: Final = 48
"""The bits below the partition. Source: message sequencing, documented."""


def partition_of(number: int) -> int:
    """Return the partition of a sequence number."""
    return number >> COUNTER_BITS


def by_partition(numbers: Iterable[int]) -> list[list[int]]:
    """Return the numbers, each once, grouped by partition; partitions and numbers keep their order."""
    groups: dict[int, dict[int, None]] = {}
    for number in numbers:
        groups.setdefault(partition_of(number), {})[number] = None
    return [list(group) for group in groups.values()]
