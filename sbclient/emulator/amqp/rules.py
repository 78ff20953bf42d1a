"""The AMQP form of the rules of a subscription: a map when one is added, described lists when they are listed.

Source: the service's documented request-response operations.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sbclient.amqp import servicebus
from sbclient.amqp.types import Described, ULong
from sbclient.emulator.amqp.conditions import ArgumentError
from sbclient.entities import (
    CORRELATION_FIELDS,
    CorrelationRuleFilter,
    FalseRuleFilter,
    RuleFilter,
    RuleProperties,
    SqlRuleAction,
    SqlRuleFilter,
    TrueRuleFilter,
)

RULE: Final = 0x13700000004
EMPTY_ACTION: Final = 0x13700000005
SQL_ACTION: Final = 0x13700000006
SQL_FILTER: Final = 0x1370000006
TRUE_FILTER: Final = 0x1370000007
FALSE_FILTER: Final = 0x1370000008
CORRELATION_FILTER: Final = 0x1370000009
"""The descriptor of each list."""

_SQL_COMPATIBILITY_LEVEL: Final = 20


def rule_of(name: str, description: Any) -> RuleProperties:
    """The rule that a map describes.

    Raises:
        ArgumentError: the description is not a map, or has no filter.
    """
    if not isinstance(description, Mapping):
        raise ArgumentError(f"the description of rule {name!r} is a {type(description).__name__}: give a map")
    return RuleProperties(
        name, _filter_of(name, description), _action_of(name, description.get(servicebus.SQL_RULE_ACTION))
    )


def described(rule: RuleProperties) -> dict[str, Any]:
    """A rule as an entry of the list of rules."""
    action: Any = Described(ULong(EMPTY_ACTION), [])
    if rule.action is not None:
        action = Described(ULong(SQL_ACTION), [rule.action.sql_expression, _SQL_COMPATIBILITY_LEVEL])
    fields = [_described_filter(rule.filter), action, rule.name, rule.created_at_utc]
    return {servicebus.RULE_DESCRIPTION: Described(ULong(RULE), fields)}


def _filter_of(name: str, description: Mapping[str, Any]) -> RuleFilter:
    sql, correlation = description.get(servicebus.SQL_FILTER), description.get(servicebus.CORRELATION_FILTER)
    if isinstance(sql, Mapping):
        return SqlRuleFilter(_expression(f"the filter of rule {name!r}", sql))
    if isinstance(correlation, Mapping):
        keys = {field: field.replace("_", "-") for field in CORRELATION_FIELDS}
        fields = {field: _text(name, key, correlation.get(key)) for field, key in keys.items()}
        properties = correlation.get(servicebus.PROPERTIES)
        if properties is not None and not isinstance(properties, Mapping):
            raise ArgumentError(f"the properties in the filter of rule {name!r} are not a map: give names and values")
        return CorrelationRuleFilter(properties=dict(properties or {}) or None, **fields)
    if servicebus.TRUE_FILTER in description:
        return TrueRuleFilter()
    if servicebus.FALSE_FILTER in description:
        return FalseRuleFilter()
    raise ArgumentError(f"rule {name!r} has no filter: give a sql-filter or a correlation-filter, each a map")


def _action_of(name: str, action: Any) -> SqlRuleAction | None:
    if action is None:
        return None
    if not isinstance(action, Mapping):
        raise ArgumentError(f"the action of rule {name!r} is a {type(action).__name__}: give a map with expression")
    return SqlRuleAction(_expression(f"the action of rule {name!r}", action))


def _expression(what: str, found: Mapping[str, Any]) -> str:
    expression = found.get(servicebus.EXPRESSION)
    if not isinstance(expression, str):
        raise ArgumentError(f"{what} has no expression: give one, a string")
    return expression


def _text(name: str, key: str, value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise ArgumentError(f"{key} in the filter of rule {name!r} is a {type(value).__name__}: give a string")
    return value


def _described_filter(rule_filter: RuleFilter) -> Described:
    if isinstance(rule_filter, TrueRuleFilter):
        return Described(ULong(TRUE_FILTER), [])
    if isinstance(rule_filter, FalseRuleFilter):
        return Described(ULong(FALSE_FILTER), [])
    if isinstance(rule_filter, SqlRuleFilter):
        return Described(ULong(SQL_FILTER), [rule_filter.sql_expression, _SQL_COMPATIBILITY_LEVEL])
    fields = [getattr(rule_filter, field) for field in CORRELATION_FIELDS]
    return Described(ULong(CORRELATION_FILTER), [*fields, rule_filter.properties or {}])
