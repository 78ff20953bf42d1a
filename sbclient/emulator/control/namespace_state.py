"""The contents of each fragment of a namespace, its health check and its reset.

The health check sends a message and receives it, in a queue that no client can see. One request of the broker creates,
uses and deletes the queue within one step of the event loop, so that faults affect the check as they affect clients.
"""

from __future__ import annotations

import math
from itertools import islice
from typing import Any, Final

from sbclient.amqp import encode_message
from sbclient.broker.directory import Entity
from sbclient.broker.entity import Queue
from sbclient.broker.entry import Entry
from sbclient.broker.faults import Call, NoAnswer, Operation
from sbclient.broker.fragment import Fragment
from sbclient.broker.namespace import Namespace
from sbclient.delivery import ServiceBusReceiveMode
from sbclient.emulator.control.message_store import entity_at
from sbclient.entities import EntityAddress, EntityKind, QueueProperties, kind_of
from sbclient.errors import ServiceBusError, ServiceBusInternalError
from sbclient.hosting.host import BrokerHost
from sbclient.message import ServiceBusMessage, ServiceBusMessageState

MAX_READ: Final = 10_000
"""Messages of one fragment that are read for locks and states; the other counts are exact in any case."""

MAX_LISTED: Final = 100
"""Locks and sessions of one fragment that are listed."""


def state_of(namespace: Namespace, now: float, path: str | None = None) -> dict[str, Any]:
    """All entities, or one, as JSON values.

    Raises:
        MessagingEntityNotFoundError: the entity does not exist.
    """
    entities = list(namespace.directory.all()) if path is None else [entity_at(namespace, path)]
    return {
        "namespace": namespace.name,
        "profile": namespace.profile.name,
        "operation_count": namespace.operation_count,
        "entities": [_entity_state(entity, now) for entity in entities],
    }


def clear(host: BrokerHost) -> None:
    """Heal every fault and remove every entity.

    This is not a request of the broker, so that no fault can end it half way.
    """
    host.heal()
    directory = host.namespace.directory
    for entity in directory.all():
        if entity.topic is None:
            directory.remove(entity)


def _entity_state(entity: Entity, now: float) -> dict[str, Any]:
    names = ("", *entity.sub_queues)
    return {
        "path": entity.path,
        "kind": kind_of(entity.description),
        "status": str(entity.description.status),
        "is_partitioned": entity.is_partitioned,
        "forwards_to": entity.body.forward_to if isinstance(entity.body, Queue) else None,
        "fragments": [_fragment_state(fragment, now) for fragment in entity.body.fragments],
        "sub_queues": {
            name: {"fragments": [_fragment_state(fragment, now) for fragment in body.fragments]}
            for name, body in zip(names, entity.queues(), strict=True)
            if name
        },
    }


def _fragment_state(fragment: Fragment, now: float) -> dict[str, Any]:
    messages = list(islice(fragment.browse(now, 0), MAX_READ))
    held = [entry for entry in messages if entry.token]
    states = [entry.state for entry in messages]
    sessions = fragment.session_ids(now, state_set_after=None, most=MAX_LISTED) if fragment.has_sessions else []
    return {
        "index": fragment.index,
        "message_count": len(fragment),
        "scheduled_count": fragment.scheduled_count,
        "deferred_count": states.count(ServiceBusMessageState.DEFERRED),
        "locked_count": len(held),
        "size_bytes": fragment.size_bytes,
        "duplicate_window_count": len(fragment.seen),
        "session_count": fragment.session_count,
        "sessions": sessions,
        "locks": [
            {
                "sequence_number": entry.number,
                "locked_until": entry.locked_until if entry.locked_until < math.inf else None,
                "delivery_count": entry.delivery_count,
            }
            for entry in held[:MAX_LISTED]
        ],
        "is_complete": len(messages) == len(fragment),
    }


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
        received, answer_after_s = _received(namespace, call.now)
        call.answer_not_before(sending.answer_after_s + answer_after_s)
        if [entry.content.body for entry in received] != [_BODY]:
            raise ServiceBusInternalError(f"namespace {namespace.name} accepted a message but did not return it")
    finally:
        # Not by a request, because a fault could then leave the queue behind.
        namespace.directory.remove(namespace.directory.at(address))


def _received(namespace: Namespace, now: float) -> tuple[list[Entry], float]:
    """Receive the message; return it, and after how many seconds it comes: a slow receive is one that waits."""
    waited_s = 0.0
    while True:
        call = Call(Operation.RECEIVE, now, waited_s=waited_s)
        try:
            found = namespace.receive(call, _QUEUE, max_message_count=1, mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE)
            return found, waited_s + call.answer_after_s
        except NoAnswer as silence:
            if silence.after_s == math.inf:
                raise
            waited_s += silence.after_s
