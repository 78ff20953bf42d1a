"""Requests for messages of several partitions: one for each of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sbclient.rules.sequence_number import by_partition, partition_of

numbers = st.builds(lambda partition, counter: partition << 48 | counter, st.integers(0, 2**15 - 1), st.integers(0, 9))


@given(st.lists(numbers | st.sampled_from([0, 1, 2**48 - 1, 2**48, 2**56, 2**63 - 1])))
def test_numbers_are_grouped_by_partition_each_once_and_in_their_order(given_numbers: list[int]) -> None:
    once = list(dict.fromkeys(given_numbers))
    partitions = list(dict.fromkeys(number // 2**48 for number in once))
    assert by_partition(given_numbers) == [
        [number for number in once if partition_of(number) == partition] for partition in partitions
    ]
