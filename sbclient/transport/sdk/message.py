"""Converts messages of this package into messages of azure-servicebus, and back.

1. The body with its type, keys, ids and application properties are kept.
2. Values that the SDK would encode wrongly are passed in a form that it encodes correctly: a time to live below a
   second, integers beyond 32 bits, a body that is false.
3. Ids that are numbers, UUIDs or bytes become text, as in the service.
4. The SDK is imported when the first message is converted. `is_sdk_message` never imports it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeGuard

from sbclient import message as our_message
from sbclient.amqp import EncodedMessage, servicebus
from sbclient.amqp.decimals import DECIMAL128, decode_decimal, encode_decimal, service_decimal
from sbclient.amqp.encode import encode_binary, encode_symbol, encode_timestamp, encode_uint
from sbclient.amqp.encoded import encode_annotated
from sbclient.amqp.types import DATE_TIME_OFFSET, TIME_SPAN, URI, DateTimeOffset, TimeSpan, Uri, ticks_of
from sbclient.errors import InvalidOperationError
from sbclient.message import AmqpMessageBodyType, ServiceBusMessage

if TYPE_CHECKING:
    from azure import servicebus as sdk
    from azure.servicebus.amqp import AmqpAnnotatedMessage

SdkMessage: TypeAlias = "sdk.ServiceBusMessage | AmqpAnnotatedMessage"
"""A message of azure-servicebus."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_INT32: Final = range(-(2**31), 2**31)

# The SDK encodes a dict with these two keys as a value of that AMQP type.
_TYPE, _VALUE, _LONG = "TYPE", "VALUE", "LONG"

_NET: Final[dict[bytes, Callable[[Any], Any]]] = {
    TIME_SPAN.encode(): TimeSpan.of_ticks,
    DATE_TIME_OFFSET.encode(): DateTimeOffset.of_ticks,
    URI.encode(): lambda value: Uri(_text("a URI", value)),
}
"""The classes of described values of .NET; the SDK returns these values with an attribute `descriptor`."""


def is_sdk_message(candidate: object) -> TypeGuard[SdkMessage]:
    """Return whether an object is a `ServiceBusMessage`, received or not, or `AmqpAnnotatedMessage` of the SDK."""
    plain = _sdk_types("azure.servicebus", "ServiceBusMessage")
    return isinstance(candidate, plain + _sdk_types("azure.servicebus.amqp", "AmqpAnnotatedMessage"))


def _sdk_types(module: str, name: str) -> tuple[type, ...]:
    """Return the class of that name, or nothing if the SDK is not imported, since then it has no instances."""
    kind = getattr(sys.modules.get(module), name, None)
    return () if kind is None else (kind,)


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


def parts_of(
    message: SdkMessage | our_message.AmqpAnnotatedMessage,
) -> tuple[ServiceBusMessage, dict[str, Any]]:
    """Return a plain message, and the arguments of `encode_annotated` for all that it has no attribute for.

    Raises:
        InvalidOperationError, TypeError: as `from_sdk` raises them.
    """
    raw: Any = getattr(message, "raw_amqp_message", message)
    stated = raw.properties or {}
    fields: dict[str, Any] = asdict(stated) if is_dataclass(stated) else dict(stated)  # type: ignore[arg-type]
    header = raw.header
    return _content_of(raw, fields), {
        "durable": getattr(header, "durable", None),
        "priority": getattr(header, "priority", None),
        "delivery_annotations": _senders(raw.delivery_annotations),
        "annotations": {
            name: value
            for name, value in _senders(raw.annotations).items()
            if name not in (servicebus.PARTITION_KEY, servicebus.SCHEDULED_ENQUEUE_TIME)
        },
        "fields": {
            place: encode_field(fields[name])
            for name, (place, encode_field) in _FURTHER_FIELDS.items()
            if fields.get(name) is not None
        },
        "footer": _named(raw.footer),
    }


_FURTHER_FIELDS: Final[dict[str, tuple[int, Callable[[Any], bytes]]]] = {
    "user_id": (1, lambda value: encode_binary(value.encode() if isinstance(value, str) else value)),
    "content_encoding": (7, lambda value: encode_symbol(_text("content_encoding", value) or "")),
    "absolute_expiry_time": (8, encode_timestamp),
    "creation_time": (9, encode_timestamp),
    "group_sequence": (11, encode_uint),
}
"""The position and the encoder of the fields of the properties section that have no attribute."""


def _senders(annotations: Any) -> dict[Any, Any]:
    """Return annotations by name, without those that only a broker may set."""
    return {name: value for name, value in _named(annotations).items() if name not in servicebus.BROKER_ANNOTATIONS}


def _named(entries: Any) -> dict[Any, Any]:
    """Return entries with text instead of the bytes that the SDK returns for strings and symbols."""
    return {_text("an annotation", name): _decoded(_untyped(value)) for name, value in (entries or {}).items()}


def _decoded(value: Any) -> Any:
    try:
        return value.decode() if isinstance(value, bytes) else value
    except UnicodeDecodeError:
        return value


def _content_of(raw: Any, fields: dict[str, Any]) -> ServiceBusMessage:
    annotations = {_text("an annotation", key): value for key, value in (raw.annotations or {}).items()}
    ours = ServiceBusMessage(
        None,
        application_properties={key: _untyped(value) for key, value in (raw.application_properties or {}).items()},
        session_id=_text("session_id", fields.get("group_id")),
        message_id=_text("message_id", fields.get("message_id")),
        scheduled_enqueue_time_utc=_time(_untyped(annotations.get(servicebus.SCHEDULED_ENQUEUE_TIME))),
        time_to_live=_duration(raw.header.time_to_live if raw.header else None),
        content_type=_text("content_type", fields.get("content_type")),
        correlation_id=_text("correlation_id", fields.get("correlation_id")),
        subject=_text("subject", fields.get("subject")),
        partition_key=_text("partition_key", annotations.get(servicebus.PARTITION_KEY)),
        to=_text("to", fields.get("to")),
        reply_to=_text("reply_to", fields.get("reply_to")),
        reply_to_session_id=_text("reply_to_session_id", fields.get("reply_to_group_id")),
    )
    ours._body_type = AmqpMessageBodyType[raw.body_type.name]
    if ours._body_type is AmqpMessageBodyType.DATA:
        sections = tuple(bytes(section) for section in raw.body)
        ours._body = sections[0] if len(sections) == 1 else sections
    elif ours._body_type is AmqpMessageBodyType.SEQUENCE:
        ours._body = tuple(_untyped(list(part)) for part in raw.body)
    elif raw.body is None:
        ours._body_type = AmqpMessageBodyType.DATA  # a message without a body
    else:
        ours._body = _untyped(raw.body)
    return ours


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
        return {_TYPE: _LONG, _VALUE: value}
    if isinstance(value, timedelta):
        return _described(TIME_SPAN, {_TYPE: _LONG, _VALUE: ticks_of(value)})
    if isinstance(value, DateTimeOffset):
        return _described(DATE_TIME_OFFSET, {_TYPE: _LONG, _VALUE: value.ticks})
    if isinstance(value, Uri):
        return _described(URI, str(value))
    if isinstance(value, Decimal) and value.is_finite():  # the SDK reads only the form of .NET, but writes another
        return decode_decimal(service_decimal(encode_decimal(value, DECIMAL128)), DECIMAL128)
    return value


def _described(descriptor: str, value: Any) -> dict[str, Any]:
    return {_TYPE: "DESCRIBED", _VALUE: ({_TYPE: "SYMBOL", _VALUE: descriptor}, value)}


def _untyped(value: Any) -> Any:
    """Return the value that the SDK means, also inside of lists and maps."""
    make = _NET.get(getattr(value, "descriptor", None) or b"")
    if make is not None:
        return make(value)
    if isinstance(value, dict):
        if value.keys() == {_TYPE, _VALUE}:
            return value[_VALUE]
        return {key: _untyped(each) for key, each in value.items()}
    return [_untyped(each) for each in value] if type(value) in (list, tuple) else value


def _text(name: str, value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, bytes):
        return str(value)
    try:
        return value.decode()
    except UnicodeDecodeError:  # its text contains the value
        raise InvalidOperationError(
            f"{name} holds bytes that are not UTF-8: put binary data into the body, or send it as base64 text"
        ) from None


def _time(value: Any) -> datetime | None:
    return _EPOCH + value * _MILLISECOND if isinstance(value, int) else value


def _duration(time_to_live_ms: int | None) -> timedelta | None:
    if time_to_live_ms is None:
        return None
    try:
        return time_to_live_ms * _MILLISECOND
    except OverflowError:
        return timedelta.max
