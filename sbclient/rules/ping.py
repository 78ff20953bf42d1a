"""The ping: an empty message that asks a failed-over entity whether it accepts messages again; nobody receives it.

Content type and life are documented. The broker drops pings at its door; receivers skip one that reaches them all the
same, so an application's own message with that content type would vanish and is refused.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from sbclient.errors import InvalidOperationError
from sbclient.message import ServiceBusMessage

PING_CONTENT_TYPE: Final = "application/vnd.ms-servicebus-ping"
PING_TIME_TO_LIVE: Final = timedelta(seconds=1)


def ping_message(
    *, message_id: str, session_id: str | None = None, partition_key: str | None = None
) -> ServiceBusMessage:
    """A ping; the keys lead it to the fragment that failed, for without one it proves nothing about that fragment."""
    return ServiceBusMessage(
        None,
        content_type=PING_CONTENT_TYPE,
        time_to_live=PING_TIME_TO_LIVE,
        message_id=message_id,
        session_id=session_id,
        partition_key=partition_key,
    )


def is_ping(message: ServiceBusMessage) -> bool:
    """Whether a message is a ping, of this client or of another one. Media types do not distinguish case."""
    content_type = message.content_type
    return content_type is not None and content_type.lower() == PING_CONTENT_TYPE


def check_not_ping(message: ServiceBusMessage) -> None:
    """Refuse an application's message that would be taken for a ping and dropped.

    Raises:
        InvalidOperationError: the message bears the content type of pings.
    """
    if is_ping(message):
        raise InvalidOperationError(
            f"message {message.message_id!r} has content_type {message.content_type!r}, which marks pings that no "
            "receiver ever sees: choose another content type"
        )
