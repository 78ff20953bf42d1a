"""Maps AMQP error conditions and management status codes to the errors of this package.

Laws:
1. The condition decides. The status decides only if there is no condition, as in the replies of `$cbs`.
2. An unknown condition below `amqp:connection:`, `amqp:session:` or `amqp:link:` means that the connection or link is
   lost. Any other unknown condition is an internal error of the service.
3. No text shows a key or a signature.

Source: AMQP 1.0 parts 2 and 4; the documented conditions and status codes of Service Bus.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

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

BY_CONDITION: Final[Mapping[str, type[ServiceBusError]]] = MappingProxyType(
    {
        "amqp:connection:forced": ServiceBusConnectionError,
        "amqp:decode-error": InvalidOperationError,
        "amqp:frame-size-too-small": InvalidOperationError,
        "amqp:illegal-state": InvalidOperationError,
        "amqp:internal-error": ServiceBusInternalError,
        "amqp:invalid-field": InvalidOperationError,
        "amqp:link:detach-forced": ServiceBusConnectionError,
        "amqp:link:message-size-exceeded": MessageSizeExceededError,
        "amqp:not-allowed": InvalidOperationError,
        "amqp:not-found": MessagingEntityNotFoundError,
        "amqp:not-implemented": InvalidOperationError,
        "amqp:precondition-failed": InvalidOperationError,
        "amqp:resource-deleted": MessagingEntityNotFoundError,
        "amqp:resource-limit-exceeded": ServiceBusQuotaExceededError,
        "amqp:resource-locked": ServiceBusInternalError,
        "amqp:transaction:rollback": ServiceBusError,
        "amqp:transaction:timeout": ServiceBusError,
        "amqp:transaction:unknown-id": InvalidOperationError,
        "amqp:unauthorized-access": ServiceBusAuthorizationError,
        "com.microsoft:argument-error": InvalidOperationError,
        "com.microsoft:argument-out-of-range": InvalidOperationError,
        "com.microsoft:auth-failed": ServiceBusAuthenticationError,
        "com.microsoft:container-close": ServiceBusConnectionError,
        "com.microsoft:entity-already-exists": MessagingEntityAlreadyExistsError,
        "com.microsoft:entity-disabled": MessagingEntityDisabledError,
        "com.microsoft:message-lock-lost": MessageLockLostError,
        "com.microsoft:message-not-found": MessageNotFoundError,
        "com.microsoft:server-busy": ServiceBusServerBusyError,
        "com.microsoft:session-cannot-be-locked": SessionCannotBeLockedError,
        "com.microsoft:session-lock-lost": SessionLockLostError,
        "com.microsoft:timeout": OperationTimeoutError,
    }
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

_SECRET: Final = re.compile(r"(?i)\b(sig|signature|SharedAccessKey|SharedAccessSignature|Bearer)([= ]+)[^\s;,&'\"]+")
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
    return _SECRET.sub(r"\1\2***", " ".join(text.split()))[:_MAX_TEXT]
