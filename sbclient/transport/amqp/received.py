"""Messages as the service delivers them."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Final, Self
from uuid import UUID

from sbclient.amqp import EncodedMessage, IncomingDelivery, Sections, WireError, servicebus
from sbclient.amqp.types import Timestamp
from sbclient.delivery import UNKNOWN_TIME, expiry
from sbclient.errors import InvalidOperationError
from sbclient.message import AmqpAnnotatedMessage, ServiceBusMessageState, ServiceBusReceivedMessage
from sbclient.telemetry.log import get_logger

log = get_logger(__name__)

_TOKEN_BYTES: Final = 16
_LATEST: Final = datetime.max.replace(tzinfo=UTC)
_STATES: Final = {state.value: state for state in ServiceBusMessageState}


class AmqpReceivedMessage(ServiceBusReceivedMessage):
    """A message received over AMQP.

    Attributes:
        delivery: of the link that brought it; None for a message from a management reply.

    Raises:
        WireError: by the body or the application properties, if they are malformed.
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
            WireError: it has no sections of a message, or its header, annotations or properties are malformed.
            InvalidOperationError: an id has more than 128 characters.
        """
        message = cls.__new__(cls)
        content = EncodedMessage.of(payload)
        message._hold(content)
        message.delivery = delivery
        message._token = lock_token
        annotations = content.annotations
        locked_until = annotations.get(servicebus.LOCKED_UNTIL) if lock_token is not None and not has_session else None
        if locked_until is not None and not isinstance(locked_until, datetime):
            locked_until = _limited(locked_until)
        message.locked_until_utc = locked_until
        number = annotations.get(servicebus.SEQUENCE_NUMBER)
        message.sequence_number = int(number) if isinstance(number, int) else 0
        original = annotations.get(servicebus.ENQUEUE_SEQUENCE_NUMBER)
        message.enqueued_sequence_number = int(original) if isinstance(original, int) else None
        enqueued_at = annotations.get(servicebus.ENQUEUED_TIME)
        if not isinstance(enqueued_at, datetime):
            enqueued_at = _limited(enqueued_at) or UNKNOWN_TIME
        message.enqueued_time_utc = enqueued_at
        ttl = content.time_to_live
        message.expires_at_utc = None if ttl is None else expiry(enqueued_at, ttl)
        message.delivery_count = content.header.delivery_count
        state = annotations.get(servicebus.MESSAGE_STATE)
        active = ServiceBusMessageState.ACTIVE
        message.state = _STATES.get(state, active) if isinstance(state, int) else active
        source = annotations.get(servicebus.DEAD_LETTER_SOURCE)
        message.dead_letter_source = source if isinstance(source, str) else None
        message.namespace = "primary"
        message.is_settled = message.is_copy = False
        return message

    @property
    def lock_token(self) -> UUID | None:  # type: ignore[override]  # most tokens are only passed on as bytes
        """Identifies this delivery; None for a peeked or deleted message."""
        token = self._token
        return UUID(bytes_le=token) if isinstance(token, bytes) else token

    @property
    def raw_amqp_message(self) -> AmqpAnnotatedMessage:
        """The sections as they were received."""
        return replace(self._content.annotated(), application_properties=dict(self.application_properties))


def _limited(value: object) -> datetime | None:
    """The latest datetime for a timestamp beyond it; None for what is no timestamp."""
    return _LATEST if isinstance(value, Timestamp) and value > 0 else None


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
