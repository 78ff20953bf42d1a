"""Messages in HTTP requests and responses: the body, the header `BrokerProperties`, and application properties.

Laws (source: the documented headers and properties of messages, and published answers, unless said otherwise):

1. `BrokerProperties` is a JSON object. Members that a sender cannot set are ignored. Durations are in seconds, and
   timestamps are HTTP dates.
2. Each other header is an application property, except those of HTTP itself. Text is in double quotes, numbers and
   booleans are not; text without quotes is accepted.
3. A batch is a JSON array of objects with `Body`, `BrokerProperties` and `UserProperties`.
4. A header of a response cannot break the response: text is escaped as in JSON, and a property whose name is not that
   of a header, or is one of HTTP itself, is left out, and so are malformed properties (our choice).
5. The body of an AMQP value or sequence is its text, or JSON (our choice).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from email.utils import format_datetime, parsedate_to_datetime
from typing import Any, Final
from uuid import UUID

from sbclient.amqp.value_texts import text_of
from sbclient.broker.entry import Entry, utc_datetime
from sbclient.delivery import MAX_BATCH_MESSAGES
from sbclient.emulator.net.http_messages import Request
from sbclient.errors import InvalidOperationError, ServiceBusError
from sbclient.formats.iso8601 import read_timestamp
from sbclient.formats.message_json import value_json
from sbclient.message import AmqpMessageBodyType, PropertyValue, ServiceBusMessage

BROKER_PROPERTIES: Final = "BrokerProperties"
BATCH_TYPE: Final = "application/vnd.microsoft.servicebus.json"
NO_LIMIT_S: Final = 922_337_203_685.47754
"""The time to live of a message that never expires, as the service writes it."""

MAX_BATCH_PROPERTIES: Final = 20_000
"""The most application properties of a batch: our choice, because they take time."""

_BATCH_MEMBERS: Final = ("Body", BROKER_PROPERTIES, "UserProperties")
_TEXTS: Final = {
    "CorrelationId": "correlation_id",
    "Label": "subject",
    "MessageId": "message_id",
    "PartitionKey": "partition_key",
    "ReplyTo": "reply_to",
    "ReplyToSessionId": "reply_to_session_id",
    "SessionId": "session_id",
    "To": "to",
}
_HEADERS_OF_HTTP: Final = """
    accept accept-charset accept-encoding accept-language accept-ranges age allow authorization brokerproperties
    cache-control connection content-encoding content-language content-length content-location content-md5
    content-range content-security-policy content-type cookie date etag expect expires forwarded from host if-match
    if-modified-since if-none-match if-range if-unmodified-since keep-alive last-modified location max-forwards origin
    pragma proxy-authenticate proxy-authorization proxy-connection range referer refresh retry-after server
    servicebusauthorization servicebusdlqsupplementaryauthorization servicebussupplementaryauthorization set-cookie
    strict-transport-security te trailer transfer-encoding translate upgrade upgrade-insecure-requests user-agent vary
    via warning www-authenticate x-ms-retrypolicy
"""
"""Headers that are not application properties, in either direction."""

_OF_HTTP: Final = frozenset(_HEADERS_OF_HTTP.split())
_PREFIXES_OF_HTTP: Final = ("access-control-", "sec-")
_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,256}")
_CONTENT_TYPE: Final = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]{0,1022}[\x21-\x7e])?")
_TIME_SPAN: Final = re.compile(r"(?:(\d{1,8})\.)?(\d{1,2}):(\d\d):(\d\d)(?:\.(\d{1,7}))?", re.ASCII)
_INT64: Final = range(-(2**63), 2**63)
_SHOWN: Final = 300


# ---------------------------------------------------------------------- from requests


def read_messages(request: Request) -> Iterator[ServiceBusMessage]:
    """The message in a request, or the messages of a batch, one after another.

    Raises:
        InvalidOperationError: a property is not valid, or the body is not a batch.
    """
    content_type = request.headers.get("content-type")
    if content_type is not None and content_type.partition(";")[0].strip().casefold() == BATCH_TYPE:
        yield from map(_message_of, _batch_of(request.body))
    else:
        properties = {
            request.header_names.get(name, name): _value_of(_unicode(text))
            for name, text in request.headers.items()
            if not _is_of_http(name)
        }
        message = ServiceBusMessage(request.body, content_type=content_type, application_properties=properties)
        if (text := request.headers.get(BROKER_PROPERTIES.lower())) is not None:
            text = _unicode(text)
            _set_broker_properties(message, _parsed(text), text)
        yield message


def _batch_of(body: bytes) -> list[dict[str, Any]]:
    parts = _parsed(body)
    if not isinstance(parts, list) or not parts or not all(isinstance(part, dict) for part in parts):
        raise InvalidOperationError(
            f"the body of a batch is not a JSON array of objects with {', '.join(_BATCH_MEMBERS)}"
        )
    sizes = [len(each) for part in parts if isinstance(each := part.get("UserProperties"), dict)]
    for what, count, most in (
        ("messages", len(parts), MAX_BATCH_MESSAGES),
        ("properties", sum(sizes), MAX_BATCH_PROPERTIES),
    ):
        if count > most:
            raise InvalidOperationError(f"the batch has {count} {what}, {most} are allowed: send several batches")
    return parts


def _message_of(part: Mapping[str, Any]) -> ServiceBusMessage:
    text, properties = part.get("Body", ""), part.get("UserProperties")
    properties = {} if properties is None else properties
    if not isinstance(text, str) or not isinstance(properties, dict):
        raise InvalidOperationError("a message of a batch needs a Body that is a string and UserProperties, an object")
    for name, value in properties.items():
        if not isinstance(value, str | int | float) or (isinstance(value, int) and value not in _INT64):
            raise InvalidOperationError(f"user property {name[:64]!r} is not a string, a number, true or false")
    message = ServiceBusMessage(text, application_properties=properties)
    if (broker_properties := part.get(BROKER_PROPERTIES)) is not None:
        _set_broker_properties(message, broker_properties, json.dumps(broker_properties))
    return message


def _set_broker_properties(message: ServiceBusMessage, members: Any, text: str) -> None:
    """Set the attributes of a message.

    Args:
        text: of the members, for the error.

    Raises:
        InvalidOperationError: a member is not valid.
    """
    try:
        if not isinstance(members, dict):
            raise InvalidOperationError("it is not a JSON object")
        for name, read in _READERS.items():
            if (value := members.get(name)) is not None:
                read(message, value)
    except (InvalidOperationError, TypeError, ValueError, OverflowError) as error:
        reason = error.message if isinstance(error, ServiceBusError) else "a member has the wrong type"
        raise InvalidOperationError(
            f"The value '{text[:_SHOWN]}' of the HTTP header '{BROKER_PROPERTIES}' is invalid. {reason}"
        ) from None


def _text_reader(member: str, attribute: str) -> Callable[[ServiceBusMessage, Any], None]:
    def read(message: ServiceBusMessage, value: Any) -> None:
        if not isinstance(value, str):
            raise InvalidOperationError(f"{member} is not a string")
        setattr(message, attribute, value)

    return read


def _read_schedule(message: ServiceBusMessage, value: Any) -> None:
    if not isinstance(value, str):
        raise InvalidOperationError("ScheduledEnqueueTimeUtc is not a string")
    try:
        message.scheduled_enqueue_time_utc = parsedate_to_datetime(value)
    except ValueError:
        message.scheduled_enqueue_time_utc = read_timestamp(value)


def _read_time_to_live(message: ServiceBusMessage, value: Any) -> None:
    if isinstance(value, str):
        message.time_to_live = _duration_of(value)
    elif isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise InvalidOperationError("TimeToLive is not a number of seconds")
    else:
        message.time_to_live = None if value >= timedelta.max.total_seconds() or value >= NO_LIMIT_S else value


def _duration_of(text: str) -> timedelta:
    match = _TIME_SPAN.fullmatch(text)
    if match is None:
        raise InvalidOperationError("a duration is not written as 1.02:03:04.5: days, hours, minutes and seconds")
    days, hours, minutes, seconds, fraction = (part or "0" for part in match.groups())
    return timedelta(int(days), int(seconds), int(fraction.ljust(6, "0")[:6]), 0, int(minutes), int(hours))


_READERS: Final[Mapping[str, Callable[[ServiceBusMessage, Any], None]]] = {
    **{member: _text_reader(member, attribute) for member, attribute in _TEXTS.items()},
    "ScheduledEnqueueTimeUtc": _read_schedule,
    "TimeToLive": _read_time_to_live,
    "TimeToLiveTimeSpan": _read_time_to_live,
}
"""The members of `BrokerProperties` that a sender can set."""


def _unicode(text: str) -> str:
    """The text of a header that may be in UTF-8."""
    try:
        return text.encode("latin-1").decode()
    except UnicodeError:
        return text


def _parsed(text: str | bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # the original error shows the text
        return None


def _value_of(text: str) -> PropertyValue:
    """The application property in a header; text that is not in quotes and not a number or boolean is a string."""
    match _parsed(text):
        case str() | bool() as value:
            return value
        case int() as value if value in _INT64:
            return value
        case float() as value if math.isfinite(value):
            return value
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] == '"' else text


def _is_of_http(name: str) -> bool:
    lowered = name.lower()
    return lowered in _OF_HTTP or lowered.startswith(_PREFIXES_OF_HTTP)


# ---------------------------------------------------------------------- to responses


def body_of(entry: Entry) -> bytes:
    """The body of a response with a message."""
    content = entry.content
    if content.body_type is AmqpMessageBodyType.DATA:
        return bytes(content)
    try:
        value = content.body
    except ServiceBusError:  # malformed
        return bytes(content.raw_body)
    if isinstance(value, bytes):
        return bytes(value)
    return (value if isinstance(value, str) else json.dumps(value_json(value), ensure_ascii=False)).encode()


def headers_of(entry: Entry) -> dict[str, str]:
    """The headers of a response with a message: its broker properties and its application properties."""
    headers = {BROKER_PROPERTIES: json.dumps(_broker_properties(entry), separators=(",", ":"))}
    properties = entry.added_properties
    with suppress(ServiceBusError):  # malformed ones cannot be shown
        properties = {**entry.content.application_properties, **properties}
    for name, value in properties.items():
        if value is not None and _NAME.fullmatch(name) and not _is_of_http(name):
            headers[name] = _text_of(value)
    return headers


def header_type(content_type: str | None) -> str:
    """The content type of a response; empty if there is none, or one that a header cannot have."""
    return content_type if content_type is not None and _CONTENT_TYPE.fullmatch(content_type) else ""


def _broker_properties(entry: Entry) -> dict[str, Any]:
    """The members in the order of their names."""
    content, is_limited = entry.content, entry.expires_at < math.inf
    members = {member: getattr(content, attribute) for member, attribute in _TEXTS.items()}
    members |= {
        "DeadLetterSource": entry.dead_letter_source,
        "DeliveryCount": entry.delivery_count + 1,  # with this delivery
        "EnqueuedSequenceNumber": entry.original_number or 0,
        "EnqueuedTimeUtc": _date_of(utc_datetime(entry.enqueued_at)),
        "LockToken": str(UUID(int=entry.token)) if entry.token else None,
        "LockedUntilUtc": _date_of(utc_datetime(entry.locked_until)) if entry.token else None,
        "ScheduledEnqueueTimeUtc": content.scheduled_enqueue_time_utc and _date_of(content.scheduled_enqueue_time_utc),
        "SequenceNumber": entry.number,
        "State": entry.shown_state.name.capitalize(),
        "TimeToLive": _seconds(entry.expires_at - entry.enqueued_at) if is_limited else NO_LIMIT_S,
    }
    return {name: members[name] for name in sorted(members) if members[name] is not None}


def _seconds(duration_s: float) -> float:
    """A duration in milliseconds as seconds, a whole number if possible."""
    rounded = round(duration_s, 3)
    return int(rounded) if rounded.is_integer() else rounded


def _text_of(value: PropertyValue) -> str:
    match value:
        case bool() | int() | float():
            return json.dumps(value)
        case Decimal():
            return str(value)
        case timedelta():
            return json.dumps(value.total_seconds())
        case datetime():
            return json.dumps(_date_of(value))
    return json.dumps(value if isinstance(value, str) else text_of(value))


def _date_of(timestamp: datetime) -> str:
    return format_datetime(timestamp.astimezone(UTC).replace(microsecond=0), usegmt=True)
