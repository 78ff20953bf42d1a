"""Errors as responses of the management API, with a status and a sub-code.

Source: the documented sub-codes of the service. A sub-code in the text of an error takes precedence over this table.
"""

from __future__ import annotations

from datetime import datetime
from secrets import token_hex
from typing import Final

from sbclient import errors
from sbclient.emulator.management.atom import ERROR_TYPE, error_document
from sbclient.emulator.management.paths import MethodError, RightError
from sbclient.emulator.net.http_messages import Response

_REFUSALS: Final[tuple[tuple[type[errors.ServiceBusError], tuple[int, int | None]], ...]] = (
    (RightError, (401, None)),
    (errors.ServiceBusAuthenticationError, (401, 40103)),
    (errors.ServiceBusAuthorizationError, (401, 40100)),
    (errors.MessagingEntityNotFoundError, (404, 40400)),
    (errors.MessagingEntityAlreadyExistsError, (409, 40900)),
    (errors.ServiceBusQuotaExceededError, (403, 40300)),
    (MethodError, (405, 40500)),
    (errors.InvalidOperationError, (400, 40000)),
    (errors.ServiceBusServerBusyError, (503, 50004)),
    (errors.OperationTimeoutError, (504, 50400)),
    (errors.ServiceBusError, (500, 50000)),
)
"""Status and sub-code of each error; the first class that fits decides."""


def refusal_of(error: errors.ServiceBusError, at: datetime) -> Response:
    """The response for an error."""
    status, sub_code = next(refusal for kind, refusal in _REFUSALS if isinstance(error, kind))
    body = error_document(status, sub_code, error.message, token_hex(16), at)
    headers = {"WWW-Authenticate": "SharedAccessSignature"} if status == 401 else {}
    return Response(status, body, ERROR_TYPE, headers, reason=error.words if isinstance(error, RightError) else "")
