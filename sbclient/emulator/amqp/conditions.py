"""The AMQP errors and the statuses by which the emulator answers; `rules.conditions` has the table.

Source: the documented conditions of the service. A client chooses its exception by the condition alone, so conditions
are unambiguous, while statuses are not.
"""

from __future__ import annotations

from typing import Final

from sbclient.amqp.errors import INTERNAL_ERROR, AmqpError, WireError
from sbclient.amqp.servicebus import ARGUMENT_ERROR
from sbclient.errors import (
    InvalidOperationError,
    MessageAlreadySettled,
    ServiceBusConnectionError,
    ServiceBusError,
)
from sbclient.rules.conditions import STATUS_BY_CONDITION

TRANSACTION_ROLLBACK: Final = "amqp:transaction:rollback"
UNKNOWN_TRANSACTION: Final = "amqp:transaction:unknown-id"

OK: Final = 200
ACCEPTED: Final = 202
NO_CONTENT: Final = 204
BAD_REQUEST: Final = 400
UNAUTHORIZED: Final = 401
NOT_FOUND: Final = 404
INTERNAL: Final = 500


class UnknownTransactionError(InvalidOperationError):
    """The transaction was never declared on this connection, or has ended."""

    condition = UNKNOWN_TRANSACTION


class ArgumentError(InvalidOperationError):
    """A value of a request is missing, or has the wrong type."""

    condition = ARGUMENT_ERROR


_UNEXPECTED: Final = "unexpected error of the broker: see its log"


def amqp_error_of(error: BaseException) -> AmqpError:
    """The AMQP form of an error; an unexpected error has no details."""
    if isinstance(error, WireError):
        return error.error
    if isinstance(error, ServiceBusError):
        return AmqpError(type(error).condition or INTERNAL_ERROR, error.message)
    if isinstance(error, MessageAlreadySettled):
        return AmqpError(ARGUMENT_ERROR, str(error))
    return AmqpError(INTERNAL_ERROR, _UNEXPECTED)


def status_of(condition: str) -> int:
    """The status of a management reply with a condition."""
    return STATUS_BY_CONDITION.get(condition, INTERNAL)


def ends_connection(error: BaseException) -> bool:
    """Whether an error means that the namespace is unreachable, so that the connection ends as well."""
    return isinstance(error, ServiceBusConnectionError)
