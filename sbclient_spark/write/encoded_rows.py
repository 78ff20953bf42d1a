"""Rows that are encoded as AMQP: Arrow columns, so that a row needs no Python object on its way to a transfer."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from sbclient.amqp import EncodedBatch
from sbclient_spark.options import Destination

SCHEMA: Final = pa.schema(
    [
        pa.field("section", pa.binary(), nullable=False),
        pa.field("message_id", pa.string(), nullable=False),
        pa.field("session_id", pa.string()),
        pa.field("partition_key", pa.string()),
        pa.field("is_scheduled", pa.bool_(), nullable=False),
        pa.field("position", pa.int64(), nullable=False),
    ]
)
"""The columns of encoded rows: the message as a data section of a batch, what is needed to send it in order, and the
position of the row in its partition."""


@dataclass(slots=True)
class BadRow:
    """An invalid row.

    Attributes:
        position: counts the rows of its partition from 0.
        reason: of the error.
        record: the columns as values for JSON.
    """

    position: int
    reason: str
    record: dict[str, Any] = field(repr=False)


@dataclass(frozen=True, slots=True)
class EncodedRows:
    """Rows with one destination, in order.

    Attributes:
        columns: as in `SCHEMA`.
    """

    destination: Destination
    columns: pa.RecordBatch

    def __len__(self) -> int:
        count: int = self.columns.num_rows
        return count

    def slice(self, start: int, length: int | None = None) -> EncodedRows:
        """Return some of the rows, without copying them."""
        return EncodedRows(self.destination, self.columns.slice(start, length))

    def take(self, places: pa.Array) -> EncodedRows:
        """Return the rows at these places."""
        return EncodedRows(self.destination, self.columns.take(places))

    @property
    def size_bytes(self) -> int:
        """The size of all sections."""
        offsets = self._offsets()
        return int(offsets[-1] - offsets[0])

    def count_within(self, limit_bytes: int, extra_bytes: int) -> int:
        """Return how many rows from the first on have at most this size.

        Args:
            extra_bytes: added to each row.
        """
        offsets = self._offsets()
        start = offsets[0]
        return bisect_right(
            range(len(self)), limit_bytes, key=lambda place: offsets[place + 1] - start + (place + 1) * extra_bytes
        )

    def keys(self) -> pa.Array:
        """Return the key of each row within which order is kept: its session id, else its partition key."""
        return pc.coalesce(self.columns.column("session_id"), self.columns.column("partition_key"))

    def sessions(self) -> list[str]:
        """Return the sessions of all rows that are not scheduled."""
        found = self.columns.column("session_id").filter(pc.invert(self.columns.column("is_scheduled")))
        sessions: list[str] = found.drop_null().unique().to_pylist()
        return sessions

    def position(self, place: int = 0) -> int:
        """Return the position of a row in its partition."""
        return int(self.columns.column("position")[place].as_py())

    def message_id(self, place: int = 0) -> str:
        """Return the message id of a row."""
        return str(self._value("message_id", place))

    def encoded(self) -> EncodedBatch:
        """Return the messages of the rows."""
        offsets = self._offsets()
        start, end = offsets[0], offsets[-1]
        data = self.columns.column("section").buffers()[2]
        return EncodedBatch.of_sections(
            memoryview(data).cast("B")[start:end],
            [offset - start for offset in offsets[1:]],
            message_id=self._value("message_id", 0),
            session_id=self._value("session_id", 0),
            partition_key=self._value("partition_key", 0),
        )

    def _value(self, name: str, place: int) -> Any:
        return self.columns.column(name)[place].as_py()

    def _offsets(self) -> Any:
        sections = self.columns.column("section")
        return memoryview(sections.buffers()[1]).cast("i")[sections.offset : sections.offset + len(sections) + 1]


def joined(parts: Sequence[EncodedRows]) -> EncodedRows:
    """Return the rows of one destination as one."""
    if len(parts) == 1:
        return parts[0]
    return EncodedRows(parts[0].destination, pa.concat_batches([part.columns for part in parts]))


def by_value(rows: EncodedRows, values: pa.Array) -> list[tuple[Any, EncodedRows]]:
    """Return the rows grouped by a column of values, each group in order.

    Args:
        values: one for each row; null is a value.
    """
    if not len(rows):
        return []
    codes = values.dictionary_encode(null_encoding="encode")
    if len(codes.dictionary) == 1:
        return [(codes.dictionary[0].as_py(), rows)]
    order = pc.sort_indices(codes.indices)  # stable
    sorted_rows = rows.take(order)
    runs = pc.run_end_encode(codes.indices.take(order))
    names = codes.dictionary.to_pylist()
    groups, start = [], 0
    for end, code in zip(runs.run_ends.to_pylist(), runs.values.to_pylist(), strict=True):
        groups.append((names[code], sorted_rows.slice(start, end - start)))
        start = end
    return groups
