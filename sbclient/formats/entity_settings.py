"""Settings of entities as text by name: the form of `sbclient admin --set` and of the control API of the emulator.

A rule has `sql` and `action`, or the fields of a correlation filter: `correlation_id`, `property.country` for text and
`property.price:` for JSON. An empty text of a setting without a default, such as `forward_to`, stands for none.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import replace
from datetime import timedelta
from enum import Enum
from typing import Any, Final

from sbclient.entities import (
    CORRELATION_FIELDS,
    PROPERTIES_OF,
    SETTINGS,
    UNLIMITED,
    CorrelationRuleFilter,
    EntityKind,
    EntityProperties,
    FalseRuleFilter,
    RuleFilter,
    RuleProperties,
    SqlRuleAction,
    SqlRuleFilter,
    TrueRuleFilter,
    kind_of,
    settings_of,
)
from sbclient.errors import InvalidOperationError
from sbclient.formats.message_json import PROPERTY, TYPED, property_json, property_named, read_duration
from sbclient.settings.durations import duration_text
from sbclient.settings.table import suggestion

NOT_SET_AS_TEXT: Final = ("authorization_rules", *(name for name, each in SETTINGS.items() if each.is_answer))
_WANTED: Final[Mapping[type[Any], str]] = {
    bool: "true or false",
    int: "a whole number",
    timedelta: "a duration such as 30s, 5m, 2h, 7d, PT30S, or unlimited",
}
_SQL_OF: Final[Mapping[type[Any], str]] = {TrueRuleFilter: "1=1", FalseRuleFilter: "1=0"}


def described(kind: EntityKind, name: str, settings: Iterable[tuple[str, str]]) -> EntityProperties:
    """Return the description of a new entity.

    Raises:
        InvalidOperationError: a setting does not exist, or its text is not a value of it.
    """
    properties: EntityProperties = PROPERTIES_OF[kind](name)
    return with_settings(properties, settings)


def with_settings(properties: EntityProperties, settings: Iterable[tuple[str, str]]) -> EntityProperties:
    """Return a copy of a description with other values for some settings. A filter of a rule is replaced as a whole.

    Raises:
        InvalidOperationError: a setting does not exist, or its text is not a value of it.
    """
    if isinstance(properties, RuleProperties):
        return replace(properties, **_rule_values(properties, settings))
    kind = kind_of(properties)
    types, changed = settings_of(kind), copy(properties)
    for name, text in settings:
        if name not in types:
            raise InvalidOperationError(f"a {kind} has no setting {name!r}: {suggestion(name, types)}")
        setattr(changed, name, _value(name, text, types[name]))
    return changed


def settings_text(properties: EntityProperties) -> dict[str, str]:
    """Return the text of each setting that can be given; "" for none."""
    if isinstance(properties, RuleProperties):
        return _rule_text(properties)
    names = (name for name in settings_of(kind_of(properties)) if name not in NOT_SET_AS_TEXT)
    return {name: value_text(getattr(properties, name)) for name in names}


def _value(name: str, text: str, kind: type[Any]) -> Any:
    if not text and SETTINGS[name].default is None and name not in NOT_SET_AS_TEXT:
        return None
    try:
        if kind is bool:
            return {"true": True, "false": False}[text.lower()]
        if kind is int:
            return int(text)
        if kind is timedelta:
            return read_duration(text)
        if issubclass(kind, Enum):
            return _member(kind, text)
    except (KeyError, ValueError) as error:
        wanted = _WANTED.get(kind) or "one of " + ", ".join(str(each.value) for each in kind)
        raise InvalidOperationError(f"{name} is {text!r}: it must be {wanted}") from error
    if kind is str:
        return text
    raise InvalidOperationError(f"{name} cannot be set as text")


def _member(kind: type[Enum], text: str) -> Enum:
    """Return the member with that value, as the service writes it, or with that name, as azure.servicebus does.

    Raises:
        ValueError: no member matches.
    """
    wanted = text.casefold()
    for each in kind:
        if wanted in (str(each.value).casefold(), each.name.casefold()):
            return each
    return kind(text)


def value_text(value: Any) -> str:
    """Return the text of a value of a setting; "" for none."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, timedelta):
        return "unlimited" if value == UNLIMITED else duration_text(value.total_seconds())
    return str(value)


def _rule_values(before: RuleProperties, settings: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Return the filter and action of `sql=…`, `action=…`, or `correlation_id=…`, `property.country=…` and so on."""
    values: dict[str, Any] = {}
    correlation: dict[str, Any] = {}
    rule_filter: RuleFilter | None = None
    for name, text in settings:
        if name == "sql":
            parameters = before.filter.parameters if isinstance(before.filter, SqlRuleFilter) else None
            rule_filter = SqlRuleFilter(text, parameters)
        elif name == "action":
            parameters = None if before.action is None else before.action.parameters
            values["action"] = SqlRuleAction(text, parameters) if text else None
        elif name in CORRELATION_FIELDS:
            correlation[name] = text or None
        elif name.startswith(PROPERTY):
            property_name, value = property_named(name, text)
            correlation.setdefault("properties", {})[property_name] = value
        else:
            known = ("sql", "action", *CORRELATION_FIELDS, f"{PROPERTY}<name>")
            raise InvalidOperationError(f"a rule has no setting {name!r}: {suggestion(name, known)}")
    if correlation:
        if rule_filter is not None:
            raise InvalidOperationError("a rule has either an sql or a correlation filter: give one of them")
        rule_filter = CorrelationRuleFilter(**correlation)
    return values | ({"filter": rule_filter} if rule_filter is not None else {})


def _rule_text(rule: RuleProperties) -> dict[str, str]:
    action = {"action": "" if rule.action is None else rule.action.sql_expression}
    condition = rule.filter
    if isinstance(condition, SqlRuleFilter):
        return {"sql": condition.sql_expression} | action
    if not isinstance(condition, CorrelationRuleFilter):
        return {"sql": _SQL_OF[type(condition)]} | action
    texts = {name: value for name in CORRELATION_FIELDS if (value := getattr(condition, name)) is not None}
    for name, value in (condition.properties or {}).items():
        is_text = isinstance(value, str) and not name.endswith(TYPED)
        texts[PROPERTY + name + TYPED * (not is_text)] = value if is_text else json.dumps(property_json(value))
    return texts | action
