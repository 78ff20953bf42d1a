"""Messages as the service delivers them. Each attribute is decoded when it is first read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Self
from uuid import UUID

from sbclient.amqp import EncodedMessage, IncomingDelivery, Sections, WireError, servicebus
from sbclient.amqp.types import Timestamp
from sbclient.delivery import expiry
from sbclient.errors import InvalidOperationError
from sbclient.message import AmqpAnnotatedMessage, ServiceBusMessageState, ServiceBusReceivedMessage
from sbclient.telemetry.log import get_logger

log = get_logger(__name__)

_LATEST: Final = datetime.max.replace(tzinfo=UTC)
_UNKNOWN: Final = datetime.fromtimestamp(0, tz=UTC)
_TOKEN_BYTES: Final = 16
_STATES: Final = {state.value: state for state in ServiceBusMessageState}


class AmqpReceivedMessage(ServiceBusReceivedMessage):
    """A message received over AMQP. An attribute that has not been read or set yet has an empty slot.

    Attributes:
        delivery: of the link that brought it; None for a message from a management reply.

    Raises:
        WireError: by an attribute whose section is malformed or has the wrong type.
    """

    __slots__ = ("_token", "delivery")

    _content: EncodedMessage
    delivery: IncomingDelivery | None
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
        message._content = content = EncodedMessage(payload)
        message.delivery = delivery
        message._content_type = content.content_type  # a receiver reads it of each message
        message._token = lock_token
        if lock_token is None or has_session:
            message.locked_until_utc = None
        message.is_settled = False
        return message

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Decode an attribute whose slot is empty."""
            read = _ATTRIBUTES.get(name)
            if read is None:
                return super().__getattr__(name)
            value = read(self)
            setattr(self, name, value)
            return value

    @property
    def _is_locked(self) -> bool:
        return self._token is not None

    @property
    def raw_amqp_message(self) -> AmqpAnnotatedMessage:
        return replace(self._content.annotated(), application_properties=dict(self.application_properties))


def _number(message: AmqpReceivedMessage, name: str) -> int | None:
    number = message._content.annotations.get(name)
    return int(number) if isinstance(number, int) else None


def _state(message: AmqpReceivedMessage) -> ServiceBusMessageState:
    return _STATES.get(_number(message, servicebus.MESSAGE_STATE) or 0, ServiceBusMessageState.ACTIVE)


def _dead_letter_source(message: AmqpReceivedMessage) -> str | None:
    source = message._content.annotations.get(servicebus.DEAD_LETTER_SOURCE)
    return source if isinstance(source, str) else None


def _lock_token(message: AmqpReceivedMessage) -> UUID | None:
    token = message._token
    return UUID(bytes_le=token) if isinstance(token, bytes) else token


_ATTRIBUTES: Final[dict[str, Callable[[AmqpReceivedMessage], Any]]] = {
    "dead_letter_source": _dead_letter_source,
    "delivery_count": lambda message: message._content.sections.header.delivery_count,
    "enqueued_sequence_number": lambda message: _number(message, servicebus.ENQUEUE_SEQUENCE_NUMBER),
    "enqueued_time_utc": lambda message: _timestamp(message, servicebus.ENQUEUED_TIME) or _UNKNOWN,
    "expires_at_utc": lambda message: expiry(message.enqueued_time_utc, message.time_to_live),
    "lock_token": _lock_token,
    "locked_until_utc": lambda message: _timestamp(message, servicebus.LOCKED_UNTIL),
    "sequence_number": lambda message: _number(message, servicebus.SEQUENCE_NUMBER) or 0,
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
    token = Sections(delivery.payload).delivery_annotations.get(servicebus.LOCK_TOKEN)
    if isinstance(token, UUID):
        return token
    raise InvalidOperationError("a delivery has no lock token: neither a tag of 16 bytes nor the annotation")


def _timestamp(message: AmqpReceivedMessage, name: str) -> datetime | None:
    value = message._content.annotations.get(name)
    if isinstance(value, datetime):
        return value
    return _LATEST if isinstance(value, Timestamp) and value > 0 else None
