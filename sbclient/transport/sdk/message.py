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

from sbclient.amqp import EncodedMessage
from sbclient.amqp.annotated import TYPE, VALUE, SdkMessage, encode_annotated, is_sdk_message, parts_of
from sbclient.amqp.decimals import DECIMAL128, decode_decimal, encode_decimal, service_decimal
from sbclient.amqp.types import DATE_TIME_OFFSET, TIME_SPAN, URI, DateTimeOffset, Uri, ticks_of
from sbclient.errors import InvalidOperationError
from sbclient.message import AmqpMessageBodyType, ServiceBusMessage

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
