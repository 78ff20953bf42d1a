"""The checks that every request passes first: faults, timed changes, and the status of the entity.

The broker has no background work. Each request first applies the changes that are due and that it could observe: idle
entities are deleted, and messages are forwarded (our choice: a change such as expiry needs no exact time while no
request can observe it).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from sbclient.broker.changes import Changes, FragmentAddress, FragmentLog
from sbclient.broker.deadlines import Deadlines
from sbclient.broker.descriptions import seconds_of
from sbclient.broker.directory import Directory, Entity
from sbclient.broker.entity import Queue
from sbclient.broker.faults import Call, Faults, Operation
from sbclient.broker.forwarding import Forwarding
from sbclient.broker.topic import Topic
from sbclient.entities import EntityStatus
from sbclient.errors import MessagingEntityDisabledError, ServiceBusInternalError
from sbclient.rules.entity_path import canonical, split_sub_queue

_SENDING: Final = (Operation.SEND, Operation.SCHEDULE, Operation.CANCEL)
_RECEIVING: Final = (
    Operation.RECEIVE,
    Operation.RECEIVE_DEFERRED,
    Operation.PEEK,
    Operation.SETTLE,
    Operation.RENEW,
    Operation.SESSION,
)

_ACTIVE: Final = EntityStatus.ACTIVE

CLOSED_TO: Final[dict[EntityStatus, tuple[Operation, ...]]] = {
    EntityStatus.DISABLED: tuple(Operation),
    EntityStatus.SEND_DISABLED: _SENDING,
    EntityStatus.RECEIVE_DISABLED: _RECEIVING,
}
"""The operations that each status rejects. The status of a topic does not affect receiving from its subscriptions."""


class RequestGate:
    """The checks of one namespace.

    Args:
        directory, faults, forwarding: of the namespace.
        fragment_count: of a new partitioned entity.
        is_waited_for: whether a receiver waits for messages of a queue; such a queue is not idle.

    Attributes:
        changes: notes what changes in the namespace; None = changes are not recorded.
    """

    def __init__(
        self,
        directory: Directory,
        faults: Faults,
        forwarding: Forwarding,
        fragment_count: int,
        is_waited_for: Callable[[Queue], bool],
    ) -> None:
        self.directory = directory
        self.faults = faults
        self.forwarding = forwarding
        self.operation_count = 0
        self.changes: Changes | None = None
        self._fragment_count = fragment_count
        self._is_waited_for = is_waited_for
        self._idle_ends: Deadlines[str] = Deadlines()

    def check(
        self,
        call: Call,
        path: str,
        as_operation: Operation | None = None,
        operation_count: int = 1,
    ) -> tuple[Entity, Queue | Topic]:
        """Check a request to an entity.

        Args:
            as_operation: the operation that the entity's status must allow, if it is not that of the call.
            operation_count: the number of requests that it stands for.

        Returns: the entity, and the queue or topic that the path names.

        Raises:
            ServiceBusError, NoAnswer: the request is rejected, or a fault swallows it.
        """
        if self.faults.injected:
            self.faults.check(call, path)
        forwarding = self.forwarding
        if self._idle_ends.earliest.at <= call.now or forwarding.is_used or forwarding.due:
            self.advance(call.now, path)
        found = entity, target = self.directory.find(path)
        if entity.topic is not None:
            entity.topic.advance(call.now)
        if target is not entity.body:  # what expires, or has its last lock ended, becomes a dead letter
            entity.body.advance(call.now)
        status = entity.description.status
        if status is not _ACTIVE and status is not None and (as_operation or call.operation) in CLOSED_TO[status]:
            raise MessagingEntityDisabledError(
                f"Messaging entity '{path}' is currently disabled: it is {status} and rejects "
                f"{as_operation or call.operation}, update its status to {EntityStatus.ACTIVE}"
            )
        self.operation_count += operation_count
        touch(entity, call.now)
        return found

    def record(self, path: str, sub_queue: str, body: Queue | Topic) -> None:
        """Record the changes of an entity or, with its name, of a sub-queue, if changes are recorded."""
        if self.changes is not None:
            for fragment in body.fragments:
                fragment.log = FragmentLog(self.changes, FragmentAddress(path, sub_queue, fragment.index))

    def check_namespace(self, call: Call) -> None:
        """Check a request that belongs to no entity."""
        self.faults.check(call, None)

    def check_management(self, call: Call, path: str | None) -> None:
        """Check a management request; the entity need not exist."""
        self.faults.check(call, path)
        self.advance(call.now, path)

    def check_reachable(self, call: Call, path: str) -> None:
        """Check that all fragments of an entity are reachable; the entity need not exist yet.

        Raises:
            ServiceBusInternalError: some are not.
        """
        entity = self.directory.get(path)
        fragment_count = self._fragment_count if entity is None else len(entity.body.fragments)
        lost = self.faults.unreachable(call.now, path, fragment_count)
        if lost:
            raise ServiceBusInternalError(
                f"{call.operation} of {path} needs all fragments, but these are unreachable: "
                f"{', '.join(map(str, lost))}. Nothing was changed: try again later"
            )

    def advance(self, now: float, path: str | None = None) -> None:
        """Apply the timed changes that are due and that a request to a path could observe."""
        if self._idle_ends.earliest.at <= now:
            self._remove_idle(now)
            self._idle_ends.earliest.at = self._idle_ends.next_at()
        if path is not None and self.forwarding.is_used:
            for source in self.feeding(path):
                source.advance(now)
        if self.forwarding.due:
            self.forwarding.pump(now)

    def feeding(self, path: str) -> list[Entity]:
        """The entities that forward messages to a path, directly or through others."""
        if not self.forwarding.is_used:
            return []
        found: dict[Entity, None] = {}
        paths = [split_sub_queue(path)[0]]
        for each in paths:
            for queue in self.forwarding.sources_of(each):
                entity = self.directory.get(split_sub_queue(queue.path)[0])
                if entity is not None and entity not in found:
                    found[entity] = None
                    paths.append(entity.path if entity.topic is None else entity.topic.path)
                    if entity.topic is not None:
                        found[entity.topic] = None
        return list(found)

    def watch_idle(self, entity: Entity) -> None:
        """Schedule the deletion of an entity after the idle time in its description, unless it forwards."""
        idle_s = seconds_of(entity.description.auto_delete_on_idle)
        if idle_s < math.inf and not entity.description.get("forward_to"):
            self._idle_ends.set(canonical(entity.path), entity.busy_at + idle_s)
        else:
            self._idle_ends.drop(canonical(entity.path))

    def _remove_idle(self, now: float) -> None:
        while (due := self._idle_ends.pop_due(now)) is not None:
            entity = self.directory.get(due[0])
            if entity is None:
                continue
            if self._is_in_use(entity):
                touch(entity, now)
            if entity.busy_at + seconds_of(entity.description.auto_delete_on_idle) > now:
                self.watch_idle(entity)
            else:
                self.directory.remove(entity)

    def _is_in_use(self, entity: Entity) -> bool:
        if any(fragment.scheduled_count for fragment in entity.body.fragments):
            return True
        below = [entity, *self.directory.subscriptions_of(entity)]
        return any(isinstance(queue, Queue) and self._is_waited_for(queue) for each in below for queue in each.queues())


def touch(entity: Entity, now: float) -> None:
    """Note a request to an entity for its messages."""
    entity.accessed_at = entity.busy_at = now
    if entity.topic is not None:
        entity.topic.busy_at = now


def note_activity(entity: Entity, now: float) -> None:
    """Note that an entity is not idle, and neither is its topic."""
    entity.busy_at = now
    if entity.topic is not None:
        entity.topic.busy_at = now
