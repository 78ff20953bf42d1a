"""A connection to the broker in this process that counts what is asked through it, and the links that are open."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar
from weakref import WeakSet

from sbclient.broker.entry import Entry
from sbclient.broker.faults import Call, Operation
from sbclient.transport.base import Check
from sbclient.transport.memory.sender import MemorySender
from sbclient.transport.memory.transport import MemoryTransport

T = TypeVar("T")


class CountedTransport(MemoryTransport):
    """One connection.

    Attributes:
        asked: requests so far, by kind. A receive that waits in vain is one, too.
    """

    def __init__(self, host: Any) -> None:
        super().__init__(host)
        self.asked: Counter[Operation] = Counter()
        self._senders: WeakSet[MemorySender] = WeakSet()

    @property
    def senders(self) -> int:
        """Sender links that are not closed."""
        return sum(not one._is_closed for one in self._senders)

    @property
    def receivers(self) -> int:
        """Receiver links that are not closed."""
        return len(self._receivers)

    def open_sender(self, entity_path: str, check: Check | None = None) -> MemorySender:
        sender = super().open_sender(entity_path, check)
        self._senders.add(sender)
        return sender

    def request(
        self, operation: Operation, path: str, work: Callable[[Call], T], timeout_s: float
    ) -> asyncio.Future[T]:
        self.asked[operation] += 1
        return super().request(operation, path, work, timeout_s)

    def ask(
        self, operation: Operation, path: str | None, work: Callable[[Call], T], timeout_s: float, check: Any = None
    ) -> Coroutine[Any, Any, T]:
        self.asked[operation] += 1
        return super().ask(operation, path, work, timeout_s, check)

    def receive(self, *args: Any) -> Coroutine[Any, Any, list[Entry]]:
        self.asked[Operation.RECEIVE] += 1
        return super().receive(*args)

    async def accept_session(self, *args: Any) -> Any:
        self.asked[Operation.SESSION] += 1
        return await super().accept_session(*args)

    def at_once(self, operation: Operation, work: Callable[[Call], T]) -> T:
        self.asked[operation] += 1
        return super().at_once(operation, work)
