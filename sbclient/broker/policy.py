"""What an entity's description says, in the units its fragments work with."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(slots=True)
class Policy:
    """One object for all fragments of an entity, so that an update reaches them all at once.

    Attributes:
        lock_duration_s: for messages and sessions.
        max_delivery_count: failed deliveries after which a message is dead-lettered.
        default_life_s: the life of a message that names none, and the longest there is; infinity = unlimited.
        dead_letters_expired: whether an expired message is dead-lettered, or dropped.
        requires_session: whether messages are received by session only.
        requires_duplicate_detection: whether copies within `duplicate_window_s` are dropped.
        max_size_bytes: of one fragment, with its dead letters and session states.
        max_message_size_bytes: of one message, and of one session's state.
    """

    lock_duration_s: float = 60.0
    max_delivery_count: int = 10
    default_life_s: float = math.inf
    dead_letters_expired: bool = False
    requires_session: bool = False
    requires_duplicate_detection: bool = False
    duplicate_window_s: float = 600.0
    max_size_bytes: int = 2**30
    max_message_size_bytes: int = 2**18


class Usage:
    """The bytes that one fragment holds, with all that lies behind it."""

    __slots__ = ("size_bytes",)

    def __init__(self) -> None:
        self.size_bytes = 0
