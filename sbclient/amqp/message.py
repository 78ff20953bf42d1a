"""Encode and decode Service Bus messages: `encode_message` and `WireMessage`.

The length of `encode_message` equals `rules.size.encoded_size`, which documents the layout. A `WireMessage` is a
`ServiceBusMessage` that keeps its encoded bytes. It decodes ids, keys and times at once, and the body and the
application properties at their first use. Parts that it does not decode are still delivered to receivers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import MAXYEAR, datetime, timedelta
from decimal import Decimal
from typing import Any, Final, NamedTuple, Self
from uuid import UUID

from sbclient.amqp.decimals import of_service
from sbclient.amqp.decode import skip_value
from sbclient.amqp.encode import (
    encode_binary,
    encode_integer,
    encode_string,
    encode_symbol,
    encode_timestamp,
    encode_uint,
    encode_value,
    sized_list,
    sized_map,
)
from sbclient.amqp.errors import INVALID_FIELD, WireError
from sbclient.amqp.sections import APPLICATION_PROPERTIES, DATA, SEQUENCE, VALUE, Sections, map_entries
from sbclient.amqp.types import Timestamp, TypedInteger
from sbclient.annotated_message import PARTITION_KEY_ANNOTATION, SCHEDULED_ENQUEUE_TIME_ANNOTATION
from sbclient.message import MAX_ID_LENGTH, AmqpMessageBodyType, PropertyValue, ServiceBusMessage
from sbclient.rules.size import LONGEST_HEADER_TTL, MAX_TTL_MS

_MILLISECOND: Final = timedelta(milliseconds=1)
_PARTITION_KEY: Final = encode_symbol(PARTITION_KEY_ANNOTATION)
_SCHEDULE: Final = encode_symbol(SCHEDULED_ENQUEUE_TIME_ANNOTATION)
VIA_PARTITION_KEY_ANNOTATION: Final = "x-opt-via-partition-key"
_VIA_PARTITION_KEY: Final = encode_symbol(VIA_PARTITION_KEY_ANNOTATION)

_LATEST_EXPIRY_MS: Final = 253_402_300_799_999
"""The end of the year 9999, the last one that a `datetime` has."""

_NULLS: Final = tuple(b"\x40" * count for count in range(13))

_MAX_NAMES: Final = 1024
_MAX_NAME_LENGTH: Final = 64
_names: dict[str, bytes] = {}
"""Encoded names of application properties, which recur in many messages; number and length are limited."""


def encode_message(
    message: ServiceBusMessage, via_partition_key: str | None = None, *, created_at_ms: int = 0
) -> bytes:
    """Encode a message; for a `WireMessage` return the received bytes.

    Args:
        via_partition_key: selects the partition of the entity through which the message passes in a transaction.
        created_at_ms: milliseconds since 1970, from which a time to live counts that the header cannot hold.

    Raises:
        EncodeError: a property or the body has a value without an AMQP type.
    """
    if isinstance(message, WireMessage):
        return message.sections.payload
    parts: list[bytes] = []
    time_to_live = message._time_to_live
    if time_to_live is not None:
        ttl_ms = min(time_to_live // _MILLISECOND, MAX_TTL_MS)
        parts.append(b"\x00\x53\x70" + sized_list(b"\x40\x40" + encode_uint(ttl_ms), 3))
    partition_key, schedule = message._partition_key, message._scheduled_enqueue_time_utc
    if partition_key is not None or schedule is not None or via_partition_key is not None:
        parts.append(b"\x00\x53\x72" + _annotations(partition_key, schedule, via_partition_key))
    lasting = b""
    if time_to_live is not None and time_to_live > LONGEST_HEADER_TTL:
        expires_at_ms = min(created_at_ms + time_to_live // _MILLISECOND, _LATEST_EXPIRY_MS)
        lasting = encode_timestamp(expires_at_ms) + encode_timestamp(created_at_ms)
    parts.append(_properties(message, lasting))
    properties = message._application_properties
    received = message.received if type(message) is CopiedMessage else None
    if properties:
        encoded = encode_application_properties(properties) if received is None else received.encode(properties)
        parts.append(b"\x00\x53\x74" + encoded)
    if received is not None and received.sections.raw_body:
        parts.append(received.sections.raw_body)
        return b"".join(parts)
    body: Any = message._body
    if message._body_type is AmqpMessageBodyType.DATA:
        if isinstance(body, bytes):
            parts += b"\x00\x53\x75", encode_binary(body)
        else:
            parts.extend([b"\x00\x53\x75" + encode_binary(piece) for piece in body or (b"",)])
    elif message._body_type is AmqpMessageBodyType.VALUE:
        parts.append(b"\x00\x53\x77" + encode_value(body))
    else:
        parts.extend(b"\x00\x53\x76" + encode_value(items) for items in body)
    return b"".join(parts)


def encode_application_properties(properties: Mapping[str, PropertyValue]) -> bytes:
    """The map of application properties, without its descriptor."""
    content, count = encode_entries(properties)
    return sized_map(content, count)


def encode_entries(properties: Mapping[str, PropertyValue]) -> tuple[bytes, int]:
    """The encoded names and values, and how many elements they are."""
    parts: list[bytes] = []
    for name, value in properties.items():
        known = _names.get(name)
        if known is None:
            known = encode_string(name)
            if len(_names) < _MAX_NAMES and len(name) <= _MAX_NAME_LENGTH:
                _names[name] = known
        parts.append(known)
        kind = type(value)
        if kind is str:
            parts.append(encode_string(value))  # type: ignore[arg-type]  # just seen to be a str
        elif kind is int:
            parts.append(encode_integer(value))  # type: ignore[arg-type]  # just seen to be an int
        elif kind is bytes:
            parts.append(_as_string(value))  # type: ignore[arg-type]  # just seen to be bytes
        else:
            parts.append(encode_value(value))
    return b"".join(parts), len(parts)


def _as_string(value: bytes) -> bytes:
    """Bytes go out as text, as the SDK sends them; binary only where they are no text."""
    try:
        return encode_string(value.decode())
    except UnicodeDecodeError:
        return encode_binary(value)


def _annotations(partition_key: str | None, schedule: datetime | None, via_partition_key: str | None) -> bytes:
    content = b""
    count = 0
    if partition_key is not None:
        content = _PARTITION_KEY + encode_string(partition_key)
        count = 2
    if schedule is not None:
        content += _SCHEDULE + encode_timestamp(schedule)
        count += 2
    if via_partition_key is not None:
        content += _VIA_PARTITION_KEY + encode_string(via_partition_key)
        count += 2
    return sized_map(content, count)


def _properties(message: ServiceBusMessage, lasting: bytes) -> bytes:
    """Encode the properties section; empty if nothing is set. Trailing nulls are omitted.

    Args:
        lasting: the encoded absolute-expiry-time and creation-time; empty = both are null.

    Few are set, so each is asked for by itself; a null stands for each field that was left out before it.
    """
    parts: list[bytes] = []
    last = 0
    if message._message_id is not None:
        parts.append(encode_string(message._message_id))
        last = 1
    if message._to is not None:
        parts += _NULLS[2 - last], encode_string(message._to)
        last = 3
    if message._subject is not None:
        parts += _NULLS[3 - last], encode_string(message._subject)
        last = 4
    if message._reply_to is not None:
        parts += _NULLS[4 - last], encode_string(message._reply_to)
        last = 5
    if message._correlation_id is not None:
        parts += _NULLS[5 - last], encode_string(message._correlation_id)
        last = 6
    if message._content_type is not None:
        parts += _NULLS[6 - last], encode_symbol(message._content_type)
        last = 7
    if lasting:
        parts += _NULLS[8 - last], lasting
        last = 10
    if message._session_id is not None:
        parts += _NULLS[10 - last], encode_string(message._session_id)
        last = 11
    if message._reply_to_session_id is not None:
        parts += _NULLS[12 - last], encode_string(message._reply_to_session_id)
        last = 13
    return b"\x00\x53\x73" + sized_list(b"".join(parts), last) if last else b""


class ReceivedContent(NamedTuple):
    """The encoded content of a received message.

    Attributes:
        sections: the received bytes.
        properties: its application properties, decoded.
    """

    sections: Sections
    properties: Mapping[str, PropertyValue]

    def __repr__(self) -> str:
        """Without the content, which is the application's."""
        return f"ReceivedContent(property_count={len(self.properties)})"

    def encode(self, properties: Mapping[str, PropertyValue]) -> bytes:
        """The map of application properties; values that were received are encoded as they were, under any name."""
        encodings: dict[int, bytes] = {}
        raw = self.sections.raw_value(APPLICATION_PROPERTIES)
        for name, entry in map_entries(raw) if raw else ():
            if name in self.properties:
                encodings[id(self.properties[name])] = entry[skip_value(entry, 0) :]
        parts: list[bytes] = []
        for name, value in properties.items():
            known = encodings.get(id(value))
            parts.append(encode_entries({name: value})[0] if known is None else encode_string(name) + known)
        return sized_map(b"".join(parts), 2 * len(parts))


class CopiedMessage(ServiceBusMessage):
    """A copy of a received message: its body and the values of its properties are encoded as they were received.

    Attributes:
        received: the encoded content.
    """

    __slots__ = ("received",)

    received: ReceivedContent

    def _new_copy(self) -> ServiceBusMessage:
        return copied(self.received)


def copied(received: ReceivedContent) -> CopiedMessage:
    """An empty message for `ServiceBusMessage.copy`, with the encoded content of the original."""
    message = CopiedMessage.__new__(CopiedMessage)
    message.received = received
    return message


class WireMessage(ServiceBusMessage):
    """A received message; `copy` returns a plain message that can be changed.

    Attributes:
        sections: the received bytes.

    Raises:
        WireError: its annotations, header or properties are malformed or have the wrong type.
        InvalidOperationError: an id has more than 128 characters, or the scheduled time is not a timestamp.
    """

    __slots__ = ("_body_read", "_properties_read", "sections")

    sections: Sections
    _body_read: Any
    _properties_read: Any

    @classmethod
    def of(cls, payload: bytes) -> Self:
        """Decode `payload`."""
        message = cls.__new__(cls)
        sections = Sections(payload)
        message.sections = sections
        message._body_read = _UNREAD
        message._properties_read = _UNREAD if sections.has(APPLICATION_PROPERTIES) else None
        read_content(message, sections, sections.message_annotations)
        return message

    @property
    def _body(self) -> Any:
        if self._body_read is _UNREAD:
            self._body_read = body_of(self.sections)
        return self._body_read

    @_body.setter
    def _body(self, value: Any) -> None:
        self._body_read = value

    def _data_sizes(self) -> Sequence[int]:
        return self.sections.data_sizes() if self._body_read is _UNREAD else super()._data_sizes()

    def _encoded_body_size(self) -> int | None:
        return len(self.sections.raw_body) if self._body_read is _UNREAD else None

    @property
    def _application_properties(self) -> dict[str, PropertyValue] | None:
        if self._properties_read is _UNREAD:
            self._properties_read = _property_values(self.sections) or None
        return self._properties_read  # type: ignore[no-any-return]  # a dict or None once it is read

    @_application_properties.setter
    def _application_properties(self, value: dict[str, PropertyValue] | None) -> None:
        self._properties_read = value


def read_content(message: ServiceBusMessage, sections: Sections, annotations: Mapping[Any, Any]) -> None:
    """Set the body type, ids, keys and times of a new message from its sections; raises as `WireMessage`."""
    (
        message_id,
        _,
        to,
        message._subject,
        reply_to,
        correlation_id,
        message._content_type,
        _,
        expires,
        created,
        session_id,
        _,
        reply_to_session_id,
    ) = sections.properties
    message._body_type = BODY_TYPES[sections.body_code]
    message._to = None if to is None else text_of(to)
    message._reply_to = None if reply_to is None else text_of(reply_to)
    message._correlation_id = None if correlation_id is None else text_of(correlation_id)
    message._message_id = message._session_id = message._reply_to_session_id = None
    if type(message_id) is str and len(message_id) <= MAX_ID_LENGTH:
        message._message_id = message_id
    elif message_id is not None:
        message.message_id = text_of(message_id)
    if session_id is not None:
        message.session_id = session_id
    if reply_to_session_id is not None:
        message.reply_to_session_id = reply_to_session_id
    ttl_ms = sections.ttl_ms
    message._time_to_live = None if ttl_ms is None else timedelta(milliseconds=ttl_ms)
    if ttl_ms is not None and isinstance(created, datetime) and isinstance(expires, datetime):
        lasting = expires - created
        if lasting > LONGEST_HEADER_TTL and _exceeds_header(ttl_ms, lasting, expires):
            message._time_to_live = lasting
    message._partition_key = message._scheduled_enqueue_time_utc = None
    if not annotations:
        return
    try:
        if PARTITION_KEY_ANNOTATION in annotations:
            key = annotations[PARTITION_KEY_ANNOTATION]
            message.partition_key = text_of(key) if isinstance(key, bytes) else key  # the SDK sends a key on as binary
        if SCHEDULED_ENQUEUE_TIME_ANNOTATION in annotations:
            message.scheduled_enqueue_time_utc = annotations[SCHEDULED_ENQUEUE_TIME_ANNOTATION]
    except TypeError as error:
        raise WireError(INVALID_FIELD, f"an annotation has the wrong type: {error}") from error


def _property_values(sections: Sections) -> dict[str, Any]:
    """The application properties with integers of Python's own class, which `value in range(...)` needs to be quick.

    All other types keep themselves; the width of integers is kept in the bytes that are passed through. A decimal may
    have the form of the service.
    """
    properties = sections.application_properties
    return {name: value if type(value) is str else _property_value(value) for name, value in properties.items()}


def _property_value(value: Any) -> Any:
    if isinstance(value, TypedInteger) and not isinstance(value, Timestamp):
        return int(value)
    return of_service(value) if type(value) is Decimal else value


_UNREAD: Final = object()
BODY_TYPES: Final = {
    DATA: AmqpMessageBodyType.DATA,
    SEQUENCE: AmqpMessageBodyType.SEQUENCE,
    VALUE: AmqpMessageBodyType.VALUE,
}


def text_of(value: Any) -> str | None:
    """Convert an id or address to text: a UUID in its usual form, binary as UTF-8 or hexadecimal."""
    if value is None or type(value) is str:
        return value
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value.hex()
    if isinstance(value, str | int | UUID) and not isinstance(value, Timestamp):
        return str(value)
    raise WireError(INVALID_FIELD, f"an id or address is a {type(value).__name__}, a string is expected")


def body_of(sections: Sections) -> Any:
    if sections.body_code == DATA:
        pieces = sections.data()
        return pieces[0] if len(pieces) == 1 else tuple(pieces) or b""
    return sections.sequences() if sections.body_code == SEQUENCE else sections.value(typed=True)


def _exceeds_header(ttl_ms: int, lasting: timedelta, expires: datetime) -> bool:
    """Whether the time to live exceeds the header field, so that creation and absolute expiry have it.

    Java writes the largest value of the field, .NET that or the lowest 32 bits. The largest time to live of .NET ends
    with the year 9999.
    """
    return ttl_ms in (MAX_TTL_MS, lasting // _MILLISECOND & MAX_TTL_MS) or expires.year == MAXYEAR
