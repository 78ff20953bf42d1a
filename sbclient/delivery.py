"""Types for delivery and settlement: receive modes, sub-queues, session choice, settlements, size limits and expiry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import Enum, StrEnum
from typing import Annotated, Any, Final, Literal, TypeAlias

from sbclient.arguments.kinds import Kind, choice_of, encodable, short_id, wrong_type


class ServiceBusReceiveMode(StrEnum):
    """Whether a received message is locked until it is settled, or deleted when it is delivered."""

    PEEK_LOCK = "peeklock"
    RECEIVE_AND_DELETE = "receiveanddelete"


class ServiceBusSubQueue(StrEnum):
    """The sub-queues of a queue or subscription."""

    DEAD_LETTER = "deadletter"
    TRANSFER_DEAD_LETTER = "transferdeadletter"


class ServiceBusSessionFilter(Enum):
    """Which session to accept if no session id is given."""

    NEXT_AVAILABLE = 0


ReceiveMode: TypeAlias = Annotated[ServiceBusReceiveMode | str, choice_of(ServiceBusReceiveMode)]
SubQueue: TypeAlias = Annotated[ServiceBusSubQueue | str, choice_of(ServiceBusSubQueue)]

NEXT_AVAILABLE_SESSION: Final = ServiceBusSessionFilter.NEXT_AVAILABLE


def _check_session(name: str, value: Any) -> str | ServiceBusSessionFilter:
    if isinstance(value, Enum) and str(value) == str(NEXT_AVAILABLE_SESSION):  # also that of azure-servicebus
        return NEXT_AVAILABLE_SESSION
    if not isinstance(value, str):
        raise wrong_type(name, value, _SESSION.takes, ": give str(value)")
    return short_id(name, value)


_SESSION: Final = Kind("a str or NEXT_AVAILABLE_SESSION", _check_session, (ServiceBusSessionFilter,))

SessionChoice: TypeAlias = Annotated[str | Literal[ServiceBusSessionFilter.NEXT_AVAILABLE], _SESSION] | None


@dataclass(frozen=True, slots=True)
class SenderLimits:
    """The largest message and the largest batch that an entity accepts, in encoded bytes."""

    max_message_size_bytes: int
    max_batch_size_bytes: int


MAX_BATCH_MESSAGES: Final = 4_500
"""The most messages of one transfer or request. The Standard tier answers more with an internal error (seen)."""

LEAST_LIMITS: Final = SenderLimits(256 * 1024, 256 * 1024)
"""The lowest limits of any tier, used while the limits of an entity are unknown. Source: Service Bus quotas."""


class SettleMode(StrEnum):
    """The four ways to settle a received message."""

    COMPLETE = "complete"
    ABANDON = "abandon"
    DEFER = "defer"
    DEAD_LETTER = "dead_letter"


@dataclass(frozen=True, slots=True)
class Settlement:
    """The settlement of a received message.

    Attributes:
        mode: how it is settled.
        reason, error_description: for DEAD_LETTER only; texts that UTF-8 can encode.
        properties: application properties to set on the message; for all modes but COMPLETE.
    """

    mode: SettleMode
    reason: str | None = None
    error_description: str | None = None
    properties: Mapping[str, Any] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        # A broker or a link that fails on them half way would lose the message.
        for name in ("reason", "error_description") if self.mode is SettleMode.DEAD_LETTER else ():
            text = getattr(self, name)
            if text is not None and not isinstance(text, str):
                raise wrong_type(name, text, "a str")
            if text is not None:
                encodable(name, text)


UNKNOWN_TIME: Final = datetime.fromtimestamp(0, tz=UTC)
"""`enqueued_time_utc` of a received message if the service did not send it. Check for it before you compute an age."""


def expiry(enqueued_at: datetime, time_to_live: timedelta | None) -> datetime | None:
    """When a message expires; None if never or unknown, the latest time there is if a datetime cannot hold it."""
    if time_to_live is None or enqueued_at == UNKNOWN_TIME:
        return None
    try:
        return enqueued_at + time_to_live
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC)
