"""Encodes stored messages for delivery to a client.

The sections of the sender are sent as the bytes that arrived; the broker replaces header and annotations.
"""

from __future__ import annotations

import math
import struct
from datetime import timedelta
from typing import Final, NamedTuple
from uuid import UUID

from sbclient.amqp import BrokerAnnotations, encode_delivery
from sbclient.broker.entry import Entry, uuid_of
from sbclient.broker.session import SessionLock

_unpack_token: Final = struct.Struct(">IHH8s").unpack
_pack_tag: Final = struct.Struct("<IHH8s").pack
_MILLISECOND: Final = timedelta(milliseconds=1)
_ROUNDING: Final = 1e-4
"""Added to milliseconds before they are rounded down, because floats are rounded."""


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
    token = locked_until_ms = None
    if entry.token and not is_peeked:
        token = uuid_of(entry.token)
        locked_until = entry.locked_until if lock is None else lock.locked_until
        locked_until_ms = None if locked_until == math.inf else int(locked_until * 1000 + _ROUNDING)
    ttl_ms, is_ttl_cut = _time_to_live_ms(entry)
    annotations = BrokerAnnotations(
        entry.number,
        int(entry.enqueued_at * 1000 + _ROUNDING),
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
    return _pack_tag(*_unpack_token(token.int.to_bytes(16, "big")))


def _time_to_live_ms(entry: Entry) -> tuple[int | None, bool]:
    """The time to live for the header, as sent unless the entity limits it; and whether it does."""
    if entry.expires_at == math.inf:
        return entry.content.header.ttl, False
    left_ms = round((entry.expires_at - entry.enqueued_at) * 1000)
    requested = entry.content.time_to_live
    if requested is not None and requested // _MILLISECOND <= left_ms:
        return entry.content.header.ttl, False
    return left_ms, True
