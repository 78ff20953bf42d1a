"""Every error has its condition, and every condition its status."""

from __future__ import annotations

import pytest

from sbclient import errors
from sbclient.amqp import AmqpError, WireError
from sbclient.emulator.amqp.conditions import (
    ArgumentError,
    UnknownTransactionError,
    amqp_error_of,
    ends_connection,
    status_of,
)

ROWS = [
    (errors.OperationTimeoutError, "com.microsoft:timeout", 408),
    (errors.ServiceBusInternalError, "amqp:internal-error", 500),
    (errors.ServiceBusError, "amqp:internal-error", 500),
    (errors.MessagingEntityDisabledError, "com.microsoft:entity-disabled", 400),
    (errors.MessagingEntityNotFoundError, "amqp:not-found", 404),
    (errors.ServiceBusQuotaExceededError, "amqp:resource-limit-exceeded", 403),
    (errors.ServiceBusServerBusyError, "com.microsoft:server-busy", 503),
    (errors.ServiceBusAuthenticationError, "com.microsoft:auth-failed", 401),
    (errors.ServiceBusAuthorizationError, "amqp:unauthorized-access", 401),
    (errors.MessagingEntityAlreadyExistsError, "com.microsoft:entity-already-exists", 409),
    (errors.MessageSizeExceededError, "amqp:link:message-size-exceeded", 403),
    (errors.MessageLockLostError, "com.microsoft:message-lock-lost", 410),
    (errors.MessageNotFoundError, "com.microsoft:message-not-found", 404),
    (errors.SessionLockLostError, "com.microsoft:session-lock-lost", 410),
    (errors.SessionCannotBeLockedError, "com.microsoft:session-cannot-be-locked", 410),
    (errors.InvalidOperationError, "amqp:not-allowed", 400),
    (errors.ServiceBusConnectionError, "amqp:connection:forced", 503),
    (ArgumentError, "com.microsoft:argument-error", 400),
    (UnknownTransactionError, "amqp:transaction:unknown-id", 404),
]


@pytest.mark.parametrize(("error", "condition", "status"), ROWS)
def test_an_error_has_its_condition_and_text(error: type[errors.ServiceBusError], condition: str, status: int) -> None:
    converted = amqp_error_of(error("what happened"))
    assert converted == AmqpError(condition, "what happened")
    assert status_of(condition) == status


def test_an_error_of_the_engine_keeps_its_condition_and_text() -> None:
    assert amqp_error_of(WireError("amqp:decode-error", "bad")) == AmqpError("amqp:decode-error", "bad")


def test_a_message_settled_twice_is_an_argument_error() -> None:
    converted = amqp_error_of(errors.MessageAlreadySettled("twice"))
    assert converted.condition == "com.microsoft:argument-error"


def test_unexpected_exceptions_are_internal_errors_without_their_text() -> None:
    converted = amqp_error_of(KeyError("secret"))
    assert converted.condition == "amqp:internal-error"
    assert "secret" not in (converted.description or "")


def test_an_unknown_condition_is_an_internal_error() -> None:
    assert status_of("acme:unknown-condition") == 500


def test_only_a_namespace_that_is_gone_ends_the_connection() -> None:
    assert [kind for kind, _, _ in ROWS if ends_connection(kind("x"))] == [errors.ServiceBusConnectionError]
