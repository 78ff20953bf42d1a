"""Links that send to entities of a namespace in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from sbclient.amqp import EncodedBatch
from sbclient.broker.faults import Call, Operation
from sbclient.delivery import SenderLimits
from sbclient.errors import MessagingEntityNotFoundError, ServiceBusConnectionError, ServiceBusError
from sbclient.transport.base import SenderLink, TransactionLink
from sbclient.transport.memory.connection import MemoryConnection, check_link, core_of, own

T = TypeVar("T")

_ENDS_LINK = (ServiceBusConnectionError, MessagingEntityNotFoundError)
"""After these errors a link is opened again: a new entity of the same name may have other limits."""


class MemorySender(SenderLink):
    """Sends to one entity of a namespace in this process."""

    def __init__(self, connection: MemoryConnection, path: str) -> None:
        self._connection = connection
        self._namespace = connection.host.namespace
        self._path = path
        self._is_open = False
        self._is_closed = False

    @property
    def is_open(self) -> bool:
        return self._is_open

    async def open(self, *, timeout_s: float) -> None:
        if not self._is_open:
            await self.limits(timeout_s=timeout_s)

    async def limits(self, *, timeout_s: float) -> SenderLimits:
        return await self._ask(Operation.OPEN, lambda call: self._namespace.open_sender(call, self._path), timeout_s)

    async def send(self, batch: EncodedBatch, *, timeout_s: float, transaction: TransactionLink | None = None) -> None:
        core = core_of(transaction)
        via_key = None if transaction is None else own(transaction).partition_key

        def work(call: Call) -> None:
            self._namespace.send(call, self._path, batch.messages, transaction=core, via_partition_key=via_key)

        await self._ask(Operation.SEND, work, timeout_s)

    def start(self, batch: EncodedBatch, *, timeout_s: float, done: Callable[[ServiceBusError | None], None]) -> bool:
        if not self._is_open:
            return False
        self._connection.check_via(self._path, receives=False)

        def answered(error: ServiceBusError | None) -> None:
            if isinstance(error, _ENDS_LINK):
                self._is_open = False
            done(error)

        self._connection.start(
            Operation.SEND,
            self._path,
            lambda call: self._namespace.send(call, self._path, batch.messages),
            timeout_s,
            answered,
        )
        return True

    async def schedule(
        self, batch: EncodedBatch, *, timeout_s: float, transaction: TransactionLink | None = None
    ) -> list[int]:
        core = core_of(transaction)
        return await self._ask(
            Operation.SCHEDULE,
            lambda call: self._namespace.schedule(call, self._path, batch.messages, transaction=core),
            timeout_s,
        )

    async def cancel_scheduled(self, sequence_numbers: Sequence[int], *, timeout_s: float) -> None:
        await self._ask(
            Operation.CANCEL,
            lambda call: self._namespace.cancel_scheduled(call, self._path, sequence_numbers),
            timeout_s,
        )

    async def close(self) -> None:
        self._is_open, self._is_closed = False, True

    async def _ask(self, operation: Operation, work: Callable[[Call], T], timeout_s: float) -> T:
        check_link(self._is_closed, self._path)
        self._connection.check_via(self._path, receives=False)
        try:
            answer = await self._connection.ask(operation, self._path, work, timeout_s)
        except _ENDS_LINK:
            self._is_open = False
            raise
        self._is_open = True
        return answer
