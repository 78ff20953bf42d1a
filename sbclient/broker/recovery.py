"""Describe all of a namespace as changes, and restore a namespace from changes.

A snapshot is a list of changes that create everything. It may be taken in pieces while requests change the namespace:
the changes of these requests, in between the pieces, correct what the earlier pieces say.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from sbclient.broker.changes import (
    Change,
    EntityDefined,
    EntityRemoved,
    FragmentChanged,
    RuleChanged,
    SessionState,
)
from sbclient.broker.deduplication import Identity
from sbclient.broker.directory import Directory, Entity
from sbclient.broker.entry import Entry
from sbclient.broker.fragment import Fragment
from sbclient.broker.rule import Rule
from sbclient.broker.storage import COUNTER_BITS
from sbclient.entities import RuleProperties
from sbclient.rules.entity_path import canonical

PIECE_COUNT: Final = 200
PIECE_BYTES: Final = 2**20
"""The most messages, and bytes of messages, in one piece of a snapshot: about a millisecond of work."""


# ---------------------------------------------------------------------- snapshot


def definition_of(entity: Entity) -> EntityDefined:
    """The definition of an entity, without its rules."""
    topic = None if entity.topic is None else entity.topic.path
    return EntityDefined(
        entity.path, topic, entity.description, entity.created_at, entity.updated_at, entity.accessed_at
    )


def snapshot(directory: Directory) -> Iterator[list[Change]]:
    """The changes that create all entities and their contents; each list is computed when it is requested.

    The changes of the namespace must be recorded.
    """
    entities = list(directory.all())
    for entity in entities:
        if directory.get(entity.path) is entity:  # else it was deleted in the meantime
            rules = {} if entity.subscription is None else entity.subscription.rules
            yield [
                definition_of(entity),
                *(RuleChanged(entity.path, key, rule.properties) for key, rule in rules.items()),
            ]
    for entity in entities:
        for body in entity.queues():
            for fragment in body.fragments:
                yield from _pieces_of(fragment)


def _pieces_of(fragment: Fragment) -> Iterator[list[Change]]:
    if fragment.log is None:
        return  # the entity was deleted in the meantime
    address = fragment.log.address
    seen, sessions = list(fragment.seen), fragment.states()
    if fragment.counter or sessions or seen:
        yield [FragmentChanged(address, fragment.counter, fragment.arrived_count, sessions=sessions, seen=seen)]
    number, last = -1, fragment.index << COUNTER_BITS | fragment.counter  # changes describe the messages behind it
    while fragment.log is not None and (entries := _piece(fragment, number, last)):
        yield [FragmentChanged(address, fragment.counter, fragment.arrived_count, stored=entries)]
        number = entries[-1].number


def _piece(fragment: Fragment, number: int, last: int) -> list[Entry]:
    found, size_bytes = [], 0
    for entry in islice(fragment.stored_between(number, last), PIECE_COUNT):
        found.append(entry)
        size_bytes += entry.size_bytes
        if size_bytes > PIECE_BYTES:
            break
    return found


# ---------------------------------------------------------------------- restore


@dataclass(slots=True)
class StoredFragment:
    """The contents of one fragment."""

    counter: int = 0
    arrived_count: int = 0
    entries: dict[int, Entry] = field(default_factory=dict)
    sessions: dict[str, SessionState] = field(default_factory=dict)
    seen: dict[Identity, float] = field(default_factory=dict)

    def apply(self, change: FragmentChanged) -> None:
        self.counter, self.arrived_count = change.counter, change.arrived_count
        for number in change.removed:
            self.entries.pop(number, None)
        for entry in change.stored:
            self.entries[entry.number] = entry
        for update in change.updated:
            updated = self.entries.get(update.number)
            if updated is not None:
                updated.delivery_count, updated.state = update.delivery_count, update.state
                updated.properties = update.properties
        for state in change.sessions:
            self.sessions[state.session_id] = state
        self.seen.update(change.seen)

    def restore(self, fragment: Fragment) -> None:
        """Fill an empty fragment."""
        fragment.counter, fragment.arrived_count = self.counter, self.arrived_count
        for _, entry in sorted(self.entries.items()):
            fragment.put_back(entry)
        for state in self.sessions.values():
            fragment.put_back_state(state)
        for identity, seen_at in sorted(self.seen.items(), key=lambda item: item[1]):
            fragment.seen.remember(identity, seen_at)


@dataclass(slots=True)
class StoredEntity:
    """One entity with its rules and contents."""

    definition: EntityDefined
    rules: dict[str, RuleProperties] = field(default_factory=dict)
    fragments: dict[tuple[str, int], StoredFragment] = field(default_factory=dict)


class StoredNamespace:
    """What a sequence of changes describes.

    Attributes:
        entities: by canonical path, in an order in which they can be created.
    """

    def __init__(self) -> None:
        self.entities: dict[str, StoredEntity] = {}

    def apply(self, change: Change) -> None:
        """Apply the next change. Changes of an entity that does not exist are ignored."""
        if isinstance(change, EntityRemoved):
            self.entities.pop(canonical(change.path), None)
            return
        if isinstance(change, EntityDefined):
            known = self.entities.get(canonical(change.path))
            if known is None:
                self.entities[canonical(change.path)] = StoredEntity(change)
            else:
                known.definition = change
            return
        path = change.path if isinstance(change, RuleChanged) else change.address.path
        entity = self.entities.get(canonical(path))
        if entity is None:
            return
        if isinstance(change, RuleChanged):
            entity.rules.pop(change.key, None)
            if change.properties is not None:
                entity.rules[change.key] = change.properties
        else:
            key = change.address.sub_queue, change.address.fragment_index
            entity.fragments.setdefault(key, StoredFragment()).apply(change)

    def fill(self, entity: Entity) -> None:
        """Restore the rules and contents of a new entity."""
        stored = self.entities[canonical(entity.path)]
        if entity.subscription is not None:
            for key in list(entity.subscription.rules):
                entity.subscription.drop(key)
            for key, properties in stored.rules.items():
                entity.subscription.put(key, Rule(properties))
        for (sub_queue, index), fragment in stored.fragments.items():
            body = entity.require_sub_queue(sub_queue) if sub_queue else entity.body
            fragment.restore(body.fragments[index])
