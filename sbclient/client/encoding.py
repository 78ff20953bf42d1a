"""Encodes the messages that an application sends: once, checked, with a message id."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from itertools import islice
from typing import Any, Final, TypeAlias

from sbclient import clock
from sbclient.amqp import EncodedBatch, EncodedMessage, EncodeError, encode_message
from sbclient.amqp.annotated import SdkMessage, encode_annotated, is_sdk_message, parts_of
from sbclient.delivery import MAX_BATCH_MESSAGES, SenderLimits
from sbclient.errors import InvalidOperationError, MessageSizeExceededError
from sbclient.message import AmqpAnnotatedMessage, ServiceBusMessage
from sbclient.rules.partition_key import check_keys
from sbclient.rules.ping import check_not_ping

Message: TypeAlias = ServiceBusMessage | AmqpAnnotatedMessage | SdkMessage | Mapping[str, Any]
"""A message of this package or of azure-servicebus, or a mapping of the arguments of `ServiceBusMessage`."""

ALIAS_BYTES: Final = 160
"""The bytes that sealing for a backlog queue adds to a message, without the path of the destination."""

MAX_SIGNED_HEADER_BYTES: Final = 32 * 1024
"""Larger headers get no trace context. Half of the 64 KB that Service Bus allows (source: Service Bus quotas)."""

NewId = Callable[[], str]

_MESSAGES: Final = (ServiceBusMessage, Mapping, AmqpAnnotatedMessage)  # building a union costs more than the check


def is_message(candidate: object) -> bool:
    """Return whether an object is one message: of this package, of azure-servicebus, or a mapping of attributes."""
    return isinstance(candidate, _MESSAGES) or is_sdk_message(candidate)


def encoded_messages(given: Any, new_id: NewId, schedule_time_utc: datetime | None = None) -> list[EncodedMessage]:
    """Encode a message, or each message of an iterable; see `encoded_message`."""
    if is_message(given):
        return [encoded_message(given, new_id, schedule_time_utc)]
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise TypeError(
            f"cannot send an object of type {type(given).__name__}: pass a message, a batch of this sender or a list"
        )
    encoded = [encoded_message(message, new_id, schedule_time_utc) for message in islice(given, MAX_BATCH_MESSAGES + 1)]
    check_message_count(len(encoded))
    return encoded


def check_message_count(count: int) -> None:
    """Check how many messages one transfer has.

    Raises:
        MessageSizeExceededError: it has more than the service takes at once.
    """
    if count > MAX_BATCH_MESSAGES:
        raise MessageSizeExceededError(
            f"more than {MAX_BATCH_MESSAGES:,} messages cannot be sent at once: send them in several calls"
        )


def encoded_message(message: Any, new_id: NewId, schedule_time_utc: datetime | None = None) -> EncodedMessage:
    """Encode and check a message. A message without an id gets one, which it keeps.

    Args:
        schedule_time_utc: replaces the scheduled enqueue time.

    Raises:
        InvalidOperationError: its keys differ, it has the content type of pings, or a value cannot be encoded.
        TypeError: it is not a message, or a mapping has a key that `ServiceBusMessage` does not take.
    """
    if not isinstance(message, ServiceBusMessage) and isinstance(message, Mapping):  # the second check is slow
        message = ServiceBusMessage(**message)
    try:
        if isinstance(message, ServiceBusMessage):
            if message._message_id is None:
                message._message_id = new_id()  # without the checks of the setter
            encoded = encode_message(message, clock.now)
        elif isinstance(message, AmqpAnnotatedMessage) or is_sdk_message(message):
            plain, further = parts_of(message)
            if plain.message_id is None:
                plain.message_id = new_id()
                if hasattr(message, "message_id"):  # an annotated message may have no place for an id
                    message.message_id = plain.message_id
            encoded = encode_annotated(plain, **further, now=clock.now)
        else:
            raise TypeError(f"cannot send an object of type {type(message).__name__}: pass a ServiceBusMessage")
    except EncodeError as error:
        raise InvalidOperationError(f"message {message.message_id!r} cannot be sent: {error}") from error
    if schedule_time_utc is not None:
        encoded = encoded.rewritten(scheduled_enqueue_time_utc=schedule_time_utc)
    if encoded.partition_key is not None:  # a call costs as much as the check
        check_keys(encoded)
    if encoded.content_type is not None:
        check_not_ping(encoded)
    return encoded


def trace_room(batch: EncodedBatch, limits: SenderLimits, growth_bytes: int) -> int:
    """Return the bytes that every message may grow by without exceeding a limit; negative if there are none.

    Args:
        limits: the limits of every entity that the messages may be sent to.
        growth_bytes: the bytes that sealing for a backlog queue may add to each message.
    """
    room = limits.max_message_size_bytes - batch.largest_bytes
    if len(batch) > 1:
        spare_bytes = limits.max_batch_size_bytes - batch.size_bytes
        room = min(room, spare_bytes // len(batch) - growth_bytes)
    return min(room, MAX_SIGNED_HEADER_BYTES - max([message.header_bytes for message in batch]))
