"""The health check of a namespace: send a message and receive it, in a queue that no client can see.

One request of the broker creates, uses and deletes the queue within one step of the event loop, so that faults affect
the check as they affect the requests of clients.
"""

from __future__ import annotations

from typing import Final

from sbclient.amqp import encode_message
from sbclient.broker.faults import Call, Operation
from sbclient.delivery import ServiceBusReceiveMode
from sbclient.entities import EntityAddress, EntityKind, QueueProperties
from sbclient.errors import ServiceBusError, ServiceBusInternalError
from sbclient.hosting.host import BrokerHost
from sbclient.message import ServiceBusMessage

TIMEOUT_S: Final = 5.0

_QUEUE: Final = "sbclient.health-check"
_BODY: Final = b"healthy"


async def health_of(host: BrokerHost) -> str | None:
    """The error that a namespace answers with; None = it is healthy."""
    try:
        await host.perform(Operation.MANAGE, None, lambda call: _send_and_receive(host, call), timeout_s=TIMEOUT_S)
    except ServiceBusError as error:
        return f"{type(error).__name__}: {error.message}"
    return None


def _send_and_receive(host: BrokerHost, call: Call) -> None:
    namespace, address = host.namespace, EntityAddress(EntityKind.QUEUE, (_QUEUE,))
    namespace.management.create(call, address, QueueProperties(_QUEUE, enable_partitioning=False))
    try:
        sending = Call(Operation.SEND, call.now)
        namespace.send(sending, _QUEUE, [encode_message(ServiceBusMessage(_BODY))])
        receiving = Call(Operation.RECEIVE, call.now)
        received = namespace.receive(
            receiving, _QUEUE, max_message_count=1, mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE
        )
        call.answer_not_before(max(sending.answer_after_s, receiving.answer_after_s))
        if [entry.content.body for entry in received] != [_BODY]:
            raise ServiceBusInternalError(f"namespace {namespace.name} accepted a message but did not return it")
    finally:
        # Not by a request, because a fault could then leave the queue behind.
        namespace.directory.remove(namespace.directory.at(address))
