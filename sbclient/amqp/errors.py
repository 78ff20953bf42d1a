"""What can be wrong between two AMQP peers: the error conditions, the error value, and the exceptions of this package.

    ServiceBusError
    ├── ServiceBusCommunicationError
    │   └── WireError              the received bytes are not AMQP; has the `AmqpError` to answer with
    ├── ServiceBusConnectionError
    │   └── EndpointClosedError    the connection, session or link has ended
    └── InvalidOperationError
        └── EncodeError            the value has no AMQP encoding
            └── FrameTooLargeError  ... or exceeds the frame size that the peer accepts

`Connection.next_event` raises none of them: an error of the peer becomes an event and a closed endpoint.

Source of the conditions: AMQP 1.0 part 2 section 2.8 and part 4 section 4.5; the `com.microsoft` ones belong to
`sbclient.errors`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from sbclient.errors import InvalidOperationError, ServiceBusCommunicationError, ServiceBusConnectionError

DECODE_ERROR: Final = "amqp:decode-error"
INVALID_FIELD: Final = "amqp:invalid-field"
NOT_ALLOWED: Final = "amqp:not-allowed"
NOT_FOUND: Final = "amqp:not-found"
NOT_IMPLEMENTED: Final = "amqp:not-implemented"
INTERNAL_ERROR: Final = "amqp:internal-error"
RESOURCE_LIMIT: Final = "amqp:resource-limit-exceeded"
UNAUTHORIZED: Final = "amqp:unauthorized-access"
CONNECTION_FORCED: Final = "amqp:connection:forced"
FRAME_SIZE_TOO_SMALL: Final = "amqp:frame-size-too-small"
FRAMING_ERROR: Final = "amqp:connection:framing-error"
HANDLE_IN_USE: Final = "amqp:session:handle-in-use"
UNATTACHED_HANDLE: Final = "amqp:session:unattached-handle"
MESSAGE_SIZE_EXCEEDED: Final = "amqp:link:message-size-exceeded"
TRANSFER_LIMIT: Final = "amqp:link:transfer-limit-exceeded"


class AmqpError(NamedTuple):
    """The reason for closing an endpoint or rejecting a delivery. All three fields are always written, even if null.

    Attributes:
        condition: one of the conditions above, or a `com.microsoft:` one.
        description: one sentence, or None.
        info: additional fields by name, or None.
    """

    condition: str
    description: str | None = None
    info: Mapping[str, Any] | None = None


class WireError(ServiceBusCommunicationError):
    """The received bytes violate the AMQP specification.

    Attributes:
        error: the error to send to the peer.
    """

    def __init__(self, condition: str, description: str) -> None:
        super().__init__(f"{condition}: {description}")
        self.error = AmqpError(condition, description)


class EndpointClosedError(ServiceBusConnectionError):
    """The connection, session or link is closed, so nothing can be sent through it."""


class EncodeError(InvalidOperationError):
    """A value cannot be encoded in AMQP 1.0: it has no AMQP type, or is out of its range."""


class FrameTooLargeError(EncodeError):
    """A performative does not fit into the largest frame that the peer accepts."""
