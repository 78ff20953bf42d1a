"""Determines the key that places a message on a fragment of a partitioned entity, and checks keys for conflicts.

Laws (source: partitioned queues and topics, documented, unless said otherwise):

1. The key is the session id, else the partition key, else the message id, but the message id only if the entity detects
   duplicates. A message without a key may be stored on any fragment.
2. Session id and partition key must be equal if both are set. An empty session id beside a partition key counts as
   none (live tests of two SDKs), but not in an entity that requires sessions.
3. If the entity detects duplicates, a message must have one of the three (reported by users).
4. Messages sent in one transfer have the same key and, if the entity detects duplicates, the same message id (reported
   by the service's maintainers).
5. The fragment of a key is the CRC-32 of its UTF-8 bytes modulo the number of fragments (our choice: the service's own
   hash is not public). It never changes, so a key keeps its fragment over restarts and releases.

An empty string is a key; None is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

from sbclient.errors import InvalidOperationError
from sbclient.message import Keyed


def check_keys(message: Keyed) -> None:
    """Check law 2.

    Raises:
        InvalidOperationError: the two keys of the message differ.
    """
    session_id, partition_key = message.session_id, message.partition_key
    if session_id and partition_key is not None and session_id != partition_key:
        raise InvalidOperationError(
            f"partition_key {partition_key!r} differs from session_id {session_id!r}: make them equal, or set only one"
        )


def ordering_key(message: Keyed) -> str | None:
    """Return the key within which order is kept: the session id, else the partition key, else None."""
    session_id = message.session_id
    if session_id is None or (not session_id and message.partition_key is not None):
        return message.partition_key
    return session_id


def partition_key_of(message: Keyed, *, requires_duplicate_detection: bool) -> str | None:
    """Return the key that places a message on a partitioned entity (law 1); None if any fragment may store it."""
    key = ordering_key(message)
    return message.message_id if key is None and requires_duplicate_detection else key


def fragment_of(key: str, fragment_count: int) -> int:
    """Return the index of the fragment for a key, 0 to `fragment_count` - 1 (law 5)."""
    return crc32(key.encode()) % fragment_count


def check_batch_keys(messages: Sequence[Keyed], *, requires_duplicate_detection: bool) -> str | None:
    """Check laws 2, 3 and 4 for the messages, one or more, of one transfer to a partitioned entity.

    Returns:
        The common key; None if they have no key or there is no message.

    Raises:
        InvalidOperationError: a message breaks law 2 or 3, or two messages break law 4.
    """
    shared_key: str | None = None
    shared_id: str | None = None
    for position, message in enumerate(messages):
        check_keys(message)
        key = partition_key_of(message, requires_duplicate_detection=requires_duplicate_detection)
        if requires_duplicate_detection and key is None:
            raise InvalidOperationError(
                "Message to a partitioned entity with duplicate detection enabled must have either PartitionKey or "
                "MessageId: set message_id, partition_key or session_id"
            )
        if position == 0:
            shared_key, shared_id = key, message.message_id
        elif key != shared_key:
            raise InvalidOperationError(
                "Batching brokered messages with distinct SessionId or PartitionKey is not supported for an entity "
                f"with partitioning enabled: send one batch for each of the keys {shared_key!r} and {key!r}"
            )
        elif requires_duplicate_detection and message.message_id != shared_id:
            raise InvalidOperationError(
                "Batching brokered messages with distinct SessionId, PartitionKey, or MessageId is not supported for "
                "an entity with partitioning and duplicate detection enabled: send the messages with the ids "
                f"{shared_id!r} and {message.message_id!r} one by one"
            )
    return shared_key
