"""Paired namespaces for Azure Service Bus, and the partitioned broker to test them against.

Each public name is imported on first use, so that the emulator, a Spark worker and the command line import only the
parts that they need.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sbclient.version import VERSION

if TYPE_CHECKING:
    from sbclient.administration import ServiceBusAdministrationClient
    from sbclient.client.batch import ServiceBusMessageBatch
    from sbclient.client.client import ServiceBusClient
    from sbclient.client.lock_renewer import AutoLockRenewer
    from sbclient.client.receiver import ServiceBusReceiver, ServiceBusSession
    from sbclient.client.sender import ServiceBusSender
    from sbclient.client.transaction import Transaction
    from sbclient.delivery import (
        NEXT_AVAILABLE_SESSION,
        ServiceBusReceiveMode,
        ServiceBusSessionFilter,
        ServiceBusSubQueue,
    )
    from sbclient.errors import (
        ArgumentTypeError,
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
    from sbclient.message import (
        AmqpMessageBodyType,
        ServiceBusMessage,
        ServiceBusMessageState,
        ServiceBusReceivedMessage,
    )
    from sbclient.options import ORIGINAL_OUTAGE_ERRORS, PairedNamespaceOptions, RetryOptions, SyphonLimits
    from sbclient.pairing.pair import Pair
    from sbclient.pairing.status import PairEvent, PairStatus
    from sbclient.rules.connection_string import ServiceBusConnectionStringProperties, parse_connection_string
    from sbclient.rules.failover import FailoverState
    from sbclient.syphon.syphon import SyphonReport
    from sbclient.transport.base import TransportType

__version__ = VERSION
__all__ = [
    "NEXT_AVAILABLE_SESSION",
    "ORIGINAL_OUTAGE_ERRORS",
    "AmqpMessageBodyType",
    "ArgumentTypeError",
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

_MODULES = (
    "errors",
    "delivery",
    "message",
    "options",
    "transport.base",
    "rules.connection_string",
    "rules.failover",
    "administration",
    "client.batch",
    "client.lock_renewer",
    "pairing.pair",
    "pairing.status",
    "client.transaction",
    "client.receiver",
    "client.sender",
    "syphon.syphon",
    "client.client",
)
"""The modules that define the public names, those that import least first."""


def __getattr__(name: str) -> Any:
    if name in __all__:
        for module_name in _MODULES:
            module = import_module(f"sbclient.{module_name}")
            if name in vars(module):
                value = globals()[name] = getattr(module, name)
                return value
    raise AttributeError(f"module 'sbclient' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
