"""What a peer may make this side hold, and the size of what was decoded."""

from __future__ import annotations

from collections.abc import Mapping
from sys import getsizeof
from typing import Any, NamedTuple


class Limits(NamedTuple):
    """Limits on the memory that one peer can use. They may change while a connection is open.

    Attributes:
        max_frame_bytes: the largest frame that is accepted.
        max_sessions: sessions, including those that one side has ended.
        max_links: links of all sessions, including those that one side has detached.
        max_retained_bytes: the size in memory of the open and of the attaches of all links.
        max_partial_bytes: bytes of incomplete messages on all links.
    """

    max_frame_bytes: int
    max_sessions: int
    max_links: int
    max_retained_bytes: int
    max_partial_bytes: int


def decoded_bytes(value: Any) -> int:
    """The size of a decoded value in memory, with everything in it."""
    size = getsizeof(value)
    if isinstance(value, Mapping):
        return size + sum(decoded_bytes(key) + decoded_bytes(each) for key, each in value.items())
    if isinstance(value, list | tuple):
        return size + sum(map(decoded_bytes, value))
    return size
