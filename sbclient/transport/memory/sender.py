"""Links that send to entities of a namespace in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from sbclient import clock
from sbclient.amqp import EncodedBatch, EncodedMessage
from sbclient.broker.faults import Call, Operation
from sbclient.delivery import SenderLimits
from sbclient.errors import MessagingEntityNotFoundError, ServiceBusConnectionError, ServiceBusError
from sbclient.transport.base import Check, SenderLink, TransactionLink, link_closed
from sbclient.transport.memory.connection import MemoryConnection, core_of, own

T = TypeVar("T")

_as_transferred = EncodedMessage.as_transferred
_SEND: Final = Operation.SEND  # members of an enumeration are read slowly

_ENDS_LINK = (ServiceBusConnectionError, MessagingEntityNotFoundError)
"""After these errors a link is opened again: a new entity of the same name may have other limits."""


class MemorySender(SenderLink):
    """Sends to one entity of a namespace in this process. With a check, its first request opens it."""

    def __init__(self, connection: MemoryConnection, path: str, check: Check | None) -> None:
        self._connection = connection
        self._namespace = connection.host.namespace
        self._path = path
        self._check = check
        self._limits: SenderLimits | None = None
        self._waiting: dict[asyncio.Future[Any], None] = {}
        self._is_open = False
        self._is_closed = False

    @property
    def is_open(self) -> bool:
        return self._is_open

    @property
    def known_limits(self) -> SenderLimits | None:
        return self._limits

    async def open(self, *, timeout_s: float) -> None:
        if not self._is_open:
            await self._opened(timeout_s)

    async def limits(self, *, timeout_s: float) -> SenderLimits:
        if self._limits is None or not self._is_open:
            self._limits = await self._opened(timeout_s)
        return self._limits

    def send(
        self, batch: EncodedBatch, *, timeout_s: float, transaction: TransactionLink | None = None
    ) -> asyncio.Future[None]:
        core, via_key = None, None
        if transaction is not None:
            core, via_key = core_of(transaction), own(transaction).partition_key

        def work(call: Call) -> None:
            self._namespace.send(call, self._path, list(map(_as_transferred, batch.messages)), core, via_key)

        return self._checked(batch, _SEND, work, timeout_s)

    async def schedule(
        self, batch: EncodedBatch, *, timeout_s: float, transaction: TransactionLink | None = None
    ) -> list[int]:
        core = core_of(transaction)
        if clock.is_step_due():
            await clock.step()
        return await self._checked(
            batch,
            Operation.SCHEDULE,
            lambda call: self._namespace.schedule(
                call, self._path, list(map(_as_transferred, batch.messages)), transaction=core
            ),
            timeout_s,
        )

    async def cancel_scheduled(self, sequence_numbers: Sequence[int], *, timeout_s: float) -> None:
        if clock.is_step_due():
            await clock.step()
        await self._request(
            Operation.CANCEL,
            lambda call: self._namespace.cancel_scheduled(call, self._path, sequence_numbers),
            timeout_s,
        )

    async def close(self) -> None:
        self._is_open, self._is_closed = False, True
        loop = asyncio.get_running_loop()
        for waiting in list(self._waiting):
            if waiting.get_loop() is loop:  # another one has ended
                waiting.cancel()

    def _opened(self, timeout_s: float) -> asyncio.Future[SenderLimits]:
        return self._request(Operation.OPEN, lambda call: self._namespace.open_sender(call, self._path), timeout_s)

    def _checked(
        self, batch: EncodedBatch, operation: Operation, work: Callable[[Call], T], timeout_s: float
    ) -> asyncio.Future[T]:
        """Check a transfer, which may open the link, and request it."""
        if self._check is not None and (self._limits is None or not self._is_open):
            waiting = asyncio.ensure_future(self._after_opening(batch, operation, work, timeout_s))
            self._waiting[waiting] = None
            waiting.add_done_callback(self._waiting.pop)
            return waiting
        try:
            if self._check is not None and self._limits is not None:
                self._check(batch, self._limits)
            return self._request(operation, work, timeout_s)
        except ServiceBusError as error:
            refused: asyncio.Future[T] = asyncio.get_running_loop().create_future()
            refused.set_exception(error.with_traceback(None))  # it would refer to this frame
            return refused

    async def _after_opening(
        self, batch: EncodedBatch, operation: Operation, work: Callable[[Call], T], timeout_s: float
    ) -> T:
        deadline = clock.monotonic() + timeout_s
        limits = await self.limits(timeout_s=timeout_s)
        if self._check is not None:
            self._check(batch, limits)
        return await self._request(operation, work, deadline - clock.monotonic())

    def _request(self, operation: Operation, work: Callable[[Call], T], timeout_s: float) -> asyncio.Future[T]:
        if self._is_closed:
            raise link_closed(repr(self._path))
        if self._connection.via is not None:
            self._connection.check_via(self._path, receives=False)
        answer = self._connection.request(operation, self._path, work, timeout_s)
        if answer.done():
            self._answered(answer)
        else:
            answer.add_done_callback(self._answered)
        return answer

    def _answered(self, answer: asyncio.Future[T]) -> None:
        if not answer.cancelled():
            error = answer.exception()
            is_open = error is None or (self._is_open and not isinstance(error, _ENDS_LINK))
            self._is_open = is_open and not self._is_closed
