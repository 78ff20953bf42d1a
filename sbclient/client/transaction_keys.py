"""Which key a transaction is pinned to on an entity: asked before anything is sent, so that a wrong one is told."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from sbclient.client.transaction import Transaction
from sbclient.entities import EntityAddress, QueueProperties, TopicProperties
from sbclient.errors import ServiceBusError
from sbclient.message import ServiceBusMessage
from sbclient.rules.transaction_key import transaction_key_of
from sbclient.transport.base import Administration


class TransactionKeys:
    """The keys of what one sender sends in transactions.

    Args:
        administration: tells, once, whether the entity is partitioned.
        address: of the entity.
        partitioned: what the caller knows; None = ask.
    """

    def __init__(self, administration: Administration, address: EntityAddress, *, partitioned: bool | None) -> None:
        self._administration = administration
        self._address = address
        self._partitioned = partitioned
        self._description: QueueProperties | TopicProperties | None = None
        self._has_asked = False
        self._asking = asyncio.Lock()

    async def of(self, transaction: Transaction, messages: Sequence[ServiceBusMessage]) -> str | None:
        """Refuse early what a partitioned entity, or one that may be, would refuse: no key, or a second one.

        Returns:
            The key the transaction is pinned to by these messages; None where the broker alone decides.

        Raises:
            InvalidOperationError: the messages have no key, or another one than the transaction.
        """
        if self._partitioned is None:
            await self._ask()
        if self._partitioned is False:
            return None
        description = self._description
        return transaction_key_of(
            messages,
            pinned=transaction.key_of(self._address.names[0]),
            requires_session=isinstance(description, QueueProperties) and bool(description.requires_session),
            requires_duplicate_detection=description is not None and bool(description.requires_duplicate_detection),
        )

    async def _ask(self) -> None:
        """Learn, once, whether the entity is partitioned; without the right to know, it counts as partitioned."""
        async with self._asking:
            if self._has_asked:
                return
            try:
                description = await self._administration.get(self._address)
            except ServiceBusError as error:
                self._has_asked = not error.is_transient
                return
            self._has_asked = True
        if isinstance(description, QueueProperties | TopicProperties):
            self._description = description
            self._partitioned = bool(description.enable_partitioning)
