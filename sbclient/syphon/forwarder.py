"""Sends backlog messages to their entities and dead-letters those that cannot be sent, with counts, metrics and traces.

One forwarder serves all queues and destinations of a syphon.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from sbclient.delivery import Settlement, SettleMode
from sbclient.errors import InvalidOperationError, MessageSizeExceededError, ServiceBusError
from sbclient.message import ServiceBusMessage, ServiceBusReceivedMessage
from sbclient.pairing.state import PairState
from sbclient.telemetry import metrics, tracing
from sbclient.transport.base import ReceiverLink, SenderLink

TOO_LARGE: Final = "MessageSizeExceeded"
"""Dead-letter reason: the message is larger than its destination accepts."""
REFUSED: Final = "DestinationRefused"
"""Dead-letter reason: the rules of the destination forbid the message, for example since it has no session id."""
MISSING: Final = "DestinationNotFound"
"""Dead-letter reason: the destination was missing for the whole `missing_entity_grace`."""

SETTLE_S: Final = 20.0
MAX_DESCRIPTION: Final = 4096
"""Characters of a dead-letter description. Source: the service."""


class Forwarder:
    """Sends and dead-letters the messages of one syphon.

    Attributes:
        drained: number of messages that the primary accepted.
        dead_lettered: number of dead-lettered messages, by reason.
        accepted: path of the entity that last accepted a message, and the monotonic time; None = none yet.
    """

    def __init__(self, pair: PairState) -> None:
        self._pair = pair
        self._at_primary = metrics.server(pair.primary.namespace)
        self.drained = 0
        self.dead_lettered: Counter[str] = Counter()
        self.accepted: tuple[str, float] | None = None

    @property
    def ended(self) -> int:
        """Number of messages that left the backlog."""
        return self.drained + self.dead_lettered.total()

    async def send(self, link: SenderLink, path: str, messages: Sequence[ServiceBusMessage], timeout_s: float) -> None:
        """Send messages to one entity.

        Raises:
            ServiceBusError: the entity did not accept them.
        """
        where = {metrics.DESTINATION: path, **self._at_primary}
        sending = link.send(messages, timeout_s=timeout_s)
        await tracing.carrying(tracing.DRAIN, messages, where, self._pair.clock, sending)
        self.accepted = path, self._pair.clock.monotonic()
        self.drained += len(messages)
        metrics.add(metrics.DRAINED, len(messages), where)

    async def dead_letter(
        self,
        link: ReceiverLink,
        message: ServiceBusReceivedMessage,
        reason: str,
        description: str,
        *,
        queue: str,
        path: str,
    ) -> None:
        """Move a message to the dead letters of its backlog queue.

        Args:
            link: received the message.
            queue: name of the backlog queue.
            path: of the entity that the event names.

        Raises:
            ServiceBusError: the message is not settled.
        """
        settlement = Settlement(SettleMode.DEAD_LETTER, reason, description[:MAX_DESCRIPTION])
        where = {**self._pair.at_backlog(queue), metrics.REASON: reason}
        settling = link.settle(message, settlement, timeout_s=SETTLE_S)
        await tracing.carrying(tracing.DEAD_LETTER, [message], where, self._pair.clock, settling)
        self.dead_lettered[reason] += 1
        metrics.add(metrics.DEAD_LETTERED, 1, where)
        with tracing.within(message):
            self._pair.record(
                "syphon.dead_lettered",
                "dead-lettered a message of backlog queue {queue!r}: {reason}",
                path,
                reason=reason,
                queue=queue,
            )


def rejection_reason(error: ServiceBusError) -> str | None:
    """Return the dead-letter reason if the entity's rules forbid the message; None for every other error."""
    if isinstance(error, MessageSizeExceededError):
        return TOO_LARGE
    return REFUSED if isinstance(error, InvalidOperationError) else None
