"""Paired namespaces for Azure Service Bus, and the partitioned broker to test them against."""

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
from sbclient.options import PairedNamespaceOptions, RetryOptions
from sbclient.pair import Pair, PairEvent, PairStatus
from sbclient.receiver import ServiceBusReceiver, ServiceBusSession
from sbclient.rules.failover import FailoverState
from sbclient.sender import ServiceBusSender
from sbclient.syphon import SyphonReport
from sbclient.transaction import Transaction
from sbclient.transport.base import (
    NEXT_AVAILABLE_SESSION,
    ServiceBusReceiveMode,
    ServiceBusSubQueue,
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
    "ServiceBusSubQueue",
    "SessionCannotBeLockedError",
    "SessionLockLostError",
    "SyphonReport",
    "Transaction",
    "TransactionNotSupportedError",
]
