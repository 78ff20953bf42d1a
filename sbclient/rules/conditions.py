"""Maps AMQP error conditions and management status codes to the errors of this package, for clients and servers.

Laws:
1. The condition decides. The status decides only if there is no condition, as in the replies of `$cbs`.
2. An unknown condition that starts with `amqp:connection:`, `amqp:session:` or `amqp:link:` means a lost
   connection or link. Any other unknown condition is an internal error of the service.
3. Error texts contain no keys and no signatures.

Source: AMQP 1.0 parts 2 and 4; the documented conditions and status codes of Service Bus.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from sbclient.amqp.errors import DECODE_ERROR, FRAME_SIZE_TOO_SMALL, INVALID_FIELD, NOT_ALLOWED, NOT_IMPLEMENTED
from sbclient.amqp.servicebus import ARGUMENT_ERROR, ARGUMENT_OUT_OF_RANGE, CONTAINER_CLOSE
from sbclient.errors import (
    InvalidOperationError,
    MessageLockLostError,
    MessageNotFoundError,
    MessageSizeExceededError,
    MessagingEntityAlreadyExistsError,
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    OperationTimeoutError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusInternalError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
    SessionCannotBeLockedError,
    SessionLockLostError,
)

_OWN_STATUS: Final[Mapping[type[ServiceBusError], int]] = {
    MessageLockLostError: 410,
    MessageNotFoundError: 404,
    MessageSizeExceededError: 403,
    MessagingEntityAlreadyExistsError: 409,
    MessagingEntityDisabledError: 400,
    MessagingEntityNotFoundError: 404,
    OperationTimeoutError: 408,
    ServiceBusAuthenticationError: 401,
    ServiceBusAuthorizationError: 401,
    ServiceBusConnectionError: 503,
    ServiceBusInternalError: 500,
    ServiceBusQuotaExceededError: 403,
    ServiceBusServerBusyError: 503,
    SessionCannotBeLockedError: 410,
    SessionLockLostError: 410,
}
"""The status code of a management reply with the condition of an error class."""

_CONDITIONS: Final[Mapping[str, tuple[type[ServiceBusError], int]]] = MappingProxyType(
    {
        **{error.condition: (error, status) for error, status in _OWN_STATUS.items() if error.condition},
        DECODE_ERROR: (InvalidOperationError, 400),
        FRAME_SIZE_TOO_SMALL: (InvalidOperationError, 400),
        "amqp:illegal-state": (InvalidOperationError, 400),
        INVALID_FIELD: (InvalidOperationError, 400),
        "amqp:link:detach-forced": (ServiceBusConnectionError, 503),
        NOT_ALLOWED: (InvalidOperationError, 400),
        NOT_IMPLEMENTED: (InvalidOperationError, 501),
        "amqp:precondition-failed": (InvalidOperationError, 412),
        "amqp:resource-deleted": (MessagingEntityNotFoundError, 410),
        "amqp:resource-locked": (ServiceBusInternalError, 409),
        "amqp:transaction:rollback": (ServiceBusError, 400),
        "amqp:transaction:timeout": (ServiceBusError, 408),
        "amqp:transaction:unknown-id": (InvalidOperationError, 404),
        ARGUMENT_ERROR: (InvalidOperationError, 400),
        ARGUMENT_OUT_OF_RANGE: (InvalidOperationError, 400),
        CONTAINER_CLOSE: (ServiceBusConnectionError, 503),
    }
)
"""The error class of a condition, and the status code of a management reply with it."""

BY_CONDITION: Final[Mapping[str, type[ServiceBusError]]] = MappingProxyType(
    {condition: kind for condition, (kind, _) in _CONDITIONS.items()}
)
STATUS_BY_CONDITION: Final[Mapping[str, int]] = MappingProxyType(
    {condition: status for condition, (_, status) in _CONDITIONS.items()}
)

_LOST: Final = ("amqp:connection:", "amqp:session:", "amqp:link:")

BY_STATUS: Final[Mapping[int, type[ServiceBusError]]] = MappingProxyType(
    {
        400: InvalidOperationError,
        401: ServiceBusAuthenticationError,
        403: ServiceBusAuthorizationError,
        404: MessagingEntityNotFoundError,
        408: OperationTimeoutError,
        409: MessagingEntityAlreadyExistsError,
        410: MessagingEntityNotFoundError,
        413: MessageSizeExceededError,
        429: ServiceBusServerBusyError,
        500: ServiceBusInternalError,
        501: InvalidOperationError,
        502: ServiceBusInternalError,
        503: ServiceBusServerBusyError,
        504: OperationTimeoutError,
    }
)

_SECRET: Final = re.compile(
    r"(?i)\b((?:sig|signature|SharedAccessKey|SharedAccessSignature) *= *|SharedAccessSignature +(?=\S*=)|Bearer +)"
    r"[^\s;,&'\"]+"
)
_MAX_TEXT: Final = 600


def error_class(condition: str | None, status: int | None = None) -> type[ServiceBusError]:
    """Return the error class for a condition, or for a status if there is no condition."""
    if condition:
        known = BY_CONDITION.get(condition)
        if known is not None:
            return known
        return ServiceBusConnectionError if condition.startswith(_LOST) else ServiceBusInternalError
    return BY_STATUS.get(status or 0, ServiceBusInternalError)


def error_of(
    subject: str, condition: str | None, description: str | None, status: int | None = None
) -> ServiceBusError:
    """Return the error for a failure response of the service.

    Args:
        subject: the operation and its object, such as `send to 'orders'`.
        condition: the AMQP condition, None if there is none.
        description: the error text of the service, None if there is none.
        status: the status code of a reply.
    """
    reason = description or condition or (f"status {status}" if status else "the service gave no reason")
    return error_class(condition, status)(f"{subject}: {plain_text(reason)}")


def plain_text(text: str) -> str:
    """Return the text as one line of at most 600 characters, without keys and signatures."""
    return _SECRET.sub(r"\1***", " ".join(text.split()))[:_MAX_TEXT]
