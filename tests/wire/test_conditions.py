"""Every condition becomes the SDK's exception: for sends, links, sessions, settlements and requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus import exceptions as sdk
from azure.servicebus.aio import ServiceBusClient

from sbclient import errors
from sbclient.broker.faults import Fault, FaultKind, Operation
from sbclient.emulator.faults import WireFault, WireFaultKind
from sbclient.errors import ServiceBusError
from tests.wire.checks import Checks, Names, Outcomes
from tests.wire.serving import ServedNamespace

check = Checks()
names = Names("condition")

OF_ERRORS: list[tuple[type[ServiceBusError], type[Exception]]] = [
    (errors.MessagingEntityNotFoundError, sdk.MessagingEntityNotFoundError),
    (errors.ServiceBusAuthorizationError, sdk.ServiceBusAuthorizationError),
    (errors.ServiceBusAuthenticationError, sdk.ServiceBusAuthorizationError),
    (errors.ServiceBusQuotaExceededError, sdk.ServiceBusQuotaExceededError),
    (errors.MessageSizeExceededError, sdk.MessageSizeExceededError),
    (errors.ServiceBusServerBusyError, sdk.ServiceBusServerBusyError),
    (errors.OperationTimeoutError, sdk.OperationTimeoutError),
    (errors.MessagingEntityDisabledError, sdk.MessagingEntityDisabledError),
    (errors.MessagingEntityAlreadyExistsError, sdk.MessagingEntityAlreadyExistsError),
    (errors.MessageLockLostError, sdk.MessageLockLostError),
    (errors.SessionLockLostError, sdk.SessionLockLostError),
    (errors.SessionCannotBeLockedError, sdk.SessionCannotBeLockedError),
    (errors.MessageNotFoundError, sdk.MessageNotFoundError),
    (errors.InvalidOperationError, sdk.ServiceBusError),
    (errors.ServiceBusInternalError, sdk.ServiceBusError),
]
"""What the broker raises, and what the SDK then raises."""

OF_CONDITIONS: list[tuple[str, type[Exception]]] = [
    ("amqp:not-found", sdk.MessagingEntityNotFoundError),
    ("amqp:unauthorized-access", sdk.ServiceBusAuthorizationError),
    ("com.microsoft:auth-failed", sdk.ServiceBusAuthorizationError),
    ("amqp:resource-limit-exceeded", sdk.ServiceBusQuotaExceededError),
    ("amqp:link:message-size-exceeded", sdk.MessageSizeExceededError),
    ("amqp:link:detach-forced", sdk.ServiceBusConnectionError),
    ("com.microsoft:server-busy", sdk.ServiceBusServerBusyError),
    ("com.microsoft:timeout", sdk.OperationTimeoutError),
    ("com.microsoft:entity-disabled", sdk.MessagingEntityDisabledError),
    ("com.microsoft:entity-already-exists", sdk.MessagingEntityAlreadyExistsError),
    ("com.microsoft:message-lock-lost", sdk.MessageLockLostError),
    ("com.microsoft:session-lock-lost", sdk.SessionLockLostError),
    ("com.microsoft:session-cannot-be-locked", sdk.SessionCannotBeLockedError),
    ("com.microsoft:message-not-found", sdk.MessageNotFoundError),
    ("com.microsoft:argument-error", sdk.ServiceBusError),
    ("com.microsoft:argument-out-of-range", sdk.ServiceBusError),
    ("amqp:precondition-failed", sdk.ServiceBusError),
    ("amqp:not-allowed", sdk.ServiceBusError),
    ("amqp:not-implemented", sdk.ServiceBusError),
    ("amqp:internal-error", sdk.ServiceBusError),
    ("com.microsoft:container-close", sdk.ServiceBusError),
    ("com.microsoft:operation-cancelled", sdk.ServiceBusError),
    ("com.microsoft:partition-not-owned", sdk.ServiceBusError),
    ("acme:unheard-of", sdk.ServiceBusError),
]
"""What a link is ended with, and what the SDK then raises."""


class Site:
    """What a check is given."""

    def __init__(self, namespace: ServedNamespace) -> None:
        self.namespace = namespace

    def client(self) -> ServiceBusClient:
        return ServiceBusClient.from_connection_string(self.namespace.connection_string, retry_total=0)

    def queue(self, **description: Any) -> str:
        return self.namespace.queue(names.new(), **description)

    def fault(self, path: str, operation: Operation, error: type[ServiceBusError]) -> None:
        self.namespace.inject(Fault(FaultKind.ERROR, path, operations=(operation,), error=error))


def expect(raised: type[Exception]) -> Any:
    """The exception itself, not a subclass that means something else."""

    class Expected:
        def __enter__(self) -> None:
            pass

        def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
            assert kind is raised, f"{kind} was raised, {raised} should have been"
            return True

    return Expected()


def add(name: str, make: Callable[[Site], Any]) -> None:
    make.__name__ = f"check_{name}"
    check(make)


def of_error(error: type[ServiceBusError], raised: type[Exception]) -> None:
    """Add the checks of one of the broker's errors, one for each way to report it."""

    async def send(site: Site) -> None:
        path = site.queue()
        async with site.client() as client, client.get_queue_sender(path) as sender:
            site.fault(path, Operation.SEND, error)
            with expect(raised):
                await sender.send_messages(ServiceBusMessage("x"))

    async def settle(site: Site) -> None:
        path = site.queue()
        client = site.client()
        async with client, client.get_queue_sender(path) as sender, client.get_queue_receiver(path) as receiver:
            await sender.send_messages(ServiceBusMessage("x"))
            (message,) = await receiver.receive_messages(max_wait_time=10)
            site.fault(path, Operation.SETTLE, error)
            with expect(raised):
                await receiver.complete_message(message)

    async def request(site: Site) -> None:
        path = site.queue()
        async with site.client() as client, client.get_queue_receiver(path) as receiver:
            site.fault(path, Operation.PEEK, error)
            with expect(raised):
                await receiver.peek_messages()

    async def session(site: Site) -> None:
        path = site.queue(requires_session=True)
        site.fault(path, Operation.SESSION, error)
        async with site.client() as client:
            with expect(raised):
                async with client.get_queue_receiver(path, session_id="a"):
                    pass

    for make in (send, settle, request, session):
        add(f"{make.__name__}_{error.__name__}", make)


def of_condition(condition: str, raised: type[Exception]) -> None:
    """The checks of one condition with which a link is refused."""

    async def attach(site: Site) -> None:
        path = site.queue()
        site.namespace.inject_wire_fault(WireFault(WireFaultKind.DETACH, path, condition=condition))
        async with site.client() as client:
            with expect(raised):
                async with client.get_queue_receiver(path) as receiver:
                    await receiver.receive_messages(max_wait_time=5)

    add(f"attach_{condition}", attach)


for each_error, each_raised in OF_ERRORS:
    of_error(each_error, each_raised)
for each_condition, each_raised in OF_CONDITIONS:
    of_condition(each_condition, each_raised)


@check
async def check_a_detach_during_a_send_is_a_connection_error(site: Site) -> None:
    path = site.queue()
    async with site.client() as client, client.get_queue_sender(path) as sender:
        await sender.send_messages(ServiceBusMessage("x"))
        site.namespace.inject_wire_fault(WireFault(WireFaultKind.DETACH, path, condition="amqp:internal-error"))
        with expect(sdk.ServiceBusConnectionError):
            await sender.send_messages(ServiceBusMessage("x"))


@check
async def check_a_dropped_acknowledgement_is_a_timeout_and_the_message_is_stored(site: Site) -> None:
    path = site.queue()
    async with site.client() as client, client.get_queue_sender(path) as sender:
        site.namespace.inject_wire_fault(WireFault(WireFaultKind.DROP_ACKNOWLEDGEMENT, path))
        with expect(sdk.OperationTimeoutError):
            await sender.send_messages(ServiceBusMessage("x"), timeout=2)
    assert site.namespace.count(path) == 1


@check
async def check_a_busy_wire_is_server_busy_and_nothing_is_stored(site: Site) -> None:
    path = site.queue()
    async with site.client() as client, client.get_queue_sender(path) as sender:
        site.namespace.inject_wire_fault(WireFault(WireFaultKind.SERVER_BUSY, path))
        with expect(sdk.ServiceBusServerBusyError):
            await sender.send_messages(ServiceBusMessage("x"))
    assert site.namespace.count(path) == 0


@check
async def check_a_retry_after_a_passing_fault_succeeds(site: Site) -> None:
    path = site.queue()
    client = ServiceBusClient.from_connection_string(
        site.namespace.connection_string, retry_total=2, retry_backoff_factor=0.1
    )
    async with client, client.get_queue_sender(path) as sender:
        site.namespace.inject(Fault(FaultKind.DOWN, path, operations=(Operation.SEND,), count=1))
        await sender.send_messages(ServiceBusMessage("x"))
    assert site.namespace.count(path) == 1


@pytest.fixture(scope="module")
def outcomes(namespace: ServedNamespace) -> Outcomes:
    return check.run_async(Site(namespace), at_once=24)


@pytest.mark.parametrize("name", check.names)
def test_condition(name: str, outcomes: Outcomes) -> None:
    error = outcomes[name]
    if error is not None:
        raise error
