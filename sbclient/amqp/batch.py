"""Several messages in one transfer, of message format 0x80013700: each is a data section that holds its encoding.

In front stand the first message's partition key, message id and session id, by which the broker places all of them.
The bytes are exactly as many as `rules.size.batch_size` says, which states the layout.
"""

from __future__ import annotations

from collections.abc import Sequence

from sbclient.amqp.encode import encode_binary, encode_map
from sbclient.amqp.errors import INVALID_FIELD, WireError
from sbclient.amqp.fields import encode_composite
from sbclient.amqp.message import encode_message
from sbclient.amqp.sections import Properties, Sections
from sbclient.message import ServiceBusMessage
from sbclient.rules.size import PARTITION_KEY_ANNOTATION


def join_batch(messages: Sequence[ServiceBusMessage]) -> bytes:
    """The payload that holds all of `messages`, empty for none.

    Raises:
        EncodeError: one of them cannot be said in AMQP.
    """
    if not messages:
        return b""
    first = messages[0]
    parts: list[bytes] = []
    if first.partition_key is not None:
        parts.append(b"\x00\x53\x72" + encode_map({PARTITION_KEY_ANNOTATION: first.partition_key}))
    if first.message_id is not None or first.session_id is not None:
        parts.append(encode_composite(Properties(message_id=first.message_id, group_id=first.session_id)))
    parts.extend(b"\x00\x53\x75" + encode_binary(encode_message(message)) for message in messages)
    return b"".join(parts)


def split_batch(payload: bytes) -> list[bytes]:
    """The encoded messages in a batch, at least one.

    Raises:
        WireError: the payload is malformed, or holds no message. The messages themselves are not looked into.
    """
    messages = Sections(payload).data()
    if not messages:
        raise WireError(INVALID_FIELD, "a batch holds no message: send one data section for each")
    return messages
