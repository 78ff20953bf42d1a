"""Encode deliveries: the sender's bare message, unchanged, after a header and annotations of the broker.

Source: Service Bus' documented annotations.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final, NamedTuple
from uuid import UUID

from sbclient.amqp import servicebus
from sbclient.amqp.decimals import service_decimal
from sbclient.amqp.decode import skip_value
from sbclient.amqp.encode import (
    encode_string,
    encode_symbol,
    encode_timestamp,
    encode_uint,
    list_of,
    sized_list,
    sized_map,
)
from sbclient.amqp.encoded import MAX_TTL_MS, encode_entries, senders_entries
from sbclient.amqp.errors import WireError
from sbclient.amqp.sections import (
    APPLICATION_PROPERTIES,
    DELIVERY_ANNOTATIONS,
    FOOTER,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    Sections,
    list_fields,
    map_entries,
    rewritten_map,
)
from sbclient.message import (
    PropertyValue,
    ServiceBusMessageState,
)


class BrokerAnnotations(NamedTuple):
    """The broker's properties of a delivered message. Timestamps are milliseconds since 1970.

    Attributes:
        sequence_number: 64 bits, signed.
        enqueued_at_ms: the time at which it was stored.
        delivery_count: failed deliveries so far, 0 at first.
        ttl_ms: the time to live, None for no limit.
        locked_until_ms: the end of its lock or of that of its session; None for a peeked or deleted message.
        lock_token: None for a peeked or deleted message.
        enqueued_sequence_number: the number in the entity where it was first stored, None if it was not moved.
        state: active, deferred or scheduled.
        dead_letter_source: the entity from which it was dead-lettered.
        added_properties: application properties that the broker adds, such as a dead-letter reason.
        is_ttl_cut: whether `ttl_ms` is less than what the sender wrote, also into the absolute expiry.
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
    is_ttl_cut: bool = False


class _Shared(NamedTuple):
    """The parts that all deliveries of a message share.

    Attributes:
        header: the encoded durable flag and priority.
        first_acquirer: the encoded field of the header.
        delivery_annotations: the encoded entries of the sender.
        annotations: the same of the message annotations.
        properties: the section with its descriptor.
        application_properties: the encoded map.
        bare: where properties, application properties, body and footer stand in the payload, if they are sent as they
            are.
    """

    header: bytes
    first_acquirer: bytes
    delivery_annotations: list[bytes]
    annotations: list[bytes]
    properties: bytes
    application_properties: bytes
    bare: slice | None

    def __repr__(self) -> str:
        """Without the content of the message."""
        return f"_Shared({len(self.application_properties)} bytes of application properties)"


_pack_long: Final = struct.Struct(">q").pack
_pack_fixed: Final = struct.Struct(">22sq24sq").pack
_ENQUEUED: Final = encode_symbol(servicebus.ENQUEUED_TIME) + b"\x83"
_SEQUENCE: Final = encode_symbol(servicebus.SEQUENCE_NUMBER) + b"\x81"
_LOCKED: Final = encode_symbol(servicebus.LOCKED_UNTIL) + b"\x83"
_ENQUEUE_SEQUENCE: Final = encode_symbol(servicebus.ENQUEUE_SEQUENCE_NUMBER) + b"\x81"
_STATE: Final = encode_symbol(servicebus.MESSAGE_STATE) + b"\x54"
_SOURCE: Final = encode_symbol(servicebus.DEAD_LETTER_SOURCE)
_TOKEN: Final = encode_symbol(servicebus.LOCK_TOKEN) + b"\x98"
_ONLY_TOKEN: Final = sized_map(_TOKEN + bytes(16), 2)[:-16]
_EMPTY_MAP: Final = sized_map(b"", 0)


def encode_delivery(sections: Sections, broker: BrokerAnnotations, *, without_body: bool = False) -> bytes:
    """Encode a stored message as the payload of a transfer, or as the `message` of a management reply.

    Args:
        without_body: leave out the body.

    Raises:
        WireError: the sender's header or annotations are malformed; `EncodedMessage.of` rejects such messages earlier.
    """
    is_whole = not (without_body or broker.added_properties or broker.is_ttl_cut)
    shared: _Shared | None = sections.remembered
    if shared is None:
        if is_whole and sections.is_bare and _DECIMAL128 not in sections.raw_value(APPLICATION_PROPERTIES):
            shared = _BARE
        else:
            shared = sections.remembered = _shared_parts(sections)
    enqueued_at_ms, ttl_ms = broker.enqueued_at_ms, broker.ttl_ms
    header = shared.header
    header += b"\x40" if ttl_ms is None else encode_uint(min(ttl_ms, MAX_TTL_MS))
    header += shared.first_acquirer + encode_uint(broker.delivery_count)
    annotations = b"".join(shared.annotations)
    annotations += _pack_fixed(_ENQUEUED, enqueued_at_ms, _SEQUENCE, broker.sequence_number)
    count = 2 * len(shared.annotations) + 4
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
    bare = shared.bare if is_whole else None
    return b"".join(
        (
            b"\x00\x53\x70",
            sized_list(header, 5),
            b"\x00\x53\x71",
            _delivery_annotations(shared, broker.lock_token),
            b"\x00\x53\x72",
            sized_map(annotations, count),
            _joined_sections(sections, shared, broker, without_body) if bare is None else sections.payload[bare],
        )
    )


_BARE: Final = _Shared(b"\x40\x40", b"\x40", [], [], b"", b"", slice(None))
"""Of a message that consists of the bare message."""


def _delivery_annotations(shared: _Shared, token: UUID | None) -> bytes:
    """The map of delivery annotations. The service sends an empty one with a message that has none."""
    sent = shared.delivery_annotations
    if not sent:
        return _EMPTY_MAP if token is None else _ONLY_TOKEN + token.bytes
    lock = [] if token is None else [_TOKEN + token.bytes]
    return sized_map(b"".join(lock + sent), 2 * len(lock + sent))


def _shared_parts(sections: Sections) -> _Shared:
    raw_header = sections.raw_value(HEADER)
    durable, priority, _, first_acquirer = ((list_fields(raw_header) if raw_header else []) + _NULLS)[:4]
    sent = application_properties = sections.raw_value(APPLICATION_PROPERTIES)
    if _DECIMAL128 in sent:
        application_properties = _with_service_decimals(sent)
    return _Shared(
        durable + priority,
        first_acquirer,
        senders_entries(sections.raw_value(DELIVERY_ANNOTATIONS)),
        senders_entries(sections.raw_value(MESSAGE_ANNOTATIONS)),
        sections.raw(PROPERTIES),
        application_properties,
        sections.bare if application_properties is sent else None,
    )


_NULLS: Final = [b"\x40"] * 4
_EXPIRES: Final = 8
_CREATED: Final = 9
"""The places of absolute-expiry-time and creation-time among the properties."""

_TIMESTAMP: Final = 0x83
_DECIMAL128: Final = b"\x94"


def _with_service_decimals(properties: bytes) -> bytes:
    """The encoded map with its decimals in the form of the service; a malformed one is unchanged."""
    entries = []
    is_changed = False
    try:
        for _, entry in map_entries(properties):
            at = skip_value(entry, 0) + 1
            if entry[at - 1 : at] == _DECIMAL128:
                changed = entry[:at] + service_decimal(entry[at:])
                is_changed = is_changed or changed != entry
                entry = changed
            entries.append(entry)
    except WireError:
        return properties
    return sized_map(b"".join(entries), 2 * len(entries)) if is_changed else properties


def _joined_sections(sections: Sections, shared: _Shared, broker: BrokerAnnotations, without_body: bool) -> bytes:
    """Join the sections of the bare message, because some are changed or left out, or others lie between them."""
    properties = shared.application_properties
    added = broker.added_properties
    if added:
        encoded, count = encode_entries(added)
        properties = rewritten_map(properties, added.__contains__, encoded, count)
    described = b"\x00\x53\x74" + properties if properties else b""
    body = b"" if without_body else sections.raw_body
    fields = _with_expiry(shared.properties, broker.ttl_ms or 0) if broker.is_ttl_cut else shared.properties
    return b"".join((fields, described, body, sections.raw(FOOTER)))


def _with_expiry(properties: bytes, ttl_ms: int) -> bytes:
    """The section of properties with an absolute expiry that long after the creation, if it has both.

    Clients for .NET read the time to live from these two.
    """
    fields = list_fields(properties[3:]) if properties[:3] == b"\x00\x53\x73" else []
    if len(fields) <= _CREATED or not (fields[_EXPIRES][0] == fields[_CREATED][0] == _TIMESTAMP):
        return properties
    created_at_ms = int.from_bytes(fields[_CREATED][1:], "big", signed=True)
    fields[_EXPIRES] = encode_timestamp(created_at_ms + ttl_ms)
    return properties[:3] + list_of(fields)
