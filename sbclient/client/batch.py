"""A batch the application fills itself: sent as one transfer, all of it or nothing."""

from __future__ import annotations

from typing import Any

from sbclient.client.outgoing import NewId, outgoing_copy
from sbclient.errors import MessageSizeExceededError
from sbclient.message import ServiceBusMessage
from sbclient.rules.size import batch_size, encoded_size

_SECTION_BYTES = 8
"""What the data section around each message takes, at most."""


class ServiceBusMessageBatch:
    """Messages that go out together; made by `create_message_batch` of a sender.

    Args:
        max_size_in_bytes: encoded bytes that fit.
        growth_bytes: what each message may grow by on its way to a backlog queue; 0 without pairing.
        new_id: makes an id for a message that has none, when it is added: its size counts.
    """

    def __init__(self, max_size_in_bytes: int, *, growth_bytes: int = 0, new_id: NewId) -> None:
        self._new_id = new_id
        self._max_size_in_bytes = max_size_in_bytes
        self._growth_bytes = growth_bytes
        self._size = 0
        self._messages: list[ServiceBusMessage] = []

    @property
    def max_size_in_bytes(self) -> int:
        """How many encoded bytes fit."""
        return self._max_size_in_bytes

    @property
    def size_in_bytes(self) -> int:
        """How many are taken, the room for a diversion included."""
        return self._size

    @property
    def messages(self) -> tuple[ServiceBusMessage, ...]:
        """Copies of what was added, in order."""
        return tuple(self._messages)

    def __len__(self) -> int:
        return len(self._messages)

    def add_message(self, message: ServiceBusMessage | Any) -> None:
        """Add a message, or one of azure-servicebus; what is changed in it later is not sent.

        Raises:
            MessageSizeExceededError: it does not fit any more (also a ValueError): send the batch and begin another.
            InvalidOperationError: its keys differ.
        """
        copy = outgoing_copy(message, self._new_id)
        size = encoded_size(copy) + _SECTION_BYTES if self._messages else batch_size([copy])
        size += self._growth_bytes
        if self._size + size > self._max_size_in_bytes:
            raise MessageSizeExceededError(
                f"a message of {size} bytes does not fit into a batch with {self._size} of {self._max_size_in_bytes} "
                "bytes taken: send the batch and begin another one"
            )
        self._messages.append(copy)
        self._size += size
