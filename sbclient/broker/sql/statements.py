"""Compiles the statements of an action into Python functions, which change each copy of a message.

Rules:

1. Statements run in order; each one sees the changes of the earlier ones.
2. SET converts the value to the type of the property if possible, else the value keeps its type (documented: "implicit
   conversion if possible"). A null or unknown value makes the property null.
3. SET keeps the spelling of an existing user property. REMOVE removes all spellings and ignores a missing property.
4. A read-only system property is an error when the rule is created.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Final, TypeAlias

from sbclient.broker.sql.binding import Binding
from sbclient.broker.sql.expressions import expression
from sbclient.broker.sql.properties import SYSTEM_PROPERTIES, Scope, key_of
from sbclient.broker.sql.syntax import Assignment, Property, Removal, Statements
from sbclient.broker.sql.values import FilterError, Value, converted, describe, kind_of
from sbclient.errors import InvalidOperationError
from sbclient.message import PropertyValue

Change: TypeAlias = Callable[[Scope], None]
"""Changes the message of a scope in place; raises `FilterError` if a value cannot be stored."""

_KINDS: Final[dict[str, type]] = {"scheduled_enqueue_time_utc": datetime, "time_to_live": timedelta}
"""The types of the attributes that are not text."""


def changes(statements: Statements, binding: Binding) -> tuple[Change, ...]:
    """Return a function for each statement, in order.

    Raises:
        InvalidOperationError: a property or parameter does not exist, or a property is read-only.
    """
    return tuple(_change(statement, binding) for statement in statements.statements)


def _change(statement: Assignment | Removal, binding: Binding) -> Change:
    target = statement.target
    if isinstance(statement, Removal):
        return _clear(_attribute(target, binding)) if target.is_system else _remove(target.name)
    if target.is_system:
        return _assign(statement, _attribute(target, binding), binding)
    return _set(statement, binding)


def _attribute(target: Property, binding: Binding) -> str:
    """Return the attribute of the message for a system property that can be set."""
    found = binding.system_property(target)
    if found.attribute is None:
        settable = ", ".join(each.name for each in SYSTEM_PROPERTIES.values() if each.attribute is not None)
        raise binding.refused(target.position, f"{target} is read-only, an action may change: {settable}")
    return found.attribute


def _set(statement: Assignment, binding: Binding) -> Change:
    name, value_of, where = statement.target.name, expression(statement.value, binding), str(statement)

    def change(scope: Scope) -> None:
        key = key_of(scope, name)
        old = None if key is None else scope.properties[key]
        scope.properties[name if key is None else key] = _stored(value_of(scope), old, where)

    return change


def _stored(value: Value, old: PropertyValue, where: str) -> PropertyValue:
    if value is not None and old is not None:
        with suppress(ValueError):
            value = converted(value, kind_of(old))
    if isinstance(value, timedelta):
        raise FilterError(f"{where}: {describe(value)} cannot be stored in a user property")
    return value


def _remove(name: str) -> Change:
    lowered = name.lower()

    def change(scope: Scope) -> None:
        scope.steps.spend(len(scope.properties))
        for key in [key for key in scope.properties if key.lower() == lowered]:
            del scope.properties[key]

    return change


def _assign(statement: Assignment, attribute: str, binding: Binding) -> Change:
    value_of, kind, where = expression(statement.value, binding), _KINDS.get(attribute, str), str(statement)

    def change(scope: Scope) -> None:
        value = value_of(scope)
        try:
            setattr(scope.message, attribute, None if value is None else converted(value, kind))
        except (ValueError, InvalidOperationError) as error:
            raise FilterError(f"{where}: {error}") from error

    return change


def _clear(attribute: str) -> Change:
    def change(scope: Scope) -> None:
        setattr(scope.message, attribute, None)

    return change
