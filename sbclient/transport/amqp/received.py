"""Messages as the service delivers them. Each attribute is decoded when it is first read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final, Self
from uuid import UUID

from sbclient.amqp import IncomingDelivery, Properties, Sections, WireError
from sbclient.amqp.broker_annotations import LOCK_TOKEN_ANNOTATION
from sbclient.amqp.decimals import of_service
from sbclient.amqp.encode import encode_value
from sbclient.amqp.message import BODY_TYPES, ReceivedContent, body_of, copied, text_of
from sbclient.amqp.sections import HEADER, list_fields
from sbclient.amqp.types import Opaque, Timestamp
from sbclient.annotated_message import (
    DEAD_LETTER_SOURCE_ANNOTATION,
    ENQUEUE_SEQUENCE_NUMBER_ANNOTATION,
    ENQUEUED_TIME_ANNOTATION,
    LOCKED_UNTIL_ANNOTATION,
    MESSAGE_STATE_ANNOTATION,
    PARTITION_KEY_ANNOTATION,
    SCHEDULED_ENQUEUE_TIME_ANNOTATION,
    SEQUENCE_NUMBER_ANNOTATION,
    AmqpAnnotatedMessage,
    AmqpMessageHeader,
    AmqpMessageProperties,
)
from sbclient.delivery import expiry
from sbclient.errors import InvalidOperationError
from sbclient.message import (
    PropertyValue,
    ServiceBusMessage,
    ServiceBusMessageState,
    ServiceBusReceivedMessage,
)
from sbclient.rules.size import MAX_TTL_MS
from sbclient.telemetry.log import get_logger

log = get_logger(__name__)

_LATEST: Final = datetime.max.replace(tzinfo=UTC)
_UNKNOWN: Final = datetime.fromtimestamp(0, tz=UTC)
_TOKEN_BYTES: Final = 16
_INT64: Final = range(-(2**63), 2**63)
_KEPT: Final = (str, int, float, datetime, UUID, Decimal, type(None))
"""What an application property may be; the AMQP types that are subclasses of these keep themselves."""

_STATES: Final = {state.value: state for state in ServiceBusMessageState}
_NULL: Final = b"\x40"
_EMPTY_LIST: Final = b"\x45"


class AmqpReceivedMessage(ServiceBusReceivedMessage):
    """A message received over AMQP. An attribute that has not been read or set yet has an empty slot.

    Attributes:
        sections: the received bytes.
        delivery: of the link that brought it; None for a message from a management reply.

    Raises:
        WireError: by an attribute whose section is malformed or has the wrong type.
    """

    __slots__ = ("_annotations", "_properties", "_token", "delivery", "sections")

    sections: Sections
    delivery: IncomingDelivery | None
    _annotations: Mapping[Any, Any]
    _properties: Properties
    _token: UUID | bytes | None

    @classmethod
    def read(
        cls,
        payload: bytes,
        *,
        lock_token: UUID | bytes | None,
        has_session: bool,
        delivery: IncomingDelivery | None = None,
    ) -> Self:
        """The message in a payload.

        Args:
            payload: the encoded message.
            lock_token: as bytes in the order of .NET; None for a peeked or deleted message.
            has_session: whether the session is locked and not the message.
            delivery: of the link that brought it.

        Raises:
            WireError: it has no sections of a message, or its properties are malformed.
        """
        message = cls.__new__(cls)
        message.sections = sections = Sections(payload)
        message.delivery = delivery
        message._properties = properties = sections.properties
        message._content_type = properties.content_type  # read of each message, to recognise pings
        message._token = lock_token
        if lock_token is None or has_session:
            message.locked_until_utc = None
        message.is_settled = False
        return message

    def __getattr__(self, name: str) -> Any:
        """Decode an attribute whose slot is empty."""
        read = _ATTRIBUTES.get(name)
        if read is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        value = read(self)
        setattr(self, name, value)
        return value

    @property
    def _is_locked(self) -> bool:
        return self._token is not None

    def _data_sizes(self) -> Sequence[int]:
        return self.sections.data_sizes()

    @property
    def raw_amqp_message(self) -> AmqpAnnotatedMessage:
        sections = self.sections
        set_fields = [raw != _NULL for raw in list_fields(sections.raw_value(HEADER) or _EMPTY_LIST)]
        fields: list[tuple[str, Any]] = list(sections.header._asdict().items())
        known = dict(field for field, is_set in zip(fields, set_fields, strict=False) if is_set)
        return AmqpAnnotatedMessage(
            properties=AmqpMessageProperties(**sections.properties._asdict()),
            header=AmqpMessageHeader(time_to_live=known.pop("ttl", None), **known),
            footer=sections.footer,
            annotations=sections.message_annotations,
            delivery_annotations=sections.delivery_annotations,
            application_properties=dict(self.application_properties),
            content=self._body,
            body_type=self.body_type,
        )

    def _new_copy(self) -> ServiceBusMessage:
        return copied(ReceivedContent(self.sections, self.application_properties))


def _application_properties(message: AmqpReceivedMessage) -> dict[str, PropertyValue] | None:
    return {name: _kept(value) for name, value in message.sections.application_properties.items()} or None


def _time_to_live(message: AmqpReceivedMessage) -> timedelta | None:
    ttl_ms = message.sections.ttl_ms
    if ttl_ms is None:
        return None
    time_to_live = timedelta(milliseconds=ttl_ms)
    expires, created = message._properties.absolute_expiry_time, message._properties.creation_time
    if ttl_ms == MAX_TTL_MS and isinstance(created, datetime) and isinstance(expires, datetime):
        # .NET and Java write a time to live that exceeds the header field into these two properties
        return max(expires - created, time_to_live)
    return time_to_live


def _number(message: AmqpReceivedMessage, name: str) -> int | None:
    number = message._annotations.get(name)
    return int(number) if isinstance(number, int) else None


def _state(message: AmqpReceivedMessage) -> ServiceBusMessageState:
    return _STATES.get(_number(message, MESSAGE_STATE_ANNOTATION) or 0, ServiceBusMessageState.ACTIVE)


def _dead_letter_source(message: AmqpReceivedMessage) -> str | None:
    source = message._annotations.get(DEAD_LETTER_SOURCE_ANNOTATION)
    return source if isinstance(source, str) else None


def _lock_token(message: AmqpReceivedMessage) -> UUID | None:
    token = message._token
    return UUID(bytes_le=token) if isinstance(token, bytes) else token


_ATTRIBUTES: Final[dict[str, Callable[[AmqpReceivedMessage], Any]]] = {
    "_annotations": lambda message: message.sections.message_annotations,
    "_application_properties": _application_properties,
    "_body": lambda message: body_of(message.sections),
    "_body_type": lambda message: BODY_TYPES[message.sections.body_code],
    "_correlation_id": lambda message: text_of(message._properties.correlation_id),
    "_message_id": lambda message: text_of(message._properties.message_id),
    "_partition_key": lambda message: text_of(message._annotations.get(PARTITION_KEY_ANNOTATION)),
    "_reply_to": lambda message: text_of(message._properties.reply_to),
    "_reply_to_session_id": lambda message: message._properties.reply_to_group_id,
    "_scheduled_enqueue_time_utc": lambda message: _timestamp(message, SCHEDULED_ENQUEUE_TIME_ANNOTATION),
    "_session_id": lambda message: message._properties.group_id,
    "_subject": lambda message: message._properties.subject,
    "_time_to_live": _time_to_live,
    "_to": lambda message: text_of(message._properties.to),
    "dead_letter_source": _dead_letter_source,
    "delivery_count": lambda message: message.sections.header.delivery_count,
    "enqueued_sequence_number": lambda message: _number(message, ENQUEUE_SEQUENCE_NUMBER_ANNOTATION),
    "enqueued_time_utc": lambda message: _timestamp(message, ENQUEUED_TIME_ANNOTATION) or _UNKNOWN,
    "expires_at_utc": lambda message: expiry(message.enqueued_time_utc, _time_to_live(message)),
    "lock_token": _lock_token,
    "locked_until_utc": lambda message: _timestamp(message, LOCKED_UNTIL_ANNOTATION),
    "sequence_number": lambda message: _number(message, SEQUENCE_NUMBER_ANNOTATION) or 0,
    "state": _state,
}


def read_delivery(delivery: IncomingDelivery, *, is_locked: bool, has_session: bool) -> AmqpReceivedMessage | None:
    """The message of a delivery; None, with a line in the log, if it cannot be read.

    An unreadable message is left to its lock: it comes again, and is dead-lettered when its deliveries are used up.
    """
    try:
        token = token_of(delivery) if is_locked else None
        return AmqpReceivedMessage.read(delivery.payload, lock_token=token, has_session=has_session, delivery=delivery)
    except (WireError, InvalidOperationError, ValueError) as error:
        log.error(
            "amqp.unreadable",
            "delivery {delivery_id} cannot be read: {error}",
            delivery_id=delivery.delivery_id,
            error=str(error),
        )
        return None


def token_of(delivery: IncomingDelivery) -> UUID | bytes:
    """The lock token: the delivery tag, 16 bytes in the order of .NET, else the annotation.

    Raises:
        InvalidOperationError: there is none.
    """
    if len(delivery.tag) == _TOKEN_BYTES:
        return delivery.tag
    token = Sections(delivery.payload).delivery_annotations.get(LOCK_TOKEN_ANNOTATION)
    if isinstance(token, UUID):
        return token
    raise InvalidOperationError("a delivery has no lock token: neither a tag of 16 bytes nor the annotation")


def _kept(value: Any) -> PropertyValue:
    if type(value) is Decimal:
        return of_service(value)
    if isinstance(value, _KEPT) and (not isinstance(value, int) or int(value) in _INT64):
        return value
    shown = value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)
    return Opaque.of(shown, encode_value(value))


def _timestamp(message: AmqpReceivedMessage, name: str) -> datetime | None:
    value = message._annotations.get(name)
    if isinstance(value, datetime):
        return value
    return _LATEST if isinstance(value, Timestamp) and value > 0 else None
