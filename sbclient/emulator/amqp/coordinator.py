"""The transaction coordinator: the link on which a client declares, commits and rolls back transactions.

Laws (source: AMQP 1.0 part 4; transactions of Service Bus, documented):

1. A transaction belongs to the connection that declared it. It ends when it is discharged, or when its control link
   ends, which rolls it back.
2. A control link can be attached before the first token, as Microsoft's clients do, and ends with the last one. Each
   operation of a transaction needs its right.
3. A coordinator that is the first link of its AMQP session declares transactions that span entities: by the entity of
   the session's next link. The receivers of that session are limited to that entity (source: Microsoft's clients).
4. A delivery that was settled in a transaction is settled by the commit. After a rollback it is unsettled and locked,
   so that the client can settle it again (AMQP 1.0 part 4 section 4.4.2). A client that sent its outcome settled, as
   those of JMS do, cannot; then the message is available again, with one failed delivery more.
5. A discharge that cannot do everything does nothing. It is rejected with `amqp:transaction:rollback`, and the
   transaction has ended.
"""

from __future__ import annotations

from typing import Final

from sbclient.amqp import (
    ACCEPTED,
    AmqpError,
    Declare,
    Declared,
    Discharge,
    IncomingDelivery,
    IncomingLink,
    Rejected,
    Sections,
    WireError,
)
from sbclient.amqp.errors import INVALID_FIELD
from sbclient.broker.faults import Call, Operation
from sbclient.broker.transactions import Via
from sbclient.emulator.amqp.conditions import TRANSACTION_ROLLBACK, amqp_error_of
from sbclient.emulator.amqp.peer import OPERATION_TIMEOUT_S, DeclaredTransaction, LinkHandler, Peer
from sbclient.errors import ServiceBusAuthorizationError, ServiceBusError, ServiceBusQuotaExceededError

CREDIT: Final = 100

MAX_OPEN: Final = 1_000
"""Open transactions of one connection."""


class CoordinatorLink(LinkHandler):
    """The broker's end of a control link.

    Args:
        peer: the connection.
        link: as requested.
    """

    def __init__(self, peer: Peer, link: IncomingLink) -> None:
        self._peer = peer
        self._link = link
        self._declared: dict[bytes, DeclaredTransaction] = {}
        self._via: Via | None = None

    def open(self) -> None:
        """Accept the link, or refuse it after the end of the last token."""
        if self._peer.grants.has_begun:
            self.check_rights()
        self._via = self._peer.via_of_coordinator(self._link)
        self._link.accept(credit=CREDIT)

    def check_rights(self) -> None:
        """Check that a token is left; called when one has ended."""
        if not self._peer.grants:
            raise ServiceBusAuthorizationError("the last token of this connection has ended: put another one in time")

    def on_delivery(self, delivery: IncomingDelivery) -> None:
        """Declare or discharge a transaction."""
        self._peer.start(self._answer(delivery), name="amqp transaction", size_bytes=len(delivery.payload))

    async def _answer(self, delivery: IncomingDelivery) -> None:
        try:
            request = Sections(delivery.payload).composite()
            if isinstance(request, Declare):
                delivery.settle(Declared(await self._declare()))
            elif isinstance(request, Discharge):
                await self._discharge(request)
                delivery.settle(ACCEPTED)
            else:
                raise WireError(
                    INVALID_FIELD, f"a coordinator takes declare and discharge, not {type(request).__name__}"
                )
        except ServiceBusError as error:
            delivery.settle(Rejected(self._peer.report(error)))
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
            Operation.TRANSACTION,
            None,
            lambda call: peer.host.namespace.begin_transaction(call, self._via),
            timeout_s=OPERATION_TIMEOUT_S,
        )
        transaction_id = peer.new_transaction_id()
        self._declared[transaction_id] = peer.transactions[transaction_id] = DeclaredTransaction(transaction)
        return transaction_id

    async def _discharge(self, request: Discharge) -> None:
        peer, namespace = self._peer, self._peer.host.namespace
        declared = peer.declared(request.txn_id)
        transaction = declared.transaction
        self._declared.pop(request.txn_id, None)
        del peer.transactions[request.txn_id]

        def end(call: Call) -> None:
            if request.fail:
                namespace.rollback(call, transaction)
            else:
                namespace.commit(call, transaction)

        try:
            await peer.perform(Operation.TRANSACTION, transaction.path, end, timeout_s=OPERATION_TIMEOUT_S)
        except ServiceBusError as error:
            peer.report(error)
            declared.rolled_back()
            raise _RolledBack(f"{amqp_error_of(error).condition}: {error.message}") from error
        if request.fail:
            declared.rolled_back()
        else:
            declared.settle()

    def on_over(self) -> None:
        """Roll back the transactions that were declared on this link."""
        for transaction_id, declared in self._declared.items():
            self._peer.transactions.pop(transaction_id, None)
            declared.transaction.rollback()
            declared.rolled_back()
        self._declared.clear()


class _RolledBack(Exception):
    """A discharge did nothing; the text is the reason."""
