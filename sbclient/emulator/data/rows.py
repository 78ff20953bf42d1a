"""One namespace as rows of a SQLite database.

A message is one row, whose `payload` is the encoded AMQP message. Its sequence number contains the index of its
fragment. Deleting the row of an entity deletes all that belongs to it. A change of the tables needs a new `VERSION`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from operator import attrgetter
from sqlite3 import Connection
from typing import Any, Final

from sbclient import entities
from sbclient.amqp import EncodedMessage, WireError
from sbclient.amqp.decode import decode_value
from sbclient.amqp.encode import encode_value
from sbclient.amqp.types import EPOCH, Described, Long, TimeSpan
from sbclient.broker.changes import FragmentLog
from sbclient.broker.deduplication import identity_with_key
from sbclient.broker.directory import Entity
from sbclient.broker.entry import Entry
from sbclient.broker.namespace import Namespace
from sbclient.broker.rule import Rule
from sbclient.broker.sql.values import PreciseTime
from sbclient.errors import InvalidOperationError, ServiceBusError
from sbclient.message import ServiceBusMessageState
from sbclient.rules.entity_path import canonical
from sbclient.rules.sequence_number import COUNTER_BITS

VERSION: Final = 2

_OF_ENTITY: Final = "entity INTEGER NOT NULL REFERENCES entity ON DELETE CASCADE"
_OF_FRAGMENT: Final = f"{_OF_ENTITY}, sub_queue TEXT, fragment_index INTEGER"
_ATTRIBUTES: Final = (
    "enqueued_at",
    "expires_at",
    "size_bytes",
    "original_number",
    "delivery_count",
    "hops",
    "dead_letter_reason",
    "dead_letter_description",
    "dead_letter_source",
    "destination",
)
"""The attributes of an entry that are columns of their own."""

SCHEMA: Final = f"""
CREATE TABLE namespace (name TEXT PRIMARY KEY, profile TEXT NOT NULL);
CREATE TABLE entity (
    id INTEGER PRIMARY KEY, namespace TEXT NOT NULL REFERENCES namespace, topic TEXT, description BLOB NOT NULL,
    created_at REAL NOT NULL, updated_at REAL NOT NULL, accessed_at REAL NOT NULL
);
CREATE TABLE rule (
    id INTEGER PRIMARY KEY, {_OF_ENTITY}, key TEXT NOT NULL, properties BLOB NOT NULL, UNIQUE (entity, key)
);
CREATE TABLE fragment (
    {_OF_FRAGMENT}, counter INTEGER NOT NULL, arrived_count INTEGER NOT NULL,
    PRIMARY KEY (entity, sub_queue, fragment_index)
) WITHOUT ROWID;
CREATE TABLE message (
    {_OF_ENTITY}, sub_queue TEXT, number INTEGER, {", ".join(_ATTRIBUTES)}, was_scheduled INTEGER NOT NULL,
    state INTEGER NOT NULL, properties BLOB, payload BLOB NOT NULL,
    PRIMARY KEY (entity, sub_queue, number)
) WITHOUT ROWID;
CREATE TABLE session (
    {_OF_FRAGMENT}, session_id TEXT, state BLOB NOT NULL, set_at REAL NOT NULL,
    PRIMARY KEY (entity, sub_queue, fragment_index, session_id)
) WITHOUT ROWID;
CREATE TABLE seen (
    {_OF_FRAGMENT}, seen_at REAL, identity BLOB,
    PRIMARY KEY (entity, sub_queue, fragment_index, seen_at, identity)
) WITHOUT ROWID;
"""

_PUT_MESSAGE: Final = f"REPLACE INTO message VALUES (?, ?, ?, {'?, ' * len(_ATTRIBUTES)}?, ?, ?, ?)"
_MESSAGES: Final = (
    f"SELECT sub_queue, number, {', '.join(_ATTRIBUTES)}, was_scheduled, state, properties, payload "
    "FROM message WHERE entity = ? ORDER BY sub_queue, number"
)
_attributes_of: Final[Callable[[Entry], tuple[Any, ...]]] = attrgetter(*_ATTRIBUTES)


class NamespaceRows:
    """The rows of one namespace.

    Args:
        database: open; each call is part of the caller's transaction.
        namespace: without entities; it is restored.
        now: seconds.
        on_change: called when there are changes to write.

    Raises:
        InvalidOperationError: the rows belong to another profile, or cannot be decoded.

    Attributes:
        is_new: whether there were no rows.
    """

    def __init__(self, database: Connection, namespace: Namespace, now: float, on_change: Callable[[], None]) -> None:
        self._database = database
        self._namespace = namespace
        self._ids: dict[str, int] = {}
        name, profile = namespace.name, namespace.profile.name
        known = database.execute("SELECT profile FROM namespace WHERE name = ?", (name,)).fetchone()
        self.is_new = known is None
        if known is None:
            database.execute("INSERT INTO namespace VALUES (?, ?)", (name, profile))
        elif known[0] != profile:
            raise InvalidOperationError(
                f"namespace {name} in the data directory has the profile {known[0]}, and this one has {profile}: "
                f"use --profile {known[0]}, or another directory"
            )
        try:
            self._restore(now)
        except (WireError, ServiceBusError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise InvalidOperationError(
                f"namespace {name} in the data directory has a row that this release cannot read "
                f"({type(error).__name__}), so nothing was changed: use the release that has written it, or another "
                "directory"
            ) from error
        self._changes = namespace.record_changes(on_change)

    # ------------------------------------------------------------------ restore

    def _restore(self, now: float) -> None:
        management = self._namespace.management
        for entity_id, topic, description, *times in self._database.execute(
            "SELECT id, topic, description, created_at, updated_at, accessed_at FROM entity WHERE namespace = ? "
            "ORDER BY id",
            (self._namespace.name,),
        ):
            entity = management.put_back(topic, decode_description(description), now)
            entity.created_at, entity.updated_at, entity.accessed_at = times
            self._ids[canonical(entity.path)] = entity_id
            self._fill(entity, entity_id)
        management.direct_all()

    def _fill(self, entity: Entity, entity_id: int) -> None:
        def rows(query: str) -> Any:
            return self._database.execute(query, (entity_id,))

        for key, properties in rows("SELECT key, properties FROM rule WHERE entity = ? ORDER BY id"):
            assert entity.subscription is not None  # only subscriptions have rules
            entity.subscription.put(key, Rule(decode_description(properties)))
        for sub_queue, index, counter, arrived_count in rows(
            "SELECT sub_queue, fragment_index, counter, arrived_count FROM fragment WHERE entity = ?"
        ):
            fragment = entity.fragment(sub_queue, index)
            fragment.counter, fragment.arrived_count = counter, arrived_count
        for sub_queue, number, *row in rows(_MESSAGES):
            entity.fragment(sub_queue, number >> COUNTER_BITS).put_back(_entry_of(number, row))
        for sub_queue, index, session_id, state, set_at in rows(
            "SELECT sub_queue, fragment_index, session_id, state, set_at FROM session WHERE entity = ?"
        ):
            entity.fragment(sub_queue, index).put_back_state(session_id, state, set_at)
        for sub_queue, index, seen_at, identity in rows(
            "SELECT sub_queue, fragment_index, seen_at, identity FROM seen WHERE entity = ? "
            "ORDER BY sub_queue, fragment_index, seen_at"
        ):
            known = decode_value(identity)
            identity = identity_with_key(*known) if isinstance(known, list) else known  # earlier versions wrote lists
            entity.fragment(sub_queue, index).seen.remember(identity, seen_at)

    # ------------------------------------------------------------------ write

    def write(self) -> None:
        """Write the changes since the last call.

        Raises:
            sqlite3.Error, EncodeError, ValueError: they cannot be written.
        """
        changes = self._changes
        for path in changes.removed:
            self._database.execute("DELETE FROM entity WHERE id = ?", (self._ids.pop(path, None),))
        for path in changes.defined:
            self._define(path)
        for path, key in changes.rules:
            self._write_rule(path, key)
        for log in changes.fragments:
            self._write_fragment(log)
        changes.clear()

    def _define(self, path: str) -> None:
        entity = self._namespace.directory.get(path)
        assert entity is not None  # else it would have been removed
        row = (
            self._ids.get(path),
            self._namespace.name,
            None if entity.topic is None else entity.topic.path,
            encode_description(entity.description),
            entity.created_at,
            entity.updated_at,
            entity.accessed_at,
        )
        put = self._database.execute(
            "INSERT INTO entity VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET "
            "description = excluded.description, updated_at = excluded.updated_at, accessed_at = excluded.accessed_at",
            row,
        )
        self._ids.setdefault(path, put.lastrowid or 0)

    def _write_rule(self, path: str, key: str) -> None:
        entity = self._namespace.directory.get(path)
        if entity is None or entity.subscription is None:
            return  # it was deleted since
        rule, entity_id = entity.subscription.rules.get(key), self._ids[path]
        if rule is None:
            self._database.execute("DELETE FROM rule WHERE entity = ? AND key = ?", (entity_id, key))
        else:
            self._database.execute(
                "REPLACE INTO rule (entity, key, properties) VALUES (?, ?, ?)",
                (entity_id, key, encode_description(rule.properties)),
            )

    def _write_fragment(self, log: FragmentLog) -> None:
        path, sub_queue, index = log.address
        entity = self._namespace.directory.get(path)
        assert entity is not None  # else the log would have been dropped
        fragment = entity.fragment(sub_queue, index)
        queue = self._ids[canonical(path)], sub_queue
        address = (*queue, index)
        execute, execute_many = self._database.execute, self._database.executemany
        execute("REPLACE INTO fragment VALUES (?, ?, ?, ?, ?)", (*address, fragment.counter, fragment.arrived_count))
        stored, removed = [], []
        for number in log.numbers:
            entry = fragment.get(number)
            if entry is None:
                removed.append((*queue, number))
            else:
                stored.append((*queue, number, *_row_of(entry)))
        execute_many(_PUT_MESSAGE, stored)
        execute_many("DELETE FROM message WHERE entity = ? AND sub_queue = ? AND number = ?", removed)
        for session_id in log.sessions:
            state, set_at = fragment.state_of(session_id)
            if state is not None:
                execute("REPLACE INTO session VALUES (?, ?, ?, ?, ?, ?)", (*address, session_id, state, set_at))
            else:
                execute(
                    "DELETE FROM session WHERE entity = ? AND sub_queue = ? AND fragment_index = ? AND session_id = ?",
                    (*address, session_id),
                )
        if log.seen:
            execute_many(
                "REPLACE INTO seen VALUES (?, ?, ?, ?, ?)",
                [(*address, seen_at, encode_value(identity)) for identity, seen_at in log.seen],
            )
            ended_at = log.seen[-1][1] - fragment.policy.duplicate_window_s
            execute(
                "DELETE FROM seen WHERE entity = ? AND sub_queue = ? AND fragment_index = ? AND seen_at <= ?",
                (*address, ended_at),
            )


def _row_of(entry: Entry) -> tuple[Any, ...]:
    """The columns of a message after its number."""
    content = entry.content
    properties = encode_value(dict(entry.properties)) if entry.properties else None
    return (
        *_attributes_of(entry),
        entry.was_scheduled,
        entry.state.value,
        properties,
        content.payload,
    )


def _entry_of(number: int, row: list[Any]) -> Entry:
    *attributes, was_scheduled, state, properties, payload = row
    entry = Entry(EncodedMessage.of(payload), 0)
    for name, value in zip(_ATTRIBUTES, attributes, strict=True):
        setattr(entry, name, value)
    entry.number, entry.was_scheduled, entry.state = number, bool(was_scheduled), ServiceBusMessageState(state)
    if properties is not None:
        entry.properties = decode_value(properties, typed=True)
    return entry


_MICROSECOND: Final = timedelta(microseconds=1)
_NUMBERS: Final = {"long": Long, "ticks": TimeSpan.of_ticks}
_CLASSES: Final[dict[str, type[Any]]] = {
    name: each
    for name, each in vars(entities).items()
    if isinstance(each, type) and (is_dataclass(each) or issubclass(each, Enum))
}
"""The classes of descriptions, by the names with which their values are stored."""


def encode_description(description: entities.EntityProperties) -> bytes:
    """
    Raises:
        EncodeError: a value has no AMQP type.
    """
    return encode_value(_described(description))


def decode_description(raw: bytes) -> Any:
    """
    Raises:
        WireError, LookupError, TypeError, ValueError: the bytes are no description that this release knows.
    """
    return _restored(decode_value(raw))


def _described(value: Any) -> Any:
    """A description as AMQP values: classes become descriptors."""
    if isinstance(value, Enum):
        return Described(type(value).__name__, value.value)
    if is_dataclass(value):
        stated = {each.name: _described(getattr(value, each.name)) for each in fields(value)}
        return Described(type(value).__name__, {name: each for name, each in stated.items() if each is not None})
    if isinstance(value, Long):
        return Described("long", int(value))
    if isinstance(value, TimeSpan):
        return Described("ticks", value.ticks)
    if isinstance(value, timedelta):
        return Described("timedelta", [value.days, value.seconds, value.microseconds])
    if isinstance(value, datetime):
        aware = value.replace(tzinfo=UTC) if value.tzinfo is None else value
        since = (aware - EPOCH) // _MICROSECOND
        return (
            Described("precise", [since, value.tick])
            if isinstance(value, PreciseTime)
            else Described("datetime", since)
        )
    if isinstance(value, dict):
        return {name: _described(each) for name, each in value.items()}
    return [_described(each) for each in value] if isinstance(value, list) else value


def _restored(value: Any) -> Any:
    """The description that `_described` has encoded."""
    if isinstance(value, Described):
        name, content = value
        if name == "timedelta":
            return timedelta(*content)
        if name == "datetime":
            return EPOCH + content * _MICROSECOND
        if name == "precise":
            time = PreciseTime.fromtimestamp(0, UTC) + content[0] * _MICROSECOND
            time.tick = content[1]
            return time
        if name in _NUMBERS:
            return _NUMBERS[name](content)
        described = _CLASSES[name]
        return described(**_restored(content)) if isinstance(content, dict) else described(content)
    if isinstance(value, dict):
        return {name: _restored(each) for name, each in value.items()}
    return [_restored(each) for each in value] if isinstance(value, list) else value
