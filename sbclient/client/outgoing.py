"""Private copies of the messages that an application sends: checked, with a message id, measured once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, overload

from sbclient.amqp import EncodedBatch
from sbclient.annotated_message import AmqpAnnotatedMessage
from sbclient.delivery import SenderLimits
from sbclient.message import AmqpMessageBodyType, ServiceBusMessage
from sbclient.rules.partition_key import check_keys, ordering_key
from sbclient.rules.ping import check_not_ping
from sbclient.rules.size import batch_size, encoded_size
from sbclient.transport.sdk.message import from_annotated, from_sdk, is_sdk_message

ALIAS_BYTES: Final = 160
"""The bytes that sealing for a backlog queue adds to a message, without the path of the destination."""

MAX_SIGNED_HEADER_BYTES: Final = 32 * 1024
"""Larger headers get no trace context. Half of the 64 KB that Service Bus allows (source: Service Bus quotas)."""

NewId = Callable[[], str]

_MESSAGES: Final = (ServiceBusMessage, Mapping, AmqpAnnotatedMessage)  # building a union costs more than the check


@dataclass(slots=True)
class Outgoing:
    """A message on its way out.

    Attributes:
        message: a copy that belongs to this client.
        size_bytes: its encoded size.
    """

    message: ServiceBusMessage
    size_bytes: int

    @property
    def key(self) -> str | None:
        """The session id, or else the partition key. Messages with the same key are sent in order."""
        return ordering_key(self.message)

    def sign(self, context: Mapping[str, str]) -> None:
        """Add a trace context to the application properties."""
        self.message.application_properties.update(context)
        self.size_bytes = encoded_size(self.message)


class EncodedTransfer(Sequence[Outgoing]):
    """Encoded messages on their way out; each is decoded only where it is used.

    Attributes:
        messages: the messages.
        sessions: the session of each message that must stay in order with others of its session.
    """

    __slots__ = ("messages", "sessions")

    def __init__(self, messages: EncodedBatch, sessions: Collection[str]) -> None:
        self.messages = messages
        self.sessions = sessions

    def __len__(self) -> int:
        return len(self.messages)

    @overload
    def __getitem__(self, index: int) -> Outgoing: ...

    @overload
    def __getitem__(self, index: slice) -> list[Outgoing]: ...

    def __getitem__(self, index: int | slice) -> Outgoing | list[Outgoing]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        message = self.messages[index]
        return Outgoing(message, len(message.sections.payload))

    def decoded(self) -> list[Outgoing]:
        """Return private copies, which can be changed."""
        return [Outgoing(copy.message.copy(), copy.size_bytes) for copy in self]


def messages_of(transfer: Sequence[Outgoing]) -> Sequence[ServiceBusMessage]:
    """Return the messages of a transfer."""
    return transfer.messages if isinstance(transfer, EncodedTransfer) else [copy.message for copy in transfer]


def largest_size(transfer: Sequence[Outgoing]) -> int:
    """Return the encoded size of the largest message in bytes."""
    if type(transfer) is EncodedTransfer:  # isinstance would be slow for a Sequence
        return transfer.messages.largest_bytes
    return max([copy.size_bytes for copy in transfer])


def is_message(candidate: object) -> bool:
    """Return whether an object is one message: of this package, of azure-servicebus, or a mapping of attributes."""
    return isinstance(candidate, _MESSAGES) or is_sdk_message(candidate)


def outgoing_copies(given: Any, new_id: NewId, schedule_time_utc: datetime | None = None) -> list[Outgoing]:
    """Copy a message, or each message of an iterable; see `outgoing_copy`."""
    if is_message(given):
        return [outgoing_copy(given, new_id, schedule_time_utc)]
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise TypeError(
            f"cannot send an object of type {type(given).__name__}: pass a message, a batch of this sender or a list"
        )
    return [outgoing_copy(message, new_id, schedule_time_utc) for message in given]


def outgoing_copy(message: Any, new_id: NewId, schedule_time_utc: datetime | None = None) -> Outgoing:
    """Copy, check and measure a message. A message without an id gets one, which it keeps.

    Raises:
        InvalidOperationError: its keys differ, or it has the content type of pings.
        TypeError: it is not a message, a mapping has a key that `ServiceBusMessage` does not take, or AMQP cannot
            encode the body.
    """
    if not isinstance(message, ServiceBusMessage) and isinstance(message, Mapping):  # the second check is slow
        message = ServiceBusMessage(**message)
    if isinstance(message, ServiceBusMessage):
        if message._message_id is None:
            message._message_id = new_id()  # without the checks of the setter
        copy = message.copy()
    elif is_sdk_message(message):
        copy = from_sdk(message)
        if copy.message_id is None:
            copy.message_id = new_id()
            if hasattr(message, "message_id"):  # an annotated message may have no place for an id
                message.message_id = copy.message_id
    elif isinstance(message, AmqpAnnotatedMessage):
        copy = from_annotated(message)
        if copy.message_id is None:
            copy.message_id = new_id()
    else:
        raise TypeError(f"cannot send an object of type {type(message).__name__}: pass a ServiceBusMessage")
    if schedule_time_utc is not None:
        copy.scheduled_enqueue_time_utc = schedule_time_utc
    if copy._partition_key is not None:  # a call costs as much as the check
        check_keys(copy)
    if copy._content_type is not None:
        check_not_ping(copy)
    return Outgoing(copy, encoded_size(copy))


def transfer_size(transfer: Sequence[Outgoing]) -> int:
    """Return the encoded size in bytes of messages that are sent as one batch."""
    if isinstance(transfer, EncodedTransfer):
        return transfer.messages.size_bytes
    return batch_size([copy.message for copy in transfer], [copy.size_bytes for copy in transfer])


def trace_room(transfer: Sequence[Outgoing], limits: SenderLimits, growth_bytes: int) -> int:
    """Return the bytes that every message may grow by without exceeding a limit; negative if there are none.

    Args:
        limits: the limits of every entity that the messages may be sent to.
        growth_bytes: the bytes that sealing for a backlog queue may add to each message.
    """
    room = limits.max_message_size_bytes - largest_size(transfer)
    if len(transfer) > 1:
        spare_bytes = limits.max_batch_size_bytes - transfer_size(transfer)
        room = min(room, spare_bytes // len(transfer) - growth_bytes)
    return min(room, MAX_SIGNED_HEADER_BYTES - max(map(_header_size, transfer)))


def _header_size(copy: Outgoing) -> int:
    is_data = copy.message.body_type is AmqpMessageBodyType.DATA
    return copy.size_bytes - sum(copy.message._data_sizes()) if is_data else 0
