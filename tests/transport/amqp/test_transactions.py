from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from sbclient import ServiceBusMessage
from sbclient.amqp import (
    ACCEPTED,
    AmqpError,
    ConnectionOptions,
    Declare,
    Declared,
    Discharge,
    DispositionReceived,
    Rejected,
    Sections,
    TransactionalState,
    encode_message,
)
from sbclient.delivery import Settlement, SettleMode
from sbclient.entities import (
    CorrelationRuleFilter,
    EntityAddress,
    EntityKind,
    FalseRuleFilter,
    RuleProperties,
    SqlRuleAction,
    SqlRuleFilter,
)
from sbclient.errors import (
    InvalidOperationError,
    MessageLockLostError,
    OperationTimeoutError,
    ServiceBusConnectionError,
    ServiceBusError,
)
from sbclient.transport.amqp.transport import AmqpTransport
from tests.payloads import batch_of
from tests.transport.amqp.service import Service, confirm

X = [ServiceBusMessage("x")]
TXN = (1).to_bytes(4, "big")


async def test_send_and_settlement_carry_the_state_of_the_transaction(
    service: Service, transport: AmqpTransport
) -> None:
    service.stored.append(ServiceBusMessage("m"))
    receiver = transport.open_receiver("orders")
    (message,) = await receiver.receive(max_message_count=1, max_wait_time_s=5)
    transaction = await transport.begin_transaction(timeout_s=10)
    await transport.open_sender("orders").send(batch_of(X), timeout_s=10, transaction=transaction)
    complete = Settlement(SettleMode.COMPLETE)
    await receiver.settle(message, complete, timeout_s=10, transaction=transaction)
    await transaction.commit(timeout_s=10)
    assert service.end.transfers[0].state == TransactionalState(TXN)
    assert service.end.dispositions[0].state == TransactionalState(TXN, ACCEPTED)
    assert service.controls == [Declare(), Discharge(TXN, False)]
    assert service.end.attached.count("coordinator") == 1


async def test_messages_carry_the_partition_key_of_the_transaction(service: Service, transport: AmqpTransport) -> None:
    transaction = await transport.begin_transaction(timeout_s=10, partition_key="k")
    sender = transport.open_sender("orders")
    await sender.send(batch_of(X), timeout_s=10, transaction=transaction)
    await sender.send(batch_of([*X, *X]), timeout_s=10, transaction=transaction)
    await sender.send(batch_of(X), timeout_s=10)
    one, batch, other = (Sections(transfer.payload) for transfer in service.end.transfers)
    inside = [Sections(payload) for payload in batch.data()]
    keys = [each.message_annotations.get("x-opt-via-partition-key") for each in (one, batch, *inside, other)]
    assert keys == ["k", "k", "k", "k", None]
    await transaction.rollback(timeout_s=10)


def confirm_unsettled(event: DispositionReceived) -> None:
    """Confirm a settlement in a transaction; the discharge settles it."""
    is_transactional = isinstance(event.state, TransactionalState)
    event.delivery.settle(event.state, settled=not is_transactional)


@pytest.mark.deviation("broker.transaction-settlement")
@pytest.mark.parametrize("answer", [confirm, confirm_unsettled])
async def test_message_is_settled_again_after_a_rollback(
    service: Service, transport: AmqpTransport, answer: Callable[[DispositionReceived], None]
) -> None:
    service.on_disposition = answer
    service.replies["com.microsoft:update-disposition"] = lambda body: (200, None, {})
    service.stored.append(ServiceBusMessage("m"))
    receiver = transport.open_receiver("orders")
    (message,) = await receiver.receive(max_message_count=1, max_wait_time_s=5)
    transaction = await transport.begin_transaction(timeout_s=10)
    complete = Settlement(SettleMode.COMPLETE)
    await receiver.settle(message, complete, timeout_s=10, transaction=transaction)
    assert not any(event.settled for event in service.end.dispositions)
    await transaction.rollback(timeout_s=10)
    await receiver.settle(message, complete, timeout_s=10)
    settled = [event.state for event in service.end.dispositions if not event.settled][1:]
    assert settled == ([ACCEPTED] if answer is confirm_unsettled else [])
    assert service.asked.count("com.microsoft:update-disposition") == (answer is confirm)


async def test_commit_whose_connection_is_lost_before_the_answer_is_in_doubt(
    service: Service, transport: AmqpTransport
) -> None:
    transaction = await transport.begin_transaction(timeout_s=10)
    await transport.open_sender("orders").send(batch_of(X), timeout_s=10, transaction=transaction)
    service.answers_control = False
    committing = asyncio.create_task(transaction.commit(timeout_s=10))
    await asyncio.sleep(1)
    service.end.cut()
    with pytest.raises(ServiceBusConnectionError) as caught:
        await committing
    assert caught.value.is_in_doubt


async def test_settlement_in_a_transaction_is_not_repeated_after_the_loss_of_its_connection(
    service: Service, transport: AmqpTransport
) -> None:
    service.stored += [ServiceBusMessage("m"), ServiceBusMessage("n")]
    receiver = transport.open_receiver("orders")
    message, other = await receiver.receive(max_message_count=2, max_wait_time_s=5)
    transaction = await transport.begin_transaction(timeout_s=10)
    complete = Settlement(SettleMode.COMPLETE)
    await receiver.settle(message, complete, timeout_s=10, transaction=transaction)
    service.on_disposition = lambda event: service.end.cut()
    with pytest.raises(ServiceBusConnectionError) as caught:
        await receiver.settle(other, complete, timeout_s=10, transaction=transaction)
    assert caught.value.is_in_doubt
    assert len(service.ends) == 1
    with pytest.raises(InvalidOperationError):  # the other connection has no such transaction
        await receiver.settle(other, complete, timeout_s=10, transaction=transaction)
    assert "com.microsoft:update-disposition" not in service.asked


async def test_deferred_message_is_settled_in_a_transaction_by_its_token(
    service: Service, transport: AmqpTransport
) -> None:
    payload = encode_message(X[0]).payload
    entry = {"message": payload, "lock-token": UUID(int=7)}
    service.replies["com.microsoft:receive-by-sequence-number"] = lambda body: (200, None, {"messages": [entry]})
    service.replies["com.microsoft:update-disposition"] = lambda body: (200, None, {})
    receiver = transport.open_receiver("orders")
    (message,) = await receiver.receive_deferred([1], timeout_s=10)
    transaction = await transport.begin_transaction(timeout_s=10)
    node: list[Any] = []
    take = service.end._receive

    def noted(delivery: Any) -> None:
        node.append(delivery.state)
        take(delivery)

    service.end._receive = noted  # type: ignore[method-assign]
    await receiver.settle(message, Settlement(SettleMode.DEFER), timeout_s=10, transaction=transaction)
    assert node[-1] == TransactionalState(TXN)
    assert service.end.requests[-1][2]["disposition-status"] == "defered"
    await transaction.rollback(timeout_s=10)


RULES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"sql-filter": {"expression": "1=1"}}),
    ({"filter": FalseRuleFilter()}, {"sql-filter": {"expression": "1=0"}}),
    (
        {"filter": SqlRuleFilter("n > 1"), "action": SqlRuleAction("SET n = 2")},
        {"sql-filter": {"expression": "n > 1"}, "sql-rule-action": {"expression": "SET n = 2"}},
    ),
    (
        {"filter": CorrelationRuleFilter(reply_to_session_id="", content_type="c", properties={"p": 1})},
        {"correlation-filter": {"reply-to-session-id": "", "content-type": "c", "properties": {"p": 1}}},
    ),
    ({"filter": CorrelationRuleFilter(label="l")}, {"correlation-filter": {"label": "l", "properties": {}}}),
]


async def test_rules_are_created_and_deleted_in_a_transaction(service: Service, transport: AmqpTransport) -> None:
    for operation in ("add-rule", "remove-rule"):
        service.replies[f"com.microsoft:{operation}"] = lambda body: (200, None, {})
    where = EntityAddress(EntityKind.RULE, ("t", "s", "r"))
    transaction: Any = await transport.begin_transaction(timeout_s=10)
    for described, expected in RULES:
        await transaction.create_rule(where, RuleProperties("r", **described), timeout_s=10)
        operation, _, body = service.end.requests[-1]
        assert (operation, body["rule-name"]) == ("com.microsoft:add-rule", "r")
        assert body["rule-description"] == expected
    await transaction.delete_rule(where, timeout_s=10)
    assert service.end.requests[-1][::2] == ("com.microsoft:remove-rule", {"rule-name": "r"})
    assert {address for address in service.end.attached if "management" in address} == {"t/Subscriptions/s/$management"}
    assert service.controls == [Declare()]
    for filter_, action in ((SqlRuleFilter("n > @n", {"@n": 1}), None), (None, SqlRuleAction("SET n = @n", {"@n": 1}))):
        refused = RuleProperties("r", filter=filter_ or SqlRuleFilter("1=1"), action=action)
        with pytest.raises(InvalidOperationError):
            await transaction.create_rule(where, refused, timeout_s=10)
    await transaction.commit(timeout_s=10)
    with pytest.raises(InvalidOperationError):
        await transaction.delete_rule(where, timeout_s=10)


@pytest.mark.parametrize("is_connected", [True, False])
async def test_rule_that_is_not_answered_ends_at_the_deadline(
    service: Service, transport: AmqpTransport, is_connected: bool
) -> None:
    service.replies["com.microsoft:remove-rule"] = lambda body: None
    transaction: Any = await transport.begin_transaction(timeout_s=10)
    if is_connected:
        await transport.open_sender("t").open(timeout_s=10)
    else:
        service.replies["put-token"] = lambda body: None
    began_at = asyncio.get_running_loop().time()
    with pytest.raises(OperationTimeoutError):
        await transaction.delete_rule(EntityAddress(EntityKind.RULE, ("t", "s", "r")), timeout_s=3)
    assert asyncio.get_running_loop().time() - began_at == pytest.approx(3, abs=0.01)


async def test_id_that_the_service_has_forgotten_is_an_invalid_operation(
    service: Service, transport: AmqpTransport
) -> None:
    unknown = Rejected(AmqpError("amqp:transaction:unknown-id", "no such transaction"))
    service.on_transfer = lambda delivery: delivery.settle(unknown)
    service.discharge_outcome = unknown
    transaction = await transport.begin_transaction(timeout_s=10)
    with pytest.raises(InvalidOperationError):
        await transport.open_sender("orders").send(batch_of(X), timeout_s=10, transaction=transaction)
    assert len(service.end.transfers) == 1
    with pytest.raises(InvalidOperationError) as caught:
        await transaction.commit(timeout_s=10)
    assert not caught.value.is_in_doubt


async def test_scheduling_carries_the_state(service: Service, transport: AmqpTransport) -> None:
    from sbclient.amqp.types import longs

    service.replies["com.microsoft:schedule-message"] = lambda body: (200, None, {"sequence-numbers": longs([1])})
    transaction = await transport.begin_transaction(timeout_s=10)
    sender = transport.open_sender("orders")
    assert await sender.schedule(batch_of(X), timeout_s=10, transaction=transaction) == [1]
    await transaction.rollback(timeout_s=10)
    assert service.controls == [Declare(), Discharge(TXN, True)]


async def test_transaction_without_operations_asks_nothing(service: Service, transport: AmqpTransport) -> None:
    transaction = await transport.begin_transaction(timeout_s=10)
    await transaction.commit(timeout_s=10)
    await (await transport.begin_transaction(timeout_s=10)).rollback(timeout_s=10)
    assert service.ends == []


@pytest.mark.parametrize("how", ["commit", "rollback"])
async def test_what_is_sent_while_its_transaction_ends_is_part_of_it_or_refused(
    service: Service, transport: AmqpTransport, how: str
) -> None:
    sender = transport.open_sender("orders")
    await sender.open(timeout_s=10)
    outcomes = set()
    for steps in range(40):
        transaction = await transport.begin_transaction(timeout_s=10)
        service.controls.clear()
        service.end.transfers.clear()
        sending = asyncio.ensure_future(sender.send(batch_of(X), timeout_s=10, transaction=transaction))
        for _ in range(steps):
            await asyncio.sleep(0)
        await (transaction.commit(timeout_s=10) if how == "commit" else transaction.rollback(timeout_s=10))
        (error,) = await asyncio.gather(sending, return_exceptions=True)
        outcomes.add(type(error))
        if error is None:
            assert [type(control) for control in service.controls] == [Declare, Discharge], steps
        else:
            assert isinstance(error, InvalidOperationError)
            assert not service.end.transfers
    assert outcomes == {type(None), InvalidOperationError}


async def test_refused_commit_is_not_in_doubt(service: Service, transport: AmqpTransport) -> None:
    service.discharge_outcome = Rejected(AmqpError("com.microsoft:message-lock-lost", "the lock has ended"))
    transaction = await transport.begin_transaction(timeout_s=10)
    await transport.open_sender("orders").send(batch_of(X), timeout_s=10, transaction=transaction)
    with pytest.raises(MessageLockLostError) as caught:
        await transaction.commit(timeout_s=10)
    assert not caught.value.is_in_doubt
    with pytest.raises(InvalidOperationError):
        await transaction.commit(timeout_s=10)


async def test_rolled_back_by_the_service_is_an_error_of_its_own(service: Service, transport: AmqpTransport) -> None:
    service.discharge_outcome = Rejected(AmqpError("amqp:transaction:rollback", "too late"))
    transaction = await transport.begin_transaction(timeout_s=10)
    await transport.open_sender("orders").send(batch_of(X), timeout_s=10, transaction=transaction)
    with pytest.raises(ServiceBusError) as caught:
        await transaction.commit(timeout_s=10)
    assert (type(caught.value), caught.value.is_in_doubt) == (ServiceBusError, False)


async def test_commit_without_answer_is_in_doubt(service: Service, transport: AmqpTransport) -> None:
    transaction = await transport.begin_transaction(timeout_s=10)
    await transport.open_sender("orders").send(batch_of(X), timeout_s=10, transaction=transaction)
    service.answers_control = False
    with pytest.raises(OperationTimeoutError) as caught:
        await transaction.commit(timeout_s=10)
    assert caught.value.is_in_doubt


async def test_commit_after_the_connection_was_lost_did_not_happen(service: Service, transport: AmqpTransport) -> None:
    transaction = await transport.begin_transaction(timeout_s=10)
    await transport.open_sender("orders").send(batch_of(X), timeout_s=10, transaction=transaction)
    service.end.cut()
    with pytest.raises(ServiceBusConnectionError) as caught:
        await transaction.commit(timeout_s=10)
    assert not caught.value.is_in_doubt
    assert len(service.ends) == 1
    assert "rolled it back" in str(caught.value)


async def test_rollback_waits_for_its_answer_no_longer_than_it_may(service: Service, transport: AmqpTransport) -> None:
    transaction = await transport.begin_transaction(timeout_s=10)
    await transport.open_sender("orders").send(batch_of(X), timeout_s=10, transaction=transaction)
    service.answers_control = False
    began_at = asyncio.get_running_loop().time()
    await transaction.rollback(timeout_s=5)
    assert asyncio.get_running_loop().time() - began_at == 5
    assert service.controls[-1] == Discharge(TXN, True)


async def test_rollback_succeeds_although_the_connection_is_lost(service: Service, transport: AmqpTransport) -> None:
    transaction = await transport.begin_transaction(timeout_s=10)
    await transport.open_sender("orders").send(batch_of(X), timeout_s=10, transaction=transaction)
    service.end.cut()
    await transaction.rollback(timeout_s=10)


async def test_transaction_does_not_move_to_another_connection(service: Service, transport: AmqpTransport) -> None:
    transaction = await transport.begin_transaction(timeout_s=10)
    sender = transport.open_sender("orders")
    await sender.send(batch_of(X), timeout_s=10, transaction=transaction)
    service.end.cut()
    with pytest.raises(InvalidOperationError):
        await sender.send(batch_of(X), timeout_s=10, transaction=transaction)
    assert [len(end.transfers) for end in service.ends] == [1, 0]


async def test_transaction_does_not_span_two_connections(service: Service, transport: AmqpTransport) -> None:
    service.options = ConnectionOptions(container_id="service", channel_max=4)
    senders = [transport.open_sender("orders") for _ in range(2)]
    for sender in senders:
        await sender.send(batch_of(X), timeout_s=10)
    assert len(service.ends) == 2
    transaction = await transport.begin_transaction(timeout_s=10)
    await senders[0].send(batch_of(X), timeout_s=10, transaction=transaction)
    with pytest.raises(InvalidOperationError):
        await senders[1].send(batch_of(X), timeout_s=10, transaction=transaction)
    assert [len(end.transfers) for end in service.ends] == [2, 1]


async def test_a_link_that_moves_while_the_transaction_begins_carries_nothing_of_it(
    service: Service, transport: AmqpTransport
) -> None:
    service.options = ConnectionOptions(container_id="service", channel_max=4)
    sender = transport.open_sender("orders")
    await sender.send(batch_of(X), timeout_s=10)
    first = service.end
    service.answers_control = False
    transaction = await transport.begin_transaction(timeout_s=10)
    sending = sender.send(batch_of(X), timeout_s=10, transaction=transaction)
    await asyncio.sleep(1)
    first.link("orders").detach(AmqpError("amqp:link:detach-forced"))
    first.flush()
    await asyncio.sleep(1)
    await sender.send(batch_of(X), timeout_s=10)  # the coordinator has taken the place on the first connection
    assert len(service.ends) == 2
    (declare,) = first.link("coordinator").unsettled.values()
    declare.settle(Declared(TXN))
    first.flush()
    with pytest.raises(InvalidOperationError, match="begin another one"):
        await sending
    assert [transfer.state for end in service.ends for transfer in end.transfers] == [None] * 2


async def test_transaction_of_another_transport_is_refused(service: Service, transport: AmqpTransport) -> None:
    foreign: Any = object()
    with pytest.raises(InvalidOperationError):
        await transport.open_sender("orders").send(batch_of(X), timeout_s=10, transaction=foreign)


@pytest.mark.deviation("client.connections")
async def test_links_of_cross_entity_transactions_share_a_session_behind_the_coordinator(service: Service) -> None:
    transport = service.transport(is_cross_entity=True)
    sender, other = transport.open_sender("out"), transport.open_sender("copies")
    receiver = transport.open_receiver("in")
    await receiver.open(timeout_s=10)
    await sender.open(timeout_s=10)
    await other.open(timeout_s=10)
    links = [service.end.link(address) for address in ("coordinator", "in", "out", "copies")]
    assert len({link.session.channel for link in links}) == 1
    entities = [address for address in service.end.attached if not address.startswith("$")]
    assert entities[0] == "coordinator"
    await sender.close()
    assert other.is_open
    await transport.close()


async def test_link_that_the_service_detaches_leaves_the_others_of_its_session(service: Service) -> None:
    transport = service.transport(is_cross_entity=True)
    senders = [transport.open_sender(path) for path in ("in", "out")]
    for turn in range(2):
        for sender in senders:
            await sender.send(batch_of(X), timeout_s=10)
        assert [service.end.attached.count(path) for path in ("in", "out")] == [1 + turn, 1]
        service.end.link("in").detach(AmqpError("amqp:link:detach-forced", "idle"))
        service.end.flush()
        await asyncio.sleep(1)
        assert [sender.is_open for sender in senders] == [False, True]
    await transport.close()


def cut_connection(service: Service) -> None:
    service.end.cut()


def end_session(service: Service) -> None:
    service.end.link("out").session.end(AmqpError("amqp:internal-error", "ended"))
    service.end.flush()


@pytest.mark.parametrize("lose", [cut_connection, end_session])
async def test_receiver_of_cross_entity_transactions_is_the_first_link_again_after_a_loss(
    service: Service, lose: Callable[[Service], None]
) -> None:
    transport = service.transport(is_cross_entity=True)
    receiver, sender = transport.open_receiver("in/Subscriptions/s"), transport.open_sender("out")
    await receiver.open(timeout_s=10)
    await sender.open(timeout_s=10)
    for _ in range(2):
        lose(service)
        await asyncio.sleep(1)
        await sender.send(batch_of(X), timeout_s=10)
        entities = [address for address in service.end.attached if not address.startswith("$")]
        assert entities[-3:] == ["coordinator", "in/Subscriptions/s", "out"]
    await transport.close()


async def test_receivers_of_two_entities_are_refused_with_cross_entity_transactions(service: Service) -> None:
    transport = service.transport(is_cross_entity=True)
    first = transport.open_receiver("in")
    await first.open(timeout_s=10)
    await transport.open_receiver("in/$DeadLetterQueue").open(timeout_s=10)
    other = transport.open_receiver("other")
    with pytest.raises(InvalidOperationError):
        await other.open(timeout_s=10)
    await first.close()
    with pytest.raises(InvalidOperationError):
        await other.open(timeout_s=10)
    service.end.cut()
    await other.open(timeout_s=10)
    await transport.close()


async def test_sender_can_be_the_first_link_of_cross_entity_transactions(service: Service) -> None:
    transport = service.transport(is_cross_entity=True)
    sender = transport.open_sender("in")
    await sender.open(timeout_s=10)
    transaction = await transport.begin_transaction(timeout_s=10)
    assert transaction.via_to("IN") is None
    assert transaction.via_to("out") == "in"
    with pytest.raises(InvalidOperationError):
        await transport.open_receiver("out").open(timeout_s=10)
    await transport.open_receiver("in/$DeadLetterQueue").open(timeout_s=10)
    await transport.close()
