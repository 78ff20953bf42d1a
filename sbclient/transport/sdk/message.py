"""Converts messages of this package into messages of azure-servicebus, and back.

1. The body with its type, keys, ids and application properties are kept.
2. Values that the SDK would encode wrongly are passed in a form that it encodes correctly: a time to live below a
   second, integers beyond 32 bits, a body that is false.
3. The SDK is imported when the first message is converted.
"""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from sbclient.amqp import EncodedMessage
from sbclient.amqp.annotated import TYPE, VALUE, SdkMessage, encode_annotated, is_sdk_message, parts_of
from sbclient.amqp.decimals import DECIMAL128, decode_decimal, encode_decimal, service_decimal
from sbclient.amqp.types import DATE_TIME_OFFSET, TIME_SPAN, URI, DateTimeOffset, Uri, ticks_of
from sbclient.delivery import UNKNOWN_TIME, expiry
from sbclient.errors import InvalidOperationError
from sbclient.message import AmqpMessageBodyType, ServiceBusMessage, ServiceBusMessageState, ServiceBusReceivedMessage
from sbclient.telemetry.log import get_logger

if TYPE_CHECKING:
    from azure import servicebus as sdk

_INT32: Final = range(-(2**31), 2**31)

_LONG: Final = "LONG"


def from_sdk(message: SdkMessage) -> EncodedMessage:
    """Encode a message of the SDK.

    Names and values of application properties that are bytes in the SDK become str. The scheduled enqueue time may be a
    `datetime` or, as in received messages, milliseconds.

    Raises:
        InvalidOperationError: an id is too long, a text is not UTF-8, or AMQP has no type for a value.
        TypeError: it is not a message of the SDK.
    """
    if not is_sdk_message(message):
        raise TypeError(f"{type(message).__name__} is not a message of azure-servicebus")
    plain, further = parts_of(message)
    return encode_annotated(plain, **further)


def to_sdk(encoded: EncodedMessage) -> sdk.ServiceBusMessage:
    """Return a message of the SDK with the same content.

    Raises:
        InvalidOperationError: the SDK cannot encode a body of type VALUE that is False or an integer beyond 32 bits.
    """
    from azure.servicebus import ServiceBusMessage as PlainMessage
    from azure.servicebus.amqp import AmqpAnnotatedMessage

    message, ours = encoded.decoded(), encoded.annotated()
    header, fields = ours.header, ours.properties
    raw = AmqpAnnotatedMessage(
        **_body_of(message),
        header={"time_to_live": header.time_to_live, "durable": header.durable, "priority": header.priority},
        properties=asdict(fields),
        application_properties={name: _typed(value) for name, value in message.application_properties.items()} or None,
    )
    raw.annotations = {name.encode(): _typed(value) for name, value in ours.annotations.items()} or None
    raw.delivery_annotations = {name: _typed(value) for name, value in ours.delivery_annotations.items()} or None
    raw.footer = {name: _typed(value) for name, value in ours.footer.items()} or None
    # The attributes of ServiceBusMessage would shorten the time to live and add a message id.
    return PlainMessage(None, message=None, raw_amqp_message=raw)


def _body_of(message: ServiceBusMessage) -> dict[str, Any]:
    """Return the keyword argument of `AmqpAnnotatedMessage` for the body."""
    if message.body_type is AmqpMessageBodyType.DATA:
        return {"data_body": list(message.body) or [b""]}
    if message.body_type is AmqpMessageBodyType.SEQUENCE:
        return {"sequence_body": [[_typed(item) for item in part] for part in message.body] or [[]]}
    body = message.body
    if body is False or (isinstance(body, int) and int(body) not in _INT32):
        raise InvalidOperationError(
            f"message {message.message_id!r} has the body {body!r} of type VALUE, which azure-servicebus cannot send: "
            "send it inside a list, as text, or as an application property"
        )
    body = _typed(body)
    return {"value_body": body if body or body is None else _present(body)}


def _present(body: Any) -> Any:
    """Return an equal value that is true, because the SDK omits a body that is false."""
    for kind, twin in _PRESENT.items():
        if isinstance(body, kind):
            return twin(body)
    raise TypeError(f"AMQP cannot encode a {type(body).__name__}: send str, int, float, bytes, lists and maps")


_PRESENT: Final = {
    kind: type(f"Present{kind.__name__.title()}", (kind,), {"__bool__": lambda _: True})
    for kind in (int, float, str, bytes, bytearray, list, dict)
}


def _typed(value: Any) -> Any:
    """Return the value in a form that the SDK encodes correctly; it encodes integers in 32 bits, or fails."""
    if isinstance(value, list | tuple):
        return [_typed(item) for item in value]
    if isinstance(value, dict):
        return {key: _typed(item) for key, item in value.items()}
    if isinstance(value, int) and int(value) not in _INT32:
        return {TYPE: _LONG, VALUE: value}
    if isinstance(value, timedelta):
        return _described(TIME_SPAN, {TYPE: _LONG, VALUE: ticks_of(value)})
    if isinstance(value, DateTimeOffset):
        return _described(DATE_TIME_OFFSET, {TYPE: _LONG, VALUE: value.ticks})
    if isinstance(value, Uri):
        return _described(URI, str(value))
    if isinstance(value, Decimal) and value.is_finite():  # the SDK reads only the form of .NET, but writes another
        return decode_decimal(service_decimal(encode_decimal(value, DECIMAL128)), DECIMAL128)
    return value


def _described(descriptor: str, value: Any) -> dict[str, Any]:
    return {TYPE: "DESCRIBED", VALUE: ({TYPE: "SYMBOL", VALUE: descriptor}, value)}


log = get_logger(__name__)


class SdkReceivedMessage(ServiceBusReceivedMessage):
    """A message received through the SDK.

    Attributes:
        sdk: the message of the SDK, for settling it and renewing its lock.
    """

    __slots__ = ("sdk",)

    sdk: Any


def received(sdk_message: Any, *, is_locked: bool, has_session: bool) -> SdkReceivedMessage | None:
    """Return our message for one of the SDK; None, with a log event, if it cannot be read.

    The lock of an unreadable message expires. The service dead-letters the message after the maximum delivery count.

    Args:
        is_locked: whether it can be settled; False for a message that was peeked, or received and deleted.
        has_session: whether the session is locked instead of the message.
    """
    try:
        _check_decimals(sdk_message.application_properties)
        if sdk_message.body_type.name != "DATA":
            _check_decimals(sdk_message.body)
        content = from_sdk(sdk_message)
    except (InvalidOperationError, TypeError, ValueError) as error:
        log.error(
            "sdk.unreadable",
            "message {sequence_number} cannot be read: {error}",
            sequence_number=sdk_message.sequence_number,
            error=str(error),
        )
        return None
    enqueued_at = sdk_message.enqueued_time_utc or UNKNOWN_TIME
    message = SdkReceivedMessage.of(
        content,
        sequence_number=sdk_message.sequence_number or 0,
        enqueued_time_utc=enqueued_at,
        enqueued_sequence_number=sdk_message.enqueued_sequence_number,
        expires_at_utc=expiry(enqueued_at, content.time_to_live),
        locked_until_utc=sdk_message.locked_until_utc if is_locked and not has_session else None,
        lock_token=_uuid(sdk_message.lock_token) if is_locked else None,
        delivery_count=sdk_message.delivery_count or 0,
        state=_state(sdk_message.state),
        dead_letter_source=_text(sdk_message.dead_letter_source),
    )
    message.sdk = sdk_message
    return message


def _check_decimals(value: Any) -> None:
    """
    Raises:
        ValueError: the SDK may have decoded a number wrongly.
    """
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for each in value:
            _check_decimals(each)
    elif isinstance(value, Decimal) and len(value.as_tuple().digits) > _EXACT_DIGITS:
        raise ValueError(
            f"azure-servicebus decodes decimals of more than {_EXACT_DIGITS} digits wrongly: use transport='amqp'"
        )


_EXACT_DIGITS: Final = 8
"""Digits of a decimal that the SDK decodes correctly; it decodes some larger numbers as one with nine digits."""


def _state(state: Any) -> ServiceBusMessageState:
    known = {each.value for each in ServiceBusMessageState}
    return ServiceBusMessageState(int(state)) if int(state) in known else ServiceBusMessageState.ACTIVE


def _uuid(token: UUID | str | None) -> UUID | None:
    return UUID(token) if isinstance(token, str) else token


def _text(value: str | bytes | None) -> str | None:
    return value.decode() if isinstance(value, bytes) else value
