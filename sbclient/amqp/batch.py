"""The messages of one transfer: one message, or several as a batch of message format 0x80013700.

In a batch each message is a data section. The sections before them hold the partition key, message id and session id of
the first message, which select the fragment for all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Final

from sbclient.amqp import servicebus
from sbclient.amqp.encode import binary_head, encode_map
from sbclient.amqp.encoded import EncodedMessage
from sbclient.amqp.errors import INVALID_FIELD, WireError
from sbclient.amqp.fields import encode_composite
from sbclient.amqp.performatives import BATCH_FORMAT
from sbclient.amqp.sections import Properties, Sections

SECTION_BYTES: Final = 8
"""The most bytes that a message of a batch takes besides its own."""


class EncodedBatch:
    """One or more encoded messages that are sent together: all of them are stored, or none.

    Args:
        messages: at least one.

    Attributes:
        sessions: the sessions that must stay in order with other messages of theirs; None = those of the messages.
        size_bytes: the size of the transfer.
        largest_bytes: the size of the largest message.
    """

    __slots__ = ("_messages", "_sections", "_via_partition_key", "largest_bytes", "sessions", "size_bytes")

    def __init__(self, messages: Sequence[EncodedMessage]) -> None:
        self._messages: Sequence[EncodedMessage] = messages
        self._sections: _Sections | _Extended | None = None
        self._via_partition_key: str | None = None
        self.sessions: Collection[str] | None = None
        if len(messages) == 1:
            self.size_bytes = self.largest_bytes = messages[0].size_bytes
        else:
            self._measure(messages[0], [message.size_bytes for message in messages])

    def _measure(self, first: EncodedMessage, sizes: Sequence[int]) -> None:
        self.size_bytes = self.largest_bytes = max(sizes)
        if len(sizes) > 1:
            self.size_bytes = len(_head(first)) + _section_bytes(sizes)

    @classmethod
    def extended(cls, messages: Sequence[EncodedMessage], section: bytes) -> EncodedBatch:
        """Return a batch of messages that get a section of application properties on the way to the wire.

        Args:
            messages: at least one; each has `properties_end` and no key.
            section: the application properties of each.
        """
        batch = cls.__new__(cls)
        batch._messages = ()
        batch._via_partition_key = None
        batch.sessions = None
        batch._sections = _Extended(messages, section)
        added = len(section)
        batch._measure(messages[0], [message.size_bytes + added for message in messages])
        return batch

    @classmethod
    def of_sections(
        cls,
        sections: bytes | memoryview,
        ends: Sequence[int],
        *,
        message_id: str | None,
        session_id: str | None,
        partition_key: str | None,
    ) -> EncodedBatch:
        """Return a batch of messages that are joined already; each is read only where it is used.

        Args:
            sections: the data section of each message, one after another.
            ends: the end of each section in `sections`.
            message_id, session_id, partition_key: those of the first message.
        """
        batch = cls.__new__(cls)
        batch._messages = ()
        batch._via_partition_key = None
        batch.sessions = ()
        first = EncodedMessage(b"")
        first.message_id, first.session_id, first.partition_key = message_id, session_id, partition_key
        batch._sections = _Sections(first, sections, ends)
        largest = max(end - start for start, end in zip((0, *ends), ends, strict=False))
        batch.largest_bytes = largest - (5 if largest <= 260 else SECTION_BYTES)
        batch.size_bytes = batch.largest_bytes if len(ends) == 1 else len(_head(first)) + len(sections)
        return batch

    def __len__(self) -> int:
        return len(self._messages if self._sections is None else self._sections)

    def __iter__(self) -> Iterator[EncodedMessage]:
        return iter(self.messages)

    @property
    def messages(self) -> Sequence[EncodedMessage]:
        """The messages, in order."""
        if self._sections is not None and not self._messages:
            self._messages = [EncodedMessage(payload) for payload in self._sections.payloads()]
        return self._messages

    @property
    def first(self) -> EncodedMessage:
        """The first message. Of joined messages it has only the id and the keys."""
        return self._messages[0] if self._sections is None else self._sections.first

    @property
    def key(self) -> str | None:
        """The key within which the transfer stays in order.

        None for joined messages, whose caller keeps the order, and for extended ones, which have no key.
        """
        return self._messages[0].key if self._sections is None else None

    @property
    def message_format(self) -> int:
        """The message format of the transfer."""
        return BATCH_FORMAT if self.size_bytes > self.largest_bytes else 0

    @property
    def payload(self) -> bytes:
        """The payload of the transfer."""
        if self.size_bytes == self.largest_bytes:  # one message
            return self._messages[0].payload if self._messages else self.messages[0].payload
        if self._sections is not None:
            return b"".join((_head(self._sections.first), *self._sections.pieces()))
        messages = self._messages
        pieces = [_head(messages[0], self._via_partition_key)]
        for message in messages:
            payload = message.payload
            pieces += b"\x00\x53\x75", binary_head(len(payload)), payload
        return b"".join(pieces)

    def via(self, partition_key: str | None) -> EncodedBatch:
        """Return a batch whose messages pass through the partition of a key in another entity; None = this batch."""
        if partition_key is None:
            return self
        batch = EncodedBatch([message.rewritten(via_partition_key=partition_key) for message in self.messages])
        batch._via_partition_key = partition_key
        return batch


class _Sections:
    """Joined messages."""

    __slots__ = ("content", "ends", "first")

    def __init__(self, first: EncodedMessage, content: bytes | memoryview, ends: Sequence[int]) -> None:
        self.first = first
        self.content = content
        self.ends = ends

    def __len__(self) -> int:
        return len(self.ends)

    def pieces(self) -> tuple[bytes | memoryview]:
        return (self.content,)

    def payloads(self) -> list[bytes]:
        ends = self.ends
        sections = [self.content[start:end] for start, end in zip((0, *ends), ends, strict=False)]
        return [bytes(section[5 if section[3] == 0xA0 else 8 :]) for section in sections]


class _Extended:
    """Messages with properties and a data section, between which each gets the same section.

    Attributes:
        first: the first message, with the id of the one that is sent.
    """

    __slots__ = ("_messages", "_section", "first")

    def __init__(self, messages: Sequence[EncodedMessage], section: bytes) -> None:
        self.first = messages[0]
        self._messages = messages
        self._section = section

    def __len__(self) -> int:
        return len(self._messages)

    def pieces(self) -> list[bytes]:
        """Return what the data sections consist of, in order."""
        section = self._section
        added = len(section)
        pieces: list[bytes] = []
        for message in self._messages:
            payload, at = message.payload, message.properties_end
            pieces += b"\x00\x53\x75", binary_head(len(payload) + added), payload[:at], section, payload[at:]
        return pieces

    def payloads(self) -> list[bytes]:
        section = self._section
        return [
            b"".join((message.payload[: message.properties_end], section, message.payload[message.properties_end :]))
            for message in self._messages
        ]


def _head(first: EncodedMessage, via_partition_key: str | None = None) -> bytes:
    """Return the sections before the messages."""
    head = b""
    keys = {servicebus.PARTITION_KEY: first.partition_key, servicebus.VIA_PARTITION_KEY: via_partition_key}
    if first.partition_key is not None or via_partition_key is not None:
        head = b"\x00\x53\x72" + encode_map({name: key for name, key in keys.items() if key is not None})
    if first.message_id is not None or first.session_id is not None:
        head += encode_composite(Properties(message_id=first.message_id, group_id=first.session_id))
    return head


def size_in_batch(message: EncodedMessage, *, is_first: bool = False) -> int:
    """Return the bytes that a message adds to a batch."""
    size = _section_bytes([message.size_bytes])
    return size + len(_head(message)) if is_first else size


def _section_bytes(sizes: Sequence[int]) -> int:
    """Return the size of the data sections of messages with these sizes."""
    return sum(sizes) + sum([5 if size < 256 else SECTION_BYTES for size in sizes])


def split_batch(payload: bytes) -> list[bytes]:
    """Return the encoded messages of a batch, at least one.

    Raises:
        WireError: the payload is malformed, or has no message. The messages themselves are not decoded.
    """
    messages = Sections(payload).data()
    if not messages:
        raise WireError(INVALID_FIELD, "the batch has no message: send one data section for each message")
    return messages
