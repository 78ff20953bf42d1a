"""Checks the keys of messages sent in a transaction, before they are sent."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from sbclient.client.transaction import Transaction
from sbclient.entities import EntityAddress, QueueProperties, TopicProperties
from sbclient.errors import ServiceBusError
from sbclient.message import Keyed
from sbclient.rules.transaction_key import transaction_key_of
from sbclient.transport.base import Administration


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
