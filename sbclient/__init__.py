"""Paired namespaces for Azure Service Bus, and the partitioned broker to test them against.

Each name is imported when it is first asked for, so that a program pays only for what it uses: the emulator, a Spark
worker and the command line each need a small part of the house.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sbclient.administration import ServiceBusAdministrationClient
    from sbclient.batch import ServiceBusMessageBatch
    from sbclient.client import ServiceBusClient
    from sbclient.errors import (
        AutoLockRenewFailed,
        AutoLockRenewTimeout,
        BacklogUnavailableError,
        InvalidOperationError,
        MessageAlreadySettled,
        MessageLockLostError,
        MessageNotFoundError,
        MessageSizeExceededError,
        MessagingEntityAlreadyExistsError,
        MessagingEntityDisabledError,
        MessagingEntityNotFoundError,
        OperationTimeoutError,
        PairedClientError,
        ScheduleUnavailableError,
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
        TransactionNotSupportedError,
    )
    from sbclient.lock_renewer import AutoLockRenewer
    from sbclient.message import (
        AmqpMessageBodyType,
        ServiceBusMessage,
        ServiceBusMessageState,
        ServiceBusReceivedMessage,
    )
    from sbclient.options import PairedNamespaceOptions, RetryOptions, SyphonLimits
    from sbclient.pair import Pair, PairEvent, PairStatus
    from sbclient.receiver import ServiceBusReceiver, ServiceBusSession
    from sbclient.rules.connection_string import ServiceBusConnectionStringProperties, parse_connection_string
    from sbclient.rules.failover import FailoverState
    from sbclient.sender import ServiceBusSender
    from sbclient.syphon import SyphonReport
    from sbclient.transaction import Transaction
    from sbclient.transport.base import (
        NEXT_AVAILABLE_SESSION,
        ServiceBusReceiveMode,
        ServiceBusSessionFilter,
        ServiceBusSubQueue,
        TransportType,
    )

__all__ = [
    "NEXT_AVAILABLE_SESSION",
    "AmqpMessageBodyType",
    "AutoLockRenewFailed",
    "AutoLockRenewTimeout",
    "AutoLockRenewer",
    "BacklogUnavailableError",
    "FailoverState",
    "InvalidOperationError",
    "MessageAlreadySettled",
    "MessageLockLostError",
    "MessageNotFoundError",
    "MessageSizeExceededError",
    "MessagingEntityAlreadyExistsError",
    "MessagingEntityDisabledError",
    "MessagingEntityNotFoundError",
    "OperationTimeoutError",
    "Pair",
    "PairEvent",
    "PairStatus",
    "PairedClientError",
    "PairedNamespaceOptions",
    "RetryOptions",
    "ScheduleUnavailableError",
    "ServiceBusAdministrationClient",
    "ServiceBusAuthenticationError",
    "ServiceBusAuthorizationError",
    "ServiceBusClient",
    "ServiceBusCommunicationError",
    "ServiceBusConnectionError",
    "ServiceBusConnectionStringProperties",
    "ServiceBusError",
    "ServiceBusInternalError",
    "ServiceBusMessage",
    "ServiceBusMessageBatch",
    "ServiceBusMessageState",
    "ServiceBusQuotaExceededError",
    "ServiceBusReceiveMode",
    "ServiceBusReceivedMessage",
    "ServiceBusReceiver",
    "ServiceBusSender",
    "ServiceBusServerBusyError",
    "ServiceBusSession",
    "ServiceBusSessionFilter",
    "ServiceBusSubQueue",
    "SessionCannotBeLockedError",
    "SessionLockLostError",
    "SyphonLimits",
    "SyphonReport",
    "Transaction",
    "TransactionNotSupportedError",
    "TransportType",
    "parse_connection_string",
]

_HOMES: dict[str, tuple[str, ...]] = {
    "administration": ("ServiceBusAdministrationClient",),
    "batch": ("ServiceBusMessageBatch",),
    "client": ("ServiceBusClient",),
    "errors": (
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
    ),
    "lock_renewer": ("AutoLockRenewer",),
    "message": (
        "AmqpMessageBodyType",
        "ServiceBusMessage",
        "ServiceBusMessageState",
        "ServiceBusReceivedMessage",
    ),
    "options": (
        "PairedNamespaceOptions",
        "RetryOptions",
        "SyphonLimits",
    ),
    "pair": (
        "Pair",
        "PairEvent",
        "PairStatus",
    ),
    "receiver": (
        "ServiceBusReceiver",
        "ServiceBusSession",
    ),
    "rules.connection_string": (
        "ServiceBusConnectionStringProperties",
        "parse_connection_string",
    ),
    "rules.failover": ("FailoverState",),
    "sender": ("ServiceBusSender",),
    "syphon": ("SyphonReport",),
    "transaction": ("Transaction",),
    "transport.base": (
        "NEXT_AVAILABLE_SESSION",
        "ServiceBusReceiveMode",
        "ServiceBusSessionFilter",
        "ServiceBusSubQueue",
        "TransportType",
    ),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'sbclient' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"sbclient.{_HOME_OF[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
