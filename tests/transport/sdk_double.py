"""Senders and receivers that behave as those of azure-servicebus do where it matters: slow, jealous and unforgiving.

Two calls at once in one of them, or a call after it was closed, is recorded as a fault, for the real ones would send
things twice or hang.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, Self

from azure.servicebus import ServiceBusMessageBatch

from sbclient.clock import Clock
from sbclient.tasks import OwnedTasks
from sbclient.transport.base import ServiceBusReceiveMode, SessionChoice

OPENING_S = 0.5


class SdkDouble:
    """What senders and receivers have in common.

    Attributes:
        faults: what its user did that the real one would not bear.
        on_call: awaited in each call, with what it was given; it may raise, or hang.
    """

    def __init__(self) -> None:
        self.faults: list[str] = []
        self.opened = 0
        self.closed = 0
        self.log: list[Any] = []
        self.on_open: Callable[[], Awaitable[None]] | None = None
        self.on_call: Callable[[Any], Awaitable[Any]] | None = None
        self.on_close: Callable[[], Awaitable[None]] | None = None
        self._running = False
        self._inside = 0
        self._max_message_size_on_link = 300_000
        self._max_batch_size_on_link = 262_144

    async def __aenter__(self) -> Self:
        self.opened += 1
        await asyncio.sleep(OPENING_S)
        if self.on_open is not None:
            await self.on_open()
        self._running = True
        return self

    async def close(self) -> None:
        self._running = False
        self.closed += 1
        if self.on_close is not None:
            await self.on_close()

    async def enter(self, given: Any) -> Any:
        if self.closed:
            self.faults.append("used after it was closed")
        self._inside += 1
        if self._inside > 1:
            self.faults.append("two calls at once")
        try:
            self.log.append(given)
            return await self.on_call(given) if self.on_call is not None else None
        finally:
            self._inside -= 1


class SenderDouble(SdkDouble):
    """A sender; its `log` has, for each transfer, the encoded messages or what else it was given."""

    async def create_message_batch(self) -> ServiceBusMessageBatch:
        return ServiceBusMessageBatch(self._max_batch_size_on_link)

    async def send_messages(self, message: Any, *, timeout: float) -> None:
        if timeout <= 0:
            self.faults.append("a timeout that is not greater than 0")
        await self.enter(message._message[5] if isinstance(message, ServiceBusMessageBatch) else message)

    async def cancel_scheduled_messages(self, numbers: list[int], *, timeout: float) -> None:
        await self.enter(("cancel", numbers))

    async def _mgmt_request_response_with_retry(
        self, operation: bytes, body: Any, callback: Any, *, timeout: float
    ) -> Any:
        return await self.enter((operation, body))


class OwnerDouble:
    """What a link needs of its transport, and what it made."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.tasks = OwnedTasks(on_failure=lambda error: None)
        self.senders: list[SenderDouble] = []
        self.receivers: list[Any] = []
        self.prepare: Callable[[Any], None] = lambda sdk: None
        self.forgotten: list[Any] = []

    def sdk_sender(self, path: str) -> SenderDouble:
        sender = SenderDouble()
        self.prepare(sender)
        self.senders.append(sender)
        return sender

    def sdk_receiver(
        self, path: str, session: SessionChoice, mode: ServiceBusReceiveMode, prefetch_count: int, wait_s: float | None
    ) -> Any:
        receiver = self.make_receiver(SimpleNamespace(session=session, mode=mode, wait_s=wait_s))
        self.prepare(receiver)
        self.receivers.append(receiver)
        return receiver

    def make_receiver(self, asked: SimpleNamespace) -> Any:
        raise NotImplementedError("give one")

    def forget(self, link: Any) -> None:
        self.forgotten.append(link)

    @property
    def faults(self) -> list[str]:
        return [fault for sdk in (*self.senders, *self.receivers) for fault in sdk.faults]
