"""The form of a message between the call that sends it and the code that reads it: its encoded sections.

A message is encoded once, where the application hands it over, and decoded once, where the application reads it. All
between them, the client, the broker and the syphon, use an `EncodedMessage`: its size is the length of its bytes, it
is never changed, and it can be rewritten into another one whose body is not touched.

Source of the layout: AMQP 1.0 part 3.2; the AMQP guide of Service Bus.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import MAXYEAR, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Final, Self
from uuid import UUID

from sbclient.amqp import servicebus
from sbclient.amqp.encode import (
    encode_binary,
    encode_integer,
    encode_string,
    encode_symbol,
    encode_timestamp,
    encode_uint,
    encode_value,
    list_of,
    sized_list,
    sized_map,
)
from sbclient.amqp.errors import INVALID_FIELD, WireError
from sbclient.amqp.sections import (
    APPLICATION_PROPERTIES,
    DATA,
    DELIVERY_ANNOTATIONS,
    FOOTER,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    SEQUENCE,
    VALUE,
    Sections,
    list_fields,
    map_entries,
    rewritten_map,
)
from sbclient.amqp.types import Binary, Opaque, Timestamp, TypedInteger
from sbclient.errors import InvalidOperationError
from sbclient.message import (
    MAX_ID_LENGTH,
    AmqpAnnotatedMessage,
    AmqpMessageBodyType,
    AmqpMessageHeader,
    AmqpMessageProperties,
    ByName,
    PropertyValue,
    ServiceBusMessage,
    ServiceBusReceivedMessage,
    message_of,
)

MAX_TTL_MS: Final = 2**32 - 1
"""The longest time to live that the header can hold, 49.7 days.

A longer one is sent as this value, and as the time from the creation of the message to its absolute expiry. Source: the
.NET and Java SDKs.
"""

LONGEST_HEADER_TTL: Final = timedelta(milliseconds=MAX_TTL_MS)

_MILLISECOND: Final = timedelta(milliseconds=1)
_PARTITION_KEY: Final = encode_symbol(servicebus.PARTITION_KEY)
_SCHEDULE: Final = encode_symbol(servicebus.SCHEDULED_ENQUEUE_TIME)
_VIA_PARTITION_KEY: Final = encode_symbol(servicebus.VIA_PARTITION_KEY)

_PROPERTIES_END, _APPLICATION_PROPERTIES_END = (
    3 * (code - HEADER) + 2 for code in (PROPERTIES, APPLICATION_PROPERTIES)
)
"""Where the end of a section stands among the bounds of all."""

_LATEST_EXPIRY_MS: Final = 253_402_300_799_999
"""The end of the year 9999, the last one that a `datetime` has."""

_LOCK_TOKEN: Final = b"\xc1\x24\x02" + encode_symbol(servicebus.LOCK_TOKEN) + b"\x98"
"""The beginning of the delivery annotations of most received messages: a map with a lock token and nothing else."""

_NULL: Final = b"\x40"
_NULLS: Final = tuple(_NULL * count for count in range(13))

_MAX_NAMES: Final = 1024
_MAX_NAME_LENGTH: Final = 64
_names: dict[str, bytes] = {}
"""Encoded names of application properties, which recur in many messages; number and length are limited."""

_FIELDS: Final = {
    "message_id": (0, encode_string),
    "to": (2, encode_string),
    "subject": (3, encode_string),
    "reply_to": (4, encode_string),
    "correlation_id": (5, encode_string),
    "content_type": (6, encode_symbol),
    "session_id": (10, encode_string),
    "reply_to_session_id": (12, encode_string),
}
"""The position of each attribute in the properties section, and its encoder."""

ATTRIBUTES: Final = (*_FIELDS, "partition_key", "scheduled_enqueue_time_utc", "time_to_live")
"""The attributes of a message beside its body and its application properties."""

_DATA_BODY: Final = AmqpMessageBodyType.DATA  # members of an enumeration are read slowly
_BODY_TYPES: Final = {
    DATA: _DATA_BODY,
    SEQUENCE: AmqpMessageBodyType.SEQUENCE,
    VALUE: AmqpMessageBodyType.VALUE,
}


class EncodedMessage(Sections):
    """One message, encoded. It is immutable; two may share one object.

    Args:
        payload: the sections of the message.

    Attributes:
        payload: the same bytes.
        size_bytes: their number.
        message_id, session_id, partition_key, content_type, subject, correlation_id, to, reply_to,
            reply_to_session_id: texts or None.
        scheduled_enqueue_time_utc: a datetime or None.
        time_to_live: a timedelta or None.
        annotations: the message annotations by name. Do not change them.
        application_properties: by name, with integers of Python's own class. Do not change them.
        body_type: how the body is encoded.

    Raises:
        WireError: reading it, if the sections are malformed or have the wrong type.
        InvalidOperationError: reading it, if an id has more than 128 characters.
    """

    __slots__ = (*ATTRIBUTES, "annotations", "application_properties", "body_type", "size_bytes")

    message_id: str | None
    session_id: str | None
    partition_key: str | None
    content_type: str | None
    subject: str | None
    correlation_id: str | None
    to: str | None
    reply_to: str | None
    reply_to_session_id: str | None
    scheduled_enqueue_time_utc: datetime | None
    time_to_live: timedelta | None
    annotations: dict[Any, Any]
    application_properties: Mapping[str, PropertyValue]
    body_type: AmqpMessageBodyType

    def __init__(self, payload: bytes) -> None:
        self.payload = payload
        self._sizes = 0
        self.size_bytes = len(payload)

    @classmethod
    def of(cls, payload: bytes) -> Self:
        """Return a message whose attributes have been read, so that its form is known to be right.

        Raises:
            WireError, InvalidOperationError: see the class.
        """
        message = cls(payload)
        message._find()
        _read_body_type(message)
        _read_properties(message)
        _read_annotations(message)
        return message

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Decode the section of an attribute when it is read for the first time."""
            read = _READERS.get(name)
            if read is None:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            read(self)
            return object.__getattribute__(self, name)

    def __repr__(self) -> str:
        """Return the size only: a repr may end up in logs."""
        return f"EncodedMessage({len(self.payload)} bytes)"

    def __bytes__(self) -> bytes:
        """Return the content of the data sections."""
        return b"".join(self.data())

    @property
    def key(self) -> str | None:
        """The session id, or else the partition key. Messages with the same key are sent in order."""
        return self.partition_key if self.session_id is None else self.session_id

    @property
    def header_bytes(self) -> int:
        """The size without the content of data sections; of a message with another body the size of all but it."""
        body = sum(self.data_sizes()) if self.body_code == DATA else len(self.raw_body)
        return len(self.payload) - body

    @property
    def body(self) -> Any:
        """The decoded body: bytes or a tuple of them, a list of sequences, or a value."""
        if self.body_code == DATA:
            pieces = self.data()
            return pieces[0] if len(pieces) == 1 else tuple(pieces) or b""
        return self.sequences() if self.body_code == SEQUENCE else self.value(typed=True)

    def decoded(self) -> ServiceBusMessage:
        """Return a message that can be changed and sent; body and application properties are decoded when read."""
        return message_of(self)

    def annotated(self, received: ServiceBusReceivedMessage | None = None) -> AmqpAnnotatedMessage:
        """Return all sections of the message, decoded; see `message.Content`."""
        noted = {name: getattr(received, each, None) for name, each in servicebus.ATTRIBUTES_BY_ANNOTATION.items()}
        raw = self.raw_value(HEADER)
        is_set = [field != _NULL for field in list_fields(raw)] if raw else []
        fields: list[tuple[str, Any]] = list(self.header._asdict().items())
        known = dict(field for field, is_known in zip(fields, is_set, strict=False) if is_known)
        return AmqpAnnotatedMessage(
            properties=AmqpMessageProperties(**self.properties._asdict()),
            header=AmqpMessageHeader(time_to_live=known.pop("ttl", None), **known),
            footer=ByName(self.footer),
            annotations=ByName(self.annotations, **{name: value for name, value in noted.items() if value is not None}),
            delivery_annotations=ByName(self.delivery_annotations),
            application_properties=ByName(self.typed_properties),
            content=self.body,
            body_type=self.body_type,
        )

    @property
    def typed_properties(self) -> dict[str, PropertyValue]:
        """The application properties, whose values keep their AMQP types."""
        if not self._bounds[_APPLICATION_PROPERTIES_END]:
            return {}
        found = super().application_properties
        return {name: value if type(value) is str else _typed_property(value) for name, value in found.items()}

    def rewritten(
        self,
        *,
        created_at_ms: int = 0,
        application_properties: bytes | None = None,
        via_partition_key: str | None = None,
        **changes: Any,
    ) -> EncodedMessage:
        """Return a message with other attributes. Body, footer and all that is not named stay as they are encoded.

        The annotations that only a broker may set are left out.

        Args:
            created_at_ms: milliseconds since 1970, from which a time to live counts that the header cannot hold.
            application_properties: the encoded map; empty = none.
            via_partition_key: selects the partition of the entity through which the message passes in a transaction.
            changes: attributes by name, see `ATTRIBUTES`.
        """
        changed = changes and {
            name: value for name, value in changes.items() if value is not None or getattr(self, name) is not None
        }
        if self.is_bare and application_properties and not changed and via_partition_key is None:
            return self._with_properties(application_properties)
        header, delivery_annotations, annotations, *_, footer = self._bounds[2::3]
        parts: list[bytes] = []
        if header or "time_to_live" in changed:
            parts.append(self._header_with(changed))
        if delivery_annotations:
            raw = self.raw_value(DELIVERY_ANNOTATIONS)
            if not raw.startswith(_LOCK_TOKEN):
                parts.append(described_map(b"\x00\x53\x71", senders_entries(raw)))
        if (
            annotations
            or via_partition_key is not None
            or "partition_key" in changed
            or "scheduled_enqueue_time_utc" in changed
        ):
            parts.append(self._annotations_with(changed, via_partition_key))
        if changed and not changed.keys() <= _ANNOTATIONS.keys():
            parts.append(self._properties_with(changed, created_at_ms))
        else:
            parts.append(self.raw(PROPERTIES))
        if application_properties is None:
            parts.append(self.raw(APPLICATION_PROPERTIES))
        elif application_properties:
            parts += b"\x00\x53\x74", application_properties
        parts.append(self.raw_body)
        if footer:
            parts.append(self.raw(FOOTER))
        rewritten = EncodedMessage(b"".join(parts))
        for name, value in changes.items():  # the others are rarely read
            setattr(rewritten, name, value)
        return rewritten

    def _with_properties(self, encoded: bytes) -> EncodedMessage:
        start, _, stop = self._place(APPLICATION_PROPERTIES)
        if not stop:
            start = stop = self._bounds[_PROPERTIES_END]
        payload = self.payload
        return EncodedMessage(b"".join((payload[:start], b"\x00\x53\x74", encoded, payload[stop:])))

    def undecoded(self) -> EncodedMessage:
        """Return the message without what was decoded so far, which takes memory, except for the time to live."""
        message = EncodedMessage(self.payload)
        message.time_to_live = self.time_to_live
        return message

    def as_transferred(self) -> EncodedMessage:
        """Return the message with the values that its bytes hold.

        They have whole milliseconds, and the longest time to live ends with the year 9999.
        """
        ttl, schedule = self.time_to_live, self.scheduled_enqueue_time_utc
        if (ttl is None or (ttl <= LONGEST_HEADER_TTL and not ttl.microseconds % 1000)) and (
            schedule is None or not schedule.microsecond % 1000
        ):
            return self
        return EncodedMessage(self.payload)

    def _header_with(self, changes: Mapping[str, Any]) -> bytes:
        """Return the header section with a changed time to live, without what a broker counts."""
        raw, ttl = self.raw_value(HEADER), changes.get("time_to_live", ...)
        return _usual_header(raw, ttl) if len(raw) <= _MAX_HEADER_BYTES else _header(raw, ttl)

    def _annotations_with(self, changes: Mapping[str, Any], via_partition_key: str | None) -> bytes:
        """Return the section of the annotations that a sender may set, with changed ones."""
        key, schedule = changes.get("partition_key"), changes.get("scheduled_enqueue_time_utc")
        entries = _annotations(key, schedule, via_partition_key)
        if self._may_have_senders_annotations():
            dropped = {annotation for name, annotation in _ANNOTATIONS.items() if name in changes}
            if via_partition_key is not None:
                dropped.add(servicebus.VIA_PARTITION_KEY)
            entries = senders_entries(self.raw_value(MESSAGE_ANNOTATIONS), dropped) + entries
        return described_map(b"\x00\x53\x72", entries)

    def _properties_with(self, changes: Mapping[str, Any], created_at_ms: int) -> bytes:
        """Return the properties section with changed fields."""
        raw = self.raw_value(PROPERTIES)
        fields = list_fields(raw) if raw else []
        if "time_to_live" in changes:
            lasting = _lasting(changes["time_to_live"], created_at_ms)
            if lasting or len(fields) > 8:
                fields += [_NULL] * (10 - len(fields))
                fields[8:10] = lasting or [_NULL, _NULL]
        for name, (place, encode_field) in _FIELDS.items():
            if name in changes:
                fields += [_NULL] * (place + 1 - len(fields))
                fields[place] = _NULL if changes[name] is None else encode_field(changes[name])
        return described_list(b"\x00\x53\x73", fields)

    def _may_have_senders_annotations(self) -> bool:
        try:
            return not self.annotations.keys() <= servicebus.BROKER_ANNOTATIONS
        except (WireError, InvalidOperationError):
            return True

    def without_properties(self, names: Collection[str], **changes: Any) -> EncodedMessage:
        """Return a message without some application properties, and with other attributes; see `rewritten`."""
        properties = rewritten_map(self.raw_value(APPLICATION_PROPERTIES), names.__contains__)
        return self.rewritten(application_properties=properties, **changes)

    def with_added(self, properties: Mapping[str, PropertyValue]) -> EncodedMessage:
        """Return a message with further application properties; they replace those of the same name."""
        added, count = encode_entries(properties)
        raw = self.raw_value(APPLICATION_PROPERTIES)
        return self.rewritten(application_properties=rewritten_map(raw, properties.__contains__, added, count))

    def encoded_properties(self, properties: Mapping[str, PropertyValue], own: Mapping[str, PropertyValue]) -> bytes:
        """Encode the map of application properties; values that have not changed keep their encoding.

        Args:
            properties: the new ones.
            own: those of this message, as they were decoded.
        """
        raw = self.raw_value(APPLICATION_PROPERTIES)
        encodings = dict(map_entries(raw)) if raw else {}
        parts: list[bytes] = []
        for name, value in properties.items():
            is_own = name in encodings and type(own[name]) is type(value) and own[name] == value
            parts.append(encodings[name] if is_own else encode_entries({name: value})[0])
        return sized_map(b"".join(parts), 2 * len(parts)) if parts else b""


_ANNOTATIONS: Final = {
    "partition_key": servicebus.PARTITION_KEY,
    "scheduled_enqueue_time_utc": servicebus.SCHEDULED_ENQUEUE_TIME,
}


# -- encode ------------------------------------------------------------------------------------------------------------


def encode_message(message: ServiceBusMessage, now: Callable[[], float] = lambda: 0.0) -> EncodedMessage:
    """Encode a message. Parts that were received are encoded as they were, unless they have been changed.

    Args:
        now: returns the seconds since 1970, from which a time to live counts that the header cannot hold.

    Raises:
        EncodeError: a property or the body has a value without an AMQP type.
    """
    if message._content is not None:
        return _encode_again(message, message._content, int(now() * 1000))
    parts: list[bytes] = []
    time_to_live = message._time_to_live
    lasting: list[bytes] | None = None
    if time_to_live is not None:
        ttl_ms = min(time_to_live // _MILLISECOND, MAX_TTL_MS)
        parts.append(b"\x00\x53\x70" + sized_list(b"\x40\x40" + encode_uint(ttl_ms), 3))
        lasting = _lasting(time_to_live, int(now() * 1000))
    partition_key, schedule = message._partition_key, message._scheduled_enqueue_time_utc
    if partition_key is not None or schedule is not None:
        parts.append(described_map(b"\x00\x53\x72", _annotations(partition_key, schedule, None)))
    section = _properties(message, lasting)
    properties = message._application_properties
    further = b"\x00\x53\x74" + encode_application_properties(properties) if properties else b""
    body: Any = message._body
    if not parts and section and isinstance(body, bytes) and message._body_type is _DATA_BODY:
        encoded = EncodedMessage(b"".join((section, further, b"\x00\x53\x75", encode_binary(body))))
        encoded._sizes = len(section) + len(further) * 2**32
    else:
        encoded = EncodedMessage(b"".join((*parts, section, further, encode_body(body, message._body_type))))
    encoded.body_type = message._body_type
    encoded.content_type = message._content_type
    encoded.correlation_id = message._correlation_id
    encoded.message_id = message._message_id
    encoded.partition_key = partition_key
    encoded.reply_to = message._reply_to
    encoded.reply_to_session_id = message._reply_to_session_id
    encoded.scheduled_enqueue_time_utc = schedule
    encoded.session_id = message._session_id
    encoded.subject = message._subject
    encoded.time_to_live = time_to_live
    encoded.to = message._to
    return encoded


def encode_body(body: Any, body_type: AmqpMessageBodyType) -> bytes:
    """Return the sections of a body: bytes or parts of them, sequences, or a value.

    Raises:
        EncodeError: a value has no AMQP type.
    """
    if body_type is AmqpMessageBodyType.VALUE:
        return b"\x00\x53\x77" + encode_value(body)
    if body_type is AmqpMessageBodyType.SEQUENCE:
        return b"".join(b"\x00\x53\x76" + encode_value(items) for items in body)
    pieces = (body,) if isinstance(body, bytes) else body or (b"",)
    return b"".join([b"\x00\x53\x75" + encode_binary(piece) for piece in pieces])


def _encode_again(message: ServiceBusMessage, content: Any, created_at_ms: int) -> EncodedMessage:
    """Encode a received message, or a copy of one: attributes that the application has not changed stay as they are."""
    properties = None
    if _is_decoded(message, "_application_properties"):
        held = message._application_properties
        properties = content.encoded_properties(held or {}, content.typed_properties)
    encoded: EncodedMessage = content.rewritten(
        created_at_ms=created_at_ms, application_properties=properties, **changes_of(message)
    )
    return encoded


def changes_of(message: ServiceBusMessage) -> dict[str, Any]:
    """Return the attributes of a message with encoded content that differ from that content, by name."""
    values = ((name, getattr(message, name)) for name in ATTRIBUTES)
    return {name: value for name, value in values if value != getattr(message._content, name)}


def encoded_content(message: ServiceBusMessage) -> EncodedMessage:
    """Return the encoded content that a received message was created with."""
    content = message._content
    if not isinstance(content, EncodedMessage):
        raise TypeError(f"a {type(message).__name__} was not received: encode it")
    return content


def _is_decoded(message: ServiceBusMessage, name: str) -> bool:
    try:
        object.__getattribute__(message, name)
    except AttributeError:
        return False
    return True


def encode_application_properties(properties: Mapping[str, PropertyValue]) -> bytes:
    """Encode the map of application properties, without its descriptor."""
    content, count = encode_entries(properties)
    return sized_map(content, count)


def encode_entries(properties: Mapping[str, PropertyValue]) -> tuple[bytes, int]:
    """Return the encoded names and values, and how many elements they are."""
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


def _annotations(partition_key: str | None, schedule: datetime | None, via_partition_key: str | None) -> list[bytes]:
    entries: list[bytes] = []
    if partition_key is not None:
        entries.append(_PARTITION_KEY + encode_string(partition_key))
    if schedule is not None:
        entries.append(_SCHEDULE + encode_timestamp(schedule))
    if via_partition_key is not None:
        entries.append(_VIA_PARTITION_KEY + encode_string(via_partition_key))
    return entries


def _header(raw: bytes, time_to_live: timedelta | EllipsisType | None) -> bytes:
    """Return a header section as a sender may set it.

    Args:
        raw: the encoded fields; empty for none.
        time_to_live: a new one; `...` keeps that of the fields.
    """
    fields = list_fields(raw)[:4] if raw else []
    if time_to_live is not ...:
        fields += [_NULL] * (3 - len(fields))
        fields[2] = _NULL if time_to_live is None else encode_uint(min(time_to_live // _MILLISECOND, MAX_TTL_MS))
    return described_list(b"\x00\x53\x70", fields)


_usual_header: Final = lru_cache(512)(_header)
"""Most messages of an entity have the same header."""

_MAX_HEADER_BYTES: Final = 24


def _lasting(time_to_live: timedelta | None, created_at_ms: int) -> list[bytes] | None:
    """Return absolute-expiry-time and creation-time of a message that lives longer than the header can say."""
    if time_to_live is None or time_to_live <= LONGEST_HEADER_TTL:
        return None
    expires_at_ms = min(created_at_ms + time_to_live // _MILLISECOND, _LATEST_EXPIRY_MS)
    return [encode_timestamp(expires_at_ms), encode_timestamp(created_at_ms)]


def described_list(descriptor: bytes, fields: list[bytes]) -> bytes:
    while fields and fields[-1] == _NULL:
        fields.pop()
    return descriptor + list_of(fields) if fields else b""


def described_map(descriptor: bytes, entries: list[bytes]) -> bytes:
    return descriptor + sized_map(b"".join(entries), 2 * len(entries)) if entries else b""


def senders_entries(annotations: bytes, dropped: Iterable[str] = ()) -> list[bytes]:
    """Return the encoded entries of annotations that a sender may set; none if the map is malformed.

    Args:
        annotations: the encoded map; empty for none.
        dropped: further names to leave out.
    """
    if not annotations:
        return []
    try:
        return [
            entry
            for name, entry in map_entries(annotations)
            if not (isinstance(name, str) and (name in servicebus.BROKER_ANNOTATIONS or name in dropped))
        ]
    except WireError:
        return []


def _properties(message: ServiceBusMessage, lasting: list[bytes] | None) -> bytes:
    """Encode the properties section; empty if nothing is set. Trailing nulls are omitted.

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
        parts += _NULLS[8 - last], *lasting
        last = 10
    if message._session_id is not None:
        parts += _NULLS[10 - last], encode_string(message._session_id)
        last = 11
    if message._reply_to_session_id is not None:
        parts += _NULLS[12 - last], encode_string(message._reply_to_session_id)
        last = 13
    return b"\x00\x53\x73" + sized_list(b"".join(parts), last) if last else b""


# -- decode ------------------------------------------------------------------------------------------------------------


def _read_body_type(message: EncodedMessage) -> None:
    message.body_type = _BODY_TYPES[message.body_code]


def _read_application_properties(message: EncodedMessage) -> None:
    found = super(EncodedMessage, message).application_properties
    message.application_properties = {
        name: value if type(value) is str else _plain_property(value) for name, value in found.items()
    }


def _read_properties(message: EncodedMessage) -> None:
    """Read the properties, and the time to live, which the header and two of the properties have."""
    (
        message_id,
        _,
        to,
        message.subject,
        reply_to,
        correlation_id,
        message.content_type,
        _,
        expires,
        created,
        session_id,
        _,
        reply_to_session_id,
    ) = message.property_fields()
    message.to = to if to is None or type(to) is str else _text(to)
    message.reply_to = reply_to if reply_to is None or type(reply_to) is str else _text(reply_to)
    is_text = correlation_id is None or type(correlation_id) is str
    message.correlation_id = correlation_id if is_text else _text(correlation_id)
    if message_id is not None and (type(message_id) is not str or len(message_id) > MAX_ID_LENGTH):
        message_id = _short("message_id", _text(message_id))
    message.message_id = message_id
    message.session_id = session_id if session_id is None else _short("session_id", session_id)
    message.reply_to_session_id = (
        None if reply_to_session_id is None else _short("reply_to_session_id", reply_to_session_id)
    )
    ttl_ms = message.header.ttl
    if ttl_ms is None:
        message.time_to_live = None
        return
    message.time_to_live = timedelta(milliseconds=ttl_ms)
    if isinstance(created, datetime) and isinstance(expires, datetime):
        lasting = expires - created
        if lasting > LONGEST_HEADER_TTL and _exceeds_header(ttl_ms, lasting, expires):
            message.time_to_live = lasting


def _exceeds_header(ttl_ms: int, lasting: timedelta, expires: datetime) -> bool:
    """Return whether the time to live exceeds the header field, so that creation and absolute expiry have it.

    Java writes the largest value of the field, .NET that or the lowest 32 bits. The largest time to live of .NET ends
    with the year 9999.
    """
    return ttl_ms in (MAX_TTL_MS, lasting // _MILLISECOND & MAX_TTL_MS) or expires.year == MAXYEAR


def _read_annotations(message: EncodedMessage) -> None:
    annotations = message.annotations = message.message_annotations
    message.partition_key = message.scheduled_enqueue_time_utc = None
    if not annotations:
        return
    key = annotations.get(servicebus.PARTITION_KEY)
    if key is not None:
        key = _text(key) if isinstance(key, bytes) else key  # azure-servicebus sends a key on as binary
        if not isinstance(key, str):
            raise WireError(INVALID_FIELD, f"{servicebus.PARTITION_KEY} is a {type(key).__name__}, not a string")
        message.partition_key = _short("partition_key", key)
    schedule = annotations.get(servicebus.SCHEDULED_ENQUEUE_TIME)
    if schedule is not None:
        if not isinstance(schedule, datetime):
            raise WireError(
                INVALID_FIELD, f"{servicebus.SCHEDULED_ENQUEUE_TIME} is a {type(schedule).__name__}, not a timestamp"
            )
        message.scheduled_enqueue_time_utc = schedule


_READERS: Final[dict[str, Callable[[EncodedMessage], None]]] = {
    **dict.fromkeys((*_FIELDS, "time_to_live"), _read_properties),
    "application_properties": _read_application_properties,
    **dict.fromkeys(Sections.__slots__, Sections._find),
    "body_type": _read_body_type,
    **dict.fromkeys(("annotations", "partition_key", "scheduled_enqueue_time_utc"), _read_annotations),
}
"""The function that decodes each attribute, with others of its section."""


def _short(name: str, value: str | None) -> str | None:
    if value is not None and len(value) > MAX_ID_LENGTH:
        raise InvalidOperationError(
            f"{name} has {len(value)} characters, {MAX_ID_LENGTH} are allowed: shorten it or send its hash"
        )
    return value


def _text(value: Any) -> str:
    """Convert an id or address to text: a UUID in its usual form, binary as UTF-8 or hexadecimal."""
    if type(value) is str:
        return value
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value.hex()
    if isinstance(value, str | int | UUID) and not isinstance(value, Timestamp):
        return str(value)
    raise WireError(INVALID_FIELD, f"an id or address is a {type(value).__name__}, a string is expected")


def _plain_property(value: Any) -> Any:
    """An integer of Python's own class: `value in range(...)` is slow for a subclass."""
    return int(value) if isinstance(value, TypedInteger) and not isinstance(value, Timestamp) else value


_KEPT: Final = (str, int, float, datetime, timedelta, UUID, Decimal, type(None))
"""What an application property may be; the AMQP types that are subclasses of these keep themselves."""


def _typed_property(value: Any) -> PropertyValue:
    if isinstance(value, bytes):
        return Binary(value)
    return value if isinstance(value, _KEPT) else Opaque.of(str(value), encode_value(value))
