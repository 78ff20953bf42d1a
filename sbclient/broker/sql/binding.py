"""Resolves the names in an expression: the parameters of its rule, and system properties."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sbclient.broker.sql.properties import SYSTEM_PROPERTIES, SystemProperty
from sbclient.broker.sql.syntax import Constant, Node, Parameter, Position, Property, Sign, refused
from sbclient.broker.sql.values import FilterError, Value, checked, signed
from sbclient.errors import InvalidOperationError

VARYING: Final = object()
"""Stands for the value of an expression that depends on the message."""


class Binding:
    """The parameters of one expression, and its kind for error texts.

    Args:
        kind: `"filter"` or `"action"`.
        parameters: their values by name; names are case-insensitive, with or without `@`.

    Raises:
        InvalidOperationError: a value has a type that the language lacks, or two names are equal.
    """

    def __init__(self, kind: str, parameters: Mapping[str, Any] | None = None) -> None:
        self.kind = kind
        self._parameters: dict[str, Value] = {}
        for given, value in (parameters or {}).items():
            name = given.removeprefix("@").lower()
            if name in self._parameters:
                raise InvalidOperationError(f"the {kind} has two values for the parameter @{name}: remove one")
            try:
                self._parameters[name] = checked(value)
            except ValueError as error:
                raise InvalidOperationError(f"the parameter @{name} of the {kind} is refused: {error}") from error

    def refused(self, position: Position, reason: str) -> InvalidOperationError:
        """Return the error for an invalid part of the expression."""
        return refused(self.kind, position, reason)

    def parameter(self, node: Parameter) -> Value:
        """Return the value of a parameter.

        Raises:
            InvalidOperationError: it has none.
        """
        try:
            return self._parameters[node.name]
        except KeyError:
            given = ", ".join(f"@{name}" for name in self._parameters) or "none"
            raise self.refused(node.position, f"the parameter {node} has no value, given are: {given}") from None

    def system_property(self, node: Property) -> SystemProperty:
        """Return the entry of a system property.

        Raises:
            InvalidOperationError: it does not exist.
        """
        found = SYSTEM_PROPERTIES.get(node.name.lower())
        if found is None:
            known = ", ".join(each.name for each in SYSTEM_PROPERTIES.values())
            raise self.refused(node.position, f"there is no system property {node}, there are: {known}")
        return found

    def constant(self, node: Node) -> Any:
        """Return the value of an expression if it is the same for all messages, else `VARYING`."""
        match node:
            case Constant(value):
                return value
            case Parameter():
                return self.parameter(node)
            case Sign(symbol, operand):
                value = self.constant(operand)
                if value is None or value is VARYING:
                    return value
                try:
                    return signed(symbol, value, str(node))
                except FilterError:  # raised again for each message
                    return VARYING
        return VARYING
