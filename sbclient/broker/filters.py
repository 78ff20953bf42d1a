"""Compile the filters and actions of rules.

* A filter sees system and user properties, never the body (B-072).
* A correlation filter asks for equality of everything that is set in it. Text is compared case-sensitively (B-076); the
  names of user properties are case-insensitive, as the .NET clients keep them; a value of another type is not equal, so
  2 is not `'2'`. One in which nothing is set selects every message.
* An SQL filter selects where its predicate is true; false and unknown are alike.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from random import Random
from typing import Any, Final, Protocol, TypeAlias

from sbclient.broker.sql.binding import Binding
from sbclient.broker.sql.predicates import Test, predicate
from sbclient.broker.sql.properties import Scope, SystemProperties, user_property
from sbclient.broker.sql.statements import Change, changes
from sbclient.broker.sql.values import FilterError, Steps, Value, checked, compare
from sbclient.entities import (
    CorrelationRuleFilter,
    FalseRuleFilter,
    RuleFilter,
    SqlRuleAction,
    TrueRuleFilter,
)
from sbclient.errors import InvalidOperationError
from sbclient.message import ServiceBusMessage

__all__ = ["Action", "Filter", "FilterError", "SystemProperties", "compile_action", "compile_filter"]


class Filter(Protocol):
    """Selects messages."""

    def matches(self, message: ServiceBusMessage, system: SystemProperties, random: Random | None = None) -> bool:
        """Whether the message is selected.

        Args:
            random: what `newid()` draws from; without it that function is an error.

        Raises:
            FilterError: the filter cannot be evaluated for this message.
        """
        ...


def compile_filter(rule_filter: RuleFilter) -> Filter:
    """The filter of a rule, ready for messages.

    Raises:
        InvalidOperationError: the expression or a value is refused; the text says where and why.
    """
    if isinstance(rule_filter, TrueRuleFilter):
        return _EVERY
    if isinstance(rule_filter, FalseRuleFilter):
        return _NONE
    if isinstance(rule_filter, CorrelationRuleFilter):
        return _CorrelationFilter(rule_filter)
    from sbclient.broker.sql.parser import parse_filter  # loads the parser library: only who writes SQL waits for it

    tree = parse_filter(rule_filter.sql_expression)
    return _SqlFilter(predicate(tree, Binding("filter", rule_filter.parameters)))


def compile_action(action: SqlRuleAction) -> Action:
    """The action of a rule, ready for messages.

    Raises:
        InvalidOperationError: the statements or a value are refused; the text says where and why.
    """
    from sbclient.broker.sql.parser import parse_action  # as above

    return Action(changes(parse_action(action.sql_expression), Binding("action", action.parameters)))


class Action:
    """Changes what a rule with an action puts into its subscription."""

    __slots__ = ("_changes",)

    def __init__(self, changes: tuple[Change, ...]) -> None:
        self._changes = changes

    def apply(self, message: ServiceBusMessage, system: SystemProperties, random: Random) -> ServiceBusMessage:
        """A changed copy; the message itself stays as it is.

        Args:
            random: what `newid()` draws from.

        Raises:
            FilterError: a statement cannot be carried out for this message.
        """
        copy = message.copy()
        scope = Scope(copy.application_properties, copy, system, random, Steps())
        for change in self._changes:
            change(scope)
        return copy


class _Constant:
    __slots__ = ("_answer",)

    def __init__(self, answer: bool) -> None:
        self._answer = answer

    def matches(self, message: ServiceBusMessage, system: SystemProperties, random: Random | None = None) -> bool:
        return self._answer


_EVERY: Final = _Constant(True)
_NONE: Final = _Constant(False)


class _SqlFilter:
    __slots__ = ("_test",)

    def __init__(self, test: Test) -> None:
        self._test = test

    def matches(self, message: ServiceBusMessage, system: SystemProperties, random: Random | None = None) -> bool:
        return self._test(Scope(message.application_properties, message, system, random, Steps())) is True


_Condition: TypeAlias = tuple[Callable[[Scope], Any], Value]


class _CorrelationFilter:
    __slots__ = ("_conditions",)

    def __init__(self, rule_filter: CorrelationRuleFilter) -> None:
        self._conditions = (*_of_system(rule_filter), *_of_user(rule_filter))

    def matches(self, message: ServiceBusMessage, system: SystemProperties, random: Random | None = None) -> bool:
        scope = Scope(message.application_properties, message, system, random, Steps())
        return all(_is_equal(read(scope), wanted) for read, wanted in self._conditions)


_CORRELATED: Final = {
    "correlation_id": "correlation_id",
    "message_id": "message_id",
    "to": "to",
    "reply_to": "reply_to",
    "label": "subject",
    "session_id": "session_id",
    "reply_to_session_id": "reply_to_session_id",
    "content_type": "content_type",
}
"""The attributes of a correlation filter and the message's attributes they are compared with."""


def _of_system(rule_filter: CorrelationRuleFilter) -> list[_Condition]:
    conditions: list[_Condition] = []
    for name, attribute in _CORRELATED.items():
        wanted = getattr(rule_filter, name)
        if wanted is None:
            continue
        if not isinstance(wanted, str):
            raise InvalidOperationError(f"{name} of the correlation filter is a {type(wanted).__name__}: give text")
        conditions.append((attrgetter(f"message.{attribute}"), wanted))
    return conditions


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
        conditions.append((user_property(name), value))
    return conditions


def _is_equal(value: object, wanted: Value) -> bool:
    if type(value) is str and type(wanted) is str:
        return value == wanted
    try:
        return compare("=", value, wanted, "correlation")
    except FilterError:
        return False
