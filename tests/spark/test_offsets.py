"""An offset of a checkpoint is the one that was stored, in each of its fields."""

from __future__ import annotations

import json

from sbclient_spark.read.offsets import QueueOffset, StreamOffset

TIME = "2026-11-28T04:00:00+00:00"


def test_an_offset_that_was_stored_is_read_as_it_was() -> None:
    peeked = QueueOffset(created=TIME, until=TIME, next={0: 5, 15: 2**62}, first={0: 1})
    received = QueueOffset(created=TIME, numbers=(1, 2, 3, 7), open=(2**62, 2**62 + 1))
    for mode, queue in (("peek", peeked), ("peek", QueueOffset()), ("receive", received), ("receive", QueueOffset())):
        offset = StreamOffset(mode, "contoso", 3, {"orders": queue, "other": QueueOffset()})  # type: ignore[arg-type]
        stored = json.loads(json.dumps(offset.to_json()))
        assert StreamOffset.of_json(stored, mode=offset.mode, namespace="contoso", paths=["orders", "other"]) == offset
