"""An offset of a checkpoint is the one that was stored, in each of its fields."""

from __future__ import annotations

import json
from functools import partial

from hypothesis import example, given
from hypothesis import strategies as st

from sbclient_spark.read.offsets import QueueOffset, StreamOffset

POSITIONS = st.dictionaries(st.integers(0, 2**15), st.integers(0, 2**63 - 1), max_size=3)
NUMBERS = st.frozensets(st.integers(1, 9) | st.integers(1, 2**62), max_size=6).map(lambda some: tuple(sorted(some)))
TIMES = st.none() | st.just("2026-11-28T04:00:00+00:00")
PEEKED = st.builds(QueueOffset, created=TIMES, until=TIMES, next=POSITIONS, first=st.none() | POSITIONS)
RECEIVED = st.builds(QueueOffset, created=TIMES, numbers=NUMBERS, open=NUMBERS)
PATHS = st.sampled_from(["orders", "prices/Subscriptions/eu"])
OFFSETS = partial(st.builds, StreamOffset, namespace=st.just("contoso"), batch=st.integers(0, 2**40))


@given(
    OFFSETS(mode=st.just("peek"), queues=st.dictionaries(PATHS, PEEKED))
    | OFFSETS(mode=st.just("receive"), queues=st.dictionaries(PATHS, RECEIVED))
)
@example(StreamOffset("peek", "contoso", 1, {"orders": QueueOffset(first={})}))  # it began at an empty queue
def test_an_offset_that_was_stored_is_read_as_it_was(offset: StreamOffset) -> None:
    stored = json.loads(json.dumps(offset.to_json()))
    assert StreamOffset.of_json(stored, mode=offset.mode, namespace="contoso", paths=offset.queues) == offset
