"""Every error a caller can meet, as one tree.

The names are those of `azure.servicebus.exceptions`; the ones marked *ours* have no counterpart there.

    ServiceBusError
    ├── OperationTimeoutError                outage, transient
    ├── ServiceBusConnectionError            outage, transient
    ├── ServiceBusCommunicationError         outage, transient
    ├── ServiceBusInternalError (ours)       outage, transient: an internal or unknown error of the service
    ├── MessagingEntityDisabledError         outage
    ├── MessagingEntityNotFoundError         outage once the client has sent there before, see `rules.failover`
    ├── ServiceBusQuotaExceededError         outage
    ├── ServiceBusServerBusyError            transient: wait 10 s, never a reason to fail over
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
    │   └── TransactionNotSupportedError (ours)
    ├── BacklogUnavailableError (ours)       primary and every backlog queue refused; the message was not accepted
    ├── PairedClientError (ours)             the partner namespace was closed or faulted
    └── ScheduleUnavailableError (ours)      no sequence number can be given while failed over
    MessageAlreadySettled                    a ValueError, as in the SDK

Which error is an *outage* (it starts the failover interval) and which is *transient* (the retry policy tries again)
is said here and nowhere else, as the class attributes `is_outage` and `is_transient`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar


class ServiceBusError(Exception):
    """The root of every error of this package.

    Attributes:
        is_outage: whether the error, once it has survived the retries, means that the entity cannot be reached.
        is_transient: whether trying again may help.
        is_in_doubt: whether what was asked for may have been done all the same, by this try or by one before it.
        condition: the AMQP error condition the class stands for, or None where only the client raises it.
        message: the text.
    """

    is_outage: ClassVar[bool] = False
    is_transient: ClassVar[bool] = False
    condition: ClassVar[str | None] = None
    is_in_doubt: bool = False

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class OperationTimeoutError(ServiceBusError):
    """The service did not answer in time; whether it acted is in doubt."""

    is_outage = True
    is_transient = True
    is_in_doubt = True
    condition = "com.microsoft:timeout"


class ServiceBusConnectionError(ServiceBusError):
    """The connection could not be made, or was lost."""

    is_outage = True
    is_transient = True
    is_in_doubt = True
    condition = "amqp:connection:forced"


class ServiceBusCommunicationError(ServiceBusError):
    """The peer could not be understood or reached."""

    is_outage = True
    is_transient = True
    is_in_doubt = True


class ServiceBusInternalError(ServiceBusError):
    """The service reported an internal error, or one this client does not know."""

    is_outage = True
    is_transient = True
    condition = "amqp:internal-error"


class MessagingEntityDisabledError(ServiceBusError):
    """The entity is disabled for this operation."""

    is_outage = True
    condition = "com.microsoft:entity-disabled"


class MessagingEntityNotFoundError(ServiceBusError):
    """The entity does not exist. An outage only if it existed before: see `rules.failover.is_outage`."""

    condition = "amqp:not-found"


class ServiceBusQuotaExceededError(ServiceBusError):
    """The entity is full, or a limit of the namespace is reached."""

    is_outage = True
    condition = "amqp:resource-limit-exceeded"


class ServiceBusServerBusyError(ServiceBusError):
    """The service is throttling; it asks for a pause of 10 s."""

    is_transient = True
    condition = "com.microsoft:server-busy"


class ServiceBusAuthenticationError(ServiceBusError):
    """The credential was not accepted."""

    condition = "com.microsoft:auth-failed"


class ServiceBusAuthorizationError(ServiceBusError):
    """The credential is good but lacks the right."""

    condition = "amqp:unauthorized-access"


class MessagingEntityAlreadyExistsError(ServiceBusError):
    """An entity with this name exists."""

    condition = "com.microsoft:entity-already-exists"


class MessageSizeExceededError(ServiceBusError, ValueError):
    """The message, or the batch, is larger than the entity accepts."""

    condition = "amqp:link:message-size-exceeded"


class MessageLockLostError(ServiceBusError):
    """The lock on the message has expired or was never given; the message will be delivered again."""

    condition = "com.microsoft:message-lock-lost"


class MessageNotFoundError(ServiceBusError):
    """No message with this sequence number can be had: it does not exist, or somebody holds it."""

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
    """The time given for renewing a lock in the background is over."""


class InvalidOperationError(ServiceBusError, ValueError):
    """The caller asks for what the entity's rules forbid. Never retried; nothing was sent or changed."""

    condition = "amqp:not-allowed"


class TransactionNotSupportedError(InvalidOperationError):
    """This transport cannot do that inside a transaction."""


class BacklogUnavailableError(ServiceBusError):
    """Neither the primary nor any backlog queue took the message: it was not accepted, unless `is_in_doubt`.

    Attributes:
        causes: what each backlog queue that was tried answered, by queue name.
    """

    def __init__(self, message: str, causes: Mapping[str, Exception] = MappingProxyType({})) -> None:
        listed = "; ".join(f"{queue}: {type(cause).__name__}: {cause}" for queue, cause in causes.items())
        super().__init__(f"{message} [{listed}]" if listed else message)
        self.causes = dict(causes)


class PairedClientError(ServiceBusError):
    """The pair is broken: one namespace's client was closed or faulted. Open a new client."""


class ScheduleUnavailableError(ServiceBusError):
    """While an entity is failed over no sequence number can be returned, so nothing can be scheduled by number."""


class MessageAlreadySettled(ValueError):
    """The message was settled before, by this receiver."""
