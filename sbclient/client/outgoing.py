"""What goes out: private copies of an application's messages, checked, each with a message id."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from sbclient.message import ServiceBusMessage
from sbclient.rules.partition_key import check_keys
from sbclient.rules.ping import check_not_ping
from sbclient.transport.sdk.message import batch_from_sdk, from_sdk, is_sdk_batch, is_sdk_message

ALIAS_BYTES = 160
"""What sealing for a backlog queue adds to a message besides its destination's path."""

NewId = Callable[[], str]


def is_message(candidate: object) -> bool:
    """Whether it is one message, of ours or of azure-servicebus."""
    return isinstance(candidate, ServiceBusMessage) or is_sdk_message(candidate)


def outgoing(message: Any, new_id: NewId) -> list[ServiceBusMessage]:
    """Copies of a message, or of each in an iterable or a batch of azure-servicebus, as `outgoing_copy` makes them."""
    if is_message(message):
        return [outgoing_copy(message, new_id)]
    if is_sdk_batch(message):
        given: Iterable[Any] = batch_from_sdk(message)
    elif isinstance(message, str | bytes) or not isinstance(message, Iterable):
        raise TypeError(f"a ServiceBusMessage, a batch or a list of messages can be sent, not {type(message).__name__}")
    else:
        given = message
    return [outgoing_copy(one, new_id) for one in given]


def outgoing_copy(message: Any, new_id: NewId) -> ServiceBusMessage:
    """A copy that is nobody else's; a message without an id is given one, which stays with it.

    Raises:
        InvalidOperationError: its keys differ, or it would be taken for a ping.
        TypeError: it is no message.
    """
    if isinstance(message, ServiceBusMessage):
        if message.message_id is None:
            message.message_id = new_id()
        copy = message.copy()
    elif is_sdk_message(message):
        copy = from_sdk(message)
        if copy.message_id is None:
            copy.message_id = new_id()
            if hasattr(message, "message_id"):  # an annotated message keeps it elsewhere, and may have no place for it
                message.message_id = copy.message_id
    else:
        raise TypeError(f"a ServiceBusMessage can be sent, not {type(message).__name__}")
    check_keys(copy)
    check_not_ping(copy)
    return copy
