"""The exceptions of this package.

The names are those of `azure.servicebus.exceptions`; the ones marked *ours* have no counterpart there.

    ServiceBusError
    ├── OperationTimeoutError                outage, transient
    ├── ServiceBusConnectionError            outage, transient
    ├── ServiceBusCommunicationError         outage, transient
    ├── ServiceBusInternalError (ours)       outage, transient: an internal or unknown error of the service
    ├── MessagingEntityDisabledError         outage
    ├── MessagingEntityNotFoundError         outage once the client has sent there before, see `rules.failover`
    ├── ServiceBusQuotaExceededError         outage
    ├── ServiceBusServerBusyError            outage, transient: each retry waits 10 s
    ├── ServiceBusAuthenticationError
    ├── ServiceBusAuthorizationError
    ├── MessagingEntityAlreadyExistsError
    ├── MessageSizeExceededError             also a ValueError
    ├── MessageLockLostError
    ├── MessageNotFoundError
    ├── SessionLockLostError
    ├── SessionCannotBeLockedError
    ├── AutoLockRenewFailed
    ├── AutoLockRenewTimeout
    ├── InvalidOperationError (ours)         also a ValueError: the caller's own mistake
    │   ├── ArgumentTypeError (ours)         also a TypeError
    │   └── TransactionNotSupportedError (ours)
    ├── BacklogUnavailableError (ours)       the primary and every backlog queue rejected the message
    ├── PairedClientError (ours)             the partner namespace was closed or faulted
    └── ScheduleUnavailableError (ours)      no sequence number can be returned while failed over
    MessageAlreadySettled                    a ValueError, as in the SDK

The class attributes `is_outage` (the error starts the failover interval) and `is_transient` (the retry policy tries
again) are the only source of this classification.

In a program that has imported azure-servicebus, an error of this package is also one of the class of that name there:
an `except` clause that still names a class of azure-servicebus works.

As in azure-servicebus, the root is an `azure.core.exceptions.AzureError`. Errors that its administration client raises
as a class of azure.core derive from that class too: `except ResourceNotFoundError` catches a
`MessagingEntityNotFoundError`. Their `status_code` is the HTTP status of the class, on every transport.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import MappingProxyType, ModuleType
from typing import ClassVar, Final, TypeVar

from azure.core.exceptions import (
    AzureError,
    ClientAuthenticationError,
    HttpResponseError,
    ResourceExistsError,
    ResourceNotFoundError,
    ServiceRequestError,
    ServiceResponseTimeoutError,
)

__all__ = [
    "ArgumentTypeError",
    "AutoLockRenewFailed",
    "AutoLockRenewTimeout",
    "BacklogUnavailableError",
    "InvalidOperationError",
    "MessageAlreadySettled",
    "MessageLockLostError",
    "MessageNotFoundError",
    "MessageSizeExceededError",
    "MessagingEntityAlreadyExistsError",
    "MessagingEntityDisabledError",
    "MessagingEntityNotFoundError",
    "OperationTimeoutError",
    "PairedClientError",
    "ScheduleUnavailableError",
    "ServiceBusAuthenticationError",
    "ServiceBusAuthorizationError",
    "ServiceBusCommunicationError",
    "ServiceBusConnectionError",
    "ServiceBusError",
    "ServiceBusInternalError",
    "ServiceBusQuotaExceededError",
    "ServiceBusServerBusyError",
    "SessionCannotBeLockedError",
    "SessionLockLostError",
    "TransactionNotSupportedError",
]


E = TypeVar("E", bound="ServiceBusError")


class ServiceBusError(AzureError):
    """The base class of the errors of this package.

    Attributes:
        is_outage: whether the error, if it remains after the retries, means that the entity is unavailable.
        is_transient: whether a retry may succeed.
        is_in_doubt: whether the operation may have succeeded nevertheless, in this attempt or in an earlier one.
        condition: the AMQP error condition of the class; None if only the client raises it.
        message: the error text.
        status_code: the HTTP status of the class, None if it has none.
        inner_exception: the error that caused this one, None if there is none.

    Args:
        message: the error text; None = a general one of the class.
        error: the cause.
        is_in_doubt: whether the operation may have succeeded; None = as the class says.
    """

    is_outage: ClassVar[bool] = False
    is_transient: ClassVar[bool] = False
    condition: ClassVar[str | None] = None
    is_in_doubt: bool = False
    _status: ClassVar[int | None] = None

    def __init__(
        self, message: str | None = None, *, error: BaseException | None = None, is_in_doubt: bool | None = None
    ) -> None:
        _join_sdk()
        if is_in_doubt is not None:
            self.is_in_doubt = is_in_doubt
        if message is None:
            message = (type(self).__doc__ or type(self).__name__).splitlines()[0]
        # Not the constructors of azure-servicebus, whose arguments differ.
        if isinstance(self, HttpResponseError):
            HttpResponseError.__init__(self, message)
        else:
            AzureError.__init__(self, message)
        # The base class keeps the error that is being handled, whose text and frames may show a body or a key.
        self.exc_type = self.exc_value = self.exc_traceback = None
        self.exc_msg = message
        self.status_code: int | None = self._status
        self.inner_exception = error

    @property
    def inner_exception(self) -> BaseException | None:
        """The cause, as `raise ... from cause` sets it."""
        return self.__cause__

    @inner_exception.setter
    def inner_exception(self, error: BaseException | None) -> None:  # the base class assigns it
        if error is not None:
            self.__cause__ = error


class OperationTimeoutError(ServiceBusError, ServiceResponseTimeoutError):
    """The service did not answer in time; whether it acted is in doubt."""

    is_outage = True
    is_transient = True
    is_in_doubt = True
    condition = "com.microsoft:timeout"


class ServiceBusConnectionError(ServiceBusError, ServiceRequestError):
    """The connection could not be established, or was lost."""

    is_outage = True
    is_transient = True
    is_in_doubt = True
    condition = "amqp:connection:forced"


class ServiceBusCommunicationError(ServiceBusError):
    """The peer violated the protocol or could not be reached."""

    is_outage = True
    is_transient = True
    is_in_doubt = True


class ServiceBusInternalError(ServiceBusError, HttpResponseError):
    """The service reported an internal error, or an error that this client does not know."""

    _status = 500
    is_outage = True
    is_transient = True
    condition = "amqp:internal-error"


class MessagingEntityDisabledError(ServiceBusError):
    """The entity is disabled for this operation."""

    is_outage = True
    condition = "com.microsoft:entity-disabled"


class MessagingEntityNotFoundError(ServiceBusError, ResourceNotFoundError):
    """The entity does not exist. An outage only if it existed before: see `rules.failover.is_outage`."""

    _status = 404
    condition = "amqp:not-found"


class ServiceBusQuotaExceededError(ServiceBusError, HttpResponseError):
    """The entity is full, or a limit of the namespace is reached."""

    _status = 403
    is_outage = True
    condition = "amqp:resource-limit-exceeded"


class ServiceBusServerBusyError(ServiceBusError, HttpResponseError):
    """The service throttles requests; wait 10 s."""

    _status = 503
    is_outage = True
    is_transient = True
    condition = "com.microsoft:server-busy"


class ServiceBusAuthenticationError(ServiceBusError, ClientAuthenticationError):
    """The credential was rejected."""

    _status = 401
    condition = "com.microsoft:auth-failed"


class ServiceBusAuthorizationError(ServiceBusError, HttpResponseError):
    """The credential is valid but lacks the right."""

    _status = 403
    condition = "amqp:unauthorized-access"


class MessagingEntityAlreadyExistsError(ServiceBusError, ResourceExistsError):
    """An entity with this name exists."""

    _status = 409
    condition = "com.microsoft:entity-already-exists"


class MessageSizeExceededError(ServiceBusError, ValueError):
    """The message, or the batch, is larger than the entity accepts."""

    condition = "amqp:link:message-size-exceeded"


class MessageLockLostError(ServiceBusError):
    """The lock on the message has expired or never existed; the message will be delivered again."""

    condition = "com.microsoft:message-lock-lost"


class MessageNotFoundError(ServiceBusError):
    """The message with this sequence number does not exist, or is locked by another receiver."""

    condition = "com.microsoft:message-not-found"


class SessionLockLostError(ServiceBusError):
    """The lock on the session has expired; accept the session again."""

    condition = "com.microsoft:session-lock-lost"


class SessionCannotBeLockedError(ServiceBusError):
    """Another receiver holds the session."""

    condition = "com.microsoft:session-cannot-be-locked"


class AutoLockRenewFailed(ServiceBusError):
    """A lock could not be renewed in the background."""


class AutoLockRenewTimeout(ServiceBusError):
    """The maximum duration of the background lock renewal has passed."""


class InvalidOperationError(ServiceBusError, HttpResponseError, ValueError):
    """The call is invalid, or the entity does not allow it. Never retried; nothing was sent or changed."""

    _status = 400
    condition = "amqp:not-allowed"


class ArgumentTypeError(InvalidOperationError, TypeError):
    """An argument has the wrong type."""


class TransactionNotSupportedError(InvalidOperationError):
    """The transport does not support this operation in a transaction."""


class BacklogUnavailableError(ServiceBusError):
    """Neither the primary nor a backlog queue accepted the message. It may have been stored only if `is_in_doubt`.

    Attributes:
        causes: the errors of the backlog queues that were tried, by queue name.
    """

    def __init__(
        self, message: str, causes: Mapping[str, Exception] = MappingProxyType({}), *, is_in_doubt: bool = False
    ) -> None:
        listed = "; ".join(f"{queue}: {type(cause).__name__}: {cause}" for queue, cause in causes.items())
        super().__init__(f"{message} [{listed}]" if listed else message, is_in_doubt=is_in_doubt)
        self.causes = dict(causes)


class PairedClientError(ServiceBusError):
    """The client of one namespace of the pair was closed or faulted. Open a new client."""


class ScheduleUnavailableError(ServiceBusError):
    """The entity is failed over, so that no sequence number can be returned for a scheduled message."""


def with_doubt(error: E, is_in_doubt: bool) -> E:
    """Return an error that says whether the operation may have succeeded."""
    error.is_in_doubt = is_in_doubt
    return error


def keep_doubt(error: E, earlier: bool) -> E:
    """Return the error of the last attempt, which does not settle what an earlier one left in doubt."""
    return with_doubt(error, error.is_in_doubt or earlier)


def without_doubt(error: E) -> E:
    """Return an error of a step that comes before the operation, so that nothing has happened."""
    return with_doubt(error, False)


class _OwnValueError(ValueError):
    """A base that Python lets `_join_sdk` add another one to; it does not for a built-in class alone."""


class MessageAlreadySettled(_OwnValueError):
    """This receiver has already settled the message."""

    def __init__(self, message: str | None = None, *, action: str = "settle") -> None:
        _join_sdk()
        ValueError.__init__(self, message or f"cannot {action} the message: it is already settled, or deleted")


_SDK: Final = "azure.servicebus.exceptions"
_joined: list[ModuleType] = []


def _join_sdk() -> None:
    """Derive the classes from those of the same name in azure-servicebus, once that is imported.

    An `except` clause asks for a real base class, and importing azure-servicebus for it would take half a second.
    """
    theirs = sys.modules.get(_SDK)
    if theirs is None or theirs in _joined or getattr(theirs.__spec__, "_initializing", False):
        return
    for name in sorted(__all__, key="ServiceBusError".__ne__):  # the root first: the others derive from it
        ours, base = globals()[name], getattr(theirs, name, None)
        if isinstance(base, type) and not issubclass(ours, base):
            bases = [one for one in ours.__bases__ if not issubclass(base, one)]
            ours.__bases__ = (*bases[:1], base, *bases[1:])
    _joined.append(theirs)
