"""Check the messages of a transfer, and store them.

Rules (source: documented, unless said otherwise):

1. The size of a message, and of a transfer of several messages, is limited; more than 4,500 messages in one transfer
   are an internal error (seen).
2. An entity that requires sessions rejects messages without a session id. Session id and partition key must be equal.
3. On a partitioned entity the messages of one transfer share their key (said by the service's maintainers).
4. A message without an id gets one, which counts for no size (seen).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeAlias

from sbclient.amqp import EncodedBatch, EncodedMessage
from sbclient.broker.deduplication import Identity, identity_of
from sbclient.broker.entity import Queue
from sbclient.broker.entry import Entry
from sbclient.broker.fragment import Fragment
from sbclient.broker.headers import MAX_PROPERTY_BYTES, check_headers
from sbclient.broker.storage import Copies
from sbclient.broker.topic import Topic
from sbclient.delivery import MAX_BATCH_MESSAGES
from sbclient.errors import InvalidOperationError, MessageSizeExceededError, ServiceBusInternalError
from sbclient.rules.partition_key import check_batch_keys, check_keys
from sbclient.rules.ping import is_ping


@dataclass(slots=True)  # a frozen one takes three times as long to make
class AdmittedMessages:
    """The accepted messages of one transfer.

    Attributes:
        key: selects the fragment for all messages; None = any fragment.
        entries: the messages, including pings, which are checked like others, but not stored.
        size_bytes: of all messages.
        is_ping: whether no message is stored.
        is_partitioned: whether the entity is.
    """

    key: str | None
    entries: list[Entry]
    size_bytes: int
    is_ping: bool
    is_partitioned: bool


def admit(
    target: Queue | Topic,
    messages: Sequence[EncodedMessage],
    random: Random,
    max_batch_size_bytes: int,
) -> AdmittedMessages:
    """Check the messages of one transfer to an entity.

    Args:
        random: for the ids of messages that have none.

    Raises:
        InvalidOperationError, MessageSizeExceededError, ServiceBusInternalError: the transfer is rejected.
    """
    if len(messages) > MAX_BATCH_MESSAGES:
        raise ServiceBusInternalError(
            "The service was unable to process the request; please retry the operation. "
            f"{target.path} received {len(messages)} messages at once, {MAX_BATCH_MESSAGES} are allowed: send fewer"
        )
    policy = target.policy
    key = None
    is_partitioned = len(target.fragments) > 1
    if is_partitioned:
        key = check_batch_keys(messages, requires_duplicate_detection=policy.requires_duplicate_detection)
    requires_session = target.requires_session
    entries: list[Entry] = []
    total_bytes, ping_count = 0, 0
    for message in messages:
        if message.partition_key is not None:
            check_keys(message)
            if is_partitioned and requires_session and message.session_id != message.partition_key:
                raise InvalidOperationError(
                    f"partition_key {message.partition_key!r} differs from session_id {message.session_id!r}, but "
                    f"{target.path} requires sessions: make them equal"
                )
        if requires_session and message.session_id is None:
            raise InvalidOperationError(
                f"The SessionId was not set on a message, and it cannot be sent to the entity. {target.path} requires "
                f"sessions: set session_id on message {message.message_id!r}"
            )
        size_bytes = message.size_bytes
        if size_bytes > policy.max_message_size_bytes:
            raise MessageSizeExceededError(
                f"The received message (size:{size_bytes} bytes) exceeds the limit "
                f"({policy.max_message_size_bytes} bytes) currently allowed on the link. It is message "
                f"{message.message_id!r} for {target.path}: send less, or a reference to the data"
            )
        if size_bytes > MAX_PROPERTY_BYTES:
            check_headers(message)
        total_bytes += size_bytes
        ping_count += message.content_type is not None and is_ping(message)
        if message.message_id is None:
            message = message.rewritten(message_id=f"{random.getrandbits(128):032x}")
        entries.append(Entry(message, size_bytes))
    if len(messages) > 1 and (size_bytes := EncodedBatch(messages).size_bytes) > max_batch_size_bytes:
        raise MessageSizeExceededError(
            f"the {len(messages)} messages have {size_bytes} bytes together, "
            f"{target.path} accepts {max_batch_size_bytes} at once: send fewer"
        )
    return AdmittedMessages(key, entries, total_bytes, ping_count == len(messages), is_partitioned)


def store(
    fragment: Fragment, entries: Sequence[Entry], numbers: Sequence[int] | None, now: float, is_partitioned: bool
) -> None:
    """Store checked messages in a fragment, now or at their scheduled time; drop duplicates and pings.

    If that fails, nothing is stored.

    Args:
        numbers: the sequence number of each entry while it is scheduled; None = new ones.
    """
    put(fragment, arrivals(fragment, entries, numbers, now, is_partitioned), now)


Arrival: TypeAlias = tuple[Entry, Identity | None, float | None, int | None, Copies]
"""How a checked message is stored: its identity, None without duplicate detection; its scheduled time, None = at once;
its number while it is scheduled, None = a new one; its copies, see `Storage.decide`."""


def arrivals(
    fragment: Fragment, entries: Sequence[Entry], numbers: Sequence[int] | None, now: float, is_partitioned: bool
) -> list[Arrival]:
    """Decide how checked messages are stored; see `store`. What can fail does so here."""
    fragment.advance(now)
    detects_duplicates = fragment.policy.requires_duplicate_detection
    found: list[Arrival] = []
    for position, entry in enumerate(entries):
        content = entry.content
        if content.content_type is not None and is_ping(content):
            continue
        identity = identity_of(content, is_partitioned=is_partitioned) if detects_duplicates else None
        if identity is not None and fragment.is_known(identity, now):
            continue
        at = content.scheduled_enqueue_time_utc
        if at is not None and at.timestamp() > now:
            fragment.mark()
            number = None if numbers is None else numbers[position]
            found.append((entry, identity, at.timestamp(), number, ()))
        else:
            found.append((entry, identity, None, None, fragment.decide(entry, now)))
    return found


def put(fragment: Fragment, decided: Sequence[Arrival], now: float) -> None:
    """Store messages as `arrivals` says."""
    for entry, identity, scheduled_at, number, copies in decided:
        if identity is not None and fragment.is_duplicate(identity, now):  # of an earlier one of the transfer
            continue
        if scheduled_at is None:
            fragment.put(entry, copies)
        else:
            fragment.schedule(entry, fragment.next_number() if number is None else number, scheduled_at, now)
