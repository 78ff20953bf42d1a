"""The size limit of the headers of a message: all of it but the body.

Source: Service Bus quotas: 32 KB for one property, 64 KB for all headers.
"""

from __future__ import annotations

from typing import Final

from sbclient.amqp import EncodedMessage
from sbclient.errors import MessageSizeExceededError

MAX_PROPERTY_BYTES: Final = 32 * 1024
MAX_HEADERS_BYTES: Final = 64 * 1024


def check_headers(message: EncodedMessage) -> None:
    """Check the headers of a message with more than `MAX_PROPERTY_BYTES`; those of a smaller one fit.

    Raises:
        MessageSizeExceededError: a property, or all headers together, are too large.
    """
    headers = message.header_bytes
    if headers > MAX_HEADERS_BYTES:
        raise MessageSizeExceededError(
            f"the headers of message {message.message_id!r} have {headers} bytes, {MAX_HEADERS_BYTES} are allowed: "
            "move properties into the body"
        )
    if headers > MAX_PROPERTY_BYTES:
        for name, value in message.application_properties.items():
            if isinstance(value, str) and len(value.encode()) > MAX_PROPERTY_BYTES:
                raise MessageSizeExceededError(
                    f"application property {name!r} of message {message.message_id!r} has {len(value.encode())} bytes, "
                    f"{MAX_PROPERTY_BYTES} are allowed: move it into the body"
                )
