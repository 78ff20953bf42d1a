"""The elements of rules, filters and actions in the management documents.

Source: the documents of the service. `i:type` names the kind of a filter or an action. A TrueFilter is the SQL `1=1`,
and a FalseFilter `1=0`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sbclient.emulator.management.atom_values import read_any, write_any
from sbclient.emulator.management.xml import Element, tag, text_tag
from sbclient.entities import (
    CORRELATION_FIELDS,
    NEVER,
    CorrelationRuleFilter,
    FalseRuleFilter,
    RuleFilter,
    RuleProperties,
    SqlRuleAction,
    SqlRuleFilter,
    TrueRuleFilter,
)
from sbclient.errors import InvalidOperationError
from sbclient.iso8601 import write_timestamp

XML_SCHEMA: Final = "http://www.w3.org/2001/XMLSchema"

_COMPATIBILITY = tag("CompatibilityLevel", "20")
CORRELATION_ELEMENTS: Final = {name.title().replace("_", ""): name for name in CORRELATION_FIELDS}
"""The attribute of a correlation filter that each element sets."""


def read_rule(element: Element, name: str) -> RuleProperties:
    """The rule in a RuleDescription.

    Raises:
        InvalidOperationError: the filter is missing, or the kind or a value of filter or action is not valid.
    """
    chosen, action = element.child("Filter"), element.child("Action")
    if chosen is None:
        raise InvalidOperationError(f"rule {name!r} has no Filter: give one, a TrueFilter accepts every message")
    return RuleProperties(name, _read_filter(chosen, name), None if action is None else _read_action(action, name))


def write_rule(rule: RuleProperties, **attributes: str) -> str:
    """A RuleDescription with these attributes."""
    return tag(
        "RuleDescription",
        [
            _write_filter(rule.filter),
            _write_action(rule.action),
            text_tag("CreatedAt", write_timestamp(rule.created_at_utc or NEVER)),
            text_tag("Name", rule.name),
        ],
        **attributes,
    )


def _read_filter(element: Element, name: str) -> RuleFilter:
    kind = element.type_name
    if kind == "TrueFilter":
        return TrueRuleFilter()
    if kind == "FalseFilter":
        return FalseRuleFilter()
    if kind == "SqlFilter":
        return SqlRuleFilter(_expression(element, name), _read_values(element.child("Parameters")))
    if kind == "CorrelationFilter":
        fields: dict[str, Any] = {
            attribute: found.text or None
            for child, attribute in CORRELATION_ELEMENTS.items()
            if (found := element.child(child)) is not None
        }
        return CorrelationRuleFilter(**fields, properties=_read_values(element.child("Properties")))
    raise InvalidOperationError(
        f"the Filter of rule {name!r} has type {kind[:64]!r}: "
        "give CorrelationFilter, SqlFilter, TrueFilter or FalseFilter"
    )


def _read_action(element: Element, name: str) -> SqlRuleAction | None:
    kind = element.type_name
    if kind in ("EmptyRuleAction", ""):
        return None
    if kind == "SqlRuleAction":
        return SqlRuleAction(_expression(element, name), _read_values(element.child("Parameters")))
    raise InvalidOperationError(
        f"the Action of rule {name!r} has type {kind[:64]!r}: give SqlRuleAction or EmptyRuleAction"
    )


def _expression(element: Element, name: str) -> str:
    expression = element.child("SqlExpression")
    if expression is None or not expression.text.strip():
        raise InvalidOperationError(f"the {element.name} of rule {name!r} has no SqlExpression: give one")
    return expression.text


def _read_values(element: Element | None) -> dict[str, Any] | None:
    if element is None or not element.children:
        return None
    values: dict[str, Any] = {}
    for pair in element.all("KeyValueOfstringanyType"):
        key, value = pair.child("Key"), pair.child("Value")
        if key is None or value is None:
            raise InvalidOperationError(f"an entry of {element.name} has no Key or no Value: give both")
        values[key.text] = read_any(value.type_name or "string", value.text)
    return values


def _write_filter(chosen: RuleFilter) -> str:
    if isinstance(chosen, CorrelationRuleFilter):
        elements = [
            text_tag(name, value)
            for name, attribute in CORRELATION_ELEMENTS.items()
            if (value := getattr(chosen, attribute)) is not None
        ]
        return tag("Filter", [*elements, _write_values("Properties", chosen.properties)], i_type="CorrelationFilter")
    if isinstance(chosen, SqlRuleFilter):
        return _write_sql("Filter", "SqlFilter", chosen.sql_expression, chosen.parameters)
    if isinstance(chosen, TrueRuleFilter):
        return _write_sql("Filter", "TrueFilter", "1=1", None)
    return _write_sql("Filter", "FalseFilter", "1=0", None)


def _write_action(action: SqlRuleAction | None) -> str:
    if action is None:
        return tag("Action", i_type="EmptyRuleAction")
    return _write_sql("Action", "SqlRuleAction", action.sql_expression, action.parameters)


def _write_sql(name: str, kind: str, expression: str, parameters: Mapping[str, Any] | None) -> str:
    inner = [text_tag("SqlExpression", expression), _COMPATIBILITY, _write_values("Parameters", parameters)]
    return tag(name, inner, i_type=kind)


def _write_values(name: str, values: Mapping[str, Any] | None) -> str:
    pairs = []
    for key, value in (values or {}).items():
        kind, text = write_any(value)
        element = text_tag("Value", text, i_type=f"d6p1:{kind}", xmlns_d6p1=XML_SCHEMA)
        pairs.append(tag("KeyValueOfstringanyType", [text_tag("Key", key), element]))
    return tag(name, pairs) if pairs else ""
