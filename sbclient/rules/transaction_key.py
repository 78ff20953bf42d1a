"""The one key that everything sent to a partitioned entity in one transaction must carry.

Laws (source: partitioned queues and topics, documented, unless said otherwise):

1. Each message sent in a transaction carries a key, so that one broker handles the whole of it.
2. All of them carry the same key. Keys are compared, not the fragments they lead to (our choice: stricter, and it does
   not depend on the number of fragments).
3. To a session entity the key is the session id, which must be set.
4. The message id counts only where it places messages at all: where duplicates are detected (our inference).
"""

from __future__ import annotations

from collections.abc import Sequence

from sbclient.errors import InvalidOperationError
from sbclient.message import ServiceBusMessage
from sbclient.rules.partition_key import check_keys, partition_key_of


def transaction_key_of(
    messages: Sequence[ServiceBusMessage],
    *,
    pinned: str | None,
    requires_session: bool,
    requires_duplicate_detection: bool,
) -> str:
    """The key a transaction is pinned to once these messages are sent in it.

    Args:
        messages: what is sent now, at least one.
        pinned: the key of what was sent before in this transaction; None = nothing was.

    Raises:
        InvalidOperationError: a message has no key, or another one than the transaction or the message before it.
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
        raise InvalidOperationError("no message to send in the transaction, so it has no key: give at least one")
    return key


def _key_of(message: ServiceBusMessage, requires_session: bool, requires_duplicate_detection: bool) -> str:
    check_keys(message)
    if requires_session and message.session_id is None:
        raise InvalidOperationError(
            f"message {message.message_id!r} was sent to a session entity in a transaction without a session_id: set it"
        )
    key = partition_key_of(message, requires_duplicate_detection=requires_duplicate_detection)
    if key is None:
        raise InvalidOperationError(
            f"message {message.message_id!r} was sent to a partitioned entity in a transaction without a key: "
            "set its partition_key"
        )
    return key
