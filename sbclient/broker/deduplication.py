"""Duplicate detection: drop a message whose copy arrived within a time window.

Rules (source: duplicate detection and partitioned entities, documented; the second is reported by users):

1. On a plain entity only the message id is compared.
2. On a partitioned one the message id together with the session id or partition key: the same id under two keys is two
   messages.
3. An id is remembered for the window from its first arrival; a duplicate does not renew it. It stays remembered when
   its message is received, expires or is cancelled.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeAlias

from sbclient.amqp import EncodedMessage

Identity: TypeAlias = str | tuple[str, str]


def identity_of(message: EncodedMessage, *, is_partitioned: bool) -> Identity | None:
    """The identity that copies of a message share; None for a message without an id, which is never a duplicate."""
    message_id = message.message_id
    if message_id is None or not is_partitioned:
        return message_id
    key = message.key
    return message_id if key is None else (message_id, key)


class DuplicateWindow:
    """The identities of one fragment, in order of arrival; every operation costs O(1)."""

    __slots__ = ("_seen_at",)

    def __init__(self) -> None:
        self._seen_at: OrderedDict[Identity, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._seen_at)

    def is_known(self, identity: Identity, now: float, window_s: float) -> bool:
        """Whether a copy arrived within the last `window_s` seconds."""
        seen_at = self._seen_at
        while seen_at:
            oldest = next(iter(seen_at.items()))
            if oldest[1] + window_s > now:
                break
            seen_at.popitem(last=False)
        return identity in seen_at

    def remember(self, identity: Identity, now: float) -> None:
        """Add an identity at its first arrival."""
        self._seen_at[identity] = now
