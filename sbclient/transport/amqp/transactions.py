"""Transactions: declared and discharged at the coordinator of the connection that is used in them.

Laws:
1. A transaction begins with its first operation, on the connection of that operation's link. It stays there: an
   operation over another connection is refused before anything is sent.
2. Nothing in it is retried. A lost connection rolls it back; a commit without an answer is in doubt.
3. A rollback that the service did not answer succeeds: the service rolls back by itself.

Source: AMQP 1.0 part 4; Service Bus protocol guide.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sbclient import clock
from sbclient.amqp import Coordinator, Declare, Discharge, Session, TransactionalState, encode_value_message, servicebus
from sbclient.amqp.performatives import SETTLE_UNSETTLED
from sbclient.amqp.states import Declared, DeliveryState
from sbclient.entities import (
    CORRELATION_FIELDS,
    CorrelationRuleFilter,
    EntityAddress,
    FalseRuleFilter,
    RuleProperties,
    TrueRuleFilter,
)
from sbclient.errors import (
    InvalidOperationError,
    OperationTimeoutError,
    ServiceBusCommunicationError,
    ServiceBusConnectionError,
    ServiceBusError,
)
from sbclient.rules.entity_path import subscription_path
from sbclient.tasks import Deadlines, OwnedTasks
from sbclient.transport.amqp.connection import AmqpConnection
from sbclient.transport.amqp.transfers import OutgoingEnd, Transfer, Transfers
from sbclient.transport.base import TransactionLink

if TYPE_CHECKING:
    from sbclient.transport.amqp.transport import AmqpTransport


class Control:
    """The coordinator link of one connection, on an AMQP session of its own.

    Args:
        connection: an open one.
        begin: gives the AMQP session of the link.
        owns_session: whether that is the link's own.
        tasks: owns the attaching.
        deadlines: expires declares and discharges.
    """

    def __init__(
        self,
        connection: AmqpConnection,
        begin: Callable[[], Session],
        *,
        owns_session: bool,
        tasks: OwnedTasks,
        deadlines: Deadlines,
    ) -> None:
        self._connection = connection
        self._begin = begin
        self._owns_session = owns_session
        self._transfers = Transfers(self._attach, "the transaction coordinator", tasks=tasks, deadlines=deadlines)

    async def open(self, deadline: float) -> None:
        """Attach to the coordinator."""
        await self._transfers.open(deadline)

    async def declare(self, deadline: float) -> bytes:
        """Begin a transaction; returns its id.

        Raises:
            ServiceBusError: the coordinator refuses.
        """
        doing = "begin a transaction"
        transfer = _Declaration(encode_value_message(Declare()), deadline=deadline, doing=doing)
        txn_id = await self._transfers.send(transfer)
        if not isinstance(txn_id, bytes):
            raise ServiceBusCommunicationError(f"{doing}: the coordinator gave no id")
        return txn_id

    async def discharge(self, txn_id: bytes, *, fail: bool, deadline: float) -> None:
        """End a transaction.

        Raises:
            ServiceBusError: it did not happen, or is in doubt.
        """
        doing = "roll back a transaction" if fail else "commit a transaction"
        payload = encode_value_message(Discharge(txn_id, fail))
        await self._transfers.send(Transfer(payload, deadline=deadline, doing=doing, wire=self._connection))

    def close(self, error: ServiceBusError) -> None:
        """Detach; the service rolls back what is not discharged."""
        self._transfers.close(error)

    async def _attach(self) -> OutgoingEnd:
        session = self._begin()
        doing = "attach to the transaction coordinator"
        end = OutgoingEnd(self._connection, doing, self._transfers, owns_session=self._owns_session)
        end.start(
            session.attach_sender(
                self._connection.new_link_name(), target=Coordinator(), snd_settle_mode=SETTLE_UNSETTLED
            )
        )
        await end.attached()
        return end


class _Declaration(Transfer):
    """A declare, of which the result is the id of the transaction."""

    __slots__ = ()

    def answer(self, state: DeliveryState | None) -> None:
        if isinstance(state, Declared):
            self.finish(state.txn_id)
        else:
            super().answer(state)


class AmqpTransaction(TransactionLink):
    """A transaction of one namespace.

    Attributes:
        partition_key: selects the partition in which messages to other entities wait for the commit.
    """

    def __init__(self, owner: AmqpTransport, partition_key: str | None = None) -> None:
        self._owner = owner
        self.partition_key = partition_key
        self._declaring = asyncio.Lock()
        self._wire: AmqpConnection | None = None
        self._state: TransactionalState | None = None
        self._is_over = False

    def via_to(self, path: str) -> str | None:
        return self._owner.via_to(path)

    async def state_on(self, wire: AmqpConnection, deadline: float) -> TransactionalState:
        """The state for a transfer or disposition on a connection; declares the transaction with the first.

        Raises:
            InvalidOperationError: it has ended, or began on another connection.
        """
        async with self._declaring:
            self._check()
            if self._state is None:
                control = self._owner.control_of(wire)
                self._state = TransactionalState(await control.declare(deadline))
                self._wire = wire
        self._check()
        if wire is not self._wire:
            raise InvalidOperationError(
                "the transaction began on another connection, which may be lost: begin another one"
            )
        return self._state

    async def commit(self, *, timeout_s: float) -> None:
        self._check()
        self._is_over = True
        if self._state is None or self._wire is None:
            return
        if self._wire.is_over:
            raise ServiceBusConnectionError(
                "commit a transaction: its connection is lost, so the service has rolled it back", is_in_doubt=False
            )
        deadline = clock.monotonic() + timeout_s
        await self._owner.control_of(self._wire).discharge(self._state.txn_id, fail=False, deadline=deadline)

    async def rollback(self, *, timeout_s: float) -> None:
        self._is_over = True
        if self._state is None or self._wire is None or self._wire.is_over:
            return
        deadline = clock.monotonic() + timeout_s
        try:
            await self._owner.control_of(self._wire).discharge(self._state.txn_id, fail=True, deadline=deadline)
        except (ServiceBusConnectionError, OperationTimeoutError):
            return

    async def create_rule(self, address: EntityAddress, rule: RuleProperties, *, timeout_s: float) -> None:
        body = {servicebus.RULE_NAME: rule.name, servicebus.RULE_DESCRIPTION: _rule_map(rule)}
        await self._ask_rules(servicebus.ADD_RULE, body, address, f"create {address}", timeout_s)

    async def delete_rule(self, address: EntityAddress, *, timeout_s: float) -> None:
        body = {servicebus.RULE_NAME: address.names[-1]}
        await self._ask_rules(servicebus.REMOVE_RULE, body, address, f"delete {address}", timeout_s)

    async def _ask_rules(
        self, operation: str, body: dict[str, Any], address: EntityAddress, doing: str, timeout_s: float
    ) -> None:
        """Ask the node of the subscription, over the connection of the transaction."""
        deadline = clock.monotonic() + timeout_s
        path = subscription_path(*address.names[:2])
        try:
            async with clock.timeout(timeout_s):
                wire = self._wire or await self._owner.connection_for(path)
        except TimeoutError:
            raise OperationTimeoutError(f"{doing}: no connection within {timeout_s:g} s") from None
        state = await self.state_on(wire, deadline)
        node = await self._owner.requests_of(path, deadline=deadline, connection=wire)
        remaining_s = max(deadline - clock.monotonic(), 0.001)
        await node.ask(operation, body, doing=doing, timeout_s=remaining_s, state=state, wire=wire)

    def _check(self) -> None:
        if self._is_over:
            raise InvalidOperationError("the transaction was committed or rolled back: begin another one")


def transaction_of(transaction: TransactionLink) -> AmqpTransaction:
    """The transaction as one of this transport.

    Raises:
        InvalidOperationError: it was begun by another transport.
    """
    if not isinstance(transaction, AmqpTransaction):
        raise InvalidOperationError("the transaction was begun in another namespace: begin one in this")
    return transaction


def _rule_map(rule: RuleProperties) -> dict[str, Any]:
    """A rule as the body of a request has it.

    Source: Service Bus request-response operations; the client for .NET for filters that match all or no messages.

    Raises:
        InvalidOperationError: an expression has parameters, for which the request has no place.
    """
    found: dict[str, Any] = {}
    if isinstance(rule.filter, CorrelationRuleFilter):
        fields = {name.replace("_", "-"): getattr(rule.filter, name) for name in CORRELATION_FIELDS}
        set_fields = {name: value for name, value in fields.items() if value is not None}
        found[servicebus.CORRELATION_FILTER] = {**set_fields, servicebus.PROPERTIES: dict(rule.filter.properties or {})}
    else:
        constant = {TrueRuleFilter: "1=1", FalseRuleFilter: "1=0"}.get(type(rule.filter))
        found[servicebus.SQL_FILTER] = {servicebus.EXPRESSION: constant or _expression(rule.name, rule.filter)}
    if rule.action is not None:
        found[servicebus.SQL_RULE_ACTION] = {servicebus.EXPRESSION: _expression(rule.name, rule.action)}
    return found


def _expression(name: str, sql: Any) -> str:
    if sql.parameters:
        raise InvalidOperationError(
            f"rule {name!r} has parameters, which a request in a transaction cannot carry: write the values into the "
            "expression"
        )
    expression: str = sql.sql_expression
    return expression
