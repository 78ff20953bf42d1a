"""The entities of a namespace, by path."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sbclient.broker.entity import Queue
from sbclient.broker.fragment import Fragment
from sbclient.broker.topic import Subscription, Topic
from sbclient.entities import Description, EntityAddress, EntityKind, kind_of
from sbclient.errors import InvalidOperationError, MessagingEntityNotFoundError
from sbclient.rules.entity_path import canonical, split_sub_queue, subscription_path

_MAX_SPELLINGS: Final = 20_000
"""The maximum number of cached path spellings, so that callers cannot exhaust the memory."""


@dataclass(slots=True, eq=False)
class Entity:
    """A queue, a topic or a subscription.

    Attributes:
        path: as it was created.
        description: complete.
        body: the messages.
        sub_queues: the sub-queues created so far, by the names of `split_sub_queue`; `transfer` has the messages that
            are sent via this entity to others.
        make_sub_queue: creates a sub-queue by its name; returns None for one that the entity cannot have.
        topic: of a subscription.
        subscription: of a subscription, with its rules.
        created_at, updated_at, accessed_at: seconds; 0 = never.
        busy_at: the time of the last activity, from which the idle time counts.
        sent: the last description that the management API received; it knows its type.
    """

    path: str
    description: Description
    body: Queue | Topic
    sub_queues: dict[str, Queue]
    make_sub_queue: Callable[[str], Queue | None]
    topic: Entity | None
    subscription: Subscription | None
    created_at: float
    updated_at: float
    busy_at: float
    accessed_at: float = 0.0
    sent: Any = field(default=None, repr=False)

    @property
    def topic_body(self) -> Topic:
        """The topic that it is.

        Raises:
            InvalidOperationError: it is something else.
        """
        if not isinstance(self.body, Topic):
            raise InvalidOperationError(f"{self.path} is not a topic: name one")
        return self.body

    @property
    def is_partitioned(self) -> bool:
        return len(self.body.fragments) > 1

    def queues(self) -> list[Queue | Topic]:
        """The entity itself and its sub-queues."""
        return [self.body, *self.sub_queues.values()]

    def fragments_at(self, index: int) -> list[Fragment]:
        """The fragments with an index, of the entity and its sub-queues; empty if there are fewer."""
        return [body.fragments[index] for body in self.queues() if index < len(body.fragments)]

    def sub_queue(self, name: str) -> Queue | None:
        """A sub-queue, created at its first use; None for the dead letters of a topic, which has none."""
        found = self.sub_queues.get(name)
        return self.make_sub_queue(name) if found is None else found

    def require_sub_queue(self, name: str) -> Queue:
        """As `sub_queue`, for an entity that has sub-queues."""
        found = self.sub_queue(name)
        assert found is not None  # only called for those that the entity can have
        return found

    def fragment(self, sub_queue: str, index: int) -> Fragment:
        """A fragment of a sub-queue or, with an empty name, of the entity itself."""
        return (self.require_sub_queue(sub_queue) if sub_queue else self.body).fragments[index]

    def next_change_at(self) -> float:
        """The time of the next timed change; infinity if there is none."""
        return min([body.next_change_at() for body in self.queues()])

    def advance(self, now: float) -> None:
        """Apply all timed changes that are due."""
        for body in self.queues():
            body.advance(now)


NAMED_ENTITY: Final = "The messaging entity '"
"""How the text of an error about a missing entity begins. Over AMQP the address of the namespace follows."""


class Directory:
    """Queues, topics and subscriptions.

    Args:
        removing: called with each entity before it is removed; its error prevents that.
        removed: called with each removed entity.
    """

    def __init__(self, removing: Callable[[Entity], None], removed: Callable[[Entity], None]) -> None:
        self._removing = removing
        self._removed = removed
        self._entities: dict[str, Entity] = {}
        self._found: dict[str, tuple[Entity, Queue | Topic]] = {}
        self._in_order: dict[tuple[EntityKind, Entity | None], list[Entity]] = {}
        self._counts = {False: 0, True: 0}  # of queues and topics, by whether they are partitioned

    def __len__(self) -> int:
        """Queues and topics."""
        return sum(self._counts.values())

    @property
    def partitioned_count(self) -> int:
        """Partitioned queues and topics."""
        return self._counts[True]

    def add(self, entity: Entity) -> None:
        """Add an entity, also to the topic of a subscription."""
        self._entities[canonical(entity.path)] = entity
        if entity.topic is None:
            self._counts[entity.is_partitioned] += 1
        elif entity.subscription is not None:
            entity.topic.topic_body.add(canonical(entity.description.name), entity.subscription)
        self._in_order.clear()

    def remove(self, entity: Entity) -> None:
        """Remove an entity with its messages and subscriptions."""
        for subscription in self.subscriptions_of(entity):
            self.remove(subscription)
        self._removing(entity)
        if entity.topic is None:
            self._counts[entity.is_partitioned] -= 1
        else:
            entity.topic.topic_body.remove(canonical(entity.description.name))
        del self._entities[canonical(entity.path)]
        self._found.clear()
        self._in_order.clear()
        self._removed(entity)

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
        if entity is None or kind_of(entity.description) is not address.kind:
            raise MessagingEntityNotFoundError(
                f"SubCode=40400. The messaging entity '{path_of(address)}' could not be found: create it, or check "
                "its name"
            )
        return entity

    def all(self) -> Iterator[Entity]:
        """Every entity, in the order of creation."""
        return iter(list(self._entities.values()))

    def in_order(self, kind: EntityKind, topic: Entity | None = None) -> Sequence[Entity]:
        """The queues, the topics, or the subscriptions of a topic, by name. The order is kept until it changes."""
        ordered = self._in_order.get((kind, topic))
        if ordered is None:
            entities = self.all() if topic is None else self.subscriptions_of(topic)
            chosen = [entity for entity in entities if kind_of(entity.description) is kind]
            ordered = sorted(chosen, key=lambda entity: canonical(entity.description.name))
            self._in_order[kind, topic] = ordered
        return ordered

    def subscriptions_of(self, topic: Entity) -> list[Entity]:
        if not isinstance(topic.body, Topic):
            return []
        return [self._entities[subscription.queue.key] for subscription in topic.body.subscriptions.values()]

    def _looked_up(self, path: str) -> tuple[Entity, Queue | Topic]:
        base, sub_queue = split_sub_queue(path)
        entity = self.get(base)
        body = None if entity is None else entity.body if sub_queue is None else entity.sub_queue(sub_queue)
        if entity is None or body is None:
            raise MessagingEntityNotFoundError(
                f"{NAMED_ENTITY}{path}' could not be found. Create it, or check its name."
            )
        return entity, body


def path_of(address: EntityAddress) -> str:
    """The path of a queue, topic or subscription; for a rule that of its subscription."""
    if len(address.names) == 1:
        return address.names[0]
    return subscription_path(address.names[0], address.names[1])
