"""The ping: an empty message that tests whether a failed-over entity accepts messages again. It is never delivered.

Source of content type and time to live: paired namespaces, documented. The broker drops pings on arrival, and receivers
skip a ping that was delivered anyway. An application's message with that content type would be lost, so it is rejected.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from sbclient.errors import InvalidOperationError
from sbclient.message import Keyed, ServiceBusMessage

PING_CONTENT_TYPE: Final = "application/vnd.ms-servicebus-ping"
PING_TIME_TO_LIVE: Final = timedelta(seconds=1)


def ping_message(
    *, message_id: str, session_id: str | None = None, partition_key: str | None = None
) -> ServiceBusMessage:
    """Return a ping. The keys direct it to the fragment that failed; a ping without keys may test another fragment."""
    return ServiceBusMessage(
        None,
        content_type=PING_CONTENT_TYPE,
        time_to_live=PING_TIME_TO_LIVE,
        message_id=message_id,
        session_id=session_id,
        partition_key=partition_key,
    )


def is_ping(message: Keyed) -> bool:
    """Return whether a message is a ping of any client. Media types are not case-sensitive."""
    content_type = message.content_type
    return content_type is not None and content_type.lower() == PING_CONTENT_TYPE


def check_not_ping(message: Keyed) -> None:
    """Reject an application's message that would be treated as a ping and dropped.

    Raises:
        InvalidOperationError: the message has the content type of pings.
    """
    if is_ping(message):
        raise InvalidOperationError(
            f"message {message.message_id!r} has content_type {message.content_type!r}, which is reserved for pings: "
            "choose another content type"
        )
