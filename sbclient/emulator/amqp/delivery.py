"""What a client is sent for a stored message: the bytes, and the token that names the delivery.

The sender's own sections go out as the bytes that came in; header and annotations are the broker's. What came in some
other way than over AMQP is encoded first.
"""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Final, NamedTuple
from uuid import UUID

from sbclient.amqp import BrokerAnnotations, Sections, WireMessage, encode_delivery, encode_message
from sbclient.broker.entry import Entry
from sbclient.message import DEAD_LETTER_DESCRIPTION, DEAD_LETTER_REASON, PropertyValue

_MILLISECOND: Final = timedelta(milliseconds=1)


class EncodedDelivery(NamedTuple):
    """A message on its way to a client.

    Attributes:
        payload: encoded, with the broker's header and annotations.
        token: of its lock; None for one that is deleted or only looked at.
    """

    payload: bytes
    token: UUID | None

    def __repr__(self) -> str:
        """Without the message."""
        return f"EncodedDelivery({len(self.payload)} bytes, token={self.token!r})"


def encode_entry(entry: Entry, *, is_peeked: bool = False) -> EncodedDelivery:
    """What a client is given for an entry.

    Args:
        is_peeked: without the lock, if somebody holds it.
    """
    content = entry.content
    sections = content.sections if isinstance(content, WireMessage) else Sections(encode_message(content))
    token = UUID(int=entry.token) if entry.token and not is_peeked else None
    locked_until_ms = None
    if token is not None and entry.locked_until < math.inf:
        locked_until_ms = _milliseconds(entry.locked_until)
    annotations = BrokerAnnotations(
        entry.number,
        _milliseconds(entry.enqueued_at),
        entry.delivery_count,
        _life_ms(entry),
        locked_until_ms,
        token,
        entry.original_number,
        entry.state,
        entry.dead_letter_source,
        _added(entry),
    )
    return EncodedDelivery(encode_delivery(sections, annotations), token)


def _milliseconds(at: float) -> int:
    """Whole milliseconds, rounded down, but not below the one that is meant where a float falls short of it."""
    return math.floor(at * 1000 + 1e-4)


def _life_ms(entry: Entry) -> int | None:
    """The life that the sender gave, or what the entity has left of it."""
    asked = entry.content.time_to_live
    asked_ms = None if asked is None else asked // _MILLISECOND
    if entry.expires_at == math.inf:
        return asked_ms
    left_ms = round((entry.expires_at - entry.enqueued_at) * 1000)
    return left_ms if asked_ms is None else min(asked_ms, left_ms)


def _added(entry: Entry) -> dict[str, PropertyValue] | None:
    if entry.dead_letter_reason is None and entry.dead_letter_description is None:
        return None
    added = {DEAD_LETTER_REASON: entry.dead_letter_reason, DEAD_LETTER_DESCRIPTION: entry.dead_letter_description}
    return {name: text for name, text in added.items() if text is not None}
