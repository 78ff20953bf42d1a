"""Errors of azure-servicebus, and of what lies below it, as ours: one table.

Laws:
1. What put-token was answered with counts before everything: the SDK calls each such failure one of authentication,
   also that of an entity that does not exist.
2. Then the condition that the service gave, then the SDK's class, then the class of what went wrong below it.
3. An unknown condition is an internal error of the service; an unknown failure inside the SDK is one of communication,
   for it nearly always means that the connection broke at an awkward moment.
4. Classes are known by their names, so that this table needs no SDK. No text shows a key or a signature.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from typing import Any, Final, NamedTuple

from sbclient import errors
from sbclient.errors import (
    InvalidOperationError,
    MessageAlreadySettled,
    MessageLockLostError,
    MessageNotFoundError,
    MessageSizeExceededError,
    MessagingEntityAlreadyExistsError,
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    OperationTimeoutError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusCommunicationError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusInternalError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
    SessionCannotBeLockedError,
    SessionLockLostError,
)

_BY_CONDITION: Final[dict[str, type[ServiceBusError]]] = {
    "amqp:connection:forced": ServiceBusConnectionError,
    "amqp:decode-error": InvalidOperationError,
    "amqp:frame-size-too-small": InvalidOperationError,
    "amqp:illegal-state": InvalidOperationError,
    "amqp:internal-error": ServiceBusInternalError,
    "amqp:invalid-field": InvalidOperationError,
    "amqp:link:message-size-exceeded": MessageSizeExceededError,
    "amqp:not-allowed": InvalidOperationError,
    "amqp:not-found": MessagingEntityNotFoundError,
    "amqp:not-implemented": InvalidOperationError,
    "amqp:precondition-failed": InvalidOperationError,
    "amqp:resource-deleted": MessagingEntityNotFoundError,
    "amqp:resource-limit-exceeded": ServiceBusQuotaExceededError,
    "amqp:resource-locked": ServiceBusInternalError,
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

_BROKEN: Final = (
    "amqp:client-error",  # the SDK's own words for "the link is not there any more"
    "amqp:unknown-error",
    "amqp:socket-error",
    "amqp:session:",
    "amqp:connection:",
    "amqp:link:",
)
"""Conditions, or beginnings of some, that mean: this link or connection is lost."""

_BY_STATUS: Final[dict[int, type[ServiceBusError]]] = {
    400: InvalidOperationError,
    401: ServiceBusAuthenticationError,
    403: ServiceBusAuthorizationError,
    404: MessagingEntityNotFoundError,
    405: InvalidOperationError,
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

_BY_SUB_CODE: Final[dict[str, type[ServiceBusError]]] = {
    "40000": InvalidOperationError,
    "40300": ServiceBusQuotaExceededError,
    "40301": ServiceBusQuotaExceededError,
    "40400": MessagingEntityNotFoundError,
    "40900": MessagingEntityAlreadyExistsError,
    "40901": ServiceBusServerBusyError,  # another operation on the entity is under way
    "50004": ServiceBusServerBusyError,  # throttled
}
"""The management API's sub codes say more than its statuses."""

_BY_NAME: Final[dict[str, type[ServiceBusError]]] = {
    **{
        name: kind
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, ServiceBusError) and kind is not ServiceBusError
    },
    # of azure.core
    "ClientAuthenticationError": ServiceBusAuthenticationError,
    "ResourceExistsError": MessagingEntityAlreadyExistsError,
    "ResourceNotFoundError": MessagingEntityNotFoundError,
    "ServiceRequestTimeoutError": OperationTimeoutError,
    "ServiceResponseTimeoutError": OperationTimeoutError,
    "ServiceRequestError": ServiceBusConnectionError,
    "ServiceResponseError": ServiceBusConnectionError,
    # of Python
    "TimeoutError": OperationTimeoutError,
    "OSError": ServiceBusConnectionError,
}

_SECRET: Final = re.compile(r"(?i)\b(sig|signature|SharedAccessKey|SharedAccessSignature|Bearer)([= ]+)[^\s;,'\"]+")
_SUB_CODE: Final = re.compile(r"SubCode=(\d{5})")
_DECORATION: Final = re.compile(r" Error condition: [\w:.-]+\.(?: Status Code: \d+\.)?$")
"""What the SDK puts behind the service's words; the class of the error says it already."""

_NOT_CONNECTED: Final = re.compile(
    r"Failed to initiate the connection due to exception: (?:\[Errno -?\d+\] )?"
    r"|Cannot connect to host \S+ ssl:(?:<[^>]*>|\S+)"
)
"""How the SDK, and the HTTP library below it, begin to say that there is no connection; with objects of Python's."""

_EMULATOR_ADVICE: Final = "; if it is an emulator, add UseDevelopmentEmulator=true to the connection string"

_BYTES: Final = re.compile(r"\bb(['\"])(.*)\1")
_MAX_TEXT: Final = 600

_SAYS_NOTHING: Final = "Operation returned an invalid status"
"""What the SDK says of a list that was refused; the answer itself says why."""

_DETAIL: Final = re.compile(r"<Detail>(.*?)</Detail>", re.DOTALL)


class Place(NamedTuple):
    """Where a namespace is looked for.

    Attributes:
        namespace: its host, with the port if one is named.
        is_perhaps_emulator: a host or a port that the service has not, and nothing says that it is no emulator.
    """

    namespace: str
    is_perhaps_emulator: bool = False


def translated(error: BaseException, subject: str, place: Place | None = None) -> Exception:
    """Our error for one that the SDK raised; raise it `from` that one.

    Args:
        subject: what was being done and with what: `send to 'orders'`.
        place: named where the namespace itself cannot be reached.
    """
    if isinstance(error, ServiceBusError | MessageAlreadySettled):
        return error
    if type(error).__name__ == "MessageAlreadySettled":
        return MessageAlreadySettled(f"{subject}: the message is settled already")
    said = _said(error)
    if place is not None and (reason := _NOT_CONNECTED.match(said)) is not None:
        advice = _EMULATOR_ADVICE if place.is_perhaps_emulator else ""
        said = f"the namespace {place.namespace} cannot be reached: {said[reason.end() :].strip('[] ')}{advice}"
    return _class_of(error)(f"{subject}: {said}")


def _class_of(error: BaseException) -> type[ServiceBusError]:
    for inner in _chain(error):
        if type(inner).__name__ == "TokenAuthFailure":
            return _BY_STATUS.get(_status_of(inner) or 401, ServiceBusAuthenticationError)
    if hasattr(error, "status_code"):
        return _class_of_http(error)
    named = _named(error)
    condition = getattr(error, "_condition", None)
    if named in (OperationTimeoutError, ServiceBusCommunicationError):
        return named
    if isinstance(condition, str):
        if condition in _BY_CONDITION:
            return _BY_CONDITION[condition]
        if condition.startswith(_BROKEN):
            return ServiceBusConnectionError
        return named or ServiceBusInternalError
    if named is not None:
        return named
    for inner in _chain(error):
        if (named := _named(inner)) is not None:
            return named
    return ServiceBusCommunicationError


def _class_of_http(error: Any) -> type[ServiceBusError]:
    """An answer of the management API, or none: then the status is None."""
    sub_code = _SUB_CODE.search(str(error))
    if sub_code and sub_code[1] in _BY_SUB_CODE:
        return _BY_SUB_CODE[sub_code[1]]
    return _BY_STATUS.get(_status_of(error) or 0) or _named(error) or ServiceBusInternalError


def _named(error: BaseException) -> type[ServiceBusError] | None:
    """What the table of names says of the error's class, or of the nearest class above it."""
    return next((_BY_NAME[kind.__name__] for kind in type(error).__mro__ if kind.__name__ in _BY_NAME), None)


def _status_of(error: Any) -> int | None:
    status = getattr(error, "status_code", None)
    return status if isinstance(status, int) else None


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and what lies below it, in the SDK's way (`inner_exception`) and in Python's."""
    seen: list[BaseException] = []
    waiting: list[BaseException | None] = [error]
    while waiting:
        current = waiting.pop(0)
        if not isinstance(current, BaseException) or any(current is each for each in seen):
            continue
        seen.append(current)
        yield current
        waiting += [getattr(current, "inner_exception", None), current.__cause__, current.__context__]


def _said(error: BaseException) -> str:
    """What the service or the SDK said, in one line and without secrets."""
    refusal = next((inner for inner in _chain(error) if type(inner).__name__ == "TokenAuthFailure"), error)
    told = getattr(refusal, "status_description", None) or getattr(refusal, "message", None) or refusal
    if str(told).startswith(_SAYS_NOTHING):
        told = _detail(error) or f"status {_status_of(error)} of the management API"
    text = " ".join(str(told).split()) or type(error).__name__
    text = _DECORATION.sub("", _BYTES.sub(r"\2", text))
    return _SECRET.sub(r"\1\2***", text)[:_MAX_TEXT]


def _detail(error: BaseException) -> str | None:
    """What the answer of the management API says, where the SDK has not read it."""
    try:
        answer = getattr(error, "response", None)
        found = _DETAIL.search(answer.text()) if answer is not None else None
    except Exception:  # whatever is wrong with a body, the error is told by its status
        return None
    return unescape(found[1]) if found else None
