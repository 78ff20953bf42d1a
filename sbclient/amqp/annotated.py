"""Encodes messages in the form of `AmqpAnnotatedMessage`, and those of azure-servicebus, which have that form inside.

Such a message is recognized and read without an import of azure-servicebus. Ids that are numbers, UUIDs or bytes become
text, as in the service. Annotations that only a broker may set are left out.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Protocol, TypeAlias, TypeGuard

from sbclient import message as our_message
from sbclient.amqp import servicebus
from sbclient.amqp.encode import encode_binary, encode_map, encode_symbol, encode_timestamp, encode_uint, encode_value
from sbclient.amqp.encoded import (
    ATTRIBUTES,
    EncodedMessage,
    described_list,
    described_map,
    encode_message,
    senders_entries,
)
from sbclient.amqp.sections import (
    APPLICATION_PROPERTIES,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    list_fields,
    map_entries,
)
from sbclient.amqp.types import DATE_TIME_OFFSET, TIME_SPAN, URI, DateTimeOffset, TimeSpan, Uri
from sbclient.errors import InvalidOperationError
from sbclient.message import AmqpMessageBodyType, ServiceBusMessage


class AnnotatedMessage(Protocol):
    """What an `AmqpAnnotatedMessage` of azure-servicebus has, for type checkers."""

    @property
    def body_type(self) -> Any:
        """Which kind of sections the body has."""

    @property
    def delivery_annotations(self) -> Any:
        """The delivery annotations."""


class WrappedMessage(Protocol):
    """What a `ServiceBusMessage` of azure-servicebus has, for type checkers."""

    @property
    def raw_amqp_message(self) -> Any:
        """The annotated message."""


SdkMessage: TypeAlias = WrappedMessage | AnnotatedMessage
"""A message of azure-servicebus."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_NULL: Final = b"\x40"

TYPE: Final = "TYPE"
VALUE: Final = "VALUE"
"""azure-servicebus encodes a dict with these two keys as a value of that AMQP type."""

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


def parts_of(
    message: SdkMessage | our_message.AmqpAnnotatedMessage,
) -> tuple[ServiceBusMessage, dict[str, Any]]:
    """Return a plain message, and the arguments of `encode_annotated` for all that it has no attribute for.

    Raises:
        InvalidOperationError: an id is too long, a text is not UTF-8, or AMQP has no type for a value.
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


def _untyped(value: Any) -> Any:
    """Return the value that the SDK means, also inside of lists and maps."""
    make = _NET.get(getattr(value, "descriptor", None) or b"")
    if make is not None:
        return make(value)
    if isinstance(value, dict):
        if value.keys() == {TYPE, VALUE}:
            return value[VALUE]
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


def encode_annotated(
    message: ServiceBusMessage,
    *,
    durable: bool | None = None,
    priority: int | None = None,
    delivery_annotations: Mapping[Any, Any] | None = None,
    annotations: Mapping[Any, Any] | None = None,
    fields: Mapping[int, bytes] | None = None,
    footer: Mapping[Any, Any] | None = None,
    now: Callable[[], float] = lambda: 0.0,
) -> EncodedMessage:
    """Encode a message with sections and fields that `ServiceBusMessage` has no attribute for.

    Args:
        message: without encoded content.
        durable, priority: of the header.
        annotations: of the message, besides those of its attributes.
        fields: encoded fields of the properties section by position.
        footer, delivery_annotations: of the message.
        now: see `encode_message`.

    Raises:
        EncodeError: a value has no AMQP type.
    """
    encoded = encode_message(message, now=now)
    if durable is priority is None and not (delivery_annotations or annotations or fields or footer):
        return encoded
    raw = encoded.raw_value(HEADER)
    header = list_fields(raw) if raw else []
    header += [_NULL] * (3 - len(header))
    header[:2] = encode_value(durable), _NULL if priority is None else bytes((0x50, priority))
    raw = encoded.raw_value(PROPERTIES)
    properties = list_fields(raw) if raw else []
    for place, field in (fields or {}).items():
        properties += [_NULL] * (place + 1 - len(properties))
        properties[place] = field
    entries = senders_entries(encoded.raw_value(MESSAGE_ANNOTATIONS)) + _entries(annotations)
    end = b"\x00\x53\x78" + encode_map(footer) if footer else b""
    parts = (
        described_list(b"\x00\x53\x70", header),
        described_map(b"\x00\x53\x71", _entries(delivery_annotations)),
        described_map(b"\x00\x53\x72", entries),
        described_list(b"\x00\x53\x73", properties),
        encoded.raw(APPLICATION_PROPERTIES),
        encoded.raw_body,
        end,
    )
    twin = EncodedMessage(b"".join(parts))
    for name in ATTRIBUTES:
        setattr(twin, name, getattr(encoded, name))
    return twin


def _entries(annotations: Mapping[Any, Any] | None) -> list[bytes]:
    if not annotations:
        return []
    return [entry for _, entry in map_entries(encode_map(annotations))]
