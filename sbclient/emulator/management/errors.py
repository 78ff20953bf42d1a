"""Errors as responses of the management API, with a status and a sub-code.

Source: the documented sub-codes of the service. A sub-code in the text of an error takes precedence over this table.
"""

from __future__ import annotations

from datetime import datetime
from secrets import token_hex
from typing import Final, NamedTuple

from sbclient.emulator.management.atom import ERROR_TYPE, error_document
from sbclient.emulator.management.paths import MethodError
from sbclient.emulator.net.http_messages import Response
from sbclient.errors import (
    InvalidOperationError,
    MessagingEntityAlreadyExistsError,
    MessagingEntityNotFoundError,
    OperationTimeoutError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
)


class _Refusal(NamedTuple):
    status: int
    sub_code: int


_REFUSALS: Final[tuple[tuple[type[ServiceBusError], _Refusal], ...]] = (
    (ServiceBusAuthenticationError, _Refusal(401, 40103)),
    (ServiceBusAuthorizationError, _Refusal(401, 40100)),
    (MessagingEntityNotFoundError, _Refusal(404, 40400)),
    (MessagingEntityAlreadyExistsError, _Refusal(409, 40900)),
    (ServiceBusQuotaExceededError, _Refusal(403, 40300)),
    (MethodError, _Refusal(405, 40500)),
    (InvalidOperationError, _Refusal(400, 40000)),
    (ServiceBusServerBusyError, _Refusal(503, 50004)),
    (OperationTimeoutError, _Refusal(504, 50400)),
    (ServiceBusError, _Refusal(500, 50000)),
)


def refusal_of(error: ServiceBusError, at: datetime) -> Response:
    """The response for an error."""
    status, sub_code = next(refusal for kind, refusal in _REFUSALS if isinstance(error, kind))
    body = error_document(status, sub_code, error.message, token_hex(16), at)
    return Response(status, body, ERROR_TYPE, {"WWW-Authenticate": "SharedAccessSignature"} if status == 401 else {})
