"""Encode deliveries: the sender's bare message, unchanged, after a header and annotations of the broker.

Source: `sbclient.rules.size` for the sender's part; Service Bus' documented annotations for the broker's.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from datetime import timedelta
from typing import Final, NamedTuple
from uuid import UUID

from sbclient.amqp.encode import (
    encode_boolean,
    encode_string,
    encode_symbol,
    encode_ubyte,
    encode_uint,
    sized_list,
    sized_map,
)
from sbclient.amqp.message import encode_entries, encode_message
from sbclient.amqp.sections import (
    APPLICATION_PROPERTIES,
    FOOTER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    Sections,
    map_entries,
    rewritten_map,
)
from sbclient.amqp.types import milliseconds_of
from sbclient.message import (
    PropertyValue,
    ServiceBusMessageState,
    ServiceBusReceivedMessage,
)
from sbclient.rules.size import MAX_TTL_MS

ENQUEUED_TIME_ANNOTATION: Final = "x-opt-enqueued-time"
SEQUENCE_NUMBER_ANNOTATION: Final = "x-opt-sequence-number"
ENQUEUE_SEQUENCE_NUMBER_ANNOTATION: Final = "x-opt-enqueue-sequence-number"
LOCKED_UNTIL_ANNOTATION: Final = "x-opt-locked-until"
DEAD_LETTER_SOURCE_ANNOTATION: Final = "x-opt-deadletter-source"
MESSAGE_STATE_ANNOTATION: Final = "x-opt-message-state"
LOCK_TOKEN_ANNOTATION: Final = "x-opt-lock-token"

_OURS: Final = frozenset(
    {
        ENQUEUED_TIME_ANNOTATION,
        SEQUENCE_NUMBER_ANNOTATION,
        ENQUEUE_SEQUENCE_NUMBER_ANNOTATION,
        LOCKED_UNTIL_ANNOTATION,
        DEAD_LETTER_SOURCE_ANNOTATION,
        MESSAGE_STATE_ANNOTATION,
        LOCK_TOKEN_ANNOTATION,
    }
)
"""The annotations that only a broker may set; those of a sender are dropped."""


class BrokerAnnotations(NamedTuple):
    """The broker's properties of a delivered message. Timestamps are milliseconds since 1970.

    Attributes:
        sequence_number: 64 bits, signed.
        enqueued_at_ms: the time at which it was stored.
        delivery_count: failed deliveries so far, 0 at first.
        ttl_ms: the time to live, None for no limit.
        locked_until_ms: None for a peeked, deleted or session message.
        lock_token: None for a peeked or deleted message.
        enqueued_sequence_number: the number in the entity where it was first stored, None if it was not moved.
        state: active, deferred or scheduled.
        dead_letter_source: the entity from which it was dead-lettered.
        added_properties: application properties that the broker adds, such as a dead-letter reason.
    """

    sequence_number: int
    enqueued_at_ms: int
    delivery_count: int = 0
    ttl_ms: int | None = None
    locked_until_ms: int | None = None
    lock_token: UUID | None = None
    enqueued_sequence_number: int | None = None
    state: int = ServiceBusMessageState.ACTIVE
    dead_letter_source: str | None = None
    added_properties: Mapping[str, PropertyValue] | None = None


class _Shared(NamedTuple):
    """The parts that all deliveries of a message share; the bare message is a slice of its payload."""

    header: bytes
    annotations: bytes
    annotation_count: int
    bare: slice | None


_pack_long: Final = struct.Struct(">q").pack
_pack_fixed: Final = struct.Struct(">22sq24sq").pack
_ENQUEUED: Final = encode_symbol(ENQUEUED_TIME_ANNOTATION) + b"\x83"
_SEQUENCE: Final = encode_symbol(SEQUENCE_NUMBER_ANNOTATION) + b"\x81"
_LOCKED: Final = encode_symbol(LOCKED_UNTIL_ANNOTATION) + b"\x83"
_ENQUEUE_SEQUENCE: Final = encode_symbol(ENQUEUE_SEQUENCE_NUMBER_ANNOTATION) + b"\x81"
_STATE: Final = encode_symbol(MESSAGE_STATE_ANNOTATION) + b"\x54"
_SOURCE: Final = encode_symbol(DEAD_LETTER_SOURCE_ANNOTATION)
_TOKEN: Final = b"\x00\x53\x71" + sized_map(encode_symbol(LOCK_TOKEN_ANNOTATION) + b"\x98" + bytes(16), 2)[:-16]


def encode_delivery(sections: Sections, broker: BrokerAnnotations) -> bytes:
    """Encode a stored message as the payload of a transfer, or as the `message` of a management reply.

    Raises:
        WireError: the sender's header or annotations are malformed; `WireMessage.of` rejects such messages earlier.
    """
    shared: _Shared | None = sections.remembered
    if shared is None:
        shared = sections.remembered = _shared_parts(sections)
    enqueued_at_ms, ttl_ms = broker.enqueued_at_ms, broker.ttl_ms
    header = shared.header
    header += b"\x40" if ttl_ms is None else encode_uint(min(ttl_ms, MAX_TTL_MS))
    header += b"\x42" + encode_uint(broker.delivery_count)
    annotations = shared.annotations + _pack_fixed(_ENQUEUED, enqueued_at_ms, _SEQUENCE, broker.sequence_number)
    count = shared.annotation_count + 4
    if broker.locked_until_ms is not None:
        annotations += _LOCKED + _pack_long(broker.locked_until_ms)
        count += 2
    if broker.enqueued_sequence_number is not None:
        annotations += _ENQUEUE_SEQUENCE + _pack_long(broker.enqueued_sequence_number)
        count += 2
    if broker.state:
        annotations += _STATE + bytes((broker.state,))
        count += 2
    if broker.dead_letter_source is not None:
        annotations += _SOURCE + encode_string(broker.dead_letter_source)
        count += 2
    token = broker.lock_token
    bare = shared.bare
    return b"".join(
        (
            b"\x00\x53\x70",
            sized_list(header, 5),
            b"" if token is None else _TOKEN + token.bytes,
            b"\x00\x53\x72",
            sized_map(annotations, count),
            sections.payload[bare] if bare and not broker.added_properties else _joined_sections(sections, broker),
        )
    )


def _shared_parts(sections: Sections) -> _Shared:
    sent = sections.header
    header = b"\x40" if not sent.durable else encode_boolean(True)
    header += b"\x40" if sent.priority == _DEFAULT_PRIORITY else encode_ubyte(sent.priority)
    annotations = sections.raw_value(MESSAGE_ANNOTATIONS)
    entries = [entry for name, entry in map_entries(annotations) if name not in _OURS] if annotations else []
    return _Shared(header, b"".join(entries), 2 * len(entries), sections.bare)


_DEFAULT_PRIORITY: Final = 4


def _joined_sections(sections: Sections, broker: BrokerAnnotations) -> bytes:
    """Join the sections of the bare message, because properties are added or other sections lie between them."""
    properties = sections.raw(APPLICATION_PROPERTIES)
    added = broker.added_properties
    if added:
        encoded, count = encode_entries(added)
        raw = sections.raw_value(APPLICATION_PROPERTIES)
        properties = b"\x00\x53\x74" + rewritten_map(raw, added.__contains__, encoded, count)
    return b"".join((sections.raw(PROPERTIES), properties, sections.raw_body, sections.raw(FOOTER)))


def encode_received(message: ServiceBusReceivedMessage) -> bytes:
    """Encode a received message again as the broker would deliver it; AMQP types are chosen from the Python types.

    Raises:
        EncodeError: a property or the body has a value without an AMQP type.
    """
    locked_until = message.locked_until_utc
    time_to_live = message.time_to_live
    return encode_delivery(
        Sections(encode_message(message)),
        BrokerAnnotations(
            sequence_number=message.sequence_number,
            enqueued_at_ms=milliseconds_of(message.enqueued_time_utc),
            delivery_count=message.delivery_count,
            ttl_ms=None if time_to_live is None else time_to_live // _MILLISECOND,
            locked_until_ms=None if locked_until is None else milliseconds_of(locked_until),
            lock_token=message.lock_token,
            enqueued_sequence_number=message.enqueued_sequence_number,
            state=message.state,
            dead_letter_source=message.dead_letter_source,
        ),
    )


_MILLISECOND: Final = timedelta(milliseconds=1)
