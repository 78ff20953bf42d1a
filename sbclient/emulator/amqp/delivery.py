"""Encodes stored messages for delivery to a client.

The sections of the sender are sent as the bytes that arrived; the broker replaces header and annotations.
"""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Final, NamedTuple
from uuid import UUID

from sbclient.amqp import BrokerAnnotations, encode_delivery
from sbclient.broker.entry import Entry, uuid_of
from sbclient.broker.session import SessionLock

_MILLISECOND: Final = timedelta(milliseconds=1)


class EncodedDelivery(NamedTuple):
    """An encoded message for a client.

    Attributes:
        payload: with the header and annotations of the broker.
        token: of the lock; None for a message that is deleted or peeked.
    """

    payload: bytes
    token: UUID | None

    def __repr__(self) -> str:
        """Without the message."""
        return f"EncodedDelivery({len(self.payload)} bytes, token={self.token!r})"


def encode_entry(
    entry: Entry, *, lock: SessionLock | None = None, is_peeked: bool = False, without_body: bool = False
) -> EncodedDelivery:
    """Encode an entry.

    Args:
        lock: of the session that it was received from.
        is_peeked: leave out the lock that a receiver may have.
        without_body: leave out the body.
    """
    enqueued_at_ms = _milliseconds(entry.enqueued_at)
    token = uuid_of(entry.token) if entry.token and not is_peeked else None
    locked_until_ms = None
    if token is not None:
        locked_until = entry.locked_until if lock is None else lock.locked_until
        locked_until_ms = None if locked_until == math.inf else _milliseconds(locked_until)
    ttl_ms, is_ttl_cut = _time_to_live_ms(entry)
    annotations = BrokerAnnotations(
        entry.number,
        enqueued_at_ms,
        entry.delivery_count,
        ttl_ms,
        locked_until_ms,
        token,
        entry.first_number,
        entry.shown_state,
        entry.dead_letter_source,
        entry.added_properties,
        is_ttl_cut,
    )
    return EncodedDelivery(encode_delivery(entry.content, annotations, without_body=without_body), token)


def tag_of(token: UUID) -> bytes:
    """Return the lock token in the byte order of .NET, faster than `token.bytes_le`."""
    raw = token.int.to_bytes(16, "big")
    return raw[3::-1] + raw[5:3:-1] + raw[7:5:-1] + raw[8:]


def _milliseconds(at: float) -> int:
    """Whole milliseconds, rounded down, with a tolerance for the rounding of floats."""
    return math.floor(at * 1000 + 1e-4)


def _time_to_live_ms(entry: Entry) -> tuple[int | None, bool]:
    """The time to live for the header, as sent unless the entity limits it; and whether it does."""
    if entry.expires_at == math.inf:
        return entry.content.header.ttl, False
    left_ms = round((entry.expires_at - entry.enqueued_at) * 1000)
    requested = entry.content.time_to_live
    if requested is not None and requested // _MILLISECOND <= left_ms:
        return entry.content.header.ttl, False
    return left_ms, True
