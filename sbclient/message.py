"""The messages that an application sends and receives, with the attributes of azure-servicebus.

An application's message is encoded when it is sent, and not changed. A received message, and a copy of one, decodes its
encoded content when it is read.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum, StrEnum
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, Self, SupportsIndex, TypeAlias
from uuid import UUID

from sbclient.arguments.kinds import MAX_ID_LENGTH as MAX_ID_LENGTH
from sbclient.arguments.kinds import encodable, plain_timedelta, short_id, shown, utc, wrong_type
from sbclient.errors import InvalidOperationError, ServiceBusError

PropertyValue: TypeAlias = str | int | float | bool | bytes | datetime | timedelta | UUID | Decimal | None
"""The types of an application property. `bytes` are sent as text, as in the SDK (`str(bytes, "utf-8")`)."""

_INT64 = range(-(2**63), 2**63)
_UINT64 = range(2**64)

_IDS = frozenset({"message_id", "correlation_id"})
"""The attributes that AMQP and azure-servicebus also allow to be a number or a UUID."""


class ServiceBusMessageState(int, Enum):
    """The state of a message in its queue. The numbers are those of the `x-opt-message-state` annotation."""

    ACTIVE = 0
    DEFERRED = 1
    SCHEDULED = 2


_SHOWN = ("message_id", "session_id", "partition_key", "subject", "correlation_id", "content_type")
_SHOWN_RECEIVED = (*_SHOWN, "sequence_number", "enqueued_time_utc", "delivery_count")

NamespaceSide: TypeAlias = Literal["primary", "secondary"]

Body: TypeAlias = bytes | tuple[bytes, ...] | Any


def _short_id(name: str, value: str | bytes | int | UUID | None) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        value = _as_text(name, value)
    return short_id(name, value)


def _text(name: str, value: str | bytes | int | UUID | None) -> str | None:
    if value is None:
        return None
    return encodable(name, value if isinstance(value, str) else _as_text(name, value))


def _as_text(name: str, value: object) -> str:
    """Return what azure-servicebus takes for a text, as its attributes or the service show it."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:  # not chained: its text shows the value
            raise InvalidOperationError(f"{name} holds bytes that are not UTF-8: give a str, such as base64") from None
    if name in _IDS and isinstance(value, UUID):
        return str(value)
    if name in _IDS and isinstance(value, int):
        if int(value) not in _INT64 and int(value) not in _UINT64:
            raise InvalidOperationError(f"{name} is {shown(value)}: give a number of 64 bits, or a str")
        return str(value)
    raise wrong_type(name, value, "a str")


def _utc(value: datetime | None) -> datetime | None:
    return None if value is None else utc("scheduled_enqueue_time_utc", value)


def _time_to_live(value: timedelta | float | None) -> timedelta | None:
    if value is None:
        return None
    if not isinstance(value, timedelta):
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise wrong_type("time_to_live", value, "a timedelta or seconds")
        try:
            value = timedelta(seconds=value)
        except (OverflowError, ValueError):
            raise InvalidOperationError(
                f"time_to_live is {shown(value)}: give a timedelta, or None for no limit"
            ) from None
    if value < timedelta(0):
        raise InvalidOperationError(f"time_to_live {value} is negative: give a positive duration, or None for no limit")
    return plain_timedelta(value)


def _body(body: str | bytes | Iterable[bytes] | None, encoding: str) -> bytes | tuple[bytes, ...]:
    if isinstance(body, bytes):
        return body
    if isinstance(body, str):
        if not isinstance(encoding, str):
            raise wrong_type("encoding", encoding, "a str")
        try:
            return body.encode(encoding)
        except (LookupError, ValueError):  # not chained: the text of one shows the body
            raise InvalidOperationError(
                f"{encoding} cannot encode the body: pass another encoding, or bytes; a lone surrogate has no encoding"
            ) from None
    if body is None:
        return b""
    if isinstance(body, bytearray | memoryview):
        return bytes(body)
    if not isinstance(body, Iterable):
        raise wrong_type("body", body, "a str, bytes or an iterable of bytes")
    chunks = tuple(body)
    for chunk in chunks:
        if not isinstance(chunk, bytes):
            raise wrong_type("each part of body", chunk, "bytes")
    return chunks


def _property(key: str | bytes, value: Any) -> tuple[str, PropertyValue]:
    name = key.decode(errors="surrogateescape") if isinstance(key, bytes) else key
    if not isinstance(name, str):
        raise TypeError(f"application property {key!r} must be named by a str, not {type(key).__name__}")
    name = encodable("the name of an application property", name)
    if isinstance(value, str):
        text = encodable(f"application property {name!r}", value)
        return name, text if isinstance(value, Enum) else value  # classes of sbclient.amqp stay
    if type(value) is bytes:
        try:
            return name, value.decode()
        except UnicodeDecodeError:  # not chained: its text shows the value
            raise InvalidOperationError(
                f"application property {name!r} contains bytes that are not UTF-8: give sbclient.amqp.Binary(value)"
            ) from None
    if isinstance(value, int) and int(value) not in getattr(value, "limits", _INT64):  # `in` is slow for a subclass
        raise InvalidOperationError(
            f"application property {name!r} does not fit into 63 bits and a sign: give sbclient.amqp.ULong(value) if "
            "it fits into 64 bits, else text"
        )
    if isinstance(value, datetime) and value.tzinfo is None:
        return name, value.replace(tzinfo=UTC)
    if value is not None and not isinstance(value, int | float | bytes | datetime | timedelta | UUID | Decimal):
        raise TypeError(
            f"application property {name!r} is a {type(value).__name__}: "
            "str, int, float, bool, bytes, datetime, timedelta, UUID, Decimal and None are allowed"
        )
    return name, value


class AmqpMessageBodyType(StrEnum):
    """How the body is encoded in AMQP 1.0. A member equals the one of `azure.servicebus.amqp`."""

    DATA = "data"
    SEQUENCE = "sequence"
    VALUE = "value"


_DATA: Final = AmqpMessageBodyType.DATA  # members of an enumeration are read slowly


@dataclass(slots=True, kw_only=True)
class AmqpMessageHeader:
    """The header section. `time_to_live` is in milliseconds; None = the field is not set."""

    delivery_count: int | None = None
    time_to_live: int | None = None
    durable: bool | None = None
    first_acquirer: bool | None = None
    priority: int | None = None


@dataclass(slots=True, kw_only=True)
class AmqpMessageProperties:
    """The properties section, with AMQP's names: `group_id` is the session id. None = the field is not set."""

    message_id: str | int | UUID | bytes | None = None
    user_id: bytes | None = field(default=None, repr=False)
    to: str | None = None
    subject: str | None = None
    reply_to: str | None = None
    correlation_id: str | int | UUID | bytes | None = None
    content_type: str | None = None
    content_encoding: str | None = None
    absolute_expiry_time: datetime | int | None = None
    creation_time: datetime | int | None = None
    group_id: str | None = None
    group_sequence: int | None = None
    reply_to_group_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AmqpAnnotatedMessage:
    """The sections of a received message. Changing them does not change the message. It can be sent.

    Attributes:
        content: the body as it is stored: bytes or a tuple of bytes, a list of sequences, or a value.
        annotations: of the message, by name; timestamps as `datetime`.
    """

    properties: AmqpMessageProperties
    header: AmqpMessageHeader
    footer: Mapping[str, Any] = field(default_factory=dict, repr=False)
    annotations: Mapping[str, Any] = field(repr=False)
    delivery_annotations: Mapping[str, Any] = field(default_factory=dict, repr=False)
    application_properties: Mapping[str, Any] = field(repr=False)
    content: Any = field(repr=False)
    body_type: AmqpMessageBodyType

    @property
    def body(self) -> Any:
        """An iterator over the data sections, a list of sequences, or a value, depending on `body_type`."""
        if self.body_type is not AmqpMessageBodyType.DATA:
            return self.content
        return iter((self.content,) if isinstance(self.content, bytes) else self.content)


class ByName(dict[str, Any]):
    """Properties or annotations of a message. A lookup by `bytes`, the names in azure-servicebus, warns."""

    __slots__ = ()

    def __missing__(self, name: object) -> Any:
        error = KeyError(name)
        if (advice := _warn_of_bytes(name)) is not None:
            error.add_note(advice)
        raise error

    def __contains__(self, name: object) -> bool:
        _warn_of_bytes(name)
        return super().__contains__(name)

    def get(self, name: Any, default: Any = None) -> Any:
        """Return the value of a property; the default if there is none."""
        _warn_of_bytes(name)
        return super().get(name, default)


def _warn_of_bytes(name: object) -> str | None:
    if not isinstance(name, bytes):
        return None
    advice = f"{name!r} is not found: look up {name.decode(errors='replace')!r}, names are of type str"
    warnings.warn(advice, UserWarning, stacklevel=3)
    return advice


class Content(Protocol):
    """The encoded form of a message, with the attributes of `ServiceBusMessage`."""

    @property
    def content_type(self) -> str | None:
        """The MIME type of the body."""

    @property
    def typed_properties(self) -> dict[str, PropertyValue]:
        """The application properties, whose values keep their AMQP types."""

    @property
    def body(self) -> Any:
        """The decoded body."""

    @property
    def body_type(self) -> AmqpMessageBodyType:
        """How the body is encoded."""

    def annotated(self, received: ServiceBusReceivedMessage | None = None) -> AmqpAnnotatedMessage:
        """Return the sections of the message, with the annotations of the broker if it was received."""

    @property
    def size_bytes(self) -> int:
        """The encoded size."""


class Keyed(Protocol):
    """The attributes that place a message, of a message in any form."""

    @property
    def message_id(self) -> str | None:
        """The id of the message."""

    @property
    def session_id(self) -> str | None:
        """The session of the message."""

    @property
    def partition_key(self) -> str | None:
        """The key that determines the partition."""

    @property
    def content_type(self) -> str | None:
        """The MIME type of the body."""


class ServiceBusMessage:
    """A message to send.

    Args:
        body: text, bytes, or an iterable of bytes (one data section each); None is an empty body.
        application_properties: names of type str; values of type str, int, float, bool, bytes, datetime, timedelta,
            UUID, Decimal or None. `sbclient.amqp` has classes for the other types.
        session_id: at most 128 characters; required by session entities, where it is the partition key. An empty one
            is the id of a session, too.
        message_id: at most 128 characters; a UUID or a number becomes text. None = the first send sets a UUID.
        scheduled_enqueue_time_utc: when the message becomes visible; a naive value is UTC.
        time_to_live: time after which the message expires, a timedelta or seconds; None = the entity's default.
        content_type: a MIME type; `application/vnd.ms-servicebus-ping` is reserved.
        correlation_id: free text; a UUID or a number becomes text.
        subject: free text; the label of the message in Service Bus.
        partition_key: at most 128 characters; must equal `session_id` if both are set.
        to: free text.
        reply_to: free text.
        reply_to_session_id: at most 128 characters.
        encoding: the encoding of a body that is text.

    Texts may be UTF-8 bytes, as in azure-servicebus.

    Raises:
        InvalidOperationError: an id is too long, the time to live is negative, or a text cannot be encoded.
        TypeError: a value has the wrong type.
    """

    __slots__ = (
        "_application_properties",
        "_body",
        "_body_type",
        "_content",
        "_content_type",
        "_correlation_id",
        "_message_id",
        "_partition_key",
        "_reply_to",
        "_reply_to_session_id",
        "_scheduled_enqueue_time_utc",
        "_session_id",
        "_subject",
        "_time_to_live",
        "_to",
    )

    def __init__(
        self,
        body: str | bytes | Iterable[bytes] | None,
        *,
        application_properties: Mapping[str | bytes, Any] | Mapping[str, Any] | None = None,
        session_id: str | None = None,
        message_id: str | int | UUID | None = None,
        scheduled_enqueue_time_utc: datetime | None = None,
        time_to_live: timedelta | float | None = None,
        content_type: str | None = None,
        correlation_id: str | int | UUID | None = None,
        subject: str | None = None,
        partition_key: str | None = None,
        to: str | None = None,
        reply_to: str | None = None,
        reply_to_session_id: str | None = None,
        encoding: str = "UTF-8",
    ) -> None:
        self._content: Content | None = None
        self._body: Body = body if type(body) is bytes else _body(body, encoding)
        self._body_type = _DATA
        self._application_properties: dict[str, PropertyValue] | None = None
        if application_properties is not None:
            self.application_properties = application_properties
        # Most values are None; calling the checks for them would double the cost of creating a message.
        self._session_id = None if session_id is None else _short_id("session_id", session_id)
        self._message_id = None if message_id is None else _short_id("message_id", message_id)
        self._scheduled_enqueue_time_utc = (
            None if scheduled_enqueue_time_utc is None else _utc(scheduled_enqueue_time_utc)
        )
        self._time_to_live = None if time_to_live is None else _time_to_live(time_to_live)
        self._content_type = None if content_type is None else _text("content_type", content_type)
        self._correlation_id = None if correlation_id is None else _text("correlation_id", correlation_id)
        self._subject = None if subject is None else _text("subject", subject)
        self._partition_key = None if partition_key is None else _short_id("partition_key", partition_key)
        self._to = None if to is None else _text("to", to)
        self._reply_to = None if reply_to is None else _text("reply_to", reply_to)
        self._reply_to_session_id = (
            None if reply_to_session_id is None else _short_id("reply_to_session_id", reply_to_session_id)
        )

    @property
    def body(self) -> Any:
        """The body: an iterator over its data sections, or a value or a sequence, depending on `body_type`."""
        body = self._decoded("_body")
        if self._body_type is not _DATA:
            return body
        return iter((body,) if isinstance(body, bytes) else body)

    @property
    def body_type(self) -> AmqpMessageBodyType:
        """DATA for messages of this client; other clients may send VALUE or SEQUENCE."""
        return self._body_type

    def __bytes__(self) -> bytes:
        """Return the data sections as one bytes object.

        Raises:
            TypeError: the body is not of the DATA type.
        """
        if self._body_type is not _DATA:
            raise TypeError(f"a body of type {self._body_type.name} has no bytes: read .body")
        body = self._decoded("_body")
        return body if isinstance(body, bytes) else b"".join(body)

    def __str__(self) -> str:
        if self._body_type is not _DATA:
            return str(self._decoded("_body"))
        return bytes(self).decode(errors="backslashreplace")

    def __repr__(self) -> str:
        """Return ids, keys, subject and names of properties, never the body or values: a repr may end up in logs."""
        return self._shown(type(self).__name__, _SHOWN)

    def _shown(self, name: str, attributes: Iterable[str]) -> str:
        values = ((each, getattr(self, each)) for each in attributes)
        fields = [f"{each}={value!r}" for each, value in values if value is not None]
        try:
            properties = self._decoded("_application_properties")
        except ServiceBusError:
            fields.append("application_properties=unreadable")
        else:
            if properties:
                fields.append(f"application_properties={{{', '.join(map(repr, properties))}}}")
        return f"{name}({', '.join(fields)})"

    @property
    def application_properties(self) -> dict[str, PropertyValue]:
        """The properties of the application: change the dict in place or assign a new one."""
        properties = self._decoded("_application_properties")
        if type(properties) is not ByName:
            properties = self._application_properties = ByName(properties or {})
        return properties

    @application_properties.setter
    def application_properties(self, value: Mapping[Any, Any] | None) -> None:
        if value is not None and not isinstance(value, Mapping):
            raise wrong_type("application_properties", value, "a mapping")
        self._application_properties = dict(_property(key, item) for key, item in value.items()) if value else None

    @property
    def session_id(self) -> str | None:
        """The session of the message. On session entities it also determines the order and the partition."""
        return self._session_id

    @session_id.setter
    def session_id(self, value: str | None) -> None:
        self._session_id = _short_id("session_id", value)

    @property
    def message_id(self) -> str | None:
        """The id of the message, which duplicate detection compares."""
        return self._message_id

    @message_id.setter
    def message_id(self, value: str | int | UUID | None) -> None:
        self._message_id = _short_id("message_id", value)

    @property
    def scheduled_enqueue_time_utc(self) -> datetime | None:
        """When the message becomes visible, in UTC; None = at once."""
        return self._scheduled_enqueue_time_utc

    @scheduled_enqueue_time_utc.setter
    def scheduled_enqueue_time_utc(self, value: datetime | None) -> None:
        self._scheduled_enqueue_time_utc = _utc(value)

    @property
    def time_to_live(self) -> timedelta | None:
        """Time after which the message expires; None = the entity's default."""
        return self._time_to_live

    @time_to_live.setter
    def time_to_live(self, value: timedelta | float | None) -> None:
        self._time_to_live = _time_to_live(value)

    @property
    def content_type(self) -> str | None:
        """The MIME type of the body."""
        return self._content_type

    @content_type.setter
    def content_type(self, value: str | None) -> None:
        self._content_type = _text("content_type", value)

    @property
    def correlation_id(self) -> str | None:
        """Free text; identifies the request or the workflow that the message belongs to."""
        return self._correlation_id

    @correlation_id.setter
    def correlation_id(self, value: str | int | UUID | None) -> None:
        self._correlation_id = _text("correlation_id", value)

    @property
    def subject(self) -> str | None:
        """Free text; the label of the message in Service Bus."""
        return self._subject

    @subject.setter
    def subject(self, value: str | None) -> None:
        self._subject = _text("subject", value)

    @property
    def partition_key(self) -> str | None:
        """The key that determines the partition of a partitioned entity."""
        return self._partition_key

    @partition_key.setter
    def partition_key(self, value: str | None) -> None:
        self._partition_key = _short_id("partition_key", value)

    @property
    def to(self) -> str | None:
        """Free text; the service does not read it."""
        return self._to

    @to.setter
    def to(self, value: str | None) -> None:
        self._to = _text("to", value)

    @property
    def reply_to(self) -> str | None:
        """The address for replies; free text."""
        return self._reply_to

    @reply_to.setter
    def reply_to(self, value: str | None) -> None:
        self._reply_to = _text("reply_to", value)

    @property
    def reply_to_session_id(self) -> str | None:
        """The session id for replies."""
        return self._reply_to_session_id

    @reply_to_session_id.setter
    def reply_to_session_id(self, value: str | None) -> None:
        self._reply_to_session_id = _short_id("reply_to_session_id", value)

    def _decoded(self, name: str) -> Any:
        """Return an attribute, which is taken from encoded content when it is read for the first time.

        This class has no `__getattr__`: with one, reading an attribute that is set takes ten times as long.
        """
        try:
            return object.__getattribute__(self, name)
        except AttributeError:
            value = getattr(self._content, _OF_CONTENT[name])
            if name == "_application_properties":
                value = value or None
            setattr(self, name, value)
            return value

    def copy(self, **changes: Any) -> ServiceBusMessage:
        """Return a plain `ServiceBusMessage` with the same content. Its properties are checked again.

        Args:
            changes: attributes to set on the copy, by name.

        Raises:
            InvalidOperationError, TypeError: as for the constructor.
        """
        twin = ServiceBusMessage.__new__(ServiceBusMessage)
        twin._content = self._content
        for name in _CONTENT:
            try:
                setattr(twin, name, object.__getattribute__(self, name))
            except AttributeError:
                if name not in _DECODED_LATER:
                    setattr(twin, name, self._decoded(name))
                continue
            if name == "_application_properties":
                twin.application_properties = twin._application_properties
        for name, value in changes.items():
            setattr(twin, name, value)
        return twin


_CONTENT: Final = tuple(name for name in ServiceBusMessage.__slots__ if name != "_content")
_OF_CONTENT: Final = {
    **{name: name.removeprefix("_") for name in _CONTENT},
    "_application_properties": "typed_properties",
}
"""The attribute of encoded content for each one of a message."""

_DECODED_LATER: Final = ("_body", "_application_properties")


def message_of(content: Content) -> ServiceBusMessage:
    """Return a message with encoded content. Its body and application properties are decoded when they are read."""
    message = ServiceBusMessage.__new__(ServiceBusMessage)
    message._content = content
    for name in _CONTENT:
        if name not in _DECODED_LATER:
            setattr(message, name, getattr(content, _OF_CONTENT[name]))
    return message


class ServiceBusReceivedMessage(ServiceBusMessage):
    """A message received from a queue or subscription, with the attributes that the broker adds.

    Created by transports only. Attributes beyond those of `ServiceBusMessage`:

        sequence_number: 64 bits; on a partitioned entity the top 16 bits identify the fragment.
        enqueued_sequence_number: its number in the entity that stored it first, or None.
        enqueued_time_utc: when it was stored; 1970-01-01 UTC if the service did not send it.
        expires_at_utc: when it expires, or None if never or unknown.
        locked_until_utc: when the lock ends; None for a peeked, deleted or session message.
        lock_token: identifies this delivery; None for a peeked or deleted message.
        delivery_count: number of earlier failed deliveries.
        state: active, deferred or scheduled.
        dead_letter_reason, dead_letter_error_description, dead_letter_source: set on dead-lettered messages.
        namespace: `"primary"` or `"secondary"`, where a receiver with `receive_from="both"` found it (ours).
        is_copy: whether it was copied or unpickled: such a message has no link, and is not settled.
    """

    __slots__ = (
        "_auto_renew_error",
        "dead_letter_source",
        "delivery_count",
        "enqueued_sequence_number",
        "enqueued_time_utc",
        "expires_at_utc",
        "is_copy",
        "is_settled",
        "lock_token",
        "locked_until_utc",
        "namespace",
        "sequence_number",
        "state",
    )

    sequence_number: int
    enqueued_sequence_number: int | None
    enqueued_time_utc: datetime
    expires_at_utc: datetime | None
    locked_until_utc: datetime | None
    lock_token: UUID | None
    delivery_count: int
    state: ServiceBusMessageState
    dead_letter_source: str | None
    namespace: NamespaceSide
    is_copy: bool
    is_settled: bool
    _auto_renew_error: Exception | None

    @classmethod
    def of(
        cls,
        content: Content,
        sequence_number: int,
        enqueued_time_utc: datetime,
        enqueued_sequence_number: int | None = None,
        expires_at_utc: datetime | None = None,
        locked_until_utc: datetime | None = None,
        lock_token: UUID | None = None,
        delivery_count: int = 0,
        state: ServiceBusMessageState = ServiceBusMessageState.ACTIVE,
        dead_letter_source: str | None = None,
    ) -> Self:
        """Return a received message with this content."""
        received = cls.__new__(cls)
        received._hold(content)
        received.sequence_number = sequence_number
        received.enqueued_sequence_number = enqueued_sequence_number
        received.enqueued_time_utc = enqueued_time_utc
        received.expires_at_utc = expires_at_utc
        received.locked_until_utc = locked_until_utc
        received.lock_token = lock_token
        received.delivery_count = delivery_count
        received.state = state
        received.dead_letter_source = dead_letter_source
        received.namespace = "primary"
        received.is_settled = received.is_copy = False
        return received

    def _hold(self, content: Content) -> None:
        """Take encoded content. Attributes, body and application properties are taken from it when they are read."""
        self._content = content
        self._content_type = content.content_type  # every receiver reads it

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name in _OF_CONTENT:
                return self._decoded(name)
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        """Copy or pickle the message without its link."""
        return _copied, ({name: getattr(self, name) for name in _COPIED if hasattr(self, name)},)

    def __repr__(self) -> str:
        return self._shown(ServiceBusReceivedMessage.__name__, _SHOWN_RECEIVED)  # transports have subclasses

    @property
    def size_bytes(self) -> int:
        """The encoded size of the message as it was received."""
        assert self._content is not None
        return self._content.size_bytes

    @property
    def auto_renew_error(self) -> Exception | None:
        """Why an `AutoLockRenewer` stopped renewing the lock before the message was settled; None if it did not."""
        return getattr(self, "_auto_renew_error", None)  # unset until then

    @auto_renew_error.setter
    def auto_renew_error(self, error: Exception | None) -> None:
        self._auto_renew_error = error

    @property
    def dead_letter_reason(self) -> str | None:
        """Why the message was dead-lettered: the application property `DeadLetterReason`."""
        return self._text_property(DEAD_LETTER_REASON)

    @property
    def dead_letter_error_description(self) -> str | None:
        """Details of the reason: the application property `DeadLetterErrorDescription`."""
        return self._text_property(DEAD_LETTER_DESCRIPTION)

    @property
    def raw_amqp_message(self) -> AmqpAnnotatedMessage:
        """The sections of the message."""
        assert self._content is not None  # every received message has encoded content
        raw = self._content.annotated(self)
        ttl = self.time_to_live
        return replace(
            raw,
            header=replace(
                raw.header,
                delivery_count=self.delivery_count,
                time_to_live=None if ttl is None else ttl // timedelta(milliseconds=1),
            ),
            application_properties=dict(self.application_properties),
        )

    def _text_property(self, name: str) -> str | None:
        value = (self._application_properties or {}).get(name)
        return value if isinstance(value, str) else None


_COPIED: Final = (*ServiceBusMessage.__slots__, *ServiceBusReceivedMessage.__slots__[1:])  # without the renewal's error


def _copied(attributes: dict[str, Any]) -> ServiceBusReceivedMessage:
    message = ServiceBusReceivedMessage.__new__(ServiceBusReceivedMessage)
    for name, value in attributes.items():
        setattr(message, name, value)
    message.is_copy = True
    return message


DEAD_LETTER_REASON = "DeadLetterReason"
DEAD_LETTER_DESCRIPTION = "DeadLetterErrorDescription"
DEAD_LETTER_PROPERTIES = (DEAD_LETTER_REASON, DEAD_LETTER_DESCRIPTION)
"""The application properties that say why a message is a dead letter; a copy of it that is sent again has neither."""
