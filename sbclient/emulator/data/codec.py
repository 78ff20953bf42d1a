"""Encode the changes of a namespace as bytes, and decode them.

Each record is an AMQP list whose first element is its kind. The record of a fragment precedes those of its messages.
A change of this layout needs a new version in `data_file`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, Final

from sbclient import entities
from sbclient.amqp import WireError, WireMessage, encode_message
from sbclient.amqp.decode import decode_at, decode_value
from sbclient.amqp.encode import (
    encode_binary,
    encode_double,
    encode_integer,
    encode_string,
    encode_value,
    list_of,
)
from sbclient.amqp.errors import DECODE_ERROR
from sbclient.amqp.types import EPOCH, Described
from sbclient.broker.changes import (
    Change,
    EntityDefined,
    EntityRemoved,
    EntryUpdate,
    FragmentAddress,
    FragmentChanged,
    RuleChanged,
    SessionState,
)
from sbclient.broker.entry import Entry
from sbclient.message import ServiceBusMessageState

_MICROSECOND: Final = timedelta(microseconds=1)
_ENTITY, _REMOVED, _RULE, _FRAGMENT = "entity", "removed", "rule", "fragment"
_STORED, _UPDATED, _GONE, _SESSION, _SEEN = "+", "=", "-", "session", "id"
_STORED_KIND: Final = encode_string(_STORED)
_GONE_KIND: Final = encode_string(_GONE)
_NULL: Final = encode_value(None)

_CLASSES: Final[dict[str, type[Any]]] = {
    described.__name__: described
    for described in (
        entities.AccessRights,
        entities.AuthorizationRule,
        entities.CorrelationRuleFilter,
        entities.EntityAvailabilityStatus,
        entities.EntityStatus,
        entities.FalseRuleFilter,
        entities.QueueProperties,
        entities.RuleProperties,
        entities.SqlRuleAction,
        entities.SqlRuleFilter,
        entities.SubscriptionProperties,
        entities.TopicProperties,
        entities.TrueRuleFilter,
    )
}
"""The classes of descriptions, by the names with which their values are stored."""


# ---------------------------------------------------------------------- encode


def encode_changes(changes: Iterable[Change]) -> bytes:
    """Encode changes, in order.

    Raises:
        EncodeError: a value has no AMQP type.
    """
    return b"".join([record for change in changes for record in _records_of(change)])


def _records_of(change: Change) -> Iterator[bytes]:
    if isinstance(change, FragmentChanged):
        yield encode_value((_FRAGMENT, *change.address, change.counter, change.arrived_count))
        for entry in change.stored:
            yield _stored(entry)
        for update in change.updated:
            yield encode_value((_UPDATED, *update[:3], encode_value(dict(update.properties))))
        for number in change.removed:
            yield list_of((_GONE_KIND, encode_integer(number)))
        for state in change.sessions:
            yield encode_value((_SESSION, *state))
        for identity, seen_at in change.seen:
            yield encode_value((_SEEN, identity, seen_at))
    elif isinstance(change, EntityDefined):
        description = _described(change.description)
        yield encode_value((_ENTITY, *change[:2], description, *change[3:]))
    elif isinstance(change, RuleChanged):
        yield encode_value((_RULE, change.path, change.key, _described(change.properties)))
    else:
        yield encode_value((_REMOVED, change.path))


def _stored(entry: Entry) -> bytes:
    content = entry.content
    message_id = _NULL
    if isinstance(content, WireMessage):
        payload = content.sections.payload
        if content.message_id is not None and content.sections.properties[0] is None:  # given by the broker
            message_id = encode_string(content.message_id)
    else:
        payload = encode_message(content)
    return list_of(
        (
            _STORED_KIND,
            encode_integer(entry.number),
            encode_double(entry.enqueued_at),
            encode_double(entry.expires_at),
            encode_integer(entry.size_bytes),
            message_id,
            _rest_of(entry),
            encode_binary(payload),
        )
    )


def _rest_of(entry: Entry) -> bytes:
    """What most messages do not have."""
    rest = (
        entry.original_number,
        entry.delivery_count,
        entry.state,
        entry.hops,
        entry.dead_letter_reason,
        entry.dead_letter_description,
        entry.dead_letter_source,
        entry.destination,
        entry.was_scheduled,
    )
    if not any(rest[1:]) and rest[0] is None and not entry.properties:
        return _NULL
    return encode_value((*rest, encode_value(dict(entry.properties)) if entry.properties else None))


def _described(value: Any) -> Any:
    """A description as AMQP values: classes become descriptors."""
    if isinstance(value, Enum):
        return Described(type(value).__name__, value.value)
    if is_dataclass(value) and not isinstance(value, type):
        stated = {each.name: _described(getattr(value, each.name)) for each in fields(value)}
        return Described(type(value).__name__, {name: each for name, each in stated.items() if each is not None})
    if isinstance(value, timedelta):
        return Described("timedelta", [value.days, value.seconds, value.microseconds])
    if isinstance(value, datetime):
        aware = value.replace(tzinfo=UTC) if value.tzinfo is None else value
        return Described("datetime", (aware - EPOCH) // _MICROSECOND)
    if isinstance(value, dict):
        return {name: _described(each) for name, each in value.items()}
    return [_described(each) for each in value] if isinstance(value, list) else value


# ---------------------------------------------------------------------- decode


def decode_changes(raw: bytes) -> Iterator[Change]:
    """Decode changes, in order.

    Raises:
        WireError: the bytes are not changes.
    """
    position = 0
    fragment: FragmentChanged | None = None
    while position < len(raw):
        record, position = decode_at(raw, position)
        kind = record[0]
        if kind in _PARTS:
            if fragment is None:
                raise WireError(DECODE_ERROR, f"a record {kind!r} follows no fragment")
            _PARTS[kind](fragment, *record[1:])
            continue
        if fragment is not None:
            yield fragment
            fragment = None
        if kind == _FRAGMENT:
            *address, counter, arrived_count = record[1:]
            fragment = FragmentChanged(FragmentAddress(*address), counter, arrived_count)
        elif kind == _ENTITY:
            path, topic, description, *times = record[1:]
            yield EntityDefined(path, topic, _restored(description), *times)
        elif kind == _RULE:
            path, key, properties = record[1:]
            yield RuleChanged(path, key, _restored(properties))
        elif kind == _REMOVED:
            yield EntityRemoved(record[1])
        else:
            raise WireError(DECODE_ERROR, f"a record has the unknown kind {kind!r}")
    if fragment is not None:
        yield fragment


def _add_stored(
    fragment: FragmentChanged,
    number: int,
    enqueued_at: float,
    expires_at: float,
    size_bytes: int,
    message_id: str | None,
    rest: list[Any] | None,
    payload: bytes,
) -> None:
    content = WireMessage.of(payload)
    if message_id is not None:
        content.message_id = message_id
    entry = Entry(content, size_bytes)
    entry.number, entry.enqueued_at, entry.expires_at = number, enqueued_at, expires_at
    if rest is not None:
        (
            entry.original_number,
            entry.delivery_count,
            state,
            entry.hops,
            entry.dead_letter_reason,
            entry.dead_letter_description,
            entry.dead_letter_source,
            entry.destination,
            entry.was_scheduled,
            properties,
        ) = rest
        entry.state = ServiceBusMessageState(state)
        if properties is not None:
            entry.properties = decode_value(properties, typed=True)
    fragment.stored.append(entry)


def _add_update(fragment: FragmentChanged, number: int, delivery_count: int, state: int, properties: bytes) -> None:
    kept = decode_value(properties, typed=True)
    fragment.updated.append(EntryUpdate(number, delivery_count, ServiceBusMessageState(state), kept))


def _add_seen(fragment: FragmentChanged, identity: str | list[str], seen_at: float) -> None:
    fragment.seen.append((identity if isinstance(identity, str) else (identity[0], identity[1]), seen_at))


_PARTS: Final[dict[str, Callable[..., None]]] = {
    _STORED: _add_stored,
    _UPDATED: _add_update,
    _GONE: lambda fragment, number: fragment.removed.append(number),
    _SESSION: lambda fragment, *state: fragment.sessions.append(SessionState(*state)),
    _SEEN: _add_seen,
}


def _restored(value: Any) -> Any:
    """The description that `_described` has encoded."""
    if isinstance(value, Described):
        name, content = value
        if name == "timedelta":
            return timedelta(*content)
        if name == "datetime":
            return EPOCH + timedelta(microseconds=content)
        described = _CLASSES.get(name)
        if described is None:
            raise WireError(DECODE_ERROR, f"a description has the unknown class {name!r}")
        return described(**_restored(content)) if isinstance(content, dict) else described(content)
    if isinstance(value, dict):
        return {name: _restored(each) for name, each in value.items()}
    return [_restored(each) for each in value] if isinstance(value, list) else value
