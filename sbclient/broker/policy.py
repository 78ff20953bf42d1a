"""The settings of an entity in the units of its fragments: seconds and bytes."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(slots=True)
class Policy:
    """The settings of an entity; its fragments share one object, so that an update affects all at once.

    Attributes:
        lock_duration_s: for messages and sessions.
        max_delivery_count: failed deliveries after which a message is dead-lettered.
        default_ttl_s: the default and the maximum time to live; infinity = unlimited.
        dead_letters_expired: whether an expired message is dead-lettered, or dropped.
        requires_session: whether messages are received only by session.
        requires_duplicate_detection: whether copies within `duplicate_window_s` are dropped.
        max_size_bytes: of one fragment, with its dead letters and session states.
        max_message_size_bytes: of one message, and of one session's state.
    """

    lock_duration_s: float = 60.0
    max_delivery_count: int = 10
    default_ttl_s: float = math.inf
    dead_letters_expired: bool = False
    requires_session: bool = False
    requires_duplicate_detection: bool = False
    duplicate_window_s: float = 600.0
    max_size_bytes: int = 2**30
    max_message_size_bytes: int = 2**18


class Usage:
    """The bytes in one fragment, including its sub-queues.

    Attributes:
        size_bytes: of all messages and session states.
        refused_bytes: the size of the largest transfer that found no room since the last accepted ping.
    """

    __slots__ = ("refused_bytes", "size_bytes")

    def __init__(self) -> None:
        self.size_bytes = 0
        self.refused_bytes = 0
