"""A connection to a namespace in this process, and its transactions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol, TypeVar

from sbclient import clock
from sbclient.broker.directory import path_of
from sbclient.broker.entry import Entry
from sbclient.broker.faults import Call, Operation
from sbclient.broker.session import SessionLock
from sbclient.broker.transactions import Transaction, Via
from sbclient.delivery import ServiceBusReceiveMode, SessionChoice
from sbclient.entities import EntityAddress, RuleProperties
from sbclient.errors import InvalidOperationError
from sbclient.hosting.host import BrokerHost
from sbclient.message import ServiceBusReceivedMessage
from sbclient.tasks import LoopHome
from sbclient.transport.base import ReceiverLink, TransactionLink

T = TypeVar("T")

SCHEME: Final = "memory://"


class LoopBound(ReceiverLink, Protocol):
    """A receiver as its connection needs it."""

    def leave_loop(self) -> None:
        """Release what the receiver has locked: its event loop has ended."""


class MemoryConnection:
    """A connection to one front end of the namespace.

    Args:
        host: the namespace.
        is_cross_entity: whether transactions may span entities.

    Attributes:
        via: the entity by which they do; None if they do not.
    """

    def __init__(self, host: BrokerHost, *, is_cross_entity: bool = False) -> None:
        self._host = host
        self.via = Via() if is_cross_entity else None
        self._front_end = host.connect()
        self._receivers: dict[LoopBound, None] = {}
        self._home = LoopHome()
        self._is_closed = False

    def enter_loop(self) -> None:
        """Belong to the running event loop; see `Transport.enter_loop`."""
        if self._home.enter(f"the connection to {self.namespace}") is not None:
            for receiver in self._receivers:
                receiver.leave_loop()

    @property
    def host(self) -> BrokerHost:
        """The host of the namespace."""
        return self._host

    @property
    def namespace(self) -> str:
        return SCHEME + self._host.namespace.name

    def check_via(self, path: str, *, receives: bool) -> None:
        """Note a link to an entity.

        Raises:
            InvalidOperationError: transactions may span entities, and the link receives from a second one.
        """
        if self.via is not None:
            self._host.namespace.check_via(self.via, path, receives=receives)

    def ask(
        self,
        operation: Operation,
        path: str | None,
        work: Callable[[Call], T],
        timeout_s: float,
        check: Callable[[], None] | None = None,
    ) -> Coroutine[Any, Any, T]:
        """Perform a request through this connection; `check` is as for `BrokerHost.perform`."""
        self.check_open()
        return self._host.perform(operation, path, work, timeout_s, self._front_end, check)

    def request(
        self, operation: Operation, path: str, work: Callable[[Call], T], timeout_s: float
    ) -> asyncio.Future[T]:
        """Perform a request in this step of the event loop; the future ends when its answer arrives."""
        self.check_open()
        return self._host.answer_to(self._host.perform_now(operation, path, work, self._front_end), timeout_s)

    def receive(
        self,
        path: str,
        max_message_count: int,
        wait_s: float,
        mode: ServiceBusReceiveMode,
        lock: SessionLock | None,
        check: Callable[[], None],
    ) -> Coroutine[Any, Any, list[Entry]]:
        """Wait for messages through this connection's front end, as `BrokerHost.receive` does."""
        self.check_open()
        return self._host.receive(path, max_message_count, wait_s, mode, lock, self._front_end, check)

    def noted(self, messages: list[ServiceBusReceivedMessage]) -> list[ServiceBusReceivedMessage]:
        """Return the messages, which the host may note as received."""
        if self._host.on_received is not None:
            self._host.on_received(messages)
        return messages

    async def accept_session(
        self, path: str, session: SessionChoice, timeout_s: float, check: Callable[[], None]
    ) -> SessionLock:
        """Wait for a session through this connection's front end."""
        self.check_open()
        assert session is not None  # only receivers of sessions call this
        return await self._host.accept_session(
            path, session, timeout_s=timeout_s, front_end=self._front_end, check=check
        )

    def at_once(self, operation: Operation, work: Callable[[Call], T]) -> T:
        """Perform the broker's own cleanup when a link is closed. No fault applies to it."""
        return work(Call(operation, clock.true_now(), self._front_end))

    def keep(self, receiver: LoopBound) -> None:
        """Close a receiver that has locked something with the connection."""
        self._receivers[receiver] = None

    def forget(self, receiver: LoopBound) -> None:
        """Remove a closed receiver from those that `close` closes."""
        self._receivers.pop(receiver, None)

    def check_open(self) -> None:
        """Check that the transport is open.

        Raises:
            InvalidOperationError: the transport was closed.
        """
        if self._is_closed:
            raise InvalidOperationError(f"the connection to {self.namespace} was closed: open a new client")

    async def close(self) -> None:
        self.enter_loop()
        for receiver in list(self._receivers):
            await receiver.close()
        self._is_closed = True


class MemoryTransaction(TransactionLink):
    """A transaction of the broker, begun through one connection.

    Attributes:
        transaction: of the broker.
        partition_key: of messages that are sent to other entities.
    """

    def __init__(self, connection: MemoryConnection, transaction: Transaction, partition_key: str | None) -> None:
        self._connection = connection
        self.transaction = transaction
        self.partition_key = partition_key

    def via_to(self, path: str) -> str | None:
        return self.transaction.via_to(path)

    async def commit(self, *, timeout_s: float) -> None:
        namespace, transaction = self._connection.host.namespace, self.transaction
        await self._connection.ask(
            Operation.TRANSACTION, transaction.path, lambda call: namespace.commit(call, transaction), timeout_s
        )

    async def rollback(self, *, timeout_s: float) -> None:
        namespace, transaction = self._connection.host.namespace, self.transaction
        await self._connection.ask(
            Operation.TRANSACTION, transaction.path, lambda call: namespace.rollback(call, transaction), timeout_s
        )

    async def create_rule(self, address: EntityAddress, rule: RuleProperties, *, timeout_s: float) -> None:
        management, transaction = self._connection.host.namespace.management, self.transaction
        await self._connection.ask(
            Operation.MANAGE,
            path_of(address),
            lambda call: management.create(call, address, rule, transaction=transaction),
            timeout_s,
        )

    async def delete_rule(self, address: EntityAddress, *, timeout_s: float) -> None:
        management, transaction = self._connection.host.namespace.management, self.transaction
        await self._connection.ask(
            Operation.MANAGE,
            path_of(address),
            lambda call: management.delete(call, address, transaction=transaction),
            timeout_s,
        )


def core_of(link: TransactionLink | None) -> Transaction | None:
    """The transaction of the broker."""
    return None if link is None else own(link).transaction


def own(link: TransactionLink) -> MemoryTransaction:
    """The transaction as one of this transport.

    Raises:
        InvalidOperationError: it was begun by another transport.
    """
    if not isinstance(link, MemoryTransaction):
        raise InvalidOperationError(
            f"a {type(link).__name__} belongs to another transport: begin the transaction on the transport that uses it"
        )
    return link
