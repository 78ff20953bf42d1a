"""Our messages as those of azure-servicebus, and theirs as ours.

Laws:
1. What both sides can say is kept exactly: body and its type, keys, ids, properties with their types.
2. What the SDK garbles on the way to the wire is said so that it does not: lives below a second, integers beyond 32
   bits, a body that counts as false.
3. What we cannot say is left behind: annotations of others, delivery annotations, footer, user id, content encoding,
   group sequence, priority, durability. Ids that are numbers, UUIDs or bytes become text, as in the service itself.
4. The SDK is imported when the first message needs it and not before; asking what an object is never imports it.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, TypeGuard

from sbclient.errors import InvalidOperationError
from sbclient.message import AmqpMessageBodyType, ServiceBusMessage, chunks_of
from sbclient.rules.size import MAX_TTL_MS, PARTITION_KEY_ANNOTATION, SCHEDULED_ENQUEUE_TIME_ANNOTATION

if TYPE_CHECKING:
    from azure import servicebus as sdk
    from azure.servicebus.amqp import AmqpAnnotatedMessage

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_INT32: Final = range(-(2**31), 2**31)

# How the SDK writes down a value together with its AMQP type (`azure.servicebus._pyamqp.types`).
_TYPE, _VALUE, _LONG = "TYPE", "VALUE", "LONG"


def is_sdk_message(candidate: object) -> TypeGuard[sdk.ServiceBusMessage | AmqpAnnotatedMessage]:
    """Whether `from_sdk` takes it: a `ServiceBusMessage` (received or not) or `AmqpAnnotatedMessage` of the SDK."""
    plain = _sdk_types("azure.servicebus", "ServiceBusMessage")
    return isinstance(candidate, plain + _sdk_types("azure.servicebus.amqp", "AmqpAnnotatedMessage"))


def is_sdk_batch(candidate: object) -> TypeGuard[sdk.ServiceBusMessageBatch]:
    """Whether `batch_from_sdk` takes it: a `ServiceBusMessageBatch` of the SDK."""
    return isinstance(candidate, _sdk_types("azure.servicebus", "ServiceBusMessageBatch"))


def _sdk_types(module: str, name: str) -> tuple[type, ...]:
    """The class of that name; none while the SDK has not been imported: then no object can be an instance of it."""
    kind = getattr(sys.modules.get(module), name, None)
    return () if kind is None else (kind,)


def from_sdk(message: sdk.ServiceBusMessage | AmqpAnnotatedMessage) -> ServiceBusMessage:
    """A message of ours with the same content.

    Application properties get str names and str values where the SDK has bytes. A life that the SDK has cut down to
    0 ms stays 0. The schedule may be a `datetime` or, as in received messages, milliseconds.

    Raises:
        InvalidOperationError: an id is too long, or text is not UTF-8.
        TypeError: it is no message of the SDK, or a property has a type that AMQP cannot say.
    """
    if not is_sdk_message(message):
        raise TypeError(f"{type(message).__name__} is no message of azure-servicebus: give one to `from_sdk`")
    raw: Any = getattr(message, "raw_amqp_message", message)
    fields: dict[str, Any] = dict(raw.properties or {})
    annotations = {_text("an annotation", key): value for key, value in (raw.annotations or {}).items()}
    ours = ServiceBusMessage(
        None,
        application_properties={key: _untyped(value) for key, value in (raw.application_properties or {}).items()},
        session_id=_text("session_id", fields.get("group_id")),
        message_id=_text("message_id", fields.get("message_id")),
        scheduled_enqueue_time_utc=_moment(_untyped(annotations.get(SCHEDULED_ENQUEUE_TIME_ANNOTATION))),
        time_to_live=_life(raw.header.time_to_live if raw.header else None),
        content_type=_text("content_type", fields.get("content_type")),
        correlation_id=_text("correlation_id", fields.get("correlation_id")),
        subject=_text("subject", fields.get("subject")),
        partition_key=_text("partition_key", annotations.get(PARTITION_KEY_ANNOTATION)),
        to=_text("to", fields.get("to")),
        reply_to=_text("reply_to", fields.get("reply_to")),
        reply_to_session_id=_text("reply_to_session_id", fields.get("reply_to_group_id")),
    )
    ours._body_type = AmqpMessageBodyType[raw.body_type.name]
    if ours._body_type is AmqpMessageBodyType.DATA:
        sections = tuple(bytes(section) for section in raw.body)
        ours._body = sections[0] if len(sections) == 1 else sections
    elif ours._body_type is AmqpMessageBodyType.SEQUENCE:
        ours._body = tuple(raw.body)
    elif raw.body is None:
        ours._body_type = AmqpMessageBodyType.DATA  # both sides' way to say that there is no body
    else:
        ours._body = raw.body
    return ours


def batch_from_sdk(batch: sdk.ServiceBusMessageBatch) -> list[ServiceBusMessage]:
    """The messages that were added to a batch of the SDK, in order.

    Raises:
        InvalidOperationError, TypeError: as `from_sdk`.
    """
    if not is_sdk_batch(batch):
        raise TypeError(f"{type(batch).__name__} is no batch of azure-servicebus: give one to `batch_from_sdk`")
    return [from_sdk(message) for message in batch._messages]


def to_sdk(message: ServiceBusMessage) -> sdk.ServiceBusMessage:
    """A message of the SDK that puts the same content on the wire.

    A life is sent in whole milliseconds, rounded down, at most 2**32 - 1. Of a received message only the content goes.

    Raises:
        InvalidOperationError: a body of type VALUE is False or an integer beyond 32 bits, or a decimal has more than 34
            digits or is not finite, all of which the SDK cannot say.
    """
    from azure.servicebus import ServiceBusMessage as SdkMessage
    from azure.servicebus.amqp import AmqpAnnotatedMessage

    annotations: dict[str | bytes, Any] = {}
    if message.partition_key is not None:
        annotations[PARTITION_KEY_ANNOTATION.encode()] = message.partition_key
    if message.scheduled_enqueue_time_utc is not None:
        annotations[SCHEDULED_ENQUEUE_TIME_ANNOTATION.encode()] = message.scheduled_enqueue_time_utc
    life = message.time_to_live
    raw = AmqpAnnotatedMessage(
        **_body_of(message),
        header={"time_to_live": None if life is None else min(life // _MILLISECOND, MAX_TTL_MS)},
        properties={
            "message_id": message.message_id,
            "to": message.to,
            "subject": message.subject,
            "reply_to": message.reply_to,
            "correlation_id": message.correlation_id,
            "content_type": message.content_type,
            "group_id": message.session_id,
            "reply_to_group_id": message.reply_to_session_id,
        },
        application_properties={name: _typed(value) for name, value in message.application_properties.items()} or None,
    )
    raw.annotations = annotations or None
    # What the SDK itself does with an annotated message. Its own attributes would cut lives and invent a message id.
    return SdkMessage(None, message=None, raw_amqp_message=raw)


def _body_of(message: ServiceBusMessage) -> dict[str, Any]:
    """The one keyword with the body that an `AmqpAnnotatedMessage` takes."""
    if message.body_type is AmqpMessageBodyType.DATA:
        return {"data_body": list(chunks_of(message)) or [b""]}
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
    """The same value, but counting as true: the SDK leaves out a body that does not."""
    for kind, twin in _PRESENT.items():
        if isinstance(body, kind):
            return twin(body)
    raise TypeError(f"AMQP has no way to write a {type(body).__name__}: send str, int, float, bytes, lists and maps")


_PRESENT: Final = {
    kind: type(f"Present{kind.__name__.title()}", (kind,), {"__bool__": lambda _: True})
    for kind in (int, float, str, bytes, bytearray, list, dict, Decimal)
}


def _typed(value: Any) -> Any:
    """The value as the SDK encodes it right: it would write each integer in 32 bits, or fail."""
    if isinstance(value, list | tuple):
        return [_typed(item) for item in value]
    if isinstance(value, dict):
        return {key: _typed(item) for key, item in value.items()}
    if isinstance(value, int) and int(value) not in _INT32:
        return {_TYPE: _LONG, _VALUE: value}
    if isinstance(value, Decimal) and not _fits_decimal128(value):
        raise InvalidOperationError(
            f"the decimal {value:.40g} does not fit into 34 digits and an exponent from -6176 to 6111: "
            "round it, or send it as text"
        )
    return value


def _fits_decimal128(value: Decimal) -> bool:
    """Whether the SDK writes it right; it spoils longer ones without a word."""
    _, digits, exponent = value.as_tuple()
    return isinstance(exponent, int) and len(digits) <= 34 and -6176 <= exponent <= 6111


def _untyped(value: Any) -> Any:
    return value[_VALUE] if isinstance(value, dict) and value.keys() == {_TYPE, _VALUE} else value


def _text(name: str, value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, bytes):
        return str(value)
    try:
        return value.decode()
    except UnicodeDecodeError:  # it would show the value
        raise InvalidOperationError(
            f"{name} holds bytes that are not UTF-8: put binary data into the body, or send it as base64 text"
        ) from None


def _moment(value: Any) -> datetime | None:
    return _EPOCH + value * _MILLISECOND if isinstance(value, int) else value


def _life(time_to_live_ms: int | None) -> timedelta | None:
    if time_to_live_ms is None:
        return None
    try:
        return time_to_live_ms * _MILLISECOND
    except OverflowError:
        return timedelta.max
