"""Compile the filters and actions of rules.

* A filter sees system and user properties, never the body.
* A correlation filter requires that all properties set in it are equal. Text is compared case-sensitively. The
  names of user properties are case-insensitive, as in the .NET clients. Values of different types are not equal: 2 is
  not `'2'`. A filter without properties selects every message.
* An SQL filter selects a message if its predicate is true, not if it is false or unknown.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from operator import attrgetter
from random import Random
from typing import Any, NamedTuple

from sbclient.amqp import EncodedMessage
from sbclient.amqp.encoded import changes_of
from sbclient.amqp.types import milliseconds_of
from sbclient.broker.rule_index import Equality, correlation_equality, sql_equality
from sbclient.broker.sql.binding import Binding
from sbclient.broker.sql.predicates import Test, predicate
from sbclient.broker.sql.properties import Scope, SystemProperties, user_property
from sbclient.broker.sql.statements import Change, changes
from sbclient.broker.sql.values import FilterError, Steps, Value, checked, compare
from sbclient.entities import (
    CORRELATION_FIELDS,
    CorrelationRuleFilter,
    FalseRuleFilter,
    RuleFilter,
    SqlRuleAction,
    TrueRuleFilter,
)
from sbclient.errors import InvalidOperationError
from sbclient.message import ServiceBusMessage

__all__ = ["Action", "Filter", "FilterError", "SystemProperties", "compile_action", "compile_filter"]


class Filter:
    """Selects messages.

    Args:
        test: returns the truth of the filter in a scope, or the answer for every message.
        equality: what decides that it does not match, if one property does.

    Attributes:
        key: for a `RuleIndex`.
    """

    __slots__ = ("_test", "key")

    def __init__(self, test: Test | bool, equality: Equality | None = None) -> None:
        self._test = test
        self.key: Equality | bool = equality or test is not False

    def matches(
        self,
        message: EncodedMessage | ServiceBusMessage,
        system: SystemProperties,
        random: Random | None = None,
        steps: Steps | None = None,
    ) -> bool:
        """Whether the message is selected.

        Args:
            random: the source of `newid()`; without it that function is an error.
            steps: counts the work; None = the evaluation may take as much as any.

        Raises:
            FilterError: the filter cannot be evaluated for this message.
        """
        if isinstance(self._test, bool):
            return self._test
        return self._test(Scope(message.application_properties, message, system, random, steps or Steps())) is True


def compile_filter(rule_filter: RuleFilter) -> Filter:
    """Return the compiled filter of a rule.

    Raises:
        InvalidOperationError: the expression or a value is invalid; the error gives the place and the reason.
    """
    if isinstance(rule_filter, TrueRuleFilter | FalseRuleFilter):
        return Filter(isinstance(rule_filter, TrueRuleFilter))
    if isinstance(rule_filter, CorrelationRuleFilter):
        return _correlation(rule_filter)
    from sbclient.broker.sql.parser import parse_filter  # imported late, because it loads the parser library

    tree = parse_filter(rule_filter.sql_expression)
    binding = Binding("filter", rule_filter.parameters)
    return Filter(predicate(tree, binding), sql_equality(tree, binding))


def compile_action(action: SqlRuleAction) -> Action:
    """Return the compiled action of a rule.

    Raises:
        InvalidOperationError: a statement or a value is invalid; the error gives the place and the reason.
    """
    from sbclient.broker.sql.parser import parse_action  # as above

    return Action(changes(parse_action(action.sql_expression), Binding("action", action.parameters)))


class Action:
    """Changes the copies of messages that a rule makes."""

    __slots__ = ("_changes",)

    def __init__(self, changes: tuple[Change, ...]) -> None:
        self._changes = changes

    def apply(
        self, message: EncodedMessage, system: SystemProperties, random: Random, steps: Steps | None = None
    ) -> EncodedMessage:
        """Return a changed copy of a message.

        Args:
            random: the source of `newid()`.
            steps: as for `Filter.matches`.

        Raises:
            FilterError: a statement cannot be executed for this message.
        """
        copy = message.decoded()
        properties = dict(message.application_properties)
        scope = Scope(properties, copy, system, random, steps or Steps())
        for change in self._changes:
            change(scope)
        return message.rewritten(
            application_properties=message.encoded_properties(properties, message.application_properties),
            created_at_ms=0 if system.enqueued_time_utc is None else milliseconds_of(system.enqueued_time_utc),
            **changes_of(copy),
        )


class _Condition(NamedTuple):
    """A property that must be equal; `name` is empty for one of the message itself."""

    name: str
    read: Callable[[Scope], Any]
    wanted: Value


def _correlation(rule_filter: CorrelationRuleFilter) -> Filter:
    conditions = [*_of_system(rule_filter), *_of_user(rule_filter)]
    if not conditions:
        return Filter(True)
    keys = (correlation_equality(each.name, None if each.name else each.read, each.wanted) for each in conditions)
    return Filter(
        lambda scope: all(_is_equal(each.read(scope), each.wanted) for each in conditions),
        next(filter(None, keys), None),
    )


def _of_system(rule_filter: CorrelationRuleFilter) -> list[_Condition]:
    conditions: list[_Condition] = []
    for name in CORRELATION_FIELDS:
        wanted = getattr(rule_filter, name)
        if wanted is None:
            continue
        if not isinstance(wanted, str):
            raise InvalidOperationError(f"{name} of the correlation filter is a {type(wanted).__name__}: give text")
        conditions.append(_Condition("", _reader("subject" if name == "label" else name), wanted))
    return conditions


@cache
def _reader(attribute: str) -> Callable[[Scope], Any]:
    """One function for each attribute: rules that read the same property share a place in the index."""
    return attrgetter(f"message.{attribute}")


def _of_user(rule_filter: CorrelationRuleFilter) -> list[_Condition]:
    conditions: list[_Condition] = []
    for name, wanted in (rule_filter.properties or {}).items():
        try:
            value = checked(wanted)
        except ValueError as error:
            raise InvalidOperationError(f"property {name!r} of the correlation filter is refused: {error}") from error
        if value is None:
            raise InvalidOperationError(
                f"property {name!r} of the correlation filter is None: give a value, or use SQL with IS NULL"
            )
        conditions.append(_Condition(name, user_property(name), value))
    return conditions


def _is_equal(value: object, wanted: Value) -> bool:
    if type(value) is str and type(wanted) is str:
        return value == wanted
    try:
        return compare("=", value, wanted, "correlation")
    except FilterError:
        return False
