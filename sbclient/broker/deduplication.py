"""Duplicate detection: drop a message whose copy arrived within a time window.

Rules (source: duplicate detection and partitioned entities, documented; the second is reported by users):

1. On a plain entity only the message id is compared.
2. On a partitioned one the message id together with the session id or partition key: the same id under two keys is two
   messages.
3. An id is remembered for the window from its first arrival; a duplicate does not renew it. It stays remembered when
   its message is received, expires or is cancelled.
"""

from __future__ import annotations

from array import array
from collections import deque
from typing import TypeAlias

from sbclient.amqp import EncodedMessage

Identity: TypeAlias = str | bytes
"""A message id, or the bytes of a message id with a key, which take less memory than a pair."""


def identity_of(message: EncodedMessage, *, is_partitioned: bool) -> Identity | None:
    """The identity that copies of a message share; None for a message without an id, which is never a duplicate."""
    message_id = message.message_id
    if message_id is None or not is_partitioned:
        return message_id
    key = message.key
    return message_id if key is None else identity_with_key(message_id, key)


def identity_with_key(message_id: str, key: str) -> Identity:
    """The identity of a message with a session id or partition key on a partitioned entity."""
    return f"{chr(len(message_id))}{message_id}{key}".encode()


class DuplicateWindow:
    """The identities of one fragment, in order of arrival; every operation costs O(1)."""

    __slots__ = ("_forgotten", "_identities", "_in_order", "_seen_at")

    def __init__(self) -> None:
        self._identities: dict[Identity, None] = {}
        self._in_order: deque[Identity] = deque()
        self._seen_at = array("d")
        self._forgotten = 0  # so many at the beginning of `_seen_at`

    def __len__(self) -> int:
        return len(self._in_order)

    def is_known(self, identity: Identity, now: float, window_s: float) -> bool:
        """Whether a copy arrived within the last `window_s` seconds."""
        while self._in_order and self._seen_at[self._forgotten] + window_s <= now:
            self._identities.pop(self._in_order.popleft(), None)
            self._forgotten += 1
            if self._forgotten > len(self._in_order):
                del self._seen_at[: self._forgotten]
                self._forgotten = 0
        return identity in self._identities

    def remember(self, identity: Identity, now: float) -> None:
        """Add an identity that is not known."""
        self._identities[identity] = None
        self._in_order.append(identity)
        self._seen_at.append(now)
