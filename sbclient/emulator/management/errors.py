"""Errors as responses of the management API: status, sub-code, wording and tracker.

Laws (source: recorded answers of the service):

1. The gateway of the service answers about queues and topics, and about paths below a topic that does not exist. Its
   errors name the address of the request. The topic itself answers about its subscriptions and rules.
2. Only errors of PUT requests for queues and topics have a sub-code, of which programs read the reason. Errors that the
   service has no recorded answer for keep theirs.
3. An error has the words of the service where they are known. Its own reason is in the header `X-Sbclient-Reason` and
   in the log, but for a client without a valid token only in the log.
"""

from __future__ import annotations

import re
from datetime import datetime
from secrets import token_hex
from typing import Final, NamedTuple

from sbclient import errors
from sbclient.broker.descriptions import SettingError
from sbclient.emulator.management.atom import ERROR_TYPE, error_document
from sbclient.emulator.management.filters import ListFilterError
from sbclient.emulator.management.paths import BoundsError, MethodError, RightError, Target, VerbError
from sbclient.emulator.net.http_messages import Request, Response
from sbclient.entities import EntityKind
from sbclient.formats import refusal_reason
from sbclient.telemetry.log import get_logger

log = get_logger(__name__)

NO_TRACKER: Final = "NoSystemTracker"

_MORE: Final = "To know more visit https://aka.ms/sbResourceMgrExceptions."
_INVALID_SIGNATURE: Final = "InvalidSignature: The token has an invalid signature."
_SUB_CODE = re.compile(r"SubCode=(\d{5})\. *")

_WITHOUT_SUB_CODE: Final = (400, 404, 409)
"""The status of errors that have no sub-code for subscriptions, rules and DELETE requests."""

_REFUSALS: Final[tuple[tuple[type[errors.ServiceBusError], tuple[int, int | None]], ...]] = (
    (RightError, (401, None)),
    (errors.ServiceBusAuthenticationError, (401, 40103)),
    (errors.ServiceBusAuthorizationError, (401, 40100)),
    (errors.MessagingEntityNotFoundError, (404, 40400)),
    (errors.MessagingEntityAlreadyExistsError, (409, 40900)),
    (errors.ServiceBusQuotaExceededError, (403, 40300)),
    (MethodError, (405, 40500)),
    (VerbError, (400, None)),
    (BoundsError, (400, None)),
    (ListFilterError, (400, None)),
    (errors.InvalidOperationError, (400, 40000)),
    (errors.ServiceBusServerBusyError, (503, 50004)),
    (errors.OperationTimeoutError, (504, 50400)),
    (errors.ServiceBusError, (500, 50000)),
)
"""Status and sub-code of each error; the first class that fits decides."""


class Asked(NamedTuple):
    """What an error is about.

    Attributes:
        request: that caused it.
        namespace: the name of the namespace.
        target: of the request; None = its path names none.
        owner: the queue or topic that the path belongs to, as `Topic:prices`; None = there is none.
    """

    request: Request
    namespace: str
    target: Target | None = None
    owner: str | None = None

    @property
    def is_below_topic(self) -> bool:
        """Whether the target is a subscription or rule, or a list of them."""
        return self.target is not None and self.target.kind in (EntityKind.SUBSCRIPTION, EntityKind.RULE)

    @property
    def topic(self) -> str | None:
        """The topic above a subscription or rule; None = there is no such topic."""
        is_topic = self.owner is not None and self.owner.startswith("Topic:")
        return f"{self.namespace}:{self.owner}" if self.is_below_topic and is_topic else None

    @property
    def address(self) -> str:
        """Host and path of the request."""
        return f"{self.request.authority}:{'/'.join(self.request.segments)}"


def refusal_of(error: errors.ServiceBusError, at: datetime, asked: Asked) -> Response:
    """The response for an error."""
    status, sub_code = next(refusal for kind, refusal in _REFUSALS if isinstance(error, kind))
    match = _SUB_CODE.match(error.message)
    own = (error.message if match is None else error.message[match.end() :]).rstrip(". ") + "."
    wording, tracker = _worded(error, own, asked)
    if match is not None:
        sub_code = int(match[1])
    headers = {"WWW-Authenticate": "SharedAccessSignature"} if status == 401 else {}
    if wording != own:
        reason = f"{error.reason}." if isinstance(error, SettingError) else own
        if isinstance(error, SettingError):
            log.warning("emulator.description_refused", "{address}: {reason}", address=asked.address, reason=reason)
        else:
            log.info("emulator.management_refused", "{address}: {reason}", address=asked.address, reason=reason)
        if status != 401:
            headers[refusal_reason.HEADER] = refusal_reason.write_reason(reason)
    is_about_destination = (status, sub_code) == (400, 40400)
    if status in _WITHOUT_SUB_CODE and (asked.is_below_topic or asked.request.method == "DELETE"):
        sub_code = sub_code if is_about_destination else None
    if wording == _INVALID_SIGNATURE:
        sub_code = None
    detail = wording if sub_code is None else f"SubCode={sub_code}. {wording}"
    body = error_document(status, detail, token_hex(16), tracker, at)
    return Response(status, body, ERROR_TYPE, headers, reason=error.words if isinstance(error, RightError) else "")


def _worded(error: errors.ServiceBusError, own: str, asked: Asked) -> tuple[str, str]:
    """The words and the tracker of an error.

    Args:
        own: its text, for an error whose words are not known.
    """
    method, names = asked.request.method, () if asked.target is None else asked.target.names
    below = None if asked.topic is None else "|".join((asked.topic, *names[1:]))
    match error:
        case errors.ServiceBusAuthenticationError() if own.startswith(_INVALID_SIGNATURE):
            return _INVALID_SIGNATURE, NO_TRACKER
        case errors.MessagingEntityAlreadyExistsError() if below is not None:
            return f"The messaging entity '{below}' already exists. {_MORE}", NO_TRACKER
        case errors.MessagingEntityAlreadyExistsError():
            words = "Conflict. You're requesting an operation that isn't allowed in the resource's current state."
            return f"{words} {_MORE} .", asked.address
        case errors.MessagingEntityNotFoundError() if below is not None:
            tracker = below if len(names) == 3 and method == "GET" else NO_TRACKER
            return f"Entity '{below}' was not found. {_MORE}", tracker
        case errors.MessagingEntityNotFoundError() if method == "DELETE":
            return "No service is hosted at the specified address.", asked.address
        case errors.MessagingEntityNotFoundError() if asked.is_below_topic:
            return f"The incoming request is not recognized as a namespace policy put request. {_MORE}", asked.address
        case errors.MessagingEntityNotFoundError():
            return f"Not Found. The Operation doesn't exist. {_MORE} .", asked.address
        case VerbError():
            words = f"The specified HTTP verb ({method}) is not valid. {_MORE} ."
            return words, f"{asked.namespace}:{asked.owner}"
        case SettingError(parameter=""):
            return f"{error.words} {_MORE} .", asked.topic or asked.address
        case SettingError():
            place = f"\r\nParameter name: {error.parameter}\r\nActual value was {error.value}."
            return f"{error.words} {_MORE} {place}", asked.topic or asked.address
        case errors.InvalidOperationError():
            return own, asked.topic or asked.address
    return own, NO_TRACKER
