"""Links that receive from entities, sub-queues and sessions of a namespace in this process."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from datetime import datetime
from typing import Any, Final, TypeVar, cast
from uuid import UUID

from sbclient.broker.entity import PeekCursor
from sbclient.broker.entry import utc_datetime
from sbclient.broker.faults import Call, Operation
from sbclient.broker.session import SessionLock
from sbclient.delivery import ServiceBusReceiveMode, SessionChoice, Settlement
from sbclient.message import ServiceBusReceivedMessage
from sbclient.transport.base import ReceiverLink, TransactionLink, link_closed, not_locked, without_session
from sbclient.transport.memory.connection import MemoryConnection, core_of

T = TypeVar("T")

_SETTLE: Final = Operation.SETTLE  # members of an enumeration are read slowly
_PEEK_LOCK: Final = ServiceBusReceiveMode.PEEK_LOCK


class MemoryReceiver(ReceiverLink):
    """Receives from one entity, sub-queue or session of a namespace in this process."""

    def __init__(
        self,
        connection: MemoryConnection,
        path: str,
        session: SessionChoice,
        mode: ServiceBusReceiveMode,
        prefetch_count: int,
    ) -> None:
        self._connection = connection
        self._namespace = connection.host.namespace
        self._path = path
        self._session = session
        self._mode = mode
        self._prefetch_count = prefetch_count if mode is _PEEK_LOCK else 0
        self._prefetched: deque[ServiceBusReceivedMessage] = deque()
        self._cursor = PeekCursor()
        self._lock: SessionLock | None = None
        self._is_open = False
        self._is_closed = False

    @property
    def session_id(self) -> str | None:
        return None if self._lock is None else self._lock.session_id

    @property
    def session_locked_until_utc(self) -> datetime | None:
        return None if self._lock is None else utc_datetime(self._lock.locked_until)

    async def open(self, *, timeout_s: float) -> None:
        self._check_open()
        if self._is_open:
            return
        self._connection.check_via(self._path, receives=True)
        if self._session is None:
            await self._connection.ask(
                Operation.OPEN,
                self._path,
                lambda call: self._namespace.open_receiver(call, self._path, with_session=False),
                timeout_s,
            )
        else:
            self._lock = await self._connection.accept_session(self._path, self._session, timeout_s, self._check_open)
            self._connection.keep(self)
            if self._is_closed:  # while the answer was delayed
                self._release()
        self._check_open()
        self._is_open = True

    def receive(
        self, *, max_message_count: int, max_wait_time_s: float
    ) -> Coroutine[Any, Any, list[ServiceBusReceivedMessage]]:
        if self._is_closed or self._session is not None or self._prefetch_count:
            return self._receive_attached(max_message_count, max_wait_time_s)
        return self._taken(max_message_count, max_wait_time_s)

    async def _receive_attached(self, count: int, wait_s: float) -> list[ServiceBusReceivedMessage]:
        """Receive in a session, or ahead of later calls."""
        await self._attach(wait_s)
        if not self._prefetch_count:
            return await self._taken(count, wait_s)
        if not self._prefetched:
            self._prefetched.extend(await self._taken(count + self._prefetch_count, wait_s))
            self._connection.keep(self)
        return [self._prefetched.popleft() for _ in range(min(count, len(self._prefetched)))]

    async def _taken(self, count: int, wait_s: float) -> list[ServiceBusReceivedMessage]:
        if self._connection.via is not None:
            self._connection.check_via(self._path, receives=True)
        taken = await self._connection.receive(self._path, count, wait_s, self._mode, self._lock, self._check_open)
        messages = self._connection.noted([entry.received() for entry in taken])
        if self._is_closed and self._mode is _PEEK_LOCK:  # while the answer was delayed
            self._prefetched.extend(messages)
            self._release()
            self._check_open()
        return messages

    @property
    def is_open(self) -> bool:
        return not self._is_closed

    @property
    def is_drained(self) -> bool:
        return not self._prefetch_count

    async def peek(
        self, *, max_message_count: int, sequence_number: int, timeout_s: float
    ) -> list[ServiceBusReceivedMessage]:
        def work(call: Call) -> list[ServiceBusReceivedMessage]:
            found = self._namespace.peek(
                call,
                self._path,
                self._cursor,
                max_message_count=max_message_count,
                from_number=sequence_number,
                lock=self._lock,
            )
            return [entry.peeked() for entry in found]

        return await self._ask(Operation.PEEK, work, timeout_s)

    async def receive_deferred(
        self, sequence_numbers: Sequence[int], *, timeout_s: float
    ) -> list[ServiceBusReceivedMessage]:
        def work(call: Call) -> list[ServiceBusReceivedMessage]:
            taken = self._namespace.receive_deferred(
                call, self._path, sequence_numbers, mode=self._mode, lock=self._lock
            )
            return [entry.received() for entry in taken]

        return self._connection.noted(await self._ask(Operation.RECEIVE_DEFERRED, work, timeout_s))

    def settle(
        self,
        message: ServiceBusReceivedMessage,
        settlement: Settlement,
        *,
        timeout_s: float,
        transaction: TransactionLink | None = None,
    ) -> Coroutine[Any, Any, None]:
        token, core = _token_of(message, self._path), core_of(transaction)

        def work(call: Call) -> None:
            self._namespace.settle(call, self._path, [token], settlement, self._lock, core)

        return self._ask(_SETTLE, work, timeout_s)

    async def settle_together(
        self, messages: Sequence[ServiceBusReceivedMessage], settlement: Settlement, *, timeout_s: float
    ) -> list[ServiceBusReceivedMessage]:
        return []

    async def renew_lock(self, message: ServiceBusReceivedMessage, *, timeout_s: float) -> datetime:
        token = _token_of(message, self._path)
        (until,) = await self._ask(
            Operation.RENEW, lambda call: self._namespace.renew_locks(call, self._path, [token]), timeout_s
        )
        return utc_datetime(until)

    async def renew_session_lock(self, *, timeout_s: float) -> datetime:
        return utc_datetime(await self._in_session(Operation.RENEW, self._namespace.renew_session, timeout_s))

    async def get_session_state(self, *, timeout_s: float) -> bytes | None:
        return await self._in_session(Operation.SESSION, self._namespace.get_session_state, timeout_s)

    async def set_session_state(self, state: bytes | None, *, timeout_s: float) -> None:
        def work(call: Call, path: str, lock: SessionLock) -> None:
            self._namespace.set_session_state(call, path, lock, state)

        await self._in_session(Operation.SESSION, work, timeout_s)

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._connection.forget(self)
        self._release()
        self._connection.host.wake(self._path)

    def leave_loop(self) -> None:
        """Release what is locked, as a lost link does. The messages that callers have can be settled."""
        self._release()

    def _release(self) -> None:
        """Release prefetched messages and the session."""
        tokens = [cast(UUID, message.lock_token) for message in self._prefetched]
        self._prefetched.clear()
        lock = self._lock
        if tokens:
            self._connection.at_once(Operation.RECEIVE, lambda call: self._namespace.release(call, self._path, tokens))
        if lock is not None:
            self._connection.at_once(
                Operation.SESSION, lambda call: self._namespace.release_session(call, self._path, lock)
            )

    async def _attach(self, timeout_s: float) -> None:
        """Accept the session if there is one. Without a session, each request makes the checks of `open` itself."""
        self._check_open()
        if self._session is not None:
            await self.open(timeout_s=timeout_s)

    def _check_open(self) -> None:
        if self._is_closed:
            raise link_closed(repr(self._path))

    def _ask(self, operation: Operation, work: Callable[[Call], T], timeout_s: float) -> Coroutine[Any, Any, T]:
        if self._is_closed or self._session is not None:
            return self._ask_attached(operation, work, timeout_s)
        return self._connection.ask(operation, self._path, work, timeout_s, self._check_open)

    async def _ask_attached(self, operation: Operation, work: Callable[[Call], T], timeout_s: float) -> T:
        await self._attach(timeout_s)
        return await self._connection.ask(operation, self._path, work, timeout_s, self._check_open)

    async def _in_session(
        self, operation: Operation, work: Callable[[Call, str, SessionLock], T], timeout_s: float
    ) -> T:
        if self._session is None:
            raise without_session(self._path)
        await self._attach(timeout_s)
        lock = cast(SessionLock, self._lock)
        return await self._ask(operation, lambda call: work(call, self._path, lock), timeout_s)


def _token_of(message: ServiceBusReceivedMessage, path: str) -> UUID:
    if message.lock_token is None:
        raise not_locked(message, path)
    return message.lock_token
