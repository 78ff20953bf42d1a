"""How messages are delivered and settled: receive modes, sub-queues, sessions, settlements and limits."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Final, Literal, TypeAlias


class ServiceBusReceiveMode(StrEnum):
    """Whether a received message is locked until it is settled, or gone when it is handed over."""

    PEEK_LOCK = "peeklock"
    RECEIVE_AND_DELETE = "receiveanddelete"


class ServiceBusSubQueue(StrEnum):
    """The queues behind a queue or subscription."""

    DEAD_LETTER = "deadletter"
    TRANSFER_DEAD_LETTER = "transferdeadletter"


class ServiceBusSessionFilter(Enum):
    """Which session to accept, where it is not named."""

    NEXT_AVAILABLE = 0


NEXT_AVAILABLE_SESSION: Final = ServiceBusSessionFilter.NEXT_AVAILABLE

SessionChoice: TypeAlias = str | Literal[ServiceBusSessionFilter.NEXT_AVAILABLE] | None


@dataclass(frozen=True, slots=True)
class SenderLimits:
    """The largest message and the largest batch that an entity accepts, in encoded bytes."""

    max_message_size_bytes: int
    max_batch_size_bytes: int


LEAST_LIMITS: Final = SenderLimits(256 * 1024, 256 * 1024)
"""The limits that every tier has at least; used while those of an entity are unknown (source: Service Bus quotas)."""


class SettleMode(StrEnum):
    """The four ways in which a received message ends."""

    COMPLETE = "complete"
    ABANDON = "abandon"
    DEFER = "defer"
    DEAD_LETTER = "dead_letter"


@dataclass(frozen=True, slots=True)
class Settlement:
    """How a received message ends. `reason` and `error_description` go with DEAD_LETTER only."""

    mode: SettleMode
    reason: str | None = None
    error_description: str | None = None
