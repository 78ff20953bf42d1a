"""Translates errors of azure-servicebus, and of the libraries below it, into errors of this package.

The first rule that applies decides:

1. The status with which the service rejected a token. The SDK reports each such rejection as a failed authentication,
   even if the entity does not exist.
2. The condition in the text of the error, by `sbclient.rules.conditions`; then the class of the error; then the classes
   of its causes.
3. An unknown condition is an internal error of the service. An unknown exception of the SDK is an error of
   communication, since it nearly always means that the connection was lost.

Classes are compared by name, so this module does not import the SDK. No text contains a key or a signature.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from typing import Any, Final, NamedTuple

from sbclient import errors
from sbclient.formats import refusal_reason
from sbclient.rules.conditions import BY_CONDITION, BY_STATUS, plain_text

_BROKEN: Final = (
    "amqp:client-error",  # the SDK reports a link that is gone
    "amqp:unknown-error",
    "amqp:socket-error",
    "amqp:session:",
    "amqp:connection:",
    "amqp:link:",
)
"""Prefixes of the conditions that mean that a link or connection is lost."""

_HTTP_STATUS: Final = {**BY_STATUS, 405: errors.InvalidOperationError}

_BY_SUB_CODE: Final[dict[str, type[errors.ServiceBusError]]] = {
    "40000": errors.InvalidOperationError,
    "40300": errors.ServiceBusQuotaExceededError,
    "40301": errors.ServiceBusQuotaExceededError,
    "40400": errors.MessagingEntityNotFoundError,
    "40900": errors.MessagingEntityAlreadyExistsError,
    "40901": errors.ServiceBusServerBusyError,  # another operation on the entity is running
    "50004": errors.ServiceBusServerBusyError,  # throttled
}
"""Errors by the sub code of the management API, which is more precise than the status."""

_BY_NAME: Final[dict[str, type[errors.ServiceBusError]]] = {
    **{
        name: kind
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, errors.ServiceBusError) and kind is not errors.ServiceBusError
    },
    # of azure.core
    "ClientAuthenticationError": errors.ServiceBusAuthenticationError,
    "ResourceExistsError": errors.MessagingEntityAlreadyExistsError,
    "ResourceNotFoundError": errors.MessagingEntityNotFoundError,
    "ServiceRequestTimeoutError": errors.OperationTimeoutError,
    "ServiceResponseTimeoutError": errors.OperationTimeoutError,
    "ServiceRequestError": errors.ServiceBusConnectionError,
    "ServiceResponseError": errors.ServiceBusConnectionError,
    "IncompleteReadError": errors.ServiceBusConnectionError,
    "DecodeError": errors.ServiceBusCommunicationError,
    # of Python
    "TimeoutError": errors.OperationTimeoutError,
    "OSError": errors.ServiceBusConnectionError,
}

_SUB_CODE: Final = re.compile(r"SubCode=(\d{5})")
_CONDITION: Final = re.compile(r"Error condition: ([\w:.-]+?)\.(?:\s|$)")
"""The end of the text of an SDK error with a condition of the service."""

_DECORATION: Final = re.compile(r" Error condition: [\w:.-]+\.(?: Status Code: \d+\.)?$")
"""Text that the SDK adds to the description of the service; the class of our error says the same."""

_NOT_CONNECTED: Final = re.compile(
    r"Failed to initiate the connection due to exception: (?:\[Errno -?\d+\] )?"
    r"|Cannot connect to host \S+ ssl:(?:<[^>]*>|\S+)"
)
"""The beginning of errors of the SDK and of its HTTP library about a connection that could not be opened."""

_EMULATOR_ADVICE: Final = "; if it is an emulator, add UseDevelopmentEmulator=true to the connection string"

_TRUST_ADVICE: Final = "; set SSL_CERT_FILE to the certificate that the emulator printed when it started"

_BYTES: Final = re.compile(r"\bb(['\"])(.*)\1")

_NO_REASON: Final = "Operation returned an invalid status"
"""The text of the SDK for a rejected list request; the reason is in the body of the reply."""

_DETAIL: Final = re.compile(r"<Detail>(.*?)</Detail>", re.DOTALL)


class Place(NamedTuple):
    """The address of a namespace, for errors.

    Attributes:
        namespace: its host, with the port if one is given.
        is_emulator: whether the connection string says so.
        is_perhaps_emulator: whether the service has no such host or port, and the connection string does not mention
            an emulator.
    """

    namespace: str
    is_emulator: bool = False
    is_perhaps_emulator: bool = False


def translated(error: BaseException, subject: str, place: Place | None = None) -> Exception:
    """Return the error of this package for an error that the SDK raised.

    Args:
        subject: the operation and its object: `send to 'orders'`.
        place: named in the text if the namespace cannot be reached.
    """
    if isinstance(error, errors.ServiceBusError | errors.MessageAlreadySettled):
        return error
    if type(error).__name__ == "MessageAlreadySettled":
        return errors.MessageAlreadySettled(f"{subject}: the message is already settled")
    text = _text_of(error)
    if place is not None and (reason := _NOT_CONNECTED.match(text)) is not None:
        advice = _EMULATOR_ADVICE if place.is_perhaps_emulator else ""
        if place.is_emulator and any(type(inner).__name__ == "SSLCertVerificationError" for inner in _chain(error)):
            advice = _TRUST_ADVICE
        text = f"the namespace {place.namespace} cannot be reached: {text[reason.end() :].strip('[] ')}{advice}"
    return _class_of(error)(f"{subject}: {text}")


def _class_of(error: BaseException) -> type[errors.ServiceBusError]:
    for inner in _chain(error):
        if type(inner).__name__ == "TokenAuthFailure":
            return _HTTP_STATUS.get(_status_of(inner) or 401, errors.ServiceBusAuthenticationError)
    if hasattr(error, "status_code"):
        return _class_of_http(error)
    named = _named(error)
    stated = _CONDITION.search(str(error))
    condition = None if stated is None else stated[1]
    if named in (errors.OperationTimeoutError, errors.ServiceBusCommunicationError):
        return named
    if condition is not None:
        if condition in BY_CONDITION:
            return BY_CONDITION[condition]
        if condition.startswith(_BROKEN):
            return errors.ServiceBusConnectionError
        return named or errors.ServiceBusInternalError
    if named is not None:
        return named
    for inner in _chain(error):
        if (named := _named(inner)) is not None:
            return named
    return errors.ServiceBusCommunicationError


def _class_of_http(error: Any) -> type[errors.ServiceBusError]:
    """Return the class for an error of the management API; its status is None if there was no reply."""
    sub_code = _SUB_CODE.search(str(error))
    if sub_code and sub_code[1] in _BY_SUB_CODE:
        return _BY_SUB_CODE[sub_code[1]]
    status = _status_of(error) or 0
    if status // 100 == 3:
        return errors.ServiceBusCommunicationError
    return _HTTP_STATUS.get(status) or _named(error) or errors.ServiceBusInternalError


def _named(error: BaseException) -> type[errors.ServiceBusError] | None:
    """Return the class of `_BY_NAME` for the class of the error, or for its nearest base class."""
    return next((_BY_NAME[kind.__name__] for kind in type(error).__mro__ if kind.__name__ in _BY_NAME), None)


def _status_of(error: Any) -> int | None:
    status = getattr(error, "status_code", None)
    return status if isinstance(status, int) else None


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield the error, its `inner_exception` of the SDK, its cause and its context, recursively."""
    seen: list[BaseException] = []
    waiting: list[BaseException | None] = [error]
    while waiting:
        current = waiting.pop(0)
        if not isinstance(current, BaseException) or any(current is each for each in seen):
            continue
        seen.append(current)
        yield current
        waiting += [getattr(current, "inner_exception", None), current.__cause__, current.__context__]


def _text_of(error: BaseException) -> str:
    """Return the text of the service or of the SDK, in one line and without secrets."""
    refusal = next((inner for inner in _chain(error) if type(inner).__name__ == "TokenAuthFailure"), error)
    text = getattr(refusal, "status_description", None) or getattr(refusal, "message", None) or refusal
    if str(text).startswith(_NO_REASON):
        text = _detail(error) or _answered(_status_of(error))
    line = " ".join(str(text).split()) or type(error).__name__
    return plain_text(_DECORATION.sub("", _BYTES.sub(_without_prefix, line))) + _emulator_reason(error)


def _emulator_reason(error: BaseException) -> str:
    """Return the reason that an emulator states beside the words of the service, as a sentence; empty = none."""
    headers = getattr(getattr(error, "response", None), "headers", None) or {}
    stated = headers.get(refusal_reason.HEADER)
    return f" The emulator's reason: {plain_text(refusal_reason.read_reason(stated))}" if stated else ""


def _without_prefix(literal: re.Match[str]) -> str:
    """Return the content of `b'...'`; what it matched if the quote ends a quoted name that ends in `b`."""
    is_inside = literal.string.count(literal[1], 0, literal.start()) % 2
    return literal[0] if is_inside else literal[2]


def _answered(status: int | None) -> str:
    if status is not None and status // 100 == 3:
        return f"the management API redirects to another address (status {status}), which is not followed"
    return f"status {status} of the management API"


def _detail(error: BaseException) -> str | None:
    """Return the reason in the body of a reply of the management API, None if there is none."""
    try:
        reply = getattr(error, "response", None)
        found = _DETAIL.search(reply.text()) if reply is not None else None
    except Exception:  # an unreadable body: the status is reported instead
        return None
    return unescape(found[1]) if found else None
