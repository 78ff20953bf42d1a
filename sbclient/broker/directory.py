"""The entities of a namespace, by path."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from sbclient.broker.entity import Queue
from sbclient.broker.topic import Subscription, Topic
from sbclient.entities import (
    EntityAddress,
    EntityKind,
    QueueProperties,
    SubscriptionProperties,
    TopicProperties,
)
from sbclient.errors import MessagingEntityNotFoundError
from sbclient.rules.entity_path import canonical, split_sub_queue, subscription_path

_MAX_SPELLINGS: Final = 20_000
"""Paths remembered as callers spell them, so that nobody can make the table grow for ever."""


@dataclass(slots=True, eq=False)
class Entity:
    """A queue, a topic or a subscription.

    Attributes:
        path: as it was created.
        description: complete.
        body: the messages.
        sub_queues: behind it, by the names of `split_sub_queue`.
        topic: of a subscription.
        subscription: of a subscription, with its rules.
        created_at, updated_at, accessed_at: seconds; 0 = never.
        busy_at: when something last happened that keeps it from being idle.
    """

    path: str
    description: QueueProperties | TopicProperties | SubscriptionProperties
    body: Queue | Topic
    sub_queues: dict[str, Queue]
    topic: Entity | None
    subscription: Subscription | None
    created_at: float
    updated_at: float
    busy_at: float
    accessed_at: float = 0.0

    @property
    def is_partitioned(self) -> bool:
        return len(self.body.fragments) > 1

    def next_change_at(self) -> float:
        """When something happens in it by time alone; infinity if nothing will."""
        return min(body.next_change_at() for body in (self.body, *self.sub_queues.values()))

    def advance(self, now: float) -> None:
        """Let everything happen in it whose time has come."""
        for body in (self.body, *self.sub_queues.values()):
            body.advance(now)


class Directory:
    """Queues, topics and subscriptions."""

    def __init__(self) -> None:
        self._entities: dict[str, Entity] = {}
        self._found: dict[str, tuple[Entity, Queue | Topic]] = {}

    def __len__(self) -> int:
        """Queues and topics."""
        return sum(entity.topic is None for entity in self._entities.values())

    @property
    def partitioned_count(self) -> int:
        """Partitioned queues and topics."""
        return sum(entity.topic is None and entity.is_partitioned for entity in self._entities.values())

    def add(self, entity: Entity) -> None:
        self._entities[canonical(entity.path)] = entity

    def remove(self, entity: Entity) -> None:
        del self._entities[canonical(entity.path)]
        self._found.clear()

    def find(self, path: str) -> tuple[Entity, Queue | Topic]:
        """The entity of a path, and the queue or topic meant, which may be a sub-queue behind it.

        Raises:
            MessagingEntityNotFoundError: there is none.
        """
        found = self._found.get(path)
        if found is None:
            if len(self._found) > _MAX_SPELLINGS:
                self._found.clear()
            found = self._found[path] = self._looked_up(path)
        return found

    def get(self, path: str) -> Entity | None:
        """The entity of a path without a sub-queue, if it exists."""
        return self._entities.get(canonical(path))

    def at(self, address: EntityAddress) -> Entity:
        """The queue, topic or subscription of an address.

        Raises:
            MessagingEntityNotFoundError: there is none, or it is of another kind.
        """
        entity = self.get(path_of(address))
        if entity is None or kind_of(entity) is not address.kind:
            raise MessagingEntityNotFoundError(f"SubCode=40400. There is no {address}: create it, or check its name")
        return entity

    def all(self) -> Iterator[Entity]:
        """Every entity, in the order of creation."""
        return iter(list(self._entities.values()))

    def subscriptions_of(self, topic: Entity) -> list[Entity]:
        return [entity for entity in self._entities.values() if entity.topic is topic]

    def _looked_up(self, path: str) -> tuple[Entity, Queue | Topic]:
        base, sub_queue = split_sub_queue(path)
        entity = self.get(base)
        body = None if entity is None else entity.body if sub_queue is None else entity.sub_queues.get(sub_queue)
        if entity is None or body is None:
            raise MessagingEntityNotFoundError(f"there is no entity {path!r}: create it, or check its name")
        return entity, body


def kind_of(entity: Entity) -> EntityKind:
    if entity.subscription is not None:
        return EntityKind.SUBSCRIPTION
    return EntityKind.TOPIC if isinstance(entity.body, Topic) else EntityKind.QUEUE


def path_of(address: EntityAddress) -> str:
    """The path of a queue, topic or subscription; for a rule that of its subscription."""
    if len(address.names) == 1:
        return address.names[0]
    return subscription_path(address.names[0], address.names[1])
