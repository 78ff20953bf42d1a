"""The limits of a transaction, and the check that all messages sent to a partitioned entity in one have the same key.

Laws (source: partitioned queues and topics, documented, unless said otherwise):

1. Each message sent in a transaction has a key, so that one fragment handles the whole transaction.
2. All of them have the same key. Keys are compared, not their fragments (our choice: stricter, and independent of the
   number of fragments).
3. For a session entity the key is the session id, which must be set.
4. The message id is a key only if the entity detects duplicates (our inference).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sbclient.errors import InvalidOperationError
from sbclient.message import Keyed
from sbclient.rules.partition_key import check_keys, partition_key_of

MAX_OPERATIONS: Final = 100
MAX_DURATION_S: Final = 120.0
"""Messages, and seconds from the first operation. Source: Service Bus quotas."""


def transaction_key_of(
    messages: Sequence[Keyed],
    *,
    pinned: str | None,
    requires_session: bool,
    requires_duplicate_detection: bool,
) -> str:
    """Return the key that a transaction is pinned to after these messages are sent in it.

    Args:
        messages: the messages to send, at least one.
        pinned: the key of the messages sent before in this transaction; None if there are none.

    Raises:
        InvalidOperationError: a message has no key, or its key differs from that of the transaction.
    """
    key = pinned
    for message in messages:
        own = _key_of(message, requires_session, requires_duplicate_detection)
        if key is not None and own != key:
            raise InvalidOperationError(
                f"a message with key {own!r} was sent in a transaction with key {key!r}: "
                "a partitioned entity takes one key in each transaction, use one transaction for each key"
            )
        key = own
    if key is None:
        raise InvalidOperationError("there is no message to send in the transaction: pass at least one")
    return key


def _key_of(message: Keyed, requires_session: bool, requires_duplicate_detection: bool) -> str:
    check_keys(message)
    if requires_session and message.session_id is None:
        raise InvalidOperationError(
            f"message {message.message_id!r} for a session entity has no session_id, which a transaction requires: "
            "set it"
        )
    key = partition_key_of(message, requires_duplicate_detection=requires_duplicate_detection)
    if key is None:
        raise InvalidOperationError(
            f"message {message.message_id!r} for a partitioned entity has no key, which a transaction requires: "
            "set its partition_key"
        )
    return key
