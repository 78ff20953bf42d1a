"""What a receiver of azure-servicebus hands over, as our received messages."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final, cast
from uuid import UUID

from sbclient.amqp.errors import WireError
from sbclient.errors import InvalidOperationError
from sbclient.message import ServiceBusMessage, ServiceBusMessageState, ServiceBusReceivedMessage
from sbclient.telemetry.log import get_logger
from sbclient.transport.sdk.message import from_sdk
from sbclient.transport.sdk.payload import payload_of, read_payload

log = get_logger(__name__)

_LATEST: Final = datetime.max.replace(tzinfo=UTC)
_UNKNOWN: Final = datetime.fromtimestamp(0, tz=UTC)


class AzureReceivedMessage(ServiceBusReceivedMessage):
    """A message received through the SDK.

    Attributes:
        sdk: the same, as the SDK's receivers take it for settling and renewing.
    """

    __slots__ = ("sdk",)

    sdk: Any


def received(sdk_message: Any, *, is_wrapped: bool, is_locked: bool, has_session: bool) -> AzureReceivedMessage | None:
    """Our message for one of the SDK's; None, with a line in the log, if nobody can read it.

    An unreadable one is left to its lock: it comes again, and is dead-lettered when its deliveries are used up.

    Args:
        is_wrapped: whether its body is the payload of the real one (`azure_payload.wrapped`).
        is_locked: whether it can be settled; not a peeked or deleted one.
        has_session: whether it is the session that is locked, not the message.
    """
    try:
        content = _content(sdk_message, is_wrapped)
    except (InvalidOperationError, TypeError, ValueError) as error:
        log.error(
            "azure.unreadable",
            "message {sequence_number} cannot be read: {error}",
            sequence_number=sdk_message.sequence_number,
            error=str(error),
        )
        return None
    enqueued_at = sdk_message.enqueued_time_utc or _UNKNOWN
    message = AzureReceivedMessage.of(
        content,
        sequence_number=sdk_message.sequence_number or 0,
        enqueued_time_utc=enqueued_at,
        enqueued_sequence_number=sdk_message.enqueued_sequence_number,
        expires_at_utc=_end_of_life(enqueued_at, content.time_to_live),
        locked_until_utc=sdk_message.locked_until_utc if is_locked and not has_session else None,
        lock_token=_uuid(sdk_message.lock_token) if is_locked else None,
        delivery_count=sdk_message.delivery_count or 0,
        state=_state(sdk_message.state),
        dead_letter_source=_text(sdk_message.dead_letter_source),
    )
    message.sdk = sdk_message
    return message


def _content(sdk_message: Any, is_wrapped: bool) -> ServiceBusMessage:
    if not is_wrapped:
        return from_sdk(sdk_message)
    payload = payload_of(sdk_message)
    try:
        message = read_payload(payload)
        _ = message._body  # decoded now, where a malformed one does no harm
    except (WireError, InvalidOperationError):
        return from_sdk(cast(Any, type(sdk_message)).from_bytes(payload))
    return message


def _state(state: Any) -> ServiceBusMessageState:
    known = {each.value for each in ServiceBusMessageState}
    return ServiceBusMessageState(int(state)) if int(state) in known else ServiceBusMessageState.ACTIVE


def _end_of_life(enqueued_at: datetime, life: timedelta | None) -> datetime | None:
    if life is None:
        return None
    try:
        return enqueued_at + life
    except OverflowError:
        return _LATEST


def _uuid(token: UUID | str | None) -> UUID | None:
    return UUID(token) if isinstance(token, str) else token


def _text(value: str | bytes | None) -> str | None:
    return value.decode() if isinstance(value, bytes) else value
