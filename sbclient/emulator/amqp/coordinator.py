"""The transaction coordinator: a client declares transactions here, and discharges them by commit or rollback.

Laws (source: AMQP 1.0 part 4; transactions of Service Bus, documented):

1. A transaction lives on the connection where it was declared, until it is discharged or its control link ends, which
   rolls it back.
2. It asks for no right of its own, but for a token: who has shown none, or none that still counts, has no control link.
3. A discharge that cannot do everything does nothing; it is refused with `amqp:transaction:rollback`, and the
   transaction is over.
"""

from __future__ import annotations

from typing import Final

from sbclient.amqp import (
    ACCEPTED,
    AmqpError,
    Declare,
    Declared,
    Discharge,
    DispositionReceived,
    IncomingDelivery,
    IncomingLink,
    Rejected,
    Sections,
    WireError,
)
from sbclient.amqp.errors import INVALID_FIELD
from sbclient.broker.faults import Call, Operation
from sbclient.broker.transactions import Transaction
from sbclient.emulator.amqp.conditions import TRANSACTION_ROLLBACK, amqp_error_of
from sbclient.emulator.amqp.peer import OPERATION_TIMEOUT_S, Peer
from sbclient.errors import ServiceBusAuthorizationError, ServiceBusError, ServiceBusQuotaExceededError

CREDIT: Final = 100

MAX_OPEN: Final = 1_000
"""Open transactions of one connection, so that nobody can make the broker hold more and more."""


class Coordinator:
    """The broker's end of a control link.

    Args:
        peer: the connection.
        link: as it was asked for.
    """

    entity_path = None

    def __init__(self, peer: Peer, link: IncomingLink) -> None:
        self._peer = peer
        self._link = link
        self._declared: dict[bytes, Transaction] = {}
        self._count = 0

    def open(self) -> None:
        """Let the link stand, or refuse it."""
        self._check_tokens()
        self._link.accept(credit=CREDIT)

    def _check_tokens(self) -> None:
        if not self._peer.grants:
            raise ServiceBusAuthorizationError(
                "no token of this connection counts: put one before declaring a transaction"
            )

    def on_delivery(self, delivery: IncomingDelivery) -> None:
        """Declare or discharge."""
        self._peer.start(self._answer(delivery), name="amqp transaction", size_bytes=len(delivery.payload))

    async def _answer(self, delivery: IncomingDelivery) -> None:
        try:
            asked = Sections(delivery.payload).composite()
            if isinstance(asked, Declare):
                delivery.settle(Declared(await self._declare()))
            elif isinstance(asked, Discharge):
                await self._discharge(asked)
                delivery.settle(ACCEPTED)
            else:
                raise WireError(
                    INVALID_FIELD, f"a coordinator is sent declare or discharge, not {type(asked).__name__}"
                )
        except ServiceBusError as error:
            delivery.settle(Rejected(self._peer.told(error)))
        except _RolledBack as error:
            delivery.settle(Rejected(AmqpError(TRANSACTION_ROLLBACK, str(error))))
        self._peer.flush()

    async def _declare(self) -> bytes:
        peer = self._peer
        if len(peer.transactions) >= MAX_OPEN:
            raise ServiceBusQuotaExceededError(
                f"this connection has {len(peer.transactions)} open transactions, {MAX_OPEN} are allowed: "
                "discharge some"
            )
        transaction = await peer.perform(
            Operation.TRANSACTION, None, peer.host.namespace.begin_transaction, timeout_s=OPERATION_TIMEOUT_S
        )
        transaction_id = peer.new_transaction_id()
        self._declared[transaction_id] = peer.transactions[transaction_id] = transaction
        return transaction_id

    async def _discharge(self, asked: Discharge) -> None:
        peer, namespace = self._peer, self._peer.host.namespace
        transaction = peer.transaction(asked.txn_id)
        self._declared.pop(asked.txn_id, None)
        del peer.transactions[asked.txn_id]

        def end(call: Call) -> None:
            if asked.fail:
                namespace.rollback(call, transaction)
            else:
                namespace.commit(call, transaction)

        path = None if transaction.scope is None else transaction.scope.path
        try:
            await peer.perform(Operation.TRANSACTION, path, end, timeout_s=OPERATION_TIMEOUT_S)
        except ServiceBusError as error:
            peer.told(error)
            raise _RolledBack(f"{amqp_error_of(error).condition}: {error.message}") from error

    def on_credit(self, *, drain: bool) -> None:
        """Does not happen here."""

    def on_disposition(self, event: DispositionReceived) -> None:
        """Does not matter here."""

    def on_tokens_changed(self) -> None:
        """Roll back and detach when no token counts any more; rights are asked for by what is done in a transaction."""
        try:
            self._check_tokens()
        except ServiceBusError as error:
            self._peer.detach(self._link, error)

    def on_over(self) -> None:
        """Roll back what was declared here."""
        for transaction_id, transaction in self._declared.items():
            self._peer.transactions.pop(transaction_id, None)
            transaction.rollback()
        self._declared.clear()


class _RolledBack(Exception):
    """A discharge did nothing; the text says why."""
