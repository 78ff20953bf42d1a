"""The table is held against the SDK's real exceptions, built as the SDK builds them."""

from __future__ import annotations

import logging

import pytest
from azure.core.exceptions import (
    ClientAuthenticationError,
    HttpResponseError,
    ResourceExistsError,
    ResourceNotFoundError,
    ServiceRequestError,
    ServiceResponseError,
)
from azure.servicebus import exceptions as sdk
from azure.servicebus._pyamqp.error import (
    AMQPConnectionError,
    AMQPLinkError,
    ErrorCondition,
    MessageException,
    TokenAuthFailure,
)
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport

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
from sbclient.transport.sdk.errors import Place, translated

CONDITIONS = {
    "amqp:not-found": MessagingEntityNotFoundError,
    "amqp:unauthorized-access": ServiceBusAuthorizationError,
    "com.microsoft:auth-failed": ServiceBusAuthenticationError,
    "amqp:resource-limit-exceeded": ServiceBusQuotaExceededError,
    "amqp:link:message-size-exceeded": MessageSizeExceededError,
    "amqp:link:detach-forced": ServiceBusConnectionError,
    "amqp:link:stolen": ServiceBusConnectionError,
    "amqp:session:window-violation": ServiceBusConnectionError,
    "com.microsoft:server-busy": ServiceBusServerBusyError,
    "com.microsoft:timeout": OperationTimeoutError,
    "com.microsoft:entity-disabled": MessagingEntityDisabledError,
    "com.microsoft:entity-already-exists": MessagingEntityAlreadyExistsError,
    "com.microsoft:message-lock-lost": MessageLockLostError,
    "com.microsoft:session-lock-lost": SessionLockLostError,
    "com.microsoft:session-cannot-be-locked": SessionCannotBeLockedError,
    "com.microsoft:message-not-found": MessageNotFoundError,
    "com.microsoft:argument-error": InvalidOperationError,
    "com.microsoft:argument-out-of-range": InvalidOperationError,
    "amqp:precondition-failed": InvalidOperationError,
    "amqp:not-allowed": InvalidOperationError,
    "amqp:not-implemented": InvalidOperationError,
    "amqp:invalid-field": InvalidOperationError,
    "amqp:decode-error": InvalidOperationError,
    "amqp:resource-deleted": MessagingEntityNotFoundError,
    "amqp:internal-error": ServiceBusInternalError,
    "com.microsoft:container-close": ServiceBusConnectionError,
    "com.microsoft:operation-cancelled": ServiceBusInternalError,
    "com.microsoft:partition-not-owned": ServiceBusInternalError,
    "contoso:something-new": ServiceBusInternalError,
}


def as_the_sdk_raises(error: Exception) -> Exception:
    raised: Exception = PyamqpTransport.create_servicebus_exception(logging.getLogger("test"), error)
    return raised


@pytest.mark.parametrize("kind", [MessageException, AMQPLinkError])
@pytest.mark.parametrize(("condition", "expected"), CONDITIONS.items())
def test_a_condition_decides_the_class_however_it_came(
    kind: type[MessageException], condition: str, expected: type[ServiceBusError]
) -> None:
    raised = as_the_sdk_raises(kind(condition.encode(), description="the service's words"))
    ours = translated(raised, "send to 'orders'")
    assert type(ours) is expected
    assert str(ours) == "send to 'orders': the service's words"


def test_a_detach_in_the_middle_of_a_send_is_a_lost_connection() -> None:
    raised = as_the_sdk_raises(MessageException(ErrorCondition.UnknownError))
    assert type(translated(raised, "send to 'q'")) is ServiceBusConnectionError


def test_a_send_without_an_answer_is_a_timeout() -> None:
    assert type(translated(sdk.OperationTimeoutError(), "send to 'q'")) is OperationTimeoutError


@pytest.mark.deviation("client.missing-entities")
@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (401, ServiceBusAuthenticationError),
        (403, ServiceBusAuthorizationError),
        (404, MessagingEntityNotFoundError),
        (500, ServiceBusInternalError),
        (503, ServiceBusServerBusyError),
        (0, ServiceBusAuthenticationError),
        (None, ServiceBusAuthenticationError),
    ],
)
def test_a_refused_token_counts_by_its_status(status: int | None, expected: type[ServiceBusError]) -> None:
    raised = as_the_sdk_raises(TokenAuthFailure(status, b"no entity of that name"))  # type: ignore[no-untyped-call]  # the SDK's
    assert type(raised) is sdk.ServiceBusAuthenticationError
    ours = translated(raised, "open 'orders'")
    assert type(ours) is expected
    assert "no entity of that name" in str(ours)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (AMQPConnectionError(ErrorCondition.SocketError, description="refused"), ServiceBusConnectionError),
        (AMQPConnectionError(ErrorCondition.NotFound, description="no such host"), ServiceBusCommunicationError),
        (ConnectionResetError(104, "reset"), ServiceBusConnectionError),
        (TimeoutError("authentication attempt timed-out"), OperationTimeoutError),
        (ClientAuthenticationError("no credential worked"), ServiceBusAuthenticationError),
        (AttributeError("'NoneType' object has no attribute 'state'"), ServiceBusCommunicationError),
        (IndexError("list index out of range"), ServiceBusCommunicationError),
    ],
)
def test_errors_below_the_sdk_are_translated(error: Exception, expected: type[ServiceBusError]) -> None:
    assert type(translated(as_the_sdk_raises(error), "send to 'q'")) is expected


def test_errors_of_the_sdk_are_translated() -> None:
    assert type(translated(sdk.SessionLockLostError(), "receive from 'q'")) is SessionLockLostError
    assert type(translated(sdk.MessageSizeExceededError(), "send to 'q'")) is MessageSizeExceededError
    assert type(translated(sdk.MessageAlreadySettled(action="complete"), "complete")) is MessageAlreadySettled
    assert type(translated(ValueError("the handler has already been shutdown"), "x")) is ServiceBusCommunicationError


@pytest.mark.parametrize(
    ("status", "text", "expected"),
    [
        (400, "SubCode=40000. The value is out of range", InvalidOperationError),
        (400, "SubCode=40400. The destination does not exist", MessagingEntityNotFoundError),
        (403, "SubCode=40300. Too many entities", ServiceBusQuotaExceededError),
        (403, "Manage claims are required", ServiceBusAuthorizationError),
        (409, "SubCode=40901. Another operation is in progress", ServiceBusServerBusyError),
        (429, "SubCode=50004. Throttled", ServiceBusServerBusyError),
        (500, "", ServiceBusInternalError),
        (503, "", ServiceBusServerBusyError),
        (418, "", ServiceBusInternalError),
    ],
)
def test_the_management_api_speaks_by_sub_code_then_by_status(
    status: int, text: str, expected: type[ServiceBusError]
) -> None:
    error = HttpResponseError(message=text)
    error.status_code = status
    assert type(translated(error, "create queue q")) is expected


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ResourceNotFoundError("Queue 'q' does not exist"), MessagingEntityNotFoundError),
        (ResourceExistsError("there"), MessagingEntityAlreadyExistsError),
        (ServiceRequestError("Cannot connect to host"), ServiceBusConnectionError),
        (ServiceResponseError("Server disconnected"), ServiceBusConnectionError),
    ],
)
def test_the_http_library_is_understood_too(error: Exception, expected: type[ServiceBusError]) -> None:
    assert type(translated(error, "describe queue q")) is expected


@pytest.mark.parametrize(
    "secret",
    ["SharedAccessSignature sr=x&sig=hunter2&se=1", "SharedAccessKey=hunter2;", "Authorization: Bearer hunter2"],
)
def test_no_text_shows_a_secret(secret: str) -> None:
    ours = translated(as_the_sdk_raises(OSError(f"failed with {secret}")), "send to 'q'")
    assert "hunter2" not in str(ours)


@pytest.mark.parametrize(
    "said",
    [
        "Failed to initiate the connection due to exception: [Errno 111] Connect call failed ('127.0.0.1', 5671)",
        "Cannot connect to host localhost:5999 ssl:<ssl.SSLContext object at 0x7fbe> "
        "[Connect call failed ('127.0.0.1', 5671)]",
        "Cannot connect to host localhost:5999 ssl:default [Connect call failed ('127.0.0.1', 5671)]",
    ],
)
def test_a_namespace_that_cannot_be_reached_is_named(said: str) -> None:
    ours = translated(ServiceRequestError(said), "open 'q'", Place("localhost:5999", is_perhaps_emulator=True))
    assert str(ours) == (
        "open 'q': the namespace localhost:5999 cannot be reached: Connect call failed ('127.0.0.1', 5671); "
        "if it is an emulator, add UseDevelopmentEmulator=true to the connection string"
    )
    ours = translated(ServiceRequestError(said), "open 'q'", Place("contoso.example"))
    assert str(ours).endswith("contoso.example cannot be reached: Connect call failed ('127.0.0.1', 5671)")


def test_ours_stay_as_they_are() -> None:
    own = InvalidOperationError("refused early")
    assert translated(own, "send to 'q'") is own


class Answer:
    """An answer whose body the SDK has not read."""

    status_code = 401
    reason = ""

    def __init__(self, body: str | None) -> None:
        self._body = body

    def text(self) -> str:
        if self._body is None:
            raise ValueError("no body was read")
        return self._body


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            "<Error><Code>401</Code><Detail>SubCode=40103. the token &amp; its key</Detail></Error>",
            "the token & its key",
        ),
        ("<html>", "status 401"),
        (None, "status 401"),
    ],
)
def test_error_of_a_rejected_list_has_the_text_of_the_response(body: str | None, said: str) -> None:
    error = translated(HttpResponseError(response=Answer(body)), "list queues")  # type: ignore[arg-type]
    assert isinstance(error, ServiceBusAuthenticationError)
    assert said in str(error)
    assert "Operation returned" not in str(error)
