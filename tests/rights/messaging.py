"""The operations over AMQP: each operation, the entity that it needs a claim on, and the claim.

An operation returns `"ok"` when it succeeded and its effect was reported, or the condition of its rejection.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from sbclient.amqp import (
    ACCEPTED,
    Declared,
    DeliveryReceived,
    IncomingDelivery,
    IncomingLink,
    Link,
    LinkDetached,
    OutgoingLink,
    Rejected,
    TransactionalState,
)
from sbclient.amqp.states import DeliveryState
from sbclient.amqp.types import Int, longs, uuids
from sbclient.message import ServiceBusMessage
from sbclient.rules.entity_path import dead_letter_path
from tests.emulator.amqp.client import SETTLED, Client
from tests.payloads import payload_of
from tests.rights.oracle import Claim
from tests.rights.world import (
    BACKLOG,
    BELOW,
    DESTINATION,
    LATER,
    QUEUE,
    RULE,
    SESSION,
    SESSIONS,
    SUBSCRIPTION,
    TOPIC,
    World,
)

SESSION_FILTER: Final = "com.microsoft:session-filter"

OK: Final = "ok"
SESSION_LOST: Final = "com.microsoft:session-lock-lost"
TRANSFER_DESTINATION: Final = "com.microsoft:transfer-destination-address"
MANAGEMENT: Final = "/$management"

Do: TypeAlias = Callable[[Client, World], Awaitable[None]]


@dataclass(frozen=True)
class AmqpOperation:
    """One operation.

    Attributes:
        path: of the entity from which scopes are derived.
        claim: what it needs on `needed_on`.
        needed_on: the entity, its management node, or more than one entity.
    """

    name: str
    path: str
    claim: Claim
    needed_on: tuple[str, ...]
    do: Do

    async def outcome(self, client: Client, world: World) -> str:
        try:
            await self.do(client, world)
        except Refused as refused:
            return str(refused)
        return OK


class Refused(Exception):
    """The broker rejected the operation; the text is the condition."""


# ---------------------------------------------------------------------- links


async def stand(client: Client, link: Link) -> None:
    """Check that a link is attached; a rejected one is attached without a terminus and then detached."""
    answer = client.answer(link)
    if (answer.target if link.is_sender else answer.source) is None:
        detached = await client.event(LinkDetached, link)
        assert detached.error is not None
        raise Refused(detached.error.condition)


async def sender(client: Client, path: str, **options: Any) -> OutgoingLink:
    link = await client.sender(path, **options)
    await stand(client, link)
    return link


async def receiver(client: Client, path: str, **options: Any) -> IncomingLink:
    link = await client.receiver(path, **options)
    await stand(client, link)
    return link


async def received(client: Client, path: str, **options: Any) -> IncomingDelivery:
    link = await receiver(client, path, **options)
    link.grant(1)
    client.flush()
    return (await client.event(DeliveryReceived, link)).delivery


def check(state: DeliveryState | None, wanted: DeliveryState = ACCEPTED) -> None:
    if isinstance(state, Rejected) and state.error is not None:
        raise Refused(state.error.condition)
    assert state == wanted, state


async def ask(client: Client, path: str, operation: str, body: Mapping[str, Any], **options: Any) -> Any:
    """Return the response of a management node."""
    for link in await client.node(path + MANAGEMENT):
        await stand(client, link)
    status, answer = await client.ask(path, operation, dict(body), **options)
    if status not in (200, 204):
        raise Refused(answer)
    return answer


async def transaction(client: Client) -> tuple[OutgoingLink, bytes]:
    coordinator = await client.coordinator()
    await stand(client, coordinator)
    declared = await client.declare(coordinator)
    if isinstance(declared, Rejected) and declared.error is not None:
        raise Refused(declared.error.condition)
    assert isinstance(declared, Declared)
    return coordinator, declared.txn_id


# ---------------------------------------------------------------------- operations

MESSAGE: Final = ServiceBusMessage("sent")
SCHEDULED: Final = ServiceBusMessage("sent", scheduled_enqueue_time_utc=LATER)


async def attach_sender(client: Client, world: World) -> None:
    await sender(client, QUEUE)


async def send(client: Client, world: World) -> None:
    check(await client.send(await sender(client, QUEUE), MESSAGE))


async def send_batch(client: Client, world: World) -> None:
    check(await client.send(await sender(client, QUEUE), MESSAGE, MESSAGE))


async def send_to_topic(client: Client, world: World) -> None:
    check(await client.send(await sender(client, TOPIC), MESSAGE))


async def send_to_session(client: Client, world: World) -> None:
    check(await client.send(await sender(client, SESSIONS), ServiceBusMessage("sent", session_id=SESSION)))


async def send_to_backlog_queue(client: Client, world: World) -> None:
    check(await client.send(await sender(client, BACKLOG), MESSAGE))


async def send_to_queue_below(client: Client, world: World) -> None:
    check(await client.send(await sender(client, BELOW), MESSAGE))


async def send_by_way_of_another(client: Client, world: World) -> None:
    link = await sender(client, QUEUE, properties={TRANSFER_DESTINATION: DESTINATION})
    check(await client.send(link, MESSAGE))


async def schedule(client: Client, world: World) -> None:
    messages = [{"message-id": "1", "message": payload_of(SCHEDULED)}]
    assert (await ask(client, QUEUE, "schedule-message", {"messages": messages}))["sequence-numbers"]


async def cancel(client: Client, world: World) -> None:
    await ask(client, QUEUE, "cancel-scheduled-message", {"sequence-numbers": longs([world.scheduled])})


async def attach_receiver(client: Client, world: World) -> None:
    await receiver(client, QUEUE)


async def receive_and_complete(client: Client, world: World) -> None:
    check(await client.settle(await received(client, QUEUE), ACCEPTED))


async def receive_and_delete(client: Client, world: World) -> None:
    assert (await received(client, QUEUE, settle_mode=SETTLED)).is_settled


async def receive_dead_letter(client: Client, world: World) -> None:
    check(await client.settle(await received(client, dead_letter_path(QUEUE)), ACCEPTED))


async def receive_from_subscription(client: Client, world: World) -> None:
    check(await client.settle(await received(client, SUBSCRIPTION), ACCEPTED))


async def receive_dead_letter_of_subscription(client: Client, world: World) -> None:
    check(await client.settle(await received(client, dead_letter_path(SUBSCRIPTION)), ACCEPTED))


async def receive_from_backlog_queue(client: Client, world: World) -> None:
    check(await client.settle(await received(client, BACKLOG), ACCEPTED))


async def receive_from_queue_below(client: Client, world: World) -> None:
    check(await client.settle(await received(client, BELOW), ACCEPTED))


async def peek_queue_below(client: Client, world: World) -> None:
    assert (await ask(client, BELOW, "peek-message", {"message-count": Int(10)}))["messages"]


async def peek(client: Client, world: World) -> None:
    assert (await ask(client, QUEUE, "peek-message", {"message-count": Int(10)}))["messages"]


async def peek_dead_letters(client: Client, world: World) -> None:
    assert (await ask(client, dead_letter_path(QUEUE), "peek-message", {"message-count": Int(10)}))["messages"]


async def peek_subscription(client: Client, world: World) -> None:
    assert (await ask(client, SUBSCRIPTION, "peek-message", {"message-count": Int(10)}))["messages"]


async def receive_deferred(client: Client, world: World) -> None:
    request = {"sequence-numbers": longs([world.deferred]), "receiver-settle-mode": Int(1)}
    assert (await ask(client, QUEUE, "receive-by-sequence-number", request))["messages"]


async def delete_deferred(client: Client, world: World) -> None:
    request = {"sequence-numbers": longs([world.deferred]), "receiver-settle-mode": Int(0)}
    assert (await ask(client, QUEUE, "receive-by-sequence-number", request))["messages"]


async def renew_lock(client: Client, world: World) -> None:
    assert (await ask(client, QUEUE, "renew-lock", {"lock-tokens": uuids([world.locked])}))["expirations"]


async def settle_by_token(client: Client, world: World) -> None:
    request = {"disposition-status": "completed", "lock-tokens": uuids([world.locked])}
    await ask(client, QUEUE, "update-disposition", request)


async def delete_batch(client: Client, world: World) -> None:
    assert (await ask(client, QUEUE, "batch-delete-messages", {"message-count": Int(10)}))["message-count"]


async def list_sessions(client: Client, world: World) -> None:
    assert (await ask(client, SESSIONS, "get-message-sessions", {}))["sessions-ids"]


async def accept_session(client: Client, world: World) -> None:
    await receiver(client, SESSIONS, filters={SESSION_FILTER: SESSION})


async def accept_next_session(client: Client, world: World) -> None:
    await receiver(client, SESSIONS, filters={SESSION_FILTER: None}, timeout_s=1)


async def _of_session(client: Client, operation: str, **arguments: Any) -> Any:
    """Request the state of a session; lock the session first if the token allows it."""
    is_held = False
    with suppress(Refused):
        await receiver(client, SESSIONS, filters={SESSION_FILTER: SESSION})
        is_held = True
    try:
        return await ask(client, SESSIONS, operation, {"session-id": SESSION, **arguments})
    except Refused as refused:
        if is_held or str(refused) != SESSION_LOST:
            raise


async def get_session_state(client: Client, world: World) -> None:
    answer = await _of_session(client, "get-session-state")
    assert answer is None or answer["session-state"] == b"secret state"


async def set_session_state(client: Client, world: World) -> None:
    await _of_session(client, "set-session-state", **{"session-state": b"changed"})


async def renew_session_lock(client: Client, world: World) -> None:
    await _of_session(client, "renew-session-lock")


async def declare_transaction(client: Client, world: World) -> None:
    coordinator, txn_id = await transaction(client)
    check(await client.discharge(coordinator, txn_id))


async def send_in_transaction(client: Client, world: World) -> None:
    link = await sender(client, QUEUE)
    coordinator, txn_id = await transaction(client)
    state = TransactionalState(txn_id)
    check(await client.send(link, MESSAGE, state=state), TransactionalState(txn_id, ACCEPTED))
    check(await client.discharge(coordinator, txn_id))


async def complete_in_transaction(client: Client, world: World) -> None:
    delivery = await received(client, QUEUE)
    coordinator, txn_id = await transaction(client)
    state = TransactionalState(txn_id, ACCEPTED)
    check(await client.settle(delivery, state), state)
    check(await client.discharge(coordinator, txn_id))


async def schedule_in_transaction(client: Client, world: World) -> None:
    for link in await client.node(QUEUE + MANAGEMENT):
        await stand(client, link)
    coordinator, txn_id = await transaction(client)
    messages = [{"message-id": "1", "message": payload_of(SCHEDULED)}]
    await ask(client, QUEUE, "schedule-message", {"messages": messages}, state=TransactionalState(txn_id))
    check(await client.discharge(coordinator, txn_id))


async def attach_management(client: Client, world: World) -> None:
    for link in await client.node(QUEUE + MANAGEMENT):
        await stand(client, link)


async def add_rule(client: Client, world: World) -> None:
    description = {"correlation-filter": {"label": "x"}}
    await ask(client, SUBSCRIPTION, "add-rule", {"rule-name": "added", "rule-description": description})


async def remove_rule(client: Client, world: World) -> None:
    await ask(client, SUBSCRIPTION, "remove-rule", {"rule-name": RULE})


async def list_rules(client: Client, world: World) -> None:
    assert (await ask(client, SUBSCRIPTION, "enumerate-rules", {"top": Int(100), "skip": Int(0)}))["rules"]


def _on_link(do: Do, path: str, claim: Claim, *others: str) -> AmqpOperation:
    return AmqpOperation(do.__name__.replace("_", " "), path, claim, (path, *others), do)


def _request(do: Do, path: str, claim: Claim) -> AmqpOperation:
    return AmqpOperation(do.__name__.replace("_", " "), path, claim, (path + MANAGEMENT,), do)


_SEND, _LISTEN = Claim.SEND, Claim.LISTEN

OPERATIONS: Final = (
    _on_link(attach_sender, QUEUE, _SEND),
    _on_link(send, QUEUE, _SEND),
    _on_link(send_batch, QUEUE, _SEND),
    _on_link(send_to_topic, TOPIC, _SEND),
    _on_link(send_to_session, SESSIONS, _SEND),
    _on_link(send_to_backlog_queue, BACKLOG, _SEND),
    _on_link(send_to_queue_below, BELOW, _SEND),
    _on_link(send_by_way_of_another, QUEUE, _SEND, DESTINATION),
    _request(schedule, QUEUE, _SEND),
    _request(cancel, QUEUE, _SEND),
    _on_link(attach_receiver, QUEUE, _LISTEN),
    _on_link(receive_and_complete, QUEUE, _LISTEN),
    _on_link(receive_and_delete, QUEUE, _LISTEN),
    _on_link(receive_dead_letter, dead_letter_path(QUEUE), _LISTEN),
    _on_link(receive_from_subscription, SUBSCRIPTION, _LISTEN),
    _on_link(receive_dead_letter_of_subscription, dead_letter_path(SUBSCRIPTION), _LISTEN),
    _on_link(receive_from_backlog_queue, BACKLOG, _LISTEN),
    _on_link(receive_from_queue_below, BELOW, _LISTEN),
    _request(peek_queue_below, BELOW, _LISTEN),
    _request(peek, QUEUE, _LISTEN),
    _request(peek_dead_letters, dead_letter_path(QUEUE), _LISTEN),
    _request(peek_subscription, SUBSCRIPTION, _LISTEN),
    _request(receive_deferred, QUEUE, _LISTEN),
    _request(delete_deferred, QUEUE, _LISTEN),
    _request(renew_lock, QUEUE, _LISTEN),
    _request(settle_by_token, QUEUE, _LISTEN),
    _request(delete_batch, QUEUE, _LISTEN),
    _request(list_sessions, SESSIONS, _LISTEN),
    _on_link(accept_session, SESSIONS, _LISTEN),
    _on_link(accept_next_session, SESSIONS, _LISTEN),
    _request(get_session_state, SESSIONS, _LISTEN),
    _request(set_session_state, SESSIONS, _LISTEN),
    _request(renew_session_lock, SESSIONS, _LISTEN),
    _on_link(declare_transaction, QUEUE, Claim.NOTHING),
    _on_link(send_in_transaction, QUEUE, _SEND),
    _on_link(complete_in_transaction, QUEUE, _LISTEN),
    _request(schedule_in_transaction, QUEUE, _SEND),
    _request(attach_management, QUEUE, Claim.ANY),
    _request(add_rule, SUBSCRIPTION, _LISTEN),
    _request(remove_rule, SUBSCRIPTION, _LISTEN),
    _request(list_rules, SUBSCRIPTION, _LISTEN),
)
