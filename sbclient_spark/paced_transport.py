"""A namespace whose senders keep below a rate, so that a drain leaves room for the namespace's other work."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sbclient.clock import Clock
from sbclient.message import ServiceBusMessage
from sbclient.pace import Pace
from sbclient.transport.base import (
    Administration,
    ReceiverLink,
    SenderLimits,
    SenderLink,
    ServiceBusReceiveMode,
    SessionChoice,
    TransactionLink,
    Transport,
)


class PacedTransport:
    """Another transport, with all of its senders together below a rate.

    Args:
        inner: what is really used; closed with this.
        messages_per_second: of all senders together.
    """

    def __init__(self, inner: Transport, messages_per_second: float, clock: Clock) -> None:
        self._inner = inner
        self._pace = Pace(clock, messages_per_second, None)

    @property
    def namespace(self) -> str:
        return self._inner.namespace

    @property
    def administration(self) -> Administration:
        return self._inner.administration

    def open_sender(self, entity_path: str) -> SenderLink:
        return _PacedSender(self._inner.open_sender(entity_path), self._pace)

    def open_receiver(
        self,
        entity_path: str,
        *,
        session: SessionChoice = None,
        receive_mode: ServiceBusReceiveMode = ServiceBusReceiveMode.PEEK_LOCK,
        prefetch_count: int = 0,
    ) -> ReceiverLink:
        return self._inner.open_receiver(
            entity_path, session=session, receive_mode=receive_mode, prefetch_count=prefetch_count
        )

    async def begin_transaction(self, *, timeout_s: float) -> TransactionLink:
        return await self._inner.begin_transaction(timeout_s=timeout_s)

    async def list_sessions(
        self, entity_path: str, *, state_updated_after: datetime | None, timeout_s: float
    ) -> Sequence[str]:
        return await self._inner.list_sessions(
            entity_path, state_updated_after=state_updated_after, timeout_s=timeout_s
        )

    async def close(self) -> None:
        await self._inner.close()


class _PacedSender:
    """A sender link that waits its turn; the time of the send itself begins after that."""

    def __init__(self, inner: SenderLink, pace: Pace) -> None:
        self._inner = inner
        self._pace = pace

    @property
    def is_open(self) -> bool:
        return self._inner.is_open

    async def open(self, *, timeout_s: float) -> None:
        await self._inner.open(timeout_s=timeout_s)

    async def limits(self, *, timeout_s: float) -> SenderLimits:
        return await self._inner.limits(timeout_s=timeout_s)

    async def send(
        self, messages: Sequence[ServiceBusMessage], *, timeout_s: float, transaction: TransactionLink | None = None
    ) -> None:
        await self._pace.take(len(messages), 0)
        await self._inner.send(messages, timeout_s=timeout_s, transaction=transaction)

    async def schedule(
        self, messages: Sequence[ServiceBusMessage], *, timeout_s: float, transaction: TransactionLink | None = None
    ) -> list[int]:
        await self._pace.take(len(messages), 0)
        return await self._inner.schedule(messages, timeout_s=timeout_s, transaction=transaction)

    async def cancel_scheduled(self, sequence_numbers: Sequence[int], *, timeout_s: float) -> None:
        await self._inner.cancel_scheduled(sequence_numbers, timeout_s=timeout_s)

    async def close(self) -> None:
        await self._inner.close()
