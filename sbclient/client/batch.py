"""A batch that the application fills: the messages are sent as one transfer, all of them or none."""

from __future__ import annotations

from typing import Any, Final
from uuid import uuid4

from sbclient.amqp import EncodedMessage
from sbclient.amqp.batch import size_in_batch
from sbclient.arguments.checked import checked
from sbclient.arguments.kinds import Size
from sbclient.client.encoding import Message, NewId, check_message_count, encoded_message
from sbclient.errors import MessageSizeExceededError
from sbclient.message import ServiceBusMessage

PREMIUM_BATCH_BYTES: Final = 2**20
"""The largest batch of the Premium tier. Source: Service Bus quotas."""


def _random_id() -> str:
    return str(uuid4())


@checked
class ServiceBusMessageBatch:
    """Messages that are sent together. `create_message_batch` of a sender knows the limits and creates most batches.

    Args:
        max_size_in_bytes: the encoded size that the batch may have. None = 1 MiB, the limit of the Premium tier.
        growth_bytes: the bytes to reserve for each message, for a diversion and a trace context.
        new_id: returns an id for a message that has none. A message gets its id when it is added. None = a random UUID.
    """

    def __init__(
        self, max_size_in_bytes: Size | None = None, *, growth_bytes: int = 0, new_id: NewId | None = None
    ) -> None:
        self._new_id = new_id or _random_id
        self._max_size_in_bytes = max_size_in_bytes or PREMIUM_BATCH_BYTES
        self._growth_bytes = growth_bytes
        self._size = 0
        self._messages: list[EncodedMessage] = []

    def __getstate__(self) -> dict[str, Any]:
        """Copy or pickle the batch without its sender; messages that are added then get a random UUID."""
        return {**vars(self), "_new_id": _random_id, "_messages": list(self._messages)}

    @property
    def max_size_in_bytes(self) -> int:
        """The encoded size that the batch may have."""
        return self._max_size_in_bytes

    @property
    def size_in_bytes(self) -> int:
        """The encoded size of the batch, with the reserved bytes."""
        return self._size

    @property
    def messages(self) -> tuple[ServiceBusMessage, ...]:
        """Copies of the messages added, in order."""
        return tuple(message.decoded() for message in self._messages)

    def __len__(self) -> int:
        return len(self._messages)

    def __repr__(self) -> str:
        return f"ServiceBusMessageBatch(max_size_in_bytes={self._max_size_in_bytes}, message_count={len(self)})"

    def add_message(self, message: Message) -> None:
        """Add a copy of a message, as `send_messages` takes it.

        Raises:
            MessageSizeExceededError: the message does not fit, or the batch has 4,500 messages (also a ValueError):
                send the batch and begin another.
            InvalidOperationError: the keys of the message differ.
        """
        encoded = encoded_message(message, self._new_id)
        size = self._growth_bytes + size_in_batch(encoded, is_first=not self._messages)
        check_message_count(len(self._messages) + 1)
        if self._size + size > self._max_size_in_bytes:
            raise MessageSizeExceededError(
                f"a message of {size} bytes does not fit in a batch that has {self._size} of {self._max_size_in_bytes} "
                "bytes: send the batch and begin another one"
            )
        self._messages.append(encoded)
        self._size += size

    def encoded(self) -> list[EncodedMessage]:
        """Return the messages as they are sent."""
        return list(self._messages)
