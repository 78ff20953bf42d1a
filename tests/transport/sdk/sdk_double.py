"""Doubles of the public API of senders and receivers of azure-servicebus.

A double records two calls at the same time, or a call after it was closed, as a fault: the SDK would send messages
twice or hang.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, Self
from uuid import UUID

from azure.servicebus import ServiceBusMessage

from sbclient import clock
from sbclient.delivery import ServiceBusReceiveMode, SessionChoice
from sbclient.transport.sdk.transport import SdkTransport

OPENING_S = 0.5
LOCK = timedelta(minutes=5)


class SdkDouble:
    """The common part of a sender and a receiver.

    Attributes:
        faults: wrong uses of the double.
        log: the argument of every call.
        on_call: awaited in each call with its argument; it may raise or hang.
    """

    def __init__(self) -> None:
        self.faults: list[str] = []
        self.opened = 0
        self.closed = 0
        self.log: list[Any] = []
        self.on_open: Callable[[], Awaitable[None]] | None = None
        self.on_call: Callable[[Any], Awaitable[Any]] | None = None
        self.on_close: Callable[[], Awaitable[None]] | None = None
        self._running_calls = 0

    async def __aenter__(self) -> Self:
        self.opened += 1
        await asyncio.sleep(OPENING_S)
        if self.on_open is not None:
            await self.on_open()
        return self

    async def close(self) -> None:
        self.closed += 1
        if self.on_close is not None:
            await self.on_close()

    async def enter(self, argument: Any, work: Callable[[], Awaitable[Any]] | None = None) -> Any:
        """Record a call and await `on_call`, then `work`."""
        if self.closed:
            self.faults.append("used after it was closed")
        self._running_calls += 1
        if self._running_calls > 1:
            self.faults.append("two calls at once")
        try:
            self.log.append(argument)
            answer = await self.on_call(argument) if self.on_call is not None else None
            return answer if work is None else await work()
        finally:
            self._running_calls -= 1


class SenderDouble(SdkDouble):
    """A sender; its `log` has the messages of each transfer as a list, or the name and arguments of another request."""

    async def create_message_batch(self) -> Any:
        return SimpleNamespace(max_size_in_bytes=262_144)

    async def send_messages(self, message: Any, *, timeout: float) -> None:
        self._check(timeout)
        await self.enter(message if isinstance(message, list) else [message])

    async def schedule_messages(self, messages: list[Any], schedule_time_utc: datetime, *, timeout: float) -> Any:
        self._check(timeout)
        return await self.enter(("schedule", messages, schedule_time_utc))

    async def cancel_scheduled_messages(self, sequence_numbers: list[int], *, timeout: float) -> None:
        self._check(timeout)
        await self.enter(("cancel", sequence_numbers))

    def _check(self, timeout: float) -> None:
        if timeout <= 0:
            self.faults.append("a timeout that is not greater than 0")


class ReceivedDouble(ServiceBusMessage):
    """A received message; it has the public attributes of `ServiceBusReceivedMessage`."""

    def __init__(self, body: str, number: int, locked_until_utc: datetime) -> None:
        super().__init__(body)
        self.sequence_number = number
        self.enqueued_sequence_number = number
        self.enqueued_time_utc = datetime(2026, 1, 1, tzinfo=UTC)
        self.locked_until_utc = locked_until_utc
        self.lock_token = UUID(int=number)
        self.delivery_count = 0
        self.state = 0
        self.dead_letter_source: str | None = None


class ReceiverDouble(SdkDouble):
    """A receiver; messages passed to `arrive` wait for a receive call."""

    def __init__(self, *, session_id: str | None = None, locked_until_utc: datetime | None = None) -> None:
        super().__init__()
        self._arrived: list[ReceivedDouble] = []
        self._arrival = asyncio.Event()
        self._numbers = itertools.count(1)
        self.session = None
        if session_id is not None:
            self.session = SimpleNamespace(session_id=session_id, locked_until_utc=locked_until_utc)

    def arrive(self, *bodies: str) -> None:
        locked_until = datetime.fromtimestamp(clock.now(), tz=UTC) + LOCK
        self._arrived += [ReceivedDouble(body, next(self._numbers), locked_until) for body in bodies]
        self._arrival.set()

    async def receive_messages(self, max_message_count: int, max_wait_time: float) -> list[Any]:
        if max_wait_time <= 0:
            self.faults.append("a wait that is not greater than 0")
        received: list[Any] = await self.enter("receive", lambda: self._receive(max_message_count, max_wait_time))
        return received

    async def _receive(self, max_message_count: int, max_wait_time: float) -> list[ReceivedDouble]:
        self._arrival.clear()
        if not self._arrived:
            try:
                async with asyncio.timeout(max_wait_time):
                    await self._arrival.wait()
            except TimeoutError:
                return []
        received, self._arrived = self._arrived[:max_message_count], self._arrived[max_message_count:]
        return received

    async def peek_messages(self, max_message_count: int, *, sequence_number: int, timeout: float) -> list[Any]:
        await self.enter(("peek", sequence_number))
        return self._arrived[:max_message_count]

    async def receive_deferred_messages(self, sequence_numbers: list[int], *, timeout: float) -> list[Any]:
        await self.enter(("deferred", sequence_numbers))
        return []

    async def complete_message(self, message: ReceivedDouble) -> None:
        await self.enter(("complete", str(message)))

    async def abandon_message(self, message: ReceivedDouble) -> None:
        await self.enter(("abandon", str(message)))

    async def defer_message(self, message: ReceivedDouble) -> None:
        await self.enter(("defer", str(message)))

    async def dead_letter_message(self, message: ReceivedDouble, *, reason: str, error_description: str) -> None:
        await self.enter(("dead-letter", str(message), reason, error_description))

    async def renew_message_lock(self, message: ReceivedDouble, *, timeout: float) -> Any:
        return await self.enter(("renew", str(message)))


class OwnerDouble(SdkTransport):
    """A transport that keeps the objects that it made, which are doubles."""

    def __init__(self) -> None:
        super().__init__(None, "contoso.example", None, {})
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
        receiver = self.make_receiver(session)
        self.prepare(receiver)
        self.receivers.append(receiver)
        return receiver

    def make_receiver(self, session: SessionChoice) -> Any:
        raise NotImplementedError

    def forget(self, link: Any) -> None:
        self.forgotten.append(link)

    @property
    def faults(self) -> list[str]:
        return [fault for sdk in (*self.senders, *self.receivers) for fault in sdk.faults]
