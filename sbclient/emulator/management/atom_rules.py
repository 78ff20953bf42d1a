"""The elements of rules, filters and actions in the management documents.

Source: the recorded answers of the service. `i:type` names the kind of a filter or an action. A TrueFilter is the SQL
`1=1`, and a FalseFilter `1=0`. An answer to GET has the parameters of SQL also if there are none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sbclient.emulator.management.atom_values import read_any, read_flag, write_any, write_flag
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
from sbclient.formats.iso8601 import write_timestamp

XML_SCHEMA: Final = "http://www.w3.org/2001/XMLSchema"
SERIALIZATION: Final = "http://schemas.microsoft.com/2003/10/Serialization/"
"""The schema of durations in the documents of .NET."""

_COMPATIBILITY = tag("CompatibilityLevel", "20")
CORRELATION_ELEMENTS: Final = {name.title().replace("_", ""): name for name in CORRELATION_FIELDS}
"""The attribute of a correlation filter that each element sets."""


def read_rule(parts: Mapping[str, Element], name: str) -> RuleProperties:
    """The rule in the elements of a RuleDescription, by name.

    Raises:
        InvalidOperationError: the filter is missing, or the kind or a value of filter or action is not valid.
    """
    chosen, action = parts.get("Filter"), parts.get("Action")
    if chosen is None:
        raise InvalidOperationError(f"rule {name!r} has no Filter: give one, a TrueFilter accepts every message")
    return RuleProperties(name, _read_filter(chosen, name), None if action is None else _read_action(action, name))


def write_rule(rule: RuleProperties, *, is_change: bool) -> list[str]:
    """The elements of a RuleDescription.

    Args:
        is_change: whether the answer is to a creation or an update.
    """
    return [
        _write_filter(rule.filter, is_change=is_change),
        _write_action(rule.action, is_change=is_change),
        text_tag("CreatedAt", write_timestamp(rule.created_at_utc or NEVER)),
        text_tag("Name", rule.name),
    ]


def _read_filter(element: Element, name: str) -> RuleFilter:
    kind = element.type_name
    if kind == "TrueFilter":
        return TrueRuleFilter()
    if kind == "FalseFilter":
        return FalseRuleFilter()
    if kind == "SqlFilter":
        return SqlRuleFilter(*_read_sql(element, name))
    if kind == "CorrelationFilter":
        fields: dict[str, Any] = {
            attribute: found.text or None
            for child, attribute in CORRELATION_ELEMENTS.items()
            if (found := element.child(child)) is not None
        }
        return CorrelationRuleFilter(**fields, properties=_read_values(element.child("Properties")) or None)
    raise InvalidOperationError(
        f"the Filter of rule {name!r} has type {kind[:64]!r}: "
        "give CorrelationFilter, SqlFilter, TrueFilter or FalseFilter"
    )


def _read_action(element: Element, name: str) -> SqlRuleAction | None:
    kind = element.type_name
    if kind in ("EmptyRuleAction", ""):
        return None
    if kind == "SqlRuleAction":
        return SqlRuleAction(*_read_sql(element, name))
    raise InvalidOperationError(
        f"the Action of rule {name!r} has type {kind[:64]!r}: give SqlRuleAction or EmptyRuleAction"
    )


def _read_sql(element: Element, name: str) -> tuple[str, dict[str, Any] | None, bool | None]:
    expression, flag = element.child("SqlExpression"), element.child("RequiresPreprocessing")
    if expression is None or not expression.text.strip():
        raise InvalidOperationError(f"the {element.name} of rule {name!r} has no SqlExpression: give one")
    is_preprocessed = None if flag is None else read_flag(flag.text)
    return expression.text, _read_values(element.child("Parameters")), is_preprocessed


def _read_values(element: Element | None) -> dict[str, Any] | None:
    if element is None:
        return None
    values: dict[str, Any] = {}
    for pair in element.all("KeyValueOfstringanyType"):
        key, value = pair.child("Key"), pair.child("Value")
        if key is None or value is None:
            raise InvalidOperationError(f"an entry of {element.name} has no Key or no Value: give both")
        values[key.text] = read_any(value.type_name or "string", value.text)
    return values


def _write_filter(chosen: RuleFilter, *, is_change: bool) -> str:
    if isinstance(chosen, CorrelationRuleFilter):
        elements = [
            text_tag(name, value)
            for name, attribute in CORRELATION_ELEMENTS.items()
            if (value := getattr(chosen, attribute)) is not None
        ]
        return tag("Filter", [*elements, _write_values("Properties", chosen.properties)], i_type="CorrelationFilter")
    if isinstance(chosen, SqlRuleFilter):
        return tag("Filter", _write_sql(chosen, is_change=is_change), i_type="SqlFilter")
    kind, expression = ("TrueFilter", "1=1") if isinstance(chosen, TrueRuleFilter) else ("FalseFilter", "1=0")
    return tag("Filter", [text_tag("SqlExpression", expression), _COMPATIBILITY], i_type=kind)


def _write_action(action: SqlRuleAction | None, *, is_change: bool) -> str:
    if action is None:
        return tag("Action", i_type="EmptyRuleAction")
    return tag("Action", _write_sql(action, is_change=is_change), i_type="SqlRuleAction")


def _write_sql(sql: SqlRuleFilter | SqlRuleAction, *, is_change: bool) -> list[str]:
    flag, parameters = sql.requires_preprocessing, sql.parameters
    return [
        text_tag("SqlExpression", sql.sql_expression),
        _COMPATIBILITY,
        "" if flag is None else tag("RequiresPreprocessing", write_flag(flag)),
        _write_values("Parameters", parameters) or ("" if is_change and parameters is None else tag("Parameters")),
    ]


def _write_values(name: str, values: Mapping[str, Any] | None) -> str:
    pairs = []
    for key, value in (values or {}).items():
        kind, text = write_any(value)
        schema = SERIALIZATION if kind == "duration" else XML_SCHEMA
        element = text_tag("Value", text, i_type=f"d6p1:{kind}", xmlns_d6p1=schema)
        pairs.append(tag("KeyValueOfstringanyType", [text_tag("Key", key), element]))
    return tag(name, pairs) if pairs else ""
