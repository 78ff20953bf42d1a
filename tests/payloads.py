"""The encoded form of messages, as tests write it to a connection or measure it."""

from __future__ import annotations

from collections.abc import Sequence

from sbclient.amqp import EncodedBatch, EncodedMessage, encode_message
from sbclient.amqp.batch import encode_section
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
