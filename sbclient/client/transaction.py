"""Transactions in one namespace: sends and settlements that take effect together or not at all; and their keys."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from types import TracebackType
from typing import Self

from sbclient import clock
from sbclient.arguments.checked import checked
from sbclient.arguments.kinds import Seconds
from sbclient.client.core import ClientCore
from sbclient.entities import EntityAddress, QueueProperties, TopicProperties
from sbclient.errors import InvalidOperationError, ServiceBusError
from sbclient.message import Keyed, NamespaceSide, ServiceBusReceivedMessage
from sbclient.rules.entity_path import canonical
from sbclient.rules.transaction_key import MAX_DURATION_S, MAX_OPERATIONS, transaction_key_of
from sbclient.transport.base import Administration, TransactionLink, Transport


class TransactionState(Enum):
    """The state of a transaction. Only an active one accepts sends and settlements."""

    NEW = "new"
    ACTIVE = "active"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"


@checked
class Transaction:
    """A transaction, created by `client.transaction()`.

    It commits when its `async with` block ends, and rolls back if the block raises. Rules of the service: at most 100
    messages and 2 minutes; on a partitioned entity one key for all messages; it includes settlements but no receives.
    Operations in a transaction are never retried or diverted: repeat the whole transaction.
    """

    def __init__(
        self, core: ClientCore, partition_key: str | None = None, namespace: NamespaceSide = "primary"
    ) -> None:
        self._core = core
        self.namespace = namespace
        self._partition_key = partition_key
        self._count = 0
        self._ends_at = math.inf
        self._link: TransactionLink | None = None
        self._beginning = asyncio.Lock()
        self._keys: dict[str, str] = {}
        self._settled: list[tuple[ServiceBusReceivedMessage, Callable[[], object]]] = []
        self.state = TransactionState.NEW

    async def __aenter__(self) -> Self:
        await self.link()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.state is not TransactionState.ACTIVE:
            return
        if kind is None:
            await self.commit()
        else:
            try:
                await self.rollback()
            except ServiceBusError as rollback_error:
                if error is not None:
                    error.add_note(f"The rollback failed, so the service rolls back after a timeout: {rollback_error}")

    async def link(self) -> TransactionLink:
        """Return the transaction of the transport; begin it at the first call."""
        self._core.check()
        await self._core.open()
        async with self._beginning:
            if self.state is TransactionState.NEW:
                self._link = await self.transport.begin_transaction(
                    timeout_s=self._core.retry.options.timeout, partition_key=self._partition_key
                )
                self.state = TransactionState.ACTIVE
        if self.state is not TransactionState.ACTIVE or self._link is None:
            raise InvalidOperationError(f"the transaction is {self.state.value}: start a new one")
        return self._link

    @property
    def transport(self) -> Transport:
        """The transport to the namespace of the transaction."""
        return self._core.transport(self.namespace)

    def key_of(self, path: str) -> str | None:
        """Return the key of earlier sends to an entity; None before the first."""
        return self._keys.get(canonical(path))

    def pin(self, path: str, key: str | None) -> None:
        """Require a key for later sends to an entity; None requires nothing."""
        if key is not None:
            self._keys[canonical(path)] = key

    @contextmanager
    def counting(self, operation_count: int) -> Iterator[None]:
        """Count operations for the limits of the service, unless they fail.

        Raises:
            InvalidOperationError: the transaction has too many operations, or is too old; nothing was sent.
        """
        now = clock.monotonic()
        if now >= self._ends_at:
            raise InvalidOperationError(
                f"the transaction is older than {MAX_DURATION_S:.0f} s, so the service has rolled it back: start a new "
                "one"
            )
        if self._count + operation_count > MAX_OPERATIONS:
            raise InvalidOperationError(
                f"the transaction has {self._count} operations and {operation_count} more exceed the {MAX_OPERATIONS} "
                "that the service allows: commit it and start a new one"
            )
        self._count += operation_count
        try:
            yield
        except BaseException:
            self._count -= operation_count
            raise
        self._ends_at = min(self._ends_at, now + MAX_DURATION_S)

    def settled(self, message: ServiceBusReceivedMessage, on_committed: Callable[[], object]) -> None:
        """Record a message settled in this transaction: a rollback undoes its settlement."""
        self._settled.append((message, on_committed))

    async def commit(self, *, timeout: Seconds | None = None) -> None:
        """Apply all sends and settlements.

        Raises:
            ServiceBusError: none were applied; after `OperationTimeoutError` and `ServiceBusConnectionError` the result
                is in doubt.
        """
        timeout_s = self._timeout_s(timeout)
        link = await self.link()
        try:
            await link.commit(timeout_s=timeout_s)
        except BaseException:
            self._undone()
            raise
        self.state = TransactionState.COMMITTED
        for _, on_committed in self._settled:
            on_committed()

    async def rollback(self, *, timeout: Seconds | None = None) -> None:
        """Undo all sends and settlements; settled messages are locked again."""
        timeout_s = self._timeout_s(timeout)
        link = await self.link()
        self._undone()
        await link.rollback(timeout_s=timeout_s)

    def _undone(self) -> None:
        self.state = TransactionState.ROLLED_BACK
        for message, _ in self._settled:
            message.is_settled = False

    def _timeout_s(self, timeout: float | None) -> float:
        return self._core.retry.options.timeout if timeout is None else timeout


class TransactionKeys:
    """The keys that one sender uses in transactions.

    Args:
        administration: used once, to find out whether the entity is partitioned.
        address: the address of the entity.
        partitioned: whether the entity is partitioned; None = look it up.
    """

    def __init__(self, administration: Administration, address: EntityAddress, *, partitioned: bool | None) -> None:
        self._administration = administration
        self._address = address
        self._partitioned = partitioned
        self._description: QueueProperties | TopicProperties | None = None
        self._is_looked_up = False
        self._looking_up = asyncio.Lock()

    def leave_loop(self) -> None:
        """Make anew what belonged to an event loop that has ended."""
        self._looking_up = asyncio.Lock()

    async def key_of(self, transaction: Transaction, messages: Sequence[Keyed]) -> str | None:
        """Return the key of messages for an entity that is, or may be, partitioned; None for any other entity.

        Raises:
            InvalidOperationError: the messages have no key, or another key than earlier messages of the transaction.
        """
        if self._partitioned is None:
            await self._look_up()
        if self._partitioned is False:
            return None
        description = self._description
        return transaction_key_of(
            messages,
            pinned=transaction.key_of(self._address.names[0]),
            requires_session=isinstance(description, QueueProperties) and bool(description.requires_session),
            requires_duplicate_detection=description is not None and bool(description.requires_duplicate_detection),
        )

    async def _look_up(self) -> None:
        """Look up, once, whether the entity is partitioned. Without the right to do so it counts as partitioned."""
        async with self._looking_up:
            if self._is_looked_up:
                return
            try:
                description = await self._administration.get(self._address)
            except ServiceBusError as error:
                self._is_looked_up = not error.is_transient
                return
            self._is_looked_up = True
        if isinstance(description, QueueProperties | TopicProperties):
            self._description = description
            self._partitioned = bool(description.enable_partitioning)
