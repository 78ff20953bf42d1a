"""Which key places a message on a fragment of a partitioned entity, and which keys may not differ.

Laws (source: partitioned queues and topics, documented, unless said otherwise):

1. The session id is the key; without one the partition key; without either the message id, but only where duplicates
   are detected. A message without a key may go to any fragment.
2. Session id and partition key, if both are set, must be equal.
3. Where duplicates are detected a message must have one of the three (reported by users).
4. Messages sent in one transfer share their key and, where duplicates are detected, their message id (reported by the
   service's maintainers).
5. The fragment of a key is the CRC-32 of its UTF-8 bytes modulo the number of fragments (our choice: the service's own
   hash is not public). It never changes, so a key keeps its fragment over restarts and releases.

An empty string is a key; only None is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

from sbclient.errors import InvalidOperationError
from sbclient.message import ServiceBusMessage


def check_keys(message: ServiceBusMessage) -> None:
    """Law 2.

    Raises:
        InvalidOperationError: the two keys of the message differ.
    """
    session_id, partition_key = message.session_id, message.partition_key
    if session_id is not None and partition_key is not None and session_id != partition_key:
        raise InvalidOperationError(
            f"partition_key {partition_key!r} differs from session_id {session_id!r}: make them equal, or set only one"
        )


def ordering_key(message: ServiceBusMessage) -> str | None:
    """Return the key whose messages keep their order: the session id, else the partition key; None without either."""
    return message.session_id if message.session_id is not None else message.partition_key


def partition_key_of(message: ServiceBusMessage, *, requires_duplicate_detection: bool) -> str | None:
    """Law 1: the key that places a message on a partitioned entity, or None if any fragment may take it."""
    key = ordering_key(message)
    return message.message_id if key is None and requires_duplicate_detection else key


def fragment_of(key: str, fragment_count: int) -> int:
    """Law 5: the index, 0 to `fragment_count` - 1, of the fragment that holds everything with that key."""
    return crc32(key.encode()) % fragment_count


def check_batch_keys(messages: Sequence[ServiceBusMessage], *, requires_duplicate_detection: bool) -> str | None:
    """Laws 2, 3 and 4 for what is sent to a partitioned entity in one transfer, be it only one message.

    Returns:
        The key they share, None if they have none or there is no message.

    Raises:
        InvalidOperationError: one message's keys differ, one has no key though duplicates are detected, or two
            messages differ in what they must share.
    """
    shared_key: str | None = None
    shared_id: str | None = None
    for position, message in enumerate(messages):
        check_keys(message)
        key = partition_key_of(message, requires_duplicate_detection=requires_duplicate_detection)
        if requires_duplicate_detection and key is None:
            raise InvalidOperationError(
                "a partitioned entity with duplicate detection got a message without message_id, partition_key and "
                "session_id: set one of them"
            )
        if position == 0:
            shared_key, shared_id = key, message.message_id
        elif key != shared_key:
            raise InvalidOperationError(
                f"messages of one batch have the partition keys {shared_key!r} and {key!r}: "
                "a partitioned entity takes one key in each batch, send one batch for each key"
            )
        elif requires_duplicate_detection and message.message_id != shared_id:
            raise InvalidOperationError(
                f"messages of one batch have the message ids {shared_id!r} and {message.message_id!r}: a partitioned "
                "entity with duplicate detection takes one message_id in each batch, send them one by one"
            )
    return shared_key
