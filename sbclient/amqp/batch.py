"""Batches: several messages in one transfer, of message format 0x80013700, each encoded in a data section.

The sections before them hold the partition key, message id and session id of the first message, which select the
fragment for all. The length equals `rules.size.batch_size`, which documents the layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from sbclient.amqp.encode import encode_binary, encode_map
from sbclient.amqp.errors import INVALID_FIELD, WireError
from sbclient.amqp.fields import encode_composite
from sbclient.amqp.message import VIA_PARTITION_KEY_ANNOTATION, WireMessage, encode_message
from sbclient.amqp.sections import Properties, Sections
from sbclient.annotated_message import PARTITION_KEY_ANNOTATION
from sbclient.message import ServiceBusMessage


def join_batch(
    messages: Sequence[ServiceBusMessage], via_partition_key: str | None = None, *, created_at_ms: int = 0
) -> bytes:
    """Encode messages as one payload, which is empty for no messages.

    Args:
        via_partition_key, created_at_ms: see `encode_message`.

    Raises:
        EncodeError: a message has a value without an AMQP type.
    """
    if not messages:
        return b""
    first = messages[0]
    parts = [_head(first.message_id, first.session_id, first.partition_key, via_partition_key)]
    parts.extend(
        encode_section(encode_message(message, via_partition_key, created_at_ms=created_at_ms)) for message in messages
    )
    return b"".join(parts)


def _head(
    message_id: str | None, session_id: str | None, partition_key: str | None, via_partition_key: str | None = None
) -> bytes:
    """Return the sections before the messages."""
    head = b""
    keys = {PARTITION_KEY_ANNOTATION: partition_key, VIA_PARTITION_KEY_ANNOTATION: via_partition_key}
    if partition_key is not None or via_partition_key is not None:
        head = b"\x00\x53\x72" + encode_map({name: key for name, key in keys.items() if key is not None})
    if message_id is not None or session_id is not None:
        head += encode_composite(Properties(message_id=message_id, group_id=session_id))
    return head


def encode_section(message: bytes) -> bytes:
    """Return the data section of an encoded message in a batch."""
    return b"\x00\x53\x75" + encode_binary(message)


class EncodedBatch(Sequence[ServiceBusMessage]):
    """Messages that are encoded already, for one transfer. Each is decoded only where it is used.

    Args:
        sections: the data section of each message, one after another; see `encode_section`.
        ends: the end of each section in `sections`.
        message_id, session_id, partition_key: those of the first message.
    """

    __slots__ = ("_ends", "_head", "_sections")

    def __init__(
        self,
        sections: bytes | memoryview,
        ends: Sequence[int],
        *,
        message_id: str | None,
        session_id: str | None,
        partition_key: str | None,
    ) -> None:
        self._sections = sections
        self._ends = ends
        self._head = _head(message_id, session_id, partition_key)

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, index: int) -> WireMessage: ...

    @overload
    def __getitem__(self, index: slice) -> list[WireMessage]: ...

    def __getitem__(self, index: int | slice) -> WireMessage | list[WireMessage]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        return WireMessage.of(self._message(range(len(self))[index]))

    def _message(self, index: int) -> bytes:
        start = self._ends[index - 1] if index else 0
        section = self._sections[start : self._ends[index]]
        return bytes(section[5 if section[3] == 0xA0 else 8 :])

    @property
    def size_bytes(self) -> int:
        """The size of the transfer as a batch, like `rules.size.batch_size`."""
        return len(self._head) + len(self._sections)

    @property
    def largest_bytes(self) -> int:
        """The encoded size of the largest message."""
        ends = self._ends
        section = max(end - start for start, end in zip((0, *ends), ends, strict=False))
        return section - (5 if section <= 260 else 8)

    @property
    def payload(self) -> bytes:
        """The payload of the transfer: like `join_batch`, or for one message like `encode_message`."""
        return self._message(0) if len(self) == 1 else b"".join((self._head, self._sections))


def split_batch(payload: bytes) -> list[bytes]:
    """Return the encoded messages of a batch, at least one.

    Raises:
        WireError: the payload is malformed, or has no message. The messages themselves are not decoded.
    """
    messages = Sections(payload).data()
    if not messages:
        raise WireError(INVALID_FIELD, "the batch has no message: send one data section for each message")
    return messages
