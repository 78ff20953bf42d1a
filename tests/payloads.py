"""The encoded form of messages, as tests write it to a connection or measure it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sbclient.amqp import EncodedBatch, EncodedMessage, Header, Properties, encode_message
from sbclient.amqp.encode import encode_binary, encode_map, encode_string, encode_value
from sbclient.amqp.fields import encode_composite
from sbclient.amqp.sections import encode_any
from sbclient.message import ServiceBusMessage


def encoded(message: ServiceBusMessage | EncodedMessage) -> EncodedMessage:
    """Return a message in its encoded form."""
    return message if isinstance(message, EncodedMessage) else encode_message(message)


def payload_of(message: ServiceBusMessage | EncodedMessage, *, created_at_ms: int = 0) -> bytes:
    """Return the bytes of a message."""
    if isinstance(message, EncodedMessage):
        return message.payload
    return encode_message(message, now=lambda: created_at_ms / 1000).payload


def batch_of(messages: Sequence[ServiceBusMessage | EncodedMessage]) -> EncodedBatch:
    """Return messages as one transfer."""
    return EncodedBatch([encoded(message) for message in messages])


def size_of(message: ServiceBusMessage) -> int:
    """Return the encoded size of a message."""
    return len(payload_of(message))


def batch_size_of(messages: Sequence[ServiceBusMessage]) -> int:
    """Return the encoded size of messages in a batch, also of one."""
    encoded = [encode_message(message) for message in messages]
    filler = encode_message(ServiceBusMessage(None))  # a single message would not be sent as a batch
    return len(EncodedBatch([*encoded, filler]).payload) - len(encode_section(filler.payload))


def encode_section(data: bytes) -> bytes:
    """Return a data section; a batch has one for each encoded message."""
    return b"\x00\x53\x75" + encode_binary(data)


def encode_sections(
    *,
    header: Header | None = None,
    delivery_annotations: Mapping[str, Any] | None = None,
    message_annotations: Mapping[str, Any] | None = None,
    properties: Properties | None = None,
    application_properties: Mapping[str, Any] | None = None,
    data: Sequence[bytes] = (),
    sequences: Sequence[Sequence[Any]] = (),
    value: Any = ...,
    footer: Mapping[str, Any] | None = None,
) -> bytes:
    """Encode a message from its sections. A `value` of None is encoded as null; the default is no value.

    Raises:
        EncodeError: a value has no AMQP type.
    """
    parts: list[bytes] = []
    if header is not None:
        parts.append(encode_composite(header))
    if delivery_annotations:
        parts.append(b"\x00\x53\x71" + encode_map(delivery_annotations))
    if message_annotations:
        parts.append(b"\x00\x53\x72" + encode_map(message_annotations))
    if properties is not None:
        parts.append(encode_composite(properties))
    if application_properties:
        parts.append(b"\x00\x53\x74" + encode_map(application_properties, encode_string))
    parts.extend(map(encode_section, data))
    parts.extend(b"\x00\x53\x76" + encode_value(list(items)) for items in sequences)
    if value is not ...:
        parts.append(b"\x00\x53\x77" + encode_any(value))
    if footer:
        parts.append(b"\x00\x53\x78" + encode_map(footer))
    return b"".join(parts)
