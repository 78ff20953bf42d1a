"""No state of an object or message leads anywhere but to a result, or to a clear error at once that changes nothing.

`test_border.py` does the same for values. Each case runs on every transport.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import pickle
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import Any, Final

import pytest

from sbclient import (
    NEXT_AVAILABLE_SESSION,
    AutoLockRenewer,
    InvalidOperationError,
    OperationTimeoutError,
    PairedNamespaceOptions,
    ServiceBusAdministrationClient,
    ServiceBusAuthorizationError,
    ServiceBusClient,
    ServiceBusError,
    ServiceBusMessage,
    ServiceBusReceivedMessage,
    ServiceBusReceiveMode,
    ServiceBusSubQueue,
)
from sbclient.broker.faults import Fault, FaultKind
from sbclient.errors import BacklogUnavailableError, MessageAlreadySettled, MessageLockLostError
from sbclient.testing import MemoryNamespace
from sbclient.transport.memory.transport import MemoryTransport
from tests.border.methods import ROWS, Fresh
from tests.border.scene import LOCK, OPTIONS, TRANSPORTS, Scene
from tests.border.test_border import AT_ONCE_S

pytestmark = pytest.mark.parametrize("transport", TRANSPORTS)


@asynccontextmanager
async def entered(transport: str) -> AsyncIterator[Scene]:
    """A scene whose client may be closed."""
    scene = await Scene(transport).__aenter__()
    yield scene
    await scene.end()


async def result_of(call: Callable[[], Any]) -> Any:
    """Return what a call returns in the end, of a generator the first value."""
    answer = call()
    if inspect.isasyncgen(answer):
        return await anext(answer)
    return await answer if inspect.isawaitable(answer) else answer


async def refused(scene: Scene, call: Callable[[], Any]) -> Exception:
    """Call what must be refused at once; return the error."""

    before = scene.state()
    with pytest.raises((ServiceBusError, TypeError, ValueError)) as caught:
        await asyncio.wait_for(result_of(call), AT_ONCE_S)
    assert scene.state() == before
    return caught.value


# -- closed objects

CLOSES: Final[dict[str, Callable[[Scene], Awaitable[Any]]]] = {
    "ServiceBusReceiver": lambda scene: scene.receiver.close(),
    "ServiceBusSender": lambda scene: scene.sender.close(),
    "ServiceBusSession": lambda scene: scene.session_receiver.close(),
    "ServiceBusClient": lambda scene: scene.client.close(),
    "ServiceBusAdministrationClient": lambda scene: scene.client.close(),
}
NAMES_IN_ERRORS: Final = {
    "ServiceBusReceiver": "receiver",
    "ServiceBusSender": "sender",
    "ServiceBusSession": "receiver",
}
OF_CLOSED: Final = [
    *((name, name.partition(".")[0]) for name in ROWS if "." in name and name.partition(".")[0] in CLOSES),
    *((name, "ServiceBusClient") for name in ROWS if name.startswith(("ServiceBusReceiver.", "ServiceBusSender."))),
]


WITH_TIMEOUT: Final = [
    name for name, row in ROWS.items() if row.arguments.get("timeout") == 5 and not name.startswith("Transaction.")
]
"""The methods that have a timeout of 5 s."""


async def valid_arguments(scene: Scene, method: str) -> dict[str, Any]:
    """Arguments with which a call of the method succeeds."""
    arguments = {}
    for each, valid in ROWS[method].arguments.items():
        made = valid.make(scene) if isinstance(valid, Fresh) else valid
        arguments[each] = await made if inspect.isawaitable(made) else made
    return arguments


@pytest.mark.parametrize(
    ("method", "closed"),
    [case for case in OF_CLOSED if not ROWS[case[0]].is_pure],
    ids=lambda name: name.removeprefix("ServiceBus"),
)
async def test_a_closed_object_refuses_each_call(transport: str, method: str, closed: str) -> None:
    async with entered(transport) as scene:
        arguments = await valid_arguments(scene, method)
        call = ROWS[method].of(scene)
        await CLOSES[closed](scene)
        error = await refused(scene, lambda: call(**arguments))
        assert isinstance(error, InvalidOperationError)
        if closed in NAMES_IN_ERRORS:  # not only the link, of which applications do not know
            assert str(error).startswith(f"the {NAMES_IN_ERRORS[closed]} of ")


@pytest.mark.parametrize(
    ("method", "closed"),
    [case for case in OF_CLOSED if case[0] in WITH_TIMEOUT and not case[0].startswith("ServiceBusClient.")],
    ids=lambda name: name.removeprefix("ServiceBus"),
)
async def test_a_call_under_way_ends_when_its_object_is_closed(transport: str, method: str, closed: str) -> None:
    async with entered(transport) as scene:
        arguments = await valid_arguments(scene, method)
        with scene.silence():
            call = asyncio.ensure_future(result_of(partial(ROWS[method].of(scene), **arguments)))
            await asyncio.sleep(0.1)
            assert not call.done()
            closing = asyncio.ensure_future(CLOSES[closed](scene))
            await asyncio.wait({call}, timeout=AT_ONCE_S)
            assert call.done()
            assert not call.cancelled()
            error = call.exception()
        assert isinstance(error, InvalidOperationError) or (isinstance(error, ServiceBusError) and error.is_in_doubt)
        await closing


# -- objects that could not be opened, or whose service does not answer


def new_pair(scene: Scene) -> ServiceBusClient:
    """A pair whose backlog queues are in the namespace of the scene."""
    other = MemoryNamespace("other")
    other.create_queue("orders")
    options = PairedNamespaceOptions(backlog_queue_count=1)
    first, second = scene.transport_to(other), scene.transport_to(scene.host)
    return ServiceBusClient(transport=first, secondary_transport=second, options=options, **OPTIONS)


async def diverts(client: ServiceBusClient) -> None:
    client.pair.force_failover("orders")
    await client.get_queue_sender("orders").send_messages(ServiceBusMessage("m"))


async def gives_session(receiver: Any) -> None:
    assert receiver.session.session_id == "x"
    await asyncio.sleep(LOCK.total_seconds() + 1)
    await receiver.session.renew_lock()  # the renewer has renewed it


async def gives_message(receiver: Any) -> None:
    assert len(await receiver.receive_messages(max_wait_time=5)) == 1


OPENED: Final[dict[str, tuple[str, Callable[[Scene], Any], Callable[[Any], Awaitable[Any]]]]] = {
    "sender": (
        "orders",
        lambda scene: scene.client.get_queue_sender("orders"),
        lambda sender: sender.send_messages(ServiceBusMessage("m")),
    ),
    "receiver": ("orders", lambda scene: scene.client.get_queue_receiver("orders"), gives_message),
    "session receiver": (
        "visits",
        lambda scene: scene.client.get_queue_receiver("visits", session_id="x", auto_lock_renewer=AutoLockRenewer()),
        gives_session,
    ),
    "administration": (
        "orders",
        lambda scene: ServiceBusAdministrationClient(transport=MemoryTransport(scene.host)),
        lambda administration: administration.get_queue("orders"),
    ),
    "pair": ("other/x-servicebus-transfer/0", new_pair, diverts),
}
"""An entity, what makes an object that uses it, and a call that works once the object is open."""


@pytest.mark.parametrize("what", OPENED)
async def test_what_could_not_be_opened_is_not_open(transport: str, what: str) -> None:
    path, make, use = OPENED[what]
    async with entered(transport) as scene:
        await scene.sender.send_messages(ServiceBusMessage("m"))
        made = make(scene)
        fault = Fault(FaultKind.ERROR, path, error=ServiceBusAuthorizationError)
        scene.host.inject(fault)

        async def open_and_use() -> None:
            await made.__aenter__()
            await use(made)

        for _ in range(2):
            with pytest.raises((ServiceBusAuthorizationError, BacklogUnavailableError)):
                await open_and_use()
        scene.host.heal(fault)
        async with made:
            await use(made)


@pytest.mark.parametrize("method", WITH_TIMEOUT)
async def test_a_call_without_an_answer_ends_at_its_timeout(transport: str, method: str) -> None:
    async with entered(transport) as scene:
        arguments = await valid_arguments(scene, method)
        call = partial(ROWS[method].of(scene), **arguments)
        began_at = asyncio.get_running_loop().time()
        with scene.silence(), pytest.raises(OperationTimeoutError):
            await asyncio.wait_for(result_of(call), 60)
        assert 4.4 < asyncio.get_running_loop().time() - began_at < 5.1  # an attempt may have most of the timeout


@pytest.mark.parametrize("ends", ["commit", "rollback"])
async def test_a_transaction_that_is_over_refuses_each_call(transport: str, ends: str) -> None:
    async with entered(transport) as scene:
        transaction, message = await scene.transaction(), await scene.locked()
        await getattr(transaction, ends)()
        for call in (
            transaction.commit,
            transaction.rollback,
            lambda: scene.sender.send_messages(ServiceBusMessage("m"), transaction=transaction),
            lambda: scene.sender.schedule_messages(
                ServiceBusMessage("m"), scene.host.now() + timedelta(1), transaction=transaction
            ),
            lambda: scene.receiver.complete_message(message, transaction=transaction),
        ):
            assert isinstance(await refused(scene, call), InvalidOperationError)
        await scene.receiver.complete_message(message)


async def test_a_closed_renewer_lets_nothing_be_locked(transport: str) -> None:
    async with entered(transport) as scene:
        renewer = AutoLockRenewer()
        await renewer.close()
        message = await scene.locked()
        number = await scene.deferred()
        await scene.sender.send_messages(ServiceBusMessage("m"))
        receiver = scene.client.get_queue_receiver("orders", auto_lock_renewer=renewer)
        session = scene.client.get_queue_receiver(
            "visits", session_id=NEXT_AVAILABLE_SESSION, auto_lock_renewer=renewer
        )
        named = scene.client.get_queue_receiver("visits", session_id="other", auto_lock_renewer=renewer)
        for call in (
            lambda: renewer.register(scene.receiver, message),
            lambda: receiver.receive_messages(max_wait_time=5),
            lambda: receiver.receive_deferred_messages(number),
            session.__aenter__,
            named.__aenter__,
            lambda: named.receive_messages(max_wait_time=5),
        ):
            assert isinstance(await refused(scene, call), InvalidOperationError)


# -- messages

SETTLES: Final = ("complete_message", "abandon_message", "defer_message", "dead_letter_message", "renew_message_lock")


async def settled(scene: Scene) -> ServiceBusReceivedMessage:
    message = await scene.locked()
    await scene.receiver.complete_message(message)
    return message


async def settled_in_transaction(scene: Scene) -> ServiceBusReceivedMessage:
    message = await scene.locked()
    await scene.receiver.complete_message(message, transaction=await scene.transaction())
    return message


async def peeked(scene: Scene) -> ServiceBusReceivedMessage:
    await scene.sender.send_messages(ServiceBusMessage("m"))
    (message,) = await scene.receiver.peek_messages()
    return message


async def deleted(scene: Scene) -> ServiceBusReceivedMessage:
    await scene.sender.send_messages(ServiceBusMessage("m"))
    async with scene.client.get_queue_receiver(
        "orders", receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE
    ) as receiver:
        (message,) = await receiver.receive_messages(max_wait_time=5)
    return message


async def expired(scene: Scene) -> ServiceBusReceivedMessage:
    message = await scene.locked()
    await asyncio.sleep(LOCK.total_seconds() + 1)
    return message


MESSAGES: Final[dict[str, Callable[[Scene], Awaitable[ServiceBusReceivedMessage]]]] = {
    "settled": settled,
    "settled in a transaction": settled_in_transaction,
    "peeked": peeked,
    "deleted": deleted,
    "expired": expired,
}
COPIES: Final[dict[str, Callable[[Any], Any]]] = {
    "copied": copy.copy,
    "copied deeply": copy.deepcopy,
    "pickled": lambda message: pickle.loads(pickle.dumps(message)),
}


@pytest.mark.parametrize("method", SETTLES)
@pytest.mark.parametrize("state", [*MESSAGES, *COPIES])
async def test_a_message_that_is_not_locked_is_not_settled(transport: str, state: str, method: str) -> None:
    async with entered(transport) as scene:
        message = await MESSAGES[state](scene) if state in MESSAGES else COPIES[state](await scene.locked())
        error = await refused(scene, lambda: getattr(scene.receiver, method)(message))
        expected = {"expired": MessageLockLostError, "settled": MessageAlreadySettled}.get(state, InvalidOperationError)
        assert isinstance(error, expected | MessageAlreadySettled)


@pytest.mark.parametrize("state", ["peeked", "deleted"])
async def test_a_renewer_does_not_take_what_is_not_locked(transport: str, state: str) -> None:
    async with entered(transport) as scene:
        message = await MESSAGES[state](scene)
        async with AutoLockRenewer() as renewer:
            assert isinstance(
                await refused(scene, lambda: renewer.register(scene.receiver, message)), InvalidOperationError
            )


# -- calls that fail leave their objects as they were


async def test_a_call_that_fails_changes_nothing_of_its_objects(transport: str) -> None:
    async with entered(transport) as scene:
        gone = await expired(scene)
        message = await scene.locked()
        for method in ("complete_message", "dead_letter_message", "abandon_message", "defer_message"):
            await refused(scene, partial(getattr(scene.receiver, method), gone))
            assert not gone.is_settled
            await refused(scene, partial(getattr(scene.receiver, method), message, transaction=5))
            assert not message.is_settled
        async with scene.client.get_queue_receiver("nowhere") as receiver:
            await refused(scene, lambda: receiver.peek_messages(5))
            scene.host.create_queue("nowhere")
            async with scene.client.get_queue_sender("nowhere") as sender:
                await sender.send_messages([ServiceBusMessage(f"{number}") for number in range(3)])
            assert [str(each) for each in await receiver.peek_messages(5)] == ["0", "1", "2"]
        await scene.receiver.complete_message(message)


async def test_a_transaction_counts_what_it_has(transport: str) -> None:
    async with entered(transport) as scene:
        transaction = await scene.transaction()
        too_large = ServiceBusMessage("x" * 2_000_000)
        with suppress(ServiceBusError):
            await scene.sender.send_messages([ServiceBusMessage("m")] * 60, transaction=transaction)
        for _ in range(60):
            await refused(scene, lambda: scene.sender.send_messages(too_large, transaction=transaction))
        await scene.sender.send_messages([ServiceBusMessage("m")] * 40, transaction=transaction)
        message = await scene.locked()
        for call in (
            lambda: scene.sender.send_messages(ServiceBusMessage("m"), transaction=transaction),
            lambda: scene.receiver.complete_message(message, transaction=transaction),
        ):
            assert isinstance(await refused(scene, call), InvalidOperationError)
        await scene.receiver.complete_message(message)
        await transaction.commit()


async def test_a_transaction_has_the_keys_of_what_was_sent(transport: str) -> None:
    async with entered(transport) as scene:
        scene.host.create_queue("parts", enable_partitioning=True)
        transaction = await scene.transaction()
        async with scene.client.get_queue_sender("parts", partitioned=True) as sender:
            too_large = ServiceBusMessage("x" * 2_000_000, partition_key="a")
            await refused(scene, lambda: sender.send_messages(too_large, transaction=transaction))
            await sender.send_messages(ServiceBusMessage("m", partition_key="b"), transaction=transaction)
        await transaction.commit()


async def test_a_session_that_is_held_is_not_accepted(transport: str) -> None:
    async with entered(transport) as scene:
        await asyncio.sleep(1)
        other = scene.client.get_queue_receiver("visits", session_id="s")
        await refused(scene, other.__aenter__)
        await refused(scene, other.receive_messages)
        await scene.session.renew_lock()
        await scene.session_receiver.close()
        async with other:
            await other.session.renew_lock()


async def test_a_transaction_takes_no_message_of_the_other_namespace(transport: str) -> None:
    async with entered(transport) as scene:
        other = MemoryNamespace("other")
        other.create_queue("orders")
        pair = ServiceBusClient(
            transport=scene.transport_to(scene.host), secondary_transport=scene.transport_to(other), **OPTIONS
        )
        async with pair, ServiceBusClient(transport=MemoryTransport(other)) as client:
            await client.get_queue_sender("orders").send_messages(ServiceBusMessage("m"))
            async with pair.get_queue_receiver("orders", receive_from="both") as receiver:
                (message,) = await receiver.receive_messages(max_wait_time=5)
                assert message.namespace == "secondary"
                async with pair.transaction() as transaction:
                    error = await refused(scene, lambda: receiver.complete_message(message, transaction=transaction))
                assert isinstance(error, InvalidOperationError)
                await receiver.complete_message(message)


async def test_a_rollback_gives_the_messages_back(transport: str) -> None:
    async with entered(transport) as scene:
        transaction, message = await scene.transaction(), await scene.locked()
        await scene.receiver.complete_message(message, transaction=transaction)
        assert message.is_settled
        await transaction.rollback()
        assert not message.is_settled
        await scene.receiver.dead_letter_message(message)
        async with scene.client.get_queue_receiver("orders", sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
            assert len(await receiver.receive_messages(max_wait_time=5)) == 1
