"""What is written to the data directory is read again with its type and all its digits: each value of each row."""

from __future__ import annotations

import math
import sqlite3
from contextlib import closing
from dataclasses import fields, is_dataclass
from datetime import UTC
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbclient import entities
from sbclient.amqp import EncodedMessage
from sbclient.amqp.encode import encode_value
from sbclient.broker.entry import Entry
from sbclient.emulator.data import rows
from sbclient.emulator.data.rows import decode_description, encode_description
from sbclient.emulator.management.atom_values import read_any
from sbclient.message import ServiceBusMessage, ServiceBusMessageState
from tests.amqp.strategies import scalars, text
from tests.payloads import payload_of

INT64 = st.integers(-(2**63), 2**63 - 1)
TICKS = st.integers(0, 9_999_999).map("{:07}".format)
PARAMETERS = {
    "long": INT64.map(str),
    "int": st.integers(-(2**31), 2**31 - 1).map(str),
    "double": st.floats(allow_nan=False, allow_infinity=False).map(repr),
    "boolean": st.sampled_from(["true", "false"]),
    "dateTime": TICKS.map("2026-11-23T10:00:00.{}Z".format),
    "duration": TICKS.map("P2DT1H0.{}S".format),
    "string": text,
}
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "str": text,
    "bool": st.booleans(),
    "int": INT64,
    "timedelta": st.timedeltas(),
    "datetime": st.datetimes().map(lambda time: time.replace(tzinfo=UTC, fold=0)),
    "dict[str, Any]": st.builds(  # one of each type, since a type that is drawn seldom is compared seldom
        lambda name, values: {f"{name}{each}": read_any(each, value) for each, value in values.items()},
        text,
        st.fixed_dictionaries(PARAMETERS),
    ),
    "list[AccessRights]": st.lists(st.sampled_from(entities.AccessRights)),
    "EntityStatus": st.sampled_from(entities.EntityStatus),
    "EntityAvailabilityStatus": st.sampled_from(entities.EntityAvailabilityStatus),
}


def made(kind: type[Any]) -> st.SearchStrategy[Any]:
    """Any value of a class of descriptions."""
    chosen = {}
    for each in fields(kind):
        name = str(each.type)
        chosen[each.name] = VALUES[name.removesuffix(" | None")] | (
            st.none() if name.endswith("None") else st.nothing()
        )
    return st.builds(kind, **chosen)


VALUES["list[AuthorizationRule]"] = st.lists(made(entities.AuthorizationRule), max_size=2)
VALUES["SqlRuleAction"] = made(entities.SqlRuleAction)
VALUES["RuleFilter"] = (
    made(entities.SqlRuleFilter)
    | made(entities.TrueRuleFilter)
    | made(entities.FalseRuleFilter)
    | made(entities.CorrelationRuleFilter)
)


def typed(value: Any) -> Any:
    """A value that can be compared with its type and all its digits."""
    if is_dataclass(value):
        return type(value), {each.name: typed(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, dict):
        return {name: typed(each) for name, each in value.items()}
    if isinstance(value, list):
        return [typed(each) for each in value]
    return type(value), repr(value), getattr(value, "tick", None), getattr(value, "ticks", None)


@pytest.mark.parametrize(
    "kind",
    [entities.QueueProperties, entities.TopicProperties, entities.SubscriptionProperties, entities.RuleProperties],
)
def test_descriptions(kind: type[Any]) -> None:
    @given(made(kind))
    @settings(max_examples=50, deadline=None)
    def check(description: Any) -> None:
        assert typed(decode_description(encode_description(description))) == typed(description)

    check()


TIMES = st.floats(0, 253_402_300_799, exclude_min=True) | st.just(math.inf)
ATTRIBUTES: dict[str, st.SearchStrategy[Any]] = {
    "enqueued_at": TIMES,
    "expires_at": TIMES,
    "size_bytes": INT64,
    "original_number": st.none() | INT64,
    "delivery_count": INT64,
    "hops": INT64,
    "dead_letter_reason": st.none() | text,
    "dead_letter_description": st.none() | text,
    "dead_letter_source": st.none() | text,
    "destination": st.none() | text,
    "was_scheduled": st.booleans(),
    "state": st.sampled_from(ServiceBusMessageState),
    "number": st.integers(1, 2**63 - 1),
    "properties": st.dictionaries(text, scalars, max_size=4),
}
OF_A_LOCK = {"token", "locked_until"}  # it ends with the process


@given(st.fixed_dictionaries(ATTRIBUTES), st.binary(max_size=40))
@settings(max_examples=50, deadline=None)
def test_messages(attributes: dict[str, Any], body: bytes) -> None:
    entry = Entry(EncodedMessage.of(payload_of(ServiceBusMessage(body, message_id="m"))), 0)
    for name, value in attributes.items():
        setattr(entry, name, value)
    assert {*attributes, "content"} | OF_A_LOCK == set(Entry.__slots__)
    with closing(sqlite3.connect(":memory:")) as database:
        database.executescript(rows.SCHEMA)
        database.execute(rows._PUT_MESSAGE, (1, "", entry.number, *rows._row_of(entry)))
        ((_, number, *row),) = database.execute(rows._MESSAGES, (1,))
    found = rows._entry_of(number, row)
    assert found.content.payload == entry.content.payload
    assert encode_value(dict(found.properties)) == encode_value(dict(entry.properties))
    for name in set(attributes) - {"properties"}:
        assert typed(getattr(found, name)) == typed(getattr(entry, name)), name
