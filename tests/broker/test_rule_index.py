"""The index of the rules of a topic finds what an evaluation of every rule finds."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from random import Random
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbclient.amqp import encode_message
from sbclient.broker.filters import Filter, SystemProperties, compile_filter
from sbclient.broker.rule_index import RuleIndex
from sbclient.broker.sql.properties import Scope
from sbclient.broker.sql.values import FilterError, Steps
from sbclient.entities import CorrelationRuleFilter, FalseRuleFilter, RuleFilter, SqlRuleFilter, TrueRuleFilter
from sbclient.errors import MessagingEntityAlreadyExistsError
from sbclient.message import ServiceBusMessage
from tests.broker.driver import Driver, address

SYSTEM = SystemProperties(sequence_number=1)
NAMES = ("color", "Color", "COLOR", "size", "missing")
VALUES: tuple[Any, ...] = (
    *("red", "Red", "1", "", 1, 2, True, False, 1.0, 2.5, Decimal(1)),
    *(UUID(int=1), datetime(2020, 1, 1, tzinfo=UTC)),
)
TEXTS = ("red", "Red", "1", "")
PROPERTIES = ("color", "Color", "size", "user.color", "missing", "sys.Label", "sys.SequenceNumber", "sys.To")
LITERALS = ("'red'", "'Red'", "'1'", "1", "2", "-1", "1.0", "TRUE", "NULL", "@text", "@number")
PARAMETERS = {"text": "red", "number": 1}

properties, literals = st.sampled_from(PROPERTIES), st.sampled_from(LITERALS)
terms = st.one_of(
    st.builds("{} = {}".format, properties, literals),
    st.builds("{} = {}".format, literals, properties),
    st.builds("{} IN ({}, {})".format, properties, literals, literals),
    st.builds("{} NOT IN ({}, {})".format, properties, literals, literals),
    st.builds("{} <> {}".format, properties, literals),
    st.builds("{} = {}".format, properties, properties),
    st.builds("{} > 1".format, properties),
    st.builds("{} IS NULL".format, properties),
    st.sampled_from(["1 / 0 = 1", "1 = 1", "newid() = color", "EXISTS(color)"]),
)
expressions = st.recursive(
    terms,
    lambda inner: st.one_of(
        st.builds("({} AND {})".format, inner, inner),
        st.builds("({} OR {})".format, inner, inner),
        st.builds("NOT ({})".format, inner),
    ),
    max_leaves=4,
)
wanted = st.dictionaries(st.sampled_from(NAMES), st.sampled_from(VALUES), max_size=2)
filters: st.SearchStrategy[RuleFilter] = st.one_of(
    st.builds(SqlRuleFilter, expressions, st.just(PARAMETERS)),
    st.builds(
        CorrelationRuleFilter,
        label=st.none() | st.sampled_from(TEXTS),
        to=st.none() | st.sampled_from(TEXTS),
        properties=wanted,
    ),
    st.sampled_from([TrueRuleFilter(), FalseRuleFilter()]),
)
sent_messages = st.builds(
    ServiceBusMessage,
    st.just(b""),
    subject=st.none() | st.sampled_from(TEXTS),
    to=st.none() | st.sampled_from(TEXTS),
    application_properties=st.dictionaries(st.sampled_from(NAMES[:-1]), st.sampled_from(VALUES), max_size=3),
)


def result(ready: Filter, scope: Scope) -> bool | str:
    try:
        return ready.matches(scope.message, SYSTEM, scope.random)
    except FilterError as error:
        return str(error)


def scope_of(message: ServiceBusMessage) -> Scope:
    encoded = encode_message(message)
    return Scope(encoded.application_properties, encoded, SYSTEM, Random(1), Steps())


def compare(chosen: list[RuleFilter], messages: list[ServiceBusMessage]) -> None:
    """Check that the index finds, in order, each rule that matches, fails or takes a random value."""
    rules = list(enumerate(map(compile_filter, chosen)))
    index = RuleIndex((rule, rule[1].key) for rule in rules)
    for message in messages:
        by_index, each = scope_of(message), scope_of(message)
        found = [(number, result(ready, by_index)) for number, ready in index.candidates(by_index)]
        expected = [(number, result(ready, each)) for number, ready in rules]
        assert [one for one in found if one[1] is not False] == [one for one in expected if one[1] is not False]
        assert by_index.random is not None
        assert each.random is not None
        assert by_index.random.getstate() == each.random.getstate()


@given(st.lists(filters, max_size=8), sent_messages)
def test_the_index_finds_each_rule_that_matches_or_fails(chosen: list[RuleFilter], message: ServiceBusMessage) -> None:
    compare(chosen, [message])


def test_the_index_finds_each_equality_of_each_type() -> None:
    equal = [f"{name} = {literal}" for name in ("color", "sys.Label") for literal in LITERALS]
    chosen = [f"color {word} ({one}, {other})" for word in ("IN", "NOT IN") for one in LITERALS for other in LITERALS]
    terms = [*equal, *chosen[::3], *(" = ".join(reversed(each.split(" = "))) for each in equal)]
    expressions = [text for term in terms for text in (term, f"{term} AND 1 / 0 = 1", f"1 / 0 = 1 AND {term}")]
    sql = [SqlRuleFilter(text, PARAMETERS) for text in expressions]
    properties = [CorrelationRuleFilter(properties={name: value}) for name in NAMES for value in VALUES]
    labels = [CorrelationRuleFilter(label=text, to=to) for text in TEXTS for to in (None, "red")]
    messages = [
        ServiceBusMessage(b"", subject="red", application_properties={name: value})
        for name in NAMES
        for value in VALUES
    ]
    both = ServiceBusMessage(b"", to="red", application_properties={"COLOR": 1, "color": "red"})
    compare([*sql, *properties, *labels], [*messages, both, ServiceBusMessage(b"")])


@pytest.mark.parametrize(
    "make",
    [
        lambda number: SqlRuleFilter(f"color = 'c{number}'"),
        lambda number: SqlRuleFilter(f"{number} = size"),
        lambda number: SqlRuleFilter(f"color IN ('c{number}', 'd{number}') AND size > 1"),
        lambda number: SqlRuleFilter(f"sys.Label = @label{number} AND 1 = 1", {f"label{number}": f"c{number}"}),
        lambda number: CorrelationRuleFilter(label=f"c{number}"),
        lambda number: CorrelationRuleFilter(properties={"COLOR": f"c{number}"}),
        lambda number: CorrelationRuleFilter(properties={f"property{number}": 1}),
        lambda number: FalseRuleFilter(),
    ],
    ids=["text", "integer", "in", "system", "label", "property", "names", "false"],
)
def test_rules_of_other_values_are_not_evaluated(make: Callable[[int], RuleFilter]) -> None:
    index = RuleIndex((number, compile_filter(make(number)).key) for number in range(100))
    message = ServiceBusMessage(b"", subject="c7", application_properties={"color": "c7", "size": 7, "property7": 1})
    assert index.candidates(scope_of(message)) in ([7], [])


def test_the_index_follows_every_change_of_rules_and_subscriptions(broker: Driver) -> None:
    broker.topic()
    broker.subscription("t", "s")
    broker.subscription("t", "other")
    rule = "t/Subscriptions/s/$Rules/red"

    def copies() -> list[int]:
        broker.send("t", ServiceBusMessage(b"", subject="red"))
        return [len(broker.drain(f"t/Subscriptions/{name}")) for name in ("s", "other")]

    assert copies() == [1, 1]
    broker.delete(address("t/Subscriptions/s/$Rules/$Default"))
    assert copies() == [0, 1]
    created = broker.rule("t/Subscriptions/s", "red", filter=SqlRuleFilter("sys.Label = 'red'"))
    assert copies() == [1, 1]
    created.filter = CorrelationRuleFilter(label="blue")
    broker.update(address(rule), created)
    assert copies() == [0, 1]
    created.filter = CorrelationRuleFilter(label="red")
    broker.update(address(rule), created)
    assert copies() == [1, 1]
    transaction = broker.begin()
    broker.delete(address(rule), transaction)
    broker.rule("t/Subscriptions/other", "late", transaction, filter=FalseRuleFilter())
    broker.rule("t/Subscriptions/other", "late", filter=FalseRuleFilter())
    with pytest.raises(MessagingEntityAlreadyExistsError):
        broker.commit(transaction)
    assert copies() == [1, 1], "the failed commit was undone"
    broker.delete(address("t/Subscriptions/other"))
    broker.subscription("t", "other")
    broker.delete(address("t/Subscriptions/other/$Rules/$Default"))
    assert copies() == [1, 0]
