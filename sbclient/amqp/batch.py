"""Batches: several messages in one transfer, of message format 0x80013700, each encoded in a data section.

The sections before them hold the partition key, message id and session id of the first message, which select the
fragment for all. The length equals `rules.size.batch_size`, which documents the layout.
"""

from __future__ import annotations

from collections.abc import Sequence

from sbclient.amqp.encode import encode_binary, encode_map
from sbclient.amqp.errors import INVALID_FIELD, WireError
from sbclient.amqp.fields import encode_composite
from sbclient.amqp.message import VIA_PARTITION_KEY_ANNOTATION, encode_message
from sbclient.amqp.sections import Properties, Sections
from sbclient.message import ServiceBusMessage
from sbclient.rules.size import PARTITION_KEY_ANNOTATION


def join_batch(messages: Sequence[ServiceBusMessage], via_partition_key: str | None = None) -> bytes:
    """Encode messages as one payload, which is empty for no messages.

    Args:
        via_partition_key: see `encode_message`.

    Raises:
        EncodeError: a message has a value without an AMQP type.
    """
    if not messages:
        return b""
    first = messages[0]
    parts: list[bytes] = []
    keys = {PARTITION_KEY_ANNOTATION: first.partition_key, VIA_PARTITION_KEY_ANNOTATION: via_partition_key}
    if first.partition_key is not None or via_partition_key is not None:
        parts.append(b"\x00\x53\x72" + encode_map({name: key for name, key in keys.items() if key is not None}))
    if first.message_id is not None or first.session_id is not None:
        parts.append(encode_composite(Properties(message_id=first.message_id, group_id=first.session_id)))
    parts.extend(b"\x00\x53\x75" + encode_binary(encode_message(message, via_partition_key)) for message in messages)
    return b"".join(parts)


def split_batch(payload: bytes) -> list[bytes]:
    """Return the encoded messages of a batch, at least one.

    Raises:
        WireError: the payload is malformed, or has no message. The messages themselves are not decoded.
    """
    messages = Sections(payload).data()
    if not messages:
        raise WireError(INVALID_FIELD, "the batch has no message: send one data section for each message")
    return messages
