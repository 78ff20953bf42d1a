"""The sessions of the tasks of a write in a compact form, so that the driver finds those of several tasks."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

DIGEST_BYTES: Final = 8

KEPT: Final = 2**17
"""Digests that a task reports: 1 MiB. Of more sessions it reports the smallest digests, which are a random sample and
the same one in every task, so that tasks remain comparable."""


class SessionDigests:
    """Collects the sessions of one task.

    Args:
        kept: the largest number of digests.
    """

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._found: set[int] = set()

    def add(self, path: str, session_ids: Iterable[str]) -> None:
        """Add sessions of one queue or topic."""
        prefix = blake2b(f"{path.casefold()}\n".encode(), digest_size=DIGEST_BYTES)
        for session_id in session_ids:
            digest = prefix.copy()
            digest.update(session_id.encode())
            self._found.add(int.from_bytes(digest.digest()))
        if len(self._found) > 2 * self._kept:
            self._found = set(self._smallest())

    def packed(self) -> bytes:
        """Return the digests one after the other."""
        return array("Q", self._smallest()).tobytes()

    def _smallest(self) -> list[int]:
        return sorted(self._found)[: self._kept]


def split_sessions(tasks: Iterable[bytes]) -> int:
    """Return how many sessions were in several tasks; a lower bound if a task had more than it reports.

    Args:
        tasks: the packed digests of each task.
    """
    arrays = [pa.Array.from_buffers(pa.uint64(), len(one) // DIGEST_BYTES, [None, pa.py_buffer(one)]) for one in tasks]
    if not arrays:
        return 0
    counts = pc.value_counts(pa.concat_arrays(arrays)).field("counts")
    return int(pc.sum(pc.greater(counts, 1)).as_py() or 0)
