"""Messages as the service delivers them. Body and application properties are decoded when they are read."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final, Self
from uuid import UUID

from sbclient.amqp import IncomingDelivery, Sections, WireError
from sbclient.amqp.broker_annotations import LOCK_TOKEN_ANNOTATION
from sbclient.amqp.decimals import of_service
from sbclient.amqp.encode import encode_value
from sbclient.amqp.message import ReceivedContent, body_of, copied, read_content
from sbclient.amqp.sections import APPLICATION_PROPERTIES, HEADER, list_fields
from sbclient.amqp.types import Opaque, Timestamp
from sbclient.annotated_message import (
    DEAD_LETTER_SOURCE_ANNOTATION,
    ENQUEUE_SEQUENCE_NUMBER_ANNOTATION,
    ENQUEUED_TIME_ANNOTATION,
    LOCKED_UNTIL_ANNOTATION,
    MESSAGE_STATE_ANNOTATION,
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
from sbclient.telemetry.log import get_logger

log = get_logger(__name__)

_LATEST: Final = datetime.max.replace(tzinfo=UTC)
_UNKNOWN: Final = datetime.fromtimestamp(0, tz=UTC)
_TOKEN_BYTES: Final = 16
_INT64: Final = range(-(2**63), 2**63)
_KEPT: Final = (str, int, float, datetime, UUID, Decimal, type(None))
"""What an application property may be; the AMQP types that are subclasses of these keep themselves."""

_STATES: Final = {state.value: state for state in ServiceBusMessageState}


class AmqpReceivedMessage(ServiceBusReceivedMessage):
    """A message received over AMQP.

    Attributes:
        sections: the received bytes.
        delivery: of the link that brought it; None for a message from a management reply.
    """

    __slots__ = ("_body_read", "_properties_read", "_token", "delivery", "sections")

    sections: Sections
    delivery: IncomingDelivery | None
    _body_read: Any
    _properties_read: Any
    _token: UUID | bytes | None

    @property
    def lock_token(self) -> UUID | None:  # type: ignore[override]  # few callers read it, so it is made when they do
        token = self._token
        if isinstance(token, bytes):
            self._token = token = UUID(bytes_le=token)
        return token

    @property
    def _is_held(self) -> bool:
        return self._token is not None

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

    @property
    def _application_properties(self) -> dict[str, PropertyValue] | None:
        if self._properties_read is _UNREAD:
            typed = self.sections.application_properties
            self._properties_read = {name: _kept(value) for name, value in typed.items()} or None
        return self._properties_read  # type: ignore[no-any-return]  # a dict or None once it is read

    @_application_properties.setter
    def _application_properties(self, value: dict[str, PropertyValue] | None) -> None:
        self._properties_read = value

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
            WireError, InvalidOperationError: it cannot be read.
        """
        sections = Sections(payload)
        annotations = sections.message_annotations
        message = cls.__new__(cls)
        message.sections = sections
        message.delivery = delivery
        message._body_read = _UNREAD
        message._properties_read = _UNREAD if sections.has(APPLICATION_PROPERTIES) else None
        read_content(message, sections, annotations)
        number = annotations.get(SEQUENCE_NUMBER_ANNOTATION)
        message.sequence_number = int(number) if isinstance(number, int) else 0
        original = annotations.get(ENQUEUE_SEQUENCE_NUMBER_ANNOTATION)
        message.enqueued_sequence_number = int(original) if isinstance(original, int) else None
        enqueued_at = _moment(annotations.get(ENQUEUED_TIME_ANNOTATION)) or _UNKNOWN
        message.enqueued_time_utc = enqueued_at
        message.expires_at_utc = expiry(enqueued_at, message._time_to_live)
        is_locked = lock_token is not None and not has_session
        message.locked_until_utc = _moment(annotations.get(LOCKED_UNTIL_ANNOTATION)) if is_locked else None
        message._token = lock_token
        message.delivery_count = sections.header.delivery_count
        state = annotations.get(MESSAGE_STATE_ANNOTATION)
        message.state = _STATES.get(state if isinstance(state, int) else 0, ServiceBusMessageState.ACTIVE)
        source = annotations.get(DEAD_LETTER_SOURCE_ANNOTATION)
        message.dead_letter_source = source if isinstance(source, str) else None
        message.is_settled = False
        return message


_UNREAD: Final = object()
_NULL: Final = b"\x40"
_EMPTY_LIST: Final = b"\x45"


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


def _moment(value: Any) -> datetime | None:
    if isinstance(value, datetime):
        return value
    return _LATEST if isinstance(value, Timestamp) and value > 0 else None
