"""Requests to management nodes: what their callers learn if no answer comes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

import pytest

from sbclient import NEXT_AVAILABLE_SESSION, ServiceBusMessage, ServiceBusReceiveMode, clock
from sbclient.delivery import SessionChoice, Settlement, SettleMode
from sbclient.entities import EntityAddress, EntityKind, RuleProperties
from sbclient.errors import OperationTimeoutError, ServiceBusConnectionError, ServiceBusError
from sbclient.transport.amqp.receiver import AmqpReceiver
from sbclient.transport.amqp.transport import AmqpTransport
from tests.payloads import batch_of
from tests.transport.amqp.service import Service, refused

TIMEOUT_S: Final = 10.0
RULE: Final = EntityAddress(EntityKind.RULE, ("t", "s", "r"))

Ask = Callable[[AmqpTransport, Service], Awaitable[Any]]


class Request(NamedTuple):
    """An operation of the node, whether it changes anything that its caller may repeat, and the call that asks it."""

    operation: str
    is_changing: bool
    ask: Ask


def receiving(
    ask: Callable[[AmqpReceiver], Awaitable[Any]],
    session: SessionChoice = None,
    mode: ServiceBusReceiveMode = ServiceBusReceiveMode.PEEK_LOCK,
) -> Ask:
    return lambda transport, _: ask(transport.open_receiver("orders", session=session, receive_mode=mode))


def about_a_message(ask: Callable[[AmqpReceiver, Any], Awaitable[Any]], *, is_lost: bool = False) -> Ask:
    async def asked(transport: AmqpTransport, service: Service) -> None:
        service.stored.append(ServiceBusMessage("a"))
        receiver = transport.open_receiver("orders")
        (message,) = await receiver.receive(max_message_count=1, max_wait_time_s=1)
        if is_lost:
            service.end.cut()
        await ask(receiver, message)

    return asked


def in_transaction(ask: Callable[[Any], Awaitable[Any]]) -> Ask:
    async def asked(transport: AmqpTransport, _: Service) -> None:
        await ask(await transport.begin_transaction(timeout_s=TIMEOUT_S))

    return asked


def deferred(one: AmqpReceiver) -> Awaitable[Any]:
    return one.receive_deferred([1], timeout_s=TIMEOUT_S)


def settled(mode: SettleMode) -> Ask:
    settlement = Settlement(mode)
    return about_a_message(lambda one, each: one.settle(each, settlement, timeout_s=TIMEOUT_S), is_lost=True)


REQUESTS: Final = [
    Request("schedule-message", True, lambda each, _: each.open_sender("orders").schedule(
        batch_of([ServiceBusMessage("x")]), timeout_s=TIMEOUT_S)),
    Request("cancel-scheduled-message", True, lambda each, _: each.open_sender("orders").cancel_scheduled(
        [1], timeout_s=TIMEOUT_S)),
    Request("get-message-sessions", False, lambda each, _: each.list_sessions(
        "orders", state_updated_after=None, timeout_s=TIMEOUT_S)),
    Request("peek-message", False, receiving(
        lambda one: one.peek(max_message_count=5, sequence_number=1, timeout_s=TIMEOUT_S))),
    *(Request("receive-by-sequence-number", True, receiving(deferred, mode=mode)) for mode in ServiceBusReceiveMode),
    Request("get-session-state", False, receiving(
        lambda one: one.get_session_state(timeout_s=TIMEOUT_S), NEXT_AVAILABLE_SESSION)),
    Request("set-session-state", True, receiving(
        lambda one: one.set_session_state(b"s", timeout_s=TIMEOUT_S), NEXT_AVAILABLE_SESSION)),
    Request("renew-lock", False, about_a_message(lambda one, each: one.renew_lock(each, timeout_s=TIMEOUT_S))),
    *(Request("update-disposition", True, settled(mode)) for mode in SettleMode),
    Request("add-rule", True, in_transaction(
        lambda one: one.create_rule(RULE, RuleProperties("r"), timeout_s=TIMEOUT_S))),
    Request("remove-rule", True, in_transaction(lambda one: one.delete_rule(RULE, timeout_s=TIMEOUT_S))),
]  # fmt: skip


@pytest.mark.parametrize("is_lost", [False, True])
async def test_what_changes_is_in_doubt_and_what_reads_never_is_after_no_answer(is_lost: bool) -> None:
    """The service has taken the request, and then is silent or loses the connection."""
    for request in REQUESTS:
        service = Service()
        service.replies[f"com.microsoft:{request.operation}"] = lambda body: None
        transport = service.transport()
        asking = asyncio.ensure_future(request.ask(transport, service))
        await clock.sleep(TIMEOUT_S / 2)
        assert service.asked[-1] == f"com.microsoft:{request.operation}"
        if is_lost:
            service.end.cut()
        with pytest.raises(ServiceBusError) as caught:
            await asking
        assert isinstance(caught.value, ServiceBusConnectionError if is_lost else OperationTimeoutError), request
        assert caught.value.is_in_doubt == request.is_changing, request
        await transport.close()


async def test_nothing_is_in_doubt_without_a_connection() -> None:
    for request in REQUESTS:
        service = Service()
        service.connect_error = refused("connection refused")
        transport = service.transport()
        if request.operation not in ("renew-lock", "update-disposition"):  # these have had a connection
            with pytest.raises(ServiceBusConnectionError) as caught:
                await request.ask(transport, service)
            assert not caught.value.is_in_doubt, request
        await transport.close()
