"""Converts received messages of azure-servicebus into messages of this package."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from sbclient.delivery import expiry
from sbclient.errors import InvalidOperationError
from sbclient.message import ServiceBusMessageState, ServiceBusReceivedMessage
from sbclient.telemetry.log import get_logger
from sbclient.transport.sdk.message import from_sdk

log = get_logger(__name__)

_UNKNOWN: Final = datetime.fromtimestamp(0, tz=UTC)


class SdkReceivedMessage(ServiceBusReceivedMessage):
    """A message received through the SDK.

    Attributes:
        sdk: the message of the SDK, for settling it and renewing its lock.
    """

    __slots__ = ("sdk",)

    sdk: Any


def received(sdk_message: Any, *, is_locked: bool, has_session: bool) -> SdkReceivedMessage | None:
    """Return our message for one of the SDK; None, with a log event, if it cannot be read.

    The lock of an unreadable message expires. The service dead-letters the message after the maximum delivery count.

    Args:
        is_locked: whether it can be settled; False for a message that was peeked, or received and deleted.
        has_session: whether the session is locked instead of the message.
    """
    try:
        _check_decimals(sdk_message.application_properties)
        if sdk_message.body_type.name != "DATA":
            _check_decimals(sdk_message.body)
        content = from_sdk(sdk_message)
    except (InvalidOperationError, TypeError, ValueError) as error:
        log.error(
            "sdk.unreadable",
            "message {sequence_number} cannot be read: {error}",
            sequence_number=sdk_message.sequence_number,
            error=str(error),
        )
        return None
    enqueued_at = sdk_message.enqueued_time_utc or _UNKNOWN
    message = SdkReceivedMessage.of(
        content,
        sequence_number=sdk_message.sequence_number or 0,
        enqueued_time_utc=enqueued_at,
        enqueued_sequence_number=sdk_message.enqueued_sequence_number,
        expires_at_utc=expiry(enqueued_at, content.time_to_live),
        locked_until_utc=sdk_message.locked_until_utc if is_locked and not has_session else None,
        lock_token=_uuid(sdk_message.lock_token) if is_locked else None,
        delivery_count=sdk_message.delivery_count or 0,
        state=_state(sdk_message.state),
        dead_letter_source=_text(sdk_message.dead_letter_source),
    )
    message.sdk = sdk_message
    return message


def _check_decimals(value: Any) -> None:
    """
    Raises:
        ValueError: the SDK may have decoded a number wrongly.
    """
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for each in value:
            _check_decimals(each)
    elif isinstance(value, Decimal) and len(value.as_tuple().digits) > _EXACT_DIGITS:
        raise ValueError(
            f"azure-servicebus decodes decimals of more than {_EXACT_DIGITS} digits wrongly: use transport='amqp'"
        )


_EXACT_DIGITS: Final = 8
"""Digits of a decimal that the SDK decodes correctly; it decodes some larger numbers as one with nine digits."""


def _state(state: Any) -> ServiceBusMessageState:
    known = {each.value for each in ServiceBusMessageState}
    return ServiceBusMessageState(int(state)) if int(state) in known else ServiceBusMessageState.ACTIVE


def _uuid(token: UUID | str | None) -> UUID | None:
    return UUID(token) if isinstance(token, str) else token


def _text(value: str | bytes | None) -> str | None:
    return value.decode() if isinstance(value, bytes) else value
