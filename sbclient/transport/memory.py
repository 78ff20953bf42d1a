"""The broker in this process, behind the transport port.

A namespace is shared by its name: every transport on `memory_host("contoso")` sees the same entities. Each transport is
one connection and leads to one front end of the namespace.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from datetime import datetime
from random import Random
from typing import Final, TypeVar, cast
from uuid import UUID

from sbclient.broker.directory import path_of
from sbclient.broker.entity import PeekCursor
from sbclient.broker.entry import moment
from sbclient.broker.faults import Call, Operation
from sbclient.broker.host import BrokerHost
from sbclient.broker.profile import PROFILES, STD_2021, Profile
from sbclient.broker.session import SessionLock
from sbclient.broker.transactions import Transaction
from sbclient.clock import Clock
from sbclient.entities import (
    EntityAddress,
    EntityKind,
    EntityProperties,
    NamespaceProperties,
    RuntimeProperties,
)
from sbclient.errors import InvalidOperationError, ServiceBusConnectionError
from sbclient.message import ServiceBusMessage, ServiceBusReceivedMessage
from sbclient.transport.base import (
    Administration,
    ReceiverLink,
    SenderLimits,
    SenderLink,
    ServiceBusReceiveMode,
    SessionChoice,
    Settlement,
    TransactionLink,
    Transport,
)

T = TypeVar("T")

SCHEME: Final = "memory://"
ADMINISTRATION_TIMEOUT_S: Final = 60.0

_hosts: dict[str, BrokerHost] = {}


def memory_host(
    name: str, *, clock: Clock | None = None, random: Random | None = None, profile: Profile | str = STD_2021
) -> BrokerHost:
    """The namespace of that name in this process, made when it is first asked for.

    Args:
        name: `contoso` or `memory://contoso`; letters' case does not matter.
        clock, random, profile: of a namespace that is made now; ignored for one that exists. A profile may be named.
    """
    key = _key(name)
    host = _hosts.get(key)
    if host is None:
        chosen = PROFILES[profile] if isinstance(profile, str) else profile
        bare = name.strip().removeprefix(SCHEME).rstrip("/")
        host = _hosts[key] = BrokerHost(bare, clock=clock, random=random, profile=chosen)
    return host


def drop_memory_host(name: str) -> None:
    """Forget the namespace of that name, if there is one; who still holds it keeps it."""
    _hosts.pop(_key(name), None)


def _key(name: str) -> str:
    return name.strip().casefold().removeprefix(SCHEME).rstrip("/")


class MemoryTransport(Transport):
    """One connection to a namespace in this process.

    Args:
        host: the namespace.
    """

    def __init__(self, host: BrokerHost) -> None:
        self._host = host
        self._front_end = host.connect()
        self._receivers: dict[MemoryReceiver, None] = {}
        self._is_closed = False
        self._administration = MemoryAdministration(self)

    @property
    def host(self) -> BrokerHost:
        """The namespace, with its faults."""
        return self._host

    @property
    def namespace(self) -> str:
        return SCHEME + self._host.namespace.name

    @property
    def administration(self) -> MemoryAdministration:
        return self._administration

    def open_sender(self, entity_path: str) -> MemorySender:
        return MemorySender(self, entity_path)

    def open_receiver(
        self,
        entity_path: str,
        *,
        session: SessionChoice = None,
        receive_mode: ServiceBusReceiveMode = ServiceBusReceiveMode.PEEK_LOCK,
        prefetch_count: int = 0,
    ) -> MemoryReceiver:
        receiver = MemoryReceiver(self, entity_path, session, receive_mode, prefetch_count)
        self._receivers[receiver] = None
        return receiver

    async def begin_transaction(self, *, timeout_s: float) -> MemoryTransaction:
        namespace = self._host.namespace
        return MemoryTransaction(
            self, await self.ask(Operation.TRANSACTION, None, namespace.begin_transaction, timeout_s)
        )

    async def list_sessions(
        self, entity_path: str, *, state_updated_after: datetime | None, timeout_s: float
    ) -> Sequence[str]:
        def work(call: Call) -> list[str]:
            return self._host.namespace.list_sessions(call, entity_path, state_updated_after=state_updated_after)

        return await self.ask(Operation.SESSION, entity_path, work, timeout_s)

    async def close(self) -> None:
        for receiver in list(self._receivers):
            await receiver.close()
        self._is_closed = True

    async def ask(self, operation: Operation, path: str | None, work: Callable[[Call], T], timeout_s: float) -> T:
        """One request through this connection."""
        self.check_open()
        return await self._host.perform(operation, path, work, timeout_s=timeout_s, front_end=self._front_end)

    async def receive(
        self, path: str, max_message_count: int, wait_s: float, mode: ServiceBusReceiveMode, lock: SessionLock | None
    ) -> list[ServiceBusReceivedMessage]:
        """Wait for messages through this connection's front end."""
        self.check_open()
        return await self._host.receive(
            path,
            max_message_count=max_message_count,
            max_wait_time_s=wait_s,
            mode=mode,
            lock=lock,
            front_end=self._front_end,
        )

    async def accept_session(self, path: str, session: SessionChoice, timeout_s: float) -> SessionLock:
        """Wait for a session through this connection's front end."""
        self.check_open()
        assert session is not None  # asked for by receivers of sessions only
        return await self._host.accept_session(path, session, timeout_s=timeout_s, front_end=self._front_end)

    def at_once(self, operation: Operation, work: Callable[[Call], T]) -> T:
        """What the broker does by itself when a link is closed: no fault can stop it."""
        return work(Call(operation, self._host.clock.now(), front_end=self._front_end))

    def forget(self, receiver: MemoryReceiver) -> None:
        """A receiver was closed: there is nothing of it to close with the connection."""
        self._receivers.pop(receiver, None)

    def check_open(self) -> None:
        """
        Raises:
            InvalidOperationError: the transport was closed.
        """
        if self._is_closed:
            raise InvalidOperationError(f"the connection to {self.namespace} was closed: open a new client")


class MemoryTransaction(TransactionLink):
    """A transaction of the broker, begun through one connection."""

    def __init__(self, transport: MemoryTransport, transaction: Transaction) -> None:
        self._transport = transport
        self.transaction = transaction

    async def commit(self, *, timeout_s: float) -> None:
        namespace, transaction = self._transport.host.namespace, self.transaction
        await self._transport.ask(
            Operation.TRANSACTION, None, lambda call: namespace.commit(call, transaction), timeout_s
        )

    async def rollback(self, *, timeout_s: float) -> None:
        namespace, transaction = self._transport.host.namespace, self.transaction
        await self._transport.ask(
            Operation.TRANSACTION, None, lambda call: namespace.rollback(call, transaction), timeout_s
        )


def _core(link: TransactionLink | None) -> Transaction | None:
    if link is None:
        return None
    if not isinstance(link, MemoryTransaction):
        raise InvalidOperationError(
            f"a {type(link).__name__} was begun on another transport: begin the transaction on the one it is used with"
        )
    return link.transaction


class MemorySender(SenderLink):
    """Sends to one entity of a namespace in this process."""

    def __init__(self, transport: MemoryTransport, path: str) -> None:
        self._transport = transport
        self._namespace = transport.host.namespace
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

    async def send(
        self, messages: Sequence[ServiceBusMessage], *, timeout_s: float, transaction: TransactionLink | None = None
    ) -> None:
        core = _core(transaction)
        await self._ask(
            Operation.SEND, lambda call: self._namespace.send(call, self._path, messages, transaction=core), timeout_s
        )

    async def schedule(
        self, messages: Sequence[ServiceBusMessage], *, timeout_s: float, transaction: TransactionLink | None = None
    ) -> list[int]:
        core = _core(transaction)
        return await self._ask(
            Operation.SCHEDULE,
            lambda call: self._namespace.schedule(call, self._path, messages, transaction=core),
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
        _check_link(self._is_closed, self._path)
        try:
            answer = await self._transport.ask(operation, self._path, work, timeout_s)
        except ServiceBusConnectionError:
            self._is_open = False
            raise
        self._is_open = True
        return answer


class MemoryReceiver(ReceiverLink):
    """Receives from one entity, sub-queue or session of a namespace in this process."""

    def __init__(
        self,
        transport: MemoryTransport,
        path: str,
        session: SessionChoice,
        mode: ServiceBusReceiveMode,
        prefetch_count: int,
    ) -> None:
        self._transport = transport
        self._namespace = transport.host.namespace
        self._path = path
        self._session = session
        self._mode = mode
        self._prefetch_count = prefetch_count if mode is ServiceBusReceiveMode.PEEK_LOCK else 0
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
        return None if self._lock is None else moment(self._lock.locked_until)

    async def open(self, *, timeout_s: float) -> None:
        _check_link(self._is_closed, self._path)
        if self._is_open:
            return
        if self._session is None:
            await self._transport.ask(
                Operation.OPEN,
                self._path,
                lambda call: self._namespace.open_receiver(call, self._path, with_session=False),
                timeout_s,
            )
        else:
            self._lock = await self._transport.accept_session(self._path, self._session, timeout_s)
        self._is_open = True

    async def receive(self, *, max_message_count: int, max_wait_time_s: float) -> list[ServiceBusReceivedMessage]:
        await self._attach(max_wait_time_s)
        if not self._prefetched:
            wanted = max_message_count + self._prefetch_count
            self._prefetched.extend(
                await self._transport.receive(self._path, wanted, max_wait_time_s, self._mode, self._lock)
            )
        return [self._prefetched.popleft() for _ in range(min(max_message_count, len(self._prefetched)))]

    async def peek(
        self, *, max_message_count: int, sequence_number: int, timeout_s: float
    ) -> list[ServiceBusReceivedMessage]:
        def work(call: Call) -> list[ServiceBusReceivedMessage]:
            return self._namespace.peek(
                call,
                self._path,
                self._cursor,
                max_message_count=max_message_count,
                from_number=sequence_number,
                session_id=self.session_id,
            )

        return await self._ask(Operation.PEEK, work, timeout_s)

    async def receive_deferred(
        self, sequence_numbers: Sequence[int], *, timeout_s: float
    ) -> list[ServiceBusReceivedMessage]:
        def work(call: Call) -> list[ServiceBusReceivedMessage]:
            return self._namespace.receive_deferred(
                call, self._path, sequence_numbers, mode=self._mode, lock=self._lock
            )

        return await self._ask(Operation.RECEIVE_DEFERRED, work, timeout_s)

    async def settle(
        self,
        message: ServiceBusReceivedMessage,
        settlement: Settlement,
        *,
        timeout_s: float,
        transaction: TransactionLink | None = None,
    ) -> None:
        token, core = _token_of(message, self._path), _core(transaction)

        def work(call: Call) -> None:
            self._namespace.settle(call, self._path, [token], settlement, lock=self._lock, transaction=core)

        await self._ask(Operation.SETTLE, work, timeout_s)

    async def renew_lock(self, message: ServiceBusReceivedMessage, *, timeout_s: float) -> datetime:
        token = _token_of(message, self._path)
        (until,) = await self._ask(
            Operation.RENEW, lambda call: self._namespace.renew_locks(call, self._path, [token]), timeout_s
        )
        return moment(until)

    async def renew_session_lock(self, *, timeout_s: float) -> datetime:
        return moment(await self._in_session(Operation.RENEW, self._namespace.renew_session, timeout_s))

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
        self._transport.forget(self)
        tokens = [cast(UUID, message.lock_token) for message in self._prefetched]
        self._prefetched.clear()
        lock = self._lock
        if tokens:
            self._transport.at_once(Operation.RECEIVE, lambda call: self._namespace.release(call, self._path, tokens))
        if lock is not None:
            self._transport.at_once(
                Operation.SESSION, lambda call: self._namespace.release_session(call, self._path, lock)
            )

    async def _attach(self, timeout_s: float) -> None:
        """Hold the session if there is one; without one each request proves by itself what opening would."""
        _check_link(self._is_closed, self._path)
        if self._session is not None:
            await self.open(timeout_s=timeout_s)

    async def _ask(self, operation: Operation, work: Callable[[Call], T], timeout_s: float) -> T:
        await self._attach(timeout_s)
        return await self._transport.ask(operation, self._path, work, timeout_s)

    async def _in_session(
        self, operation: Operation, work: Callable[[Call, str, SessionLock], T], timeout_s: float
    ) -> T:
        if self._session is None:
            raise InvalidOperationError(
                f"the receiver of {self._path} has no session: open it with a session_id or NEXT_AVAILABLE_SESSION"
            )
        await self._attach(timeout_s)
        lock = cast(SessionLock, self._lock)
        return await self._ask(operation, lambda call: work(call, self._path, lock), timeout_s)


def _token_of(message: ServiceBusReceivedMessage, path: str) -> UUID:
    if message.lock_token is None:
        raise InvalidOperationError(
            f"message {message.sequence_number} of {path} is not held: it was peeked, or deleted when it was received"
        )
    return message.lock_token


def _check_link(is_closed: bool, path: str) -> None:
    if is_closed:
        raise InvalidOperationError(f"the link to {path} was closed: open a new one")


class MemoryAdministration(Administration):
    """The management side of a namespace in this process."""

    def __init__(self, transport: MemoryTransport) -> None:
        self._transport = transport
        self._management = transport.host.namespace.management

    async def create(self, address: EntityAddress, properties: EntityProperties) -> EntityProperties:
        return await self._ask(address, lambda call: self._management.create(call, address, properties))

    async def get(self, address: EntityAddress) -> EntityProperties:
        return await self._ask(address, lambda call: self._management.get(call, address))

    async def update(self, address: EntityAddress, properties: EntityProperties) -> EntityProperties:
        return await self._ask(address, lambda call: self._management.update(call, address, properties))

    async def delete(self, address: EntityAddress) -> None:
        await self._ask(address, lambda call: self._management.delete(call, address))

    async def list(self, kind: EntityKind, parents: tuple[str, ...] = (), prefix: str = "") -> list[EntityProperties]:
        return await self._ask(None, lambda call: self._management.listed(call, kind, parents, prefix))

    async def runtime(self, address: EntityAddress) -> RuntimeProperties:
        return await self._ask(address, lambda call: self._management.runtime(call, address))

    async def namespace(self) -> NamespaceProperties:
        return await self._ask(None, self._management.namespace)

    async def _ask(self, address: EntityAddress | None, work: Callable[[Call], T]) -> T:
        path = None if address is None else path_of(address)
        return await self._transport.ask(Operation.MANAGE, path, work, ADMINISTRATION_TIMEOUT_S)
