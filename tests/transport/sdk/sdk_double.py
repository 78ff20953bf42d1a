"""Senders and receivers that behave as those of azure-servicebus do where it matters: slow, jealous and unforgiving.

Two calls at once in one of them, or a call after it was closed, is recorded as a fault, for the real ones would send
things twice or hang.
"""

from __future__ import annotations

import asyncio
import itertools
import queue
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import datetime
from types import SimpleNamespace
from typing import Any, Self
from uuid import UUID

from azure.servicebus import ServiceBusMessageBatch, ServiceBusReceivedMessage
from azure.servicebus._pyamqp._decode import decode_payload
from azure.servicebus._pyamqp.constants import LinkState
from azure.servicebus._pyamqp.error import MessageSettlementUnconfirmed

from sbclient.clock import Clock
from sbclient.delivery import ServiceBusReceiveMode, SessionChoice
from sbclient.tasks import OwnedTasks
from sbclient.transport.sdk.errors import Place

OPENING_S = 0.5
ANSWER_S = 0.03
"""How long the service takes for the outcomes of what was settled."""


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

    place = Place("contoso.example")

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


class LinkDouble:
    """The AMQP link below a receiver: credit, and what the service does with it."""

    def __init__(self, handler: HandlerDouble) -> None:
        self._handler = handler
        self._on_transfer = handler._message_received_async  # once and for all, as the real one
        self.current_link_credit = 0
        self.drains = 0
        self.state = LinkState.ATTACHED
        self._pending_dispositions: dict[int, dict[str, Any]] = {}

    async def flow(self, *, link_credit: int, drain: bool = False) -> None:
        self.current_link_credit = link_credit
        if drain:
            self.drains += 1
            await self._incoming_flow([0, 0, 0, 0, 1, 0, 0, None, True])

    async def _wait_for_disposition_outcome(
        self, delivery_ids: Sequence[int], timeout: float | None, expected: str = "accepted"
    ) -> None:
        """Read until every outcome has come."""
        try:
            while not all(self._pending_dispositions[number]["settled"] for number in delivery_ids):
                if self.state is not LinkState.ATTACHED:
                    raise MessageSettlementUnconfirmed(condition=b"amqp:link:detach-forced")
                await self._handler.listen(wait=0.1)
            for number in delivery_ids:
                if (refusal := self._pending_dispositions[number]["outcome"]) is not None:
                    raise refusal
        finally:
            for number in delivery_ids:
                self._pending_dispositions.pop(number, None)

    async def _incoming_flow(self, frame: Any) -> None:
        """The service's answer to a drain; it changes nothing here."""

    async def _incoming_transfer(self, frame: Any) -> None:
        if not frame[5]:
            self.current_link_credit -= 1
            await self._on_transfer(frame, decode_payload(memoryview(frame[11])))


class HandlerDouble:
    """The client below a receiver: it reads from the socket, where `arriving` lies."""

    _socket_timeout = 0.2

    def __init__(self) -> None:
        self._link = LinkDouble(self)
        self._connection = self._transport = self
        self._received_messages: queue.Queue[Any] = queue.Queue()
        self.is_receiving: Callable[[], bool] = lambda: False
        self.arriving: list[bytes] = []
        self.released: list[int] = []
        self.outcomes: list[tuple[int, Exception | None]] = []
        self._arrival = asyncio.Event()
        self._ids = itertools.count(1)

    def arrive(self, payload: bytes) -> None:
        self.arriving.append(payload)
        self._arrival.set()

    async def do_work_async(self) -> bool:
        await self.listen(wait=self._socket_timeout)
        return True

    async def listen(self, wait: float | bool, batch: int = 1) -> None:
        await self._transport.receive_frame(timeout=wait or 0.1)
        while self.outcomes:
            number, refusal = self.outcomes.pop(0)
            self._link._pending_dispositions[number].update(settled=True, outcome=refusal)
        while self.arriving and self._link.current_link_credit:
            number = next(self._ids)
            tag = UUID(int=number).bytes_le
            frame = [0, number, tag, 0, False, False, None, None, None, None, None, self.arriving.pop(0)]
            await self._link._incoming_transfer(frame)

    async def receive_frame(self, timeout: float) -> Any:
        """A look at the socket."""
        if self.outcomes:
            await asyncio.sleep(ANSWER_S)
        elif not (self.arriving and self._link.current_link_credit):
            self._arrival.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self._arrival.wait()
        return None, None

    async def _message_received_async(self, frame: Any, message: Any) -> None:
        """What the SDK does by itself: what arrives between two of its receive calls is given back."""
        if self.is_receiving():
            self._received_messages.put((frame, message))
        else:
            await self.settle_messages_async(frame[1], frame[2], "released")

    async def settle_messages_async(self, delivery_id: int, tag: bytes, outcome: str) -> None:
        assert outcome == "released"
        self.released.append(delivery_id)


class ReceiverDouble(SdkDouble):
    """A receiver; it waits for messages as the real one does, in looks at the socket of a fifth of a second."""

    def __init__(self, *, session_id: str | None = None, locked_until_utc: datetime | None = None) -> None:
        super().__init__()
        self._handler = HandlerDouble()
        self._receive_context = asyncio.Event()
        self.answers = True
        self.refusals: dict[int, Exception] = {}
        self._handler.is_receiving = self._receive_context.is_set
        self.session = None
        if session_id is not None:
            self.session = SimpleNamespace(session_id=session_id, locked_until_utc=locked_until_utc)

    async def _mgmt_request_response_with_retry(self, operation: bytes, body: Any, callback: Any, **_: Any) -> Any:
        raise NotImplementedError

    async def receive_messages(self, max_message_count: int, max_wait_time: float) -> list[Any]:
        given: list[Any] = await self._alone("receive", self._receive(max_message_count, max_wait_time))
        return given

    async def _receive(self, max_message_count: int, max_wait_time: float) -> list[Any]:
        handler = self._handler
        loop = asyncio.get_running_loop()
        end_at = loop.time() + max_wait_time
        self._receive_context.set()
        try:
            if self.on_call is not None:
                await self.on_call("receive")
            await handler._link.flow(link_credit=max_message_count)
            is_working = True
            while is_working and loop.time() < end_at and handler._received_messages.empty():
                is_working = await handler.do_work_async()
            given: list[Any] = []
            while not handler._received_messages.empty() and len(given) < max_message_count:
                given.append(self._build_received_message(handler._received_messages.get()))
            return given
        finally:
            self._receive_context.clear()

    def _build_received_message(self, item: Any) -> ServiceBusReceivedMessage:
        frame, message = item
        return ServiceBusReceivedMessage(message, frame=frame, receiver=self)

    async def complete_message(self, message: Any) -> None:
        await self._settle("complete", message._delivery_id)

    async def abandon_message(self, message: Any) -> None:
        await self._settle("abandon", message._delivery_id)

    async def _settle(self, how: str, number: int) -> None:
        """Send it, and wait for the service's word; that others settle meanwhile is no fault."""
        if self.closed:
            self.faults.append("used after it was closed")
        if self._inside:
            self.faults.append("two calls at once")
        self.log.append((how, number))
        handler = self._handler
        handler._link._pending_dispositions[number] = {"settled": False, "outcome": None}
        if self.answers:
            handler.outcomes.append((number, self.refusals.get(number)))
        await handler._link._wait_for_disposition_outcome([number], None)

    async def _alone(self, what: Any, work: Awaitable[Any]) -> Any:
        if self.closed:
            self.faults.append("used after it was closed")
        if self._inside:
            self.faults.append("two calls at once")
        self._inside += 1
        try:
            self.log.append(what)
            return await work
        finally:
            self._inside -= 1
